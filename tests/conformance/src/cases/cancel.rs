//! ASYNC_CANCEL: the search for requests, and the results in both CQEs.

use super::prelude::*;

topic!(since: "5.5", source: "io_uring_enter(2), io_uring/cancel.c");

fn cancels(cx: &Context, request: Sqe) {
    let mut ring = cx.ring(4);
    ring.go(request.data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn pending_read_is_cancelled(cx: &Context) {
    let (reader, _writer) = pipe();
    cancels(cx, sqe::read(fd(&reader), &mut [0; 1], 0));
}

#[case]
fn pending_poll_is_cancelled(cx: &Context) {
    let (reader, _writer) = pipe();
    cancels(cx, sqe::poll_add(fd(&reader), libc::POLLIN, 0));
}

#[case]
fn pending_timeout_is_cancelled(cx: &Context) {
    let long = ms(10_000);
    cancels(cx, sqe::timeout(&long, 0, 0));
}

#[case]
fn pending_recv_is_cancelled(cx: &Context) {
    let (a, _b) = unix_pair(libc::SOCK_STREAM);
    cancels(cx, sqe::recv(fd(&a), &mut [0; 1], 0));
}

#[case]
fn pending_accept_is_cancelled(cx: &Context) {
    let (listener, _) = listener();
    cancels(cx, sqe::accept(fd(&listener), 0));
}

#[case]
fn pending_write_is_cancelled(cx: &Context) {
    let (_reader, writer) = full_pipe();
    cancels(cx, sqe::write(fd(&writer), b"x", 0));
}

/// A waiting worker is interrupted. The result is 0 if the request had not begun to run, else EALREADY.
#[case]
fn async_read_is_cancelled(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffer = [0; 1];
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_ASYNC).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let results = ring.wait_sorted(2);
    assert!(matches!(results[0], (1, res) if res == -ECANCELED || res == -EINTR), "{results:?}");
    assert!(matches!(results[1], (2, res) if res == 0 || res == -EALREADY), "{results:?}");
}

#[case]
fn nothing_to_cancel_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::cancel(1, 0)), -ENOENT);
}

#[case]
fn completed_request_is_enoent(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::nop().data(1)), 0);
    assert_eq!(ring.run(sqe::cancel(1, 0)), -ENOENT);
}

/// A ring with pending reads: (user data, pipe).
struct Pending {
    ring: Ring,
    pipes: [(std::fs::File, std::fs::File); 2],
    buffers: Box<[[u8; 4]; 4]>,
}

impl Pending {
    /// Reads 10 and 11 wait on pipe 0, read 11 (again) and poll 12 on pipe 1.
    fn new(cx: &Context) -> Pending {
        let mut pending = Pending { ring: cx.ring(8), pipes: [pipe(), pipe()], buffers: Box::default() };
        let (first, second) = (fd(&pending.pipes[0].0), fd(&pending.pipes[1].0));
        let [a, b, c, _] = pending.buffers.as_mut();
        pending.ring.go_all(&[
            sqe::read(first, a, 0).data(10),
            sqe::read(first, b, 0).data(11),
            sqe::read(second, c, 0).data(11),
            sqe::poll_add(second, libc::POLLIN, 0).data(12),
        ]);
        pending
    }

    /// Cancels. Returns the cancel's own result, and the user data of the requests that it ended.
    fn cancel(&mut self, cancel: Sqe) -> (i32, Vec<u64>) {
        self.ring.go(cancel.data(1));
        let (mut own, mut ended) = (None, Vec::new());
        while let Some(cqe) = self.ring.wait_for(crate::ring::QUIET) {
            if cqe.user_data == 1 {
                own = Some(cqe.res);
            } else {
                assert_eq!(cqe.res, -ECANCELED);
                ended.push(cqe.user_data);
            }
        }
        ended.sort_unstable();
        (own.expect("the cancel's CQE"), ended)
    }
}

#[case]
fn cancels_one_of_several(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sqe::cancel(11, 0)), (0, vec![11]));
}

#[case(since = "5.19")]
fn all_cancels_every_one_and_counts(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sqe::cancel(11, IORING_ASYNC_CANCEL_ALL)), (2, vec![11, 11]));
}

#[case(since = "5.19")]
fn all_of_none_is_zero(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sqe::cancel(99, IORING_ASYNC_CANCEL_ALL)), (0, vec![]));
}

#[case(since = "5.19")]
fn by_descriptor(cx: &Context) {
    let mut pending = Pending::new(cx);
    let number = fd(&pending.pipes[0].0);
    let (res, ended) = pending.cancel(sqe::cancel_fd(number, 0));
    assert_eq!((res, ended.len()), (0, 1));
}

#[case(since = "5.19")]
fn by_descriptor_all(cx: &Context) {
    let mut pending = Pending::new(cx);
    let number = fd(&pending.pipes[1].0);
    assert_eq!(pending.cancel(sqe::cancel_fd(number, IORING_ASYNC_CANCEL_ALL)), (2, vec![11, 12]));
}

#[case]
fn by_descriptor_without_match_is_enoent(cx: &Context) {
    let other = eventfd(0, 0);
    assert_eq!(Pending::new(cx).cancel(sqe::cancel_fd(fd(&other), 0)), (-ENOENT, vec![]));
}

#[case]
fn by_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sqe::cancel_fd(9999, 0)), (-EBADF, vec![]));
}

#[case(since = "6.0")]
fn by_fixed_descriptor(cx: &Context) {
    let mut pending = Pending::new(cx);
    pending.ring.register_files(&[fd(&pending.pipes[0].0)]);
    let flags = IORING_ASYNC_CANCEL_FD_FIXED | IORING_ASYNC_CANCEL_ALL;
    assert_eq!(pending.cancel(sqe::cancel_fd(0, flags)), (2, vec![10, 11]));
    assert_eq!(pending.cancel(sqe::cancel_fd(7, flags)), (-EBADF, vec![]));
}

#[case(since = "5.19")]
fn any_cancels_everything_even_without_all(cx: &Context) {
    assert_eq!(Pending::new(cx).cancel(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY)), (4, vec![10, 11, 11, 12]));
}

#[case(since = "5.19")]
fn any_with_all_cancels_everything(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
    assert_eq!(Pending::new(cx).cancel(sqe::cancel(0, flags)), (4, vec![10, 11, 11, 12]));
}

#[case(since = "5.19")]
fn any_of_none(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY)), 0);
}

#[case(since = "6.6")]
fn any_looks_at_no_user_data(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_USERDATA;
    assert_eq!(Pending::new(cx).cancel(sqe::cancel(99, flags)), (4, vec![10, 11, 11, 12]));
}

#[case(since = "6.6")]
fn by_opcode(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_ALL;
    let cancel = Sqe { len: Opcode::PollAdd as u32, ..sqe::cancel(0, flags) };
    assert_eq!(Pending::new(cx).cancel(cancel), (1, vec![12]));
}

#[case(since = "6.6")]
fn by_opcode_and_descriptor(cx: &Context) {
    let mut pending = Pending::new(cx);
    let number = fd(&pending.pipes[1].0);
    let flags = IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_ALL;
    let cancel = Sqe { len: Opcode::Read as u32, ..sqe::cancel_fd(number, flags) };
    assert_eq!(pending.cancel(cancel), (1, vec![11]));
}

#[case(since = "6.6")]
fn by_descriptor_and_user_data(cx: &Context) {
    let mut pending = Pending::new(cx);
    let number = fd(&pending.pipes[1].0);
    let flags = IORING_ASYNC_CANCEL_USERDATA | IORING_ASYNC_CANCEL_ALL;
    let cancel = Sqe { addr: 12, ..sqe::cancel_fd(number, flags) };
    assert_eq!(pending.cancel(cancel), (1, vec![12]));
}

#[case]
fn by_opcode_and_user_data_mismatch(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_OP | IORING_ASYNC_CANCEL_USERDATA;
    let cancel = Sqe { len: Opcode::PollAdd as u32, ..sqe::cancel(10, flags) };
    assert_eq!(Pending::new(cx).cancel(cancel), (-ENOENT, vec![]));
}

#[case]
fn unknown_flag_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::cancel(1, 1 << 10)), -EINVAL);
}

#[case]
fn fd_and_any_are_einval(cx: &Context) {
    let flags = IORING_ASYNC_CANCEL_FD | IORING_ASYNC_CANCEL_ANY;
    assert_eq!(cx.ring(4).run(sqe::cancel(1, flags)), -EINVAL);
}

#[case]
fn cancel_in_the_same_submission(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).data(1), sqe::cancel(1, 0).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn cancel_of_a_multishot_poll(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), libc::POLLIN, IORING_POLL_ADD_MULTI).data(1));
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!((cqes[0].res, cqes[0].flags, cqes[1].res), (-ECANCELED, 0, 0));
}

#[case]
fn cancel_does_not_find_itself(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::cancel(5, 0).data(5)), -ENOENT);
}

#[case]
fn cancelled_read_leaves_the_data(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
    writer.write_all(b"x").expect("write");
    ring.expect_quiet();
    assert_eq!(readable_bytes(&reader), 1);
}

#[case]
fn cancel_with_len_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(Sqe { len: 3, ..sqe::cancel(1, 0) }), -ENOENT, "len is not looked at without OP");
    assert_eq!(cx.ring(4).run(Sqe { off: 3, ..sqe::cancel(1, 0) }), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::cancel(1, 0).file_index(1)), -EINVAL);
}

#[case(since = "5.6")]
fn cancel_of_a_drained_request(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).data(1), sqe::nop().with(IOSQE_IO_DRAIN).data(2)]);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
    assert_eq!(ring.run(sqe::cancel(2, 0).data(3)), -ENOENT);
}

#[case(since = "5.6")]
fn cancel_of_a_linked_request_that_did_not_start(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(8), [0; 1]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.run(sqe::cancel(2, 0).data(3)), -ENOENT);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(2), [(1, 1), (2, 0)]);
}

#[case(since = "5.19")]
fn cancel_with_fixed_file_flag(cx: &Context) {
    let mut pending = Pending::new(cx);
    pending.ring.register_files(&[fd(&pending.pipes[0].0)]);
    let cancel = sqe::cancel_fd(0, IORING_ASYNC_CANCEL_ALL).with(IOSQE_FIXED_FILE);
    assert_eq!(pending.cancel(cancel), (2, vec![10, 11]));
}

/// A listener whose backlog is full leaves a connect waiting.
#[case]
fn cancel_of_a_connect(cx: &Context) {
    let path = "backlog";
    let listener = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM);
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in name.sun_path.iter_mut().zip(path.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: a whole address structure is passed by reference with its size.
    unsafe {
        let size = size_of::<libc::sockaddr_un>() as u32;
        assert_eq!(libc::bind(fd(&listener), (&raw const name).cast(), size), 0);
        assert_eq!(libc::listen(fd(&listener), 0), 0);
    }
    let (first, second) =
        (sys::socket(libc::AF_UNIX, libc::SOCK_STREAM), sys::socket(libc::AF_UNIX, libc::SOCK_STREAM));
    let mut ring = cx.ring(4);
    let size = size_of::<libc::sockaddr_un>();
    assert_eq!(ring.run(sqe::connect(fd(&first), &name, size)), 0);
    ring.go(sqe::connect(fd(&second), &name, size).data(1));
    ring.expect_quiet();
    wait_others_asleep(&[]); // on the kernel a worker waits for the backlog
    ring.go(sqe::cancel(1, 0).data(2));
    let results = ring.wait_sorted(2);
    assert!(matches!(results[0], (1, res) if res == -ECANCELED || res == -EINTR), "{results:?}");
    assert!(matches!(results[1], (2, res) if res == 0 || res == -EALREADY), "{results:?}");
}

#[case(since = "5.6")]
fn cancel_after_what_completes_its_target_comes_too_late(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(8), [0; 8]);
    for between in [0, 1, 2] {
        ring.go(sqe::recv(fd(&b), &mut room, 0).data(1));
        ring.expect_quiet();
        let mut chain = vec![sqe::write(fd(&a), b"abc", 0).data(2).with(IOSQE_IO_LINK)];
        chain.extend((0..between).map(|n| sqe::nop().data(4 + n).with(IOSQE_IO_LINK)));
        chain.push(sqe::cancel(1, 0).data(3));
        ring.go_all(&chain);
        assert_eq!(ring.wait_sorted(3 + between as usize)[..3], [(1, 3), (2, 3), (3, -ENOENT)]);
    }
    // In the same submission, but outside of a chain, the cancel is early enough.
    ring.go(sqe::recv(fd(&b), &mut room, 0).data(1));
    ring.expect_quiet();
    ring.go_all(&[sqe::write(fd(&a), b"abc", 0).data(2), sqe::cancel(1, 0).data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, -ECANCELED), (2, 3), (3, 0)]);
}

#[case(since = "5.6")]
fn poll_remove_after_what_ends_the_poll_comes_too_late(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(8));
    ring.go(sqe::poll_add(fd(&b), libc::POLLIN, 0).data(1));
    ring.expect_quiet();
    ring.go_all(&[sqe::write(fd(&a), b"abc", 0).data(2).with(IOSQE_IO_LINK), sqe::poll_remove(1).data(3)]);
    assert_eq!(ring.wait_sorted(3), [(1, libc::POLLIN.into()), (2, 3), (3, -ENOENT)]);
}

#[case(since = "5.6")]
fn next_of_a_chain_comes_after_those_that_wait(cx: &Context) {
    let ((a, b), mut ring, mut room, mut other) = (pair(), cx.ring(8), [0; 8], [0; 8]);
    ring.go(sqe::recv(fd(&b), &mut room, 0).data(1));
    ring.expect_quiet();
    ring.go_all(&[
        sqe::write(fd(&a), b"abc", 0).data(2).with(IOSQE_IO_LINK),
        sqe::recv(fd(&b), &mut other, libc::MSG_DONTWAIT).data(3),
    ]);
    assert_eq!(ring.wait_sorted(3), [(1, 3), (2, 3), (3, -EAGAIN)]);
}

/// A worker arms the request, whatever the ring defers.
#[case]
fn request_that_a_worker_armed(cx: &Context) {
    let ((reader, _writer), (a, _b), mut bytes) = (pipe(), pair(), [0; 4]);
    let (mut ring, own) = (cx.ring(4), sys::gettid());
    for waiting in [sqe::read(fd(&reader), &mut bytes, 0), sqe::recv(fd(&a), &mut bytes, 0)] {
        ring.go(waiting.with(IOSQE_ASYNC).data(1));
        wait_others_asleep(&[own]);
        ring.go(sqe::cancel(1, 0).data(2));
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
    }
}
