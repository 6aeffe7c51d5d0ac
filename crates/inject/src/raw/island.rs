//! Where a patched instruction jumps to: code of ours in reach of it, and how a fault there is told.
//!
//! A jump of five bytes has to be written into the bytes of one instruction that lie within one aligned word of eight. Where
//! these are fewer, what follows stays as it is and becomes the upper part of the distance: the island is put where that
//! leads to, which mostly is an empty part of the address space (instruction punning).
//!
//! What is moved may read and write the program's memory. When that faults, the program's handler, or whoever reads its
//! core, is told of the instruction where it stood: [`tell_origin`] sees SIGSEGV and SIGBUS first, and sets the
//! instruction pointer back. Nothing else differs there, so a handler may also return to it.

use super::patch::patched;
use super::run::{Start, MOVED_AT_MOST};
use super::scan::SYSCALL;
use crate::signals;
use crate::sys;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use libc::{siginfo_t, ucontext_t};

pub const PAGE: usize = 4096;
/// The bytes of `jmp rel32`.
pub const JUMP: usize = 5;

/// A jump to an island that is yet to be built.
#[derive(Debug)]
pub struct Jump {
    /// The address of the instruction that it replaces.
    pub from: usize,
    /// How many of its bytes are written; the others are there.
    pub written: usize,
    /// The smallest distance that is possible, and the number of them.
    distance: isize,
    window: usize,
}

impl Jump {
    /// The jump at `start`, before the `syscall` at `site`, in `code`, which begins at the address `base`. `None` where no
    /// island could be.
    pub fn new(code: &[u8], base: usize, start: &Start, site: usize) -> Option<Self> {
        // Closer is the program itself, and above it its heap: allocators go on by mmap(2) where that ends.
        const BELOW: isize = -(1 << 20);
        const ABOVE: isize = 1 << 26;
        let from = base + start.offset;
        let written = start.length.min(JUMP).min(8 - from % 8);
        if written == JUMP {
            return Some(Self { from, written, distance: 0, window: usize::MAX });
        }
        // The bytes that stay must never change: they belong to this patch, down to the `syscall`.
        if written < 2 || start.offset + JUMP > site + SYSCALL.len() {
            return None;
        }
        let mut distance = [0; 4];
        distance[written - 1..].copy_from_slice(&code[start.offset + written..start.offset + JUMP]);
        let distance = i32::from_le_bytes(distance) as isize;
        let apart = !(BELOW..ABOVE).contains(&distance);
        apart.then_some(Self { from, written, distance, window: 1 << (8 * (written - 1)) })
    }

    /// Whether the island may be anywhere in reach.
    pub fn is_free(&self) -> bool {
        self.written == JUMP
    }

    /// Whether the island has to be above, where memory grows.
    pub fn leads_up(&self) -> bool {
        self.distance > 0
    }

    /// Where the island may be tried, the best places first. Rather below: above the program itself its heap grows.
    fn places(&self) -> Vec<usize> {
        const STEP: usize = 1 << 20;
        const REACH: usize = (1 << 31) - 2 * STEP;
        // A null pointer with an offset should keep faulting.
        const LOWEST: usize = STEP;
        if self.is_free() {
            let here = self.from & !(STEP - 1);
            let below = (1..REACH / STEP).map_while(|steps| here.checked_sub(steps * STEP));
            let above = (1..REACH / STEP).map_while(|steps| here.checked_add(steps * STEP));
            return below.filter(|at| *at >= LOWEST).chain(above).collect();
        }
        let Some(first) = (self.from + JUMP).checked_add_signed(self.distance).filter(|at| *at >= LOWEST) else {
            return Vec::new();
        };
        let (alignment, tries) = if self.window > 2 * PAGE { (PAGE, 14) } else { (align_of::<Island>(), 1) };
        let step = (self.window / 16).next_multiple_of(alignment);
        (0..tries).map(|index| first.next_multiple_of(alignment) + index * step).collect()
    }

    /// Whether its bytes that stay let it lead to `island`.
    fn leads_from(&self, island: usize) -> bool {
        let distance = (island as isize).wrapping_sub((self.from + JUMP) as isize);
        i32::try_from(distance).is_ok()
            && (self.is_free()
                || (self.distance..).contains(&distance) && distance - self.distance < self.window as isize)
    }

    /// The bytes that make it lead to `island`, of which [`Jump::written`] are to be written.
    pub fn bytes(&self, island: usize) -> [u8; JUMP] {
        let distance = (island as isize - (self.from + JUMP) as isize) as i32; // `places` are in reach
        let [a, b, c, d] = distance.to_le_bytes();
        [0xe9, a, b, c, d]
    }
}

/// Room for the instructions of an island: those that are moved there, and [`Island::build`]'s own.
const CODE_LENGTH: usize = 80;
const _: () = assert!(MOVED_AT_MOST + 6 + 2 + 7 + 7 + 6 <= CODE_LENGTH);

/// To which one patched instruction jumps.
#[repr(C)]
pub struct Island {
    /// Does what stood before the `syscall`. If the number is the expected one, loads the address of `call` and jumps to
    /// [`patched`], else to the `syscall`.
    code: [u8; CODE_LENGTH],
    /// The address of [`patched`].
    entry: usize,
    call: Call,
}

/// What [`patched`] has to know about the instruction that was patched.
#[repr(C)]
pub struct Call {
    /// The address of the `syscall`.
    pub site: usize,
    /// The address behind it.
    pub behind: usize,
    pub number: u64,
}

/// The code of an island before which `moved` is done: no instruction of ours changes a flag.
fn code_of(number: u32, moved: &[u8]) -> [u8; CODE_LENGTH] {
    let mut code = [0xcc; CODE_LENGTH];
    let mut end = 0;
    let mut append = |bytes: &[u8]| {
        code[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
        end
    };
    let field = |offset: usize, behind: usize| (offset - behind) as u8;
    let behind_moved = append(moved);
    // lea -number(%rax), %ecx; jrcxz over the next; notrack jmp *site(%rip)
    let [a, b, c, d] = number.wrapping_neg().to_le_bytes();
    append(&[0x8d, 0x88, a, b, c, d, 0xe3, 7]);
    let site = offset_of!(Island, call) + offset_of!(Call, site);
    append(&[0x3e, 0xff, 0x25, field(site, behind_moved + 15), 0, 0, 0]);
    // lea call(%rip), %r11; jmp *entry(%rip)
    append(&[0x4c, 0x8d, 0x1d, field(offset_of!(Island, call), behind_moved + 22), 0, 0, 0]);
    append(&[0xff, 0x25, field(offset_of!(Island, entry), behind_moved + 28), 0, 0, 0]);
    code
}

impl Island {
    /// Maps an island for `jump` and the `syscall` of `number` at the address `site`, before which `moved` is done, and
    /// answers its address. Faults there are told as the program's from now on.
    pub fn build(object: u64, jump: &Jump, number: u32, site: usize, moved: &[u8]) -> Result<usize, &'static str> {
        let address =
            jump.places().into_iter().find(|at| map_at(*at)).ok_or("there is no free page in reach of it")?;
        let call = Call { site, behind: site + SYSCALL.len(), number: u64::from(number) };
        let island = Self { code: code_of(number, moved), entry: patched as *const () as usize, call };
        // SAFETY: the pages are new, writable, hold an island there, aligned, and nobody else knows them.
        unsafe { (address as *mut Self).write(island) };
        let (start, size) = pages(address);
        let protection = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        // SAFETY: the same pages.
        if unsafe { sys::call(libc::SYS_mprotect, [start, size, protection, 0, 0, 0]) } < 0 {
            Self::unmap(address);
            return Err("new code cannot be made executable");
        }
        if !note_origin(object, address, moved.len(), jump.from) {
            Self::unmap(address);
            return Err("too many others are patched");
        }
        Ok(address)
    }

    /// Takes back what [`Island::build`] answered, if no jump to it was stored.
    pub fn remove(address: usize) {
        for origin in &ORIGINS {
            if origin.island.load(Ordering::Relaxed) == address {
                origin.island.store(0, Ordering::Relaxed);
            }
        }
        Self::unmap(address);
    }

    /// Removes those of objects that `is_mapped` does not know any more.
    pub fn remove_unmapped(is_mapped: impl Fn(u64) -> bool) {
        for origin in &ORIGINS {
            let island = origin.island.load(Ordering::Relaxed);
            if island != 0 && !is_mapped(origin.object.load(Ordering::Relaxed)) {
                Self::remove(island);
            }
        }
    }

    /// Whether there is one for the `syscall` before the address `behind`.
    pub fn has_site_before(behind: usize) -> bool {
        let islands = ORIGINS.iter().map(|origin| origin.island.load(Ordering::Relaxed));
        // SAFETY: `build` has put an island there, which stays until it is removed, under the same lock.
        islands
            .filter(|address| *address != 0)
            .any(|address| unsafe { (*(address as *const Self)).call.behind } == behind)
    }

    /// One that was built for the same: the object was mapped anew since, at its place. Perhaps a jump leads to it.
    pub fn built_before(jump: &Jump, number: u32, site: usize, moved: &[u8]) -> Option<usize> {
        let code = code_of(number, moved);
        ORIGINS.iter().map(|origin| origin.island.load(Ordering::Relaxed)).find(|address| {
            if *address == 0 {
                return false;
            }
            // SAFETY: `build` has put an island there, which stays until it is removed, under the same lock.
            let island = unsafe { &*(*address as *const Self) };
            island.code == code && island.call.site == site && jump.leads_from(*address)
        })
    }

    fn unmap(address: usize) {
        let (start, size) = pages(address);
        // SAFETY: called with an island that nothing leads to.
        unsafe { sys::call(libc::SYS_munmap, [start, size, 0, 0, 0, 0]) };
    }
}

/// The pages of an island at `address`: one, or two.
fn pages(address: usize) -> (usize, usize) {
    let start = address & !(PAGE - 1);
    (start, (address + size_of::<Island>()).next_multiple_of(PAGE) - start)
}

fn map_at(address: usize) -> bool {
    let (start, size) = pages(address);
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let args = [start, size, protection as usize, flags as usize, usize::MAX, 0];
    // SAFETY: a new private mapping, which replaces none. A kernel older than MAP_FIXED_NOREPLACE takes the address as
    // a hint; what it mapped elsewhere is unmapped again.
    unsafe {
        let mapped = sys::call(libc::SYS_mmap, args);
        if mapped > 0 && mapped as usize != start {
            sys::call(libc::SYS_munmap, [mapped as usize, size, 0, 0, 0, 0]);
        }
        mapped == start as isize
    }
}

/// Where the instructions at the beginning of an island come from.
struct Origin {
    /// Its address, or 0 before the first use.
    island: AtomicUsize,
    /// [`super::object::Object::identity`].
    object: AtomicU64,
    length: AtomicUsize,
    address: AtomicUsize,
}

/// As many as instructions are counted. Filled under the lock of [`super::KNOWN`].
static ORIGINS: [Origin; super::patch::COUNTED] = [const {
    Origin {
        island: AtomicUsize::new(0),
        object: AtomicU64::new(0),
        length: AtomicUsize::new(0),
        address: AtomicUsize::new(0),
    }
}; super::patch::COUNTED];

fn note_origin(object: u64, island: usize, length: usize, address: usize) -> bool {
    let Some(free) = ORIGINS.iter().find(|origin| origin.island.load(Ordering::Relaxed) == 0) else { return false };
    free.object.store(object, Ordering::Relaxed);
    free.length.store(length, Ordering::Relaxed);
    free.address.store(address, Ordering::Relaxed);
    // Release pairs with the Acquire in `tell_origin`.
    free.island.store(island, Ordering::Release);
    true
}

/// The place of the program's instruction of which an island has a copy at `address`.
fn origin_of(address: usize) -> Option<usize> {
    ORIGINS.iter().find_map(|origin| {
        // Acquire pairs with the Release in `note_origin`.
        let within = address.checked_sub(origin.island.load(Ordering::Acquire))?;
        let is_copy = within < origin.length.load(Ordering::Relaxed);
        is_copy.then(|| origin.address.load(Ordering::Relaxed) + within)
    })
}

/// Puts what the program had in place of jumps to islands into `code`, a copy of what is at the address `base`.
pub fn restore(code: &mut [u8], base: usize) {
    for origin in &ORIGINS {
        // Acquire pairs with the Release in `note_origin`.
        let island = origin.island.load(Ordering::Acquire);
        let length = origin.length.load(Ordering::Relaxed);
        let offset = origin.address.load(Ordering::Relaxed).wrapping_sub(base);
        let behind = base.wrapping_add(offset).wrapping_add(JUMP);
        let Some([0xe9, distance @ ..]) = code.get(offset..offset.saturating_add(JUMP)) else { continue };
        let distance = i32::from_le_bytes(distance.try_into().expect("four bytes"));
        // Something else is there after dlclose(3).
        if island == 0 || behind.wrapping_add_signed(distance as isize) != island {
            continue;
        }
        let there = length.min(code.len() - offset);
        // SAFETY: a jump leads to the island, which stays mapped and begins with a copy of that many bytes.
        let moved = unsafe { core::slice::from_raw_parts(island as *const u8, there) };
        code[offset..offset + there].copy_from_slice(moved);
    }
}

/// Has faults on islands told as those of the program; false where that is not possible.
pub fn guard_faults() -> bool {
    let guarded = |signal: &i32| signals::install_guard(*signal, tell_origin).is_ok();
    !signals::in_borrowed_memory() && [libc::SIGSEGV, libc::SIGBUS].iter().all(guarded)
}

/// A fault at an instruction that was moved: it happened where that stands in the program. Never ours otherwise.
///
/// # Safety
/// As [`crate::signals::Guard`].
unsafe fn tell_origin(context: &mut ucontext_t, _info: &siginfo_t) -> bool {
    let instruction = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if let Some(origin) = origin_of(*instruction as usize) {
        *instruction = origin as i64;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::super::scan::{decode, length};
    use super::*;
    use yaxpeax_x86::long_mode::{Opcode, Operand, RegSpec};

    const BASE: usize = 0x5555_5555_4000;

    /// The jump at an instruction of `length` bytes at `offset` in code of the bytes 0, 1, ..., before the `syscall` at 60.
    fn jump(offset: usize, length: usize) -> Option<Jump> {
        let code: Vec<u8> = (0..64).collect();
        Jump::new(&code, BASE, &Start { offset, length, is_passed: false }, 60)
    }

    #[test]
    fn a_jump_within_one_word_leads_anywhere() {
        for offset in [16, 19] {
            let jump = jump(offset, 6).expect("five bytes");
            assert!(jump.is_free() && jump.written == JUMP);
            let places = jump.places();
            assert!(places[0] < BASE && places.iter().all(|place| place.abs_diff(BASE) < 1 << 31));
        }
    }

    #[test]
    fn bytes_that_stay_say_where_it_leads() {
        // Two bytes that stay, since the word ends, or the instruction: the byte before the last counts 64 Ki, the last 16 Mi.
        for (offset, length, written) in [(21, 6, 3), (16, 3, 3), (20, 7, 4), (17, 4, 4), (22, 5, 2)] {
            let jump = jump(offset, length).expect("a window");
            assert_eq!(jump.written, written);
            for place in jump.places() {
                let bytes = jump.bytes(place);
                let stay: Vec<u8> = (offset + written..offset + JUMP).map(|at| at as u8).collect();
                assert_eq!(bytes[written..], stay, "{offset}");
                let distance = i32::from_le_bytes(bytes[1..].try_into().expect("four bytes"));
                assert_eq!((BASE + offset + JUMP).wrapping_add_signed(distance as isize), place);
                assert!(distance as usize > 1 << 26 && place.is_multiple_of(align_of::<Island>()));
            }
            assert!(!jump.is_free() && jump.leads_up());
        }
    }

    #[test]
    fn a_jump_is_not_written_where_its_other_bytes_may_change_or_lead_nearby() {
        // One byte alone; bytes behind the `syscall`.
        assert!(jump(23, 5).is_none() && jump(16, 1).is_none());
        assert!(jump(57, 3).is_some() && jump(58, 2).is_none());
        // mov $426, %eax: its zeroes would lead to within 16 MiB. A negative distance leads down, but not below 1 MiB.
        let at = |code: &[u8], base| Jump::new(code, base, &Start { offset: 4, length: 5, is_passed: false }, 9);
        assert!(at(&[0x90, 0x90, 0x90, 0x90, 0xb8, 0xaa, 1, 0, 0, 0x0f, 0x05], BASE).is_none());
        let down = [0x90, 0x90, 0x90, 0x90, 0xb8, 0xaa, 1, 0, 0x80, 0x0f, 0x05];
        assert!(at(&down, BASE).is_some_and(|jump| !jump.leads_up() && jump.places()[0] < BASE - (1 << 30)));
        assert!(at(&down, 0x40_0000).is_some_and(|jump| jump.places().is_empty()));
        assert!(at(&[0x90, 0x90, 0x90, 0x90, 0xb8, 0xaa, 1, 0xff, 0xff, 0x0f, 0x05], BASE + 1).is_none());
    }

    #[test]
    fn an_island_does_what_was_moved_and_finds_its_fields() {
        let moved = [0xb8, 0xaa, 0x01, 0, 0, 0x31, 0xd2];
        let code = code_of(426, &moved);
        assert_eq!(code[..moved.len()], moved);
        let mut at = moved.len();
        let mut next = || {
            let instruction = decode(&code, at).expect("an instruction");
            at += length(&instruction);
            (instruction, at)
        };
        let leads_to = |operand: Operand, behind: usize| match operand {
            Operand::Disp { disp, .. } => behind.wrapping_add_signed(disp as isize),
            other => panic!("{other:?}"),
        };
        let (check, _) = next();
        let minus_number = Operand::Disp { base: RegSpec::rax(), disp: -426 };
        assert_eq!((check.opcode(), check.operand(1)), (Opcode::LEA, minus_number));
        let (over, behind_over) = next();
        assert_eq!(over.opcode(), Opcode::JRCXZ);
        let (back, behind_back) = next();
        let site = offset_of!(Island, call) + offset_of!(Call, site);
        assert_eq!((back.opcode(), leads_to(back.operand(0), behind_back)), (Opcode::JMP, site));
        assert_eq!(over.operand(0), Operand::ImmediateI8 { imm: (behind_back - behind_over) as i8 });
        let (call, behind) = next();
        assert_eq!((call.opcode(), leads_to(call.operand(1), behind)), (Opcode::LEA, offset_of!(Island, call)));
        let (jump, behind) = next();
        assert_eq!((jump.opcode(), leads_to(jump.operand(0), behind)), (Opcode::JMP, offset_of!(Island, entry)));
    }

    #[test]
    fn code_is_seen_as_the_program_has_it() {
        // or $1, %r10d, and the mov $426, %eax whose first byte its jump reaches into.
        let moved = [0x41, 0x83, 0xca, 0x01, 0xb8, 0xaa, 0x01, 0, 0];
        let island = moved.as_ptr() as usize;
        let from = island - 0x1000;
        let distance = ((island - from - JUMP) as u32).to_le_bytes();
        let patched = [&[0x90, 0xe9][..], &distance, &moved[JUMP..], &SYSCALL].concat();
        let original = [&[0x90][..], &moved, &SYSCALL].concat();
        assert!(note_origin(1, island, moved.len(), from));
        let mut code = patched.clone();
        restore(&mut code, from - 1);
        assert_eq!(code, original);
        // Cut off; the same bytes elsewhere; other bytes there.
        let mut code = patched[..8].to_vec();
        restore(&mut code, from - 1);
        assert_eq!(code, original[..8]);
        for (untouched, base) in [(&patched, from), (&original, from - 1)] {
            let mut code = untouched.clone();
            restore(&mut code, base);
            assert_eq!(&code, untouched);
        }
    }

    #[test]
    fn a_copy_is_known_by_its_original() {
        assert!(note_origin(1, 0x7000, 12, 0x5000));
        assert_eq!([0x6fff, 0x7000, 0x700b, 0x700c].map(origin_of), [None, Some(0x5000), Some(0x500b), None]);
    }
}
