//! Stacks on which trapped calls are emulated.
//!
//! A trap may happen anywhere, on a stack of any size, so the emulation runs on one of the library's own stacks. Each
//! has a slot with the id of the thread that uses it. The trampoline clears the id when it is back on the program's
//! stack.
//!
//! One of the program's signal handlers may leave an emulation by siglongjmp(3) and never return. The library
//! recognises the emulation's stack as abandoned when the same thread traps again at a place that cannot be inside the
//! emulation. Such a place is on none of the library's stacks and not on the alternate signal stack. It is above (on
//! x86-64: outside of) the frame from which the abandoned call was made. The stacks of threads that ended inside an
//! emulation are found when no stack is free. All this concerns only the stack. A wait that was left is handled by the
//! engine's `ring::sleeps`.
//!
//! For the kernel, a thread on one of these stacks has left its alternate signal stack. If a handler on the alternate
//! stack made such a call, the next handler would begin at that stack's top, over the first handler's frames. So the
//! alternate stack is disabled during such an emulation, and a handler runs on the library's stack. The trap returns
//! with all signals blocked until that is done. The trap's frame stays in place. An rt_sigreturn(2) from it ends the
//! emulation, and restores stack and alternate stack in one step. If a handler jumps away, [`leaving_by_jump`] or the
//! thread's next trap enables the alternate stack again.
//!
//! A patched call from an alternate stack is left to the trap. The thread's [`Hint`] says where that stack is,
//! according to the last sigaltstack(2) that this library has noticed.
//!
//! A patched call (see [`super::patch`]) takes its stack without a system call and without changing a flag. It uses the
//! thread's [`Hint`], which [`allocate`] leaves in thread-local memory. The thread swaps a 1 into `busy`, and has the stack
//! if the old value was 0. It then fills in `trapped_at`. It fills in `owner` last, since only a slot with an owner can
//! be recognised as abandoned. A handler that jumps away between these few instructions leaks the slot: it stays busy
//! without an owner.

use crate::signals::action::thread_lives;
use crate::{signals, sys};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::os::arch::LARGEST_PAGE_BYTES;
use anyring_serve::signals::trap::range_of;
use core::mem::{offset_of, size_of};
use core::ops::Range;
use core::sync::atomic::{compiler_fence, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use libc::stack_t;

/// Usable bytes of a stack. If one of the program's handlers interrupts an emulation, it runs on that stack, too.
pub const SIZE: usize = 1 << 20;
const GUARD: usize = LARGEST_PAGE_BYTES;
/// Number of threads that can emulate a call at the same time. Further threads do it inside the SIGSYS handler, on the
/// handler's stack.
const STACKS: usize = 1024;

/// One stack.
#[repr(C)]
pub struct Slot {
    /// The thread using it, or 0. Cleared together with `busy`, by one store to both.
    owner: AtomicU32,
    /// 1 while a thread uses it, else 0.
    busy: AtomicU32,
    /// The program's flags, which the trampoline leaves in r11 as the instruction does.
    flags: AtomicU64,
    /// The program's stack pointer at the trap.
    trapped_at: AtomicUsize,
    /// The lowest usable address, or 0 before the first use.
    base: AtomicUsize,
    /// The thread whose [`Hint`] points here. Other threads do not take this slot while another is free.
    keeper: AtomicU32,
    /// The alternate signal stack that is disabled during the emulation (address, size, flags); size 0 for none.
    alternate: [AtomicUsize; 3],
}

/// Offset of `Slot::owner`, for the assembly. A store of 8 zero bytes there releases the slot.
pub const OWNER: usize = offset_of!(Slot, owner);
/// Offset of `Slot::busy`.
pub const BUSY: usize = offset_of!(Slot, busy);
/// Offset of `Slot::flags`.
#[cfg_attr(target_arch = "aarch64", expect(dead_code))] // only x86-64's instruction leaves them in a register
pub const FLAGS: usize = offset_of!(Slot, flags);
/// Offset of `Slot::trapped_at`.
pub const TRAPPED_AT: usize = offset_of!(Slot, trapped_at);
/// Offset of `Slot::base`.
pub const BASE: usize = offset_of!(Slot, base);
/// Offset of the size of the alternate signal stack. The assembly clears that size when it enables the stack again.
pub const ALTERNATE_SIZE: usize = offset_of!(Slot, alternate) + 8;
const _: () = assert!(OWNER.is_multiple_of(8) && BUSY == OWNER + 4);

/// The stack that a thread took last. It is in thread-local memory of the initial-exec kind, and only the owning thread
/// and its handlers touch it. All zeroes: there is no hint.
#[repr(C)]
pub struct Hint {
    /// The address of a [`Slot`].
    pub slot: usize,
    /// The thread's id.
    pub thread: u32,
    /// The complement of the process's id. After a fork it does not match, as the hint names a thread of the parent.
    pub not_process: u32,
    /// Start of the thread's alternate signal stack, or 0 if there is none.
    pub alternate: usize,
    /// End of the thread's alternate signal stack, or 0.
    pub alternate_top: usize,
}

anyring_engine::thread_local_memory!("anyring_thread_stack", size_of::<Hint>());

static SLOTS: [Slot; STACKS] = [const {
    Slot {
        owner: AtomicU32::new(0),
        busy: AtomicU32::new(0),
        flags: AtomicU64::new(0),
        trapped_at: AtomicUsize::new(0),
        base: AtomicUsize::new(0),
        keeper: AtomicU32::new(0),
        alternate: [const { AtomicUsize::new(0) }; 3],
    }
}; STACKS];
/// Index of the first slot that was never used.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Allocates a stack for the calling thread, which trapped with stack pointer `trapped_at` and `flags`. `alternate` is the
/// thread's alternate signal stack, as it will be restored. `None` if no stack is free. Async-signal-safe.
pub fn allocate(trapped_at: usize, flags: u64, alternate: &mut stack_t) -> Option<&'static Slot> {
    let me = sys::thread_id() as u32;
    let used = &SLOTS[..USED.load(Ordering::Relaxed).min(STACKS)];
    let mut is_nested = false;
    for slot in used.iter().filter(|slot| slot.owner.load(Ordering::Relaxed) == me) {
        if slot.is_abandoned(trapped_at, used, alternate) {
            if let Some(disabled) = slot.disabled_alternate() {
                *alternate = disabled;
            }
            slot.give_back();
        } else {
            is_nested = true;
        }
    }
    let slot = claim(me).or_else(|| {
        reclaim_from_the_dead();
        claim(me)
    })?;
    slot.flags.store(flags, Ordering::Relaxed);
    slot.trapped_at.store(trapped_at, Ordering::Relaxed);
    // Release orders it after the stores above, for a handler on this thread that calls `is_abandoned`.
    slot.owner.store(me, Ordering::Release);
    if !is_nested {
        record_alternate(alternate);
    }
    // Otherwise the hint stays on a stack in use. While that may be an abandoned one, every call has to come here.
    if !is_nested {
        remember(slot, me);
    }
    Some(slot)
}

fn claim(me: u32) -> Option<&'static Slot> {
    // Acquire pairs with the trampoline's plain store, which on x86-64 is a Release: the last user is off the stack.
    let free = |slot: &&Slot| slot.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let not_of_others = |slot: &&Slot| [0, me].contains(&slot.keeper.load(Ordering::Relaxed));
    let slot = SLOTS.iter().filter(not_of_others).find(free).or_else(|| SLOTS.iter().find(free))?;
    if slot.base.load(Ordering::Relaxed) != 0 || slot.map() {
        return Some(slot.used());
    }
    slot.give_back();
    // No memory for another one (RLIMIT_AS, say): take one that is mapped, even if another thread keeps it.
    let is_mapped = |slot: &&Slot| slot.base.load(Ordering::Relaxed) != 0;
    SLOTS.iter().filter(is_mapped).find(free).map(Slot::used)
}

/// Leaves a hint to `slot` for the next patched call of the calling thread, `me`.
fn remember(slot: &'static Slot, me: u32) {
    let hint = hint();
    let address = core::ptr::from_ref(slot) as usize;
    // SAFETY: thread-local memory, touched by nothing else during these lines but handlers of this thread, which
    // leave a valid hint too, or may be overwritten.
    unsafe {
        if (*hint).slot == address && (*hint).thread == me {
            return;
        }
        // A vforked child shares its parent's thread-local memory.
        if signals::in_borrowed_memory() {
            return;
        }
        // Invalid while it is being written.
        (*hint).not_process = 0;
        compiler_fence(Ordering::SeqCst);
        (*hint).slot = address;
        (*hint).thread = me;
        compiler_fence(Ordering::SeqCst);
        (*hint).not_process = !(sys::process_id() as u32);
    }
    slot.keeper.store(me, Ordering::Relaxed);
}

/// The calling thread's hint.
fn hint() -> *mut Hint {
    anyring_engine::own_memory!("anyring_thread_stack")
}

/// Records that the calling thread's alternate signal stack is this one from now on.
pub fn record_alternate(alternate: &stack_t) {
    let Range { start, end } = range_of(alternate);
    let hint = hint();
    // SAFETY: thread-local memory, which only this thread and its handlers touch.
    unsafe { ((*hint).alternate, (*hint).alternate_top) = (start, end) };
}

/// Returns the number of bytes of `alternate` below `address`. `None` if `address` is not on that stack.
pub fn room_on(alternate: &stack_t, address: usize) -> Option<usize> {
    let range = range_of(alternate);
    range.contains(&address).then(|| address - range.start)
}

/// True if some slot has ever kept an alternate signal stack.
static DISABLED: AtomicBool = AtomicBool::new(false);

/// Enables the calling thread's alternate signal stack: the thread is about to leave by longjmp(3), perhaps from a
/// handler whose call is emulated.
pub fn leaving_by_jump() {
    if !DISABLED.load(Ordering::Relaxed) {
        return;
    }
    let me = sys::thread_id() as u32;
    for slot in SLOTS.iter().filter(|slot| slot.owner.load(Ordering::Relaxed) == me) {
        if let Some(alternate) = slot.disabled_alternate() {
            // SAFETY: the value that the program had set; refused while the thread is on it.
            unsafe { sys::call(libc::SYS_sigaltstack, [&raw const alternate as usize, 0, 0, 0, 0, 0]) };
        }
    }
}

fn reclaim_from_the_dead() {
    for slot in &SLOTS {
        let owner = slot.owner.load(Ordering::Relaxed);
        // If the exchange fails, another thread was faster.
        if owner != 0
            && !thread_lives(owner as usize)
            && slot.owner.compare_exchange(owner, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            slot.give_back();
        }
    }
}

impl Slot {
    /// Extends the range that is searched for slots in use to this slot at least.
    fn used(&'static self) -> &'static Slot {
        // SAFETY: both pointers are into SLOTS.
        let index = unsafe { core::ptr::from_ref(self).offset_from(SLOTS.as_ptr()) } as usize;
        USED.fetch_max(index + 1, Ordering::Relaxed);
        self
    }

    /// Frees the slot. Only for the thread that has it.
    fn give_back(&self) {
        self.alternate[1].store(0, Ordering::Relaxed);
        self.owner.store(0, Ordering::Relaxed);
        // Release pairs with the Acquire in `claim`.
        self.busy.store(0, Ordering::Release);
    }

    /// If the thread trapped on its alternate signal stack `alternate`, records that this stack is disabled while the
    /// slot is in use, and returns true.
    pub fn mark_disabled(&self, trapped_at: usize, alternate: &stack_t) -> bool {
        if !range_of(alternate).contains(&trapped_at) || mutated(Mutation::AlternateStackStaysEnabled) {
            return false;
        }
        self.alternate[0].store(alternate.ss_sp as usize, Ordering::Relaxed);
        self.alternate[2].store(alternate.ss_flags as usize, Ordering::Relaxed);
        // Last, for a handler on this thread.
        compiler_fence(Ordering::Release);
        self.alternate[1].store(alternate.ss_size, Ordering::Relaxed);
        DISABLED.store(true, Ordering::Relaxed);
        true
    }

    /// Returns the alternate stack that is disabled during the emulation.
    pub fn disabled_alternate(&self) -> Option<stack_t> {
        let [address, size, flags] = [0, 1, 2].map(|at: usize| self.alternate[at].load(Ordering::Relaxed));
        (size != 0).then_some(stack_t { ss_sp: address as *mut _, ss_flags: flags as i32, ss_size: size })
    }

    /// The first address above the stack.
    pub fn top(&self) -> usize {
        self.base.load(Ordering::Relaxed) + SIZE
    }

    fn contains(&self, address: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        base != 0 && (base..base + SIZE).contains(&address)
    }

    /// True if the emulation on this stack cannot still be running beneath a trap of its thread at `now`.
    fn is_abandoned(&self, now: usize, used: &[Slot], alternate: &stack_t) -> bool {
        let on_ours = used.iter().any(|slot| slot.contains(now));
        let then = self.trapped_at.load(Ordering::Relaxed);
        if let Some(disabled) = self.disabled_alternate() {
            // A handler that interrupts the emulation is on one of these stacks.
            return !on_ours && (!range_of(&disabled).contains(&now) || now >= then);
        }
        let alternate = range_of(alternate);
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
