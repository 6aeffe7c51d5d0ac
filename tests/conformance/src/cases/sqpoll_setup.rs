//! IORING_SETUP_SQPOLL with other flags: affinity, rings made disabled, shared threads, forks, layouts.

use super::prelude::*;
use crate::polled::*;
use crate::ring::{PATIENCE, QUIET};
use std::time::{Duration, Instant};

topic!(since: "5.11", source: "io_uring_setup(2), io_uring/sqpoll.c");

#[case(own_flags, since = "5.18")]
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

#[case(own_flags, since = "6.0")]
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

#[case(own_flags, since = "6.0")]
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

#[case(own_flags)]
fn incompatible_flags_are_einval(cx: &Context) {
    let defer = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    let coop = IORING_SETUP_COOP_TASKRUN;
    for flags in [coop, coop | IORING_SETUP_TASKRUN_FLAG, IORING_SETUP_TASKRUN_FLAG, defer] {
        assert_eq!(refusal(cx, params(flags)), -EINVAL, "flags {flags:#x}");
    }
}

#[case(own_flags)]
fn feature_nonfixed_is_reported(cx: &Context) {
    assert_ne!(cx.ring_with(4, 0).params.features & IORING_FEAT_SQPOLL_NONFIXED, 0);
}

fn affine(cpu: u32) -> Params {
    Params { sq_thread_cpu: cpu, ..params(IORING_SETUP_SQ_AFF) }
}

#[case(own_flags)]
fn affinity_of_an_offline_cpu_is_einval(cx: &Context) {
    for cpu in [4095, 1 << 20, u32::MAX] {
        assert_eq!(refusal(cx, affine(cpu)), -EINVAL, "CPU {cpu}");
    }
    poll_until("no thread is left", || pollers().is_empty());
    assert!(refusal(cx, Params { sq_thread_cpu: 4095, ..params(0) }) >= 0, "not looked at without SQ_AFF");
}

/// The CPUs that a thread may run on.
fn cpus_of(thread: i32) -> Vec<usize> {
    // SAFETY: the set is plain bits, for which zeroes are valid, and the call gets its size.
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

#[case(own_flags)]
fn affinity_is_that_of_the_thread(cx: &Context) {
    for cpu in cpus_of(0) {
        let mut ring = ring_of(cx, 4, affine(cpu as u32));
        go(&mut ring, &[sqe::nop()]);
        ring.wait();
        assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), [vec![cpu]]);
        drop(ring);
        poll_until("the thread's end", || pollers().is_empty());
    }
}

#[case(own_flags)]
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

#[case(own_flags)]
fn without_affinity_the_thread_runs_where_its_maker_may(cx: &Context) {
    let all = cpus_of(0);
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop()]);
    ring.wait();
    assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), std::slice::from_ref(&all));
    drop(ring);
    poll_until("the thread's end", || pollers().is_empty());
    pin(all[0]);
    let mut ring = polled(cx, 4);
    go(&mut ring, &[sqe::nop()]);
    ring.wait();
    assert_eq!(pollers().into_iter().map(cpus_of).collect::<Vec<_>>(), [[all[0]]]);
}

#[case(own_flags)]
fn thread_blocks_the_signals_of_the_program(cx: &Context) {
    let (_ring, thread) = polled_by(cx);
    let blocked = u64::from_str_radix(&status_of(thread, "SigBlk"), 16).expect("a mask");
    for signal in [libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD, libc::SIGTERM] {
        assert_ne!(blocked & kernel_set(signal), 0, "signal {signal} may hit the thread");
    }
}

#[case(own_flags)]
fn disabled_ring_consumes_nothing(cx: &Context) {
    let mut ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED));
    ring.push(sqe::nop());
    ring.publish();
    std::thread::sleep(QUIET);
    assert_eq!((ring.sq_head(), ring.cq_ready()), (0, 0));
}

#[case(own_flags)]
fn enabled_ring_is_polled(cx: &Context) {
    let mut ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED));
    ring.push(sqe::nop().data(6));
    ring.publish();
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    assert_eq!(seen(&mut ring).user_data, 6);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0) as i32, -EBADFD);
}

#[case(own_flags)]
fn disabled_ring_cannot_be_woken(cx: &Context) {
    let ring = ring_of(cx, 4, params(IORING_SETUP_R_DISABLED));
    for flags in [0, IORING_ENTER_SQ_WAKEUP, IORING_ENTER_SQ_WAIT, IORING_ENTER_GETEVENTS] {
        assert_eq!(ring.enter(1, 0, flags, 0, 0) as i32, -EBADFD, "flags {flags:#x}");
    }
}

#[case(own_flags, since = "6.0")]
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

#[case(own_flags)]
fn attached_ring_shares_the_thread(cx: &Context) {
    let (first, thread) = polled_by(cx);
    let _second = attached(cx, &first, 0);
    let _third = attached(cx, &first, IORING_SETUP_R_DISABLED);
    std::thread::sleep(Duration::from_millis(5)); // in which another thread would have got its name
    assert_eq!(pollers(), [thread]);
    let _another = polled(cx, 4);
    poll_until("a second thread", || pollers().len() == 2);
}

#[case(own_flags)]
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

#[case(own_flags)]
fn attached_ring_outlives_the_first(cx: &Context) {
    let first = polled(cx, 4);
    let mut second = attached(cx, &first, 0);
    drop(first);
    std::thread::sleep(QUIET); // in which the kernel takes the closed ring apart
    go(&mut second, &[sqe::nop().data(8)]);
    assert_eq!((second.wait().user_data, pollers().len()), (8, 1));
    let mut third = attached(cx, &second, 0);
    go(&mut third, &[sqe::nop().data(9)]);
    assert_eq!((third.wait().user_data, pollers().len()), (9, 1));
    drop((second, third));
    poll_until("the thread's end", || pollers().is_empty());
}

#[case(own_flags)]
fn attach_to_a_ring_without_sqpoll_is_einval(cx: &Context) {
    let plain = cx.ring_with(4, 0);
    let wq_fd = plain.fd as u32;
    assert_eq!(refusal(cx, Params { wq_fd, ..params(IORING_SETUP_ATTACH_WQ) }), -EINVAL);
}

#[case(own_flags)]
fn attach_to_no_descriptor_is_enxio(cx: &Context) {
    for wq_fd in [12345, u32::MAX] {
        assert_eq!(refusal(cx, Params { wq_fd, ..params(IORING_SETUP_ATTACH_WQ) }), -ENXIO);
    }
}

#[case(own_flags)]
fn attach_to_another_file_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    let wq_fd = fd(&reader) as u32;
    assert_eq!(refusal(cx, Params { wq_fd, ..params(IORING_SETUP_ATTACH_WQ) }), -EINVAL);
}

#[case(own_flags)]
fn attach_without_sqpoll_to_a_polled_ring(cx: &Context) {
    let (first, thread) = polled_by(cx);
    let wq = Params { flags: IORING_SETUP_ATTACH_WQ, wq_fd: first.fd as u32, ..Params::default() };
    let mut second = ring_of(cx, 4, wq);
    assert_eq!(second.run(sqe::nop().with(IOSQE_ASYNC)), 0);
    assert_eq!(pollers(), [thread]);
}

#[case(own_flags)]
fn idle_time_is_the_longest_of_the_attached(cx: &Context) {
    let mut first = ring_of(cx, 4, Params { sq_thread_idle: 1, ..params(0) });
    let long = Params { wq_fd: first.fd as u32, sq_thread_idle: 60_000, ..params(IORING_SETUP_ATTACH_WQ) };
    let _second = ring_of(cx, 4, long);
    go(&mut first, &[sqe::nop()]);
    seen(&mut first);
    std::thread::sleep(Duration::from_millis(100)); // much more than the shorter idle time
    assert!(!sleeps(&first));
    first.push(sqe::nop());
    first.publish();
    assert_eq!(seen(&mut first).res, 0);
}

#[case(own_flags)]
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

#[case(own_flags)]
fn child_of_a_dead_parent_is_notified(cx: &Context) {
    let (mut verdict, verdict_writer) = pipe();
    let status = in_child(|| {
        let ring = polled(cx, 4);
        // SAFETY: this process has no thread that could hold a lock of the allocator.
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
        (&verdict_writer).write_all(&(answer as i32).to_ne_bytes()).expect("write the verdict");
        // SAFETY: ends the child without running the parent's exit handlers.
        unsafe { libc::_exit(0) };
    });
    assert_eq!(status, 0);
    drop(verdict_writer);
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

#[case(own_flags, since = "6.5")]
fn no_mmap_ring_is_polled(cx: &Context) {
    nops_of(cx, IORING_SETUP_NO_MMAP);
}

#[case(own_flags, since = "5.19")]
fn big_entries_are_polled(cx: &Context) {
    nops_of(cx, IORING_SETUP_SQE128 | IORING_SETUP_CQE32);
}

#[case(own_flags, since = "6.6")]
fn no_sqarray_ring_is_polled(cx: &Context) {
    nops_of(cx, IORING_SETUP_NO_SQARRAY);
}
