//! Tags of registered resources (`IORING_FEAT_RSRC_TAGS`). When a tagged file or buffer was taken out and no request
//! uses it any more, a CQE reports that. The CQE's `user_data` is the tag. Source: io_uring_register(2),
//! IORING_REGISTER_BUFFERS2.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A ring with tagged resources.
pub trait Tagged: Sync {
    /// Posts a CQE that reports the last use of the resource with this tag.
    fn retire(&'static self, tag: u64);
}

/// The tag of a registered resource. Any thread may drop it, with the last user of the resource. The drop makes the
/// ring post the tag's CQE.
pub struct Tag {
    ring: &'static dyn Tagged,
    /// 0 if there is nothing to report any more.
    value: AtomicU64,
}

impl Tag {
    /// Makes the tag of a resource of `ring`. `None` if `value` is 0, which stands for no tag.
    pub fn new(ring: &'static dyn Tagged, value: u64) -> Option<Tag> {
        (value != 0).then(|| Tag { ring, value: value.into() })
    }

    /// Cancels the report, since the registration failed.
    pub fn forget(&self) {
        self.value.store(0, Relaxed);
    }
}

impl core::fmt::Debug for Tag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Tag({:#x})", self.value.load(Relaxed))
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        match *self.value.get_mut() {
            0 => {}
            value => self.ring.retire(value),
        }
    }
}
