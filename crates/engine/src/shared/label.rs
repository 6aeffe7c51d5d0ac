//! A ring's label: the facts that a reader in another process (`anyring doctor --pid`) cannot learn from the descriptor.
//!
//! The label is in the control area, the one mapping that every ring has in every process that uses it. A reader finds
//! the areas in /proc/PID/maps, and reads them through /proc/PID/mem. The process that makes the ring writes the label
//! before the ring's number is published. Only `refused` is stored later, by the code that asked the kernel first.

use crate::shared::control::{Control, Header, HEADER_BYTES};
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The first word of a label: "anyring", and the version of the layout.
const MAGIC: u64 = u64::from_le_bytes(*b"anyrlbl\x01");

/// The words in the control area. All are zero until the ring has a descriptor.
#[repr(C)]
pub struct Label {
    magic: AtomicU64,
    /// The ring's number among sockets and pipes (`descriptors::cookie_of`).
    identity: AtomicU64,
    /// The descriptor number with which the ring was made.
    number: AtomicU32,
    /// The process that made the ring, in its own PID namespace.
    maker: AtomicU32,
    /// The setup flags.
    flags: AtomicU32,
    /// The errno with which the kernel refused this ring. 0 if the kernel was not asked for it.
    refused: AtomicU32,
}

impl Control {
    /// Labels a new ring. `maker`: the process. The ring's sizes go into the words that a resize changes.
    pub fn label(&self, number: i32, identity: u64, flags: u32, entries: [u32; 2], maker: u32) {
        let Header { label, entries: sizes, .. } = self.header();
        for (word, entries) in sizes.iter().zip(entries) {
            word.store(entries, Ordering::Relaxed);
        }
        label.identity.store(identity, Ordering::Relaxed);
        label.number.store(number as u32, Ordering::Relaxed);
        label.maker.store(maker, Ordering::Relaxed);
        label.flags.store(flags, Ordering::Relaxed);
        // Last. A reader that is too early shows a ring that is only being made with a zero in it.
        label.magic.store(MAGIC, Ordering::Relaxed);
    }

    /// Records that the kernel refused this ring with `errno`.
    pub fn label_refusal(&self, errno: i32) {
        self.header().label.refused.store(errno as u32, Ordering::Relaxed);
    }
}

/// A label that was read from another process. That process can have stored anything in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// See [`Label`].
    pub identity: u64,
    /// The descriptor number with which the ring was made.
    pub number: u32,
    /// The process that made the ring, in its own PID namespace.
    pub maker: u32,
    /// The setup flags.
    pub flags: u32,
    /// The errno with which the kernel refused this ring, or 0.
    pub refused: u32,
    /// Entries of the SQ and the CQ.
    pub entries: [u32; 2],
}

impl Seen {
    /// Number of bytes at the start of a control area that hold all this.
    pub const BYTES: usize = HEADER_BYTES;

    /// True if a mapping with this name in /proc/PID/maps may begin with a control area.
    pub fn may_begin(name: &str) -> bool {
        name.starts_with("/dev/zero") || name.starts_with("/memfd:anyring-control")
    }

    /// Reads the label at the start of a mapping. `None` if no ring's control area is there.
    pub fn at_start_of(bytes: &[u8; Seen::BYTES]) -> Option<Seen> {
        const LABEL: usize = offset_of!(Header, label);
        let half = |at: usize| bytes[at..][..4].try_into().map_or(0, u32::from_ne_bytes);
        let word = |at: usize| bytes[at..][..8].try_into().map_or(0, u64::from_ne_bytes);
        let entries = offset_of!(Header, entries);
        let seen = Seen {
            identity: word(LABEL + offset_of!(Label, identity)),
            number: half(LABEL + offset_of!(Label, number)),
            maker: half(LABEL + offset_of!(Label, maker)),
            flags: half(LABEL + offset_of!(Label, flags)),
            refused: half(LABEL + offset_of!(Label, refused)),
            entries: [half(entries), half(entries + size_of::<AtomicU32>())],
        };
        (word(LABEL + offset_of!(Label, magic)) == MAGIC).then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_written() {
        let control = Control::new().expect("a mapping");
        let read = || {
            let mut bytes = [0; Seen::BYTES];
            let header = core::ptr::from_ref(control.header()).cast::<u8>();
            // SAFETY: a control area begins with that many bytes, which no other thread writes.
            unsafe { header.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
            Seen::at_start_of(&bytes)
        };
        assert_eq!(read(), None);
        control.label(7, 1 << 40 | 3, 0x3000, [4, 8], 42);
        control.label_refusal(libc::ENOMEM);
        let expected =
            Seen { identity: 1 << 40 | 3, number: 7, maker: 42, flags: 0x3000, refused: 12, entries: [4, 8] };
        assert_eq!(read(), Some(expected));
        control.unmap();
    }
}
