//! Names of error numbers, for people and for doctor's JSON.

macro_rules! names {
    ($code:expr, $($name:ident)*) => {
        match $code {
            $(libc::$name => Some(stringify!($name)),)*
            _ => None,
        }
    };
}

/// The symbolic name of an error number that a probe may get, or `errno N`.
pub fn name(code: i32) -> String {
    let known = names!(code, EPERM ENOENT EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT EBUSY
        EEXIST ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EPIPE ENOSYS ELOOP
        EOPNOTSUPP ENOPROTOOPT EADDRINUSE ENOBUFS ETIMEDOUT ECONNREFUSED ECANCELED EOVERFLOW ESRCH ERANGE EPROTO);
    known.map_or_else(|| format!("errno {code}"), str::to_owned)
}

/// The symbolic name of a signal that ends a probe, or `signal N`.
pub fn signal_name(signal: i32) -> String {
    let known = names!(signal, SIGSYS SIGKILL SIGSEGV SIGBUS SIGABRT SIGILL SIGTRAP SIGALRM SIGTERM SIGPIPE SIGFPE);
    known.map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// The text of an error, without its number.
pub fn of(error: &std::io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), describe)
}

/// The calling thread's errno.
pub fn last() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// libc's text for an error number, as other commands print it.
pub fn describe(code: i32) -> String {
    let text = std::io::Error::from_raw_os_error(code).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
