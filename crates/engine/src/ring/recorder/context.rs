//! Events that only a Linux AIO context has: its system calls and iocbs, in place of io_uring_enter(2) and SQEs.
//! Guarded by the lock of the context's ring.

use super::{Recorder, OF_SQE, SHARING};
use crate::event::chunks::{has, Writer};
use crate::event::session::{self, Room};
use crate::event::Known;
use crate::event::{Event, Kind, AIO};
use crate::op::Skip;
use crate::request::Id;
use crate::Errno;
use anyring_abi::{Iocb, IOCB_CMD_PREAD, IOCB_CMD_PWRITE, IORING_ENTER_EXT_ARG, IORING_ENTER_GETEVENTS};
use std::sync::Arc;

/// Stores the identity of the request at hand under its slot, and clears `at_hand`.
#[cold]
pub(super) fn keep(iocbs: &mut Vec<Known>, place: usize, at_hand: &mut Known) {
    if iocbs.len() <= place && iocbs.try_reserve(place + 1 - iocbs.len()).is_ok() {
        iocbs.resize(place + 1, Known::default());
    }
    let known = core::mem::take(at_hand);
    if let Some(kept) = iocbs.get_mut(place) {
        *kept = known;
    }
}

impl Recorder {
    /// Makes the recorder of a new context at `address`, if a tracer wants events. Records that the context was made
    /// for `requests` requests, with `places` places for events.
    pub fn of_new_context(address: u64, requests: u32, places: u32) -> Option<Box<Recorder>> {
        Some(Recorder::of_context(session::room()?, address, requests, places))
    }

    /// Makes the recorder of an existing context, whose events go into this room from now on. Records that the context
    /// exists.
    pub(crate) fn of_context(room: Arc<Room>, address: u64, requests: u32, places: u32) -> Box<Recorder> {
        let mut recorder = Recorder::by_writer(Writer::in_room(room, AIO), SHARING);
        recorder.iocbs = Some(Vec::new());
        let created =
            Event { user_data: address, fd: -1, len: requests, offset: places.into(), ..Event::new(Kind::Create) };
        recorder.writer.put::<{ has::TIME | has::USER_DATA | has::OFFSET | has::FD_LEN }>(&created);
        recorder
    }

    /// The identity of an AIO context's request in this slot. The default if the request was submitted before recording
    /// began.
    pub(super) fn iocb_of(&self, id: Id) -> Option<Known> {
        Some(self.iocbs.as_ref()?.get(id.place()).copied().unwrap_or_default())
    }

    /// Records a call of io_submit(2).
    #[cold]
    pub fn io_submit(&mut self, count: u64) {
        self.at_hand = Known::default();
        self.call(Event { len: u32::try_from(count).unwrap_or(u32::MAX), ..Event::new(Kind::Enter) });
    }

    /// Records a call of io_getevents(2), or of io_pgetevents(2) with a signal mask.
    #[cold]
    pub fn io_getevents(&mut self, at_least: u64, has_mask: bool) {
        let flags = IORING_ENTER_GETEVENTS | if has_mask { IORING_ENTER_EXT_ARG } else { 0 };
        self.call(Event { offset: at_least, flags, ..Event::new(Kind::Enter) });
    }

    fn call(&mut self, call: Event) {
        self.writer.check_thread();
        self.writer.put::<{ has::TIME | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS }>(&Event { fd: -1, ..call });
        self.share_times();
    }

    /// Records that an iocb was copied, and that its descriptor is looked up.
    #[cold]
    pub fn submit_iocb(&mut self, iocb: &Iocb) {
        let fd = iocb.fd as i32;
        let request = self.number();
        self.at_hand =
            Known { request, user_data: iocb.data, opcode: u8::try_from(iocb.opcode).unwrap_or(u8::MAX) };
        let len = u32::try_from(iocb.bytes).unwrap_or(u32::MAX);
        let file = self.file_kind(fd);
        let event = Event { fd, len, offset: iocb.offset as u64, file, ..self.of_request(Kind::SubmitReq) };
        self.put_sharing::<{ OF_SQE | has::FILE }, { OF_SQE | has::FILE | has::TIME }>(&event);
        if !matches!(iocb.opcode, IOCB_CMD_PREAD | IOCB_CMD_PWRITE) || iocb.bytes > 4096 {
            self.awoke(); // such a request may take long
        }
    }

    /// Records that io_submit(2) refuses the iocb at hand, or could not read it.
    #[cold]
    pub fn iocb_refused(&mut self, error: Errno) {
        let event = Event { result: -error.raw_os_error(), ..self.of_request(Kind::ReqFailed) };
        self.at_hand = Known::default();
        self.writer.put::<{ has::TIME | has::USER_DATA | has::RESULT_FLAGS }>(&event);
    }

    /// Records that the iocb at hand completes in this call: the next event posted belongs to it.
    #[cold]
    pub fn iocb_ends(&mut self) {
        self.ends();
        self.at_hand = Known::default();
    }

    /// Records that the iocb at hand waits for `events` of poll(2) without a slot in the slab. Returns the iocb's
    /// identity.
    #[cold]
    pub(crate) fn waits_singly(&mut self, events: Option<u32>, skip: Option<Skip>) -> Known {
        if let Some(events) = events {
            self.poll_arm(events, skip);
        }
        core::mem::take(&mut self.at_hand)
    }

    /// Records that the readiness for which an iocb waited without a slot has arrived. The next event posted ends the
    /// iocb.
    #[cold]
    pub(crate) fn single_ends(&mut self, known: Known) {
        self.at_hand = known;
        self.task_add();
        self.iocb_ends();
    }

    /// Records that an iocb that waited without a slot gets one in the slab.
    #[cold]
    pub(crate) fn joins(&mut self, known: Known) {
        self.at_hand = known;
    }
}
