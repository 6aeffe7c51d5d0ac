//! Maps a guest and its loader, as the kernel does (fs/binfmt_elf.c).

use crate::elf::{failed, no_program, Elf, Refusal, Segment};
use crate::filter;
use anyring_engine::os::arch::page_bytes;
use anyring_serve::sys;
use core::ops::Range;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;

/// A file that is mapped.
pub struct Image {
    /// The difference to add to the addresses in the file.
    pub base: usize,
    pub entry: usize,
    pub headers: usize,
    pub header_count: usize,
    /// Its executable pages.
    pub code: Vec<Range<usize>>,
}

/// A program with the loader that starts it.
pub struct Loaded {
    pub program: Image,
    pub loader: Option<Image>,
}

/// Maps the program and its loader. If that fails, some mappings may stay, since the host does not continue.
pub fn load(file: &File, elf: &Elf) -> Result<Loaded, Refusal> {
    let program = map(file, elf)?;
    let loader = match &elf.interpreter {
        Some(path) => {
            let (file, elf) = open_loader(path)?;
            Some(map(&file, &elf)?)
        }
        None => None,
    };
    Ok(Loaded { program, loader })
}

/// Opens the loader that a program names, and reads its headers.
pub fn open_loader(path: &[u8]) -> Result<(File, Elf), Refusal> {
    let name = String::from_utf8_lossy(path).into_owned();
    let file =
        File::open(OsStr::from_bytes(path)).map_err(|error| failed(&format!("its loader, {name}"), &error))?;
    let elf = Elf::read(&file)
        .map_err(|refusal| Refusal { errno: libc::ELIBBAD, why: format!("its loader, {name}: {}", refusal.why) })?;
    Ok((file, elf))
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn mmap(address: usize, bytes: usize, protection: i32, flags: i32, file: i32, offset: usize) -> io::Result<usize> {
    let args = [address, bytes, protection as usize, flags as usize, file as usize, offset];
    // SAFETY: every caller maps where there is nothing yet, or within what it has reserved.
    match unsafe { sys::call(libc::SYS_mmap, args) } {
        error @ -4095..0 => Err(io::Error::from_raw_os_error(-error as i32)),
        address => Ok(address as usize),
    }
}

fn map(file: &File, elf: &Elf) -> Result<Image, Refusal> {
    let span = elf.span();
    let refused = |error: io::Error| failed("its segments cannot be mapped", &error);
    let base = match elf.is_fixed {
        true => {
            // Nothing else may be mapped into its gaps.
            let flags = ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
            let got = mmap(span.start, span.len(), libc::PROT_NONE, flags, -1, 0).map_err(refused)?;
            if got != span.start {
                return Err(no_program("its addresses are taken"));
            }
            0
        }
        false => reserve(&span, elf.alignment).map_err(refused)?.wrapping_sub(span.start),
    };
    let mut code = Vec::new();
    for segment in &elf.segments {
        let pages = map_segment(file, segment, base).map_err(refused)?;
        if segment.protection & libc::PROT_EXEC != 0 {
            code.push(pages);
        }
    }
    Ok(Image {
        base,
        entry: base.wrapping_add(elf.entry),
        headers: elf.headers.map_or(0, |headers| base.wrapping_add(headers)),
        header_count: elf.header_count,
        code,
    })
}

/// Reserves address space of the span's size, in the window whose code is trapped. Returns its address.
fn reserve(span: &Range<usize>, alignment: usize) -> io::Result<usize> {
    let flags = ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    const TRIES: usize = 16;
    let mut answer = Err(io::Error::from_raw_os_error(libc::ENOMEM));
    for _ in 0..TRIES {
        let at = filter::place(span.len(), alignment);
        answer = mmap(at, span.len(), libc::PROT_NONE, flags, -1, 0);
        match &answer {
            Ok(got) if *got == at => return answer,
            // Before Linux 4.17 the kernel ignores the flag, and takes the address as a hint.
            Ok(got) => {
                // SAFETY: just mapped, and nothing uses it.
                unsafe { sys::call(libc::SYS_munmap, [*got, span.len(), 0, 0, 0, 0]) };
            }
            Err(_) => {}
        }
    }
    answer
}

/// Maps one segment and returns its pages. The rest of the file's last page becomes zero.
fn map_segment(file: &File, segment: &Segment, base: usize) -> io::Result<Range<usize>> {
    let skew = segment.address % page_bytes();
    let start = base.wrapping_add(segment.address) - skew;
    let file_end = start + skew + segment.file_bytes;
    let end = (start + skew + segment.memory_bytes).next_multiple_of(page_bytes());
    let mut rest = start;
    if segment.file_bytes > 0 {
        let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
        let bytes = skew + segment.file_bytes;
        mmap(start, bytes, segment.protection, flags, file.as_raw_fd(), segment.offset - skew)?;
        rest = file_end.next_multiple_of(page_bytes());
        let is_writable = segment.protection & libc::PROT_WRITE != 0;
        if is_writable && segment.memory_bytes > segment.file_bytes {
            // SAFETY: writable memory, just mapped: the end of the last page of the file.
            unsafe { core::ptr::write_bytes(file_end as *mut u8, 0, rest - file_end) };
        }
    }
    if end > rest {
        mmap(rest, end - rest, segment.protection, ANONYMOUS | libc::MAP_FIXED, -1, 0)?;
    }
    Ok(start..end)
}
