//! Filter programs of `anyring deny`, for seccomp(2): rules by call number and arguments. Of a
//! 32-bit program's calls only those of io_uring get the filter's answer. All others are permitted. The filter is
//! installed by prctl(2), since `deny` may run below a filter that lacks seccomp(2), such as a systemd service's.

use anyring_serve::filters::bpf::{
    argument, jump, load, mask, ret, ALLOW, ANY_BIT, ARCH, AT_LEAST, EQUAL, NATIVE, NUMBER,
};
use anyring_serve::filters::Way;
use libc::sock_filter;
use std::io;

/// The bit of the number that marks calls of the x32 ABI on x86-64; other architectures have no number that high.
const X32_BIT: u32 = 0x4000_0000;

/// The answer to some calls.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// The calls.
    pub calls: Calls,
    /// Tests of their arguments, which must all hold.
    pub tests: &'static [Test],
    /// SECCOMP_RET_*, with its data.
    pub action: u32,
}

impl Rule {
    /// `action` for the call with this number, whatever its arguments.
    pub const fn always(number: u32, action: u32) -> Self {
        Rule { calls: Calls::One(number), tests: &[], action }
    }
}

/// Calls by their number.
#[derive(Debug, Clone, Copy)]
pub enum Calls {
    /// The call with this number.
    One(u32),
    /// Calls with this number or a higher number, which an older kernel lacks.
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

/// Builds a filter in which the first matching rule decides. The rules of `everywhere` come first and apply to
/// calls of any architecture. The rules of `native` apply to calls of this architecture. All other calls are
/// permitted.
pub fn program(everywhere: &[Rule], native: &[Rule]) -> Vec<sock_filter> {
    let mut program = Vec::new();
    append(&mut program, everywhere);
    program.extend([load(ARCH), jump(EQUAL, NATIVE, 1, 0), ret(ALLOW)]);
    append(&mut program, native);
    program.push(ret(ALLOW));
    program
}

fn append(program: &mut Vec<sock_filter>, rules: &[Rule]) {
    let mut number_is_loaded = false;
    for rule in rules {
        if !number_is_loaded {
            program.extend([load(NUMBER), mask(!X32_BIT)]);
        }
        let after_tests = rule.tests.len() as u8 * 2 + 1;
        program.push(match rule.calls {
            Calls::One(number) => jump(EQUAL, number, 0, after_tests),
            Calls::From(number) => jump(AT_LEAST, number, 0, after_tests),
        });
        for (index, test) in rule.tests.iter().enumerate() {
            let to_next_rule = after_tests - index as u8 * 2 - 2;
            let [low, high] = argument(test.argument);
            program.push(load(if test.high { high } else { low }));
            program.push(match test.relation {
                Relation::AnyBit => jump(ANY_BIT, test.value, 0, to_next_rule),
                Relation::Equal => jump(EQUAL, test.value, 0, to_next_rule),
                Relation::NotEqual => jump(EQUAL, test.value, to_next_rule, 0),
                Relation::AtLeast => jump(AT_LEAST, test.value, 0, to_next_rule),
            });
        }
        program.push(ret(rule.action));
        number_is_loaded = rule.tests.is_empty();
    }
}

/// Installs a filter for this process, which has one thread, and sets no_new_privs.
///
/// # Errors
/// The error of prctl(2).
pub fn install(program: &[sock_filter]) -> io::Result<()> {
    Way::OnlyThread.install(program).map_err(io::Error::from_raw_os_error)
}
