//! io_uring_prep_*(3): one row for each function. `Op(fd, addr, len, off)` is set by every preparation. Further fields
//! follow, under their names in [`anyring_abi::Sqe`], which flattens the C unions. Fields that a row does not name keep
//! the value that `io_uring_get_sqe` or the program left in them, as in liburing since 2.4.

use crate::liburing::guard;
use anyring_abi::*;
use core::ffi::{c_char, c_int, c_uint, c_void};
use libc::{iovec, mode_t, msghdr, off_t, size_t, sockaddr, socklen_t};

/// `BLOCK_URING_CMD_DISCARD`: `_IO(0x12, 0)`. Source: `include/uapi/linux/blkdev.h`.
const BLOCK_URING_CMD_DISCARD: c_int = 0x1200;
/// `SOCKET_URING_OP_GETSOCKNAME` (Linux 6.19).
const SOCKET_URING_OP_GETSOCKNAME: c_int = 5;
/// `IORING_MSG_SEND_FD`: the MSG_RING command that passes a registered file.
const IORING_MSG_SEND_FD: u64 = 1;
/// `IORING_OP_NOP128` (Linux 6.19).
const OP_NOP128: u8 = 63;
/// `IORING_OP_URING_CMD128` (Linux 6.19).
const OP_URING_CMD128: u8 = 64;
/// "Any free slot" as the programs write it.
const ALLOCATE: u32 = IORING_FILE_INDEX_ALLOC as u32;

/// Returns the form in which an SQE names registered file slot `index`. 0 stands for "none", so the SQE counts slots
/// from 1. The value for "any free slot" stays.
fn slot(index: u32) -> u32 {
    if index == ALLOCATE {
        ALLOCATE
    } else {
        index + 1
    }
}

/// Converts an argument into the number that an SQE carries.
trait Field<T> {
    fn field(self) -> T;
}

macro_rules! field {
    ($($from:ty => $to:ty),*) => { $(impl Field<$to> for $from {
        fn field(self) -> $to {
            self as $to
        }
    })* };
}
// Signed numbers are extended as C does; only `len` and `off` ever narrow, where the C prototypes do.
field!(c_int => u64, c_int => u32, u32 => u64, u32 => u32, i64 => u64, u64 => u64, usize => u32, u32 => i32, c_int => i32);

impl<P, T> Field<T> for *const P
where
    u64: Field<T>,
{
    fn field(self) -> T {
        (self as u64).field()
    }
}

impl<P, T> Field<T> for *mut P
where
    u64: Field<T>,
{
    fn field(self) -> T {
        (self as u64).field()
    }
}

/// Sets the four fields that every preparation sets.
///
/// # Safety
/// `sqe` points to an SQE that the program is filling.
unsafe fn set(
    sqe: *mut Sqe,
    opcode: u8,
    fd: impl Field<i32>,
    addr: impl Field<u64>,
    len: impl Field<u32>,
    off: u64,
) {
    // SAFETY: the caller's promise.
    unsafe {
        (*sqe).opcode = opcode;
        (*sqe).fd = fd.field();
        (*sqe).addr = addr.field();
        (*sqe).len = len.field();
        (*sqe).off = off;
    }
}

macro_rules! prep {
    ($($name:ident($($arg:ident: $type:ty),*)
        => $opcode:tt($fd:expr, $addr:expr, $len:expr, $off:expr) $(, $field:ident $assign:tt $value:expr)*;)*) => { $(
        #[doc = concat!(stringify!($name), "(3).")]
        #[no_mangle]
        pub unsafe extern "C" fn $name(sqe: *mut Sqe $(, $arg: $type)*) {
            // SAFETY: the caller's promise: an SQE from `io_uring_get_sqe` that is not submitted yet.
            guard(|| unsafe {
                set(sqe, opcode!($opcode), $fd, $addr, $len, Field::<u64>::field($off));
                $((*sqe).$field $assign $value;)*
            });
        }
    )* };
}

/// Returns the opcode of a row: a name in [`anyring_abi`], or the number of a newer operation.
macro_rules! opcode {
    (OP_NOP128) => {
        OP_NOP128
    };
    (OP_URING_CMD128) => {
        OP_URING_CMD128
    };
    ($name:ident) => {
        Opcode::$name as u8
    };
}

type Path = *const c_char;
const CWD: c_int = libc::AT_FDCWD;

/// io_uring_prep_rw: sets the fields that every preparation sets, for any opcode.
#[no_mangle]
pub unsafe extern "C" fn io_uring_prep_rw(
    op: c_int,
    sqe: *mut Sqe,
    fd: c_int,
    addr: *const c_void,
    len: c_uint,
    off: u64,
) {
    // SAFETY: the caller's promise: an SQE from `io_uring_get_sqe` that is not submitted yet.
    guard(|| unsafe { set(sqe, op as u8, fd, addr, len, off) });
}

/// io_uring_prep_send_set_addr(3).
#[no_mangle]
pub unsafe extern "C" fn io_uring_prep_send_set_addr(sqe: *mut Sqe, to: *const sockaddr, len: u16) {
    // SAFETY: the caller's promise: an SQE from `io_uring_get_sqe` that is not submitted yet.
    guard(|| unsafe {
        (*sqe).off = to as u64;
        // `addr_len` is the lower half of the union's word.
        (*sqe).file_index = (*sqe).file_index & 0xffff_0000 | u32::from(len);
    });
}

/// io_uring_prep_sendto.
#[no_mangle]
pub unsafe extern "C" fn io_uring_prep_sendto(
    sqe: *mut Sqe,
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        io_uring_prep_send(sqe, fd, buf, len, flags);
        io_uring_prep_send_set_addr(sqe, to, to_len as u16);
    }
}

/// The `addr` of a socket command: `level` and `optname` share its union.
fn level_and_name(level: c_int, name: c_int) -> u64 {
    u64::from(level as u32) | u64::from(name as u32) << 32
}

prep! {
    io_uring_prep_nop() => Nop(-1, 0u64, 0, 0);
    io_uring_prep_nop128() => OP_NOP128(-1, 0u64, 0, 0);

    // Files: data.
    io_uring_prep_read(fd: c_int, buf: *mut c_void, len: c_uint, off: u64) => Read(fd, buf, len, off);
    io_uring_prep_write(fd: c_int, buf: *const c_void, len: c_uint, off: u64) => Write(fd, buf, len, off);
    io_uring_prep_read_fixed(fd: c_int, buf: *mut c_void, len: c_uint, off: u64, index: c_int)
        => ReadFixed(fd, buf, len, off), buf_index = index as u16;
    io_uring_prep_write_fixed(fd: c_int, buf: *const c_void, len: c_uint, off: u64, index: c_int)
        => WriteFixed(fd, buf, len, off), buf_index = index as u16;
    io_uring_prep_readv(fd: c_int, iovecs: *const iovec, count: c_uint, off: u64) => Readv(fd, iovecs, count, off);
    io_uring_prep_writev(fd: c_int, iovecs: *const iovec, count: c_uint, off: u64) => Writev(fd, iovecs, count, off);
    io_uring_prep_readv2(fd: c_int, iovecs: *const iovec, count: c_uint, off: u64, flags: c_int)
        => Readv(fd, iovecs, count, off), op_flags = flags as u32;
    io_uring_prep_writev2(fd: c_int, iovecs: *const iovec, count: c_uint, off: u64, flags: c_int)
        => Writev(fd, iovecs, count, off), op_flags = flags as u32;
    io_uring_prep_readv_fixed(fd: c_int, iovecs: *const iovec, count: c_uint, off: u64, flags: c_int, index: c_int)
        => ReadvFixed(fd, iovecs, count, off), op_flags = flags as u32, buf_index = index as u16;
    io_uring_prep_writev_fixed(fd: c_int, iovecs: *const iovec, count: c_uint, off: u64, flags: c_int, index: c_int)
        => WritevFixed(fd, iovecs, count, off), op_flags = flags as u32, buf_index = index as u16;
    io_uring_prep_read_multishot(fd: c_int, len: c_uint, off: u64, group: c_int)
        => ReadMultishot(fd, 0u64, len, off), buf_index = group as u16, flags = IOSQE_BUFFER_SELECT;
    io_uring_prep_splice(fd_in: c_int, off_in: i64, fd_out: c_int, off_out: i64, len: c_uint, flags: c_uint)
        => Splice(fd_out, off_in, len, off_out), file_index = fd_in as u32, op_flags = flags;
    io_uring_prep_tee(fd_in: c_int, fd_out: c_int, len: c_uint, flags: c_uint)
        => Tee(fd_out, 0u64, len, 0), file_index = fd_in as u32, op_flags = flags;
    io_uring_prep_fsync(fd: c_int, flags: c_uint) => Fsync(fd, 0u64, 0, 0), op_flags = flags;
    io_uring_prep_sync_file_range(fd: c_int, len: c_uint, off: u64, flags: c_int)
        => SyncFileRange(fd, 0u64, len, off), op_flags = flags as u32;
    io_uring_prep_fallocate(fd: c_int, mode: c_int, off: u64, len: u64) => Fallocate(fd, len, mode, off);
    io_uring_prep_ftruncate(fd: c_int, len: i64) => Ftruncate(fd, 0u64, 0, len);
    io_uring_prep_fadvise(fd: c_int, off: u64, len: u32, advice: c_int)
        => Fadvise(fd, 0u64, len, off), op_flags = advice as u32;
    io_uring_prep_fadvise64(fd: c_int, off: u64, len: off_t, advice: c_int)
        => Fadvise(fd, len, 0, off), op_flags = advice as u32;
    io_uring_prep_madvise(address: *mut c_void, len: u32, advice: c_int)
        => Madvise(-1, address, len, 0), op_flags = advice as u32;
    io_uring_prep_madvise64(address: *mut c_void, len: off_t, advice: c_int)
        => Madvise(-1, address, 0, len), op_flags = advice as u32;

    // Files: names.
    io_uring_prep_openat(dir: c_int, path: Path, flags: c_int, mode: mode_t)
        => Openat(dir, path, mode, 0), op_flags = flags as u32;
    io_uring_prep_openat_direct(dir: c_int, path: Path, flags: c_int, mode: mode_t, index: c_uint)
        => Openat(dir, path, mode, 0), op_flags = flags as u32, file_index = slot(index);
    io_uring_prep_open(path: Path, flags: c_int, mode: mode_t)
        => Openat(CWD, path, mode, 0), op_flags = flags as u32;
    io_uring_prep_open_direct(path: Path, flags: c_int, mode: mode_t, index: c_uint)
        => Openat(CWD, path, mode, 0), op_flags = flags as u32, file_index = slot(index);
    io_uring_prep_openat2(dir: c_int, path: Path, how: *const libc::open_how)
        => Openat2(dir, path, size_of::<libc::open_how>(), how);
    io_uring_prep_openat2_direct(dir: c_int, path: Path, how: *const libc::open_how, index: c_uint)
        => Openat2(dir, path, size_of::<libc::open_how>(), how), file_index = slot(index);
    io_uring_prep_close(fd: c_int) => Close(fd, 0u64, 0, 0);
    io_uring_prep_close_direct(index: c_uint) => Close(0, 0u64, 0, 0), file_index = index.wrapping_add(1);
    io_uring_prep_fixed_fd_install(fd: c_int, install_flags: c_uint)
        => FixedFdInstall(fd, 0u64, 0, 0), flags = IOSQE_FIXED_FILE, op_flags = install_flags;
    io_uring_prep_statx(dir: c_int, path: Path, flags: c_int, mask: c_uint, statx: *mut libc::statx)
        => Statx(dir, path, mask, statx), op_flags = flags as u32;
    io_uring_prep_unlinkat(dir: c_int, path: Path, flags: c_int)
        => Unlinkat(dir, path, 0, 0), op_flags = flags as u32;
    io_uring_prep_unlink(path: Path, flags: c_int) => Unlinkat(CWD, path, 0, 0), op_flags = flags as u32;
    io_uring_prep_renameat(old_dir: c_int, old: Path, new_dir: c_int, new: Path, flags: c_uint)
        => Renameat(old_dir, old, new_dir, new), op_flags = flags;
    io_uring_prep_rename(old: Path, new: Path) => Renameat(CWD, old, CWD, new), op_flags = 0;
    io_uring_prep_mkdirat(dir: c_int, path: Path, mode: mode_t) => Mkdirat(dir, path, mode, 0);
    io_uring_prep_mkdir(path: Path, mode: mode_t) => Mkdirat(CWD, path, mode, 0);
    io_uring_prep_symlinkat(target: Path, dir: c_int, path: Path) => Symlinkat(dir, target, 0, path);
    io_uring_prep_symlink(target: Path, path: Path) => Symlinkat(CWD, target, 0, path);
    io_uring_prep_linkat(old_dir: c_int, old: Path, new_dir: c_int, new: Path, flags: c_int)
        => Linkat(old_dir, old, new_dir, new), op_flags = flags as u32;
    io_uring_prep_link(old: Path, new: Path, flags: c_int) => Linkat(CWD, old, CWD, new), op_flags = flags as u32;
    io_uring_prep_getxattr(name: Path, value: *mut c_char, path: Path, len: c_uint)
        => Getxattr(0, name, len, value), addr3 = path as u64, op_flags = 0;
    io_uring_prep_setxattr(name: Path, value: *const c_char, path: Path, flags: c_int, len: c_uint)
        => Setxattr(0, name, len, value), addr3 = path as u64, op_flags = flags as u32;
    io_uring_prep_fgetxattr(fd: c_int, name: Path, value: *mut c_char, len: c_uint)
        => Fgetxattr(fd, name, len, value), op_flags = 0;
    io_uring_prep_fsetxattr(fd: c_int, name: Path, value: *const c_char, flags: c_int, len: c_uint)
        => Fsetxattr(fd, name, len, value), op_flags = flags as u32;
    io_uring_prep_files_update(fds: *mut c_int, count: c_uint, offset: c_int) => FilesUpdate(-1, fds, count, offset);

    // Sockets and pipes.
    io_uring_prep_socket(domain: c_int, kind: c_int, protocol: c_int, flags: c_uint)
        => Socket(domain, 0u64, protocol, kind), op_flags = flags;
    io_uring_prep_socket_direct(domain: c_int, kind: c_int, protocol: c_int, index: c_uint, flags: c_uint)
        => Socket(domain, 0u64, protocol, kind), op_flags = flags, file_index = slot(index);
    io_uring_prep_socket_direct_alloc(domain: c_int, kind: c_int, protocol: c_int, flags: c_uint)
        => Socket(domain, 0u64, protocol, kind), op_flags = flags, file_index = ALLOCATE;
    io_uring_prep_bind(fd: c_int, address: *const sockaddr, len: socklen_t) => Bind(fd, address, 0, len);
    io_uring_prep_listen(fd: c_int, backlog: c_int) => Listen(fd, 0u64, backlog, 0);
    io_uring_prep_connect(fd: c_int, address: *const sockaddr, len: socklen_t) => Connect(fd, address, 0, len);
    io_uring_prep_accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int)
        => Accept(fd, address, 0, len), op_flags = flags as u32;
    io_uring_prep_accept_direct(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int, index: c_uint)
        => Accept(fd, address, 0, len), op_flags = flags as u32, file_index = slot(index);
    io_uring_prep_multishot_accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int)
        => Accept(fd, address, 0, len), op_flags = flags as u32, ioprio |= IORING_ACCEPT_MULTISHOT as u16;
    io_uring_prep_multishot_accept_direct(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int)
        => Accept(fd, address, 0, len), op_flags = flags as u32, ioprio |= IORING_ACCEPT_MULTISHOT as u16,
        file_index = ALLOCATE;
    io_uring_prep_shutdown(fd: c_int, how: c_int) => Shutdown(fd, 0u64, how, 0);
    io_uring_prep_send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int)
        => Send(fd, buf, len, 0), op_flags = flags as u32;
    io_uring_prep_send_bundle(fd: c_int, len: size_t, flags: c_int)
        => Send(fd, 0u64, len, 0), op_flags = flags as u32, ioprio |= IORING_RECVSEND_BUNDLE as u16;
    io_uring_prep_send_zc(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, zc_flags: c_uint)
        => SendZc(fd, buf, len, 0), op_flags = flags as u32, ioprio = zc_flags as u16;
    io_uring_prep_send_zc_fixed(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, zc_flags: c_uint, index: c_uint)
        => SendZc(fd, buf, len, 0), op_flags = flags as u32,
        ioprio = zc_flags as u16 | IORING_RECVSEND_FIXED_BUF as u16, buf_index = index as u16;
    io_uring_prep_sendmsg(fd: c_int, msg: *const msghdr, flags: c_uint) => Sendmsg(fd, msg, 1, 0), op_flags = flags;
    io_uring_prep_sendmsg_zc(fd: c_int, msg: *const msghdr, flags: c_uint)
        => SendmsgZc(fd, msg, 1, 0), op_flags = flags;
    io_uring_prep_sendmsg_zc_fixed(fd: c_int, msg: *const msghdr, flags: c_uint, index: c_uint)
        => SendmsgZc(fd, msg, 1, 0), op_flags = flags, ioprio |= IORING_RECVSEND_FIXED_BUF as u16,
        buf_index = index as u16;
    io_uring_prep_recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int)
        => Recv(fd, buf, len, 0), op_flags = flags as u32;
    io_uring_prep_recv_multishot(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int)
        => Recv(fd, buf, len, 0), op_flags = flags as u32, ioprio |= IORING_RECV_MULTISHOT as u16;
    io_uring_prep_recvmsg(fd: c_int, msg: *mut msghdr, flags: c_uint) => Recvmsg(fd, msg, 1, 0), op_flags = flags;
    io_uring_prep_recvmsg_multishot(fd: c_int, msg: *mut msghdr, flags: c_uint)
        => Recvmsg(fd, msg, 1, 0), op_flags = flags, ioprio |= IORING_RECV_MULTISHOT as u16;
    io_uring_prep_pipe(fds: *mut c_int, flags: c_int) => Pipe(0, fds, 0, 0), op_flags = flags as u32;
    io_uring_prep_pipe_direct(fds: *mut c_int, flags: c_int, index: c_uint)
        => Pipe(0, fds, 0, 0), op_flags = flags as u32, file_index = slot(index);

    // Readiness, time, cancellation.
    io_uring_prep_poll_add(fd: c_int, mask: c_uint) => PollAdd(fd, 0u64, 0, 0), op_flags = mask;
    io_uring_prep_poll_multishot(fd: c_int, mask: c_uint)
        => PollAdd(fd, 0u64, IORING_POLL_ADD_MULTI, 0), op_flags = mask;
    io_uring_prep_poll_remove(user_data: u64) => PollRemove(-1, user_data, 0, 0);
    io_uring_prep_poll_update(old_user_data: u64, new_user_data: u64, mask: c_uint, flags: c_uint)
        => PollRemove(-1, old_user_data, flags, new_user_data), op_flags = mask;
    io_uring_prep_epoll_ctl(epoll: c_int, fd: c_int, op: c_int, event: *const c_void)
        => EpollCtl(epoll, event, op, fd as u32);
    io_uring_prep_epoll_wait(fd: c_int, events: *mut c_void, max_events: c_int, flags: c_uint)
        => EpollWait(fd, events, max_events, 0), op_flags = flags;
    io_uring_prep_timeout(ts: *const Timespec, count: c_uint, flags: c_uint)
        => Timeout(-1, ts, 1, count), op_flags = flags;
    io_uring_prep_timeout_remove(user_data: u64, flags: c_uint)
        => TimeoutRemove(-1, user_data, 0, 0), op_flags = flags;
    io_uring_prep_timeout_update(ts: *const Timespec, user_data: u64, flags: c_uint)
        => TimeoutRemove(-1, user_data, 0, ts), op_flags = flags | IORING_TIMEOUT_UPDATE;
    io_uring_prep_link_timeout(ts: *const Timespec, flags: c_uint) => LinkTimeout(-1, ts, 1, 0), op_flags = flags;
    io_uring_prep_cancel64(user_data: u64, flags: c_int)
        => AsyncCancel(-1, user_data, 0, 0), op_flags = flags as u32;
    io_uring_prep_cancel(user_data: *const c_void, flags: c_int)
        => AsyncCancel(-1, user_data, 0, 0), op_flags = flags as u32;
    io_uring_prep_cancel_fd(fd: c_int, flags: c_uint)
        => AsyncCancel(fd, 0u64, 0, 0), op_flags = flags | IORING_ASYNC_CANCEL_FD;
    io_uring_prep_waitid(kind: c_uint, id: libc::id_t, info: *mut c_void, options: c_int, flags: c_uint)
        => Waitid(id, 0u64, kind, info), op_flags = flags, file_index = options as u32;
    io_uring_prep_futex_wake(futex: *const u32, value: u64, mask: u64, futex_flags: u32, flags: c_uint)
        => FutexWake(futex_flags, futex, 0, value), op_flags = flags, addr3 = mask;
    io_uring_prep_futex_wait(futex: *const u32, value: u64, mask: u64, futex_flags: u32, flags: c_uint)
        => FutexWait(futex_flags, futex, 0, value), op_flags = flags, addr3 = mask;
    io_uring_prep_futex_waitv(futexes: *const c_void, count: u32, flags: c_uint)
        => FutexWaitv(0, futexes, count, 0), op_flags = flags;

    // Buffers.
    io_uring_prep_provide_buffers(address: *mut c_void, len: c_int, count: c_int, group: c_int, first: c_int)
        => ProvideBuffers(count, address, len, first), buf_index = group as u16;
    io_uring_prep_remove_buffers(count: c_int, group: c_int)
        => RemoveBuffers(count, 0u64, 0, 0), buf_index = group as u16;

    // Messages and commands.
    io_uring_prep_msg_ring(fd: c_int, len: c_uint, data: u64, flags: c_uint)
        => MsgRing(fd, 0u64, len, data), op_flags = flags;
    io_uring_prep_msg_ring_cqe_flags(fd: c_int, len: c_uint, data: u64, flags: c_uint, cqe_flags: c_uint)
        => MsgRing(fd, 0u64, len, data), op_flags = flags | IORING_MSG_RING_FLAGS_PASS, file_index = cqe_flags;
    io_uring_prep_msg_ring_fd(fd: c_int, from: c_int, to: c_int, data: u64, flags: c_uint)
        => MsgRing(fd, IORING_MSG_SEND_FD, 0, data), addr3 = from as u64, file_index = slot(to as u32),
        op_flags = flags;
    io_uring_prep_msg_ring_fd_alloc(fd: c_int, from: c_int, data: u64, flags: c_uint)
        => MsgRing(fd, IORING_MSG_SEND_FD, 0, data), addr3 = from as u64, file_index = ALLOCATE, op_flags = flags;
    io_uring_prep_uring_cmd(command: c_int, fd: c_int) => UringCmd(fd, 0u64, 0, command as u32);
    io_uring_prep_uring_cmd128(command: c_int, fd: c_int) => OP_URING_CMD128(fd, 0u64, 0, command as u32);
    io_uring_prep_cmd_sock(
        command: c_int, fd: c_int, level: c_int, name: c_int, value: *mut c_void, value_len: c_int)
        => UringCmd(fd, level_and_name(level, name), 0, command as u32), addr3 = value as u64,
        file_index = value_len as u32;
    io_uring_prep_cmd_getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, peer: c_int)
        => UringCmd(fd, address, 0, SOCKET_URING_OP_GETSOCKNAME), addr3 = len as u64, file_index = peer as u32;
    io_uring_prep_cmd_discard(fd: c_int, offset: u64, len: u64)
        => UringCmd(fd, offset, 0, BLOCK_URING_CMD_DISCARD), addr3 = len;
}
