//! What a program registers with a ring: files, buffers, an eventfd; and the call that does it.

pub mod buf_ring;
pub mod buffers;
pub mod files;
pub mod napi;
pub mod restrictions;
pub(crate) mod table;
pub mod tag;
pub mod wait_region;
