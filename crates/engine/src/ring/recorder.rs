//! The recorder: what happens on a ring, as events. Part of the ring's state and used under the ring's lock; each
//! method is one tracepoint, called where the kernel has it, through `State::record`, which costs one branch where
//! nobody listens.

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

mod context;

/// How many request numbers a process takes from the file at a time.
const NUMBERS: u32 = 4096;

/// One ring's source of events in this process.
pub struct Recorder {
    pub(super) writer: Writer,
    /// How many events may still share the last one's time.
    sharing: u32,
    /// The most that may: none where submissions come at any time (IORING_SETUP_SQPOLL).
    most_sharing: u32,
    /// Request numbers that this process may still give: no other has them.
    numbers: core::ops::Range<u32>,
    /// The request that is being taken in or attempted; 0 for none.
    pub(super) at_hand: Known,
    /// The request whose CQE is posted next; 0 for none.
    posting: Known,
    /// The request that ended last.
    ended: Known,
    /// The request whose end may take those linked behind it along.
    failing: Known,
    /// The numbers of requests that have a place, by that place.
    placed: Vec<u32>,
    /// What an AIO context knows of the requests that have a place, by that place: the ring knows them otherwise.
    pub(super) iocbs: Option<Vec<Known>>,
    /// The requests of the CQEs in the batch.
    batch: [Known; BATCH],
    /// What each descriptor names that was asked for.
    files: Vec<FileKind>,
}

/// How many events share a time.
pub(super) const SHARING: u32 = 3;

/// What an event that shows an SQE has, but for the time.
pub(super) const OF_SQE: u8 = has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS;
/// What an event that shows a CQE has, but for the time, which is the batch's.
const OF_CQE: u8 = has::USER_DATA | has::RESULT_FLAGS;

/// Descriptors from this number on are asked about each time.
const FILES: usize = 65_536;

/// Whether it is over in about a microsecond, if it completes in this call, and says so by a CQE.
fn is_short(sqe: &Sqe) -> bool {
    use Opcode::*;
    let counts_bytes =
        matches!(Opcode::from_u8(sqe.opcode), Some(Nop | Read | Write | ReadFixed | WriteFixed | Recv | Send));
    counts_bytes && sqe.len <= 4096 && sqe.flags & !IOSQE_FIXED_FILE == 0
}

impl Recorder {
    /// Of a new ring, if events are wanted: says that it was made.
    pub fn of_new_ring(fd: i32, [sq_entries, cq_entries]: [u32; 2], flags: u32) -> Option<Box<Recorder>> {
        Some(Recorder::of_ring(session::room()?, fd, [sq_entries, cq_entries], flags))
    }

    /// Of a ring whose events go into this room from now on: says that it is there.
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
        })
    }

    /// Whether its events go into this room.
    pub(crate) fn is_in(&self, room: &Arc<Room>) -> bool {
        self.writer.is_in(room)
    }

    /// In a forked child, where this may be in the middle of a change: what takes its place there, if anything.
    pub fn in_child(self: Box<Self>) -> Option<Box<Recorder>> {
        let child = self.writer.in_child().map(|writer| Recorder::by_writer(writer, self.most_sharing));
        core::mem::forget(self);
        child
    }

    /// Puts in an event whose time may be that of a short request just before it: reading the clock costs as much as all
    /// the rest.
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

    /// The next events may share a time: a call begins.
    pub(super) fn share_times(&mut self) {
        self.sharing = self.most_sharing;
    }

    /// The next event has a time of its own: somebody slept.
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
            let first = self.writer.take_numbers(NUMBERS);
            self.numbers = first.wrapping_add(1)..first.wrapping_add(NUMBERS);
            first
        });
        number.max(1) // 0 is none; it comes up after four billion
    }

    /// Lets `say` say something of a request that has a place, and which the ring knows by these.
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

    /// io_uring_enter(2) was called.
    #[cold]
    pub fn enter(&mut self, fd: i32, to_submit: u32, min_complete: u32, flags: u32) {
        self.writer.look_at_thread();
        let event = Event { fd, len: to_submit, offset: min_complete.into(), flags, ..Event::new(Kind::Enter) };
        self.writer.put::<{ has::TIME | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
        self.share_times();
    }

    /// io_uring_register(2) was answered; `files` and `buffers` are registered now.
    #[cold]
    pub fn register(&mut self, opcode: u32, files: usize, buffers: usize, answer: Result<u32, Errno>) {
        let result = answer.map_or_else(|error| -error.raw_os_error(), |answer| answer as i32);
        let (len, offset) = (files as u32, buffers as u64);
        self.writer.look_at_thread();
        let event = Event { opcode: opcode as u8 as u16, len, offset, result, ..Event::new(Kind::Register) };
        self.writer.put::<{ has::TIME | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
    }

    #[inline(always)]
    fn of_sqe(&mut self, kind: Kind, sqe: &Sqe) -> Event {
        self.at_hand = Known { request: self.number(), user_data: sqe.user_data, opcode: sqe.opcode };
        let (flags, fd, len, offset) = (sqe.flags.into(), sqe.fd, sqe.len, sqe.off);
        Event { flags, fd, len, offset, ..self.of_request(kind) }
    }

    /// An SQE was taken in.
    #[cold]
    pub fn submit_req(&mut self, sqe: &Sqe) {
        let event = self.of_sqe(Kind::SubmitReq, sqe);
        self.writer.put::<{ OF_SQE | has::TIME }>(&event);
    }

    /// An SQE was taken in and is attempted at once.
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

    /// An SQE was refused.
    #[cold]
    pub fn req_failed(&mut self, sqe: &Sqe, result: i32) {
        let event = self.of_sqe(Kind::ReqFailed, sqe);
        self.writer.put::<{ OF_SQE | has::TIME }>(&Event { result, ..event });
        self.posting = self.at_hand;
    }

    /// The request at hand got a place.
    #[cold]
    pub fn admitted(&mut self, id: Id) {
        let place = id.place();
        if self.placed.len() <= place && self.placed.try_reserve(place + 1 - self.placed.len()).is_ok() {
            self.placed.resize(place + 1, 0);
        }
        // Without memory its events do not say which request it is.
        if let Some(placed) = self.placed.get_mut(place) {
            *placed = self.at_hand.request;
        }
        self.posting = Known::default(); // of a refused one: it ends as a part of its chain
        if let Some(iocbs) = &mut self.iocbs {
            context::keep(iocbs, place, &mut self.at_hand);
        }
    }

    /// The number, if `target` is one, was looked up for the request at hand.
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
            descriptors::note_use(fd); // so that a close makes the ring forget it
            if self.files.len() <= place && self.files.try_reserve(place + 1 - self.files.len()).is_ok() {
                self.files.resize(place + 1, FileKind::Unknown);
            }
            if let Some(known) = self.files.get_mut(place) {
                *known = kind;
            }
        }
        kind
    }

    /// The number is about to name something else.
    #[cold]
    pub fn forget_file(&mut self, fd: i32) {
        if let Some(kind) = usize::try_from(fd).ok().and_then(|fd| self.files.get_mut(fd)) {
            *kind = FileKind::Unknown;
        }
    }

    /// The request at hand follows the one in place `before`.
    #[cold]
    pub fn link(&mut self, before: Id) {
        let offset = self.number_of(before).into();
        let event = Event { offset, ..self.of_request(Kind::Link) };
        self.writer.put::<{ has::USER_DATA | has::OFFSET }>(&event);
    }

    /// The request at hand waits for all before it.
    #[cold]
    pub fn defer(&mut self) {
        let event = self.of_request(Kind::Defer);
        self.writer.put::<{ has::USER_DATA }>(&event);
    }

    /// The request at hand goes to a worker.
    #[cold]
    pub fn queue_async_work(&mut self, sqe_flags: u8, why: Punt) {
        let event = Event { flags: sqe_flags.into(), ..self.of_request(Kind::QueueAsyncWork) }.with_punt(why);
        self.writer.put::<{ has::TIME | has::USER_DATA | has::RESULT_FLAGS }>(&event);
    }

    /// The request at hand waits for `events` of poll(2): an attempt found nothing, or none was made.
    #[cold]
    pub fn poll_arm(&mut self, events: u32, skip: Option<Skip>) {
        let event = Event { flags: events, ..self.of_request(Kind::PollArm) }.with_skip(skip);
        self.writer.put::<{ has::USER_DATA | has::RESULT_FLAGS }>(&event);
    }

    /// Chaos did or found something, of the request at hand if `of_request`.
    #[cold]
    pub fn chaos(&mut self, kind: Kind, of_request: bool, name: Name) {
        let event = if of_request { self.of_request(kind) } else { Event::new(kind) };
        let event = Event { len: name.ring, offset: name.position, result: name.rule as i32, ..event };
        self.writer.put::<{ has::TIME | has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
    }

    /// What the request at hand waited for is there.
    #[cold]
    pub fn task_add(&mut self) {
        let event = self.of_request(Kind::TaskAdd);
        self.put_sharing::<{ has::USER_DATA }, { has::TIME | has::USER_DATA }>(&event);
    }

    /// A worker brought the request at hand back.
    #[cold]
    pub fn task_add_of_worker(&mut self, times: &WorkTimes) {
        let mut event = self.of_request(Kind::TaskAdd);
        times.put_into(&mut event);
        self.writer.put::<{ has::TIME | has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&event);
        self.sharing = 0;
    }

    /// What workers and other rings brought is taken in; `deferred` until the owner asked.
    #[cold]
    pub fn work_run(&mut self, count: usize, deferred: bool) {
        let kind = if deferred { Kind::LocalWorkRun } else { Kind::TaskWorkRun };
        let event = Event { len: count as u32, ..Event::new(kind) };
        self.writer.put::<{ has::TIME | has::FD_LEN }>(&event);
    }

    /// The request at hand, a write to `fd` by now, wrote less than it was to.
    #[cold]
    pub fn short_write_to(&mut self, fd: i32, wanted: u64, result: i32) {
        if matches!(self.file_kind(fd), FileKind::Regular | FileKind::Block) {
            let event = Event { len: wanted as u32, result, ..self.of_request(Kind::ShortWrite) };
            self.writer.put::<{ has::TIME | has::USER_DATA | has::FD_LEN | has::RESULT_FLAGS }>(&event);
        }
    }

    /// A thread is about to wait for CQEs.
    #[cold]
    pub fn cqring_wait(&mut self, min_complete: u32) {
        let event = Event { len: min_complete, ..Event::new(Kind::CqringWait) };
        self.writer.put::<{ has::TIME | has::FD_LEN }>(&event);
        self.sharing = 0;
    }

    /// The next CQE that is posted is the one of the request at hand, which ends.
    #[cold]
    pub fn ends(&mut self) {
        self.posting = self.at_hand;
        self.ended = self.at_hand;
    }

    /// The next CQE that is posted is one of several of the request at hand.
    #[cold]
    pub fn shoots(&mut self) {
        self.posting = self.at_hand;
    }

    /// No CQE comes of the request that ended.
    #[cold]
    pub fn ends_quietly(&mut self) {
        self.posting = Known::default();
    }

    /// A CQE was put into the batch.
    #[cold]
    pub fn posted(&mut self, place: usize) {
        self.batch[place] = core::mem::take(&mut self.posting);
    }

    /// The batch was published: the first `written` in the CQ, the others behind it.
    #[cold]
    pub fn complete(&mut self, cqes: &[Cqe], written: usize) {
        for (place, (cqe, known)) in cqes.iter().zip(self.batch).enumerate() {
            let kind = if place < written { Kind::Complete } else { Kind::CqeOverflow };
            // What the CQE of an AIO context has is the ring's own.
            let user_data = if self.iocbs.is_some() { known.user_data } else { cqe.user_data };
            let (request, result, flags) = (known.request, cqe.res, cqe.flags);
            let event = Event { request, user_data, result, flags, ..Event::new(kind) };
            match place {
                0 => self.writer.put::<{ OF_CQE | has::TIME }>(&event),
                _ => self.writer.put::<OF_CQE>(&event),
            }
        }
    }

    /// Those behind the request that ended last end with it, if any do; their own ends come between.
    #[cold]
    pub fn may_fail_links(&mut self) {
        self.failing = self.ended;
    }

    /// The request of the last [`may_fail_links`](Self::may_fail_links) takes the one in place `id` with it.
    #[cold]
    pub fn fail_link(&mut self, id: Id) {
        let Known { request, user_data, opcode } = self.failing;
        let offset = self.number_of(id).into();
        let event = Event { request, user_data, opcode: opcode.into(), offset, ..Event::new(Kind::FailLink) };
        self.writer.put::<{ has::USER_DATA | has::OFFSET }>(&event);
    }
}
