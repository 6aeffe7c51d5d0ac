//! EPOLL_WAIT on an instance of the program.

use super::prelude::*;

topic!(since: "6.15", source: "io_uring/epoll.c");

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

#[case]
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

#[case]
fn waits_for_an_event(cx: &Context) {
    waits(cx, 0);
}

#[case]
fn waits_with_async(cx: &Context) {
    waits(cx, IOSQE_ASYNC);
}

#[case]
fn level_triggered_events_come_again(cx: &Context) {
    let ((reader, mut writer), mut events, mut ring) = (pipe(), none::<4>(), cx.ring(4));
    let set = watching(&reader, libc::EPOLLIN);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.run(wait_events(&set, &mut events)), 1);
    assert_eq!(ring.run(wait_events(&set, &mut events)), 1);
}

#[case]
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

#[case]
fn takes_as_many_as_there_is_room_for(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(4), none::<2>());
    let ready: Vec<_> = (0..3).map(|_| eventfd(1, 0)).collect();
    for (data, file) in ready.iter().enumerate() {
        watch(&set, file, libc::EPOLLIN, data as u64);
    }
    assert_eq!(ring.run(wait_events(&set, &mut events)), 2);
    assert_eq!(ring.run(wait_events(&set, &mut events[..1])), 1);
}

#[case]
fn no_room_is_einval(cx: &Context) {
    let set = epoll();
    assert_eq!(cx.ring(4).run(wait_events(&set, &mut [])), -EINVAL);
    let huge = Sqe { len: 1 << 31, ..wait_events(&set, &mut none::<1>()) };
    assert_eq!(cx.ring(4).run(huge), -EINVAL);
}

#[case]
fn a_bad_address_is_efault(cx: &Context) {
    let (set, ready) = (epoll(), eventfd(1, 0));
    watch(&set, &ready, libc::EPOLLIN, 1);
    assert_eq!(cx.ring(4).run(prep(Opcode::EpollWait, fd(&set), bad_address(), 1, 0)), -EFAULT);
}

#[case]
fn of_another_file_is_einval(cx: &Context) {
    let ((reader, _writer), mut events) = (pipe(), none::<1>());
    let of_pipe = Sqe { fd: fd(&reader), ..wait_events(&epoll(), &mut events) };
    assert_eq!(cx.ring(4).run(of_pipe), -EINVAL);
}

#[case]
fn bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(Sqe { fd: 9999, ..wait_events(&epoll(), &mut none::<1>()) }), -EBADF);
}

#[case]
fn with_unused_fields_is_einval(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(4), none::<1>());
    let good = wait_events(&set, &mut events);
    assert_eq!(ring.run(Sqe { off: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
}

#[case]
fn is_cancelled(cx: &Context) {
    let (set, mut ring, mut events) = (epoll(), cx.ring(4), none::<1>());
    ring.go(wait_events(&set, &mut events).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn two_waiters(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let (mut first, mut second) = (none::<1>(), none::<1>());
    let set = watching(&reader, libc::EPOLLIN);
    ring.go_all(&[wait_events(&set, &mut first).data(1), wait_events(&set, &mut second).data(2)]);
    ring.expect_quiet();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.wait_sorted(2), [(1, 1), (2, 1)]);
}

fn add_ring(set: &OwnedFd, ring: &Ring, event: &libc::epoll_event) -> Sqe {
    let number = ring.fd as u64;
    Sqe { off: number, ..prep(Opcode::EpollCtl, fd(set), address(event), libc::EPOLL_CTL_ADD as u32, 0) }
}

/// Returns the events that epoll_wait(2) finds within 200 ms.
fn found(set: &OwnedFd) -> Vec<(u32, u64)> {
    let mut events = none::<4>();
    // SAFETY: there is room for four events.
    let count = unsafe { libc::epoll_wait(fd(set), events.as_mut_ptr(), 4, 200) };
    events[..count as usize].iter().map(seen).collect()
}

#[case]
fn epoll_ctl_of_another_ring(cx: &Context) {
    let (set, mut ring, mut watched) = (epoll(), cx.ring(4), cx.ring(4));
    let event = libc::epoll_event { events: IN, u64: 9 };
    assert_eq!(ring.run(add_ring(&set, &watched, &event)), 0);
    assert_eq!(found(&set), []);
    watched.go(sqe::nop());
    assert_eq!(found(&set), [(IN, 9)]);
    assert_eq!(found(&set), [(IN, 9)], "level-triggered");
    watched.wait();
    assert_eq!(found(&set), []);
}

#[case]
fn epoll_ctl_of_its_own_ring(cx: &Context) {
    let (set, mut ring) = (epoll(), cx.ring(4));
    let event = libc::epoll_event { events: IN, u64: 9 };
    let add = add_ring(&set, &ring, &event);
    ring.go(add);
    assert_eq!(found(&set), [(IN, 9)]);
    assert_eq!(ring.wait().res, 0);
    assert_eq!(found(&set), []);
    ring.go(sqe::nop());
    assert_eq!(found(&set), [(IN, 9)]);
}

#[case]
fn epoll_ctl_of_a_ring_with_completions(cx: &Context) {
    let (set, mut ring, mut watched) = (epoll(), cx.ring(4), cx.ring(4));
    watched.go(sqe::nop());
    for flags in [0, IOSQE_ASYNC] {
        let event = libc::epoll_event { events: IN, u64: 9 };
        let set = if flags == 0 { &set } else { &epoll() };
        assert_eq!(ring.run(add_ring(set, &watched, &event).with(flags)), 0);
        assert_eq!(found(set), [(IN, 9)]);
    }
}

#[case]
fn epoll_ctl_of_a_ring_edge_triggered(cx: &Context) {
    let (set, mut ring, mut watched) = (epoll(), cx.ring(4), cx.ring(4));
    let event = libc::epoll_event { events: IN | libc::EPOLLET as u32, u64: 9 };
    assert_eq!(ring.run(add_ring(&set, &watched, &event)), 0);
    for _ in 0..2 {
        watched.go(sqe::nop());
        assert_eq!(found(&set), [(IN, 9)]);
        assert_eq!(found(&set), []);
    }
}
