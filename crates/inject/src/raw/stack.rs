//! Stacks on which trapped calls are emulated.
//!
//! A trap may happen anywhere, on a stack of any size, so the emulation runs on one of ours. Each is owned by the
//! thread whose id stands in its slot until the trampoline, already back on the program's stack, clears it.
//!
//! A handler of the program may leave an emulation for good with siglongjmp(3). Its stack is then recognised as
//! abandoned when the same thread traps again from a place that cannot be inside it: not on that stack, not on the
//! alternate signal stack, and above (on x86-64: outside of) the frame from which the abandoned call was made. A
//! thread that ended in the middle of one is noticed when the stacks run out. This only concerns the stack: what the
//! engine held at that moment, the ring's lock say, stays held.

use crate::signals::action::thread_lives;
use crate::sys;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Usable bytes of a stack: handlers of the program that interrupt an emulation run on it too.
const SIZE: usize = 1 << 20;
const GUARD: usize = 4096;
/// How many threads can be emulating at the same time; more do it within the handler, on the stack they have.
const STACKS: usize = 1024;

/// One stack.
#[repr(C)]
pub struct Slot {
    /// The thread using it, or 0.
    owner: AtomicU32,
    _padding: u32,
    /// The program's flags, which the trampoline leaves in r11 as the instruction does.
    flags: AtomicU64,
    /// The program's stack pointer at the trap.
    trapped_at: AtomicUsize,
    /// The lowest usable address, or 0 before the first use.
    base: AtomicUsize,
}

/// Offsets for the trampoline.
pub const OWNER: usize = offset_of!(Slot, owner);
/// See [`OWNER`].
pub const FLAGS: usize = offset_of!(Slot, flags);

static SLOTS: [Slot; STACKS] = [const {
    Slot {
        owner: AtomicU32::new(0),
        _padding: 0,
        flags: AtomicU64::new(0),
        trapped_at: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
    }
}; STACKS];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Takes a stack for the calling thread, which trapped with stack pointer `trapped_at` and `flags`; `alternate` is
/// its alternate signal stack. `None` when there is none. Async-signal-safe.
pub fn take(trapped_at: usize, flags: u64, alternate: Range<usize>) -> Option<&'static Slot> {
    let me = sys::thread_id() as u32;
    let used = &SLOTS[..USED.load(Ordering::Relaxed).min(STACKS)];
    for slot in used.iter().filter(|slot| slot.owner.load(Ordering::Relaxed) == me) {
        if slot.is_abandoned(trapped_at, used, &alternate) {
            slot.owner.store(0, Ordering::Relaxed);
        }
    }
    let slot = claim(me).or_else(|| {
        reclaim_from_the_dead();
        claim(me)
    })?;
    slot.flags.store(flags, Ordering::Relaxed);
    slot.trapped_at.store(trapped_at, Ordering::Relaxed);
    Some(slot)
}

fn claim(me: u32) -> Option<&'static Slot> {
    // Acquire pairs with the trampoline's plain store, which on x86-64 is a Release: the last user is off the stack.
    let free = |slot: &&Slot| slot.owner.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let slot = SLOTS.iter().find(free)?;
    // SAFETY: both pointers are into SLOTS.
    let index = unsafe { core::ptr::from_ref(slot).offset_from(SLOTS.as_ptr()) } as usize;
    USED.fetch_max(index + 1, Ordering::Relaxed);
    if slot.base.load(Ordering::Relaxed) == 0 && !slot.map() {
        slot.owner.store(0, Ordering::Relaxed);
        return None;
    }
    Some(slot)
}

fn reclaim_from_the_dead() {
    for slot in &SLOTS {
        let owner = slot.owner.load(Ordering::Relaxed);
        if owner != 0 && !thread_lives(owner as usize) {
            // If it fails, another thread was faster.
            let _ = slot.owner.compare_exchange(owner, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Slot {
    /// The first address above the stack.
    pub fn top(&self) -> usize {
        self.base.load(Ordering::Relaxed) + SIZE
    }

    fn contains(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && (base..base + SIZE).contains(&address)
    }

    /// Whether the emulation on this stack can no longer be running beneath a trap of its thread at `now`.
    fn is_abandoned(&self, now: usize, used: &[Slot], alternate: &Range<usize>) -> bool {
        let on_ours = used.iter().any(|slot| slot.contains(now));
        let then = self.trapped_at.load(Ordering::Relaxed);
        let comparable = alternate.contains(&now) == alternate.contains(&then);
        !on_ours && comparable && now >= then
    }

    fn map(&self) -> bool {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let args = [0, GUARD + SIZE, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
        // SAFETY: a new private mapping at a place of the kernel's choice; only its upper part becomes accessible.
        unsafe {
            let mapping = sys::call(libc::SYS_mmap, args);
            if (-4095..0).contains(&mapping) {
                return false;
            }
            let base = mapping as usize + GUARD;
            let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
            if sys::call(libc::SYS_mprotect, [base, SIZE, protection, 0, 0, 0]) < 0 {
                sys::call(libc::SYS_munmap, [mapping as usize, GUARD + SIZE, 0, 0, 0, 0]);
                return false;
            }
            self.base.store(base, Ordering::Relaxed);
        }
        true
    }
}
