//! The hostile program itself, as a process: the preparation before its first step, and the checks after its last.

use crate::arena;
use crate::call;
use crate::execute::{self, numbers};
use crate::generate;
use crate::program::{FIRST_VICTIM, VICTIMS};
use crate::threads;
use anyhow::Result;
use anyring_test_kit::set_soft_limit;
use libc::{c_int, c_void};
use std::cell::Cell;
use std::ffi::CStr;
use std::io::Write;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The descriptor for findings, one a line, and "done" at the end.
pub const REPORT_FD: c_int = 3;
/// A page shared with the watcher, which holds the number of the current step.
pub const PROGRESS_FD: c_int = 4;
/// The first of the descriptors that no request names: see [`Untouched`].
const UNTOUCHED_FD: c_int = 5;
/// The period of the alarm that interrupts a sleeping call, in microseconds.
const ALARM_US: i64 = 10_000;
/// The initial RLIMIT_NOFILE. The engine's own descriptors have the last numbers below it, whatever the machine's
/// limit is.
const NUMBERS: u64 = 4096;
const FILE_LIMIT_BYTES: u64 = 64 << 20;
const ADDRESS_LIMIT_BYTES: u64 = 6 << 30;

/// The options of a process that runs one program.
#[derive(clap::Args, Debug, Clone)]
pub struct ChildOptions {
    /// The seed
    #[arg(long)]
    pub seed: u64,
    /// Steps that are left out
    #[arg(long, value_delimiter = ',')]
    pub without: Vec<usize>,
    /// No alarm, no limits on time: for a debugger
    #[arg(long)]
    pub slowly: bool,
    /// Leave the words of rings alone, for the kernel
    #[arg(long)]
    pub gentle: bool,
    /// Leave out calls that guests can make on the engine's numbers (docs/limits.md)
    #[arg(long)]
    pub guest: bool,
}

/// Runs the seed's program in the working directory, to its end.
pub fn run(options: &ChildOptions) -> Result<()> {
    let program = generate::program(options.seed).without(&options.without);
    call::by_instructions(program.raw);
    // SAFETY: plain numbers; this process has one thread.
    unsafe {
        libc::umask(0);
        if program.unprivileged && libc::geteuid() == 0 {
            let id = 60_000 + (options.seed % 1000) as libc::uid_t;
            libc::setresgid(id, id, id);
            libc::setresuid(id, id, id);
            libc::prctl(libc::PR_SET_DUMPABLE, 1);
        }
    }
    let untouched = Untouched::make();
    make_files();
    for victim in FIRST_VICTIM..FIRST_VICTIM + VICTIMS {
        open_victim(victim, (victim - FIRST_VICTIM) as u8);
    }
    // SAFETY: a constant path.
    let cut = unsafe { libc::open(c"cut".as_ptr(), libc::O_RDWR | libc::O_CREAT | libc::O_CLOEXEC, 0o600) };
    // SAFETY: the descriptor was just made.
    unsafe { libc::ftruncate(cut, 2 * arena::PAGE as i64) };
    arena::make(cut);
    // SAFETY: as above.
    unsafe { libc::close(cut) };
    set_soft_limit(libc::RLIMIT_NOFILE, NUMBERS);
    set_soft_limit(libc::RLIMIT_FSIZE, FILE_LIMIT_BYTES);
    set_soft_limit(libc::RLIMIT_AS, ADDRESS_LIMIT_BYTES);
    handle_signals();
    let progress = Progress::map();
    if !options.slowly {
        set_alarm(true);
    }
    numbers::as_guest(options.guest);
    execute::run(&program, &progress, options.slowly, options.gentle);
    if let Some(finding) = arena::changed() {
        report(format_args!("memory: {finding}"));
    }
    threads::check(&program);
    untouched.check();
    report_line(format_args!("done"));
    // The end of the process must cope with requests in flight.
    let status = 0;
    if options.seed.is_multiple_of(2) {
        // SAFETY: ends the process without exit handlers.
        unsafe { libc::_exit(status) }
    }
    Ok(())
}

/// Reports a finding, without allocating.
pub fn report(what: std::fmt::Arguments) {
    report_line(format_args!("finding {what}"));
}

fn report_line(what: std::fmt::Arguments) {
    let mut line = [0u8; 400];
    let mut room = &mut line[..399];
    let _ = room.write_fmt(what); // what is too long is cut
    let left = room.len();
    let length = 399 - left;
    line[length] = b'\n';
    // A limit of the program's would cut the line.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a local that outlives the call.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    set_soft_limit(libc::RLIMIT_FSIZE, limit.rlim_max);
    // SAFETY: writes from a local; the descriptor is the watcher's report.
    unsafe { libc::write(REPORT_FD, line.as_ptr().cast(), length + 1) };
    set_soft_limit(libc::RLIMIT_FSIZE, limit.rlim_cur);
}

/// The shared page with the number of the current step.
pub struct Progress(*const AtomicU64);

impl Progress {
    fn map() -> Progress {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the watcher's memfd, where there is one.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), arena::PAGE, both, libc::MAP_SHARED, PROGRESS_FD, 0) };
        Progress(if page == libc::MAP_FAILED { std::ptr::null() } else { page.cast() })
    }

    /// Stores the number of the current step.
    pub fn at(&self, step: usize) {
        // SAFETY: null, or a page at an address that the kernel chose, which is never unmapped. Relaxed: only the
        // watcher reads it, and needs no more than the number.
        if let Some(word) = unsafe { self.0.as_ref() } {
            word.store(step as u64, Ordering::Relaxed);
        }
    }
}

/// The ring that the handler of SIGUSR1 enters.
pub static HANDLER_ENTERS: AtomicI32 = AtomicI32::new(-1);

extern "C" fn on_alarm(_: c_int) {
    if let Some(how) = call::leap() {
        execute::places::context::leap(how);
    }
}

thread_local! {
    /// True in a thread that the program made.
    pub static IS_PROGRAMS: Cell<bool> = const { Cell::new(false) };
}

extern "C" fn on_signal(signal: c_int) {
    if !IS_PROGRAMS.get() {
        report(format_args!("handler: that of signal {signal} runs in a thread that the program did not make"));
    }
    // SAFETY: errno is the thread's own, and is put back.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let kept = unsafe { *errno };
    let ring = HANDLER_ENTERS.load(Ordering::Relaxed);
    if ring >= 0 {
        call::call(anyring_abi::NR_IO_URING_ENTER, [ring as u64, 1, 0, 1, 0, 0]);
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
    on_alarm(signal);
}

/// The signals that the program sends. The second is queued; the third, a fault's signal, is sent without a fault.
pub const SIGNALS: [c_int; 3] = [libc::SIGUSR1, 36, libc::SIGFPE];

/// Installs the handlers of these signals. A child may have to do so again.
pub fn handle_signals() {
    let on_signal = on_signal as *const () as usize;
    let handlers = [(libc::SIGALRM, on_alarm as *const () as usize)].into_iter();
    let handlers = handlers.chain(SIGNALS.map(|signal| (signal, on_signal)));
    for (signal, handler) in handlers {
        // SAFETY: all zeroes is a sigaction without flags; the handlers make system calls only.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
    // On the kernel these come from a request's broken pipe or a file's limit, or from O_ASYNC.
    for signal in [libc::SIGPIPE, libc::SIGXFSZ, libc::SIGIO, libc::SIGURG] {
        // SAFETY: no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Starts the alarm, which soon interrupts any call that sleeps in this thread, or stops it. A forked child has to do
/// so again.
pub fn set_alarm(on: bool) {
    let interval = libc::timeval { tv_sec: 0, tv_usec: if on { ALARM_US } else { 0 } };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: a local that outlives the call. By system call: libc has no such function for this crate.
    unsafe { libc::syscall(libc::SYS_setitimer, 0, &timer, std::ptr::null::<c_void>()) };
}

fn put(path: &CStr, bytes: usize) {
    let data = [arena::DATA; 4096];
    // SAFETY: a constant path, and a local to write from.
    unsafe {
        let file =
            libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC, 0o666);
        for _ in 0..bytes / data.len() {
            libc::write(file, data.as_ptr().cast(), data.len());
        }
        libc::close(file);
    }
}

fn make_files() {
    for path in [c"a", c"b"] {
        put(path, 64 << 10);
    }
    // SAFETY: constant paths.
    unsafe {
        libc::mkdir(c"folder".as_ptr(), 0o777);
        put(c"folder/a", 8192);
        libc::mkfifo(c"fifo".as_ptr(), 0o666);
        libc::symlink(c"a".as_ptr(), c"link".as_ptr());
        libc::symlink(c"loop".as_ptr(), c"loop".as_ptr());
    }
}

/// Moves `fd` to the victim's number.
fn place(fd: c_int, victim: c_int) {
    // SAFETY: numbers only; the victim's is for anything.
    unsafe {
        if fd >= 0 && fd != victim {
            libc::dup3(fd, victim, libc::O_CLOEXEC);
            libc::close(fd);
        }
    }
}

/// Opens a file of that kind under a victim's number. If it has another end, that gets the next number.
pub fn open_victim(victim: c_int, kind: u8) {
    let next = FIRST_VICTIM + (victim + 1 - FIRST_VICTIM) % VICTIMS;
    let pair = |fds: [c_int; 2]| {
        place(fds[0], victim);
        place(fds[1], next);
    };
    let mut fds = [-1; 2];
    let nonblocking = libc::SOCK_NONBLOCK;
    // SAFETY: constant paths, and a local for two numbers.
    unsafe {
        let open = |path: &CStr, flags: c_int| libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o666);
        match kind {
            // Of the first victims, every second is the other end of the one before.
            0 | 2 | 4 => {
                libc::pipe2(fds.as_mut_ptr(), if kind == 4 { libc::O_NONBLOCK } else { 0 });
                pair(fds);
            }
            6 | 8 => {
                libc::socketpair(
                    libc::AF_UNIX,
                    libc::SOCK_STREAM | if kind == 8 { nonblocking } else { 0 },
                    0,
                    fds.as_mut_ptr(),
                );
                pair(fds);
            }
            10 => {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, fds.as_mut_ptr());
                pair(fds);
            }
            12 => {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr());
                pair(fds);
            }
            1 | 3 | 5 | 7 | 9 | 11 | 13 => {}
            14 => pair(connection()),
            15 | 37 => place(open(c"a", libc::O_RDWR), victim),
            16 => place(open(c"b", libc::O_RDWR), victim),
            17 => place(open(c"a", libc::O_RDWR | libc::O_DIRECT), victim),
            18 => place(open(c"b", libc::O_WRONLY | libc::O_APPEND), victim),
            19 => place(open(c"b", libc::O_RDONLY), victim),
            20 => place(open(c"folder", libc::O_DIRECTORY), victim),
            21 => place(libc::eventfd(3, libc::EFD_NONBLOCK), victim),
            22 => place(libc::eventfd(0, 0), victim),
            23 => place(libc::epoll_create1(0), victim),
            24 => place(libc::timerfd_create(libc::CLOCK_MONOTONIC, 0), victim),
            25 => place(open(c"fifo", libc::O_RDWR), victim),
            26 => place(open(c"fifo", libc::O_RDONLY | libc::O_NONBLOCK), victim),
            27 => place(open(c"/dev/null", libc::O_RDWR), victim),
            28 => place(open(c"/dev/zero", libc::O_RDONLY), victim),
            29 => place(libc::memfd_create(c"hostile".as_ptr(), 0), victim),
            30 => place(libc::inotify_init1(0), victim),
            31 => place(listener(0), victim),
            32 => place(listener(nonblocking), victim),
            33 => place(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0), victim),
            34 => place(libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), victim),
            35 => place(open(c"a", libc::O_PATH), victim),
            36 => place(libc::socket(libc::AF_INET, libc::SOCK_STREAM | nonblocking, 0), victim),
            _ => place(open(c"b", libc::O_RDWR | libc::O_NONBLOCK), victim),
        }
    }
}

/// A listening TCP socket on the loopback device.
fn listener(flags: c_int) -> c_int {
    // SAFETY: all zeroes is an address, and it outlives the calls.
    unsafe {
        let listener = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | flags, 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as u16;
        address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        libc::bind(listener, (&raw const address).cast(), size_of::<libc::sockaddr_in>() as u32);
        libc::listen(listener, 4);
        listener
    }
}

/// Both ends of a TCP connection.
fn connection() -> [c_int; 2] {
    let listener = listener(0);
    // SAFETY: as in `listener`. The accept does not wait: a connection to a listener of this machine is ready at
    // once.
    unsafe {
        let client = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        let mut length = size_of::<libc::sockaddr_in>() as u32;
        libc::getsockname(listener, (&raw mut address).cast(), &mut length);
        let connected = libc::connect(client, (&raw const address).cast(), length);
        let server =
            if connected == 0 { libc::accept(listener, std::ptr::null_mut(), std::ptr::null_mut()) } else { -1 };
        libc::close(listener);
        [client, server]
    }
}

/// Descriptors that no request names, and the files that they are.
struct Untouched {
    identities: [(u64, u64); 9],
}

const UNTOUCHED_DATA: &[u8; 8] = b"untouch\n";

impl Untouched {
    /// Makes a file, both ends of a pipe and an eventfd, numbered after the descriptors that the process was started
    /// with.
    fn make() -> Untouched {
        let expect = |fd: c_int, number: c_int| assert_eq!(fd, number, "descriptors begin after {PROGRESS_FD}");
        // SAFETY: constant names, a local for two numbers and a constant to write from.
        unsafe {
            libc::close_range(UNTOUCHED_FD as u32, 3000, 0);
            expect(libc::memfd_create(c"untouched".as_ptr(), 0), UNTOUCHED_FD);
            let mut ends = [0; 2];
            libc::pipe(ends.as_mut_ptr());
            expect(ends[1], UNTOUCHED_FD + 2);
            expect(libc::eventfd(7, libc::EFD_NONBLOCK), UNTOUCHED_FD + 3);
            for fd in [UNTOUCHED_FD, UNTOUCHED_FD + 2] {
                libc::write(fd, UNTOUCHED_DATA.as_ptr().cast(), UNTOUCHED_DATA.len());
            }
        }
        Untouched { identities: std::array::from_fn(|fd| identity(fd as c_int)) }
    }

    /// Reports any that has changed.
    fn check(&self) {
        for (fd, known) in self.identities.iter().enumerate() {
            if identity(fd as c_int) != *known && !execute::numbers::was_closed(fd as c_int) {
                report(format_args!("descriptor {fd}, which nobody named, is closed or another file"));
                return;
            }
        }
        let (mut content, mut count) = ([0u8; 16], 0u64);
        // SAFETY: locals to read to. None of it waits: the pipe has data, or the first report was made.
        unsafe {
            let position = libc::lseek(UNTOUCHED_FD, 0, libc::SEEK_CUR);
            let bytes = libc::pread(UNTOUCHED_FD, content.as_mut_ptr().cast(), 16, 0);
            if position != 8 || bytes != 8 || content[..8] != *UNTOUCHED_DATA {
                report(format_args!("a file that nobody named has {bytes} bytes and the position {position}"));
            }
            let mut held: c_int = 0;
            libc::ioctl(UNTOUCHED_FD + 1, libc::FIONREAD, &mut held);
            if held != 8 {
                report(format_args!("a pipe that nobody named holds {held} bytes instead of 8"));
            }
            libc::read(UNTOUCHED_FD + 3, (&raw mut count).cast(), 8);
            if count != 7 {
                report(format_args!("an eventfd that nobody named holds {count} instead of 7"));
            }
        }
    }
}

/// Returns the device and inode; zeroes for a descriptor that is not open.
fn identity(fd: c_int) -> (u64, u64) {
    // SAFETY: all zeroes is a stat, and it outlives the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        if libc::fstat(fd, &mut stat) != 0 {
            (0, 0)
        } else {
            (stat.st_dev, stat.st_ino)
        }
    }
}
