//! What a program registers with a ring: files, buffers, an eventfd; and the call that does it.

pub mod buf_ring;
pub mod buffers;
mod clone_buffers;
pub mod files;
pub mod napi;
pub mod personality;
mod query;
pub mod register;
mod requests;
pub mod restrictions;
mod sync_cancel;
pub mod tag;
pub mod wait_region;
