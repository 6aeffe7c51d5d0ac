//! Reads and writes of everything else that can be waited for: sockets, eventfds, terminals, inotify, timers, signals.

use super::prelude::*;
use crate::buffers::BufferRing;
use std::os::fd::FromRawFd;

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/rw.c");

fn file_of(number: i32) -> std::fs::File {
    std::fs::File::from(owned(number, "the descriptor"))
}

/// Submits a read of 8 bytes, which waits until `wake` has run. Returns its result.
fn waits(cx: &Context, file: &impl std::os::fd::AsRawFd, flags: u8, wake: impl FnOnce()) -> (i32, [u8; 8]) {
    let (mut ring, mut buffer) = (cx.ring(4), [0; 8]);
    ring.go(sqe::read(fd(file), &mut buffer, 0).with(flags));
    ring.expect_quiet();
    wake();
    (ring.wait().res, buffer)
}

fn send(to: &impl std::os::fd::AsRawFd, bytes: &[u8]) {
    // SAFETY: the bytes live until the call returns.
    assert_eq!(unsafe { libc::send(fd(to), bytes.as_ptr().cast(), bytes.len(), 0) }, bytes.len() as isize);
}

#[case(since = "5.6")]
fn socket_read_waits_for_data(cx: &Context) {
    let (a, b) = unix_pair(libc::SOCK_STREAM);
    let (res, buffer) = waits(cx, &a, 0, || send(&b, b"abc"));
    assert_eq!((res, &buffer[..3]), (3, &b"abc"[..]));
}

#[case]
fn socket_read_with_an_offset_is_espipe(cx: &Context) {
    let (a, b) = unix_pair(libc::SOCK_STREAM);
    send(&b, b"abc");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&a), &mut [0; 8], 4)), -ESPIPE);
}

#[case]
fn socket_writev_and_readv(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    assert_eq!(ring.run(sqe::writev(fd(&a), &[iovec(b"ab"), iovec(b"cd")], 0)), 4);
    let (mut first, mut second) = ([0; 1], [0; 8]);
    assert_eq!(ring.run(sqe::readv(fd(&b), &[iovec_mut(&mut first), iovec_mut(&mut second)], 0)), 4);
    assert_eq!((&first, &second[..3]), (b"a", &b"bcd"[..]));
}

#[case(since = "5.6")]
fn nonblocking_socket_read_waits_for_data(cx: &Context) {
    let (a, b) = unix_pair(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    assert_eq!(waits(cx, &a, 0, || send(&b, b"abc")).0, 3);
}

#[case]
fn socket_read_rwf_nowait_is_eagain(cx: &Context) {
    let (a, _b) = unix_pair(libc::SOCK_STREAM);
    assert_eq!(cx.ring(4).run(sqe::read(fd(&a), &mut [0; 8], 0).op_flags(libc::RWF_NOWAIT as u32)), -EAGAIN);
}

#[case(since = "5.6")]
fn socket_read_ends_at_shutdown(cx: &Context) {
    let (a, b) = unix_pair(libc::SOCK_STREAM);
    assert_eq!(waits(cx, &a, 0, || drop(b)).0, 0);
}

#[case]
fn socket_write_without_peer_is_epipe_and_raises_sigpipe(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let (a, _) = unix_pair(libc::SOCK_STREAM);
    assert_eq!(cx.ring(4).run(sqe::write(fd(&a), b"x", 0)), -EPIPE);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[case(since = "5.6")]
fn socket_write_to_a_full_buffer_waits(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    let chunk = [1; 4096];
    // SAFETY: the chunk lives until each call returns.
    while unsafe { libc::send(fd(&a), chunk.as_ptr().cast(), 4096, libc::MSG_DONTWAIT) } > 0 {}
    ring.go(sqe::write(fd(&a), b"tail", 0));
    ring.expect_quiet();
    let mut room = [0; 65536];
    // SAFETY: the buffer has the length passed.
    while unsafe { libc::recv(fd(&b), room.as_mut_ptr().cast(), 65536, libc::MSG_DONTWAIT) } > 0 {}
    assert_eq!(ring.wait().res, 4);
}

#[case(since = "5.6")]
fn tcp_read_waits_for_data(cx: &Context) {
    let (a, mut b) = tcp_pair();
    assert_eq!(waits(cx, &a, 0, || b.write_all(b"abc").expect("write")).0, 3);
}

#[case]
fn tcp_read_of_an_unconnected_socket_is_enotconn(cx: &Context) {
    let socket = sys::socket(libc::AF_INET, libc::SOCK_STREAM);
    assert_eq!(cx.ring(4).run(sqe::read(fd(&socket), &mut [0; 8], 0)), -ENOTCONN);
}

fn add(mut eventfd: &std::fs::File, count: u64) {
    eventfd.write_all(&count.to_ne_bytes()).expect("write");
}

#[case(since = "5.6")]
fn eventfd_read_waits_for_a_count(cx: &Context) {
    let file = eventfd(0, 0);
    assert_eq!(waits(cx, &file, 0, || add(&file, 3)), (8, 3u64.to_ne_bytes()));
}

#[case(undisturbed, since = "5.6")]
fn eventfd_read_of_a_ready_count(cx: &Context) {
    let (file, mut ring, mut buffer) = (eventfd(9, 0), cx.ring(4), [0; 8]);
    ring.go(sqe::read(fd(&file), &mut buffer, 0));
    assert_eq!(ring.cq_ready(), 1);
    assert_eq!((ring.wait().res, buffer), (8, 9u64.to_ne_bytes()));
}

#[case(since = "5.6")]
fn eventfd_write_adds(cx: &Context) {
    let mut file = eventfd(1, 0);
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), &4u64.to_ne_bytes(), 0)), 8);
    let mut buffer = [0; 8];
    file.read_exact(&mut buffer).expect("read");
    assert_eq!(u64::from_ne_bytes(buffer), 5);
}

#[case(since = "5.6")]
fn eventfd_write_that_would_overflow_waits(cx: &Context) {
    let (mut file, mut ring) = (eventfd(0, 0), cx.ring(4));
    add(&file, u64::MAX - 1);
    ring.go(sqe::write(fd(&file), &1u64.to_ne_bytes(), 0));
    ring.expect_quiet();
    file.read_exact(&mut [0; 8]).expect("read");
    assert_eq!(ring.wait().res, 8);
}

#[case]
fn eventfd_short_buffer_is_einval(cx: &Context) {
    let file = eventfd(1, 0);
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 0)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), &[0; 4], 0)), -EINVAL);
}

#[case(since = "5.6")]
fn nonblocking_eventfd_read_waits(cx: &Context) {
    let file = eventfd(0, libc::EFD_NONBLOCK);
    assert_eq!(waits(cx, &file, 0, || add(&file, 3)).0, 8);
}

#[case(since = "5.6")]
fn eventfd_semaphore_reads_one(cx: &Context) {
    let (file, mut ring, mut buffer) = (eventfd(2, libc::EFD_SEMAPHORE), cx.ring(4), [0; 8]);
    for _ in 0..2 {
        assert_eq!(ring.run(sqe::read(fd(&file), &mut buffer, 0)), 8);
        assert_eq!(buffer, 1u64.to_ne_bytes());
    }
    ring.go(sqe::read(fd(&file), &mut buffer, 0));
    ring.expect_quiet();
    add(&file, 1);
    assert_eq!(ring.wait().res, 8);
}

#[case(since = "5.6")]
fn async_eventfd_read_waits(cx: &Context) {
    let file = eventfd(0, 0);
    assert_eq!(waits(cx, &file, IOSQE_ASYNC, || add(&file, 3)), (8, 3u64.to_ne_bytes()));
}

#[case]
fn rwf_nowait_eventfd_read_is_eagain(cx: &Context) {
    let file = eventfd(0, 0);
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 8], 0).op_flags(libc::RWF_NOWAIT as u32)), -EAGAIN);
}

#[case(since = "5.6")]
fn tty_read_waits_for_data(cx: &Context) {
    let (mut master, slave) = pty();
    let (res, buffer) = waits(cx, &slave, 0, || master.write_all(b"abc").expect("write"));
    assert_eq!((res, &buffer[..3]), (3, &b"abc"[..]));
}

#[case(since = "5.6")]
fn nonblocking_tty_read(cx: &Context) {
    let (mut master, slave) = pty();
    // SAFETY: numbers only.
    assert_eq!(unsafe { libc::fcntl(fd(&slave), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    assert_eq!(waits(cx, &slave, 0, || master.write_all(b"abc").expect("write")).0, 3);
}

#[case(since = "5.6")]
fn tty_write_reaches_the_master(cx: &Context) {
    let (mut master, slave) = pty();
    assert_eq!(cx.ring(4).run(sqe::write(fd(&slave), b"abc", 0)), 3);
    let mut buffer = [0; 3];
    master.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"abc");
}

#[case(since = "5.6")]
fn async_tty_read_waits(cx: &Context) {
    let (mut master, slave) = pty();
    assert_eq!(waits(cx, &slave, IOSQE_ASYNC, || master.write_all(b"abc").expect("write")).0, 3);
}

fn inotify(flags: i32) -> std::fs::File {
    // SAFETY: a constant path; the result is checked by `file_of`.
    unsafe {
        let file = file_of(libc::inotify_init1(flags));
        assert!(libc::inotify_add_watch(fd(&file), c".".as_ptr(), libc::IN_CREATE) >= 0);
        file
    }
}

fn inotify_waits(cx: &Context, flags: i32) {
    let (file, mut ring, mut buffer) = (inotify(flags), cx.ring(4), [0; 256]);
    ring.go(sqe::read(fd(&file), &mut buffer, 0));
    ring.expect_quiet();
    std::fs::write("new", b"").expect("create");
    assert_eq!(ring.wait().res, 32, "one event and the padded name");
}

#[case(since = "5.6")]
fn inotify_read_waits_for_an_event(cx: &Context) {
    inotify_waits(cx, 0);
}

#[case(since = "5.6")]
fn nonblocking_inotify_read(cx: &Context) {
    inotify_waits(cx, libc::IN_NONBLOCK);
}

fn timerfd(flags: i32) -> std::fs::File {
    // SAFETY: numbers only.
    file_of(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })
}

fn set_timer(timer: &std::fs::File, milliseconds: i64) {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
    let spec = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: one itimerspec is read.
    assert_eq!(unsafe { libc::timerfd_settime(fd(timer), 0, &spec, std::ptr::null_mut()) }, 0);
}

#[case(since = "5.6")]
fn timerfd_read_waits_for_expiry(cx: &Context) {
    let timer = timerfd(0);
    assert_eq!(waits(cx, &timer, 0, || set_timer(&timer, 5)), (8, 1u64.to_ne_bytes()));
}

#[case(since = "5.6")]
fn nonblocking_timerfd_read(cx: &Context) {
    let timer = timerfd(libc::TFD_NONBLOCK);
    assert_eq!(waits(cx, &timer, 0, || set_timer(&timer, 5)).0, 8);
}

fn signalfd(signal: i32) -> std::fs::File {
    block_signal(signal);
    // SAFETY: the set is filled in before it is read, and the result is checked by `owned`.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        std::fs::File::from_raw_fd(libc::signalfd(-1, &set, 0))
    }
}

#[case(since = "5.6")]
fn signalfd_read_waits_for_a_signal(cx: &Context) {
    let (file, mut ring, mut buffer) = (signalfd(libc::SIGUSR1), cx.ring(4), [0; 128]);
    ring.go(sqe::read(fd(&file), &mut buffer, 0));
    ring.expect_quiet();
    raise(libc::SIGUSR1);
    assert_eq!(ring.wait().res, 128);
    assert_eq!(u32::from_ne_bytes([buffer[0], buffer[1], buffer[2], buffer[3]]), libc::SIGUSR1 as u32);
}

#[case(since = "5.6")]
fn signalfd_read_in_the_submitter_only(cx: &Context) {
    let (file, mut ring, mut buffer) = (signalfd(libc::SIGUSR1), cx.ring(4), [0; 128]);
    raise(libc::SIGUSR1);
    assert_eq!(ring.run(sqe::read(fd(&file), &mut buffer, 0)), 128);
}

/// A READ of a file that has no read operation waits until the file is readable. Only then does it fail with EINVAL.
#[case]
fn epoll_read_waits_to_be_readable_and_is_einval(cx: &Context) {
    let ((reader, mut writer), epoll) = (pipe(), epoll());
    assert_eq!(cx.door.epoll_add(fd(&epoll), fd(&reader), libc::EPOLLIN as u32), 0);
    assert_eq!(waits(cx, &epoll, 0, || writer.write_all(b"x").expect("write")).0, -EINVAL);
}

#[case]
fn ring_read_waits_to_be_readable_and_is_einval(cx: &Context) {
    let (mut ring, mut other, mut buffer) = (cx.ring(4), cx.ring(4), [0; 8]);
    ring.go(sqe::read(other.fd, &mut buffer, 0));
    ring.expect_quiet();
    other.go(sqe::nop());
    assert_eq!(ring.wait().res, -EINVAL);
}

#[case]
fn eventfd_readv_is_whole(cx: &Context) {
    let file = eventfd(7, 0);
    let (mut first, mut second) = ([0; 3], [0; 5]);
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &[iovec_mut(&mut first), iovec_mut(&mut second)], 0)), 8);
    assert_eq!(first[0], 7);
}

#[case(since = "5.11")]
fn write_to_a_socket_that_was_shut_down_is_epipe(cx: &Context) {
    let ((a, _b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    sys::count_signal(libc::SIGPIPE);
    assert_eq!(ring.run(sqe::shutdown(fd(&a), libc::SHUT_RDWR)), 0);
    let vectors = [iovec(b"abc")];
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::writev(fd(&a), &vectors, 0).with(flags)), -EPIPE);
        assert_eq!(ring.run(sqe::write(fd(&a), b"abc", 0).with(flags)), -EPIPE);
    }
}

#[case(since = "5.11")]
fn write_of_nothing_asks_the_socket(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let (a, _b) = unix_pair(libc::SOCK_STREAM);
    let (unconnected, mut ring) = (socket(libc::AF_INET, libc::SOCK_DGRAM), cx.ring(4));
    assert_eq!(ring.run(sqe::write(fd(&a), b"", 0)), 0);
    assert_eq!(ring.run(sqe::write(fd(&unconnected), b"", 0)), -libc::EDESTADDRREQ);
    assert_eq!(ring.run(sqe::write(fd(&a), b"", 4)), -ESPIPE);
    assert_eq!(ring.run(sqe::shutdown(fd(&a), libc::SHUT_WR)), 0);
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::write(fd(&a), b"", 0).with(flags)), -EPIPE);
        assert_eq!(ring.run(sqe::writev(fd(&a), &[], 0).with(flags)), -EPIPE);
        assert_eq!(ring.run(sqe::writev(fd(&a), &[iovec(b""), iovec(b"")], 0).with(flags)), -EPIPE);
    }
    // A worker's write sends no SIGPIPE.
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 3);
}

#[case(since = "5.6")]
fn write_of_nothing_is_an_empty_message(cx: &Context) {
    for kind in [libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        let ((a, b), mut ring, mut room) = (unix_pair(kind), cx.ring(4), [0; 8]);
        for flags in [0, IOSQE_ASYNC] {
            assert_eq!(ring.run(sqe::write(fd(&a), b"", 0).with(flags)), 0);
            assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, libc::MSG_DONTWAIT)), 0);
            assert_eq!(ring.run(sqe::recv(fd(&b), &mut room, libc::MSG_DONTWAIT)), -EAGAIN);
        }
    }
}

#[case(since = "5.6")]
fn read_of_nothing_of_a_counter_is_einval(cx: &Context) {
    let (mut ring, (reader, writer), counter) = (cx.ring(4), pipe(), eventfd(1, 0));
    // SAFETY: numbers only, and a set that outlives the call.
    let (timer, signals) = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGUSR1);
        (libc::timerfd_create(libc::CLOCK_MONOTONIC, 0), libc::signalfd(-1, &set, 0))
    };
    for file in [counter, file_of(timer), file_of(signals)] {
        assert_eq!(ring.run(sqe::read(fd(&file), &mut [], 0)), -EINVAL);
    }
    assert_eq!(ring.run(sqe::write(fd(&eventfd(1, 0)), b"", 0)), 0);
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut [], 0)), 0);
    drop(reader);
    assert_eq!(ring.run(sqe::write(fd(&writer), b"", 0)), 0, "a pipe is not asked");
}

/// Task work reads as the thread leaves write(2).
#[case(own_flags, undisturbed, since = "6.7")]
fn each_write_of_the_submitting_thread_is_a_shot(cx: &Context) {
    let (mut ring, event) = (cx.ring_with(8, 0), eventfd(0, 0));
    let buffers = BufferRing::filled(&ring, 1, 4, 8);
    ring.go(prep(Opcode::ReadMultishot, fd(&event), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1));
    for value in [1u64, 2] {
        (&event).write_all(&value.to_ne_bytes()).expect("write");
    }
    assert_eq!(ring.wait_all(2).iter().map(|cqe| cqe.res).collect::<Vec<_>>(), [8, 8]);
    assert_eq!([0, 1].map(|id| buffers.content(id, 8)[0]), [1, 2]);
}
