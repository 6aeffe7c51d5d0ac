//! Requests with several CQEs: multishot ACCEPT and READ_MULTISHOT, and any multishot request on a full CQ.

use super::prelude::*;
use crate::buffers::*;
use crate::ring::QUIET;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

topic!(since: "5.19", source: "io_uring_enter(2), io_uring/net.c, io_uring/rw.c");

fn accept(fd: i32) -> Sqe {
    sqe::accept(fd, 0).ioprio(IORING_ACCEPT_MULTISHOT as u16)
}

fn read(fd: i32) -> Sqe {
    prep(Opcode::ReadMultishot, fd, 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1)
}

fn connect(to: &TcpListener) -> TcpStream {
    TcpStream::connect(to.local_addr().expect("the address")).expect("connect")
}

#[case]
fn accept_takes_each_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.go(accept(fd(&listener)));
    ring.expect_quiet();
    for _ in 0..3 {
        let mut client = connect(&listener);
        let (number, more, _) = next_shot(&mut ring);
        assert!(more);
        let mut accepted = std::fs::File::from(owned(number, "accepted"));
        client.write_all(b"x").expect("write");
        assert_eq!(accepted.read(&mut [0; 4]).expect("read"), 1);
    }
    ring.expect_quiet();
}

#[case]
fn accept_takes_what_waits(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    let _clients = [connect(&listener), connect(&listener), connect(&listener)];
    ring.go(accept(fd(&listener)));
    for _ in 0..3 {
        let (number, more, _) = next_shot(&mut ring);
        drop(owned(number, "accepted"));
        assert!(more);
    }
    ring.expect_quiet();
}

#[case]
fn accept_on_a_nonblocking_listener(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    listener.set_nonblocking(true).expect("nonblocking");
    let _early = [connect(&listener), connect(&listener)];
    ring.go(accept(fd(&listener)));
    let _late = connect(&listener);
    for _ in 0..3 {
        let (number, more, _) = next_shot(&mut ring);
        drop(owned(number, "accepted"));
        assert!(more);
    }
    ring.expect_quiet();
}

#[case]
fn accept_keeps_its_turn(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    listener.set_nonblocking(true).expect("nonblocking");
    ring.go(accept(fd(&listener)).data(1));
    ring.expect_quiet();
    ring.go(sqe::accept(fd(&listener), 0).data(2));
    ring.expect_quiet();
    for _ in 0..3 {
        let _client = connect(&listener);
        let cqe = ring.wait();
        drop(owned(cqe.res, "accepted"));
        assert_eq!(cqe.user_data, 1);
    }
    ring.expect_quiet();
}

#[case]
fn accept_keeps_its_turn_while_nobody_waits(cx: &Context) {
    accepts_in_turn(cx, true);
}

#[case]
fn accept_on_a_blocking_listener_keeps_its_turn(cx: &Context) {
    accepts_in_turn(cx, false);
}

/// A multishot ACCEPT before a plain one takes each connection, even if no thread is in io_uring_enter(2) when it
/// comes.
fn accepts_in_turn(cx: &Context, nonblocking: bool) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    listener.set_nonblocking(nonblocking).expect("nonblocking");
    ring.go_all(&[accept(fd(&listener)).data(1), sqe::accept(fd(&listener), 0).data(2)]);
    for _ in 0..5 {
        let _client = connect(&listener);
        std::thread::sleep(Duration::from_millis(10)); // threads that work beside the program have begun
        let cqe = ring.wait();
        drop(owned(cqe.res, "accepted"));
        assert_eq!(cqe.user_data, 1);
    }
    ring.expect_quiet();
}

fn into_slots(fd: i32) -> Sqe {
    accept(fd).file_index(IORING_FILE_INDEX_ALLOC as u32)
}

#[case]
fn accept_into_free_slots(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.register_files(&[-1, -1, -1]);
    ring.go(into_slots(fd(&listener)).data(1));
    for slot in 0..2 {
        let mut client = connect(&listener);
        assert_eq!(next_shot(&mut ring), (slot, true, None));
        client.write_all(b"abc").expect("write");
        let mut room = [0; 8];
        ring.go(sqe::recv(slot, &mut room, 0).with(IOSQE_FIXED_FILE).data(2));
        assert_eq!(ring.wait().res, 3);
    }
}

#[case]
fn accept_ends_when_the_slots_are_full(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.register_files(&[-1]);
    ring.go(into_slots(fd(&listener)));
    let _clients = [connect(&listener), connect(&listener)];
    assert_eq!(next_shot(&mut ring), (0, true, None));
    assert_eq!(next_shot(&mut ring), (-libc::ENFILE, false, None));
}

#[case]
fn accept_into_a_given_slot_is_einval(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.register_files(&[-1]);
    assert_eq!(ring.run(accept(fd(&listener)).file_index(1)), -EINVAL);
}

#[case]
fn accept_is_cancelled(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(8));
    ring.go(accept(fd(&listener)).data(1));
    let _client = connect(&listener);
    let (number, more, _) = next_shot(&mut ring);
    drop(owned(number, "accepted"));
    assert!(more);
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case(since = "6.7")]
fn read_answers_each_time(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&reader)));
    ring.expect_quiet();
    writer.write_all(b"012345").expect("write");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(1)));
    writer.write_all(b"678").expect("write");
    assert_eq!(next_shot(&mut ring), (3, true, Some(2)));
    assert_eq!(buffers.content(2, 3), b"678");
    ring.expect_quiet();
}

#[case(since = "6.7")]
fn read_ends_with_the_data(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    writer.write_all(b"last").expect("write");
    ring.go(read(fd(&reader)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    drop(writer);
    assert_eq!(next_shot(&mut ring), (0, false, None));
}

#[case(since = "6.7")]
fn read_that_finds_the_end_keeps_its_chain(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    writer.write_all(b"last").expect("write");
    drop(writer);
    let chain = [read(fd(&reader)).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)];
    ring.go_all(&chain);
    assert_eq!(ring.wait_ordered(3), [(1, 4), (1, 0), (2, 0)]);
    ring.go_all(&chain);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
}

#[case(since = "6.7")]
fn read_ends_without_buffers(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 1, 4);
    writer.write_all(b"012345").expect("write");
    ring.go(read(fd(&reader)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
}

#[case(since = "6.7")]
fn read_waits_without_buffers_while_there_is_nothing(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 1, 4);
    ring.go(read(fd(&reader)));
    writer.write_all(b"0123").expect("write");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    ring.expect_quiet();
    writer.write_all(b"4").expect("write");
    assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
}

#[case(since = "6.7")]
fn read_without_buffers_is_cancelled(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 1, 4);
    ring.go(read(fd(&reader)).data(1));
    writer.write_all(b"0123").expect("write");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

/// READ_MULTISHOT selects a buffer when it is submitted; with IOSQE_ASYNC it polls first.
#[case]
fn read_submitted_without_buffers_is_enobufs(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let (a, _b) = pair();
    let _buffers = BufferRing::new(&ring, 1, 4, 4, 0);
    for number in [fd(&reader), fd(&a)] {
        assert_eq!(ring.run(read(number)), -libc::ENOBUFS);
    }
    ring.go(read(fd(&reader)).with(IOSQE_ASYNC));
    ring.expect_quiet();
    writer.write_all(b"0").expect("write");
    assert_eq!(next_shot(&mut ring), (-libc::ENOBUFS, false, None));
    assert_eq!(ring.run(read(fd(&reader))), -libc::ENOBUFS, "with data, too");
    assert_eq!(ring.run(read(fd(&file("f", b"1")))), -libc::EBADFD, "before it looks for a buffer");
}

/// The kernel does not start the LINK_TIMEOUT when a worker arms a multishot request. A multishot poll arms itself, and
/// its LINK_TIMEOUT starts.
#[case]
fn async_link_timeout_is_not_started(cx: &Context) {
    let (listener, ((reader, _writer), (socket, _peer))) = (listener().0, (pipe(), pair()));
    let mut ring = cx.ring(8);
    let (_buffers, soon) = (BufferRing::filled(&ring, 1, 4, 4), ms(20));
    for request in [read(fd(&reader)), recv_multishot(fd(&socket), 0).buffer(1), accept(fd(&listener))] {
        let guarded = request.data(1).with(IOSQE_ASYNC | IOSQE_IO_LINK);
        ring.go_all(&[guarded, sqe::link_timeout(&soon).data(2)]);
        assert_eq!(ring.wait_for(Duration::from_millis(60)), None, "{request:?}");
        ring.go(sqe::cancel(1, 0).data(3));
        assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, -ECANCELED), (3, 0)]);
    }
    let poll = sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI).data(1);
    ring.go_all(&[poll.with(IOSQE_ASYNC | IOSQE_IO_LINK), sqe::link_timeout(&soon).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
}

/// The submitter arms a multishot request again after a worker has posted its first CQE, and so starts the
/// LINK_TIMEOUT.
#[case(since = "6.7")]
fn async_link_timeout_starts_with_the_first_answer(cx: &Context) {
    let (listener, ((reader, mut writer), (socket, peer))) = (listener().0, (pipe(), pair()));
    let mut ring = cx.ring(8);
    let (_buffers, soon) = (BufferRing::filled(&ring, 1, 4, 4), ms(20));
    for request in [read(fd(&reader)), recv_multishot(fd(&socket), 0).buffer(1), accept(fd(&listener))] {
        let guarded = request.data(1).with(IOSQE_ASYNC | IOSQE_IO_LINK);
        ring.go_all(&[guarded, sqe::link_timeout(&soon).data(2)]);
        assert_eq!(ring.wait_for(Duration::from_millis(40)), None, "{request:?}");
        wait_others_asleep(&[]); // a worker has found nothing
        let client = match request.opcode {
            opcode if opcode == Opcode::Accept as u8 => Some(connect(&listener)),
            opcode if opcode == Opcode::Recv as u8 => {
                // SAFETY: one byte that outlives the call.
                assert_eq!(unsafe { libc::send(fd(&peer), b"x".as_ptr().cast(), 1, 0) }, 1);
                None
            }
            _ => {
                writer.write_all(b"x").expect("write");
                None
            }
        };
        let shot = next_shot(&mut ring);
        assert!(shot.1, "{shot:?} of {request:?}");
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)], "{request:?}");
        drop(client);
    }
}

/// A LINK_TIMEOUT starts when the connection is accepted, also while the only worker is busy.
#[case(since = "6.7")]
fn async_link_timeout_starts_beside_a_busy_worker(cx: &Context) {
    let (listener, (from, mut feed), (_drain, to)) = (listener().0, pipe(), pipe());
    let (mut ring, mut limits) = (cx.ring(8), [1, 1]);
    let limit = ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, address_mut(&mut limits) as usize, 2);
    assert_eq!(limit, 0);
    let soon = ms(20);
    let guarded = accept(fd(&listener)).data(1).with(IOSQE_ASYNC | IOSQE_IO_LINK);
    ring.go_all(&[guarded, sqe::link_timeout(&soon).data(2)]);
    wait_others_asleep(&[]); // it is armed
    ring.go(sqe::splice(fd(&from), -1, fd(&to), -1, 1).data(3)); // in the kernel it keeps the worker until there is data
    assert_eq!(ring.wait_for(Duration::from_millis(40)), None);
    let client = connect(&listener);
    let shot = next_shot(&mut ring);
    assert!(shot.1, "{shot:?}");
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, -ETIME)]);
    feed.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(3, 1)]);
    drop(client);
}

/// The end of the file is no failure for the chain.
#[case(since = "6.7")]
fn read_of_the_end_starts_what_is_linked(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 4, 4);
    drop(writer);
    ring.go_all(&[read(fd(&reader)).data(1).with(IOSQE_IO_LINK), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
}

/// An earlier poll, which has ended, used up the event of this data.
#[case(since = "6.7")]
fn read_of_data_that_was_seen(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, 0).data(9));
    ring.expect_quiet();
    writer.write_all(b"012345").expect("write");
    assert_eq!(ring.wait_ordered(1), [(9, i32::from(libc::POLLIN))]);
    ring.go(read(fd(&reader)));
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(1)));
}

/// The pipe is already known to be empty when the second read is submitted.
#[case(since = "6.7")]
fn read_beside_one_that_found_nothing(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&reader)).data(1));
    ring.expect_quiet();
    ring.go(read(fd(&reader)).data(2));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(3));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (3, 0)]);
    writer.write_all(b"0123").expect("write");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
}

/// The submission of a READ_MULTISHOT posts one CQE (`io_read_mshot`); task work posts the rest.
#[case(undisturbed, since = "6.7")]
fn read_goes_on_after_its_submission(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    writer.write_all(b"0123456789").expect("write");
    ring.go_all(&[read(fd(&reader)).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(4), [(1, 4), (2, 0), (1, 4), (1, 2)]);
    ring.expect_quiet();
}

#[case(undisturbed, since = "6.7")]
fn read_goes_on_after_what_was_ready_before(cx: &Context) {
    let ((first, second), mut ring) = ((pipe(), pipe()), cx.ring(8));
    let (mut writer, reader) = (&second.1, &second.0);
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&first.0)).data(1));
    ring.expect_quiet();
    writer.write_all(b"0123456789").expect("write");
    ring.go_all(&[sqe::write(fd(&first.1), b"abcdef", 0).data(2), read(fd(reader)).data(3)]);
    let seen: Vec<_> = ring.wait_all(6).iter().map(|cqe| (cqe.user_data, shot(cqe))).collect();
    let expected = [
        (2, (6, false, None)),
        (3, (4, true, Some(0))),
        (1, (4, true, Some(1))),
        (1, (2, true, Some(2))),
        (3, (4, true, Some(3))),
        (3, (2, true, Some(4))),
    ];
    assert_eq!(seen, expected);
}

#[case(undisturbed, since = "6.7")]
fn read_goes_on_no_more_once_cancelled(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    writer.write_all(b"0123456789").expect("write");
    ring.go_all(&[read(fd(&reader)).data(1), sqe::cancel(1, 0).data(2)]);
    assert_eq!(ring.wait_ordered(3), [(1, 4), (2, 0), (1, -ECANCELED)]);
    assert_eq!(readable_bytes(&reader), 6);
}

#[case(since = "6.7")]
fn async_read_begins_after_its_submission(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    writer.write_all(b"0123456789").expect("write");
    ring.go_all(&[read(fd(&reader)).with(IOSQE_ASYNC).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(4), [(2, 0), (1, 4), (1, 4), (1, 2)]);
}

/// A READ_MULTISHOT with RWF_NOWAIT is not armed for more data (`io_queue_async`).
#[case(since = "6.7")]
fn read_that_may_not_wait_answers_once(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    writer.write_all(b"0123456789").expect("write");
    ring.go(read(fd(&reader)).op_flags(libc::RWF_NOWAIT as u32));
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (-EAGAIN, false, None));
    assert_eq!(readable_bytes(&reader), 6);
}

#[case(since = "6.8")]
fn read_of_a_terminal_keeps_no_buffer_at_the_end(cx: &Context) {
    let ((mut master, slave), mut ring) = (pty(), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&slave)));
    master.write_all(b"012345").expect("write");
    assert_eq!(next_shot(&mut ring), (4, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(1)));
    ring.expect_quiet();
    drop(master);
    assert_eq!(next_shot(&mut ring), (0, false, None));
    assert_eq!(buffers.head(&ring), 2);
}

#[case(since = "6.12")]
fn read_of_a_terminal_uses_an_incremental_group_up(cx: &Context) {
    let ((mut master, slave), mut ring) = (pty(), cx.ring(8));
    let mut buffers = BufferRing::new(&ring, 1, 4, 16, IOU_PBUF_RING_INC);
    (0..4).for_each(|id| buffers.give(id));
    let start = buffers.start(0);
    ring.go(read(fd(&slave)));
    master.write_all(b"012345").expect("write");
    assert_eq!(next_shot(&mut ring), (6, true, Some(0)));
    assert_eq!((buffers.head(&ring), buffers.entry(0)), (0, (start + 6, 10)));
    master.write_all(b"abcdefghijkl").expect("write");
    assert_eq!(next_shot(&mut ring), (10, true, Some(0)));
    assert_eq!(next_shot(&mut ring), (2, true, Some(1)));
    assert_eq!(buffers.content(0, 16), b"012345abcdefghij");
}

#[case]
fn read_of_a_file_is_ebadfd(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    assert_eq!(ring.run(read(fd(&file))), -EBADFD);
    let zero = std::fs::File::open("/dev/zero").expect("open");
    assert_eq!(ring.run(read(fd(&zero))), -EBADFD);
}

#[case]
fn read_without_select_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(8).run(prep(Opcode::ReadMultishot, fd(&reader), 0, 0, 0)), -EINVAL);
}

#[case]
fn read_with_address_or_length_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    assert_eq!(ring.run(Sqe { len: 1, ..read(fd(&reader)) }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..read(fd(&reader)) }), -EINVAL);
}

#[case(since = "6.7")]
fn read_of_an_eventfd(cx: &Context) {
    let (mut event, mut ring) = (eventfd(0, 0), cx.ring(8));
    let buffers = BufferRing::filled(&ring, 1, 8, 8);
    ring.go(read(fd(&event)));
    for (id, value) in [3u64, 5].into_iter().enumerate() {
        event.write_all(&value.to_ne_bytes()).expect("write");
        assert_eq!(next_shot(&mut ring), (8, true, Some(id as u16)));
        assert_eq!(buffers.content(id as u16, 8), value.to_ne_bytes());
    }
}

#[case]
fn read_is_cancelled(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(8));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    ring.go(read(fd(&reader)).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

/// A ring whose CQ has one place left.
fn nearly_full(cx: &Context) -> Ring {
    let mut ring = cx.ring(2);
    for _ in 0..ring.params.cq_entries - 1 {
        ring.go(sqe::nop().data(9));
    }
    assert_eq!(ring.cq_ready(), ring.params.cq_entries - 1);
    ring
}

/// Returns the CQEs that come after the NOPs of [`nearly_full`].
fn after_the_nops(ring: &mut Ring) -> Vec<Cqe> {
    // The kernel runs task work in an enter.
    ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
    std::thread::sleep(QUIET); // in which more would be queued for it
    ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
    let mut cqes = Vec::new();
    while let Some(cqe) = ring.wait_for(Duration::from_millis(50)) {
        cqes.push(cqe);
    }
    cqes.retain(|cqe| cqe.user_data != 9);
    cqes
}

#[case(since = "6.8")]
fn overflow_ends_recv(cx: &Context) {
    let ((a, b), mut ring) = (pair(), nearly_full(cx));
    let buffers = BufferRing::filled(&ring, 1, 8, 4);
    put(&a, b"0123456789abcdef");
    ring.go(recv_multishot(fd(&b), 0));
    let cqes = after_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(shot).collect();
    assert_eq!(seen, [(4, true, Some(0)), (4, false, Some(1))]);
    assert_eq!((buffers.head(&ring), readable_bytes(&b)), (2, 8));
}

#[case]
fn overflow_ends_accept(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), nearly_full(cx));
    listener.set_nonblocking(true).expect("nonblocking");
    let _clients = [connect(&listener), connect(&listener), connect(&listener)];
    ring.go(accept(fd(&listener)));
    let cqes = after_the_nops(&mut ring);
    let more: Vec<_> = cqes.iter().map(|cqe| shot(cqe).1).collect();
    cqes.iter().for_each(|cqe| drop(owned(cqe.res, "accepted")));
    assert_eq!(more, [true, false]);
}

#[case(since = "6.7")]
fn overflow_ends_read(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), nearly_full(cx));
    let _buffers = BufferRing::filled(&ring, 1, 8, 4);
    writer.write_all(b"0123456789abcdef").expect("write");
    ring.go(read(fd(&reader)));
    let cqes = after_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(shot).collect();
    assert_eq!(seen, [(4, true, Some(0)), (4, false, Some(1))]);
    assert_eq!(readable_bytes(&reader), 8);
}

#[case]
fn overflow_ends_poll(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(2));
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI).data(1));
    for _ in 0..ring.params.cq_entries {
        ring.go(sqe::nop().data(9));
    }
    writer.write_all(b"x").expect("write");
    let cqes = after_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(shot).collect();
    assert_eq!(seen, [(i32::from(libc::POLLIN), false, None)]);
}

#[case(since = "6.4")]
fn overflow_ends_timeout(cx: &Context) {
    let (mut ring, span) = (cx.ring(2), ms(10));
    for _ in 0..ring.params.cq_entries {
        ring.go(sqe::nop().data(9));
    }
    ring.go(sqe::timeout(&span, 0, IORING_TIMEOUT_MULTISHOT).data(1));
    let cqes = after_the_nops(&mut ring);
    let seen: Vec<_> = cqes.iter().map(shot).collect();
    assert_eq!(seen, [(-ETIME, false, None)]);
}

/// A worker arms a READ_MULTISHOT before its flags are checked.
#[case]
fn async_read_with_an_unknown_flag_waits(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 4, 16);
    let bad = read(fd(&reader)).op_flags(1 << 25).with(IOSQE_ASYNC);
    ring.go(bad.data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
    ring.go(bad.data(3));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, -EOPNOTSUPP);
    ring.go(bad.data(4));
    assert_eq!(ring.wait().res, -EOPNOTSUPP, "with data, too");
}

#[case]
fn read_with_a_priority_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let read = Sqe { flags: IOSQE_BUFFER_SELECT, ..prep(Opcode::ReadMultishot, fd(&reader), 0, 0, 0) };
    assert_eq!(ring.run(read.ioprio(1 << 13)), -EINVAL);
}

#[case(since = "6.8")]
fn read_with_an_unknown_flag_keeps_its_buffer(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 4, 16);
    let read = Sqe { flags: IOSQE_BUFFER_SELECT, ..prep(Opcode::ReadMultishot, fd(&reader), 0, 0, 0) };
    ring.go(read.buffer(1).op_flags(1 << 25));
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (-EOPNOTSUPP, 0));
    assert_eq!(buffers.head(&ring), 0);
}
