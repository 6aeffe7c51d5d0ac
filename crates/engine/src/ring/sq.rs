//! Intake: each SQE is copied once, checked, and either finished at once or made a request.

mod ahead;
mod first_call;
mod screen;
#[cfg(test)]
mod tests;

use super::broken::Uncompleted;
use super::{RingGuard, State};
use crate::forced::{point, Point};
use crate::memory::layout::{word, LARGE_SHIFT};
use crate::mutation::{mutated, Mutation};
use crate::op::net::{flags_of_filled, refused_flags, refused_send};
use crate::op::rw::LARGE_BYTES;
use crate::op::{self, definition, AtOnce, Definition, Direction, FileUse, Identity, Op, Punt, Verdict};
use crate::request::drain::Drain;
use crate::request::{Request, Target};
use crate::ring::batch::Poster;
use crate::shared::fences;
use crate::stats::Path;
use crate::wq::creds::Claim;
use crate::{alloc, stats, Errno};
use anyring_abi::{
    Cqe, Opcode, Sqe, IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_SETUP_SUBMIT_ALL, IOSQE_ASYNC,
    IOSQE_BUFFER_SELECT, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_HARDLINK,
    IOSQE_IO_LINK,
};

use core::sync::atomic::Ordering;
use first_call::{Run, Stop, Unfinished};

/// All known `IOSQE_*` flags.
pub const KNOWN_FLAGS: u8 = IOSQE_FIXED_FILE
    | IOSQE_IO_DRAIN
    | IOSQE_IO_LINK
    | IOSQE_IO_HARDLINK
    | IOSQE_ASYNC
    | IOSQE_BUFFER_SELECT
    | IOSQE_CQE_SKIP_SUCCESS;

/// The first opcode of SQEs of 128 bytes. All opcodes from this one on are such opcodes, or unknown.
const FIRST_LARGE: u8 = Opcode::Nop128 as u8;

/// The flags that keep a request from being finished at once.
const NOT_ALONE: u8 = IOSQE_IO_DRAIN | IOSQE_IO_LINK | IOSQE_IO_HARDLINK | IOSQE_ASYNC;

impl RingGuard {
    /// Consumes up to `to_submit` SQEs. Returns their number. Source: `io_submit_sqes` in io_uring/io_uring.c.
    pub fn submit(&mut self, to_submit: u32) -> Result<u32, Errno> {
        self.poll_set.begin_turns();
        self.queue.begin_together();
        let control = self.control;
        let header = control.header();
        // Stored before `shared` is read.
        header.submitter.store(control.member + 1, Ordering::Relaxed);
        fences::order_mark();
        if header.shared.load(Ordering::Relaxed) == 0 && self.accepts_runs() {
            let mut run = self.begin_run(to_submit, self.memory.view.load_mapped(word::SQ_TAIL));
            self.complete_run(&mut run);
            if run.left != 0 || run.accepted == Some(Accepted::Last) {
                return self.submit_rest(to_submit, Some(run));
            }
            // No chain is open and nothing drains: a run takes no such SQE.
            self.tally.flush();
            let _ = self.memory.view.store(word::SQ_HEAD, run.head); // the memory is mapped: `accepts_runs` checked it
            header.submitter.store(0, Ordering::Release); // partner: the Acquire load in `Control::begin_sharing`
            self.end_together();
            return Ok(run.submitted);
        }
        self.submit_rest(to_submit, None)
    }

    /// True if the next SQEs may be taken as a run, each answered by its call. Requests then need no individual checks,
    /// one more request has memory, and the engine maps ring memory.
    #[inline]
    fn accepts_runs(&self) -> bool {
        self.is_ordinary() && self.has_room_for_one() && self.memory.view.goes_by_tail()
    }

    /// True if the SQE at this position has an opcode for which a call may be made at once.
    #[inline]
    fn may_be_run(&self, position: u32) -> bool {
        let opcode = self.memory.view.sqe_at(position).map_or(u8::MAX, |sqe| sqe.opcode());
        definition(opcode).is_some_and(|(_, row)| !matches!(row.at_once, AtOnce::Nothing))
    }

    /// Makes the run of a submission that has taken no SQE yet.
    #[inline]
    fn begin_run(&self, to_submit: u32, tail: u32) -> Run {
        let head = self.control.header().sq_head.load(Ordering::Relaxed);
        let available = tail.wrapping_sub(head).min(self.memory.view.layout().sq_entries);
        Run { head, submitted: 0, left: to_submit.min(available), accepted: None }
    }

    /// Consumes the SQEs that a run left.
    #[inline(never)] // otherwise each run would pay for its registers
    fn submit_rest(&mut self, to_submit: u32, run: Option<Run>) -> Result<u32, Errno> {
        let control = self.control;
        let header = control.header();
        // A process that joins during a run waits until `submitter` is 0.
        let rewinds = self.memory.view.layout().rewinds;
        let submitted = if run.is_some() || rewinds || header.shared.load(Ordering::Relaxed) == 0 {
            self.submit_alone(to_submit, run)
        } else {
            header.submitter.store(0, Ordering::Relaxed);
            self.submit_among_others(to_submit)
        };
        header.submitter.store(0, Ordering::Release); // its partner is the same as in `submit`
        if self.calls.is_urgent() {
            return self.submit_after_calls(to_submit, submitted);
        }
        self.end_together();
        submitted
    }

    /// Makes the calls for which a submission has stopped, and continues the submission.
    #[cold]
    fn submit_after_calls(&mut self, to_submit: u32, mut submitted: Result<u32, Errno>) -> Result<u32, Errno> {
        // Limited to the SQ's size: with a nonsensical tail the SQ would never be empty.
        let to_submit = to_submit.min(self.memory.view.layout().sq_entries);
        while let Ok(count) = submitted {
            if !self.stops_for_calls() {
                break;
            }
            self.make_calls();
            if self.is_closed() || self.is_broken() {
                break;
            }
            // Other threads may have submitted during those calls, so this works like a submission among other
            // processes.
            submitted = self.submit_among_others(to_submit - count).map(|more| count + more).or(Ok(count));
        }
        self.end_together();
        submitted
    }

    /// Does what must follow every submission.
    #[inline(always)] // each submission
    fn end_submission(&mut self) {
        self.end_open_chain();
        if !mutated(Mutation::AnswersOutliveTheirSubmission) {
            self.poll_set.ahead.forget();
        }
        if !self.drain.is_idle() {
            self.release_submitted();
        }
        self.tally.flush();
    }

    /// Reserves the memory for one more request before its SQE is taken: see the head of `alloc.rs`. Without memory the
    /// SQE stays in the SQ, as in the kernel (`io_alloc_req` in io_uring/io_uring.c).
    #[inline]
    pub fn make_room(&mut self) -> Result<(), Errno> {
        point(Point::Room);
        if self.has_room_for_one() {
            return Ok(());
        }
        self.make_more_room()
    }

    #[inline]
    fn has_room_for_one(&self) -> bool {
        alloc::is_whole() & self.slab.has_room()
    }

    #[cold]
    fn make_more_room(&mut self) -> Result<(), Errno> {
        alloc::reserve()?;
        match self.slab.has_room() {
            true => Ok(()),
            false => self.grow(),
        }
    }

    /// Grows the slots, and with them every queue that holds each request at most once. Slots have room only if all
    /// these queues have.
    #[cold]
    fn grow(&mut self) -> Result<(), Errno> {
        let state = &mut **self;
        let size = state.slab.next_size();
        let Drain { queue, .. } = &mut state.drain;
        for queue in [queue, &mut state.device.staged] {
            queue.try_reserve(size.saturating_sub(queue.len())).map_err(alloc::refused)?;
        }
        state.queue.reserve(size).map_err(alloc::refused)?;
        state.slab.grow(size).map_err(alloc::refused)
    }

    /// Consumes SQEs on a ring to which no other process submits. `run`, if given, holds the SQEs still to consume.
    fn submit_alone(&mut self, to_submit: u32, run: Option<Run>) -> Result<u32, Errno> {
        let mut run = match run {
            Some(run) => run,
            None if self.memory.view.layout().rewinds => self.begin_again(to_submit),
            None => self.begin_run(to_submit, self.memory.view.load(word::SQ_TAIL)?),
        };
        let mut room = Ok(());
        loop {
            if run.left == 0 || (run.accepted.take() == Some(Accepted::Last) && self.stops_here()) {
                break;
            }
            room = self.make_room();
            if room.is_err() || !self.submit_next(&mut run)? {
                break;
            }
            let goes_on = run.left != 0 && run.accepted == Some(Accepted::More);
            if goes_on && self.accepts_runs() && self.may_be_run(run.head) {
                self.complete_run(&mut run);
            }
        }
        self.end_submission();
        match self.memory.view.layout().rewinds {
            false => self.memory.view.store(word::SQ_HEAD, run.head)?,
            true => self.control.header().sq_head.store(0, Ordering::Relaxed),
        }
        count_or_refusal(run.submitted, room)
    }

    /// Makes a run from the first entry on, independent of the tail.
    #[cold]
    fn begin_again(&self, to_submit: u32) -> Run {
        Run { head: 0, submitted: 0, left: to_submit.min(self.memory.view.layout().sq_entries), accepted: None }
    }

    /// Submits an SQE of 128 bytes.
    #[cold]
    fn submit_large(&mut self, run: &mut Run, index: u32, mut sqe: Sqe) {
        if self.has_second_half(&mut sqe, index, run.left) {
            run.head = run.head.wrapping_add(1);
            self.control.header().sq_head.store(run.head, Ordering::Relaxed);
            (run.submitted, run.left) = (run.submitted + 1, run.left - 1);
        }
        run.accepted = Some(self.accept_apart(&sqe));
    }

    /// True if the SQE at `index` also takes the next entry. Its opcode is one of SQEs of 128 bytes, or unknown. `left`
    /// more entries are to be submitted. An SQE without its second half gets an unknown opcode. Source: `io_init_req`
    /// in io_uring/io_uring.c.
    #[cold]
    fn has_second_half(&self, sqe: &mut Sqe, index: u32, left: u32) -> bool {
        let layout = self.memory.view.layout();
        let is_large = usize::from(sqe.opcode) < op::count();
        if is_large && layout.sqe_shift == LARGE_SHIFT {
            return false;
        }
        let is_whole = is_large && layout.mixed_sqes && left != 0 && index + 1 < layout.sq_entries;
        if !is_whole {
            sqe.opcode = u8::MAX;
        }
        is_whole
    }

    /// Submits the next SQE. False if the SQ array's entry names no SQE.
    #[inline(always)] // for the same reason as `accept`
    fn submit_next(&mut self, run: &mut Run) -> Result<bool, Errno> {
        let view = self.memory.view;
        point(Point::Intake);
        let position = run.head;
        run.head = position.wrapping_add(1);
        // Stored before the SQE is taken in. A signal handler that submits then continues after this SQE, and does not
        // repeat it.
        self.control.header().sq_head.store(run.head, Ordering::Relaxed);
        let index = view.sq_index(position)?;
        if index >= view.layout().sq_entries {
            let dropped = view.load(word::SQ_DROPPED)?;
            view.store(word::SQ_DROPPED, dropped.wrapping_add(1))?;
            return Ok(false);
        }
        // The copy is used in place, not moved out of its result: see `accept`.
        let copied = view.sqe(index);
        let sqe = copied.as_ref().map_err(|error| *error)?;
        if run.submitted == 0 && ends_others(sqe) {
            self.catch_up();
        }
        (run.submitted, run.left) = (run.submitted + 1, run.left - 1);
        if sqe.opcode >= FIRST_LARGE {
            self.submit_large(run, index, *sqe);
        } else {
            if sqe.opcode == Opcode::PollAdd as u8 && run.left + 1 >= ahead::LEAST {
                self.poll_ahead(position, run.left + 1);
            }
            run.accepted = Some(self.accept(sqe));
        }
        Ok(true)
    }

    /// Consumes SQEs like [`submit`](Self::submit), on a ring to which other processes may submit at the same time.
    #[cold]
    fn submit_among_others(&mut self, to_submit: u32) -> Result<u32, Errno> {
        let view = self.memory.view;
        let control = self.control;
        let mut submitted = 0;
        let mut refused = Ok(());
        while submitted < to_submit.min(view.layout().sq_entries) {
            point(Point::Intake);
            refused = self.make_room();
            if refused.is_err() {
                break;
            }
            let Some((index, mut sqe)) = self.get_sqe()? else { break };
            if index >= view.layout().sq_entries {
                let dropped = view.load(word::SQ_DROPPED)?;
                view.store(word::SQ_DROPPED, dropped.wrapping_add(1))?;
                break;
            }
            submitted += 1;
            if submitted == 1 && ends_others(&sqe) {
                self.catch_up();
            }
            let left = to_submit.min(view.layout().sq_entries) - submitted;
            if sqe.opcode >= FIRST_LARGE && self.has_second_half(&mut sqe, index, left) {
                match self.get_sqe()? {
                    Some(_) => submitted += 1,
                    None => sqe.opcode = u8::MAX,
                }
            }
            if self.accept_apart(&sqe) == Accepted::Last && self.stops_here() {
                break;
            }
        }
        self.end_submission();
        // The post lock is held, so that the word in ring memory never goes back.
        let post = control.lock_post();
        let stored = view.store(word::SQ_HEAD, control.header().sq_head.load(Ordering::Relaxed));
        drop(post);
        stored.and_then(|()| count_or_refusal(submitted, refused))
    }

    /// Gets the next SQE. It is read before the head passes it: after that the program may reuse it.
    pub(crate) fn get_sqe(&mut self) -> Result<Option<(u32, Sqe)>, Errno> {
        let view = self.memory.view;
        let control = self.control;
        let shared_head = &control.header().sq_head;
        loop {
            // Partner: the exchange below, in another process.
            let head = shared_head.load(Ordering::Acquire);
            // A tail lower than the head counts as a tail far ahead of it, as in the kernel.
            if view.load(word::SQ_TAIL)? == head {
                return Ok(None);
            }
            let index = view.sq_index(head)?;
            let sqe = match index < view.layout().sq_entries {
                true => view.sqe(index)?,
                false => Sqe::default(),
            };
            let next = head.wrapping_add(1);
            if shared_head.compare_exchange(head, next, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(Some((index, sqe)));
            }
        }
    }

    /// True if no further SQE may be taken after one that was refused or leads to a call.
    #[cold]
    fn stops_here(&self) -> bool {
        self.stops_for_calls() || !self.ring().has(IORING_SETUP_SUBMIT_ALL)
    }

    /// Takes one SQE in. Not inlined, unlike `accept` in the main loop.
    #[inline(never)]
    fn accept_apart(&mut self, sqe: &Sqe) -> Accepted {
        self.accept(sqe)
    }

    /// Takes one SQE in.
    #[inline(always)] // most SQEs are taken here
    fn accept(&mut self, sqe: &Sqe) -> Accepted {
        let on_its_way = Uncompleted::new(self.ring(), sqe.user_data, None);
        point(Point::Prep);
        let (opcode, row) = match self.check(sqe) {
            Ok(known) => known,
            Err(error) => return self.refuse(sqe, error, 0, on_its_way),
        };
        // The operation stays in this variable unless it becomes part of a request.
        let mut prepared = (row.prep)(opcode, sqe);
        let op = match &mut prepared {
            Ok(op) => op,
            Err(error) => {
                let error = *error;
                return self.refuse(sqe, error, refused_flags(opcode, sqe), on_its_way);
            }
        };
        let target = row.target(sqe);
        // A NOP concerns neither the ring nor a number, and no waiting request is served before it.
        if !matches!(op, Op::Nop(_)) {
            if let Err(error) = op.check_on(self) {
                return self.refuse(sqe, error, 0, on_its_way);
            }
            self.handle_earlier(op, &target);
            if self.screens {
                if let Err(error) = self.ask_filters(op, opcode, sqe) {
                    return self.refuse(sqe, error, op.cqe_flags(), on_its_way);
                }
                if self.chaos.is_some() {
                    // Each request gets a slot and a turn, so that chaos can hold it back.
                    self.accept_in_order(op, opcode, row, sqe, on_its_way);
                    return self.accepted();
                }
            }
        }
        let is_alone = match sqe.flags & NOT_ALONE {
            0 => true,
            IOSQE_ASYNC => self.ignores_async(op, &target),
            _ => false,
        };
        let alone = is_alone && self.chain.is_none() && self.drain.is_idle();
        if !alone || row.own_place || sqe.personality != 0 {
            self.accept_in_order(op, opcode, row, sqe, on_its_way);
            return self.accepted();
        }
        self.record(|it| it.submit_alone(sqe, &target));
        let verdict = match &mut *op {
            Op::Rw(rw) if rw.total() >= LARGE_BYTES && self.leaves_copy(rw, &target) => {
                Verdict::NeedsWorker(Punt::Parallel)
            }
            op => self.attempt_inline(op, &target),
        };
        self.conclude(op, opcode, row, sqe, verdict, on_its_way)
    }

    /// Takes SQEs for as long as a call answers each. If a call does not, continues that SQE's operation from the
    /// call's answer.
    #[inline(never)] // otherwise the loop has fewer registers
    fn complete_run(&mut self, run: &mut Run) {
        let ring = self.ring();
        let mut unfinished = None;
        while let Stop::Full = State::complete_run(self, ring, run, &mut unfinished) {
            self.flush();
        }
        if let Some(unfinished) = unfinished {
            run.accepted = Some(self.go_on_after(unfinished));
        }
    }

    /// Goes on with an SQE whose first call did not give the result. The SQE gets an operation, and a request unless it
    /// is done.
    #[cold]
    #[inline(never)]
    fn go_on_after(&mut self, unfinished: Unfinished) -> Accepted {
        let Unfinished { opcode, user_data, call, answer, on_its_way } = unfinished;
        let mut op = Op::default();
        let (verdict, flags) = if call.has_received_all(answer) {
            (Verdict::of(answer), flags_of_filled(call.fd)) // only the flags are missing
        } else {
            op = call.operation();
            (op.issue_after(self, answer, call.fd), 0)
        };
        if call.direction == Direction::Read {
            self.poll_set.record_first_read(call.fd, verdict == Verdict::WouldBlock(Direction::Read));
        }
        let Verdict::Done(res) = verdict else {
            let request = Request::new(op, opcode, 0, user_data, Target::Number(call.fd));
            let id = self.admit(request, on_its_way);
            self.follow(id, verdict);
            return self.accepted();
        };
        self.tally(opcode, res);
        self.post(Cqe { user_data, res, flags }, Poster::Task);
        on_its_way.completed();
        Accepted::More
    }

    /// Follows the verdict on a request without a slot. The request gets a slot unless it is done.
    #[inline]
    fn conclude(
        &mut self,
        op: &mut Op,
        opcode: Opcode,
        row: &Definition,
        sqe: &Sqe,
        verdict: Verdict,
        on_its_way: Uncompleted,
    ) -> Accepted {
        match verdict {
            Verdict::Done(result) => {
                self.post_result(opcode, sqe, result, on_its_way);
                Accepted::More
            }
            verdict => {
                let id = self.admit(take_request(op, opcode, row, sqe), on_its_way);
                self.follow(id, verdict);
                self.accepted()
            }
        }
    }

    /// Posts the result of a request that is done without a slot.
    #[inline(always)] // a call costs as much as this does
    fn post_result(&mut self, opcode: Opcode, sqe: &Sqe, result: i32, on_its_way: Uncompleted) {
        self.tally(opcode, result);
        if result < 0 || sqe.flags & IOSQE_CQE_SKIP_SUCCESS == 0 {
            self.record(|it| it.ends());
            let poster = if sqe.flags & IOSQE_ASYNC != 0 { Poster::Worker } else { Poster::Task };
            self.post(Cqe { user_data: sqe.user_data, res: result, flags: 0 }, poster);
        }
        on_its_way.completed();
    }

    fn accepted(&self) -> Accepted {
        if self.stops_for_calls() {
            Accepted::Last
        } else {
            Accepted::More
        }
    }

    /// Takes in a request that needs a slot first: because of links, draining, IOSQE_ASYNC, its opcode, a personality,
    /// or chaos.
    #[cold]
    fn accept_in_order(
        &mut self,
        op: &mut Op,
        opcode: Opcode,
        row: &Definition,
        sqe: &Sqe,
        on_its_way: Uncompleted,
    ) {
        self.record(|it| it.submit_req(sqe));
        if self.chaos.is_some() && !matches!(op, Op::Nop(_)) {
            self.disturb(op, opcode, sqe, &row.target(sqe));
        }
        let mut request = take_request(op, opcode, row, sqe);
        request.number = self.chaos.as_ref().map_or(0, |chaos| chaos.sqes);
        if sqe.personality != 0 && request.op.identity(opcode) != Identity::Never {
            // `check` has made sure that the personality exists.
            request.hold = self.personalities.find(sqe.personality).ok().map(Claim::another);
        }
        if sqe.flags & NOT_ALONE == 0 && self.chain.is_none() && self.drain.is_idle() {
            let id = self.admit(request, on_its_way);
            self.start(id);
        } else {
            self.queue_in_order(request, on_its_way);
        }
    }

    /// Makes the checks of `io_init_req` in io_uring/io_uring.c.
    #[inline]
    fn check(&mut self, sqe: &Sqe) -> Result<(Opcode, &'static Definition), Errno> {
        let (opcode, row) = definition(sqe.opcode).ok_or(Errno::INVAL)?;
        if sqe.flags & !KNOWN_FLAGS != 0 {
            return Err(Errno::INVAL);
        }
        if sqe.flags & (IOSQE_BUFFER_SELECT | IOSQE_CQE_SKIP_SUCCESS | IOSQE_IO_DRAIN) != 0 {
            if sqe.flags & IOSQE_BUFFER_SELECT != 0 && !row.selects {
                return Err(Errno::OPNOTSUPP);
            }
            self.drain.check(sqe.flags)?;
            if sqe.flags & IOSQE_IO_DRAIN != 0 {
                self.begin_drain();
            }
        }
        if self.restrictions.is_some() | self.iopoll.is_some() | !self.drain.is_idle() {
            let in_chain = self.chain.is_some();
            self.drain.begin_queued(in_chain);
            if self.iopoll.is_some() && !row.iopoll {
                return Err(Errno::INVAL);
            }
            if let Some(restrictions) = &self.restrictions {
                restrictions.check_sqe(opcode, sqe.flags)?;
                if matches!(opcode, Opcode::Nop | Opcode::Nop128) {
                    self.ask_about_nop(opcode, row, sqe)?;
                }
            }
        }
        if (sqe.ioprio != 0 && !row.ioprio) || sqe.personality != 0 {
            if sqe.ioprio != 0 && !row.ioprio {
                return Err(Errno::INVAL);
            }
            self.personalities.find(sqe.personality)?;
        }
        Ok((opcode, row))
    }

    /// Posts the error of an SQE that was refused. In a chain the SQE breaks the chain instead. `cqe_flags` are those
    /// of [`Op::cqe_flags`].
    #[cold]
    fn refuse(&mut self, sqe: &Sqe, error: Errno, cqe_flags: u32, on_its_way: Uncompleted) -> Accepted {
        let result = -error.raw_os_error();
        self.record(|it| it.req_failed(sqe, result));
        let known = Opcode::from_u8(sqe.opcode);
        if self.chain.is_some() || sqe.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0 {
            // The counters have no row for an unknown opcode.
            let opcode = known.unwrap_or(Opcode::Nop);
            let op = if cqe_flags & IORING_CQE_F_NOTIF == 0 { Op::default() } else { refused_send(sqe) };
            let mut request = Request::new(op, opcode, sqe.flags, sqe.user_data, Target::None);
            request.failed = Some(result);
            request.cqe_flags = cqe_flags;
            let accepted = if request.links() { Accepted::More } else { Accepted::Last };
            self.queue_in_order(request, on_its_way);
            return accepted;
        }
        match known {
            Some(opcode) => stats::completed(opcode, Path::Inline, result),
            None => stats::failed(),
        }
        self.drain.pass_by();
        self.post(
            Cqe { user_data: sqe.user_data, res: result, flags: cqe_flags & IORING_CQE_F_MORE },
            Poster::Task,
        );
        if cqe_flags & IORING_CQE_F_NOTIF != 0 {
            self.post_notification(if sqe.addr3 == 0 { sqe.user_data } else { sqe.addr3 }, cqe_flags);
        }
        on_its_way.completed();
        Accepted::Last
    }
}

impl State {
    /// Counts a completion in the submitting call. The completions of consecutive SQEs with one opcode reach the shared
    /// counters together.
    #[inline]
    fn tally(&mut self, opcode: Opcode, result: i32) {
        if opcode != self.tally.opcode || result < 0 {
            self.tally.flush();
            self.tally.opcode = opcode;
        }
        if result < 0 {
            stats::completed(opcode, Path::Inline, result);
        } else {
            self.tally.count += 1;
        }
    }
}

/// The outcome of an SQE.
#[derive(PartialEq, Eq)]
enum Accepted {
    /// The SQE was answered, or became a request.
    More,
    /// The SQE was refused (its CQE says why, and the kernel stops consuming there), or leads to a call that comes
    /// before the next SQE.
    Last,
}

/// True if the request may end other requests.
#[inline]
fn ends_others(sqe: &Sqe) -> bool {
    definition(sqe.opcode).is_some_and(|(_, row)| row.ends_others)
}

/// Returns the number of SQEs taken in. Fails with EAGAIN if there was no memory for the first: `io_submit_sqes` in
/// io_uring/io_uring.c.
fn count_or_refusal(submitted: u32, refused: Result<(), Errno>) -> Result<u32, Errno> {
    match refused {
        Err(_) if submitted == 0 => Err(Errno::AGAIN),
        _ => Ok(submitted),
    }
}

/// Makes the request of an SQE. Takes the operation out of `op`, where it leaves the default.
fn take_request(op: &mut Op, opcode: Opcode, row: &Definition, sqe: &Sqe) -> Request {
    let op = core::mem::take(op);
    Request::new(op, opcode, sqe.flags, sqe.user_data, row.target(sqe))
}

impl Definition {
    /// The file that the SQE's `fd` names.
    #[inline]
    fn target(&self, sqe: &Sqe) -> Target {
        match self.file {
            FileUse::None => Target::None,
            FileUse::File if sqe.flags & IOSQE_FIXED_FILE != 0 => Target::Index(sqe.fd as u32),
            FileUse::File => Target::Number(sqe.fd),
        }
    }
}
