//! `anyring deny`: a seccomp filter like the ones containers install, then the program.

mod proc;
mod profile;

use crate::cli::{DenyErrno, DenyOptions, Profile};
use crate::exec::exec;
use crate::failure::Failure;
use crate::filter::{self, Rule};
use crate::output;
use anyring_abi::{NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use linux_raw_sys::general::{
    __NR_io_cancel, __NR_io_destroy, __NR_io_getevents, __NR_io_pgetevents, __NR_io_setup, __NR_io_submit,
};
use std::convert::Infallible;

const IO_URING_CALLS: [u32; 3] = [NR_IO_URING_SETUP as u32, NR_IO_URING_ENTER as u32, NR_IO_URING_REGISTER as u32];

const AIO_CALLS: [u32; 6] =
    [__NR_io_setup, __NR_io_destroy, __NR_io_submit, __NR_io_cancel, __NR_io_getevents, __NR_io_pgetevents];

/// Installs the filter and executes the program below it. If nested filters have equal actions, the filter that was
/// installed last sets the error number (seccomp(2)). So the innermost `deny` decides.
pub fn run(options: &DenyOptions) -> Result<Infallible, Failure> {
    let profile = options.profile.map(Profile::rules).unwrap_or_default();
    if options.profile == Some(Profile::Minimal) {
        // Reported, but no reason to stop: the rest of the profile still applies.
        if let Err(why) = proc::hide() {
            output::complain(&format!("anyring: /proc stays visible: {why}"));
        }
    }
    let errno = options.errno.unwrap_or(match options.profile {
        None | Some(Profile::Docker | Profile::Minimal | Profile::Agent | Profile::AgentStrict) => DenyErrno::Eperm,
        Some(Profile::Rhel8 | Profile::Gvisor) => DenyErrno::Enosys,
        Some(Profile::Kill) => DenyErrno::Kill,
    });
    let answer = errno.action();
    let io_uring = IO_URING_CALLS.map(|number| Rule::always(number, answer));
    let aio = AIO_CALLS.map(|number| Rule::always(number, answer));
    let aio: &[Rule] = if options.aio { &aio } else { &[] };
    let seccomp = if options.seccomp { profile::NO_FILTERS } else { &[] };
    let program = filter::program(&io_uring, &[aio, seccomp, &profile].concat());
    filter::install(&program)
        .map_err(|error| Failure::own(format!("cannot install the seccomp filter: {error}")))?;
    exec(&options.program)
}
