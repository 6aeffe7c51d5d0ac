//! System calls by number: the common path of libc's `syscall()` and trapped instructions. See
//! [`anyring_serve::dispatch`].

use crate::host::Preloaded;
use crate::{exec, sanitizer};
use anyring_serve::exec::Call;

pub use anyring_serve::dispatch::{is_prepared_only, prepare, NUMBERS};

/// Performs system call `number`. Returns the kernel's register (a value, or `-errno`). errno is untouched.
pub fn call(number: i64, args: [usize; 6]) -> isize {
    let [a, b, c, d, e, _] = args;
    let call = |args| sanitizer::around(number, args, || anyring_serve::dispatch::call::<Preloaded>(number, args));
    let executed = match number {
        libc::SYS_execve => {
            let named = Call { directory: libc::AT_FDCWD, path: a, arguments: b, environment: c, flags: 0 };
            exec::execute(&named, |environment| call([a, b, environment, d, e, 0]))
        }
        libc::SYS_execveat => {
            let named = Call { directory: a as i32, path: b, arguments: c, environment: d, flags: e };
            exec::execute(&named, |environment| call([a, b, c, environment, e, 0]))
        }
        _ => return call(args),
    };
    executed.unwrap_or_else(|| call(args))
}
