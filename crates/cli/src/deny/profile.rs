//! Tables of the system calls that `deny --profile` refuses apart from io_uring's. docs/profiles.md names their
//! sources.
//!
//! A seccomp filter can read numbers and arguments, but not the kind of a descriptor or the contents of memory. If an
//! environment decides by such facts, its table refuses more calls than the environment does, never fewer.

use crate::arch::{self, AFTER_4_18};
use crate::cli::Profile;
use crate::filter::{Calls, Rule, Test};
use linux_raw_sys::general::*;

/// Makes the call fail with this error number.
const fn errno(code: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | code as u32
}

const PERM: u32 = errno(libc::EPERM);
const NOSYS: u32 = errno(libc::ENOSYS);
const INVAL: u32 = errno(libc::EINVAL);
const OPNOTSUPP: u32 = errno(libc::EOPNOTSUPP);
const NOPROTOOPT: u32 = errno(libc::ENOPROTOOPT);
/// Makes the call return 0 and do nothing.
const ZERO: u32 = errno(0);

const fn all(number: u32, action: u32) -> Rule {
    Rule::always(number, action)
}

const fn some(number: u32, tests: &'static [Test], action: u32) -> Rule {
    Rule { calls: Calls::One(number), tests, action }
}

const fn from(number: u32, action: u32) -> Rule {
    Rule { calls: Calls::From(number), tests: &[], action }
}

impl Profile {
    /// The rules of this profile for calls other than io_uring's.
    pub fn rules(self) -> Vec<Rule> {
        match self {
            Profile::Docker => {
                DOCKER.iter().copied().chain(arch::DOCKER.iter().map(|number| all(*number, PERM))).collect()
            }
            Profile::Rhel8 => RHEL8.to_vec(),
            Profile::Gvisor => GVISOR.to_vec(),
            Profile::Minimal => MINIMAL.to_vec(),
            Profile::Agent => AGENT.to_vec(),
            Profile::Kill => KILL.to_vec(),
            Profile::AgentStrict => [AGENT, &[all(__NR_socketpair, PERM)]].concat(),
        }
    }
}

/// CLONE_NEW* (clone(2)) except CLONE_NEWTIME, whose bit has another meaning for clone.
const CLONE_NAMESPACES: u32 = 0x7e02_0000;
const AF_VSOCK: u32 = libc::AF_VSOCK as u32;

/// Calls that the default profile does not permit to a container with the default capabilities. runc answers calls
/// that are newer than the profile's newest with ENOSYS, before the profile applies.
const DOCKER: &[Rule] = &[
    from(__NR_removexattrat + 1, NOSYS),
    all(__NR_clone3, NOSYS),
    some(__NR_clone, &[Test::any_bit(0, CLONE_NAMESPACES)], PERM),
    some(__NR_socket, &[Test::equal(0, AF_VSOCK)], PERM),
    some(
        __NR_personality,
        &[
            Test::not_equal(0, 0),
            Test::not_equal(0, 8),
            Test::not_equal(0, 0x20000),
            Test::not_equal(0, 0x20008),
            Test::not_equal(0, 0xffff_ffff),
        ],
        PERM,
    ),
    all(__NR_acct, PERM),
    all(__NR_add_key, PERM),
    all(__NR_bpf, PERM),
    all(__NR_clock_settime, PERM),
    all(__NR_delete_module, PERM),
    all(__NR_fanotify_init, PERM),
    all(__NR_finit_module, PERM),
    all(__NR_fsconfig, PERM),
    all(__NR_fsmount, PERM),
    all(__NR_fsopen, PERM),
    all(__NR_fspick, PERM),
    all(__NR_get_mempolicy, PERM),
    all(__NR_init_module, PERM),
    all(__NR_kcmp, PERM),
    all(__NR_kexec_file_load, PERM),
    all(__NR_kexec_load, PERM),
    all(__NR_keyctl, PERM),
    all(__NR_listmount, PERM),
    all(__NR_lookup_dcookie, PERM),
    all(__NR_lsm_get_self_attr, PERM),
    all(__NR_lsm_list_modules, PERM),
    all(__NR_lsm_set_self_attr, PERM),
    all(__NR_mbind, PERM),
    all(__NR_migrate_pages, PERM),
    all(__NR_mount, PERM),
    all(__NR_mount_setattr, PERM),
    all(__NR_move_mount, PERM),
    all(__NR_move_pages, PERM),
    all(__NR_nfsservctl, PERM),
    all(__NR_open_by_handle_at, PERM),
    all(__NR_open_tree, PERM),
    all(__NR_perf_event_open, PERM),
    all(__NR_pidfd_getfd, PERM),
    all(__NR_pivot_root, PERM),
    all(__NR_process_madvise, PERM),
    all(__NR_quotactl, PERM),
    all(__NR_quotactl_fd, PERM),
    all(__NR_reboot, PERM),
    all(__NR_request_key, PERM),
    all(__NR_set_mempolicy, PERM),
    all(__NR_set_mempolicy_home_node, PERM),
    all(__NR_setdomainname, PERM),
    all(__NR_sethostname, PERM),
    all(__NR_setns, PERM),
    all(__NR_settimeofday, PERM),
    all(__NR_statmount, PERM),
    all(__NR_swapoff, PERM),
    all(__NR_swapon, PERM),
    all(__NR_syslog, PERM),
    all(__NR_umount2, PERM),
    all(__NR_unshare, PERM),
    all(__NR_userfaultfd, PERM),
    all(__NR_vhangup, PERM),
];

/// RWF_NOWAIT of preadv2(2), in their sixth argument.
const RWF_NOWAIT: u32 = 8;
/// Flags that Linux 4.18 does not know: RWF_NOAPPEND, RWF_ATOMIC, RWF_DONTCACHE, and later ones.
const RWF_SINCE_4_18: u32 = !0x1f;
/// Flags that no kernel knows yet.
const RWF_UNKNOWN: u32 = 0xffff_fe00;
const RWF_ALL_BUT_HIPRI: u32 = !1;
/// The offset -1 in the fourth argument: for descriptors without offsets, or for the file's own position.
const LOW_OF_NO_OFFSET: Test = Test::equal(3, u32::MAX);
const HIGH_OF_NO_OFFSET: Test = Test::high_equal(3, u32::MAX);
const MADV_WIPEONFORK: u32 = libc::MADV_WIPEONFORK as u32;
const MADV_COLD: u32 = libc::MADV_COLD as u32;
/// MFD_NOEXEC_SEAL and MFD_EXEC, which memfd_create(2) has since Linux 6.3.
const MFD_SINCE_6_3: u32 = 0x18;
const SOL_SOCKET: Test = Test::equal(1, libc::SOL_SOCKET as u32);
const SO_COOKIE: Test = Test::equal(2, libc::SO_COOKIE as u32);
/// fcntl's F_DUPFD_QUERY, of Linux 6.10.
const F_DUPFD_QUERY: u32 = 1027;

const RHEL8: &[Rule] = &[
    from(AFTER_4_18, NOSYS),
    some(__NR_preadv2, &[Test::any_bit(5, RWF_SINCE_4_18)], OPNOTSUPP),
    some(__NR_pwritev2, &[Test::any_bit(5, RWF_SINCE_4_18)], OPNOTSUPP),
    // Linux 4.18 knows RWF_NOWAIT for reads of files. A filter cannot see the file, but a read at an offset is surely
    // of a file.
    some(__NR_preadv2, &[Test::any_bit(5, RWF_NOWAIT), LOW_OF_NO_OFFSET, HIGH_OF_NO_OFFSET], OPNOTSUPP),
    some(__NR_pwritev2, &[Test::any_bit(5, RWF_NOWAIT)], OPNOTSUPP),
    some(__NR_madvise, &[Test::at_least(2, MADV_COLD), Test::not_equal(2, 100), Test::not_equal(2, 101)], INVAL),
    some(__NR_memfd_create, &[Test::any_bit(1, MFD_SINCE_6_3)], INVAL),
    some(__NR_fcntl, &[Test::equal(1, F_DUPFD_QUERY)], INVAL),
    some(__NR_mremap, &[Test::any_bit(3, 4)], INVAL), // MREMAP_DONTUNMAP
    some(__NR_prctl, &[Test::equal(0, 59)], INVAL),   // PR_SET_SYSCALL_USER_DISPATCH
    some(__NR_prctl, &[Test::equal(0, 0x5356_4d41)], INVAL), // PR_SET_VMA
    some(__NR_seccomp, &[Test::equal(0, 1), Test::any_bit(1, !7)], INVAL), // flags after SPEC_ALLOW
    some(__NR_waitid, &[Test::equal(0, 3)], INVAL),   // P_PIDFD
    some(__NR_waitid, &[Test::equal(0, 2), Test::equal(1, 0)], INVAL), // P_PGID of the caller's group
];

const GVISOR: &[Rule] = &[
    from(__NR_memfd_secret, NOSYS),
    all(__NR_process_madvise, NOSYS),
    all(__NR_mount_setattr, NOSYS),
    all(__NR_quotactl_fd, NOSYS),
    all(__NR_fspick, NOSYS),
    // A pipe in gVisor ignores the flags, so a read with RWF_NOWAIT waits. The filter imitates this without a read
    // that hangs: flags that no kernel knows are accepted, with the answer 0 of a pipe's end.
    some(__NR_preadv2, &[Test::any_bit(5, RWF_UNKNOWN), LOW_OF_NO_OFFSET, HIGH_OF_NO_OFFSET], ZERO),
    some(__NR_preadv2, &[Test::any_bit(5, RWF_ALL_BUT_HIPRI)], OPNOTSUPP),
    some(__NR_pwritev2, &[Test::any_bit(5, RWF_ALL_BUT_HIPRI)], OPNOTSUPP),
    some(__NR_madvise, &[Test::at_least(2, MADV_WIPEONFORK)], INVAL),
    some(__NR_getsockopt, &[SOL_SOCKET, SO_COOKIE], NOPROTOOPT),
    some(__NR_sendmsg, &[Test::any_bit(2, libc::MSG_WAITALL as u32)], INVAL),
    some(__NR_fcntl, &[Test::equal(1, F_DUPFD_QUERY)], INVAL),
    some(__NR_fallocate, &[Test::not_equal(1, 0)], OPNOTSUPP),
    all(__NR_setfsuid, NOSYS),
    all(__NR_setfsgid, NOSYS),
    all(__NR_kcmp, PERM),
    all(__NR_copy_file_range, NOSYS),
    all(__NR_vmsplice, NOSYS),
    all(__NR_io_pgetevents, NOSYS),
    all(__NR_remap_file_pages, NOSYS),
    all(__NR_userfaultfd, NOSYS),
    all(__NR_fanotify_init, NOSYS),
    all(__NR_fanotify_mark, NOSYS),
    all(__NR_pkey_alloc, NOSYS),
    all(__NR_pkey_free, NOSYS),
    all(__NR_pkey_mprotect, NOSYS),
    all(__NR_mq_timedsend, NOSYS),
    all(__NR_mq_timedreceive, NOSYS),
    all(__NR_mq_notify, NOSYS),
    all(__NR_mq_getsetattr, NOSYS),
    all(__NR_perf_event_open, errno(libc::ENODEV)),
    all(__NR_name_to_handle_at, OPNOTSUPP),
    all(__NR_open_by_handle_at, OPNOTSUPP),
    all(__NR_add_key, errno(libc::EACCES)),
    all(__NR_request_key, errno(libc::EACCES)),
];

/// The call kills the process.
const KILLS: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// Calls that a service rarely needs, and that its filter then does not list.
const KILL: &[Rule] = &[
    all(__NR_seccomp, KILLS),
    all(__NR_process_vm_readv, KILLS),
    all(__NR_process_vm_writev, KILLS),
    all(__NR_ptrace, KILLS),
    all(__NR_bpf, KILLS),
    all(__NR_perf_event_open, KILLS),
    all(__NR_userfaultfd, KILLS),
    all(__NR_keyctl, KILLS),
    all(__NR_setns, KILLS),
    all(__NR_mount, KILLS),
    all(__NR_umount2, KILLS),
];

/// Refuses every further filter.
pub const NO_FILTERS: &[Rule] =
    &[some(__NR_prctl, &[Test::equal(0, libc::PR_SET_SECCOMP as u32)], PERM), all(__NR_seccomp, PERM)];

/// The rules of the profile `minimal`, which is no real environment. It refuses everything that the engine can do
/// without. Each call fails as it does in some real environment.
const MINIMAL: &[Rule] = &[
    from(__NR_pidfd_send_signal, NOSYS),
    some(__NR_preadv2, &[Test::any_bit(5, RWF_ALL_BUT_HIPRI)], OPNOTSUPP),
    some(__NR_pwritev2, &[Test::any_bit(5, RWF_ALL_BUT_HIPRI)], OPNOTSUPP),
    some(__NR_madvise, &[Test::at_least(2, MADV_WIPEONFORK)], INVAL),
    some(__NR_memfd_create, &[Test::any_bit(1, MFD_SINCE_6_3)], INVAL),
    some(__NR_getsockopt, &[SOL_SOCKET, SO_COOKIE], NOPROTOOPT),
    some(__NR_fcntl, &[Test::equal(1, F_DUPFD_QUERY)], INVAL),
    all(__NR_process_vm_readv, PERM),
    all(__NR_process_vm_writev, PERM),
    all(__NR_ptrace, PERM),
    all(__NR_kcmp, PERM),
    all(__NR_membarrier, PERM),
    all(__NR_io_setup, PERM),
    all(__NR_io_destroy, PERM),
    all(__NR_io_submit, PERM),
    all(__NR_io_cancel, PERM),
    all(__NR_io_getevents, PERM),
    all(__NR_io_pgetevents, PERM),
    all(__NR_copy_file_range, NOSYS),
    all(__NR_vmsplice, NOSYS),
    all(__NR_userfaultfd, PERM),
    all(__NR_perf_event_open, PERM),
    all(__NR_bpf, PERM),
    all(__NR_keyctl, PERM),
    all(__NR_unshare, PERM),
    all(__NR_setns, PERM),
    all(__NR_mount, PERM),
    all(__NR_umount2, PERM),
];

/// Calls that sandboxes of coding agents without network refuse, apart from io_uring's.
const AGENT: &[Rule] = &[
    all(__NR_connect, PERM),
    all(__NR_bind, PERM),
    all(__NR_sendto, PERM),
    all(__NR_getsockopt, PERM),
    all(__NR_setsockopt, PERM),
    all(__NR_ptrace, PERM),
];
