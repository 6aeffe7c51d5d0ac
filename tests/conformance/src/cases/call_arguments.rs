//! Results of io_uring_register(2), io_uring_enter(2) and io_uring_setup(2) for arguments that make no sense, call by
//! call and flag by flag.

use super::prelude::*;

topic!(since: "5.1", source: "io_uring_setup(2), io_uring_enter(2), io_uring_register(2)");

/// The results of each call with five arguments, each an address with a count. The first is nothing. Two have a count
/// of 1, with no address and with a bad one. The fourth has zeroes and a count of 0, the last a bad address and a count
/// of 32. The call for zero-copy receive queues is absent, since it checks privileges first.
const CALLS: &[(u32, [i32; 5])] = &[
    (IORING_REGISTER_BUFFERS, [-EFAULT, -EFAULT, -EFAULT, -EINVAL, -EFAULT]),
    (IORING_UNREGISTER_BUFFERS, [-ENXIO, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_FILES, [-EFAULT, -EFAULT, -EFAULT, -EINVAL, -EFAULT]),
    (IORING_UNREGISTER_FILES, [-ENXIO, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_EVENTFD, [-EINVAL, -EFAULT, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_UNREGISTER_EVENTFD, [-ENXIO, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_FILES_UPDATE, [-EINVAL, -EFAULT, -EFAULT, -EINVAL, -EFAULT]),
    (IORING_REGISTER_EVENTFD_ASYNC, [-EINVAL, -EFAULT, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_PROBE, [-EINVAL, -EINVAL, -EFAULT, 0, -EFAULT]),
    (IORING_REGISTER_PERSONALITY, [1, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_UNREGISTER_PERSONALITY, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_RESTRICTIONS, [-EBADFD, -EBADFD, -EBADFD, -EBADFD, -EBADFD]),
    (IORING_REGISTER_ENABLE_RINGS, [-EBADFD, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_FILES2, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EFAULT]),
    (IORING_REGISTER_FILES_UPDATE2, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EFAULT]),
    (IORING_REGISTER_BUFFERS2, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EFAULT]),
    (IORING_REGISTER_BUFFERS_UPDATE, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EFAULT]),
    (IORING_REGISTER_IOWQ_AFF, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EFAULT]),
    (IORING_UNREGISTER_IOWQ_AFF, [0, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_IOWQ_MAX_WORKERS, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_RING_FDS, [-EINVAL, -EFAULT, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_UNREGISTER_RING_FDS, [-EINVAL, -EFAULT, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_PBUF_RING, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_UNREGISTER_PBUF_RING, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_SYNC_CANCEL, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_FILE_ALLOC_RANGE, [-EINVAL, -EINVAL, -EINVAL, 0, -EINVAL]),
    (IORING_REGISTER_PBUF_STATUS, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_NAPI, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_UNREGISTER_NAPI, [-EINVAL, 0, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_CLOCK, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_CLONE_BUFFERS, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_SEND_MSG_RING, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_RESIZE_RINGS, [-EINVAL, -EINVAL, -EINVAL, -EINVAL, -EINVAL]),
    (IORING_REGISTER_MEM_REGION, [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL]),
    (IORING_REGISTER_QUERY, [0, -EINVAL, -EINVAL, 0, -EINVAL]),
];

#[case(since = "6.18")]
fn every_register_call_checks_its_arguments(cx: &Context) {
    let bad = bad_address() as usize;
    for (opcode, expected) in CALLS {
        // Only rings that defer completions get as far as the structure.
        let resizes =
            *opcode == IORING_REGISTER_RESIZE_RINGS && cx.flag_set.flags & IORING_SETUP_DEFER_TASKRUN != 0;
        let expected = if resizes { [-EINVAL, -EINVAL, -EFAULT, -EINVAL, -EINVAL] } else { *expected };
        let arguments = [(0, 0), (0, 1), (bad, 1), (pages(1).as_ptr() as usize, 0), (bad, 32)];
        let answers = arguments.map(|(address, count)| cx.ring(4).register(*opcode, address, count) as i32);
        assert_eq!(answers, expected, "register call {opcode}");
    }
}

#[case(own_flags)]
fn register_by_an_index_that_is_none(cx: &Context) {
    let _ring = cx.ring_with(4, 0);
    let by_index =
        |index| cx.door.register(index, IORING_REGISTER_USE_REGISTERED_RING | IORING_UNREGISTER_FILES, 0, 0) as i32;
    assert_eq!([0, 15, 16, -1].map(by_index), [-EBADF, -EBADF, -EINVAL, -EINVAL]);
}

#[case(own_flags)]
fn buffers_of_a_negative_length_are_einval(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    for address in [0, 4096, usize::MAX] {
        let vector = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: usize::MAX };
        assert_eq!(ring.register_buffers(&[vector]) as i32, -EINVAL);
    }
}

/// Ranges of IORING_REGISTER_FILE_ALLOC_RANGE on a ring without registered files: `struct io_uring_file_index_range`
/// has the first slot, the length and padding.
#[case(own_flags, since = "6.0")]
fn alloc_range_without_a_table(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let set = |range: [u32; 4]| ring.register(IORING_REGISTER_FILE_ALLOC_RANGE, range.as_ptr() as usize, 0) as i32;
    assert_eq!(set([0, 0, 0, 0]), 0, "nothing of nothing");
    assert_eq!(set([0, 1, 0, 0]), -EINVAL);
    assert_eq!(set([0, 0, 1, 0]), -EINVAL, "padding");
}

#[case(own_flags, since = "6.15")]
fn each_enter_flag_alone(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    for bit in 0..32 {
        let expected = match 1 << bit {
            IORING_ENTER_REGISTERED_RING => continue, // the descriptor would be an index
            flag if flag < 1 << 8 => 1,
            _ => -EINVAL,
        };
        ring.push(sqe::nop());
        ring.publish();
        assert_eq!(ring.enter(1, 0, 1 << bit, 0, 0) as i32, expected, "bit {bit}");
        assert_eq!(ring.enter(4, 0, 0, 0, 0), if expected == 1 { 0 } else { 1 });
        while ring.peek().is_some() {}
    }
}

#[case(own_flags, since = "6.15")]
fn argument_without_ext_arg_is_a_mask_for_sleepers(cx: &Context) {
    let (ring, mask) = (cx.ring_with(4, 0), 0u64);
    for flags in [IORING_ENTER_ABS_TIMER, IORING_ENTER_EXT_ARG_REG, IORING_ENTER_NO_IOWAIT, IORING_ENTER_SQ_WAIT] {
        let look = |at: u64, size| ring.enter(0, 0, IORING_ENTER_GETEVENTS | flags, at as usize, size) as i32;
        let answers = [look(address(&mask), 8), look(address(&mask), 3), look(bad_address(), 8), look(0, 3)];
        assert_eq!(answers, [0; 4], "nobody sleeps, so the mask is not looked at");
    }
}

#[case(own_flags, since = "6.1")]
fn bad_mask_matters_only_to_who_sleeps(cx: &Context) {
    for flags in [0, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN] {
        let (mut ring, mask) = (cx.ring_with(4, flags), 0u64);
        let wait = |ring: &Ring, at: u64, size| ring.enter(0, 1, IORING_ENTER_GETEVENTS, at as usize, size) as i32;
        assert_eq!(wait(&ring, address(&mask), 3), -EINVAL);
        assert_eq!(wait(&ring, bad_address(), 8), -EFAULT);
        ring.go(sqe::nop());
        assert_eq!([wait(&ring, address(&mask), 3), wait(&ring, bad_address(), 8)], [0, 0]);
        let arg = GeteventsArg { sigmask: bad_address(), sigmask_sz: 8, ..GeteventsArg::default() };
        let extended = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
        let ask = |least| ring.enter(0, least, extended, &raw const arg as usize, size_of_val(&arg)) as i32;
        assert_eq!([ask(0), ask(1), ask(2)], [0, 0, -EFAULT]);
    }
}

#[case(own_flags)]
fn memory_is_looked_at_before_the_polling_thread(cx: &Context) {
    for flags in [IORING_SETUP_SQ_AFF, IORING_SETUP_ATTACH_WQ] {
        let mut params = Params { flags: flags | IORING_SETUP_NO_MMAP, ..Params::default() };
        assert_eq!(cx.door.setup(4, &raw mut params as usize) as i32, -EFAULT, "no addresses, {flags:#x}");
    }
}
