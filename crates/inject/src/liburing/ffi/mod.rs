//! What liburing's header has as inline functions, exported for languages that cannot compile the header: the rest of
//! `liburing-ffi.so.2`. [`prep`] fills SQEs, [`inline`] looks at the queues. Nothing here enters the ring except
//! through [`super::queue`] and [`super::register`].

pub mod inline;
pub mod prep;
