//! What a ring's lock guards: the requests in flight in this process, and each part that they go through.

use crate::aio_ring::{Context, Single};
use crate::device::Device;
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
use super::notes::Due;
use super::spill::Spill;

/// What the ring's lock guards.
pub struct State {
    /// Ring memory.
    pub memory: Memory,
    /// The shared control area.
    pub control: Control,
    /// The engine's end of the descriptor: its hang-up is the end of the ring.
    pub engine_end: i32,
    /// The same as the ring's.
    pub cookie: u64,
    /// Requests in flight in this process.
    pub slab: Slab,
    /// Requests whose turn has come, and TIMEOUTs that count completions.
    pub queue: Queue,
    /// Poll set and what is known of descriptors.
    pub poll_set: PollSet,
    /// How long calls on names take.
    pub stalls: Stalls,
    /// Transfers that the kernel's AIO makes.
    pub device: Device,
    /// Deadlines.
    pub timers: Timers,
    /// The chain under construction.
    pub chain: Option<Chain>,
    /// Calls that the present holder of the lock makes when it lets go.
    pub calls: Calls,
    /// What is to be done once the ring is let go of.
    pub due: Due,
    /// What the present holder of the lock submitted that depends on who it is.
    pub submission: Option<Box<Submission>>,
    /// Requests held back by IOSQE_IO_DRAIN.
    pub drain: Drain,
    /// Completions not yet in the shared counters; empty between two submissions.
    pub tally: crate::stats::Tally,
    /// Who is told what happens here, if anybody wants to know.
    pub recorder: Option<Box<super::recorder::Recorder>>,
    /// The version of the trace request that the recorder follows: what `Tracer::wanted` was.
    pub heard: u64,
    /// CQEs not yet posted.
    pub batch: Batch,
    /// CQEs that found the shared backlog full.
    pub spill: Spill,
    /// Registered files.
    pub files: Option<Files>,
    /// Registered buffers.
    pub buffers: Option<Buffers>,
    /// Buffers to choose from (IOSQE_BUFFER_SELECT).
    pub groups: Groups,
    /// Registered eventfd (a private duplicate), and whether only asynchronous completions signal it.
    pub eventfd: Option<(i32, bool)>,
    /// It was signalled since the poll set last told of an event that polls wait for.
    pub signalled: bool,
    /// On a polled ring: the eventfd that wakes whoever waits with a signal mask.
    pub bell: Option<i32>,
    /// The thread that may submit (`anyring_abi::IORING_SETUP_SINGLE_ISSUER`): its id, 0 while the ring is disabled or for any thread.
    pub issuer: u32,
    /// Chunks of shared records that this process claimed, with their free entries.
    pub records: Records,
    /// How far it is from its end.
    pub(super) life: Life,
    /// Made with `anyring_abi::IORING_SETUP_R_DISABLED` and not enabled yet.
    pub disabled: bool,
    /// What a ring of polled devices has (`anyring_abi::IORING_SETUP_IOPOLL`).
    pub iopoll: Option<Box<IoPoll>>,
    /// What the program allowed the ring to be used for; holds while the ring is not disabled.
    pub restrictions: Option<Box<Restrictions>>,
    /// What the program set for busy polling.
    pub napi: Napi,
    /// Registered credentials.
    pub personalities: Personalities,
    /// Threads asleep on the futex word are to be woken when the lock is let go of.
    pub wake_due: bool,
    /// The clock of waits (`IORING_REGISTER_CLOCK`).
    pub clock: Clock,
    /// The registered memory region.
    pub wait_region: Option<Region>,
    /// What disturbs it, if anything does.
    pub chaos: Option<Box<crate::chaos::Chaos>>,
    /// What makes the ring a context of Linux AIO.
    pub aio: Option<Box<Context>>,
}

/// How far a ring is from its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Life {
    /// It is open.
    Open,
    /// A number of the descriptor was closed and copies are left: the helper watches for the last one.
    Orphan,
    /// The last copy of the descriptor is gone: nothing new starts, memory goes when nobody uses it any more.
    Closed,
    /// Nobody is inside a call on it either: from now on its memory may be something else's.
    Abandoned,
}

impl State {
    /// Whether a number of the descriptor was closed, and copies are left.
    #[inline]
    pub fn is_orphan(&self) -> bool {
        self.life == Life::Orphan
    }

    /// Whether the last copy of the descriptor is gone.
    #[inline]
    pub fn is_closed(&self) -> bool {
        self.life >= Life::Closed
    }

    /// Whether its memory may be something else's.
    #[inline]
    pub fn is_abandoned(&self) -> bool {
        self.life == Life::Abandoned
    }

    /// A number was closed. The life of a ring only goes on.
    pub fn note_orphan(&mut self) {
        self.life = self.life.max(Life::Orphan);
    }

    /// The last copy is gone.
    pub fn close(&mut self) {
        self.life = self.life.max(Life::Closed);
    }

    /// A test that closed it goes on.
    #[cfg(test)]
    pub fn reopen(&mut self) {
        self.life = Life::Open;
    }

    /// Nobody is inside a call on a closed ring.
    pub fn note_abandoned(&mut self) {
        self.life = Life::Abandoned;
    }
}

/// Free records of the chunks that this process claimed in the shared control area.
#[derive(Default)]
pub struct Records {
    free: Vec<(u8, u8)>,
}

impl Records {
    /// A free record, if there is one; a request without one is only missed by waiters of other processes.
    pub fn take(&mut self, control: &Control) -> Option<(u8, u8)> {
        if self.free.is_empty() {
            self.free.try_reserve(control::CHUNK_RECORDS).ok()?;
            let chunk = control.claim_chunk()?;
            self.free.extend(records_of(chunk).rev());
        }
        self.free.pop()
    }

    /// Forgets the records of a chunk, all of them free, that is given up.
    pub(crate) fn lose(&mut self, chunk: usize) {
        self.free.retain(|(of, _)| usize::from(*of) != chunk);
    }

    /// Gives a record back.
    pub fn give(&mut self, record: (u8, u8)) {
        self.free.push(record);
    }
}

/// The records of a chunk.
pub(crate) fn records_of(chunk: usize) -> impl DoubleEndedIterator<Item = (u8, u8)> {
    (0..control::CHUNK_RECORDS).map(move |index| (chunk as u8, index as u8))
}

const _: () = assert!(control::CHUNK_RECORDS == 256, "a record's index is a u8");

/// A value that is written field by field to where it stays.
macro_rules! in_place {
    ($type:ident { $($field:ident: $value:expr,)* }) => {{
        let mut place = Box::<$type>::new_uninit();
        let at = place.as_mut_ptr();
        // Never called: it does not compile where a field is missing.
        let _ = |$type { $($field: _),* }: &$type| {};
        // SAFETY: each field is written, to memory that was allocated for all of them.
        unsafe {
            $((&raw mut (*at).$field).write($value);)*
            place.assume_init()
        }
    }};
}

impl State {
    /// The state of a ring on which nothing has happened. It is too large for a stack of the program's.
    #[inline(never)]
    pub fn new(flags: u32, memory: Memory, control: Control, engine_end: i32, cookie: u64) -> Box<State> {
        in_place!(State {
            memory: memory,
            control: control,
            engine_end: engine_end,
            cookie: cookie,
            slab: Slab::default(),
            queue: Queue::default(),
            poll_set: PollSet::default(),
            stalls: Stalls::default(),
            device: Device::default(),
            timers: Timers::default(),
            chain: None,
            calls: Calls::default(),
            due: Due::NOTHING,
            submission: None,
            drain: Drain::default(),
            tally: crate::stats::Tally::default(),
            recorder: None,
            heard: 0,
            batch: Batch::default(),
            spill: Default::default(),
            files: None,
            buffers: None,
            groups: crate::resource::buf_ring::Groups::default(),
            eventfd: None,
            signalled: false,
            bell: None,
            issuer: if flags & (anyring_abi::IORING_SETUP_SINGLE_ISSUER | anyring_abi::IORING_SETUP_R_DISABLED)
                == anyring_abi::IORING_SETUP_SINGLE_ISSUER
            {
                crate::thread::id()
            } else {
                0
            },
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
            aio: None,
        })
    }

    /// Where the area at mmap(2) offset `offset` is.
    pub fn mapping(&self, offset: u64) -> Option<Area> {
        if offset == MAP_OFFSET {
            return Some(Area::File(self.wait_region.as_ref()?.memfd()?, 0));
        }
        if offset & u64::from(IORING_OFF_MMAP_MASK) == u64::from(IORING_OFF_PBUF_RING) {
            let group = (offset & !u64::from(IORING_OFF_MMAP_MASK)) >> IORING_OFF_PBUF_SHIFT;
            return Some(Area::File(self.groups.memfd(u16::try_from(group).ok()?)?, 0));
        }
        self.memory.area(offset)
    }

    /// The restrictions that hold now.
    #[inline]
    pub fn enforced(&self) -> Option<&Restrictions> {
        self.restrictions.as_deref().filter(|_| !self.disabled)
    }

    /// CQEs the program has not consumed.
    #[inline(always)] // for an enter that only looks
    pub fn cq_ready(&self, tail: u32) -> Result<u32, Errno> {
        Ok(tail.wrapping_sub(self.memory.view.load(word::CQ_HEAD)?))
    }
}

/// What the rest of the engine asks of a context of Linux AIO; all else of it is in `aio/` and `aio_ring/`.
impl State {
    /// Whether the ring is one.
    #[inline]
    pub fn is_context(&self) -> bool {
        self.aio.is_some()
    }

    /// Where the request of this place may wait alone, if there is a context and the place is taken.
    #[inline]
    pub fn single(&mut self, place: u32) -> Option<&mut Option<Single>> {
        self.aio.as_deref_mut()?.single(place)
    }

    /// The program closes `fd`, which requests may have named as their eventfd.
    pub fn forget_eventfd(&mut self, fd: i32) {
        if let Some(context) = &mut self.aio {
            context.forget(fd);
        }
    }
}

impl State {
    /// Whether somebody of this process has to look after the poll set: requests are armed, or the kernel has transfers.
    #[inline]
    pub fn awaits_events(&self) -> bool {
        self.poll_set.armed() != 0 || self.device.any()
    }
}
