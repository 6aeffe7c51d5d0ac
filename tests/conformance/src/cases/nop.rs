//! NOP: a request's way through the ring, shown by an operation without effects.

use super::prelude::*;

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/nop.c");

#[case]
fn completes_with_zero(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop()), 0);
}

#[case]
fn user_data_comes_back_whole(cx: &Context) {
    let mut ring = cx.ring(4);
    for user_data in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
        ring.go(sqe::nop().data(user_data));
        assert_eq!(ring.wait().user_data, user_data);
    }
}

#[case]
fn cqe_flags_are_zero(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go(sqe::nop());
    assert_eq!(ring.wait().flags, 0);
}

#[case(since = "5.6")]
fn async_nop_completes(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().with(IOSQE_ASYNC)), 0);
}

#[case]
fn many_in_one_submission_keep_their_order(cx: &Context) {
    let mut ring = cx.ring(64);
    ring.go_all(&(0..64).map(|n| sqe::nop().data(n)).collect::<Vec<_>>());
    assert_eq!(ring.wait_ordered(64), (0..64).map(|n| (n, 0)).collect::<Vec<_>>());
}

#[case]
fn fills_the_sq_again_and_again(cx: &Context) {
    let mut ring = cx.ring(4);
    for round in 0..50 {
        ring.go_all(&[0, 1, 2, 3].map(|n| sqe::nop().data(round * 4 + n)));
        assert_eq!(ring.wait_all(4).last().map(|cqe| cqe.user_data), Some(round * 4 + 3));
    }
    assert_eq!(ring.sq_head(), 200);
}

#[case(since = "6.10")]
fn injects_a_result(cx: &Context) {
    let inject = Sqe { len: 77, ..sqe::nop() }.op_flags(IORING_NOP_INJECT_RESULT);
    assert_eq!(cx.ring(4).run(inject), 77);
}

#[case]
fn unknown_nop_flag_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().op_flags(1 << 20)), -EINVAL);
}

#[case]
fn unknown_opcode_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    for opcode in [200, 255] {
        assert_eq!(ring.run(Sqe { opcode, ..Sqe::default() }.data(9)), -EINVAL, "opcode {opcode}");
    }
}

#[case]
fn unknown_sqe_flag_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().with(0x80)), -EINVAL);
}

#[case]
fn buffer_select_on_nop_is_eopnotsupp(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().with(IOSQE_BUFFER_SELECT)), -EOPNOTSUPP);
}

#[case]
fn personality_that_is_not_registered_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(Sqe { personality: 7, ..sqe::nop() }), -EINVAL);
}

#[case]
fn nop_ignores_len_addr_and_off(cx: &Context) {
    assert_eq!(cx.ring(4).run(Sqe { len: 5, addr: 6, off: 7, file_index: 8, addr3: 9, ..sqe::nop() }), 0);
}

#[case]
fn ioprio_on_nop_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().ioprio(1)), -EINVAL);
}

#[case]
fn nop_file_with_bad_fd_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().op_flags(IORING_NOP_FILE)), -EBADF);
}

#[case(since = "6.13")]
fn nop_file_with_good_fd(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(Sqe { fd: fd(&reader), ..sqe::nop() }.op_flags(IORING_NOP_FILE)), 0);
}

#[case]
fn nop_fixed_file_without_table_is_ebadf(cx: &Context) {
    let nop = Sqe { fd: 0, ..sqe::nop() }.op_flags(IORING_NOP_FILE | IORING_NOP_FIXED_FILE);
    assert_eq!(cx.ring(4).run(nop), -EBADF);
}

#[case]
fn nop_with_fixed_file_flag_needs_no_table(cx: &Context) {
    assert_eq!(cx.ring(4).run(Sqe { fd: 3, ..sqe::nop() }.with(IOSQE_FIXED_FILE)), 0);
}

#[case(since = "6.13")]
fn nop_file_with_fixed_file_flag_is_registered(cx: &Context) {
    let (mut ring, (reader, _writer)) = (cx.ring(4), pipe());
    let nop = |number| Sqe { fd: number, ..sqe::nop() }.op_flags(IORING_NOP_FILE).with(IOSQE_FIXED_FILE);
    assert_eq!(ring.run(nop(fd(&reader))), -EBADF, "no table");
    ring.register_files(&[-1, fd(&reader)]);
    assert_eq!([nop(0), nop(1), nop(fd(&reader) + 2)].map(|nop| ring.run(nop)), [-EBADF, 0, -EBADF]);
}

#[case]
fn nop_fixed_buffer_without_table_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().op_flags(IORING_NOP_FIXED_BUFFER)), -EFAULT);
}

#[case(since = "6.13")]
fn nop_fixed_file_and_buffer_that_are_there(cx: &Context) {
    let (mut ring, (reader, _writer), mut bytes) = (cx.ring(4), pipe(), [0; 8]);
    ring.register_files(&[-1, fd(&reader)]);
    let vector = iovec_mut(&mut bytes);
    assert_eq!(ring.register(IORING_REGISTER_BUFFERS, &raw const vector as usize, 1), 0);
    let flags = IORING_NOP_FILE | IORING_NOP_FIXED_FILE | IORING_NOP_FIXED_BUFFER | IORING_NOP_INJECT_RESULT;
    let nop = Sqe { fd: 1, len: 5, ..sqe::nop() }.op_flags(flags);
    assert_eq!(ring.run(nop), 5);
    assert_eq!(ring.run(Sqe { fd: 0, ..nop }), -EBADF, "an empty slot");
    assert_eq!(ring.run(nop.buffer(1)), -EFAULT);
    assert_eq!(ring.run(nop.with(IOSQE_ASYNC)), 5);
    assert_eq!(ring.run(nop.with(IOSQE_ASYNC).buffer(1)), -EFAULT);
}

#[case(since = "6.13")]
fn nop_fixed_file_flag_alone_is_nothing(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().op_flags(IORING_NOP_FIXED_FILE)), 0);
}

#[case]
fn nop_that_fails_breaks_its_chain(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[sqe::nop().op_flags(IORING_NOP_FILE).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -EBADF), (2, -ECANCELED)]);
}

#[case(since = "6.15")]
fn nop_by_task_work_comes_after_the_others(cx: &Context) {
    let mut ring = cx.ring(4);
    let late = Sqe { len: 3, ..sqe::nop() }.op_flags(IORING_NOP_TW | IORING_NOP_INJECT_RESULT);
    ring.go_all(&[late.data(1), sqe::nop().data(2)]);
    assert_eq!(ring.cq_ready(), if cx.flag_set.flags & IORING_SETUP_DEFER_TASKRUN != 0 { 1 } else { 2 });
    assert_eq!(ring.wait_ordered(2), [(2, 0), (1, 3)]);
}

#[case(own_flags, since = "5.19")]
fn cqe32_extra_words_are_zero(cx: &Context) {
    let mut ring = cx.ring_with(4, IORING_SETUP_CQE32);
    ring.go_all(&[sqe::nop().data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
    // Each CQE's four extra words follow its first four.
    for slot in 0..2 {
        let extra = ring.params.cq_off.cqes + slot * 32 + 16;
        assert_eq!([0, 4, 8, 12].map(|offset| ring.word_at(extra + offset)), [0; 4]);
    }
}
