//! The check of a library's unwind tables: they must be right at each instruction, not only after calls.
//!
//! A thread that is cancelled, or ends in a signal handler, is unwound from whatever instruction the signal has interrupted
//! (crates/inject/src/unwind.rs). Compilers move instructions after they have written what the tables say about them, and
//! tables of assembly are written by hand. If an entry is wrong, unwinders take some other word of the stack for a
//! return address.

use anyhow::{ensure, Context, Result};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, LittleEndian, Register, UnwindContext, UnwindSection, UnwindTableRow,
};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind};
use std::path::Path;
use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::long_mode::{InstDecoder, Instruction, Opcode, Operand, RegSpec};

/// The stack pointer, in the tables' numbers of x86-64.
const STACK_POINTER: Register = Register(7);

/// The effect of an instruction.
struct Step {
    address: u64,
    next: u64,
    /// Bytes by which it moves the stack pointer down, if they are known and the next instruction runs next.
    down: Option<i64>,
    /// Another address at which it may continue, with the stack pointer unmoved.
    jump: Option<u64>,
}

/// Returns the faults of the tables of this library (x86-64), one line each.
///
/// # Errors
/// The file cannot be read, or is no library with tables.
pub fn check(library: &Path) -> Result<Vec<String>> {
    let data = std::fs::read(library).with_context(|| library.display().to_string())?;
    let file = object::File::parse(&*data).with_context(|| library.display().to_string())?;
    let section = |name| file.section_by_name(name).with_context(|| format!("{}: no {name}", library.display()));
    let (tables, text) = (section(".eh_frame")?, section(".text")?);
    let bases = BaseAddresses::default().set_eh_frame(tables.address()).set_text(text.address());
    let frames = EhFrame::new(tables.data()?, LittleEndian);
    let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
    let code: Vec<(u64, &[u8])> =
        code.map(|section| Ok((section.address(), section.data()?))).collect::<Result<_>>()?;
    let (mut entries, mut complaints, mut checked) = (frames.entries(&bases), Vec::new(), 0);
    while let Some(entry) = entries.next()? {
        let gimli::CieOrFde::Fde(partial) = entry else { continue };
        let function = partial.parse(EhFrame::cie_from_offset)?;
        let start = function.initial_address();
        let bytes = code.iter().find_map(|(address, bytes)| {
            let offset = usize::try_from(start.checked_sub(*address)?).ok()?;
            bytes.get(offset..offset + function.len() as usize)
        });
        let bytes = bytes.with_context(|| format!("{start:#x} has a table, and no code"))?;
        let (mut rows, mut context) = (Vec::new(), UnwindContext::new());
        let mut table = function.rows(&frames, &bases, &mut context)?;
        while let Some(row) = table.next_row()? {
            rows.push((row.start_address(), distance(row)));
        }
        checked += 1;
        if let Some(wrong) = steps(bytes, start).iter().find_map(|step| wrong(&rows, step)) {
            let symbol = file.symbols().find(|symbol| symbol.address() == start);
            let name = symbol.and_then(|symbol| symbol.name().ok().map(str::to_owned));
            complaints.push(format!("{}: {wrong}", name.unwrap_or_else(|| format!("{start:#x}"))));
        }
    }
    ensure!(checked > 100, "{}: only {checked} functions have tables", library.display());
    Ok(complaints)
}

/// Returns the distance of the stack pointer below the frame's address, if the table has it.
fn distance(row: &UnwindTableRow<usize>) -> Option<i64> {
    match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } if *register == STACK_POINTER => Some(*offset),
        _ => None,
    }
}

fn wrong(rows: &[(u64, Option<i64>)], step: &Step) -> Option<String> {
    let distance_at =
        |address| rows.iter().rev().find(|(start, _)| *start <= address).and_then(|(_, distance)| *distance);
    let here = distance_at(step.address)?;
    if let (Some(down), Some(next)) = (step.down, distance_at(step.next)) {
        if here + down != next {
            return Some(format!("at {:#x} the frame is at rsp+{}, and not at rsp+{next}", step.next, here + down));
        }
    }
    let there = step.jump.filter(|target| rows[0].0 <= *target).and_then(distance_at)?;
    (there != here)
        .then(|| format!("at {:#x}, from {:#x}, the frame is at rsp+{here}", step.jump.unwrap_or(0), step.address))
}

fn steps(code: &[u8], start: u64) -> Vec<Step> {
    let decoder = InstDecoder::default();
    let (mut steps, mut offset) = (Vec::new(), 0);
    while offset < code.len() {
        let Ok(instruction) = decoder.decode_slice(&code[offset..]) else { break };
        let address = start + offset as u64;
        offset += instruction.len().to_const() as usize;
        let next = start + offset as u64;
        let is_last = offset >= code.len();
        let jump = jump(&instruction, next).filter(|target| (start..start + code.len() as u64).contains(target));
        steps.push(Step { address, next, down: down(&instruction).filter(|_| !is_last), jump });
    }
    steps
}

fn down(instruction: &Instruction) -> Option<i64> {
    let is_stack_pointer = instruction.operand(0) == Operand::Register { reg: RegSpec::rsp() };
    let number = match instruction.operand(1) {
        Operand::ImmediateI8 { imm } => Some(i64::from(imm)),
        Operand::ImmediateI32 { imm } => Some(i64::from(imm)),
        _ => None,
    };
    match instruction.opcode() {
        Opcode::PUSH | Opcode::PUSHF => Some(8),
        Opcode::POP if is_stack_pointer => None,
        Opcode::POP | Opcode::POPF => Some(-8),
        Opcode::SUB if is_stack_pointer => number,
        Opcode::ADD if is_stack_pointer => number.map(|number| -number),
        // The code after these is another block, since a call may never return.
        Opcode::RETURN | Opcode::RETF | Opcode::JMP | Opcode::CALL | Opcode::UD2 | Opcode::HLT | Opcode::INT => {
            None
        }
        // These may fill the gap before the next block.
        Opcode::NOP | Opcode::XCHG | Opcode::LEAVE | Opcode::ENTER => None,
        _ if is_stack_pointer && !matches!(instruction.opcode(), Opcode::CMP | Opcode::TEST) => None,
        _ => Some(0),
    }
}

fn jump(instruction: &Instruction, next: u64) -> Option<u64> {
    let is_jump = instruction.opcode() == Opcode::JMP || instruction.opcode().condition().is_some();
    match instruction.operand(0) {
        Operand::ImmediateI8 { imm } if is_jump => Some(next.wrapping_add_signed(i64::from(imm))),
        Operand::ImmediateI32 { imm } if is_jump => Some(next.wrapping_add_signed(i64::from(imm))),
        _ => None,
    }
}
