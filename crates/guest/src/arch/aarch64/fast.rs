//! Functions that do nothing on aarch64. No instruction becomes a jump there, and every call traps. So no thread has to
//! be found by its thread pointer.

use crate::world::Block;

/// Another thread may have this thread pointer from now on.
pub fn forget(_pointer: usize) {}

/// `child` is about to begin with the calling thread's thread pointer.
pub fn share(_child: &Block, _pointer: usize) {}

/// The thread now has another thread pointer.
pub fn depart(_block: &Block, _pointer: usize) {}

/// A forked child has only the thread of this block.
pub fn renew_after_fork(_kept: &Block) {}
