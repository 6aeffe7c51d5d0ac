//! Limits and affinity of the threads that requests are punted to.

use super::prelude::*;

topic!(since: "5.15", source: "io_uring_register(2), io_uring/io-wq.c");

fn limit(ring: &Ring, limits: &mut [u32; 2]) -> i32 {
    ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, address_mut(limits) as usize, 2) as i32
}

/// Returns the lines of `field` in /proc about this process's workers.
fn workers(cx: &Context, field: &str) -> Vec<String> {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { cx.skip("/proc tells of no threads here") };
    let mut lines = Vec::new();
    for task in tasks.flatten() {
        // A thread may have ended since the folder was read.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        let name = status.lines().next().unwrap_or_default();
        if name.contains("iou-wrk") || name.contains("anyring-worker") {
            lines.extend(status.lines().filter(|line| line.starts_with(field)).map(String::from));
        }
    }
    lines
}

#[case]
fn limits_bound_the_workers(cx: &Context) {
    let mut ring = cx.ring(32);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(limit(&ring, &mut [1, 1]), 0);
    let file = file("file", &[1; 65536]);
    for _ in 0..32 {
        ring.push(prep(Opcode::Fsync, fd(&file), 0, 0, 0).with(IOSQE_ASYNC));
    }
    assert_eq!(ring.submit(), 32);
    for _ in 0..32 {
        assert_eq!(ring.wait().res, 0);
    }
    let count = workers(cx, "Name").len();
    assert!((1..=2).contains(&count), "one for files, and perhaps one for the rest: {count}");
}

#[case]
fn limit_of_zero_changes_nothing(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(limit(&ring, &mut [3, 0]), 0);
    let mut held = [0, 5];
    assert_eq!((limit(&ring, &mut held), held[0]), (0, 3));
    let mut held = [0, 0];
    assert_eq!((limit(&ring, &mut held), held), (0, [3, 5]));
}

#[case]
fn limit_too_large_is_einval(cx: &Context) {
    assert_eq!(limit(&cx.ring(4), &mut [1 << 31, 0]), -EINVAL);
}

#[case]
fn limits_bad_address_is_efault(cx: &Context) {
    let (ring, bad) = (cx.ring(4), bad_address() as usize);
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, bad, 2) as i32, -EFAULT);
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, 0, 2) as i32, -EINVAL);
}

#[case]
fn affinity_holds_for_workers(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::nop()), 0);
    let cpus = 1u64;
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_AFF, address(&cpus) as usize, 8), 0);
    let file = file("file", &[1; 4096]);
    let sync = prep(Opcode::Fsync, fd(&file), 0, 0, 0).with(IOSQE_ASYNC);
    assert_eq!(ring.run(sync), 0);
    let lines = workers(cx, "Cpus_allowed_list");
    assert!(!lines.is_empty() && lines.iter().all(|line| line.ends_with("\t0")), "{lines:?}");
    assert_eq!(ring.register(IORING_UNREGISTER_IOWQ_AFF, 0, 0), 0);
    assert_eq!(ring.run(sync), 0);
}

#[case]
fn affinity_arguments(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::nop()), 0);
    let cpus = 1u64;
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_AFF, 0, 8) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_AFF, address(&cpus) as usize, 0) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_AFF, bad_address() as usize, 8) as i32, -EFAULT);
    assert_eq!(ring.register(IORING_UNREGISTER_IOWQ_AFF, address(&cpus) as usize, 0) as i32, -EINVAL);
}
