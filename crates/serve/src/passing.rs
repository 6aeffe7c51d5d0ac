//! sendmsg(2) and sendmmsg(2): rings are not passed over sockets.

use crate::descriptor::rings_exist;
use anyring_engine::forced::{point, Point};
use anyring_engine::mutation::{mutated, Mutation};
use anyring_engine::op::net::rights::check_message;
use anyring_engine::Errno;
use libc::{mmsghdr, msghdr};

/// Returns how many of `count` messages at `messages` may be sent. It is an error if not even the first message may be
/// sent. sendmmsg(2) ends with the message before one that is refused.
pub fn sendable(messages: *const mmsghdr, count: u32) -> Result<u32, Errno> {
    if !rings_exist() {
        return Ok(count);
    }
    for index in 0..count.min(MESSAGES_MAX) {
        let message = messages.wrapping_add(index as usize);
        match before_sendmsg(message.cast()) {
            Err(error) if index == 0 => return Err(error),
            Err(_) => return Ok(index),
            Ok(()) => {}
        }
    }
    Ok(count)
}

/// The most messages that one sendmmsg(2) sends (`UIO_MAXIOV`).
const MESSAGES_MAX: u32 = 1024;

/// Checks `message` before the program sends it; an error if it holds a ring.
pub fn before_sendmsg(message: *const msghdr) -> Result<(), Errno> {
    if !rings_exist() || mutated(Mutation::RingsArePassed) {
        return Ok(());
    }
    point(Point::Sendmsg);
    check_message(message as u64)
}
