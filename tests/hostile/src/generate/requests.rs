//! Submissions.

use super::{place, Generator, DATA_WORD};
use crate::arena::{self, Area};
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

impl Generator {
    /// Makes a few requests, and the enter that submits them.
    pub fn submission(&mut self) -> Step {
        let slot = self.slot();
        let count = self.choose(&[1, 1, 2, 3, 4, 8]);
        let requests: Vec<Request> = (0..count).map(|_| self.request()).collect();
        let mut enter = self.enter();
        if self.chance(9, 10) {
            enter.ring = Fd::Ring(slot);
            enter.to_submit = requests.len() as u32;
        }
        Step::Submit { slot, requests, enter }
    }

    fn blank(&mut self, opcode: Opcode) -> Request {
        let user_data = self.next_id;
        self.next_id += 1;
        Request {
            opcode: opcode as u8,
            flags: 0,
            ioprio: 0,
            fd: self.fd(),
            off: Word::Plain(0),
            addr: Word::Plain(0),
            len: 0,
            op_flags: 0,
            user_data,
            buf_index: 0,
            personality: 0,
            file_index: Fd::Number(0),
            addr3: Word::Plain(0),
            pad2: 0,
        }
    }

    fn request(&mut self) -> Request {
        let opcode = Opcode::ALL[self.below(Opcode::COUNT as u32) as usize];
        let opcode =
            if self.chance(1, 4) { self.choose(&[Opcode::Read, Opcode::Recv, Opcode::Write]) } else { opcode };
        let mut request = self.blank(opcode);
        self.fill(opcode, &mut request);
        let flags = [
            IOSQE_IO_LINK,
            IOSQE_IO_HARDLINK,
            IOSQE_ASYNC,
            IOSQE_CQE_SKIP_SUCCESS,
            IOSQE_IO_DRAIN,
            IOSQE_FIXED_FILE,
            IOSQE_BUFFER_SELECT,
        ];
        for flag in flags {
            request.flags |= if self.chance(1, 9) { flag } else { 0 };
        }
        if request.flags & IOSQE_FIXED_FILE != 0 && self.chance(4, 5) {
            request.fd = Fd::Number(self.below(10) as i32);
        }
        if request.flags & IOSQE_BUFFER_SELECT != 0 {
            request.buf_index = self.below(5) as u16;
        }
        if self.chance(1, 8) && self.make_exact(&mut request) {
            return request;
        }
        if self.chance(1, 6) {
            self.spoil(&mut request);
        }
        keep_harmless(&mut request);
        request
    }

    /// Sets the fields that the operation reads.
    fn fill(&mut self, opcode: Opcode, request: &mut Request) {
        use Opcode as O;
        request.len = self.length();
        match opcode {
            O::Read | O::Write | O::ReadFixed | O::WriteFixed | O::ReadMultishot => {
                request.addr = self.address();
                request.off =
                    Word::Plain(self.choose(&[0, 0, u64::MAX, 4096, 1, 1 << 40, i64::MAX as u64, 1 << 63]));
                request.op_flags = self.choose(&[0, 0, 0, 0, 8, 1, 0x10, 0x40, u32::MAX]);
                request.buf_index = if self.chance(1, 2) { self.below(6) as u16 } else { 0 };
            }
            O::Readv | O::Writev | O::ReadvFixed | O::WritevFixed => {
                (request.addr, request.len) =
                    (self.vectors(), self.choose(&[0, 1, 2, 8, 16, 64, 1024, 1025, u32::MAX]));
                request.off = Word::Plain(self.choose(&[0, 0, u64::MAX, 4096]));
                request.buf_index = self.below(4) as u16;
            }
            O::Recv | O::Send | O::SendZc => {
                request.addr = self.address();
                request.op_flags = self.choose(&[0, 0, 0, 0x40, 0x100, 0x20, 2, 0x4000, u32::MAX]);
                request.ioprio = self.choose(&[0, 0, 0, 1, 2, 3, 4, 8, 16, 0x12, 0xffff]);
                if opcode != O::Recv && self.chance(1, 4) {
                    request.off = Word::At(Area::Fixed, arena::SOCKADDRS + 32 * self.below(5));
                    request.file_index = Fd::Number(self.choose(&[16, 9, 0, 128, 0xffff]));
                }
            }
            O::Sendmsg | O::Recvmsg | O::SendmsgZc => {
                request.addr = self.struct_at(place::HEADERS, 64, 16);
                (request.len, request.ioprio) = (1, self.choose(&[0, 0, 1, 2, 3, 4]));
                request.op_flags = self.choose(&[0, 0, 0x40, 0x20, 2, 0x4000]);
            }
            O::FutexWait | O::FutexWake => {
                request.fd = Fd::Number(self.choose(&[2, 2, 2 | 128, 0, 1, 3, 6, -1]));
                request.addr = self.address();
                request.off = Word::Plain(self.choose(&[0, 1, DATA_WORD, u64::MAX]));
                (request.len, request.addr3) = (0, Word::Plain(self.choose(&[0xffff_ffff, 0xffff_ffff, 1, 0])));
            }
            O::FutexWaitv => {
                request.addr = self.struct_at(place::FUTEXES, 24, 8);
                request.len = self.choose(&[1, 2, 8, 128, 129, 0, u32::MAX]);
            }
            O::Waitid => {
                // It may wait only for its own children.
                request.len = self.choose(&[0, 0, 9]);
                request.fd = Fd::Number(0);
                request.file_index = Fd::Number(self.choose(&[4, 4 | 1, 0x0100_0000 | 4, 2, 0, -1]));
                request.off = if self.chance(1, 3) { Word::Plain(0) } else { self.address() };
            }
            _ => self.fill_others(opcode, request),
        }
    }

    fn fill_others(&mut self, opcode: Opcode, request: &mut Request) {
        use Opcode as O;
        match opcode {
            O::Openat
            | O::Openat2
            | O::Unlinkat
            | O::Mkdirat
            | O::Renameat
            | O::Symlinkat
            | O::Linkat
            | O::Statx => {
                self.fill_path(opcode, request);
            }
            O::Fsetxattr | O::Setxattr | O::Fgetxattr | O::Getxattr => {
                request.addr = Word::At(Area::Fixed, arena::PATH_ROOM * (12 + self.below(2)));
                (request.off, request.addr3) = (self.address(), self.path());
                request.op_flags = self.below(4);
            }
            O::Accept | O::Connect | O::Bind | O::EpollWait | O::EpollCtl | O::Socket | O::Listen | O::Shutdown => {
                self.fill_socket(opcode, request);
            }
            O::Timeout | O::LinkTimeout | O::TimeoutRemove => {
                let time = self.time();
                (request.addr, request.off) = match opcode {
                    O::TimeoutRemove => (Word::Plain(self.recent()), time),
                    _ => (time, Word::Plain(self.choose(&[0, 0, 1, 2, u64::MAX]))),
                };
                request.fd = Fd::Number(-1);
                request.len = u32::from(opcode != O::TimeoutRemove || self.chance(1, 4));
                request.op_flags = self.bits(&[1, 2, 4, 8, 16, 32, 64], 1, 6);
            }
            O::PollAdd | O::PollRemove => {
                request.len = self.bits(&[1, 2, 4, 8], 1, 5);
                request.op_flags = self.choose(&[1, 1, 4, 5, 0, 0x2011, u32::MAX, 1 << 31]);
                (request.addr, request.off) = (Word::Plain(0), Word::Plain(0));
                if opcode == O::PollRemove {
                    (request.addr, request.off) = (Word::Plain(self.recent()), Word::Plain(self.recent()));
                }
            }
            O::AsyncCancel => {
                request.addr = Word::Plain(self.recent());
                request.op_flags = self.bits(&[1, 2, 4, 8, 16, 32], 1, 4);
                request.len = u32::from(self.chance(1, 4)) * self.below(64);
            }
            O::Splice | O::Tee => {
                request.file_index = self.fd();
                (request.off, request.addr) = (Word::Plain(u64::MAX), Word::Plain(u64::MAX));
                if self.chance(1, 3) {
                    (request.off, request.addr) = (Word::Plain(self.number()), Word::Plain(self.number()));
                }
                request.op_flags = self.choose(&[0, 0, 1, 2, 4, 1 << 31]);
            }
            O::ProvideBuffers | O::RemoveBuffers => {
                (request.addr, request.buf_index) = (self.address(), self.below(5) as u16);
                request.fd = Fd::Number(self.choose(&[1, 4, 16, 0, 65535, 65536, -1]));
                request.off = Word::Plain(self.choose(&[0, 1, 65535, 65536]));
            }
            O::MsgRing => {
                request.fd = Fd::Ring(self.slot());
                (request.addr, request.off) = (Word::Plain(self.choose(&[0, 0, 1, 2])), Word::Plain(self.recent()));
                (request.addr3, request.file_index) =
                    (Word::Plain(u64::from(self.below(9))), Fd::Number(self.below(9) as i32));
                request.op_flags = self.choose(&[0, 0, 1, 2, 4]);
            }
            O::FilesUpdate => {
                request.addr = self.struct_at(place::NUMBERS, 8, 16);
                (request.len, request.off) = (self.choose(&[1, 2, 8, 64, u32::MAX]), Word::Plain(self.number()));
            }
            O::Pipe => {
                request.addr = self.address();
                request.op_flags = self.choose(&[0, 0o4000, 0o2000000, u32::MAX]);
                request.file_index = Fd::Number(self.choose(&[0, 1, 3, -1]));
            }
            O::UringCmd => {
                request.off = Word::Plain(u64::from(self.below(6)));
                // Level and option in one word, then the option's length and address.
                request.addr = Word::Plain(1 | u64::from(self.below(40)) << 32);
                request.file_index = Fd::Number(self.choose(&[4, 4, 1, 0, -1]));
                (request.addr3, request.len, request.op_flags) = (self.address(), 0, self.choose(&[0, 0, 1, 2]));
            }
            O::Madvise | O::Fadvise => {
                (request.addr, request.off) = (self.address(), Word::Plain(self.number()));
                request.op_flags = self.below(6);
            }
            O::Fallocate | O::Ftruncate | O::SyncFileRange | O::Fsync => {
                (request.off, request.addr) = (Word::Plain(self.number()), Word::Plain(self.number()));
                request.op_flags = self.choose(&[0, 0, 1, 2, 7]);
            }
            O::FixedFdInstall | O::Close => {
                request.file_index = Fd::Number(self.choose(&[0, 0, 0, 1, 3, -1]));
                request.len = 0;
            }
            _ => request.op_flags = self.bits(&[1, 2, 4, 8, 16, 32], 1, 6),
        }
    }

    /// Flags of open(2), any that are harmless.
    pub fn open_flags(&mut self) -> u32 {
        let flags =
            [libc::O_CREAT, libc::O_EXCL, libc::O_TRUNC, libc::O_APPEND, libc::O_DIRECTORY, libc::O_NOFOLLOW];
        let flags = flags.map(|flag| flag as u32);
        let more = [libc::O_PATH, libc::O_TMPFILE, libc::O_DIRECT, libc::O_CLOEXEC, libc::O_NONBLOCK];
        self.below(4) | self.bits(&flags, 1, 6) | self.bits(&more.map(|flag| flag as u32), 1, 10)
    }

    fn fill_path(&mut self, opcode: Opcode, request: &mut Request) {
        if self.chance(2, 3) {
            request.fd = Fd::Number(libc::AT_FDCWD);
        }
        (request.addr, request.off) = (self.path(), self.path());
        request.len = self.choose(&[0o600, 0, 0o7777, u32::MAX]);
        request.op_flags = self.choose(&[0, 0, 0x100, 0x200, 0x1000, u32::MAX]);
        request.file_index = Fd::Number(self.choose(&[0, 0, 0, 1, 4, -1, 100]));
        match opcode {
            Opcode::Openat => request.op_flags = self.open_flags(),
            Opcode::Openat2 => {
                (request.off, request.len) =
                    (self.struct_at(place::HOWS, 32, 16), self.choose(&[24, 24, 32, 0, 4096]))
            }
            Opcode::Renameat | Opcode::Linkat => request.len = libc::AT_FDCWD as u32,
            Opcode::Statx => (request.off, request.len) = (self.address(), self.choose(&[0x7ff, 0, 0x8000_0000])),
            _ => {}
        }
    }

    fn fill_socket(&mut self, opcode: Opcode, request: &mut Request) {
        match opcode {
            Opcode::Accept => {
                let length = self.struct_at(place::NUMBERS, 8, 16);
                (request.addr, request.off) =
                    if self.chance(1, 2) { (self.address(), length) } else { (Word::Plain(0), Word::Plain(0)) };
                (request.len, request.ioprio) = (0, self.choose(&[0, 0, 1, 2, 4]));
                request.op_flags = self.choose(&[0, 0o4000, 0o2000000, u32::MAX]);
                request.file_index = Fd::Number(self.choose(&[0, 0, 1, -1]));
            }
            Opcode::Connect | Opcode::Bind => {
                request.addr = Word::At(Area::Fixed, arena::SOCKADDRS + 32 * self.below(5));
                if self.chance(1, 6) {
                    request.addr = self.address();
                }
                (request.off, request.len) = (Word::Plain(self.choose(&[16, 9, 0, 128, 129, u64::MAX])), 0);
            }
            Opcode::EpollCtl => {
                (request.addr, request.off) =
                    (self.struct_at(place::EVENTS, 16, 8), Word::Plain(self.fd_number() as u32 as u64));
                (request.len, request.op_flags) = (self.choose(&[1, 1, 2, 3, 0]), 0);
            }
            Opcode::EpollWait => {
                (request.addr, request.len) = (self.address(), self.choose(&[1, 16, 64, 0, u32::MAX]))
            }
            Opcode::Socket => {
                request.fd = Fd::Number(self.choose(&[1, 2, 10, 16, 99]));
                (request.off, request.len) = (Word::Plain(self.choose(&[1, 2, 5, 0x801])), 0);
                request.file_index = Fd::Number(self.choose(&[0, 0, 1, -1]));
            }
            _ => request.len = self.choose(&[0, 1, 2, 3, 128]),
        }
    }

    /// Turns a read into one that fills only a buffer between two pages that no request names.
    fn make_exact(&mut self, request: &mut Request) -> bool {
        let (buffer, offset) = (self.below(u32::from(arena::EXACT)) as u8, self.below(arena::PAGE as u32));
        let most = arena::PAGE as u32 - offset;
        let length = if self.chance(1, 2) { most } else { self.below(most) };
        match Opcode::from_u8(request.opcode) {
            Some(Opcode::Read | Opcode::ReadFixed | Opcode::Recv) => {
                (request.addr, request.len) = (Word::At(Area::Exact(buffer), offset), length);
            }
            Some(Opcode::Readv) => {
                request.addr = Word::At(Area::Fixed, arena::VECTORS + 16 * u32::from(buffer));
                request.len = 1 + self.below(u32::from(arena::EXACT - buffer));
            }
            Some(Opcode::ProvideBuffers) => {
                request.addr = Word::At(Area::Exact(buffer), 0);
                (request.fd, request.len) = (Fd::Number(1), arena::PAGE as u32);
            }
            _ => return false,
        }
        true
    }

    /// Returns the `user_data` of a recent request, perhaps.
    fn recent(&mut self) -> u64 {
        let back = u64::from(self.below(24));
        if self.chance(1, 10) {
            self.number()
        } else {
            self.next_id.saturating_sub(back)
        }
    }

    /// Sets one field to anything.
    fn spoil(&mut self, request: &mut Request) {
        match self.below(14) {
            0 => request.opcode = self.random.u8(..),
            1 => request.flags = self.random.u8(..),
            2 => request.ioprio = self.choose(&[1, 2, 0x8000, 0xffff]),
            3 => request.fd = self.fd(),
            4 => request.off = self.address(),
            5 => request.addr = self.address(),
            6 => request.len = self.number() as u32,
            7 => request.op_flags = 1 << self.below(32),
            8 => request.buf_index = self.choose(&[1, 5, 1000, u16::MAX]),
            9 => request.personality = self.choose(&[1, 2, u16::MAX]),
            10 => request.file_index = Fd::Number(self.choose(&[1, 100, i32::MAX, -1])),
            11 => request.addr3 = self.address(),
            12 => request.pad2 = self.number(),
            _ => request.user_data = self.number(),
        }
    }
}

/// Removes anything that a request may not do, whatever it was made of.
fn keep_harmless(request: &mut Request) {
    let names_none = [
        Opcode::ProvideBuffers,
        Opcode::RemoveBuffers,
        Opcode::Socket,
        Opcode::FutexWait,
        Opcode::FutexWake,
        Opcode::Waitid,
    ];
    // No request may name the lowest descriptors. With IOSQE_FIXED_FILE the number is that of a slot instead.
    if request.flags & IOSQE_FIXED_FILE == 0
        && matches!(request.fd, Fd::Number(0..10))
        && !names_none.iter().any(|opcode| *opcode as u8 == request.opcode)
    {
        request.fd = Fd::Number(-1);
    }
    if request.opcode == Opcode::Madvise as u8 {
        // Advice takes effect beyond unmapped pages, so its length is limited. Some kinds are for the hardware, so
        // only the first five are used.
        request.op_flags %= 5;
        request.len %= 0x4001;
        request.off = Word::Plain(0); // the length, if it is not in `len`
        if matches!(request.addr, Word::Plain(address) if address != 0)
            || matches!(request.addr, Word::At(Area::Fixed | Area::ReadOnly, _))
        {
            request.addr = Word::At(Area::Scratch, 0);
        }
    }
    if request.opcode == Opcode::Waitid as u8 && request.len > 9 {
        request.len = 0;
    }
}
