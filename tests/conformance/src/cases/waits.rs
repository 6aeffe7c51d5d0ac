//! Further parameters of a wait in io_uring_enter(2): minimum waits, clocks, arguments in a registered region.

use super::prelude::*;
use std::time::{Duration, Instant};

topic!(since: "5.11", source: "io_uring_enter2(2), io_uring/io_uring.c");

fn enter(ring: &Ring, count: u32, flags: u32, arg: u64, size: usize) -> i32 {
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG | flags;
    ring.enter(0, count, flags, arg as usize, size) as i32
}

fn wait(ring: &Ring, count: u32, arg: GeteventsArg) -> (i32, Duration) {
    let start = Instant::now();
    (enter(ring, count, 0, address(&arg), size_of::<GeteventsArg>()), start.elapsed())
}

#[case]
fn minimum_over_with_nothing_goes_on_to_the_timeout(cx: &Context) {
    let (ring, time) = (cx.ring(4), ms(60));
    let arg = GeteventsArg { ts: address(&time), min_wait_usec: 5_000, ..GeteventsArg::default() };
    let (answer, waited) = wait(&ring, 1, arg);
    assert!(answer == -ETIME && waited >= Duration::from_millis(60), "{answer} after {waited:?}");
}

#[case]
fn minimum_over_with_nothing_ends_at_the_first_completion(cx: &Context) {
    let mut ring = cx.ring(4);
    let long = ms(20_000);
    let (reader, mut writer) = pipe();
    let mut bytes = [0; 1];
    ring.go(sqe::read(fd(&reader), &mut bytes, 0));
    let feeder = once_asleep(move || {
        std::thread::sleep(Duration::from_millis(50)); // the minimum is over
        writer.write_all(b"x").expect("write");
    });
    let arg = GeteventsArg { ts: address(&long), min_wait_usec: 5_000, ..GeteventsArg::default() };
    let (answer, waited) = wait(&ring, 3, arg);
    assert!(answer == 0 && waited < Duration::from_secs(10), "{answer} after {waited:?}");
    assert_eq!(ring.cq_ready(), 1);
    feeder.join().expect("the feeder");
}

#[case]
fn minimum_without_a_timeout_is_etime(cx: &Context) {
    let ring = cx.ring(4);
    let (answer, waited) = wait(&ring, 1, GeteventsArg { min_wait_usec: 20_000, ..GeteventsArg::default() });
    assert!(answer == -ETIME && waited >= Duration::from_millis(20), "{answer} after {waited:?}");
}

#[case]
fn minimum_ends_early_with_enough(cx: &Context) {
    let mut ring = cx.ring(4);
    ring.go_all(&[sqe::nop(), sqe::nop()]);
    let (answer, waited) = wait(&ring, 2, GeteventsArg { min_wait_usec: 20_000_000, ..GeteventsArg::default() });
    assert!(answer == 0 && waited < Duration::from_secs(10), "{answer} after {waited:?}");
}

/// Waits for one CQE by this time.
fn wait_by(ring: &Ring, tv_sec: i64, tv_nsec: i64, flags: u32) -> (i32, Duration) {
    let (time, start) = (Timespec { tv_sec, tv_nsec }, Instant::now());
    let arg = GeteventsArg { ts: address(&time), ..GeteventsArg::default() };
    (enter(ring, 1, flags, address(&arg), size_of::<GeteventsArg>()), start.elapsed())
}

#[case]
fn seconds_and_nanoseconds_are_added(cx: &Context) {
    let ring = cx.ring(4);
    for (seconds, nanoseconds, milliseconds) in [
        (0, 1_020_000_000, 1020),
        (5, -4_980_000_000, 20),
        (-1, 1_020_000_000, 20),
        (0, -1, 0),
        (-1, 0, 0),
        (-5, 1_000_000_000, 0),
        (i64::MIN, 0, 0), // the product wraps to 0
    ] {
        let (answer, waited) = wait_by(&ring, seconds, nanoseconds, 0);
        assert_eq!(answer, -ETIME, "{seconds} s and {nanoseconds} ns");
        let expected = Duration::from_millis(milliseconds);
        assert!(
            waited >= expected && waited < expected + Duration::from_millis(800),
            "{seconds} s and {nanoseconds} ns: {waited:?}"
        );
    }
}

/// Sums that wrap to a negative time, and times beyond the last one.
#[case(since = "6.12")]
fn negative_points_in_time_never_come(cx: &Context) {
    let span = |seconds, nanoseconds| (seconds, nanoseconds, 0);
    let point = |seconds, nanoseconds| (seconds, nanoseconds, IORING_ENTER_ABS_TIMER);
    for (seconds, nanoseconds, flags) in [
        span(i64::MAX, 0),
        span(i64::MAX, i64::MAX),
        span(1 << 40, 0),
        span(0, i64::MAX),
        span(1, i64::MAX),
        span(i64::MIN, i64::MIN),
        point(-1, 0),
        point(0, -1),
        point(i64::MAX, 0),
    ] {
        let ((reader, mut writer), mut ring, mut bytes) = (pipe(), cx.ring(4), [0; 1]);
        ring.go(sqe::read(fd(&reader), &mut bytes, 0));
        let feeder = once_asleep(move || writer.write_all(b"x").expect("write"));
        assert_eq!(wait_by(&ring, seconds, nanoseconds, flags).0, 0, "{seconds} s and {nanoseconds} ns");
        assert_eq!(ring.cq_ready(), 1);
        feeder.join().expect("the feeder");
    }
}

fn choose(ring: &Ring, id: i32) -> i32 {
    let argument = [id as u32, 0, 0, 0];
    ring.register(IORING_REGISTER_CLOCK, &raw const argument as usize, 0) as i32
}

#[case(since = "6.12")]
fn clock_of_waits_is_chosen(cx: &Context) {
    let (ring, time) = (cx.ring(4), ms(10));
    for id in [libc::CLOCK_BOOTTIME, libc::CLOCK_MONOTONIC] {
        assert_eq!(choose(&ring, id), 0);
        let (answer, waited) = wait(&ring, 1, GeteventsArg { ts: address(&time), ..GeteventsArg::default() });
        assert!(answer == -ETIME && waited >= Duration::from_millis(10), "{answer} after {waited:?}");
    }
}

#[case(since = "6.12")]
fn absolute_wait_by_the_chosen_clock(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(choose(&ring, libc::CLOCK_BOOTTIME), 0);
    let start = Instant::now();
    let mut time = clock(libc::CLOCK_BOOTTIME);
    time.tv_sec += 1;
    let arg = GeteventsArg { ts: address(&time), ..GeteventsArg::default() };
    let answer = enter(&ring, 1, IORING_ENTER_ABS_TIMER, address(&arg), size_of::<GeteventsArg>());
    assert!(answer == -ETIME && start.elapsed() > Duration::from_millis(900), "{answer}");
}

#[case]
fn other_clocks_are_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(choose(&ring, libc::CLOCK_REALTIME), -EINVAL);
    let reserved = [libc::CLOCK_MONOTONIC as u32, 0, 0, 1];
    assert_eq!(ring.register(IORING_REGISTER_CLOCK, &raw const reserved as usize, 0) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_CLOCK, &raw const reserved as usize, 1) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_CLOCK, 0, 0) as i32, -EINVAL);
}

/// `struct io_uring_region_desc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Description {
    address: u64,
    size: u64,
    flags: u32,
    id: u32,
    mmap_offset: u64,
    resv: [u64; 4],
}

/// `struct io_uring_reg_wait`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RegisteredWait {
    time: Timespec,
    min_wait_usec: u32,
    flags: u32,
    sigmask: u64,
    sigmask_size: u32,
    pad: [u32; 3],
    pad2: [u64; 2],
}

const ENTRY: usize = size_of::<RegisteredWait>();

fn region(ring: &Ring, description: &mut Description, flags: u64) -> i32 {
    let argument = [address_mut(description), flags, 0, 0];
    ring.register(IORING_REGISTER_MEM_REGION, &raw const argument as usize, 1) as i32
}

fn disabled(cx: &Context) -> Ring {
    cx.ring_with(4, cx.flag_set.flags | IORING_SETUP_R_DISABLED)
}

/// A ring whose waits are read from `entries`.
fn ring_with_waits(cx: &Context, entries: &[RegisteredWait]) -> Ring {
    let (ring, page) = (disabled(cx), pages(1));
    for (entry, place) in entries.iter().zip(page.chunks_exact_mut(ENTRY)) {
        // SAFETY: the place has the size of an entry, and a page's parts of 64 bytes are aligned for it.
        unsafe { place.as_mut_ptr().cast::<RegisteredWait>().write(*entry) };
    }
    let flags = IORING_MEM_REGION_TYPE_USER;
    let mut description = Description { address: address(page), size: 4096, flags, ..Description::default() };
    assert_eq!(region(&ring, &mut description, IORING_MEM_REGION_REG_WAIT_ARG), 0);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    ring
}

#[case(since = "6.13")]
fn region_of_the_programs_memory(cx: &Context) {
    let entry = RegisteredWait { time: ms(20), flags: IORING_REG_WAIT_TS, ..RegisteredWait::default() };
    let ring = ring_with_waits(cx, &[RegisteredWait { flags: 2, ..entry }, entry]);
    let start = Instant::now();
    assert_eq!(enter(&ring, 1, IORING_ENTER_EXT_ARG_REG, ENTRY as u64, ENTRY), -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(20));
    assert_eq!(enter(&ring, 1, IORING_ENTER_EXT_ARG_REG, 0, ENTRY), -EINVAL, "unknown flags");
    assert_eq!(enter(&ring, 1, IORING_ENTER_EXT_ARG_REG, ENTRY as u64, 24), -EINVAL, "another size");
}

#[case(since = "6.13")]
fn region_of_the_rings_memory(cx: &Context) {
    let ring = disabled(cx);
    let mut description = Description { size: 4096, ..Description::default() };
    assert_eq!(region(&ring, &mut description, IORING_MEM_REGION_REG_WAIT_ARG), 0);
    assert_eq!(description.mmap_offset, IORING_MAP_OFF_PARAM_REGION);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    let mapped = ring.door.mmap(4096, ring.fd, description.mmap_offset);
    assert!(mapped > 0, "mmap answered {mapped}");
    let entry = RegisteredWait { time: ms(20), flags: IORING_REG_WAIT_TS, ..RegisteredWait::default() };
    // SAFETY: the mapping is a page long, and nothing else writes to it.
    unsafe { (mapped as *mut RegisteredWait).add(3).write_volatile(entry) };
    let start = Instant::now();
    assert_eq!(enter(&ring, 1, IORING_ENTER_EXT_ARG_REG, 3 * ENTRY as u64, ENTRY), -ETIME);
    assert!(start.elapsed() >= Duration::from_millis(20));
}

#[case(since = "6.13")]
fn region_needs_a_disabled_ring_for_waits(cx: &Context) {
    let ring = cx.ring(4);
    let mut description = Description { size: 4096, ..Description::default() };
    assert_eq!(region(&ring, &mut description, IORING_MEM_REGION_REG_WAIT_ARG), -EINVAL);
    assert_eq!(region(&ring, &mut description, 0), 0, "a region that waits do not use");
    assert_eq!(enter(&ring, 1, IORING_ENTER_EXT_ARG_REG, 0, ENTRY), -EFAULT);
}

#[case(since = "6.13")]
fn region_twice_is_ebusy(cx: &Context) {
    let ring = cx.ring(4);
    for answer in [0, -EBUSY] {
        assert_eq!(region(&ring, &mut Description { size: 4096, ..Description::default() }, 0), answer);
    }
}

#[case]
fn region_arguments_are_checked(cx: &Context) {
    let (ring, page) = (cx.ring(4), pages(2));
    let own = Description { size: 4096, ..Description::default() };
    let user = Description { address: address(page), flags: IORING_MEM_REGION_TYPE_USER, ..own };
    for (mut wrong, answer) in [
        (Description { size: 0, ..own }, -EINVAL),
        (Description { size: 100, ..own }, -EINVAL),
        (Description { id: 1, ..own }, -EINVAL),
        (Description { mmap_offset: 4096, ..own }, -EINVAL),
        (Description { flags: 2, ..own }, -EINVAL),
        (Description { resv: [0, 0, 0, 1], ..own }, -EINVAL),
        (Description { address: 0, ..user }, -EFAULT),
        (Description { flags: 0, ..user }, -EFAULT),
        (Description { address: user.address + 8, ..user }, -EINVAL),
        (Description { address: bad_address(), ..user }, -EFAULT),
    ] {
        assert_eq!(region(&ring, &mut wrong, 0), answer);
    }
    assert_eq!(region(&ring, &mut { own }, 2), -EINVAL, "unknown flags");
    let reserved = [address(&own), 0, 0, 1];
    assert_eq!(ring.register(IORING_REGISTER_MEM_REGION, &raw const reserved as usize, 1) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_MEM_REGION, &raw const reserved as usize, 2) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_MEM_REGION, bad_address() as usize, 1) as i32, -EFAULT);
}

#[case(since = "6.13")]
fn region_of_read_only_memory_is_efault(cx: &Context) {
    let (ring, memory) = (cx.ring(4), pages(2));
    protect(&memory[4096..], libc::PROT_READ);
    let flags = IORING_MEM_REGION_TYPE_USER;
    let mut description = Description { address: address(memory), size: 8192, flags, ..Description::default() };
    assert_eq!(region(&ring, &mut description, 0), -EFAULT);
    description.size = 4096;
    assert_eq!(region(&ring, &mut description, 0), 0, "the first page alone");
}

#[case]
fn registered_wait_without_a_region_is_efault(cx: &Context) {
    assert_eq!(enter(&cx.ring(4), 1, IORING_ENTER_EXT_ARG_REG, 0, ENTRY), -EFAULT);
}

#[case(since = "6.13")]
fn registered_wait_outside_the_region_is_efault(cx: &Context) {
    let ring = ring_with_waits(cx, &[]);
    for offset in [4096, 4096 - 8, 4, u64::MAX - 7] {
        assert_eq!(enter(&ring, 1, IORING_ENTER_EXT_ARG_REG, offset, ENTRY), -EFAULT, "at {offset}");
    }
}

#[case(since = "6.13")]
fn registered_wait_with_a_minimum(cx: &Context) {
    let mut ring = ring_with_waits(cx, &[RegisteredWait { min_wait_usec: 20_000, ..RegisteredWait::default() }]);
    ring.go(sqe::nop());
    let start = Instant::now();
    assert_eq!(enter(&ring, 2, IORING_ENTER_EXT_ARG_REG, 0, ENTRY), 0, "one of the two came");
    assert!(start.elapsed() >= Duration::from_millis(20));
}
