//! Requests on descriptors that were not ready the last few times: cached readiness changes no result.

use super::prelude::*;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

topic!(since: "5.6", source: "io_uring_enter(2), io_uring/rw.c, io_uring/poll.c, io_uring/net.c");

const IN: i16 = libc::POLLIN;
/// More rounds than an engine would need to adapt.
const ROUNDS: usize = 9;

/// Reads of one byte, each submitted before its byte is written.
fn read_what_comes_later(ring: &mut Ring, reader: &File, writer: &mut File) {
    let mut byte = [0];
    for _ in 0..ROUNDS {
        ring.go(sqe::read(fd(reader), &mut byte, 0).data(1));
        writer.write_all(b"x").expect("room");
        assert_eq!(ring.wait_ordered(1), [(1, 1)]);
    }
}

#[case(undisturbed)]
fn read_finds_what_was_there_before(cx: &Context) {
    let ((reader, mut writer), mut ring, mut byte) = (pipe(), cx.ring(8), [0]);
    for _ in 0..2 {
        read_what_comes_later(&mut ring, &reader, &mut writer);
        writer.write_all(b"abc").expect("room");
        for expected in b"abc" {
            ring.push(sqe::read(fd(&reader), &mut byte, 0).data(2));
            assert_eq!(ring.submit_and_wait(1), 1);
            assert_eq!((ring.wait_ordered(1), byte[0]), (vec![(2, 1)], *expected));
        }
    }
}

#[case(undisturbed)]
fn read_beside_one_that_waits_finds_what_was_there_before(cx: &Context) {
    let ((reader, mut writer), (quiet, _quiet), mut ring, mut byte) = (pipe(), pipe(), cx.ring(8), [0]);
    ring.go(sqe::poll_add(fd(&quiet), IN, 0).data(9));
    read_what_comes_later(&mut ring, &reader, &mut writer);
    writer.write_all(b"abc").expect("room");
    for expected in b"abc" {
        ring.go(sqe::read(fd(&reader), &mut byte, 0).data(2));
        assert_eq!((ring.wait_ordered(1), byte[0]), (vec![(2, 1)], *expected));
    }
    ring.expect_quiet();
}

#[case(undisturbed)]
fn poll_finds_what_was_there_before(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    for _ in 0..ROUNDS {
        ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
        writer.write_all(b"x").expect("room");
        assert_eq!(ring.wait_ordered(1), [(1, IN.into())]);
        (&reader).read_exact(&mut [0]).expect("a byte");
    }
    writer.write_all(b"x").expect("room");
    for _ in 0..2 {
        ring.push(sqe::poll_add(fd(&reader), IN, 0).data(2));
        assert_eq!(ring.submit_and_wait(1), 1);
        assert_eq!(ring.wait_ordered(1), [(2, IN.into())]);
    }
}

/// Data that no request reads ends no wait.
#[case(undisturbed, since = "5.11")]
fn what_nobody_waits_for_ends_no_wait(cx: &Context) {
    let ((reader, mut writer), (other, mut other_writer), mut ring) = (pipe(), pipe(), cx.ring(8));
    let mut byte = [0];
    read_what_comes_later(&mut ring, &reader, &mut writer);
    read_what_comes_later(&mut ring, &other, &mut other_writer);
    // The last of these reads before data comes that stays unread.
    ring.push(sqe::read(fd(&reader), &mut byte, 0).data(2));
    ring.push(sqe::read(fd(&other), &mut byte, 0).data(3));
    ring.submit();
    for file in [&mut writer, &mut other_writer] {
        file.write_all(b"ab").expect("room");
    }
    assert_eq!(ring.wait_sorted(2), [(2, 1), (3, 1)]);
    ring.expect_quiet();
    ring.push(sqe::read(fd(&reader), &mut byte, 0).data(4));
    assert_eq!(ring.submit_and_wait(1), 1);
    assert_eq!((ring.wait_ordered(1), byte), (vec![(4, 1)], *b"b"));
}

#[case(undisturbed)]
fn hang_up_is_found_by_each_that_waits(cx: &Context) {
    let ((reader, mut writer), mut ring, mut byte) = (pipe(), cx.ring(8), [0]);
    read_what_comes_later(&mut ring, &reader, &mut writer);
    ring.push(sqe::read(fd(&reader), &mut byte, 0).data(2));
    ring.submit();
    drop(writer);
    assert_eq!(ring.wait_ordered(1), [(2, 0)]);
    for _ in 0..ROUNDS {
        ring.push(sqe::read(fd(&reader), &mut byte, 0).data(3));
        assert_eq!(ring.submit_and_wait(1), 1);
        assert_eq!(ring.wait_ordered(1), [(3, 0)]);
    }
}

/// The number is closed while a read waits that found nothing several times; the file stays open by another number.
#[case(undisturbed)]
fn read_goes_on_where_its_number_is_closed(cx: &Context) {
    let ((reader, mut writer), mut ring, mut byte) = (pipe(), cx.ring(8), [0]);
    let another = reader.try_clone().expect("dup");
    read_what_comes_later(&mut ring, &reader, &mut writer);
    ring.go(sqe::read(fd(&reader), &mut byte, 0).data(2));
    drop(reader);
    writer.write_all(b"ab").expect("room");
    assert_eq!((ring.wait_ordered(1), byte), (vec![(2, 1)], *b"a"));
    ring.expect_quiet();
    assert_eq!(ring.run(sqe::read(fd(&another), &mut byte, 0)), 1);
}

/// A SEND waits on a socket on which receives waited before. A RECV submitted after it is still served.
#[case(undisturbed)]
fn send_waits_beside_receives_that_waited(cx: &Context) {
    let (ours, mut theirs) = UnixStream::pair().expect("sockets");
    let (mut ring, mut byte) = (cx.ring(8), [0]);
    for _ in 0..ROUNDS {
        ring.go(sqe::recv(ours.as_raw_fd(), &mut byte, 0).data(1));
        theirs.write_all(b"x").expect("room");
        assert_eq!(ring.wait_ordered(1), [(1, 1)]);
    }
    ours.set_nonblocking(true).expect("nonblocking");
    while (&ours).write(&[0; 4096]).is_ok() {}
    ours.set_nonblocking(false).expect("blocking");
    let filler = [7; 4096];
    ring.go(sqe::send(ours.as_raw_fd(), &filler, 0).data(2));
    ring.go(sqe::recv(ours.as_raw_fd(), &mut byte, 0).data(3));
    ring.expect_quiet();
    theirs.write_all(b"x").expect("room");
    assert_eq!(ring.wait_ordered(1), [(3, 1)]);
    ring.go(sqe::recv(ours.as_raw_fd(), &mut byte, 0).data(4));
    theirs.set_nonblocking(true).expect("nonblocking");
    let mut sent = None;
    while sent.is_none() {
        let _ = theirs.read(&mut [0; 65536]);
        ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
        sent = ring.peek();
    }
    assert_eq!(sent.map(|cqe| (cqe.user_data, cqe.res)), Some((2, 4096)));
    theirs.write_all(b"x").expect("room");
    assert_eq!(ring.wait_ordered(1), [(4, 1)]);
}

/// Urgent data stays in the socket while a receive of other data waits.
#[case(undisturbed)]
fn urgent_data_ends_no_receive_of_other_data(cx: &Context) {
    let (server, client) = tcp_pair();
    let (mut ring, mut byte) = (cx.ring(8), [0]);
    for _ in 0..ROUNDS {
        ring.go(sqe::recv(fd(&server), &mut byte, 0).data(1));
        (&client).write_all(b"x").expect("room");
        assert_eq!(ring.wait_ordered(1), [(1, 1)]);
    }
    ring.go(sqe::recv(fd(&server), &mut byte, 0).data(2));
    // SAFETY: one byte is read there.
    let sent = unsafe { libc::send(fd(&client), b"u".as_ptr().cast(), 1, libc::MSG_OOB) };
    assert_eq!(sent, 1);
    ring.expect_quiet();
    (&client).write_all(b"y").expect("room");
    assert_eq!((ring.wait_ordered(1), byte), (vec![(2, 1)], *b"y"));
}
