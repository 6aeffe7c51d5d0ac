//! Model-checks how threads hand things to each other, with loom. It explores every interleaving of the engine's own
//! code, up to a bound of preemptions. `make loom` runs it. Without `--cfg loom` this file is empty.
//!
//! The files under test are compiled unchanged, with [`sync`] in place of the engine's module of that name. Their
//! surroundings (the ring's state, an eventfd, an epoll wait) are the minimum that the protocol needs. Where a model
//! repeats the engine's order of steps, it names the engine's function.
#![cfg(loom)]
#![allow(dead_code)] // only part of each file is used

#[path = "../src/lock.rs"]
mod lock;
#[path = "../src/driver/owner.rs"]
mod owner;
#[path = "loom/ring.rs"]
mod ring;
#[path = "loom/sync.rs"]
mod sync;

use lock::{Held, Lock};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use owner::{Acquired, Call, Duty, Handover, Mailbox};
use ring::arrivals::{Arrivals, Left};
use sync::{AtomicBool, AtomicU32, Ordering};

/// Explores a model with at most `preemptions` preemptions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// An eventfd, and an epoll wait on it. A sleeper wakes once something was written.
#[derive(Default)]
struct Event {
    written: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    fn write(&self) {
        *self.written.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        let mut written = self.written.lock().unwrap();
        while !*written {
            written = self.changed.wait(written).unwrap();
        }
        *written = false;
    }
}

mod locks {
    use super::*;
    use loom::cell::UnsafeCell;

    /// Threads exclude each other, since loom detects unordered accesses to the cell. No thread sleeps forever.
    #[test]
    fn a_lock_admits_one_thread_at_a_time() {
        check(3, || {
            let lock = Arc::new(Lock::new(UnsafeCell::new(0)));
            let add = |lock: &Lock<UnsafeCell<i32>>| {
                let held = lock.lock().unwrap();
                // SAFETY: under test: the lock keeps others away.
                held.with_mut(|value| unsafe { *value += 1 });
            };
            let others: Vec<_> =
                (0..2).map(|_| lock.clone()).map(|lock| thread::spawn(move || add(&lock))).collect();
            add(&lock);
            others.into_iter().for_each(|other| other.join().unwrap());
            // SAFETY: no other thread is left.
            lock.lock().unwrap().with(|value| assert_eq!(unsafe { *value }, 3));
        });
    }
}

mod arrivals {
    use super::*;

    /// A ring, whose lock guards the number of completions.
    struct Ring {
        state: Lock<State>,
        left: Left,
        arrived: Arrivals<u32>,
        handover: Handover,
        wake_sequence: Event,
    }

    #[derive(Default)]
    struct State {
        completed: usize,
        announced: bool,
    }

    impl Ring {
        fn new() -> Arc<Ring> {
            Arc::new(Ring {
                state: Lock::new(State::default()),
                left: Left::new(),
                arrived: Arrivals::new(Left::RESULTS),
                handover: Handover::new(),
                wake_sequence: Event::default(),
            })
        }

        /// Models `RingGuard::finish_batch` and `RingGuard::drop`.
        fn unlock<'a>(&'a self, mut held: Held<'a, State>, deferred: bool) {
            loop {
                if self.left.take(Left::UNANNOUNCED) {
                    held.announced = true;
                    self.wake_sequence.write();
                }
                if !deferred {
                    held.completed += self.arrived.take(&self.left).len();
                }
                drop(held);
                let left = || (self.left.any(Left::RESULTS) && !deferred) || self.left.any(Left::UNANNOUNCED);
                match self.state.lock_again_if(left) {
                    Some(again) => held = again,
                    None => return,
                }
            }
        }

        /// Models `Ring::deliver` and `Ring::signal_deferred`.
        fn deliver(&self, thing: u32, deferred: bool) {
            let _ = self.arrived.put(&self.left, [thing].into_iter());
            if deferred {
                self.left.set(Left::UNANNOUNCED);
            }
            if let Some(held) = self.state.try_lock() {
                self.unlock(held, deferred);
            }
        }
    }

    /// Some thread completes the results that workers deliver, without any later check.
    #[test]
    fn nothing_that_arrives_stays_lying() {
        check(3, || {
            let ring = Ring::new();
            let workers: Vec<_> = (0..2)
                .map(|thing| {
                    let ring = ring.clone();
                    thread::spawn(move || ring.deliver(thing, false))
                })
                .collect();
            let held = ring.state.lock().unwrap();
            ring.unlock(held, false);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert_eq!(ring.state.lock().unwrap().completed, 2);
        });
    }

    /// The owner of a deferred ring checks (`collect`), settles and sleeps. A result that arrives in between is
    /// announced to its sleep, or keeps the owner from sleeping. If neither happened, the owner would sleep forever,
    /// which loom reports as a deadlock.
    #[test]
    fn the_owner_of_a_deferred_ring_does_not_sleep_on_what_arrived() {
        check(3, || {
            let ring = Ring::new();
            let worker = {
                let ring = ring.clone();
                thread::spawn(move || ring.deliver(1, true))
            };
            loop {
                // Models `collect`: completes the arrived results, and then settles what was announced.
                let mut held = ring.state.lock().unwrap();
                if ring.left.any(Left::RESULTS) {
                    held.completed += ring.arrived.take(&ring.left).len();
                }
                if ring.left.take(Left::UNANNOUNCED) {
                    held.announced = true;
                }
                if held.completed == 1 {
                    break;
                }
                // Models `sleep`: from here on an announcement changes the word that the sleeper compares.
                if !ring.handover.may_sleep(ring.left.any(Left::RESULTS)) {
                    continue;
                }
                *ring.wake_sequence.written.lock().unwrap() = false;
                ring.unlock(held, true);
                ring.wake_sequence.wait();
            }
            worker.join().unwrap();
        });
    }
}

mod mailbox {
    use super::*;

    /// A ring is handed over while the helper ends. That helper or a new one takes the ring, and only one helper
    /// runs.
    #[test]
    fn a_ring_handed_over_while_the_helper_ends_is_driven() {
        check(3, || {
            let mailbox = Arc::new(Lock::new(Mailbox::NEW));
            let (taken, running) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            // Models `helper::watch`, without rings of its own: it takes the rings handed over and ends when it may.
            let helper = {
                let (mailbox, taken, running) = (mailbox.clone(), taken.clone(), running.clone());
                move || {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two helpers");
                    loop {
                        let rings = mailbox.lock().unwrap().take();
                        taken.fetch_add(rings.len() as u32, Ordering::SeqCst);
                        let mut mailbox = mailbox.lock().unwrap();
                        if mailbox.leave() {
                            running.fetch_sub(1, Ordering::SeqCst);
                            return;
                        }
                    }
                }
            };
            let hand_over = move |mailbox: &Lock<Mailbox<u32>>, ring| {
                let mut held = mailbox.lock().unwrap();
                if held.hand_over(ring) {
                    let helper = helper.clone();
                    return Some(thread::spawn(helper));
                }
                None
            };
            let other = {
                let (mailbox, hand_over) = (mailbox.clone(), hand_over.clone());
                thread::spawn(move || hand_over(&mailbox, 1).map(|helper| helper.join().unwrap()))
            };
            let helper = hand_over(&mailbox, 2);
            other.join().unwrap();
            helper.map(|helper| helper.join().unwrap());
            assert_eq!(taken.load(Ordering::SeqCst), 2);
            assert_eq!(running.load(Ordering::SeqCst), 0);
        });
    }
}

#[path = "loom/roles.rs"]
mod roles;

#[path = "loom/messages.rs"]
mod messages;
