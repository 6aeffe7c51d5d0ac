//! Islands: the code that a patched instruction jumps to.
//!
//! An island tells by the call's number whether it is one to be served, finds the thread, and goes to [`patched`]. Any other call
//! it makes itself, without a change of worlds, or by a trap where the filter says so: an island is where the guest's code is
//! trapped, too.
//!
//! It uses no stack and changes no flag, only rcx and r11, as the instruction does; rax is put back before anything sees it. A
//! signal handler is told of the instruction that was patched ([`crate::patch::set_back`]).

use crate::crossing::patched;
use crate::{fast, world};
use anyring_serve::patch::ahead;
use anyring_serve::patch::decode::SYSCALL;
use anyring_serve::patch::jump::{make_executable, map_at, unmap, Jump};
use anyring_serve::patch::origin::{island_at, note_origin};
use anyring_serve::patch::run::MOVED_AT_MOST;
use core::mem::size_of;

/// What the code of an island has to know, behind it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Data {
    /// The number of the calls that are served.
    pub number: u64,
    /// The address of the `syscall`.
    pub site: usize,
    /// The address behind it.
    pub behind: usize,
    /// The island's code by which the call traps.
    pub miss: usize,
    table: usize,
    nobody: usize,
    entry: usize,
    /// With which number a call by [`Data::miss`] traps, and one of the other numbers.
    trapping: [u64; 3],
}

impl Data {
    /// What a call of `number` is to be made by at the `syscall`, which may be there still: where it would be killed for, a trap.
    pub fn at_site(&self, number: u64) -> u64 {
        let is_killed = self.trapping[0] != self.number && ahead::NUMBERS.contains(&(number as u32));
        if is_killed {
            ahead::trapping(number as u32)
        } else {
            number
        }
    }
}

/// Which calls an island serves.
pub struct Calls {
    /// The hot one.
    pub number: u32,
    /// Others, which go by a trap.
    pub others: [u32; 2],
    /// With which numbers they trap.
    pub trapping: fn(u32) -> u64,
}

impl Calls {
    /// Those of an instruction that has trapped: any other call it makes itself.
    pub fn trapped(number: u32) -> Self {
        Self { number, others: [number; 2], trapping: u64::from }
    }

    /// Those of one that is replaced before it runs.
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
    // The same of the two others.
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
    "mov rcx, [rip + anyring_island_data + 16]", // behind, as the instruction leaves it
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
    "mov r11, [rax + {minus_fs}]",
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
    minus_fs = const world::MINUS_FS,
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

/// Where a label of the template is in an island, behind what was moved.
fn offset(label: *const u8) -> usize {
    label as usize - (&raw const anyring_island_start) as usize
}

/// Room for an island.
const SIZE: usize = 320;
const CODE_AT_MOST: usize = SIZE - MOVED_AT_MOST - size_of::<Data>() - 8;

/// Where the template begins in an island that begins with `moved` bytes: they are filled up with nops.
fn template_at(moved: usize) -> usize {
    moved.next_multiple_of(8)
}

/// Builds an island for `jump` and these calls by the `syscall` at the address `site`, before which `moved` is done: its address.
///
/// # Errors
/// Why there is none.
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
        behind: site + SYSCALL.len(),
        miss: island + offset(&raw const anyring_island_miss),
        table: fast::table(),
        nobody: fast::nobody(),
        entry: patched as *const () as usize,
        trapping: [calls.number, calls.others[0], calls.others[1]].map(calls.trapping),
    };
    // SAFETY: the pages are new, writable, larger than all of this, and nobody else knows them. `Data` comes at a multiple of 8.
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
    if !note_origin(0, address, moved.len(), jump.from) {
        unmap(address, SIZE);
        return Err("too many others are patched");
    }
    Ok(address)
}

/// Unmaps what [`build`] answered, if no jump to it was stored.
pub fn remove(address: usize) {
    anyring_serve::patch::origin::forget(address);
    unmap(address, SIZE);
}

/// Where a signal has met a thread on an island, as its handler is to see it.
pub enum Met {
    /// At an instruction of the guest's that was moved, which is there.
    Moved(usize),
    /// Before the call: all is as at the `syscall`, but for rax, which is to be its number if one is told.
    Before { data: &'static Data, number: Option<u64> },
    /// Behind the call.
    Behind(usize),
}

/// What an address on an island means; `None` for any other.
pub fn met(address: usize) -> Option<Met> {
    let (island, moved, from) = island_at(address, SIZE)?;
    if address < island + moved {
        return Some(Met::Moved(from + (address - island)));
    }
    let start = template_at(moved);
    // SAFETY: `build` has put it there, and islands that are listed stay.
    let data = unsafe { &*((island + start + offset(&raw const anyring_island_data)) as *const Data) };
    let Some(at) = address.checked_sub(island + start) else {
        return Some(Met::Before { data, number: None });
    };
    let is_made =
        at >= offset(&raw const anyring_island_made) && at < offset(&raw const anyring_island_made) + AFTER;
    let is_lost = at > offset(&raw const anyring_island_lookup);
    Some(match (is_made, is_lost) {
        (true, _) => Met::Behind(data.behind),
        (_, lost) => Met::Before { data, number: lost.then_some(data.number) },
    })
}

/// The bytes of the code behind a call: a load and a jump.
const AFTER: usize = 7 + 7;
