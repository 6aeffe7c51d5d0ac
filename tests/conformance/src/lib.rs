//! The conformance cases, their runner (`command`), and what they share with the differential programs. They share
//! rings through three doors, SQEs in the words of the man page, buffer rings, and the files and sockets that requests
//! work on.

pub mod aio;
pub mod answers;
pub mod buffers;
pub mod case;
pub mod command;
pub mod differences;
pub mod door;
pub mod evidence;
pub mod oracle;
pub mod report;
pub mod ring;
pub mod sqe;
pub mod sys;

mod arch;
mod asleep;
mod cases;
mod keeps;
mod polled;
mod runner;
mod spread;
