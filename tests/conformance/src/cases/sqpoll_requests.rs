//! IORING_SETUP_SQPOLL: requests complete without a call, errors and notices of a polled ring, and its end.

use super::prelude::*;
use crate::polled::*;
use crate::ring::{PATIENCE, QUIET};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

topic!(since: "5.11", source: "io_uring_setup(2), io_uring/sqpoll.c");

#[case(own_flags)]
fn full_queue_goes_through(cx: &Context) {
    let mut ring = ring_of(cx, 64, Params { cq_entries: 4096, ..params(IORING_SETUP_CQSIZE) });
    let mut pushed = 0;
    while pushed < 2000u64 {
        let room = ring.params.sq_entries - (pushed as u32).wrapping_sub(ring.sq_head());
        if room == 0 {
            publish(&mut ring);
            assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAIT, 0, 0), 0);
            continue;
        }
        (0..room).for_each(|n| ring.push(sqe::nop().data(pushed + u64::from(n))));
        pushed += u64::from(room);
        publish(&mut ring);
    }
    for n in 0..pushed {
        assert_eq!(ring.wait().user_data, n);
    }
}

#[case(own_flags)]
fn open_of_a_fifo_waits_for_nobody(cx: &Context) {
    let mut ring = polled(cx, 4);
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(c"fifo".as_ptr(), 0o600) }, 0);
    go(&mut ring, &[sqe::openat(libc::AT_FDCWD, c"fifo", libc::O_WRONLY, 0)]);
    assert_eq!(seen(&mut ring).res, -libc::ENXIO);
    go(&mut ring, &[sqe::openat(libc::AT_FDCWD, c"fifo", libc::O_RDONLY, 0)]);
    let reader = owned(seen(&mut ring).res, "the reader");
    // SAFETY: an open descriptor.
    assert_eq!(unsafe { libc::fcntl(fd(&reader), libc::F_GETFL) } & libc::O_NONBLOCK, 0);
    go(&mut ring, &[sqe::openat(libc::AT_FDCWD, c"fifo", libc::O_WRONLY, 0)]);
    owned(seen(&mut ring).res, "the writer");
}

#[case(own_flags)]
fn pending_read_completes_without_a_call(cx: &Context) {
    let ((reader, mut writer), mut buffer) = (pipe(), [0; 4]);
    let mut ring = ring_of(cx, 4, Params { sq_thread_idle: 10_000, ..params(0) });
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    wait_consumed(&ring);
    assert!(!sleeps(&ring), "it spins for ten seconds");
    writer.write_all(b"abc").expect("write");
    assert_eq!(seen(&mut ring).res, 3);
}

#[case(own_flags)]
fn timeout_completes_without_a_call(cx: &Context) {
    let (mut ring, ts) = (polled(cx, 4), ms(60));
    let start = Instant::now();
    go(&mut ring, &[sqe::timeout(&ts, 0, 0)]);
    assert_eq!(seen(&mut ring).res, -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(59));
}

#[case(own_flags)]
fn pending_read_completes_while_the_thread_sleeps(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    wait_consumed(&ring);
    wait_asleep(&ring);
    writer.write_all(b"ab").expect("write");
    assert_eq!(seen(&mut ring).res, 2);
}

/// Returns the bytes of two reads or receives. The first waits when `write` writes its two bytes.
fn shares(ring: &mut Ring, write: Sqe, read: impl Fn(&mut [u8]) -> Sqe) -> (u8, u8) {
    let (mut waits, mut comes) = ([0; 1], [0; 1]);
    go(ring, &[read(&mut waits).data(1)]);
    wait_consumed(ring);
    go(ring, &[write.data(2)]);
    poll_until("the write's CQE", || ring.cq_ready() != 0);
    go(ring, &[read(&mut comes).data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, 1), (2, 2), (3, 1)]);
    (waits[0], comes[0])
}

/// The thread runs requests that its submission made ready before it takes more SQEs (`io_sq_tw`).
#[case(own_flags)]
fn pending_read_has_the_first_byte(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), polled(cx, 8));
    // More than once: neither cached readiness nor a wake-up of the thread may change the order.
    for round in 0..64 {
        let got = shares(&mut ring, sqe::write(fd(&writer), b"ab", 0), |buffer| sqe::read(fd(&reader), buffer, 0));
        assert_eq!(got, (b'a', b'b'), "round {round}");
    }
}

#[case(own_flags, since = "5.19")]
fn pending_receive_has_the_first_byte(cx: &Context) {
    let ((one, other), mut ring) = (UnixStream::pair().expect("a pair"), polled(cx, 8));
    for round in 0..64 {
        let got = shares(&mut ring, sqe::send(fd(&other), b"ab", 0), |buffer| sqe::recv(fd(&one), buffer, 0));
        assert_eq!(got, (b'a', b'b'), "round {round}");
    }
}

#[case(own_flags)]
fn pending_write_is_made_first(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), polled(cx, 8));
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd(&writer), libc::F_SETPIPE_SZ, 4096) }, 4096);
    let (full, mut buffer, mut rest) = ([b'x'; 4096], [0; 4096], [0; 16]);
    for round in 0..64 {
        go(&mut ring, &[sqe::write(fd(&writer), &full, 0)]);
        assert_eq!(seen(&mut ring).res, 4096);
        go(&mut ring, &[sqe::write(fd(&writer), b"a", 0).data(1)]);
        wait_consumed(&ring);
        go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(2)]);
        poll_until("the read's CQE", || ring.cq_ready() != 0);
        go(&mut ring, &[sqe::write(fd(&writer), b"b", 0).data(3)]);
        assert_eq!(ring.wait_sorted(3), [(1, 1), (2, 4096), (3, 1)], "round {round}");
        go(&mut ring, &[sqe::read(fd(&reader), &mut rest, 0)]);
        assert_eq!((seen(&mut ring).res, &rest[..2]), (2, &b"ab"[..]), "round {round}");
    }
}

#[case(own_flags)]
fn wakes_for_a_pending_read_and_takes_sqes_again(cx: &Context) {
    let ((reader, mut writer), mut buffer) = (pipe(), [0; 4]);
    let mut ring = ring_of(cx, 4, Params { sq_thread_idle: 300, ..params(0) });
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    wait_consumed(&ring);
    wait_asleep(&ring);
    writer.write_all(b"ab").expect("write");
    assert_eq!(seen(&mut ring).res, 2);
    poll_until("the cleared flag", || !sleeps(&ring));
    ring.push(sqe::nop().data(1));
    ring.publish();
    assert_eq!(seen(&mut ring).user_data, 1);
}

#[case(own_flags)]
fn link_goes_on_without_a_call(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 1]);
    let read = sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_IO_LINK).data(1);
    go(&mut ring, &[read, sqe::nop().with(IOSQE_IO_LINK | IOSQE_ASYNC).data(2), sqe::nop().data(3)]);
    wait_consumed(&ring);
    wait_asleep(&ring);
    writer.write_all(b"x").expect("write");
    assert_eq!([1, 2, 3].map(|_| seen(&mut ring).user_data), [1, 2, 3]);
}

#[case(own_flags)]
fn async_request_completes(cx: &Context) {
    let (content, mut ring, mut buffer) = (file("content", b"twelve bytes"), polled(cx, 4), [0; 12]);
    go(&mut ring, &[sqe::read(fd(&content), &mut buffer, 0).with(IOSQE_ASYNC)]);
    assert_eq!((ring.wait().res, &buffer), (12, b"twelve bytes"));
}

#[case(own_flags)]
fn path_operation_is_relative_to_the_working_directory(cx: &Context) {
    let mut ring = polled(cx, 4);
    std::fs::create_dir("below").expect("mkdir");
    std::fs::write("below/there", "x").expect("write");
    std::env::set_current_dir("below").expect("chdir");
    go(&mut ring, &[sqe::openat(libc::AT_FDCWD, c"there", libc::O_RDONLY, 0)]);
    let opened = ring.wait().res;
    assert!(opened >= 0, "{opened}");
    go(&mut ring, &[sqe::close(opened)]);
    assert_eq!(ring.wait().res, 0);
}

#[case(own_flags)]
fn plain_descriptors_need_no_registration(cx: &Context) {
    let (content, mut ring, mut buffer) = (file("content", b"abc"), polled(cx, 4), [0; 8]);
    go(&mut ring, &[sqe::read(fd(&content), &mut buffer, 0)]);
    assert_eq!(ring.wait().res, 3);
}

#[case(own_flags)]
fn registered_files_and_buffers_work(cx: &Context) {
    let (content, mut ring) = (file("content", b"fixed"), polled(cx, 4));
    let buffer = pages(1);
    ring.register_files(&[fd(&content)]);
    assert_eq!(ring.register_buffers(&[iovec_mut(buffer)]), 0);
    let read = prep(Opcode::ReadFixed, 0, buffer.as_ptr() as u64, 5, 0).with(IOSQE_FIXED_FILE);
    go(&mut ring, &[read]);
    assert_eq!((ring.wait().res, &buffer[..5]), (5, &b"fixed"[..]));
}

#[case(own_flags)]
fn invalid_sqe_is_answered_on_the_cq(cx: &Context) {
    let mut ring = polled(cx, 4);
    go(&mut ring, &[Sqe { opcode: 250, user_data: 5, ..Sqe::default() }]);
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res), (5, -EINVAL));
}

#[case(own_flags)]
fn rest_of_the_batch_follows_an_invalid_sqe(cx: &Context) {
    let mut ring = polled(cx, 4);
    let bad = Sqe { opcode: 250, user_data: 2, ..Sqe::default() };
    go(&mut ring, &[sqe::nop().data(1), bad, sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, -EINVAL), (3, 0)]);
}

#[case(own_flags)]
fn invalid_index_is_dropped(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    ring.push(sqe::nop().data(1));
    ring.push(sqe::nop().data(2));
    ring.set_sq_array(0, 99);
    publish(&mut ring);
    assert_eq!(ring.wait().user_data, 2);
    wait_consumed(&ring);
    assert_eq!((ring.sq_dropped(), ring.sq_head()), (1, 2));
}

#[case(own_flags)]
fn overflow_raises_the_flag_and_enter_flushes(cx: &Context) {
    let mut ring = ring_of(cx, 4, Params { cq_entries: 4, ..params(IORING_SETUP_CQSIZE) });
    for round in 0..3 {
        go(&mut ring, &[0, 1].map(|n| sqe::nop().data(2 * round + n)));
        wait_consumed(&ring);
    }
    poll_until("the flag", || ring.sq_flags() & IORING_SQ_CQ_OVERFLOW != 0);
    (0..4).for_each(|n| assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(n)));
    std::thread::sleep(QUIET);
    assert_eq!(ring.cq_ready(), 0, "only an enter moves what overflowed");
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!([4, 5].map(|_| ring.peek().map(|cqe| cqe.user_data)), [Some(4), Some(5)]);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
}

#[case(own_flags)]
fn eventfd_is_signalled(cx: &Context) {
    let (mut ring, mut notice) = (polled(cx, 4), eventfd(0, 0));
    let number = fd(&notice);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    go(&mut ring, &[sqe::nop()]);
    let mut count = [0; 8];
    notice.read_exact(&mut count).expect("read the eventfd");
    assert_eq!((u64::from_ne_bytes(count), ring.cq_ready()), (1, 1));
}

#[case(own_flags)]
fn descriptor_is_readable(cx: &Context) {
    let (mut ring, thread) = polled_by(cx);
    let poll = |ring: &Ring, timeout_ms| cx.door.poll(ring.fd, libc::POLLIN, timeout_ms);
    assert_eq!(poll(&ring, 0), 0);
    go(&mut ring, &[sqe::nop()]);
    assert_eq!(poll(&ring, PATIENCE.as_millis() as i32), libc::POLLIN as isize);
    ring.peek().expect("a CQE");
    assert_eq!(poll(&ring, 0), 0);
    let ((reader, mut writer), mut buffer) = (pipe(), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    wait_consumed(&ring);
    let feeder = once_asleep(move || {
        wait_thread_asleep(thread);
        writer.write_all(b"x").expect("write");
    });
    assert_eq!(poll(&ring, PATIENCE.as_millis() as i32), libc::POLLIN as isize);
    feeder.join().expect("the feeder");
}

#[case(own_flags)]
fn cancel_finds_a_pending_request(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(1)]);
    wait_consumed(&ring);
    go(&mut ring, &[Sqe { addr: 1, user_data: 2, ..sqe::op(Opcode::AsyncCancel) }]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case(own_flags)]
fn drain_waits_for_a_pending_request(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(1), sqe::nop().with(IOSQE_IO_DRAIN).data(2)]);
    wait_consumed(&ring);
    std::thread::sleep(QUIET);
    assert_eq!(ring.cq_ready(), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!([1, 2].map(|_| seen(&mut ring).user_data), [1, 2]);
}

#[case(own_flags)]
fn close_with_requests_in_flight(cx: &Context) {
    let ((reader, mut writer), mut buffer, ts) = (pipe(), [0; 1], ms(50_000));
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0), sqe::timeout(&ts, 0, 0)]);
    wait_consumed(&ring);
    drop(ring);
    poll_until("the thread's end", || pollers().is_empty());
    writer.write_all(b"x").expect("the pipe is still open");
    let mut byte = [0; 1];
    (&reader).read_exact(&mut byte).expect("nobody took the byte");
}

#[case(own_flags)]
fn close_ends_the_thread(cx: &Context) {
    for _ in 0..20 {
        let (mut ring, _) = polled_by(cx);
        go(&mut ring, &[sqe::nop()]);
        seen(&mut ring);
        drop(ring);
        poll_until("the thread's end", || pollers().is_empty());
    }
}
