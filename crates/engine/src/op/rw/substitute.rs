//! Nonblocking transfers without RWF_NOWAIT, for files that do not know that flag. These are pipes before Linux 6.4,
//! named FIFOs, sockets on old kernels, and all files in gVisor.
//!
//! | file | read | write |
//! |---|---|---|
//! | socket | recvmsg(2), MSG_DONTWAIT | sendmsg(2), MSG_DONTWAIT |
//! | opened with O_NONBLOCK | readv(2) | writev(2) |
//! | pipe | vmsplice(2) out of a read end (a copy), else splice(2) to an engine pipe | splice(2) from an engine pipe |
//! | other | none: a worker | none: a worker |
//!
//! No substitute changes the program's file description, waits, or takes data that does not arrive. A write to a pipe
//! without readers raises SIGPIPE as write(2) does. A write of PIPE_BUF bytes or fewer is atomic.

use crate::descriptors::status_flags;
use crate::mutation::{mutated, Mutation};
use crate::op::call;
use crate::os::calls;
use crate::os::{check, file_status, standard, syscall, FileStatus, ForNow, Os, Sys};
use crate::Errno;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::pipe::{PipeFlags, SpliceFlags};

/// The substitute for an attempt with RWF_NOWAIT.
#[derive(Debug, PartialEq, Eq)]
pub enum Substitute {
    /// The substitute's answer, as from preadv2(2) or pwritev2(2).
    Answer(Result<usize, Errno>),
    /// No substitute exists, but the file can be polled, so the request can wait for readiness.
    NoneYetReady,
    /// No substitute exists, and waiting makes no difference: the file is a regular file or a block device.
    None(FileStatus),
}

/// Transfers `bytes` bytes of the `count` iovecs at `iovecs` without waiting. `offset` is the SQE's.
pub fn transfer(
    fd: i32,
    write: bool,
    offset: u64,
    iovecs: *const [usize; 2],
    count: usize,
    bytes: u64,
) -> Substitute {
    let status = match file_status(fd) {
        Ok(status) => status,
        Err(error) => return Substitute::Answer(Err(error)),
    };
    let answer = match status.kind {
        libc::S_IFSOCK => Some(by_message(fd, write, offset, iovecs, count, bytes)),
        libc::S_IFREG | libc::S_IFBLK => return Substitute::None(status),
        kind => by_status(fd, kind == libc::S_IFIFO, write, iovecs, count, bytes),
    };
    answer.map_or(Substitute::NoneYetReady, Substitute::Answer)
}

/// Transfers in the way that the file's status flags allow; `None` if a worker must make the transfer.
fn by_status(
    fd: i32,
    pipe: bool,
    write: bool,
    iovecs: *const [usize; 2],
    count: usize,
    bytes: u64,
) -> Option<Result<usize, Errno>> {
    let flags = match status_flags(fd) {
        Ok(flags) => flags,
        Err(error) => return Some(Err(error)),
    };
    if flags & libc::O_NONBLOCK != 0 || (pipe && mutated(Mutation::PlainCallOnFifos)) {
        let number = if write { libc::SYS_writev } else { libc::SYS_readv };
        return Some(call(number, [fd as usize, iovecs as usize, count, 0, 0, 0]));
    }
    pipe.then(|| through_pipe(fd, flags, write, iovecs, count, bytes)).flatten()
}

/// Transfers by a message. A socket's own read and write are the same to the kernel.
pub fn by_message(
    fd: i32,
    write: bool,
    offset: u64,
    iovecs: *const [usize; 2],
    count: usize,
    bytes: u64,
) -> Result<usize, Errno> {
    // As in `sock_read_iter` in net/socket.c: a socket has no position, and a read of no bytes returns at once.
    if offset != 0 && offset != super::CURRENT_POSITION {
        return Err(Errno::SPIPE);
    }
    if bytes == 0 && !write {
        return Ok(0);
    }
    // `struct msghdr`: the name and its length, the iovecs and their count, the control data and its length, the flags.
    let message = [0usize, 0, iovecs as usize, count, 0, 0, 0];
    let number = if write { libc::SYS_sendmsg } else { libc::SYS_recvmsg };
    call(number, [fd as usize, message.as_ptr() as usize, libc::MSG_DONTWAIT as usize, 0, 0, 0])
}

/// Transfers on a pipe with these status flags, where read(2) or write(2) would wait.
fn through_pipe(
    fd: i32,
    flags: i32,
    write: bool,
    iovecs: *const [usize; 2],
    count: usize,
    bytes: u64,
) -> Option<Result<usize, Errno>> {
    let access = flags & libc::O_ACCMODE;
    if access == if write { libc::O_RDONLY } else { libc::O_WRONLY } {
        return Some(Err(Errno::BADF));
    }
    if bytes == 0 {
        return Some(Ok(0));
    }
    if flags & libc::O_DIRECT != 0 {
        return None; // a pipe of packets: the calls below do not keep packets apart
    }
    if write {
        return into_pipe(fd, iovecs, count);
    }
    // On a description that is open for reading and writing, vmsplice would write.
    if access == libc::O_RDONLY {
        let args = [fd as usize, iovecs as usize, count, libc::SPLICE_F_NONBLOCK as usize, 0, 0];
        if let Some(answer) = had(check(syscall(libc::SYS_vmsplice, args))) {
            return Some(answer);
        }
    }
    out_of_pipe(fd, iovecs, count, bytes)
}

/// Makes a nonblocking pipe for one call. A pipe that was kept would be shared with forked children.
fn own_pipe() -> Option<(ForNow, ForNow)> {
    standard::on_any_thread(|| calls::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)).ok()
}

fn into_pipe(fd: i32, iovecs: *const [usize; 2], count: usize) -> Option<Result<usize, Errno>> {
    let (output, input) = own_pipe()?;
    let args = [input.as_raw_fd() as usize, iovecs as usize, count, 0, 0, 0];
    let filled = match check(syscall(libc::SYS_writev, args)) {
        Ok(filled) => filled,
        Err(error) => return Some(Err(error)),
    };
    // SAFETY: the number is only borrowed for the call, which answers EBADF if it is not open.
    move_over(output.as_fd(), unsafe { BorrowedFd::borrow_raw(fd) }, filled)
}

/// Reads a pipe. tee(2) comes first and takes nothing, so that a bad buffer is found with a copy of the data.
fn out_of_pipe(fd: i32, iovecs: *const [usize; 2], count: usize, bytes: u64) -> Option<Result<usize, Errno>> {
    let copy = |from: &ForNow| call(libc::SYS_readv, [from.as_raw_fd() as usize, iovecs as usize, count, 0, 0, 0]);
    // SAFETY: the number is only borrowed for the calls, which answer EBADF if it is not open.
    let pipe = unsafe { BorrowedFd::borrow_raw(fd) };
    let (mut output, mut input) = own_pipe()?;
    let seen = match had(calls::tee(pipe, &input, bytes as usize, SpliceFlags::NONBLOCK))? {
        Ok(seen @ 1..) => seen,
        nothing => return Some(end_or_later(fd, nothing)),
    };
    let fits = match copy(&output) {
        Ok(fits) => fits,
        Err(error) => return Some(Err(error)),
    };
    if fits != seen {
        (output, input) = own_pipe()?; // drops the bytes that did not fit
    }
    Some(match move_over(pipe, input.as_fd(), fits)? {
        Ok(1..) => copy(&output),
        nothing => end_or_later(fd, nothing), // another reader was faster
    })
}

/// Corrects an answer of 0. tee(2) returns 0 at the end of the file. It also returns 0 if another reader was faster
/// than the second half of the call. At the end of the file the pipe has neither a writer nor data left.
fn end_or_later(fd: i32, answer: Result<usize, Errno>) -> Result<usize, Errno> {
    let asked = libc::POLLIN as u16;
    match answer {
        Ok(0)
            if Sys::poll_now(fd, asked)
                .is_ok_and(|seen| seen & (libc::POLLHUP as u16 | asked) != libc::POLLHUP as u16) =>
        {
            Err(Errno::AGAIN)
        }
        answer => answer,
    }
}

fn move_over(from: BorrowedFd<'_>, to: BorrowedFd<'_>, bytes: usize) -> Option<Result<usize, Errno>> {
    had(calls::splice(from, None, to, None, bytes, SpliceFlags::NONBLOCK))
}

/// Returns the answer, or `None` if the system call is unavailable.
fn had(answer: Result<usize, Errno>) -> Option<Result<usize, Errno>> {
    match answer {
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => None,
        answer => Some(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Operation;
    use crate::os::refusing::refusing;
    use rustix::fd::OwnedFd;
    use rustix::io::{read, write};
    use rustix::pipe::pipe_with;

    fn attempt(fd: impl AsFd, write: bool, bytes: &mut [u8]) -> Substitute {
        let iovec = [bytes.as_mut_ptr() as usize, bytes.len()];
        transfer(fd.as_fd().as_raw_fd(), write, 0, &iovec, 1, bytes.len() as u64)
    }

    fn answer(answer: Result<usize, Errno>) -> Substitute {
        Substitute::Answer(answer)
    }

    #[test]
    fn pipes_are_read_without_waiting() {
        read_without_waiting();
        refusing(&[(libc::SYS_vmsplice, None, libc::ENOSYS)], read_without_waiting);
    }

    fn read_without_waiting() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(attempt(&reader, false, &mut bytes), answer(Err(Errno::AGAIN)));
        assert_eq!(attempt(&reader, false, &mut []), answer(Ok(0)), "a read of nothing");
        assert_eq!(attempt(&writer, false, &mut bytes), answer(Err(Errno::BADF)));
        write(&writer, b"abcdefghij").unwrap();
        assert_eq!(attempt(&reader, false, &mut bytes), answer(Ok(8)));
        assert_eq!(&bytes, b"abcdefgh");
        let bad = [16usize, 8];
        assert_eq!(transfer(reader.as_raw_fd(), false, 0, &bad, 1, 8), answer(Err(Errno::FAULT)));
        assert_eq!(attempt(&reader, false, &mut bytes), answer(Ok(2)), "the fault took nothing");
        drop(writer);
        assert_eq!(attempt(&reader, false, &mut bytes), answer(Ok(0)), "the end");
    }

    #[test]
    fn pipes_are_written_as_far_as_there_is_room() {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let content: Vec<u8> = (0..300_000).map(|n| (n / 3) as u8).collect();
        assert_eq!(attempt(&writer, true, &mut content.clone()), answer(Ok(65536)));
        assert_eq!(attempt(&writer, true, &mut [1]), answer(Err(Errno::AGAIN)));
        let mut seen = vec![0; 65536];
        assert_eq!(read(&reader, &mut seen), Ok(65536));
        assert!(seen == content[..65536]);
        assert_eq!(transfer(writer.as_raw_fd(), true, 0, &[16usize, 8], 1, 8), answer(Err(Errno::FAULT)));
        assert_eq!(attempt(&reader, true, &mut [1]), answer(Err(Errno::BADF)));
    }

    #[test]
    fn sockets_are_used_by_messages_and_files_not_at_all() {
        let kind = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
        let (a, b) = rustix::net::socketpair(kind.0, kind.1, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(attempt(&a, false, &mut bytes), answer(Err(Errno::AGAIN)));
        assert_eq!(attempt(&b, true, &mut b"abc".clone()), answer(Ok(3)));
        assert_eq!(attempt(&a, false, &mut bytes), answer(Ok(3)));
        let iovec = [bytes.as_mut_ptr() as usize, bytes.len()];
        assert_eq!(transfer(a.as_raw_fd(), false, 4, &iovec, 1, 8), answer(Err(Errno::SPIPE)));
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(
            attempt(&file, false, &mut bytes),
            Substitute::None(file_status(file.as_raw_fd()).expect("an open file"))
        );
        let event = rustix::event::eventfd(1, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(attempt(&event, false, &mut bytes), Substitute::NoneYetReady);
        rustix::fs::fcntl_setfl(&event, rustix::fs::OFlags::NONBLOCK).unwrap();
        assert_eq!(attempt(&event, false, &mut bytes), answer(Ok(8)));
        assert_eq!(attempt(&event, false, &mut bytes), answer(Err(Errno::AGAIN)));
        assert_eq!(transfer(-1, false, 0, &iovec, 1, 8), answer(Err(Errno::BADF)));
    }

    /// Simulates gVisor's terminals, which answer EINVAL to a positioned call because they have no position.
    #[test]
    fn einval_for_a_position_leads_to_a_call_without_one() {
        use crate::op::{rw::Rw, Context, Verdict};
        use anyring_abi::{Opcode, Sqe};
        refusing(&[(libc::SYS_preadv2, Some((3, 0)), libc::EINVAL)], || {
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            write(&writer, b"line\n").unwrap();
            let mut bytes = [0u8; 8];
            let mut read = |fd: &OwnedFd| {
                let sqe = Sqe { addr: bytes.as_mut_ptr() as u64, len: 8, ..Sqe::default() };
                let mut read = Rw::prep(Opcode::Read, &sqe).unwrap();
                read.issue(Context { fd: fd.as_raw_fd(), nonblock: false })
            };
            assert_eq!(read(&reader), Verdict::DoneShort(5));
            let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
            assert_eq!(read(&file.into()), Verdict::error(Errno::INVAL), "a file has a position");
        });
    }
}
