//! When a thread that waits spins before it sleeps.
//!
//! Waking a thread on another core costs tens of microseconds, a message to one that is awake less than one. So where
//! messages from other rings (`IORING_OP_MSG_RING`) come one soon after the other, the thread that waits for them looks
//! for the next one for a bounded time before it sleeps. Nothing else is spun for: what epoll tells, timers and workers.
//!
//! It is learned for each ring, from how long its waits take: only a ring whose last waits were ended by messages, each
//! within [`LONGEST_NS`], spins. A wait that takes longer halves what was earned, so that an idle ring spins once or twice
//! and then never. Each time that spinning came to nothing more has to be earned, so that where the spinning thread keeps the
//! sender from its CPU it is done rarely.
//!
//! All of a [`Spin`] is part of a ring's state, behind its lock.

use crate::mutation::{mutated, Mutation};
use crate::os::{syscall, usable_cpus};
use core::sync::atomic::{AtomicBool, Ordering};

/// The longest time that a thread spins, in nanoseconds. About what a sleep and a wake-up on another core cost.
pub const LONGEST_NS: u64 = 50_000;

/// Waits in a row that have to be short before a thread spins.
const ENOUGH: u16 = 4;
/// The same after many spins for nothing.
const ENOUGH_AT_MOST: u16 = 256;
/// Spins after which it is asked again whether the thread may.
const ASK_AGAIN: u8 = 64;

/// `ANYRING_SPIN`.
static ALLOWED: AtomicBool = AtomicBool::new(true);

/// Whether threads may spin in this process at all. Before the first ring.
pub fn allow(allowed: bool) {
    ALLOWED.store(allowed, Ordering::Relaxed);
}

/// What was learned of a ring.
#[derive(Debug)]
pub struct Spin {
    /// Short waits, less long ones. At most twice what is needed: after so much, one long wait does not end it.
    earned: u16,
    /// How many of them it takes.
    needed: u16,
    /// Spins left before it is asked again whether the thread may.
    known: u8,
    /// Messages posted to the ring.
    messages: u32,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { earned: 0, needed: ENOUGH, known: 0, messages: 0 }
    }
}

impl Spin {
    /// A message was posted.
    #[inline]
    pub fn note_message(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }

    /// Messages so far, modulo 2^32: 0 means that the ring got none, and nothing need be measured.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// A thread waited, spinning or asleep, for `took_ns`; `messages` is what it was before.
    pub fn note_wait(&mut self, messages: u32, took_ns: u64) {
        let spun = self.earned >= self.needed;
        if messages != self.messages && took_ns <= LONGEST_NS {
            self.needed = (self.needed - u16::from(spun)).max(ENOUGH);
            self.earned = (self.earned + 1).min(2 * self.needed);
        } else {
            if !mutated(Mutation::IdleRingsSpin) {
                self.earned /= 2;
            }
            if spun && self.earned < self.needed {
                // Where sender and spinner have to share a CPU, waits are short until one spins.
                self.needed = (2 * self.needed).min(ENOUGH_AT_MOST);
            }
        }
    }

    /// Whether the calling thread should spin now, by what was learned.
    pub fn is_worth_it(&mut self) -> bool {
        if self.earned < self.needed {
            self.known = 0;
            return false;
        }
        if self.known == 0 {
            if !may_spin() {
                self.earned = 0;
                return false;
            }
            self.known = ASK_AGAIN;
        }
        self.known -= 1;
        true
    }
}

/// Whether the calling thread may spin: the process allows it, the thread has more than one CPU (with one the sender could
/// not run meanwhile), and it is scheduled in the ordinary way. One of SCHED_IDLE or SCHED_BATCH asks for little, one of a
/// real-time class would keep others from running.
fn may_spin() -> bool {
    if !ALLOWED.load(Ordering::Relaxed) {
        return false;
    }
    let policy = syscall(libc::SYS_sched_getscheduler, [0; 6]);
    usable_cpus() > 1 && policy == libc::SCHED_OTHER as isize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: &[(bool, u64)]) -> Spin {
        let mut spin = Spin::default();
        for (message, took_ns) in waits {
            let before = spin.messages();
            if *message {
                spin.note_message();
            }
            spin.note_wait(before, *took_ns);
        }
        spin
    }

    #[test]
    fn only_short_waits_for_messages_earn() {
        assert_eq!(after(&[(true, 20_000); 4]).earned, ENOUGH);
        assert_eq!(after(&[(true, LONGEST_NS + 1); 20]).earned, 0);
        assert_eq!(after(&[(false, 1_000); 20]).earned, 0, "something else ended them");
    }

    #[test]
    fn two_long_waits_end_it() {
        let mut waits = vec![(true, 1_000); 100];
        assert_eq!(after(&waits).earned, 2 * ENOUGH);
        waits.extend([(true, 1_000_000); 2]);
        assert!(after(&waits).earned < ENOUGH);
    }

    #[test]
    fn spins_for_nothing_become_rare() {
        let mut spin = Spin::default();
        let mut spins = 0;
        for _ in 0..10_000 {
            let before = spin.messages();
            spin.note_message();
            let spun = spin.is_worth_it();
            spins += u32::from(spun);
            spin.note_wait(before, if spun { LONGEST_NS + 1 } else { 10_000 });
        }
        // As many as there are doublings, and then one in some 130 waits.
        assert!((50..100).contains(&spins) || !may_spin(), "{spins}");
        let mut waits = vec![(true, 10_000); 2 * usize::from(ENOUGH_AT_MOST)];
        waits.splice(0..0, [(true, LONGEST_NS + 1); 20]);
        assert!(after(&waits).earned >= ENOUGH);
    }

    #[test]
    fn a_thread_with_one_cpu_never_spins() {
        std::thread::spawn(|| {
            let mut spin = after(&[(true, 1_000); 8]);
            assert_eq!(spin.is_worth_it(), may_spin());
            let here = rustix::thread::sched_getcpu();
            let mut set = rustix::thread::CpuSet::new();
            set.set(here);
            rustix::thread::sched_setaffinity(None, &set).expect("an affinity");
            let mut spin = after(&[(true, 1_000); 8]);
            assert!(!spin.is_worth_it());
            assert_eq!(spin.earned, 0, "it has to be earned anew");
        })
        .join()
        .expect("the thread");
    }
}
