//! WAITID: waitid(2). An attempt never sleeps. `wq::waitid` waits for a child that has no state to report yet.

use super::{reject_unused, Context, Field, Operation, Punt, Verdict, Waiter};
use crate::os::changes::Change;
use crate::os::{check, for_now, standard, syscall, user_write_slice};
use crate::resource::files::FixedFile;
use crate::{descriptors, Errno};
use anyring_abi::Sqe;
use std::sync::Arc;

/// Waits for a child. Source: io_uring_enter(2), IORING_OP_WAITID; io_uring/waitid.c.
#[derive(Debug)]
pub struct Waitid {
    /// `P_PID`, `P_PGID`, `P_ALL` or `P_PIDFD`.
    kind: u32,
    id: i32,
    /// `WEXITED` and its like.
    options: i32,
    /// The address at which the program wants the result; 0 for none.
    info: u64,
    /// A pidfd of the child, once the request waits. During the wait the child's process id may be reused, or the
    /// program may close its own pidfd.
    pidfd: Option<Arc<FixedFile>>,
}

/// The part of `struct siginfo` that waitid(2) fills in.
#[derive(Clone, Copy, Default)]
struct Info {
    signal: i32,
    errno: i32,
    code: i32,
    pid: i32,
    uid: u32,
    status: i32,
}

/// Number of 32-bit words in `struct siginfo`.
const INFO_WORDS: usize = 32;
/// The index of the word `si_pid`: the fields after the first three words are aligned to eight bytes.
const PID_WORD: usize = 4;

impl Waitid {
    /// Reads the SQE: the kind is in `len`, the id in `fd`, the options in `file_index`, the siginfo's address in
    /// `off`.
    pub fn prep(sqe: &Sqe) -> Result<Waitid, Errno> {
        reject_unused(sqe, &[Field::Addr, Field::BufIndex, Field::Addr3, Field::OpFlags])?;
        Ok(Waitid { kind: sqe.len, id: sqe.fd, options: sqe.file_index as i32, info: sqe.off, pidfd: None })
    }

    /// True if the arguments pass the kernel's first checks. waitid(2) makes these checks too, but would then write
    /// zeroes.
    fn is_sound(&self) -> bool {
        let events = libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED;
        let known = events | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD | libc::__WCLONE | libc::__WALL;
        let named = match self.kind {
            libc::P_ALL => true,
            libc::P_PID => self.id > 0,
            libc::P_PGID | libc::P_PIDFD => self.id >= 0,
            _ => false,
        };
        self.options & !known == 0 && self.options & events != 0 && named
    }

    /// Calls waitid(2) on the child, by its pidfd if there is one.
    fn call(&self, options: i32, info: &mut [i32; INFO_WORDS]) -> Result<(), Errno> {
        let args = self.arguments(info.as_mut_ptr() as usize, options);
        check(syscall(libc::SYS_waitid, args)).map(|_| ())
    }

    fn arguments(&self, info: usize, options: i32) -> [usize; 6] {
        let (kind, id) = match &self.pidfd {
            Some(pidfd) => (libc::P_PIDFD, pidfd.fd),
            None => (self.kind, self.id),
        };
        [kind as usize, id as usize, info, options as usize, 0, 0]
    }

    /// Returns the arguments of a waitid(2) that sleeps until there is a state to report, and does not consume that
    /// state.
    pub fn sleeping(&self) -> [usize; 6] {
        self.arguments(0, self.options | libc::WNOWAIT)
    }

    /// True if the program's pidfd has O_NONBLOCK, which stands for WNOHANG.
    fn is_nonblocking(&self) -> bool {
        let number = self.pidfd.as_ref().map_or(self.id, |pidfd| pidfd.fd);
        self.kind == libc::P_PIDFD && descriptors::is_nonblocking(number)
    }

    /// True if only the thread that forked could wait for such children. The engine could not, since its own thread
    /// would wait.
    fn cannot_wait(&self) -> bool {
        self.options & libc::__WNOTHREAD != 0 && !matches!(self.kind, libc::P_PID | libc::P_PIDFD)
    }

    /// Opens a pidfd, so that the request waits for the same child even if its process id is reused. Returns the
    /// pidfd if it was opened by this call.
    pub fn own_child(&mut self) -> Option<Arc<FixedFile>> {
        if self.pidfd.is_some() {
            return None;
        }
        if !self.cannot_wait() {
            // The first attempt has found a child of this thread, so the flag has had its effect.
            self.options &= !libc::__WNOTHREAD;
        }
        let number = match self.kind {
            libc::P_PIDFD => descriptors::duplicate(self.id).ok()?,
            libc::P_PID => {
                let open = || check(syscall(libc::SYS_pidfd_open, [self.id as usize, 0, 0, 0, 0, 0]));
                let _change = Change::begin();
                let opened = standard::on_any_thread(|| standard::above(open)).ok()?;
                let opened = for_now(descriptors::owned(opened));
                std::os::fd::IntoRawFd::into_raw_fd(descriptors::to_top(opened).ok()?)
            }
            _ => return None,
        };
        self.pidfd = Some(FixedFile::in_flight(number));
        self.pidfd.clone()
    }

    /// Returns the pidfd, if it becomes readable when the awaited event may have happened.
    pub fn to_poll(&self) -> Option<&Arc<FixedFile>> {
        let only_exit = self.options & (libc::WSTOPPED | libc::WCONTINUED) == 0;
        self.pidfd.as_ref().filter(|_| only_exit)
    }

    /// Calls `place` for the `siginfo_t` to fill, as [`super::Op::each_part`] says.
    pub fn each_part(&mut self, place: &mut dyn FnMut(&'static str, usize, usize) -> usize) {
        if self.info != 0 {
            self.info = place("infop", self.info as usize, INFO_WORDS * size_of::<i32>()) as u64;
        }
    }

    fn write_back(&self, info: Info) -> Result<(), Errno> {
        if self.info == 0 {
            return Ok(());
        }
        user_write_slice(self.info, &[info.signal, info.errno, info.code])?;
        let after = self.info.wrapping_add(PID_WORD as u64 * 4);
        user_write_slice(after, &[info.pid, info.uid as i32, info.status])
    }
}

impl Operation for Waitid {
    fn issue(&mut self, _context: Context) -> Verdict {
        if !self.is_sound() {
            return Verdict::error(Errno::INVAL);
        }
        if self.kind == libc::P_PGID && self.id == 0 {
            // waitid(2) itself takes 0 for the caller's group only since Linux 5.4. From now on the request waits for
            // this group.
            self.id = own_group();
        }
        let mut raw = [0i32; INFO_WORDS];
        let (result, info) = match self.call(self.options | libc::WNOHANG, &mut raw) {
            Ok(()) if raw[PID_WORD] != 0 => {
                let [signal, errno, code, _, pid, uid, status, ..] = raw;
                (0, Info { signal, errno, code, pid, uid: uid as u32, status })
            }
            Ok(()) if self.options & libc::WNOHANG != 0 || self.is_nonblocking() => (0, Info::default()),
            Ok(()) if self.cannot_wait() => return Verdict::error(Errno::INVAL),
            Ok(()) => return Verdict::NeedsWorker(Punt::WouldWait),
            Err(Errno::CHILD) => (-Errno::CHILD.raw_os_error(), Info::default()),
            Err(error) => return Verdict::error(error),
        };
        match self.write_back(info) {
            Ok(()) => Verdict::Done(result),
            Err(error) => Verdict::error(error),
        }
    }

    fn waiter(&self) -> Option<Waiter> {
        Some(Waiter::Child)
    }

    fn is_brought(&self, _result: i32, inline: bool) -> bool {
        !inline
    }

    /// Reports zeroes for a cancelled wait. Ignores the error if the program's memory cannot be written.
    fn write_back_cancelled(&self) {
        let _ = self.write_back(Info::default());
    }
}

/// Calls getpgid(2). Returns 0 if the group belongs to another namespace.
fn own_group() -> i32 {
    syscall(libc::SYS_getpgid, [0; 6]) as i32
}
