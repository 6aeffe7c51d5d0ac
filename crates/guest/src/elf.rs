//! The headers of an ELF file that say how it is mapped. Any value in them may be wrong.

use crate::arch::calls::{MACHINE, TASK_SIZE};
use anyring_engine::os::arch::page_bytes;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The reason why a file cannot be loaded: execve(2)'s errno, and a line for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub errno: i32,
    pub why: String,
}

/// Returns the refusal of a file that cannot be executed.
pub fn no_program(why: &str) -> Refusal {
    Refusal { errno: libc::ENOEXEC, why: why.to_owned() }
}

/// Returns the refusal after an error of a system call, about `what`.
pub fn failed(what: &str, error: &io::Error) -> Refusal {
    Refusal { errno: error.raw_os_error().unwrap_or(libc::EIO), why: format!("{what}: {error}") }
}

/// A segment to be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub offset: usize,
    pub address: usize,
    pub file_bytes: usize,
    pub memory_bytes: usize,
    /// PROT_*.
    pub protection: i32,
}

impl Segment {
    /// Returns the address after its last byte in memory.
    pub fn end(&self) -> usize {
        self.address + self.memory_bytes
    }
}

/// A file for this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// True if the file is linked for the addresses that it names (ET_EXEC).
    pub is_fixed: bool,
    pub entry: usize,
    /// The address of the program headers in memory, if they are mapped.
    pub headers: Option<usize>,
    pub header_count: usize,
    /// The segments, sorted by address. There is at least one.
    pub segments: Vec<Segment>,
    /// The path of its loader.
    pub interpreter: Option<Vec<u8>>,
    /// The largest alignment of a segment, a power of two.
    pub alignment: usize,
}

const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
/// The most bytes of headers. As in fs/binfmt_elf.c, the headers have to fit into 64 KiB, and a loader's path into
/// PATH_MAX.
const HEADERS_MOST: usize = 65536;
const PATH_MOST: usize = 4096;

const ET_EXEC: usize = 2;
const ET_DYN: usize = 3;
const PT_LOAD: usize = 1;
const PT_INTERP: usize = 3;
const PT_PHDR: usize = 6;

/// Returns the number of `bytes` bytes at `at`.
fn number(data: &[u8], at: usize, bytes: usize) -> usize {
    data[at..at + bytes].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

impl Elf {
    /// True if these are the first bytes of an ELF file.
    pub fn begins(head: &[u8]) -> bool {
        head.starts_with(b"\x7fELF")
    }

    /// Reads the headers.
    pub fn read(file: &File) -> Result<Elf, Refusal> {
        let mut head = [0; HEADER];
        let is_whole = file.read_exact_at(&mut head, 0).is_ok();
        if !Elf::begins(&head) {
            return Err(no_program("it is neither an ELF file nor a script"));
        }
        let (class, order, machine) = (head[4], head[5], number(&head, 18, 2));
        if !is_whole || class != 2 || order != 1 || machine != MACHINE.0 {
            return Err(no_program(&format!("it is no 64-bit program for {}", MACHINE.1)));
        }
        let kind = number(&head, 16, 2);
        if kind != ET_EXEC && kind != ET_DYN {
            return Err(no_program("it is an ELF file, but no program"));
        }
        let (at, size, count) = (number(&head, 32, 8), number(&head, 54, 2), number(&head, 56, 2));
        if size != PROGRAM_HEADER || count == 0 || count * size > HEADERS_MOST {
            return Err(no_program("its program headers are damaged"));
        }
        let mut headers = vec![0; count * size];
        file.read_exact_at(&mut headers, at as u64)
            .map_err(|_| no_program("it is shorter than its headers say"))?;
        let mut elf = Elf {
            is_fixed: kind == ET_EXEC,
            entry: number(&head, 24, 8),
            headers: None,
            header_count: count,
            segments: Vec::new(),
            interpreter: None,
            alignment: page_bytes(),
        };
        for header in headers.chunks_exact(PROGRAM_HEADER) {
            elf.add(file, header)?;
        }
        elf.check(at, file)?;
        Ok(elf)
    }

    fn add(&mut self, file: &File, header: &[u8]) -> Result<(), Refusal> {
        let field = |place: usize| number(header, 8 + place * 8, 8);
        let (offset, address, file_bytes, memory_bytes, alignment) =
            (field(0), field(1), field(3), field(4), field(5));
        match number(header, 0, 4) {
            PT_LOAD => {
                let flags = number(header, 4, 4);
                let protections = [(4, libc::PROT_READ), (2, libc::PROT_WRITE), (1, libc::PROT_EXEC)];
                let granted = protections.iter().filter(|(flag, _)| flags & flag != 0);
                let protection = granted.fold(0, |all, (_, protection)| all | protection);
                if memory_bytes != 0 {
                    self.segments.push(Segment { offset, address, file_bytes, memory_bytes, protection });
                }
                if alignment.is_power_of_two() {
                    self.alignment = self.alignment.max(alignment.min(1 << 30));
                }
            }
            PT_INTERP => {
                if !(2..=PATH_MOST).contains(&file_bytes) {
                    return Err(no_program("the name of its loader is damaged"));
                }
                let mut path = vec![0; file_bytes];
                file.read_exact_at(&mut path, offset as u64)
                    .map_err(|_| no_program("it is shorter than its headers say"))?;
                if path.pop() != Some(0) || path.contains(&0) {
                    return Err(no_program("the name of its loader is damaged"));
                }
                self.interpreter = Some(path);
            }
            PT_PHDR => self.headers = Some(address),
            _ => {}
        }
        Ok(())
    }

    /// Checks that the file can be mapped as its headers say. `headers_at` is the offset of the program headers in the
    /// file.
    fn check(&mut self, headers_at: usize, file: &File) -> Result<(), Refusal> {
        let damaged = || no_program("its segments are damaged");
        let length = file.metadata().map_err(|error| failed("fstat", &error))?.len() as usize;
        let mut end = 0;
        for segment in &self.segments {
            let last = segment.address.checked_add(segment.memory_bytes).filter(|last| *last <= TASK_SIZE);
            let in_file = segment.offset.checked_add(segment.file_bytes);
            let is_whole = in_file.is_some_and(|in_file| in_file <= length);
            let is_aligned = segment.offset % page_bytes() == segment.address % page_bytes();
            // In order, and without overlap.
            let follows = segment.address >= end;
            if last.is_none() || !is_whole || !is_aligned || !follows || segment.file_bytes > segment.memory_bytes {
                return Err(damaged());
            }
            end = segment.end();
        }
        if self.segments.is_empty() {
            return Err(damaged());
        }
        if self.headers.is_none() {
            let holds =
                |segment: &&Segment| (segment.offset..segment.offset + segment.file_bytes).contains(&headers_at);
            self.headers =
                self.segments.iter().find(holds).map(|segment| segment.address + (headers_at - segment.offset));
        }
        Ok(())
    }

    /// Returns the pages from the first segment to the last.
    pub fn span(&self) -> core::ops::Range<usize> {
        let first = self.segments.first().map_or(0, |segment| segment.address & !(page_bytes() - 1));
        let last = self.segments.last().map_or(0, Segment::end);
        first..last.next_multiple_of(page_bytes())
    }
}
