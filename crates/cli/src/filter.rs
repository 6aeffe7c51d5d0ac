//! Classic BPF programs for seccomp(2), installed by the seccompiler crate. Its own compiler is not used: what that
//! makes kills every call of a foreign architecture, and a 32-bit program is to be refused, not killed.

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use seccompiler::sock_filter;
use std::mem::offset_of;

/// The AUDIT_ARCH_* value of the calls this process makes (linux/audit.h: ELF machine, 64-bit and little-endian bits).
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 62 | 0xC000_0000;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 183 | 0xC000_0000;

/// x86-64 marks a call of the x32 ABI by this bit of its number; other architectures have no number that high.
const X32_BIT: u32 = 0x4000_0000;

/// A filter that answers `action` (SECCOMP_RET_*) to the calls numbered `everywhere` on any architecture and to those
/// numbered `native` on this one, and permits all others.
pub fn answering(action: u32, everywhere: &[u32], native: &[u32]) -> Vec<sock_filter> {
    let number = [load(offset_of!(libc::seccomp_data, nr)), statement(BPF_ALU | BPF_AND | BPF_K, !X32_BIT)];
    let architecture = load(offset_of!(libc::seccomp_data, arch));
    // Two words load the number, two compare the architecture, and two more load the number again.
    let match_at = number.len() + everywhere.len() + 2 + number.len() + native.len() + 1;
    let allow_at = match_at - 1;

    let mut program = number.to_vec();
    for &call in everywhere {
        program.push(jump_if_equal(call, match_at - program.len() - 1, 0));
    }
    program.push(architecture);
    program.push(jump_if_equal(NATIVE, 0, allow_at - program.len() - 1));
    program.extend(number);
    for &call in native {
        program.push(jump_if_equal(call, match_at - program.len() - 1, 0));
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    program.push(statement(BPF_RET | BPF_K, action));
    program
}

fn load(offset: usize) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset as u32)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump_if_equal(k: u32, skip_if_equal: usize, skip_if_not: usize) -> sock_filter {
    sock_filter { jt: skip_if_equal as u8, jf: skip_if_not as u8, ..statement(BPF_JMP | BPF_JEQ | BPF_K, k) }
}
