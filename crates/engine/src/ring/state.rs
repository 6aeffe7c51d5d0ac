//! The state that a ring's lock guards: the requests in flight in this process, and each part that they go through.

use crate::aio_ring::{Context, Single};
use crate::descriptors::ends::EngineEnds;
use crate::device::Device;
use crate::driver::spin::Spin;
use crate::issue::calls::Calls;
use crate::issue::iopoll::IoPoll;
use crate::issue::punt::Submission;
use crate::issue::stalls::Stalls;
use crate::memory::layout::word;
use crate::memory::{Area, Memory};
use crate::os::Clock;
use crate::poll::PollSet;
use crate::request::drain::Drain;
use crate::request::queue::Queue;
use crate::request::timer::Timers;
use crate::request::Chain;
use crate::request::Slab;
use crate::resource::buf_ring::Groups;
use crate::resource::buffers::Buffers;
use crate::resource::files::Files;
use crate::resource::napi::Napi;
use crate::resource::restrictions::Restrictions;
use crate::resource::wait_region::{Region, MAP_OFFSET};
use crate::shared::control::{self, Control};
use crate::wq::personality::Personalities;
use crate::Errno;
use anyring_abi::{IORING_OFF_MMAP_MASK, IORING_OFF_PBUF_RING, IORING_OFF_PBUF_SHIFT};

use super::batch::Batch;
use super::holder_work::AfterRelease;
use super::spill::Spill;

/// The state guarded by the ring's lock.
pub struct State {
    /// Ring memory.
    pub memory: Memory,
    /// The shared control area.
    pub control: Control,
    /// The engine's ends of the descriptor, whose hang-up ends the ring.
    pub ends: EngineEnds,
    /// A copy of the ring's `cookie`.
    pub cookie: u64,
    /// Requests in flight in this process.
    pub slab: Slab,
    /// Requests whose turn has come, and TIMEOUTs that count completions.
    pub queue: Queue,
    /// Facts that decide whether a thread that waits for messages spins before it sleeps.
    pub spin: Spin,
    /// The poll set, and what is known of descriptors.
    pub poll_set: PollSet,
    /// Durations of recent calls on paths, which decide whether the next calls go to a worker.
    pub stalls: Stalls,
    /// Transfers that the kernel's AIO makes.
    pub device: Device,
    /// The deadlines of TIMEOUTs and of requests that chaos holds back.
    pub timers: Timers,
    /// The chain under construction.
    pub chain: Option<Chain>,
    /// Calls that the present holder of the lock makes when it releases it.
    pub calls: Calls,
    /// Actions that are due once the ring's lock is released.
    pub after_release: AfterRelease,
    /// Requests of the lock's present holder that depend on the submitter's identity, and the credentials pool for it.
    pub submission: Option<Box<Submission>>,
    /// Requests held back by IOSQE_IO_DRAIN.
    pub drain: Drain,
    /// Completions that are not yet in the shared counters. Empty between two submissions.
    pub tally: crate::stats::Tally,
    /// The recorder of this ring's events, while a tracer wants them.
    pub recorder: Option<Box<super::recorder::Recorder>>,
    /// The version of the trace request that the recorder follows: the value that `Tracer::wanted` had.
    pub tracer_seen: u64,
    /// CQEs that are not posted yet.
    pub batch: Batch,
    /// CQEs that found the shared backlog full.
    pub spill: Spill,
    /// Registered files.
    pub files: Option<Files>,
    /// Registered buffers.
    pub buffers: Option<Buffers>,
    /// Groups of buffers to choose from (IOSQE_BUFFER_SELECT).
    pub groups: Groups,
    /// The registered eventfd (a private duplicate). True if only asynchronous completions signal it.
    pub eventfd: Option<(i32, bool)>,
    /// The eventfd was signalled after the poll set last reported an event for which polls wait.
    pub signalled: bool,
    /// The eventfd that wakes a thread which waits with a signal mask on a polled ring.
    pub poller_eventfd: Option<i32>,
    /// Id of the thread that may submit (`anyring_abi::IORING_SETUP_SINGLE_ISSUER`); 0 for any thread, or while the
    /// ring is disabled.
    pub issuer: u32,
    /// The ring's last holder has submitted, and so has a context
    /// ([`process::give_context`](crate::process::give_context)).
    pub holder_has_context: bool,
    /// Chunks of shared records that this process claimed, with their free entries.
    pub records: Records,
    /// The ring's stage of life.
    pub(super) life: Life,
    /// The ring was made with `anyring_abi::IORING_SETUP_R_DISABLED` and is not enabled yet.
    pub disabled: bool,
    /// The state of a ring of polled devices (`anyring_abi::IORING_SETUP_IOPOLL`).
    pub iopoll: Option<Box<IoPoll>>,
    /// The operations that the program allowed on the ring, enforced once the ring is enabled; and the ring's filters.
    pub restrictions: Option<Box<Restrictions>>,
    /// The program's settings for busy polling.
    pub napi: Napi,
    /// Registered credentials.
    pub personalities: Personalities,
    /// Threads asleep on the futex word must be woken when the lock is released.
    pub wake_due: bool,
    /// The clock of waits (`IORING_REGISTER_CLOCK`).
    pub clock: Clock,
    /// The registered memory region.
    pub wait_region: Option<Region>,
    /// The fault injection of `anyring chaos`, if it is on.
    pub chaos: Option<Box<crate::chaos::Chaos>>,
    /// True if chaos or a tracer watches the program's calls.
    pub is_watched: bool,
    /// True if chaos or filters look at each prepared request.
    pub screens: bool,
    /// The state of a Linux AIO context, if the ring is one.
    pub aio: Option<Box<Context>>,
}

/// A ring's stage of life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    /// The ring is open.
    Open,
    /// The program has closed one number of the ring's descriptor, but duplicates are open. The helper watches for the
    /// close of the last one.
    Orphan,
    /// The last copy of the descriptor is gone. No new request starts. The memory is freed once it is out of use.
    Closed,
    /// The ring is closed, and no thread is inside a call on it. From now on its memory may belong to something else.
    Abandoned,
}

impl State {
    /// True if a number of the descriptor was closed, but copies are left.
    #[inline]
    pub fn is_orphan(&self) -> bool {
        self.life == Life::Orphan
    }

    /// True if the last copy of the descriptor is gone.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.life >= Life::Closed
    }

    /// True if the ring's memory may belong to something else by now.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        self.life == Life::Abandoned
    }

    /// Records that a number was closed. A ring's life never goes backwards.
    pub fn mark_orphan(&mut self) {
        self.life = self.life.max(Life::Orphan);
    }

    /// Records that the last copy of the descriptor is gone.
    pub fn close(&mut self) {
        self.life = self.life.max(Life::Closed);
    }

    /// Opens the ring again, for a test that closed it.
    #[cfg(test)]
    pub fn reopen(&mut self) {
        self.life = Life::Open;
    }

    /// Records that no thread is inside a call on a closed ring.
    pub fn mark_abandoned(&mut self) {
        self.life = Life::Abandoned;
    }
}

/// The free records of the chunks that this process claimed in the shared control area.
#[derive(Default)]
pub struct Records {
    free: Vec<(u8, u8)>,
}

impl Records {
    /// Takes a free record, if there is one. A request without a record is invisible only to waiters in other
    /// processes.
    pub fn take(&mut self, control: &Control) -> Option<(u8, u8)> {
        if self.free.is_empty() {
            self.free.try_reserve(control::CHUNK_RECORDS).ok()?;
            let chunk = control.claim_chunk()?;
            self.free.extend(records_of(chunk).rev());
        }
        self.free.pop()
    }

    /// Forgets the records of a chunk that is given up. All of them are free.
    pub(crate) fn forget_chunk(&mut self, chunk: usize) {
        self.free.retain(|(of, _)| usize::from(*of) != chunk);
    }

    /// Gives a record back.
    pub fn give_back(&mut self, record: (u8, u8)) {
        self.free.push(record);
    }
}

/// The records of a chunk.
pub(crate) fn records_of(chunk: usize) -> impl DoubleEndedIterator<Item = (u8, u8)> {
    (0..control::CHUNK_RECORDS).map(move |index| (chunk as u8, index as u8))
}

const _: () = assert!(control::CHUNK_RECORDS == 256, "a record's index is a u8");

/// Makes a boxed struct by writing each field directly to its place in the box.
macro_rules! in_place {
    ($type:ident { $($field:ident: $value:expr,)* }) => {{
        let mut place = Box::<$type>::new_uninit();
        let at = place.as_mut_ptr();
        // This closure is never called. It does not compile if a field is missing.
        let _ = |$type { $($field: _),* }: &$type| {};
        // SAFETY: each field is written, to memory that was allocated for the whole struct.
        unsafe {
            $((&raw mut (*at).$field).write($value);)*
            place.assume_init()
        }
    }};
}

impl State {
    /// Makes the state of a new ring, in place: it is too large for one of the program's stacks.
    #[inline(never)]
    pub fn new(flags: u32, memory: Memory, control: Control, ends: EngineEnds, cookie: u64) -> Box<State> {
        in_place!(State {
            memory: memory,
            control: control,
            ends: ends,
            cookie: cookie,
            slab: Slab::default(),
            queue: Queue::default(),
            spin: Spin::default(),
            poll_set: PollSet::default(),
            stalls: Stalls::default(),
            device: Device::default(),
            timers: Timers::default(),
            chain: None,
            calls: Calls::default(),
            after_release: AfterRelease::NOTHING,
            submission: None,
            drain: Drain::default(),
            tally: crate::stats::Tally::default(),
            recorder: None,
            tracer_seen: 0,
            batch: Batch::default(),
            spill: Default::default(),
            files: None,
            buffers: None,
            groups: crate::resource::buf_ring::Groups::default(),
            eventfd: None,
            signalled: false,
            poller_eventfd: None,
            issuer: if flags & (anyring_abi::IORING_SETUP_SINGLE_ISSUER | anyring_abi::IORING_SETUP_R_DISABLED)
                == anyring_abi::IORING_SETUP_SINGLE_ISSUER
            {
                crate::thread::id()
            } else {
                0
            },
            holder_has_context: false,
            records: Records::default(),
            disabled: flags & anyring_abi::IORING_SETUP_R_DISABLED != 0,
            life: Life::Open,
            iopoll: (flags & anyring_abi::IORING_SETUP_IOPOLL != 0)
                .then(|| Box::new(IoPoll::new(flags & anyring_abi::IORING_SETUP_SQPOLL != 0))),
            restrictions: None,
            napi: Napi::default(),
            personalities: Personalities::default(),
            wake_due: false,
            clock: Clock::Monotonic,
            wait_region: None,
            chaos: None,
            is_watched: false,
            screens: false,
            aio: None,
        })
    }

    /// The memory that mmap(2) maps at `offset`.
    pub fn mapping(&self, offset: u64) -> Option<Area> {
        if offset == MAP_OFFSET {
            return self.wait_region.as_ref()?.area();
        }
        if offset & u64::from(IORING_OFF_MMAP_MASK) == u64::from(IORING_OFF_PBUF_RING) {
            let group = (offset & !u64::from(IORING_OFF_MMAP_MASK)) >> IORING_OFF_PBUF_SHIFT;
            return self.groups.area(u16::try_from(group).ok()?);
        }
        self.memory.area(offset)
    }

    /// The restrictions in force now.
    #[inline]
    pub fn enforced(&self) -> Option<&Restrictions> {
        self.restrictions.as_deref().filter(|_| !self.disabled)
    }

    /// Number of CQEs that the program has not consumed.
    #[inline(always)] // for an io_uring_enter(2) that only checks
    pub fn cq_ready(&self, tail: u32) -> Result<u32, Errno> {
        Ok(tail.wrapping_sub(self.memory.view.load(word::CQ_HEAD)?))
    }
}

/// The parts of a Linux AIO context that the rest of the engine uses. All other parts are in `aio/` and `aio_ring/`.
impl State {
    /// True if the ring belongs to a Linux AIO context.
    #[inline]
    pub fn is_context(&self) -> bool {
        self.aio.is_some()
    }

    /// The request that waits at `place` without a slot in the slab, or room for one. `None` unless the ring is a
    /// context and a request has that place.
    #[inline]
    pub fn single(&mut self, place: u32) -> Option<&mut Option<Single>> {
        self.aio.as_deref_mut()?.single(place)
    }

    /// Forgets `fd` as an eventfd of requests. Called when the program closes `fd`.
    pub fn forget_eventfd(&mut self, fd: i32) {
        if let Some(context) = &mut self.aio {
            context.forget(fd);
        }
    }
}

impl State {
    /// True if a thread of this process must watch the poll set: requests are armed, or the kernel makes transfers.
    #[inline]
    pub fn awaits_events(&self) -> bool {
        self.poll_set.armed() != 0 || self.device.any()
    }
}
