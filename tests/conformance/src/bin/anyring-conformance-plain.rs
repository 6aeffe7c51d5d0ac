//! `anyring-conformance` without `syscall` instructions of its own, like most programs. In such a program anyring
//! trusts that it sees every close, and remembers more facts about descriptors.

use std::process::ExitCode;

fn main() -> ExitCode {
    anyring_conformance::command::main()
}
