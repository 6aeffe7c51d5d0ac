//! The recorder: writes the events of a ring for a tracer. It is part of the ring's state and guarded by the ring's
//! lock. Each method is one tracepoint, called where the kernel has that tracepoint, through `State::record`. Without a
//! tracer a tracepoint costs one branch.

use crate::chaos::Name;
use crate::event::chunks::{has, Writer};
use crate::event::session::{self, Room};
use crate::event::{Event, FileKind, Kind, Known, WorkTimes};
use crate::memory::layout::BATCH;
use crate::op::{Punt, Skip};
use crate::os::file_status;
use crate::request::{Id, Target};
use crate::{descriptors, Errno};
use anyring_abi::{Cqe, Opcode, Sqe, IORING_SETUP_SQPOLL, IOSQE_FIXED_FILE};
use std::sync::Arc;

mod callers;
mod context;

/// Number of request numbers that a process reserves in the file at a time.
const NUMBERS: u32 = 4096;

/// One ring's source of events in this process.
pub struct Recorder {
    pub(super) writer: Writer,
    /// Number of following events that may still share the time of the last event.
    sharing: u32,
    /// The most events that may share a time. 0 if submissions come at any time (IORING_SETUP_SQPOLL).
    most_sharing: u32,
    /// Request numbers reserved for this process.
    numbers: core::ops::Range<u32>,
    /// The request that is being taken in or attempted; 0 for none.
    pub(super) at_hand: Known,
    /// The request whose CQE is posted next; 0 for none.
    posting: Known,
    /// The request that ended last.
    ended: Known,
    /// The request whose end may fail its successors.
    failing: Known,
    /// The numbers of requests in the slab, by slot.
    placed: Vec<u32>,
    /// The identities of an AIO context's requests, by slot. `None` for other rings, which know these themselves.
    pub(super) iocbs: Option<Vec<Known>>,
    /// The requests of the CQEs in the batch.
    batch: [Known; BATCH],
    /// The cached file kinds, by descriptor number.
    files: Vec<FileKind>,
    callers: callers::Callers,
}

/// The most events that share a time with the event before them.
pub(super) const SHARING: u32 = 3;

/// The fields of an event for an SQE, without the time.
pub(super) const OF_SQE: u8 = has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS;
/// The fields of an event for a CQE, without the time: the whole batch has one time.
const OF_CQE: u8 = has::USER_DATA | has::RESULT_FLAGS;

/// The kinds of descriptors from this number on are not cached: each use asks the kernel.
const FILES: usize = 65_536;

/// True if the request, should it complete in this call, takes about a microsecond and then posts a CQE.
fn is_short(sqe: &Sqe) -> bool {
    use Opcode::*;
    let counts_bytes =
        matches!(Opcode::from_u8(sqe.opcode), Some(Nop | Read | Write | ReadFixed | WriteFixed | Recv | Send));
    counts_bytes && sqe.len <= 4096 && sqe.flags & !IOSQE_FIXED_FILE == 0
}

impl Recorder {
    /// Makes the recorder of a new ring, if a tracer wants events. Records that the ring was made.
    pub fn of_new_ring(fd: i32, [sq_entries, cq_entries]: [u32; 2], flags: u32) -> Option<Box<Recorder>> {
        Some(Recorder::of_ring(session::room()?, fd, [sq_entries, cq_entries], flags))
    }

    /// Makes the recorder of an existing ring, whose events go into this room from now on. Records that the ring
    /// exists.
    pub(crate) fn of_ring(
        room: Arc<Room>,
        fd: i32,
        [sq_entries, cq_entries]: [u32; 2],
        flags: u32,
    ) -> Box<Recorder> {
        let most_sharing = if flags & IORING_SETUP_SQPOLL == 0 { SHARING } else { 0 };
        let mut recorder = Recorder::by_writer(Writer::in_room(room, 0), most_sharing);
        let created = Event { fd, len: sq_entries, offset: cq_entries.into(), flags, ..Event::new(Kind::Create) };
        recorder.writer.put::<{ has::TIME | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&created);
        recorder
    }

    pub(super) fn by_writer(writer: Writer, most_sharing: u32) -> Box<Recorder> {
        Box::new(Recorder {
            writer,
            sharing: 0,
            most_sharing,
            numbers: 0..0,
            at_hand: Known::default(),
            posting: Known::default(),
            ended: Known::default(),
            failing: Known::default(),
            placed: Vec::new(),
            iocbs: None,
            batch: [Known::default(); BATCH],
            files: Vec::new(),
            callers: callers::Callers::default(),
        })
    }

    /// True if the events go into this room.
    pub(crate) fn is_in(&self, room: &Arc<Room>) -> bool {
        self.writer.is_in(room)
    }

    /// Returns the recorder that replaces this one in a forked child, if any. In the child, the original may be in the
    /// middle of a change.
    pub fn in_child(self: Box<Self>) -> Option<Box<Recorder>> {
        let child = self.writer.in_child().map(|writer| Recorder::by_writer(writer, self.most_sharing));
        core::mem::forget(self);
        child
    }

    /// Writes an event that may share the time of a short request just before it. Reading the clock costs as much as
    /// all the rest.
    #[inline(always)]
    pub(super) fn put_sharing<const HAS: u8, const HAS_TIME: u8>(&mut self, event: &Event) {
        match self.sharing.checked_sub(1) {
            Some(left) => {
                self.sharing = left;
                self.writer.put::<HAS>(event);
            }
            None => {
                self.sharing = self.most_sharing;
                self.writer.put::<HAS_TIME>(event);
            }
        }
    }

    /// Lets the next events share a time, since a call begins.
    pub(super) fn share_times(&mut self) {
        self.sharing = self.most_sharing;
    }

    /// Gives the next event its own time, since a thread slept.
    #[cold]
    pub fn awoke(&mut self) {
        self.sharing = 0;
    }

    #[inline(always)]
    pub(super) fn of_request(&self, kind: Kind) -> Event {
        let Known { request, user_data, opcode } = self.at_hand;
        Event { request, user_data, opcode: opcode.into(), ..Event::new(kind) }
    }

    pub(super) fn number(&mut self) -> u32 {
        let number = self.numbers.next().unwrap_or_else(|| {
            let first = self.writer.reserve_numbers(NUMBERS);
            self.numbers = first.wrapping_add(1)..first.wrapping_add(NUMBERS);
            first
        });
        number.max(1) // 0 means no request; the count wraps after four billion
    }

    /// Calls `say` to record an event of a request in a slot, with the identity that the ring knows.
    pub fn of_placed(&mut self, id: Id, user_data: u64, opcode: Opcode, say: impl FnOnce(&mut Recorder)) {
        let by_ring = Known { request: self.number_of(id), user_data, opcode: opcode as u8 };
        let known = self.iocb_of(id).unwrap_or(by_ring);
        let outer = core::mem::replace(&mut self.at_hand, known);
        say(self);
        self.at_hand = outer;
    }

    fn number_of(&self, id: Id) -> u32 {
        self.placed.get(id.place()).copied().unwrap_or(0)
    }

    /// Records a call of io_uring_enter(2).
    #[cold]
    pub fn enter(&mut self, fd: i32, to_submit: u32, min_complete: u32, flags: u32) {
        self.writer.check_thread();
        let event = Event { fd, len: to_submit, offset: min_complete.into(), flags, ..Event::new(Kind::Enter) };
        self.writer.put::<{ has::TIME | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
        self.share_times();
    }

    /// Records a call of io_uring_register(2), after which `files` and `buffers` are registered.
    #[cold]
    pub fn register(&mut self, opcode: u32, files: usize, buffers: usize, answer: Result<u32, Errno>) {
        let result = answer.map_or_else(|error| -error.raw_os_error(), |answer| answer as i32);
        let (len, offset) = (files as u32, buffers as u64);
        self.writer.check_thread();
        let event = Event { opcode: opcode as u8 as u16, len, offset, result, ..Event::new(Kind::Register) };
        self.writer.put::<{ has::TIME | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
    }

    #[inline(always)]
    fn of_sqe(&mut self, kind: Kind, sqe: &Sqe) -> Event {
        self.at_hand = Known { request: self.number(), user_data: sqe.user_data, opcode: sqe.opcode };
        let (flags, fd, len, offset) = (sqe.flags.into(), sqe.fd, sqe.len, sqe.off);
        Event { flags, fd, len, offset, ..self.of_request(kind) }
    }

    /// Records that an SQE was taken in.
    #[cold]
    pub fn submit_req(&mut self, sqe: &Sqe) {
        let event = self.of_sqe(Kind::SubmitReq, sqe);
        self.writer.put::<{ OF_SQE | has::TIME }>(&event);
    }

    /// Records that an SQE was taken in and is attempted at once.
    #[cold]
    pub fn submit_alone(&mut self, sqe: &Sqe, target: &Target) {
        let Target::Number(fd) = *target else {
            self.submit_req(sqe);
            return self.sharing = 0;
        };
        let event = Event { file: self.file_kind(fd), ..self.of_sqe(Kind::SubmitReq, sqe) };
        self.put_sharing::<{ OF_SQE | has::FILE }, { OF_SQE | has::FILE | has::TIME }>(&event);
        if !is_short(sqe) {
            self.sharing = 0;
        }
    }

    /// Records that an SQE was refused.
    #[cold]
    pub fn req_failed(&mut self, sqe: &Sqe, result: i32) {
        let event = self.of_sqe(Kind::ReqFailed, sqe);
        self.writer.put::<{ OF_SQE | has::TIME }>(&Event { result, ..event });
        self.posting = self.at_hand;
    }

    /// Records that the request at hand got a slot.
    #[cold]
    pub fn admitted(&mut self, id: Id) {
        let place = id.place();
        if self.placed.len() <= place && self.placed.try_reserve(place + 1 - self.placed.len()).is_ok() {
            self.placed.resize(place + 1, 0);
        }
        // Without memory for the number, the events of this slot do not identify their request.
        if let Some(placed) = self.placed.get_mut(place) {
            *placed = self.at_hand.request;
        }
        self.posting = Known::default(); // a refused request has no CQE here: it ends with its chain
        if let Some(iocbs) = &mut self.iocbs {
            context::keep(iocbs, place, &mut self.at_hand);
        }
    }

    /// Records that the descriptor of `target` was looked up for the request at hand, if `target` is a number.
    #[cold]
    pub fn file_get(&mut self, target: &Target) {
        if let Target::Number(fd) = *target {
            let file = self.file_kind(fd);
            let event = Event { fd, file, ..self.of_request(Kind::FileGet) };
            self.writer.put::<{ has::USER_DATA | has::FD_LEN }>(&event);
        }
    }

    pub(super) fn file_kind(&mut self, fd: i32) -> FileKind {
        let Some(place) = usize::try_from(fd).ok().filter(|fd| *fd < FILES) else { return FileKind::Unknown };
        match self.files.get(place) {
            Some(kind) if *kind != FileKind::Unknown => return *kind,
            _ => {}
        }
        let Ok(status) = file_status(fd) else { return FileKind::Unknown };
        let kind = FileKind::of_mode(status.kind);
        if descriptors::closes_are_seen() {
            descriptors::record_use(fd); // so that a close makes the ring forget it
            if self.files.len() <= place && self.files.try_reserve(place + 1 - self.files.len()).is_ok() {
                self.files.resize(place + 1, FileKind::Unknown);
            }
            if let Some(known) = self.files.get_mut(place) {
                *known = kind;
            }
        }
        kind
    }

    /// Forgets the kind of the file that a number names, since the number is about to name another file.
    #[cold]
    pub fn forget_file(&mut self, fd: i32) {
        if let Some(kind) = usize::try_from(fd).ok().and_then(|fd| self.files.get_mut(fd)) {
            *kind = FileKind::Unknown;
        }
    }

    /// Records that the request at hand follows, in its chain, the request in slot `before`.
    #[cold]
    pub fn link(&mut self, before: Id) {
        let offset = self.number_of(before).into();
        let event = Event { offset, ..self.of_request(Kind::Link) };
        self.writer.put::<{ has::USER_DATA | has::OFFSET }>(&event);
    }

    /// Records that the request at hand waits for all requests before it (IOSQE_IO_DRAIN).
    #[cold]
    pub fn defer(&mut self) {
        let event = self.of_request(Kind::Defer);
        self.writer.put::<{ has::USER_DATA }>(&event);
    }

    /// Records that the request at hand goes to a worker.
    #[cold]
    pub fn queue_async_work(&mut self, sqe_flags: u8, why: Punt) {
        let event = Event { flags: sqe_flags.into(), ..self.of_request(Kind::QueueAsyncWork) }.with_punt(why);
        self.writer.put::<{ has::TIME | has::USER_DATA | has::RESULT_FLAGS }>(&event);
    }

    /// Records that the request at hand waits for `events` of poll(2), after an attempt that found nothing or without
    /// one.
    #[cold]
    pub fn poll_arm(&mut self, events: u32, skip: Option<Skip>) {
        let event = Event { flags: events, ..self.of_request(Kind::PollArm) }.with_skip(skip);
        self.writer.put::<{ has::USER_DATA | has::RESULT_FLAGS }>(&event);
    }

    /// Records an action or finding of chaos. `of_request` says that it concerns the request at hand.
    #[cold]
    pub fn chaos(&mut self, kind: Kind, of_request: bool, name: Name) {
        let event = if of_request { self.of_request(kind) } else { Event::new(kind) };
        let event = Event { len: name.ring, offset: name.position, result: name.rule as i32, ..event };
        self.writer.put::<{ has::TIME | has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
    }

    /// Records that what the request at hand waited for has arrived.
    #[cold]
    pub fn task_add(&mut self) {
        let event = self.of_request(Kind::TaskAdd);
        self.put_sharing::<{ has::USER_DATA }, { has::TIME | has::USER_DATA }>(&event);
    }

    /// Records that a worker brought the request at hand back.
    #[cold]
    pub fn task_add_of_worker(&mut self, times: &WorkTimes) {
        let mut event = self.of_request(Kind::TaskAdd);
        times.put_into(&mut event);
        self.writer.put::<{ has::TIME | has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
        self.sharing = 0;
    }

    /// Records that workers' results and other rings' messages are taken in. `deferred` says that they waited for the
    /// owner.
    #[cold]
    pub fn work_run(&mut self, count: usize, deferred: bool) {
        let kind = if deferred { Kind::LocalWorkRun } else { Kind::TaskWorkRun };
        let event = Event { len: count as u32, ..Event::new(kind) };
        self.writer.put::<{ has::TIME | has::FD_LEN }>(&event);
    }

    /// Records that the request at hand, a write that now goes to `fd`, wrote less than it should.
    #[cold]
    pub fn short_write_to(&mut self, fd: i32, wanted: u64, result: i32) {
        if matches!(self.file_kind(fd), FileKind::Regular | FileKind::Block) {
            let event = Event { len: wanted as u32, result, ..self.of_request(Kind::ShortWrite) };
            self.writer.put::<{ has::TIME | has::USER_DATA | has::FD_LEN | has::RESULT_FLAGS }>(&event);
        }
    }

    /// Records that a thread is about to wait for CQEs.
    #[cold]
    pub fn cqring_wait(&mut self, min_complete: u32) {
        let event = Event { len: min_complete, ..Event::new(Kind::CqringWait) };
        self.writer.put::<{ has::TIME | has::FD_LEN }>(&event);
        self.sharing = 0;
    }

    /// Records that the request at hand ends, and that the next CQE posted is its last.
    #[cold]
    pub fn ends(&mut self) {
        self.posting = self.at_hand;
        self.ended = self.at_hand;
    }

    /// Records that the next CQE posted is one of several that the request at hand posts.
    #[cold]
    pub fn shoots(&mut self) {
        self.posting = self.at_hand;
    }

    /// Records that the request that ended last has no CQE.
    #[cold]
    pub fn ends_quietly(&mut self) {
        self.posting = Known::default();
    }

    /// Records that a CQE was put into the batch.
    #[cold]
    pub fn posted(&mut self, place: usize) {
        self.batch[place] = core::mem::take(&mut self.posting);
    }

    /// Records that the batch was published: the first `written` CQEs in the CQ, the others in the backlog.
    #[cold]
    pub fn complete(&mut self, cqes: &[Cqe], written: usize) {
        for (place, (cqe, known)) in cqes.iter().zip(self.batch).enumerate() {
            let kind = if place < written { Kind::Complete } else { Kind::CqeOverflow };
            // In an AIO context, the `user_data` of a CQE is internal to the ring.
            let user_data = if self.iocbs.is_some() { known.user_data } else { cqe.user_data };
            let (request, result, flags) = (known.request, cqe.res, cqe.flags);
            let event = Event { request, user_data, result, flags, ..Event::new(kind) };
            match place {
                0 => self.writer.put::<{ OF_CQE | has::TIME }>(&event),
                _ => self.writer.put::<OF_CQE>(&event),
            }
        }
    }

    /// Records that the successors of the request that ended last may end with it. Other requests may end in between.
    #[cold]
    pub fn may_fail_links(&mut self) {
        self.failing = self.ended;
    }

    /// Records that the request in slot `id` fails because of the request of the last
    /// [`may_fail_links`](Self::may_fail_links).
    #[cold]
    pub fn fail_link(&mut self, id: Id) {
        let Known { request, user_data, opcode } = self.failing;
        let offset = self.number_of(id).into();
        let event = Event { request, user_data, opcode: opcode.into(), offset, ..Event::new(Kind::FailLink) };
        self.writer.put::<{ has::USER_DATA | has::OFFSET }>(&event);
    }
}
