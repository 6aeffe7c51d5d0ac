//! Building blocks of the engine's rings and waits. Each is tried in its own child.

use super::{Check, UNUSED_CALL};
use crate::child::{ask, ask_anyhow, ask_if_safe, Outcome};
use crate::errno;
use crate::filter::{self, Rule};
use anyring_abi::{AioRing, IoEvent, Iocb, IOCB_CMD_PREAD, IOCB_FLAG_RESFD};
use rustix::event::{epoll, eventfd, EventfdFlags, Timespec};
use rustix::fs::{
    fcntl_add_seals, ftruncate, memfd_create, openat2, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags, CWD,
};
use rustix::io::{fcntl_dupfd_cloexec, preadv2, read, write, Errno, ReadWriteFlags};
use rustix::mm::{madvise, mmap, mmap_anonymous, mremap, Advice, MapFlags, MremapFlags, ProtFlags};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use rustix::pipe::{pipe_with, PipeFlags};
use rustix::process::{getpid, pidfd_open, PidfdFlags};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// The fault that a probe found, for people.
pub type Finding = Result<(), String>;

struct Block {
    name: &'static str,
    purpose: &'static str,
    /// The replacement if the building block is missing. If this is `None`, nothing is served without the block.
    instead: Option<&'static str>,
    probe: fn() -> Finding,
}

const fn needed(name: &'static str, purpose: &'static str, probe: fn() -> Finding) -> Block {
    Block { name, purpose, instead: None, probe }
}

const fn liked(name: &'static str, purpose: &'static str, instead: &'static str, probe: fn() -> Finding) -> Block {
    Block { name, purpose, instead: Some(instead), probe }
}

const BLOCKS: [Block; 18] = [
    needed("shared memory", "ring memory that programs can map", ring_memory),
    liked(
        "memfd_create",
        "ring memory that can be resized",
        "memory without a file; IORING_REGISTER_RESIZE_RINGS fails with EINVAL",
        memory_file,
    ),
    needed("ring descriptor", "a number for programs, and the engine's end of it", ring_descriptor),
    liked("socketpair", "the ring's descriptor", "a pipe that /proc opens in both directions", socket_pair),
    needed("eventfd", "waking a waiting thread", event_fd),
    needed("epoll", "waiting for pipes and sockets", epoll_wakes),
    liked("epoll_pwait2", "timeouts of less than a millisecond", "ppoll, then epoll_pwait", epoll_pwait2),
    liked(
        "preadv2 RWF_NOWAIT, pipe",
        "reading a pipe without a worker",
        "vmsplice, or tee and splice",
        nowait_pipe,
    ),
    liked("preadv2 RWF_NOWAIT, file", "reading cached files without a worker", "workers read files", nowait_file),
    liked("process_vm_readv", "surviving bad addresses", "copies that a SIGSEGV handler guards", process_vm),
    liked("MADV_WIPEONFORK", "noticing a fork", "MADV_DONTFORK; raw instructions keep trapping", wipe_on_fork),
    liked("SO_COOKIE", "knowing a ring by its descriptor", "the number of the socket's inode", socket_cookie),
    liked(
        "F_DUPFD_QUERY or kcmp",
        "finding the requests on a descriptor's duplicates",
        "epoll compares; a cancel does not find those on duplicates of regular files",
        same_description,
    ),
    liked("seccomp RET_TRAP", "serving raw system call instructions", "they see the kernel's answer", trap),
    liked("close_range", "keeping engine descriptors out of the way", "close, one by one", close_range),
    liked("openat2", "IORING_OP_OPENAT2", "openat; RESOLVE flags fail with EINVAL", open_at2),
    liked("pidfd_open", "noticing that a process sharing a ring has died", "asking for its thread", pidfd),
    liked(
        "/proc",
        "whose locks a file has, and what is an eventfd",
        "anybody's lock keeps a registered file open; an epoll descriptor may be registered as eventfd",
        proc_is_there,
    ),
];

/// Tries every building block.
pub fn building_blocks() -> Vec<Check> {
    BLOCKS.iter().map(|block| check(block.name, block.purpose, block.instead, block.probe)).collect()
}

/// Returns the reason why the engine cannot serve anything here. One child tries all blocks. After a fault, each block
/// is tried in its own child.
pub fn missing_block() -> Option<String> {
    let needed = || BLOCKS.iter().filter(|block| block.instead.is_none());
    if matches!(ask_anyhow(|| needed().all(|block| (block.probe)().is_ok())), Outcome::Replied(true)) {
        return None;
    }
    let checks = needed().map(|block| check(block.name, block.purpose, block.instead, block.probe));
    checks.filter(|check| !check.works).map(|check| check.fault()).next()
}

/// Tries the kernel's AIO with a read of this executable.
pub fn kernel_aio() -> Check {
    check_aio(aio)
}

/// Does the same as [`kernel_aio`], but without a context if possible, to start programs quickly. A process that had a
/// context waits about 30 ms when it ends (exit_aio, RCU). If the kernel counts contexts and has room for more, it
/// can make one, unless a filter answers in its place.
pub fn kernel_aio_in_brief() -> Check {
    let brief = check_aio(aio_in_brief);
    if brief.works {
        brief
    } else {
        kernel_aio()
    }
}

/// Tries the kernel's AIO without a context. A child makes these calls.
pub fn aio_in_brief() -> Finding {
    let number =
        |name: &str| std::fs::read_to_string(format!("/proc/sys/fs/{name}")).ok()?.trim().parse::<u64>().ok();
    let has_room = number("aio-nr").zip(number("aio-max-nr")).is_some_and(|(contexts, most)| contexts < most);
    expect(has_room, "no room for a context is known")?;
    aio_calls()
}

fn check_aio(probe: fn() -> Finding) -> Check {
    check("kernel AIO", "submitting many direct reads and writes at once", Some("workers"), probe)
}

fn check(name: &str, purpose: &str, instead: Option<&'static str>, probe: fn() -> Finding) -> Check {
    let outcome = match instead {
        // The filter would stay in this process.
        _ if probe as *const () == trap as *const () => ask(probe),
        None => ask_anyhow(probe),
        Some(_) => ask_if_safe(probe),
    };
    let works = matches!(outcome, Outcome::Replied(Ok(())));
    let answer = outcome.describe(|finding| finding.clone().map_or_else(|wrong| wrong, |()| "works".to_owned()));
    Check { name: name.to_owned(), purpose: purpose.to_owned(), needed: instead.is_none(), instead, works, answer }
}

fn named(error: Errno) -> String {
    errno::name(error.raw_os_error())
}

/// The answer of a libc wrapper: its value, or the errno's name.
fn libc_answer(answer: i64) -> Result<i64, String> {
    if answer < 0 {
        return Err(errno::name(errno::last()));
    }
    Ok(answer)
}

fn expect(fact: bool, otherwise: &str) -> Finding {
    fact.then_some(()).ok_or_else(|| otherwise.to_owned())
}

/// Tries to map memory without a file twice. Tries a memfd only if that fails, since a filter may kill for
/// memfd_create(2).
fn ring_memory() -> Finding {
    shared_memory().or_else(|why| memory_file().map_err(|_| why))
}

fn shared_memory() -> Finding {
    let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, protection, shared) }.map_err(named)?;
    // SAFETY: with an old size of 0, the page just mapped stays where it is.
    let again = unsafe { mremap(page, 0, 4096, MremapFlags::MAYMOVE) }
        .map_err(|error| format!("mremap answered {}", named(error)))?;
    // SAFETY: the pages just mapped, which are writable and not shared with any thread.
    let seen = unsafe {
        page.cast::<u8>().write_volatile(7);
        again.cast::<u8>().read_volatile()
    };
    expect(seen == 7, "the second mapping is not the same memory")
}

fn memory_file() -> Finding {
    let file = memfd_create("anyring-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(named)?;
    ftruncate(&file, 4096).map_err(named)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::SEAL)
        .map_err(|error| format!("fcntl(F_ADD_SEALS) answered {}", named(error)))?;
    let (protection, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe { mmap(std::ptr::null_mut(), 4096, protection, shared, &file, 0) }.map_err(named)?;
    // SAFETY: the page just mapped, which is writable and not shared with any thread.
    unsafe { page.cast::<u8>().write_volatile(7) };
    let mut seen = [0u8];
    read(&file, &mut seen).map_err(named)?;
    expect(seen == [7], "the mapping is not the file's memory")
}

/// A socket pair, or the pipe that the engine makes where socket pairs are refused.
fn ring_descriptor() -> Finding {
    socket_pair().or_else(|why| {
        pipe_both_ways()
            .map_err(|missing| format!("socketpair answered {why}, and a pipe cannot stand in: {missing}"))
    })
}

fn pipe_both_ways() -> Finding {
    let (reader, _writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(named)?;
    let path = format!("/proc/thread-self/fd/{}", reader.as_raw_fd());
    let both = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| format!("opening {path} answered {}", named(error)))?;
    arrives(both, &reader)
}

fn socket_pair() -> Finding {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(named)?;
    arrives(ours, &theirs)
}

/// Moves `sender` to another number, as the engine does, and sends a byte to `receiver`.
fn arrives(sender: OwnedFd, receiver: &OwnedFd) -> Finding {
    let sender = fcntl_dupfd_cloexec(&sender, 3)
        .map_err(|error| format!("fcntl(F_DUPFD_CLOEXEC) answered {}", named(error)))?;
    write(&sender, &[7]).map_err(named)?;
    let mut seen = [0u8];
    read(receiver, &mut seen).map_err(named)?;
    expect(seen == [7], "the byte did not arrive")
}

fn event_fd() -> Finding {
    let event = eventfd(0, EventfdFlags::CLOEXEC).map_err(named)?;
    write(&event, &1u64.to_ne_bytes()).map_err(named)?;
    let mut count = [0u8; 8];
    read(&event, &mut count).map_err(named)?;
    expect(u64::from_ne_bytes(count) == 1, "the count did not arrive")
}

/// A pipe with a byte in it, watched by an epoll instance.
fn watched_pipe() -> Result<(OwnedFd, [OwnedFd; 2]), String> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(named)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(named)?;
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&epoll, &reader, epoll::EventData::new_u64(7), edge).map_err(named)?;
    write(&writer, &[7]).map_err(named)?;
    Ok((epoll, [reader, writer]))
}

/// Waits by epoll_wait(2) and epoll_pwait2(2). The engine uses both calls, and a filter may kill for one of them.
fn epoll_wakes() -> Finding {
    let attempt = |probe: fn() -> Finding| match ask_anyhow(probe) {
        Outcome::Replied(finding) => finding,
        other => Err(other.describe(|_| String::new())),
    };
    attempt(epoll_pwait).or_else(|why| attempt(epoll_pwait2).map_err(|_| why))
}

fn epoll_pwait() -> Finding {
    let (epoll, _pipe) = watched_pipe()?;
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
    let ready =
        epoll::wait(&epoll, events.as_mut_slice(), Some(&Timespec { tv_sec: 1, tv_nsec: 0 })).map_err(named)?;
    expect(ready == 1 && events[0].data.u64() == 7, "a ready pipe was not reported")
}

fn epoll_pwait2() -> Finding {
    let (epoll, _pipe) = watched_pipe()?;
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let timeout = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    let no_mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: room for the one event asked for, a valid timeout and no mask. libc's wrapper is newer than the call.
    let ready = libc_answer(unsafe {
        libc::syscall(libc::SYS_epoll_pwait2, epoll.as_raw_fd(), &mut event, 1, &timeout, no_mask, 0usize)
    })?;
    expect(ready == 1 && { event.u64 } == 7, "a ready pipe was not reported")
}

/// Reads one byte with preadv2 and RWF_NOWAIT at `offset` (all ones: the file's own position).
fn nowait_read(file: &OwnedFd, offset: u64) -> Result<usize, Errno> {
    let mut byte = [0u8];
    preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT)
}

fn nowait_pipe() -> Finding {
    expect(anyring_engine::os::flags_are_checked() != Some(false), "flags are ignored, so that it would wait")?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(named)?;
    match nowait_read(&reader, u64::MAX) {
        Err(Errno::AGAIN) => {}
        other => return Err(other.map_or_else(named, |_| "an empty pipe was read".to_owned())),
    }
    write(&writer, &[7]).map_err(named)?;
    expect(nowait_read(&reader, u64::MAX).map_err(named)? == 1, "the byte was not read")
}

fn nowait_file() -> Finding {
    let path = std::env::temp_dir().join(format!("anyring-doctor-{}", getpid().as_raw_nonzero()));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(named)?;
    rustix::fs::unlink(&path).map_err(named)?;
    write(&file, &[7]).map_err(named)?;
    match nowait_read(&file, 0) {
        // EAGAIN: the flag works, but the page is not cached.
        Ok(1) | Err(Errno::AGAIN) => Ok(()),
        other => Err(other.map_or_else(named, |count| format!("{count} bytes were read"))),
    }
}

fn process_vm() -> Finding {
    let (from, mut to) = (7u8, 0u8);
    let remote = libc::iovec { iov_base: std::ptr::from_ref(&from).cast_mut().cast(), iov_len: 1 };
    let local = libc::iovec { iov_base: std::ptr::from_mut(&mut to).cast(), iov_len: 1 };
    // SAFETY: both vectors name one byte of this frame, and the remote one is only read.
    let count = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    expect(libc_answer(count as i64)? == 1 && to == 7, "the byte was not copied")
}

fn wipe_on_fork() -> Finding {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let page = page.map_err(named)?;
    // SAFETY: the page just mapped; the advice only affects a child's copy of it.
    unsafe { madvise(page, 4096, Advice::LinuxWipeOnFork) }.map_err(named)?;
    // SAFETY: inside the page, which stays mapped until the process ends.
    let mark = unsafe { AtomicU8::from_ptr(page.cast()) };
    mark.store(7, Ordering::Relaxed);
    match ask(|| mark.load(Ordering::Relaxed)) {
        Outcome::Replied(0) => Ok(()),
        Outcome::Replied(_) => Err("the child still saw the mark".to_owned()),
        other => Err(other.describe(|_| String::new())),
    }
}

fn socket_cookie() -> Finding {
    let (ours, _theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(named)?;
    rustix::net::sockopt::socket_cookie(&ours).map(|_| ()).map_err(named)
}

fn same_description() -> Finding {
    const F_DUPFD_QUERY: i32 = 1027;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(named)?;
    let (one, other) = (reader.as_raw_fd(), writer.as_raw_fd());
    // SAFETY: both calls only compare two open descriptors; KCMP_FILE is 0.
    unsafe {
        if libc::fcntl(one, F_DUPFD_QUERY, other) >= 0 {
            return Ok(());
        }
        libc_answer(libc::syscall(libc::SYS_kcmp, libc::getpid(), libc::getpid(), 0, one, other)).map(|_| ())
    }
}

fn proc_is_there() -> Finding {
    std::fs::read_link("/proc/self/exe")
        .map(|_| ())
        .map_err(|error| errno::name(error.raw_os_error().unwrap_or_default()))
}

fn close_range() -> Finding {
    // SAFETY: the highest possible number, which no limit permits to be open.
    libc_answer(unsafe { libc::syscall(libc::SYS_close_range, i32::MAX, i32::MAX, 0) }).map(|_| ())
}

fn open_at2() -> Finding {
    openat2(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::empty())
        .map(|_| ())
        .map_err(named)
}

fn pidfd() -> Finding {
    pidfd_open(getpid(), PidfdFlags::empty()).map(|_| ()).map_err(named)
}

static TRAPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_trap(_signal: libc::c_int) {
    TRAPPED.store(true, Ordering::Relaxed);
}

fn trap() -> Finding {
    let trap = Rule::always(UNUSED_CALL, libc::SECCOMP_RET_TRAP);
    filter::install(&filter::program(&[], &[trap])).map_err(|error| error.to_string())?;
    let handler: extern "C" fn(libc::c_int) = on_trap;
    // SAFETY: an all-zero sigaction is valid: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler only stores to an atomic; an inherited block of SIGSYS would make the trap fatal.
    unsafe {
        let mut only_sys: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut only_sys, libc::SIGSYS);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only_sys, std::ptr::null_mut());
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut());
        libc::syscall(libc::c_long::from(UNUSED_CALL));
    }
    expect(TRAPPED.load(Ordering::Relaxed), "the filter was installed, but its trap did not arrive")
}

/// Makes the calls of Linux AIO with arguments that the kernel can only refuse, each with its own error.
fn aio_calls() -> Finding {
    let asked = [
        (libc::SYS_io_setup, [1, 0, 0], "EFAULT"),
        (libc::SYS_io_submit, [0, 0, 0], "EINVAL"),
        (libc::SYS_io_getevents, [0, 0, 0], "EINVAL"),
        (libc::SYS_io_destroy, [0, 0, 0], "EINVAL"),
    ];
    for (number, [a, b, c], of_kernel) in asked {
        // SAFETY: there is no context 0, and the null pointers give the kernel nowhere to write.
        let answer = libc_answer(unsafe { libc::syscall(number, a, b, c, 0, 0) });
        expect(answer.is_err_and(|error| error == of_kernel), "not the kernel's answer")?;
    }
    Ok(())
}

fn aio() -> Finding {
    let path = crate::library::executable()?;
    let file = std::fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut bytes = [0u8; 4];
    let (fd, length) = (file.as_raw_fd() as u32, bytes.len() as u64);
    let signal = eventfd(0, EventfdFlags::CLOEXEC).map_err(named)?;
    let mut request = Iocb {
        data: 7,
        opcode: IOCB_CMD_PREAD,
        fd,
        buf: bytes.as_mut_ptr() as u64,
        bytes: length,
        flags: IOCB_FLAG_RESFD,
        eventfd: signal.as_raw_fd() as u32,
        ..Iocb::default()
    };
    let (mut context, mut event) = (0usize, IoEvent::default());
    let no_timeout = std::ptr::null::<libc::timespec>();
    let check_answer = |call: &str, answer| libc_answer(answer).map_err(|error| format!("{call} answered {error}"));
    // SAFETY: `context` is a zeroed word as io_setup(2) wants it.
    check_answer("io_setup", unsafe { libc::syscall(libc::SYS_io_setup, 1, &mut context) })?;
    expect(is_kernels(context), "a preloaded library answers here, not the kernel")?;
    // SAFETY: one request, whose buffer and itself live until io_getevents has returned it.
    check_answer("io_submit", unsafe { libc::syscall(libc::SYS_io_submit, context, 1, &[&mut request]) })?;
    // Waits as qemu does: for the eventfd, then for the words of the completion ring. If no event arrives, the child
    // is killed when its time is over.
    let mut count = [0u8; 8];
    read(&signal, &mut count).map_err(named)?;
    // SAFETY: io_setup(2) has mapped at least the head there.
    let ring = unsafe { (context as *const AioRing).read_volatile() };
    expect(ring.is_laid_out(), "programs cannot read the completion ring: it is empty memory")?;
    expect(ring.head != ring.tail, "a read completed, and the completion ring does not tell of it")?;
    // SAFETY: room for the one event asked for.
    let reap = unsafe { libc::syscall(libc::SYS_io_getevents, context, 1, 1, &mut event, no_timeout) };
    check_answer("io_getevents", reap)?;
    // SAFETY: the context made above, without requests.
    check_answer("io_destroy", unsafe { libc::syscall(libc::SYS_io_destroy, context) })?;
    expect((event.data, event.res) == (7, 4) && bytes == *b"\x7fELF", "a read completed with other bytes")
}

/// True if the completion ring is the kernel's, as the name of the mapped file in /proc shows. Without /proc it counts
/// as the kernel's.
fn is_kernels(context: usize) -> bool {
    let start = format!("{context:x}-").trim_start_matches('0').to_owned();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let line = maps.lines().find(|line| line.trim_start_matches('0').starts_with(&start));
    line.is_none_or(|line| line.contains("[aio]"))
}
