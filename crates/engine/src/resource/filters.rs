//! Filters of requests: io_uring_register(2), IORING_REGISTER_BPF_FILTER. A program registers classic BPF programs for
//! opcodes of a ring. A request is made only if every program for its opcode returns another number than 0. Source:
//! io_uring/bpf_filter.c, include/uapi/linux/io_uring/bpf_filter.h.

use super::bpf::{Program, Words};
use crate::os::{user_read, user_write};
use crate::{alloc, Errno};
use anyring_abi::{Opcode, IO_URING_BPF_CMD_FILTER, IO_URING_BPF_FILTER_DENY_REST, IO_URING_BPF_FILTER_SZ_STRICT};

const _: () = assert!(Opcode::COUNT <= 128, "bits of the sets");

/// The words of a context that depend on the opcode.
pub type Payload = [u32; 6];

/// The filters of a ring. None is ever removed.
#[derive(Debug, Default)]
pub struct Filters {
    programs: Vec<(u8, Program)>,
    /// The opcodes that have a program.
    covered: u128,
    /// The opcodes that `IO_URING_BPF_FILTER_DENY_REST` denied, whatever comes later.
    denied: u128,
}

/// A request as a filter sees it: `struct io_uring_bpf_ctx`.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// `user_data` of the SQE.
    pub user_data: u64,
    /// Its opcode.
    pub opcode: Opcode,
    /// `IOSQE_*` of the request.
    pub flags: u8,
    /// The arguments that depend on the opcode.
    pub payload: Payload,
}

impl Filters {
    /// Number of programs that were registered.
    pub fn count(&self) -> usize {
        self.programs.len()
    }

    /// Makes room for one more program.
    ///
    /// # Errors
    /// NOMEM.
    pub fn reserve(&mut self) -> Result<(), Errno> {
        self.programs.try_reserve(1).map_err(alloc::refused)
    }

    /// Adds a filter, for which [`reserve`](Self::reserve) has made room.
    pub fn add(&mut self, registration: Registration) {
        let bit = 1 << registration.opcode;
        self.covered |= bit;
        if registration.denies_rest {
            self.denied |= !self.covered;
        }
        self.programs.push((registration.opcode, registration.program));
    }

    /// Fails with `EACCES` for a request that a filter denies.
    pub fn check(&self, seen: &Seen) -> Result<(), Errno> {
        let bit = 1u128 << seen.opcode as u8;
        if self.denied & bit != 0 {
            return Err(Errno::ACCESS);
        }
        if self.covered & bit == 0 {
            return Ok(());
        }
        let words = seen.words();
        let mut of_opcode = self.programs.iter().filter(|(opcode, _)| *opcode == seen.opcode as u8);
        match of_opcode.all(|(_, program)| program.run(&words) != 0) {
            true => Ok(()),
            false => Err(Errno::ACCESS),
        }
    }
}

impl Seen {
    fn words(&self) -> Words {
        let [low, high] = [self.user_data as u32, (self.user_data >> 32) as u32]; // both processors are little-endian
        let opcode = self.opcode as u8;
        let head = u32::from_ne_bytes([opcode, self.flags, payload_bytes(opcode), 0]);
        let [a, b, c, d, e, f] = self.payload;
        [low, high, head, 0, a, b, c, d, e, f]
    }
}

/// Bytes of the context that depend on the opcode. CONNECT has them since Linux 7.2.
fn payload_bytes(opcode: u8) -> u8 {
    const OPENAT: u8 = Opcode::Openat as u8;
    const OPENAT2: u8 = Opcode::Openat2 as u8;
    const SOCKET: u8 = Opcode::Socket as u8;
    const CONNECT: u8 = Opcode::Connect as u8;
    match opcode {
        SOCKET => 12,
        OPENAT | OPENAT2 | CONNECT => 24,
        _ => 0,
    }
}

/// The argument of a registration: `struct io_uring_bpf`.
#[derive(Debug)]
pub struct Registration {
    opcode: u8,
    denies_rest: bool,
    program: Program,
}

impl Registration {
    /// Reads and checks the structure at `arg`, and stores the size that the opcode's arguments have here.
    ///
    /// # Errors
    /// FAULT, INVAL, MSGSIZE, NOMEM.
    pub fn read(arg: u64) -> Result<Registration, Errno> {
        // The words are the command; opcode and flags; length, size and padding; the program's address; padding.
        let [command, mut filter @ ..]: [u64; 9] = user_read(arg)?;
        let (opcode, flags) = (filter[0] as u32, (filter[0] >> 32) as u32);
        let (length, size, padding) = (filter[1] as u32, (filter[1] >> 32) as u8, filter[1] >> 40);
        let known = IO_URING_BPF_FILTER_DENY_REST | IO_URING_BPF_FILTER_SZ_STRICT;
        let is_known = command == u64::from(IO_URING_BPF_CMD_FILTER) && flags & !known == 0;
        let is_padded = padding == 0 && filter[3..] == [0; 5];
        let has_length = (1..=libc::BPF_MAXINSNS as u32).contains(&length);
        let opcode = u8::try_from(opcode).ok().filter(|opcode| usize::from(*opcode) < Opcode::COUNT);
        let opcode = opcode.filter(|_| is_known && is_padded && has_length).ok_or(Errno::INVAL)?;
        let expected = payload_bytes(opcode);
        filter[1] = u64::from(length) | u64::from(expected) << 32;
        user_write(arg + 8, &filter)?;
        if size > expected || (size != expected && flags & IO_URING_BPF_FILTER_SZ_STRICT != 0) {
            return Err(Errno::MSGSIZE);
        }
        let program = Program::read(filter[2], length)?;
        Ok(Registration { opcode, denies_rest: flags & IO_URING_BPF_FILTER_DENY_REST != 0, program })
    }
}
