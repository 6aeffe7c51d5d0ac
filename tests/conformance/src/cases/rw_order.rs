//! Writes to one file that are submitted one after the other, without links. io-wq makes them in this order
//! (`io_wq_hash_work` in io_uring/io-wq.c). A write that no worker makes is complete at its submission. Writes with
//! IOSQE_ASYNC, and truncations, are not kept in order.

use super::prelude::*;
use std::io::Read;
use std::os::unix::fs::FileExt;

topic!(since: "5.1", source: "io_wq_hash_work in io_uring/io-wq.c");

const PAGE: usize = 4096;
/// The number of rounds in which the order must be right: timing decides whether a wrong order shows.
const ROUNDS: usize = 24;
const WRITES: usize = 16;

/// Submits each request on its own, and waits for none before the last is submitted.
fn one_by_one(cx: &Context, sqes: &[Sqe]) -> Vec<i32> {
    let mut ring = cx.ring(64);
    for (index, sqe) in sqes.iter().enumerate() {
        ring.go(sqe.data(index as u64));
    }
    ring.wait_sorted(sqes.len()).into_iter().map(|(_, result)| result).collect()
}

/// Pages; the one with index N is full of N + 1.
fn pages_of_numbers() -> Vec<[u8; PAGE]> {
    (0..WRITES).map(|index| [index as u8 + 1; PAGE]).collect()
}

fn first_page(file: &std::fs::File) -> Vec<u8> {
    let mut page = vec![0; PAGE];
    file.read_exact_at(&mut page, 0).expect("a page");
    page
}

#[case(undisturbed, since = "5.6")]
fn the_last_of_writes_to_one_place_stays(cx: &Context) {
    let pages = pages_of_numbers();
    for round in 0..ROUNDS {
        let file = file("pages", b"");
        let sqes: Vec<Sqe> = pages.iter().map(|page| sqe::write(fd(&file), page, 0)).collect();
        assert_eq!(one_by_one(cx, &sqes), [PAGE as i32; WRITES], "round {round}");
        assert_eq!(first_page(&file), pages[WRITES - 1], "round {round}");
    }
}

#[case(undisturbed)]
fn vectored_writes_to_one_place_too(cx: &Context) {
    let pages = pages_of_numbers();
    for round in 0..ROUNDS {
        let file = file("pages", b"");
        let vectors: Vec<[libc::iovec; 2]> =
            pages.iter().map(|page| [iovec(&page[..100]), iovec(&page[100..])]).collect();
        let sqes: Vec<Sqe> = vectors.iter().map(|both| sqe::writev(fd(&file), both, 0)).collect();
        assert_eq!(one_by_one(cx, &sqes), [PAGE as i32; WRITES], "round {round}");
        assert_eq!(first_page(&file), pages[WRITES - 1], "round {round}");
    }
}

/// Records of eight bytes, which hold their places.
fn records() -> Vec<[u8; 8]> {
    (0..WRITES as u64).map(u64::to_le_bytes).collect()
}

fn places(bytes: &[u8]) -> Vec<u64> {
    let (records, rest) = bytes.as_chunks::<8>();
    assert_eq!(rest, b"");
    records.iter().map(|record| u64::from_le_bytes(*record)).collect()
}

fn in_order() -> Vec<u64> {
    (0..WRITES as u64).collect()
}

fn appending(name: &str) -> std::fs::File {
    let file = file(name, b"");
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd(&file), libc::F_SETFL, libc::O_APPEND) }, 0);
    file
}

fn content(file: &std::fs::File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("its length").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("all of it");
    bytes
}

#[case(undisturbed, since = "5.6")]
fn appended_records_lie_in_their_order(cx: &Context) {
    for round in 0..ROUNDS {
        let (file, records) = (appending("log"), records());
        let sqes: Vec<Sqe> = records.iter().map(|record| sqe::write(fd(&file), record, 0)).collect();
        assert_eq!(one_by_one(cx, &sqes), [8; WRITES]);
        assert_eq!(places(&content(&file)), in_order(), "round {round}");
    }
}

#[case(since = "5.6")]
fn appended_records_of_one_submission_too(cx: &Context) {
    for round in 0..ROUNDS {
        let (file, records, mut ring) = (appending("log"), records(), cx.ring(64));
        let sqes: Vec<Sqe> = records.iter().map(|record| sqe::write(fd(&file), record, -1)).collect();
        ring.go_all(&sqes);
        ring.wait_all(WRITES);
        assert_eq!(places(&content(&file)), in_order(), "round {round}");
    }
}

#[case(since = "5.6")]
fn records_at_the_position_lie_in_their_order(cx: &Context) {
    for round in 0..ROUNDS {
        let (file, records) = (file("log", b""), records());
        let sqes: Vec<Sqe> = records.iter().map(|record| sqe::write(fd(&file), record, -1)).collect();
        assert_eq!(one_by_one(cx, &sqes), [8; WRITES]);
        assert_eq!(places(&content(&file)), in_order(), "round {round}");
    }
}

#[case(undisturbed, since = "5.6")]
fn writes_through_two_descriptors_are_in_order(cx: &Context) {
    let pages = pages_of_numbers();
    for round in 0..ROUNDS {
        let one = file("pages", b"");
        let other = one.try_clone().expect("a duplicate");
        let either = |index: usize| if index.is_multiple_of(2) { fd(&one) } else { fd(&other) };
        let sqes: Vec<Sqe> =
            pages.iter().enumerate().map(|(index, page)| sqe::write(either(index), page, 0)).collect();
        one_by_one(cx, &sqes);
        assert_eq!(first_page(&one), pages[WRITES - 1], "round {round}");
    }
}

#[case(undisturbed, since = "5.6")]
fn order_outlives_the_descriptor(cx: &Context) {
    let pages = pages_of_numbers();
    for round in 0..ROUNDS {
        let (file, mut ring) = (file("pages", b""), cx.ring(64));
        let written = file.try_clone().expect("a duplicate");
        for page in &pages {
            ring.go(sqe::write(fd(&written), page, 0));
        }
        drop(written);
        assert!(ring.wait_all(WRITES).iter().all(|cqe| cqe.res == PAGE as i32));
        assert_eq!(first_page(&file), pages[WRITES - 1], "round {round}");
    }
}

#[case(since = "5.6")]
fn a_terminal_gets_writes_in_their_order(cx: &Context) {
    // Linux interrupts the process's threads some time after a ring was closed, which ends writes to a terminal with EINTR.
    let mut ring = cx.ring(64);
    for round in 0..ROUNDS {
        let ((mut master, slave), records) = (pty(), records());
        let sqes: Vec<Sqe> = records.iter().map(|record| sqe::write(fd(&slave), record, 0)).collect();
        ring.go_all(&sqes);
        let results = ring.wait_sorted(WRITES);
        assert!(results.iter().all(|(_, res)| *res == 8), "round {round}: {results:?}");
        let mut bytes = [0; 8 * WRITES];
        master.read_exact(&mut bytes).expect("what was written");
        assert_eq!(places(&bytes), in_order(), "round {round}");
    }
}

#[case(since = "5.6")]
fn a_named_pipe_gets_writes_in_their_order(cx: &Context) {
    let name = c"fifo";
    // SAFETY: a C string.
    unsafe { libc::unlink(name.as_ptr()) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let mut fifo = std::fs::OpenOptions::new().read(true).write(true).open("fifo").expect("the FIFO");
    for round in 0..ROUNDS {
        let (records, mut ring) = (records(), cx.ring(64));
        let sqes: Vec<Sqe> = records.iter().map(|record| sqe::write(fd(&fifo), record, 0)).collect();
        ring.go_all(&sqes);
        let results = ring.wait_sorted(WRITES);
        assert!(results.iter().all(|(_, res)| *res == 8), "round {round}: {results:?}");
        let mut bytes = [0; 8 * WRITES];
        fifo.read_exact(&mut bytes).expect("what was written");
        assert_eq!(places(&bytes), in_order(), "round {round}");
    }
}
