//! Ends or continues a send or receive that used provided buffers.

use super::transfer::Transfer;
use crate::op::selection::Attempted;
use crate::op::{Direction, Verdict};
use crate::resource::buf_ring::Held;
use anyring_abi::{IORING_CQE_F_BUF_MORE, IORING_CQE_F_SOCK_NONEMPTY};
use core::ops::ControlFlow;

/// Decides what follows from an attempt that used its buffers: end, post a result and continue, or append (`Continue`).
/// Source: `io_send_finish` and `io_recv_finish` in io_uring/net.c.
pub fn finish(transfer: &mut Transfer, attempted: Attempted, held: Held, appends: bool) -> ControlFlow<Verdict> {
    let (multishot, bundle) = (transfer.is_multishot(), transfer.is_bundle());
    let goes_on = transfer.sends_on();
    let Attempted { result, flags, .. } = attempted;
    let shot = |result: usize, flags| ControlFlow::Break(Verdict::Shot { result: result as i32, flags });
    if transfer.direction() == Direction::Write {
        if result > 0 && goes_on && !held.last {
            if let Some(selection) = transfer.selection() {
                selection.wanted = 0; // it limits the first result only
            }
            return shot(result as usize, flags);
        }
        return ControlFlow::Break(attempted.verdict());
    }
    let received = result.max(0) as usize;
    let Some(selection) = transfer.selection() else { return ControlFlow::Break(attempted.verdict()) };
    let ended = selection.ends_with(received) || result <= 0;
    selection.follows_shot = multishot && !ended;
    if !bundle {
        return if selection.follows_shot {
            shot(received, flags)
        } else {
            ControlFlow::Break(attempted.verdict())
        };
    }
    let again = selection.gathered.is_some();
    let (before, first) = selection.gathered.take().unwrap_or((0, flags));
    // The CQE names the first buffer. Its other flags describe the last buffer and the socket as they are now.
    let flags = first | flags & (IORING_CQE_F_BUF_MORE | IORING_CQE_F_SOCK_NONEMPTY);
    let total = before + received;
    let capped = multishot && selection.wanted != 0 && total >= selection.wanted;
    let filled = received != 0 && received >= held.bytes && selection.unread > 1;
    if held.last {
        return ControlFlow::Break(Attempted { result: total as i32, flags, ..attempted }.verdict());
    }
    if appends && filled && !again && !held.partial && !capped && !ended {
        selection.gathered = Some((total, flags & !(IORING_CQE_F_BUF_MORE | IORING_CQE_F_SOCK_NONEMPTY)));
        return ControlFlow::Continue(());
    }
    if multishot && !ended {
        return shot(total, flags);
    }
    ControlFlow::Break(Attempted { result: total as i32, flags, ..attempted }.verdict())
}
