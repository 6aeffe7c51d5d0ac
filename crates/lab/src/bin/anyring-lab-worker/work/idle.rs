//! Unused rings: CPU time of the process, and its memory.

use super::cpu_us;
use crate::outcome::{available, expect, want_descriptors, Outcome};
use crate::peer::epoll::Epoll;
use crate::peer::not_for;
use crate::ring::{sqe, Ring};
use anyring_abi::Opcode;
use anyring_lab::message::{Door, Measured, Program, Proof};
use std::time::Duration;

const ENTRIES: u32 = 8;

/// Makes the rings, uses each once and waits. The figures are us of CPU in all, and KiB resident for each ring.
pub fn run(program: Program, door: Door, rings: u32, for_ms: u32) -> Outcome<Measured> {
    want_descriptors(u64::from(rings) * 6 + 300)?;
    // The one-time cost that the first ring has for a process is not counted.
    let before = match program {
        Program::Uring => {
            let first = used_ring(door)?;
            let before = resident_kib()?;
            drop(first);
            before
        }
        _ => resident_kib()?,
    };
    let mut kept = Vec::new();
    let mut sets = Vec::new();
    for _ in 0..rings {
        match program {
            Program::Uring => kept.push(used_ring(door)?),
            Program::Epoll => {
                // SAFETY: no pointers.
                let fd = available("eventfd", unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })? as i32;
                let set = Epoll::new()?;
                set.add(fd, 0, 0)?;
                sets.push(set);
            }
            other => return not_for(other),
        }
    }
    let each = (resident_kib()? - before).max(0.0) / f64::from(rings);
    let begin = cpu_us();
    std::thread::sleep(Duration::from_millis(u64::from(for_ms)));
    let cpu = cpu_us() - begin;
    let proof = kept.first().map(|ring| Proof { completions: u64::from(rings), ..ring.proof() });
    Ok(Measured { figures: vec![cpu, each], proof, ..Measured::default() })
}

fn used_ring(door: Door) -> Outcome<Ring> {
    let mut ring = Ring::new(door, ENTRIES, 0)?;
    ring.push(sqe(Opcode::Nop, -1, 7))?;
    ring.submit_and_wait(1)?;
    let cqe = ring.wait_cqe()?;
    expect((cqe.user_data, cqe.res) == (7, 0), || format!("a NOP completed with {cqe:?}"))?;
    Ok(ring)
}

/// Returns the resident memory of the process, each page counted once, however often it is mapped here (Pss). A ring
/// in user space has two mappings, of the program and of its server. VmRSS of /proc/self/status counts it twice, and
/// lags by some pages.
fn resident_kib() -> Outcome<f64> {
    let mapped = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = mapped.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    kib.ok_or_else(|| "/proc/self/smaps_rollup tells no Pss".into())
}
