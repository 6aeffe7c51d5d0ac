//! Schedules the engine threads that serve the whole process like its main thread, independent of the thread that
//! first needed them. (The kernel's workers inherit from their submitter, but serve only that submitter.)

use crate::os::{ask_in_child, is_filtered, syscall, usable_cpus, Os, Sys};
use core::sync::atomic::{AtomicU8, Ordering};

/// The kernel's default timer slack, in nanoseconds.
const TIMER_SLACK_NS: usize = 50_000;
const CPUS: usize = 8192;
const SCHED_FLAG_RESET_ON_FORK: u64 = 1;

/// struct sched_attr. Source: sched_setattr(2).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_deadline_period: [u64; 3],
}

impl Attributes {
    fn of(thread: u32) -> Option<Attributes> {
        let mut attributes = Attributes::default();
        let args = [thread as usize, &raw mut attributes as usize, size_of::<Attributes>(), 0, 0, 0];
        (syscall(libc::SYS_sched_getattr, args) == 0).then_some(attributes)
    }

    fn set(&self) -> bool {
        syscall(libc::SYS_sched_setattr, [0, &raw const *self as usize, 0, 0, 0, 0]) == 0
    }

    fn is_plain(&self) -> bool {
        self.policy != libc::SCHED_DEADLINE as u32 && self.flags & SCHED_FLAG_RESET_ON_FORK == 0
    }

    /// Returns the attributes that a child of a thread with these attributes gets, as if nothing restricted them.
    fn of_child(self) -> Attributes {
        let size = size_of::<Attributes>() as u32;
        match self.is_plain() {
            true => Attributes { size, ..self },
            false => Attributes { size, nice: self.nice.max(0), ..Attributes::default() },
        }
    }
}

/// Schedules the calling thread, an engine thread that has just begun, as if the process's main thread had made it. A
/// lower nice value and a real-time priority need privileges. Where the thread lacks them, these attributes stay as
/// they are.
pub fn as_the_process() {
    if !is_permitted() {
        return;
    }
    let process = Sys::process_id();
    let mut cpus = [0_u64; CPUS / 64];
    let bytes = affinity_of(process, &mut cpus);
    if bytes > 0 {
        syscall(libc::SYS_sched_setaffinity, [0, bytes as usize, cpus.as_ptr() as usize, 0, 0, 0]);
    }
    if let Some(wanted) = Attributes::of(process).map(Attributes::of_child) {
        if !wanted.set() {
            let nice = Attributes::of(0).map_or(0, |own| own.nice);
            Attributes { nice, ..wanted }.set();
        }
    }
    syscall(libc::SYS_prctl, [libc::PR_SET_TIMERSLACK as usize, TIMER_SLACK_NS, 0, 0, 0, 0]);
}

/// Calls `make`, which makes a thread, for a caller under SCHED_DEADLINE. The system refuses such a caller threads,
/// except ones that are scheduled in the ordinary way. `None` if the caller is not such a thread, or lacks the rights
/// (CAP_SYS_NICE).
pub fn make_under_deadline<T>(make: impl FnOnce() -> T) -> Option<T> {
    if !is_permitted() {
        return None;
    }
    let own = Attributes::of(0).filter(|own| own.policy == libc::SCHED_DEADLINE as u32)?;
    let resets = Attributes { flags: own.flags | SCHED_FLAG_RESET_ON_FORK, ..own };
    if own.flags == resets.flags || !resets.set() {
        return None;
    }
    let made = make();
    own.set();
    Some(made)
}

/// True if the calling thread may spin: it is scheduled in the ordinary way (SCHED_OTHER), and has a choice of CPUs. With
/// one CPU, the thread that it waits for could not run. A thread of SCHED_IDLE or SCHED_BATCH asks for little, and one of
/// a real-time class would keep others from running. False also if a filter keeps this from being known.
pub fn may_spin() -> bool {
    let is_other = |own: Attributes| own.policy == libc::SCHED_OTHER as u32;
    is_permitted() && Attributes::of(0).is_some_and(is_other) && usable_cpus() > 1
}

/// Returns how many bytes of the CPU set the kernel uses, or an error.
fn affinity_of(thread: u32, cpus: &mut [u64; CPUS / 64]) -> isize {
    let args = [thread as usize, size_of_val(cpus), cpus.as_mut_ptr() as usize, 0, 0, 0];
    syscall(libc::SYS_sched_getaffinity, args)
}

/// True if the calls of this module are permitted. A seccomp filter may kill for them. If there is a filter, a child
/// process asks once. Relaxed: every thread stores the same answer.
fn is_permitted() -> bool {
    const NO: u8 = 1;
    const YES: u8 = 2;
    static PERMITTED: AtomicU8 = AtomicU8::new(0);
    if !is_filtered() {
        return true;
    }
    if PERMITTED.load(Ordering::Relaxed) == 0 {
        let Some(errno) = ask_in_child(ask) else { return false };
        PERMITTED.store(if errno == 0 { YES } else { NO }, Ordering::Relaxed);
    }
    PERMITTED.load(Ordering::Relaxed) == YES
}

/// Sets the calling thread's attributes to what they are, to find out whether the kernel permits the call.
fn ask() -> isize {
    let mut cpus = [0_u64; CPUS / 64];
    let bytes = affinity_of(0, &mut cpus);
    let Some(own) = Attributes::of(0) else { return -1 };
    match bytes > 0
        && syscall(libc::SYS_sched_setaffinity, [0, bytes as usize, cpus.as_ptr() as usize, 0, 0, 0]) == 0
    {
        true if own.of_child().set() => 0,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::in_child::in_child;
    use crate::os::refusing::killing;

    fn limit_processes(most: u64) -> bool {
        let mut limit = [0_u64; 2];
        let (resource, at) = (libc::RLIMIT_NPROC as usize, limit.as_mut_ptr() as usize);
        let is_known = syscall(libc::SYS_prlimit64, [0, resource, 0, at, 0, 0]) == 0;
        limit[0] = most.min(limit[1]);
        is_known && syscall(libc::SYS_prlimit64, [0, resource, limit.as_ptr() as usize, 0, 0, 0]) == 0
    }

    #[test]
    fn a_filter_that_kills_for_the_attributes_ends_nobody() {
        let calls = [libc::SYS_sched_getattr, libc::SYS_sched_getscheduler];
        assert_eq!(killing(&calls, || u8::from(!is_filtered() || may_spin())), 0);
    }

    #[test]
    fn a_thread_with_one_cpu_never_spins() {
        std::thread::spawn(|| {
            let mut set = rustix::thread::CpuSet::new();
            set.set(rustix::thread::sched_getcpu());
            rustix::thread::sched_setaffinity(None, &set).expect("an affinity");
            assert!(!may_spin());
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn a_question_that_nobody_could_answer_is_asked_again() {
        const NOBODY: usize = 65534;
        // Allows all calls.
        let code = [libc::sock_filter { code: 6, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW }];
        let filter = libc::sock_fprog { len: 1, filter: code.as_ptr().cast_mut() };
        let body = || {
            syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]);
            let set =
                [libc::PR_SET_SECCOMP as usize, libc::SECCOMP_MODE_FILTER as usize, &raw const filter as usize];
            syscall(libc::SYS_prctl, [set[0], set[1], set[2], 0, 0, 0]);
            // Makes the process one that the limit applies to.
            syscall(libc::SYS_setresuid, [NOBODY, NOBODY, NOBODY, 0, 0, 0]);
            let refused = limit_processes(0) && is_filtered() && !is_permitted();
            u8::from(!(refused && limit_processes(u64::MAX) && is_permitted()))
        };
        assert_eq!(in_child(body), 0);
    }
}
