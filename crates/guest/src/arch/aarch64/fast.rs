//! Functions that do nothing on aarch64. A call that comes by a jump finds its thread by its id. Programs set the thread
//! pointer unnoticed, and all threads of Go have the same.

use crate::world::Block;

/// Another thread may have this thread pointer from now on.
pub fn forget(_pointer: usize) {}

/// `child` is about to begin with the calling thread's thread pointer.
pub fn share(_child: &Block, _pointer: usize) {}

/// The thread now has another thread pointer.
pub fn depart(_block: &Block, _pointer: usize) {}

/// A forked child has only the thread of this block.
pub fn renew_after_fork(_kept: &Block) {}
