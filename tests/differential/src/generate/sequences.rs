//! Steps that belong together, for situations that single random requests seldom reach.

use super::files::opcode_of;
use super::rings::NEVER;
use super::Generator;
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

/// More buffers than a group ever has.
const ALL_BUFFERS: i32 = 100;

impl Generator {
    /// Adds one such sequence.
    pub(super) fn sequence(&mut self, steps: &mut Vec<Step>) {
        match self.below(5) {
            0 | 1 => self.cancel_several(steps),
            2 | 3 => self.run_out_of_buffers(steps),
            _ => self.end_timer(steps),
        }
    }

    /// A timer that would run long, and one call that ends it.
    fn end_timer(&mut self, steps: &mut Vec<Step>) {
        self.begin_batch();
        let timeout = Request {
            addr: Value::Time(NEVER, 0),
            len: 1,
            op_flags: self.choose(&[0, IORING_TIMEOUT_ETIME_SUCCESS, IORING_TIMEOUT_BOOTTIME]),
            ..Request::new(Opcode::Timeout)
        };
        let timeout = self.numbered(timeout);
        let mut remove = Request { addr: Value::Plain(timeout.user_data), ..Request::new(Opcode::TimeoutRemove) };
        if self.chance(1, 2) {
            (remove.op_flags, remove.off) = (IORING_TIMEOUT_UPDATE, Value::Time(0, 1_000_000));
        }
        steps.push(Step::Submit(vec![timeout]));
        steps.push(Step::Submit(vec![self.numbered(remove)]));
    }

    /// Several requests wait, and one cancel ends them all.
    fn cancel_several(&mut self, steps: &mut Vec<Step>) {
        self.begin_batch();
        let candidates = [
            End::PipeRead(0),
            End::PipeRead(2),
            End::Stream(0, 0),
            End::Stream(1, 1),
            End::Tcp(0, 1),
            End::Eventfd(0),
        ];
        let mut ends: Vec<End> = candidates
            .into_iter()
            .filter(|end| self.model.readable(*end) == 0 && !self.model.waits_at(*end))
            .collect();
        self.random.shuffle(&mut ends);
        let Some(&first) = ends.first() else { return };
        let kind = self.below(3);
        let count = 2 + self.random.usize(0..3);
        // A cancel by descriptor has several on one descriptor, any other one on each of several.
        let chosen: Vec<End> = if kind == 0 { vec![first; count] } else { ends.into_iter().take(count).collect() };
        let mut batch = Vec::new();
        for end in chosen {
            let reads = kind == 2 && !matches!(end, End::Eventfd(_)) && self.chance(1, 2);
            let mut request = if reads {
                Request { addr: Value::Sink(64), len: 64, ..Request::new(Opcode::Read) }
            } else {
                Request { op_flags: libc::POLLIN as u32, ..Request::new(Opcode::PollAdd) }
            };
            request.fd = Target::Of(end);
            let request = self.numbered(request);
            self.model.wait(request.user_data, request.opcode, Some(end));
            batch.push(request);
        }
        steps.push(Step::Submit(batch));
        let mut cancel = self.numbered(Request::new(Opcode::AsyncCancel));
        cancel.op_flags = IORING_ASYNC_CANCEL_ALL;
        match kind {
            0 => {
                cancel.op_flags |= IORING_ASYNC_CANCEL_FD;
                cancel.fd = Target::Of(first);
                self.model.ended(|waiting| waiting.end == Some(first));
            }
            1 => {
                cancel.op_flags |= IORING_ASYNC_CANCEL_OP;
                cancel.len = u32::from(opcode_of(Opcode::PollAdd));
                self.model.ended(|waiting| waiting.opcode == opcode_of(Opcode::PollAdd));
            }
            _ => {
                cancel.op_flags |= IORING_ASYNC_CANCEL_ANY;
                self.model.ended(|_| true);
            }
        }
        steps.push(Step::Submit(vec![cancel]));
    }

    /// A chain of reads uses up a group's buffers, none is put back, and then the group's status is read.
    fn run_out_of_buffers(&mut self, steps: &mut Vec<Step>) {
        self.begin_batch();
        let (end, writer) = self.choose(&[
            (End::PipeRead(0), End::PipeWrite(0)),
            (End::PipeRead(2), End::PipeWrite(2)),
            (End::Stream(1, 1), End::Stream(1, 0)),
        ]);
        let group = self.choose(&[RING_GROUP, LIST_GROUP, LIST_GROUP]);
        let held = group == RING_GROUP && self.model.group_is_held();
        if held || self.model.waits_at(end) {
            return;
        }
        let count = 2 + self.below(3);
        if group == LIST_GROUP {
            let provide = Request {
                fd: Target::Number(count as i32),
                buf_index: LIST_GROUP,
                addr: Value::Buffers(count, GROUP_BYTES),
                len: GROUP_BYTES,
                off: Value::Plain(u64::from(self.below(50))),
                ..Request::new(Opcode::ProvideBuffers)
            };
            steps.push(Step::Submit(vec![self.numbered(provide)]));
        }
        let bytes = count * GROUP_BYTES + self.below(100);
        steps.push(Step::Act(Action::Write(writer, bytes)));
        let mut chain = Vec::new();
        for at in 0..=count {
            let mut read = Request {
                fd: Target::Of(end),
                flags: IOSQE_BUFFER_SELECT | if at < count { IOSQE_IO_HARDLINK } else { 0 },
                len: self.choose(&[0, GROUP_BYTES, GROUP_BYTES / 2]),
                buf_index: group,
                ..Request::new(Opcode::Read)
            };
            if self.chance(1, 6) {
                read.flags |= IOSQE_ASYNC;
            }
            chain.push(self.numbered(read));
        }
        steps.push(Step::Submit(chain));
        self.model.wrote(writer, bytes);
        self.model.read(end, bytes);
        if group == RING_GROUP {
            self.model.buffers[0] -= i64::from(count) + 1;
            steps.push(Step::Register(Registration::GroupStatus(RING_GROUP)));
        } else {
            self.model.buffers[1] = 0;
            let remove = Request {
                fd: Target::Number(ALL_BUFFERS),
                buf_index: LIST_GROUP,
                ..Request::new(Opcode::RemoveBuffers)
            };
            steps.push(Step::Submit(vec![self.numbered(remove)]));
        }
    }
}
