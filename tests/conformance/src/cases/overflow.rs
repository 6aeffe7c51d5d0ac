//! More completions than the CQ holds: with NODROP none is lost.

use super::prelude::*;

topic!(since: "5.5", source: "io_uring_setup(2), io_uring/io_uring.c");

/// A ring of 4 entries with a full CQ and `more` further completions.
fn overflowed(cx: &Context, more: u64) -> (Ring, u64) {
    let mut ring = cx.ring(4);
    let total = u64::from(ring.params.cq_entries) + more;
    for n in 0..total {
        ring.go(sqe::nop().data(n));
    }
    (ring, total)
}

fn reap_all(ring: &mut Ring) -> Vec<u64> {
    std::iter::from_fn(|| ring.peek()).map(|cqe| cqe.user_data).collect()
}

fn flush(ring: &Ring) {
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
}

#[case]
fn every_cqe_is_delivered_in_order(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 100);
    let seen: Vec<u64> = ring.wait_all(total as usize).iter().map(|cqe| cqe.user_data).collect();
    assert_eq!(seen, (0..total).collect::<Vec<_>>());
    ring.expect_quiet();
}

#[case(since = "5.8")]
fn flag_is_set_and_cleared(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 1);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, IORING_SQ_CQ_OVERFLOW);
    assert_eq!(reap_all(&mut ring).len() as u64, total - 1);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, IORING_SQ_CQ_OVERFLOW, "it is still held");
    flush(&ring);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
    assert_eq!(reap_all(&mut ring), [total - 1]);
}

#[case]
fn overflow_counter_stays_zero(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 30);
    ring.wait_all(total as usize);
    assert_eq!(ring.cq_overflow(), 0);
}

#[case]
fn wait_flushes(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 2);
    reap_all(&mut ring);
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(reap_all(&mut ring), [total - 2, total - 1]);
}

#[case]
fn getevents_without_waiting_flushes(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 2);
    reap_all(&mut ring);
    flush(&ring);
    assert_eq!(reap_all(&mut ring), [total - 2, total - 1]);
}

#[case]
fn enter_without_getevents_does_not_flush(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 2);
    reap_all(&mut ring);
    assert_eq!(ring.enter(0, 0, 0, 0, 0), 0);
    assert_eq!(ring.cq_ready(), 0);
    ring.go(sqe::nop().data(total));
    assert_eq!(ring.cq_ready(), 0, "a new one queues after those that overflowed");
    flush(&ring);
    assert_eq!(reap_all(&mut ring), [total - 2, total - 1, total]);
}

#[case]
fn submitting_goes_on_while_overflowed(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 50);
    ring.push(sqe::nop().data(total));
    assert_eq!(ring.submit(), 1, "not EBUSY");
    assert_eq!(ring.wait_all(total as usize + 1).last().map(|cqe| cqe.user_data), Some(total));
}

#[case(since = "5.8")]
fn partial_room_is_filled_first(cx: &Context) {
    let (mut ring, total) = overflowed(cx, 5);
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(0));
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(1));
    flush(&ring);
    assert_eq!(ring.cq_ready(), ring.params.cq_entries);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, IORING_SQ_CQ_OVERFLOW, "three more are held");
    let mut seen = reap_all(&mut ring);
    flush(&ring);
    seen.extend(reap_all(&mut ring));
    assert_eq!(seen, (2..total).collect::<Vec<_>>());
}

#[case(since = "5.6")]
fn pending_reads_overflow_too(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let total = ring.params.cq_entries as usize + 3;
    let mut bytes = vec![[0u8; 1]; total];
    for (n, byte) in bytes.iter_mut().enumerate() {
        ring.go(sqe::read(fd(&reader), byte, 0).data(n as u64));
    }
    writer.write_all(&vec![7; total]).expect("write");
    let results = ring.wait_sorted(total);
    assert_eq!(results, (0..total as u64).map(|n| (n, 1)).collect::<Vec<_>>());
}

#[case]
fn no_flag_while_the_cq_is_just_full(cx: &Context) {
    let (ring, _) = overflowed(cx, 0);
    assert_eq!(ring.cq_ready(), ring.params.cq_entries);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
}

/// A shot that does not fit ends the poll: its last CQE, without MORE, overflows.
#[case(since = "5.13")]
fn multishot_poll_stops_at_overflow(cx: &Context) {
    let (mut file, mut ring) = (eventfd(0, 0), cx.ring(4));
    ring.go(sqe::poll_add(fd(&file), libc::POLLIN, IORING_POLL_ADD_MULTI).data(1000));
    for n in 0..ring.params.cq_entries {
        ring.go(sqe::nop().data(u64::from(n)));
    }
    file.write_all(&1u64.to_ne_bytes()).expect("write");
    let cqe = *ring.wait_all(ring.params.cq_entries as usize + 1).last().expect("the poll's CQE");
    assert_eq!((cqe.user_data, cqe.res), (1000, i32::from(libc::POLLIN)));
    let ended = cqe.flags & IORING_CQE_F_MORE == 0;
    file.write_all(&1u64.to_ne_bytes()).expect("write");
    assert_eq!(ring.wait_for(crate::ring::QUIET).is_none(), ended, "MORE tells whether it goes on");
}

#[case(own_flags)]
fn ring_descriptor_stays_readable_until_flushed(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    for n in 0..9 {
        ring.go(sqe::nop().data(n));
    }
    reap_all(&mut ring);
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 10_000), isize::from(libc::POLLIN));
    flush(&ring);
    assert_eq!(reap_all(&mut ring), [8]);
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 0), 0);
}

#[case(own_flags)]
fn waiting_for_more_than_the_cq_holds(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    for n in 0..8 {
        ring.go(sqe::nop().data(n));
    }
    assert_eq!(ring.enter(0, 100, IORING_ENTER_GETEVENTS, 0, 0), 0, "it waits for a full CQ at most");
}
