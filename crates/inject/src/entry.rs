//! What every entry point does alike: see [`anyring_serve::entry`].

pub use anyring_serve::entry::{answer_any, aside, libc_answer};
