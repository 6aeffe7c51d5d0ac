//! The program that a seed makes: threads that share rings, pipes and files, and what they do at each step.

use crate::check::{Kind, Record, Records, Slot, MESSAGE};
use crate::ring::Ring;
use crate::system::Simulated;
use anyring_abi::{
    Opcode, Sqe, Timespec, IORING_ENTER_GETEVENTS, IORING_POLL_ADD_MULTI, IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_SINGLE_ISSUER, IOSQE_ASYNC, IOSQE_IO_DRAIN, IOSQE_IO_LINK,
};
use anyring_engine::os::simulated::kernel;
use anyring_engine::Errno;
use anyring_test_kit::{set_soft_limit, Choices};
use std::sync::{Arc, Mutex, MutexGuard};

/// The size of the files. Each transfer ends inside it.
const FILE_BYTES: u64 = 1 << 16;
/// The bytes that a pipe is fed at a time, and the most that a read asks for.
const CHUNK: usize = 64;
/// The most bytes in a pipe, so that no write waits for room.
const PIPE_ROOM: u64 = 32 << 10;

/// Returns the byte at this place of a file or stream.
pub fn pattern(at: u64) -> u8 {
    (at % 251) as u8
}

/// A pipe, or a pair of sockets: what goes in is the pattern, in order.
pub struct Stream {
    /// The end that is read.
    pub reader: i32,
    writer: i32,
    /// Bytes that went in.
    pub fed: u64,
    /// Bytes that came out, by requests that were answered.
    pub received: u64,
    /// True if a ring was closed with a request on it: some bytes may be lost.
    pub leaks: bool,
}

/// The state that the threads share. It is locked only for moments, never during a call of the engine.
pub struct World {
    pub(crate) slots: Vec<Slot>,
    pub(crate) streams: Vec<Stream>,
    files: [i32; 2],
    pub(crate) records: Records,
    random: fastrand::Rng,
    /// True if other threads than the ring's own may call on it.
    shares: bool,
    forks: bool,
    /// True if RLIMIT_NOFILE may forbid new descriptors for a while.
    limits: bool,
    limited: bool,
    /// True if some requests have IOSQE_IO_DRAIN. If false, some requests never end, for which a drain would wait.
    pub(crate) drains: bool,
    finished: usize,
}

/// The program of a run.
pub struct Program {
    /// The system under it.
    pub system: &'static Simulated,
    world: Mutex<World>,
    steps: u64,
    flags: u32,
    cq_entries: u32,
}

fn open_files() -> [i32; 2] {
    let path = std::env::temp_dir();
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).unwrap_or_default();
    let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_CLOEXEC;
    // SAFETY: C strings, and calls that make descriptors.
    let on_disk = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
    // SAFETY: as above.
    let in_memory = unsafe { libc::memfd_create(c"simulated".as_ptr(), libc::MFD_CLOEXEC) };
    let bytes: Vec<u8> = (0..FILE_BYTES).map(pattern).collect();
    let files = [if on_disk < 0 { in_memory } else { on_disk }, in_memory];
    for fd in files {
        // SAFETY: the bytes live through the call.
        unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), 0) };
    }
    files
}

fn stream(random: &mut fastrand::Rng) -> Stream {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    let (reader, writer) = unsafe {
        match random.bool() {
            true => (libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), ()),
            false => {
                (libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr()), ())
            }
        };
        (ends[0], ends[1])
    };
    // SAFETY: changes a description of this program's own.
    unsafe { libc::fcntl(writer, libc::F_SETFL, libc::O_WRONLY | libc::O_NONBLOCK) };
    Stream { reader, writer, fed: 0, received: 0, leaks: false }
}

impl Program {
    /// The program of this seed, whose threads make `steps` steps in all.
    pub fn new(system: &'static Simulated, seed: u64, steps: u64) -> Program {
        let mut random = fastrand::Rng::with_seed(seed ^ 0x0009_0906_a777);
        let flags = match random.u32(..4) {
            0 => IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
            1 => IORING_SETUP_COOP_TASKRUN,
            _ => 0,
        };
        let shares = flags & IORING_SETUP_SINGLE_ISSUER == 0;
        let cq_entries = random.choose(&[8, 32, 256]);
        let streams = (0..random.usize(1..5)).map(|_| stream(&mut random)).collect();
        let (forks, drains, limits) = (random.chance(1, 3), random.bool(), random.chance(1, 3));
        let (slots, files, records, finished) = (Vec::new(), open_files(), Records::default(), 0);
        let limited = false;
        let world =
            World { slots, streams, files, records, random, shares, forks, limits, limited, drains, finished };
        Program { system, world: Mutex::new(world), steps, flags, cq_entries }
    }

    /// Locks the shared state.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Describes the requests in flight; empty if the state is locked.
    pub fn describe(&self) -> String {
        self.world.try_lock().map_or(String::new(), |world| world.describe())
    }

    /// Runs the program to its end.
    pub fn run(&'static self) {
        let threads = self.world().random.usize(1..5);
        let per_thread = self.steps / threads as u64;
        let places: Vec<_> =
            (0..threads).map(|me| self.system.spawn(move || self.thread(me, threads, per_thread))).collect();
        for place in places {
            self.system.join_thread(place);
        }
    }

    /// Checks the streams' data after the threads have ended, and closes the rings. Returns the number of requests.
    pub fn finish(&self) -> usize {
        let world = &mut *self.world();
        world.check_streams();
        world.slots.clear();
        world.records.count()
    }

    fn make_ring(&self) -> Ring {
        loop {
            match Ring::new(self.flags, 8, self.cq_entries) {
                Ok(ring) => return ring,
                Err(Errno::MFILE) if self.world().limited => self.world().limit(false),
                Err(error) if self.system.faults(|it| it.has_failed_with(error.raw_os_error())) => {
                    self.system.progresses()
                }
                Err(error) => crate::report::finding(&format!("setup: {error:?}, with which no call has failed")),
            }
        }
    }

    fn thread(&self, me: usize, threads: usize, steps: u64) {
        let ring = Arc::new(self.make_ring());
        let mine = {
            let mut world = self.world();
            world.slots.push(Slot::new(ring));
            world.slots.len() - 1
        };
        for _ in 0..steps {
            self.step(mine);
        }
        self.world().finished += 1;
        // All threads continue until each has ended, so that messages to a ring are seen.
        while self.world().finished < threads {
            self.system.sleep(20_000);
            self.reap(mine);
        }
        if me == 0 {
            self.system.set_faulty(false);
            self.world().limit(false);
        }
        self.drain(mine);
        self.world().close(mine);
        let ring = self.world().slots[mine].ring.clone();
        ring.close();
    }

    /// Makes one step of a thread.
    fn step(&self, mine: usize) {
        let (what, at, ns) = {
            let world = &mut *self.world();
            let slots = world.slots.len();
            let at = if world.shares { world.random.usize(..slots) } else { mine };
            (world.random.u32(..100), at, world.random.u64(1_000..3_000_000))
        };
        match what {
            0..40 => self.submit(at),
            40..60 => self.wait(at),
            60..75 => self.reap(at),
            75..88 => self.feed(),
            88..95 => self.system.sleep(ns),
            95 => self.limit(),
            96 => self.renew(mine),
            97..99 => self.fork(),
            _ => self.system.point_of_program(),
        }
    }

    /// Sets a limit that leaves no descriptors, or lifts it.
    fn limit(&self) {
        let world = &mut *self.world();
        if world.limits {
            world.limit(!world.limited);
            self.system.faults_mut(|it| it.count("limit of descriptors", u64::from(world.limited)));
        }
    }

    /// Writes to a stream.
    fn feed(&self) {
        let world = &mut *self.world();
        let at = world.random.usize(..world.streams.len());
        let bytes = world.random.usize(1..=CHUNK);
        world.streams[at].feed(bytes);
    }

    /// Submits some requests.
    fn submit(&self, at: usize) {
        let (ring, count, wait) = {
            let world = &mut *self.world();
            let Some(ring) = world.slots[at].begin() else { return };
            let count = world.random.u32(1..=ring.room().clamp(1, 5));
            let count = count.min(ring.room());
            let mut linked = false;
            for index in 0..count {
                linked = world.push(at, &ring, linked, index + 1 == count, self.system.now_ns());
            }
            (ring, count, world.random.chance(1, 4))
        };
        let before = ring.unsubmitted();
        let flags = if wait { IORING_ENTER_GETEVENTS } else { 0 };
        let answer = ring.enter(before, 0, flags);
        let _ = count;
        self.record_submitted(at, &ring);
        self.judge(&answer, "enter that submits");
        self.system.progresses();
        self.world().slots[at].end();
    }

    /// Updates the records after an enter that submits.
    fn record_submitted(&self, at: usize, ring: &Ring) {
        if ring.unsubmitted() == 0 {
            self.world().records.submitted(at, self.system.now_ns());
        }
    }

    /// Reports an error that no injected fault and no full CQ explains.
    fn judge(&self, answer: &Result<u32, Errno>, what: &str) {
        let Err(error) = answer else { return };
        let expected = [Errno::BUSY, Errno::AGAIN, Errno::INTR, Errno::TIME].contains(error);
        if !expected && !self.system.faults(|it| it.has_failed_with(error.raw_os_error())) {
            crate::report::finding(&format!("{what}: {error:?}, with which no call has failed"));
        }
    }

    /// Waits for a while.
    fn wait(&self, at: usize) {
        let (ring, count, ns) = {
            let world = &mut *self.world();
            let slot = &mut world.slots[at];
            let Some(ring) = slot.enter() else { return };
            let count = world.random.u32(1..4);
            world.slots[at].waits.push(count);
            (ring, count, world.random.i64(10_000..5_000_000))
        };
        let answer = ring.enter_for(count, Timespec { tv_sec: 0, tv_nsec: ns });
        self.judge(&answer, "enter that waits");
        let slot = &mut self.world().slots[at];
        let place = slot.waits.iter().position(|it| *it == count);
        slot.waits.swap_remove(place.unwrap_or(0));
        slot.leave();
    }

    /// Reaps the CQEs that are there.
    fn reap(&self, at: usize) {
        self.system.point_of_program();
        let world = &mut *self.world();
        if world.slots[at].closed {
            return; // what comes now is for nobody
        }
        if world.reap_all(at, self.system) {
            self.system.progresses();
        }
    }

    /// Closes the thread's ring with its requests in flight, and makes another one.
    fn renew(&self, mine: usize) {
        {
            let world = &mut *self.world();
            if world.slots[mine].is_used() {
                return;
            }
            world.reap_all(mine, self.system);
            world.slots[mine].closed = true;
            world.abandon(mine);
        }
        let (old, other) = {
            let world = &mut *self.world();
            // Above the limit no number can be used.
            let is_taken = world.random.bool() && !world.limited;
            (world.slots[mine].ring.clone(), is_taken.then_some(world.files[0]))
        };
        match other {
            Some(other) => old.replace(other),
            None => old.close(),
        }
        let ring = Arc::new(self.make_ring());
        self.world().slots[mine] = Slot::new(ring);
        self.system.progresses();
    }

    /// Forks a child, in which only this thread goes on. The child must be able to use the engine.
    fn fork(&self) {
        if !self.world().forks {
            return;
        }
        let rings: Vec<_> =
            self.world().slots.iter().filter(|slot| slot.is_free()).map(|slot| slot.ring.clone()).collect();
        // SAFETY: the child makes system calls, and calls of the engine, which has to work there.
        match unsafe { libc::fork() } {
            0 => {
                self.system.forked();
                self.system.set_faulty(false);
                for ring in rings {
                    let _ = ring.enter(0, 0, IORING_ENTER_GETEVENTS);
                }
                let own = self.make_ring();
                own.push(Sqe { opcode: Opcode::Nop as u8, user_data: 1, ..Sqe::default() });
                let done =
                    own.enter(1, 1, IORING_ENTER_GETEVENTS) == Ok(1) && own.reap().is_some_and(|it| it.res == 0);
                own.close();
                // SAFETY: ends the child.
                unsafe { libc::_exit(if done { 0 } else { 3 }) }
            }
            -1 => {}
            child => {
                let mut status = 0;
                // SAFETY: a child of this process, and room for its status.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                if status != 0 {
                    crate::report::finding(&format!("fork: the child ends with {status:#x}"));
                }
                self.system.faults_mut(|it| it.count("fork", 1));
                self.system.wake_all(); // what the child woke is asleep in this process's system
            }
        }
    }

    /// Waits until everything in flight has completed. Another thread's requests may read the bytes that this one
    /// feeds to a stream, so it checks again after a while.
    fn drain(&self, mine: usize) {
        /// The number of fruitless waits that make a finding: no CQE, and data in each stream that a request waits
        /// for.
        const ROUNDS: u32 = 3;
        let mut without = 0;
        loop {
            let ring = {
                let world = &mut *self.world();
                if world.reap_all(mine, self.system) {
                    without = 0;
                }
                let ring = world.slots[mine].ring.clone();
                if world.records.open_on(mine) == 0 && ring.unsubmitted() == 0 {
                    break;
                }
                world.satisfy(mine);
                world.cancel_endless(mine, &ring);
                world.slots[mine].waits.push(1);
                ring
            };
            let submitted = ring.enter(ring.unsubmitted(), 0, IORING_ENTER_GETEVENTS);
            self.record_submitted(mine, &ring);
            let waited = ring.enter_for(1, Timespec { tv_sec: 10, tv_nsec: 0 });
            self.judge(&submitted, "enter in the end");
            self.judge(&waited, "wait in the end");
            self.system.progresses();
            let world = &mut *self.world();
            world.slots[mine].waits.clear();
            without += u32::from(waited == Err(Errno::TIME) && ring.ready() == 0 && world.is_satisfied(mine));
            if without == ROUNDS {
                crate::report::finding(&format!("wake-up: nothing is answered\n{}", world.describe()));
            }
        }
        // Nothing comes after the last one.
        let ring = self.world().slots[mine].ring.clone();
        let _ = ring.enter(0, 0, IORING_ENTER_GETEVENTS);
        self.world().reap_all(mine, self.system);
    }
}

impl Stream {
    fn feed(&mut self, bytes: usize) {
        // The limit is the content itself: a closed ring may have taken bytes that no request received.
        if self.left() > PIPE_ROOM {
            return;
        }
        let data: Vec<u8> = (0..bytes as u64).map(|at| pattern(self.fed + at)).collect();
        let written = kernel(libc::SYS_write, [self.writer as usize, data.as_ptr() as usize, bytes, 0, 0, 0]);
        self.fed += written.max(0) as u64;
    }

    /// Bytes that are in it.
    pub fn left(&self) -> u64 {
        let mut left = 0i32;
        kernel(libc::SYS_ioctl, [self.reader as usize, libc::FIONREAD as usize, &raw mut left as usize, 0, 0, 0]);
        left as u64
    }
}

impl World {
    fn limit(&mut self, on: bool) {
        /// A limit below the number of descriptors, and above the number that a thread polls.
        const FEW: u64 = 8;
        set_soft_limit(libc::RLIMIT_NOFILE, if on { FEW } else { u64::MAX });
        self.limited = on;
    }

    /// Describes the requests in flight and the streams, for a report.
    fn describe(&self) -> String {
        let streams = self.streams.iter().enumerate().map(|(at, stream)| {
            let (fed, received, left) = (stream.fed, stream.received, stream.left());
            format!("  stream {at}: of {fed} bytes {received} were read, {left} are left\n")
        });
        self.records.describe() + &streams.collect::<String>()
    }

    /// True if each stream that a request on this ring waits for has data, and nothing else is in flight on it.
    fn is_satisfied(&self, at: usize) -> bool {
        let streams = self.records.streams_waited_for(at);
        streams.len() == self.records.open_on(at) && streams.iter().all(|stream| self.streams[*stream].left() > 0)
    }

    /// Writes to each stream that a request on this ring waits for.
    fn satisfy(&mut self, at: usize) {
        for stream in self.records.streams_waited_for(at) {
            self.streams[stream].feed(CHUNK);
        }
    }

    /// Cancels requests that have no end.
    fn cancel_endless(&mut self, at: usize, ring: &Ring) -> u32 {
        let endless = self.records.endless_on(at);
        let mut count = 0;
        for target in endless {
            if ring.room() == 0 {
                break;
            }
            let user_data = self.records.add(Record::new(at, Kind::Cancel, 0));
            self.records.cancelled(target);
            ring.push(Sqe { opcode: Opcode::AsyncCancel as u8, addr: target, user_data, fd: -1, ..Sqe::default() });
            count += 1;
        }
        count
    }

    /// Pushes one request of some kind. True if the next one is linked to it.
    fn push(&mut self, at: usize, ring: &Ring, linked: bool, is_last: bool, now_ns: u64) -> bool {
        let random = &mut self.random;
        let mut sqe = Sqe { fd: -1, ..Sqe::default() };
        let mut buffer = Vec::new();
        let which = random.usize(..self.streams.len());
        let kind = match random.u32(..20) {
            0..3 => Kind::Nop,
            3..7 => {
                let offset = random.u64(..FILE_BYTES - 20_000);
                let bytes = random.usize(1..20_000);
                sqe.fd = self.files[random.usize(..2)];
                (sqe.off, buffer) = (offset, vec![0u8; bytes]);
                sqe.opcode = Opcode::Read as u8;
                match random.u32(..3) {
                    0 => {
                        buffer.iter_mut().enumerate().for_each(|(index, it)| *it = pattern(offset + index as u64));
                        sqe.opcode = Opcode::Write as u8;
                        Kind::FileWrite { bytes }
                    }
                    _ => Kind::FileRead { offset, bytes },
                }
            }
            7..12 => {
                buffer = vec![0u8; random.usize(33..=CHUNK)];
                sqe.fd = self.streams[which].reader;
                (sqe.opcode, sqe.off) = (Opcode::Read as u8, u64::MAX);
                Kind::StreamRead { stream: which }
            }
            12..14 => {
                let endless = !self.drains && random.bool();
                sqe.fd = self.streams[which].reader;
                (sqe.opcode, sqe.op_flags) = (Opcode::PollAdd as u8, libc::POLLIN as u32);
                sqe.len = if endless { IORING_POLL_ADD_MULTI } else { 0 };
                Kind::Poll { stream: which, endless }
            }
            14..16 => {
                let ns = random.u64(1_000..4_000_000);
                buffer = [0i64.to_ne_bytes(), (ns as i64).to_ne_bytes()].concat();
                sqe.opcode = Opcode::Timeout as u8;
                Kind::Timeout { ns, until_ns: now_ns + ns }
            }
            16 => {
                sqe.opcode = Opcode::Fsync as u8;
                sqe.fd = self.files[random.usize(..2)];
                Kind::Fsync
            }
            17 => match self.records.some_open_on(at, random) {
                None => Kind::Nop,
                Some(target) => {
                    (sqe.opcode, sqe.addr) = (Opcode::AsyncCancel as u8, target);
                    self.records.cancelled(target);
                    Kind::Cancel
                }
            },
            _ => {
                let target = random.usize(..self.slots.len());
                match self.slots[target].closed {
                    true => Kind::Nop,
                    false => {
                        let fd = self.slots[target].ring.fd;
                        (sqe.opcode, sqe.fd) = (Opcode::MsgRing as u8, fd);
                        Kind::Message { fd }
                    }
                }
            }
        };
        if matches!(kind, Kind::Nop) {
            sqe = Sqe { opcode: Opcode::Nop as u8, fd: -1, ..Sqe::default() };
        }
        let link = !is_last && random.u32(..6) == 0 && !matches!(kind, Kind::Poll { endless: true, .. });
        for (flag, set) in [
            (IOSQE_IO_LINK, link),
            (IOSQE_ASYNC, random.u32(..8) == 0),
            (IOSQE_IO_DRAIN, self.drains && random.u32(..40) == 0),
        ] {
            sqe.flags |= if set { flag } else { 0 };
        }
        if !buffer.is_empty() {
            sqe.len = if matches!(kind, Kind::Timeout { .. }) { 1 } else { buffer.len() as u32 };
        }
        let mut record = Record::new(at, kind, self.slots[at].life);
        record.linked = linked || link;
        record.buffer = buffer;
        if !record.buffer.is_empty() {
            sqe.addr = record.buffer.as_ptr() as u64;
        }
        sqe.user_data = self.records.add(record);
        if matches!(kind, Kind::Message { .. }) {
            (sqe.len, sqe.off) = (7, MESSAGE | sqe.user_data);
        }
        ring.push(sqe);
        link
    }
}
