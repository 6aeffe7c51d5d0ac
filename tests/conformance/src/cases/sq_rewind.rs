//! IORING_SETUP_SQ_REWIND: each submission begins with the first SQE.

use super::prelude::*;

topic!(since: "7.0", source: "io_uring_setup(2), io_uring/io_uring.c");

const REWIND: u32 = IORING_SETUP_SQ_REWIND | IORING_SETUP_NO_SQARRAY;

/// Places these SQEs and submits as many.
fn submit(ring: &Ring, sqes: &[Sqe]) -> isize {
    (0..).zip(sqes).for_each(|(index, sqe)| ring.set_sqe(index, *sqe));
    ring.enter(sqes.len() as u32, 0, 0, 0, 0)
}

#[case(own_flags)]
fn each_submission_begins_at_the_first(cx: &Context) {
    let mut ring = cx.ring_with(4, REWIND);
    for round in 0..3 {
        assert_eq!(submit(&ring, &[1, 2, 3].map(|n| sqe::nop().data(10 * round + n))), 3);
        assert_eq!(ring.wait_ordered(3), [1, 2, 3].map(|n| (10 * round + n, 0)));
        assert_eq!(ring.sq_head(), 0);
    }
}

#[case(own_flags)]
fn as_many_as_are_asked_for(cx: &Context) {
    let mut ring = cx.ring_with(4, REWIND);
    assert_eq!(submit(&ring, &[1, 2, 3, 4].map(|n| sqe::nop().data(n))), 4);
    assert_eq!(ring.enter(9, 0, 0, 0, 0), 4, "no more than there are places");
    assert_eq!(ring.wait_ordered(8), [1, 2, 3, 4, 1, 2, 3, 4].map(|n| (n, 0)));
    assert_eq!((ring.enter(0, 0, 0, 0, 0), ring.peek()), (0, None));
}

#[case(own_flags)]
fn head_and_tail_do_not_matter(cx: &Context) {
    let mut ring = cx.ring_with(4, REWIND);
    ring.set_word_at(ring.params.sq_off.tail, 3);
    ring.set_word_at(ring.params.sq_off.head, 2);
    assert_eq!(submit(&ring, &[sqe::nop().data(1)]), 1);
    assert_eq!(ring.wait_ordered(1), [(1, 0)]);
    assert_eq!(ring.sq_head(), 2);
}

#[case(own_flags)]
fn a_refused_one_is_the_last(cx: &Context) {
    let mut ring = cx.ring_with(4, REWIND);
    for _ in 0..2 {
        assert_eq!(submit(&ring, &[sqe::nop().data(1).with(0x80), sqe::nop().data(2)]), 1);
        assert_eq!(ring.wait_ordered(1), [(1, -EINVAL)]);
    }
}

#[case(own_flags)]
fn with_requests_that_wait(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring_with(4, REWIND), [0; 4]);
    let read = sqe::read(fd(&reader), &mut room, 0).data(1);
    assert_eq!(submit(&ring, &[read.with(IOSQE_IO_LINK), sqe::nop().data(2)]), 2);
    assert_eq!(submit(&ring, &[sqe::nop().data(3)]), 1);
    assert_eq!(ring.wait_ordered(1), [(3, 0)]);
    writer.write_all(b"1234").expect("write");
    assert_eq!(ring.wait_ordered(2), [(1, 4), (2, 0)]);
}

#[case(own_flags)]
fn with_large_ones(cx: &Context) {
    let mut ring = cx.ring_with(4, REWIND | IORING_SETUP_SQE_MIXED);
    let large = sqe::op(Opcode::Nop128).data(1);
    for _ in 0..2 {
        assert_eq!(submit(&ring, &[large, sqe::nop().data(99), sqe::nop().data(2)]), 3);
        assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
    }
}

#[case(own_flags)]
fn flags_beside_it(cx: &Context) {
    for (flags, error) in [
        (IORING_SETUP_SQ_REWIND, -EINVAL),
        (REWIND | IORING_SETUP_SQPOLL, -EINVAL),
        (REWIND | IORING_SETUP_SQE128, 0),
        (REWIND | IORING_SETUP_IOPOLL, 0),
        (REWIND | IORING_SETUP_NO_MMAP, 0),
        (REWIND | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, 0),
    ] {
        let answer = Ring::new(cx.door, 4, flags).map(|ring| submit(&ring, &[sqe::nop()]));
        assert_eq!(answer, if error == 0 { Ok(1) } else { Err(error as isize) }, "{flags:#x}");
    }
}

#[case(own_flags)]
fn the_descriptor_is_writable(cx: &Context) {
    let ring = cx.ring_with(4, REWIND);
    assert_eq!(cx.door.poll(ring.fd, libc::POLLIN | libc::POLLOUT, 0), libc::POLLOUT as isize);
}
