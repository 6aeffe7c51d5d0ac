//! Lifetimes: rings, descriptors, files, memory, threads and processes that go away while requests are in flight.

use super::prelude::*;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::time::{Duration, Instant};

#[case(since = "5.6")]
fn file_closed_with_a_pending_read_still_completes(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 4]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    ring.expect_quiet();
    drop(reader);
    writer.write_all(b"abcd").expect("the request keeps the pipe's end open");
    assert_eq!(ring.wait().res, 4);
    assert_eq!(&buffer, b"abcd");
}

#[case(since = "5.6")]
fn reused_number_does_not_get_the_old_request(cx: &Context) {
    let ((reader, mut old_writer), mut ring) = (pipe(), cx.ring(4));
    let (mut old_buffer, mut new_buffer) = ([0; 4], [0; 4]);
    let number = fd(&reader);
    ring.go(sqe::read(number, &mut old_buffer, 0).data(1));
    ring.expect_quiet();
    drop(reader);
    let (new_reader, mut new_writer) = pipe();
    assert_eq!(fd(&new_reader), number, "the number is used again");
    new_writer.write_all(b"new!").expect("write");
    ring.expect_quiet();
    ring.go(sqe::read(number, &mut new_buffer, 0).data(2));
    assert_eq!(ring.wait_ordered(1), [(2, 4)]);
    old_writer.write_all(b"old!").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, 4)]);
    assert_eq!((&old_buffer, &new_buffer), (b"old!", b"new!"));
}

#[case(since = "5.6")]
fn closed_socket_with_a_pending_recv_still_completes(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (unix_pair(libc::SOCK_STREAM), cx.ring(4), [0; 4]);
    ring.go(sqe::recv(fd(&a), &mut buffer, 0).data(1));
    ring.expect_quiet();
    drop(a);
    ring.go(sqe::send(fd(&b), b"abc", 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, 3), (2, 3)]);
}

#[case(since = "5.6")]
fn number_replaced_by_dup2_keeps_the_old_file(cx: &Context) {
    let ((reader, mut writer), (other, _other_writer)) = (pipe(), pipe());
    let (mut ring, mut buffer) = (cx.ring(4), [0; 4]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    ring.expect_quiet();
    // SAFETY: numbers only; `reader` owns the number, which now names the other pipe.
    assert_eq!(unsafe { libc::dup2(fd(&other), fd(&reader)) }, fd(&reader));
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.wait().res, 4);
}

#[case(since = "5.6")]
fn buffer_of_a_completed_request_may_go(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let memory = pages(1);
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.run(sqe::read(fd(&reader), memory, 0)), 4);
    // SAFETY: the case's own page, which nothing uses any more.
    assert_eq!(unsafe { libc::munmap(memory.as_mut_ptr().cast(), 4096) }, 0);
    writer.write_all(b"abcd").expect("write");
    ring.expect_quiet();
}

/// The kernel ends a closed ring's requests soon after, not at once, and no event reports that.
const SOON: Duration = Duration::from_millis(100);

#[case]
fn ring_closed_with_a_pending_read_leaves_the_data(cx: &Context) {
    let ((mut reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffer = pages(1);
    ring.go(sqe::read(fd(&reader), buffer, 0));
    ring.expect_quiet();
    drop(ring);
    std::thread::sleep(SOON);
    writer.write_all(b"abcd").expect("write");
    std::thread::sleep(QUIET);
    let mut plain = [0; 4];
    reader.read_exact(&mut plain).expect("read");
    assert_eq!((&plain, &buffer[..4]), (b"abcd", &[0; 4][..]));
}

use crate::ring::QUIET;

topic!(since: "5.1", source: "io_uring_setup(2), io_uring/io_uring.c");

#[case]
fn ring_closed_with_a_pending_read_lets_the_file_go(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::read(fd(&reader), pages(1), 0));
    ring.expect_quiet();
    drop((reader, ring));
    let start = Instant::now();
    while writer.write(b"x").is_ok() {
        assert!(start.elapsed() < crate::ring::PATIENCE, "the pipe's reader is still open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[case]
fn ring_closed_with_a_pending_timeout(cx: &Context) {
    let (mut ring, ts) = (cx.ring(4), ms(20));
    ring.go(sqe::timeout(&ts, 0, 0));
    drop(ring);
    std::thread::sleep(Duration::from_millis(50)); // more than the timeout
    assert_eq!(cx.ring(4).run(sqe::nop()), 0);
}

#[case]
fn ring_closed_with_unreaped_completions(cx: &Context) {
    let mut ring = cx.ring(4);
    for _ in 0..20 {
        ring.go(sqe::nop());
    }
    drop(ring);
    assert_eq!(cx.ring(4).run(sqe::nop()), 0);
}

#[case]
fn mapping_outlives_the_descriptor(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[sqe::nop().data(1), sqe::nop().data(2)]);
    ring.close_fd();
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(1));
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(2));
    assert_eq!(ring.sq_head(), 2);
}

#[case]
fn second_ring_after_the_first_closed(cx: &Context) {
    let first = cx.ring(4);
    let number = first.fd;
    drop(first);
    let mut second = cx.ring(8);
    assert_eq!((second.fd, second.params.sq_entries), (number, 8));
    assert_eq!(second.run(sqe::nop()), 0);
}

#[case]
fn many_rings_come_and_go(cx: &Context) {
    for _ in 0..100 {
        assert_eq!(cx.ring(4).run(sqe::nop()), 0);
    }
}

fn duplicate(ring: &Ring) -> OwnedFd {
    // SAFETY: numbers only.
    owned(unsafe { libc::dup(ring.fd) }, "dup")
}

#[case]
fn ring_descriptor_may_be_duplicated(cx: &Context) {
    let mut ring = cx.ring(4);
    let copy = duplicate(&ring);
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(cx.door.enter(fd(&copy), 1, 1, IORING_ENTER_GETEVENTS, 0, 0), 1);
    assert_eq!(ring.cq_ready(), 1);
}

#[case(since = "5.6")]
fn duplicate_keeps_the_ring_alive(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 4]);
    let copy = duplicate(&ring);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    ring.close_fd();
    writer.write_all(b"abcd").expect("write");
    assert_eq!(cx.door.enter(fd(&copy), 0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(ring.peek().map(|cqe| cqe.res), Some(4));
}

#[case]
fn iovec_array_may_go_after_submit(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 4]);
    let mut vectors = vec![iovec_mut(&mut buffer)];
    ring.go(sqe::readv(fd(&reader), &vectors, 0));
    vectors[0].iov_base = bad_address() as *mut libc::c_void;
    std::hint::black_box(&vectors);
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.wait().res, 4);
}

#[case(since = "5.3")]
fn msghdr_may_go_after_submit(cx: &Context) {
    let ((a, b), mut ring, mut buffer) = (unix_pair(libc::SOCK_STREAM), cx.ring(4), [0; 4]);
    let mut vectors = vec![iovec_mut(&mut buffer)];
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vectors.as_mut_ptr(), 1);
    ring.go(sqe::recvmsg(fd(&a), &mut message, 0));
    vectors[0].iov_base = bad_address() as *mut libc::c_void;
    (message.msg_iov, message.msg_iovlen) = (bad_address() as *mut libc::iovec, 77);
    std::hint::black_box((&vectors, &message));
    // SAFETY: the bytes live until the call returns.
    assert_eq!(unsafe { libc::send(fd(&b), b"abcd".as_ptr().cast(), 4, 0) }, 4);
    assert_eq!(ring.wait().res, 4);
}

#[case(since = "5.6")]
fn path_may_go_after_submit_when_async(cx: &Context) {
    drop(file("a-file-with-a-long-name", b"abc"));
    let (mut ring, mut path) = (cx.ring(4), b"a-file-with-a-long-name\0".to_vec());
    let open = prep(Opcode::Openat, libc::AT_FDCWD, address(&path[..]), 0, 0);
    ring.go(open.with(IOSQE_ASYNC));
    path.fill(b'x');
    std::hint::black_box(&path);
    drop(owned(ring.wait().res, "the CQE's descriptor"));
}

#[case(since = "5.6")]
fn sqe_may_be_overwritten_after_submit(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(2));
    let mut buffers = [[0; 1]; 4];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        ring.go(sqe::read(fd(&reader), buffer, 0).data(n as u64).with(IOSQE_ASYNC));
    }
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.wait_sorted(4), [(0, 1), (1, 1), (2, 1), (3, 1)]);
}

/// A ring whose read waits, and the pipe to feed it; `after` runs between.
fn pending_across(cx: &Context, after: impl FnOnce(&mut Ring)) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, 0), [0; 4]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    after(&mut ring);
    writer.write_all(b"abcd").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, 4)]);
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case(own_flags, since = "5.6")]
fn forked_child_that_exits_leaves_the_ring_alone(cx: &Context) {
    pending_across(cx, |_| assert_eq!(in_child(|| {}), 0));
}

#[case(own_flags, since = "5.6")]
fn forked_child_that_closes_the_ring_leaves_it_alone(cx: &Context) {
    pending_across(cx, |ring| {
        let (door, number) = (ring.door, ring.fd);
        assert_eq!(in_child(|| assert_eq!(door.close(number), 0)), 0);
    });
}

#[case(own_flags, since = "5.6")]
fn forked_child_may_use_a_ring_of_its_own(cx: &Context) {
    pending_across(cx, |_| {
        let status = in_child(|| {
            let mut ring = cx.ring_with(4, 0);
            assert_eq!(ring.run(sqe::nop()), 0);
            let ts = ms(5);
            assert_eq!(ring.run(sqe::timeout(&ts, 0, 0)), -ETIME);
        });
        assert_eq!(status, 0);
    });
}

#[case(own_flags)]
fn process_exit_with_requests_in_flight(cx: &Context) {
    let (mut reader, mut writer) = pipe();
    let status = in_child(|| {
        let mut ring = cx.ring_with(4, 0);
        ring.go(sqe::read(fd(&reader), pages(1), 0));
        ring.go(sqe::read(fd(&reader), pages(1), 0).with(IOSQE_ASYNC));
        // SAFETY: ends the child at once, with both requests in flight.
        unsafe { libc::_exit(0) };
    });
    assert_eq!(status, 0);
    std::thread::sleep(SOON);
    writer.write_all(b"abcd").expect("write");
    let mut buffer = [0; 4];
    reader.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"abcd", "the dead process took nothing");
}

#[case(own_flags)]
fn request_of_a_thread_that_exited_is_cancelled_when_it_would_run(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring_with(4, 0));
    let (number, at) = (fd(&reader), address(pages(1)));
    let mut ring = std::thread::spawn(move || {
        ring.go(prep(Opcode::Read, number, at, 1, 0).data(1));
        ring
    })
    .join()
    .expect("the submitter");
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, -ECANCELED)]);
    assert_eq!(readable_bytes(&reader), 1);
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case(own_flags)]
fn thread_may_take_a_ring_over(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    assert_eq!(ring.run(sqe::nop()), 0);
    let mut ring = std::thread::spawn(move || {
        assert_eq!(ring.run(sqe::nop()), 0);
        ring
    })
    .join()
    .expect("the other thread");
    assert_eq!(ring.run(sqe::nop()), 0);
}

/// A message whose control data carries `passed`, and what it points to.
struct Passing {
    control: [u64; 3],
    vectors: [libc::iovec; 1],
    message: libc::msghdr,
}

impl Passing {
    fn new(passed: i32) -> Box<Passing> {
        let rights = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
        // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
        let message = unsafe { std::mem::zeroed() };
        let mut passing =
            Box::new(Passing { control: [20, rights, passed as u64], vectors: [iovec(b"x")], message });
        (passing.message.msg_iov, passing.message.msg_iovlen) = (passing.vectors.as_mut_ptr(), 1);
        passing.message.msg_control = passing.control.as_mut_ptr().cast();
        passing.message.msg_controllen = 24;
        passing
    }
}

#[case(own_flags, since = "5.3")]
fn ring_cannot_be_passed_over_a_socket(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring_with(4, 0));
    let (refused, fine) = (Passing::new(ring.fd), Passing::new(fd(&b)));
    let last_error = || std::io::Error::last_os_error().raw_os_error();
    // SAFETY: the messages and all they point to outlive the calls.
    unsafe {
        assert_eq!(libc::sendmsg(fd(&a), &refused.message, 0), -1);
        assert_eq!(last_error(), Some(EINVAL));
        let mut two = [fine.message, refused.message].map(|msg_hdr| libc::mmsghdr { msg_hdr, msg_len: 0 });
        assert_eq!(libc::sendmmsg(fd(&a), two.as_mut_ptr(), 2, 0), 1, "the first only");
        assert_eq!(libc::sendmmsg(fd(&a), two[1..].as_mut_ptr(), 1, 0), -1);
        assert_eq!(last_error(), Some(EINVAL));
        assert_eq!(libc::syscall(libc::SYS_sendmsg, fd(&a), &refused.message, 0), -1);
        assert_eq!(libc::syscall(libc::SYS_sendmmsg, fd(&a), two.as_mut_ptr(), 2, 0), 1);
    }
    let send = |passing: &Passing| sqe::sendmsg(fd(&a), &passing.message, 0);
    assert_eq!(ring.run(send(&refused)), -EINVAL);
    assert_eq!(ring.run(send(&fine)), 1);
}

#[case(own_flags)]
fn closed_ring_number_is_ebadf(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    let number = ring.fd;
    ring.close_fd();
    assert_eq!(cx.door.enter(number, 0, 0, 0, 0, 0) as i32, -EBADF);
    assert_eq!(cx.door.register(number, IORING_UNREGISTER_FILES, 0, 0) as i32, -EBADF);
    let (reader, _writer) = pipe();
    // SAFETY: numbers only; the closed ring's number has no owner.
    assert_eq!(unsafe { libc::dup2(fd(&reader), number) }, number);
    assert_eq!(cx.door.enter(number, 0, 0, 0, 0, 0) as i32, -EOPNOTSUPP, "the number is another file's now");
}

#[case(own_flags)]
fn close_from_another_thread_while_waiting(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring_with(4, 0), [0; 4]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    let (door, number) = (ring.door, ring.forget_fd());
    let tid = gettid();
    let closer = once_asleep(move || {
        assert_eq!(door.close(number), 0);
        wait_thread_asleep(tid);
        writer.write_all(b"abcd").expect("write");
    });
    let answer = door.enter(number, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
    assert_eq!((answer, ring.cq_ready()), (0, 1), "the wait holds the ring");
    closer.join().expect("the closer");
}

#[case(own_flags)]
fn exec_closes_the_ring(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    let text = format!("/proc/self/fd/{}", ring.fd);
    let status = in_child(|| {
        let output = std::process::Command::new("/bin/ls").arg(&text).output().expect("run ls");
        assert!(!output.status.success(), "the ring is open in the new program");
    });
    assert_eq!(status, 0);
    // The number still belongs to this process.
    // SAFETY: numbers only; the duplicate is owned and closed here.
    let copy = unsafe { libc::dup(ring.fd) };
    assert!(copy >= 0);
    // SAFETY: `dup` has just made it.
    drop(unsafe { OwnedFd::from_raw_fd(OwnedFd::from_raw_fd(copy).into_raw_fd()) });
}
