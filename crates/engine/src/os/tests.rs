//! Tests of the substitutes for missing system calls, with filters that refuse the originals.

use super::in_child::in_child;
use super::refusing::{refusing, Refusal};
use super::*;
use core::sync::atomic::Ordering;
use rustix::fd::AsRawFd;
use std::time::{Duration, Instant};

const NO_WIPEONFORK: &[Refusal] = &[(libc::SYS_madvise, Some((2, libc::MADV_WIPEONFORK as u64)), libc::EINVAL)];
const NO_EPOLL_PWAIT2: &[Refusal] = &[(libc::SYS_epoll_pwait2, None, libc::ENOSYS)];
/// Makes preadv2(2) succeed at the end of a pipe, as on gVisor, which ignores the flags.
const FLAGS_IGNORED: &[Refusal] = &[(libc::SYS_preadv2, Some((5, 1 << 31)), 0)];

/// Returns the word as a forked child finds it.
fn word_in_child(page: &ForkPage, look: Access) -> u32 {
    let child = || {
        let word = page.word(look).map_or(99, |word| word.load(Ordering::Relaxed));
        // A second check finds the same page, and the value stored in it.
        let kept = page.word(look).is_some_and(|word| {
            word.store(word.load(Ordering::Relaxed) + 7, Ordering::Relaxed);
            page.word(look).is_some_and(|again| again.load(Ordering::Relaxed) == word.load(Ordering::Relaxed))
        });
        if kept {
            word as u8
        } else {
            98
        }
    };
    in_child(child).into()
}

fn a_fork_is_noticed(wiped: bool) {
    static EARLY: ForkPage = ForkPage::new();
    assert!(EARLY.word(Access::ByLoad).is_none());
    for look in [Access::ByLoad, Access::ByCall] {
        let page = ForkPage::new();
        page.map(5).expect("room for a page");
        assert_eq!(page.wiped_word().is_some(), wiped);
        assert_eq!(word_in_child(&page, look), 0, "{look:?}");
        let word = page.word(look).expect("a page");
        assert_eq!(word.load(Ordering::Relaxed), 5, "the parent's stays");
        page.map(6).expect("room for a page");
        assert_eq!(word.load(Ordering::Relaxed), 5, "the first page counts");
    }
}

#[test]
fn a_fork_is_noticed_by_a_page_that_is_wiped() {
    a_fork_is_noticed(true);
}

#[test]
fn a_fork_is_noticed_by_a_page_that_is_absent() {
    refusing(NO_WIPEONFORK, || a_fork_is_noticed(false));
}

/// The new page of one `ForkPage` takes the gap that the other's page has left in a child.
#[test]
fn absent_pages_are_not_mistaken_for_each_other() {
    refusing(NO_WIPEONFORK, || {
        let pages = [ForkPage::new(), ForkPage::new()];
        pages.iter().for_each(|page| page.map(5).expect("room for a page"));
        for [first, second] in [[0, 1], [1, 0]] {
            let wrong = in_child(|| {
                let stored = pages[first].word(Access::ByCall).map(|word| word.store(7, Ordering::Relaxed));
                let found = pages[second].word(Access::ByCall).map(|word| word.load(Ordering::Relaxed));
                u8::from((stored, found) != (Some(()), Some(0)))
            });
            assert_eq!(wrong, 0);
        }
    });
}

/// The gap in a child may hold anything that the program has mapped, even unreadable memory.
#[test]
fn an_unreadable_page_is_not_mistaken_for_an_absent_one() {
    refusing(NO_WIPEONFORK, || {
        for look in [Access::ByLoad, Access::ByCall] {
            let page = ForkPage::new();
            page.map(5).expect("room for a page");
            let word = page.word(look).expect("a page");
            let wrong = in_child(|| {
                let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;
                let gap = core::ptr::from_ref(word) as usize;
                let mapped = syscall(libc::SYS_mmap, [gap, 4096, libc::PROT_NONE as usize, flags, usize::MAX, 0]);
                let found = page.word(look).map(|word| word.load(Ordering::Relaxed));
                u8::from((mapped, found) != (gap as isize, Some(0)))
            });
            assert_eq!(wrong, 0);
        }
    });
}

fn epoll_waits() {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("an epoll set");
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    let set = epoll.as_raw_fd();
    Sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, reader.as_raw_fd(), libc::EPOLLIN as u32, 7).expect("watch");
    let mut events = [EpollEvent::default(); 2];
    let start = Instant::now();
    assert_eq!(Sys::epoll_wait(set, &mut events, Some(300_000), None), Ok(0));
    assert!(start.elapsed() >= Duration::from_micros(300));
    assert_eq!(Sys::epoll_wait(set, &mut events, Some(0), None), Ok(0));
    rustix::io::write(&writer, b"x").expect("write");
    for timeout_ns in [None, Some(0), Some(300_000), Some(5_000_000_000)] {
        assert_eq!(Sys::epoll_wait(set, &mut events, timeout_ns, None), Ok(1));
        assert_eq!({ events[0].data }, 7);
    }
}

#[test]
fn epoll_waits_by_epoll_pwait2_or_without_it() {
    epoll_waits();
    refusing(NO_EPOLL_PWAIT2, epoll_waits);
}

#[test]
fn ignored_flags_are_found_out() {
    assert_eq!(linux::flags_are_checked(), Some(true));
    assert_eq!(refusing(FLAGS_IGNORED, linux::flags_are_checked), Some(false));
}

#[test]
fn sleeps_are_shorter_by_what_the_kernel_may_add() {
    let of_a_thread = |slack_ns: usize| {
        std::thread::spawn(move || {
            syscall(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, slack_ns, 0, 0, 0, 0]);
            let near = [(0, false), (1_000_000, false), (100_000, false), (500_000_000, true)];
            near.map(|(left_ns, polls)| Sys::sleep_ns(left_ns, polls))
        })
        .join()
        .expect("the thread")
    };
    assert_eq!(of_a_thread(200_000), [0, 800_000, 1, 499_500_000]);
    assert_eq!(of_a_thread(1), [0, 999_999, 99_999, 499_500_000]);
    assert_eq!(of_a_thread(1 << 40), [0, 1, 1, 499_000_000]);
    const SECOND_NS: u64 = 1_000_000_000;
    let far = [(SECOND_NS, false), (SECOND_NS, true), (1_000 * SECOND_NS, true)];
    let expected = [999_000_000, 999_000_000, 999_900_000_000];
    assert_eq!(far.map(|(left_ns, polls)| Sys::sleep_ns(left_ns, polls)), expected);
}

#[test]
fn calls_with_flags_that_are_refused_are_noticed() {
    const NO_READS: &[Refusal] = &[(libc::SYS_preadv2, None, libc::EPERM)];
    const NO_WRITES: &[Refusal] = &[(libc::SYS_pwritev2, None, libc::ENOSYS)];
    assert_eq!(linux::ask_for_calls_with_flags(), 0);
    assert_ne!(refusing(NO_READS, linux::ask_for_calls_with_flags), 0);
    assert_ne!(refusing(NO_WRITES, linux::ask_for_calls_with_flags), 0);
}
