//! SPLICE and TEE: splice(2) and tee(2) between a pipe and something else.
//!
//! The kernel's io_uring always gives SPLICE and TEE requests to a worker, which may sleep. The engine uses a worker
//! too: the calls may wait for a disk, and a broken pipe would raise SIGPIPE in the program's thread. But the worker
//! makes the call only once poll(2) reports both sides as ready. For an empty or full pipe the request waits like any
//! other. `WouldBlock(Read)` is about the input ([`Splice::own_input`]), `WouldBlock(Write)` about the output,
//! `context.fd`.
//!
//! A blocking TCP socket as the input ignores SPLICE_F_NONBLOCK. If another reader empties it between the poll and the
//! call, the worker sleeps until more data arrives. The kernel's worker would do the same.

use super::{call, Context, Direction, OnRing, Operation, Punt, Verdict};
use crate::descriptors::{check_open, is_nonblocking, is_ring, of_program, status_flags};
use crate::mutation::{mutated, Mutation};
use crate::os::{file_status, Os, Sys};
use crate::resource::files::{is_locked, FixedFile};
use crate::Errno;
use anyring_abi::{Opcode, Sqe, SPLICE_F_FD_IN_FIXED};
use std::sync::Arc;

/// All flags of splice(2).
const KNOWN_FLAGS: u32 = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
/// The offset that means "no offset given".
const NO_OFFSET: u64 = u64::MAX;

/// Moves or duplicates data through a pipe. Source: io_uring_enter(2), IORING_OP_SPLICE and IORING_OP_TEE.
#[derive(Debug)]
pub struct Splice {
    tee: bool,
    input: Input,
    input_offset: u64,
    output_offset: u64,
    bytes: u32,
    flags: u32,
}

/// The source of the data.
#[derive(Debug)]
enum Input {
    /// One of the program's descriptors.
    Number(i32),
    /// An index into the registered files that has not been looked up yet.
    Index(u32),
    /// A registered file or private duplicate that the request keeps open.
    File(Arc<FixedFile>),
}

/// The descriptor on which a splice waits.
pub struct HeldInput {
    /// The descriptor's number.
    pub fd: i32,
    /// The descriptor was made just now. Its number may have been another file's before.
    pub is_new: bool,
}

impl Splice {
    /// Reads the SQE. Source: io_uring/splice.c, `__io_splice_prep` and `io_tee_prep`.
    pub fn prep(opcode: Opcode, sqe: &Sqe) -> Result<Splice, Errno> {
        let tee = opcode == Opcode::Tee;
        if tee && (sqe.addr != 0 || sqe.off != 0) {
            return Err(Errno::INVAL);
        }
        if sqe.op_flags & !(KNOWN_FLAGS | SPLICE_F_FD_IN_FIXED) != 0 {
            return Err(Errno::INVAL);
        }
        let fixed = sqe.op_flags & SPLICE_F_FD_IN_FIXED != 0;
        Ok(Splice {
            tee,
            input: if fixed { Input::Index(sqe.file_index) } else { Input::Number(sqe.file_index as i32) },
            input_offset: if tee { NO_OFFSET } else { sqe.addr },
            output_offset: if tee { NO_OFFSET } else { sqe.off },
            bytes: sqe.len,
            flags: sqe.op_flags & KNOWN_FLAGS,
        })
    }

    /// Returns the index of a registered input. The caller looks the file up and passes it to [`Splice::set_input`]
    /// before an attempt.
    pub fn input_index(&self) -> Option<u32> {
        match self.input {
            Input::Index(index) => Some(index),
            _ => None,
        }
    }

    /// Sets the file that belongs to the index from [`Splice::input_index`].
    pub fn set_input(&mut self, file: Arc<FixedFile>) {
        self.input = Input::File(file);
    }

    /// Returns the input's number among the program's descriptors; `None` if the request holds its own descriptor.
    pub fn input_number(&self) -> Option<i32> {
        match self.input {
            Input::Number(fd) => Some(fd),
            _ => None,
        }
    }

    /// Returns the descriptor to wait on after `WouldBlock(Read)`. It belongs to the request: the program may close its
    /// number during the wait, and the kernel's request would still have the file. Errors: those of dup(2).
    pub fn own_input(&mut self) -> Result<HeldInput, Errno> {
        let number = self.input_number();
        if let Some(fd) = number {
            self.input = Input::File(FixedFile::private(fd)?);
        }
        Ok(HeldInput { fd: self.input_fd(), is_new: number.is_some() })
    }

    /// Returns the input's descriptor. For an index that was not looked up it is -1, which no call takes for a file.
    fn input_fd(&self) -> i32 {
        match &self.input {
            Input::Number(fd) => *fd,
            Input::Index(_) => -1,
            Input::File(file) => file.fd,
        }
    }

    fn transfer(&self, output: i32, flags: u32) -> Result<usize, Errno> {
        let (input, output, bytes, flags) =
            (self.input_fd() as usize, output as usize, self.bytes as usize, flags as usize);
        if self.tee && mutated(Mutation::TeeConsumes) {
            return call(libc::SYS_splice, [input, 0, output, 0, bytes, flags]);
        }
        if self.tee {
            return call(libc::SYS_tee, [input, output, bytes, flags, 0, 0]);
        }
        let mut offsets = [self.input_offset, self.output_offset];
        if mutated(Mutation::SpliceForgetsTheOffset) {
            offsets[0] = NO_OFFSET;
        }
        let [from, to] = offsets.each_mut().map(|offset| match *offset {
            NO_OFFSET => 0,
            _ => offset as *mut u64 as usize,
        });
        call(libc::SYS_splice, [input, from, output, to, bytes, flags])
    }

    /// Returns the side that poll(2) does not report as ready. Errors and hang-ups count as ready, since the call will
    /// report them. `None` if either side is no descriptor, which the call reports, too (poll(2) ignores negative
    /// numbers).
    fn unready(&self, output: i32) -> Option<Direction> {
        let mut sides = [
            libc::pollfd { fd: self.input_fd(), events: libc::POLLIN, revents: 0 },
            libc::pollfd { fd: output, events: libc::POLLOUT, revents: 0 },
        ];
        Sys::poll(&mut sides, Some(0), None).ok()?;
        if sides.iter().any(|side| side.fd < 0 || side.revents & libc::POLLNVAL != 0) {
            return None;
        }
        match sides {
            [input, _] if input.revents == 0 => Some(Direction::Read),
            [_, output] if output.revents == 0 => Some(Direction::Write),
            _ => None,
        }
    }

    /// Makes the checks that the kernel makes before it waits for either side. Source: `do_splice` and `do_tee` in
    /// fs/splice.c.
    fn check(&self, output: i32) -> Result<(), Errno> {
        let sides = [(self.input_fd(), self.input_offset), (output, self.output_offset)];
        let [input, output] = sides.map(|(fd, _)| fd);
        if status_flags(input)? & libc::O_ACCMODE == libc::O_WRONLY
            || status_flags(output)? & libc::O_ACCMODE == libc::O_RDONLY
        {
            return Err(Errno::BADF);
        }
        let pipes = [is_pipe(input), is_pipe(output)];
        if pipes == [false; 2] || (self.tee && pipes != [true; 2]) {
            return Err(Errno::INVAL);
        }
        for ((fd, offset), is_pipe) in sides.into_iter().zip(pipes) {
            if offset != NO_OFFSET && !has_position(fd) {
                return Err(if is_pipe { Errno::SPIPE } else { Errno::INVAL });
            }
        }
        if pipes == [true; 2] && same_pipe(input, output) {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// True if the plain call answers EAGAIN, instead of sleeping, when `side` is not ready. The side's own O_NONBLOCK
    /// has that effect. Two more flags have it on a pipe, and on a Unix socket as the input. These are
    /// SPLICE_F_NONBLOCK and the O_NONBLOCK of a pipe on the other side. Source: `do_splice` in fs/splice.c.
    fn gives_up(&self, side: Direction, output: i32) -> bool {
        let (own, other) = match side {
            Direction::Read => (self.input_fd(), output),
            Direction::Write => (output, self.input_fd()),
        };
        let obeys_the_call = is_pipe(own) || (side == Direction::Read && is_unix_socket(own));
        let call_gives_up = self.flags & libc::SPLICE_F_NONBLOCK != 0 || (is_pipe(other) && is_nonblocking(other));
        is_nonblocking(own) || (obeys_the_call && call_gives_up)
    }
}

impl Operation for Splice {
    fn issue(&mut self, context: Context) -> Verdict {
        if self.bytes == 0 {
            return Verdict::of(check_open(self.input_fd()).map(|()| 0));
        }
        let mut flags = self.flags | libc::SPLICE_F_NONBLOCK;
        loop {
            match self.unready(context.fd) {
                Some(side) if !self.gives_up(side, context.fd) => {
                    return match self.check(context.fd) {
                        Ok(()) => Verdict::WouldBlock(side),
                        Err(error) => Verdict::error(error),
                    };
                }
                _ if context.nonblock => return Verdict::NeedsWorker(Punt::NoForm),
                _ => {}
            }
            match self.transfer(context.fd, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if flags != self.flags => flags = self.flags,
                Ok(count) if count != self.bytes as usize => return Verdict::DoneShort(count as i32),
                answer => return Verdict::of(answer),
            }
        }
    }

    /// Finds the input, if it is a registered file.
    fn look_up(&mut self, ring: &mut impl OnRing, _fd: i32) -> Result<(), Errno> {
        if let Some(index) = self.input_index() {
            self.set_input(ring.fixed_file(index)?);
        }
        match self.input_number() {
            Some(fd) if is_ring(of_program(fd)?) => self.refused_by_ring().map_or(Ok(()), Err),
            _ => Ok(()),
        }
    }

    fn refused_by_ring(&self) -> Option<Errno> {
        (self.bytes != 0).then_some(Errno::INVAL)
    }

    /// Duplicates the input's descriptor: the request may wait for its output, or a thread may sleep in the call. A
    /// file with a lock is not duplicated, nor a file on a server that may know a lock. The duplicate could not be
    /// closed while the lock exists.
    fn own_names(&mut self) -> Option<i32> {
        // A server cannot be asked for its locks while the ring's lock is held.
        let may_be_locked = |fd| file_status(fd).is_ok_and(|status| status.is_remote()) || is_locked(fd);
        if self.input_number().is_some_and(may_be_locked) {
            return None;
        }
        // Any other error, such as a closed input, is left to the call.
        self.own_input().ok().filter(|input| input.is_new).map(|input| input.fd)
    }

    /// Returns the input, if that side is not ready.
    fn polled_number(&mut self, fd: i32, direction: Direction) -> Result<(i32, Option<i32>), Errno> {
        if direction == Direction::Write {
            return Ok((fd, self.own_names()));
        }
        let input = self.own_input()?;
        Ok((input.fd, input.is_new.then_some(input.fd)))
    }

    fn may_sleep_on_file(&self) -> bool {
        true
    }
}

/// True if the file has a position (lseek(2)).
pub(super) fn has_position(fd: i32) -> bool {
    call(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]).is_ok()
}

/// True if two pipe descriptors are ends of one pipe.
fn same_pipe(one: i32, other: i32) -> bool {
    let [one, other] = [one, other].map(|fd| file_status(fd).map(|status| (status.device, status.inode)));
    one == other
}

fn is_pipe(fd: i32) -> bool {
    call(libc::SYS_fcntl, [fd as usize, libc::F_GETPIPE_SZ as usize, 0, 0, 0, 0]).is_ok()
}

fn is_unix_socket(fd: i32) -> bool {
    super::net::socket_option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fcntl_setfl, OFlags};
    use rustix::io::{read, write};
    use rustix::pipe::pipe;
    use std::io::Write;
    use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

    fn splice(input: &impl AsRawFd, bytes: u32, flags: u32) -> Splice {
        let sqe = Sqe {
            addr: NO_OFFSET,
            off: NO_OFFSET,
            len: bytes,
            op_flags: flags,
            file_index: input.as_raw_fd() as u32,
            ..Sqe::default()
        };
        Splice::prep(Opcode::Splice, &sqe).unwrap()
    }

    fn on_worker(fd: RawFd) -> Context {
        Context { fd, nonblock: false }
    }

    #[test]
    fn a_splice_waits_for_the_side_that_is_not_ready_and_moves_data_on_a_worker() {
        let (from, feed) = pipe().unwrap();
        let (drain, to) = pipe().unwrap();
        let mut op = splice(&from, 10, 0);
        let inline = Context { fd: to.as_raw_fd(), nonblock: true };
        assert_eq!(op.issue(inline), Verdict::WouldBlock(Direction::Read));
        write(&feed, b"hello").unwrap();
        assert_eq!(op.issue(inline), Verdict::NeedsWorker(Punt::NoForm));
        assert_eq!(op.issue(on_worker(inline.fd)), Verdict::DoneShort(5));
        let mut buffer = [0; 8];
        assert_eq!(read(&drain, &mut buffer), Ok(5));
        assert_eq!(&buffer[..5], b"hello");

        fill(&to);
        write(&feed, b"more").unwrap();
        assert_eq!(op.issue(inline), Verdict::WouldBlock(Direction::Write));
        assert_eq!(op.issue(on_worker(inline.fd)), Verdict::WouldBlock(Direction::Write));
    }

    #[test]
    fn a_request_that_waits_keeps_its_input_open() {
        let (from, feed) = pipe().unwrap();
        let (_drain, to) = pipe().unwrap();
        let mut op = splice(&from, 1, 0);
        let held = op.own_input().unwrap();
        assert!(held.is_new && held.fd != from.as_raw_fd());
        let again = op.own_input().unwrap();
        assert!(!again.is_new && again.fd == held.fd);
        drop(from);
        write(&feed, b"x").unwrap();
        assert_eq!(op.issue(on_worker(to.as_raw_fd())), Verdict::Done(1));
        drop(op);
        assert_eq!(write(&feed, b"x"), Err(Errno::PIPE));
    }

    #[test]
    fn a_registered_input_is_looked_up_first() {
        let (from, feed) = pipe().unwrap();
        let (_drain, to) = pipe().unwrap();
        let sqe = Sqe { addr: NO_OFFSET, off: NO_OFFSET, len: 1, file_index: 7, ..Sqe::default() };
        let mut op = Splice::prep(Opcode::Splice, &Sqe { op_flags: SPLICE_F_FD_IN_FIXED, ..sqe }).unwrap();
        assert_eq!(op.input_index(), Some(7));
        op.set_input(FixedFile::private(from.as_raw_fd()).unwrap());
        assert_eq!(op.input_index(), None);
        write(&feed, b"x").unwrap();
        assert_eq!(op.issue(on_worker(to.as_raw_fd())), Verdict::Done(1));
    }

    fn fill(pipe: &impl std::os::fd::AsFd) {
        let pipe: BorrowedFd<'_> = pipe.as_fd();
        fcntl_setfl(pipe, OFlags::NONBLOCK).unwrap();
        while write(pipe, &[0; 4096]).is_ok() {}
        fcntl_setfl(pipe, OFlags::empty()).unwrap();
    }

    #[test]
    fn a_splice_fails_with_eagain_where_the_plain_call_would() {
        let (from, _feed) = pipe().unwrap();
        let (_drain, to) = pipe().unwrap();
        let worker = on_worker(to.as_raw_fd());
        assert_eq!(splice(&from, 1, libc::SPLICE_F_NONBLOCK).issue(worker), Verdict::error(Errno::AGAIN));
        fcntl_setfl(&to, OFlags::NONBLOCK).unwrap();
        assert_eq!(splice(&from, 1, 0).issue(worker), Verdict::error(Errno::AGAIN));
        fcntl_setfl(&to, OFlags::empty()).unwrap();
        assert_eq!(splice(&from, 1, 0).issue(worker), Verdict::WouldBlock(Direction::Read));
    }

    #[test]
    fn a_file_is_read_at_the_offset_given_and_tee_leaves_the_data() {
        let path = std::env::temp_dir().join(format!("anyring-splice-{}", std::process::id()));
        std::fs::File::create(&path).unwrap().write_all(b"0123456789").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let (drain, to) = pipe().unwrap();
        let (copy, copy_to) = pipe().unwrap();
        let mut op = Splice { input_offset: 7, ..splice(&file, 3, 0) };
        assert_eq!(op.issue(on_worker(to.as_raw_fd())), Verdict::Done(3));

        let sqe = Sqe { len: 3, file_index: drain.as_raw_fd() as u32, ..Sqe::default() };
        let mut tee = Splice::prep(Opcode::Tee, &sqe).unwrap();
        assert_eq!(tee.issue(on_worker(copy_to.as_raw_fd())), Verdict::Done(3));
        for end in [drain, copy] {
            let mut buffer = [0; 8];
            assert_eq!(read(&end, &mut buffer), Ok(3));
            assert_eq!(&buffer[..3], b"789");
        }
    }

    #[test]
    fn a_splice_is_refused_as_by_the_kernel() {
        let (from, _feed) = pipe().unwrap();
        let (_drain, to) = pipe().unwrap();
        let worker = on_worker(to.as_raw_fd());
        let bad = Sqe { op_flags: 16, ..Sqe::default() };
        assert_eq!(Splice::prep(Opcode::Splice, &bad).err(), Some(Errno::INVAL));
        assert_eq!(Splice::prep(Opcode::Tee, &Sqe { off: 1, ..Sqe::default() }).err(), Some(Errno::INVAL));
        assert_eq!(splice(&from, 0, 0).issue(worker), Verdict::Done(0));
        assert_eq!(splice(&99_999, 0, 0).issue(worker), Verdict::error(Errno::BADF));
        for nothing in [99_999, -1] {
            assert_eq!(splice(&nothing, 1, 0).issue(worker), Verdict::error(Errno::BADF));
            assert_eq!(splice(&from, 1, 0).issue(on_worker(nothing)), Verdict::error(Errno::BADF));
        }
        let mut positioned = Splice { input_offset: 0, ..splice(&from, 1, libc::SPLICE_F_NONBLOCK) };
        assert_eq!(positioned.issue(worker), Verdict::error(Errno::SPIPE));
    }
}
