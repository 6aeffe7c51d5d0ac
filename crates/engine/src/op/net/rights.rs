//! SCM_RIGHTS: a ring's descriptor must not be sent over a socket. The kernel refuses to send it. A socket in flight
//! and a ring that holds that socket could keep each other alive forever.

use crate::os::user_read;
use crate::{descriptors, Errno};

/// `sizeof(struct cmsghdr)`: each control message begins with that header. Source: cmsg(3).
const HEADER_BYTES: u64 = 16;
/// The level and type of a control message with descriptors, as the word that follows the message's length.
const RIGHTS: u64 = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
/// The most descriptors that one message carries (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: u64 = 253;

/// Fails with EINVAL if one of the program's `struct msghdr` passes a ring, like `scm_fp_copy` in net/core/scm.c. All
/// other errors in the structure are left to the kernel.
pub fn check_message(header: u64) -> Result<(), Errno> {
    match user_read::<[u64; 7]>(header) {
        Ok([.., control, bytes, _]) => check(control, bytes),
        Err(_) => Ok(()),
    }
}

/// Checks `bytes` of control messages in the same way.
pub fn check(control: u64, bytes: u64) -> Result<(), Errno> {
    let mut at = 0u64;
    while bytes.saturating_sub(at) >= HEADER_BYTES {
        let message = control.wrapping_add(at);
        let Ok([length, kind]) = user_read::<[u64; 2]>(message) else { return Ok(()) };
        let count = length.wrapping_sub(HEADER_BYTES) / 4;
        if length < HEADER_BYTES || length > bytes - at || (kind == RIGHTS && count > DESCRIPTORS_MAX) {
            return Ok(());
        }
        if kind == RIGHTS {
            for index in 0..count {
                let Ok(fd) = user_read::<i32>(message.wrapping_add(HEADER_BYTES + index * 4)) else {
                    return Ok(());
                };
                if descriptors::is_own(fd) {
                    return Err(Errno::BADF); // to the program this number is not open
                }
                if descriptors::is_ring(fd) {
                    return Err(Errno::INVAL);
                }
            }
        }
        at += length.next_multiple_of(8);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rings_and_the_engines_own_are_refused() {
        let own = descriptors::duplicate(2).expect("stderr is open");
        for (fd, answer) in [(1, Ok(())), (own, Err(Errno::BADF))] {
            // Two messages: the first has 20 bytes, like one with credentials.
            let control = [20u64, libc::SOL_SOCKET as u64, 0, 24, RIGHTS, 1 | (fd as u64) << 32];
            assert_eq!(check(control.as_ptr() as u64, 48), answer);
            assert_eq!(check(control.as_ptr() as u64, 47), Ok(()), "cut: the kernel's to refuse");
        }
        descriptors::close(own);
        assert_eq!(check(8, 1 << 20), Ok(()), "unreadable");
        assert_eq!(check([u64::MAX, RIGHTS].as_ptr() as u64, 1 << 20), Ok(()), "no length");
        assert_eq!(check_message(8), Ok(()));
    }
}
