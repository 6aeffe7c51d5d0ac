//! The additions of SEND_ZC and SENDMSG_ZC to SEND and SENDMSG: a second CQE, the notification.
//!
//! The engine copies the data. The kernel does so, too, if a device cannot send from program memory, or between sockets
//! of one machine. To send from program memory, the engine would need SO_ZEROCOPY on the program's socket, and would
//! have to read the socket's error queue. The program would notice both. So the buffer is free again when the request
//! completes, and the notification follows its CQE at once. With IORING_SEND_ZC_REPORT_USAGE the notification says that
//! the data was copied.

use super::{socket_option, Opcode, Sqe};
use crate::os::version;
use crate::Errno;
use anyring_abi::{
    IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_NOTIF_USAGE_ZC_COPIED, IORING_RECVSEND_FIXED_BUF,
    IORING_RECVSEND_POLL_FIRST, IORING_SEND_VECTORIZED, IORING_SEND_ZC_REPORT_USAGE, IOSQE_CQE_SKIP_SUCCESS,
};

/// The flags in `ioprio` that SEND_ZC and SENDMSG_ZC know.
pub(super) const OPTIONS: u32 =
    IORING_RECVSEND_POLL_FIRST | IORING_RECVSEND_FIXED_BUF | IORING_SEND_ZC_REPORT_USAGE | IORING_SEND_VECTORIZED;

/// The additional state of a SEND_ZC or SENDMSG_ZC.
#[derive(Debug)]
pub(super) struct ZeroCopy {
    /// The notification reports whether the data was copied.
    reports: bool,
    /// The notification's `user_data`; 0 for that of the request.
    notified: u64,
    /// The check that the kernel can send from program memory through this socket has passed.
    checked: bool,
}

impl ZeroCopy {
    pub(super) fn new(sqe: &Sqe) -> ZeroCopy {
        let reports = u32::from(sqe.ioprio) & IORING_SEND_ZC_REPORT_USAGE != 0;
        ZeroCopy { reports, notified: sqe.addr3, checked: false }
    }

    /// The `user_data` of the notification, if it is not that of the request.
    pub(super) fn notified(&self) -> Option<u64> {
        (self.notified != 0).then_some(self.notified)
    }

    /// `IORING_CQE_F_*` of the request's CQE, and the result of its notification.
    pub(super) fn cqe_flags(&self) -> u32 {
        flags(self.reports)
    }

    /// The [`cqe_flags`](Self::cqe_flags) of a send whose data could not be read. The kernel has copied nothing then.
    pub(super) fn flags_of_bad_data(&self) -> u32 {
        flags(false)
    }

    /// Checks the socket once. Fails with `EOPNOTSUPP` if the kernel cannot send from program memory through it.
    pub(super) fn check_socket(&mut self, fd: i32) -> Result<(), Errno> {
        const IPPROTO_UDPLITE: i32 = 136;
        if self.checked {
            return Ok(());
        }
        let inet = matches!(socket_option(fd, libc::SO_DOMAIN)?, libc::AF_INET | libc::AF_INET6);
        let kind = socket_option(fd, libc::SO_TYPE)?;
        let protocol = socket_option(fd, libc::SO_PROTOCOL)?;
        self.checked = inet
            && match kind {
                libc::SOCK_STREAM => protocol == libc::IPPROTO_TCP,
                libc::SOCK_DGRAM => matches!(protocol, libc::IPPROTO_UDP | IPPROTO_UDPLITE),
                _ => false,
            };
        if self.checked {
            Ok(())
        } else {
            Err(Errno::OPNOTSUPP)
        }
    }
}

/// Returns the `IORING_CQE_F_*` of an SQE whose prep failed. By then the kernel has made the notification, and posts it
/// in spite of the failure, unless its first check failed. Source: `io_send_zc_prep` in io_uring/net.c.
pub fn refused_flags(opcode: Opcode, sqe: &Sqe) -> u32 {
    let notifies = matches!(opcode, Opcode::SendZc | Opcode::SendmsgZc);
    if !notifies || !may_notify(sqe) {
        return 0;
    }
    let known = u32::from(sqe.ioprio) & !OPTIONS == 0;
    flags(known && u32::from(sqe.ioprio) & IORING_SEND_ZC_REPORT_USAGE != 0)
}

/// True if the SQE passes the first check. `addr3` has the `user_data` of the notification from Linux 7.3 on.
pub(super) fn may_notify(sqe: &Sqe) -> bool {
    (sqe.addr3 == 0 || version::answers_as_7_3()) && sqe.pad2 == 0 && sqe.flags & IOSQE_CQE_SKIP_SUCCESS == 0
}

fn flags(reports: bool) -> u32 {
    let usage = if reports { IORING_NOTIF_USAGE_ZC_COPIED } else { 0 };
    IORING_CQE_F_MORE | IORING_CQE_F_NOTIF | usage
}
