//! IORING_REGISTER_CLONE_BUFFERS: copies the buffers registered with one ring to another ring. Source:
//! `io_register_clone_buffers` in io_uring/rsrc.c.

use crate::os::user_read;
use crate::resource::buffers::{Buffers, MAX_BUFFERS};
use crate::ring::table;
use crate::ring::RingGuard;
use crate::{process, thread, Errno};
use anyring_abi::{IORING_REGISTER_DST_REPLACE, IORING_REGISTER_SRC_REGISTERED};

/// Copies buffers as the `struct io_uring_clone_buffers` at `arg` says. Its fields are the source ring and flags, the
/// first slots in the source and in this ring, and the count and padding. The copies carry no tags.
pub fn clone(mut guard: RingGuard, arg: u64) -> Result<u32, Errno> {
    let [head, offsets, tail, padding]: [u64; 4] = user_read(arg)?;
    let (source, flags) = (head as u32, (head >> 32) as u32);
    let (from, to) = (offsets as u32, (offsets >> 32) as u32);
    let count = tail as u32;
    let replaces = flags & IORING_REGISTER_DST_REPLACE != 0;
    if flags & !(IORING_REGISTER_SRC_REGISTERED | IORING_REGISTER_DST_REPLACE) != 0 {
        return Err(Errno::INVAL);
    }
    if !replaces && guard.buffers.is_some() {
        return Err(Errno::BUSY);
    }
    if tail >> 32 != 0 || padding != 0 {
        return Err(Errno::INVAL);
    }
    let number = match flags & IORING_REGISTER_SRC_REGISTERED {
        0 => source as i32,
        _ => process::registered_ring_number(source)?,
    };
    let other = table::ring(number)
        .or_else(|| table::adopt(number))
        .ok_or_else(|| crate::wait::enter::not_a_ring(number))?;
    let ring = guard.ring();
    let ranges = if core::ptr::eq(other, ring) {
        registered_ranges(&guard, from, to, count)?
    } else {
        // A thread never holds the locks of two rings, so this ring is unlocked first.
        let life = guard.cookie;
        drop(guard);
        let other = other.lock().map_err(|_| Errno::BADF)?;
        if other.issuer != 0 && other.issuer != thread::id() {
            return Err(Errno::EXIST);
        }
        let ranges = registered_ranges(&other, from, to, count)?;
        drop(other);
        // While the ring was unlocked, another thread may have closed it, and made another ring in its place.
        guard = ring.lock().ok().filter(|guard| guard.cookie == life).ok_or(Errno::BADF)?;
        if !replaces && guard.buffers.is_some() {
            return Err(Errno::BUSY);
        }
        ranges
    };
    guard.buffers.get_or_insert_with(Buffers::default).place(to, &ranges)?;
    Ok(0)
}

/// Returns the buffers to copy from slot `from` on to slot `to` of another ring; all buffers if `count` is 0.
fn registered_ranges(guard: &RingGuard, from: u32, to: u32, count: u32) -> Result<Vec<Option<(u64, u64)>>, Errno> {
    if count == 0 && (from, to) != (0, 0) {
        return Err(Errno::INVAL);
    }
    let buffers = guard.buffers.as_ref().ok_or(Errno::NXIO)?;
    let slots = buffers.slot_count();
    let count = if count == 0 { slots } else { count };
    if count > slots {
        return Err(Errno::INVAL);
    }
    let end = from.checked_add(count).filter(|end| *end <= slots).ok_or(Errno::OVERFLOW)?;
    if to.checked_add(count).ok_or(Errno::OVERFLOW)? > MAX_BUFFERS {
        return Err(Errno::INVAL);
    }
    buffers.ranges(from..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Os, Sys};
    use crate::ring::LockFailure;
    use anyring_abi::{Params, IORING_REGISTER_CLONE_BUFFERS};

    fn make() -> i32 {
        let mut params = Params::default();
        crate::setup(4, &raw mut params as u64).expect("a ring")
    }

    fn close(fd: i32) {
        process::closing(fd);
        Sys::close(fd);
    }

    /// Closes the target ring during the call. True if the next ring has its place; another test's ring may have it
    /// instead.
    fn reuses_slot(source: i32) -> bool {
        let target = make();
        let held = table::ring(source).expect("a ring").lock().expect("free");
        let place = table::ring(target).expect("a ring");
        let cloning = std::thread::spawn(move || {
            let argument = [source as u64, 0, 0, 0];
            crate::register(target as u32, IORING_REGISTER_CLONE_BUFFERS, argument.as_ptr() as u64, 1)
        });
        while !table::ring(source).expect("a ring").is_contended() {
            std::thread::yield_now();
        }
        close(target);
        // The helper may be the thread that ends the ring.
        let has_ended = || matches!(place.lock(), Err(LockFailure::Ended));
        let _ = (0..10_000).find(|_| {
            has_ended() || {
                std::thread::yield_now();
                false
            }
        });
        let another = make();
        let taken = core::ptr::eq(table::ring(another).expect("a ring"), place);
        drop(held);
        assert_eq!(cloning.join().expect("no panic"), Err(Errno::BADF));
        assert!(!taken || place.lock().is_ok_and(|guard| guard.buffers.is_none()));
        close(another);
        taken
    }

    #[test]
    fn a_ring_made_in_the_place_of_one_closed_meanwhile_gets_nothing() {
        let source = make();
        let memory = [0u8; 64];
        let vector = [memory.as_ptr() as usize, memory.len()];
        crate::register(source as u32, anyring_abi::IORING_REGISTER_BUFFERS, vector.as_ptr() as u64, 1)
            .expect("one");
        assert!((0..1_000).any(|_| reuses_slot(source)), "nothing was tried");
        close(source);
    }
}
