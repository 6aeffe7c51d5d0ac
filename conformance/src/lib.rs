//! What the conformance cases and the differential programs share: rings through three doors, SQEs in the words of the
//! man page, buffer rings, and the files and sockets that requests work on.

pub mod aio;
pub mod buffers;
pub mod door;
pub mod evidence;
pub mod ring;
pub mod sqe;
pub mod sys;
