//! IORING_REGISTER_RESIZE_RINGS: another size for a ring, which keeps its entries.

use super::prelude::*;

topic!(since: "6.13", source: "io_uring_resize_rings(3), io_uring/register.c");

const DEFERRED: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/// Flags that change where entries are.
const SHAPES: &[u32] = &[
    0,
    IORING_SETUP_NO_SQARRAY,
    IORING_SETUP_SQE128,
    IORING_SETUP_CQE32,
    IORING_SETUP_CQE_MIXED,
    IORING_SETUP_NO_MMAP,
];

/// A ring of 8 with three CQEs and, not submitted, three SQEs.
fn filled(cx: &Context, shape: u32) -> Ring {
    let mut ring = cx.ring_with(8, DEFERRED | shape);
    ring.go_all(&[1, 2, 3].map(|n| sqe::nop().data(n)));
    for n in 4..7 {
        ring.push(sqe::nop().data(n));
    }
    ring.publish();
    ring
}

/// Returns all requests of the ring: those with a CQE, then those that it still submits.
fn empties(mut ring: Ring) -> Vec<u64> {
    assert_eq!(ring.cq_ready(), 3);
    assert_eq!(ring.enter(3, 3, IORING_ENTER_GETEVENTS, 0, 0), 3);
    ring.wait_all(6).iter().map(|cqe| cqe.user_data).collect()
}

#[case(own_flags, since = "6.18")]
fn grows_with_sqes_and_cqes_in_it(cx: &Context) {
    for shape in SHAPES {
        let mut ring = filled(cx, *shape);
        assert_eq!(ring.resize(64, 0, 0), 0, "{shape:#x}");
        assert_eq!((ring.params.sq_entries, ring.params.cq_entries), (64, 128));
        assert_eq!((ring.sq_head(), ring.cq_positions()), (3, (0, 3)));
        assert_eq!(empties(ring), [1, 2, 3, 4, 5, 6], "{shape:#x}");
    }
}

#[case(own_flags, since = "6.18")]
fn shrinks_with_sqes_and_cqes_in_it(cx: &Context) {
    for shape in SHAPES {
        let mut ring = filled(cx, *shape);
        assert_eq!(ring.resize(4, 0, 0), 0, "{shape:#x}");
        assert_eq!((ring.params.sq_entries, ring.params.cq_entries), (4, 8));
        assert_eq!(empties(ring), [1, 2, 3, 4, 5, 6], "{shape:#x}");
    }
}

#[case(own_flags)]
fn more_sqes_than_fit_are_eoverflow(cx: &Context) {
    let mut ring = filled(cx, 0);
    assert_eq!(ring.resize(2, 16, IORING_SETUP_CQSIZE) as i32, -EOVERFLOW);
    assert_eq!(empties(ring), [1, 2, 3, 4, 5, 6], "the ring is as it was");
}

#[case(own_flags)]
fn more_cqes_than_fit_are_eoverflow(cx: &Context) {
    let mut ring = cx.ring_with(8, DEFERRED);
    ring.go_all(&[1, 2, 3, 4, 5].map(|n| sqe::nop().data(n)));
    assert_eq!(ring.resize(2, 4, IORING_SETUP_CQSIZE) as i32, -EOVERFLOW);
    assert_eq!(ring.wait_all(5).len(), 5);
    assert_eq!(ring.resize(2, 4, IORING_SETUP_CQSIZE), 0);
    assert_eq!(ring.run(sqe::nop().data(6)), 0);
}

#[case(own_flags)]
fn tells_the_sizes_and_keeps_the_rest(cx: &Context) {
    let ring = cx.ring_with(4, DEFERRED | IORING_SETUP_CQE32);
    let mut params = Params { sq_entries: 5, wq_fd: 3, sq_thread_idle: 9, ..Params::default() };
    params.resv[1] = 1;
    assert_eq!(ring.register(IORING_REGISTER_RESIZE_RINGS, &raw mut params as usize, 1), 0);
    assert_eq!((params.sq_entries, params.cq_entries, params.flags), (8, 16, IORING_SETUP_CQE32));
    assert_eq!((params.wq_fd, params.sq_thread_idle, params.resv, params.features), (3, 9, [0, 1, 0], 0));
    assert_eq!((params.cq_off.cqes, params.cq_off.tail, params.sq_off.dropped), (64, 12, 32));
}

#[case(own_flags)]
fn entries_are_rounded_and_bounded(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    let resize = |ring: &mut Ring, entries, cq_entries, flags| ring.resize(entries, cq_entries, flags) as i32;
    assert_eq!(resize(&mut ring, 0, 0, 0), -EINVAL);
    assert_eq!(resize(&mut ring, 16, 8, IORING_SETUP_CQSIZE), -EINVAL, "fewer CQEs than SQEs");
    assert_eq!(resize(&mut ring, 1 << 20, 0, 0), -EINVAL);
    assert_eq!(resize(&mut ring, 5, 100, IORING_SETUP_CQSIZE), 0);
    assert_eq!((ring.params.sq_entries, ring.params.cq_entries), (8, 128));
    assert_eq!(resize(&mut ring, 1 << 20, 0, IORING_SETUP_CLAMP), 0);
    assert_eq!((ring.params.sq_entries, ring.params.cq_entries), (32768, 65536));
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case(own_flags)]
fn only_two_flags_may_be_given(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    for bit in 0..32 {
        let answer = ring.resize(8, 32, 1 << bit) as i32;
        let allowed = (IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP) & 1 << bit != 0;
        assert_eq!(answer, if allowed { 0 } else { -EINVAL }, "bit {bit}");
    }
}

#[case(own_flags)]
fn only_deferred_rings(cx: &Context) {
    for flags in [0, IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_COOP_TASKRUN, IORING_SETUP_SQPOLL] {
        assert_eq!(cx.ring_with(4, flags).resize(8, 0, 0) as i32, -EINVAL, "{flags:#x}");
    }
    assert_eq!(cx.ring_with(4, DEFERRED | IORING_SETUP_TASKRUN_FLAG).resize(8, 0, 0), 0);
}

#[case(own_flags)]
fn argument_is_one_structure(cx: &Context) {
    let ring = cx.ring_with(4, DEFERRED);
    let params = Params { sq_entries: 8, ..Params::default() };
    let resize = |address: u64, count| ring.register(IORING_REGISTER_RESIZE_RINGS, address as usize, count) as i32;
    assert_eq!(resize(address(&params), 0), -EINVAL);
    assert_eq!(resize(address(&params), 2), -EINVAL);
    assert_eq!(resize(0, 1), -EINVAL);
    assert_eq!(resize(bad_address(), 1), -EFAULT);
}

#[case(own_flags)]
fn another_thread_is_eexist(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    let answer = std::thread::scope(|scope| scope.spawn(|| ring.resize(8, 0, 0)).join().expect("the thread"));
    assert_eq!(answer as i32, -EEXIST);
}

#[case(own_flags)]
fn a_disabled_ring_too(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED | IORING_SETUP_R_DISABLED);
    assert_eq!(ring.resize(8, 0, 0), 0);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case(own_flags)]
fn restricted_ring_must_allow_it(cx: &Context) {
    for (allowed, answer) in [(IORING_REGISTER_RESIZE_RINGS, 0), (IORING_REGISTER_PROBE, -EACCES)] {
        let mut ring = cx.ring_with(4, DEFERRED | IORING_SETUP_R_DISABLED);
        let only = [IORING_RESTRICTION_REGISTER_OP as u16 as u32 | allowed << 16, 0, 0, 0];
        assert_eq!(ring.register(IORING_REGISTER_RESTRICTIONS, only.as_ptr() as usize, 1), 0);
        assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
        assert_eq!(ring.resize(8, 0, 0) as i32, answer);
    }
}

#[case(own_flags)]
fn overflow_is_kept(cx: &Context) {
    let mut ring = cx.ring_with(2, DEFERRED);
    for n in 0..7 {
        ring.go(sqe::nop().data(n));
    }
    assert_eq!(ring.resize(16, 0, 0), 0);
    assert_eq!((ring.cq_ready(), ring.sq_flags() & IORING_SQ_CQ_OVERFLOW), (4, IORING_SQ_CQ_OVERFLOW));
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!((ring.cq_ready(), ring.sq_flags() & IORING_SQ_CQ_OVERFLOW), (7, 0));
    assert_eq!(ring.wait_ordered(7), (0..7).map(|n| (n, 0)).collect::<Vec<_>>());
}

#[case(own_flags)]
fn cqes_that_wrap_keep_their_order(cx: &Context) {
    let mut ring = cx.ring_with(2, DEFERRED);
    for n in 0..6 {
        assert_eq!(ring.run(sqe::nop().data(n)), 0);
    }
    ring.go_all(&[sqe::nop().data(6), sqe::nop().data(7)]);
    ring.go(sqe::nop().data(8));
    assert_eq!(ring.resize(8, 0, 0), 0);
    assert_eq!(ring.cq_positions(), (6, 9));
    assert_eq!(ring.wait_ordered(3), [(6, 0), (7, 0), (8, 0)]);
}

#[case(own_flags)]
fn words_of_the_program_are_kept(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    ring.set_cq_flags(IORING_CQ_EVENTFD_DISABLED);
    ring.set_sq_array(0, 77);
    ring.push(sqe::nop());
    ring.set_sq_array(0, 77);
    assert_eq!(ring.submit(), 0, "an index that is none is dropped");
    assert_eq!(ring.sq_dropped(), 1);
    assert_eq!(ring.resize(8, 0, 0), 0);
    assert_eq!((ring.word_at(ring.params.cq_off.flags), ring.sq_dropped()), (IORING_CQ_EVENTFD_DISABLED, 1));
}

#[case(own_flags)]
fn there_is_a_reason_to_enter(cx: &Context) {
    let mut ring = cx.ring_with(2, DEFERRED);
    assert_eq!(ring.resize(8, 0, 0), 0);
    assert_eq!(ring.sq_flags(), IORING_SQ_NEED_WAKEUP | IORING_SQ_TASKRUN);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(ring.resize(2, 4, IORING_SETUP_CQSIZE), 0);
    (0..3).for_each(|_| ring.go_all(&[sqe::nop(); 2]));
    assert_ne!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
    assert_eq!(ring.resize(8, 0, 0), 0);
    assert_eq!(ring.sq_flags(), IORING_SQ_NEED_WAKEUP | IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW);
    assert_eq!(ring.wait_all(6).len(), 6);
    let mut flagged = cx.ring_with(2, DEFERRED | IORING_SETUP_TASKRUN_FLAG);
    assert_eq!(flagged.resize(8, 0, 0), 0);
    assert_eq!(flagged.sq_flags(), IORING_SQ_NEED_WAKEUP | IORING_SQ_TASKRUN);
}

#[case(own_flags)]
fn requests_in_flight_complete_in_the_new_areas(cx: &Context) {
    let ((reader, mut writer), mut ring, mut bytes) = (pipe(), cx.ring_with(4, DEFERRED), [0; 4]);
    ring.go(sqe::read(fd(&reader), &mut bytes, 0).data(1));
    assert_eq!(ring.resize(32, 0, 0), 0);
    writer.write_all(b"abcd").expect("write");
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res, &bytes), (1, 4, b"abcd"));
}

#[case(own_flags)]
fn timeouts_fire_in_the_new_areas(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    ring.go(sqe::timeout(&ms(20), 0, 0).data(1));
    assert_eq!(ring.resize(2, 0, 0), 0);
    assert_eq!((ring.wait().res, ring.cq_positions()), (-ETIME, (1, 1)));
}

#[case(own_flags, since = "6.18")]
fn again_and_again(cx: &Context) {
    for shape in SHAPES {
        let mut ring = cx.ring_with(8, DEFERRED | shape);
        for round in 0..40 {
            let entries = 8 << (round % 5);
            ring.go_all(&[0, 1, 2].map(|n| sqe::nop().data(round * 3 + n)));
            assert_eq!(ring.resize(entries, 0, 0), 0, "{shape:#x}, round {round}");
            assert_eq!(ring.wait_ordered(3), [0, 1, 2].map(|n| (round * 3 + n, 0)));
        }
    }
}

#[case(own_flags)]
fn old_areas_stay_readable(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    assert_eq!(ring.run(sqe::nop()), 0);
    let mut other = Params { sq_entries: 8, ..Params::default() };
    assert_eq!(ring.register(IORING_REGISTER_RESIZE_RINGS, &raw mut other as usize, 1), 0);
    assert_eq!((ring.sq_head(), ring.cq_positions()), (1, (1, 1)));
    assert_eq!(ring.word_at(ring.params.cq_off.ring_entries), 8, "the old size");
}

#[case(own_flags)]
fn the_whole_of_the_new_size_is_used(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    assert_eq!(ring.resize(4096, 0, 0), 0);
    for _ in 0..3 {
        ring.go_all(&(0..4096).map(|n| sqe::nop().data(n)).collect::<Vec<_>>());
        assert_eq!(ring.wait_all(4096).last().map(|cqe| cqe.user_data), Some(4095));
    }
}

#[case(own_flags)]
fn registered_things_stay(cx: &Context) {
    let ((reader, mut writer), mut ring, mut bytes) = (pipe(), cx.ring_with(4, DEFERRED), [0; 4]);
    ring.register_files(&[fd(&reader)]);
    assert_eq!(ring.resize(16, 0, 0), 0);
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.run(sqe::read(0, &mut bytes, 0).with(IOSQE_FIXED_FILE)), 4);
}

#[case(own_flags)]
fn eventfd_and_epoll_stay(cx: &Context) {
    let (event, mut ring) = (eventfd(0, 0), cx.ring_with(4, DEFERRED));
    let number = fd(&event);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    let epoll = epoll();
    assert_eq!(ring.door.epoll_add(fd(&epoll), ring.fd, libc::EPOLLIN as u32), 0);
    assert_eq!(ring.resize(16, 0, 0), 0);
    assert_eq!(ring.door.epoll_wait(fd(&epoll), 0), 0);
    assert_eq!(ring.run(sqe::nop()), 0);
    ring.go(sqe::nop());
    let mut count = [0; 8];
    assert_eq!((&event).read(&mut count).ok(), Some(8));
    assert_eq!(u64::from_ne_bytes(count), 2);
    assert_eq!(ring.door.epoll_wait(fd(&epoll), 10_000), libc::EPOLLIN as isize);
}

#[case(own_flags)]
fn messages_arrive_in_the_new_areas(cx: &Context) {
    let (mut sender, mut ring) = (cx.ring_with(4, 0), cx.ring_with(4, DEFERRED));
    assert_eq!(ring.resize(64, 0, 0), 0);
    assert_eq!(sender.run(prep(Opcode::MsgRing, ring.fd, 0, 5, 77)), 0);
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res), (77, 5));
}

#[case(own_flags)]
fn in_memory_of_the_program(cx: &Context) {
    let mut ring = filled(cx, IORING_SETUP_NO_MMAP);
    assert_eq!(ring.resize(32, 0, 0), 0);
    assert_eq!(ring.params.flags & IORING_SETUP_NO_MMAP, IORING_SETUP_NO_MMAP);
    assert_eq!(empties(ring), [1, 2, 3, 4, 5, 6]);
}

#[case(own_flags)]
fn in_memory_of_the_program_that_is_not_there(cx: &Context) {
    let mut ring = filled(cx, IORING_SETUP_NO_MMAP);
    let mut params = Params { sq_entries: 16, ..Params::default() };
    let resize =
        |params: &mut Params| ring.register(IORING_REGISTER_RESIZE_RINGS, &raw mut *params as usize, 1) as i32;
    assert_eq!(resize(&mut params), -EFAULT, "no addresses");
    params.cq_off.user_addr = bad_address();
    params.sq_off.user_addr = params.cq_off.user_addr + 4096;
    assert_eq!(resize(&mut params), -EFAULT);
    params.cq_off.user_addr += 8;
    assert_eq!(resize(&mut params), -EINVAL, "not aligned");
    assert_eq!(ring.resize(16, 0, 0), 0);
    assert_eq!(empties(ring), [1, 2, 3, 4, 5, 6]);
}

/// A resize fails after its areas were made, since the result cannot be written. A later resize works.
#[case(own_flags)]
fn smaller_after_a_larger_one_that_failed(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    let page = pages(1);
    let params = Params { sq_entries: 4096, ..Params::default() };
    // SAFETY: a page of the case's own, larger than the structure.
    unsafe { page.as_mut_ptr().cast::<Params>().write(params) };
    protect(page, libc::PROT_READ);
    assert_eq!(ring.register(IORING_REGISTER_RESIZE_RINGS, page.as_ptr() as usize, 1), -libc::EFAULT as isize);
    assert_eq!(ring.run(sqe::nop()), 0);
    for entries in [16, 512, 8] {
        assert_eq!(ring.resize(entries, 0, 0), 0);
        assert_eq!(ring.run(sqe::nop()), 0);
    }
}

/// Resizes the ring while a child that was forked before waits. Then the child's `action` must return true.
fn resized_beside_a_child(ring: &mut Ring, action: impl FnOnce(&mut Ring) -> bool) {
    let (mut resized, tell) = pipe();
    // SAFETY: the case has one thread; the child only makes system calls and ends by _exit.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        drop(tell);
        let _ = resized.read(&mut [0]);
        let held = action(ring);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(if held { 0 } else { 1 }) };
    }
    assert_eq!(ring.resize(64, 0, 0), 0);
    drop((tell, resized));
    let mut status = 0;
    // SAFETY: `status` is one int, the child is this process's own and not yet reaped.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "what the child saw");
}

/// The ring has one submitter, which is in the parent. So a child that was forked before cannot use the ring.
#[case(own_flags)]
fn child_forked_before_cannot_use_it(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    resized_beside_a_child(&mut ring, |ring| {
        ring.push(sqe::nop());
        ring.submit() as i32 == -EEXIST
    });
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case(own_flags)]
fn child_forked_before_sends_a_message(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    resized_beside_a_child(&mut ring, |ring| cx.ring_with(4, 0).run(prep(Opcode::MsgRing, ring.fd, 0, 5, 77)) == 0);
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res, ring.cq_positions()), (77, 5, (1, 1)));
}

#[case(own_flags)]
fn after_a_child_sent_a_message(cx: &Context) {
    let mut ring = cx.ring_with(4, DEFERRED);
    let message = prep(Opcode::MsgRing, ring.fd, 0, 5, 77);
    assert_eq!(in_child(|| assert_eq!(cx.ring_with(4, 0).run(message), 0)), 0);
    assert_eq!(ring.resize(8, 0, 0), 0);
    assert_eq!(ring.wait().user_data, 77);
}
