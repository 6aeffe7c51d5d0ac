//! Hides /proc. Mounts an empty directory over it, in the program's own mount namespace.

use rustix::io::Errno;
use rustix::mount::{mount, mount_change, MountFlags, MountPropagationFlags};
use rustix::process::{getgid, getuid};
use rustix::thread::{unshare_unsafe, UnshareFlags};
use std::ffi::CStr;

/// Hides /proc from this process and its descendants. Without CAP_SYS_ADMIN this happens in a user namespace, in
/// which the process keeps its user and group and loses all others.
pub fn hide() -> Result<(), String> {
    match enter(UnshareFlags::NEWNS) {
        Ok(()) => {}
        Err(Errno::PERM) => {
            let ids = (getuid().as_raw(), getgid().as_raw());
            enter(UnshareFlags::NEWNS | UnshareFlags::NEWUSER)
                .map_err(|error| format!("neither a mount nor a user namespace can be made: {error}"))?;
            keep_ids(ids).map_err(|error| format!("the user namespace cannot have our ids: {error}"))?;
        }
        Err(error) => return Err(format!("no mount namespace can be made: {error}")),
    }
    let cover = || {
        // The mount stays in this namespace: it must not propagate to the original one.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let options: &CStr = c"size=4k,mode=555";
        mount("none", "/proc", "tmpfs", flags, options)
    };
    cover().map_err(|error| format!("an empty directory cannot be mounted over it: {error}"))
}

fn enter(namespaces: UnshareFlags) -> Result<(), Errno> {
    // SAFETY: the descriptor table stays shared; this process has one thread, whose mounts and ids may change.
    unsafe { unshare_unsafe(namespaces) }
}

fn keep_ids((user, group): (u32, u32)) -> std::io::Result<()> {
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    // user_namespaces(7): an unprivileged process may write gid_map only without setgroups(2).
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}
