//! Tests of cases that need a newer kernel, or a failure. The rings exist only in the test's memory, and the test is
//! their server.

use super::ffi::inline::{io_uring_cqe_iter_init, io_uring_cqe_iter_next, io_uring_get_sqe128};
use super::layout::{Ring, Word};
use super::queue::{io_uring_peek_batch_cqe, io_uring_submit, LIBURING_UDATA_TIMEOUT};
use super::{guard, queue};
use anyring_abi::*;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

const ENTRIES: usize = 8;

/// A ring in the test's memory, with eight entries in each queue.
struct MadeUp {
    ring: Ring,
    words: Box<[u32; 6]>,
    sqes: Box<[Sqe; ENTRIES]>,
    cqes: Box<[Cqe; ENTRIES]>,
}

impl MadeUp {
    fn new(flags: u32) -> MadeUp {
        let mut made = MadeUp {
            ring: Ring::empty(),
            words: Box::default(),
            sqes: Box::new([Sqe { personality: 9, ..Sqe::default() }; ENTRIES]),
            cqes: Box::default(),
        };
        let words = made.words.as_mut_ptr();
        let word = |index: u32| Word::at(words.cast(), index * 4);
        (made.ring.sq.khead, made.ring.sq.ktail, made.ring.sq.kflags) = (word(0), word(1), word(2));
        (made.ring.cq.khead, made.ring.cq.ktail, made.ring.cq.kflags) = (word(3), word(4), word(5));
        (made.ring.sq.ring_mask, made.ring.sq.ring_entries) = (ENTRIES as u32 - 1, ENTRIES as u32);
        (made.ring.cq.ring_mask, made.ring.cq.ring_entries) = (ENTRIES as u32 - 1, ENTRIES as u32);
        (made.ring.sq.sqes, made.ring.cq.cqes) = (made.sqes.as_mut_ptr(), made.cqes.as_mut_ptr());
        made.ring.flags = flags;
        // These tests may not make an io_uring_enter(2) call.
        made.ring.enter_ring_fd.set(-1);
        made
    }

    /// Sets all four indices to `index`, as if that many entries had gone through.
    fn at(mut self, index: u32) -> MadeUp {
        for word in [0, 1, 3, 4] {
            self.words[word] = index;
        }
        self.ring.sq.sqe_head.set(index);
        self.ring.sq.sqe_tail.set(index);
        self
    }

    fn post(&mut self, user_data: u64, res: i32, flags: u32) {
        let tail = self.ring.cq.ktail.load(Ordering::Relaxed);
        self.cqes[tail as usize % ENTRIES] = Cqe { user_data, res, flags };
        self.ring
            .cq
            .ktail
            .store(tail.wrapping_add(1 << u32::from(flags & IORING_CQE_F_32 != 0)), Ordering::Release);
    }

    fn batch(&mut self, count: u32) -> Vec<u64> {
        let mut found = [null_mut(); 16];
        // SAFETY: a ring that this test made, and room for sixteen.
        let stored = unsafe { io_uring_peek_batch_cqe(&mut self.ring, found.as_mut_ptr(), count) };
        // SAFETY: the pointers that were just stored point into this ring's CQEs.
        found[..stored as usize].iter().map(|cqe| unsafe { (**cqe).user_data }).collect()
    }

    fn slot_of(&self, sqe: *mut Sqe) -> Option<usize> {
        (0..ENTRIES).find(|&slot| core::ptr::eq(sqe, &self.sqes[slot]))
    }
}

#[test]
fn a_panic_ends_as_eio() {
    assert_eq!(guard(|| -> i32 { panic!("on purpose") }), -libc::EIO);
    assert!(guard(|| -> *mut u8 { panic!("on purpose") }).is_null());
    assert_eq!(guard(|| 7), 7);
}

#[test]
fn a_batch_of_mixed_cqes_leaves_out_padding() {
    let mut ring = MadeUp::new(IORING_SETUP_CQE_MIXED).at(u32::MAX - 2);
    ring.post(0, 0, IORING_CQE_F_SKIP);
    ring.post(1, 0, IORING_CQE_F_32);
    ring.post(2, 0, 0);
    ring.post(0, 0, IORING_CQE_F_SKIP);
    ring.post(3, 0, 0);
    assert_eq!(ring.batch(1), [1]);
    assert_eq!(ring.batch(16), [1, 2], "padding behind a CQE ends the batch");
    ring.ring.cq_advance(3);
    assert_eq!(ring.batch(16), [3], "padding at the head is consumed");
}

#[test]
fn a_plain_ring_has_no_padding() {
    let mut ring = MadeUp::new(0).at(0);
    ring.post(1, 0, IORING_CQE_F_SKIP);
    ring.post(2, 0, IORING_CQE_F_SKIP);
    assert_eq!(ring.batch(16), [1, 2]);
}

#[test]
fn an_iterator_steps_over_big_cqes() {
    let mut ring = MadeUp::new(IORING_SETUP_CQE_MIXED).at(6);
    ring.post(1, 0, IORING_CQE_F_32);
    ring.post(2, 0, 0);
    let mut seen = Vec::new();
    // SAFETY: a ring that this test made; each CQE is read while its slot is taken.
    unsafe {
        let mut iter = io_uring_cqe_iter_init(&ring.ring);
        let mut cqe = null_mut();
        while io_uring_cqe_iter_next(&mut iter, &mut cqe) {
            seen.push((*cqe).user_data);
        }
    }
    assert_eq!(seen, [1, 2]);
}

#[test]
fn timeouts_of_our_own_are_consumed_only_without_ext_arg() {
    let mut ring = MadeUp::new(0);
    ring.post(LIBURING_UDATA_TIMEOUT, 0, 0);
    ring.post(5, 0, 0);
    ring.post(LIBURING_UDATA_TIMEOUT, -libc::ETIME, 0);
    let next = |ring: &MadeUp| {
        queue::peek(&ring.ring).map(|(cqe, available)| {
            // SAFETY: a CQE that peek just found in this ring.
            (unsafe { cqe.as_ref() }.map(|cqe| cqe.user_data), available)
        })
    };
    ring.ring.features = IORING_FEAT_EXT_ARG;
    assert_eq!(next(&ring), Ok((Some(LIBURING_UDATA_TIMEOUT), 3)));
    ring.ring.features = 0;
    assert_eq!(next(&ring), Ok((Some(5), 2)));
    ring.ring.cq_advance(1);
    assert_eq!(next(&ring), Err(-libc::ETIME));
    assert_eq!(next(&ring), Ok((None, 0)));
}

#[test]
fn big_sqes_do_not_wrap() {
    const IORING_SETUP_SQE_MIXED: u32 = 1 << 19;
    let mut ring = MadeUp::new(IORING_SETUP_SQE_MIXED).at(5);
    // SAFETY: a ring that this test made.
    let mut next = || unsafe { io_uring_get_sqe128(&mut ring.ring) };
    let taken: Vec<_> = (0..5).map(|_| next()).collect();
    let slots: Vec<_> = taken.into_iter().map(|sqe| ring.slot_of(sqe)).collect();
    assert_eq!(slots, [Some(5), Some(0), Some(2), None, None], "the fourth would need slots 4 and 5");
    let filler = ring.sqes[7];
    assert_eq!((filler.opcode, filler.flags, filler.personality), (Opcode::Nop as u8, IOSQE_CQE_SKIP_SUCCESS, 0));

    let mut plain = MadeUp::new(0);
    // SAFETY: a ring that this test made.
    assert!(unsafe { io_uring_get_sqe128(&mut plain.ring) }.is_null(), "no room for big SQEs in a plain ring");
}

#[test]
fn a_rewinding_ring_starts_over_with_each_submission() {
    let mut ring = MadeUp::new(1 << 20);
    for _ in 0..2 {
        let sqe = queue::get_sqe(&ring.ring);
        assert_eq!(ring.slot_of(sqe), Some(0));
        // SAFETY: a ring that this test made; there is no descriptor -1 to enter.
        assert_eq!(unsafe { io_uring_submit(&mut ring.ring) }, -libc::EBADF);
        assert_eq!(ring.words[1], 0, "the tail stays");
    }
}
