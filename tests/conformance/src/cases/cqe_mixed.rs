//! CQEs of 32 bytes: on rings of nothing else (IORING_SETUP_CQE32), and among CQEs of 16 bytes
//! (IORING_SETUP_CQE_MIXED). There a CQE of 32 bytes takes two adjacent entries.

use super::prelude::*;

topic!(since: "6.18", source: "io_uring_setup(2), io_uring/io_uring.c");

const LARGE: u32 = IORING_SETUP_CQE_MIXED;

/// A NOP whose CQE has 32 bytes: `n` and its complement are the second half.
fn large(n: u64) -> Sqe {
    Sqe { off: n, addr: !n, ..sqe::nop() }.op_flags(IORING_NOP_CQE32).data(n)
}

/// The next CQE: user_data, flags and second half.
fn next(ring: &mut Ring) -> (u64, u32, Option<[u64; 2]>) {
    let (cqe, extra) = ring.peek_whole().expect("a CQE");
    (cqe.user_data, cqe.flags, extra)
}

/// Returns the CQE that `next` sees for `large(n)` on a ring of mixed sizes. `is_small` is the same for a plain NOP.
fn is_large(n: u64) -> (u64, u32, Option<[u64; 2]>) {
    (n, IORING_CQE_F_32, Some([n, !n]))
}

fn is_small(n: u64) -> (u64, u32, Option<[u64; 2]>) {
    (n, 0, None)
}

fn flush(ring: &Ring) {
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
}

/// The CQE at position `slot` of the CQ.
fn flags_in_slot(ring: &Ring, slot: u32) -> u32 {
    ring.word_at(ring.params.cq_off.cqes + slot * 16 + 12)
}

#[case(own_flags)]
fn large_nop_has_its_second_half(cx: &Context) {
    let mut ring = cx.ring_with(4, LARGE);
    ring.go_all(&[large(1), sqe::nop().data(2), large(3)]);
    assert_eq!(ring.cq_ready(), 5, "a large one takes two entries");
    assert_eq!([next(&mut ring), next(&mut ring), next(&mut ring)], [is_large(1), is_small(2), is_large(3)]);
    let mut ring = cx.ring_with(4, IORING_SETUP_CQE32);
    ring.go_all(&[large(1), sqe::nop().data(2)]);
    assert_eq!(ring.cq_ready(), 2);
    assert_eq!([next(&mut ring), next(&mut ring)], [(1, 0, Some([1, !1])), (2, 0, Some([0, 0]))]);
}

#[case(own_flags)]
fn large_nop_needs_a_ring_that_has_such_cqes(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    assert_eq!(ring.run(large(1)), -EINVAL);
    ring.push(large(2));
    ring.push(sqe::nop().data(3));
    assert_eq!(ring.submit(), 1, "it is refused at submission");
}

#[case(own_flags)]
fn large_nop_that_fails_has_its_second_half(cx: &Context) {
    let mut ring = cx.ring_with(4, LARGE);
    let bad = large(7).op_flags(IORING_NOP_CQE32 | IORING_NOP_FILE);
    ring.go(bad);
    let (cqe, extra) = ring.peek_whole().expect("a CQE");
    assert_eq!((cqe.res, cqe.flags, extra), (-EBADF, IORING_CQE_F_32, Some([7, !7])));
    ring.go(Sqe { len: 41, ..large(8) }.op_flags(IORING_NOP_CQE32 | IORING_NOP_INJECT_RESULT));
    assert_eq!(ring.peek_whole().map(|(cqe, extra)| (cqe.res, extra)), Some((41, Some([8, !8]))));
}

#[case(own_flags)]
fn large_nop_on_a_worker(cx: &Context) {
    for ring_flags in [LARGE, IORING_SETUP_CQE32] {
        let mut ring = cx.ring_with(4, ring_flags);
        for sqe in [large(1).with(IOSQE_ASYNC), large(1).op_flags(IORING_NOP_CQE32 | IORING_NOP_TW)] {
            ring.push(sqe);
            assert_eq!(ring.submit_and_wait(1), 1);
            let flags = if ring_flags == LARGE { IORING_CQE_F_32 } else { 0 };
            assert_eq!(next(&mut ring), (1, flags, Some([1, !1])));
        }
    }
}

#[case(own_flags)]
fn large_nop_of_a_broken_chain_is_small(cx: &Context) {
    let mut ring = cx.ring_with(4, LARGE);
    ring.go_all(&[sqe::nop().op_flags(IORING_NOP_FILE).with(IOSQE_IO_LINK).data(1), large(2), large(3)]);
    let mut cqes: Vec<_> = ring.wait_all(3).iter().map(|cqe| (cqe.user_data, cqe.res, cqe.flags)).collect();
    cqes.sort_unstable();
    assert_eq!(cqes, [(1, -EBADF, 0), (2, -ECANCELED, 0), (3, 0, IORING_CQE_F_32)]);
}

#[case(own_flags)]
fn last_entry_is_skipped(cx: &Context) {
    let mut ring = cx.ring_with(2, LARGE);
    for n in 0..3 {
        ring.go(sqe::nop().data(n));
        assert_eq!(next(&mut ring), is_small(n));
    }
    ring.go(large(9));
    assert_eq!((flags_in_slot(&ring, 3), flags_in_slot(&ring, 0)), (IORING_CQE_F_SKIP, IORING_CQE_F_32));
    assert_eq!(ring.cq_positions(), (3, 6));
    assert_eq!(next(&mut ring), is_large(9));
    assert_eq!(ring.cq_positions(), (6, 6));
}

#[case(own_flags)]
fn skip_is_written_even_if_the_large_one_overflows(cx: &Context) {
    let mut ring = cx.ring_with(2, LARGE);
    for n in 0..3 {
        ring.go(sqe::nop().data(n));
    }
    ring.go(large(9));
    assert_eq!((ring.cq_ready(), flags_in_slot(&ring, 3)), (4, IORING_CQE_F_SKIP));
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, IORING_SQ_CQ_OVERFLOW);
    for n in 0..3 {
        assert_eq!(next(&mut ring), is_small(n));
    }
    flush(&ring);
    assert_eq!(next(&mut ring), is_large(9));
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
}

#[case(own_flags)]
fn large_one_waits_for_two_entries(cx: &Context) {
    let mut ring = cx.ring_with(2, LARGE);
    for n in 0..4 {
        ring.go(sqe::nop().data(n));
    }
    for n in 0..3 {
        assert_eq!(next(&mut ring), is_small(n));
    }
    ring.go_all(&[sqe::nop().data(4), sqe::nop().data(5)]);
    ring.go(large(6));
    assert_eq!((ring.cq_ready(), ring.sq_flags() & IORING_SQ_CQ_OVERFLOW), (3, IORING_SQ_CQ_OVERFLOW));
    flush(&ring);
    assert_eq!(ring.cq_ready(), 3, "one entry is free, which is not enough");
    assert_eq!(next(&mut ring), is_small(3));
    flush(&ring);
    assert_eq!([next(&mut ring), next(&mut ring), next(&mut ring)], [is_small(4), is_small(5), is_large(6)]);
}

#[case(own_flags)]
fn overflow_keeps_order_and_sizes(cx: &Context) {
    let mut ring = cx.ring_with(2, LARGE);
    for n in 0..40 {
        ring.go(if n % 3 == 1 { large(n) } else { sqe::nop().data(n) });
    }
    for n in 0..40 {
        if ring.cq_ready() == 0 {
            flush(&ring);
        }
        assert_eq!(next(&mut ring), if n % 3 == 1 { is_large(n) } else { is_small(n) }, "CQE {n}");
    }
    assert_eq!((ring.peek(), ring.cq_overflow()), (None, 0));
}

#[case(own_flags)]
fn overflow_of_large_ones_alone(cx: &Context) {
    let mut ring = cx.ring_with(1, LARGE);
    for n in 0..9 {
        ring.go(large(n));
    }
    for n in 0..9 {
        assert_eq!(ring.cq_ready(), 2);
        assert_eq!(next(&mut ring), is_large(n));
        flush(&ring);
    }
}

#[case(own_flags)]
fn overflow_on_cqe32_keeps_second_halves(cx: &Context) {
    let mut ring = cx.ring_with(2, IORING_SETUP_CQE32);
    for n in 0..9 {
        ring.go(large(n));
    }
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, IORING_SQ_CQ_OVERFLOW);
    for n in 0..9 {
        if ring.cq_ready() == 0 {
            flush(&ring);
        }
        assert_eq!(next(&mut ring), (n, 0, Some([n, !n])));
    }
}

#[case(own_flags)]
fn a_wait_counts_entries(cx: &Context) {
    let mut ring = cx.ring_with(4, LARGE);
    ring.push(large(1));
    assert_eq!(ring.submit_and_wait(2), 1, "one CQE of two entries is enough");
    assert_eq!(next(&mut ring), is_large(1));
}

#[case(own_flags)]
fn a_timeout_counts_entries(cx: &Context) {
    let mut ring = cx.ring_with(8, LARGE);
    ring.go(sqe::timeout(&ms(60_000), 2, 0).data(1));
    ring.go(large(2));
    let cqes: Vec<_> = ring.wait_all(2).iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    assert_eq!(cqes, [(2, 0), (1, 0)]);
}

/// MSG_RING of data to `target`, whose CQE gets these flags.
fn message(target: &Ring, user_data: u64, flags: u32) -> Sqe {
    prep(Opcode::MsgRing, target.fd, 0, 5, user_data).op_flags(IORING_MSG_RING_FLAGS_PASS).file_index(flags)
}

#[case(own_flags)]
fn message_with_the_flag_is_large(cx: &Context) {
    let (mut ring, mut target) = (cx.ring_with(4, 0), cx.ring_with(4, LARGE));
    assert_eq!(ring.run(message(&target, 7, IORING_CQE_F_32 | 8)), 0);
    assert_eq!(ring.run(message(&target, 8, 8)), 0);
    assert_eq!(target.cq_ready(), 3);
    assert_eq!(next(&mut target), (7, IORING_CQE_F_32 | 8, Some([0, 0])));
    assert_eq!(next(&mut target), (8, 8, None));
    // On a ring of large CQEs it is a flag like others. On a ring of small ones it may be refused.
    let mut target = cx.ring_with(4, IORING_SETUP_CQE32);
    assert_eq!(ring.run(message(&target, 7, IORING_CQE_F_32 | 8)), 0);
    assert_eq!(next(&mut target), (7, IORING_CQE_F_32 | 8, Some([0, 0])));
    let mut target = cx.ring_with(4, 0);
    if cx.answers_since("7.3") {
        return assert_eq!(ring.run(message(&target, 7, IORING_CQE_F_32 | 8)), -EINVAL);
    }
    assert_eq!(ring.run(message(&target, 7, IORING_CQE_F_32 | 8)), 0);
    assert_eq!((target.cq_ready(), next(&mut target)), (1, (7, IORING_CQE_F_32 | 8, None)));
}

#[case(own_flags)]
fn message_with_the_flag_overflows_large(cx: &Context) {
    let (mut ring, mut target) = (cx.ring_with(4, 0), cx.ring_with(2, LARGE));
    for n in 0..6 {
        assert_eq!(ring.run(message(&target, n, IORING_CQE_F_32)), 0);
    }
    for n in 0..6 {
        if target.cq_ready() == 0 {
            flush(&target);
        }
        assert_eq!(next(&mut target), (n, IORING_CQE_F_32, Some([0, 0])));
    }
}

#[case(own_flags)]
fn message_to_itself_with_the_flag_is_large(cx: &Context) {
    let mut ring = cx.ring_with(4, LARGE);
    ring.go(message(&ring, 7, IORING_CQE_F_32).data(1));
    let mut seen = [next(&mut ring), next(&mut ring)];
    seen.sort_unstable();
    assert_eq!(seen, [is_small(1), (7, IORING_CQE_F_32, Some([0, 0]))]);
}

#[case(own_flags)]
fn both_sizes_alone_are_einval(cx: &Context) {
    let answer = Ring::new(cx.door, 4, LARGE | IORING_SETUP_CQE32).err();
    assert_eq!(answer, Some(-EINVAL as isize));
}

#[case(own_flags)]
fn a_cq_of_one_is_eoverflow(cx: &Context) {
    let params = Params { flags: LARGE | IORING_SETUP_CQSIZE, cq_entries: 1, ..Params::default() };
    assert_eq!(Ring::from_params(cx.door, 1, params).err(), Some(-EOVERFLOW as isize));
    let params = Params { flags: LARGE | IORING_SETUP_CQSIZE, cq_entries: 2, ..Params::default() };
    assert!(Ring::from_params(cx.door, 1, params).is_ok());
}

#[case(own_flags)]
fn works_with_other_setup_flags(cx: &Context) {
    for flags in [
        IORING_SETUP_SQE128,
        IORING_SETUP_NO_SQARRAY,
        IORING_SETUP_NO_MMAP,
        IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
        IORING_SETUP_SQPOLL,
    ] {
        let mut ring = cx.ring_with(4, LARGE | flags);
        for n in 0..9 {
            ring.push(if n % 2 == 0 { large(n) } else { sqe::nop().data(n) });
            let count = ring.publish();
            let wake = if flags == IORING_SETUP_SQPOLL { IORING_ENTER_SQ_WAKEUP } else { 0 };
            assert_eq!(ring.enter(count, 1, IORING_ENTER_GETEVENTS | wake, 0, 0), 1);
            assert_eq!(next(&mut ring), if n % 2 == 0 { is_large(n) } else { is_small(n) }, "with {flags:#x}");
        }
    }
}

/// Processes that share a ring agree on where the next CQE goes.
#[case(own_flags)]
fn forked_child_finds_the_tail(cx: &Context) {
    let mut ring = cx.ring_with(8, LARGE);
    ring.go_all(&[large(1), sqe::nop().data(2), large(3)]);
    let status = in_child(|| ring.go_all(&[large(4), sqe::nop().data(5)]));
    assert_eq!(status, 0);
    for n in 1..6 {
        assert_eq!(next(&mut ring), if n == 2 || n == 5 { is_small(n) } else { is_large(n) });
    }
}
