//! `anyring-conformance` without `syscall` instructions of its own, as most programs are: there anyring trusts that it sees
//! every close, and remembers more of descriptors.

use std::process::ExitCode;

fn main() -> ExitCode {
    anyring_conformance::command::main()
}
