//! `syscall(SYS_getpid)`, the shortest call that goes through libc's `syscall()`.

use crate::provider;
use anyring_lab::message::{Measured, Proof, Reply};
use std::time::Instant;

/// Times so many calls.
pub fn run(calls: u64) -> Reply {
    let own = std::process::id();
    let mut wrong = 0u64;
    let start = Instant::now();
    for _ in 0..calls {
        // SAFETY: getpid takes nothing.
        wrong += u64::from(unsafe { libc::syscall(libc::SYS_getpid) } != i64::from(own));
    }
    let elapsed = start.elapsed();
    if wrong > 0 {
        return Reply::Failed(format!("{wrong} of {calls} calls of getpid were answered wrongly"));
    }
    let proof = Proof { provider: Some(provider::of(libc::syscall as *const () as *const _)), ..Proof::default() };
    Reply::Measured(Measured {
        figures: vec![elapsed.as_nanos() as f64 / calls as f64],
        proof: Some(proof),
        ..Measured::default()
    })
}
