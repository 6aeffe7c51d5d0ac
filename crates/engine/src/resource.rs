//! Resources that a program registers with a ring: files, buffers, memory regions, and settings.

mod bpf;
pub mod buf_ring;
pub mod buffers;
pub mod files;
pub mod filters;
pub mod napi;
pub mod restrictions;
pub(crate) mod table;
pub mod tag;
pub mod wait_region;
