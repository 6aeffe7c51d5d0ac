//! Runs one program in this process, on the io_uring that the process has, and records its results.

mod children;
mod memory;
mod objects;

pub use objects::FILE_BYTES;

use crate::program::*;
use crate::record::{digest, Record};
use anyring_abi::*;
use anyring_conformance::buffers::{buffer_of, BufferRing};
use anyring_conformance::ring::{Ring, TRANSIENT};
use anyring_conformance::sys;
use children::Children;
use memory::Memory;
use objects::Objects;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The waits after which a run assumes that everything has happened.
#[derive(Debug, Clone)]
pub struct Patience {
    /// The time without a CQE after which a ring with requests in flight counts as quiet.
    pub quiet: Duration,
    /// The number of CQEs by the end of each step of an earlier run. A run waits for as many, and then a moment more.
    pub counts: Option<Vec<usize>>,
    /// True under chaos: a refused call is repeated, and requests that are held back are waited for at the end.
    pub disturbed: bool,
}

/// Longer than chaos holds a request back.
const HELD_BACK: Duration = Duration::from_millis(200);
/// The limit of a wait for a CQE that came in another run.
const LIMIT: Duration = Duration::from_millis(1500);
/// The time in which a run that knows the counts checks for unexpected CQEs.
const MOMENT: Duration = Duration::from_micros(200);
/// More CQEs than any program has. A program that never ends would fill memory with its record.
const MAXIMUM_CQES: usize = 1 << 16;

struct Machine<'p> {
    program: &'p Program,
    ring: Ring,
    other: Ring,
    group: BufferRing,
    objects: Objects,
    children: Children,
    memory: Memory,
    record: Record,
    patience: Patience,
    /// Requests without a last CQE.
    in_flight: BTreeSet<u64>,
    /// True if a request was submitted that may end without a CQE.
    silent: bool,
    /// True if the current step submitted such a request: the number of CQEs in another run says nothing about it.
    silent_now: bool,
    /// True if a request of the current step drains. The kernel may still count it after its CQE, and then holds the
    /// next submission back until something completes.
    drains_now: bool,
    holding: bool,
    reaped: usize,
    /// The CQEs of `reaped` that count: a multishot poll may report an event once more (`Record::differences`).
    counted: usize,
    multishot_polls: BTreeSet<u64>,
    /// CQEs of the other run that did not come by the end of the last step. They are not waited for again.
    missing: usize,
    made: BTreeMap<u64, i32>,
    /// Requests that take buffers of the ring group, and the buffers that they used up.
    choosing: BTreeSet<u64>,
    used: Vec<u16>,
}

/// Runs `program` in the current directory, which is empty. `tmpfs` is an empty directory on tmpfs.
pub fn run(program: &Program, tmpfs: &CStr, patience: Patience) -> Record {
    // A process gets futexes of its own in the kernel with its first thread, even an io-wq worker
    // (kernel/futex/core.c). A waiter from before is then never woken.
    std::thread::spawn(|| ()).join().expect("a thread that does nothing does not panic");
    // Made first, so that they hold none of the descriptors of the program.
    let waits = program.requests().any(|request| request.opcode == Opcode::Waitid as u8);
    let children = if waits { Children::new() } else { Children::default() };
    let mut objects = Objects::new(tmpfs);
    for (index, id) in children.ids() {
        objects.insert(End::Child(index), id);
    }
    let memory = Memory::new(objects.listener);
    let params = Params { flags: program.setup_flags, cq_entries: program.cq_entries, ..Params::default() };
    let params = Params { sq_thread_idle: 50, ..params };
    let mut ring = Ring::from_params(program.door, ENTRIES, params)
        .unwrap_or_else(|answer| panic!("setup with {:#x} answered {answer}", program.setup_flags));
    ring.fd = objects::move_up(ring.fd);
    ring.disturbed = patience.disturbed;
    let mut other = Ring::new(program.door, ENTRIES, 0).unwrap_or_else(|answer| panic!("setup answered {answer}"));
    other.fd = objects::move_up(other.fd);
    objects.insert(End::ThisRing, ring.fd);
    objects.insert(End::OtherRing, other.fd);
    if program.setup_flags & IORING_SETUP_R_DISABLED != 0 {
        assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0, "IORING_REGISTER_ENABLE_RINGS");
    }
    let group = BufferRing::filled(&ring, RING_GROUP, GROUP_ENTRIES, GROUP_BYTES as usize);
    let mut machine = Machine {
        program,
        ring,
        other,
        group,
        objects,
        children,
        memory,
        record: Record { seed: program.seed, ..Record::default() },
        patience,
        in_flight: BTreeSet::new(),
        silent: false,
        silent_now: false,
        drains_now: false,
        holding: false,
        reaped: 0,
        counted: 0,
        multishot_polls: program.multishot_polls(),
        missing: 0,
        made: BTreeMap::new(),
        choosing: BTreeSet::new(),
        used: Vec::new(),
    };
    machine.register_first();
    for (index, step) in program.steps.iter().enumerate() {
        machine.step(index, step);
        machine.run_until_quiet(index);
    }
    machine.finish();
    machine.record
}

impl Machine<'_> {
    fn register_first(&mut self) {
        let files: Vec<i32> = INITIAL_FILES.iter().map(|target| self.number(target)).collect();
        self.ring.register_files(&files);
        assert_eq!(self.register_buffers(), 0, "IORING_REGISTER_BUFFERS");
    }

    fn register_buffers(&mut self) -> isize {
        let buffers: Vec<libc::iovec> = (0..BUFFERS)
            .map(|index| libc::iovec {
                iov_base: self.memory.registered(index) as *mut libc::c_void,
                iov_len: BUFFER_BYTES as usize,
            })
            .collect();
        self.ring.register_buffers(&buffers)
    }

    fn number(&self, target: &Target) -> i32 {
        resolve(&self.objects, &self.made, target)
    }

    fn step(&mut self, index: usize, step: &Step) {
        let answers = match step {
            Step::Submit(requests) => {
                requests.iter().for_each(|request| self.push(request));
                self.submit()
            }
            Step::Register(registration) => vec![self.register(registration)],
            Step::Act(action) => vec![self.act(action)],
            Step::HoldCompletions(hold) => {
                self.holding = *hold;
                return;
            }
        };
        self.record.answers.insert(index, answers);
    }

    fn push(&mut self, request: &Request) {
        let id = request.user_data;
        let mut field = |name: &str, value: &Value| {
            let (objects, made) = (&self.objects, &self.made);
            self.memory.place(id, name, value, |target| resolve(objects, made, target))
        };
        // `addr` first: it also makes the length word of an address.
        let addr = field("addr", &request.addr);
        let (off, addr3) = (field("off", &request.off), field("addr3", &request.addr3));
        let off = request.off_of.map_or(off, |end| self.number(&Target::Of(end)) as u64);
        let file_index =
            request.file_index_of.map_or(request.file_index, |end| self.number(&Target::Of(end)) as u32);
        let sqe = Sqe {
            opcode: request.opcode,
            flags: request.flags,
            ioprio: request.ioprio,
            fd: self.number(&request.fd),
            off,
            addr,
            len: request.len,
            op_flags: request.op_flags,
            user_data: id,
            buf_index: request.buf_index,
            personality: request.personality,
            file_index,
            addr3,
            pad2: request.pad2,
        };
        self.in_flight.insert(id);
        if request.flags & IOSQE_BUFFER_SELECT != 0 && request.buf_index == RING_GROUP {
            self.choosing.insert(id);
        }
        self.silent_now |= request.flags & IOSQE_CQE_SKIP_SUCCESS != 0;
        self.silent |= self.silent_now;
        self.drains_now |= request.flags & IOSQE_IO_DRAIN != 0;
        self.ring.push(sqe);
    }

    /// Submits the pushed requests. Returns enter's results, until all are consumed or it fails.
    fn submit(&mut self) -> Vec<i64> {
        self.ring.publish();
        if self.program.setup_flags & IORING_SETUP_SQPOLL != 0 {
            self.wait_for_thread();
            return Vec::new();
        }
        let mut answers = Vec::new();
        while self.unconsumed() > 0 && answers.len() < 32 {
            let (wait, flags) = match self.program.wait_while_submitting && !self.holding {
                true => (0, IORING_ENTER_GETEVENTS),
                false => (0, 0),
            };
            let answer = self.ring.enter(self.unconsumed(), wait, flags, 0, 0);
            answers.push(answer as i64);
            let again = self.patience.disturbed && TRANSIENT.contains(&(answer.min(0).unsigned_abs() as i32));
            if answer < 0 && !again {
                break;
            }
        }
        answers
    }

    fn unconsumed(&self) -> u32 {
        self.ring.word_at(self.ring.params.sq_off.tail).wrapping_sub(self.ring.sq_head())
    }

    fn wait_for_thread(&mut self) {
        let deadline = Instant::now() + LIMIT;
        while self.unconsumed() > 0 && Instant::now() < deadline {
            if self.ring.sq_flags() & IORING_SQ_NEED_WAKEUP != 0 {
                self.ring.enter(0, 0, IORING_ENTER_SQ_WAKEUP, 0, 0);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Reaps CQEs until everything has happened.
    fn run_until_quiet(&mut self, step: usize) {
        let expected = self.patience.counts.as_ref().map(|counts| counts.get(step).copied().unwrap_or(0));
        let awaited = expected.map(|expected| expected - self.missing.min(expected));
        match awaited {
            _ if self.holding => self.run_held_until_quiet(awaited.unwrap_or(0)),
            Some(awaited) => self.reap_expected(awaited),
            None => self.reap_until_quiet(),
        }
        self.missing = expected.unwrap_or(0).saturating_sub(self.posted());
        (self.silent_now, self.drains_now) = (false, false);
        self.record.counts.push(self.posted());
    }

    /// The number of CQEs that count, reaped or not.
    fn posted(&self) -> usize {
        self.counted + self.ring.cq_ready() as usize
    }

    /// Runs task work, and its consequences, until no CQE comes; the CQ stays as it is.
    fn run_held_until_quiet(&mut self, expected: usize) {
        let deadline = Instant::now() + LIMIT;
        loop {
            let before = self.posted();
            for _ in 0..2 {
                std::thread::sleep(self.patience.quiet / 2);
                self.ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
            }
            if self.posted() == before && (before >= expected || Instant::now() > deadline) {
                return;
            }
        }
    }

    fn reap_expected(&mut self, expected: usize) {
        let deadline = Instant::now() + LIMIT;
        while self.counted < expected && Instant::now() < deadline {
            self.reap(deadline.saturating_duration_since(Instant::now()));
        }
        let moment = match (self.idle(), self.silent_now) {
            (true, _) => Duration::ZERO,
            (false, true) => self.patience.quiet,
            (false, false) => MOMENT,
        };
        while self.reap(moment) {}
    }

    fn reap_until_quiet(&mut self) {
        loop {
            let quiet = if self.idle() { Duration::ZERO } else { self.patience.quiet };
            if !self.reap(quiet) {
                return;
            }
        }
    }

    fn idle(&self) -> bool {
        self.in_flight.is_empty() && !self.silent && !self.drains_now
    }

    /// Reaps one CQE that comes within `limit`.
    fn reap(&mut self, limit: Duration) -> bool {
        let cqe = match self.ring.peek() {
            Some(cqe) => Some(cqe),
            None if limit.is_zero() => {
                // Runs task work and flushes the overflow list, without a wait.
                self.ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
                self.ring.peek()
            }
            None => self.ring.wait_for(limit),
        };
        let Some(cqe) = cqe else { return false };
        self.reaped += 1;
        assert!(self.reaped < MAXIMUM_CQES, "{MAXIMUM_CQES} CQEs, the last {cqe:?}");
        if cqe.flags & IORING_CQE_F_MORE == 0 {
            self.in_flight.remove(&cqe.user_data);
        }
        if let Some(buffer) = buffer_of(&cqe).filter(|_| self.choosing.contains(&cqe.user_data)) {
            self.used.push(buffer);
        }
        if cqe.res >= 0 {
            self.made.entry(cqe.user_data).or_insert(cqe.res);
        }
        let known = self.record.completions.entry(cqe.user_data).or_default();
        let repeated = known.last() == Some(&(cqe.res, cqe.flags));
        self.counted += usize::from(!(repeated && self.multishot_polls.contains(&cqe.user_data)));
        known.push((cqe.res, cqe.flags));
        // The time at which the network is done with sent data has no order with later events.
        if cqe.flags & IORING_CQE_F_NOTIF == 0 {
            self.record.order.push(cqe.user_data);
        }
        true
    }

    fn register(&mut self, registration: &Registration) -> i64 {
        let numbers =
            |targets: &[Target]| -> Vec<i32> { targets.iter().map(|target| self.number(target)).collect() };
        let answer = match registration {
            Registration::Files(targets) => {
                let files = numbers(targets);
                self.ring.register(IORING_REGISTER_FILES, files.as_ptr() as usize, files.len() as u32)
            }
            Registration::SparseFiles(count) => {
                // struct io_uring_rsrc_register: count, flags, reserved, data, tags.
                let argument: [u64; 4] =
                    [u64::from(*count) | u64::from(IORING_RSRC_REGISTER_SPARSE) << 32, 0, 0, 0];
                self.ring.register(IORING_REGISTER_FILES2, argument.as_ptr() as usize, 32)
            }
            Registration::NoFiles => self.ring.register(IORING_UNREGISTER_FILES, 0, 0),
            Registration::FilesUpdate(first, targets) => {
                let files = numbers(targets);
                // struct io_uring_files_update: offset, reserved, address.
                let argument = [u64::from(*first), files.as_ptr() as u64];
                let count = files.len() as u32;
                self.ring.register(IORING_REGISTER_FILES_UPDATE, argument.as_ptr() as usize, count)
            }
            Registration::AllocRange(first, length) => {
                let argument = [u64::from(*first) | u64::from(*length) << 32, 0];
                self.ring.register(IORING_REGISTER_FILE_ALLOC_RANGE, argument.as_ptr() as usize, 0)
            }
            Registration::Buffers => self.register_buffers(),
            Registration::NoBuffers => self.ring.register(IORING_UNREGISTER_BUFFERS, 0, 0),
            Registration::Eventfd(index) => {
                let number = self.number(&Target::Of(End::Eventfd(*index)));
                self.ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1)
            }
            Registration::NoEventfd => self.ring.register(IORING_UNREGISTER_EVENTFD, 0, 0),
            Registration::SyncCancel(user_data, target, flags, opcode) => {
                self.sync_cancel(*user_data, self.number(target), *flags, *opcode)
            }
            Registration::GroupStatus(group) => {
                let mut status = [u64::from(*group), 0, 0, 0, 0];
                let answer = self.ring.register(IORING_REGISTER_PBUF_STATUS, status.as_mut_ptr() as usize, 1);
                return if answer == 0 { (status[0] >> 32) as i64 } else { answer as i64 };
            }
            Registration::NoGroup(group) => anyring_conformance::buffers::unregister(&self.ring, *group),
            Registration::Unknown(opcode) => self.ring.register(*opcode, 0, 0),
        };
        answer as i64
    }

    fn sync_cancel(&self, user_data: u64, fd: i32, flags: u32, opcode: u8) -> isize {
        // struct io_uring_sync_cancel_reg: address, fd and flags, a timeout of 100 ms, opcode, reserved.
        let second = u64::from(fd as u32) | u64::from(flags) << 32;
        let argument = [user_data, second, 0, 100_000_000, u64::from(opcode), 0, 0, 0];
        self.ring.register(IORING_REGISTER_SYNC_CANCEL, argument.as_ptr() as usize, 1)
    }

    fn act(&mut self, action: &Action) -> i64 {
        match action {
            Action::Write(end, bytes) => {
                let (number, content) = (self.objects.number(*end), memory::pattern(77, *bytes as usize));
                if self.program.door.poll(number, libc::POLLOUT, 0) & isize::from(libc::POLLOUT) == 0 {
                    return -i64::from(libc::EAGAIN);
                }
                // SAFETY: the bytes outlive the call, which only reads them. What can be polled has room for so few.
                unsafe { libc::write(number, content.as_ptr().cast(), content.len()) as i64 }
            }
            Action::Read(end, bytes) => {
                let (number, mut content) = (self.objects.number(*end), vec![0_u8; *bytes as usize]);
                if self.program.door.poll(number, libc::POLLIN, 0) <= 0 {
                    return -i64::from(libc::EAGAIN);
                }
                // SAFETY: the buffer has this length.
                unsafe { libc::read(number, content.as_mut_ptr().cast(), content.len()) as i64 }
            }
            Action::Connect => objects::connect(&self.objects.listener),
            Action::Wake(word) => children::wake(self.memory.word(*word), *word),
            Action::Exit(index) => self.children.end(*index),
            Action::RefillGroup => {
                let used = std::mem::take(&mut self.used);
                used.iter().for_each(|buffer| self.group.give(*buffer));
                used.len() as i64
            }
        }
    }

    /// Ends the requests in flight, and records the final state.
    fn finish(&mut self) {
        self.holding = false;
        let steps = self.program.steps.len();
        let all = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
        for round in 0..6 {
            if self.unconsumed() > 0 {
                self.submit();
            }
            self.sync_cancel(0, -1, all, 0);
            self.run_until_quiet(steps + round);
            if self.idle() {
                break;
            }
        }
        while self.patience.disturbed && !self.idle() && self.reap(HELD_BACK) {}
        let program = self.program;
        let eventfds: BTreeSet<u8> = program
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Register(Registration::Eventfd(index)) => Some(*index),
                _ => None,
            })
            .collect();
        self.record.memory = self.memory.record();
        self.record.state = self.objects.state(|index| !eventfds.contains(&index));
        let state = &mut self.record.state;
        state.insert("registered buffers".to_owned(), self.memory.registered_digest());
        let group: Vec<u8> =
            (0..GROUP_ENTRIES).flat_map(|id| self.group.content(id, GROUP_BYTES as usize).to_vec()).collect();
        state.insert("group's buffers".to_owned(), digest(&group));
        state.insert(
            "dropped and lost".to_owned(),
            format!("{} {}", self.ring.sq_dropped(), self.ring.cq_overflow()),
        );
        state.insert("messages".to_owned(), messages(&mut self.other));
    }
}

/// Reaps the messages that the other ring was sent.
fn messages(other: &mut Ring) -> String {
    let mut seen = Vec::new();
    while let Some(cqe) = other.wait_for(Duration::ZERO) {
        seen.push((cqe.user_data, cqe.res, cqe.flags));
    }
    format!("{seen:?}")
}

fn resolve(objects: &Objects, made: &BTreeMap<u64, i32>, target: &Target) -> i32 {
    match target {
        Target::Number(number) => *number,
        Target::Fixed(slot) => *slot as i32,
        // The request may have returned no descriptor, since it was mutated: such a number is not touched.
        Target::Of(End::Made(id)) => made.get(id).copied().filter(|number| sys::is_open(*number)).unwrap_or(-1),
        Target::Of(end) => objects.number(*end),
    }
}
