//! Waiting on descriptors: epoll, poll and select. A ring's descriptor is one end of a socketpair. So the engine
//! must know whether something watches the descriptor. Before each level-triggered wait, it must make the
//! descriptor's readability agree with the CQ. For a descriptor that is no ring, this costs one compare. Until the
//! process has made a ring, a wait costs one load.

use crate::door::{self, RING_NUMBERS};
use crate::{descriptor, sys};
use anyring_engine::descriptors::level;
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os;
use libc::{epoll_event, fd_set, pollfd};

/// Watches ring `fd` before epoll_ctl(2) adds it to a set, or changes its entry.
pub fn before_epoll_ctl(operation: i32, fd: i32, event: *const epoll_event) {
    if !matches!(operation, libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD) || !door::is_ring(fd) {
        return;
    }
    point(Point::EpollCtl);
    // `events` is the first word of the packed struct. If it is unreadable, the kernel refuses the call.
    let Some(events) = sys::read_program(event.cast::<u32>()) else {
        return;
    };
    let edge_triggered = events & libc::EPOLLET as u32 != 0;
    door::add_watcher(fd, edge_triggered);
    if !edge_triggered {
        level::record(fd);
    }
}

/// Brings the readability of rings in epoll sets up to date. Call it before epoll_wait(2) and its relatives.
#[inline]
pub fn before_epoll_wait() {
    point(Point::EpollWait);
    if level::any() && !mutated(Mutation::LevelIsNotSettled) {
        update_all_readability();
    }
}

#[cold]
fn update_all_readability() {
    level::for_each(|fd| {
        if door::is_ring(fd) {
            door::update_readability(fd);
        }
    });
}

/// Watches the rings among `fds` and brings them up to date, before poll(2) or ppoll(2).
#[inline]
pub fn before_poll(fds: *const pollfd, count: usize) {
    point(Point::Poll);
    if descriptor::rings_exist() {
        scan(fds, count);
    }
}

/// Reads the program's array in portions. The pointer may be bad.
#[cold]
fn scan(fds: *const pollfd, count: usize) {
    const PORTION: usize = 64;
    let mut portion = [0_u64; PORTION];
    let mut at = fds as u64;
    let mut left = count;
    while left > 0 {
        let taken = left.min(PORTION);
        if os::user_read_slice(at, &mut portion[..taken]).is_err() {
            return;
        }
        // The descriptor's number is the first half of each entry.
        portion[..taken].iter().for_each(|entry| watched_level(*entry as i32));
        at = at.wrapping_add((taken * size_of::<pollfd>()) as u64);
        left -= taken;
    }
}
const _: () = assert!(size_of::<pollfd>() == 8 && core::mem::offset_of!(pollfd, fd) == 0);

fn watched_level(fd: i32) {
    if door::is_ring(fd) {
        door::add_watcher(fd, false);
        door::update_readability(fd);
    }
}

/// Watches the rings in `readable` and brings them up to date, before select(2) or pselect(2). The other sets do not
/// matter: a ring is always writable.
#[inline]
pub fn before_select(count: i32, readable: *const fd_set) {
    point(Point::Select);
    if count > RING_NUMBERS.start && !readable.is_null() && descriptor::rings_exist() {
        scan_set(count, readable.cast());
    }
}

#[cold]
fn scan_set(count: i32, set: *const u64) {
    let mut words = [0_u64; (RING_NUMBERS.end - RING_NUMBERS.start) as usize / 64];
    let last = count.min(RING_NUMBERS.end);
    let words = &mut words[..((last - RING_NUMBERS.start) as usize).div_ceil(64)];
    if os::user_read_slice(set.wrapping_add(RING_NUMBERS.start as usize / 64) as u64, words).is_err() {
        return;
    }
    for (first, bits) in (RING_NUMBERS.start..last).step_by(64).zip(words) {
        while *bits != 0 {
            let fd = first + bits.trailing_zeros() as i32;
            *bits &= *bits - 1;
            if fd < last {
                watched_level(fd);
            }
        }
    }
}
