//! EPOLL_WAIT on an instance of the program's.

use super::prelude::*;

cases! {
    any_flags: [
        events_that_are_there,
        waits_for_an_event,
        waits_with_async,
        level_triggered_events_come_again,
        edge_triggered_events_come_once,
        takes_as_many_as_there_is_room_for,
        no_room_is_einval,
        a_bad_address_is_efault,
        of_another_file_is_einval,
        bad_descriptor_is_ebadf,
        with_unused_fields_is_einval,
        is_cancelled,
        two_waiters,
    ],
    own_flags: [],
}

/// An instance that watches a pipe's read end for `events`, with 7 as its data.
fn watching(reader: &impl std::os::fd::AsRawFd, events: i32) -> OwnedFd {
    let set = epoll();
    watch(&set, reader, events, 7);
    set
}

fn watch(set: &OwnedFd, file: &impl std::os::fd::AsRawFd, events: i32, data: u64) {
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    // SAFETY: the event lives until the call returns.
    assert_eq!(unsafe { libc::epoll_ctl(fd(set), libc::EPOLL_CTL_ADD, fd(file), &raw mut event) }, 0);
}

fn wait_events(set: &OwnedFd, events: &mut [libc::epoll_event]) -> Sqe {
    prep(Opcode::EpollWait, fd(set), address_mut(events), events.len() as u32, 0)
}

fn none<const N: usize>() -> [libc::epoll_event; N] {
    [libc::epoll_event { events: 0, u64: 0 }; N]
}

fn seen(event: &libc::epoll_event) -> (u32, u64) {
    (event.events, event.u64)
}

const IN: u32 = libc::EPOLLIN as u32;

fn events_that_are_there(cx: &Context) {
    let ((reader, mut writer), mut events) = (pipe(), none::<4>());
    let set = watching(&reader, libc::EPOLLIN);
    writer.write_all(b"x").expect("write");
    assert_eq!(cx.ring(4).run(wait_events(&set, &mut events)), 1);
    assert_eq!((seen(&events[0]), seen(&events[1])), ((IN, 7), (0, 0)));
}

fn waits(cx: &Context, flags: u8) {
    let ((reader, mut writer), mut events, mut ring) = (pipe(), none::<4>(), cx.ring(4));
    let set = watching(&reader, libc::EPOLLIN);
    ring.go(wait_events(&set, &mut events).with(flags));
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, 1);
    assert_eq!(seen(&events[0]), (IN, 7));
}

fn waits_for_an_event(cx: &Context) {
    waits(cx, 0);
}

fn waits_with_async(cx: &Context) {
    waits(cx, IOSQE_ASYNC);
}

fn level_triggered_events_come_again(cx: &Context) {
    let ((reader, mut writer), mut events, mut ring) = (pipe(), none::<4>(), cx.ring(4));
    let set = watching(&reader, libc::EPOLLIN);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.run(wait_events(&set, &mut events)), 1);
    assert_eq!(ring.run(wait_events(&set, &mut events)), 1);
}

fn edge_triggered_events_come_once(cx: &Context) {
    let ((reader, mut writer), mut events, mut ring) = (pipe(), none::<4>(), cx.ring(4));
    let set = watching(&reader, libc::EPOLLIN | libc::EPOLLET);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.run(wait_events(&set, &mut events)), 1);
    ring.go(wait_events(&set, &mut events));
    ring.expect_quiet();
    writer.write_all(b"y").expect("write");
    assert_eq!(ring.wait().res, 1);
}

fn takes_as_many_as_there_is_room_for(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(4), none::<2>());
    let ready: Vec<_> = (0..3).map(|_| eventfd(1, 0)).collect();
    for (data, file) in ready.iter().enumerate() {
        watch(&set, file, libc::EPOLLIN, data as u64);
    }
    assert_eq!(ring.run(wait_events(&set, &mut events)), 2);
    assert_eq!(ring.run(wait_events(&set, &mut events[..1])), 1);
}

fn no_room_is_einval(cx: &Context) {
    let set = epoll();
    assert_eq!(cx.ring(4).run(wait_events(&set, &mut [])), -EINVAL);
    let huge = Sqe { len: 1 << 31, ..wait_events(&set, &mut none::<1>()) };
    assert_eq!(cx.ring(4).run(huge), -EINVAL);
}

fn a_bad_address_is_efault(cx: &Context) {
    let (set, ready) = (epoll(), eventfd(1, 0));
    watch(&set, &ready, libc::EPOLLIN, 1);
    assert_eq!(cx.ring(4).run(prep(Opcode::EpollWait, fd(&set), bad_address(), 1, 0)), -EFAULT);
}

fn of_another_file_is_einval(cx: &Context) {
    let ((reader, _writer), mut events) = (pipe(), none::<1>());
    let of_pipe = Sqe { fd: fd(&reader), ..wait_events(&epoll(), &mut events) };
    assert_eq!(cx.ring(4).run(of_pipe), -EINVAL);
}

fn bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(Sqe { fd: 9999, ..wait_events(&epoll(), &mut none::<1>()) }), -EBADF);
}

fn with_unused_fields_is_einval(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(4), none::<1>());
    let good = wait_events(&set, &mut events);
    assert_eq!(ring.run(Sqe { off: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
}

fn is_cancelled(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(4), none::<1>());
    ring.go(wait_events(&set, &mut events).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

fn two_waiters(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let (mut first, mut second) = (none::<1>(), none::<1>());
    let set = watching(&reader, libc::EPOLLIN);
    ring.go_all(&[wait_events(&set, &mut first).data(1), wait_events(&set, &mut second).data(2)]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_sorted(2), [(1, 1), (2, 1)]);
}
