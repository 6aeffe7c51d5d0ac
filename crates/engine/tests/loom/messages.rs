//! Messages from one ring to another. A post meets a wait, a full CQ, and the ring's end.
//!
//! The CQ's entries and the memory that messages refer to are plain memory, so loom reports unordered accesses. If a
//! message is sent but does not reach a thread that waits for it, the thread sleeps forever. Loom reports that as a
//! deadlock.

use super::*;
use loom::cell::UnsafeCell;
use ring::waiters::Waiters;
use std::collections::VecDeque;

/// Number of entries of the CQ.
const ENTRIES: u32 = 2;

/// State under the ring's lock. In one process the post lock guards the same.
#[derive(Default)]
struct State {
    cq_tail: u32,
    backlog: VecDeque<u32>,
    closed: bool,
    wake_due: bool,
}

struct Ring {
    deferred: bool,
    /// The state. `None` once the ring has ended.
    state: Lock<Option<State>>,
    left: Left,
    messages: Arrivals<u32>,
    handover: Handover,
    sleepers: AtomicU32,
    /// The waiters' words in the control area, and the ring's memory below, until the ring has ended.
    waiters: Waiters,
    cq_head: AtomicU32,
    cq_tail: AtomicU32,
    cqes: [UnsafeCell<u32>; ENTRIES as usize],
    mapped: AtomicBool,
    /// The sleepers on `waiters.sequence`, and whether a signal came.
    futex: (Mutex<bool>, Condvar),
    /// The memory whose address a message carries: message n has parcel n.
    parcels: [UnsafeCell<u32>; 3],
}

/// The way in which a wait ended.
#[derive(PartialEq, Debug)]
enum Waited {
    Satisfied,
    Interrupted,
    Ended,
}

impl Ring {
    fn new(deferred: bool) -> Arc<Ring> {
        Arc::new(Ring {
            deferred,
            state: Lock::new(Some(State::default())),
            left: Left::new(),
            messages: Arrivals::new(Left::MESSAGES),
            handover: Handover::new(),
            sleepers: AtomicU32::new(0),
            waiters: Waiters::default(),
            cq_head: AtomicU32::new(0),
            cq_tail: AtomicU32::new(0),
            cqes: [UnsafeCell::new(0), UnsafeCell::new(0)],
            mapped: AtomicBool::new(true),
            futex: (Mutex::new(false), Condvar::new()),
            parcels: [UnsafeCell::new(0), UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn assert_mapped(&self) {
        assert!(self.mapped.load(Ordering::Relaxed), "memory of a ring that has ended is touched");
    }

    /// Models `RingGuard::wake`.
    fn wake(&self, state: &mut State) {
        self.assert_mapped();
        state.wake_due |= self.waiters.in_futex.load(Ordering::Relaxed) != 0;
    }

    /// Models `PendingWake::wake`. The ring may have ended.
    fn futex_wake(&self) {
        let _held = self.futex.0.lock().unwrap();
        self.futex.1.notify_all();
    }

    /// Models `Sys::futex_wait`. False when a signal came.
    fn futex_wait(&self, expected: u32) -> bool {
        let mut signal = self.futex.0.lock().unwrap();
        while !*signal && self.waiters.sequence.load(Ordering::Relaxed) == expected {
            signal = self.futex.1.wait(signal).unwrap();
        }
        !*signal
    }

    /// Models `RingGuard::flush_batch` with one message.
    fn post(&self, state: &mut State, message: u32) {
        self.assert_mapped();
        let used = state.cq_tail.wrapping_sub(self.cq_head.load(Ordering::Acquire));
        if used == ENTRIES || !state.backlog.is_empty() {
            return state.backlog.push_back(message);
        }
        self.publish(state, message);
        if self.waiters.should_wake(|| u64::from(state.cq_tail) + self.messages.number() as u64, 0) {
            self.wake(state);
        }
    }

    fn publish(&self, state: &mut State, message: u32) {
        // SAFETY: under test: the entry is free, and no other thread posts.
        self.cqes[(state.cq_tail % ENTRIES) as usize].with_mut(|cqe| unsafe { *cqe = message });
        state.cq_tail += 1;
        self.cq_tail.store(state.cq_tail, Ordering::Release);
    }

    /// Models `RingGuard::flush_overflow`.
    fn flush_overflow(&self, state: &mut State) {
        while state.cq_tail.wrapping_sub(self.cq_head.load(Ordering::Acquire)) != ENTRIES {
            let Some(message) = state.backlog.pop_front() else { break };
            self.publish(state, message);
        }
        if self.waiters.should_wake(|| state.cq_tail.into(), 0) {
            self.wake(state);
        }
    }

    /// Models `RingGuard::post_messages`.
    fn post_messages(&self, state: &mut State) {
        if self.left.any(Left::MESSAGES) {
            self.messages.take(&self.left).into_iter().for_each(|message| self.post(state, message));
        }
    }

    /// Models `RingGuard::finish_batch`.
    fn finish_batch(&self, state: &mut State) {
        if self.left.take(Left::UNANNOUNCED) {
            // `announce_work`
            self.assert_mapped();
            if self.waiters.are_satisfied_by(u64::from(state.cq_tail) + self.messages.number() as u64) {
                self.waiters.bump();
                self.wake(state);
            }
        }
        if !self.deferred {
            self.post_messages(state);
        }
    }

    /// Models `RingGuard::drop`.
    fn unlock<'a>(&'a self, mut held: Held<'a, Option<State>>) {
        loop {
            let Some(state) = held.as_mut() else { return };
            self.finish_batch(state);
            let due = std::mem::take(&mut state.wake_due);
            drop(held);
            if due {
                self.futex_wake();
            }
            let left = || (self.left.any(Left::MESSAGES) && !self.deferred) || self.left.any(Left::UNANNOUNCED);
            match self.state.lock_again_if(left) {
                Some(again) => held = again,
                None => return,
            }
        }
    }

    /// Models MSG_RING: `leave` in issue/msg_ring.rs, `Ring::leave_message`. The sender's earlier writes become
    /// visible with the message.
    fn send(&self, message: u32) {
        // SAFETY: under test: no thread reads it before the message is there.
        self.parcels[message as usize].with_mut(|parcel| unsafe { *parcel = message + 100 });
        if !self.deferred {
            if let Some(mut held) = self.state.try_lock() {
                let Some(state) = held.as_mut() else { return };
                self.post_messages(state);
                self.post(state, message);
                return self.unlock(held);
            }
        }
        let _ = self.messages.put(&self.left, [message].into_iter());
        if self.deferred {
            self.left.set(Left::UNANNOUNCED);
        }
        if let Some(held) = self.state.try_lock() {
            self.unlock(held);
        }
    }

    /// Models `driver::wait_until`, until the CQ's tail has reached `target`. With `spins` it checks once without the
    /// lock before it sleeps. `driver::spin` does so for some time.
    fn wait(&self, target: u32, spins: bool) -> Waited {
        let mut held = self.state.lock().unwrap();
        let waited = loop {
            let Some(state) = held.as_mut() else { return Waited::Ended };
            // `collect`
            self.post_messages(state);
            self.finish_batch(state);
            self.flush_overflow(state);
            if state.cq_tail >= target {
                break Waited::Satisfied;
            }
            if !self.handover.may_sleep(self.left.any(Left::MESSAGES)) {
                continue;
            }
            if spins {
                self.sleepers.fetch_add(1, Ordering::Relaxed);
                self.unlock(held);
                self.assert_mapped();
                let _over = self.waiters.sequence.load(Ordering::Relaxed);
                held = self.state.lock().unwrap();
                self.sleepers.fetch_sub(1, Ordering::Release);
                let Some(state) = held.as_mut() else { return Waited::Ended };
                self.post_messages(state);
                if state.cq_tail >= target {
                    break Waited::Satisfied;
                }
                if self.left.any(Left::MESSAGES) {
                    continue;
                }
            }
            let sequence = self.waiters.register(target.into(), true);
            self.sleepers.fetch_add(1, Ordering::Relaxed);
            self.unlock(held);
            self.assert_mapped();
            let woken = self.futex_wait(sequence);
            held = self.state.lock().unwrap();
            self.waiters.leave(1, 1);
            self.sleepers.fetch_sub(1, Ordering::Release);
            if !woken {
                break Waited::Interrupted;
            }
        };
        let closed = held.as_ref().is_some_and(|state| state.closed);
        self.unlock(held);
        if closed {
            self.end_if_unused();
        }
        waited
    }

    /// Returns the next message, if the tail covers it, and checks its parcel, as liburing's peek does.
    fn peek(&self) -> Option<u32> {
        let head = self.cq_head.load(Ordering::Relaxed);
        if self.cq_tail.load(Ordering::Acquire) == head {
            return None;
        }
        // SAFETY: under test: the entry is written, and not again before the head has passed it.
        let message = self.cqes[(head % ENTRIES) as usize].with(|cqe| unsafe { *cqe });
        self.cq_head.store(head + 1, Ordering::Release);
        // SAFETY: under test: the sender's write happened before.
        self.parcels[message as usize].with(|parcel| assert_eq!(unsafe { *parcel }, message + 100));
        Some(message)
    }

    /// Models `ring::table::closing_ring`.
    fn close(&self) {
        let mut held = self.state.lock().unwrap();
        if let Some(state) = held.as_mut() {
            state.closed = true;
        }
        self.unlock(held);
        self.end_if_unused();
    }

    /// Models `ring::table::end_if_unused`.
    fn end_if_unused(&self) {
        let mut held = self.state.lock().unwrap();
        let Some(state) = held.as_ref() else { return };
        if !state.closed || self.sleepers.load(Ordering::Acquire) != 0 {
            return self.unlock(held);
        }
        *held = None;
        drop(held);
        assert!(self.mapped.swap(false, Ordering::Relaxed), "it ends twice");
    }
}

fn sender(ring: &Arc<Ring>, messages: impl Iterator<Item = u32> + Send + 'static) -> thread::JoinHandle<()> {
    let ring = ring.clone();
    thread::spawn(move || messages.for_each(|message| ring.send(message)))
}

/// Messages of one sender reach a thread that waits for each message. All arrive, in order, with their parcels.
#[test]
fn a_thread_that_waits_gets_each_message() {
    for (deferred, spins) in [(false, false), (true, false), (false, true), (true, true)] {
        check(2, move || {
            let ring = Ring::new(deferred);
            let sending = sender(&ring, 0..2);
            for message in 0..2 {
                assert_eq!(ring.wait(message + 1, spins), Waited::Satisfied);
                assert_eq!(ring.peek(), Some(message));
            }
            assert_eq!(ring.peek(), None);
            sending.join().unwrap();
        });
    }
}

/// Messages of two senders reach a thread that waits for both. On a deferred ring, only the last message wakes it.
#[test]
fn a_wait_for_several_ends_with_the_last() {
    for deferred in [false, true] {
        check(2, move || {
            let ring = Ring::new(deferred);
            let senders = [sender(&ring, 0..1), sender(&ring, 1..2)];
            assert_eq!(ring.wait(2, false), Waited::Satisfied);
            let sum: u32 = (0..2).map(|_| ring.peek().unwrap()).sum();
            assert_eq!(sum, 1);
            senders.into_iter().for_each(|sending| sending.join().unwrap());
        });
    }
}

/// Messages reach a thread that only polls, and a CQ that is full. Each arrives, in order, and none arrives twice.
#[test]
fn a_message_that_finds_the_cq_full_comes_later() {
    for deferred in [false, true] {
        check(2, move || {
            let ring = Ring::new(deferred);
            let sending = sender(&ring, 0..3);
            let mut next = 0;
            while let Some(message) = ring.peek() {
                assert_eq!(message, next);
                next += 1;
            }
            while next < 3 {
                assert_eq!(ring.wait(next + 1, false), Waited::Satisfied);
                while let Some(message) = ring.peek() {
                    assert_eq!(message, next);
                    next += 1;
                }
            }
            sending.join().unwrap();
        });
    }
}

/// A ring is closed while one thread sleeps on it and another sends. The last user ends the ring, once, and no thread
/// touches its memory after that.
#[test]
fn a_closed_ring_ends_when_nobody_uses_it() {
    for deferred in [false, true] {
        check(2, move || {
            let ring = Ring::new(deferred);
            let sending = sender(&ring, 0..1);
            let closing = {
                let ring = ring.clone();
                thread::spawn(move || {
                    ring.close();
                    // A signal ends the wait of the sleeper, which the close does not wake.
                    *ring.futex.0.lock().unwrap() = true;
                    ring.futex.1.notify_all();
                })
            };
            let _however = ring.wait(1, false);
            closing.join().unwrap();
            sending.join().unwrap();
            assert!(ring.state.lock().unwrap().is_none());
            assert!(!ring.mapped.load(Ordering::Relaxed));
        });
    }
}
