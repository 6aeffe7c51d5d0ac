//! The answers of one poll(2) for POLL_ADDs that follow each other in the SQ. Each of them takes its own answer from
//! here, instead of making a call.
//!
//! The answers are as good as those of calls made now, until events of the poll set are taken. An event of a file for
//! which no request waits yet is lost then. A file that becomes ready after the poll(2) makes an event, as after a call
//! of the request's own. So the answers are forgotten when events are taken, when a number is closed, and when the
//! submission ends.
//!
//! Like all of `poll`, this is part of a ring's state, and is accessed under the ring's lock only.

use crate::mutation::{mutated, Mutation};
use crate::os::{Os, Sys};
use crate::Errno;

/// The most descriptors that one poll(2) asks for.
pub(crate) const MOST: usize = 64;

/// The answers that no request has taken yet.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The descriptors in the order of their SQEs, with the events that were asked for and found.
    answers: Vec<libc::pollfd>,
    /// The place of the next answer.
    next: usize,
}

impl Ahead {
    /// True if no answer is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next == self.answers.len()
    }

    /// Forgets what is left, since it may no longer be true.
    #[inline]
    pub fn forget(&mut self) {
        self.next = self.answers.len();
    }

    /// Asks for all descriptors of `polls` by one call: each a descriptor and the events asked for, up to [`MOST`].
    /// Asks for none if there are fewer than `least`, or no memory.
    pub fn ask(&mut self, polls: impl Iterator<Item = (i32, u16)>, least: usize) {
        self.answers.clear();
        self.next = 0;
        if self.answers.try_reserve_exact(MOST).is_err() {
            return;
        }
        let polls = polls.map(|(fd, events)| libc::pollfd { fd, events: events as i16, revents: 0 });
        self.answers.extend(polls.take(MOST));
        if self.answers.len() < least {
            return self.answers.clear();
        }
        let asked = loop {
            match Sys::poll(&mut self.answers, Some(0), None) {
                Err(Errno::INTR) => {} // as in `poll_now`
                asked => break asked,
            }
        };
        if asked.is_err() {
            // Each request makes its own call.
            self.answers.iter_mut().for_each(|answer| answer.revents = libc::POLLNVAL);
        }
    }

    /// Returns what the call found for `fd`, 0 if none of `events` is ready. `None` if the next answer is about
    /// something else, or about a closed number: the request then makes its own call.
    #[inline(always)] // most POLL_ADDs find nothing here
    pub fn take(&mut self, fd: i32, events: u16) -> Option<u16> {
        match self.is_empty() {
            true => None,
            false => self.take_next(fd, events),
        }
    }

    #[inline(never)]
    fn take_next(&mut self, fd: i32, events: u16) -> Option<u16> {
        let answer = self.answers.get(self.next)?;
        if (answer.fd, answer.events as u16) != (fd, events) && !mutated(Mutation::AnswersOfOthersCount) {
            self.forget(); // the SQEs are not those that were seen
            return None;
        }
        self.next += 1;
        (answer.revents & libc::POLLNVAL == 0).then_some(answer.revents as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::refusing::refusing;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    const IN: u16 = libc::POLLIN as u16;

    /// Asks for a pipe with data and an empty one; runs `then` with the answers and the two numbers.
    fn with_two<T>(then: impl FnOnce(Ahead, [i32; 2]) -> T) -> T {
        let (full, mut data) = std::io::pipe().expect("a pipe");
        let (empty, _open) = std::io::pipe().expect("a pipe");
        data.write_all(b"x").expect("write");
        let fds = [full.as_raw_fd(), empty.as_raw_fd()];
        let mut ahead = Ahead::default();
        ahead.ask(fds.into_iter().map(|fd| (fd, IN)), 2);
        then(ahead, fds)
    }

    #[test]
    fn each_takes_its_own_answer_once() {
        with_two(|mut ahead, [full, empty]| {
            assert_eq!(ahead.take(full, IN), Some(IN));
            assert_eq!(ahead.take(empty, IN), Some(0));
            assert!(ahead.is_empty());
            assert_eq!(ahead.take(empty, IN), None);
        });
    }

    #[test]
    fn another_descriptor_or_other_events_end_the_answers() {
        with_two(|mut ahead, [full, empty]| {
            assert_eq!(ahead.take(empty, IN), None);
            assert_eq!(ahead.take(full, IN), None, "what follows is unknown, too");
        });
        with_two(|mut ahead, [full, _]| assert_eq!(ahead.take(full, IN | libc::POLLOUT as u16), None));
    }

    #[test]
    fn a_closed_number_has_no_answer_and_the_next_one_has() {
        let (empty, _open) = std::io::pipe().expect("a pipe");
        let fd = empty.as_raw_fd();
        let mut ahead = Ahead::default();
        ahead.ask([(i32::MAX, IN), (fd, IN)].into_iter(), 2);
        assert_eq!(ahead.take(i32::MAX, IN), None);
        assert_eq!(ahead.take(fd, IN), Some(0));
    }

    #[test]
    fn few_or_forgotten_answers_are_none() {
        with_two(|mut ahead, [full, empty]| {
            ahead.forget();
            assert_eq!(ahead.take(full, IN), None);
            ahead.ask([(full, IN), (empty, IN)].into_iter(), 3);
            assert!(ahead.is_empty());
        });
    }

    #[test]
    fn no_more_than_one_call_takes_are_asked() {
        with_two(|mut ahead, [full, _]| {
            ahead.ask(std::iter::repeat_n((full, IN), MOST + 9), 4);
            assert_eq!((0..MOST + 9).filter(|_| ahead.take(full, IN).is_some()).count(), MOST);
        });
    }

    #[test]
    fn a_refused_call_leaves_each_to_its_own() {
        let calls: &[_] = &[(libc::SYS_ppoll, None, libc::EINVAL), (libc::SYS_poll, None, libc::EINVAL)];
        refusing(calls, || {
            with_two(|mut ahead, [full, empty]| {
                assert_eq!((ahead.take(full, IN), ahead.take(empty, IN)), (None, None));
            });
        });
    }
}
