//! The parts that the generators of random programs and the conformance runner share.

mod child;
mod choices;
mod folder;
mod seeds;
mod shrink;

pub use child::{memory_file, start, text_of, wait_for_any, Child, End};
pub use choices::Choices;
pub use folder::Folder;
pub use seeds::Seeds;
pub use shrink::fewest;

use std::process::ExitCode;

/// Returns the exit status of a program's command: 0, or 1 if it found something (`Ok(false)`). If the command could
/// not run, prints the reason on stderr, and returns 2.
pub fn exit_code(program: &str, done: anyhow::Result<bool>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Joins numbers with commas, as options take a list.
pub fn list<N: ToString>(numbers: &[N]) -> String {
    numbers.iter().map(N::to_string).collect::<Vec<_>>().join(",")
}

/// Sets a soft limit (`RLIMIT_*`) to `value`, or to the hard limit if that is lower. Calls nothing else, so that a
/// process may do so in any state.
pub fn set_soft_limit(resource: u32, value: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives both calls. The resource's type is another one in musl.
    unsafe {
        libc::getrlimit(resource as _, &mut limit);
        limit.rlim_cur = value.min(limit.rlim_max);
        libc::setrlimit(resource as _, &limit);
    }
}
