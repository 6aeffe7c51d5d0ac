//! Classic BPF programs for seccomp(2). The seccompiler crate is not used: what its compiler makes kills every call of a foreign
//! architecture, and a 32-bit program is to be refused, not killed; and it installs by a call that a service's filter may refuse.

use libc::{sock_filter, sock_fprog};
use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
use std::io;
use std::mem::offset_of;

/// The AUDIT_ARCH_* value of the calls this process makes (linux/audit.h: ELF machine, 64-bit and little-endian bits).
#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 62 | 0xC000_0000;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 183 | 0xC000_0000;

/// x86-64 marks a call of the x32 ABI by this bit of its number; other architectures have no number that high.
const X32_BIT: u32 = 0x4000_0000;

/// Which calls get which answer, whatever outer filters say.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The calls.
    pub calls: Calls,
    /// What must hold of their arguments, all of it.
    pub tests: &'static [Test],
    /// SECCOMP_RET_*, with its data.
    pub action: u32,
}

impl Rule {
    /// `action` for the call of this number, whatever its arguments.
    pub const fn always(number: u32, action: u32) -> Self {
        Rule { calls: Calls::One(number), tests: &[], action }
    }
}

/// Calls by their number.
#[derive(Debug, Clone, Copy)]
pub enum Calls {
    /// The one of this number.
    One(u32),
    /// Those of this number and above: what a kernel before it does not have.
    From(u32),
}

/// A test of one half of an argument.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    argument: usize,
    high: bool,
    relation: Relation,
    value: u32,
}

#[derive(Debug, Clone, Copy)]
enum Relation {
    AnyBit,
    Equal,
    NotEqual,
    AtLeast,
}

impl Test {
    /// The lower half of argument `argument` (0 to 5) has one of `bits`.
    pub const fn any_bit(argument: usize, bits: u32) -> Self {
        Test { argument, high: false, relation: Relation::AnyBit, value: bits }
    }

    /// The lower half is `value`.
    pub const fn equal(argument: usize, value: u32) -> Self {
        Test { argument, high: false, relation: Relation::Equal, value }
    }

    /// The upper half is `value`.
    pub const fn high_equal(argument: usize, value: u32) -> Self {
        Test { argument, high: true, relation: Relation::Equal, value }
    }

    /// The lower half is not `value`.
    pub const fn not_equal(argument: usize, value: u32) -> Self {
        Test { argument, high: false, relation: Relation::NotEqual, value }
    }

    /// The lower half, unsigned, is `value` or more.
    pub const fn at_least(argument: usize, value: u32) -> Self {
        Test { argument, high: false, relation: Relation::AtLeast, value }
    }
}

/// A filter that obeys the first rule that fits: of `everywhere` on any architecture, then of `native` on this one.
/// Everything else is permitted.
pub fn program(everywhere: &[Rule], native: &[Rule]) -> Vec<sock_filter> {
    let permit = || statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW);
    let mut program = Vec::new();
    append(&mut program, everywhere);
    program.push(load(offset_of!(libc::seccomp_data, arch)));
    program.push(jump(BPF_JEQ, NATIVE, 1, 0));
    program.push(permit());
    append(&mut program, native);
    program.push(permit());
    program
}

fn append(program: &mut Vec<sock_filter>, rules: &[Rule]) {
    let mut number_is_loaded = false;
    for rule in rules {
        if !number_is_loaded {
            program.push(load(offset_of!(libc::seccomp_data, nr)));
            program.push(statement(BPF_ALU | BPF_AND | BPF_K, !X32_BIT));
        }
        let behind_tests = rule.tests.len() * 2 + 1;
        program.push(match rule.calls {
            Calls::One(number) => jump(BPF_JEQ, number, 0, behind_tests),
            Calls::From(number) => jump(BPF_JGE, number, 0, behind_tests),
        });
        for (index, test) in rule.tests.iter().enumerate() {
            let to_next_rule = behind_tests - index * 2 - 2;
            let half = if test.high { 4 } else { 0 }; // both architectures are little-endian
            program.push(load(offset_of!(libc::seccomp_data, args) + test.argument * 8 + half));
            program.push(match test.relation {
                Relation::AnyBit => jump(BPF_JSET, test.value, 0, to_next_rule),
                Relation::Equal => jump(BPF_JEQ, test.value, 0, to_next_rule),
                Relation::NotEqual => jump(BPF_JEQ, test.value, to_next_rule, 0),
                Relation::AtLeast => jump(BPF_JGE, test.value, 0, to_next_rule),
            });
        }
        program.push(statement(BPF_RET | BPF_K, rule.action));
        number_is_loaded = rule.tests.is_empty();
    }
}

fn load(offset: usize) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset as u32)
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn jump(test: u32, k: u32, skip_if_true: usize, skip_if_not: usize) -> sock_filter {
    sock_filter { jt: skip_if_true as u8, jf: skip_if_not as u8, ..statement(BPF_JMP | test | BPF_K, k) }
}

/// Installs a program for this process, which has one thread, and sets no_new_privs.
///
/// # Errors
/// What prctl(2) answers.
pub fn install(program: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the program and what it points to outlive the call, which copies them; the kernel verifies it.
    let answer = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            answer => answer,
        }
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
