//! Transfers of O_DIRECT files in flight: chains and drains with them, cancelling, and waiting. While a transfer is in
//! flight, descriptors are closed or replaced, rings are closed, and processes fork, exit or execute.

use super::prelude::*;
use super::rw_direct::direct_file;
use crate::polled;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

topic!(since: "5.1", source: "io_uring/rw.c, io_uring/cancel.c");

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|byte| *byte == value)
}

/// A file of `megabytes`, opened with O_DIRECT, and memory of this size: a transfer of it takes a while.
fn large_file(cx: &Context, megabytes: usize) -> (std::fs::File, &'static mut [u8]) {
    let bytes = pages(megabytes * 256);
    file("large", bytes).sync_all().expect("the blocks are there");
    let opened = std::fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open("large");
    (opened.unwrap_or_else(|_| cx.skip("the directory's file system has no O_DIRECT")), bytes)
}

/// Reads of a megabyte each, of all of the file.
fn reads_of(file: &std::fs::File, bytes: &mut [u8]) -> Vec<Sqe> {
    let parts = bytes.chunks_mut(1 << 20).enumerate();
    parts.map(|(n, part)| sqe::read(fd(file), part, (n as i64) << 20).data(n as u64)).collect()
}

#[case(since = "5.6")]
fn chain_writes_then_reads(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(2));
    let (read, written) = bytes.split_at_mut(4096);
    for round in 0..20u8 {
        written.fill(100 + round);
        ring.go_all(&[
            sqe::write(fd(&file), written, 4096).with(IOSQE_IO_LINK).data(1),
            sqe::read(fd(&file), read, 4096).with(IOSQE_IO_LINK).data(2),
            sqe::write(fd(&file), read, 8192).with(IOSQE_IO_LINK).data(3),
            sqe::nop().data(4),
        ]);
        assert_eq!(ring.wait_ordered(4), [(1, 4096), (2, 4096), (3, 4096), (4, 0)]);
        assert!(is_all(read, 100 + round));
    }
}

#[case(since = "5.6")]
fn chain_breaks_at_a_refused_one(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    ring.go_all(&[
        sqe::read(fd(&file), bytes, 0).with(IOSQE_IO_LINK).data(1),
        prep(Opcode::Read, fd(&file), bad_address(), 4096, 0).with(IOSQE_IO_LINK).data(2),
        sqe::read(fd(&file), bytes, 4096).with(IOSQE_IO_LINK).data(3),
        sqe::nop().data(4),
    ]);
    assert_eq!(ring.wait_ordered(4), [(1, 4096), (2, -EFAULT), (3, -ECANCELED), (4, -ECANCELED)]);
    assert!(is_all(bytes, 1));
}

#[case(since = "5.6")]
fn hard_chain_goes_on_after_a_refused_one(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    ring.go_all(&[
        prep(Opcode::Read, fd(&file), bad_address(), 4096, 0).with(IOSQE_IO_HARDLINK).data(1),
        sqe::read(fd(&file), bytes, 4096).data(2),
    ]);
    assert_eq!(ring.wait_ordered(2), [(1, -EFAULT), (2, 4096)]);
    assert!(is_all(bytes, 2));
}

#[case(since = "5.6")]
fn drain_waits_for_all_of_them(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(32), pages(16));
    let reads = bytes.chunks_mut(4096).enumerate();
    let mut sqes: Vec<_> = reads.map(|(n, page)| sqe::read(fd(&file), page, n as i64 * 4096).data(1)).collect();
    sqes.push(sqe::nop().with(IOSQE_IO_DRAIN).data(2));
    sqes.push(sqe::nop().data(3));
    ring.go_all(&sqes);
    let seen = ring.wait_ordered(18);
    assert!(seen[..16].iter().all(|seen| *seen == (1, 4096)), "{seen:?}");
    assert_eq!(seen[16..], [(2, 0), (3, 0)]);
    assert!(bytes.chunks(4096).zip(1..).all(|(page, value)| is_all(page, value)));
}

#[case(since = "5.6")]
fn many_at_once(cx: &Context) {
    const MANY: usize = 1000;
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(1024), pages(MANY));
    let reads = bytes.chunks_mut(4096).enumerate();
    let reads: Vec<_> =
        reads.map(|(n, page)| sqe::read(fd(&file), page, (n as i64 % 16) * 4096).data(n as u64)).collect();
    ring.go_all(&reads);
    assert_eq!(ring.wait_sorted(MANY), (0..MANY as u64).map(|n| (n, 4096)).collect::<Vec<_>>());
    assert!(bytes.chunks(4096).enumerate().all(|(n, page)| is_all(page, n as u8 % 16 + 1)));
}

#[case(since = "5.6")]
fn waits_for_one_at_a_time(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(32), pages(8));
    let read = |n: u64| prep(Opcode::Read, fd(&file), address(bytes) + n % 8 * 4096, 4096, n % 16 * 4096).data(n);
    ring.go_all(&(0..8).map(read).collect::<Vec<_>>());
    let mut seen = Vec::new();
    for next in 8..400 {
        let cqe = ring.wait();
        assert_eq!(cqe.res, 4096);
        seen.push(cqe.user_data);
        ring.push(read(next));
        assert_eq!(ring.submit_and_wait(1), 1);
    }
    seen.extend(ring.wait_all(8).iter().map(|cqe| cqe.user_data));
    seen.sort_unstable();
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
}

#[case(since = "5.6")]
fn waits_beside_a_pipe(cx: &Context) {
    let ((reader, mut writer), file) = (pipe(), direct_file(cx));
    let (mut ring, bytes) = (cx.ring(8), pages(2));
    let (page, rest) = bytes.split_at_mut(4096);
    for round in 0..20 {
        ring.go_all(&[
            sqe::read(fd(&reader), &mut rest[..1], 0).data(1),
            sqe::read(fd(&file), page, round % 16 * 4096).data(2),
        ]);
        assert_eq!(ring.wait_ordered(1), [(2, 4096)]);
        assert!(is_all(page, (round % 16) as u8 + 1));
        writer.write_all(b"x").expect("write");
        assert_eq!(ring.wait_ordered(1), [(1, 1)]);
    }
}

#[case(since = "5.6")]
fn waits_with_a_deadline(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    for _ in 0..20 {
        ring.go(sqe::read(fd(&file), bytes, 4096).data(1));
        assert_eq!(ring.wait_for(Duration::from_secs(5)).map(|cqe| cqe.res), Some(4096));
        assert!(ring.wait_for(Duration::from_millis(1)).is_none());
    }
}

/// Transfers complete while the program only polls the ring's memory, and no thread enters.
#[case(since = "5.6")]
fn polled_until_they_are_there(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    let deferred = ring.params.flags & IORING_SETUP_DEFER_TASKRUN != 0;
    for round in 0..20 {
        ring.go(sqe::read(fd(&file), bytes, round % 16 * 4096).data(1));
        let end = Instant::now() + Duration::from_secs(5);
        while ring.cq_ready() == 0 {
            assert!(Instant::now() < end, "nobody posted it");
            if deferred {
                assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
            }
            std::thread::yield_now();
        }
        assert_eq!(ring.wait_ordered(1), [(1, 4096)]);
        assert!(is_all(bytes, (round % 16) as u8 + 1));
    }
}

#[case(since = "5.6")]
fn registered_eventfd_is_signalled(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    let event = eventfd(0, 0);
    let number = fd(&event);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    for _ in 0..20 {
        ring.go(sqe::read(fd(&file), bytes, 4096).data(1));
        let mut count = [0; 8];
        (&event).read_exact(&mut count).expect("it is signalled");
        assert_eq!(ring.wait_ordered(1), [(1, 4096)]);
    }
}

#[case(undisturbed, since = "5.6")]
fn cancel_does_not_find_one_in_flight(cx: &Context) {
    let ((file, bytes), mut ring) = (large_file(cx, 16), cx.ring(64));
    let mut sqes = reads_of(&file, bytes);
    sqes.push(sqe::cancel(15, 0).data(100));
    ring.go_all(&sqes);
    let seen = ring.wait_sorted(17);
    assert!(seen[..16].iter().all(|(_, res)| *res == 1 << 20), "{seen:?}");
    assert_eq!(seen[16], (100, -ENOENT));
}

#[case(undisturbed, since = "5.19")]
fn cancel_all_does_not_count_those_in_flight(cx: &Context) {
    let ((file, bytes), (reader, _writer), mut ring) = (large_file(cx, 16), pipe(), cx.ring(64));
    ring.go(prep(Opcode::Read, fd(&reader), address(pages(1)), 1, 0).data(50));
    let mut sqes = reads_of(&file, bytes);
    sqes.push(sqe::cancel(0, IORING_ASYNC_CANCEL_ANY).data(100));
    sqes.push(sqe::cancel_fd(fd(&file), IORING_ASYNC_CANCEL_ALL).data(101));
    ring.go_all(&sqes);
    let seen = ring.wait_sorted(19);
    assert!(seen[..16].iter().all(|(_, res)| *res == 1 << 20), "{seen:?}");
    assert_eq!(seen[16..], [(50, -ECANCELED), (100, 1), (101, 0)]);
}

#[case(since = "5.6")]
fn link_timeout_beside_one(cx: &Context) {
    let (file, mut ring, bytes, long) = (direct_file(cx), cx.ring(8), pages(1), ms(20_000));
    ring.go_all(&[sqe::read(fd(&file), bytes, 4096).with(IOSQE_IO_LINK).data(1), sqe::link_timeout(&long).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 4096), (2, -ECANCELED)]);
    assert!(is_all(bytes, 2));
}

#[case(undisturbed, since = "5.6")]
fn link_timeout_that_comes_first(cx: &Context) {
    let ((file, bytes), mut ring, now) = (large_file(cx, 64), cx.ring(8), Timespec { tv_sec: 0, tv_nsec: 1 });
    ring.go_all(&[sqe::read(fd(&file), bytes, 0).with(IOSQE_IO_LINK).data(1), sqe::link_timeout(&now).data(2)]);
    let seen = ring.wait_sorted(2);
    assert_eq!(seen[0], (1, 64 << 20), "it cannot be stopped");
    assert!([-ENOENT, -ECANCELED].contains(&seen[1].1), "{seen:?}");
}

#[case(since = "5.6")]
fn file_may_be_closed(cx: &Context) {
    let ((file, bytes), mut ring) = (large_file(cx, 16), cx.ring(64));
    ring.go_all(&reads_of(&file, bytes));
    drop(file);
    assert!(ring.wait_sorted(16).iter().all(|(_, res)| *res == 1 << 20));
}

#[case(since = "5.6")]
fn file_may_be_closed_by_the_same_submission(cx: &Context) {
    let ((file, bytes), mut ring) = (large_file(cx, 16), cx.ring(64));
    let mut sqes = reads_of(&file, bytes);
    sqes.push(sqe::close(fd(&file)).data(100));
    std::mem::forget(file);
    ring.go_all(&sqes);
    let seen = ring.wait_sorted(17);
    assert!(seen[..16].iter().all(|(_, res)| *res == 1 << 20), "{seen:?}");
    assert_eq!(seen[16], (100, 0));
}

/// The data must not go to the file that has the number by then, even if blocks must be allocated first.
#[case(since = "5.6")]
fn number_may_be_another_file(cx: &Context) {
    let (direct, mut ring, bytes) = (direct_file(cx), cx.ring(64), pages(16));
    bytes.fill(200);
    let (other, number) = (file("other", b""), fd(&direct));
    let writes = bytes.chunks(4096).enumerate();
    let writes: Vec<_> = writes.map(|(n, page)| sqe::write(number, page, (16 + n as i64) * 4096)).collect();
    ring.go_all(&writes);
    // SAFETY: numbers only; `direct` owns the number, which now names the other file.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    assert!(ring.wait_sorted(16).iter().all(|(_, res)| *res == 4096));
    assert_eq!(std::fs::metadata("other").expect("stat").len(), 0);
    assert!(is_all(&std::fs::read("direct").expect("read")[65_536..], 200));
}

#[case(since = "5.6")]
fn fixed_file_may_be_replaced(cx: &Context) {
    let ((file, bytes), mut ring) = (large_file(cx, 16), cx.ring(64));
    ring.register_files(&[fd(&file)]);
    drop(file);
    let reads = bytes.chunks_mut(1 << 20).enumerate();
    let reads: Vec<_> =
        reads.map(|(n, part)| sqe::read(0, part, (n as i64) << 20).with(IOSQE_FIXED_FILE)).collect();
    ring.go_all(&reads);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
    assert!(ring.wait_sorted(16).iter().all(|(_, res)| *res == 1 << 20));
}

#[case]
fn vectors_may_go_after_submit(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(16));
    let mut vectors: Vec<_> = bytes.chunks_mut(4096).map(iovec_mut).collect();
    ring.go(sqe::readv(fd(&file), &vectors, 0));
    vectors.iter_mut().for_each(|vector| vector.iov_base = std::ptr::null_mut());
    drop(vectors);
    assert_eq!(ring.wait().res, 65_536);
    assert!(bytes.chunks(4096).zip(1..).all(|(page, value)| is_all(page, value)));
}

#[case(since = "5.6")]
fn overflowing_completions(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    let rounds = 2 * ring.params.cq_entries as u64 / 4 + 1;
    for round in 0..rounds {
        let read = |n| prep(Opcode::Read, fd(&file), address(bytes), 4096, 4096).data(4 * round + n);
        ring.go_all(&(0..4).map(read).collect::<Vec<_>>());
    }
    let seen = ring.wait_sorted(4 * rounds as usize);
    assert_eq!(seen, (0..4 * rounds).map(|n| (n, 4096)).collect::<Vec<_>>());
}

#[case(since = "5.6")]
fn ring_closed_with_some_in_flight(cx: &Context) {
    let (file, bytes) = large_file(cx, 16);
    for _ in 0..5 {
        let mut ring = cx.ring(64);
        ring.go_all(&reads_of(&file, bytes));
        drop(ring);
    }
    let mut ring = cx.ring(64);
    ring.go_all(&reads_of(&file, bytes));
    assert!(ring.wait_sorted(16).iter().all(|(_, res)| *res == 1 << 20));
}

#[case]
fn ring_closed_with_fixed_resources_in_flight(cx: &Context) {
    let ((file, bytes), mut ring) = (large_file(cx, 16), cx.ring(64));
    assert_eq!(ring.register_buffers(&[iovec(bytes)]), 0);
    ring.register_files(&[fd(&file)]);
    drop(file);
    let reads = bytes.chunks(1 << 20).enumerate();
    let read = |(n, part): (usize, &[u8])| prep(Opcode::ReadFixed, 0, address(part), 1 << 20, (n as u64) << 20);
    ring.go_all(&reads.map(|part| read(part).with(IOSQE_FIXED_FILE)).collect::<Vec<_>>());
    drop(ring);
    // SAFETY: the case's own mapping, to which nothing refers any more.
    unsafe { libc::munmap(bytes.as_mut_ptr().cast(), bytes.len()) };
    std::thread::sleep(Duration::from_millis(50)); // time for the transfers to end, which nothing reports
}

#[case(since = "5.6")]
fn rings_come_and_go_with_some_in_flight(cx: &Context) {
    let (file, bytes) = (direct_file(cx), pages(16));
    for round in 0..50 {
        let mut ring = cx.ring(16);
        let reads = bytes.chunks_mut(4096).enumerate();
        ring.go_all(&reads.map(|(n, page)| sqe::read(fd(&file), page, n as i64 * 4096)).collect::<Vec<_>>());
        let taken = ring.wait_all(round % 16);
        assert!(taken.iter().all(|cqe| cqe.res == 4096));
    }
}

/// A ring in the program's own memory: once it is closed, the memory may hold other data.
#[case(own_flags, since = "6.5")]
fn no_cqe_in_memory_of_a_closed_ring(cx: &Context) {
    let (file, bytes) = large_file(cx, 16);
    for _ in 0..5 {
        let mut ring = cx.ring_with(32, IORING_SETUP_NO_MMAP);
        ring.go_all(&reads_of(&file, bytes));
        ring.close_fd();
        let memory = ring.other_memory_there();
        memory.fill(0xee);
        std::thread::sleep(Duration::from_millis(60)); // time for the transfers to end, which nothing reports
        let changed = memory.iter().filter(|byte| **byte != 0xee).count();
        assert_eq!(changed, 0, "bytes were written");
    }
}

#[case(own_flags, since = "5.6")]
fn polling_thread_makes_them(cx: &Context) {
    let (file, bytes) = (direct_file(cx), pages(16));
    let mut ring = polled::polled(cx, 32);
    for round in 0..10 {
        let reads = bytes.chunks_mut(4096).enumerate();
        let reads: Vec<_> =
            reads.map(|(n, page)| sqe::read(fd(&file), page, n as i64 * 4096).data(n as u64)).collect();
        polled::go(&mut ring, &reads);
        if round % 2 == 0 {
            polled::poll_until("the CQEs", || ring.cq_ready() == 16);
        }
        assert_eq!(ring.wait_sorted(16), (0..16).map(|n| (n, 4096)).collect::<Vec<_>>());
        assert!(bytes.chunks(4096).zip(1..).all(|(page, value)| is_all(page, value)));
        bytes.fill(0);
    }
}

/// IORING_SQ_TASKRUN notifies a deferred ring's owner of completed transfers.
#[case(undisturbed, own_flags, since = "6.1")]
fn deferred_ring_is_notified_of_them(cx: &Context) {
    const DEFERRED: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring_with(8, DEFERRED), pages(1));
    for _ in 0..20 {
        ring.go(sqe::read(fd(&file), bytes, 4096).data(1));
        let end = Instant::now() + Duration::from_secs(5);
        while ring.sq_flags() & IORING_SQ_TASKRUN == 0 && ring.cq_ready() == 0 {
            assert!(Instant::now() < end, "nobody told it");
            std::thread::yield_now();
        }
        assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
        assert_eq!(ring.cq_ready(), 1);
        assert_eq!(ring.wait_ordered(1), [(1, 4096)]);
    }
}

#[case(own_flags, since = "5.6")]
fn two_threads_submit_and_wait(cx: &Context) {
    direct_file(cx);
    let each = |part: u64| {
        let cx = *cx;
        std::thread::spawn(move || {
            let (mut ring, bytes) = (cx.ring_with(16, 0), pages(16));
            let options = std::fs::File::options().read(true).custom_flags(libc::O_DIRECT).open("direct");
            let file = options.expect("open");
            for _ in 0..50 {
                let reads = bytes.chunks_mut(4096).enumerate();
                let reads: Vec<_> =
                    reads.map(|(n, page)| sqe::read(fd(&file), page, n as i64 * 4096).data(part)).collect();
                ring.go_all(&reads);
                assert_eq!(ring.wait_sorted(16), vec![(part, 4096); 16]);
            }
        })
    };
    let threads = [each(1), each(2)];
    threads.into_iter().for_each(|thread| thread.join().expect("it saw its own"));
}

#[case(own_flags, since = "5.6")]
fn thread_waits_for_anothers(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring_with(16, 0), pages(1));
    for _ in 0..20 {
        let before = ring.cq_ready();
        assert_eq!(before, 0);
        let (number, door) = (ring.fd, cx.door);
        let waiter = asleep_in(move || door.enter(number, 0, 1, IORING_ENTER_GETEVENTS, 0, 0));
        ring.go(sqe::read(fd(&file), bytes, 4096).data(1));
        assert_eq!(waiter.join().expect("it returned"), 0);
        assert_eq!(ring.wait_ordered(1), [(1, 4096)]);
    }
}

#[case(own_flags, since = "5.6")]
fn forked_child_has_its_own(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring_with(8, 0), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 4096)), 4096);
    let child = start_child(|| {
        let mut own = cx.ring_with(8, 0);
        assert_eq!(own.run(sqe::read(fd(&file), bytes, 8192)), 4096);
        assert!(is_all(bytes, 3));
        assert_eq!(ring.run(sqe::read(fd(&file), bytes, 12_288)), 4096, "on the ring that it inherited");
        assert!(is_all(bytes, 4));
    });
    assert_eq!(child.wait(), 0);
    assert_eq!(cx.ring_with(8, 0).run(sqe::read(fd(&file), bytes, 4096)), 4096);
    assert!(is_all(bytes, 2));
}

#[case(own_flags, since = "5.6")]
fn child_of_a_process_with_some_in_flight(cx: &Context) {
    let ((file, bytes), mut ring) = (large_file(cx, 16), cx.ring_with(64, 0));
    ring.go_all(&reads_of(&file, bytes));
    let child = start_child(|| {
        let (mut own, page) = (cx.ring_with(8, 0), pages(1));
        assert_eq!(own.run(sqe::read(fd(&file), page, 0)), 4096);
    });
    assert!(ring.wait_sorted(16).iter().all(|(_, res)| *res == 1 << 20));
    assert_eq!(child.wait(), 0);
}

#[case(own_flags)]
fn exit_with_some_in_flight(cx: &Context) {
    let (file, bytes) = large_file(cx, 16);
    for _ in 0..3 {
        let child = start_child(|| {
            let mut ring = cx.ring_with(64, 0);
            ring.go_all(&reads_of(&file, bytes));
            // SAFETY: the child ends here and now.
            unsafe { libc::_exit(0) };
        });
        assert_eq!(child.wait(), 0);
    }
}

#[case(own_flags)]
fn exec_with_some_in_flight(cx: &Context) {
    let (file, bytes) = large_file(cx, 16);
    let child = start_child(|| {
        let mut ring = cx.ring_with(64, 0);
        ring.go_all(&reads_of(&file, bytes));
        let name = c"true";
        // SAFETY: a list of strings that ends with null.
        unsafe { libc::execlp(name.as_ptr(), name.as_ptr(), std::ptr::null::<libc::c_char>()) };
        panic!("exec: {}", std::io::Error::last_os_error());
    });
    assert_eq!(child.wait(), 0);
}
