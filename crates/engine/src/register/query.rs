//! IORING_REGISTER_QUERY: reports what the engine supports. Works with a ring or without one. Source: io_uring/query.c.

use crate::op::count;
use crate::os::{user_read, user_read_slice, user_write, user_write_slice, version};
use crate::resource::restrictions::REGISTER_CALLS;
use crate::ring::sq;
use crate::setup;
use crate::wait::enter;
use crate::Errno;
use anyring_abi::{
    IORING_REGISTER_QUERY, IO_URING_QUERY_OPCODES, IO_URING_QUERY_SCQ, IO_URING_QUERY_ZCRX,
    IO_URING_QUERY_ZCRX_EVENT,
};

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

/// The longest answer, in words.
const WORDS: usize = 6;

/// The answer to a question: its words, and the bytes of its structure.
type Answer = ([u64; WORDS], usize);

/// Handles one entry of the list. The entry has the next entry's address, the buffer's address, the question and size,
/// the result and padding. Returns the address of the next entry.
fn handle_entry(at: u64) -> Result<u64, Errno> {
    let [next, data, head, tail]: [u64; 4] = user_read(at)?;
    let padding: u64 = user_read(at + 32)?;
    let (question, given) = (head as u32, (head >> 32) as usize);
    let looked_at = given.min(MAX_BYTES);
    let mut known = [0u8; MAX_BYTES];
    let result = match answer(question) {
        None => Err(Errno::OPNOTSUPP),
        Some(_) if tail != 0 || padding != 0 || given == 0 => Err(Errno::INVAL),
        Some(answer) => {
            user_read_slice(data, &mut known[..looked_at])?;
            Ok(answer)
        }
    };
    let (words, size) = result.unwrap_or_default();
    let bytes = size.min(given);
    for (place, byte) in words.iter().flat_map(|word| word.to_ne_bytes()).take(bytes).enumerate() {
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

/// Returns the answer to a question, if the question is known.
fn answer(question: u32) -> Option<Answer> {
    match question {
        IO_URING_QUERY_OPCODES => Some((opcodes(), 48)),
        _ if !version::has_later_names() => None,
        IO_URING_QUERY_SCQ => Some((rings(), 16)),
        // Zero-copy receive is not supported: no flags, no controls.
        IO_URING_QUERY_ZCRX => Some(([0; WORDS], 40)),
        IO_URING_QUERY_ZCRX_EVENT => Some(([0; WORDS], 48)),
        _ => None,
    }
}

/// Fills `struct io_uring_query_opcode`. Its fields are the numbers of opcodes (of requests and of
/// io_uring_register(2)), the known flags (features, setup, enter, SQE), and the number of questions. As with the
/// probe, some opcodes that have a number are not served.
fn opcodes() -> [u64; WORDS] {
    let (calls, questions) = match version::has_later_names() {
        true => (REGISTER_CALLS, IO_URING_QUERY_ZCRX_EVENT + 1),
        false => (IORING_REGISTER_QUERY + 1, IO_URING_QUERY_OPCODES + 1),
    };
    let numbers = count() as u64 | u64::from(calls) << 32;
    let features = u64::from(setup::FEATURES);
    let flags = [setup::flags(), enter::FLAGS, sq::KNOWN_FLAGS.into()].map(u64::from);
    [numbers, features, flags[0], flags[1], flags[2], questions.into()]
}

/// Fills `struct io_uring_query_scq`: the size and alignment of the header before the CQEs.
fn rings() -> [u64; WORDS] {
    [setup::CQES_OFFSET, setup::CQES_OFFSET, 0, 0, 0, 0]
}
