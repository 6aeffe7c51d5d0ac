//! IORING_REGISTER_QUERY: reports what the engine supports. Works with a ring or without one. Source: io_uring/query.c.

use crate::op::count;
use crate::os::{user_read, user_read_slice, user_write, user_write_slice, version};
use crate::resource::restrictions::REGISTER_CALLS;
use crate::ring::sq;
use crate::setup;
use crate::wait::enter;
use crate::Errno;
use anyring_abi::{IORING_REGISTER_QUERY, IO_URING_QUERY_OPCODES};

/// The longest list of questions that the engine follows. A longer list (or a cycle) fails with `ERANGE`.
const MAX_ENTRIES: usize = 1000;
/// The most bytes of an entry's buffer that the engine reads.
const MAX_BYTES: usize = 256;

/// Answers the list of `struct io_uring_query_hdr` that begins at `arg`.
pub fn query(arg: u64, count: u32) -> Result<u32, Errno> {
    if count != 0 {
        return Err(Errno::INVAL);
    }
    let mut entry = arg;
    for _ in 0..MAX_ENTRIES {
        if entry == 0 {
            return Ok(0);
        }
        entry = handle_entry(entry)?;
    }
    Err(Errno::RANGE)
}

/// Handles one entry of the list. The entry has the next entry's address, the buffer's address, the question and size,
/// the result and padding. Returns the address of the next entry.
fn handle_entry(at: u64) -> Result<u64, Errno> {
    let [next, data, head, tail]: [u64; 4] = user_read(at)?;
    let padding: u64 = user_read(at + 32)?;
    let (question, given) = (head as u32, (head >> 32) as usize);
    let looked_at = given.min(MAX_BYTES);
    let mut known = [0u8; MAX_BYTES];
    let result = if question != IO_URING_QUERY_OPCODES {
        Err(Errno::OPNOTSUPP)
    } else if tail != 0 || padding != 0 || given == 0 {
        Err(Errno::INVAL)
    } else {
        user_read_slice(data, &mut known[..looked_at])?;
        Ok(opcodes())
    };
    let text = result.as_ref().map_or(&[][..], |words| words.as_slice());
    let bytes = (8 * text.len()).min(given);
    for (place, byte) in text.iter().flat_map(|word| word.to_ne_bytes()).take(bytes).enumerate() {
        known[place] = byte;
    }
    user_write_slice(data, &known[..bytes])?;
    for rest in (bytes..given).step_by(MAX_BYTES) {
        user_write_slice(data + rest as u64, &[0u8; MAX_BYTES][..MAX_BYTES.min(given - rest)])?;
    }
    user_write(at + 20, &(bytes as u32))?;
    user_write(at + 24, &result.err().map_or(0, |error| -error.raw_os_error()))?;
    Ok(next)
}

/// Fills `struct io_uring_query_opcode`. Its fields are the numbers of opcodes (of requests and of
/// io_uring_register(2)), the known flags (features, setup, enter, SQE), and the number of questions. As with the
/// probe, some opcodes that have a number are not served.
fn opcodes() -> [u64; 6] {
    let calls = if version::has_later_names() { REGISTER_CALLS } else { IORING_REGISTER_QUERY + 1 };
    let numbers = count() as u64 | u64::from(calls) << 32;
    let features = u64::from(setup::FEATURES);
    [numbers, features, setup::flags().into(), enter::FLAGS.into(), sq::KNOWN_FLAGS.into(), 1]
}
