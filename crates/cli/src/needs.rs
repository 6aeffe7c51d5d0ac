//! `anyring run --needs`: the opcodes and setup flags that the program needs, and those of them that the kernel lacks.

use crate::child::{self, Outcome};
use crate::failure::{Failure, USAGE};
use crate::ring::{call, Fault};
use crate::stats;
use anyring_abi::interface::{Name, OPCODES, SETUP_FLAGS};
use anyring_abi::since::{since, FIRST};
use anyring_abi::{
    Params, IORING_REGISTER_PROBE, IORING_SETUP_COOP_TASKRUN, IORING_SETUP_IOPOLL, IORING_SETUP_NO_MMAP,
    IORING_SETUP_NO_SQARRAY, IORING_SETUP_SINGLE_ISSUER, IO_URING_OP_SUPPORTED, NR_IO_URING_REGISTER,
    NR_IO_URING_SETUP,
};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Flags beside which the kernel takes a flag that it refuses alone. With no address for its memory, a ring with
/// NO_MMAP fails by another error than EINVAL, which an unknown flag gets.
const COMPANIONS: [u32; 6] = [
    0,
    IORING_SETUP_COOP_TASKRUN,
    IORING_SETUP_SINGLE_ISSUER,
    IORING_SETUP_IOPOLL,
    IORING_SETUP_NO_MMAP,
    IORING_SETUP_NO_SQARRAY,
];

/// Returns what the words name: an opcode, a setup flag, or a file of counters with its opcodes.
pub fn parse(words: &[String]) -> Result<Vec<&'static Name>, Failure> {
    let mut needs = Vec::new();
    for word in words {
        match known().find(|name| is_called(name, word)) {
            Some(name) => needs.push(name),
            None if Path::new(word).is_file() => {
                let used = stats::opcodes_in(Path::new(word))
                    .map_err(|why| Failure::own(format!("--needs {word}: {why}")))?;
                needs.extend(OPCODES.iter().filter(|name| used.contains(&name.name)));
            }
            None => {
                let known = known().map(short).collect::<Vec<_>>().join(", ");
                let message =
                    format!("--needs: `{word}` is no opcode, no setup flag and no file; the names are {known}");
                return Err(Failure { status: USAGE, message });
            }
        }
    }
    Ok(needs)
}

fn known() -> impl Iterator<Item = &'static Name> {
    OPCODES.iter().chain(SETUP_FLAGS)
}

/// The name without the header's prefix, as in the counters and in traces.
fn short(name: &'static Name) -> &'static str {
    name.name.strip_prefix("IORING_SETUP_").unwrap_or(name.name)
}

fn is_called(name: &'static Name, word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    [name.name, short(name)].contains(&word.strip_prefix("IORING_OP_").unwrap_or(&word))
}

/// Says what the kernel lacks of these; `None` if it has all. Asks in a child.
pub fn lack(needs: &[&'static Name]) -> Option<String> {
    if needs.is_empty() {
        return None;
    }
    let outcome = child::ask_if_safe(|| lacked(needs));
    match &outcome {
        Outcome::Replied(Ok(lacked)) if lacked.is_empty() => None,
        outcome => Some(outcome.describe(|answer| match answer {
            Ok(lacked) => format!("the kernel lacks {}", lacked.join(", ")),
            Err(fault) => format!("whether the kernel has what is needed is unknown: {fault}"),
        })),
    }
}

fn lacked(needs: &[&'static Name]) -> Result<Vec<String>, Fault> {
    const MOST: usize = 256;
    let ring = ring_with(0, -1)?;
    // struct io_uring_probe: 16 bytes, then 8 for each operation: its number, and its flags from the third byte on.
    let mut operations = [0_u64; 2 + MOST];
    let address = operations.as_mut_ptr() as usize;
    let probe = [ring.as_raw_fd() as usize, IORING_REGISTER_PROBE as usize, address, MOST, 0, 0];
    call("io_uring_register", NR_IO_URING_REGISTER, probe)?;
    let has = |name: &Name| match OPCODES.contains(name) {
        true => (operations[2 + name.value as usize] >> 16) as u16 & IO_URING_OP_SUPPORTED != 0,
        false => since(name) == FIRST || takes(name.value as u32, ring.as_raw_fd()),
    };
    Ok(needs.iter().filter(|name| !has(name)).map(|name| short(name).to_owned()).collect())
}

/// True if the kernel knows the flag. `other`: a ring to attach to.
fn takes(flag: u32, other: i32) -> bool {
    let is_unknown = |made: Result<OwnedFd, Fault>| matches!(made, Err(Fault::Refused { code: libc::EINVAL, .. }));
    COMPANIONS.iter().any(|beside| !is_unknown(ring_with(flag | beside, other)))
}

/// Makes a ring of the kernel's.
fn ring_with(flags: u32, other: i32) -> Result<OwnedFd, Fault> {
    const ENTRIES: u32 = 2;
    let mut params = Params { flags, cq_entries: 2 * ENTRIES, wq_fd: other as u32, ..Params::default() };
    let address = std::ptr::from_mut(&mut params) as usize;
    let fd = call("io_uring_setup", NR_IO_URING_SETUP, [ENTRIES as usize, address, 0, 0, 0, 0])?;
    // SAFETY: the call just returned this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
