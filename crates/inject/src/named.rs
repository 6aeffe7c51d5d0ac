//! libc's functions that take descriptors and need only one check: which numbers each may name.
//! [`anyring_serve::named`] decides that. For a number that nobody here owns, the check costs two loads.

use crate::descriptor::refusal;
use crate::next::{missing, next};
use anyring_serve::named::{check, concerns};

/// Declares wrappers whose arguments are those of the system call, as far as `check` reads them. Every argument is
/// declared as a word. A word travels in the same register as the C type, also in a variadic call such as ioctl(2). It
/// is passed on unchanged.
macro_rules! named {
    ($($next:ident $name:ident $symbol:literal = $number:ident($fd:ident $(, $arg:ident)*) $(also $other:ident)?;)*) => {
        next! {
            $($next = $symbol: fn(usize $(, named!(@word $arg))*) -> isize;)*
        }
        $(
            /// Behaves like libc's function of this name.
            ///
            /// # Safety
            /// As libc's function.
            #[cfg_attr(not(test), no_mangle)]
            pub unsafe extern "C-unwind" fn $name($fd: usize $(, $arg: usize)*) -> isize {
                if concerns($fd as i32) $(|| concerns($other as i32))? {
                    if let Some(answer) = refused(libc::$number, &[$fd $(, $arg)*]) {
                        return answer;
                    }
                }
                // SAFETY: the caller's own arguments.
                $next.get().map_or_else(|| missing() as isize, |next| unsafe { next($fd $(, $arg)*) })
            }
        )*
    };
    (@word $arg:ident) => { usize };
}

/// Checks a call that may name a ring's number or one of the engine's. Returns the function's answer if the call is
/// refused.
#[cold]
fn refused(number: i64, given: &[usize]) -> Option<isize> {
    let mut args = [usize::MAX; 6];
    let count = given.len().min(args.len());
    args[..count].copy_from_slice(&given[..count]);
    refusal(|| check(number, &args)).map(|answer| answer as isize)
}

named! {
    READ read c"read" = SYS_read(fd, buffer, bytes);
    READ_CHK __read_chk c"__read_chk" = SYS_read(fd, buffer, bytes, room);
    WRITE write c"write" = SYS_write(fd, buffer, bytes);
    PREAD pread c"pread" = SYS_pread64(fd, buffer, bytes, at);
    PREAD64 pread64 c"pread64" = SYS_pread64(fd, buffer, bytes, at);
    PREAD_CHK __pread_chk c"__pread_chk" = SYS_pread64(fd, buffer, bytes, at, room);
    PREAD64_CHK __pread64_chk c"__pread64_chk" = SYS_pread64(fd, buffer, bytes, at, room);
    PWRITE pwrite c"pwrite" = SYS_pwrite64(fd, buffer, bytes, at);
    PWRITE64 pwrite64 c"pwrite64" = SYS_pwrite64(fd, buffer, bytes, at);
    READV readv c"readv" = SYS_readv(fd, vectors, count);
    WRITEV writev c"writev" = SYS_writev(fd, vectors, count);
    PREADV preadv c"preadv" = SYS_preadv(fd, vectors, count, at);
    PREADV64 preadv64 c"preadv64" = SYS_preadv(fd, vectors, count, at);
    PWRITEV pwritev c"pwritev" = SYS_pwritev(fd, vectors, count, at);
    PWRITEV64 pwritev64 c"pwritev64" = SYS_pwritev(fd, vectors, count, at);
    PREADV2 preadv2 c"preadv2" = SYS_preadv2(fd, vectors, count, at, flags);
    PREADV64V2 preadv64v2 c"preadv64v2" = SYS_preadv2(fd, vectors, count, at, flags);
    PWRITEV2 pwritev2 c"pwritev2" = SYS_pwritev2(fd, vectors, count, at, flags);
    PWRITEV64V2 pwritev64v2 c"pwritev64v2" = SYS_pwritev2(fd, vectors, count, at, flags);
    SENDFILE sendfile c"sendfile" = SYS_sendfile(fd, from, at, bytes) also from;
    SENDFILE64 sendfile64 c"sendfile64" = SYS_sendfile(fd, from, at, bytes) also from;
    SPLICE splice c"splice" = SYS_splice(fd, from_at, to, to_at, bytes, flags) also to;
    TEE tee c"tee" = SYS_tee(fd, to, bytes, flags) also to;
    COPY_FILE_RANGE copy_file_range c"copy_file_range" =
        SYS_copy_file_range(fd, from_at, to, to_at, bytes, flags) also to;
    VMSPLICE vmsplice c"vmsplice" = SYS_vmsplice(fd, vectors, count, flags);
    SEND send c"send" = SYS_sendto(fd, buffer, bytes, flags);
    SENDTO sendto c"sendto" = SYS_sendto(fd, buffer, bytes, flags, address, size);
    RECV recv c"recv" = SYS_recvfrom(fd, buffer, bytes, flags);
    RECV_CHK __recv_chk c"__recv_chk" = SYS_recvfrom(fd, buffer, bytes, room, flags);
    RECVFROM recvfrom c"recvfrom" = SYS_recvfrom(fd, buffer, bytes, flags, address, size);
    RECVFROM_CHK __recvfrom_chk c"__recvfrom_chk" = SYS_recvfrom(fd, buffer, bytes, room, flags, address, size);
    RECVMSG recvmsg c"recvmsg" = SYS_recvmsg(fd, message, flags);
    RECVMMSG recvmmsg c"recvmmsg" = SYS_recvmmsg(fd, messages, count, flags, timeout);
    SHUTDOWN shutdown c"shutdown" = SYS_shutdown(fd, how);
    BIND bind c"bind" = SYS_bind(fd, address, size);
    LISTEN listen c"listen" = SYS_listen(fd, backlog);
    CONNECT connect c"connect" = SYS_connect(fd, address, size);
    ACCEPT accept c"accept" = SYS_accept(fd, address, size);
    ACCEPT4 accept4 c"accept4" = SYS_accept4(fd, address, size, flags);
    GETSOCKNAME getsockname c"getsockname" = SYS_getsockname(fd, address, size);
    GETPEERNAME getpeername c"getpeername" = SYS_getpeername(fd, address, size);
    SETSOCKOPT setsockopt c"setsockopt" = SYS_setsockopt(fd, level, name, value, size);
    GETSOCKOPT getsockopt c"getsockopt" = SYS_getsockopt(fd, level, name, value, size);
    FTRUNCATE ftruncate c"ftruncate" = SYS_ftruncate(fd, bytes);
    FTRUNCATE64 ftruncate64 c"ftruncate64" = SYS_ftruncate(fd, bytes);
    FALLOCATE fallocate c"fallocate" = SYS_fallocate(fd, mode, at, bytes);
    FALLOCATE64 fallocate64 c"fallocate64" = SYS_fallocate(fd, mode, at, bytes);
    FCHMOD fchmod c"fchmod" = SYS_fchmod(fd, mode);
    FCHOWN fchown c"fchown" = SYS_fchown(fd, owner, group);
    IOCTL ioctl c"ioctl" = SYS_ioctl(fd, request, argument);
    TIMERFD_SETTIME timerfd_settime c"timerfd_settime" = SYS_timerfd_settime(fd, flags, new, old);
}
