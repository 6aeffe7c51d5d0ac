//! Records which of the program's instructions each island has a copy of.

use super::decode::SYSCALL;
use super::jump::JUMP;
use super::COUNTED;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The record of an island: which instructions are copied at its beginning.
struct Origin {
    /// The island's address, or 0 before the first use.
    island: AtomicUsize,
    /// The object that the instructions belong to, by the caller's identity of objects.
    object: AtomicU64,
    length: AtomicUsize,
    address: AtomicUsize,
}

/// A record for each patched instruction. Filled under the caller's lock.
static ORIGINS: [Origin; COUNTED] = [const {
    Origin {
        island: AtomicUsize::new(0),
        object: AtomicU64::new(0),
        length: AtomicUsize::new(0),
        address: AtomicUsize::new(0),
    }
}; COUNTED];

/// Records that the island begins with a copy of `length` bytes from `address`, in `object`. `length` is 0 if the jump
/// replaces the `syscall` itself. False if there are too many.
pub fn record_origin(object: u64, island: usize, length: usize, address: usize) -> bool {
    let Some(free) = ORIGINS.iter().find(|origin| origin.island.load(Ordering::Relaxed) == 0) else { return false };
    free.object.store(object, Ordering::Relaxed);
    free.length.store(length, Ordering::Relaxed);
    free.address.store(address, Ordering::Relaxed);
    // Release pairs with the Acquire in `origin_of`.
    free.island.store(island, Ordering::Release);
    true
}

/// Returns the address of the program's instruction whose copy in an island is at `address`.
pub fn origin_of(address: usize) -> Option<usize> {
    ORIGINS.iter().find_map(|origin| {
        // Acquire pairs with the Release in `record_origin`.
        let within = address.checked_sub(origin.island.load(Ordering::Acquire))?;
        let is_copy = within < origin.length.load(Ordering::Relaxed);
        is_copy.then(|| origin.address.load(Ordering::Relaxed) + within)
    })
}

/// Puts the program's original instructions back into `code`, a copy of the code at the address `base`, in place of
/// jumps to islands.
pub fn restore(code: &mut [u8], base: usize) {
    for origin in &ORIGINS {
        // Acquire pairs with the Release in `record_origin`.
        let island = origin.island.load(Ordering::Acquire);
        let length = origin.length.load(Ordering::Relaxed);
        let offset = origin.address.load(Ordering::Relaxed).wrapping_sub(base);
        let return_address = base.wrapping_add(offset).wrapping_add(JUMP);
        let Some([0xe9, distance @ ..]) = code.get(offset..offset.saturating_add(JUMP)) else { continue };
        let distance = i32::from_le_bytes(distance.try_into().expect("four bytes"));
        // After dlclose(3) other code may be there.
        if island == 0 || return_address.wrapping_add_signed(distance as isize) != island {
            continue;
        }
        if length == 0 {
            code[offset..offset + SYSCALL.len()].copy_from_slice(&SYSCALL);
            continue;
        }
        let there = length.min(code.len() - offset);
        // SAFETY: a jump leads to the island, which stays mapped and begins with a copy of that many bytes.
        let moved = unsafe { core::slice::from_raw_parts(island as *const u8, there) };
        code[offset..offset + there].copy_from_slice(moved);
    }
}

/// Returns the addresses of all islands, each with the identity of the object that it comes from.
pub fn islands() -> impl Iterator<Item = (usize, u64)> {
    // Acquire pairs with the Release in `record_origin`.
    let all = ORIGINS.iter().map(|origin| (origin.island.load(Ordering::Acquire), &origin.object));
    all.filter(|(island, _)| *island != 0).map(|(island, object)| (island, object.load(Ordering::Relaxed)))
}

/// Finds the island that contains this address; an island has `bytes` bytes. Returns the island's address, the number
/// of bytes that were copied there, and their original address. Async-signal-safe.
pub fn island_at(address: usize, bytes: usize) -> Option<(usize, usize, usize)> {
    ORIGINS.iter().find_map(|origin| {
        // Acquire pairs with the Release in `record_origin`.
        let island = origin.island.load(Ordering::Acquire);
        let is_there = island != 0 && (island..island + bytes).contains(&address);
        is_there.then(|| (island, origin.length.load(Ordering::Relaxed), origin.address.load(Ordering::Relaxed)))
    })
}

/// True if a jump at `from` would share bytes with an existing jump to an island.
pub fn overlaps(from: usize) -> bool {
    ORIGINS.iter().any(|origin| {
        let other = origin.address.load(Ordering::Relaxed);
        origin.island.load(Ordering::Relaxed) != 0 && other.abs_diff(from) < JUMP
    })
}

/// Forgets an island to which no jump leads.
pub fn forget(island: usize) {
    for origin in &ORIGINS {
        if origin.island.load(Ordering::Relaxed) == island {
            origin.island.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_seen_as_the_program_has_it() {
        // or $1, %r10d, and the mov $426, %eax whose first byte its jump reaches into.
        let moved = [0x41, 0x83, 0xca, 0x01, 0xb8, 0xaa, 0x01, 0, 0];
        let island = moved.as_ptr() as usize;
        let from = island - 0x1000;
        let distance = ((island - from - JUMP) as u32).to_le_bytes();
        let patched = [&[0x90, 0xe9][..], &distance, &moved[JUMP..], &SYSCALL].concat();
        let original = [&[0x90][..], &moved, &SYSCALL].concat();
        assert!(record_origin(1, island, moved.len(), from));
        let mut code = patched.clone();
        restore(&mut code, from - 1);
        assert_eq!(code, original);
        // Cut off; the same bytes elsewhere; other bytes there.
        let mut code = patched[..8].to_vec();
        restore(&mut code, from - 1);
        assert_eq!(code, original[..8]);
        for (untouched, base) in [(&patched, from), (&original, from - 1)] {
            let mut code = untouched.clone();
            restore(&mut code, base);
            assert_eq!(&code, untouched);
        }
    }

    #[test]
    fn a_copy_is_known_by_its_original() {
        assert!(record_origin(1, 0x7000, 12, 0x5000));
        assert_eq!([0x6fff, 0x7000, 0x700b, 0x700c].map(origin_of), [None, Some(0x5000), Some(0x500b), None]);
    }
}
