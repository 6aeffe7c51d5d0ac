//! Raw `syscall` instructions: found in mapped code, trapped by address, emulated by [`crate::dispatch`].
//!
//! Nothing at all happens in a process without such an instruction. Where there is one, [`start`] and `look_again`
//! guard SIGSYS, set no_new_privs, which an unprivileged filter needs, and add a filter for all threads. They run
//! under one lock, at start-up and after dlopen(3). [`ring_made`] adds a second filter with the first ring: poll and
//! select cost a trap each from then on, since a filter cannot see whether a ring is among their descriptors. What a
//! filter traps is remembered (`installed.rs`), so that libraries that come and go do not add more and more. An
//! instruction that keeps making one of the three calls is replaced by a jump (`patch.rs`).
//!
//! Not trapped, and thus different from a kernel's io_uring: epoll_wait by raw instruction, which a program with an
//! event loop of its own makes all the time. A level-triggered one on a ring whose CQ was emptied without an enter
//! reports it once more than it should, until the next enter. Neither are instructions in code that the loader did not
//! map (just-in-time compilers) or in another namespace of dlmopen(3), nor waits in an object that makes no call of
//! io_uring itself.

mod ahead;
pub mod dlopen;
mod filter;
mod installed;
mod island;
mod loader;
mod object;
mod patch;
mod scan;
mod stack;
mod trap;
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

/// Looks up what the wrappers here stand before.
#[cfg(not(test))]
pub(crate) fn resolve() {
    dlopen::resolve();
    vforks::resolve();
}
#[cfg(all(feature = "mutations", not(test)))]
pub(crate) use dlopen::stay;
pub use stack::{leaving_by_jump, note_alternate};

/// What was scanned so far. Taken in the constructor, after dlopen and with the first ring, by threads that hold no
/// other lock of ours; taking it fails in a handler that interrupted one of these. A trapped call that is to be
/// patched takes it only if it is free.
static KNOWN: Lock<Option<Known>> = Lock::new(None);
static INSTALLED: AtomicBool = AtomicBool::new(false);
/// ANYRING_RAW=0: what is found is left alone. Relaxed: stored once, before anything is looked through.
static DECLINED: AtomicBool = AtomicBool::new(false);
/// Relaxed, as INSTALLED: each is a fact of its own, and never taken back.
static ENTERS_UNSEEN: AtomicBool = AtomicBool::new(false);

/// In a forked child: where a thread of the parent's was looking, what it had found by then is forgotten, and looked for again.
pub fn renew_after_fork() {
    if KNOWN.is_held() {
        // SAFETY: the child has no other thread that calls on us, and the value is replaced right away.
        unsafe { KNOWN.reset() };
        if let Some(mut known) = KNOWN.lock() {
            // Not dropped: it may be half changed.
            core::mem::forget(known.replace(Known::default()));
        }
    }
}

/// Whether this process has a filter of ours, and with it no_new_privs.
pub fn installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

/// Whether an instruction that makes io_uring_enter(2) is mapped, and no filter of ours traps it: a ring that such a program
/// made by libc's `syscall()` would never be served.
pub fn enters_unseen() -> bool {
    ENTERS_UNSEEN.load(Ordering::Relaxed)
}

/// Looks through everything mapped at start-up: also where instructions are left alone, since it has to be known whether one
/// may close a descriptor. From now on `look_again` does the same for what is added.
pub fn start() {
    if leaves_all_to_the_kernel() || !signals::owns_the_symbols() {
        return;
    }
    match declined() {
        true => DECLINED.store(true, Ordering::Relaxed),
        false => patch::prepare(),
    }
    if let Some(mut known) = KNOWN.lock() {
        cover(known.get_or_insert_default(), When::Start);
    }
}

/// The same once the kernel has refused something that our engine is to serve: nothing was looked through for that before.
pub fn start_late() {
    // Nobody waits for KNOWN here who could hold it.
    if let Some(mut known) = KNOWN.lock() {
        *known = Some(Known::late());
    }
    start();
}

/// Looks through what dlopen(3), which answered `handle`, has just mapped.
fn look_again(handle: *mut c_void) {
    process::notice_fork();
    if let Some(known) = KNOWN.lock().as_deref_mut().and_then(Option::as_mut) {
        known.holder = object::Holder::Nobody; // whatever a panic has left
        object::opened(known, handle);
        if !mutated(Mutation::PluginsAreNotScanned) {
            cover(known, When::Later);
        }
    }
}

/// Whether what is loaded is to be looked through before its own code runs.
fn looks_at_what_is_loaded() -> bool {
    let is_known = || KNOWN.try_lock().is_some_and(|known| known.is_some());
    let declined = DECLINED.load(Ordering::Relaxed) || mutated(Mutation::PluginsAreNotScanned);
    !declined && patch::is_enabled() && backend::serves_instructions() && is_known()
}

/// The process's first ring is there, and [`descriptor::rings_exist`] says so: from now on it may be waited for.
pub fn ring_made() {
    if let Some(known) = KNOWN.lock().as_deref_mut().and_then(Option::as_mut) {
        if installed() {
            trap(known, 0, Calls::Waits);
        }
    }
}

/// When objects are looked through.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Start,
    Later,
}

fn cover(known: &mut Known, when: When) {
    let first_new = object::look(known);
    patch::forget_unmapped(&known.objects);
    if backend::serves_instructions() {
        // Everything mapped has been looked at, and dlopen(3) brings us here again.
        descriptors::set_closes_are_seen(!known.may_close);
        vforks::look(known.may_lend_memory);
        files::set_locks_are_seen(!known.may_close);
        if known.may_change_identity {
            identity::may_change_unseen();
        }
    }
    let objects = &known.objects[first_new..];
    if mutated(Mutation::EveryProcessGetsAFilter) && objects.is_empty() {
        let _ = Way::AllThreads.install(&[bpf::answer(bpf::ALLOW)]);
    }
    if objects.is_empty() || !(installed() || backend::serves_instructions()) {
        return;
    }
    let calls = if descriptor::rings_exist() { Calls::All } else { Calls::OnRings };
    let trapped = !DECLINED.load(Ordering::Relaxed) && trap(known, first_new, calls);
    if !DECLINED.load(Ordering::Relaxed) && ahead::is_needed() {
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

/// Has these calls trapped in the objects from `first` on. False where that is not possible for all of them.
fn trap(known: &Known, first: usize, calls: Calls) -> bool {
    let sites = || known.objects[first..].iter().flat_map(|object| &object.sites);
    if sites().all(|site| installed::trap_at(calls, site + scan::SYSCALL.len())) {
        return true;
    }
    let Some(precision) = installed::next_precision(known) else {
        log::line(
            "there are too many seccomp filters for another: the system calls of new code are left to the kernel",
        );
        return false;
    };
    let Some(way) = way_to_trap() else { return false };
    // What only matters with a ring could not be trapped later, for all threads.
    let calls = if way == Way::OnlyThread && calls == Calls::OnRings { Calls::All } else { calls };
    let are_trapped = |behind| installed::trap_at(calls, behind);
    let mut all = true;
    for filter in filter::filters(calls, precision, &known.objects[first..], are_trapped) {
        if way.install(&filter.program).is_ok() {
            INSTALLED.store(true, Ordering::Relaxed);
            installed::note(filter);
        } else {
            all = false;
        }
    }
    all
}

/// How a filter may be installed, if its traps are handled.
fn way_to_trap() -> Option<Way> {
    let way = filters::way()?;
    if installed() {
        return Some(way);
    }
    anyring_serve::state::prepare();
    signals::install_guard(libc::SIGSYS, trap::guard).ok()?;
    if !os::kernel_copies() {
        backend::guard_copies(); // the wrappers around a guarded signal read the program's memory from now on
    }
    // A trap is a signal that kills where it is blocked. From the guard on no thread comes to block it, but one may have.
    if thread::another_blocks(libc::SIGSYS) && !mutated(Mutation::TrapsKill) {
        backend::open_log();
        log::line("instructions are left alone: a thread that is not in the engine blocks SIGSYS");
        return None;
    }
    Some(way)
}

/// Whether raw instructions are left alone by the program's environment.
fn declined() -> bool {
    variable_os("ANYRING_RAW").is_some_and(|value| value == "0" && !mutated(Mutation::RawZeroIsIgnored))
}

/// Whether the program's environment says that nothing is served here.
fn leaves_all_to_the_kernel() -> bool {
    !backend::finds_aio() && variable_os("ANYRING_BACKEND").is_some_and(|value| value == "kernel")
}
