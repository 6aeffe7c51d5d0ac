//! Makes a program from a seed.
//!
//! The kernel itself must always do the same. Requests of one submission that are not in one chain therefore share
//! nothing: each claims whatever it touches. Only the order of their CQEs is then free, and the comparison ignores
//! it. A model of pipes, sockets, names and waiting requests lets most requests succeed.

mod files;
mod later;
mod model;
mod network;
mod rings;
mod sequences;

use crate::program::*;
use anyring_abi::*;
use anyring_conformance::door::Door;
use anyring_test_kit::Choices;
pub use later::flags_of_word;
use later::USED_LATER;
use model::{Claim, Model};

/// A CQ size above the number of CQEs that all requests with held completions make.
const ENOUGH_FOR_ALL: u32 = 64;

/// Opcodes of Linux 6.18 that anyring does not serve. It refuses them as a kernel without them does.
const UNSUPPORTED: &[Opcode] = &[Opcode::RecvZc];

/// The opcodes that programs are made of.
pub fn supported() -> impl Iterator<Item = Opcode> {
    Opcode::ALL.into_iter().filter(|opcode| !UNSUPPORTED.contains(opcode))
}

/// The program of `seed`, through `door` or through one that the seed chooses.
pub fn program(seed: u64, door: Option<Door>) -> Program {
    let mut random = fastrand::Rng::with_seed(seed);
    let doors = [Door::Liburing, Door::Libc, Door::Raw];
    let chosen = random.choose(&doors);
    let (setup_flags, cq_entries) = setup(&mut random);
    let mut generator = Generator {
        random,
        next_id: 1,
        first_of_batch: 1,
        common: supported().filter(|opcode| !USED_LATER.contains(opcode)).collect(),
        model: Model::new(),
        first_of_chain: true,
        holds: false,
        drains: false,
        later: later::uses_later(seed),
        zero_copy: later::sends_zero_copy(seed),
    };
    let wait_while_submitting = generator.chance(1, 2);
    let mut steps = Vec::new();
    if generator.chance(1, 4) {
        generator.sequence(&mut steps);
    }
    let length = generator.random.usize(8..18);
    while steps.len() < length {
        generator.steps(&mut steps);
    }
    let door = door.unwrap_or(chosen);
    let mut program = Program { seed, door, setup_flags, cq_entries, wait_while_submitting, steps };
    // A multishot request ends where it fills the CQ. The CQEs posted before it depend on when they are reaped, and,
    // while they are held, on workers. (`multishot::overflow_ends_*` in `tests/conformance/` surely fills it.)
    let holds = program.steps.iter().any(|step| matches!(step, Step::HoldCompletions(_)));
    let filled = holds || program.cq_entries == u32::from(GROUP_ENTRIES);
    let multishot = program.requests().any(is_multishot);
    if filled && multishot {
        program.setup_flags |= IORING_SETUP_CQSIZE;
        program.cq_entries = ENOUGH_FOR_ALL;
    } else if !multishot && generator.chance(1, 8) {
        generator.fill_the_cq(&mut program.steps);
    }
    program
}

fn setup(random: &mut fastrand::Rng) -> (u32, u32) {
    const DEFERRED: u32 = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    const RUNNING: [u32; 7] = [
        0,
        0,
        IORING_SETUP_COOP_TASKRUN,
        IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
        IORING_SETUP_SINGLE_ISSUER,
        DEFERRED,
        DEFERRED | IORING_SETUP_TASKRUN_FLAG,
    ];
    const SHAPES: [u32; 9] = [
        0,
        0,
        IORING_SETUP_NO_SQARRAY,
        IORING_SETUP_CQE32,
        IORING_SETUP_SQE128,
        IORING_SETUP_CQSIZE,
        IORING_SETUP_NO_MMAP,
        IORING_SETUP_R_DISABLED,
        IORING_SETUP_SUBMIT_ALL,
    ];
    let running = if random.chance(1, 24) { IORING_SETUP_SQPOLL } else { random.choose(&RUNNING) };
    let mut flags = running | random.choose(&SHAPES);
    if random.bool() {
        flags |= random.choose(&SHAPES);
    }
    let cq_entries = if flags & IORING_SETUP_CQSIZE != 0 { random.choose(&[16, 32, 64]) } else { 0 };
    (flags, cq_entries)
}

/// True if the request may post several CQEs.
fn is_multishot(request: &Request) -> bool {
    let receives = [Opcode::Recv as u8, Opcode::Recvmsg as u8].contains(&request.opcode);
    request.opcode == Opcode::ReadMultishot as u8
        || (receives && request.ioprio & IORING_RECV_MULTISHOT as u16 != 0)
        || (request.opcode == Opcode::Accept as u8 && request.ioprio & IORING_ACCEPT_MULTISHOT as u16 != 0)
}

struct Generator {
    random: fastrand::Rng,
    next_id: u64,
    /// The first request of the current submission.
    first_of_batch: u64,
    /// The opcodes from which every program is made.
    common: Vec<Opcode>,
    model: Model,
    first_of_chain: bool,
    /// CQEs are held back: no request is made whose effects would have to be waited for.
    holds: bool,
    /// A request in this submission drains.
    drains: bool,
    /// True if requests of [`USED_LATER`] are made, too.
    later: bool,
    /// True if some requests of [`USED_LATER`] send with zero copy.
    zero_copy: bool,
}

impl Choices for Generator {
    fn random(&mut self) -> &mut fastrand::Rng {
        &mut self.random
    }
}

impl Generator {
    /// Adds one or a few steps.
    fn steps(&mut self, steps: &mut Vec<Step>) {
        match self.below(42) {
            0..=3 => {
                let registration = self.registration();
                steps.push(Step::Register(registration));
            }
            4..=9 => {
                if let Some(action) = self.action() {
                    steps.push(Step::Act(action));
                }
            }
            10 => {
                steps.push(Step::HoldCompletions(true));
                self.holds = true;
                for _ in 0..3 {
                    let batch = self.batch();
                    steps.push(Step::Submit(batch));
                }
                self.holds = false;
                steps.push(Step::HoldCompletions(false));
            }
            11..=12 => {
                self.model.begin_batch();
                let alone = if self.chance(1, 3) { self.counting_timeout() } else { self.wide_cancel() };
                if let Some(request) = alone {
                    steps.push(Step::Submit(vec![request]));
                }
            }
            13 => self.sequence(steps),
            _ => {
                let batch = self.batch();
                if self.drains {
                    // Requests that already wait would hold everything back, to be run by workers in no order at the
                    // end. So would requests that wait in this submission, or after it.
                    let all = IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY;
                    let cancel = || Step::Register(Registration::SyncCancel(0, Target::Number(-1), all, 0));
                    self.model.ended(|_| true);
                    steps.extend([cancel(), Step::Submit(batch), cancel(), cancel()]);
                } else {
                    steps.push(Step::Submit(batch));
                }
            }
        }
    }

    /// Adds steps with more completions than the CQ takes.
    fn fill_the_cq(&mut self, steps: &mut Vec<Step>) {
        steps.push(Step::HoldCompletions(true));
        for _ in 0..3 {
            self.begin_batch();
            steps.push(Step::Submit((0..ENTRIES).map(|_| self.numbered(Request::new(Opcode::Nop))).collect()));
        }
        steps.push(Step::HoldCompletions(false));
    }

    fn begin_batch(&mut self) {
        self.model.begin_batch();
        self.drains = false;
        self.first_of_batch = self.next_id;
    }

    /// Makes the requests of one submission.
    fn batch(&mut self) -> Vec<Request> {
        self.begin_batch();
        let mut batch = Vec::new();
        let size = 1 + self.random.usize(0..7);
        while batch.len() < size {
            let links = if !self.holds && self.chance(1, 4) { 1 + self.random.usize(0..3) } else { 0 };
            self.chain(links, &mut batch);
            self.model.end_chain();
        }
        batch.truncate(ENTRIES as usize);
        // On the kernel a chain that the end of the submission cuts off goes to a worker, which then sleeps in it.
        if let Some(last) = batch.last_mut() {
            if last.opcode != Opcode::Nop as u8 {
                last.flags &= !(IOSQE_IO_LINK | IOSQE_IO_HARDLINK);
            }
        }
        batch
    }

    /// Adds a request, followed by `links` others that wait for it.
    fn chain(&mut self, links: usize, batch: &mut Vec<Request>) {
        for link in 0..=links {
            self.first_of_chain = link == 0;
            let Some(mut request) = self.request() else { return };
            let waits = self.model.waits(request.user_data);
            let timed = !self.holds && self.chance(1, if link == links { 40 } else { 8 });
            if timed && is_multishot(&request) {
                // On the kernel the timer of a multishot request that begins on a worker is never started.
                request.flags &= !IOSQE_ASYNC;
            }
            // A request after one that waits would run beside the submission that ends the wait. So it must touch
            // nothing that matters there.
            let followed = waits && !timed && link < links;
            let last = link == links || followed;
            if !last || timed || followed {
                request.flags |= if self.chance(1, 4) { IOSQE_IO_HARDLINK } else { IOSQE_IO_LINK };
            }
            batch.push(request);
            if timed {
                let mut timeout = self.link_timeout(waits);
                if !last {
                    timeout.flags |= IOSQE_IO_LINK;
                }
                batch.push(timeout);
            }
            if followed {
                let nop = self.numbered(Request::new(Opcode::Nop));
                batch.push(nop);
                return;
            }
        }
    }

    /// Makes a request of any opcode that is possible now.
    fn request(&mut self) -> Option<Request> {
        for _ in 0..12 {
            let opcode = match self.later_opcode() {
                Some(opcode) => opcode,
                None => self.common[self.random.usize(0..self.common.len())],
            };
            let id = self.next_id;
            if let Some(mut request) = self.draft(opcode) {
                // After a punted request, or after a drain, a worker would sleep in it on the kernel.
                if (!self.first_of_chain || self.drains) && self.model.waits_for_something(id) {
                    self.model.ended(|waiting| waiting.id == id);
                    continue;
                }
                request = self.numbered(request);
                self.decorate(&mut request);
                return Some(request);
            }
        }
        None
    }

    /// Gives the request the next number.
    fn numbered(&mut self, mut request: Request) -> Request {
        request.user_data = self.next_id;
        self.next_id += 1;
        request
    }

    /// Drafts a request of this opcode that should succeed, if the state allows one.
    fn draft(&mut self, opcode: Opcode) -> Option<Request> {
        use Opcode as O;
        match opcode {
            O::Nop | O::PollAdd | O::PollRemove | O::Timeout | O::TimeoutRemove | O::AsyncCancel => {
                self.draft_of_ring(opcode)
            }
            O::MsgRing | O::FilesUpdate | O::FixedFdInstall | O::ProvideBuffers | O::RemoveBuffers | O::Pipe => {
                self.draft_of_ring(opcode)
            }
            O::Sendmsg | O::Recvmsg | O::Accept | O::Connect | O::Send | O::Recv | O::Shutdown | O::Socket => {
                self.draft_network(opcode)
            }
            O::Bind | O::Listen | O::EpollCtl | O::EpollWait => self.draft_network(opcode),
            O::LinkTimeout => None,
            _ if USED_LATER.contains(&opcode) => self.draft_later(opcode),
            _ => self.draft_file(opcode),
        }
    }

    /// Adds flags that any request may have, and now and then an error.
    fn decorate(&mut self, request: &mut Request) {
        if let Target::Of(end) = request.fd {
            if let Some(slot) = self.model.slot_of(end).filter(|_| self.chance(1, 3)) {
                self.model.claim(Claim::TableUse);
                request.fd = Target::Fixed(slot);
                request.flags |= IOSQE_FIXED_FILE;
            }
        }
        if self.chance(1, 10) {
            request.flags |= IOSQE_ASYNC;
        }
        if self.chance(1, 30) {
            request.flags |= IOSQE_CQE_SKIP_SUCCESS;
        }
        // Nor does a request drain after one that waits in this submission: everything after it would be held back.
        let waits = self.model.waiting().iter().any(|waiting| waiting.id >= self.first_of_batch);
        if self.chance(1, 40) && !waits && self.first_of_chain && !self.zero_copy && !self.holds {
            request.flags |= IOSQE_IO_DRAIN;
            self.drains = true;
        }
        if self.chance(1, 9) {
            self.mutate(request);
        }
    }

    /// Changes the request so that it is probably refused. It still touches only what it claimed.
    fn mutate(&mut self, request: &mut Request) {
        request.mutated = true;
        let opcode = Opcode::from_u8(request.opcode);
        let names_request =
            matches!(opcode, Some(Opcode::AsyncCancel | Opcode::PollRemove | Opcode::TimeoutRemove));
        match self.below(16) {
            0 => {
                request.fd = Target::Number(self.choose(&[-1, 9999, i32::MAX]));
                request.flags &= !IOSQE_FIXED_FILE;
            }
            1 => {
                let empty = self.model.free_slot().filter(|_| self.claim(Claim::TableUse));
                request.fd = Target::Fixed(empty.unwrap_or(100));
                request.flags |= IOSQE_FIXED_FILE;
            }
            2 => request.addr = Value::Bad,
            3 if names_request => request.addr = Value::Plain(0),
            3 => request.addr = Value::Plain(self.choose(&[0, 1])),
            4 => self.mutate_flags(request),
            5 => {
                request.ioprio = self.choose(&[1, 2, 4, 8, 0x10, 0x40, 0x2001, 0x8000]);
                if !self.first_of_chain || self.drains {
                    // IORING_RECVSEND_POLL_FIRST: see `poll_first`.
                    request.ioprio &= !1;
                }
            }
            6 => request.buf_index = self.choose(&[BUFFERS + 1, 77, u16::MAX]),
            7 => {
                request.file_index = self.choose(&[1, 100, u32::MAX]);
                request.file_index_of = None;
            }
            8 => request.addr3 = Value::Plain(self.choose(&[1, u64::MAX])),
            9 => request.pad2 = self.choose(&[1, u64::MAX]),
            10 => request.personality = 9,
            11 => request.flags ^= self.choose(&[0x80, IOSQE_BUFFER_SELECT]),
            12 => request.opcode = self.choose(&[63, 64, 65, 100, 255]),
            13 => request.len = 0,
            // A timeout that repeats forever is never quiet.
            14.. if request.op_flags & IORING_TIMEOUT_MULTISHOT != 0 => request.len = 2,
            14 => (request.off, request.off_of) = (Value::Bad, None),
            // A TIMEOUT may or may not count completions of its own submission: see `counting_timeout`. And no CQE
            // may have another request's user_data.
            15 if matches!(opcode, Some(Opcode::Timeout | Opcode::MsgRing | Opcode::PollRemove)) => {
                request.off = Value::Plain(u64::MAX);
            }
            _ => (request.off, request.off_of) = (Value::Plain(self.choose(&[u64::MAX, 1 << 63, 1])), None),
        }
    }

    /// Flips one bit of the operation's flags. Bit 0 is left alone: it is also RWF_HIPRI, which is for rings with
    /// IOPOLL.
    fn mutate_flags(&mut self, request: &mut Request) {
        let bit = 2 << self.below(31);
        let turned = match Opcode::from_u8(request.opcode) {
            // No advice that discards pages, and no timeout that never ends.
            Some(Opcode::Madvise | Opcode::Timeout) => return,
            // A cancel of more than was claimed would reach requests of the same submission.
            Some(Opcode::AsyncCancel) => 0x40 << self.below(26),
            // With MSG_MORE, timing decides when data is sent.
            Some(Opcode::Send | Opcode::Sendmsg | Opcode::SendZc | Opcode::SendmsgZc)
                if bit == libc::MSG_MORE as u32 =>
            {
                libc::MSG_DONTROUTE as u32
            }
            _ => bit,
        };
        request.op_flags ^= turned;
    }

    /// Makes an action outside of the ring, most often one that a waiting request waits for.
    fn action(&mut self) -> Option<Action> {
        self.model.begin_batch();
        let waiting = self.model.waiting_ends();
        if !waiting.is_empty() && self.chance(3, 4) {
            let end = self.choose(&waiting);
            if end == End::Listener {
                self.model.connected();
                return Some(Action::Connect);
            }
            if matches!(end, End::Word(_) | End::Child(_)) {
                return self.later_action(end);
            }
            let writer = Model::writer_of(end)?;
            let bytes = if matches!(end, End::Eventfd(_)) { 0 } else { 1 + self.below(200) };
            self.model.wrote(writer, bytes);
            return (bytes > 0).then_some(Action::Write(writer, bytes));
        }
        match self.below(5) {
            0 => {
                self.model.connected();
                Some(Action::Connect)
            }
            1 | 2 => Some(Action::RefillGroup),
            3 => {
                let end = self.choose(&[End::PipeRead(0), End::PipeRead(1), End::Stream(0, 0), End::Tcp(0, 1)]);
                let bytes = 1 + self.below(3000);
                (self.model.readable(end) > 0).then(|| {
                    self.model.read(end, bytes);
                    Action::Read(end, bytes)
                })
            }
            _ => {
                let end = self.choose(&[End::PipeWrite(0), End::PipeWrite(2), End::Stream(1, 0), End::Tcp(0, 0)]);
                let bytes = 1 + self.below(500);
                (self.model.room(end) >= bytes).then(|| {
                    self.model.wrote(end, bytes);
                    Action::Write(end, bytes)
                })
            }
        }
    }
}

impl Generator {
    fn claim(&mut self, claim: Claim) -> bool {
        self.model.claim(claim)
    }

    fn claim_end(&mut self, end: End) -> bool {
        self.model.claim(Claim::of(end))
    }
}
