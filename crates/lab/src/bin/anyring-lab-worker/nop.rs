//! NOPs, submitted and reaped in batches, each completion checked.

use crate::liburing::{Liburing, Ring};
use anyring_abi::{Opcode, Sqe};
use anyring_lab::message::{Measured, Refusal, Reply};
use std::time::Instant;

/// Batches before the timed ones.
const WARM_UP: u64 = 100;

/// Times `operations` NOPs.
pub fn run(batch: u32, operations: u64) -> Reply {
    match measure(batch, operations) {
        Ok(reply) => reply,
        Err(why) => Reply::Failed(why),
    }
}

fn measure(batch: u32, operations: u64) -> Result<Reply, String> {
    if batch == 0 || operations == 0 || !operations.is_multiple_of(u64::from(batch)) {
        return Err(format!("{operations} operations cannot be had in batches of {batch}"));
    }
    let liburing = Liburing::open()?;
    let mut ring = match liburing.queue_init(batch) {
        Ok(ring) => ring,
        Err(errno) => return Ok(Reply::Refused(Refusal { call: "io_uring_queue_init".to_owned(), errno })),
    };
    let mut user_data = 0;
    for _ in 0..WARM_UP {
        round(&mut ring, batch, &mut user_data)?;
    }
    let start = Instant::now();
    for _ in 0..operations / u64::from(batch) {
        round(&mut ring, batch, &mut user_data)?;
    }
    let elapsed = start.elapsed();
    let link = std::fs::read_link(format!("/proc/self/fd/{}", ring.fd()));
    Ok(Reply::Measured(Measured {
        ns_per_operation: elapsed.as_nanos() as f64 / operations as f64,
        provider: liburing.provider(),
        ring: link.ok().map(|link| link.to_string_lossy().into_owned()),
    }))
}

/// One submit call and its completions. NOPs complete in the submitting call, in order.
fn round(ring: &mut Ring, batch: u32, user_data: &mut u64) -> Result<(), String> {
    for index in 0..u64::from(batch) {
        let sqe = ring.get_sqe().ok_or("io_uring_get_sqe found the SQ full")?;
        *sqe = Sqe { opcode: Opcode::Nop as u8, fd: -1, user_data: *user_data + index, ..Sqe::default() };
    }
    let submitted = ring.submit();
    if submitted != batch as i32 {
        return Err(format!("io_uring_submit of {batch} answered {submitted}"));
    }
    for _ in 0..batch {
        let cqe = ring.wait_cqe()?;
        if (cqe.user_data, cqe.res) != (*user_data, 0) {
            return Err(format!("NOP {user_data} completed with {cqe:?}"));
        }
        *user_data += 1;
    }
    Ok(())
}
