//! aarch64's part of `mod.rs`: instructions that become jumps (decision 27).
//!
//! | file | what it does |
//! |---|---|
//! | `ahead.rs` | instructions replaced before they run, because a filter kills for them |
//! | `counters.rs` | when an instruction has trapped often enough |
//! | `scan_aarch64.rs`, `site.rs` | finds the instructions |
//! | `code_aarch64.rs` | the instructions of an island |
//! | `island_aarch64.rs` | islands in memory, and the jumps to them |

pub mod ahead;
#[path = "code_aarch64.rs"]
pub mod code;
pub mod counters;
#[path = "island_aarch64.rs"]
pub mod island;
#[path = "scan_aarch64.rs"]
pub mod scan;
mod site;

/// The instructions themselves.
pub mod decode {
    /// `svc 0`, as bytes in memory.
    pub const SYSCALL: [u8; 4] = super::code::SVC.to_le_bytes();
}

/// Number of instructions whose traps are counted, and that may be patched. Others keep trapping.
pub const COUNTED: usize = 64;
