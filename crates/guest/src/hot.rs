//! Decides which trapped instructions become jumps (decision 27), and when: those that make io_uring_enter(2),
//! io_submit(2), or the waits of Linux AIO. `arch/` replaces them.

use crate::arch::patch;
use crate::{filter, start};
use anyring_abi::{NR_IO_GETEVENTS, NR_IO_PGETEVENTS, NR_IO_SUBMIT, NR_IO_URING_ENTER};
use anyring_engine::lock::Lock;
use anyring_engine::{log, stats};
use anyring_serve::environment::variable;
use anyring_serve::patch::ahead::{self, Refusal};
use anyring_serve::patch::counters;
use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::scan::{self, OfRings};
use anyring_serve::sys::set_mask;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

/// Held while an instruction is patched.
static PATCHING: Lock<()> = Lock::new(());
/// True if islands are possible. Relaxed: set before the guest begins.
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Reads `ANYRING_PATCH`, and checks that the processor has the instructions of islands. Call it before the guest
/// begins.
pub fn prepare() {
    let declined = variable("ANYRING_PATCH").is_some_and(|value| value == "0");
    ENABLED.store(!declined && patch::is_supported(), Ordering::Relaxed);
}

/// Counts a trap of call `number` by the instruction that ends at `return_address`. True when it is time to call [`apply`].
/// Async-signal-safe, and uses no thread-local memory.
pub fn is_due(number: i64, return_address: usize) -> bool {
    let is_hot = match number {
        NR_IO_URING_ENTER => start::serves_rings(),
        NR_IO_GETEVENTS | NR_IO_PGETEVENTS | NR_IO_SUBMIT => start::serves_aio(),
        _ => false,
    };
    is_hot && ENABLED.load(Ordering::Relaxed) && counters::count(return_address)
}

/// Patches the `syscall` that ends at `return_address`, at which this thread has trapped with a call of `number`. If that is
/// not possible, the instruction keeps trapping, and the log says why.
pub fn apply(return_address: usize, number: u32) {
    let mask = set_mask(u64::MAX);
    match PATCHING.try_lock() {
        Some(_patching) => {
            let site = return_address - SYSCALL.len();
            match patch::patch(site, When::Trapped(number)) {
                Ok(()) => count(),
                Err(why) => log::line(&format!("the system call at {site:#x} keeps trapping: {why}")),
            }
        }
        None => counters::restart(return_address),
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
            (true, Some(_patching)) => patch::patch(site, When::Ahead),
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
pub enum When {
    /// After it has trapped with a call of this number.
    Trapped(u32),
    /// Before it runs: no branch may skip it.
    Ahead,
}

/// A mapping with code.
pub struct Mapping {
    /// The addresses.
    pub range: Range<usize>,
    /// True if the guest may write to it.
    pub is_writable: bool,
}

impl Mapping {
    /// # Safety
    /// The mapping stays unchanged while the slice is used, and `range` is within it.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: the caller vouches for it.
        unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) }
    }
}

/// Returns the readable code in this process that is in the ranges where all code is trapped.
pub fn code_of_guest() -> Result<Vec<Mapping>, &'static str> {
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

/// Returns the one of `mappings` that has the instruction at `site`.
///
/// # Errors
/// The reason why its instructions must not be replaced.
pub fn with_site(mappings: &[Mapping], site: usize) -> Result<&Mapping, &'static str> {
    let around = mappings.iter().find(|mapping| mapping.range.contains(&site));
    let mapping = around.ok_or("its code is not where everything is trapped, or not readable")?;
    if mapping.is_writable {
        return Err("its code is writable");
    }
    Ok(mapping)
}
