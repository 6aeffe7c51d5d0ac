//! The times at which sent data left, read from a socket's error queue (SOCKET_URING_OP_TX_TIMESTAMP).
//!
//! Reading the queue removes an entry, which cannot be put back. So it is read only if the socket's options let nothing
//! else into it: no errors, no notifications of zero-copy sends, and timestamps without data.

use super::call;
use super::net::socket_option;
use crate::Errno;
use anyring_abi::IORING_CQE_F_TSTAMP_HW;

/// `IORING_TIMESTAMP_TYPE_SHIFT` of linux/io_uring.h.
const TYPE_SHIFT: u32 = 17;
/// `SO_EE_ORIGIN_TIMESTAMPING` of linux/errqueue.h.
const BY_TIMESTAMPING: u8 = 4;
/// `SOF_TXTIME_REPORT_ERRORS` of linux/net_tstamp.h.
const REPORT_ERRORS: u32 = 2;
/// `SO_TIMESTAMPING_NEW` of asm-generic/socket.h. Where words have 64 bits, its times have the same form.
const SO_TIMESTAMPING_NEW: i32 = 65;

/// A time at which data left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The number of the send call, or of the stream's byte.
    pub key: i32,
    /// The kind and source of the time, as `IORING_CQE_F_*`.
    pub flags: u32,
    /// Seconds and nanoseconds.
    pub time: [u64; 2],
}

/// Takes the next time out of the socket's error queue. EINVAL if the queue may have other entries, as from a kernel
/// without the command.
pub fn take(fd: i32) -> Result<Option<Stamp>, Errno> {
    let wanted = socket_option(fd, libc::SO_TIMESTAMPING)? as u32;
    if wanted & libc::SOF_TIMESTAMPING_OPT_TSONLY == 0 || may_queue_others(fd)? {
        return Err(Errno::INVAL);
    }
    // Times are reported only on request (`skb_get_tx_timestamp` in net/socket.c).
    if wanted & (libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_RAW_HARDWARE) == 0 {
        return Ok(None);
    }
    loop {
        let mut control = [0u64; 32];
        // SAFETY: all zeroes is a message without name and data.
        let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _; // 32 bits wide in musl
        let flags = (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as usize;
        match call(libc::SYS_recvmsg, [fd as usize, &raw mut message as usize, flags, 0, 0, 0]) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
        let length = message.msg_controllen as usize / 8;
        // Another entry is from before the socket's options changed.
        if let Some(stamp) = parse(&control[..length.min(control.len())]) {
            return Ok(Some(stamp));
        }
    }
}

/// True if entries other than times may be in the error queue.
fn may_queue_others(fd: i32) -> Result<bool, Errno> {
    let reports = |level: i32, option: i32| {
        let (mut value, mut bytes) = ([0u32; 2], 8u32);
        let args =
            [fd as usize, level as usize, option as usize, value.as_mut_ptr() as usize, &raw mut bytes as usize, 0];
        call(libc::SYS_getsockopt, args).map_or([0; 2], |_| value) // the protocol lacks the option
    };
    let errors = reports(libc::SOL_IP, libc::IP_RECVERR)[0] | reports(libc::SOL_IPV6, libc::IPV6_RECVERR)[0];
    let send_times = reports(libc::SOL_SOCKET, libc::SO_TXTIME)[1] & REPORT_ERRORS;
    Ok(errors | send_times != 0 || socket_option(fd, libc::SO_ZEROCOPY)? != 0)
}

/// Reads the control messages of an entry: its time, and the `struct sock_extended_err` that says what it is.
fn parse(mut control: &[u64]) -> Option<Stamp> {
    let (mut times, mut entry) = (None, None);
    while let [length, kind, rest @ ..] = control {
        // struct cmsghdr: the length with the header, level, type.
        let words = (*length as usize).checked_sub(16)?.div_ceil(8).min(rest.len());
        let (data, others) = rest.split_at(words);
        match (*kind as u32 as i32, (*kind >> 32) as i32) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPING | SO_TIMESTAMPING_NEW) => times = data.get(..6),
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR) => entry = data.get(..2),
            _ => {}
        }
        control = others;
    }
    let (times, entry) = (times?, entry?);
    // errno; origin, type, code, padding; info; data.
    let origin = (entry[0] >> 32) as u8;
    let (info, key) = (entry[1] as u32, (entry[1] >> 32) as i32);
    let software = times[..2] != [0; 2];
    let (time, source) = if software { (&times[..2], 0) } else { (&times[4..], IORING_CQE_F_TSTAMP_HW) };
    let stamp = Stamp { key, flags: info << TYPE_SHIFT | source, time: [time[0], time[1]] };
    (origin == BY_TIMESTAMPING).then_some(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(length: u64, level: i32, kind: i32) -> [u64; 2] {
        [length, level as u64 | (kind as u64) << 32]
    }

    fn control(origin: u64, times: [u64; 6]) -> Vec<u64> {
        let error = [origin << 32, 2 | 9 << 32, 0, 0];
        let times = [&header(64, libc::SOL_SOCKET, libc::SCM_TIMESTAMPING)[..], &times].concat();
        [times, [&header(16 + 32, libc::SOL_IPV6, libc::IPV6_RECVERR)[..], &error].concat()].concat()
    }

    #[test]
    fn a_time_has_its_key_kind_and_source() {
        let software = control(4, [5, 6, 0, 0, 0, 0]);
        assert_eq!(parse(&software), Some(Stamp { key: 9, flags: 2 << 17, time: [5, 6] }));
        let hardware = control(4, [0, 0, 0, 0, 7, 8]);
        let flags = 2 << 17 | IORING_CQE_F_TSTAMP_HW;
        assert_eq!(parse(&hardware), Some(Stamp { key: 9, flags, time: [7, 8] }));
    }

    #[test]
    fn what_is_no_time_is_passed_over() {
        assert_eq!(parse(&control(5, [5, 6, 0, 0, 0, 0])), None);
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&header(8, libc::SOL_SOCKET, libc::SCM_TIMESTAMPING)), None);
    }
}
