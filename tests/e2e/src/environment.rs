//! Where the programs run: what the kernel refuses there, and as whom.

use std::fmt;

/// What the kernel refuses.
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
    /// `anyring deny --profile docker`, and so on: docs/profiles.md.
    Docker,
    /// Linux 4.18.
    Rhel8,
    /// The gVisor sandbox.
    Gvisor,
    /// All that the engine can do without.
    Minimal,
    /// The process of whoever makes a call of io_uring's ends, or of one that services rarely need.
    Kill,
    /// A thread that makes a call of io_uring's gets a SIGSYS.
    Trap,
}

impl Refusal {
    /// The profiles of `anyring deny`.
    pub const PROFILES: [Refusal; 4] = [Refusal::Docker, Refusal::Rhel8, Refusal::Gvisor, Refusal::Minimal];

    /// What `anyring deny` is told.
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
        }
    }

    /// What the three io_uring calls answer, or are taken to have answered where no program lives to see it.
    pub fn errno(self) -> i32 {
        match self {
            Refusal::Eperm | Refusal::Unfiltered | Refusal::Docker | Refusal::Minimal => libc::EPERM,
            Refusal::Kill | Refusal::Trap => libc::EPERM,
            Refusal::Enosys | Refusal::NoAio | Refusal::Rhel8 | Refusal::Gvisor => libc::ENOSYS,
        }
    }

    /// Whether a program may install a seccomp filter.
    pub fn permits_filters(self) -> bool {
        self != Refusal::Unfiltered
    }

    /// [`Refusal::errno`] as strerror(3) says it.
    pub fn message(self) -> &'static str {
        if self.errno() == libc::EPERM {
            "Operation not permitted"
        } else {
            "Function not implemented"
        }
    }
}

/// Whose processes they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The superuser.
    Root,
    /// Anybody else: who runs the tests, or [`NOBODY`] where that is root.
    Ordinary,
}

/// The user and group that root's tests become for [`User::Ordinary`].
pub const NOBODY: u32 = 65534;

impl User {
    /// Who runs the tests.
    pub fn caller() -> Self {
        if rustix::process::geteuid().is_root() {
            User::Root
        } else {
            User::Ordinary
        }
    }

    /// The user and group that a program must be given; `None` if it is the caller's own.
    pub fn switch(self) -> Option<u32> {
        (self == User::Ordinary && User::caller() == User::Root).then_some(NOBODY)
    }
}

/// What the kernel refuses, and to whom.
#[derive(Debug, Clone, Copy)]
pub struct Environment {
    /// What is refused.
    pub refusal: Refusal,
    /// To whom.
    pub user: User,
}

impl Environment {
    /// Refused to whoever runs the tests.
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

    /// The calls kill, or trap.
    pub fn killing() -> Vec<Self> {
        [Refusal::Kill, Refusal::Trap].map(Environment::of_caller).to_vec()
    }

    /// Linux AIO is refused, too: as on WSL 1 for the caller, and by the profile that lacks most, as root and as an ordinary
    /// user.
    pub fn without_aio() -> Vec<Self> {
        let users = [User::Root, User::Ordinary].map(|user| Environment { refusal: Refusal::Minimal, user });
        [Environment::of_caller(Refusal::NoAio)].into_iter().chain(users).collect()
    }

    /// `full` under EPERM, `short` under a profile: what is tested there is the place, and there are many.
    pub fn size<T>(self, full: T, short: T) -> T {
        if Refusal::PROFILES.contains(&self.refusal) {
            short
        } else {
            full
        }
    }

    /// Why nothing can run here, if so.
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
