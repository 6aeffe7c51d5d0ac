//! The steps common to all entry points: see [`anyring_serve::entry`].

pub use anyring_serve::entry::{answer_any, aside, libc_answer};
