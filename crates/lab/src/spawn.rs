//! Starts a program many times, with only the system calls in the timed part.

use std::ffi::{c_char, CString};
use std::time::Instant;

/// A program without arguments, in an environment of exactly these variables.
#[derive(Debug)]
pub struct Program {
    path: CString,
    environment: Vec<CString>,
}

impl Program {
    /// Makes it from `NAME=value` strings. The error is one line for people.
    pub fn new(path: &str, environment: &[&str]) -> Result<Self, String> {
        let string = |text: &str| CString::new(text).map_err(|_| format!("a NUL byte in {text:?}"));
        let environment = environment.iter().map(|variable| string(variable)).collect::<Result<_, _>>()?;
        Ok(Program { path: string(path)?, environment })
    }

    /// Runs it once. Returns the time from posix_spawn(3) to the end of waitpid(2) in ns, or an error unless it exits
    /// with 0.
    pub fn time_ns(&self) -> Result<f64, String> {
        let failure =
            |what: &str, error: std::io::Error| format!("{what} {}: {error}", self.path.to_string_lossy());
        let pointers = |strings: &[CString]| -> Vec<*mut c_char> {
            strings.iter().map(|string| string.as_ptr().cast_mut()).chain([std::ptr::null_mut()]).collect()
        };
        let (argv, envp) = (pointers(std::slice::from_ref(&self.path)), pointers(&self.environment));
        let (mut pid, mut status) = (0, 0);
        let start = Instant::now();
        // SAFETY: path, argv and envp are terminated and point into `self`, which outlives the call; no actions and no
        // attributes.
        let error = unsafe {
            libc::posix_spawn(
                &mut pid,
                self.path.as_ptr(),
                std::ptr::null(),
                std::ptr::null(),
                argv.as_ptr(),
                envp.as_ptr(),
            )
        };
        if error != 0 {
            return Err(failure("starting", std::io::Error::from_raw_os_error(error)));
        }
        // SAFETY: `status` is writable; the child is this process's own and no other code waits for it.
        while unsafe { libc::waitpid(pid, &mut status, 0) } == -1 {
            let error = std::io::Error::last_os_error();
            if error.kind() != std::io::ErrorKind::Interrupted {
                return Err(failure("waiting for", error));
            }
        }
        let time = start.elapsed();
        match status {
            0 => Ok(time.as_nanos() as f64),
            status => Err(format!("{} ended with wait status {status:#x}", self.path.to_string_lossy())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_program_that_succeeds_has_a_time() {
        let time = Program::new("/bin/true", &[]).and_then(|program| program.time_ns()).expect("/bin/true");
        assert!(time > 1000.0, "{time}");
        assert!(Program::new("/bin/false", &[]).and_then(|program| program.time_ns()).is_err());
        assert!(Program::new("/nonexistent", &[]).and_then(|program| program.time_ns()).is_err());
    }
}
