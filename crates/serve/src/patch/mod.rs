//! Trapped instructions that become jumps: what the preloaded library and the guest host do alike (decision 27).
//!
//! | file | what it does |
//! |---|---|
//! | `ahead.rs` | those that are replaced before they run, since a filter kills for them |
//! | `counters.rs` | which instruction has trapped often enough |
//! | `scan.rs` | where the instructions are |
//! | `decode.rs`, `run.rs` | what of the code before it may be done elsewhere |
//! | `jump.rs` | the jump, and memory that it reaches |
//! | `between.rs` | code for tests |
//! | `origin.rs` | which instructions were moved where |

pub mod ahead;
#[cfg(test)]
mod between;
pub mod counters;
pub mod decode;
pub mod jump;
pub mod origin;
pub mod run;
pub mod scan;

/// How many instructions are counted, and how many may be patched; others keep trapping.
pub const COUNTED: usize = 64;
