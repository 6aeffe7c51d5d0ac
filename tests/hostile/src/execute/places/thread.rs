//! Runs steps on a thread of its own, whose attributes differ from the process's other threads.

use super::{child, Runner};
use crate::program::{manner, Step};
use libc::{c_int, c_ulong, c_void};

/// The smallest stack that pthread_attr_setstacksize(3) takes, without the frames of signals. A handler that waits on
/// a ring may be interrupted by another.
const SMALL_BYTES: usize = 16 << 10;

extern "C" {
    fn pthread_attr_setsigmask_np(attributes: *mut libc::pthread_attr_t, mask: *const libc::sigset_t) -> c_int;
}

struct Work<'a> {
    runner: &'a mut Runner,
    steps: &'a [Step],
    manner: u8,
}

impl Runner {
    /// True if the thread could be made. While it runs, the alarm is its own.
    pub fn on_thread(&mut self, manner: u8, steps: &[Step]) -> bool {
        let mut work = Work { runner: self, steps, manner };
        // SAFETY: locals; the thread has ended before `work` does.
        unsafe {
            let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
            libc::pthread_attr_init(&mut attributes);
            if manner & manner::SMALL != 0 {
                let frame = libc::getauxval(libc::AT_MINSIGSTKSZ) as usize;
                libc::pthread_attr_setstacksize(&mut attributes, SMALL_BYTES + frame);
            }
            if manner & manner::MASKED != 0 {
                pthread_attr_setsigmask_np(&mut attributes, &super::all_but_the_alarm());
            }
            // Not before the thread is known to be the program's.
            change_signals(libc::SIG_BLOCK);
            let mut thread = 0;
            let answer = libc::pthread_create(&mut thread, &attributes, be, (&raw mut work).cast());
            change_signals(libc::SIG_UNBLOCK);
            libc::pthread_attr_destroy(&mut attributes);
            if answer != 0 {
                return false;
            }
            let (mut alarm, mut kept): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigaddset(&mut alarm, libc::SIGALRM);
            libc::pthread_sigmask(libc::SIG_BLOCK, &alarm, &mut kept);
            libc::pthread_join(thread, std::ptr::null_mut());
            libc::pthread_sigmask(libc::SIG_SETMASK, &kept, std::ptr::null_mut());
        }
        true
    }
}

extern "C" fn be(work: *mut c_void) -> *mut c_void {
    // SAFETY: the maker of this thread keeps `work` alive and waits for the thread.
    let work = unsafe { &mut *work.cast::<Work>() };
    child::IS_PROGRAMS.set(true);
    if work.manner & manner::MASKED == 0 {
        change_signals(libc::SIG_UNBLOCK);
    }
    become_odd(work.manner);
    work.runner.steps(work.steps, None);
    std::ptr::null_mut()
}

/// Blocks or unblocks the program's signals in the calling thread.
fn change_signals(how: c_int) {
    // SAFETY: all zeroes are a set, and it outlives the calls.
    unsafe {
        let mut signals: libc::sigset_t = std::mem::zeroed();
        for signal in child::SIGNALS {
            libc::sigaddset(&mut signals, signal);
        }
        libc::pthread_sigmask(how, &signals, std::ptr::null_mut());
    }
}

/// Gives the thread these attributes, as far as the process may: some need privileges.
fn become_odd(manner: u8) {
    // SAFETY: locals that outlive the calls, which change the calling thread alone.
    unsafe {
        if manner & manner::PINNED != 0 {
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut cpus);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cpus);
        }
        if manner & manner::NICE != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 5);
        }
        if manner & manner::BATCH != 0 {
            let parameters: libc::sched_param = std::mem::zeroed();
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters);
        }
        if manner & manner::SLACK != 0 {
            libc::prctl(libc::PR_SET_TIMERSLACK, 5_000_000 as c_ulong);
        }
        if manner & manner::FILTERED != 0 {
            filter();
        }
    }
}

/// Refuses fsync(2) from here on, and so any FSYNC that the thread makes itself.
fn filter() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let end = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut code = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: equal, jt: 0, jf: 1, k: libc::SYS_fsync as u32 },
        libc::sock_filter { code: end, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 },
        libc::sock_filter { code: end, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: a program that outlives the call; the filter is the calling thread's alone.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1 as c_ulong, 0 as c_ulong, 0 as c_ulong, 0 as c_ulong);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER as c_ulong, &raw const program);
    }
}
