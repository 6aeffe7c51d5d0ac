//! Trapped instructions that become jumps: shared by the preloaded library and the guest host (decision 27).
//!
//! | file | what it does |
//! |---|---|
//! | `ahead.rs` | instructions replaced before they run, because a filter kills for them |
//! | `counters.rs` | when an instruction has trapped often enough |
//! | `scan.rs`, `site.rs` | finds the instructions |
//! | `decode.rs`, `run.rs` | which of the instructions before may run elsewhere |
//! | `jump.rs` | the jump, and memory that it reaches |
//! | `between.rs` | code for tests |
//! | `code_aarch64.rs` | aarch64's islands, whose tests run here, too |
//! | `origin.rs` | which instructions were moved where |

pub mod ahead;
#[cfg(test)]
mod between;
#[cfg(test)]
#[path = "code_aarch64.rs"]
mod code;
pub mod counters;
pub mod decode;
pub mod jump;
pub mod origin;
pub mod run;
pub mod scan;
mod site;

/// Number of instructions whose traps are counted, and that may be patched. Others keep trapping.
pub const COUNTED: usize = 64;
