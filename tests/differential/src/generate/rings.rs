//! Requests on the ring itself: polls, timeouts, cancels, messages, registered things; and the register calls.

use super::files::opcode_of;
use super::model::Claim;
use super::Generator;
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

/// Long after the end of any program, in seconds.
pub(super) const NEVER: i64 = 100;

impl Generator {
    /// Drafts a request on the ring itself.
    pub(super) fn draft_of_ring(&mut self, opcode: Opcode) -> Option<Request> {
        use Opcode as O;
        match opcode {
            O::Nop => self.nop(),
            O::PollAdd => self.poll_add(),
            O::PollRemove => self.poll_remove(),
            O::Timeout => self.timeout(),
            O::TimeoutRemove => self.timeout_remove(),
            O::AsyncCancel => self.cancel(),
            O::MsgRing => self.message(),
            O::FilesUpdate => self.files_update(),
            O::FixedFdInstall => self.fixed_fd_install(),
            O::ProvideBuffers | O::RemoveBuffers => self.change_list(opcode),
            _ => self.pipe(),
        }
    }

    fn nop(&mut self) -> Option<Request> {
        let mut request = Request::new(Opcode::Nop);
        if self.chance(1, 2) {
            (request.op_flags, request.len) = (IORING_NOP_INJECT_RESULT, self.below(1000));
        }
        if self.chance(1, 6) {
            request.op_flags |= IORING_NOP_FILE;
            request.fd = Target::Of(End::File(0));
        }
        if self.chance(1, 6) {
            request.op_flags |= IORING_NOP_TW;
        }
        Some(request)
    }

    fn poll_add(&mut self) -> Option<Request> {
        let end = self.choose(&[
            End::PipeRead(0),
            End::PipeRead(2),
            End::PipeWrite(1),
            End::Stream(0, 0),
            End::Stream(1, 0),
            End::Tcp(0, 1),
            End::Eventfd(0),
            End::Listener,
        ]);
        if !self.claim_end(end) {
            return None;
        }
        let events = self.choose(&[libc::POLLIN, libc::POLLIN, libc::POLLOUT, libc::POLLIN | libc::POLLOUT]);
        self.model.polled_listener |= end == End::Listener;
        // On the kernel each result of a multishot poll holds the events of its wake-up. On anyring it holds all ready
        // events. So the poll is for one event only.
        let multi = events != libc::POLLIN | libc::POLLOUT && self.chance(1, 5);
        // The poll result of a listener that is shut down depends on timing.
        let quiet = matches!(end, End::PipeRead(_) | End::Listener) || events == libc::POLLIN;
        if multi || (quiet && self.model.readable(end) == 0) {
            if self.model.waits_at(end) {
                return None;
            }
            self.model.wait(self.next_id, opcode_of(Opcode::PollAdd), Some(end));
        }
        Some(Request {
            fd: Target::Of(end),
            op_flags: events as u32,
            len: if multi { IORING_POLL_ADD_MULTI } else { 0 },
            ..Request::new(Opcode::PollAdd)
        })
    }

    fn waiting(&mut self, opcodes: &[Opcode]) -> Option<u64> {
        let of_kind: Vec<u64> = self
            .model
            .waiting()
            .iter()
            .filter(|waiting| {
                opcodes.is_empty() || opcodes.iter().any(|opcode| opcode_of(*opcode) == waiting.opcode)
            })
            .map(|waiting| waiting.id)
            .collect();
        if of_kind.is_empty() || self.chance(1, 10) {
            return self.chance(1, 6).then_some(7777);
        }
        Some(self.choose(&of_kind))
    }

    /// Claims what a waiting request waits for, so that nothing else can end it now.
    fn claim_waiting(&mut self, id: u64) -> Option<()> {
        let all = self.model.waiting().iter().filter(|waiting| waiting.id == id);
        let ends: Vec<End> = all.filter_map(|waiting| waiting.end).collect();
        let free = self.claim(Claim::Request(id)) && ends.into_iter().all(|end| self.claim_end(end));
        free.then_some(())
    }

    fn poll_remove(&mut self) -> Option<Request> {
        let id = self.waiting(&[Opcode::PollAdd])?;
        self.claim_waiting(id)?;
        let mut request = Request { addr: Value::Plain(id), ..Request::new(Opcode::PollRemove) };
        match self.below(4) {
            0 => (request.len, request.op_flags) = (IORING_POLL_UPDATE_EVENTS, libc::POLLHUP as u32),
            1 => {
                let end =
                    self.model.waiting().iter().find(|waiting| waiting.id == id).and_then(|waiting| waiting.end);
                let renamed = 5000 + id;
                (request.len, request.off) = (IORING_POLL_UPDATE_USER_DATA, Value::Plain(renamed));
                self.model.ended(|waiting| waiting.id == id);
                self.model.wait(renamed, opcode_of(Opcode::PollAdd), end);
            }
            _ => self.model.ended(|waiting| waiting.id == id),
        }
        Some(request)
    }

    fn timeout(&mut self) -> Option<Request> {
        if !self.claim(Claim::Timers) {
            return None;
        }
        let mut request = Request { len: 1, ..Request::new(Opcode::Timeout) };
        match self.below(6) {
            0 => request.addr = Value::Time(0, 1_000_000),
            1 => {
                request.addr = Value::Time(0, 1_000_000);
                request.op_flags = IORING_TIMEOUT_ETIME_SUCCESS;
            }
            2 => {
                request.addr = Value::Time(0, 500_000);
                request.op_flags = IORING_TIMEOUT_MULTISHOT;
                request.off = Value::Plain(1 + u64::from(self.below(3)));
            }
            3 => {
                let clock = self.choose(&[
                    (0, libc::CLOCK_MONOTONIC),
                    (IORING_TIMEOUT_BOOTTIME, libc::CLOCK_BOOTTIME),
                    (IORING_TIMEOUT_REALTIME, libc::CLOCK_REALTIME),
                ]);
                request.addr = Value::Later(clock.1, self.choose(&[-5, 1]));
                request.op_flags = IORING_TIMEOUT_ABS | clock.0;
            }
            4 => {
                request.addr = Value::Time(NEVER, 0);
                self.model.wait(self.next_id, opcode_of(Opcode::Timeout), None);
            }
            _ => return None,
        }
        Some(request)
    }

    /// A timeout that ends after some completions. It is alone in its submission, since a punted request there may or
    /// may not be counted.
    pub(super) fn counting_timeout(&mut self) -> Option<Request> {
        let request = Request {
            user_data: self.next_id,
            addr: Value::Time(NEVER, 0),
            off: Value::Plain(1 + u64::from(self.below(3))),
            len: 1,
            ..Request::new(Opcode::Timeout)
        };
        self.next_id += 1;
        Some(request)
    }

    fn timeout_remove(&mut self) -> Option<Request> {
        let id = self.waiting(&[Opcode::Timeout])?;
        if !self.claim(Claim::Timers) {
            return None;
        }
        self.claim_waiting(id)?;
        let mut request = Request { addr: Value::Plain(id), ..Request::new(Opcode::TimeoutRemove) };
        if self.chance(1, 3) {
            request.op_flags = IORING_TIMEOUT_UPDATE;
            let soon = self.chance(1, 2);
            request.off = if soon { Value::Time(0, 1_000_000) } else { Value::Time(NEVER, 5) };
            if !soon {
                return Some(request);
            }
        }
        self.model.ended(|waiting| waiting.id == id);
        Some(request)
    }

    fn cancel(&mut self) -> Option<Request> {
        let id = self.waiting(&[])?;
        self.claim_waiting(id)?;
        self.model.ended(|waiting| waiting.id == id);
        Some(Request {
            addr: Value::Plain(id),
            op_flags: self.choose(&[0, 0, IORING_ASYNC_CANCEL_ALL, IORING_ASYNC_CANCEL_USERDATA]),
            ..Request::new(Opcode::AsyncCancel)
        })
    }

    /// A cancel that may match several requests. It is alone in its submission.
    pub(super) fn wide_cancel(&mut self) -> Option<Request> {
        let waiting = self.model.waiting().to_vec();
        let mut request = Request { user_data: self.next_id, ..Request::new(Opcode::AsyncCancel) };
        // Hashing decides which of several is found first.
        let all = if waiting.len() == 1 && self.chance(1, 2) { 0 } else { IORING_ASYNC_CANCEL_ALL };
        if waiting.is_empty() {
            return None;
        }
        let one = self.choose(&waiting);
        match self.below(3) {
            0 => {
                request.op_flags = IORING_ASYNC_CANCEL_ANY | all;
                self.model.ended(|_| true);
            }
            1 => {
                let end = one.end?;
                request.op_flags = IORING_ASYNC_CANCEL_FD | all;
                request.fd = Target::Of(end);
                self.model.ended(|waiting| waiting.end == Some(end));
            }
            _ => {
                request.op_flags = IORING_ASYNC_CANCEL_OP | all;
                request.len = u32::from(one.opcode);
                self.model.ended(|waiting| waiting.opcode == one.opcode);
            }
        }
        self.next_id += 1;
        Some(request)
    }

    /// The LINK_TIMEOUT of the request before it.
    pub(super) fn link_timeout(&mut self, waits: bool) -> Request {
        let id = self.next_id;
        self.next_id += 1;
        if waits {
            self.model.ended(|waiting| waiting.id + 1 == id);
        }
        let addr = if waits { Value::Time(0, 1_000_000) } else { Value::Time(NEVER, 0) };
        let mut request = Request { user_data: id, addr, len: 1, ..Request::new(Opcode::LinkTimeout) };
        if waits && self.chance(1, 4) {
            request.addr = Value::Later(libc::CLOCK_MONOTONIC, 1);
            request.op_flags = IORING_TIMEOUT_ABS;
        }
        request
    }

    fn message(&mut self) -> Option<Request> {
        if !self.claim(Claim::Messages) {
            return None;
        }
        let to = self.choose(&[End::OtherRing, End::OtherRing, End::OtherRing, End::ThisRing]);
        let mut request = Request {
            fd: Target::Of(to),
            len: self.below(5000),
            off: Value::Plain(20_000 + self.next_id),
            ..Request::new(Opcode::MsgRing)
        };
        if self.chance(1, 6) {
            request.op_flags = IORING_MSG_RING_FLAGS_PASS;
            request.file_index = IORING_CQE_F_MORE;
        }
        Some(request)
    }

    fn files_update(&mut self) -> Option<Request> {
        if !self.claim(Claim::Table) {
            return None;
        }
        let (start, count) = (self.below(self.model.slots()), 1 + self.below(3));
        let mut request = Request { len: count, ..Request::new(Opcode::FilesUpdate) };
        let ends: Vec<Option<End>> = (0..count).map(|_| self.registrable()).collect();
        let targets = ends.iter().map(|end| end.map_or(Target::Number(-1), Target::Of)).collect();
        request.addr = Value::Descriptors(targets);
        if self.chance(1, 5) && ends.iter().all(Option::is_some) {
            request.off = Value::Plain(u64::from(IORING_FILE_INDEX_ALLOC as u32));
            for end in ends {
                if let Some(slot) = self.model.free_slot() {
                    self.model.set_slot(slot, end);
                }
            }
        } else {
            request.off = Value::Plain(u64::from(start));
            ends.into_iter().enumerate().for_each(|(at, end)| self.model.set_slot(start + at as u32, end));
        }
        Some(request)
    }

    /// Chooses a file for a slot of the registered files.
    fn registrable(&mut self) -> Option<End> {
        self.choose(&[
            None,
            Some(End::PipeRead(0)),
            Some(End::PipeWrite(0)),
            Some(End::File(0)),
            Some(End::File(2)),
            Some(End::Stream(0, 0)),
            Some(End::Stream(1, 1)),
            Some(End::Tcp(0, 1)),
        ])
    }

    fn fixed_fd_install(&mut self) -> Option<Request> {
        let start = self.below(self.model.slots());
        let slot = self.model.full_slot(start)?;
        if !self.claim(Claim::Table) || !self.claim(Claim::Numbers) {
            return None;
        }
        self.model.makes(self.next_id);
        Some(Request {
            fd: Target::Fixed(slot),
            flags: IOSQE_FIXED_FILE,
            op_flags: self.choose(&[0, IORING_FIXED_FD_NO_CLOEXEC]),
            ..Request::new(Opcode::FixedFdInstall)
        })
    }

    fn change_list(&mut self, opcode: Opcode) -> Option<Request> {
        if !self.claim(Claim::Group(LIST_GROUP)) {
            return None;
        }
        let count = 1 + self.below(6);
        let mut request =
            Request { fd: Target::Number(count as i32), buf_index: LIST_GROUP, ..Request::new(opcode) };
        if opcode == Opcode::ProvideBuffers {
            request.addr = Value::Buffers(count, GROUP_BYTES);
            request.len = GROUP_BYTES;
            request.off = Value::Plain(u64::from(self.below(50)));
            self.model.buffers[1] += i64::from(count);
            return Some(request);
        }
        if self.model.buffers[1] <= 0 && !self.chance(1, 6) {
            return None;
        }
        self.model.buffers[1] = (self.model.buffers[1] - i64::from(count)).max(0);
        Some(request)
    }

    fn pipe(&mut self) -> Option<Request> {
        let mut request = Request { fd: Target::Number(0), addr: Value::TwoNumbers, ..Request::new(Opcode::Pipe) };
        request.op_flags = self.choose(&[0, libc::O_CLOEXEC, libc::O_NONBLOCK]) as u32;
        // As in `place_descriptor`.
        if !self.claim(Claim::Numbers) {
            return None;
        }
        if self.chance(1, 4) {
            if !self.claim(Claim::Table) {
                return None;
            }
            request.op_flags = 0;
            request.file_index = IORING_FILE_INDEX_ALLOC as u32;
            for _ in 0..2 {
                if let Some(slot) = self.model.free_slot() {
                    self.model.set_slot(slot, Some(End::Made(self.next_id)));
                }
            }
            return Some(request);
        }
        Some(request)
    }

    /// A register call.
    pub(super) fn registration(&mut self) -> Registration {
        self.model.begin_batch();
        match self.below(16) {
            0 => {
                let ends: Vec<Option<End>> = (0..6).map(|_| self.registrable()).collect();
                Registration::Files(
                    ends.into_iter().map(|end| end.map_or(Target::Number(-1), Target::Of)).collect(),
                )
            }
            1 => Registration::SparseFiles(8),
            2 if self.chance(1, 3) => {
                self.model.set_table(vec![None; 1]);
                Registration::NoFiles
            }
            3..=5 => {
                let (start, end) = (self.below(self.model.slots()), self.registrable());
                self.model.set_slot(start, end);
                Registration::FilesUpdate(start, vec![end.map_or(Target::Number(-1), Target::Of)])
            }
            6 => Registration::AllocRange(self.below(6), 1 + self.below(6)),
            7 => Registration::Buffers,
            8 if self.chance(1, 3) => Registration::NoBuffers,
            9 => Registration::Eventfd(self.random.u8(0..2)),
            10 => Registration::NoEventfd,
            11 | 12 => {
                let id = self.waiting(&[]).unwrap_or(8888);
                self.model.ended(|waiting| waiting.id == id);
                Registration::SyncCancel(id, Target::Number(-1), 0, 0)
            }
            13 => Registration::GroupStatus(self.choose(&[RING_GROUP, RING_GROUP, LIST_GROUP, 9])),
            14 if self.chance(1, 4) => Registration::NoGroup(self.choose(&[RING_GROUP, LIST_GROUP, 9])),
            15 => Registration::Unknown(self.choose(&[50, 77])),
            _ => Registration::GroupStatus(RING_GROUP),
        }
    }
}
