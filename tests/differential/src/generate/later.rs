//! Opcodes that were added later: zero-copy sends, futexes, children, commands of sockets. Only every fourth seed
//! uses them, so that the programs of the other seeds stay the same.

use super::model::Claim;
use super::Generator;
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

/// The opcodes that only programs of some seeds use.
pub const USED_LATER: &[Opcode] = &[
    Opcode::SendZc,
    Opcode::SendmsgZc,
    Opcode::FutexWait,
    Opcode::FutexWake,
    Opcode::FutexWaitv,
    Opcode::Waitid,
    Opcode::UringCmd,
];

/// Opcodes whose conditions seldom hold, and which are tried more often beside those.
const SELDOM: &[Opcode] = &[
    Opcode::PollRemove,
    Opcode::TimeoutRemove,
    Opcode::Setxattr,
    Opcode::Fgetxattr,
    Opcode::Getxattr,
    Opcode::Getxattr,
];

/// True if the program of `seed` uses [`USED_LATER`].
pub fn uses_later(seed: u64) -> bool {
    seed % 4 == 3
}

/// True if the program of `seed` sends with zero copy. It then has no drains. The notification of a zero-copy send
/// counts as a request. If such a send follows a drain, the kernel issues no request any more.
pub fn sends_zero_copy(seed: u64) -> bool {
    seed % 8 == 3
}

/// `FUTEX2_SIZE_U32` and `FUTEX2_PRIVATE` of linux/futex.h.
const U32: u32 = 2;
const PRIVATE: u32 = 128;
const ANY_BITS: u64 = 0xffff_ffff;

/// `FUTEX2_*` flags of a word: the last one is shared.
pub fn flags_of_word(word: u8) -> u32 {
    if word + 1 == WORDS {
        U32
    } else {
        U32 | PRIVATE
    }
}

impl Generator {
    /// Chooses an opcode to try next.
    pub(super) fn later_opcode(&mut self) -> Option<Opcode> {
        if !self.later {
            return self.chance(1, 24).then(|| self.choose(SELDOM));
        }
        match self.below(8) {
            0..=2 => {
                let opcode = self.choose(USED_LATER);
                let zero_copy = matches!(opcode, Opcode::SendZc | Opcode::SendmsgZc);
                (!zero_copy || self.zero_copy).then_some(opcode)
            }
            3 => Some(self.choose(SELDOM)),
            _ => None,
        }
    }

    /// A request of one of [`USED_LATER`].
    pub(super) fn draft_later(&mut self, opcode: Opcode) -> Option<Request> {
        match opcode {
            Opcode::SendZc | Opcode::SendmsgZc => self.send_zero_copy(opcode),
            Opcode::FutexWait => self.futex_wait(),
            Opcode::FutexWake => self.futex_wake(),
            Opcode::FutexWaitv => self.futex_wait_for_several(),
            Opcode::Waitid => self.waitid(),
            _ => self.socket_command(),
        }
    }

    fn send_zero_copy(&mut self, opcode: Opcode) -> Option<Request> {
        // A Unix socket refuses it.
        let end = self.choose(&[End::Tcp(0, 0), End::Tcp(0, 1), End::Tcp(0, 0), End::Tcp(0, 1), End::Stream(1, 0)]);
        let bytes = 2 + self.below(600);
        if !self.claim_end(end) || self.model.room(end) < bytes {
            return None;
        }
        let mut request = Request {
            fd: Target::Of(end),
            op_flags: self.choose(&[0, libc::MSG_DONTWAIT, libc::MSG_WAITALL]) as u32,
            ioprio: self.choose(&[0, IORING_SEND_ZC_REPORT_USAGE as u16]),
            ..Request::new(opcode)
        };
        let buffer = self.random.u16(0..BUFFERS);
        (request.addr, request.len) = match opcode {
            Opcode::SendmsgZc => (Value::Message(vec![bytes / 2, bytes - bytes / 2]), 1),
            _ if self.chance(1, 3) && self.claim(Claim::Buffer(buffer)) => {
                request.ioprio |= IORING_RECVSEND_FIXED_BUF as u16;
                request.buf_index = buffer;
                (Value::Registered(buffer, self.below(BUFFER_BYTES / 2)), bytes)
            }
            _ => (Value::Source(bytes), bytes),
        };
        if matches!(end, End::Tcp(..)) {
            self.model.wrote(end, bytes);
        }
        Some(request)
    }

    fn word(&mut self) -> Option<u8> {
        let word = self.random.u8(0..WORDS);
        self.claim_end(End::Word(word)).then_some(word)
    }

    fn futex(&mut self, opcode: Opcode, word: u8, value: u64) -> Request {
        Request {
            fd: Target::Number(flags_of_word(word) as i32),
            addr: Value::Word(word),
            off: Value::Plain(value),
            addr3: Value::Plain(ANY_BITS),
            ..Request::new(opcode)
        }
    }

    fn futex_wait(&mut self) -> Option<Request> {
        let word = self.word()?;
        // Words hold zero: this is EAGAIN.
        if self.chance(1, 6) {
            return Some(self.futex(Opcode::FutexWait, word, 1));
        }
        self.model.wait(self.next_id, Opcode::FutexWait as u8, Some(End::Word(word)));
        Some(self.futex(Opcode::FutexWait, word, 0))
    }

    fn futex_wake(&mut self) -> Option<Request> {
        let waiting = self.model.waiting_ends();
        let words: Vec<End> = waiting.into_iter().filter(|end| matches!(end, End::Word(_))).collect();
        let word = if words.is_empty() {
            self.word()?
        } else {
            match self.choose(&words) {
                End::Word(word) if self.claim_end(End::Word(word)) => word,
                _ => return None,
            }
        };
        // Only one of several words may wake their waiter: otherwise it is open which one the result names
        // (docs/limits.md). The model may miss a waiter, since a mutated request does not wake it.
        (0..WORDS).for_each(|word| self.model.exclude(Claim::of(End::Word(word))));
        let count = 1 + self.below(2);
        self.model.woken(word, count);
        Some(self.futex(Opcode::FutexWake, word, count.into()))
    }

    fn futex_wait_for_several(&mut self) -> Option<Request> {
        let first = self.random.u8(0..WORDS);
        let count = 1 + self.random.u8(0..WORDS - 1);
        let words: Vec<u8> = (0..count).map(|at| (first + at) % WORDS).collect();
        if !words.iter().all(|word| self.claim_end(End::Word(*word))) {
            return None;
        }
        for word in &words {
            self.model.wait(self.next_id, Opcode::FutexWaitv as u8, Some(End::Word(*word)));
        }
        Some(Request {
            fd: Target::Number(0),
            addr: Value::Words(words),
            len: count.into(),
            ..Request::new(Opcode::FutexWaitv)
        })
    }

    fn waitid(&mut self) -> Option<Request> {
        let index = self.random.u8(0..CHILDREN);
        let end = End::Child(index);
        if !self.claim_end(end) || self.model.waits_at(end) {
            return None;
        }
        let options = self.choose(&[0, 0, libc::WNOWAIT, libc::WNOHANG]);
        let state = self.model.children[usize::from(index)];
        match state {
            ChildState::Runs if options != libc::WNOHANG => {
                self.model.wait(self.next_id, Opcode::Waitid as u8, Some(end));
            }
            ChildState::Exited if options != libc::WNOWAIT => {
                self.model.children[usize::from(index)] = ChildState::Gone;
            }
            ChildState::Gone if !self.chance(1, 8) => return None,
            _ => {}
        }
        Some(Request {
            fd: Target::Of(end),
            len: libc::P_PID,
            off: Value::ChildInfo,
            file_index: (libc::WEXITED | options) as u32,
            ..Request::new(Opcode::Waitid)
        })
    }

    fn socket_command(&mut self) -> Option<Request> {
        let end = self.choose(&[End::Tcp(0, 0), End::Tcp(0, 1), End::Tcp(0, 1), End::Stream(0, 0), End::File(0)]);
        if !self.claim_end(end) {
            return None;
        }
        // Not SIOCOUTQ: the time of an acknowledgement is not deterministic.
        let command = self.choose(&[
            SOCKET_URING_OP_SIOCINQ,
            SOCKET_URING_OP_GETSOCKOPT,
            SOCKET_URING_OP_SETSOCKOPT,
            SOCKET_URING_OP_GETSOCKOPT,
            77,
        ]);
        let mut request =
            Request { fd: Target::Of(end), off: Value::Plain(command.into()), ..Request::new(Opcode::UringCmd) };
        let settable = [libc::SO_KEEPALIVE, libc::SO_REUSEADDR, libc::SO_PRIORITY];
        let readable = [libc::SO_TYPE, libc::SO_DOMAIN, libc::SO_KEEPALIVE, libc::SO_PRIORITY, 9999];
        let name = match command {
            SOCKET_URING_OP_GETSOCKOPT => {
                request.addr3 = Value::Sink(4);
                self.choose(&readable)
            }
            SOCKET_URING_OP_SETSOCKOPT => {
                request.addr3 = Value::Number(u64::from(self.below(4)));
                self.choose(&settable)
            }
            _ => return Some(request),
        };
        // `level` and `optname` are where others have `addr`, `optlen` is where they have `file_index`.
        request.addr = Value::Plain(libc::SOL_SOCKET as u64 | (name as u64) << 32);
        request.file_index = self.choose(&[4, 4, 4, 2]);
        Some(request)
    }

    /// Returns the action that ends a wait for a word or for a child.
    pub(super) fn later_action(&mut self, end: End) -> Option<Action> {
        match end {
            End::Word(word) => {
                self.model.woken(word, 1);
                Some(Action::Wake(word))
            }
            End::Child(index) => {
                self.model.exited(index);
                Some(Action::Exit(index))
            }
            _ => None,
        }
    }
}
