//! The order in which requests get data. A request that waits is served when its data arrives, before a request that
//! is submitted later. `io_async_wake` queues it, and its task work runs before the call that made it ready returns.

use super::prelude::*;
use crate::buffers::*;
use std::os::unix::net::UnixStream;

topic!(since: "5.7", source: "io_async_wake in io_uring/poll.c");

/// Lets the requests that `sqe` wakes run, and nothing else.
fn go_and_wait(ring: &mut Ring, sqe: Sqe) {
    ring.push(sqe);
    assert_eq!(ring.submit_and_wait(1), 1);
}

/// Returns the bytes of two reads or receives. The first waits when `write` writes its two bytes.
fn shares(ring: &mut Ring, write: Sqe, read: impl Fn(&mut [u8]) -> Sqe) -> (u8, u8) {
    let (mut waits, mut comes) = ([0; 1], [0; 1]);
    ring.go(read(&mut waits).data(1));
    go_and_wait(ring, write.data(2));
    go_and_wait(ring, read(&mut comes).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, 1), (2, 2), (3, 1)]);
    (waits[0], comes[0])
}

#[case]
fn read_that_waited_has_the_first_byte(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(8));
    // More than once: cached readiness of a descriptor must not change the order.
    for round in 0..8 {
        let got = shares(&mut ring, sqe::write(fd(&writer), b"ab", 0), |buffer| sqe::read(fd(&reader), buffer, 0));
        assert_eq!(got, (b'a', b'b'), "round {round}");
    }
}

#[case(undisturbed)]
fn read_of_a_registered_file_that_waited_has_the_first_byte(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(8));
    ring.register_files(&[fd(&reader)]);
    let read = |buffer: &mut [u8]| sqe::read(0, buffer, 0).with(IOSQE_FIXED_FILE);
    for round in 0..8 {
        let got = shares(&mut ring, sqe::write(fd(&writer), b"ab", 0), read);
        assert_eq!(got, (b'a', b'b'), "round {round}");
    }
}

#[case(since = "5.19")]
fn receive_that_waited_has_the_first_byte(cx: &Context) {
    let ((one, other), mut ring) = (UnixStream::pair().expect("a pair"), cx.ring(8));
    for round in 0..8 {
        let got = shares(&mut ring, sqe::send(fd(&other), b"ab", 0), |buffer| sqe::recv(fd(&one), buffer, 0));
        assert_eq!(got, (b'a', b'b'), "round {round}");
    }
}

/// No task work runs between two SQEs of one submission.
#[case(undisturbed)]
fn read_after_the_write_in_its_submission_has_the_first_byte(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(8));
    let (mut waits, mut comes) = ([0; 1], [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut waits, 0).data(1));
    ring.go_all(&[sqe::write(fd(&writer), b"ab", 0).data(2), sqe::read(fd(&reader), &mut comes, 0).data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, 1), (2, 2), (3, 1)]);
    assert_eq!((waits, comes), ([b'b'], [b'a']));
}

#[case]
fn write_that_waited_is_made_first(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(8));
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd(&writer), libc::F_SETPIPE_SZ, 4096) }, 4096);
    let (full, mut buffer, mut rest) = ([b'x'; 4096], [0; 4096], [0; 16]);
    assert_eq!(ring.run(sqe::write(fd(&writer), &full, 0)), 4096);
    ring.go(sqe::write(fd(&writer), b"a", 0).data(1));
    ring.expect_quiet();
    go_and_wait(&mut ring, sqe::read(fd(&reader), &mut buffer, 0).data(2));
    go_and_wait(&mut ring, sqe::write(fd(&writer), b"b", 0).data(3));
    assert_eq!(ring.wait_sorted(3), [(1, 1), (2, 4096), (3, 1)]);
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut rest, 0)), 2);
    assert_eq!(&rest[..2], b"ab");
}

/// The next of a chain is queued after requests that the previous one made ready, so these select the first buffer.
#[case(since = "6.7")]
fn read_in_a_chain_chooses_after_what_was_ready(cx: &Context) {
    let ((first, second), mut ring) = ((pipe(), pipe()), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    (&second.1).write_all(b"xy").expect("write");
    ring.go(prep(Opcode::ReadMultishot, fd(&first.0), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1).data(1));
    ring.expect_quiet();
    let chain =
        [sqe::write(fd(&first.1), b"ab", 0).with(IOSQE_IO_LINK).data(2), read_select(fd(&second.0), 1, 4).data(3)];
    ring.go_all(&chain);
    let mut seen: Vec<_> = ring.wait_all(3).iter().map(|cqe| (cqe.user_data, cqe.res, buffer_of(cqe))).collect();
    seen.sort();
    assert_eq!(seen, [(1, 2, Some(0)), (2, 2, None), (3, 2, Some(1))]);
}

/// The wait queue of a file takes each new request at its head, whatever ring it belongs to.
#[case(own_flags, undisturbed)]
fn read_of_the_ring_that_came_last_has_the_first_byte(cx: &Context) {
    let ((reader, writer), mut rings) = (pipe(), [cx.ring_with(4, 0), cx.ring_with(4, 0)]);
    let mut got = [[0; 1]; 2];
    for (ring, buffer) in rings.iter_mut().zip(&mut got) {
        ring.go(sqe::read(fd(&reader), buffer, 0).data(1));
    }
    (&writer).write_all(b"ab").expect("write");
    for ring in &mut rings {
        assert_eq!(ring.wait_sorted(1), [(1, 1)]);
    }
    assert_eq!(got, [*b"b", *b"a"]);
}

/// Task work reads as the thread leaves write(2).
#[case(own_flags, undisturbed)]
fn read_that_waited_has_what_the_first_write_brought(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, 0), [0; 8]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    for bytes in [b"ab", b"cd"] {
        (&writer).write_all(bytes).expect("write");
    }
    assert_eq!(ring.wait_sorted(1), [(1, 2)]);
}
