//! Sockets, and epoll.

use super::files::opcode_of;
use super::model::Claim;
use super::Generator;
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

impl Generator {
    /// Drafts a request on sockets.
    pub(super) fn draft_network(&mut self, opcode: Opcode) -> Option<Request> {
        use Opcode as O;
        match opcode {
            O::Send | O::Sendmsg => self.send(opcode),
            O::Recv | O::Recvmsg => self.receive(opcode),
            O::Accept => self.accept(),
            O::Connect | O::Bind | O::Listen => self.unconnected(opcode),
            O::Shutdown => self.shutdown(),
            O::Socket => {
                let mut request = Request {
                    fd: Target::Number(self.choose(&[libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, 999])),
                    off: Value::Plain(self.choose(&[libc::SOCK_STREAM, libc::SOCK_DGRAM]) as u64),
                    ..Request::new(opcode)
                };
                self.place_descriptor(&mut request)?;
                Some(request)
            }
            O::EpollCtl => self.epoll_control(),
            _ => self.epoll_wait(),
        }
    }

    /// Returns POLL_FIRST now and then. A request with it that follows a punted request would fail on the kernel with
    /// EAGAIN, because a worker does not poll.
    fn poll_first(&mut self) -> u16 {
        if self.first_of_chain && !self.drains && self.chance(1, 4) {
            return IORING_RECVSEND_POLL_FIRST as u16;
        }
        0
    }

    fn send(&mut self, opcode: Opcode) -> Option<Request> {
        let end = self.choose(&[
            End::Stream(0, 1),
            End::Stream(1, 0),
            End::Stream(0, 0),
            End::Datagram(0, 0),
            End::Datagram(0, 1),
            End::Tcp(0, 0),
            End::Tcp(0, 1),
        ]);
        if !self.claim_end(end) {
            return None;
        }
        let bytes = 1 + self.below(600);
        let counted = if matches!(end, End::Datagram(..)) { 1 } else { bytes };
        if self.model.room(end) < counted {
            return None;
        }
        let mut request = Request {
            fd: Target::Of(end),
            op_flags: self.choose(&[0, 0, libc::MSG_DONTWAIT, libc::MSG_NOSIGNAL, libc::MSG_WAITALL]) as u32,
            ioprio: self.poll_first(),
            ..Request::new(opcode)
        };
        (request.addr, request.len) = match opcode {
            Opcode::Sendmsg => (Value::Message(vec![bytes / 2, bytes - bytes / 2]), 1),
            _ => (Value::Source(bytes), bytes),
        };
        self.model.wrote(end, counted);
        Some(request)
    }

    fn receive(&mut self, opcode: Opcode) -> Option<Request> {
        let end = self.choose(&[
            End::Stream(0, 0),
            End::Stream(1, 1),
            End::Stream(0, 1),
            End::Datagram(0, 0),
            End::Datagram(0, 1),
            End::Tcp(0, 0),
            End::Tcp(0, 1),
        ]);
        if !self.claim_end(end) {
            return None;
        }
        let bytes = 1 + self.below(800);
        let mut request = Request { fd: Target::Of(end), ..Request::new(opcode) };
        let free = !self.model.waits_at(end) && !self.model.group_is_held();
        if self.chance(1, 8) && free && self.claim(Claim::Group(RING_GROUP)) {
            self.model.group_users.push(self.next_id);
            request.flags |= IOSQE_BUFFER_SELECT;
            request.ioprio = IORING_RECV_MULTISHOT as u16;
            request.buf_index = RING_GROUP;
            if opcode == Opcode::Recvmsg {
                (request.addr, request.len) = (Value::Receive(vec![0], 0), 1);
            }
            self.model.buffers[0] -= 1 + self.model.readable(end) / i64::from(GROUP_BYTES);
            self.model.read(end, 1 << 20);
            self.model.wait(self.next_id, opcode_of(opcode), Some(end));
            return Some(request);
        }
        request.op_flags = self.choose(&[0, 0, 0, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_TRUNC]) as u32;
        request.ioprio = self.poll_first();
        let chooses = self.chance(1, 4) && self.choose_buffer(&mut request);
        (request.addr, request.len) = match opcode {
            Opcode::Recvmsg if chooses => (Value::Receive(vec![GROUP_BYTES], 0), 1),
            Opcode::Recvmsg => (Value::Receive(vec![bytes / 2, bytes - bytes / 2], self.choose(&[0, 64])), 1),
            _ if chooses => (Value::Plain(0), self.choose(&[0, 20, GROUP_BYTES])),
            _ => (Value::Sink(bytes), bytes),
        };
        if request.op_flags & libc::MSG_PEEK as u32 != 0 {
            return (self.model.readable(end) > 0).then_some(request);
        }
        if request.op_flags & libc::MSG_WAITALL as u32 != 0 && self.model.readable(end) < i64::from(bytes) {
            return None;
        }
        self.record_read(end, opcode, bytes)?;
        Some(request)
    }

    fn accept(&mut self) -> Option<Request> {
        if !self.claim_end(End::Listener) {
            return None;
        }
        let mut request = Request { fd: Target::Of(End::Listener), ..Request::new(Opcode::Accept) };
        if self.chance(1, 8) && !self.model.waits_at(End::Listener) {
            if !self.claim(Claim::Numbers) {
                return None;
            }
            request.ioprio = IORING_ACCEPT_MULTISHOT as u16;
            while self.model.accepted() {}
            self.model.wait(self.next_id, opcode_of(Opcode::Accept), Some(End::Listener));
            return Some(request);
        }
        if self.chance(1, 2) {
            (request.addr, request.off) = (Value::AddressSink, Value::AddressLength);
        }
        request.op_flags = self.choose(&[0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK]) as u32;
        if self.model.connections() == 0 {
            if !self.chance(1, 5) {
                return None;
            }
            self.model.wait(self.next_id, opcode_of(Opcode::Accept), Some(End::Listener));
        }
        self.model.accepted();
        self.place_descriptor(&mut request)?;
        Some(request)
    }

    fn unconnected(&mut self, opcode: Opcode) -> Option<Request> {
        let index = self.random.u8(0..4);
        let state = self.model.sockets[usize::from(index)];
        let end = End::Unconnected(index);
        if !self.claim_end(end) {
            return None;
        }
        let mut request = Request { fd: Target::Of(end), ..Request::new(opcode) };
        let length = size_of::<libc::sockaddr_in>() as u64;
        match opcode {
            Opcode::Bind if state == 0 || self.chance(1, 6) => {
                (request.addr, request.off) = (Value::AnyAddress, Value::Plain(length));
                self.model.sockets[usize::from(index)] = 1;
            }
            Opcode::Listen if state == 1 || self.chance(1, 6) => {
                request.len = 4;
                self.model.sockets[usize::from(index)] = 2;
            }
            Opcode::Connect if state == 0 || self.chance(1, 6) => {
                // An ACCEPT that waits then makes a descriptor.
                if !self.claim_end(End::Listener) || !self.claim(Claim::Numbers) {
                    return None;
                }
                (request.addr, request.off) = (Value::ListenerAddress, Value::Plain(length));
                self.model.sockets[usize::from(index)] = 2;
                self.model.connected();
            }
            _ => return None,
        }
        Some(request)
    }

    fn shutdown(&mut self) -> Option<Request> {
        let end =
            self.choose(&[End::Stream(0, 1), End::Stream(1, 0), End::Tcp(0, 0), End::Tcp(0, 1), End::Listener]);
        if !self.claim_end(end) || self.model.waits_at(end) {
            return None;
        }
        if !self.model.open_for_writing(end) && self.chance(3, 4) {
            return None;
        }
        if end == End::Listener {
            // It resets its connections. The result of a poll on it then depends on timing.
            let all = (0..4).all(|index| self.claim_end(End::Unconnected(index)));
            if !all || self.model.polled_listener {
                return None;
            }
        }
        self.model.shut.insert(end);
        Some(Request { fd: Target::Of(end), len: self.below(3), ..Request::new(Opcode::Shutdown) })
    }

    fn epoll_control(&mut self) -> Option<Request> {
        let end =
            self.choose(&[End::PipeRead(0), End::PipeWrite(1), End::Stream(0, 0), End::Eventfd(0), End::Tcp(0, 1)]);
        if !self.claim_end(End::Epoll) || !self.claim_end(end) {
            return None;
        }
        let known = self.model.watched.contains(&end);
        let operation = if self.chance(1, 8) {
            self.choose(&[libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL, 9])
        } else if known {
            self.choose(&[libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL])
        } else {
            libc::EPOLL_CTL_ADD
        };
        match operation {
            libc::EPOLL_CTL_ADD => drop(self.model.watched.insert(end)),
            libc::EPOLL_CTL_DEL => drop(self.model.watched.remove(&end)),
            _ => {}
        }
        Some(Request {
            fd: Target::Of(End::Epoll),
            off_of: Some(end),
            addr: Value::Event(self.choose(&[1, 4, 5]), self.next_id),
            len: operation as u32,
            ..Request::new(Opcode::EpollCtl)
        })
    }

    fn epoll_wait(&mut self) -> Option<Request> {
        if !self.claim_end(End::Epoll) || self.model.watched.is_empty() {
            return None;
        }
        let watched: Vec<End> = self.model.watched.iter().copied().collect();
        for end in watched {
            if !self.claim_end(end) {
                return None;
            }
        }
        // After a punted request it fails with EAGAIN on the kernel if nothing is ready.
        if !self.first_of_chain {
            return None;
        }
        let count = 1 + self.below(4);
        Some(Request {
            fd: Target::Of(End::Epoll),
            addr: Value::Events(count),
            len: count,
            ..Request::new(Opcode::EpollWait)
        })
    }
}
