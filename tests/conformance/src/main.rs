//! `anyring-conformance`: io_uring's visible behaviour, as small cases. They run on the kernel's io_uring and, with
//! libanyring.so preloaded, on anyring's. The kernel is the oracle: every case passes on the kernel's io_uring.

use std::process::ExitCode;

fn main() -> ExitCode {
    anyring_conformance::door::have_instructions();
    anyring_conformance::command::main()
}
