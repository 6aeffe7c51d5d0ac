//! Linux AIO's events: io_getevents and io_pgetevents, the completion ring read from memory, eventfds.

use super::prelude::*;
use crate::aio::{is_readable, poll, pread, skip_libaio, Aio};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

topic!(since: "2.6", source: "io_getevents(2), fs/aio.c");

#[case(own_flags)]
fn getevents_of_nothing_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.get(0, 0, 0), Ok(vec![]));
    assert_eq!(aio.get(0, 8, 0), Ok(vec![]));
    assert_eq!(aio.get(1, 8, 0), Ok(vec![]));
}

#[case(own_flags)]
fn least_above_most_is_einval(cx: &Context) {
    assert_eq!(Aio::new(cx.door, 8).get(2, 1, 10), Err(-EINVAL as isize));
}

#[case(own_flags)]
fn negative_counts_are_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.get_at(-1, 1, 0, 0), -EINVAL as isize);
    assert_eq!(aio.get_at(-2, -1, 0, 0), -EINVAL as isize);
}

#[case(own_flags)]
fn events_at_a_bad_address_are_efault_and_stay(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    assert_eq!(aio.submit(&mut [pread(&file, &mut buffer, 0)]), 1);
    assert_eq!(aio.get_at(1, 1, bad_address() as usize, 0), -EFAULT as isize);
    assert_eq!(aio.wait(1)[0].res, 4);
}

#[case(own_flags)]
fn timeout_at_a_bad_address_is_efault(cx: &Context) {
    skip_libaio(cx.door);
    let aio = Aio::new(cx.door, 8);
    let mut events = [IoEvent::default()];
    let timeout = bad_address() as usize;
    assert_eq!(aio.get_at(1, 1, events.as_mut_ptr() as usize, timeout), -EFAULT as isize);
}

#[case(own_flags)]
fn timeout_ends_the_wait(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let started = Instant::now();
    assert_eq!(aio.get(1, 8, 60), Ok(vec![]));
    assert!(started.elapsed() >= Duration::from_millis(60));
}

/// A negative timeout never expires. The event of a poll, which comes once this thread sleeps, ends the wait.
#[case(own_flags)]
fn timeout_before_the_present_never_comes(cx: &Context) {
    skip_libaio(cx.door);
    for (tv_sec, tv_nsec) in [(-1, 0), (0, -1), (-5, 999_999_999)] {
        let (aio, (reader, mut writer)) = (Aio::new(cx.door, 8), pipe());
        assert_eq!(aio.submit(&mut [poll(&reader, libc::POLLIN)]), 1);
        let feeder = once_asleep(move || writer.write_all(b"x").expect("write"));
        let (mut events, timeout) = ([IoEvent::default()], Timespec { tv_sec, tv_nsec });
        let (events, timeout) = (events.as_mut_ptr() as usize, &raw const timeout as usize);
        assert_eq!(aio.get_at(1, 1, events, timeout), 1);
        feeder.join().expect("the feeder");
    }
}

/// The product of these seconds overflows to none.
#[case(own_flags)]
fn timeout_that_overflows_is_cut_off(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    for tv_nsec in [0, 1] {
        let (mut events, timeout) = ([IoEvent::default()], Timespec { tv_sec: i64::MIN, tv_nsec });
        let (events, timeout) = (events.as_mut_ptr() as usize, &raw const timeout as usize);
        assert_eq!(aio.get_at(1, 1, events, timeout), 0);
    }
}

#[case(own_flags)]
fn timeout_with_some_of_the_events(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    assert_eq!(aio.submit(&mut [pread(&file, &mut buffer, 0)]), 1);
    assert_eq!(aio.get(2, 8, 60).map(|events| events.len()), Ok(1));
}

#[case(own_flags)]
fn most_bounds_what_is_read(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffers = [[0u8; 4]; 5];
    let mut reads: Vec<Iocb> = buffers.iter_mut().map(|buffer| pread(&file, buffer, 0)).collect();
    assert_eq!(aio.submit(&mut reads), 5);
    assert!(aio.appear(5));
    assert_eq!(aio.get(1, 3, 1000).map(|events| events.len()), Ok(3));
    assert_eq!(aio.get(1, 3, 1000).map(|events| events.len()), Ok(2));
}

#[case(own_flags)]
fn wait_without_timeout(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    let later = once_asleep(move || {
        (&writer).write_all(b"x").expect("write");
        writer
    });
    let mut events = [IoEvent::default()];
    assert_eq!(aio.get_at(1, 1, events.as_mut_ptr() as usize, 0), 1);
    assert!(is_readable(&events[0]));
    later.join().expect("the writer");
}

#[case(own_flags)]
fn waits_for_the_least(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let pipes: Vec<_> = (0..3).map(|_| pipe()).collect();
    let mut polls: Vec<Iocb> = pipes.iter().map(|(reader, _)| poll(reader, libc::POLLIN)).collect();
    assert_eq!(aio.submit(&mut polls), 3);
    let tid = gettid();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (_, writer) in &pipes {
                wait_thread_asleep(tid);
                let mut writer = writer;
                writer.write_all(b"x").expect("write");
            }
        });
        assert_eq!(aio.wait(3).len(), 3);
    });
}

#[case(own_flags)]
fn several_threads_wait(cx: &Context) {
    const EACH: usize = 50;
    let aio = Aio::new(cx.door, 64);
    let (reader, writer) = pipe();
    let total = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    assert!(is_readable(&aio.wait(1)[0]));
                    total.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        let mut polls = [poll(&reader, libc::POLLIN); 4];
        for _ in 0..EACH {
            let before = total.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(aio.submit(&mut polls), 4);
            (&writer).write_all(b"x").expect("write");
            while total.load(std::sync::atomic::Ordering::Relaxed) < before + 4 {
                std::thread::yield_now();
            }
            (&reader).read_exact(&mut [0]).expect("read");
        }
    });
    assert_eq!(total.into_inner(), 4 * EACH);
}

#[case(own_flags)]
fn signal_ends_the_wait(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    count_signal(libc::SIGUSR1);
    let sender = signal_once_asleep(libc::SIGUSR1);
    assert_eq!(aio.get(1, 8, 10_000), Err(-EINTR as isize));
    sender.join().expect("the sender");
}

#[case(own_flags)]
fn signal_with_some_of_the_events(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    assert_eq!(aio.submit(&mut [pread(&file, &mut buffer, 0)]), 1);
    count_signal(libc::SIGUSR1);
    let sender = signal_once_asleep(libc::SIGUSR1);
    assert_eq!(aio.get(2, 8, 10_000).map(|events| events.len()), Ok(1));
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
    sender.join().expect("the sender");
}

/// io_pgetevents with a mask of this size at this address.
fn masked(aio: &Aio, mask: usize, bytes: usize, timeout_ms: i64) -> isize {
    let set = [mask, bytes];
    masked_at(aio, &raw const set as usize, timeout_ms)
}

fn masked_at(aio: &Aio, set: usize, timeout_ms: i64) -> isize {
    let mut events = [IoEvent::default(); 4];
    let timeout = Timespec { tv_sec: timeout_ms / 1000, tv_nsec: timeout_ms % 1000 * 1_000_000 };
    let (events, timeout) = (events.as_mut_ptr() as usize, &raw const timeout as usize);
    aio.door.aio(NR_IO_PGETEVENTS, [aio.context as usize, 1, 4, events, timeout, set])
}

#[case(own_flags)]
fn mask_holds_a_signal_back(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    count_signal(libc::SIGUSR1);
    let sender = signal_once_asleep(libc::SIGUSR1);
    let mask = kernel_set(libc::SIGUSR1);
    assert_eq!(masked(&aio, &raw const mask as usize, 8, 120), 0);
    sender.join().expect("the sender");
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[case(own_flags)]
fn mask_lets_a_signal_in(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    count_signal(libc::SIGUSR1);
    block_signal(libc::SIGUSR1);
    raise_to_thread(libc::SIGUSR1);
    let mask = 0u64;
    assert_eq!(masked(&aio, &raw const mask as usize, 8, 10_000), -EINTR as isize);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

fn raise_to_thread(signal: i32) {
    // SAFETY: no pointers; the signal is blocked, or the case handles it.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), gettid(), signal) };
}

#[case(own_flags)]
fn mask_of_another_size_is_einval(cx: &Context) {
    skip_libaio(cx.door);
    let aio = Aio::new(cx.door, 8);
    let mask = 0u64;
    assert_eq!(masked(&aio, &raw const mask as usize, 4, 0), -EINVAL as isize);
    assert_eq!(masked(&aio, 0, 4, 0), 0);
}

#[case(own_flags)]
fn mask_at_a_bad_address_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(masked(&aio, bad_address() as usize, 8, 10), -EFAULT as isize);
    if cx.door != crate::door::Door::Liburing {
        assert_eq!(masked_at(&aio, bad_address() as usize, 0), -EFAULT as isize);
    }
}

#[case(own_flags)]
fn destroy_ends_a_wait(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            sender.send(gettid()).expect("tell the id");
            aio.get(1, 8, 10_000)
        });
        wait_thread_asleep(receiver.recv().expect("the waiter's id"));
        assert_eq!(aio.destroy(), 0);
        assert_eq!(waiter.join().expect("the waiter"), Err(-EINVAL as isize));
    });
}

#[case(own_flags)]
fn events_appear_in_memory(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let (reader, writer) = pipe();
    let mut buffer = [0; 4];
    let mut iocbs = [pread(&file, &mut buffer, 0), Iocb { data: 9, ..poll(&reader, libc::POLLIN) }];
    assert_eq!(aio.submit(&mut iocbs), 2);
    assert!(aio.appear(1));
    assert_eq!(aio.event_at(0).res, 4);
    (&writer).write_all(b"x").expect("write");
    assert!(aio.appear(2));
    let event = aio.event_at(1);
    assert_eq!((event.data, event.obj), (9, &raw const iocbs[1] as u64));
    assert!(is_readable(&event));
}

#[case(own_flags)]
fn events_read_from_memory_are_gone(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let (mut one, mut two) = ([0; 4], [0; 2]);
    assert_eq!(aio.submit(&mut [pread(&file, &mut one, 0), pread(&file, &mut two, 0)]), 2);
    assert!(aio.appear(2));
    let first = aio.event_at(0).res;
    aio.set_head(1);
    let rest = aio.get(0, 8, 0).expect("io_getevents");
    assert_eq!(rest.len(), 1);
    assert_eq!(first + rest[0].res, 6);
    assert_eq!(aio.header().head, 2);
}

#[case(own_flags)]
fn head_beyond_the_ring_does_no_harm(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let nr = aio.header().nr;
    aio.set_head(nr * 3);
    assert_eq!(aio.submit(&mut [pread(&file, &mut buffer, 0)]), 1);
    assert_eq!(aio.wait(1)[0].res, 4);
    assert_eq!(aio.header().head, 1);
}

fn with_eventfd(iocb: Iocb, eventfd: &impl AsRawFd) -> Iocb {
    Iocb { flags: IOCB_FLAG_RESFD, eventfd: eventfd.as_raw_fd() as u32, ..iocb }
}

fn value_of(eventfd: &std::fs::File) -> u64 {
    let mut value = [0; 8];
    let mut eventfd = eventfd;
    eventfd.read_exact(&mut value).expect("read the eventfd");
    u64::from_ne_bytes(value)
}

#[case(own_flags)]
fn eventfd_counts_events(cx: &Context) {
    let aio = Aio::new(cx.door, 16);
    let file = file("data", b"0123456789");
    let counter = eventfd(0, 0);
    let mut buffers = [[0u8; 4]; 5];
    for _ in 0..3 {
        let reads = buffers.iter_mut().map(|buffer| with_eventfd(pread(&file, buffer, 0), &counter));
        let mut reads: Vec<Iocb> = reads.collect();
        reads[0].flags = 0;
        assert_eq!(aio.submit(&mut reads), 5);
        let mut signals = 0;
        while signals < 4 {
            signals += value_of(&counter);
        }
        assert_eq!(signals, 4);
        aio.wait(5);
    }
}

#[case(own_flags)]
fn eventfd_is_signalled_after_the_event_is_there(cx: &Context) {
    let aio = Aio::new(cx.door, 16);
    let (reader, writer) = pipe();
    let counter = eventfd(0, 0);
    let mut polls = [with_eventfd(poll(&reader, libc::POLLIN), &counter)];
    for _ in 0..20 {
        assert_eq!(aio.submit(&mut polls), 1);
        (&writer).write_all(b"x").expect("write");
        assert_eq!(value_of(&counter), 1);
        assert_eq!(aio.get(0, 8, 0).map(|events| events.len()), Ok(1));
        (&reader).read_exact(&mut [0]).expect("read");
    }
}

#[case(own_flags)]
fn eventfd_that_is_none_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let (reader, _writer) = pipe();
    for other in [&file, &reader] {
        assert_eq!(aio.refused(with_eventfd(pread(&file, &mut [0; 4], 0), other)), -EINVAL as isize);
    }
    assert_eq!(aio.refused(with_eventfd(pread(&file, &mut [0; 4], 0), &epoll())), -EINVAL as isize);
}

#[case(own_flags)]
fn eventfd_that_is_closed_is_ebadf(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { flags: IOCB_FLAG_RESFD, eventfd: 900, ..pread(&file, &mut [0; 4], 0) };
    assert_eq!(aio.refused(iocb), -EBADF as isize);
}

#[case(own_flags)]
fn eventfd_closed_after_submission_is_signalled(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let counter = eventfd(0, 0);
    let copy = counter.try_clone().expect("dup");
    let mut polls = [with_eventfd(poll(&reader, libc::POLLIN), &counter)];
    assert_eq!(aio.submit(&mut polls), 1);
    drop(counter);
    (&writer).write_all(b"x").expect("write");
    assert_eq!(value_of(&copy), 1);
}

#[case(own_flags)]
fn eventfd_of_a_reused_number(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    for _ in 0..4 {
        // The lowest free number, so the same one each time.
        let counter = eventfd(0, 0);
        assert_eq!(aio.submit(&mut [with_eventfd(pread(&file, &mut buffer, 0), &counter)]), 1);
        assert_eq!(value_of(&counter), 1);
        aio.wait(1);
    }
}

#[case(own_flags)]
fn requests_of_several_threads(cx: &Context) {
    let aio = &Aio::new(cx.door, 64);
    let content: Vec<u8> = (0..16 * 4096).map(|index| (index / 4096) as u8).collect();
    let file = &file("data", &content);
    let mut buffers = vec![[99u8; 4096]; 64];
    std::thread::scope(|scope| {
        for buffers in buffers.chunks_mut(16) {
            scope.spawn(move || {
                for (index, buffer) in buffers.iter_mut().enumerate() {
                    assert_eq!(aio.submit(&mut [pread(file, buffer, index as i64 * 4096)]), 1);
                    assert_eq!(aio.wait(1)[0].res, 4096); // perhaps another thread's
                }
            });
        }
    });
    assert_eq!(aio.get(0, 8, 0), Ok(vec![]));
    assert!(buffers
        .iter()
        .enumerate()
        .all(|(index, buffer)| buffer.iter().all(|byte| *byte == (index % 16) as u8)));
}
