//! Trapped instructions that become jumps: a trap costs 2.7 us, a jump next to nothing.
//!
//! Where `mov $number, %eax` is directly before a `syscall`, its five bytes can hold `jmp rel32`. [`is_due`] counts the
//! traps of each instruction, without a lock, in the handler; after [`TRAPS`] of them the trapped thread, already
//! outside the handler, calls [`apply`] before it makes its call. The jump leads to an island, a page of ours within
//! reach of it, and that to [`patched`], which takes a stack, builds the frame that a trap builds, and goes on where
//! the trapped do. It leaves the same behind as the instruction: rax, the return address in rcx, the flags in r11.
//!
//! Other threads may be anywhere meanwhile. The `syscall` stays in its place, so one that has executed the mov, or a
//! branch that leads directly to the `syscall`, traps as before. The five bytes change by one store to the aligned
//! eight that they lie in, which an instruction fetch sees as a whole or not at all; an instruction that straddles two
//! such words keeps trapping. That a core may go on with the old bytes for a while does no harm. For the moment of the
//! store the page is writable as well as executable. Where that is refused (SELinux's execmod, or a filter, which may
//! kill for it: a child tries first) nothing changes.
//!
//! What can go wrong on the short way is left to the long one: without a [`stack::Hint`] that holds (a thread's first
//! call, the first after a fork, a handler's call in the middle of another), `patched` goes to the `syscall`, which
//! traps. A forked child has the patched page and the islands as its parent has them. An island stays mapped when
//! dlclose(3) unmaps the object it belongs to. Shadow stacks see nothing of a jump, and indirect branch tracking asks
//! for an endbr behind indirect jumps only: the island's is a landing pad, those back to the program are `notrack`.
//!
//! [`COUNTERS`] is written by handlers of any thread. [`apply`] runs under the lock of [`super::KNOWN`] with all
//! signals blocked, since a handler that jumps away would keep the lock.

use super::object::Object;
use super::stack::{self, Hint};
use super::trap::{self, asm_on_registers, Registers};
use super::{probe, scan, KNOWN};
use crate::signals::action::set_mask;
use crate::{signals, sys};
use anyring_engine::log;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// How often an instruction has to trap before it is patched.
const TRAPS: u32 = 64;
const PAGE: usize = 4096;
/// The bytes of `syscall`.
const SYSCALL_LENGTH: usize = 2;

static ENABLED: AtomicBool = AtomicBool::new(false);

/// How often the instruction with the return address `behind` has trapped.
struct Counter {
    behind: AtomicUsize,
    traps: AtomicU32,
}

/// Instructions beyond these keep trapping.
static COUNTERS: [Counter; 64] = [const { Counter { behind: AtomicUsize::new(0), traps: AtomicU32::new(0) } }; 64];

/// Reads `ANYRING_PATCH`. Before the first trap.
pub fn prepare() {
    let declined = std::env::var_os("ANYRING_PATCH").is_some_and(|value| value == "0");
    ENABLED.store(!declined, Ordering::Relaxed);
}

/// Counts a trap of call `number` by the instruction before `behind`: whether it is time to [`apply`].
/// Async-signal-safe.
pub fn is_due(number: i32, behind: usize) -> bool {
    let concerned = scan::is_ours(number as u64);
    if !concerned || !ENABLED.load(Ordering::Relaxed) || signals::PROCESS.load(Ordering::Relaxed).is_null() {
        return false;
    }
    counter(behind).is_some_and(|counter| counter.traps.fetch_add(1, Ordering::Relaxed) + 1 == TRAPS)
}

fn counter(behind: usize) -> Option<&'static Counter> {
    COUNTERS.iter().find(|counter| {
        let seen = counter.behind.load(Ordering::Relaxed);
        let mine = |seen| seen == 0 || seen == behind;
        seen == behind
            || (seen == 0
                && counter
                    .behind
                    .compare_exchange(0, behind, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(mine, mine))
    })
}

/// Patches the instruction before `behind`, at which this thread has trapped. Where that is not possible it keeps
/// trapping, and the log says why.
pub fn apply(behind: usize) {
    let mask = set_mask(u64::MAX);
    match KNOWN.try_lock() {
        Some(known) => {
            let site = behind - SYSCALL_LENGTH;
            let objects = known.as_ref().map_or(&[][..], |known| &known.objects);
            if let Some(object) = objects.iter().find(|object| object.sites.contains(&site)) {
                if let Err(reason) = patch(object, site) {
                    log::line(&format!("the system call at {site:#x} keeps trapping: {reason}"));
                }
            }
        }
        // Somebody is in dlopen: the next traps count again.
        None => {
            if let Some(counter) = counter(behind) {
                counter.traps.store(0, Ordering::Relaxed);
            }
        }
    }
    set_mask(mask);
}

fn patch(object: &Object, site: usize) -> Result<(), &'static str> {
    if !object.is_plain {
        return Err("its code is writable");
    }
    // SAFETY: the object is mapped readable, at least as long as the call of this thread, which comes from it, is not
    // made; nobody but us writes to it.
    let code = unsafe { core::slice::from_raw_parts(object.code.start as *const u8, object.code.len()) };
    let number = scan::number_loaded_before(code, site - object.code.start)
        .ok_or("no instruction that loads its number is directly before it")?;
    let load = site - scan::LOAD_LENGTH;
    let (word, shift) = (load & !7, load % 8);
    if shift + scan::LOAD_LENGTH > 8 {
        return Err("the instruction before it cannot be replaced at once");
    }
    if probe::patching_refusal() != 0 {
        return Err("code must not be writable here");
    }
    let island = Island::build(number, site)?;
    let distance = (island as isize - site as isize) as i32; // as `reachable` guarantees; relative to the jump's end
    let [a, b, c, d] = distance.to_le_bytes();
    let protect = |protection: i32| {
        let start = word & !(PAGE - 1);
        // SAFETY: the page holds code of the object, which stays readable and executable throughout.
        unsafe { sys::call(libc::SYS_mprotect, [start, PAGE, protection as usize, 0, 0, 0]) == 0 }
    };
    if !protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) {
        Island::remove(island);
        return Err("its page cannot be made writable");
    }
    // SAFETY: eight aligned bytes of the page that was just made writable. What others do with them is fetching.
    let code = unsafe { AtomicU64::from_ptr(word as *mut u64) };
    let old = code.load(Ordering::Relaxed);
    let mut bytes = old.to_le_bytes();
    bytes[shift..shift + scan::LOAD_LENGTH].copy_from_slice(&[0xe9, a, b, c, d]);
    // Release: the island was written before.
    let stored = code.compare_exchange(old, u64::from_le_bytes(bytes), Ordering::Release, Ordering::Relaxed);
    if !protect(libc::PROT_READ | libc::PROT_EXEC) {
        log::line("a page of code stays writable: its protection could not be restored");
    }
    stored.map(drop).map_err(|_| {
        Island::remove(island);
        "its bytes have changed meanwhile"
    })
}

/// The page to which one patched instruction jumps.
#[repr(C)]
struct Island {
    /// Loads the address of `call` and jumps to [`patched`].
    code: [u8; 16],
    /// The address of [`patched`].
    entry: usize,
    call: Call,
}

/// What [`patched`] has to know about the instruction that was patched.
#[repr(C)]
struct Call {
    /// The address of the `syscall`.
    site: usize,
    /// The address behind it.
    behind: usize,
    number: u64,
}

impl Island {
    /// Maps an island for the `syscall` of `number` at `site`, and answers its address.
    fn build(number: u32, site: usize) -> Result<usize, &'static str> {
        let page = reachable(site).ok_or("there is no free page in reach of it")?;
        // lea (call - 7)(%rip), %r11; jmp *(entry - 13)(%rip)
        let (call, entry) = (offset_of!(Island, call) as u8 - 7, offset_of!(Island, entry) as u8 - 13);
        let code = [0x4c, 0x8d, 0x1d, call, 0, 0, 0, 0xff, 0x25, entry, 0, 0, 0, 0xcc, 0xcc, 0xcc];
        let call = Call { site, behind: site + SYSCALL_LENGTH, number: u64::from(number) };
        // SAFETY: the page is new, writable, larger than an island, and nobody else knows it.
        unsafe { (page as *mut Island).write(Island { code, entry: patched as *const () as usize, call }) };
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        // SAFETY: the same page.
        if unsafe { sys::call(libc::SYS_mprotect, [page, PAGE, protection, 0, 0, 0]) } < 0 {
            Island::remove(page);
            return Err("new code cannot be made executable");
        }
        Ok(page)
    }

    fn remove(page: usize) {
        // SAFETY: called with an island to which no jump was stored.
        unsafe { sys::call(libc::SYS_munmap, [page, PAGE, 0, 0, 0, 0]) };
    }
}

/// Maps a page to which a jump at `site` reaches. Rather below it: above the program itself its heap grows.
fn reachable(site: usize) -> Option<usize> {
    const STEP: usize = 1 << 20;
    const REACH: usize = (1 << 31) - 2 * STEP;
    // A null pointer with an offset should keep faulting.
    const LOWEST: usize = STEP;
    let here = site & !(STEP - 1);
    let below = (1..REACH / STEP).map_while(|steps| here.checked_sub(steps * STEP)).filter(|at| *at >= LOWEST);
    let above = (1..REACH / STEP).map_while(|steps| here.checked_add(steps * STEP));
    below.chain(above).find(|at| map_at(*at))
}

fn map_at(address: usize) -> bool {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let args = [address, PAGE, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new private mapping, which replaces none. A kernel older than MAP_FIXED_NOREPLACE takes the address as
    // a hint; what it mapped elsewhere is unmapped again.
    unsafe {
        let mapped = sys::call(libc::SYS_mmap, args);
        if mapped > 0 && mapped as usize != address {
            sys::call(libc::SYS_munmap, [mapped as usize, PAGE, 0, 0, 0, 0]);
        }
        mapped == address as isize
    }
}

/// From an island: r11 points to its [`Call`]; rax and rcx are free, as after the mov and under the `syscall` that they
/// were meant for; all else is the program's. No flag changes before they are saved, and nothing is pushed on the
/// program's stack.
#[unsafe(naked)]
unsafe extern "C" fn patched() {
    asm_on_registers!(
        "endbr64",
        // A hint counts if its complement and this process add up to -1.
        "mov rax, [rip + anyring_thread_stack@GOTTPOFF]",
        "mov eax, fs:[rax + {hint_process}]",
        "mov rcx, [rip + {process}]",
        "mov ecx, [rcx]", // never null where something was patched
        "lea ecx, [rcx + rax + 1]",
        "jrcxz 2f",
        "jmp 9f",
        "2:",
        "mov rax, [rip + anyring_thread_stack@GOTTPOFF]",
        "mov rax, fs:[rax + {hint_slot}]",
        "mov ecx, 1",
        "xchg [rax + {busy}], ecx",
        "jrcxz 3f",
        // Somebody is on that stack, perhaps this thread: the instruction itself, which traps.
        "9:",
        "mov rax, [r11 + {number}]",
        "mov rcx, [r11 + {site}]",
        "notrack jmp rcx",
        "3:",
        "mov [rax + {trapped_at}], rsp",
        "mov rcx, [rip + anyring_thread_stack@GOTTPOFF]",
        "mov ecx, fs:[rcx + {hint_thread}]",
        "mov [rax + {owner}], ecx",
        "mov rcx, [rax + {base}]",
        "lea rcx, [rcx + {frame}]",
        "mov [rcx + {rsp}], rsp",
        "mov rsp, rcx",
        "pushfq",
        "pop rcx",
        "mov [rsp + {flags}], rcx",
        "mov [rax + {slot_flags}], rcx",
        "mov [rsp + {slot}], rax",
        "mov rax, [r11 + {number}]",
        "mov rcx, [r11 + {behind}]",
        "mov [rsp + {rax}], rax",
        "mov [rsp + {rip}], rcx",
        "mov qword ptr [rsp + {patch}], 0",
        "mov [rsp + {rdi}], rdi",
        "mov [rsp + {rsi}], rsi",
        "mov [rsp + {rdx}], rdx",
        "mov [rsp + {r10}], r10",
        "mov [rsp + {r8}], r8",
        "mov [rsp + {r9}], r9",
        "mov [rsp + {rbx}], rbx",
        "mov [rsp + {rbp}], rbp",
        "mov [rsp + {r12}], r12",
        "mov [rsp + {r13}], r13",
        "mov [rsp + {r14}], r14",
        "mov [rsp + {r15}], r15",
        "jmp {trampoline}";
        hint_process = const offset_of!(Hint, not_process),
        hint_slot = const offset_of!(Hint, slot),
        hint_thread = const offset_of!(Hint, thread),
        process = sym signals::PROCESS,
        busy = const stack::BUSY,
        owner = const stack::OWNER,
        trapped_at = const stack::TRAPPED_AT,
        base = const stack::BASE,
        slot_flags = const stack::FLAGS,
        number = const offset_of!(Call, number),
        site = const offset_of!(Call, site),
        behind = const offset_of!(Call, behind),
        frame = const stack::SIZE - size_of::<Registers>(),
        patch = const offset_of!(Registers, patch),
        trampoline = sym trap::trampoline,
    )
}
