//! The environments in which programs run: the refused calls, and the user.

use std::fmt;

/// The calls that the kernel refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// io_uring with EPERM, as Docker's default profile does, and nothing else.
    Eperm,
    /// io_uring with ENOSYS, as a kernel without it does, and nothing else.
    Enosys,
    /// io_uring and Linux AIO with ENOSYS, as WSL 1 does.
    NoAio,
    /// io_uring with EPERM, and seccomp(2).
    Unfiltered,
    /// `anyring deny --profile docker`; this and the other profiles: docs/profiles.md.
    Docker,
    /// Linux 4.18.
    Rhel8,
    /// The gVisor sandbox.
    Gvisor,
    /// Every call that the engine can do without.
    Minimal,
    /// A call of io_uring kills its process, and so do calls that services rarely need.
    Kill,
    /// A call of io_uring sends its thread a SIGSYS.
    Trap,
    /// Nothing but the 8 MiB of locked memory that systemd permits. The kernel refuses rings beyond them by ENOMEM.
    Memlock,
}

impl Refusal {
    /// The profiles of `anyring deny`.
    pub const PROFILES: [Refusal; 4] = [Refusal::Docker, Refusal::Rhel8, Refusal::Gvisor, Refusal::Minimal];

    /// The options of `anyring deny`.
    pub fn options(self) -> &'static [&'static str] {
        match self {
            Refusal::Eperm => &["--errno", "EPERM"],
            Refusal::Enosys => &["--errno", "ENOSYS"],
            Refusal::NoAio => &["--errno", "ENOSYS", "--aio"],
            Refusal::Unfiltered => &["--errno", "EPERM", "--seccomp"],
            Refusal::Docker => &["--profile", "docker"],
            Refusal::Rhel8 => &["--profile", "rhel8"],
            Refusal::Gvisor => &["--profile", "gvisor"],
            Refusal::Minimal => &["--profile", "minimal"],
            Refusal::Kill => &["--profile", "kill"],
            Refusal::Trap => &["--errno", "trap"],
            Refusal::Memlock => &[],
        }
    }

    /// The errno of the three io_uring calls. If the call ends the program, the errno is EPERM as far as tests are
    /// concerned.
    pub fn errno(self) -> i32 {
        match self {
            Refusal::Eperm | Refusal::Unfiltered | Refusal::Docker | Refusal::Minimal => libc::EPERM,
            Refusal::Kill | Refusal::Trap => libc::EPERM,
            Refusal::Enosys | Refusal::NoAio | Refusal::Rhel8 | Refusal::Gvisor => libc::ENOSYS,
            Refusal::Memlock => libc::ENOMEM,
        }
    }

    /// The limit of locked memory, in bytes.
    pub fn memlock(self) -> Option<u64> {
        (self == Refusal::Memlock).then_some(8 << 20)
    }

    /// True if a program may install a seccomp filter.
    pub fn permits_filters(self) -> bool {
        self != Refusal::Unfiltered
    }

    /// The text of strerror(3) for [`Refusal::errno`].
    pub fn message(self) -> &'static str {
        match self.errno() {
            libc::EPERM => "Operation not permitted",
            libc::ENOMEM => "Cannot allocate memory",
            _ => "Function not implemented",
        }
    }
}

/// The owner of a test's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The superuser.
    Root,
    /// Any other user: the one who runs the tests, or [`NOBODY`] if that is root.
    Ordinary,
}

/// The user and group that root's tests become for [`User::Ordinary`].
pub const NOBODY: u32 = 65534;

impl User {
    /// Returns the user who runs the tests.
    pub fn caller() -> Self {
        if rustix::process::geteuid().is_root() {
            User::Root
        } else {
            User::Ordinary
        }
    }

    /// Returns the user and group to switch to; `None` if it is the caller's own.
    pub fn switch(self) -> Option<u32> {
        (self == User::Ordinary && User::caller() == User::Root).then_some(NOBODY)
    }
}

/// A refusal, and the user whose calls are refused.
#[derive(Debug, Clone, Copy)]
pub struct Environment {
    /// The refused calls.
    pub refusal: Refusal,
    /// The user.
    pub user: User,
}

impl Environment {
    /// Makes the environment for the user who runs the tests.
    pub fn of_caller(refusal: Refusal) -> Self {
        Environment { refusal, user: User::caller() }
    }

    /// EPERM for the caller, with and without seccomp(2), then each profile as root and as an ordinary user.
    pub fn all() -> Vec<Self> {
        let profiles = Refusal::PROFILES.iter();
        let profiles =
            profiles.flat_map(|&refusal| [User::Root, User::Ordinary].map(|user| Environment { refusal, user }));
        [Refusal::Eperm, Refusal::Unfiltered].map(Environment::of_caller).into_iter().chain(profiles).collect()
    }

    /// Returns the environments where a call kills, or traps.
    pub fn killing() -> Vec<Self> {
        [Refusal::Kill, Refusal::Trap].map(Environment::of_caller).to_vec()
    }

    /// Returns the environments that refuse Linux AIO, too: WSL 1 for the caller, and the smallest profile as root
    /// and as an ordinary user.
    pub fn without_aio() -> Vec<Self> {
        let users = [User::Root, User::Ordinary].map(|user| Environment { refusal: Refusal::Minimal, user });
        [Environment::of_caller(Refusal::NoAio)].into_iter().chain(users).collect()
    }

    /// Returns `full` under EPERM and `short` under a profile. There are many profiles, and a short run suffices for
    /// each.
    pub fn size<T>(self, full: T, short: T) -> T {
        if Refusal::PROFILES.contains(&self.refusal) {
            short
        } else {
            full
        }
    }

    /// The reason why nothing can run in this environment; `None` if programs can run.
    pub fn unavailable(self) -> Option<&'static str> {
        let missing = self.user == User::Root && User::caller() != User::Root;
        missing.then_some("the tests do not run as root")
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = match self.user {
            User::Root => "root",
            User::Ordinary => "user",
        };
        write!(f, "{}::{user}", format!("{:?}", self.refusal).to_lowercase())
    }
}
