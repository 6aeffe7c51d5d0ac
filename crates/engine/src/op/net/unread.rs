//! Asks whether a socket still has something to receive.

use super::{is_internet, socket_option};
use crate::op::call;
use anyring_abi::IORING_CQE_F_SOCK_NONEMPTY;

/// Number of bytes that a stream socket still has to receive, 0 if unknown. Source: tcp(7), unix(7), FIONREAD.
#[inline] // in each receive that fills its buffer
pub fn unread_bytes(fd: i32) -> usize {
    match asked(fd, libc::FIONREAD as usize) {
        0 => 0,
        // For other sockets FIONREAD returns the length of the next datagram, which the kernel's io_uring does not
        // report.
        _ if socket_option(fd, libc::SO_TYPE) != Ok(libc::SOCK_STREAM) => 0,
        count => count,
    }
}

/// Returns the CQE's flags of a receive that has filled its buffer: whether the socket has more.
#[inline]
pub fn flags_of_filled(fd: i32) -> u32 {
    match unread_bytes(fd) {
        0 => 0,
        _ => IORING_CQE_F_SOCK_NONEMPTY,
    }
}

/// True if a TCP socket has data, or is at the mark of an urgent byte, which FIONREAD does not count. Source:
/// `tcp_inq_hint` in net/ipv4/tcp.c, tcp(7).
#[cold]
pub fn has_data_or_mark(fd: i32) -> bool {
    const SIOCATMARK: usize = 0x8905;
    is_internet(fd) && (unread_bytes(fd) != 0 || asked(fd, SIOCATMARK) != 0)
}

/// True if the peer of a TCP socket has ended its stream, which the kernel counts as something to receive.
#[cold]
pub fn has_ended(fd: i32) -> bool {
    /// TCP_TIME_WAIT, TCP_CLOSE, TCP_CLOSE_WAIT, TCP_LAST_ACK and TCP_CLOSING of include/net/tcp_states.h.
    const ENDED: [u8; 5] = [6, 7, 8, 9, 11];
    // The state is the first byte of `struct tcp_info`.
    let (mut state, mut bytes) = (0u8, 1u32);
    let (to, room) = (&raw mut state as usize, &raw mut bytes as usize);
    let args = [fd as usize, libc::IPPROTO_TCP as usize, libc::TCP_INFO as usize, to, room, 0];
    call(libc::SYS_getsockopt, args).is_ok() && ENDED.contains(&state)
}

/// Returns the number that an ioctl(2) of the socket reports, 0 if the call fails.
#[inline]
fn asked(fd: i32, request: usize) -> usize {
    let mut number = 0i32;
    let answer = call(libc::SYS_ioctl, [fd as usize, request, &raw mut number as usize, 0, 0, 0]);
    answer.map_or(0, |_| number.max(0) as usize)
}
