//! System calls by number: where libc's `syscall()` and trapped instructions meet. See [`anyring_serve::dispatch`].

use crate::host::Preloaded;
use crate::signals::mask;
use crate::{exec, sanitizer};
use anyring_serve::exec::Call;

pub use anyring_serve::dispatch::NUMBERS;

/// Performs system call `number`; the answer is the register, errno is untouched.
pub fn call(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, _] = args;
    match number {
        libc::SYS_execve => {
            let call = Call { directory: libc::AT_FDCWD, path: a, arguments: b, environment: c, flags: 0 };
            exec::before(&call);
        }
        libc::SYS_execveat => {
            exec::before(&Call { directory: a as i32, path: b, arguments: c, environment: d, flags: e });
        }
        _ => {}
    }
    let call = || sanitizer::around(number, args, || anyring_serve::dispatch::call::<Preloaded>(number, args));
    match number {
        libc::SYS_execve | libc::SYS_execveat => mask::inherited(call),
        _ => call(),
    }
}
