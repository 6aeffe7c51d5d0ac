//! NOPs, submitted and reaped in batches, each completion checked.

use crate::outcome::{expect, figure, Outcome};
use crate::ring::{sqe, Ring};
use anyring_abi::Opcode;
use anyring_lab::message::{Door, Measured};
use std::time::Instant;

/// Batches before the timed ones.
const WARM_UP: u64 = 100;

/// Times `operations` NOPs.
pub fn run(door: Door, batch: u32, operations: u64) -> Outcome<Measured> {
    expect(batch > 0 && operations > 0 && operations.is_multiple_of(u64::from(batch)), || {
        format!("{operations} operations cannot be had in batches of {batch}")
    })?;
    let mut ring = Ring::new(door, batch, 0)?;
    let mut user_data = 0;
    for _ in 0..WARM_UP {
        round(&mut ring, batch, &mut user_data)?;
    }
    let start = Instant::now();
    for _ in 0..operations / u64::from(batch) {
        round(&mut ring, batch, &mut user_data)?;
    }
    let elapsed = start.elapsed();
    Ok(figure(elapsed.as_nanos() as f64 / operations as f64, Some(ring.proof())))
}

/// One submit call and its completions. NOPs complete in the submitting call, in order.
fn round(ring: &mut Ring, batch: u32, user_data: &mut u64) -> Outcome<()> {
    for index in 0..u64::from(batch) {
        ring.push(sqe(Opcode::Nop, -1, *user_data + index))?;
    }
    ring.submit()?;
    for _ in 0..batch {
        let cqe = ring.wait_cqe()?;
        expect((cqe.user_data, cqe.res) == (*user_data, 0), || format!("NOP {user_data} completed with {cqe:?}"))?;
        *user_data += 1;
    }
    Ok(())
}
