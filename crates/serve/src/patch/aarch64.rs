//! aarch64's part of `mod.rs`: instructions are found, and trap each time. None becomes a jump.

pub mod ahead;
#[path = "scan_aarch64.rs"]
pub mod scan;
mod site;

/// The instructions themselves.
pub mod decode {
    /// `svc 0`, as bytes in memory.
    pub const SYSCALL: [u8; 4] = 0xd400_0001_u32.to_le_bytes();
}
