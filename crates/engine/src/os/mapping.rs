//! Asks the kernel which memory of the program maps a file that is written back to a disk (PROCMAP_QUERY, from Linux
//! 6.11 on). Nothing is known of such memory without /proc, or where the call is refused.

use super::{calls, check, is_permitted, syscall, ForNow, Question};
use core::ops::Range;
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags};

/// ioctl(2)'s number: `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: usize = 0xc068_6611;
const WRITABLE: u64 = 1 << 1;
const SHARED: u64 = 1 << 3;

/// `struct procmap_query` in linux/fs.h.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// Whether ioctl(2) is permitted.
static ASKS_MAPPINGS: Question =
    Question::new(|| is_permitted(libc::SYS_ioctl, [usize::MAX, PROCMAP_QUERY, 0, 0, 0, 0]));

/// The program's mappings, for a call that asks about several ranges.
#[derive(Default)]
pub struct Mappings {
    /// /proc/thread-self/maps once it was needed; an inner `None` if it cannot be opened.
    maps: Option<Option<ForNow>>,
    /// The mapping that the last answer was about. It is not written back.
    last: Range<u64>,
}

impl Mappings {
    /// True if a byte of `address..end` belongs to a shared, writable mapping of a file on a block device. The kernel
    /// pins no such memory for long (`writable_file_mapping_allowed` in mm/gup.c).
    pub fn is_written_back(&mut self, address: u64, end: u64) -> bool {
        let mut address = address;
        while address < end {
            if !self.last.contains(&address) {
                let Some(query) = self.ask(address) else { return false };
                if query.vma_flags & (WRITABLE | SHARED) == WRITABLE | SHARED && query.major != 0 {
                    return true;
                }
                self.last = query.start..query.end.max(address + 1);
            }
            address = self.last.end;
        }
        false
    }

    fn ask(&mut self, address: u64) -> Option<Query> {
        if !ASKS_MAPPINGS.is_yes() {
            return None;
        }
        let open = || calls::open("/proc/thread-self/maps", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        let maps = self.maps.get_or_insert_with(open).as_ref()?;
        let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
        let args = [maps.as_raw_fd() as usize, PROCMAP_QUERY, &raw mut query as usize, 0, 0, 0];
        check(syscall(libc::SYS_ioctl, args)).ok().map(|_| query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::refusing::killing;

    #[test]
    fn a_filter_that_kills_for_the_question_ends_nobody() {
        let byte = 0u8;
        let address = &raw const byte as u64;
        let asks = || u8::from(Mappings::default().is_written_back(address, address + 1));
        assert_eq!(killing(&[libc::SYS_ioctl], asks), 0);
    }
}
