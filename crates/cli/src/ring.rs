//! A trial of io_uring. It makes a few requests through a ring, as programs do, and one of them waits. A sandbox's
//! kernel may have only a part of io_uring: gVisor of 2022 has NOP and READV. The kernel answers the trial's system
//! calls, or a preloaded library does. The kind of the ring's descriptor shows which of the two it was.

use crate::child::{ask, ask_if_safe, Outcome};
use crate::errno;
use anyring_abi::{
    Cqe, Opcode, Params, Sqe, IORING_ENTER_GETEVENTS, IORING_FEAT_SINGLE_MMAP, IORING_OFF_CQ_RING, IORING_OFF_SQES,
    IORING_OFF_SQ_RING, IORING_REGISTER_PROBE, NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP,
};
use rustix::event::Timespec;
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::net::{socketpair, AddressFamily, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// The server that completed the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Server {
    /// The ring is the kernel's own.
    Kernel,
    /// The ring's descriptor is something else: a library in this process emulates io_uring.
    Emulation,
}

/// The reason why the requests did not complete.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Fault {
    /// This call or operation failed with this error number.
    Refused { call: String, code: i32 },
    /// Every call succeeded, but the completion is wrong or missing.
    Wrong(String),
}

impl Fault {
    fn of(call: &str, error: rustix::io::Errno) -> Fault {
        Fault::Refused { call: call.to_owned(), code: error.raw_os_error() }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Refused { call, code } => write!(formatter, "{call} answered {}", errno::name(*code)),
            Fault::Wrong(what) => formatter.write_str(what),
        }
    }
}

/// The outcome of a trial of the kernel's io_uring in a child.
pub type Trial = Outcome<Result<Server, Fault>>;

/// Tries io_uring in a forked child.
pub fn try_here() -> Trial {
    ask_if_safe(|| complete_requests(Needs::All))
}

/// True if the trial shows that the kernel's own io_uring works.
pub fn kernel_works(trial: &Trial) -> bool {
    matches!(trial, Outcome::Replied(Ok(Server::Kernel)))
}

/// Describes the trial for people.
pub fn describe(trial: &Trial) -> String {
    trial.describe(|answer| match answer {
        Ok(Server::Kernel) => WORKS.to_owned(),
        Ok(Server::Emulation) => "anyring answers here, not the kernel".to_owned(),
        Err(fault) => fault.to_string(),
    })
}

/// The text for an io_uring that works.
pub const WORKS: &str = "a NOP, a READ, a POLL_ADD, a TIMEOUT and a RECV that waited were submitted and completed";

/// The requests in the order of the SQEs; each one's index is its `user_data`. The last one waits for the others.
const REQUESTS: [Opcode; 5] = [Opcode::Nop, Opcode::Read, Opcode::PollAdd, Opcode::Timeout, Opcode::Recv];
const ENTRIES: u32 = 8;
/// The time of the TIMEOUT.
static TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000 };

/// The extent of a trial.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    /// The requests that every program needs: a filter may kill for more.
    Least,
    All,
}

/// Sets up a ring, asks for its operations, submits the needed [`REQUESTS`], waits for them and checks their
/// completions.
pub fn complete_requests(needs: Needs) -> Result<Server, Fault> {
    let mut params = Params::default();
    let params_address = std::ptr::from_mut(&mut params) as usize;
    let fd = call("io_uring_setup", NR_IO_URING_SETUP, [ENTRIES as usize, params_address, 0, 0, 0, 0])?;
    // SAFETY: the call just returned this descriptor, and nobody else knows it.
    let ring = unsafe { OwnedFd::from_raw_fd(fd as i32) };

    // Programs ask which operations there are. The requests below show whether those they need work.
    let mut operations = [0_u64; 2 + 256];
    let probe = [fd, IORING_REGISTER_PROBE as usize, operations.as_mut_ptr() as usize, 256, 0, 0];
    call("io_uring_register", NR_IO_URING_REGISTER, probe)?;

    let sq_bytes = params.sq_off.array as usize + params.sq_entries as usize * size_of::<u32>();
    let cq_bytes = params.cq_off.cqes as usize + params.cq_entries as usize * size_of::<Cqe>();
    let single = params.features & IORING_FEAT_SINGLE_MMAP != 0;
    let sq_ring = Mapping::new(&ring, if single { sq_bytes.max(cq_bytes) } else { sq_bytes }, IORING_OFF_SQ_RING)?;
    let separate_cq = if single { None } else { Some(Mapping::new(&ring, cq_bytes, IORING_OFF_CQ_RING)?) };
    let cq_ring = separate_cq.as_ref().unwrap_or(&sq_ring);
    let sqes = Mapping::new(&ring, params.sq_entries as usize * size_of::<Sqe>(), IORING_OFF_SQES)?;

    let files = Files::open(needs);
    let mut bytes = [0_u8; 2];
    let wanted: Vec<_> = files.requests(&mut bytes).collect();
    for (place, (index, sqe)) in wanted.iter().enumerate() {
        sqes.write(place * size_of::<Sqe>(), Sqe { user_data: *index as u64, ..*sqe })?;
        sq_ring.write(params.sq_off.array as usize + place * size_of::<u32>(), place as u32)?;
    }
    // Release: the server's Acquire load of the tail must see the SQEs.
    sq_ring.word(params.sq_off.tail)?.store(wanted.len() as u32, Ordering::Release);
    // The RECV waits until the others have completed.
    let first = wanted.len() - usize::from(files.sockets.is_some());
    let enter = |submit, wait| {
        call("io_uring_enter", NR_IO_URING_ENTER, [fd, submit, wait, IORING_ENTER_GETEVENTS as usize, 0, 0])
    };
    let submitted = enter(wanted.len(), first)?;
    // A denied operation ends the submission: the requests after it would be waited for forever.
    if let Some([_, other]) = files.sockets.as_ref().filter(|_| submitted == wanted.len()) {
        rustix::io::write(other, b"r").map_err(|error| Fault::of("write", error))?;
        enter(0, wanted.len())?;
    }
    // Acquire: pairs with the server's Release store of the tail after it wrote the CQEs.
    let tail = cq_ring.word(params.cq_off.tail)?.load(Ordering::Acquire);
    let cqes = (0..wanted.len().min(tail as usize))
        .map(|index| cq_ring.read(params.cq_off.cqes as usize + index * size_of::<Cqe>()))
        .collect::<Result<Vec<Cqe>, Fault>>()?;
    judge(&cqes)?;
    if (submitted, tail as usize) != (wanted.len(), wanted.len()) {
        let wanted = wanted.len();
        return Err(Fault::Wrong(format!(
            "io_uring_enter submitted {submitted} of {wanted} requests, {tail} completed"
        )));
    }
    match needs {
        Needs::Least => Ok(Server::Emulation), // whichever it is
        Needs::All => Ok(server_of(ring.as_fd())),
    }
}

/// The files that the requests use. A file that is unavailable is left out, since this says nothing about io_uring.
struct Files {
    /// A file with a byte in it: this executable, or a memfd.
    file: Option<OwnedFd>,
    sockets: Option<[OwnedFd; 2]>,
}

impl Files {
    fn open(needs: Needs) -> Files {
        let memory = || {
            let file = memfd_create("anyring-doctor", MemfdFlags::CLOEXEC).ok()?;
            rustix::io::write(&file, b"r").ok().map(|_| file)
        };
        if needs == Needs::Least {
            return Files { file: None, sockets: None };
        }
        let own = || std::fs::File::open(crate::library::executable().ok()?).ok().map(OwnedFd::from);
        let sockets = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        Files { file: own().or_else(memory), sockets: sockets.ok().map(<[OwnedFd; 2]>::from) }
    }

    /// The [`REQUESTS`] that can be made, with their indices.
    fn requests<'a>(&'a self, bytes: &'a mut [u8; 2]) -> impl Iterator<Item = (usize, Sqe)> + 'a {
        let [read, received] = bytes.each_mut().map(|byte| &raw mut *byte as u64);
        REQUESTS.into_iter().enumerate().filter_map(move |(index, opcode)| {
            let mut sqe = Sqe { opcode: opcode as u8, fd: -1, ..Sqe::default() };
            match opcode {
                Opcode::Read => (sqe.fd, sqe.addr, sqe.len) = (self.file.as_ref()?.as_raw_fd(), read, 1),
                Opcode::Timeout => (sqe.addr, sqe.len) = (&raw const TIMEOUT as u64, 1),
                Opcode::PollAdd => {
                    (sqe.fd, sqe.op_flags) = (self.sockets.as_ref()?[1].as_raw_fd(), libc::POLLOUT as u32)
                }
                Opcode::Recv => (sqe.fd, sqe.addr, sqe.len) = (self.sockets.as_ref()?[0].as_raw_fd(), received, 1),
                _ => {}
            }
            Some((index, sqe))
        })
    }
}

/// Number of rings that fit at the same time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// Rings of 64 entries.
    pub rings: u32,
    /// The error for the next one, if a limit was reached.
    pub end: Option<String>,
}

/// A soft limit; `None` if it is unlimited or unknown.
pub fn soft_limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel fills in a local.
    unsafe { libc::getrlimit(resource, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Makes rings of 64 entries in a forked child, with which they end, until one is refused. Kernels before Linux
/// 7.2.11 charge them to the user's limit of locked memory.
pub fn room() -> Option<Room> {
    match ask(fill) {
        Outcome::Replied(room) => Some(room),
        _ => None,
    }
}

fn fill() -> Room {
    const ENTRIES_EACH: usize = 64;
    /// The least number of bytes that the kernel charges for a ring: its SQEs and its queues.
    const BYTES_EACH: u64 = 8192;
    const MOST: u64 = 1280;
    /// Number of rings that are made if no limit is set.
    const WITHOUT_LIMIT: u64 = 64;
    // One more than the limit has room for. Without a limit, a few show that rings fit.
    let limit = soft_limit(libc::RLIMIT_MEMLOCK);
    let most = limit.map_or(WITHOUT_LIMIT, |bytes| (bytes / BYTES_EACH + 1).min(MOST)) as u32;
    // The limit of open files is not the question here, so it is raised.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in, and reads, a local.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
    for rings in 0..most {
        let mut params = Params::default();
        let params_address = std::ptr::from_mut(&mut params) as usize;
        let made = call("io_uring_setup", NR_IO_URING_SETUP, [ENTRIES_EACH, params_address, 0, 0, 0, 0]);
        match made {
            Err(Fault::Refused { code: libc::EMFILE | libc::ENFILE, .. }) => return Room { rings, end: None },
            Err(refused) => return Room { rings, end: Some(refused.to_string()) },
            Ok(_) => {}
        }
    }
    Room { rings: most, end: None }
}

/// Checks that these completions are those of [`REQUESTS`], each once.
fn judge(cqes: &[Cqe]) -> Result<(), Fault> {
    let mut seen = [false; REQUESTS.len()];
    for cqe in cqes {
        let index = usize::try_from(cqe.user_data).unwrap_or(usize::MAX);
        let (Some(opcode), Some(seen)) = (REQUESTS.get(index), seen.get_mut(index)) else {
            return Err(Fault::Wrong(format!("nobody asked for the completion {cqe:?}")));
        };
        if cqe.res < 0 && (*opcode, cqe.res) != (Opcode::Timeout, -libc::ETIME) {
            return Err(Fault::Refused {
                call: format!("IORING_OP_{}", opcode.name()),
                code: cqe.res.saturating_neg(),
            });
        }
        let right = match opcode {
            Opcode::Read | Opcode::Recv => cqe.res == 1,
            Opcode::Timeout => cqe.res == -libc::ETIME,
            Opcode::PollAdd => cqe.res & i32::from(libc::POLLOUT) != 0,
            _ => cqe.res == 0,
        };
        if !right || std::mem::replace(seen, true) {
            return Err(Fault::Wrong(format!("IORING_OP_{} completed with {cqe:?}", opcode.name())));
        }
    }
    Ok(())
}

/// The server of a ring. The kernel names its rings in /proc. Without /proc the file type decides: an anonymous inode
/// has none, while the files that an emulation can make (a socket, a memfd) have one.
pub fn server_of(ring: BorrowedFd<'_>) -> Server {
    let of_kernel = match std::fs::read_link(format!("/proc/self/fd/{}", ring.as_raw_fd())) {
        Ok(name) => name.as_os_str() == "anon_inode:[io_uring]",
        Err(_) => rustix::fs::fstat(ring).is_ok_and(|status| status.st_mode & libc::S_IFMT == 0),
    };
    if of_kernel {
        Server::Kernel
    } else {
        Server::Emulation
    }
}

/// Makes one system call of io_uring's; `name` is for the error.
pub fn call(name: &str, number: i64, args: [usize; 6]) -> Result<usize, Fault> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the calls made here are io_uring's, on structures that outlive them.
    refused(name, unsafe { libc::syscall(number, a, b, c, d, e, f) } as isize)
}

/// The result of a libc call, or the error number that it left.
fn refused(call: &str, answer: isize) -> Result<usize, Fault> {
    match answer {
        -1 => Err(Fault::Refused { call: call.to_owned(), code: errno::last() }),
        value => Ok(value as usize),
    }
}

/// An area of the ring, mapped until the probe's process ends.
struct Mapping {
    address: usize,
    bytes: usize,
}

impl Mapping {
    fn new(ring: &OwnedFd, bytes: usize, offset: u32) -> Result<Self, Fault> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE);
        let (fd, offset) = (ring.as_raw_fd(), libc::off_t::from(offset));
        // SAFETY: a new mapping, at an address that the kernel chooses; it replaces no existing one.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
        Ok(Mapping { address: refused("mmap", address as isize)?, bytes })
    }

    /// The address of a `T` at `offset`. The offset came from what answered io_uring_setup(2), so it is checked.
    fn at<T>(&self, offset: usize) -> Result<*mut T, Fault> {
        let fits = offset.checked_add(size_of::<T>()).is_some_and(|end| end <= self.bytes);
        if !fits || !offset.is_multiple_of(align_of::<T>()) {
            return Err(Fault::Wrong(format!("io_uring_setup gave the impossible offset {offset}")));
        }
        Ok((self.address + offset) as *mut T)
    }

    fn word(&self, offset: u32) -> Result<&AtomicU32, Fault> {
        // SAFETY: inside the mapping and aligned (`at`), mapped as long as the process lives, and shared with the
        // server, which is why it is only accessed as an atomic.
        Ok(unsafe { &*self.at::<AtomicU32>(offset as usize)? })
    }

    fn write<T>(&self, offset: usize, value: T) -> Result<(), Fault> {
        // SAFETY: inside the writable mapping and aligned (`at`); the server reads it only after the tail's store.
        unsafe { self.at::<T>(offset)?.write_volatile(value) };
        Ok(())
    }

    fn read(&self, offset: usize) -> Result<Cqe, Fault> {
        // SAFETY: inside the mapping and aligned (`at`); any bytes are a valid Cqe, and the server wrote it before the
        // tail that was loaded.
        Ok(unsafe { self.at::<Cqe>(offset)?.read_volatile() })
    }
}
