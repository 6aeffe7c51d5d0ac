//! Restrictions: io_uring_register(2), IORING_REGISTER_RESTRICTIONS. A program registers them while a ring is
//! disabled, and they hold from the moment the ring is enabled. Source: `io_register_restrictions` in
//! io_uring/register.c, `io_check_restriction` in io_uring/io_uring.c.

use super::filters::Filters;
use crate::os::{user_read, version};
use crate::Errno;
use anyring_abi::{
    Opcode, IORING_REGISTER_BPF_FILTER, IORING_RESTRICTION_REGISTER_OP, IORING_RESTRICTION_SQE_FLAGS_ALLOWED,
    IORING_RESTRICTION_SQE_FLAGS_REQUIRED, IORING_RESTRICTION_SQE_OP,
};

/// Number of calls of io_uring_register(2) that this engine knows.
pub const REGISTER_CALLS: u32 = IORING_REGISTER_BPF_FILTER + 1;
/// The most entries that one call takes.
const MAX_ENTRIES: u32 = 4 + REGISTER_CALLS + Opcode::COUNT as u32;
/// Bytes of `struct io_uring_restriction`.
const ENTRY_BYTES: u64 = 16;

const _: () = assert!(REGISTER_CALLS <= 64 && Opcode::COUNT <= 128, "bits of the sets");

/// The calls, opcodes and flags that a ring allows.
#[derive(Debug, Default)]
pub struct Restrictions {
    register_calls: u64,
    opcodes: u128,
    flags_allowed: u8,
    flags_required: u8,
    /// True if calls are restricted. `of_sqes` is the same for SQEs. Before Linux 7.1, any restriction of calls or
    /// SQEs sets both.
    of_calls: bool,
    of_sqes: bool,
    /// Programs that decide about requests. They need no restrictions, and a ring may get them at any time.
    pub filters: Filters,
}

impl Restrictions {
    /// Reads `count` restrictions at `arg`.
    pub fn read(arg: u64, count: u32) -> Result<Restrictions, Errno> {
        if arg == 0 || count > MAX_ENTRIES {
            return Err(Errno::INVAL);
        }
        let mut entries = vec![0u32; count as usize];
        for (entry, at) in entries.iter_mut().zip(0..) {
            // The fields are opcode, value, and a reserved byte. The rest is also reserved, and is not checked.
            let [head, _]: [u64; 2] = user_read(arg + ENTRY_BYTES * at)?;
            *entry = head as u32;
        }
        let all = entries.is_empty() || !version::answers_as_7_3();
        let mut restrictions = Restrictions { of_calls: all, of_sqes: all, ..Restrictions::default() };
        for entry in entries {
            let (kind, value) = (u32::from(entry as u16), (entry >> 16) as u8);
            restrictions.of_calls |= kind == IORING_RESTRICTION_REGISTER_OP;
            restrictions.of_sqes |= kind != IORING_RESTRICTION_REGISTER_OP;
            match kind {
                IORING_RESTRICTION_REGISTER_OP if u32::from(value) < REGISTER_CALLS => {
                    restrictions.register_calls |= 1 << value;
                }
                IORING_RESTRICTION_SQE_OP if usize::from(value) < Opcode::COUNT => {
                    restrictions.opcodes |= 1 << value;
                }
                IORING_RESTRICTION_SQE_FLAGS_ALLOWED => restrictions.flags_allowed = value,
                IORING_RESTRICTION_SQE_FLAGS_REQUIRED => restrictions.flags_required = value,
                _ => return Err(Errno::INVAL),
            }
        }
        Ok(restrictions)
    }

    /// True if restrictions were registered. False if there are only filters.
    pub fn are_registered(&self) -> bool {
        self.of_calls || self.of_sqes
    }

    /// Fails with `EACCES` for an SQE that is not allowed.
    pub fn check_sqe(&self, opcode: Opcode, flags: u8) -> Result<(), Errno> {
        let listed = self.opcodes & 1 << opcode as u8 != 0;
        let complete = flags & self.flags_required == self.flags_required;
        let known = flags & !(self.flags_allowed | self.flags_required) == 0;
        if !self.of_sqes || (listed && complete && known) {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }

    /// Fails with `EACCES` for a call of io_uring_register(2) that is not allowed. `opcode` must be below
    /// [`REGISTER_CALLS`].
    pub fn check_register(&self, opcode: u32) -> Result<(), Errno> {
        if !self.of_calls || self.register_calls & 1 << opcode != 0 {
            Ok(())
        } else {
            Err(Errno::ACCESS)
        }
    }
}
