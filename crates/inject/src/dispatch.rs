//! System calls by number: where libc's `syscall()` and trapped instructions meet. See [`anyring_serve::dispatch`].

use crate::host::Preloaded;

pub use anyring_serve::dispatch::NUMBERS;

/// Performs system call `number`; the answer is the register, errno is untouched.
pub fn call(number: i64, args: [usize; 6]) -> isize {
    anyring_serve::dispatch::call::<Preloaded>(number, args)
}
