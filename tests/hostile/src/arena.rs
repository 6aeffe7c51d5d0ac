//! The memory of a hostile program: areas in one reservation. Unmapped pages follow each area, so that a length that is
//! too large reaches them and no other memory of the process.
//!
//! The program itself touches none of it by loads and stores, since other threads unmap it: see
//! [`crate::call::poke`].

use crate::call;
use libc::{c_int, c_void, MAP_ANONYMOUS, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE};

/// A page.
pub const PAGE: usize = 4096;
/// The arena's address, which neither the loader nor the kernel chooses.
const BASE: usize = 0x1000_0000_0000;
const RESERVED: usize = 1 << 30;
const MIB: usize = 1 << 20;

/// Number of buffers with exact bounds. Each lies between two pages that no request names.
pub const EXACT: u8 = 12;
/// The fill of pages that nothing may change. As an SQE, it has an opcode that does not exist.
const CANARY: u8 = 0xc5;
/// The fill of the data to read.
pub const DATA: u8 = 0xda;

/// A part of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Area {
    /// A page for exact reads, which nothing else names.
    Exact(u8),
    /// Two pages that can only be read: full of [`DATA`].
    ReadOnly,
    /// Paths, socket addresses, short timeouts and signal masks, which can only be read.
    Fixed,
    /// Structures that requests point to.
    Structs,
    /// 64 KiB for anything.
    Scratch,
    /// Pages that are unmapped and mapped again.
    Shaky,
    /// An area that is mapped up to its middle.
    Half,
    /// A page that is mapped, then one beyond the end of its file, which was truncated.
    Cut,
    /// An area that is not mapped.
    Unmapped,
    /// A ring's words, CQEs and array.
    Rings(u8),
    /// A ring's SQEs.
    Sqes(u8),
    /// A buffer ring.
    BufferRing(u8),
}

impl Area {
    /// Returns the address of its first byte.
    pub fn start(self) -> usize {
        let offset = match self {
            Area::Exact(number) => MIB + (1 + 2 * usize::from(number)) * PAGE,
            Area::ReadOnly => 2 * MIB,
            Area::Fixed => 3 * MIB,
            Area::Structs => 4 * MIB,
            Area::Scratch => 5 * MIB,
            Area::Shaky => 6 * MIB,
            Area::Half => 7 * MIB,
            Area::Cut => 8 * MIB,
            Area::Unmapped => 9 * MIB,
            Area::BufferRing(number) => (10 + usize::from(number)) * MIB,
            Area::Rings(slot) => (32 + 16 * usize::from(slot)) * MIB,
            Area::Sqes(slot) => (32 + 16 * usize::from(slot) + 6) * MIB,
        };
        BASE + offset
    }

    /// Returns the bytes that are mapped there at first; of a ring, the bytes that there is room for.
    pub fn bytes(self) -> usize {
        match self {
            Area::Exact(_) | Area::Half => PAGE,
            Area::ReadOnly | Area::Cut => 2 * PAGE,
            Area::Fixed => 4 * PAGE,
            Area::Structs | Area::Scratch | Area::BufferRing(_) => 16 * PAGE,
            Area::Shaky => 8 * PAGE,
            Area::Unmapped => PAGE,
            Area::Rings(_) => 5 * MIB,
            Area::Sqes(_) => 9 * MIB,
        }
    }
}

/// Maps anonymous memory, or the file of `fd`, in place of the old mapping.
pub fn map(start: usize, bytes: usize, protection: c_int, fd: c_int, offset: i64) -> bool {
    let kind = if fd < 0 { MAP_PRIVATE | MAP_ANONYMOUS } else { MAP_SHARED };
    map_as(start, bytes, protection, kind, fd, offset)
}

/// Maps memory as `map`, with other flags.
pub fn map_as(start: usize, bytes: usize, protection: c_int, kind: c_int, fd: c_int, offset: i64) -> bool {
    assert!(start >= BASE && start + bytes <= BASE + RESERVED, "only memory of the arena's");
    // SAFETY: MAP_FIXED inside the reservation, where no value of the program's lives: it goes there by `poke` and `peek`.
    let mapped = unsafe { libc::mmap(start as *mut c_void, bytes, protection, kind | MAP_FIXED, fd, offset) };
    // Keeps this memory out of cores, which the limit on files would otherwise cut.
    // SAFETY: what was just mapped.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_DONTDUMP) };
    mapped as usize == start
}

/// mprotect(2) in the arena.
pub fn protect(start: usize, bytes: usize, protection: c_int) {
    assert!(start >= BASE && start + bytes <= BASE + RESERVED, "only memory of the arena's");
    // SAFETY: as in `map_as`.
    unsafe { libc::mprotect(start as *mut c_void, bytes, protection) };
}

/// Makes the arena. `file` has two pages, and is truncated to one.
pub fn make(file: c_int) {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping where nothing is.
    let mapped = unsafe { libc::mmap(BASE as *mut c_void, RESERVED, PROT_NONE, flags, -1, 0) };
    assert_eq!(mapped as usize, BASE, "reserve the arena");
    let both = PROT_READ | PROT_WRITE;
    let all = MIB + BASE;
    assert!(map(all, (2 * usize::from(EXACT) + 1) * PAGE, both, -1, 0));
    fill(all, (2 * usize::from(EXACT) + 1) * PAGE, CANARY);
    for area in [Area::ReadOnly, Area::Fixed, Area::Structs, Area::Scratch, Area::Shaky, Area::Half] {
        assert!(map(area.start(), area.bytes(), both, -1, 0));
    }
    for ring in 0..4 {
        assert!(map(Area::BufferRing(ring).start(), Area::BufferRing(ring).bytes(), both, -1, 0));
    }
    fill(Area::ReadOnly.start(), Area::ReadOnly.bytes(), DATA);
    fixed();
    protect(Area::ReadOnly.start(), Area::ReadOnly.bytes(), PROT_READ);
    protect(Area::Fixed.start(), Area::Fixed.bytes(), PROT_READ);
    fill(Area::Scratch.start(), Area::Scratch.bytes(), DATA);
    assert!(map(Area::Cut.start(), 2 * PAGE, both, file, 0));
    // SAFETY: plain numbers.
    unsafe { libc::ftruncate(file, PAGE as i64) };
}

fn fill(start: usize, bytes: usize, with: u8) {
    for page in (start..start + bytes).step_by(PAGE) {
        assert!(call::poke(page, &[with; PAGE]));
    }
}

/// Returns the first page that no request named and that has changed nevertheless.
pub fn changed() -> Option<String> {
    let mut page = [0; PAGE];
    let canaries = (0..=usize::from(EXACT)).map(|number| (BASE + MIB + 2 * number * PAGE, CANARY));
    let read_only = (0..2).map(|number| (Area::ReadOnly.start() + number * PAGE, DATA));
    for (start, with) in canaries.chain(read_only) {
        if !call::peek(start, &mut page) {
            return Some(format!("the page at {start:#x}, which nobody named, is gone"));
        }
        if let Some(at) = page.iter().position(|byte| *byte != with) {
            let (at, byte) = (start + at, page[at]);
            return Some(format!("the byte at {at:#x}, which nobody named, has become {byte:#x}"));
        }
    }
    None
}

/// Paths, all in the folder that the program runs in: see [`Area::Fixed`].
pub const PATHS: [&[u8]; 16] = [
    b"a\0",
    b"b\0",
    b"folder\0",
    b"folder/a\0",
    b"folder/new\0",
    b"fifo\0",
    b"link\0",
    b"loop\0",
    b"\0",
    b".\0",
    b"missing/a\0",
    b"new\0",
    b"user.a\0",
    b"security.a\0",
    b"socket\0",
    b"a/b\0",
];
/// The bytes of each path.
pub const PATH_ROOM: u32 = 32;
/// A path that is too long begins here, and ends nowhere in its page.
pub const LONG_PATH: u32 = PAGE as u32;
/// Socket addresses, of 32 bytes each.
pub const SOCKADDRS: u32 = 2 * PAGE as u32;
/// Timeouts of 16 bytes each.
pub const TIMES: u32 = 3 * PAGE as u32;
/// Their number.
pub const TIMES_COUNT: u32 = 6;
/// Signal masks of 8 bytes each, which leave SIGALRM alone.
pub const MASKS: u32 = TIMES + 512;
/// Arguments of enter (`struct io_uring_getevents_arg`), of 32 bytes each, which wait for a short time.
pub const WAITS: u32 = TIMES + 1024;
/// Their number.
pub const WAITS_COUNT: u32 = 4;

/// A vector of each [`Area::Exact`], whole.
pub const VECTORS: u32 = TIMES + 2048;

/// Fills [`Area::Fixed`].
fn fixed() {
    let start = Area::Fixed.start();
    let put = |offset: u32, bytes: &[u8]| assert!(call::poke(start + offset as usize, bytes));
    for (number, path) in PATHS.iter().enumerate() {
        put(number as u32 * PATH_ROOM, path);
    }
    put(LONG_PATH, &[b'x'; PAGE]);
    let loopback = [127, 0, 0, 1];
    let inet = |port: u16| [&2u16.to_ne_bytes()[..], &port.to_be_bytes(), &loopback, &[0; 8]].concat();
    put(SOCKADDRS, &inet(0));
    put(SOCKADDRS + 32, &inet(1));
    put(SOCKADDRS + 64, &[&1u16.to_ne_bytes()[..], b"socket\0"].concat());
    put(SOCKADDRS + 96, &[&1u16.to_ne_bytes()[..], b"missing\0"].concat());
    put(SOCKADDRS + 128, &[0xff; 32]);
    let times: [[i64; 2]; TIMES_COUNT as usize] =
        [[0, 0], [0, 1], [0, 500_000], [0, 3_000_000], [0, 20_000_000], [0, 1_000]];
    for (number, [seconds, nanoseconds]) in times.iter().enumerate() {
        put(TIMES + 16 * number as u32, &[seconds.to_ne_bytes(), nanoseconds.to_ne_bytes()].concat());
    }
    for number in 0..EXACT {
        let vector = [Area::Exact(number).start() as u64, PAGE as u64].map(u64::to_ne_bytes).concat();
        put(VECTORS + 16 * u32::from(number), &vector);
    }
    let usr1 = 1u64 << (libc::SIGUSR1 - 1);
    let segv = (1u64 << (libc::SIGSEGV - 1)) | (1 << (libc::SIGBUS - 1)) | (1 << (libc::SIGSYS - 1));
    for (number, mask) in [0, usr1, segv, usr1 | segv].iter().enumerate() {
        put(MASKS + 8 * number as u32, &mask.to_ne_bytes());
        let wait = [
            if number == 0 { 0 } else { (start as u64) + u64::from(MASKS) + 8 * number as u64 },
            8 | ((number as u64 % 2) * 300) << 32,
            start as u64 + u64::from(TIMES) + 16 * (1 + number as u64),
        ];
        put(WAITS + 32 * number as u32, &wait.map(u64::to_ne_bytes).concat());
    }
}
