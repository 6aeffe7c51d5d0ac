//! Raw `syscall` instructions. They are found in mapped code, trapped by address, and emulated by [`crate::dispatch`].
//!
//! A process without such an instruction is not changed at all. If there is one, [`start`] and `recheck` guard SIGSYS,
//! set no_new_privs, which an unprivileged filter needs, and add a filter for all threads. They run at start-up and
//! after dlopen(3), under one lock. [`ring_made`] adds a second filter with the first ring. From then on poll and
//! select cost a trap each, since a filter cannot see whether a ring is among their descriptors. The traps of each
//! filter are recorded (`installed.rs`), so that libraries that come and go do not add ever more filters. An
//! instruction that keeps making one of the three calls is replaced by a jump (`patch.rs`).
//!
//! Some calls are not trapped, and thus differ from a kernel's io_uring:
//!
//! - epoll_wait by raw instruction, which a program with its own event loop makes all the time. A level-triggered
//!   epoll_wait may report a ring although its CQ is empty, if the program emptied it without a call. This ends with
//!   the next io_uring_enter(2).
//! - Instructions in code that the loader did not map (just-in-time compilers), or that is in another of dlmopen(3)'s
//!   namespaces.
//! - Waits in an object that makes no io_uring call itself.

mod ahead;
pub mod dlopen;
mod filter;
mod hot;
mod installed;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/island.rs")]
mod island;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/loader.rs")]
mod loader;
mod object;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/patch.rs")]
mod patch;
mod scan;
mod stack;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/trap.rs")]
mod trap;
#[cfg_attr(target_arch = "aarch64", path = "aarch64/vforks.rs")]
mod vforks;

use crate::environment::variable_os;
use crate::{backend, descriptor, signals};
use anyring_engine::lock::Lock;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::resource::files;
use anyring_engine::{descriptors, identity, log, os, process, thread};
use anyring_serve::filters::{self, bpf, Way};
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};
use filter::Calls;
use object::Known;

/// Looks up the definitions that the wrappers here pre-empt.
#[cfg(not(test))]
pub(crate) fn resolve() {
    dlopen::resolve();
    vforks::resolve();
}
#[cfg(all(feature = "mutations", not(test)))]
pub(crate) use dlopen::stay;
pub use stack::{leaving_by_jump, record_alternate};

/// The results of the scan so far. It is locked in the constructor, after dlopen and with the first ring, by threads
/// that hold no other anyring lock. Locking fails in a handler that interrupted the holder. A trapped call that will be
/// patched locks it only if it is free.
static KNOWN: Lock<Option<Known>> = Lock::new(None);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// True if ANYRING_RAW=0: the instructions found are left alone. Relaxed: stored once, before the first scan.
static DECLINED: AtomicBool = AtomicBool::new(false);
/// True if [`enters_unseen`]. Relaxed, as INSTALLED: no other memory depends on either, and neither becomes false
/// again.
static ENTERS_UNSEEN: AtomicBool = AtomicBool::new(false);

/// Resets the scan in a forked child, if another thread of the parent was scanning. The next scan finds everything
/// anew.
pub fn renew_after_fork() {
    if KNOWN.is_held() {
        // SAFETY: the child has no other thread that calls this library, and the value is replaced at once.
        unsafe { KNOWN.reset() };
        if let Some(mut known) = KNOWN.lock() {
            // The old value is not dropped, since it may be half changed.
            core::mem::forget(known.replace(Known::default()));
        }
    }
}

/// True if this library has added a filter to the process, and thereby set no_new_privs.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// True if an instruction that makes io_uring_enter(2) is mapped, and none of the library's filters traps it. If such a
/// program made a ring by libc's `syscall()`, nobody would serve it.
pub fn enters_unseen() -> bool {
    ENTERS_UNSEEN.load(Ordering::Relaxed)
}

/// Scans everything mapped at start-up. It does so even if instructions are left alone, since the engine has to know
/// whether one may close a descriptor. From now on `recheck` scans later additions.
pub fn start() {
    if leaves_all_to_the_kernel() || !signals::owns_the_symbols() {
        return;
    }
    match declined() {
        true => DECLINED.store(true, Ordering::Relaxed),
        false => hot::prepare(),
    }
    if let Some(mut known) = KNOWN.lock() {
        cover(known.get_or_insert_default(), When::Start);
    }
}

/// Does the work of [`start`] later: when the kernel first refuses a ring or context that the engine will serve.
/// Before that, nothing was scanned.
pub fn start_late() {
    // Waiting for KNOWN is safe here: no thread waits here that could hold it.
    if let Some(mut known) = KNOWN.lock() {
        *known = Some(Known::late());
    }
    start();
}

/// Scans the objects that dlopen(3), which returned `handle`, has just mapped.
fn recheck(handle: *mut c_void) {
    process::notice_fork();
    if let Some(known) = KNOWN.lock().as_deref_mut().and_then(Option::as_mut) {
        known.holder = object::Holder::Nobody; // whatever a panic has left
        object::opened(known, handle);
        if !mutated(Mutation::PluginsAreNotScanned) {
            cover(known, When::Later);
        }
    }
}

/// Traps waits as well, since the program may now wait for its first ring. [`descriptor::rings_exist`] is already true.
pub fn ring_made() {
    if let Some(known) = KNOWN.lock().as_deref_mut().and_then(Option::as_mut) {
        if installed() {
            trap(known, 0, Calls::Waits);
        }
    }
}

/// The moment at which objects are scanned.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Start,
    Later,
}

fn cover(known: &mut Known, when: When) {
    let first_new = object::scan_new(known);
    hot::forget_unmapped(&known.objects);
    if backend::serves_instructions() {
        // Everything mapped was scanned, and dlopen(3) calls this again.
        descriptors::set_closes_are_seen(!known.may_close);
        vforks::update_seen(known.may_lend_memory);
        files::set_locks_are_seen(!known.may_close);
        if known.may_change_identity {
            identity::may_change_unseen();
        }
    }
    let objects = &known.objects[first_new..];
    if mutated(Mutation::EveryProcessGetsAFilter) && objects.is_empty() {
        let _ = Way::AllThreads.install(&[bpf::ret(bpf::ALLOW)]);
    }
    if objects.is_empty() || !(installed() || backend::serves_instructions()) {
        return;
    }
    let calls = if descriptor::rings_exist() { Calls::All } else { Calls::OnRings };
    let trapped = !DECLINED.load(Ordering::Relaxed) && trap(known, first_new, calls);
    if ahead::is_needed() {
        ahead::replace(objects, trapped, when == When::Start);
    }
    if !trapped {
        if objects.iter().any(|object| object.enters) {
            ENTERS_UNSEEN.store(true, Ordering::Relaxed);
        }
        if objects.iter().any(|object| object.may_change_identity) {
            identity::may_change_unseen();
        }
    }
}

/// Traps these calls in the objects from index `first` on. False if some instruction cannot be trapped.
fn trap(known: &Known, first: usize, calls: Calls) -> bool {
    let sites = || known.objects[first..].iter().flat_map(|object| &object.sites);
    if sites().all(|site| installed::trap_at(calls, site + scan::SYSCALL.len())) {
        return true;
    }
    let Some(precision) = installed::next_precision(known) else {
        log::line(
            "no further seccomp filter can be added, since there are too many: system calls of new code go to the kernel",
        );
        return false;
    };
    let Some(way) = way_to_trap() else { return false };
    // Calls that only matter with a ring could not be trapped later, for all threads.
    let calls = if way == Way::OnlyThread && calls == Calls::OnRings { Calls::All } else { calls };
    let are_trapped = |return_address| installed::trap_at(calls, return_address);
    let mut all = true;
    for filter in filter::filters(calls, precision, &known.objects[first..], are_trapped) {
        if way.install(&filter.program).is_ok() {
            INSTALLED.store(true, Ordering::Relaxed);
            installed::record(filter);
        } else {
            all = false;
        }
    }
    all
}

/// Returns how a filter may be installed. None if its traps would not be handled.
fn way_to_trap() -> Option<Way> {
    let way = filters::way()?;
    if installed() {
        return Some(way);
    }
    trap::prepare();
    signals::install_guard(libc::SIGSYS, trap::guard).ok()?;
    if !os::kernel_copies() {
        backend::guard_copies(); // the wrappers around a guarded signal read the program's memory from now on
    }
    // A trap is a signal that kills a thread which blocks it. With the guard no thread can block it any more, but one
    // may have done so before.
    if thread::another_blocks(libc::SIGSYS) && !mutated(Mutation::TrapsKill) {
        backend::open_log();
        log::line("instructions are left alone: a thread that is not in the engine blocks SIGSYS");
        return None;
    }
    Some(way)
}

/// True if the program's environment says to leave raw instructions alone.
fn declined() -> bool {
    variable_os("ANYRING_RAW").is_some_and(|value| value == "0" && !mutated(Mutation::RawZeroIsIgnored))
}

/// True if the program's environment says that nothing is served here.
fn leaves_all_to_the_kernel() -> bool {
    !backend::finds_aio() && variable_os("ANYRING_BACKEND").is_some_and(|value| value == "kernel")
}
