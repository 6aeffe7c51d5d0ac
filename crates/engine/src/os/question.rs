//! Questions to the kernel for which a seccomp filter may kill. A child process asks them.
//!
//! The child usually shares this process's memory. The exception is a process with a filter on a kernel older than
//! Linux 5.16. There the core dump of a killed process ends all other processes with the same memory, and so this
//! process (`zap_threads` in fs/coredump.c). In that case the child gets a copy of the memory, and writes no core file.

use super::handlers::set_mask;
use super::{arch, check, syscall};
use crate::Errno;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU8, Ordering};

const STACK: usize = 16 * 1024;

/// Whether this process itself makes the calls of a question. Relaxed: set once, before the process has threads.
static EXPENDABLE: AtomicU8 = AtomicU8::new(NEEDED);
/// The process asks in a child.
const NEEDED: u8 = 0;
/// The process asks in a child until one has answered.
const ASKS_ONE_CHILD: u8 = 1;
/// The process asks itself.
const ASKS_ITSELF: u8 = 2;

/// Makes this process ask its questions itself, since its end does nobody harm. A child still answers the first
/// question. So a process that can make no children gets the same answers as any other.
pub fn be_expendable() {
    EXPENDABLE.store(ASKS_ONE_CHILD, Ordering::Relaxed);
}

/// True if this process itself would make the calls of the next question.
pub fn asks_itself() -> bool {
    EXPENDABLE.load(Ordering::Relaxed) == ASKS_ITSELF
}

/// Returns the errno that `question` returned, as `-errno`, in a child of this process; 0 if it returned no error. EPERM
/// if a filter killed the child. ECHILD if a filter permits no child, or no wait for it. `None` if no child could be
/// made now, so the caller must not remember an answer. The question makes system calls only, and its descriptors are
/// the child's own.
pub fn ask_in_child(question: fn() -> isize) -> Option<c_int> {
    if asks_itself() {
        return Some(code_of(question));
    }
    let asked = Asked { question, is_copy: is_filtered() && super::version::running_is_older([5, 16]) };
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK) as usize;
    let stack = check(syscall(libc::SYS_mmap, [0, STACK, protection, flags, usize::MAX, 0])).ok()?;
    let answer = asked.by_child_on(stack + STACK);
    syscall(libc::SYS_munmap, [stack, STACK, 0, 0, 0, 0]);
    if answer.is_some_and(|errno| errno != libc::ECHILD) && EXPENDABLE.load(Ordering::Relaxed) == ASKS_ONE_CHILD {
        EXPENDABLE.store(ASKS_ITSELF, Ordering::Relaxed);
    }
    answer
}

/// Asks the question. Returns the errno of its answer, 0 if that is none.
fn code_of(question: fn() -> isize) -> c_int {
    (-question()).max(0) as c_int
}

/// A yes-or-no question to the kernel, whose first answer is kept. If a seccomp filter is in force, a child process
/// asks, since the filter may kill the process that asks. An older systemd's filters kill for system calls newer than
/// their lists.
pub struct Question {
    ask: fn() -> isize,
    /// The answer if a filter permits no child that could ask.
    unasked: bool,
    /// 0 before the first answer. Relaxed: every thread stores the same answer.
    answer: AtomicU8,
}

impl Question {
    const NO: u8 = 1;
    const YES: u8 = 2;

    /// Makes a question whose answer is yes if `ask` returns 0.
    pub const fn new(ask: fn() -> isize) -> Question {
        Question { ask, unasked: false, answer: AtomicU8::new(0) }
    }

    /// Makes a question whose answer is also yes if a filter permits no child that could ask. It is for calls without
    /// which nothing can be served.
    pub const fn likely(ask: fn() -> isize) -> Question {
        Question { ask, unasked: true, answer: AtomicU8::new(0) }
    }

    /// Returns the answer, and asks if necessary. False, for now, if no child can be made to ask.
    pub fn is_yes(&self) -> bool {
        match self.answer.load(Ordering::Relaxed) {
            0 => {
                let answer = if is_filtered() { ask_in_child(self.ask) } else { Some(-(self.ask)() as c_int) };
                let Some(errno) = answer else { return false };
                let is_yes = errno == 0 || (errno == libc::ECHILD && self.unasked);
                self.store(is_yes);
                is_yes
            }
            answer => answer == Self::YES,
        }
    }

    /// Returns the answer. If no child can be made to ask, the answer is no from then on.
    pub fn is_always_yes(&self) -> bool {
        if !self.is_yes() {
            let _ = self.answer.compare_exchange(0, Self::NO, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.answer.load(Ordering::Relaxed) == Self::YES
    }

    fn store(&self, is_yes: bool) {
        let answer = if is_yes { Self::YES } else { Self::NO };
        let _ = self.answer.compare_exchange(0, answer, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// A bit that [`answers`] adds to the answers. It distinguishes them from the exit status of a child that ended in
/// another way.
const ANSWERED: c_int = 1 << 6;

/// Asks up to six questions together, if a filter is in force, in one child. If the child is killed, each question
/// gets a child.
pub fn ask_together(questions: &[&Question], answers: fn() -> isize) {
    if questions.iter().all(|question| question.answer.load(Ordering::Relaxed) != 0) || !is_filtered() {
        return;
    }
    let reply = ask_in_child(answers).filter(|reply| reply & ANSWERED != 0);
    for (index, question) in questions.iter().enumerate() {
        match reply {
            Some(reply) => question.store(reply & 1 << index == 0),
            None => drop(question.is_yes()),
        }
    }
}

/// Asks the questions and returns one bit for each, in the child of [`ask_together`].
pub fn answers(questions: &[&Question]) -> isize {
    let refused = |(index, question): (usize, &&Question)| if (question.ask)() == 0 { 0 } else { 1 << index };
    -((ANSWERED | questions.iter().enumerate().map(refused).sum::<c_int>()) as isize)
}

/// Returns 0 if the call fails with this error number, which only the kernel itself returns. Used to ask a question.
pub fn is_refused_by(number: libc::c_long, args: [usize; 6], errno: c_int) -> isize {
    match syscall(number, args) {
        answer if answer == -(errno as isize) => 0,
        0.. => -(libc::EPERM as isize),
        answer => answer,
    }
}

/// Returns 0 unless the call is refused in the way of a filter. Used to ask a question. Any other error is temporary,
/// and must not be remembered.
pub fn is_permitted(number: libc::c_long, args: [usize; 6]) -> isize {
    match syscall(number, args) {
        answer if matches!(-answer as c_int, libc::EPERM | libc::EACCES | libc::ENOSYS) => answer,
        _ => 0,
    }
}

/// True if this thread has a seccomp filter.
pub fn is_filtered() -> bool {
    syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) > 0
}

struct Asked {
    question: fn() -> isize,
    /// True if the child has a copy of the memory.
    is_copy: bool,
}

impl Asked {
    fn by_child_on(&self, top: usize) -> Option<c_int> {
        // Without an exit signal the program's SIGCHLD handler and its wait(2) never find this child.
        let flags = if self.is_copy { 0 } else { libc::CLONE_VM | libc::CLONE_VFORK };
        // A signal to the whole process group must not run the program's handlers in a child that shares its memory.
        let mask = set_mask(u64::MAX);
        // SAFETY: the stack is this question's. This thread waits below until the child, which makes system calls
        // only, has ended; `self` lives until then.
        let number = unsafe { arch::make_child(flags as usize, top, child, (&raw const *self).cast_mut().cast()) };
        set_mask(mask);
        match -number as c_int {
            libc::EAGAIN | libc::ENOMEM => return None,
            1.. => return Some(libc::ECHILD),
            _ => {}
        }
        let mut status: c_int = 0;
        loop {
            let wait = [number as usize, &raw mut status as usize, libc::__WCLONE as usize, 0, 0, 0];
            match check(syscall(libc::SYS_wait4, wait)) {
                Err(Errno::INTR) => {}
                Err(_) => return Some(libc::ECHILD), // wait4(2) is refused: no child can answer
                Ok(_) if libc::WIFEXITED(status) => return Some(libc::WEXITSTATUS(status)),
                // The child was killed, but not by a filter: something on this system kills processes.
                Ok(_) if libc::WTERMSIG(status) != libc::SIGSYS => return None,
                _ => return Some(libc::EPERM),
            }
        }
    }
}

extern "C" fn child(asked: *mut c_void) -> ! {
    // SAFETY: `by_child_on` passes it, and waits for this child.
    let asked = unsafe { &*asked.cast::<Asked>() };
    if asked.is_copy {
        // The flag belongs to the memory. So it is set only if the child has a copy. Otherwise it would change for the
        // program, too.
        syscall(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, 0, 0, 0, 0, 0]);
    }
    let code = code_of(asked.question);
    // None of the program's code runs at this exit.
    loop {
        for end in [libc::SYS_exit_group, libc::SYS_exit] {
            syscall(end, [code as usize, 0, 0, 0, 0, 0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::refusing::refusing;
    use crate::os::{Os, Sys};
    use seccompiler::{apply_filter, BpfProgram, SeccompAction, SeccompFilter};

    fn ask_for_parent() -> isize {
        syscall(libc::SYS_getppid, [0; 6])
    }

    fn ask_for_missing() -> isize {
        syscall(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0])
    }

    #[test]
    fn errors_are_answered() {
        assert_eq!(ask_in_child(ask_for_parent), Some(0));
        assert_eq!(ask_in_child(ask_for_missing), Some(libc::EBADF));
    }

    fn end() -> isize {
        syscall(libc::SYS_kill, [Sys::process_id() as usize, libc::SIGKILL as usize, 0, 0, 0, 0])
    }

    #[test]
    fn a_child_that_somebody_else_ends_gives_no_answer() {
        assert_eq!(ask_in_child(end), None);
    }

    #[test]
    fn a_likely_answer_is_yes_where_no_child_can_answer() {
        static LIKELY: Question = Question::likely(ask_for_parent);
        static OTHER: Question = Question::new(ask_for_parent);
        let answers = refusing(&[(libc::SYS_wait4, None, libc::EPERM)], || [&LIKELY, &OTHER].map(Question::is_yes));
        assert_eq!(answers, [true, false]);
    }

    #[test]
    fn a_child_that_is_killed_ends_alone() {
        let below = || {
            let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
            let calls = [(libc::SYS_getppid, vec![])].into();
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, SeccompAction::KillProcess, architecture);
            let program: BpfProgram = filter.expect("a filter").try_into().expect("a program");
            apply_filter(&program).expect("install the filter");
            assert!(is_filtered());
            let copy = Asked { question: ask_for_parent, is_copy: true };
            let mut stack = vec![0_u128; STACK / 16];
            let by_copy = copy.by_child_on(stack.as_mut_ptr_range().end as usize);
            [by_copy, ask_in_child(ask_for_parent), ask_in_child(ask_for_missing)]
        };
        let answers = std::thread::spawn(below).join().expect("the thread");
        assert_eq!(answers, [libc::EPERM, libc::EPERM, libc::EBADF].map(Some));
    }
}
