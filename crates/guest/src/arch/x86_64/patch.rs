//! Trapped instructions that become jumps (decision 27): those that make io_uring_enter(2), io_submit(2), or the waits
//! of Linux AIO.
//!
//! The first choice is to replace the `syscall` itself. Its two bytes become the first two of a jump, and the bytes
//! after it become the upper part of the jump's distance. Those bytes stay unchanged, so that a thread that waits in
//! the kernel finds them when it returns. Every path to the `syscall` leads to the jump. No instruction has to be
//! moved, even if the number is loaded far away, as in generic wrappers (Go's, musl's, Zig's). If that distance leads
//! to no free page, one of the instructions before the `syscall` becomes the jump, as in the preloaded library.

use super::crossing::{self, Entering};
use super::fast;
use super::island::{self, Calls, Data, Met};
use crate::{filter, start};
use anyring_abi::{NR_IO_GETEVENTS, NR_IO_PGETEVENTS, NR_IO_SUBMIT, NR_IO_URING_ENTER};
use anyring_engine::lock::Lock;
use anyring_engine::{log, stats};
use anyring_serve::environment::variable;
use anyring_serve::patch::ahead::{self, Refusal};
use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::jump::Jump;
use anyring_serve::patch::scan::{self, OfRings};
use anyring_serve::patch::{counters, origin, run};
use anyring_serve::probe;
use anyring_serve::sys::set_mask;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use libc::ucontext_t;

/// The distances at which the program itself is, so that no island is placed there. They need not include a heap,
/// since the program break is elsewhere.
const AVOIDED: Range<isize> = -(1 << 20)..1 << 20;

/// Held while an instruction is patched.
static PATCHING: Lock<()> = Lock::new(());
/// True if islands are possible. Relaxed: set before the guest begins.
static ENABLED: AtomicBool = AtomicBool::new(false);
/// True if there may be an island. Relaxed: a thread on an island came by a jump, which was stored later than this
/// flag.
static ANY: AtomicBool = AtomicBool::new(false);

/// Reads `ANYRING_PATCH`, and checks that the processor has the instructions of islands. Call it before the guest
/// begins.
pub fn prepare() {
    const BMI2: u32 = 1 << 8;
    let declined = variable("ANYRING_PATCH").is_some_and(|value| value == "0");
    let has_it = core::arch::x86_64::__cpuid_count(7, 0).ebx & BMI2 != 0;
    ENABLED.store(!declined && has_it, Ordering::Relaxed);
}

/// Counts a trap of call `number` by the instruction that ends at `behind`. True when it is time to call [`apply`].
/// Async-signal-safe, and uses no thread-local memory.
pub fn is_due(number: i64, behind: usize) -> bool {
    let is_hot = match number {
        NR_IO_URING_ENTER => start::serves_rings(),
        NR_IO_GETEVENTS | NR_IO_PGETEVENTS | NR_IO_SUBMIT => start::serves_aio(),
        _ => false,
    };
    is_hot && ENABLED.load(Ordering::Relaxed) && counters::count(behind)
}

/// Patches the `syscall` that ends at `behind`, at which this thread has trapped with a call of `number`. If that is
/// not possible, the instruction keeps trapping, and the log says why.
pub fn apply(behind: usize, number: u32) {
    let mask = set_mask(u64::MAX);
    match PATCHING.try_lock() {
        Some(_patching) => {
            let site = behind - SYSCALL.len();
            match patch(site, &Calls::trapped(number), When::Trapped) {
                Ok(()) => count(),
                Err(why) => log::line(&format!("the system call at {site:#x} keeps trapping: {why}")),
            }
        }
        None => counters::restart(behind),
    }
    set_mask(mask);
}

fn count() {
    stats::stats().patches.fetch_add(1, Ordering::Relaxed);
}

/// If a filter kills for io_uring's calls, replaces the instructions in this code that may make such calls, before they
/// run. An error is the reason why `anyring run` must refuse the program.
pub fn ahead(code: Range<usize>) -> Result<(), String> {
    if !start::serves_rings() || !ahead::is_needed() {
        return Ok(());
    }
    let mapping = Mapping { range: code.clone(), is_writable: false };
    // SAFETY: just mapped; if another thread unmaps it during the scan, that is a race in the program itself.
    let bytes = unsafe { mapping.bytes(code.clone()) };
    for OfRings { offset, is_likely } in scan::of_rings(bytes).unwrap_or_default() {
        let site = code.start + offset;
        let replaced = match (ENABLED.load(Ordering::Relaxed), PATCHING.lock()) {
            (true, Some(_patching)) => patch(site, &Calls::ahead(), When::Ahead),
            _ => Err("nothing may be replaced here"),
        };
        match replaced {
            Ok(()) => count(),
            Err(why) if ahead::is_refused(site, why) && is_likely => return Err(Refusal { site, why }.to_string()),
            Err(_) => {}
        }
    }
    Ok(())
}

/// When an instruction is patched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Trapped,
    /// Before it runs: no branch may skip it.
    Ahead,
}

fn patch(site: usize, calls: &Calls, when: When) -> Result<(), &'static str> {
    let mappings = code_of_guest()?;
    let around = mappings.iter().find(|mapping| mapping.range.contains(&site));
    let object = around.ok_or("its code is not where everything is trapped, or not readable")?;
    if object.is_writable {
        return Err("its code is writable");
    }
    if !ANY.load(Ordering::Relaxed) {
        // SAFETY: the kernel has just said that this is mapped and readable; the guest unmaps no code that it runs.
        let sets_fs = |mapping: &Mapping| sets_fs(unsafe { mapping.bytes(mapping.range.clone()) });
        match (mappings.iter().any(sets_fs), when) {
            (true, When::Trapped) => return Err("the program has an instruction that sets the FS base"),
            // All calls from islands trap then.
            (true, When::Ahead) => fast::give_up(),
            (false, _) => {}
        }
    }
    let first = site.saturating_sub(run::AROUND + run::MOVED_AT_MOST).max(object.range.start);
    // SAFETY: as above: part of the mapping from which this thread has made its call.
    let mut code = unsafe { object.bytes(first..object.range.end.min(site + run::AROUND)) }.to_vec();
    origin::restore(&mut code, first);
    if code.get(site - first..site - first + SYSCALL.len()) != Some(&SYSCALL) {
        return Err("it is no instruction of this kind");
    }
    let in_place = Jump::in_place(&code, first, site - first, &AVOIDED);
    let mut starts = run::starts(&code, site - first, true);
    starts.retain(|start| when == When::Trapped || !start.is_passed);
    let before = Jump::before(&code, first, &starts, site - first, &AVOIDED);
    let mut refusal = "nothing at or before it can be replaced at once";
    if let Some(why) = probe::patching_refusal() {
        return Err(why);
    }
    for jump in in_place.into_iter().chain(before).filter(|jump| !origin::overlaps(jump.from)) {
        let moved = &code[jump.from - first..site - first];
        let is_fit = |at: usize| filter::is_covered(&(at..at + 1));
        ANY.store(true, Ordering::Relaxed);
        match island::build(&jump, calls, site, moved, is_fit) {
            Ok(island) => return jump.store(island).inspect_err(|_| island::remove(island)),
            Err(why) => refusal = why,
        }
    }
    Err(refusal)
}

/// A mapping with code.
struct Mapping {
    range: Range<usize>,
    is_writable: bool,
}

impl Mapping {
    /// # Safety
    /// The mapping stays unchanged while the slice is used, and `range` is within it.
    unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the caller vouches for it.
        unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) }
    }
}

/// Returns the readable code in this process that is in the ranges where all code is trapped.
fn code_of_guest() -> Result<Vec<Mapping>, &'static str> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|_| "/proc/self/maps cannot be read")?;
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let range = number(start)?..number(end)?;
        let has = |place: usize, letter: u8| rest.as_bytes().get(place) == Some(&letter);
        (has(0, b'r') && has(2, b'x') && filter::is_covered(&range))
            .then_some(Mapping { range, is_writable: has(1, b'w') })
    };
    let mut all: Vec<Mapping> = Vec::new();
    for next in maps.lines().filter_map(mapping) {
        match all.last_mut() {
            // Storing a jump makes the kernel split a piece of code into several mappings.
            Some(last) if last.range.end == next.range.start && last.is_writable == next.is_writable => {
                last.range.end = next.range.end;
            }
            _ => all.push(next),
        }
    }
    Ok(all)
}

/// True if the bytes may contain an instruction that sets the FS base: wrfsbase.
fn sets_fs(code: &[u8]) -> bool {
    code.windows(3).enumerate().any(|(at, bytes)| {
        let prefix = |back: usize| at.checked_sub(back).map_or(0, |at| code[at]);
        let is_in_its_form = bytes[0] == 0x0f && bytes[1] == 0xae && (0xd0..=0xd7).contains(&bytes[2]);
        is_in_its_form && (prefix(1) == 0xf3 || (prefix(2) == 0xf3 && prefix(1) & 0xf0 == 0x40))
    })
}

/// Checks readable code that the guest has mapped. If the code may set the FS base, threads can no longer be found by
/// their FS base.
pub fn code_was_mapped(code: Range<usize>) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let mapping = Mapping { range: code.clone(), is_writable: false };
    // SAFETY: just mapped; if another thread unmaps it during the scan, that is a race in the program itself.
    if sets_fs(unsafe { mapping.bytes(code) }) {
        log::line("new code sets the FS base: calls trap again");
        fast::give_up();
    }
}

/// Hides islands from the guest's signal handlers. If the signal has interrupted the thread on an island or at its end,
/// the context is changed. It becomes that of the patched instruction, or of the one after it, and the thread continues
/// from there. Called by handlers in the guest's world.
pub fn set_back(context: &mut ucontext_t) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let gregs = &mut context.uc_mcontext.gregs;
    let address = gregs[libc::REG_RIP as usize] as usize;
    if let Some(entering) = crossing::entering(address) {
        let is_taken = match entering {
            Entering::Nothing => false,
            Entering::Asked => gregs[libc::REG_RCX as usize] as u8 == 0,
            Entering::Owns => true,
        };
        // SAFETY: there, rax is the thread's block, and r11 points to the data of an island.
        let (block, data) = unsafe {
            let data = gregs[libc::REG_R11 as usize] as *const Data;
            (&*(gregs[libc::REG_RAX as usize] as *const crate::world::Block), &*data)
        };
        if is_taken {
            block.levels[0].busy.store(0, Ordering::Relaxed);
        }
        gregs[libc::REG_RIP as usize] = data.site as i64;
        gregs[libc::REG_RAX as usize] = data.at_site(data.number) as i64;
        return;
    }
    match island::met(address) {
        None => {}
        Some(Met::Moved(there)) => gregs[libc::REG_RIP as usize] = there as i64,
        Some(Met::Before { data, number }) => {
            let rax = &mut gregs[libc::REG_RAX as usize];
            *rax = data.at_site(number.unwrap_or(*rax as u64)) as i64;
            gregs[libc::REG_RIP as usize] = data.site as i64;
        }
        Some(Met::Behind(there)) => {
            gregs[libc::REG_RIP as usize] = there as i64;
            gregs[libc::REG_RCX as usize] = there as i64;
        }
    }
}
