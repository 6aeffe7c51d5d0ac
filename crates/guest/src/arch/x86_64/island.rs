//! Islands: the pieces of code to which patched instructions jump.
//!
//! An island compares the call's number. If the call must be served, it finds the thread's record and jumps to
//! [`patched`]. It makes any other call itself, without a change of worlds. The filter may trap that call, since it
//! treats islands like the guest's code.
//!
//! An island uses no stack and changes no flag. Like the instruction, it changes only rcx and r11; rax is restored
//! before any other code reads it. For a signal handler, the thread is at the instruction that was patched
//! ([`super::patch::set_back`]).

use super::crossing::patched;
use super::fast;
use crate::world::Block;
use anyring_serve::patch::ahead;
use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::jump::{make_executable, map_at, unmap, Jump};
use anyring_serve::patch::origin::{island_at, record_origin};
use anyring_serve::patch::run::MOVED_AT_MOST;
use core::mem::{offset_of, size_of};

/// The data of an island's code, stored after it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Data {
    /// The number of the calls that are served.
    pub number: u64,
    /// The address of the `syscall`.
    pub site: usize,
    /// The address after the `syscall`.
    pub return_address: usize,
    /// The address of the island's code that makes the call by a trap.
    pub miss: usize,
    table: usize,
    nobody: usize,
    entry: usize,
    /// The values of rax with which a call by [`Data::miss`], and calls of the other numbers, trap.
    trapping: [u64; 3],
}

impl Data {
    /// Returns the value of rax with which the original `syscall` makes a call of `number`. If a filter would kill
    /// for that call, the value names another call in its lower half, so that the instruction traps.
    pub fn at_site(&self, number: u64) -> u64 {
        let is_killed = self.trapping[0] != self.number && ahead::NUMBERS.contains(&(number as u32));
        if is_killed {
            ahead::trapping(number as u32)
        } else {
            number
        }
    }
}

/// The calls that an island serves.
pub struct Calls {
    /// The number of the frequent call, which the island serves itself.
    pub number: u32,
    /// The numbers of other calls, which are made by a trap.
    pub others: [u32; 2],
    /// Returns the value of rax with which a call of this number traps.
    pub trapping: fn(u32) -> u64,
}

impl Calls {
    /// Returns the calls of an instruction that has trapped. The island makes any other call itself.
    pub fn trapped(number: u32) -> Self {
        Self { number, others: [number; 2], trapping: u64::from }
    }

    /// Returns the calls of an instruction that is replaced before it runs.
    pub fn ahead() -> Self {
        let [setup, enter, register] = ahead::NUMBERS;
        Self { number: enter, others: [setup, register], trapping: ahead::trapping }
    }
}

core::arch::global_asm!(
    ".pushsection .rodata.anyring_island, \"a\", @progbits",
    ".p2align 3",
    ".irp n,start,minus,minus_first,minus_second,made,lookup,miss,data\n.globl anyring_island_\\n\n.hidden anyring_island_\\n\n.endr",
    "anyring_island_start:",
    // lea ecx, [rax - number]
    ".byte 0x8d, 0x88",
    "anyring_island_minus:",
    ".long 0",
    "jrcxz 2f",
    // The same comparison with the numbers of the other two calls.
    ".byte 0x8d, 0x88",
    "anyring_island_minus_first:",
    ".long 0",
    "jrcxz 4f",
    ".byte 0x8d, 0x88",
    "anyring_island_minus_second:",
    ".long 0",
    "jrcxz 5f",
    "anyring_island_native:",
    "syscall",
    "anyring_island_made:",
    "mov rcx, [rip + anyring_island_data + 16]", // the address after the `syscall`, which leaves it there
    "notrack jmp qword ptr [rip + anyring_island_data + 16]",
    "4:",
    "mov rax, [rip + anyring_island_data + 64]",
    "jmp anyring_island_native",
    "5:",
    "mov rax, [rip + anyring_island_data + 72]",
    "jmp anyring_island_native",
    "2:",
    "rdfsbase rcx",
    "lea r11, [rcx + rcx * 8]",
    "rorx r11, r11, 12",
    "movzx r11d, r11w",
    "anyring_island_lookup:", // from here on rax is not the number
    "mov rax, [rip + anyring_island_data + 32]",
    "mov rax, [rax + r11 * 8]",
    "mov r11, [rip + anyring_island_data + 40]",
    "lea rax, [rax + r11]",
    "mov r11, [rax + {minus_tp}]",
    "lea rcx, [rcx + r11]",
    "jrcxz 3f",
    "anyring_island_miss:",
    "mov rax, [rip + anyring_island_data + 56]",
    "jmp anyring_island_native",
    "3:",
    "lea r11, [rip + anyring_island_data]",
    "jmp qword ptr [rip + anyring_island_data + 48]",
    ".p2align 3",
    "anyring_island_data:",
    ".popsection",
    minus_tp = const offset_of!(Block, minus_tp),
);

unsafe extern "C" {
    static anyring_island_start: u8;
    static anyring_island_minus: u8;
    static anyring_island_minus_first: u8;
    static anyring_island_minus_second: u8;
    static anyring_island_made: u8;
    static anyring_island_lookup: u8;
    static anyring_island_miss: u8;
    static anyring_island_data: u8;
}

/// Returns the offset of a label in the template, which follows the moved instructions of an island.
fn offset(label: *const u8) -> usize {
    label as usize - (&raw const anyring_island_start) as usize
}

/// The size of an island, in bytes.
const SIZE: usize = 320;
const CODE_AT_MOST: usize = SIZE - MOVED_AT_MOST - size_of::<Data>() - 8;

/// Returns the offset of the template in an island that begins with `moved` bytes of moved instructions. Nops fill the
/// gap.
fn template_at(moved: usize) -> usize {
    moved.next_multiple_of(8)
}

/// Builds an island for `jump`, which serves these calls by the `syscall` at the address `site`. The island begins with
/// the `moved` instructions. Returns its address.
///
/// # Errors
/// The reason why there is none.
pub fn build(
    jump: &Jump,
    calls: &Calls,
    site: usize,
    moved: &[u8],
    is_fit: impl Fn(usize) -> bool,
) -> Result<usize, &'static str> {
    const NOP: u8 = 0x90;
    let places = jump.places().into_iter().filter(|at| is_fit(*at) && is_fit(at + SIZE));
    let address = places.into_iter().find(|at| map_at(*at, SIZE)).ok_or("there is no free page in reach of it")?;
    let (data_at, start) = (offset(&raw const anyring_island_data), template_at(moved.len()));
    let island = address + start;
    let data = Data {
        number: u64::from(calls.number),
        site,
        return_address: site + SYSCALL.len(),
        miss: island + offset(&raw const anyring_island_miss),
        table: fast::table(),
        nobody: fast::nobody(),
        entry: patched as *const () as usize,
        trapping: [calls.number, calls.others[0], calls.others[1]].map(calls.trapping),
    };
    // SAFETY: the pages are new, writable, larger than all of this, and nothing else uses them. `Data` comes at a
    // multiple of 8.
    unsafe {
        let template = core::slice::from_raw_parts(&raw const anyring_island_start, data_at.min(CODE_AT_MOST));
        let to = address as *mut u8;
        core::ptr::write_bytes(to, NOP, start);
        core::ptr::copy_nonoverlapping(moved.as_ptr(), to, moved.len());
        core::ptr::copy_nonoverlapping(template.as_ptr(), to.add(start), template.len());
        for (number, label) in [
            (calls.number, &raw const anyring_island_minus),
            (calls.others[0], &raw const anyring_island_minus_first),
            (calls.others[1], &raw const anyring_island_minus_second),
        ] {
            to.add(start + offset(label)).cast::<u32>().write_unaligned(number.wrapping_neg());
        }
        to.add(start + data_at).cast::<Data>().write(data);
    }
    if data_at > CODE_AT_MOST || !make_executable(address, SIZE) {
        unmap(address, SIZE);
        return Err("new code cannot be made executable");
    }
    if !record_origin(0, address, moved.len(), jump.from) {
        unmap(address, SIZE);
        return Err("too many others are patched");
    }
    Ok(address)
}

/// Unmaps an island that [`build`] has returned, if no jump to it was stored.
pub fn remove(address: usize) {
    anyring_serve::patch::origin::forget(address);
    unmap(address, SIZE);
}

/// The place at which a signal interrupted a thread on an island, as its handler must see it.
pub enum Met {
    /// A moved instruction of the guest. The value is its original address.
    Moved(usize),
    /// A place before the call. All registers are as at the `syscall`; if `number` is given, rax must be set to it first.
    Before { data: &'static Data, number: Option<u64> },
    /// A place after the call. The guest continues at this address.
    Behind(usize),
}

/// Returns the place in the guest's code to which an address on an island corresponds. `None` for any other
/// address.
pub fn met(address: usize) -> Option<Met> {
    let (island, moved, from) = island_at(address, SIZE)?;
    if address < island + moved {
        return Some(Met::Moved(from + (address - island)));
    }
    let start = template_at(moved);
    // SAFETY: `build` has put it there, and listed islands stay.
    let data = unsafe { &*((island + start + offset(&raw const anyring_island_data)) as *const Data) };
    let Some(at) = address.checked_sub(island + start) else {
        return Some(Met::Before { data, number: None });
    };
    let is_made =
        at >= offset(&raw const anyring_island_made) && at < offset(&raw const anyring_island_made) + AFTER;
    let is_lost = at > offset(&raw const anyring_island_lookup);
    Some(match (is_made, is_lost) {
        (true, _) => Met::Behind(data.return_address),
        (_, lost) => Met::Before { data, number: lost.then_some(data.number) },
    })
}

/// Size of the code after a call, in bytes: a load and a jump.
const AFTER: usize = 7 + 7;
