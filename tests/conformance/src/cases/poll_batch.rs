//! Successive POLL_ADDs of one submission, on descriptors that mostly were not ready in earlier submissions.

use super::prelude::*;
use std::fs::File;

topic!(since: "5.1", source: "io_uring/poll.c");

const READY: i32 = libc::POLLIN as i32;

/// Eventfds, and a ring that polled each of them often and always found it not ready.
fn polled_often(cx: &Context, count: u64, ring_entries: u32) -> (Vec<File>, Ring) {
    let files: Vec<File> = (0..count).map(|_| sys::eventfd(0, libc::EFD_NONBLOCK)).collect();
    let mut ring = cx.ring(ring_entries);
    for _ in 0..5 {
        poll_all(&mut ring, &files);
        files.iter().for_each(make_ready);
        assert_eq!(completions(&mut ring, files.len()).len(), files.len());
        files.iter().for_each(drain);
    }
    (files, ring)
}

fn make_ready(file: &File) {
    let mut file = file;
    file.write_all(&1u64.to_ne_bytes()).expect("write to an eventfd");
}

fn drain(file: &File) {
    let mut file = file;
    file.read_exact(&mut [0; 8]).expect("read from an eventfd");
}

fn poll(file: &File, user_data: u64) -> Sqe {
    sqe::poll_add(fd(file), libc::POLLIN, 0).data(user_data)
}

/// Submits a poll of each.
fn poll_all(ring: &mut Ring, files: &[File]) {
    for (index, file) in files.iter().enumerate() {
        ring.push(poll(file, index as u64));
    }
    assert_eq!(ring.submit(), files.len() as isize);
}

/// Waits for `count` CQEs, and returns user_data and result in their order.
fn completions(ring: &mut Ring, count: usize) -> Vec<(u64, i32)> {
    ring.wait_ordered(count)
}

#[case]
fn ready_ones_complete_at_once_and_in_order(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 8, 16);
    [2, 5, 6].iter().for_each(|index: &usize| make_ready(&files[*index]));
    poll_all(&mut ring, &files);
    assert_eq!(completions(&mut ring, 3), [(2, READY), (5, READY), (6, READY)]);
    ring.expect_quiet();
    [7, 0].iter().for_each(|index: &usize| make_ready(&files[*index]));
    let mut later = completions(&mut ring, 2);
    later.sort_unstable();
    assert_eq!(later, [(0, READY), (7, READY)]);
}

#[case]
fn ready_ones_are_there_without_another_call(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 3, 16);
    make_ready(&files[1]);
    poll_all(&mut ring, &files);
    let cqe = ring.peek().expect("a CQE");
    assert_eq!((cqe.user_data, cqe.res), (1, READY));
}

#[case]
fn ready_ones_complete_before_what_follows(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 3, 16);
    files.iter().for_each(make_ready);
    let polls = |index: usize| poll(&files[index], index as u64);
    ring.go_all(&[polls(0), polls(1), sqe::nop().data(7), polls(2), sqe::nop().data(8)]);
    assert_eq!(completions(&mut ring, 5), [(0, READY), (1, READY), (7, 0), (2, READY), (8, 0)]);
}

#[case]
fn ready_ones_complete_before_what_is_refused(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 3, 16);
    files.iter().for_each(make_ready);
    ring.push(poll(&files[0], 0));
    ring.push(poll(&files[1], 1));
    ring.push(Sqe { buf_index: 1, ..poll(&files[2], 2) });
    assert_eq!(ring.submit(), 3);
    assert_eq!(completions(&mut ring, 3), [(0, READY), (1, READY), (2, -libc::EINVAL)]);
}

#[case]
fn a_ready_one_cannot_be_removed(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 2, 16);
    files.iter().for_each(make_ready);
    ring.push(poll(&files[0], 0));
    ring.push(poll(&files[1], 1));
    ring.push(sqe::poll_remove(1).data(9));
    assert_eq!(ring.submit(), 3);
    assert_eq!(completions(&mut ring, 3), [(0, READY), (1, READY), (9, -libc::ENOENT)]);
}

#[case]
fn a_waiting_one_is_removed(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 2, 16);
    ring.push(poll(&files[0], 0));
    ring.push(poll(&files[1], 1));
    ring.push(sqe::poll_remove(1).data(9));
    assert_eq!(ring.submit(), 3);
    let mut both = completions(&mut ring, 2);
    both.sort_unstable();
    assert_eq!(both, [(1, -libc::ECANCELED), (9, 0)]);
    make_ready(&files[0]);
    assert_eq!(completions(&mut ring, 1), [(0, READY)]);
}

#[case]
fn two_of_one_descriptor(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 2, 16);
    for ready in [true, false] {
        if ready {
            make_ready(&files[0]);
        }
        ring.go_all(&[poll(&files[1], 1), poll(&files[0], 2), poll(&files[0], 3)]);
        if ready {
            assert_eq!(completions(&mut ring, 2), [(2, READY), (3, READY)]);
            drain(&files[0]);
        } else {
            make_ready(&files[0]);
            assert_eq!(completions(&mut ring, 2).iter().map(|answer| answer.0).sum::<u64>(), 5);
        }
        make_ready(&files[1]);
        assert_eq!(completions(&mut ring, 1), [(1, READY)]);
        drain(&files[1]);
    }
}

#[case(since = "5.3")]
fn chains_among_them(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 3, 16);
    make_ready(&files[0]);
    make_ready(&files[1]);
    ring.push(poll(&files[0], 0));
    ring.push(poll(&files[1], 1).with(IOSQE_IO_LINK));
    ring.push(sqe::nop().data(5));
    ring.push(poll(&files[2], 2).with(IOSQE_IO_LINK));
    ring.push(sqe::nop().data(6));
    assert_eq!(ring.submit(), 5);
    assert_eq!(completions(&mut ring, 3), [(0, READY), (1, READY), (5, 0)]);
    ring.expect_quiet();
    make_ready(&files[2]);
    assert_eq!(completions(&mut ring, 2), [(2, READY), (6, 0)]);
}

#[case(since = "5.3")]
fn a_chain_that_the_submission_cuts_off(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 2, 16);
    // Its event has come, and was not consumed.
    ring.go(poll(&files[1], 1));
    make_ready(&files[1]);
    assert_eq!(completions(&mut ring, 1), [(1, READY)]);
    ring.go_all(&[poll(&files[0], 0), poll(&files[1], 1).with(IOSQE_IO_LINK)]);
    assert_eq!(completions(&mut ring, 1), [(1, READY)]);
}

#[case(since = "5.6")]
fn ready_ones_are_no_asynchronous_completions(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 2, 16);
    let eventfd = sys::eventfd(0, libc::EFD_NONBLOCK);
    let number = fd(&eventfd);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD_ASYNC, &raw const number as usize, 1), 0);
    make_ready(&files[1]);
    poll_all(&mut ring, &files);
    assert_eq!(completions(&mut ring, 1), [(1, READY)]);
    let mut eventfd = &eventfd;
    let error = eventfd.read(&mut [0; 8]).expect_err("nobody was told");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[case(since = "5.2")]
fn drained_ones_among_them(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 3, 16);
    make_ready(&files[0]);
    make_ready(&files[2]);
    ring.push(poll(&files[0], 0));
    ring.push(poll(&files[1], 1));
    ring.push(poll(&files[2], 2).with(IOSQE_IO_DRAIN));
    assert_eq!(ring.submit(), 3);
    assert_eq!(completions(&mut ring, 1), [(0, READY)]);
    ring.expect_quiet();
    make_ready(&files[1]);
    assert_eq!(completions(&mut ring, 2), [(1, READY), (2, READY)]);
}

#[case]
fn what_is_ready_later_completes(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 8, 16);
    for round in 0..20 {
        let early = round % files.len();
        make_ready(&files[early]);
        poll_all(&mut ring, &files);
        assert_eq!(completions(&mut ring, 1), [(early as u64, READY)]);
        files.iter().enumerate().filter(|(index, _)| *index != early).for_each(|(_, file)| make_ready(file));
        assert_eq!(completions(&mut ring, files.len() - 1).len(), files.len() - 1);
        files.iter().for_each(drain);
    }
}

#[case]
fn other_events_than_before(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 2, 16);
    let both = libc::POLLIN | libc::POLLOUT;
    ring.push(poll(&files[0], 0));
    ring.push(sqe::poll_add(fd(&files[1]), both, 0).data(1));
    assert_eq!(ring.submit(), 2);
    assert_eq!(completions(&mut ring, 1), [(1, i32::from(libc::POLLOUT))]);
    ring.push(sqe::poll_add(fd(&files[1]), both, 0).data(1));
    ring.push(poll(&files[1], 2));
    assert_eq!(ring.submit(), 2);
    assert_eq!(completions(&mut ring, 1), [(1, i32::from(libc::POLLOUT))]);
}

#[case]
fn another_file_under_a_number(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 3, 16);
    let ready = sys::eventfd(1, 0);
    // SAFETY: both numbers are open; the second one is an eventfd afterwards, too.
    assert_eq!(unsafe { libc::dup2(fd(&ready), fd(&files[1])) }, fd(&files[1]));
    poll_all(&mut ring, &files);
    assert_eq!(completions(&mut ring, 1), [(1, READY)]);
    ring.expect_quiet();
}

#[case]
fn a_closed_number_among_them(cx: &Context) {
    let (mut files, mut ring) = polled_often(cx, 3, 16);
    make_ready(&files[2]);
    let closed = files.remove(1);
    let number = fd(&closed);
    drop(closed);
    ring.push(poll(&files[0], 0));
    ring.push(sqe::poll_add(number, libc::POLLIN, 0).data(1));
    ring.push(poll(&files[1], 2));
    assert_eq!(ring.submit(), 3);
    assert_eq!(completions(&mut ring, 2), [(1, -libc::EBADF), (2, READY)]);
}

#[case]
fn more_than_fit_into_one_look(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 200, 256);
    let ready: Vec<u64> = (0..200).filter(|index| index % 7 == 3 || index / 64 == 2).collect();
    ready.iter().for_each(|index| make_ready(&files[*index as usize]));
    poll_all(&mut ring, &files);
    let expected: Vec<(u64, i32)> = ready.iter().map(|index| (*index, READY)).collect();
    assert_eq!(completions(&mut ring, expected.len()), expected);
    ring.expect_quiet();
}

#[case]
fn sixty_four_of_three_kinds(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 64, 64);
    let (mut expected, mut closed, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for (index, file) in files.into_iter().enumerate() {
        let index = index as u64;
        ring.push(poll(&file, index));
        match index % 3 {
            0 => {
                make_ready(&file);
                expected.push((index, READY));
                kept.push(file);
            }
            1 => kept.push(file),
            _ => {
                expected.push((index, -libc::EBADF));
                closed.push(file);
            }
        }
    }
    drop(closed);
    assert_eq!(ring.submit(), 64);
    assert_eq!(completions(&mut ring, expected.len()), expected);
    ring.expect_quiet();
    kept.iter().for_each(make_ready);
    assert_eq!(completions(&mut ring, 21).len(), 21);
}

#[case]
fn a_ring_among_them(cx: &Context) {
    let (files, mut ring) = polled_often(cx, 4, 8);
    let mut other = cx.ring(4);
    make_ready(&files[3]);
    let polls = |other: &Ring, ring: &mut Ring| {
        (0..3).for_each(|index| ring.push(poll(&files[index], index as u64)));
        ring.push(sqe::poll_add(other.fd, libc::POLLIN, 0).data(9));
        ring.push(poll(&files[3], 3));
        assert_eq!(ring.submit(), 5);
    };
    polls(&other, &mut ring);
    assert_eq!(completions(&mut ring, 1), [(3, READY)]);
    other.go(sqe::nop());
    assert_eq!(completions(&mut ring, 1), [(9, READY)]);
    polls(&other, &mut ring);
    assert_eq!(completions(&mut ring, 2), [(9, READY), (3, READY)]);
}

#[case(own_flags, since = "5.18")]
fn a_refused_one_among_them(cx: &Context) {
    let files: Vec<File> = (0..6).map(|_| sys::eventfd(0, libc::EFD_NONBLOCK)).collect();
    let mut ring = cx.ring_with(8, IORING_SETUP_SUBMIT_ALL);
    [0, 1, 3, 5].iter().for_each(|index: &usize| make_ready(&files[*index]));
    for (index, file) in files.iter().enumerate() {
        ring.push(Sqe { buf_index: u16::from(index == 1), ..poll(file, index as u64) });
    }
    assert_eq!(ring.submit(), 6);
    assert_eq!(completions(&mut ring, 4), [(0, READY), (1, -libc::EINVAL), (3, READY), (5, READY)]);
    ring.expect_quiet();
}

#[case(own_flags)]
fn what_a_refusal_leaves_is_polled_anew(cx: &Context) {
    let files: Vec<File> = (0..4).map(|_| sys::eventfd(0, libc::EFD_NONBLOCK)).collect();
    let mut ring = cx.ring_with(8, 0);
    make_ready(&files[1]);
    ring.push(poll(&files[0], 0));
    ring.push(Sqe { buf_index: 1, ..poll(&files[1], 7) });
    (1..4).for_each(|index| ring.push(poll(&files[index], index as u64)));
    assert_eq!(ring.submit(), 2);
    assert_eq!(completions(&mut ring, 1), [(7, -libc::EINVAL)]);
    drain(&files[1]);
    make_ready(&files[2]);
    assert_eq!(ring.enter(3, 0, 0, 0, 0), 3);
    assert_eq!(completions(&mut ring, 1), [(2, READY)]);
    ring.expect_quiet();
}
