//! IORING_SETUP_SQPOLL: submission by a polling thread, its sleep and wake-up, sharing, affinity, and what enter answers.

use super::prelude::*;
use crate::ring::{PATIENCE, QUIET};
use std::time::{Duration, Instant};

cases! {
    any_flags: [],
    own_flags: [
        submits_without_a_call,
        fills_the_cq_without_a_call,
        sleeps_after_the_idle_time_and_says_so,
        sleeping_thread_uses_no_time,
        sleeping_thread_does_not_look_at_the_tail,
        wakeup_flag_wakes_it,
        enter_without_the_wakeup_flag_does_not_wake_it,
        waits_for_its_first_sqe_asleep,
        enter_answers_to_submit_whatever_there_is,
        enter_answers_to_submit_and_waits,
        wait_sleeps_until_the_thread_posts,
        wait_times_out,
        wait_is_interrupted_by_a_signal,
        wait_with_a_mask_is_woken,
        wait_with_a_mask_is_interrupted_by_what_it_admits,
        sq_wait_waits_for_room,
        sq_wait_with_room_returns_at_once,
        sq_wait_is_ended_by_a_signal,
        full_queue_goes_through,
        pending_read_completes_without_a_call,
        timeout_completes_without_a_call,
        pending_read_completes_while_the_thread_sleeps,
        wakes_for_a_pending_read_and_takes_sqes_again,
        link_goes_on_without_a_call,
        async_request_completes,
        path_operation_is_relative_to_the_working_directory,
        plain_descriptors_need_no_registration,
        registered_files_and_buffers_work,
        invalid_sqe_is_answered_on_the_cq,
        rest_of_the_batch_follows_an_invalid_sqe,
        invalid_index_is_dropped,
        overflow_raises_the_flag_and_enter_flushes,
        eventfd_is_signalled,
        descriptor_is_readable,
        cancel_finds_a_pending_request,
        drain_waits_for_a_pending_request,
        close_with_requests_in_flight,
        close_ends_the_thread,
        registered_ring_is_entered,
        another_thread_may_submit_to_a_single_issuer,
        register_from_another_thread_is_eexist,
        incompatible_flags_are_einval,
        feature_nonfixed_is_reported,
        affinity_of_an_offline_cpu_is_einval,
        affinity_is_that_of_the_thread,
        affinity_may_leave_where_its_maker_runs,
        without_affinity_the_thread_runs_where_its_maker_may,
        thread_blocks_the_signals_of_the_program,
        disabled_ring_consumes_nothing,
        enabled_ring_is_polled,
        disabled_ring_cannot_be_woken,
        disabled_ring_for_a_single_issuer_belongs_to_who_enables_it,
        attached_ring_shares_the_thread,
        attached_rings_are_both_served,
        attached_ring_outlives_the_first,
        attach_to_a_ring_without_sqpoll_is_einval,
        attach_to_no_descriptor_is_enxio,
        attach_to_another_file_is_einval,
        attach_without_sqpoll_to_a_polled_ring,
        idle_time_is_the_longest_of_the_attached,
        child_wakes_the_thread_of_its_parent,
        child_of_a_dead_parent_is_told,
        no_mmap_ring_is_polled,
        big_entries_are_polled,
        no_sqarray_ring_is_polled,
    ],
}

/// Milliseconds after which most of these threads go to sleep.
const IDLE_MS: u32 = 20;

fn params(flags: u32) -> Params {
    Params { flags: flags | IORING_SETUP_SQPOLL, sq_thread_idle: IDLE_MS, ..Params::default() }
}

fn ring_of(cx: &Context, entries: u32, params: Params) -> Ring {
    Ring::from_params(cx.door, entries, params).unwrap_or_else(|answer| panic!("setup answered {answer}"))
}

fn polled(cx: &Context, entries: u32) -> Ring {
    ring_of(cx, entries, params(0))
}

/// A new ring, and the id of its thread, which has its name once it has begun.
fn polled_by(cx: &Context) -> (Ring, i32) {
    let ring = polled(cx, 4);
    look("the thread", || pollers().len() == 1);
    (ring, pollers()[0])
}

/// Looks only at memory until `done` holds; no system call is made but to yield.
fn look(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "it never came: {what}");
        std::thread::yield_now();
    }
}

fn sleeps(ring: &Ring) -> bool {
    ring.sq_flags() & IORING_SQ_NEED_WAKEUP != 0
}

fn wait_asleep(ring: &Ring) {
    look("the thread's sleep", || sleeps(ring));
}

/// Publishes what was pushed and wakes the thread if it asks for that, as liburing does.
fn publish(ring: &mut Ring) {
    ring.publish();
    if sleeps(ring) {
        assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 0);
    }
}

fn go(ring: &mut Ring, sqes: &[Sqe]) {
    sqes.iter().for_each(|sqe| ring.push(*sqe));
    publish(ring);
}

/// The next CQE, seen in memory only.
fn seen(ring: &mut Ring) -> Cqe {
    look("a CQE", || ring.cq_ready() != 0);
    ring.peek().expect("a CQE")
}

/// The ids of this process's threads that poll, ours by their name, the kernel's by theirs. Where there is no /proc the
/// case ends as skipped.
fn pollers() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap_or_else(|_| crate::case::skip("there is no /proc here"));
    let ids = tasks.map(|entry| entry.expect("a task").file_name().to_string_lossy().parse().expect("a number"));
    ids.filter(|id: &i32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
        name.starts_with("iou-sqp") || name.starts_with("anyring-sqpoll")
    })
    .collect()
}

/// A line of a polling thread's /proc status.
fn status_of(thread: i32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("the thread's status");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.trim_start_matches(':').trim().to_owned()
}

fn submits_without_a_call(cx: &Context) {
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop().data(7)]); // wakes it; from here on it spins
    assert_eq!(seen(&mut ring).user_data, 7);
    for n in 0..100 {
        ring.push(sqe::nop().data(n));
        publish(&mut ring);
        assert_eq!(seen(&mut ring).user_data, n);
    }
    look("the head", || ring.sq_head() == 101);
}

fn fills_the_cq_without_a_call(cx: &Context) {
    let mut ring = polled(cx, 8);
    go(&mut ring, &[1, 2, 3].map(|n| sqe::nop().data(n)));
    look("three CQEs", || ring.cq_ready() == 3);
    assert_eq!([1, 2, 3].map(|_| ring.peek().expect("a CQE").user_data), [1, 2, 3]);
}

fn sleeps_after_the_idle_time_and_says_so(cx: &Context) {
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop()]);
    seen(&mut ring);
    wait_asleep(&ring);
    std::thread::sleep(Duration::from_millis(50));
    assert!(sleeps(&ring), "it went on sleeping");
}

/// Clock ticks that a thread of this process has run.
fn ticks_of(thread: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).expect("the thread's stat");
    let fields: Vec<&str> = stat.rsplit_once(") ").expect("a name in parentheses").1.split(' ').collect();
    let number = |index: usize| fields[index].parse::<u64>().expect("a number");
    number(11) + number(12) // utime and stime, fields 14 and 15 of proc(5)
}

fn sleeping_thread_uses_no_time(cx: &Context) {
    let ((reader, _writer), (mut ring, thread), mut buffer) = (pipe(), polled_by(cx), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    look("the head", || ring.sq_head() == 1);
    wait_asleep(&ring);
    std::thread::sleep(Duration::from_millis(20));
    let before = ticks_of(thread);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((ticks_of(thread), sleeps(&ring)), (before, true));
}

fn sleeping_thread_does_not_look_at_the_tail(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    std::thread::sleep(Duration::from_millis(5));
    ring.push(sqe::nop());
    ring.publish();
    std::thread::sleep(QUIET);
    assert_eq!((ring.cq_ready(), ring.sq_head()), (0, 0));
}

fn wakeup_flag_wakes_it(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    ring.push(sqe::nop().data(3));
    ring.publish();
    assert_eq!(ring.enter(1, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 1);
    assert_eq!(seen(&mut ring).user_data, 3);
}

fn enter_without_the_wakeup_flag_does_not_wake_it(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    std::thread::sleep(Duration::from_millis(5));
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    std::thread::sleep(QUIET);
    assert_eq!((ring.cq_ready(), sleeps(&ring)), (0, true));
}

fn waits_for_its_first_sqe_asleep(cx: &Context) {
    let long = Params { sq_thread_idle: 60_000, ..params(0) };
    wait_asleep(&ring_of(cx, 4, long));
}

fn enter_answers_to_submit_whatever_there_is(cx: &Context) {
    let ring = polled(cx, 4);
    for count in [0, 1, 17, 1 << 20] {
        assert_eq!(ring.enter(count, 0, 0, 0, 0), count as isize);
    }
    assert_eq!((ring.sq_head(), ring.cq_ready()), (0, 0));
}

fn enter_answers_to_submit_and_waits(cx: &Context) {
    let mut ring = polled(cx, 4);
    ring.push(sqe::nop());
    ring.push(sqe::nop());
    ring.publish();
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP;
    assert_eq!(ring.enter(2, 2, flags, 0, 0), 2);
    assert_eq!(ring.cq_ready(), 2);
}

fn wait_sleeps_until_the_thread_posts(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(9)]);
    let feeder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60)); // the thread sleeps by then
        writer.write_all(b"fed").expect("write");
    });
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res, &buffer[..3]), (9, 3, &b"fed"[..]));
    feeder.join().expect("the feeder");
}

fn wait_times_out(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    let (ts, start) = (ms(30), Instant::now());
    let arg = GeteventsArg { ts: &raw const ts as u64, ..GeteventsArg::default() };
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    let answer = ring.enter(0, 1, flags, &raw const arg as usize, size_of::<GeteventsArg>());
    assert_eq!(answer as i32, -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(29));
    let answer = ring.enter(5, 1, flags, &raw const arg as usize, size_of::<GeteventsArg>());
    assert_eq!(answer, 5, "what is submitted hides the error");
}

fn wait_is_interrupted_by_a_signal(cx: &Context) {
    let ring = polled(cx, 4);
    count_signal(libc::SIGUSR1);
    let sender = signal_later(gettid(), libc::SIGUSR1, Duration::from_millis(30));
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0) as i32, -EINTR);
    sender.join().expect("the sender");
}

fn wait_with_a_mask_is_woken(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    let mask = kernel_set(libc::SIGUSR2);
    for round in 0..3 {
        go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(round)]);
        let mut other = writer.try_clone().expect("a duplicate");
        let feeder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(40));
            other.write_all(b"x").expect("write");
        });
        assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, &raw const mask as usize, 8), 0);
        assert_eq!(ring.peek().map(|cqe| (cqe.user_data, cqe.res)), Some((round, 1)));
        feeder.join().expect("the feeder");
    }
    writer.write_all(b"").expect("the writer is kept open");
}

fn wait_with_a_mask_is_interrupted_by_what_it_admits(cx: &Context) {
    let ring = polled(cx, 4);
    count_signal(libc::SIGUSR1);
    block_signal(libc::SIGUSR1);
    raise(libc::SIGUSR1);
    let mask = 0u64;
    assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, &raw const mask as usize, 8) as i32, -EINTR);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

/// A ring whose SQ is full and whose thread sleeps.
fn full(cx: &Context) -> Ring {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    std::thread::sleep(Duration::from_millis(5));
    (0..4).for_each(|n| ring.push(sqe::nop().data(n)));
    ring.publish();
    ring
}

fn sq_wait_waits_for_room(cx: &Context) {
    let ring = full(cx);
    assert_eq!(ring.sq_head(), 0);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_SQ_WAIT, 0, 0), 0);
    assert!(ring.sq_head() > 0, "there is room");
}

fn sq_wait_with_room_returns_at_once(cx: &Context) {
    let mut ring = polled(cx, 4);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAIT, 0, 0), 0);
    wait_asleep(&ring);
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.enter(1, 0, IORING_ENTER_SQ_WAIT, 0, 0), 1);
}

fn sq_wait_is_ended_by_a_signal(cx: &Context) {
    let ring = full(cx);
    count_signal(libc::SIGUSR1);
    let sender = signal_later(gettid(), libc::SIGUSR1, Duration::from_millis(30));
    let start = Instant::now();
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAIT, 0, 0), 0, "no error");
    assert!(start.elapsed() >= Duration::from_millis(20), "it waited");
    assert_eq!(ring.sq_head(), 0);
    sender.join().expect("the sender");
}

fn full_queue_goes_through(cx: &Context) {
    let mut ring = ring_of(cx, 64, Params { cq_entries: 4096, ..params(IORING_SETUP_CQSIZE) });
    let mut pushed = 0;
    while pushed < 2000u64 {
        let room = ring.params.sq_entries - (pushed as u32).wrapping_sub(ring.sq_head());
        if room == 0 {
            publish(&mut ring);
            assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAIT, 0, 0), 0);
            continue;
        }
        (0..room).for_each(|n| ring.push(sqe::nop().data(pushed + u64::from(n))));
        pushed += u64::from(room);
        publish(&mut ring);
    }
    for n in 0..pushed {
        assert_eq!(ring.wait().user_data, n);
    }
}

fn pending_read_completes_without_a_call(cx: &Context) {
    let ((reader, mut writer), mut buffer) = (pipe(), [0; 4]);
    let mut ring = ring_of(cx, 4, Params { sq_thread_idle: 10_000, ..params(0) });
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    look("the head", || ring.sq_head() == 1);
    assert!(!sleeps(&ring), "it spins for ten seconds");
    writer.write_all(b"abc").expect("write");
    assert_eq!(seen(&mut ring).res, 3);
}

fn timeout_completes_without_a_call(cx: &Context) {
    let (mut ring, ts) = (polled(cx, 4), ms(60));
    let start = Instant::now();
    go(&mut ring, &[sqe::timeout(&ts, 0, 0)]);
    assert_eq!(seen(&mut ring).res, -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(59));
}

fn pending_read_completes_while_the_thread_sleeps(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 4]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    look("the head", || ring.sq_head() == 1);
    wait_asleep(&ring);
    writer.write_all(b"ab").expect("write");
    assert_eq!(seen(&mut ring).res, 2);
}

fn wakes_for_a_pending_read_and_takes_sqes_again(cx: &Context) {
    let ((reader, mut writer), mut buffer) = (pipe(), [0; 4]);
    let mut ring = ring_of(cx, 4, Params { sq_thread_idle: 300, ..params(0) });
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    look("the head", || ring.sq_head() == 1);
    wait_asleep(&ring);
    writer.write_all(b"ab").expect("write");
    assert_eq!(seen(&mut ring).res, 2);
    look("the cleared flag", || !sleeps(&ring));
    ring.push(sqe::nop().data(1));
    ring.publish();
    assert_eq!(seen(&mut ring).user_data, 1);
}

fn link_goes_on_without_a_call(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 1]);
    let read = sqe::read(fd(&reader), &mut buffer, 0).with(IOSQE_IO_LINK).data(1);
    go(&mut ring, &[read, sqe::nop().with(IOSQE_IO_LINK | IOSQE_ASYNC).data(2), sqe::nop().data(3)]);
    look("the head", || ring.sq_head() == 3);
    wait_asleep(&ring);
    writer.write_all(b"x").expect("write");
    assert_eq!([1, 2, 3].map(|_| seen(&mut ring).user_data), [1, 2, 3]);
}

fn async_request_completes(cx: &Context) {
    let (content, mut ring, mut buffer) = (file("content", b"twelve bytes"), polled(cx, 4), [0; 12]);
    go(&mut ring, &[sqe::read(fd(&content), &mut buffer, 0).with(IOSQE_ASYNC)]);
    assert_eq!((ring.wait().res, &buffer), (12, b"twelve bytes"));
}

fn path_operation_is_relative_to_the_working_directory(cx: &Context) {
    let mut ring = polled(cx, 4);
    std::fs::create_dir("below").expect("mkdir");
    std::fs::write("below/there", "x").expect("write");
    std::env::set_current_dir("below").expect("chdir");
    go(&mut ring, &[sqe::openat(libc::AT_FDCWD, c"there", libc::O_RDONLY, 0)]);
    let opened = ring.wait().res;
    assert!(opened >= 0, "{opened}");
    go(&mut ring, &[sqe::close(opened)]);
    assert_eq!(ring.wait().res, 0);
}

fn plain_descriptors_need_no_registration(cx: &Context) {
    let (content, mut ring, mut buffer) = (file("content", b"abc"), polled(cx, 4), [0; 8]);
    go(&mut ring, &[sqe::read(fd(&content), &mut buffer, 0)]);
    assert_eq!(ring.wait().res, 3);
}

fn registered_files_and_buffers_work(cx: &Context) {
    let (content, mut ring) = (file("content", b"fixed"), polled(cx, 4));
    let buffer = pages(1);
    ring.register_files(&[fd(&content)]);
    assert_eq!(ring.register_buffers(&[iovec_mut(buffer)]), 0);
    let read = prep(Opcode::ReadFixed, 0, buffer.as_ptr() as u64, 5, 0).with(IOSQE_FIXED_FILE);
    go(&mut ring, &[read]);
    assert_eq!((ring.wait().res, &buffer[..5]), (5, &b"fixed"[..]));
}

fn invalid_sqe_is_answered_on_the_cq(cx: &Context) {
    let mut ring = polled(cx, 4);
    go(&mut ring, &[Sqe { opcode: 250, user_data: 5, ..Sqe::default() }]);
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, cqe.res), (5, -EINVAL));
}

fn rest_of_the_batch_follows_an_invalid_sqe(cx: &Context) {
    let mut ring = polled(cx, 4);
    let bad = Sqe { opcode: 250, user_data: 2, ..Sqe::default() };
    go(&mut ring, &[sqe::nop().data(1), bad, sqe::nop().data(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, -EINVAL), (3, 0)]);
}

fn invalid_index_is_dropped(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    ring.push(sqe::nop().data(1));
    ring.push(sqe::nop().data(2));
    ring.set_sq_array(0, 99);
    publish(&mut ring);
    assert_eq!(ring.wait().user_data, 2);
    assert_eq!((ring.sq_dropped(), ring.sq_head()), (1, 2));
}

fn overflow_raises_the_flag_and_enter_flushes(cx: &Context) {
    let mut ring = ring_of(cx, 4, Params { cq_entries: 4, ..params(IORING_SETUP_CQSIZE) });
    for round in 0..3 {
        go(&mut ring, &[0, 1].map(|n| sqe::nop().data(2 * round + n)));
        look("the head", || u64::from(ring.sq_head()) == 2 * (round + 1));
    }
    look("the flag", || ring.sq_flags() & IORING_SQ_CQ_OVERFLOW != 0);
    (0..4).for_each(|n| assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(n)));
    std::thread::sleep(QUIET);
    assert_eq!(ring.cq_ready(), 0, "only an enter moves what overflowed");
    assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!([4, 5].map(|_| ring.peek().map(|cqe| cqe.user_data)), [Some(4), Some(5)]);
    assert_eq!(ring.sq_flags() & IORING_SQ_CQ_OVERFLOW, 0);
}

fn eventfd_is_signalled(cx: &Context) {
    let (mut ring, mut notice) = (polled(cx, 4), eventfd(0, 0));
    let number = fd(&notice);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    go(&mut ring, &[sqe::nop()]);
    let mut count = [0; 8];
    notice.read_exact(&mut count).expect("read the eventfd");
    assert_eq!((u64::from_ne_bytes(count), ring.cq_ready()), (1, 1));
}

fn descriptor_is_readable(cx: &Context) {
    let mut ring = polled(cx, 4);
    let poll = |ring: &Ring, timeout_ms| cx.door.poll(ring.fd, libc::POLLIN, timeout_ms);
    assert_eq!(poll(&ring, 0), 0);
    go(&mut ring, &[sqe::nop()]);
    assert_eq!(poll(&ring, 3000), libc::POLLIN as isize);
    ring.peek().expect("a CQE");
    assert_eq!(poll(&ring, 0), 0);
    let ((reader, mut writer), mut buffer) = (pipe(), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0)]);
    let feeder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        writer.write_all(b"x").expect("write");
    });
    assert_eq!(poll(&ring, 3000), libc::POLLIN as isize);
    feeder.join().expect("the feeder");
}

fn cancel_finds_a_pending_request(cx: &Context) {
    let ((reader, _writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(1)]);
    look("the head", || ring.sq_head() == 1);
    go(&mut ring, &[Sqe { addr: 1, user_data: 2, ..sqe::op(Opcode::AsyncCancel) }]);
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

fn drain_waits_for_a_pending_request(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), polled(cx, 4), [0; 1]);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0).data(1), sqe::nop().with(IOSQE_IO_DRAIN).data(2)]);
    look("the head", || ring.sq_head() == 2);
    std::thread::sleep(QUIET);
    assert_eq!(ring.cq_ready(), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!([1, 2].map(|_| seen(&mut ring).user_data), [1, 2]);
}

fn close_with_requests_in_flight(cx: &Context) {
    let ((reader, mut writer), mut buffer, ts) = (pipe(), [0; 1], ms(50_000));
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::read(fd(&reader), &mut buffer, 0), sqe::timeout(&ts, 0, 0)]);
    look("the head", || ring.sq_head() == 2);
    drop(ring);
    look("the thread's end", || pollers().is_empty());
    writer.write_all(b"x").expect("the pipe is still open");
    let mut byte = [0; 1];
    (&reader).read_exact(&mut byte).expect("nobody took the byte");
}

fn close_ends_the_thread(cx: &Context) {
    for _ in 0..20 {
        let (mut ring, _) = polled_by(cx);
        go(&mut ring, &[sqe::nop()]);
        seen(&mut ring);
        drop(ring);
        look("the thread's end", || pollers().is_empty());
    }
}

fn registered_ring_is_entered(cx: &Context) {
    let mut ring = polled(cx, 4);
    let mut update = [u64::from(u32::MAX), ring.fd as u64];
    assert_eq!(ring.register(IORING_REGISTER_RING_FDS, update.as_mut_ptr() as usize, 1), 1);
    wait_asleep(&ring);
    ring.push(sqe::nop().data(4));
    ring.publish();
    let flags = IORING_ENTER_REGISTERED_RING | IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS;
    assert_eq!(cx.door.enter(update[0] as i32, 1, 1, flags, 0, 0), 1);
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(4));
}

fn another_thread_may_submit_to_a_single_issuer(cx: &Context) {
    let mut ring = ring_of(cx, 4, params(IORING_SETUP_SINGLE_ISSUER));
    wait_asleep(&ring);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ring.push(sqe::nop());
            ring.publish();
            assert_eq!(ring.enter(1, 1, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS, 0, 0), 1);
        });
    });
    assert_eq!(ring.cq_ready(), 1);
}

fn register_from_another_thread_is_eexist(cx: &Context) {
    let ring = ring_of(cx, 4, params(IORING_SETUP_SINGLE_ISSUER));
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EEXIST));
    });
}

fn refusal(cx: &Context, params: Params) -> i32 {
    let mut params = params;
    let answer = cx.door.setup(4, &raw mut params as usize);
    if answer >= 0 {
        cx.door.close(answer as i32);
    }
    answer as i32
}

fn incompatible_flags_are_einval(cx: &Context) {
    let defer = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    let coop = IORING_SETUP_COOP_TASKRUN;
    for flags in [coop, coop | IORING_SETUP_TASKRUN_FLAG, IORING_SETUP_TASKRUN_FLAG, defer] {
        assert_eq!(refusal(cx, params(flags)), -EINVAL, "flags {flags:#x}");
    }
}

fn feature_nonfixed_is_reported(cx: &Context) {
    assert_ne!(cx.ring_with(4, 0).params.features & IORING_FEAT_SQPOLL_NONFIXED, 0);
}

fn affine(cpu: u32) -> Params {
    Params { sq_thread_cpu: cpu, ..params(IORING_SETUP_SQ_AFF) }
}

fn affinity_of_an_offline_cpu_is_einval(cx: &Context) {
    for cpu in [4095, 1 << 20, u32::MAX] {
        assert_eq!(refusal(cx, affine(cpu)), -EINVAL, "CPU {cpu}");
    }
    look("no thread is left", || pollers().is_empty());
    assert!(refusal(cx, Params { sq_thread_cpu: 4095, ..params(0) }) >= 0, "not looked at without SQ_AFF");
}

/// The CPUs that a thread may run on.
fn cpus_of(thread: i32) -> Vec<usize> {
    // SAFETY: the set is plain bits, for which zeroes are valid, and is as large as the call is told.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &mut set), 0);
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// Keeps the calling thread on one CPU.
fn pin(cpu: usize) {
    // SAFETY: as above.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set), 0);
    }
}

fn affinity_is_that_of_the_thread(cx: &Context) {
    for cpu in cpus_of(0) {
        let mut ring = ring_of(cx, 4, affine(cpu as u32));
        go(&mut ring, &[sqe::nop()]);
        ring.wait();
        assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), [vec![cpu]]);
        drop(ring);
        look("the thread's end", || pollers().is_empty());
    }
}

fn affinity_may_leave_where_its_maker_runs(cx: &Context) {
    let all = cpus_of(0);
    if all.len() < 2 {
        cx.skip("there is only one CPU");
    }
    pin(all[0]);
    let mut ring = ring_of(cx, 4, affine(all[1] as u32));
    go(&mut ring, &[sqe::nop()]);
    ring.wait();
    assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), [vec![all[1]]]);
}

fn without_affinity_the_thread_runs_where_its_maker_may(cx: &Context) {
    let all = cpus_of(0);
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop()]);
    ring.wait();
    assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), std::slice::from_ref(&all));
    drop(ring);
    look("the thread's end", || pollers().is_empty());
    pin(all[0]);
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop()]);
    ring.wait();
    assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), [[all[0]]]);
}

fn thread_blocks_the_signals_of_the_program(cx: &Context) {
    let (_ring, thread) = polled_by(cx);
    let blocked = u64::from_str_radix(&status_of(thread, "SigBlk"), 16).expect("a mask");
    for signal in [libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD, libc::SIGTERM] {
        assert_ne!(blocked & kernel_set(signal), 0, "signal {signal} may hit the thread");
    }
}

fn disabled_ring_consumes_nothing(cx: &Context) {
    let mut ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED));
    ring.push(sqe::nop());
    ring.publish();
    std::thread::sleep(QUIET);
    assert_eq!((ring.sq_head(), ring.cq_ready()), (0, 0));
}

fn enabled_ring_is_polled(cx: &Context) {
    let mut ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED));
    ring.push(sqe::nop().data(6));
    ring.publish();
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    assert_eq!(seen(&mut ring).user_data, 6);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0) as i32, -EBADFD);
}

fn disabled_ring_cannot_be_woken(cx: &Context) {
    let ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED));
    for flags in [0, IORING_ENTER_SQ_WAKEUP, IORING_ENTER_SQ_WAIT, IORING_ENTER_GETEVENTS] {
        assert_eq!(ring.enter(1, 0, flags, 0, 0) as i32, -EBADFD, "flags {flags:#x}");
    }
}

fn disabled_ring_for_a_single_issuer_belongs_to_who_enables_it(cx: &Context) {
    let ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER));
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0));
    });
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EEXIST);
    assert_eq!(ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 0, "entering is for all");
}

fn attached(cx: &Context, to: &Ring, more: u32) -> Ring {
    ring_of(cx, 16, Params { wq_fd: to.fd as u32, ..params(IORING_SETUP_ATTACH_WQ | more) })
}

fn attached_ring_shares_the_thread(cx: &Context) {
    let (first, thread) = polled_by(cx);
    let _second = attached(cx, &first, 0);
    let _third = attached(cx, &first, IORING_SETUP_R_DISABLED);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(pollers(), [thread]);
    let _another = polled(cx, 4);
    look("a second thread", || pollers().len() == 2);
}

fn attached_rings_are_both_served(cx: &Context) {
    let mut first = polled(cx, 16);
    let mut second = attached(cx, &first, 0);
    for _ in 0..50 {
        for ring in [&mut first, &mut second] {
            (0..12).for_each(|n| ring.push(sqe::nop().data(n)));
            publish(ring);
        }
        for ring in [&mut first, &mut second] {
            assert_eq!(ring.wait_ordered(12), (0..12).map(|n| (n, 0)).collect::<Vec<_>>());
        }
    }
}

fn attached_ring_outlives_the_first(cx: &Context) {
    let first = polled(cx, 4);
    let mut second = attached(cx, &first, 0);
    drop(first);
    std::thread::sleep(QUIET);
    go(&mut second, &[sqe::nop().data(8)]);
    assert_eq!((second.wait().user_data, pollers().len()), (8, 1));
    let mut third = attached(cx, &second, 0);
    go(&mut third, &[sqe::nop().data(9)]);
    assert_eq!((third.wait().user_data, pollers().len()), (9, 1));
    drop((second, third));
    look("the thread's end", || pollers().is_empty());
}

fn attach_to_a_ring_without_sqpoll_is_einval(cx: &Context) {
    let plain = cx.ring_with(4, 0);
    let wq_fd = plain.fd as u32;
    assert_eq!(refusal(cx, Params { wq_fd, ..params(IORING_SETUP_ATTACH_WQ) }), -EINVAL);
}

fn attach_to_no_descriptor_is_enxio(cx: &Context) {
    for wq_fd in [12345, u32::MAX] {
        assert_eq!(refusal(cx, Params { wq_fd, ..params(IORING_SETUP_ATTACH_WQ) }), -ENXIO);
    }
}

fn attach_to_another_file_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    let wq_fd = fd(&reader) as u32;
    assert_eq!(refusal(cx, Params { wq_fd, ..params(IORING_SETUP_ATTACH_WQ) }), -EINVAL);
}

fn attach_without_sqpoll_to_a_polled_ring(cx: &Context) {
    let (first, thread) = polled_by(cx);
    let wq = Params { flags: IORING_SETUP_ATTACH_WQ, wq_fd: first.fd as u32, ..Params::default() };
    let mut second = ring_of(cx, 4, wq);
    assert_eq!(second.run(sqe::nop().with(IOSQE_ASYNC)), 0);
    assert_eq!(pollers(), [thread]);
}

fn idle_time_is_the_longest_of_the_attached(cx: &Context) {
    let mut first = ring_of(cx, 4, Params { sq_thread_idle: 1, ..params(0) });
    let long = Params { wq_fd: first.fd as u32, sq_thread_idle: 60_000, ..params(IORING_SETUP_ATTACH_WQ) };
    let _second = ring_of(cx, 4, long);
    go(&mut first, &[sqe::nop()]);
    seen(&mut first);
    std::thread::sleep(Duration::from_millis(100));
    assert!(!sleeps(&first));
    first.push(sqe::nop());
    first.publish();
    assert_eq!(seen(&mut first).res, 0);
}

fn child_wakes_the_thread_of_its_parent(cx: &Context) {
    let mut ring = polled(cx, 4);
    wait_asleep(&ring);
    let status = in_child(|| {
        ring.push(sqe::nop().data(1));
        ring.publish();
        assert_eq!(ring.enter(1, 1, IORING_ENTER_SQ_WAKEUP | IORING_ENTER_GETEVENTS, 0, 0), 1);
        assert_eq!(ring.cq_ready(), 1);
    });
    assert_eq!((status, ring.cq_ready()), (0, 1));
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(1));
}

fn child_of_a_dead_parent_is_told(cx: &Context) {
    let (mut verdict, said) = pipe();
    let status = in_child(|| {
        let ring = polled(cx, 4);
        // SAFETY: this process has no thread that could hold a lock of the allocator's.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child != 0 {
            // SAFETY: ends this process at once, as a crash would.
            unsafe { libc::_exit(0) };
        }
        let start = Instant::now();
        let mut answer = 0;
        while answer == 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            answer = ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0);
        }
        (&said).write_all(&(answer as i32).to_ne_bytes()).expect("write the verdict");
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    });
    assert_eq!(status, 0);
    drop(said);
    let mut answer = [0; 4];
    verdict.read_exact(&mut answer).expect("the grandchild's verdict");
    assert_eq!(i32::from_ne_bytes(answer), -libc::EOWNERDEAD);
}

fn nops_of(cx: &Context, flags: u32) {
    let mut ring = ring_of(cx, 4, params(flags));
    for n in 0..20 {
        go(&mut ring, &[sqe::nop().data(n)]);
        assert_eq!(seen(&mut ring).user_data, n);
        if n % 8 == 0 {
            wait_asleep(&ring);
        }
    }
}

fn no_mmap_ring_is_polled(cx: &Context) {
    nops_of(cx, IORING_SETUP_NO_MMAP);
}

fn big_entries_are_polled(cx: &Context) {
    nops_of(cx, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
}

fn no_sqarray_ring_is_polled(cx: &Context) {
    nops_of(cx, IORING_SETUP_NO_SQARRAY);
}
