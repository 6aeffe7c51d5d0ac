//! A request in flight, with what its events have said so far.

use super::tally::{Key, Path, RingTally};
use crate::class::{counts_bytes, SizeClass};
use crate::later::Moment;
use anyring_engine::event::FileKind;
use anyring_engine::op::Punt;

/// A request in flight.
#[derive(Debug, Clone)]
pub(super) struct InFlight {
    pub(super) opcode: u16,
    pub(super) flags: u32,
    pub(super) len: u32,
    pub(super) file: FileKind,
    pub(super) path: Path,
    pub(super) submitted_ns: u64,
    /// The time at which it could begin: when the previous request of its chain completed.
    pub(super) begun_ns: u64,
    /// The descriptor that it names, unless that is registered.
    pub(super) looked_up: Option<i32>,
    /// The time at which the request was last queued for a worker, and the total time in the queue, as far as it is
    /// known.
    pub(super) queued_ns: u64,
    pub(super) in_queue_ns: Option<u64>,
    /// The reason why it went to a worker, if known.
    pub(super) punt: Option<Punt>,
    pub(super) several: bool,
    /// Bytes of the CQEs before the last.
    pub(super) bytes: u64,
    /// The next request in its chain; 0 for none.
    pub(super) next: u32,
    /// True if the previous request of its chain went to a worker.
    pub(super) after_worker: bool,
    /// True if it goes to a worker without an attempt. On anyring's engine that is only asked for.
    pub(super) sent: bool,
    /// True if its transfer begins at the offset where the previous transfer on its descriptor ended.
    pub(super) sequential: bool,
    pub(super) user_data: u64,
    /// The step of its thread at which it was submitted.
    pub(super) moment: Moment,
    /// The stack from which it was submitted, if known.
    pub(super) stack: Option<u64>,
}

impl InFlight {
    pub(super) fn key(&self, has_sizes: bool) -> Key {
        let sized = has_sizes && counts_bytes(self.opcode);
        let size = if sized { SizeClass::of(self.len) } else { SizeClass::Unknown };
        let unnamed = self.looked_up.filter(|_| self.file == FileKind::Unknown);
        Key { opcode: self.opcode, file: self.file, size, unnamed }
    }

    /// Records that an io-wq thread works on the request. For a chain the kernel reports `queue_async_work` only of
    /// the first request. `began_ns`: the time at which the thread began, if this is that moment.
    pub(super) fn begin_in_io_wq(&mut self, ring: &mut RingTally, began_ns: Option<u64>) {
        let queued_ns = core::mem::take(&mut self.queued_ns);
        if let Some(began_ns) = began_ns.filter(|_| queued_ns != 0) {
            *self.in_queue_ns.get_or_insert(0) += began_ns.saturating_sub(queued_ns);
        }
        if self.path == Path::Inline {
            self.path = Path::Worker;
            ring.with_workers += 1;
            ring.most_with_workers = ring.most_with_workers.max(ring.with_workers);
        }
    }
}
