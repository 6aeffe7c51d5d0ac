//! Personalities, of io_uring_register(2) with IORING_REGISTER_PERSONALITY. Credentials belong to threads. So a
//! registered personality is a credentials pool (`wq::creds`) that the registering thread starts, and that keeps its
//! credentials.
//!
//! libc's setuid(3) and its like change every thread that libc knows, including members of credentials pools. So a
//! member restores its own credentials before each request. If the process can no longer have them, the request fails
//! with EPERM.

use crate::alloc;
use crate::op::call;
use crate::wq::creds::Claim;
use crate::Errno;

/// A ring's registered credentials, by their ids.
#[derive(Default)]
pub struct Personalities {
    held: Vec<(u16, Claim)>,
    /// The id assigned last.
    last: u16,
}

impl Personalities {
    /// Registers the calling thread's credentials. Returns their id, which is 1 or more and is not soon reused.
    pub fn register(&mut self) -> Result<u32, Errno> {
        let mut id = self.last;
        for _ in 0..u16::MAX {
            id = id.wrapping_add(1).max(1);
            if self.find(id).is_err() {
                alloc::reserve()?;
                self.held.try_reserve(1).map_err(alloc::refused)?;
                self.held.push((id, Claim::on_credentials()?));
                self.last = id;
                return Ok(id.into());
            }
        }
        Err(Errno::BUSY)
    }

    /// Unregisters an id. Requests in flight keep its credentials.
    pub fn unregister(&mut self, id: u32) -> Result<u32, Errno> {
        let place = self.held.iter().position(|(held, _)| u32::from(*held) == id).ok_or(Errno::INVAL)?;
        self.held.swap_remove(place);
        Ok(0)
    }

    /// Returns the credentials with this id. Fails with `EINVAL` if there are none.
    pub fn find(&self, id: u16) -> Result<&Claim, Errno> {
        self.held.iter().find(|(held, _)| *held == id).map(|(_, hold)| hold).ok_or(Errno::INVAL)
    }
}

/// The ids and capabilities of a thread. Members inherit everything else that belongs to a thread (its keyring, for
/// example) from their creator.
#[derive(Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective and saved user id.
    users: [u32; 3],
    groups: [u32; 3],
    /// File system ids: user and group.
    files: [u32; 2],
    supplementary: Vec<u32>,
    capabilities: Capabilities,
}

/// Effective, permitted and inheritable sets, twice: first their lower, then their upper 32 bits. Source: capget(2).
type Capabilities = [u32; 6];

const NO_CHANGE: usize = u32::MAX as usize;

impl Credentials {
    /// Reads the calling thread's credentials.
    pub fn of_caller() -> Result<Credentials, Errno> {
        let count = call(libc::SYS_getgroups, [0; 6])?;
        let mut supplementary = alloc::filled(0u32, count)?;
        let count = call(libc::SYS_getgroups, [count, supplementary.as_mut_ptr() as usize, 0, 0, 0, 0])?;
        supplementary.truncate(count);
        let (users, groups) = (three(libc::SYS_getresuid)?, three(libc::SYS_getresgid)?);
        Ok(Credentials {
            files: [of_files(libc::SYS_setfsuid, users)?, of_files(libc::SYS_setfsgid, groups)?],
            users,
            groups,
            supplementary,
            capabilities: capabilities()?,
        })
    }

    /// Gives the calling thread these credentials, as far as it lacks them. Makes the system calls directly, since
    /// libc's functions would change all threads. Fails with `EPERM` if the thread may not have the credentials.
    pub fn assume(&self) -> Result<(), Errno> {
        if *self == Credentials::of_caller()? {
            return Ok(());
        }
        // Changing groups takes privileges, so first try to restore the effective user. The outcome is checked at the
        // end.
        let _ = call(libc::SYS_setresuid, [NO_CHANGE, 0, NO_CHANGE, 0, 0, 0]);
        let groups = self.supplementary.as_ptr() as usize;
        let _ = call(libc::SYS_setgroups, [self.supplementary.len(), groups, 0, 0, 0, 0]);
        for (number, [real, effective, saved]) in
            [(libc::SYS_setresgid, self.groups), (libc::SYS_setresuid, self.users)]
        {
            let _ = call(number, [real as usize, effective as usize, saved as usize, 0, 0, 0]);
        }
        let [user, group] = self.files;
        let _ = call(libc::SYS_setfsgid, [group as usize, 0, 0, 0, 0, 0]);
        let _ = call(libc::SYS_setfsuid, [user as usize, 0, 0, 0, 0, 0]);
        // Set last, since each change of an id may have changed the capabilities. Only permitted capabilities can be
        // set, so no capability that the thread has lost returns.
        let (header, sets) = (CAPABILITY_HEADER, self.capabilities);
        let _ = call(libc::SYS_capset, [&raw const header as usize, &raw const sets as usize, 0, 0, 0, 0]);
        if *self == Credentials::of_caller()? {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }
}

/// `_LINUX_CAPABILITY_VERSION_3` of linux/capability.h, and the calling thread.
const CAPABILITY_HEADER: [u32; 2] = [0x2008_0522, 0];

/// Calls capget(2).
fn capabilities() -> Result<Capabilities, Errno> {
    let (mut header, mut sets): ([u32; 2], Capabilities) = (CAPABILITY_HEADER, [0; 6]);
    call(libc::SYS_capget, [&raw mut header as usize, &raw mut sets as usize, 0, 0, 0, 0])?;
    // SAFETY: the array is alive, and the call that wrote it has returned.
    Ok(unsafe { (&raw const sets).read_volatile() })
}

/// Returns the id for file access, by setfsuid(2) or setfsgid(2). That id may differ from the thread's other ids.
/// gVisor lacks these calls and uses the effective id.
fn of_files(number: libc::c_long, [_, effective, _]: [u32; 3]) -> Result<u32, Errno> {
    // An invalid id changes nothing, and the call returns the present id.
    match call(number, [NO_CHANGE, 0, 0, 0, 0, 0]) {
        Err(Errno::NOSYS) => Ok(effective),
        answer => answer.map(|id| id as u32),
    }
}

/// Calls getresuid(2) or getresgid(2).
fn three(number: libc::c_long) -> Result<[u32; 3], Errno> {
    let mut ids = [0u32; 3];
    let [a, b, c] = core::array::from_fn(|place| &raw mut ids[place] as usize);
    call(number, [a, b, c, 0, 0, 0])?;
    // SAFETY: the array is alive, and the call that wrote it has returned.
    Ok(unsafe { (&raw const ids).read_volatile() })
}
