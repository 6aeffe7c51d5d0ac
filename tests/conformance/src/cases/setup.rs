//! io_uring_setup(2): sizes, flags and their combinations, offsets, areas, features.

use super::prelude::*;
use crate::ring::ring_length;

topic!(since: "5.1", source: "io_uring_setup(2), io_uring/io_uring.c");

fn setup(cx: &Context, entries: u32, params: Params) -> (isize, Params) {
    let mut params = params;
    let answer = cx.door.setup(entries, &raw mut params as usize);
    if answer >= 0 {
        cx.door.close(answer as i32);
    }
    (answer, params)
}

fn refused(cx: &Context, flags: u32) -> i32 {
    setup(cx, 4, Params { flags, ..Params::default() }).0 as i32
}

#[case]
fn entries_are_rounded_up_to_a_power_of_two(cx: &Context) {
    for (asked, given) in [(1, 1), (2, 2), (3, 4), (5, 8), (33, 64), (1000, 1024)] {
        assert_eq!(cx.ring(asked).params.sq_entries, given, "{asked} asked for");
    }
}

#[case]
fn cq_has_twice_the_entries(cx: &Context) {
    let ring = cx.ring(8);
    let times = if ring.params.flags & IORING_SETUP_CQSIZE != 0 { 4 } else { 2 };
    assert_eq!(ring.params.cq_entries, 8 * times);
}

#[case]
fn ring_words_hold_masks_and_sizes(cx: &Context) {
    let ring = cx.ring(8);
    let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
    assert_eq!(ring.word_at(sq.ring_mask), ring.params.sq_entries - 1);
    assert_eq!(ring.word_at(sq.ring_entries), ring.params.sq_entries);
    assert_eq!(ring.word_at(cq.ring_mask), ring.params.cq_entries - 1);
    assert_eq!(ring.word_at(cq.ring_entries), ring.params.cq_entries);
}

#[case]
fn fresh_ring_is_empty(cx: &Context) {
    let ring = cx.ring(8);
    let (sq, cq) = (ring.params.sq_off, ring.params.cq_off);
    let words = [sq.head, sq.tail, sq.flags, sq.dropped, cq.head, cq.tail, cq.overflow, cq.flags];
    assert_eq!(words.map(|offset| ring.word_at(offset)), [0; 8]);
}

#[case]
fn flags_come_back_unchanged(cx: &Context) {
    assert_eq!(cx.ring(8).params.flags, cx.flag_set.flags);
}

#[case(own_flags)]
fn zero_entries_is_einval(cx: &Context) {
    assert_eq!(setup(cx, 0, Params::default()).0 as i32, -EINVAL);
    assert_eq!(setup(cx, 0, Params { flags: IORING_SETUP_CLAMP, ..Params::default() }).0 as i32, -EINVAL);
}

#[case(own_flags)]
fn too_many_entries_is_einval(cx: &Context) {
    assert_eq!(setup(cx, 32769, Params::default()).0 as i32, -EINVAL);
    assert_eq!(setup(cx, u32::MAX, Params::default()).0 as i32, -EINVAL);
}

#[case(own_flags, since = "5.6")]
fn clamp_limits_the_entries(cx: &Context) {
    let (answer, params) = setup(cx, u32::MAX, Params { flags: IORING_SETUP_CLAMP, ..Params::default() });
    assert!(answer >= 0, "{answer}");
    assert_eq!((params.sq_entries, params.cq_entries), (32768, 65536));
}

#[case(own_flags)]
fn the_largest_ring(cx: &Context) {
    let mut ring = cx.ring_with(32768, 0);
    assert_eq!(ring.params.cq_entries, 65536);
    for n in 0..32768 {
        ring.push(sqe::nop().data(n));
    }
    assert_eq!(ring.submit(), 32768);
    assert_eq!(ring.cq_ready(), 32768);
    assert_eq!(ring.wait_all(32768).last().map(|cqe| cqe.user_data), Some(32767));
}

fn cqsize(cx: &Context, entries: u32, cq_entries: u32, more: u32) -> (isize, Params) {
    setup(cx, entries, Params { flags: IORING_SETUP_CQSIZE | more, cq_entries, ..Params::default() })
}

#[case(own_flags, since = "5.5")]
fn cqsize_is_rounded_up(cx: &Context) {
    assert_eq!(cqsize(cx, 8, 100, 0).1.cq_entries, 128);
}

#[case(own_flags)]
fn cqsize_zero_is_einval(cx: &Context) {
    assert_eq!(cqsize(cx, 8, 0, 0).0 as i32, -EINVAL);
}

#[case(own_flags)]
fn cqsize_below_sq_is_einval(cx: &Context) {
    assert_eq!(cqsize(cx, 8, 4, 0).0 as i32, -EINVAL);
}

#[case(own_flags, since = "5.5")]
fn cqsize_equal_to_sq_is_allowed(cx: &Context) {
    let (answer, params) = cqsize(cx, 8, 8, 0);
    assert!(answer >= 0, "{answer}");
    assert_eq!((params.sq_entries, params.cq_entries), (8, 8));
}

#[case(own_flags)]
fn cqsize_too_large_is_einval(cx: &Context) {
    assert_eq!(cqsize(cx, 8, 65537, 0).0 as i32, -EINVAL);
}

#[case(own_flags, since = "5.6")]
fn cqsize_too_large_is_clamped(cx: &Context) {
    assert_eq!(cqsize(cx, 8, 1 << 30, IORING_SETUP_CLAMP).1.cq_entries, 65536);
}

#[case(own_flags)]
fn cq_entries_without_cqsize_are_ignored(cx: &Context) {
    assert_eq!(setup(cx, 8, Params { cq_entries: 1024, ..Params::default() }).1.cq_entries, 16);
}

#[case(own_flags)]
fn unknown_flag_is_einval(cx: &Context) {
    assert_eq!(refused(cx, 1 << 31), -EINVAL);
    assert_eq!(refused(cx, 1 << 25), -EINVAL);
}

#[case(own_flags)]
fn reserved_word_is_einval(cx: &Context) {
    for word in 0..3 {
        let mut params = Params::default();
        params.resv[word] = 1;
        assert_eq!(setup(cx, 4, params).0 as i32, -EINVAL, "reserved word {word}");
    }
}

#[case(own_flags)]
fn null_params_is_efault(cx: &Context) {
    assert_eq!(cx.door.setup(4, 0) as i32, -EFAULT);
}

#[case(own_flags)]
fn unreadable_params_is_efault(cx: &Context) {
    assert_eq!(cx.door.setup(4, bad_address() as usize) as i32, -EFAULT);
}

#[case(own_flags)]
fn read_only_params_is_efault_and_leaks_no_descriptor(cx: &Context) {
    let page = pages(1);
    protect(page, libc::PROT_READ);
    let next = fd(&eventfd(0, 0));
    assert_eq!(cx.door.setup(4, page.as_ptr() as usize) as i32, -EFAULT);
    assert_eq!(fd(&eventfd(0, 0)), next, "the lowest free number is the same as before");
}

#[case(own_flags)]
fn defer_taskrun_needs_single_issuer(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_DEFER_TASKRUN), -EINVAL);
}

#[case(own_flags)]
fn taskrun_flag_needs_coop_or_defer(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_TASKRUN_FLAG), -EINVAL);
}

#[case(own_flags, since = "5.19")]
fn taskrun_flag_with_coop(cx: &Context) {
    assert!(refused(cx, IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_COOP_TASKRUN) >= 0);
}

#[case(own_flags, since = "6.1")]
fn taskrun_flag_with_defer(cx: &Context) {
    let defer = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    assert!(refused(cx, IORING_SETUP_TASKRUN_FLAG | defer) >= 0);
}

#[case(own_flags)]
fn sq_aff_without_sqpoll_is_einval(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_SQ_AFF), -EINVAL);
}

#[case(own_flags)]
fn registered_fd_only_needs_no_mmap(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_REGISTERED_FD_ONLY), -EINVAL);
}

#[case(own_flags, since = "6.5")]
fn registered_fd_only_gives_an_index(cx: &Context) {
    let flags = IORING_SETUP_REGISTERED_FD_ONLY | IORING_SETUP_NO_MMAP;
    let mut params = Params { flags, ..Params::default() };
    params.cq_off.user_addr = pages(2).as_ptr() as u64;
    params.sq_off.user_addr = pages(2).as_ptr() as u64;
    let index = cx.door.setup(4, &raw mut params as usize);
    assert_eq!(index, 0, "the first slot of the task's registered rings");
    assert_eq!(cx.door.enter(0, 0, 0, IORING_ENTER_REGISTERED_RING, 0, 0), 0);
}

#[case(own_flags)]
fn attach_wq_to_no_descriptor_is_enxio(cx: &Context) {
    let params = Params { flags: IORING_SETUP_ATTACH_WQ, wq_fd: 12345, ..Params::default() };
    assert_eq!(setup(cx, 4, params).0 as i32, -ENXIO);
}

#[case(own_flags)]
fn attach_wq_to_another_file_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    let params = Params { flags: IORING_SETUP_ATTACH_WQ, wq_fd: fd(&reader) as u32, ..Params::default() };
    assert_eq!(setup(cx, 4, params).0 as i32, -EINVAL);
}

#[case(own_flags, since = "5.6")]
fn attach_wq_to_another_ring(cx: &Context) {
    let first = cx.ring_with(4, 0);
    let params = Params { flags: IORING_SETUP_ATTACH_WQ, wq_fd: first.fd as u32, ..Params::default() };
    let mut second = Ring::from_params(cx.door, 4, params).expect("a ring that shares the first one's workers");
    assert_eq!(second.run(sqe::nop().with(IOSQE_ASYNC)), 0);
}

#[case(own_flags, since = "5.10")]
fn r_disabled_ring_refuses_enter(cx: &Context) {
    let mut ring = cx.ring_with(4, IORING_SETUP_R_DISABLED);
    ring.push(sqe::nop());
    assert_eq!(ring.submit() as i32, -EBADFD);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0) as i32, -EBADFD);
    assert_eq!(ring.sq_head(), 0);
}

#[case(own_flags, since = "5.10")]
fn r_disabled_ring_is_enabled_by_register(cx: &Context) {
    let mut ring = cx.ring_with(4, IORING_SETUP_R_DISABLED);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0) as i32, -EBADFD, "enabled already");
}

fn no_mmap_params(rings: u64, sqes: u64) -> Params {
    let mut params = Params { flags: IORING_SETUP_NO_MMAP, ..Params::default() };
    params.cq_off.user_addr = rings;
    params.sq_off.user_addr = sqes;
    params
}

#[case(own_flags)]
fn no_mmap_without_memory_is_efault(cx: &Context) {
    assert_eq!(setup(cx, 4, no_mmap_params(0, 0)).0 as i32, -EFAULT);
    let bad = bad_address();
    assert_eq!(setup(cx, 4, no_mmap_params(bad, bad + 4096)).0 as i32, -EFAULT);
}

#[case(own_flags)]
fn no_mmap_unaligned_memory_is_einval(cx: &Context) {
    let memory = pages(4).as_ptr() as u64;
    assert_eq!(setup(cx, 4, no_mmap_params(memory + 64, memory + 8192)).0 as i32, -EINVAL);
    assert_eq!(setup(cx, 4, no_mmap_params(memory, memory + 8192 + 64)).0 as i32, -EINVAL);
}

#[case(own_flags, since = "6.5")]
fn no_mmap_read_only_memory_is_efault(cx: &Context) {
    let memory = pages(3);
    protect(&memory[8192..], libc::PROT_READ);
    let page = |index: u64| address(memory) + 4096 * index;
    assert_eq!(setup(cx, 4, no_mmap_params(page(0), page(2))).0 as i32, -EFAULT, "the SQEs");
    assert_eq!(setup(cx, 4, no_mmap_params(page(2), page(0))).0 as i32, -EFAULT, "the rings");
    assert_eq!(setup(cx, 128, no_mmap_params(page(1), page(0))).0 as i32, -EFAULT, "their second page");
    let answer = setup(cx, 4, no_mmap_params(page(0), page(1))).0;
    assert!(answer >= 0, "{answer}");
    cx.door.close(answer as i32);
}

#[case(own_flags, since = "6.5")]
fn no_mmap_ring_cannot_be_mapped(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_NO_MMAP);
    let answer = cx.door.mmap(4096, ring.fd, u64::from(IORING_OFF_SQ_RING));
    assert_eq!(answer as i32, no_mapping(cx));
}

/// Returns the errno of mmap(2) where there is nothing to map.
fn no_mapping(cx: &Context) -> i32 {
    if cx.answers_since("7.3") {
        -EINVAL
    } else {
        -ENOMEM
    }
}

#[case(own_flags, since = "6.5")]
fn no_mmap_gives_back_the_addresses(cx: &Context) {
    let memory = pages(4).as_ptr() as u64;
    let (answer, params) = setup(cx, 4, no_mmap_params(memory, memory + 8192));
    assert!(answer >= 0, "{answer}");
    assert_eq!((params.cq_off.user_addr, params.sq_off.user_addr), (memory, memory + 8192));
}

#[case(own_flags, since = "6.6")]
fn no_sqarray_has_no_array_offset(cx: &Context) {
    assert_eq!(cx.ring_with(4, IORING_SETUP_NO_SQARRAY).params.sq_off.array, 0);
    assert_ne!(cx.ring_with(4, 0).params.sq_off.array, 0);
}

#[case(own_flags)]
fn cqe_mixed_and_cqe32_exclude_each_other(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_CQE_MIXED | IORING_SETUP_CQE32), -EINVAL);
}

#[case(own_flags)]
fn hybrid_iopoll_needs_iopoll(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_HYBRID_IOPOLL), -EINVAL);
}

#[case(own_flags)]
fn coop_with_sqpoll_is_einval(cx: &Context) {
    assert_eq!(refused(cx, IORING_SETUP_SQPOLL | IORING_SETUP_COOP_TASKRUN), -EINVAL);
    let defer = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    assert_eq!(refused(cx, IORING_SETUP_SQPOLL | defer), -EINVAL);
}

#[case(own_flags)]
fn features_are_those_of_this_kernel(cx: &Context) {
    let known = (IORING_FEAT_NO_IOWAIT << 1) - 1;
    let features = cx.ring_with(4, 0).params.features;
    assert_eq!(features & !known, 0, "features {features:#x}");
    let required = IORING_FEAT_SINGLE_MMAP
        | IORING_FEAT_NODROP
        | IORING_FEAT_SUBMIT_STABLE
        | IORING_FEAT_RW_CUR_POS
        | IORING_FEAT_FAST_POLL
        | IORING_FEAT_POLL_32BITS
        | IORING_FEAT_EXT_ARG
        | IORING_FEAT_CQE_SKIP
        | IORING_FEAT_LINKED_FILE;
    assert_eq!(features & required, required, "features {features:#x}");
}

#[case(own_flags)]
fn area_offsets_are_the_documented_ones(cx: &Context) {
    let params = cx.ring_with(4, 0).params;
    let (sq, cq) = (params.sq_off, params.cq_off);
    assert_eq!([sq.head, sq.tail, cq.head, cq.tail], [0, 4, 8, 12]);
    assert_eq!([sq.ring_mask, cq.ring_mask, sq.ring_entries, cq.ring_entries], [16, 20, 24, 28]);
    assert_eq!([sq.dropped, sq.flags, cq.flags, cq.overflow], [32, 36, 40, 44]);
    assert_eq!((cq.cqes, sq.array), (64, 64 + 8 * 16));
    assert_eq!([sq.resv1, cq.resv1], [0; 2]);
    assert_eq!([sq.user_addr, cq.user_addr], [0; 2]);
}

#[case(own_flags, since = "5.8")]
fn sq_and_cq_share_one_mapping(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let length = ring_length(&ring.params);
    let second = cx.door.mmap(length, ring.fd, u64::from(IORING_OFF_CQ_RING));
    assert!(second > 0, "{second}");
    ring.set_cq_flags(IORING_CQ_EVENTFD_DISABLED);
    // SAFETY: the mapping covers the CQ's flags word, which is not written at this moment.
    let seen = unsafe { ((second as usize + ring.params.cq_off.flags as usize) as *const u32).read_volatile() };
    assert_eq!(seen, IORING_CQ_EVENTFD_DISABLED);
    assert_eq!(cx.door.munmap(second as usize, length), 0);
}

#[case(own_flags)]
fn mapping_at_another_offset_fails(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    for offset in [0x1800_0000, 0x4000_0000] {
        assert_eq!(cx.door.mmap(4096, ring.fd, offset) as i32, no_mapping(cx), "offset {offset:#x}");
    }
}

#[case(own_flags)]
fn mapping_may_be_longer_than_the_area(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let address = cx.door.mmap(64 * 4096, ring.fd, u64::from(IORING_OFF_SQ_RING));
    assert!(address > 0, "{address}");
    assert_eq!(cx.door.munmap(address as usize, 64 * 4096), 0);
}

#[case(own_flags)]
fn descriptor_is_cloexec(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    // SAFETY: F_GETFD touches no memory.
    assert_eq!(unsafe { libc::fcntl(ring.fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
}

#[case(own_flags)]
fn descriptor_reads_and_seeks_fail(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let mut byte = 0u8;
    // Where read(2) waits, the signal ends this case after a second.
    // SAFETY: a number only.
    unsafe { libc::alarm(1) };
    // SAFETY: one byte of room is passed for one byte.
    assert_eq!(unsafe { libc::read(ring.fd, (&raw mut byte).cast(), 1) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(EINVAL));
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::lseek(ring.fd, 0, libc::SEEK_SET) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(ESPIPE));
}

#[case(own_flags)]
fn descriptors_are_numbered_lowest_first(cx: &Context) {
    let next = fd(&eventfd(0, 0));
    assert_eq!(cx.ring_with(4, 0).fd, next);
}

#[case(own_flags)]
fn ring_among_thousands_of_descriptors(cx: &Context) {
    const OTHERS: u64 = 5000;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: one rlimit is written, then read.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        if limit.rlim_max < 2 * OTHERS {
            cx.skip("RLIMIT_NOFILE is too low");
        }
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
    let others: Vec<_> = (0..OTHERS).map(|_| eventfd(0, 0)).collect();
    let mut ring = cx.ring_with(4, 0);
    assert!(ring.fd > others.last().map_or(0, fd), "rings have such numbers now");
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case(own_flags)]
fn two_rings_do_not_share_words(cx: &Context) {
    let (mut first, mut second) = (cx.ring_with(4, 0), cx.ring_with(4, 0));
    assert_eq!(first.run(sqe::nop()), 0);
    assert_eq!((first.sq_head(), second.sq_head(), second.cq_ready()), (1, 0, 0));
    assert_eq!(second.run(sqe::nop()), 0);
}
