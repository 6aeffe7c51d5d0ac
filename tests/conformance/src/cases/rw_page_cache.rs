//! Reads that miss the page cache. On tmpfs no read misses, and the claims hold, too.

use super::prelude::*;
use std::os::fd::{AsRawFd, IntoRawFd};

topic!(since: "5.1", source: "io_uring/rw.c");

const PAGE: usize = 4096;
const PAGES: usize = 256;

/// A file whose page N is full of N. No page is in the page cache.
fn cold_file() -> std::fs::File {
    let content: Vec<u8> = (0..PAGES * PAGE).map(|index| (index / PAGE) as u8).collect();
    let file = file("data", &content);
    file.sync_all().expect("fsync");
    drop_pages(&file, 0, PAGES);
    file
}

fn drop_pages(file: &std::fs::File, first: usize, count: usize) {
    let (offset, bytes) = ((first * PAGE) as i64, (count * PAGE) as i64);
    // SAFETY: no pointers.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
    // SAFETY: as above.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_DONTNEED) };
}

/// An order that defeats read-ahead.
fn page_of(index: usize) -> usize {
    (index * 37 + 5) % PAGES
}

/// Checks that each buffer holds its page, and that the results agree.
fn check(results: &[(u64, i32)], buffers: &[[u8; PAGE]]) {
    assert!(results.iter().all(|(_, result)| *result == PAGE as i32), "{results:?}");
    let wrong = buffers.iter().enumerate().find(|(index, buffer)| **buffer != [page_of(*index) as u8; PAGE]);
    assert_eq!(wrong.map(|(index, _)| index), None, "has other data");
}

fn read_of(file: &std::fs::File, index: usize, buffer: &mut [u8; PAGE]) -> Sqe {
    sqe::read(fd(file), buffer, (page_of(index) * PAGE) as i64).data(index as u64)
}

#[case(since = "5.6")]
fn many_at_once_come_with_their_data(cx: &Context) {
    let file = cold_file();
    let mut buffers = vec![[0xff; PAGE]; 64];
    let mut ring = cx.ring(64);
    let reads: Vec<Sqe> =
        buffers.iter_mut().enumerate().map(|(index, buffer)| read_of(&file, index, buffer)).collect();
    ring.go_all(&reads);
    check(&ring.wait_sorted(64), &buffers);
}

#[case(since = "5.6")]
fn one_submission_after_the_other(cx: &Context) {
    let file = cold_file();
    let mut buffers = vec![[0xff; PAGE]; 192];
    let mut ring = cx.ring(16);
    let (mut results, mut in_flight) = (Vec::new(), 0);
    for (index, buffer) in buffers.iter_mut().enumerate() {
        ring.go(read_of(&file, index, buffer));
        in_flight += 1;
        if in_flight == 8 {
            let cqe = ring.wait();
            results.push((cqe.user_data, cqe.res));
            in_flight -= 1;
        }
    }
    results.extend(ring.wait_sorted(in_flight));
    check(&results, &buffers);
}

#[case(since = "5.6")]
fn a_chain_goes_in_order(cx: &Context) {
    let file = cold_file();
    let mut buffers = vec![[0xff; PAGE]; 16];
    let mut ring = cx.ring(16);
    let mut reads: Vec<Sqe> = buffers
        .iter_mut()
        .enumerate()
        .map(|(index, buffer)| read_of(&file, index, buffer).with(IOSQE_IO_LINK))
        .collect();
    reads[15].flags = 0;
    ring.go_all(&reads);
    let results = ring.wait_ordered(16);
    assert!(results.iter().map(|(data, _)| *data).eq(0..16), "{results:?}");
    check(&results, &buffers);
}

#[case(since = "5.6")]
fn a_chain_breaks_at_the_end_of_the_file(cx: &Context) {
    let file = cold_file();
    let (mut first, mut second, mut third) = ([0xff; PAGE], [0xff; PAGE], [0xff; PAGE]);
    let mut ring = cx.ring(4);
    let last = ((PAGES - 1) * PAGE) as i64;
    ring.go_all(&[
        sqe::read(fd(&file), &mut first, last).with(IOSQE_IO_LINK).data(1),
        sqe::read(fd(&file), &mut second, last + 100).with(IOSQE_IO_LINK).data(2),
        sqe::read(fd(&file), &mut third, 0).data(3),
    ]);
    let short = PAGE - 100;
    assert_eq!(ring.wait_ordered(3), [(1, PAGE as i32), (2, short as i32), (3, -ECANCELED)]);
    assert_eq!(first, [(PAGES - 1) as u8; PAGE]);
    assert_eq!((second[short - 1], second[short]), ((PAGES - 1) as u8, 0xff));
}

#[case(since = "5.6")]
fn their_descriptor_may_be_closed_and_its_number_reused(cx: &Context) {
    let file = cold_file();
    let mut buffers = vec![[0xff; PAGE]; 32];
    let mut ring = cx.ring(32);
    let reads: Vec<Sqe> =
        buffers.iter_mut().enumerate().map(|(index, buffer)| read_of(&file, index, buffer)).collect();
    for read in &reads {
        ring.push(*read);
    }
    assert_eq!(ring.submit(), 32);
    let number = file.into_raw_fd();
    // SAFETY: the number is owned here.
    unsafe { libc::close(number) };
    // The C library may have the number for a moment: malloc(3) opens a file when threads have made eight arenas.
    let other = std::iter::repeat_with(sys::memfd).take(1000).find(|other| fd(other) == number);
    assert!(other.is_some(), "number {number} is not free");
    check(&ring.wait_sorted(32), &buffers);
}

#[case]
fn vectors_are_filled(cx: &Context) {
    let file = cold_file();
    let mut parts = vec![vec![0xff; 3 * PAGE]; 4];
    let vectors: Vec<libc::iovec> = parts.iter_mut().map(|part| iovec_mut(part)).collect();
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &vectors, (100 * PAGE) as i64)), 12 * PAGE as i32);
    let bytes = parts.concat();
    assert!(bytes.chunks(PAGE).enumerate().all(|(index, page)| *page == [100 + index as u8; PAGE]));
}

#[case(since = "5.6")]
fn with_async(cx: &Context) {
    let file = cold_file();
    let mut buffers = vec![[0xff; PAGE]; 48];
    let mut ring = cx.ring(64);
    let reads: Vec<Sqe> = buffers
        .iter_mut()
        .enumerate()
        .map(|(index, buffer)| read_of(&file, index, buffer).with(if index % 3 == 0 { IOSQE_ASYNC } else { 0 }))
        .collect();
    ring.go_all(&reads);
    check(&ring.wait_sorted(48), &buffers);
}

#[case(since = "5.6")]
fn between_what_is_cached(cx: &Context) {
    let file = cold_file();
    let mut ring = cx.ring(64);
    for _ in 0..2 {
        let mut buffers = vec![[0xff; PAGE]; 64];
        let reads: Vec<Sqe> =
            buffers.iter_mut().enumerate().map(|(index, buffer)| read_of(&file, index, buffer)).collect();
        ring.go_all(&reads);
        check(&ring.wait_sorted(64), &buffers);
        drop_pages(&file, 0, PAGES / 2);
    }
}
