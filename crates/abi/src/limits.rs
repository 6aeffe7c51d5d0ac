//! Limits of the kernel that no header defines.

/// The most bytes that one call transfers (`MAX_RW_COUNT` in include/linux/fs.h, with pages of 4 KiB).
pub const MAX_RW_COUNT: usize = 0x7fff_f000;
