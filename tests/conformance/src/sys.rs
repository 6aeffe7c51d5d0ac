//! System calls that cases need beside io_uring's, each safe to call: files, pipes, sockets, signals.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

pub use libc::{
    EACCES, EAGAIN, EALREADY, EBADF, EBADFD, EBUSY, ECANCELED, ECONNREFUSED, EEXIST, EFAULT, EINTR, EINVAL,
    EISCONN, EISDIR, ELOOP, EMFILE, EMSGSIZE, ENODATA, ENOENT, ENOMEM, ENOTCONN, ENOTEMPTY, ENOTSOCK, ENXIO,
    EOPNOTSUPP, EOVERFLOW, EPIPE, ESPIPE, ETIME, EXDEV,
};

/// A pipe: the read end and the write end.
pub fn pipe() -> (File, File) {
    pipe_with(0)
}

/// A pipe with pipe2(2)'s flags on both ends.
pub fn pipe_with(flags: i32) -> (File, File) {
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers is passed.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), flags | libc::O_CLOEXEC) }, 0, "pipe2");
    // SAFETY: pipe2 has just made both descriptors, which have no other owner.
    unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) }
}

/// A pipe of one page whose buffer is full: the next write waits.
pub fn full_pipe() -> (File, File) {
    let (reader, writer) = pipe();
    // SAFETY: F_SETPIPE_SZ takes an integer and touches no memory of the process.
    assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) }, 4096);
    std::io::Write::write_all(&mut &writer, &[b'f'; 4096]).expect("fill the pipe");
    (reader, writer)
}

/// A connected pair of Unix sockets of this type (`SOCK_*`).
pub fn unix_pair(kind: i32) -> (OwnedFd, OwnedFd) {
    let mut ends = [-1; 2];
    // SAFETY: room for two numbers is passed.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()) }, 0);
    // SAFETY: socketpair has just made both descriptors, which have no other owner.
    unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) }
}

/// Sends until the socket takes no more.
pub fn fill(socket: &OwnedFd) {
    let chunk = [1; 4096];
    // SAFETY: the chunk lives until each call returns.
    while unsafe { libc::send(socket.as_raw_fd(), chunk.as_ptr().cast(), 4096, libc::MSG_DONTWAIT) } > 0 {}
}

/// The header of a message with these vectors and nothing else.
pub fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len() as _; // 32 bits wide in musl
    message
}

/// A connected pair of Unix stream sockets.
pub fn pair() -> (OwnedFd, OwnedFd) {
    unix_pair(libc::SOCK_STREAM)
}

/// Sends all `bytes` with send(2).
pub fn put(to: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes live until the call returns.
    let sent = unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    assert_eq!(sent, bytes.len() as isize, "send");
}

/// setsockopt(2) of a plain value.
pub fn set_option<T: Copy>(socket: &impl AsRawFd, level: i32, option: i32, value: &T) {
    let (fd, from) = (socket.as_raw_fd(), std::ptr::from_ref(value).cast());
    // SAFETY: the value has the size that is passed.
    let answer = unsafe { libc::setsockopt(fd, level, option, from, size_of::<T>() as libc::socklen_t) };
    assert_eq!(answer, 0, "setsockopt: {}", std::io::Error::last_os_error());
}

/// A listener on loopback, its address as connect(2) takes it.
pub fn listener() -> (TcpListener, libc::sockaddr_in) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen on loopback");
    let port = listener.local_addr().expect("the address").port();
    (listener, loopback(port))
}

/// 127.0.0.1 and `port` as a socket address.
pub fn loopback(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    }
}

/// A connected pair of TCP sockets over loopback.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let (listener, _) = listener();
    let client = TcpStream::connect(listener.local_addr().expect("the address")).expect("connect");
    (client, listener.accept().expect("accept").0)
}

/// Makes a descriptor from the result of a libc call that returns -1 and sets errno. Panics with `what` if the call
/// failed.
pub fn owned(number: i32, what: &str) -> OwnedFd {
    assert!(number >= 0, "{what}: {}", std::io::Error::last_os_error());
    // SAFETY: the caller passes the number that a call has just returned.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// A socket of socket(2)'s arguments.
pub fn socket(domain: i32, kind: i32) -> OwnedFd {
    // SAFETY: no pointers.
    owned(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC, 0) }, "socket")
}

/// eventfd(2).
pub fn eventfd(initial: u32, flags: i32) -> File {
    // SAFETY: no pointers.
    File::from(owned(unsafe { libc::eventfd(initial, flags) }, "eventfd"))
}

/// epoll_create1(2).
pub fn epoll() -> OwnedFd {
    // SAFETY: no pointers.
    owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }, "epoll_create1")
}

/// memfd_create(2).
pub fn memfd() -> File {
    // SAFETY: a constant name.
    File::from(owned(unsafe { libc::memfd_create(c"conformance".as_ptr(), libc::MFD_CLOEXEC) }, "memfd_create"))
}

/// A pseudo terminal in raw mode: the master and the slave.
pub fn pty() -> (File, File) {
    let (mut master, mut slave) = (-1, -1);
    let none = std::ptr::null_mut();
    // SAFETY: room for two numbers is passed, the other arguments may be null.
    let answer = unsafe { libc::openpty(&mut master, &mut slave, none, none.cast(), none.cast()) };
    assert_eq!(answer, 0, "openpty");
    // SAFETY: termios is plain numbers, for which zeroes are valid; the calls get the slave's own descriptor.
    unsafe {
        let mut mode: libc::termios = std::mem::zeroed();
        assert_eq!(libc::tcgetattr(slave, &mut mode), 0);
        libc::cfmakeraw(&mut mode);
        assert_eq!(libc::tcsetattr(slave, libc::TCSANOW, &mode), 0);
    }
    (File::from(owned(master, "openpty")), File::from(owned(slave, "openpty")))
}

/// A new regular file with this content in the case's own directory, open for reading and writing.
pub fn file(name: &str, content: &[u8]) -> File {
    std::fs::write(name, content).expect("write the file");
    File::options().read(true).write(true).open(name).expect("open the file")
}

/// A block device of `sectors`, over one of the case's own files. It is removed with its descriptor.
pub fn loop_device(sectors: usize) -> OwnedFd {
    const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
    const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
    const LO_FLAGS_AUTOCLEAR: u32 = 4;
    /// `struct loop_config`; only its first words matter.
    #[repr(C)]
    struct Config {
        fd: u32,
        block_bytes: u32,
        info: [u64; 29],
        reserved: [u64; 8],
    }
    let both = |path: &str| std::fs::File::options().read(true).write(true).open(path);
    let Ok(control) = both("/dev/loop-control") else { skip("there are no loop devices") };
    // SAFETY: no pointers.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    let backing = file("disk", &vec![b'x'; sectors * 512]);
    let Ok(device) = both(&format!("/dev/loop{number}")) else { skip("no loop device may be opened") };
    let mut config = Config { fd: backing.as_raw_fd() as u32, block_bytes: 0, info: [0; 29], reserved: [0; 8] };
    // lo_flags of struct loop_info64, after six words of eight bytes and three of four
    config.info[6] = u64::from(LO_FLAGS_AUTOCLEAR) << 32;
    // SAFETY: one `struct loop_config`.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &config) } != 0 {
        skip("no loop device can be made");
    }
    device.into()
}

/// Returns the bytes that FIONREAD reports.
pub fn readable_bytes(file: &impl AsRawFd) -> i32 {
    let mut count = 0;
    // SAFETY: FIONREAD writes one int.
    assert_eq!(unsafe { libc::ioctl(file.as_raw_fd(), libc::FIONREAD, &mut count) }, 0, "FIONREAD");
    count
}

/// Reserves address space that no access may touch: a call with an address in it must fail with EFAULT.
pub fn bad_address() -> u64 {
    // SAFETY: a new inaccessible mapping at an address of the kernel's choice replaces nothing.
    let address = unsafe {
        libc::mmap(std::ptr::null_mut(), 1 << 16, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(address, libc::MAP_FAILED);
    address as u64
}

/// Zeroed, page-aligned memory for as long as the process lives.
pub fn pages(count: usize) -> &'static mut [u8] {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), count * 4096, protection, flags, -1, 0) };
    assert_ne!(address, libc::MAP_FAILED);
    // SAFETY: the mapping above has this length, is zeroed, is never unmapped, and this is its one reference.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), count * 4096) }
}

/// Changes the protection of these whole pages.
pub fn protect(pages: &[u8], protection: i32) {
    // SAFETY: the range is a mapping of the case's own, which the caller accesses as `protection` allows.
    assert_eq!(unsafe { libc::mprotect(pages.as_ptr().cast_mut().cast(), pages.len(), protection) }, 0);
}

/// The number of runs of [`count_signal`]'s handler.
pub static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn on_signal(_: i32) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Installs a handler without SA_RESTART that counts `signal` in [`SIGNALS`].
pub fn count_signal(signal: i32) {
    // SAFETY: the handler only increments an atomic; sigaction is plain data, for which zeroes are valid.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

/// The 8-byte signal set that holds `signal`, as the kernel takes it.
pub fn kernel_set(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Blocks `signal` in this thread.
pub fn block_signal(signal: i32) {
    // SAFETY: the set is plain data that sigemptyset fills in before it is used.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()), 0);
    }
}

/// Sends `signal` to the calling thread, from another one, once it sleeps.
pub fn signal_once_asleep(signal: i32) -> std::thread::JoinHandle<()> {
    let tid = gettid();
    crate::asleep::once_asleep(move || signal_thread(tid, signal))
}

/// Sends `signal` to the thread `tid` of this process.
fn signal_thread(tid: i32, signal: i32) {
    // SAFETY: no pointers; a signal that the case handles goes to a thread of its own process.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
}

/// This thread's id.
pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { libc::gettid() }
}

/// Sends `signal` to this process.
pub fn raise(signal: i32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// A forked child of the case.
pub struct Child(libc::pid_t);

/// Runs `action` in a forked child.
pub fn start_child(action: impl FnOnce()) -> Child {
    // SAFETY: a case has one thread when it forks (those that start threads do not fork), so the child may run on.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(action)).is_ok();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(if passed { 0 } else { 1 }) };
    }
    Child(child)
}

impl Child {
    /// Waits for the child's end. Returns the exit status (128 + signal if a signal killed it).
    pub fn wait(self) -> i32 {
        let mut status = 0;
        // SAFETY: `status` is one int, the child is this process's own and not yet reaped.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        if libc::WIFEXITED(status) {
            libc::WEXITSTATUS(status)
        } else {
            128 + libc::WTERMSIG(status)
        }
    }
}

/// Runs `action` in a forked child and waits for it. Returns the exit status.
pub fn in_child(action: impl FnOnce()) -> i32 {
    start_child(action).wait()
}

/// True if descriptor number `number` is open in this process.
pub fn is_open(number: i32) -> bool {
    // SAFETY: F_GETFD touches no memory.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

/// A clock's time.
pub fn clock(clock: i32) -> anyring_abi::Timespec {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is one timespec.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut now) }, 0);
    anyring_abi::Timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec }
}

/// The exit status of a case that was skipped, as in automake and liburing's tests.
pub const SKIP_STATUS: i32 = 77;

/// Ends the case as skipped: it cannot be tried here, for this reason.
pub fn skip(reason: &str) -> ! {
    eprintln!("{reason}");
    std::process::exit(SKIP_STATUS);
}
