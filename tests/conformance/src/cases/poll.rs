//! POLL_ADD and POLL_REMOVE: events, multishot, level and edge, updates, removal.

use super::prelude::*;

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/poll.c");

const IN: i16 = libc::POLLIN;
const OUT: i16 = libc::POLLOUT;
const HUP: i16 = libc::POLLHUP;

#[case]
fn ready_descriptor_completes_at_once(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"x").expect("write");
    ring.go(sqe::poll_add(fd(&reader), IN, 0));
    assert_eq!(ring.cq_ready(), 1);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), 0));
}

#[case]
fn waits_until_readable(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), 0));
}

#[case]
fn one_shot_fires_once(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0));
    writer.write_all(b"x").expect("write");
    ring.wait();
    writer.write_all(b"x").expect("write");
    ring.expect_quiet();
}

#[case(since = "5.6")]
fn reports_only_what_was_asked(cx: &Context) {
    let (a, b) = unix_pair(libc::SOCK_STREAM);
    let mut ring = cx.ring(4);
    ring.go(sqe::write(fd(&b), b"x", 0));
    assert_eq!(ring.wait().res, 1);
    assert_eq!(ring.run(sqe::poll_add(fd(&a), IN, 0)), i32::from(IN));
    assert_eq!(ring.run(sqe::poll_add(fd(&a), OUT, 0)), i32::from(OUT));
    assert_eq!(ring.run(sqe::poll_add(fd(&a), IN | OUT, 0)), i32::from(IN | OUT));
}

#[case]
fn hup_is_reported_unasked(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0));
    ring.expect_quiet();
    drop(writer);
    assert_eq!(ring.wait().res, i32::from(HUP));
}

#[case]
fn err_is_reported_unasked(cx: &Context) {
    let ((reader, writer), mut ring) = (full_pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&writer), OUT, 0));
    ring.expect_quiet();
    drop(reader);
    assert_eq!(ring.wait().res & i32::from(libc::POLLERR), i32::from(libc::POLLERR));
}

#[case(since = "5.11")]
fn rdhup_of_a_half_closed_socket(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    ring.go(sqe::poll_add(fd(&a), libc::POLLRDHUP, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::shutdown(fd(&b), libc::SHUT_WR).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, i32::from(libc::POLLRDHUP)), (2, 0)]);
}

#[case]
fn writable_after_the_pipe_drains(cx: &Context) {
    let ((mut reader, writer), mut ring) = (full_pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&writer), OUT, 0));
    ring.expect_quiet();
    reader.read_exact(&mut [0; 4096]).expect("read");
    assert_eq!(ring.wait().res, i32::from(OUT));
}

#[case]
fn bad_fd_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::poll_add(-1, IN, 0)), -EBADF);
}

#[case]
fn regular_file_is_always_ready(cx: &Context) {
    let file = file("f", b"x");
    assert_eq!(cx.ring(4).run(sqe::poll_add(fd(&file), IN | OUT, 0)), i32::from(IN | OUT));
}

#[case]
fn poll_of_a_directory(cx: &Context) {
    let directory = std::fs::File::open(".").expect("open");
    assert_eq!(cx.ring(4).run(sqe::poll_add(fd(&directory), IN, 0)), i32::from(IN));
}

#[case]
fn no_events_waits_for_hup(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), 0, 0));
    writer.write_all(b"x").expect("write");
    ring.expect_quiet();
    drop(writer);
    assert_eq!(ring.wait().res, i32::from(HUP));
}

#[case(since = "5.6")]
fn pri_does_not_fire_for_data(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    ring.go(sqe::poll_add(fd(&a), libc::POLLPRI, 0).data(1));
    ring.go(sqe::write(fd(&b), b"x", 0).data(2));
    assert_eq!(ring.wait_ordered(1), [(2, 1)]);
    ring.expect_quiet();
}

/// The poll completes as the call that posts to the ring returns, before anybody enters the polling ring.
#[case(own_flags, undisturbed, since = "6.1")]
fn poll_of_a_ring_is_answered_as_that_ring_posts(cx: &Context) {
    for flags in [0, IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SINGLE_ISSUER] {
        let (mut ring, mut other) = (cx.ring_with(4, flags), cx.ring_with(4, 0));
        other.go(sqe::poll_add(ring.fd, IN, 0).data(1));
        assert_eq!(other.cq_ready(), 0);
        ring.go(sqe::nop());
        assert_eq!(other.cq_ready(), 1);
        assert_eq!(other.wait_ordered(1), [(1, i32::from(IN))]);
    }
}

#[case(since = "5.13")]
fn multishot_fires_for_each_write(cx: &Context) {
    let ((mut reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, IORING_POLL_ADD_MULTI).data(3));
    for _ in 0..5 {
        ring.expect_quiet();
        writer.write_all(b"x").expect("write");
        let cqe = ring.wait();
        assert_eq!((cqe.user_data, cqe.res, cqe.flags), (3, i32::from(IN), IORING_CQE_F_MORE));
        reader.read_exact(&mut [0; 1]).expect("read");
    }
}

/// Data that stays posts no second CQE until more comes.
#[case(since = "5.13")]
fn multishot_is_edge_triggered(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, IORING_POLL_ADD_MULTI));
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
    ring.expect_quiet();
    writer.write_all(b"y").expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
    ring.expect_quiet();
}

#[case(since = "5.13")]
fn multishot_of_ready_data_fires_at_once(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"x").expect("write");
    ring.go(sqe::poll_add(fd(&reader), IN, IORING_POLL_ADD_MULTI));
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), IORING_CQE_F_MORE));
    ring.expect_quiet();
}

#[case]
fn multishot_ends_at_removal(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, IORING_POLL_ADD_MULTI).data(1));
    ring.go(sqe::poll_remove(1).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!((cqes[0].res, cqes[0].flags, cqes[1].res), (-ECANCELED, 0, 0));
    writer.write_all(b"x").expect("write");
    ring.expect_quiet();
}

#[case(since = "5.13")]
fn multishot_goes_on_after_hup(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, IORING_POLL_ADD_MULTI).data(1));
    ring.expect_quiet();
    drop(writer);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(HUP), IORING_CQE_F_MORE));
    ring.expect_quiet();
    ring.go(sqe::poll_remove(1).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

/// Linux 6.18 defines the flag and refuses it.
#[case]
fn level_flag_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(ring.run(sqe::poll_add(fd(&reader), IN, IORING_POLL_ADD_LEVEL)), -EINVAL);
    let both = IORING_POLL_ADD_MULTI | IORING_POLL_ADD_LEVEL;
    assert_eq!(ring.run(sqe::poll_add(fd(&reader), IN, both)), -EINVAL);
}

#[case]
fn unknown_flag_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::poll_add(fd(&reader), IN, 1 << 6)), -EINVAL);
}

#[case]
fn update_flags_on_add_are_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::poll_add(fd(&reader), IN, IORING_POLL_UPDATE_EVENTS)), -EINVAL);
}

#[case]
fn remove_cancels_the_poll(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
    ring.go(sqe::poll_remove(1).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn remove_of_nothing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::poll_remove(77)), -ENOENT);
}

#[case]
fn remove_finds_by_user_data(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(2));
    ring.go(sqe::poll_remove(2).data(3));
    assert_eq!(ring.wait_sorted(2), [(2, -ECANCELED), (3, 0)]);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, i32::from(IN))]);
}

#[case]
fn remove_of_a_fired_poll_is_enoent(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
    writer.write_all(b"x").expect("write");
    ring.wait();
    assert_eq!(ring.run(sqe::poll_remove(1)), -ENOENT);
}

#[case(since = "5.6")]
fn remove_of_another_kind_is_enoent(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0).data(1));
    assert_eq!(ring.run(sqe::poll_remove(1).data(2)), -ENOENT);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(1, 1)]);
}

fn update(target: u64, flags: u32, events: i16, user_data: u64) -> Sqe {
    Sqe { addr: target, len: flags, off: user_data, ..sqe::op(Opcode::PollRemove) }
        .op_flags(u32::from(events as u16))
}

#[case(since = "5.13")]
fn update_of_events(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    ring.go(sqe::poll_add(fd(&a), libc::POLLPRI, 0).data(1));
    assert_eq!(ring.run(update(1, IORING_POLL_UPDATE_EVENTS, IN, 0).data(2)), 0);
    ring.expect_quiet();
    assert_eq!(ring.submit(), 0);
    ring.go(sqe::write(fd(&b), b"x", 0).data(3));
    assert_eq!(ring.wait_sorted(2), [(1, i32::from(IN)), (3, 1)]);
}

#[case(since = "5.13")]
fn update_of_user_data(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
    assert_eq!(ring.run(update(1, IORING_POLL_UPDATE_USER_DATA, 0, 50).data(2)), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(50, i32::from(IN))]);
}

#[case(since = "5.13")]
fn update_of_both(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), libc::POLLPRI, 0).data(1));
    let both = IORING_POLL_UPDATE_EVENTS | IORING_POLL_UPDATE_USER_DATA;
    assert_eq!(ring.run(update(1, both, IN, 50).data(2)), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_ordered(1), [(50, i32::from(IN))]);
}

#[case]
fn update_of_nothing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(update(1, IORING_POLL_UPDATE_EVENTS, IN, 0)), -ENOENT);
}

#[case(since = "5.13")]
fn update_to_ready_events_fires(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"x").expect("write");
    ring.go(sqe::poll_add(fd(&reader), libc::POLLPRI, 0).data(1));
    ring.go(update(1, IORING_POLL_UPDATE_EVENTS, IN, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, i32::from(IN)), (2, 0)]);
}

#[case(since = "5.13")]
fn update_to_what_is_there_is_answered_after_the_submission(cx: &Context) {
    let ((_reader, writer), mut ring) = (pipe(), cx.ring(8));
    ring.go(sqe::poll_add(fd(&writer), IN, 0).data(1));
    let update_and = |ring: &mut Ring, other: Sqe| {
        ring.go_all(&[update(1, IORING_POLL_UPDATE_EVENTS, OUT, 0).data(2), other.data(3)]);
        ring.wait_ordered(3)
    };
    assert_eq!(update_and(&mut ring, sqe::nop()), [(2, 0), (3, 0), (1, i32::from(OUT))]);
    // It can no longer be found.
    for other in [sqe::cancel(1, 0), sqe::poll_remove(1), update(1, IORING_POLL_UPDATE_EVENTS, IN, 0)] {
        ring.go(sqe::poll_add(fd(&writer), IN, 0).data(1));
        assert_eq!(update_and(&mut ring, other), [(2, 0), (3, -ENOENT), (1, i32::from(OUT))]);
    }
    // The request linked after it runs.
    ring.go_all(&[sqe::poll_add(fd(&writer), IN, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(4)]);
    assert_eq!(update_and(&mut ring, sqe::nop()), [(2, 0), (3, 0), (1, i32::from(OUT))]);
    assert_eq!(ring.wait_ordered(1), [(4, 0)]);
}

#[case]
fn update_with_bad_flags_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(update(1, 1 << 7, IN, 0)), -EINVAL);
    assert_eq!(ring.run(update(1, IORING_POLL_ADD_MULTI, 0, 0)), -EINVAL);
}

#[case(since = "5.13")]
fn update_cannot_make_it_multishot(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
    let flags = IORING_POLL_UPDATE_EVENTS | IORING_POLL_ADD_MULTI;
    assert_eq!(ring.run(update(1, flags, IN, 0).data(2)), 0);
    writer.write_all(b"x").expect("write");
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res, cqe.flags), (1, i32::from(IN), 0));
}

#[case]
fn two_polls_of_one_descriptor_both_fire(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(1));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).data(2));
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_sorted(2), [(1, i32::from(IN)), (2, i32::from(IN))]);
}

#[case]
fn polls_of_both_directions(cx: &Context) {
    let ((a, _b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    ring.go(sqe::poll_add(fd(&a), IN, 0).data(1));
    ring.go(sqe::poll_add(fd(&a), OUT, 0).data(2));
    assert_eq!(ring.wait_ordered(1), [(2, i32::from(OUT))]);
    ring.expect_quiet();
}

#[case(since = "5.6")]
fn async_poll_waits(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&reader), IN, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
}

#[case]
fn poll_with_buf_index_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::poll_add(fd(&reader), IN, 0).buffer(1)), -EINVAL);
}

#[case]
fn poll_add_with_off_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let poll = sqe::poll_add(fd(&reader), IN, 0);
    assert_eq!(ring.run(Sqe { off: 1, ..poll }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..poll }), -EINVAL);
}

#[case]
fn poll_remove_with_flags_only_update(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::poll_remove(1).op_flags(1)), -EINVAL, "events without UPDATE_EVENTS");
    assert_eq!(ring.run(Sqe { off: 1, ..sqe::poll_remove(1) }), -EINVAL, "user_data without UPDATE_USER_DATA");
}

#[case]
fn poll_of_an_eventfd(cx: &Context) {
    let (mut file, mut ring) = (eventfd(0, 0), cx.ring(4));
    assert_eq!(ring.run(sqe::poll_add(fd(&file), IN | OUT, 0)), i32::from(OUT));
    ring.go(sqe::poll_add(fd(&file), IN, 0));
    ring.expect_quiet();
    file.write_all(&1u64.to_ne_bytes()).expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
}

#[case]
fn poll_of_an_epoll(cx: &Context) {
    let ((reader, mut writer), epoll, mut ring) = (pipe(), epoll(), cx.ring(4));
    assert_eq!(cx.door.epoll_add(fd(&epoll), fd(&reader), libc::EPOLLIN as u32), 0);
    ring.go(sqe::poll_add(fd(&epoll), IN, 0));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
}

#[case]
fn poll_of_a_listening_socket(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    ring.go(sqe::poll_add(fd(&listener), IN, 0));
    ring.expect_quiet();
    let _client = std::net::TcpStream::connect(listener.local_addr().expect("the address")).expect("connect");
    assert_eq!(ring.wait().res, i32::from(IN));
}

#[case]
fn poll_of_its_own_ring(cx: &Context) {
    let mut ring = cx.ring(4);
    let number = ring.fd;
    assert_eq!(ring.run(sqe::poll_add(number, OUT, 0)), i32::from(OUT));
}

#[case]
fn poll_of_another_ring(cx: &Context) {
    let (mut ring, mut other) = (cx.ring(4), cx.ring(4));
    ring.go(sqe::poll_add(other.fd, IN, 0).data(1));
    ring.expect_quiet();
    other.go(sqe::nop());
    assert_eq!(ring.wait_ordered(1), [(1, i32::from(IN))]);
}

#[case(since = "5.13")]
fn poll_of_another_ring_that_was_emptied_waits(cx: &Context) {
    let (mut ring, mut other) = (cx.ring(4), cx.ring(4));
    for flags in [0, IORING_POLL_ADD_MULTI] {
        ring.go(sqe::poll_add(other.fd, IN, flags).data(1));
        ring.expect_quiet();
        other.go(sqe::nop());
        assert_eq!(ring.wait_ordered(1), [(1, i32::from(IN))]);
        assert_eq!(other.peek().map(|cqe| cqe.res), Some(0));
    }
    ring.go(sqe::poll_add(other.fd, IN, 0).data(2));
    ring.expect_quiet();
}

#[case]
fn poll_of_a_fixed_file(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.register_files(&[fd(&reader)]);
    ring.go(sqe::poll_add(0, IN, 0).with(IOSQE_FIXED_FILE));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, i32::from(IN));
}

#[case]
fn poll32_high_bits_are_ignored(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"x").expect("write");
    let poll = sqe::poll_add(fd(&reader), IN, 0).op_flags(IN as u32 | libc::EPOLLET as u32);
    assert_eq!(ring.run(poll), i32::from(IN));
}

#[case(since = "5.11")]
fn a_peer_that_stopped_sending_is_always_reported(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    let hung = i32::from(libc::POLLRDHUP | libc::POLLIN);
    ring.go(sqe::poll_add(fd(&a), libc::POLLIN, 0).data(1));
    ring.go(sqe::shutdown(fd(&b), libc::SHUT_WR).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, hung), (2, 0)]);
    assert_eq!(ring.run(sqe::poll_add(fd(&a), libc::POLLIN, 0)), hung);
    let writable = i32::from(libc::POLLRDHUP | libc::POLLOUT);
    assert_eq!(ring.run(sqe::poll_add(fd(&a), libc::POLLOUT, 0)), writable);
}

#[case(since = "5.13")]
fn multishot_and_oneshot_answers_once(cx: &Context) {
    for initial in [0, 1] {
        let (mut file, mut ring) = (eventfd(initial, libc::EFD_NONBLOCK), cx.ring(4));
        let poll = sqe::poll_add(fd(&file), IN, IORING_POLL_ADD_MULTI);
        ring.go(poll.op_flags(IN as u32 | libc::EPOLLONESHOT as u32));
        if initial == 0 {
            file.write_all(&1u64.to_ne_bytes()).expect("write");
        }
        let cqe = ring.wait();
        assert_eq!((cqe.res, cqe.flags), (i32::from(IN), 0));
        file.write_all(&1u64.to_ne_bytes()).expect("write");
        ring.expect_quiet();
    }
}

#[case(own_flags, since = "6.0")]
fn multishot_of_a_ring_ends_with_what_its_cqes_tell(cx: &Context) {
    let (mut ring, mut other) = (cx.ring_with(8, 0), cx.ring_with(8, 0));
    let poll = sqe::poll_add(other.fd, IN, IORING_POLL_ADD_MULTI);
    ring.go(poll);
    ring.expect_quiet();
    other.go(sqe::nop());
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), 0));
    // Events that are there when it begins are reported, too.
    ring.go(poll);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), IORING_CQE_F_MORE));
    other.go(sqe::nop());
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), 0));
    // It would repeat forever.
    ring.go(sqe::poll_add(ring.fd, IN, IORING_POLL_ADD_MULTI).data(7));
    ring.expect_quiet();
    ring.go(sqe::nop().data(8));
    assert_eq!(ring.wait_sorted(2), [(7, i32::from(IN)), (8, 0)]);
    ring.expect_quiet();
}

#[case(own_flags, since = "6.0")]
fn multishot_of_a_ring_ends_when_its_number_was_closed(cx: &Context) {
    let (mut ring, mut other) = (cx.ring_with(8, 0), cx.ring_with(8, 0));
    // SAFETY: dup(2) takes any number.
    let copy = owned(unsafe { libc::dup(other.fd) }, "dup");
    ring.go(sqe::poll_add(other.fd, IN, IORING_POLL_ADD_MULTI));
    other.close_fd();
    ring.expect_quiet();
    other.push(sqe::nop());
    other.publish();
    assert_eq!(cx.door.enter(fd(&copy), 1, 1, IORING_ENTER_GETEVENTS, 0, 0), 1);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags), (i32::from(IN), 0));
}
