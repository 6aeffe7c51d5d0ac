//! A program that writes anything into the words of its rings, between and during its calls. Its submissions may then
//! be wrong. But it must not die, and no call may wait longer than requested.

use super::prelude::*;
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

topic!(since: "5.1", source: "io_uring/io_uring.c");

const ENTRIES: u32 = 8;
const SEEDS: u64 = 4;
/// The time for which the words of one ring are written.
const STORM: Duration = Duration::from_millis(150);
/// The limit for each call; none here should take more than a few milliseconds.
const TOO_LONG: Duration = Duration::from_secs(20);

/// Objects that the SQEs refer to; they live as long as the process.
struct Playthings {
    pipe: (std::fs::File, std::fs::File),
    null: std::fs::File,
    bytes: &'static mut [u8],
    time: &'static Timespec,
}

impl Playthings {
    fn new() -> &'static Playthings {
        let null = std::fs::File::options().write(true).open("/dev/null").expect("open /dev/null");
        let time = Box::leak(Box::new(ms(2)));
        let pipe = pipe_with(libc::O_NONBLOCK);
        Box::leak(Box::new(Playthings { pipe, null, bytes: pages(1), time }))
    }

    /// An SQE that does no harm, however often it is submitted.
    fn sqe(&self, random: &mut Rng) -> Sqe {
        let (reader, writer) = (fd(&self.pipe.0), fd(&self.pipe.1));
        let (base, len) = (address(self.bytes), random.u32(0..16));
        let sqe = match random.u32(0..9) {
            0 => sqe::timeout(self.time, random.u64(0..3), 0),
            1 => sqe::poll_add(reader, libc::POLLIN, 0),
            2 => prep(Opcode::Read, reader, base, len, 0),
            3 => prep(Opcode::Write, writer, base, len, 0),
            4 => prep(Opcode::Write, fd(&self.null), base, len, 0),
            5 => sqe::cancel(random.u64(0..16), IORING_ASYNC_CANCEL_ALL),
            6 => Sqe { opcode: random.u8(..), fd: -1, ..Sqe::default() },
            _ => sqe::nop(),
        };
        let flags =
            if random.u32(0..4) == 0 { random.u8(..) & (IOSQE_IO_LINK | IOSQE_ASYNC | IOSQE_IO_DRAIN) } else { 0 };
        sqe.data(random.u64(0..16)).with(flags)
    }
}

/// Returns a value that is near the word's own in half of the cases.
fn any_value(random: &mut Rng, near: u32) -> u32 {
    match random.u32(0..4) {
        0 => random.u32(..),
        1 => near.wrapping_add(1 << 31).wrapping_add(random.u32(0..4)).wrapping_sub(2),
        _ => near.wrapping_add(random.u32(0..2 * ENTRIES)).wrapping_sub(ENTRIES),
    }
}

/// Writes one of the words that belong to the program, or a flags word, or an entry of the array.
fn disturb(ring: &Ring, random: &mut Rng) {
    let (sq, cq) = (&ring.params.sq_off, &ring.params.cq_off);
    match random.u32(0..6) {
        0 => ring.set_word_at(sq.tail, any_value(random, ring.word_at(sq.head))),
        1 => ring.set_word_at(sq.head, any_value(random, ring.word_at(sq.tail))),
        2 => ring.set_word_at(cq.head, any_value(random, ring.word_at(cq.tail))),
        3 => ring.set_word_at(sq.flags, random.u32(..)),
        4 => ring.set_word_at(cq.flags, random.u32(..)),
        _ if ring.params.flags & IORING_SETUP_NO_SQARRAY == 0 => {
            let index = if random.bool() { random.u32(0..ENTRIES) } else { random.u32(..) };
            ring.set_sq_array(random.u32(0..ENTRIES), index);
        }
        _ => {}
    }
}

/// Submits and waits for at most 2 ms. Returns the duration of the call.
fn call(ring: &Ring, random: &mut Rng, flags: u32) -> Duration {
    let time = Timespec { tv_sec: 0, tv_nsec: random.i64(0..2_000_000) };
    let arg = GeteventsArg { ts: address(&time), ..GeteventsArg::default() };
    let flags = flags | IORING_ENTER_EXT_ARG | if random.bool() { IORING_ENTER_GETEVENTS } else { 0 };
    let (to_submit, min_complete) = (any_value(random, 4), random.u32(0..4));
    let start = Instant::now();
    let answer = ring.enter(to_submit, min_complete, flags, &raw const arg as usize, size_of::<GeteventsArg>());
    let polls = ring.params.flags & IORING_SETUP_SQPOLL != 0;
    assert!(polls || answer <= ENTRIES as isize, "{answer} of {ENTRIES} entries");
    start.elapsed()
}

fn storm(ring: &Ring, playthings: &Playthings, random: &mut Rng, flags: u32) {
    for index in 0..ENTRIES {
        ring.set_sqe(index, playthings.sqe(random));
    }
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < STORM {
        disturb(ring, random);
        if random.u32(0..4) == 0 {
            ring.set_sqe(random.u32(0..ENTRIES), playthings.sqe(random));
        }
        let took = call(ring, random, flags);
        assert!(took < TOO_LONG, "call {calls} took {took:?}");
        calls += 1;
    }
    assert!(calls > 0, "no call");
}

/// Checks that a new ring works, whatever happened to another.
fn others_are_well(cx: &Context) {
    assert_eq!(cx.ring_with(4, 0).run(sqe::nop()), 0);
}

fn storms(cx: &Context, make: impl Fn() -> Ring, flags: u32, during: bool) {
    for seed in 0..SEEDS {
        let (ring, playthings) = (make(), Playthings::new());
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let disturber = || {
                let mut random = Rng::with_seed(!seed);
                while during && !done.load(Ordering::Relaxed) {
                    disturb(&ring, &mut random);
                    (0..random.u32(0..200)).for_each(|_| std::hint::spin_loop());
                }
            };
            threads.spawn(disturber);
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                storm(&ring, playthings, &mut Rng::with_seed(seed), flags);
            }));
            done.store(true, Ordering::Relaxed);
            if let Err(panic) = caught {
                eprintln!("with seed {seed}");
                std::panic::resume_unwind(panic);
            }
        });
        let start = Instant::now();
        drop(ring);
        assert!(start.elapsed() < TOO_LONG, "closing took {:?} with seed {seed}", start.elapsed());
        others_are_well(cx);
    }
}

#[case(since = "5.11")]
fn words_written_between_calls(cx: &Context) {
    storms(cx, || cx.ring(ENTRIES), 0, false);
}

#[case(since = "5.11")]
fn words_written_during_calls(cx: &Context) {
    storms(cx, || cx.ring(ENTRIES), 0, true);
}

fn polled(cx: &Context) -> Ring {
    let params = Params { flags: IORING_SETUP_SQPOLL, sq_thread_idle: 1, ..Params::default() };
    Ring::from_params(cx.door, ENTRIES, params).expect("a polled ring")
}

#[case(own_flags, since = "5.11")]
fn words_of_a_polled_ring(cx: &Context) {
    storms(cx, || polled(cx), IORING_ENTER_SQ_WAKEUP, true);
}

/// Two processes submit to one ring, and both write to its words.
#[case(own_flags, since = "5.11")]
fn words_of_a_ring_in_two_processes(cx: &Context) {
    for (seed, polls) in [(1, false), (2, false), (3, true)] {
        let (ring, playthings) = (if polls { polled(cx) } else { cx.ring_with(ENTRIES, 0) }, Playthings::new());
        let flags = if polls { IORING_ENTER_SQ_WAKEUP } else { 0 };
        let end = Instant::now() + STORM;
        let child = start_child(|| {
            while Instant::now() < end {
                storm(&ring, playthings, &mut Rng::with_seed(seed + 100), flags);
            }
        });
        storm(&ring, playthings, &mut Rng::with_seed(seed), flags);
        assert_eq!(child.wait(), 0, "with seed {seed}");
        drop(ring);
        others_are_well(cx);
    }
}

/// The wait ends at once, whatever number of CQEs head and tail suggest.
#[case]
fn head_beyond_the_tail_waits_for_nothing(cx: &Context) {
    let ring = cx.ring(ENTRIES);
    let head = ring.params.cq_off.head;
    for ahead in [1, 7, 1 << 30, 1 << 31, u32::MAX - 4096] {
        ring.set_word_at(head, ahead);
        assert_eq!(
            [0, 1, 4, 1 << 20].map(|count| ring.enter(0, count, IORING_ENTER_GETEVENTS, 0, 0)),
            [0; 4],
            "{ahead}"
        );
    }
}

/// The difference of tail and head has its maximum. Each call consumes the entries of the ring, or as many as
/// requested.
#[case]
fn tail_after_the_head_submits_a_whole_queue(cx: &Context) {
    let mut ring = cx.ring(ENTRIES);
    for index in 0..ENTRIES {
        ring.set_sqe(index, sqe::nop());
        ring.go(sqe::nop());
        ring.wait();
    }
    ring.set_word_at(ring.params.sq_off.tail, ENTRIES - 1);
    assert_eq!(ring.enter(3, 0, 0, 0, 0), 3);
    assert_eq!(ring.enter(u32::MAX, 0, 0, 0, 0), ENTRIES as isize);
    assert_eq!(ring.sq_head(), 2 * ENTRIES + 3);
    ring.wait_all(ENTRIES as usize + 3);
}

/// A polled ring whose SQEs are NOPs without a CQE.
fn polled_with_quiet_nops(cx: &Context) -> Ring {
    let ring = polled(cx);
    for index in 0..ENTRIES {
        ring.set_sqe(index, sqe::nop().with(IOSQE_CQE_SKIP_SUCCESS));
        ring.set_sq_array(index, index);
    }
    ring
}

/// Polls, reads and waits fail with EBADF for a number beyond any table. No memory in proportion to the number is
/// allocated.
#[case]
fn highest_descriptor_number_costs_no_memory(cx: &Context) {
    let mut ring = cx.ring(4);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls. This process runs no other case.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max.min(4 << 30);
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
    }
    let page = pages(1);
    for number in [i32::MAX, i32::MAX - 1, 1 << 30] {
        for sqe in [
            sqe::poll_add(number, libc::POLLIN, 0),
            sqe::poll_add(number, libc::POLLIN, IORING_POLL_ADD_MULTI),
            sqe::read(number, page, 0),
            sqe::write(number, page, 0),
            sqe::recv(number, page, 0),
            Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..sqe::recv(number, page, 0) },
            sqe::accept(number, 0),
            sqe::accept(number, 0).with(IOSQE_ASYNC),
            sqe::splice(number, -1, number, -1, 1),
            prep(Opcode::EpollWait, number, address(page), 1, 0),
        ] {
            assert_eq!(ring.run(sqe), -EBADF, "{sqe:?}");
        }
    }
}

/// Puts the tail `ahead` of the head, and wakes the thread.
fn submit_ahead(ring: &Ring, ahead: u32) {
    let (head, tail) = (ring.params.sq_off.head, ring.params.sq_off.tail);
    ring.set_word_at(tail, ring.word_at(head).wrapping_add(ahead));
    ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0);
}

/// Waits until `done` holds, without a system call on the ring.
fn poll_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < TOO_LONG, "it never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Lets the thread catch up with the tail.
fn stop(ring: &Ring) {
    let tail = ring.params.sq_off.tail;
    poll_until("the tail", || {
        let stopped = ring.sq_head() == ring.word_at(tail);
        if !stopped {
            ring.set_word_at(tail, ring.sq_head().wrapping_add(1));
        }
        stopped
    });
}

/// While the tail is less than the head, the polling thread consumes SQEs round after round. It does not spin without
/// consuming any.
#[case(own_flags)]
fn tail_after_the_head_of_a_polled_ring_in_two_processes(cx: &Context) {
    let ring = polled_with_quiet_nops(cx);
    submit_ahead(&ring, 1);
    poll_until("the first", || ring.sq_head() == 1);
    assert_eq!(in_child(|| submit_ahead(&ring, 1)), 0);
    poll_until("the child's", || ring.sq_head() == 2);
    submit_ahead(&ring, u32::MAX);
    poll_until("round after round", || ring.sq_head() >= 3 * ENTRIES);
    stop(&ring);
    drop(ring);
    others_are_well(cx);
}

/// A thread that never runs out of SQEs still completes waiting requests.
#[case(own_flags)]
fn endless_submission_leaves_time_for_the_rest(cx: &Context) {
    let mut ring = polled_with_quiet_nops(cx);
    let ((reader, mut writer), mut bytes, time) = (pipe(), [0; 1], ms(20));
    ring.set_sqe(0, sqe::timeout(&time, 0, 0).data(1));
    ring.set_sqe(1, sqe::read(fd(&reader), &mut bytes, 0).data(2));
    submit_ahead(&ring, 2);
    poll_until("the requests", || ring.sq_head() == 2);
    (0..2).for_each(|index| ring.set_sqe(index, sqe::nop().with(IOSQE_CQE_SKIP_SUCCESS)));
    submit_ahead(&ring, u32::MAX);
    poll_until("round after round", || ring.sq_head() >= 3 * ENTRIES);
    writer.write_all(b"x").expect("write");
    poll_until("both", || ring.cq_ready() == 2);
    stop(&ring);
    assert_eq!(ring.wait_sorted(2), [(1, -ETIME), (2, 1)]);
}
