//! The conformance cases and their runner (`command`), and what they share with the differential programs: rings through
//! three doors, SQEs in the words of the man page, buffer rings, and the files and sockets that requests work on.

pub mod aio;
pub mod buffers;
pub mod command;
pub mod door;
pub mod evidence;
pub mod ring;
pub mod sqe;
pub mod sys;

mod case;
mod cases;
mod polled;
mod record;
mod runner;
