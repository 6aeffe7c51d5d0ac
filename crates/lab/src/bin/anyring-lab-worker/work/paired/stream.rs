//! A pipe or a TCP connection whose ends are both in this process. Requests are made on the near end.

use crate::outcome::{checked, expect, Outcome, Stop};
use anyring_lab::message::{Paired, Situation};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Both ends. The near one blocks, as in most programs; the far one does not.
pub struct Stream {
    near: std::fs::File,
    far: std::fs::File,
    bytes: usize,
    write: bool,
    waits: bool,
    /// The data that is sent to the near end, or taken from the far one.
    data: Vec<u8>,
}

/// The time that bytes may take on loopback.
const PATIENCE: Duration = Duration::from_secs(2);
/// The size of a piece (PIPE_BUF): a pipe that poll(2) reports as writable takes as much.
const PIECE: usize = 4096;
/// The size of a socket's buffer, for either direction. A request fits at once, and filling it takes little time.
const BUFFER: libc::c_int = 256 << 10;

impl Stream {
    /// Makes a pipe that holds a request's bytes at once.
    pub fn pipe(work: &Paired) -> Outcome<Stream> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which no other code has when they are taken below.
        checked("pipe2", unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
        // SAFETY: as stated.
        let [read, write] = ends.map(|end| std::fs::File::from(unsafe { OwnedFd::from_raw_fd(end) }));
        // SAFETY: a descriptor of this process and a number.
        let room = unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETPIPE_SZ, work.bytes.max(1 << 16)) };
        if room < work.bytes as i32 {
            let why = format!("a pipe cannot hold {} bytes here (/proc/sys/fs/pipe-max-size)", work.bytes);
            return Err(Stop::Missing(why));
        }
        let (near, far) = if work.opcode.is_write() { (write, read) } else { (read, write) };
        Stream::new(near, far, work)
    }

    /// Makes a connection on loopback.
    pub fn tcp(work: &Paired) -> Outcome<Stream> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
            for option in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
                let bytes: libc::c_int = BUFFER;
                let (value, size) = (std::ptr::from_ref(&bytes).cast(), size_of_val(&bytes) as u32);
                // SAFETY: a descriptor of this process and an int.
                let answer = unsafe { libc::setsockopt(end.as_raw_fd(), libc::SOL_SOCKET, option, value, size) };
                checked("setsockopt", answer)?;
            }
        }
        let [near, far] = [near, far].map(|end| std::fs::File::from(OwnedFd::from(end)));
        Stream::new(near, far, work)
    }

    fn new(near: std::fs::File, far: std::fs::File, work: &Paired) -> Outcome<Stream> {
        // SAFETY: a descriptor of this process and plain numbers; the access mode is not changed by F_SETFL.
        checked("fcntl", unsafe { libc::fcntl(far.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
        let waits = work.situation == Situation::Waiting;
        let bytes = work.bytes as usize;
        Ok(Stream { near, far, bytes, write: work.opcode.is_write(), waits, data: vec![1; bytes.max(1 << 16)] })
    }

    /// Returns the descriptor for the SQE.
    pub fn fd(&self) -> i32 {
        self.near.as_raw_fd()
    }

    /// True if a request waits until [`Stream::release`].
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Sets up the situation that a request finds.
    pub fn prepare(&mut self) -> Outcome<()> {
        match (self.write, self.waits) {
            (false, waits) => {
                while let here @ 1.. = self.here()? {
                    let room = here.min(self.data.len());
                    self.near.read_exact(&mut self.data[..room])?;
                }
                if !waits {
                    self.send()?;
                    self.arrive()?;
                }
            }
            (true, false) => self.drain()?,
            (true, true) => self.fill()?,
        }
        Ok(())
    }

    /// Gives the waiting request its data or room.
    pub fn release(&mut self) -> Outcome<()> {
        if !self.write {
            return self.send();
        }
        let end = Instant::now() + PATIENCE;
        loop {
            self.drain()?;
            if self.has_room()? {
                return Ok(());
            }
            expect(Instant::now() < end, || "the near end did not become writable".to_owned())?;
        }
    }

    /// Returns the number of bytes that can be read at the near end.
    fn here(&self) -> Outcome<usize> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int.
        checked("FIONREAD", unsafe { libc::ioctl(self.near.as_raw_fd(), libc::FIONREAD, &mut bytes) })?;
        Ok(bytes as usize)
    }

    /// Sends a request's bytes, at once.
    fn send(&mut self) -> Outcome<()> {
        let sent = self.far.write(&self.data[..self.bytes])?;
        match sent == self.bytes {
            true => Ok(()),
            false => Err(Stop::Missing(format!("its buffer takes {sent} of {} bytes at once", self.bytes))),
        }
    }

    fn arrive(&self) -> Outcome<()> {
        let end = Instant::now() + PATIENCE;
        while self.here()? < self.bytes {
            expect(Instant::now() < end, || "bytes were lost on loopback".to_owned())?;
        }
        Ok(())
    }

    fn drain(&mut self) -> Outcome<()> {
        loop {
            match self.far.read(&mut self.data) {
                Ok(0) => return Err("the near end was closed".into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn has_room(&self) -> io::Result<bool> {
        let mut poll = libc::pollfd { fd: self.near.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd.
        match unsafe { libc::poll(&mut poll, 1, 0) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(poll.revents & libc::POLLOUT != 0),
        }
    }

    /// Fills the near end until it takes no more for some time. TCP moves bytes on its own, and may take some
    /// after poll(2) reports no room.
    fn fill(&mut self) -> Outcome<()> {
        let mut quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(1) {
            match self.put_piece() {
                Ok(_) => quiet = Instant::now(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes some bytes into the near end, without waiting for room.
    fn put_piece(&mut self) -> io::Result<usize> {
        let (fd, data) = (self.near.as_raw_fd(), self.data.as_ptr().cast());
        // SAFETY: PIECE bytes of a buffer that is larger.
        let sent = unsafe { libc::send(fd, data, PIECE, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(sent as usize);
        }
        match io::Error::last_os_error() {
            // A pipe that has any room has room for as much.
            error if error.raw_os_error() == Some(libc::ENOTSOCK) => match self.has_room()? {
                true => self.near.write(&self.data[..PIECE]),
                false => Err(ErrorKind::WouldBlock.into()),
            },
            error => Err(error),
        }
    }
}
