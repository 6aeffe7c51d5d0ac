//! The descriptors that a program begins with, and their content at its end.

use crate::program::End;
use crate::record::digest;
use anyring_conformance::sys;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

/// Descriptors by name, open until the process ends.
pub struct Objects {
    numbers: BTreeMap<End, i32>,
    /// The listener's address.
    pub listener: libc::sockaddr_in,
}

/// The files that a directory holds at the beginning.
const FILE_NAMES: [&CStr; 3] = [c"f0", c"f1", c"f2"];
/// Bytes of each file at the beginning.
pub const FILE_BYTES: u32 = 6000;

fn open(directory: i32, name: &CStr, flags: i32) -> i32 {
    // SAFETY: the name is NUL-terminated and outlives the call.
    sys::owned(unsafe { libc::openat(directory, name.as_ptr(), flags | libc::O_CLOEXEC, 0o644) }, "openat")
        .into_raw_fd()
}

fn write_all(fd: i32, bytes: &[u8]) {
    // SAFETY: the bytes outlive the call, which only reads them.
    let written = unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(written, bytes.len() as isize, "fill a file");
}

impl Objects {
    /// Makes all objects in a fixed order, so that they always have the same numbers. `tmpfs` is a directory on
    /// tmpfs, the current one is on disk.
    pub fn new(tmpfs: &CStr) -> Objects {
        let mut numbers = BTreeMap::new();
        let directory = libc::O_RDONLY | libc::O_DIRECTORY;
        let directories = [open(libc::AT_FDCWD, c".", directory), open(libc::AT_FDCWD, tmpfs, directory)];
        for (index, number) in directories.into_iter().enumerate() {
            numbers.insert(End::Directory(index as u8), number);
        }
        for pipe in 0..3 {
            let (reader, writer) = sys::pipe_with(if pipe == 2 { libc::O_NONBLOCK } else { 0 });
            numbers.insert(End::PipeRead(pipe), reader.into_raw_fd());
            numbers.insert(End::PipeWrite(pipe), writer.into_raw_fd());
        }
        // SAFETY: F_SETPIPE_SZ takes an integer and touches no memory of the process.
        unsafe { libc::fcntl(numbers[&End::PipeWrite(1)], libc::F_SETPIPE_SZ, 4096) };
        let create = libc::O_RDWR | libc::O_CREAT;
        let files = [
            open(directories[0], FILE_NAMES[0], create),
            open(directories[0], FILE_NAMES[1], create | libc::O_APPEND),
            open(directories[1], FILE_NAMES[2], create),
            sys::memfd().into_raw_fd(),
        ];
        for (index, number) in files.into_iter().enumerate() {
            write_all(number, &super::memory::pattern(200 + index as u64, FILE_BYTES as usize));
            numbers.insert(End::File(index as u8), number);
        }
        for pair in 0..2 {
            let (a, b) = sys::unix_pair(libc::SOCK_STREAM);
            numbers.insert(End::Stream(pair, 0), a.into_raw_fd());
            numbers.insert(End::Stream(pair, 1), b.into_raw_fd());
        }
        let (a, b) = sys::unix_pair(libc::SOCK_DGRAM);
        numbers.insert(End::Datagram(0, 0), a.into_raw_fd());
        numbers.insert(End::Datagram(0, 1), b.into_raw_fd());
        let (a, b) = sys::tcp_pair();
        // Otherwise small segments would wait for an acknowledgement.
        [&a, &b].iter().for_each(|socket| socket.set_nodelay(true).expect("TCP_NODELAY"));
        numbers.insert(End::Tcp(0, 0), OwnedFd::from(a).into_raw_fd());
        numbers.insert(End::Tcp(0, 1), OwnedFd::from(b).into_raw_fd());
        let (listening, listener) = sys::listener();
        listening.set_nonblocking(true).expect("O_NONBLOCK");
        numbers.insert(End::Listener, OwnedFd::from(listening).into_raw_fd());
        for index in 0..4 {
            numbers.insert(End::Unconnected(index), sys::socket(libc::AF_INET, libc::SOCK_STREAM).into_raw_fd());
        }
        numbers.insert(End::Eventfd(0), sys::eventfd(0, 0).into_raw_fd());
        numbers.insert(End::Eventfd(1), sys::eventfd(0, libc::EFD_SEMAPHORE).into_raw_fd());
        numbers.insert(End::Epoll, sys::epoll().into_raw_fd());
        Objects { numbers, listener }
    }

    /// Names a descriptor.
    pub fn insert(&mut self, end: End, number: i32) {
        self.numbers.insert(end, number);
    }

    /// Returns the number; -1 if there is none of that name.
    pub fn number(&self, end: End) -> i32 {
        self.numbers.get(&end).copied().unwrap_or(-1)
    }

    /// Reads each object empty and returns what was in it. `counted` are the eventfds whose value is compared.
    pub fn state(&self, counted: impl Fn(u8) -> bool) -> BTreeMap<String, String> {
        let mut state = BTreeMap::new();
        state.insert("open descriptors".to_owned(), format!("{:?}", open_numbers()));
        state.insert("epoll".to_owned(), self.ready());
        for (&end, &number) in &self.numbers {
            let text = match end {
                End::PipeRead(_) | End::Stream(..) | End::Datagram(..) | End::Tcp(..) => rest(number),
                End::File(_) => file(number),
                End::Eventfd(index) => {
                    let value = rest(number);
                    if counted(index) {
                        value
                    } else {
                        continue;
                    }
                }
                End::Directory(_) => listing(number),
                _ => continue,
            };
            state.insert(format!("{end:?}"), text);
        }
        state
    }

    fn ready(&self) -> String {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
        // SAFETY: room for 16 events is passed.
        let count = unsafe { libc::epoll_wait(self.number(End::Epoll), events.as_mut_ptr(), 16, 0) };
        let mut seen: Vec<_> =
            events.iter().take(count.max(0) as usize).map(|event| (event.u64, event.events)).collect();
        seen.sort_unstable();
        format!("{seen:x?}")
    }
}

/// Lists the open low numbers.
fn open_numbers() -> Vec<i32> {
    (0..200).filter(|number| sys::is_open(*number)).collect()
}

fn last_error() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Reads everything that can be read without waiting.
fn rest(number: i32) -> String {
    let mut bytes = Vec::new();
    let mut part = [0_u8; 8192];
    // SAFETY: the flags of a descriptor of this program, which is at its end.
    unsafe { libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK) };
    loop {
        // SAFETY: the buffer has this length.
        let count = unsafe { libc::read(number, part.as_mut_ptr().cast(), part.len()) };
        match count {
            0 => return format!("{} and then the end", digest(&bytes)),
            -1 => return format!("{} and then error {}", digest(&bytes), last_error()),
            _ => bytes.extend_from_slice(&part[..count as usize]),
        }
        if bytes.len() > 1 << 20 {
            return format!("{} and more", digest(&bytes));
        }
    }
}

/// Position and content of a file.
fn file(number: i32) -> String {
    // SAFETY: no pointers.
    let (position, size) =
        unsafe { (libc::lseek(number, 0, libc::SEEK_CUR), libc::lseek(number, 0, libc::SEEK_END)) };
    let mut bytes = vec![0_u8; size.clamp(0, 1 << 18) as usize];
    // SAFETY: the buffer has this length.
    let count = unsafe { libc::pread(number, bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    bytes.truncate(count.max(0) as usize);
    format!("at {position} of {size}: {}", digest(&bytes))
}

/// Names, types, sizes and links in a directory.
fn listing(number: i32) -> String {
    let path = format!("/proc/self/fd/{number}");
    let Ok(entries) = std::fs::read_dir(path) else { return format!("error {}", last_error()) };
    let mut seen: Vec<String> = entries
        .flatten()
        .map(|entry| {
            use std::os::unix::fs::MetadataExt;
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.metadata() {
                Ok(data) if data.is_dir() => format!("{name}/ {:o}", data.mode()),
                Ok(data) => format!("{name} {:o} {} bytes {} links", data.mode(), data.len(), data.nlink()),
                Err(error) => format!("{name} {error}"),
            }
        })
        .collect();
    seen.sort_unstable();
    seen.join(", ")
}

/// Connects a client to `address`; its descriptor is kept until the process ends.
pub fn connect(address: &libc::sockaddr_in) -> i64 {
    // Away from the low numbers, which are compared.
    let client = sys::socket(libc::AF_INET, libc::SOCK_STREAM);
    // SAFETY: a new descriptor without another owner.
    let kept = sys::owned(unsafe { libc::fcntl(client.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 300) }, "F_DUPFD");
    drop(client);
    // SAFETY: the address outlives the call.
    let answer = unsafe {
        let length = size_of::<libc::sockaddr_in>() as u32;
        libc::connect(kept.into_raw_fd(), std::ptr::from_ref(address).cast(), length)
    };
    i64::from(answer)
}

/// Moves the descriptor to a number from 512 on, where the engine's rings are.
pub fn move_up(number: i32) -> i32 {
    if number >= 512 {
        return number;
    }
    // SAFETY: `number` is a descriptor of this program, and is closed below.
    let moved = sys::owned(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 512) }, "F_DUPFD");
    // SAFETY: the old number has no other user.
    drop(unsafe { OwnedFd::from_raw_fd(number) });
    moved.into_raw_fd()
}
