//! Shared mappings of files that another process can make smaller, or whose disk may be full. A page may then be
//! missing when it is touched, which raises SIGBUS (mmap(2)). If the mapping is recorded in this module, an empty
//! private page takes the missing page's place. So the program continues, and only data for the file is lost.
//!
//! A signal handler reads this module's state, so it consists of atomics, and costs one system call.

use super::syscall;
use crate::os::arch::page_bytes;
use core::sync::atomic::{AtomicUsize, Ordering};

/// First address and end of each recorded mapping, or 0 for none. The end is stored first and removed last.
static NOTED: [[AtomicUsize; 2]; 4] = [const { [const { AtomicUsize::new(0) }; 2] }; 4];

/// Records a mapping of whole pages. False if the table is full.
pub fn record(address: usize, bytes: usize) -> bool {
    let end = address + bytes.next_multiple_of(page_bytes());
    NOTED.iter().any(|[first, last]| {
        // Acquire pairs with the Release in `forget`. Release pairs with the Acquire in `replace_page`.
        let taken = last.compare_exchange(0, end, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if taken {
            first.store(address, Ordering::Release);
        }
        taken
    })
}

/// Forgets the mapping that was recorded at this address, and that is unmapped now.
pub fn forget(address: usize) {
    for [first, last] in &NOTED {
        if first.compare_exchange(address, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            last.store(0, Ordering::Release); // partner: the Acquire in `record`
            return;
        }
    }
}

/// Puts an empty page at `address`, for the SIGBUS handler, so that the instruction can be retried. False if
/// `address` is in no recorded mapping, or no page is available.
pub fn replace_page(address: usize) -> bool {
    let page_bytes = page_bytes();
    let page = address & !(page_bytes - 1);
    let is_noted = NOTED.iter().any(|[first, last]| {
        // Acquire pairs with the Release in `record`.
        let first = first.load(Ordering::Acquire);
        first != 0 && (first..last.load(Ordering::Relaxed)).contains(&page)
    });
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as usize;
    is_noted && syscall(libc::SYS_mmap, [page, page_bytes, protection, flags, usize::MAX, 0]) == page as isize
}

/// Installs a SIGBUS handler, in an anyring program that reads such files without the library's handler. It replaces
/// missing pages as this module's head says. Any other SIGBUS ends the process.
///
/// # Errors
/// That of sigaction(2).
pub fn handle_faults() -> std::io::Result<()> {
    // SAFETY: all zeros are a valid sigaction: no flags, no mask, the default action.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the action is complete, and its handler is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, core::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// The `si_code` of a SIGBUS for a page that a mapped file does not have. Source: sigaction(2). The libc crate lacks
/// it.
pub const BUS_ADRERR: i32 = 2;

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo to a handler with SA_SIGINFO, and a siginfo with this code has an address.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code != BUS_ADRERR || !replace_page(address) {
        // SAFETY: async-signal-safe. The instruction or the signal is repeated, and ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        if code <= 0 {
            // SAFETY: as above.
            unsafe { libc::raise(signal) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_noted_mappings_are_replaced() {
        use rustix::mm::{mmap_anonymous, munmap, MapFlags, ProtFlags};
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let mapped = unsafe { mmap_anonymous(core::ptr::null_mut(), 2 * page_bytes(), prot, MapFlags::PRIVATE) };
        let mapped = mapped.expect("two pages").cast::<AtomicUsize>();
        // SAFETY: an aligned word of that mapping.
        let word = unsafe { &*mapped };
        let address = mapped as usize;
        word.store(7, Ordering::Relaxed);
        assert!(!replace_page(address));
        assert!(record(address, 1));
        assert!(!replace_page(address + page_bytes()) && !replace_page(address - 1));
        assert_eq!(word.load(Ordering::Relaxed), 7);
        assert!(replace_page(address + 5));
        assert_eq!(word.load(Ordering::Relaxed), 0);
        forget(address);
        assert!(!replace_page(address));
        // SAFETY: the mapping made above, whose word is not used any more.
        unsafe { munmap(mapped.cast(), 2 * page_bytes()) }.expect("munmap");
    }
}
