//! Tags of registered resources (`IORING_FEAT_RSRC_TAGS`): when a tagged file or buffer has been taken out and no request
//! uses it any more, a CQE with the tag as its `user_data` says so. Source: io_uring_register(2),
//! IORING_REGISTER_BUFFERS2.

use crate::ring::Ring;

/// A promise to post a CQE when it is dropped, from whatever thread drops the last user of the resource.
pub struct Tag {
    ring: &'static Ring,
    value: u64,
}

impl Tag {
    /// The tag of a resource of `ring`; 0 stands for none.
    pub fn new(ring: &'static Ring, value: u64) -> Option<Tag> {
        (value != 0).then(|| Tag { ring, value })
    }
}

impl core::fmt::Debug for Tag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Tag({:#x})", self.value)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        self.ring.retire(self.value);
    }
}
