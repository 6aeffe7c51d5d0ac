//! Signals of a registered eventfd: their number, and the completions that cause them.

use super::prelude::*;

topic!(since: "5.13", source: "io_uring_register(2), io_uring/eventfd.c");

/// A ring with an eventfd that `opcode` registers.
fn with_eventfd(ring: Ring, opcode: u32) -> (Ring, std::fs::File) {
    let file = eventfd(0, libc::EFD_NONBLOCK);
    let number = fd(&file);
    assert_eq!(ring.register(opcode, &raw const number as usize, 1), 0);
    (ring, file)
}

/// Returns the number of signals, once there were `wanted` and the number has stayed the same.
fn count(cx: &Context, mut file: &std::fs::File, wanted: u64) -> u64 {
    let mut sum = 0;
    loop {
        let limit = if sum < wanted { crate::ring::PATIENCE } else { crate::ring::QUIET };
        if cx.door.poll(fd(file), libc::POLLIN, limit.as_millis() as i32) == 0 {
            return sum;
        }
        let mut bytes = [0; 8];
        file.read_exact(&mut bytes).expect("read");
        sum += u64::from_ne_bytes(bytes);
    }
}

#[case(own_flags)]
fn each_completion_by_a_worker(cx: &Context) {
    let (mut ring, eventfd) = with_eventfd(cx.ring_with(64, 0), IORING_REGISTER_EVENTFD);
    let file = sys::file("plain", &[0; 64]);
    for at in 0..64 {
        ring.push(sqe::write(fd(&file), b"x", at).with(IOSQE_ASYNC));
    }
    assert_eq!(ring.submit(), 64);
    ring.wait_all(64);
    // Two workers that post at the same moment may signal once.
    let signals = count(cx, &eventfd, 56);
    assert!((56..=64).contains(&signals), "{signals} signals");
}

#[case(own_flags)]
fn a_submission_signals_once(cx: &Context) {
    let (mut ring, eventfd) = with_eventfd(cx.ring_with(64, 0), IORING_REGISTER_EVENTFD);
    ring.go_all(&[sqe::nop(); 16]);
    assert_eq!(count(cx, &eventfd, 1), 1);
    for _ in 0..16 {
        ring.go(sqe::nop());
    }
    assert_eq!(count(cx, &eventfd, 16), 16);
}

#[case(own_flags)]
fn what_finds_no_room_signals_when_it_is_posted(cx: &Context) {
    let (mut ring, eventfd) = with_eventfd(cx.ring_with(1, 0), IORING_REGISTER_EVENTFD);
    for _ in 0..2 {
        ring.go(sqe::nop());
    }
    assert_eq!(count(cx, &eventfd, 2), 2);
    ring.go(sqe::nop());
    ring.go(sqe::nop());
    assert_eq!(count(cx, &eventfd, 0), 0, "the CQ is full");
    ring.wait_all(2);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(count(cx, &eventfd, 1), 1, "both were posted together");
}

#[case(own_flags)]
fn each_tag(cx: &Context) {
    let ((reader, _writer), (ring, eventfd)) = (pipe(), with_eventfd(cx.ring_with(8, 0), IORING_REGISTER_EVENTFD));
    let (files, tags) = ([fd(&reader); 3], [7u64, 8, 9]);
    // struct io_uring_rsrc_register: count, flags, padding, data, tags.
    let resources = [3, 0, address(&files), address(&tags)];
    assert_eq!(ring.register(IORING_REGISTER_FILES2, address(&resources) as usize, 32), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
    assert_eq!(count(cx, &eventfd, 3), 3);
}

#[case(own_flags, since = "5.18")]
fn each_message(cx: &Context) {
    let ((ring, eventfd), mut sender) =
        (with_eventfd(cx.ring_with(8, 0), IORING_REGISTER_EVENTFD), cx.ring_with(8, 0));
    sender.go_all(&[prep(Opcode::MsgRing, ring.fd, 0, 5, 77); 3]);
    sender.wait_all(3);
    assert_eq!(count(cx, &eventfd, 3), 3);
}

/// Completes a request, and returns the number of signals to an eventfd of IORING_REGISTER_EVENTFD_ASYNC.
fn signals_of(cx: &Context, setup: u32, wanted: u64, request: Sqe, happens: impl FnOnce()) -> u64 {
    let (mut ring, eventfd) = with_eventfd(cx.ring_with(4, setup), IORING_REGISTER_EVENTFD_ASYNC);
    ring.go(request);
    happens();
    let cqe = ring.wait();
    assert!(cqe.res >= 0 || cqe.res == -libc::ETIME, "{cqe:?}");
    count(cx, &eventfd, wanted)
}

#[case(own_flags)]
fn async_signals_what_a_worker_completes(cx: &Context) {
    by_a_worker(cx, 0);
}

#[case(own_flags, since = "6.1")]
fn async_signals_what_a_worker_brings_to_a_deferring_ring(cx: &Context) {
    by_a_worker(cx, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
}

fn by_a_worker(cx: &Context, setup: u32) {
    let (file, mut buffer) = (sys::file("plain", b"abcd"), [0; 4]);
    let read = sqe::read(fd(&file), &mut buffer, 0);
    for (name, request, wanted) in [
        ("NOP", sqe::nop(), 0),
        ("NOP by a worker", sqe::nop().with(IOSQE_ASYNC), 1),
        ("READ", read, 0),
        ("READ by a worker", read.with(IOSQE_ASYNC), 1),
        ("WRITE by a worker", sqe::write(fd(&file), b"x", 0).with(IOSQE_ASYNC), 1),
        ("FSYNC", sqe::fsync(fd(&file), 0), 1),
        (
            "an open that may make a file",
            sqe::openat(libc::AT_FDCWD, c"made", libc::O_CREAT | libc::O_RDWR, 0o600),
            1,
        ),
        ("an open", sqe::openat(libc::AT_FDCWD, c"plain", libc::O_RDONLY, 0), 0),
        ("TIMEOUT", sqe::timeout(&ms(1), 0, 0), 0),
    ] {
        assert_eq!(signals_of(cx, setup, wanted, request, || ()), wanted, "{name}");
    }
}

#[case(own_flags)]
fn async_does_not_signal_what_waited(cx: &Context) {
    for (flags, wanted) in [(0, 0), (IOSQE_ASYNC, 1)] {
        let ((reader, mut writer), mut buffer) = (pipe(), [0; 1]);
        let read = sqe::read(fd(&reader), &mut buffer, 0).with(flags);
        let feed = || {
            std::thread::sleep(crate::ring::QUIET);
            writer.write_all(b"x").expect("write");
        };
        assert_eq!(signals_of(cx, 0, wanted, read, feed), wanted, "READ, flags {flags}");
    }
    let (reader, mut writer) = pipe();
    let feed = || writer.write_all(b"x").expect("write");
    assert_eq!(signals_of(cx, 0, 0, sqe::poll_add(fd(&reader), libc::POLLIN, 0), feed), 0, "POLL_ADD");
}
