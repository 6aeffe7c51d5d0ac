//! Finds out why the kernel's io_uring does not work here, from the answers of calls and from the kernel's own
//! reports.
//!
//! A filter is distinguished from the kernel by calls to which the kernel has only one answer. With a null parameter
//! block a call fails with EFAULT, and with a closed descriptor it fails with EBADF. A filter cannot check either, and
//! answers its own error number instead.

use crate::child::{ask_if_safe, Outcome};
use crate::errno;
use crate::ring::{Fault, Server, Trial};
use anyring_abi::{NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_IO_URING_SETUP};
use rustix::process::Gid;
use serde::Serialize;

/// The reason why io_uring does not work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// No reason: it works.
    None,
    /// A seccomp filter.
    Seccomp,
    /// `kernel.io_uring_disabled`.
    Sysctl,
    /// The kernel was built without io_uring, or is older than it.
    KernelLacksIt,
    /// RLIMIT_MEMLOCK (kernels before 7.2.11 charge ring memory to it).
    Memlock,
    /// RLIMIT_NOFILE, or the system's limit of open files.
    DescriptorLimit,
    /// A security module (SELinux, AppArmor ...).
    SecurityModule,
    /// A denied operation (EACCES: restrictions, or filters of Linux 7.0).
    DeniedOperation,
    /// An emulator for programs of another processor, which lacks the calls.
    UserEmulation,
    /// A library preloaded into this process serves io_uring.
    Emulated,
    /// The probes do not show it.
    Unknown,
}

impl Cause {
    /// The name in the JSON.
    pub fn name(self) -> &'static str {
        match self {
            Cause::None => "none",
            Cause::Seccomp => "seccomp",
            Cause::Sysctl => "sysctl",
            Cause::KernelLacksIt => "kernel-lacks-it",
            Cause::Memlock => "memlock",
            Cause::DescriptorLimit => "descriptor-limit",
            Cause::SecurityModule => "security-module",
            Cause::DeniedOperation => "denied-operation",
            Cause::UserEmulation => "user-emulation",
            Cause::Emulated => "emulated",
            Cause::Unknown => "unknown",
        }
    }
}

impl Serialize for Cause {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The answer to a call whose arguments the kernel can only refuse.
#[derive(Debug, Serialize)]
pub struct CallAnswer {
    /// The call.
    pub call: &'static str,
    /// The answer here: the name of an errno, a signal, or `success`.
    pub answer: String,
    /// The kernel's answer, if the call reaches it.
    pub of_kernel: &'static str,
}

impl CallAnswer {
    fn is_from_kernel(&self) -> bool {
        self.answer == self.of_kernel
    }
}

/// The facts that were read and probed.
#[derive(Debug, Serialize)]
pub struct Evidence {
    /// The three calls: io_uring_setup, io_uring_enter, io_uring_register.
    pub calls: [CallAnswer; 3],
    /// The answer to a call number that no kernel has: ENOSYS, unless a filter answers every unknown call.
    pub unused_call: String,
    /// /proc/sys/kernel/io_uring_disabled; absent before Linux 6.6.
    pub io_uring_disabled: Option<i64>,
    /// /proc/sys/kernel/io_uring_group.
    pub io_uring_group: Option<i64>,
    /// Whether this process is in that group.
    pub in_io_uring_group: bool,
    /// Whether this process has CAP_SYS_ADMIN in its user namespace.
    pub cap_sys_admin: bool,
    /// `Seccomp` of /proc/self/status, or the answer of prctl(2): 0 none, 1 strict, 2 filter.
    pub seccomp_mode: Option<i64>,
    /// `Seccomp_filters` of /proc/self/status.
    pub seccomp_filters: Option<i64>,
    /// Whether no_new_privs is set.
    pub no_new_privs: bool,
    /// Soft RLIMIT_MEMLOCK in bytes; null when unlimited.
    pub memlock_limit_bytes: Option<u64>,
    /// The active security modules, if they can be read.
    pub security_modules: Option<String>,
}

impl Evidence {
    /// Reads and probes everything now.
    pub fn gather() -> Self {
        let (null, closed) = (0usize, i32::MAX as usize);
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let group = number_in("/proc/sys/kernel/io_uring_group");
        Evidence {
            calls: [
                call("io_uring_setup", NR_IO_URING_SETUP, [1, null, 0, 0], "EFAULT"),
                call("io_uring_enter", NR_IO_URING_ENTER, [closed, 0, 0, 0], "EBADF"),
                call("io_uring_register", NR_IO_URING_REGISTER, [closed, 0, null, 0], "EBADF"),
            ],
            unused_call: call_in_child(i64::from(super::UNUSED_CALL), [0; 4]),
            io_uring_disabled: number_in("/proc/sys/kernel/io_uring_disabled"),
            io_uring_group: group,
            in_io_uring_group: group.is_some_and(in_group),
            cap_sys_admin: capabilities(&status) & (1 << 21) != 0,
            seccomp_mode: field(&status, "Seccomp:").or_else(seccomp_mode),
            seccomp_filters: field(&status, "Seccomp_filters:"),
            no_new_privs: crate::exec::no_new_privs(),
            memlock_limit_bytes: crate::ring::soft_limit(libc::RLIMIT_MEMLOCK),
            security_modules: std::fs::read_to_string("/sys/kernel/security/lsm").ok(),
        }
    }

    fn filtered(&self) -> bool {
        self.seccomp_mode == Some(2)
    }

    fn sysctl_forbids(&self) -> bool {
        match self.io_uring_disabled {
            Some(1) => !self.in_io_uring_group && !self.cap_sys_admin,
            Some(2) => true,
            _ => false,
        }
    }
}

/// Returns the cause, and the observation that shows it.
pub fn find(trial: &Trial, evidence: &Evidence) -> (Cause, String) {
    match trial {
        Outcome::Replied(Ok(Server::Kernel)) => (Cause::None, crate::ring::WORKS.to_owned()),
        Outcome::Replied(Ok(Server::Emulation)) => {
            (Cause::Emulated, "the ring is not the kernel's: anyring serves it here".to_owned())
        }
        Outcome::Replied(Err(Fault::Wrong(what))) => (Cause::Unknown, what.clone()),
        Outcome::Replied(Err(Fault::Refused { call, code })) => refused(call, *code, evidence),
        Outcome::Killed(libc::SIGSYS) => {
            (Cause::Seccomp, "a seccomp filter kills the caller of io_uring's calls".to_owned())
        }
        Outcome::Killed(_) | Outcome::TimedOut | Outcome::Failed(_) => {
            (Cause::Unknown, crate::ring::describe(trial))
        }
    }
}

fn refused(call: &str, code: i32, evidence: &Evidence) -> (Cause, String) {
    let [setup, enter, register] = &evidence.calls;
    let name = errno::name(code);
    if !enter.is_from_kernel() || !register.is_from_kernel() {
        return not_from_kernel(&name, evidence);
    }
    // The kernel answers io_uring_enter and io_uring_register, so it has io_uring, and only setup is refused.
    if setup.is_from_kernel() {
        return past_the_gate(call, code, evidence);
    }
    if matches!(code, libc::EPERM) && evidence.sysctl_forbids() {
        return (Cause::Sysctl, sysctl_text(evidence));
    }
    if evidence.filtered() {
        return (
            Cause::Seccomp,
            format!("io_uring_setup alone answers {name}, whatever its arguments, below a filter"),
        );
    }
    if matches!(code, libc::EPERM | libc::EACCES) {
        return (Cause::SecurityModule, format!("io_uring_setup answers {name} without a filter or the sysctl"));
    }
    (Cause::Unknown, format!("only io_uring_setup fails, with {name}"))
}

/// Explains why calls on closed descriptors did not fail with EBADF. The kernel does not know the calls, or they did
/// not reach it.
fn not_from_kernel(name: &str, evidence: &Evidence) -> (Cause, String) {
    let [_, enter, register] = &evidence.calls;
    let strange = if enter.is_from_kernel() { register } else { enter };
    let seen = format!("a closed descriptor is answered with {} instead of {}", strange.answer, strange.of_kernel);
    let unknown_to_kernel = name == "ENOSYS" && evidence.unused_call == "ENOSYS";
    match (unknown_to_kernel, evidence.filtered()) {
        (true, _) if crate::child::is_emulated() => {
            (Cause::UserEmulation, "qemu-user runs this program, and lacks io_uring's calls".to_owned())
        }
        (true, false) => (Cause::KernelLacksIt, "the calls answer ENOSYS as an unused number does".to_owned()),
        // The file of the sysctl exists only in a kernel with io_uring.
        (true, true) if evidence.io_uring_disabled.is_none() => {
            (Cause::Unknown, "ENOSYS, from a seccomp filter or from a kernel without io_uring".to_owned())
        }
        (_, true) => (Cause::Seccomp, seen),
        (_, false) => (Cause::Unknown, format!("{seen}, but no seccomp filter is reported")),
    }
}

/// Explains a failure that came after the kernel had examined the arguments. So neither a filter nor the sysctl
/// refused the call.
fn past_the_gate(call: &str, code: i32, evidence: &Evidence) -> (Cause, String) {
    let seen = format!("{call} answers {}", errno::name(code));
    match code {
        libc::ENOMEM | libc::EAGAIN => {
            let limit = evidence.memlock_limit_bytes;
            let limit = limit.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
            let cause = if evidence.memlock_limit_bytes.is_some() { Cause::Memlock } else { Cause::Unknown };
            (cause, format!("{seen}; the limit of locked memory is {limit}"))
        }
        libc::EMFILE | libc::ENFILE => (Cause::DescriptorLimit, seen),
        // An operation, or IORING_REGISTER_PROBE.
        libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS if call != "io_uring_setup" => (Cause::KernelLacksIt, seen),
        libc::EACCES if call.starts_with("IORING_OP_") => (Cause::DeniedOperation, seen),
        libc::EPERM | libc::EACCES => {
            (Cause::SecurityModule, format!("{seen}, after the kernel read its arguments"))
        }
        _ => (Cause::Unknown, seen),
    }
}

fn sysctl_text(evidence: &Evidence) -> String {
    match evidence.io_uring_disabled {
        Some(1) => {
            let group = evidence.io_uring_group.unwrap_or(-1);
            format!("kernel.io_uring_disabled is 1, and this process is not in kernel.io_uring_group ({group})")
        }
        _ => "kernel.io_uring_disabled is 2: nobody may make a ring".to_owned(),
    }
}

fn call(call: &'static str, number: i64, args: [usize; 4], of_kernel: &'static str) -> CallAnswer {
    CallAnswer { call, answer: call_in_child(number, args), of_kernel }
}

/// Makes a call in a child and returns its answer.
fn call_in_child(number: i64, args: [usize; 4]) -> String {
    let [a, b, c, d] = args;
    let outcome = ask_if_safe(|| {
        // SAFETY: the arguments name no memory and no open descriptor, so the call can only be refused.
        match unsafe { libc::syscall(number, a, b, c, d, 0, 0) } {
            -1 => errno::name(errno::last()),
            _ => "success".to_owned(),
        }
    });
    outcome.describe(String::clone)
}

/// Returns the seccomp mode from prctl(2), which is used without /proc. `None` if the filter refuses that call.
fn seccomp_mode() -> Option<i64> {
    // SAFETY: takes no pointers.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP) };
    (mode >= 0).then_some(mode.into())
}

fn number_in(file: &str) -> Option<i64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn field(status: &str, name: &str) -> Option<i64> {
    status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

fn capabilities(status: &str) -> u64 {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn in_group(group: i64) -> bool {
    let supplementary = rustix::process::getgroups().unwrap_or_default();
    let is_it = |id: Gid| i64::from(id.as_raw()) == group;
    is_it(rustix::process::getegid()) || supplementary.into_iter().any(is_it)
}
