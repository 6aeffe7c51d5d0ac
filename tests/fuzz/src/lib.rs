//! What must hold of the parts that only compute, whatever bytes they are given. Each check takes bytes and panics where it
//! does not hold: libFuzzer calls it with what it finds (`libfuzzer/`), `cargo test` with bytes of fixed seeds.

use anyring_abi::{Params, Sqe, IORING_SETUP_CQE32, IORING_SETUP_NO_SQARRAY, IORING_SETUP_SQE128};
use anyring_engine::event::{Event, Reader};
use anyring_engine::memory::layout::{word, Layout, MAX_ENTRIES};
use anyring_engine::op;
use std::os::fd::AsFd;

/// As the library has it, whose `crate::backend` it asks.
#[path = "../../../crates/inject/src/raw/scan.rs"]
#[allow(dead_code)]
mod scan;

/// What `scan` asks of the library.
mod backend {
    /// Numbers of Linux AIO count, too.
    pub fn finds_aio() -> bool {
        true
    }
}

/// Numbers out of bytes; zeros behind the last one.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut taken = [0; N];
        let length = self.0.len().min(N);
        taken[..length].copy_from_slice(&self.0[..length]);
        self.0 = &self.0[length..];
        taken
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// A ring's layout: it is as large as was asked for, what is in it lies side by side, and all of it in its memory.
pub fn layout(bytes: &[u8]) {
    let mut bytes = Bytes(bytes);
    let params = Params { flags: bytes.u32(), cq_entries: bytes.u32(), ..Params::default() };
    let entries = bytes.u32();
    let Ok(layout) = Layout::new(entries, &params) else { return };
    assert!(layout.sq_entries.is_power_of_two() && layout.sq_entries <= MAX_ENTRIES);
    assert!(layout.cq_entries.is_power_of_two() && layout.cq_entries <= 2 * MAX_ENTRIES);
    assert!(layout.sq_entries <= layout.cq_entries);
    assert!(entries > MAX_ENTRIES || entries <= layout.sq_entries);
    let cqe_bytes = if params.flags & IORING_SETUP_CQE32 != 0 { 32 } else { 16 };
    let sqe_bytes = if params.flags & IORING_SETUP_SQE128 != 0 { 128 } else { 64 };
    let cqes_end = word::CQES + layout.cq_entries as usize * cqe_bytes;
    assert!(cqes_end <= layout.rings_bytes && layout.rings_bytes.is_multiple_of(4096));
    assert_eq!(layout.array.is_none(), params.flags & IORING_SETUP_NO_SQARRAY != 0);
    if let Some(array) = layout.array {
        assert!(array >= cqes_end && array.is_multiple_of(4));
        assert!(array + 4 * layout.sq_entries as usize <= layout.rings_bytes);
    }
    assert!(layout.sq_entries as usize * sqe_bytes <= layout.sqes_bytes && layout.sqes_bytes.is_multiple_of(4096));
    // What a ring's memory takes at most: see docs/limits.md.
    assert!(layout.rings_bytes + layout.sqes_bytes <= 8 << 20);
}

/// An SQE is prepared or refused, whatever it says and whatever is where it points. Nothing is issued.
pub fn prepare(bytes: &[u8]) {
    let mut rest = Bytes(bytes);
    let [opcode, flags] = rest.take();
    let mut sqe = Sqe {
        opcode,
        flags,
        ioprio: rest.u16(),
        fd: rest.u32() as i32,
        off: rest.u64(),
        addr: rest.u64(),
        len: rest.u32(),
        op_flags: rest.u32(),
        user_data: rest.u64(),
        buf_index: rest.u16(),
        personality: rest.u16(),
        file_index: rest.u32(),
        addr3: rest.u64(),
        pad2: rest.u64(),
    };
    // Of addresses, the ones with a bit set mean the bytes behind the SQE.
    for address in [&mut sqe.off, &mut sqe.addr, &mut sqe.addr3] {
        if *address & 1 << 62 != 0 {
            *address = rest.0.as_ptr() as u64 + (*address & 0xffff) % (rest.0.len() as u64 + 1);
        }
    }
    let Some((opcode, row)) = op::definition(sqe.opcode) else { return };
    if let Ok(op) = (row.prep)(opcode, &sqe) {
        // What is asked of every operation before it is attempted.
        let _ = (op.timeout().is_some(), op.cqe_flags(), op.identity(opcode), op.is_forced(opcode));
        let _ = (op.depends_on_caller(opcode), op.is_multishot(), op.may_sleep_on_file());
    }
}

/// Each `syscall` instruction that is found is one, they are in order, and what was written out so that nobody can miss it is
/// found: a call of io_uring_enter(2) between instructions that are code.
pub fn scan(bytes: &[u8]) {
    let found = scan::sites(bytes).expect("memory for so few");
    assert!(found.offsets.is_sorted_by(|one, next| one < next));
    for site in &found.offsets {
        assert_eq!(bytes[*site..][..2], scan::SYSCALL);
        let _ = scan::follows_load_of_enter(bytes, *site);
    }
    // mov rdi,[rsi+8]; add rdi,rdx; mov [rsp+16],rdi
    let plain = [0x48, 0x8b, 0x7e, 0x08, 0x48, 0x01, 0xd7, 0x48, 0x89, 0x7c, 0x24, 0x10].repeat(8);
    let enter = [0xb8, 0xaa, 0x01, 0, 0, 0x0f, 0x05];
    let code = [bytes, &plain[..], &enter, &plain, &[0xc3]].concat();
    let site = bytes.len() + plain.len() + 5;
    let found = scan::sites(&code).expect("memory for so few");
    assert!(found.offsets.contains(&site) && scan::follows_load_of_enter(&code, site));
}

/// An instruction is decoded from the bytes that are there, or none is.
pub fn decode(bytes: &[u8]) {
    for at in 0..bytes.len() {
        if let Some(instruction) = anyring_serve::patch::decode::decode(bytes, at) {
            let length = anyring_serve::patch::decode::length(&instruction);
            assert!((1..=15).contains(&length) && at + length <= bytes.len(), "{length} bytes at {at}");
        }
    }
}

/// A file of events can be read whatever another process has written to it: the reader takes no harm, and comes to an end.
pub fn events(bytes: &[u8]) {
    let file = rustix::fs::memfd_create(c"events", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    let mut reader = Reader::in_file(&file.as_fd(), || Ok(())).expect("a file of events");
    let end = rustix::fs::fstat(&file).expect("its size").st_size as u64;
    let mut rest = Bytes(bytes);
    while !rest.0.is_empty() {
        // Mostly where the heads are, and the first chunks.
        let place = u64::from(rest.u32());
        let place = if place & 1 << 31 == 0 { place % (160 << 10) } else { place % end } & !3;
        let value: [u8; 8] = rest.take();
        let room = (end - place).min(8) as usize;
        rustix::io::pwrite(&file, &value[..room], place).expect("a word");
        if value[0].is_multiple_of(8) {
            drain(&mut reader);
        }
    }
    drain(&mut reader);
}

fn drain(reader: &mut Reader) {
    // More than the file has words come from no file, however often it is looked at.
    let mut events: Vec<Event> = Vec::new();
    reader.drain(&mut events);
    assert!(events.len() <= 4 << 20, "{} events", events.len());
    reader.convert(&mut events);
    let _ = (reader.dropped(), reader.drained_ticks());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a check with bytes of so many seeds: some all random, some with only a few that are set.
    fn with_seeds(seeds: u64, most: usize, check: fn(&[u8])) {
        for seed in 0..seeds {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut bytes = vec![0u8; random.usize(0..=most)];
            let sparse = random.u8(0..4);
            for byte in &mut bytes {
                if sparse == 0 || random.u8(0..8) < 2 * sparse {
                    *byte = random.u8(..);
                }
            }
            if std::panic::catch_unwind(|| check(&bytes)).is_err() {
                panic!("seed {seed}: {bytes:02x?}");
            }
        }
    }

    #[test]
    fn layouts_have_room_for_what_is_in_them() {
        with_seeds(200_000, 16, layout);
    }

    #[test]
    fn sqes_are_prepared_or_refused() {
        with_seeds(200_000, 256, |bytes| {
            let mut bytes = bytes.to_vec();
            if let Some(opcode) = bytes.first_mut() {
                *opcode %= 80; // an opcode that there is, most often
            }
            prepare(&bytes);
        });
    }

    #[test]
    fn instructions_are_found_where_they_are() {
        with_seeds(4_000, 600, |bytes| {
            // Full of the two bytes, and of loads.
            let mut bytes = bytes.to_vec();
            for at in (0..bytes.len().saturating_sub(8)).step_by(23) {
                bytes[at..at + 2].copy_from_slice(&scan::SYSCALL);
            }
            scan(&bytes);
        });
    }

    #[test]
    fn instructions_end_where_the_bytes_do() {
        with_seeds(20_000, 64, decode);
    }

    #[test]
    fn files_of_events_are_read_whatever_is_in_them() {
        with_seeds(300, 2_000, events);
    }
}
