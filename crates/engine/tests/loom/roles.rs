//! The driver role, among a thread in io_uring_enter(2), the helper, and sources of events.
//!
//! In every model, a program that has left something pending waits for its completion without calling again. If no
//! thread drives any more, or a thread sleeps although its event has come, the program waits forever. Loom reports
//! that as a deadlock.

use super::*;

const FRAME: usize = 64;

/// State that sleepers wait for, under one lock, as in a kernel.
#[derive(Default)]
struct Kernel {
    /// Number of events in the ring's poll set.
    ready: u32,
    /// True if the ring's poll set is in the helper's.
    attached: bool,
    /// True if the helper's eventfd was written.
    woken: bool,
    /// The futex word and the kick descriptor of the threads that sleep in io_uring_enter(2).
    sequence: u32,
    /// Number of CQEs that the program can read.
    completed: u32,
    /// True if a thread sleeps as the driver.
    driver_sleeps: bool,
    stop: bool,
}

/// State under the ring's lock.
#[derive(Default)]
struct State {
    pending: u32,
    sleepers: u32,
}

struct World {
    handover: Handover,
    state: Mutex<State>,
    kernel: Mutex<Kernel>,
    changed: Condvar,
    mailbox: Lock<Mailbox<()>>,
    left: Left,
    arrived: Arrivals<()>,
    helpers: Mutex<Vec<thread::JoinHandle<()>>>,
    /// True if the helper ends as soon as it may, not after two seconds.
    impatient: bool,
}

impl World {
    fn new(impatient: bool) -> Arc<World> {
        Arc::new(World {
            handover: Handover::new(),
            state: Mutex::default(),
            kernel: Mutex::default(),
            changed: Condvar::new(),
            mailbox: Lock::new(Mailbox::NEW),
            left: Left::new(),
            arrived: Arrivals::new(Left::RESULTS),
            helpers: Mutex::default(),
            impatient,
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> T {
        let answer = change(&mut self.kernel.lock().unwrap());
        self.changed.notify_all();
        answer
    }

    fn sleep_until(&self, awake: impl Fn(&Kernel) -> bool) {
        let mut kernel = self.kernel.lock().unwrap();
        while !awake(&kernel) {
            kernel = self.changed.wait(kernel).unwrap();
        }
    }

    /// Models `RingGuard::poll_events`, with the posting.
    fn handle_events(&self, state: &mut State) {
        state.pending -= self.change(|kernel| {
            let served = core::mem::take(&mut kernel.ready);
            kernel.completed += served;
            kernel.sequence += u32::from(served != 0);
            served
        });
    }

    /// Models `helper::carry_out`.
    fn carry_out(world: &Arc<Self>, call: Call) {
        match call {
            Call::Nothing => {}
            Call::Wake => world.change(|kernel| kernel.woken = true),
            Call::HandOver => {
                if world.mailbox.lock().unwrap().hand_over(()) {
                    let helped = world.clone();
                    world.helpers.lock().unwrap().push(thread::spawn(move || World::help(&helped)));
                } else {
                    world.change(|kernel| kernel.woken = true);
                }
            }
        }
    }

    /// Models a submission that does not wait: `RingGuard::work_appeared`, `RingGuard::call_helper`.
    fn submit(world: &Arc<Self>) {
        let mut state = world.state.lock().unwrap();
        state.pending += 1;
        if world.handover.is_watching() && !world.handover.is_attached() {
            World::carry_out(world, world.handover.call(true));
        }
        World::leave(world, &state);
    }

    fn leave(world: &Arc<Self>, state: &State) {
        if state.pending != 0 {
            World::carry_out(world, world.handover.leave(state.sleepers));
        }
    }

    /// Models `RingGuard::detach`.
    fn detach(&self) {
        if self.handover.set_attached(false) {
            self.change(|kernel| kernel.attached = false);
        }
    }

    /// Models `driver::wait`, for `target` completions.
    fn wait(world: &Arc<Self>, me: u32, target: u32) {
        let mut state = world.state.lock().unwrap();
        world.handover.visit();
        if world.handover.dismiss() {
            world.detach();
        }
        let mut acquired = Acquired::No;
        while world.kernel.lock().unwrap().completed < target {
            if acquired == Acquired::No {
                acquired = world.handover.acquire(me, FRAME);
                if world.handover.is_attached() && world.handover.has_thread() {
                    world.detach();
                }
            }
            assert!(world.handover.may_sleep(world.left.any(Left::RESULTS)));
            let driving = acquired == Acquired::Mine;
            let seen = world.change(|kernel| {
                assert!(!(driving && kernel.driver_sleeps), "two threads drive");
                assert!(!(driving && kernel.attached), "shared with the helper");
                kernel.driver_sleeps |= driving;
                kernel.sequence
            });
            state.sleepers += 1;
            drop(state);
            world.sleep_until(|kernel| kernel.sequence != seen || (driving && kernel.ready != 0));
            state = world.state.lock().unwrap();
            state.sleepers -= 1;
            if driving {
                world.change(|kernel| kernel.driver_sleeps = false);
                world.handle_events(&mut state);
            }
        }
        if acquired == Acquired::Mine {
            world.handover.give_back();
            if state.sleepers != 0 {
                world.change(|kernel| kernel.sequence += 1); // `pass_role_on`
            }
        }
        World::leave(world, &state);
    }

    /// Models `helper::DrivenRings::watch` for one ring. A period has passed as soon as it has begun.
    fn help(world: &Arc<Self>) {
        let (mut known, mut visits, mut event) = (false, 0, false);
        loop {
            known |= !world.mailbox.lock().unwrap().take().is_empty();
            if known {
                match world.handover.duty() {
                    Duty::Begin => visits = world.handover.visits(),
                    Duty::CheckWhenDue => {
                        let came = core::mem::replace(&mut visits, world.handover.visits()) != visits;
                        if !came {
                            world.check_ring(&mut visits, true);
                        }
                    }
                    Duty::Check => world.check_ring(&mut visits, false),
                    Duty::SleepOnPolls if event => world.check_ring(&mut visits, false),
                    Duty::SleepOnPolls => {}
                }
            }
            let checks_later = known && matches!(world.handover.duty(), Duty::CheckWhenDue);
            if world.impatient && !checks_later && world.try_to_end(&mut known) {
                return;
            }
            if checks_later {
                thread::yield_now();
            } else {
                world.sleep_until(|kernel| kernel.woken || kernel.stop || (kernel.attached && kernel.ready != 0));
            }
            event = world.change(|kernel| {
                kernel.woken = false;
                kernel.attached && kernel.ready != 0
            });
            if world.kernel.lock().unwrap().stop {
                return;
            }
        }
    }

    /// Models `Driven::check_ring`.
    fn check_ring(&self, visits: &mut u32, due: bool) {
        let mut state = self.state.lock().unwrap();
        self.handover.check_later();
        if state.pending == 0 || self.handover.has_thread() {
            self.detach();
            return self.handover.rest();
        }
        if due && core::mem::replace(visits, self.handover.visits()) != *visits {
            return; // the program called while the helper waited for the lock
        }
        if due {
            self.handover.record_away();
        }
        assert!(self.handover.acquire_for_helper(), "a thread has the role that had it not");
        assert!(!self.kernel.lock().unwrap().driver_sleeps, "the helper drives beside a thread");
        self.handle_events(&mut state);
        if state.pending == 0 && !self.handover.only_peeks() {
            self.detach();
            return self.handover.rest();
        }
        if !self.handover.set_attached(true) {
            self.change(|kernel| kernel.attached = true);
        }
        self.handover.sleep_on_polls(u64::MAX);
    }

    /// Models `DrivenRings::leave` with `Driven::can_leave`.
    fn try_to_end(&self, known: &mut bool) -> bool {
        if *known {
            let state = self.state.lock().unwrap();
            let watches_nothing = self.handover.is_watching() && state.pending == 0;
            if !self.handover.is_resting() && !watches_nothing {
                return false;
            }
            self.detach();
            self.handover.forget();
            *known = false;
        }
        self.mailbox.lock().unwrap().leave()
    }

    /// Makes data arrive, as an event of the poll set.
    fn event(&self) {
        self.change(|kernel| kernel.ready += 1);
    }

    /// Models a program that polls the CQ, and does not call.
    fn only_peek(&self, target: u32) {
        self.sleep_until(|kernel| kernel.completed == target);
    }

    fn end(&self) {
        self.change(|kernel| kernel.stop = true);
        let helpers = core::mem::take(&mut *self.helpers.lock().unwrap());
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        assert_eq!(self.state.lock().unwrap().pending, 0);
    }
}

/// Runs `other` in a new thread.
fn beside(world: &Arc<World>, other: impl FnOnce(&Arc<World>) + 'static) -> thread::JoinHandle<()> {
    let world = world.clone();
    thread::spawn(move || other(&world))
}

#[test]
fn a_program_that_only_looks_gets_its_completions() {
    check(2, || {
        let world = World::new(false);
        for round in 1..=2 {
            World::submit(&world);
            world.event();
            world.only_peek(round);
        }
        world.end();
    });
}

#[test]
fn a_program_known_to_only_look_gets_its_completions() {
    check(2, || {
        let world = World::new(false);
        (0..3).for_each(|_| world.handover.record_away());
        for round in 1..=2 {
            World::submit(&world);
            world.event();
            world.only_peek(round);
        }
        world.end();
    });
}

#[test]
fn a_thread_that_waits_acquires_the_role_and_leaves_it_to_the_helper() {
    check(2, || {
        let world = World::new(false);
        World::submit(&world);
        World::submit(&world);
        let peer = beside(&world, |world| {
            world.event();
            world.event();
        });
        World::wait(&world, 1, 1);
        world.only_peek(2);
        peer.join().unwrap();
        world.end();
    });
}

#[test]
fn a_thread_that_waits_acquires_the_role_from_a_helper_that_watches() {
    check(2, || {
        let world = World::new(false);
        (0..3).for_each(|_| world.handover.record_away());
        World::submit(&world);
        World::submit(&world);
        let peer = beside(&world, |world| {
            world.event();
            world.event();
        });
        World::wait(&world, 1, 1);
        world.only_peek(2);
        peer.join().unwrap();
        world.end();
    });
}

#[test]
fn one_of_two_threads_that_wait_acquires_the_role_from_the_other() {
    check(2, || {
        let world = World::new(false);
        World::submit(&world);
        World::submit(&world);
        let other = beside(&world, |world| {
            world.event();
            World::wait(world, 2, 2);
        });
        World::wait(&world, 1, 1);
        world.event();
        other.join().unwrap();
        world.end();
    });
}

#[test]
fn a_ring_left_while_the_helper_ends_finds_a_new_one() {
    check(2, || {
        let world = World::new(true);
        for round in 1..=2 {
            World::submit(&world);
            world.event();
            world.only_peek(round);
        }
        world.end();
    });
}
