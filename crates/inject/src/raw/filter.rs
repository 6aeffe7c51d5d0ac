//! The seccomp filter program, which decides by a call's number and address whether it is trapped.
//!
//! It checks the number first, so that the kernel can answer for every other number without running it. Then it checks
//! the descriptor argument, and last the address of the instruction. Everything else is allowed. A program that the
//! process executes has its code at other addresses, so this filter allows its calls.
//!
//! An address is compared as a whole, or by its window of 4 GiB and its offset in the page ([`Precision`]). The loader
//! maps whole pages, so a library that is loaded again elsewhere has its instructions at the same offsets of other
//! pages.

use super::object::Object;
use super::scan;
use crate::door::RING_NUMBERS;
use crate::{arch, backend};
use anyring_abi::{AIO_CALLS, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use anyring_engine::identity;
use anyring_engine::mutation::{mutated, Mutation};
use anyring_serve::filters::bpf::{self, jump, load, ret, skip, ALLOW, AT_LEAST, EQUAL};
use anyring_serve::named;
use core::ops::Range;
use libc::sock_filter;

/// The most instructions that one filter may have (BPF_MAXINSNS).
const LIMIT: usize = 4096;
/// SECCOMP_RET_DATA of the library's filters, which the handler gets as si_errno. It distinguishes their traps from
/// those of the program's filters.
pub const MARK: u16 = 0x6172;

const TRAP: u32 = libc::SECCOMP_RET_TRAP | MARK as u32;

/// Numbers that are trapped whatever the arguments, in addition to [`identity::NUMBERS`]. Programs make these calls
/// rarely. They may concern rings, the library's SIGSYS handler, or the stacks on which a patched call may be made.
/// They may also set a mask: if it blocked SIGSYS, the next trap would kill the program.
const ALWAYS: [i64; 6] = [
    libc::SYS_close_range,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_sigaltstack,
    libc::SYS_execve,
    libc::SYS_execveat,
];

/// The calls that a filter traps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// The calls of [`crate::dispatch`], except waits.
    OnRings,
    /// Waits on a ring's descriptor, which only matter once there is a ring.
    Waits,
    All,
}

impl Calls {
    pub fn include(self, other: Self) -> bool {
        self == Self::All || self == other
    }
}

/// The precision with which a filter compares addresses.
#[derive(Clone, Copy)]
pub enum Precision<'a> {
    /// The exact addresses of the instructions.
    Address,
    /// The instructions' offsets in their page, for every page in the same 4 GiB. Pages whose calls must reach the
    /// kernel are exempt.
    PlaceInPage { exempt: &'a [Range<usize>] },
}

/// A program for the kernel, and the addresses that it traps.
pub struct Filter {
    pub program: Vec<sock_filter>,
    pub calls: Calls,
    at: Vec<Addresses>,
}

impl Filter {
    /// True if the filter traps the instruction that ends at the address `return_address`.
    pub fn traps_at(&self, return_address: usize) -> bool {
        self.at.iter().any(|range| range.contains(return_address))
    }
}

/// Builds the filters that trap `calls` at `objects`, as few as the length limit allows. Leaves out each instruction
/// for which `are_trapped` returns true, given the address after the instruction.
pub fn filters<'a>(
    calls: Calls,
    precision: Precision,
    objects: impl IntoIterator<Item = &'a Object>,
    are_trapped: impl Fn(usize) -> bool,
) -> Vec<Filter> {
    let mut head = head(calls);
    let mask = match precision {
        Precision::Address => u32::MAX,
        Precision::PlaceInPage { exempt } => {
            let exempt = exempt.iter().flat_map(|code| addresses(code, [].into_iter(), u32::MAX));
            exempt.for_each(|range| search(&mut head, &range, ALLOW));
            IN_PAGE
        }
    };
    let ranges = objects.into_iter().flat_map(|object| {
        let return_address = object
            .sites
            .iter()
            .map(|site| site + scan::SYSCALL.len())
            .filter(|return_address| !are_trapped(*return_address));
        let at_sites = addresses(&object.code, return_address, mask).filter(|range| !range.exact.is_empty());
        let islands = object.islands.range();
        let in_islands = (!islands.is_empty()).then(|| addresses(&islands, [].into_iter(), u32::MAX));
        at_sites.chain(in_islands.into_iter().flatten())
    });
    let (mut filters, empty) = (Vec::new(), || Filter { program: head.clone(), calls, at: Vec::new() });
    let mut filter = empty();
    for mut range in ranges {
        // An object with more sites than one program can list is trapped as a whole: a superset.
        if size_of_search(&range) + head.len() >= LIMIT {
            (range.exact, range.mask) = (Vec::new(), u32::MAX);
        }
        if filter.program.len() + size_of_search(&range) + 1 > LIMIT {
            filters.push(core::mem::replace(&mut filter, empty()));
        }
        search(&mut filter.program, &range, TRAP);
        filter.at.push(range);
    }
    filters.push(filter);
    filters.retain(|filter| !filter.at.is_empty());
    filters.iter_mut().for_each(|filter| filter.program.push(ret(ALLOW)));
    filters
}

/// The bits of an address that are its offset in the page.
const IN_PAGE: u32 = 0xfff;

/// The addresses of one object's instructions, in two halves. As the kernel reports them, each is the address after the
/// instruction.
struct Addresses {
    high: u32,
    /// The whole executable segment.
    low: [u32; 2],
    /// The sorted values to compare the masked lower half with. Empty: the whole segment is trapped.
    exact: Vec<u32>,
    mask: u32,
}

impl Addresses {
    fn contains(&self, address: usize) -> bool {
        let low = address as u32;
        let found = match self.exact.is_empty() {
            true => (self.low[0]..=self.low[1]).contains(&low),
            false => self.exact.binary_search(&(low & self.mask)).is_ok(),
        };
        found && address >> 32 == self.high as usize
    }
}

/// Returns an entry for each 4 GiB that the segment touches: one entry or two.
fn addresses(
    code: &Range<usize>,
    return_address: impl Iterator<Item = usize> + Clone,
    mask: u32,
) -> impl Iterator<Item = Addresses> {
    bpf::by_upper_half(code).map(move |(high, low)| {
        // Take only as many as show that a filter program cannot hold all.
        let here = return_address.clone().filter(|at| (at >> 32) as u32 == high).take(2 * LIMIT);
        let mut exact: Vec<u32> = here.map(|at| at as u32 & mask).collect();
        exact.sort_unstable();
        exact.dedup();
        Addresses { high, low, exact, mask }
    })
}

/// Loads and checks that come before any address.
fn head(calls: Calls) -> Vec<sock_filter> {
    let mut found = bpf::Calls::new();
    if calls.include(Calls::OnRings) {
        let aio = if backend::finds_aio() { &AIO_CALLS[..] } else { &[] };
        ALWAYS.iter().chain(&identity::NUMBERS).chain(aio).for_each(|number| found.always(*number));
        found.all(NR_IO_URING_SETUP, NR_IO_URING_REGISTER);
        named::find(&mut found);
    }
    if calls.include(Calls::Waits) {
        arch::WAITS.iter().for_each(|number| found.always(*number));
        found.within(arch::SELECTS, 0, RING_NUMBERS.start + 1..i32::MAX);
    }
    found.end()
}

/// Appends the search for one object's addresses. If the call's address is one of them, the program ends with `action`.
/// Otherwise it continues after the search.
fn search(program: &mut Vec<sock_filter>, range: &Addresses, action: u32) {
    let from = program.len();
    if range.exact.is_empty() {
        program.extend(bpf::in_range((range.high, range.low), action));
    } else {
        let ([lower, upper], size) = (bpf::ADDRESS, size_of_search(range));
        program.extend([load(upper), same(range.high, 1), skip(size as u32 - 3), load(lower)]);
        if range.mask != u32::MAX {
            program.push(bpf::mask(range.mask));
        }
        tree(program, &range.exact, from + size);
    }
    debug_assert_eq!(program.len(), from + size_of_search(range));
}

/// Skips `over` instructions if the loaded half of the address equals `half`.
fn same(half: u32, over: u8) -> sock_filter {
    match mutated(Mutation::FilterIgnoresTheAddress) {
        true => jump(AT_LEAST, 0, over, 0),
        false => jump(EQUAL, half, over, 0),
    }
}

/// Number of addresses that are compared one after the other at the end of a binary search.
const LEAF: usize = 16;

/// Appends a search among sorted `exact`. If none of them is equal, the program continues at `end`.
fn tree(program: &mut Vec<sock_filter>, exact: &[u32], end: usize) {
    if exact.len() <= LEAF {
        for (index, address) in exact.iter().enumerate() {
            // Skips the remaining comparisons and the jump to the end.
            program.push(same(*address, (exact.len() - index) as u8));
        }
        program.push(skip((end - program.len() - 1) as u32));
        program.push(ret(TRAP));
        return;
    }
    let (left, right) = exact.split_at(exact.len() / 2);
    program.push(jump(AT_LEAST, right[0], 0, 1));
    program.push(skip(size_of_tree(left.len()) as u32));
    tree(program, left, end);
    tree(program, right, end);
}

fn size_of_tree(addresses: usize) -> usize {
    if addresses <= LEAF {
        return addresses + 2;
    }
    let left = addresses / 2;
    2 + size_of_tree(left) + size_of_tree(addresses - left)
}

fn size_of_search(range: &Addresses) -> usize {
    match range.exact.len() {
        0 => bpf::SIZE_IN_RANGE,
        addresses => 4 + usize::from(range.mask != u32::MAX) + size_of_tree(addresses),
    }
}

#[cfg(test)]
mod tests {
    use super::super::island::Region;
    use super::*;
    use anyring_serve::filters::bpf::{ABOVE, NATIVE};
    use libc::seccomp_data;

    /// Runs a program of the few instructions that are used here.
    fn run(program: &[sock_filter], data: &seccomp_data) -> u32 {
        // SAFETY: seccomp_data is 64 bytes of integers without padding.
        let words: [u32; 16] = unsafe { core::mem::transmute(*data) };
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let test = match u32::from(code) {
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    accumulator = words[k as usize / 4];
                    continue;
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                    accumulator &= k;
                    continue;
                }
                code if code == libc::BPF_JMP | libc::BPF_JA => {
                    at += k as usize;
                    continue;
                }
                code if code == libc::BPF_JMP | EQUAL | libc::BPF_K => accumulator == k,
                code if code == libc::BPF_JMP | AT_LEAST | libc::BPF_K => accumulator >= k,
                code if code == libc::BPF_JMP | ABOVE | libc::BPF_K => accumulator > k,
                code => panic!("unexpected instruction {code:#x}"),
            };
            at += usize::from(if test { jt } else { jf });
        }
    }

    fn programs(calls: Calls, precision: Precision, objects: &[Object]) -> Vec<Vec<sock_filter>> {
        filters(calls, precision, objects, |_| false).into_iter().map(|filter| filter.program).collect()
    }

    fn verdict(programs: &[Vec<sock_filter>], nr: i64, args: [u64; 6], site: usize) -> u32 {
        let data = seccomp_data { nr: nr as i32, arch: NATIVE, instruction_pointer: site as u64 + 2, args };
        // The lowest action wins, as in the kernel.
        programs.iter().map(|program| run(program, &data)).min().unwrap_or(ALLOW)
    }

    fn object(start: usize, sites: impl Iterator<Item = usize>) -> Object {
        let sites = sites.map(|offset| start + offset).collect();
        let code = start..start + 0x100_0000;
        let islands = Region::default();
        Object { code, sites, is_plain: true, enters: false, may_change_identity: false, name: 0, islands }
    }

    #[test]
    fn a_filter_traps_ring_calls_at_sites_only() {
        let object = object(0x7f12_3400_0000, (0..100).map(|index| index * 48 + 7));
        let programs = programs(Calls::OnRings, Precision::Address, std::slice::from_ref(&object));
        assert_eq!(programs.len(), 1);
        for nr in 420..432 {
            let expected = if (425..=427).contains(&nr) { TRAP } else { ALLOW };
            for site in &object.sites {
                assert_eq!(verdict(&programs, nr, [0; 6], *site), expected, "{nr} at {site:#x}");
                assert_eq!(verdict(&programs, nr, [0; 6], site + 1), ALLOW);
                assert_eq!(verdict(&programs, nr, [0; 6], site + (1 << 32)), ALLOW);
            }
        }
    }

    #[test]
    fn a_filter_traps_other_calls_by_descriptor() {
        let object = object(0x5555_0000_0000, [16, 90].into_iter());
        let programs = programs(Calls::OnRings, Precision::Address, std::slice::from_ref(&object));
        for (number, argument) in named::trapped() {
            for (value, expected) in
                [(511, ALLOW), (512, TRAP), (4096, TRAP), (65_535, TRAP), (65_536, ALLOW), (u64::MAX, ALLOW)]
            {
                let mut args = [1; 6];
                args[argument] = value;
                assert_eq!(verdict(&programs, number, args, object.sites[1]), expected, "{number} {value}");
                assert_eq!(verdict(&programs, number, args, object.sites[1] + 4), ALLOW);
            }
        }
        for number in ALWAYS.into_iter().chain(identity::NUMBERS) {
            assert_eq!(verdict(&programs, number, [0; 6], object.sites[0]), TRAP);
            assert_eq!(verdict(&programs, number, [0; 6], 16), ALLOW);
        }
        for (fd, expected) in [(0, TRAP), (2, TRAP), (3, ALLOW)] {
            assert_eq!(verdict(&programs, libc::SYS_close, [fd; 6], object.sites[0]), expected, "{fd}");
        }
        assert_eq!(verdict(&programs, libc::SYS_read, [600; 6], object.sites[0]), ALLOW);
    }

    #[test]
    fn a_filter_traps_waits_that_may_be_on_a_ring() {
        let object = object(0x5555_0000_0000, [16, 90].into_iter());
        let programs = programs(Calls::Waits, Precision::Address, std::slice::from_ref(&object));
        let cases = [
            (libc::SYS_poll, 0, TRAP),
            (libc::SYS_ppoll, 0, TRAP),
            (libc::SYS_select, 512, ALLOW),
            (libc::SYS_select, 513, TRAP),
            (libc::SYS_pselect6, 512, ALLOW),
            (libc::SYS_pselect6, 1024, TRAP),
            (libc::SYS_read, 513, ALLOW),
            (libc::SYS_epoll_wait, 513, ALLOW),
        ];
        for (number, first, expected) in cases {
            let args = [first, 1, 1, 1, 1, 1];
            assert_eq!(verdict(&programs, number, args, object.sites[1]), expected, "{number} {first}");
            assert_eq!(verdict(&programs, number, args, object.sites[1] + 4), ALLOW);
        }
    }

    #[test]
    fn many_sites_are_split_and_too_many_are_widened() {
        let many: Vec<Object> =
            (0..4).map(|index| object(0x7f00_0000_0000 + (index << 28), (0..1500).map(|at| at * 8))).collect();
        let split = programs(Calls::OnRings, Precision::Address, &many);
        assert!(split.len() > 1 && split.iter().all(|program| program.len() <= LIMIT));
        for object in &many {
            assert_eq!(verdict(&split, 426, [0; 6], object.sites[1499]), TRAP);
            assert_eq!(verdict(&split, 426, [0; 6], object.sites[1499] + 4), ALLOW);
        }
        let huge = object(0x7f00_0000_0000, (0..9000).map(|at| at * 8));
        let wide = programs(Calls::OnRings, Precision::Address, std::slice::from_ref(&huge));
        assert_eq!(wide.len(), 1);
        assert_eq!(verdict(&wide, 426, [0; 6], huge.sites[3] + 1), TRAP);
        assert_eq!(verdict(&wide, 426, [0; 6], huge.code.end), ALLOW);
    }
    #[test]
    fn one_filter_traps_all() {
        let object = object(0x5555_0000_0000, [16, 90].into_iter());
        let all = programs(Calls::All, Precision::Address, std::slice::from_ref(&object));
        assert_eq!(all.len(), 1);
        let numbers = ALWAYS
            .iter()
            .chain(arch::WAITS)
            .copied()
            .chain(named::trapped().map(|(number, _)| number))
            .chain(arch::SELECTS.iter().copied());
        for number in numbers.chain([425, 426, 427]) {
            assert_eq!(verdict(&all, number, [600; 6], object.sites[1]), TRAP, "{number}");
            assert_eq!(verdict(&all, number, [600; 6], object.sites[1] + 4), ALLOW, "{number}");
        }
        for number in [0, 1, 17, 202, 257, 424, 428] {
            assert_eq!(verdict(&all, number, [600; 6], object.sites[1]), ALLOW, "{number}");
        }
    }

    #[test]
    fn a_plugin_that_comes_back_elsewhere_is_trapped() {
        const WINDOW: usize = 0x7f12_0000_0000;
        let plugin = object(WINDOW + 0x3400_0000, [16, 90, 0x1010, 0x2345].into_iter());
        let exempt = [WINDOW + 0x8000..WINDOW + 0xa000, 0x7f13_0000_0000..0x7f13_0000_1000];
        let precision = Precision::PlaceInPage { exempt: &exempt };
        let built = filters(Calls::OnRings, precision, std::slice::from_ref(&plugin), |_| false);
        let traps_at = |return_address| built.iter().any(|filter| filter.traps_at(return_address));
        let programs: Vec<_> = built.iter().map(|filter| filter.program.clone()).collect();
        assert_eq!(programs.len(), 1);
        for base in [WINDOW, WINDOW + 0x7000, WINDOW + 0xa000, WINDOW + 0x3400_0000, WINDOW + 0xffff_0000] {
            for site in [16, 90, 0x345] {
                assert_eq!(verdict(&programs, 426, [0; 6], base + site), TRAP, "{base:#x} {site}");
                assert!(traps_at(base + site + scan::SYSCALL.len()));
            }
            for other in [0, 14, 18, 91, 0x346] {
                assert_eq!(verdict(&programs, 426, [0; 6], base + other), ALLOW, "{base:#x} {other}");
                assert!(!traps_at(base + other + 2));
            }
        }
        for elsewhere in [WINDOW + 0x8000, WINDOW + 0x9000, 0x7f13_0000_0000, 0x7f13_0000_1000, 0x40_0000] {
            assert_eq!(verdict(&programs, 426, [0; 6], elsewhere + 16), ALLOW, "{elsewhere:#x}");
        }
        // Nothing is left to trap.
        let moved = object(WINDOW + 0x5678_0000, [16, 90, 0x1010].into_iter());
        assert!(filters(Calls::OnRings, precision, std::slice::from_ref(&moved), traps_at).is_empty());
    }
}
