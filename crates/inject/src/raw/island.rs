//! Islands, the pieces of code to which patched instructions jump, and the reporting of faults in them.
//!
//! The moved instructions may read and write the program's memory. If one faults, the program's signal handler and
//! the core file show the instruction at its original place. For this, [`move_to_origin`] gets SIGSEGV and SIGBUS
//! first, and sets the instruction pointer back. All other registers have the same values at both places, so a
//! handler may also return to the original one.

use super::object::Object;
use super::patch::patched;
use super::scan::SYSCALL;
use crate::signals;
use anyring_serve::patch::jump::{make_executable, map_at, unmap, Jump};
use anyring_serve::patch::origin::{forget, islands, origin_of, record_origin};
use anyring_serve::patch::run::MOVED_AT_MOST;
use core::mem::{offset_of, size_of};
use core::ops::Range;
use libc::{siginfo_t, ucontext_t};

/// The most system call numbers for which one instruction is patched: those of io_uring.
const NUMBERS: usize = 3;
/// Bytes for the instructions of an island: the moved ones and [`Island::build`]'s own.
const CODE_LENGTH: usize = 120;
const _: () = assert!(MOVED_AT_MOST + NUMBERS * (CHECK + GO) + BACK <= CODE_LENGTH);
/// Bytes of the check of a number, of the jump back to the `syscall`, and of the code that jumps to [`patched`].
const CHECK: usize = 6 + 2;
const BACK: usize = 7;
const GO: usize = 7 + 6;

/// The target of one patched instruction's jump.
#[repr(C)]
pub struct Island {
    /// Runs the moved instructions. If rax then holds the number of one of `calls`, loads the address of that call and
    /// jumps to [`patched`]. Otherwise jumps to the `syscall`.
    code: [u8; CODE_LENGTH],
    /// The address of [`patched`].
    entry: usize,
    calls: [Call; NUMBERS],
}

/// The data about the patched instruction that [`patched`] needs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    /// The address of the `syscall`.
    pub site: usize,
    /// The address after the `syscall`.
    pub return_address: usize,
    pub number: u64,
    /// The number with which the `syscall` traps.
    pub trapping: u64,
}

/// Returns the code of an island that begins with `moved`. The instructions added to those change no flag.
fn code_of(numbers: &[u32], moved: &[u8]) -> [u8; CODE_LENGTH] {
    let mut code = [0xcc; CODE_LENGTH];
    let mut end = 0;
    let mut append = |bytes: &[u8]| {
        code[end..end + bytes.len()].copy_from_slice(bytes);
        end += bytes.len();
        end
    };
    let field = |offset: usize, return_address: usize| (offset - return_address) as u8;
    let mut return_address = append(moved);
    // For each: lea -number(%rax), %ecx; jrcxz to its code below
    for (index, number) in numbers.iter().enumerate() {
        let [a, b, c, d] = number.wrapping_neg().to_le_bytes();
        let over = (numbers.len() - 1 - index) * CHECK + BACK + index * GO;
        return_address = append(&[0x8d, 0x88, a, b, c, d, 0xe3, over as u8]);
    }
    // notrack jmp *site(%rip)
    let site = offset_of!(Island, calls) + offset_of!(Call, site);
    return_address = append(&[0x3e, 0xff, 0x25, field(site, return_address + BACK), 0, 0, 0]);
    // For each: lea call(%rip), %r11; jmp *entry(%rip)
    for index in 0..numbers.len() {
        let call = offset_of!(Island, calls) + index * size_of::<Call>();
        append(&[0x4c, 0x8d, 0x1d, field(call, return_address + 7), 0, 0, 0]);
        return_address = append(&[0xff, 0x25, field(offset_of!(Island, entry), return_address + GO), 0, 0, 0]);
    }
    code
}

impl Island {
    /// Maps an island for `jump` to the `syscall` of one of `numbers` at the address `site`, and returns its address.
    /// The island begins with `moved`. From now on a fault there is reported at its original place. `trapping` returns
    /// the number with which a call traps.
    pub fn build(
        object: u64,
        jump: &Jump,
        numbers: &[u32],
        trapping: impl Fn(u32) -> u64,
        site: usize,
        moved: &[u8],
    ) -> Result<usize, &'static str> {
        let address = jump
            .places()
            .into_iter()
            .find(|at| map_at(*at, size_of::<Self>()))
            .ok_or("there is no free page in reach of it")?;
        let return_address = site + SYSCALL.len();
        let call =
            |number: u32| Call { site, return_address, number: u64::from(number), trapping: trapping(number) };
        let calls = core::array::from_fn(|index| call(numbers[index.min(numbers.len() - 1)]));
        let island = Self { code: code_of(numbers, moved), entry: patched as *const () as usize, calls };
        // SAFETY: the pages are new, writable, hold an aligned island, and no other thread knows them.
        unsafe { (address as *mut Self).write(island) };
        if !make_executable(address, size_of::<Self>()) {
            Self::unmap(address);
            return Err("new code cannot be made executable");
        }
        if !record_origin(object, address, moved.len(), jump.from) {
            Self::unmap(address);
            return Err("too many others are patched");
        }
        Ok(address)
    }

    /// Unmaps an island that [`Island::build`] has returned. No jump to it may have been stored.
    pub fn remove(address: usize) {
        forget(address);
        Self::unmap(address);
    }

    /// Removes the islands of all objects but these.
    pub fn remove_unmapped(objects: &[Object]) {
        let is_mapped = |identity| objects.iter().any(|object| object.identity() == identity);
        for (island, _) in islands().filter(|(_, object)| !is_mapped(*object)) {
            Self::remove(island);
        }
    }

    /// True if there is an island for the `syscall` that ends at the address `return_address`.
    pub fn has_site_before(return_address: usize) -> bool {
        // SAFETY: `build` has stored an island there, which stays until it is removed, under the same lock.
        islands()
            .any(|(address, _)| unsafe { (*(address as *const Self)).calls[0].return_address } == return_address)
    }

    /// Finds an island that was built earlier for the same code, because the object was unmapped and mapped at the same
    /// place again. A jump may already lead to that island.
    pub fn built_before(jump: &Jump, numbers: &[u32], site: usize, moved: &[u8]) -> Option<usize> {
        let code = code_of(numbers, moved);
        islands().map(|(address, _)| address).find(|address| {
            // SAFETY: `build` has stored an island there, which stays until it is removed, under the same lock.
            let island = unsafe { &*(*address as *const Self) };
            island.code == code && island.calls[0].site == site && jump.leads_from(*address)
        })
    }

    fn unmap(address: usize) {
        unmap(address, size_of::<Self>());
    }
}

/// The memory of an object's islands: none, since each island is mapped where its jump leads.
#[derive(Default)]
pub struct Region {}

impl Region {
    /// Returns no memory.
    pub fn reserve(_code: &Range<usize>) -> Self {
        Self {}
    }

    /// Returns an empty range: no instruction of an island makes a call.
    pub fn range(&self) -> Range<usize> {
        0..0
    }
}

/// Returns the addresses of the instructions in this code that a jump has replaced: none, since each stays in place.
pub fn sites_in(_code: &Range<usize>) -> impl Iterator<Item = usize> {
    core::iter::empty()
}

/// Installs the handlers that report a fault on an island at the instruction's original place. False if that is
/// impossible.
pub fn guard_faults() -> bool {
    let guarded = |signal: &i32| signals::install_guard(*signal, move_to_origin).is_ok();
    !signals::in_borrowed_memory() && [libc::SIGSEGV, libc::SIGBUS].iter().all(guarded)
}

/// If the fault is on a moved instruction, sets the instruction pointer to its original place. Always returns false, so
/// that the program handles the signal.
///
/// # Safety
/// As [`crate::signals::Guard`].
unsafe fn move_to_origin(context: &mut ucontext_t, _info: &siginfo_t) -> bool {
    let instruction = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    if let Some(origin) = origin_of(*instruction as usize) {
        *instruction = origin as i64;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_serve::patch::decode::{decode, length};
    use yaxpeax_x86::long_mode::{Opcode, Operand, RegSpec};

    #[test]
    fn an_island_does_what_was_moved_and_finds_its_fields() {
        let moved = [0xb8, 0xaa, 0x01, 0, 0, 0x31, 0xd2];
        let code = code_of(&[426], &moved);
        assert_eq!(code[..moved.len()], moved);
        let mut at = moved.len();
        let mut next = || {
            let instruction = decode(&code, at).expect("an instruction");
            at += length(&instruction);
            (instruction, at)
        };
        let leads_to = |operand: Operand, return_address: usize| match operand {
            Operand::Disp { disp, .. } => return_address.wrapping_add_signed(disp as isize),
            other => panic!("{other:?}"),
        };
        let (check, _) = next();
        let minus_number = Operand::Disp { base: RegSpec::rax(), disp: -426 };
        assert_eq!((check.opcode(), check.operand(1)), (Opcode::LEA, minus_number));
        let (over, after_over) = next();
        assert_eq!(over.opcode(), Opcode::JRCXZ);
        let (back, after_back) = next();
        let site = offset_of!(Island, calls) + offset_of!(Call, site);
        assert_eq!((back.opcode(), leads_to(back.operand(0), after_back)), (Opcode::JMP, site));
        assert_eq!(over.operand(0), Operand::ImmediateI8 { imm: (after_back - after_over) as i8 });
        let (call, return_address) = next();
        assert_eq!(
            (call.opcode(), leads_to(call.operand(1), return_address)),
            (Opcode::LEA, offset_of!(Island, calls))
        );
        let (jump, return_address) = next();
        assert_eq!(
            (jump.opcode(), leads_to(jump.operand(0), return_address)),
            (Opcode::JMP, offset_of!(Island, entry))
        );
    }

    #[test]
    fn each_of_three_numbers_leads_to_its_call() {
        let moved = [0x44, 0x89, 0xe0]; // mov %r12d, %eax
        let code = code_of(&[425, 426, 427], &moved);
        let disp = |operand: Operand| match operand {
            Operand::Disp { disp, .. } => disp as isize,
            other => panic!("{other:?}"),
        };
        for index in 0..3_usize {
            let check = moved.len() + index * CHECK;
            let compared = decode(&code, check).expect("lea");
            assert_eq!(disp(compared.operand(1)), -425 - index as isize);
            let over = decode(&code, check + 6).expect("jrcxz");
            let Operand::ImmediateI8 { imm } = over.operand(0) else { panic!("{over:?}") };
            let at = (check + CHECK).wrapping_add_signed(imm as isize);
            let call = decode(&code, at).expect("lea");
            let return_address = at + length(&call);
            let address = return_address.wrapping_add_signed(disp(call.operand(1)));
            assert_eq!(address, offset_of!(Island, calls) + index * size_of::<Call>());
            let jump = decode(&code, return_address).expect("jmp");
            assert_eq!(
                (return_address + length(&jump)).wrapping_add_signed(disp(jump.operand(0))),
                offset_of!(Island, entry)
            );
        }
    }
}
