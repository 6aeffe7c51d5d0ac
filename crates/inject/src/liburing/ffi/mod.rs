//! The inline functions of liburing's header, exported for languages that cannot compile the header. They are the rest
//! of `liburing-ffi.so.2`. [`prep`] fills SQEs, [`inline`] reads and advances the queues. Nothing here makes a system
//! call except through [`super::queue`] and [`super::register`].

pub mod inline;
pub mod prep;
