//! Whether a thread that waits for messages spins before it sleeps, as each ring has learned it.
//!
//! Waking a thread on another core takes tens of microseconds, and costs the sender a system call. A thread that is
//! awake has a message in less than one microsecond. Messages of other rings (`IORING_OP_MSG_RING`) may come in quick
//! succession. The thread that waits for them then polls the CQ for up to [`LONGEST_NS`] before it sleeps. These rules
//! bound the cost:
//!
//! - The last waits were ended by messages, each within [`LONGEST_NS`]. A spin that finds nothing halves what was
//!   earned, so an idle ring spins once or twice, and then no more.
//! - Spins that find nothing take no more than one hundredth of the time (`SHARE`).
//! - A CPU is idle. There is no cheap way to ask: /proc/loadavg takes three calls and a descriptor, and a program's
//!   filter may kill for them. But if another thread waits for the CPU of a thread that spins, the kernel gives that
//!   CPU away within some milliseconds. The spinning thread sees by the clock that it did not run. That ends all spins
//!   on the ring for a while, and for longer each time (`FIRST_PAUSE_NS`, `LONGEST_PAUSE_NS`).
//!
//! All of this is part of a ring's state, under its lock.

use crate::mutation::{mutated, Mutation};
use std::sync::OnceLock;

/// The longest spin, in nanoseconds. About what a sleep and a wake-up on another core cost.
pub const LONGEST_NS: u64 = 50_000;
/// A spinning thread that did not run for so long has lost its CPU to another thread.
const LOST_NS: u64 = 100_000;

/// Number of short waits for messages in a row after which a thread spins.
const ENOUGH: u8 = 4;
/// The time of spins that find nothing is at most this part of all time.
const SHARE: u64 = 100;
/// The most time that may be saved up for such spins.
const MOST_CREDIT_NS: u64 = 4 * LONGEST_NS;
/// The time after which the engine checks again whether the thread may spin.
const ASKED_AFTER_NS: u64 = 100_000_000;
/// The time without spins after the first harm, and after much of it.
const FIRST_PAUSE_NS: u64 = 10_000_000;
const LONGEST_PAUSE_NS: u64 = 1_280_000_000;
/// Number of messages found in a row after which former harm is forgotten.
const HARMLESS: u32 = 10_000;

/// Says whether the calling thread may spin. Nobody may until [`allow`].
static MAY_SPIN: OnceLock<fn() -> bool> = OnceLock::new();

/// Allows spins in this process to threads for which `may_spin` is true. The caller makes sure that signal handlers of
/// the program report themselves ([`crate::os::handled`]), since a spin ends when one has run. Called before the first
/// ring.
pub fn allow(may_spin: fn() -> bool) {
    let _ = MAY_SPIN.set(may_spin);
}

/// The outcome of a spin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Something came: a CQE, or work that the thread has to do.
    Arrival,
    /// Nothing came in time.
    Nothing,
    /// A signal handler of the program ran in the thread.
    Handler,
    /// Another thread got the CPU.
    Harm,
}

/// The times that end a spin.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// See [`LONGEST_NS`].
    pub longest_ns: u64,
    /// See `LOST_NS`.
    pub lost_ns: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { longest_ns: LONGEST_NS, lost_ns: LOST_NS }
    }
}

/// Facts about the messages to one ring.
#[derive(Debug, Default)]
pub struct Spin {
    /// Times that end a spin. All rings have equal ones, except in tests.
    pub limits: Limits,
    /// Number of messages posted to the ring, modulo 2^32.
    messages: u32,
    /// Short waits in a row, at most twice [`ENOUGH`].
    earned: u8,
    /// The time that spins without a result may still take, and when it was last counted.
    credit_ns: u64,
    counted_at_ns: u64,
    /// The time from which it is asked again whether the thread may spin.
    ask_at_ns: u64,
    /// The end of the pause, and its length.
    paused_until_ns: u64,
    pause_ns: u64,
    /// Number of messages found since the last harm.
    harmless: u32,
}

impl Spin {
    /// Makes the state of a ring that has learned to spin before its first wait.
    #[cfg(test)]
    pub fn eager(limits: Limits) -> Spin {
        allow(|| true);
        Spin { limits, messages: 1, earned: 2 * ENOUGH, ask_at_ns: u64::MAX, ..Spin::default() }
    }

    /// Counts a message that is posted.
    #[inline]
    pub fn count_message(&mut self) {
        self.messages = self.messages.wrapping_add(1);
    }

    /// Number of messages so far. 0 on nearly all rings, where nothing need be measured.
    #[inline]
    pub fn messages(&self) -> u32 {
        self.messages
    }

    /// True if the calling thread should spin now.
    pub fn is_worth_it(&mut self, now_ns: u64) -> bool {
        let earned_ns = now_ns.saturating_sub(self.counted_at_ns) / SHARE;
        self.credit_ns = self.credit_ns.saturating_add(earned_ns).min(MOST_CREDIT_NS);
        self.counted_at_ns = now_ns;
        let Some(may_spin) = MAY_SPIN.get().filter(|_| now_ns >= self.paused_until_ns) else { return false };
        if self.earned < ENOUGH || self.credit_ns < LONGEST_NS {
            return false;
        }
        if now_ns >= self.ask_at_ns {
            self.ask_at_ns = now_ns + ASKED_AFTER_NS;
            if !may_spin() {
                self.paused_until_ns = self.ask_at_ns;
                return false;
            }
        }
        true
    }

    /// Records a wait without a spin that took `took_ns`. `by_message` says that a message ended it.
    pub fn record_sleep(&mut self, by_message: bool, took_ns: u64) {
        match by_message && took_ns <= LONGEST_NS {
            true => self.earn(),
            false => self.record_vain(),
        }
    }

    /// Records a spin from `from_ns` to `now_ns`. `by_message` says that a message ended it.
    pub fn record_spin(&mut self, by_message: bool, found: Found, from_ns: u64, now_ns: u64) {
        match found {
            Found::Arrival if by_message => {
                self.earn();
                self.harmless = self.harmless.saturating_add(1);
                if self.harmless >= HARMLESS {
                    self.pause_ns = 0;
                }
            }
            Found::Arrival | Found::Handler => {}
            Found::Nothing => {
                self.credit_ns = self.credit_ns.saturating_sub(now_ns - from_ns);
                self.record_vain();
            }
            Found::Harm => {
                self.pause_ns = (2 * self.pause_ns).clamp(FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
                self.paused_until_ns = now_ns + self.pause_ns;
                self.harmless = 0;
            }
        }
    }

    fn earn(&mut self) {
        self.earned = (self.earned + 1).min(2 * ENOUGH);
    }

    fn record_vain(&mut self) {
        if !mutated(Mutation::IdleRingsSpin) {
            self.earned /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Makes a ring's facts after these waits: whether a message came, and after how many ns.
    fn after(waits: &[(bool, u64)]) -> Spin {
        allow(|| true);
        let mut spin = Spin::default();
        waits.iter().for_each(|(by_message, took_ns)| spin.record_sleep(*by_message, *took_ns));
        spin
    }

    #[test]
    fn only_short_waits_for_messages_lead_to_spins() {
        assert!(after(&[(true, 20_000); 4]).is_worth_it(SECOND_NS));
        assert!(!after(&[(true, 20_000); 3]).is_worth_it(SECOND_NS));
        assert!(!after(&[(true, LONGEST_NS + 1); 20]).is_worth_it(SECOND_NS));
        assert!(!after(&[(false, 1_000); 20]).is_worth_it(SECOND_NS), "something else ended them");
    }

    #[test]
    fn two_spins_for_nothing_end_it() {
        let mut spin = after(&[(true, 1_000); 100]);
        for _ in 0..2 {
            assert!(spin.is_worth_it(SECOND_NS));
            spin.record_spin(false, Found::Nothing, SECOND_NS - LONGEST_NS, SECOND_NS);
        }
        assert!(!spin.is_worth_it(2 * SECOND_NS));
    }

    /// Simulates a second of waits: a message comes soon after each, but never while the thread spins.
    #[test]
    fn spins_for_nothing_take_a_hundredth_of_the_time() {
        let (mut spin, mut now_ns, mut spun_ns) = (after(&[(true, 1_000); 8]), SECOND_NS, 0);
        while now_ns < 2 * SECOND_NS {
            if spin.is_worth_it(now_ns) {
                now_ns += LONGEST_NS;
                spun_ns += LONGEST_NS;
                spin.record_spin(false, Found::Nothing, now_ns - LONGEST_NS, now_ns);
            } else {
                now_ns += 10_000;
                spin.record_sleep(true, 10_000);
            }
        }
        assert!((SECOND_NS / 200..=SECOND_NS / SHARE + MOST_CREDIT_NS).contains(&spun_ns), "{spun_ns}");
    }

    #[test]
    fn harm_pauses_spins_for_longer_each_time_until_it_is_forgotten() {
        let mut spin = after(&[(true, 1_000); 8]);
        let mut now_ns = SECOND_NS;
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(spin.is_worth_it(now_ns));
            spin.record_spin(false, Found::Harm, now_ns, now_ns);
            let began_ns = now_ns;
            while !spin.is_worth_it(now_ns) {
                now_ns += 1_000_000;
            }
            pauses.push((now_ns - began_ns) / 1_000_000);
        }
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1280, 1280]);
        for _ in 0..HARMLESS {
            spin.record_spin(true, Found::Arrival, now_ns, now_ns);
        }
        spin.record_spin(false, Found::Harm, now_ns, now_ns);
        assert!(!spin.is_worth_it(now_ns) && spin.is_worth_it(now_ns + FIRST_PAUSE_NS));
    }
}
