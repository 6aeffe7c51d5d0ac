//! Large reads of cached data, several in flight at once.

use super::prelude::*;
use std::os::fd::IntoRawFd;

topic!(since: "5.1", source: "io_uring/rw.c");

/// Bytes of each read.
const BYTES: usize = 1 << 20;
const READS: usize = 6;

/// A file whose byte at each position follows from the position.
fn data() -> Vec<u8> {
    (0..READS * BYTES).map(|position| (position / 7 + position / BYTES) as u8).collect()
}

fn buffers() -> Vec<Vec<u8>> {
    vec![vec![0xff; BYTES]; READS]
}

/// Makes a read of each part of the file into its buffer, in the file's order.
fn reads(fd: i32, buffers: &mut [Vec<u8>]) -> Vec<Sqe> {
    let each = buffers.iter_mut().enumerate();
    each.map(|(index, buffer)| sqe::read(fd, buffer, (index * BYTES) as i64).data(index as u64)).collect()
}

fn check(results: &[(u64, i32)], buffers: &[Vec<u8>]) {
    let expected: Vec<_> = (0..READS as u64).map(|index| (index, BYTES as i32)).collect();
    assert_eq!(results, expected);
    let content = data();
    let wrong = content.chunks(BYTES).zip(buffers).position(|(part, buffer)| part != buffer);
    assert_eq!(wrong, None, "has other data");
}

#[case(since = "5.6")]
fn one_submission(cx: &Context) {
    let file = file("data", &data());
    let mut ring = cx.ring(8);
    for _ in 0..4 {
        let mut buffers = buffers();
        ring.go_all(&reads(fd(&file), &mut buffers));
        check(&ring.wait_sorted(READS), &buffers);
    }
}

#[case(since = "5.6")]
fn one_submission_each_while_results_are_unread(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    for read in reads(fd(&file), &mut buffers) {
        ring.go(read);
    }
    check(&ring.wait_sorted(READS), &buffers);
}

#[case]
fn vectors(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    let vectors: Vec<_> = buffers.iter_mut().map(|buffer| [iovec_mut(buffer)]).collect();
    let reads: Vec<Sqe> = (0..READS)
        .map(|index| sqe::readv(fd(&file), &vectors[index], (index * BYTES) as i64).data(index as u64))
        .collect();
    ring.go_all(&reads);
    check(&ring.wait_sorted(READS), &buffers);
}

#[case(since = "5.6")]
fn chains_keep_their_order(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    let mut reads = reads(fd(&file), &mut buffers);
    reads[..READS - 1].iter_mut().for_each(|read| read.flags |= IOSQE_IO_LINK);
    ring.go_all(&reads);
    check(&ring.wait_ordered(READS), &buffers);
}

#[case(since = "5.6")]
fn reads_at_the_files_position_keep_their_order(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    let mut reads = reads(fd(&file), &mut buffers);
    reads.iter_mut().for_each(|read| read.off = u64::MAX);
    ring.go_all(&reads);
    check(&ring.wait_sorted(READS), &buffers);
}

#[case(since = "5.6")]
fn the_end_of_the_file_makes_the_last_one_short(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    let mut reads = reads(fd(&file), &mut buffers);
    reads[0].off = (READS * BYTES - 5000) as u64;
    reads[1].off = (READS * BYTES) as u64;
    ring.go_all(&reads);
    let results = ring.wait_sorted(READS);
    assert_eq!(results[..3], [(0, 5000), (1, 0), (2, BYTES as i32)]);
    assert_eq!((buffers[0][4999], buffers[0][5000]), (data()[READS * BYTES - 1], 0xff));
    assert_eq!(buffers[1], [0xff; BYTES]);
}

#[case(since = "5.6")]
fn a_bad_buffer_is_efault_and_others_are_read(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    let mut reads = reads(fd(&file), &mut buffers);
    (reads[0].addr, reads[2].addr) = (8, 8);
    ring.go_all(&reads);
    let results = ring.wait_sorted(READS);
    let whole = BYTES as i32;
    assert_eq!(results[..4], [(0, -EFAULT), (1, whole), (2, -EFAULT), (3, whole)]);
}

#[case(since = "5.6")]
fn their_descriptor_may_be_closed_and_its_number_reused(cx: &Context) {
    let file = file("data", &data());
    let (mut ring, mut buffers) = (cx.ring(8), buffers());
    for read in reads(fd(&file), &mut buffers) {
        ring.push(read);
    }
    assert_eq!(ring.submit(), READS as isize);
    let number = file.into_raw_fd();
    // SAFETY: the number is owned here.
    unsafe { libc::close(number) };
    let other = std::iter::repeat_with(sys::memfd).take(1000).find(|other| fd(other) == number);
    assert!(other.is_some(), "number {number} is not free");
    check(&ring.wait_sorted(READS), &buffers);
}
