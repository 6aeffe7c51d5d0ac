//! Personalities: requests that run with credentials registered before.

use super::prelude::*;

topic!(since: "5.6", source: "io_uring_register(2), io_uring/register.c");

const NOBODY: u32 = 65534;

fn register(ring: &Ring) -> i32 {
    ring.register(IORING_REGISTER_PERSONALITY, 0, 0) as i32
}

/// A ring with registered credentials of a user who may not open the guarded file, and their number.
fn with_registered_nobody(cx: &Context) -> (Ring, i32) {
    needs_root(cx);
    let ring = cx.ring(4);
    guarded_file();
    become_user(NOBODY);
    let id = register(&ring);
    become_user(0);
    (ring, id)
}

fn unregister(ring: &Ring, id: u32) -> i32 {
    ring.register(IORING_UNREGISTER_PERSONALITY, 0, id) as i32
}

/// Becomes another user, or root again: only in a case's own process.
fn become_user(id: u32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::seteuid(id) }, 0, "seteuid({id})");
}

fn needs_root(cx: &Context) {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        cx.skip("becoming another user needs root");
    }
}

/// The SQE with registered credentials.
fn with_credentials(sqe: Sqe, id: i32) -> Sqe {
    Sqe { personality: id as u16, ..sqe }
}

/// A directory in which everybody may make files, and in it a file that only root may open.
fn guarded_file() {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir("open").expect("mkdir");
    std::fs::set_permissions("open", std::fs::Permissions::from_mode(0o777)).expect("chmod");
    std::fs::write("open/guarded", b"x").expect("write");
    std::fs::set_permissions("open/guarded", std::fs::Permissions::from_mode(0o600)).expect("chmod");
    // Relative paths work there even for a user who may not search the directories above.
    std::env::set_current_dir("open").expect("chdir");
}

fn open() -> Sqe {
    sqe::openat(libc::AT_FDCWD, c"guarded", libc::O_RDWR | libc::O_CLOEXEC, 0)
}

#[case]
fn ids_count_from_one_and_are_not_soon_given_again(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!([register(&ring), register(&ring)], [1, 2]);
    assert_eq!([unregister(&ring, 1), unregister(&ring, 1), unregister(&ring, 9)], [0, -EINVAL, -EINVAL]);
    assert_eq!(register(&ring), 3);
}

#[case]
fn arguments_must_be_zero(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(ring.register(IORING_REGISTER_PERSONALITY, 0, 1) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_PERSONALITY, &raw const ring as usize, 0) as i32, -EINVAL);
    assert_eq!(register(&ring), 1);
    assert_eq!(ring.register(IORING_UNREGISTER_PERSONALITY, &raw const ring as usize, 1) as i32, -EINVAL);
}

#[case]
fn request_names_one(cx: &Context) {
    let mut ring = cx.ring(4);
    let id = register(&ring);
    assert_eq!(ring.run(with_credentials(sqe::nop(), id)), 0);
    let (mut reader, writer) = pipe();
    assert_eq!(ring.run(with_credentials(sqe::write(fd(&writer), b"x", 0), id)), 1);
    reader.read_exact(&mut [0; 1]).expect("read");
}

#[case]
fn unregistered_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    let id = register(&ring);
    assert_eq!(ring.run(with_credentials(sqe::nop(), id + 1)), -EINVAL);
    assert_eq!(unregister(&ring, id as u32), 0);
    assert_eq!(ring.run(with_credentials(sqe::nop(), id)), -EINVAL);
}

#[case]
fn open_with_the_registered_rights(cx: &Context) {
    needs_root(cx);
    let mut ring = cx.ring(4);
    guarded_file();
    let id = register(&ring);
    become_user(NOBODY);
    assert_eq!(ring.run(open()), -EACCES);
    assert!(ring.run(with_credentials(open(), id)) >= 0);
    assert_eq!(ring.run(open()), -EACCES, "the submitter's own have not changed");
}

#[case]
fn open_without_the_callers_rights(cx: &Context) {
    let (mut ring, id) = with_registered_nobody(cx);
    assert_eq!(ring.run(with_credentials(open(), id)), -EACCES);
    assert!(ring.run(open()) >= 0);
}

#[case]
fn new_file_belongs_to_the_registered_user(cx: &Context) {
    use std::os::unix::fs::MetadataExt;
    let (mut ring, id) = with_registered_nobody(cx);
    let make = sqe::openat(libc::AT_FDCWD, c"new", libc::O_CREAT | libc::O_WRONLY, 0o600);
    assert!(ring.run(with_credentials(make, id)) >= 0);
    assert_eq!(std::fs::metadata("new").expect("stat").uid(), NOBODY);
}

#[case]
fn in_a_chain(cx: &Context) {
    let (mut ring, id) = with_registered_nobody(cx);
    ring.go_all(&[
        sqe::nop().with(IOSQE_IO_LINK).data(1),
        with_credentials(open(), id).with(IOSQE_IO_LINK).data(2),
        sqe::nop().data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, -EACCES), (3, -ECANCELED)]);
}

#[case]
fn with_async(cx: &Context) {
    let (mut ring, id) = with_registered_nobody(cx);
    assert_eq!(ring.run(with_credentials(open(), id).with(IOSQE_ASYNC)), -EACCES);
}

/// Credentials stay usable after the thread that registered them has ended.
#[case]
fn other_thread_of_the_ring_uses_it(cx: &Context) {
    needs_root(cx);
    if cx.flag_set.flags & IORING_SETUP_SINGLE_ISSUER != 0 {
        cx.skip("one thread registers and submits");
    }
    let mut ring = cx.ring(4);
    guarded_file();
    let id = std::thread::scope(|scope| scope.spawn(|| register(&ring)).join().expect("the thread"));
    become_user(NOBODY);
    for _ in 0..3 {
        assert!(ring.run(with_credentials(open(), id)) >= 0);
    }
}

#[case]
fn setxattr_without_the_callers_rights(cx: &Context) {
    let (mut ring, id) = with_registered_nobody(cx);
    let set = Sqe {
        addr: c"user.mark".as_ptr() as u64,
        off: b"x".as_ptr() as u64,
        len: 1,
        addr3: c"guarded".as_ptr() as u64,
        ..sqe::op(Opcode::Setxattr)
    };
    assert_eq!(ring.run(with_credentials(set, id)), -EACCES);
}

#[case(own_flags)]
fn bind_without_the_callers_rights(cx: &Context) {
    needs_root(cx);
    let mut ring = cx.ring_with(4, 0);
    guarded_file();
    std::fs::create_dir("private").expect("mkdir");
    become_user(NOBODY);
    let id = register(&ring);
    become_user(0);
    let socket = sys::socket(libc::AF_UNIX, libc::SOCK_STREAM);
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in name.sun_path.iter_mut().zip(b"private/socket") {
        *to = *from as libc::c_char;
    }
    let size = size_of::<libc::sockaddr_un>() as u64;
    let bind = prep(Opcode::Bind, fd(&socket), address(&name), 0, size);
    assert_eq!(ring.run(with_credentials(bind, id)), -EACCES);
}

const SETUID_MODE: u32 = 0o4777;

/// A file with the set-user-ID bit, which a write without CAP_FSETID clears.
fn setuid_file() -> std::fs::File {
    use std::os::unix::fs::PermissionsExt;
    let file = sys::file("setuid", b"content");
    file.set_permissions(std::fs::Permissions::from_mode(SETUID_MODE)).expect("chmod");
    file
}

fn keeps_bit(file: &std::fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().expect("stat").mode() & libc::S_ISUID != 0
}

/// Makes each kind of change to such a file with these credentials. True for each that keeps the bit.
fn changes_keep_bit(ring: &mut Ring, id: i32) -> Vec<bool> {
    let change = |file: &std::fs::File, kind| match kind {
        0 => sqe::write(fd(file), b"x", 0),
        1 => sqe::write(fd(file), b"x", 0).with(IOSQE_ASYNC),
        _ => prep(Opcode::Fallocate, fd(file), 4096, 0, 0),
    };
    let changed = (0..3).map(|kind| {
        let file = setuid_file();
        let result = ring.run(with_credentials(change(&file, kind), id));
        assert!(result >= 0, "change {kind}: {result}");
        keeps_bit(&file)
    });
    changed.collect()
}

#[case]
fn write_without_the_callers_rights(cx: &Context) {
    let (mut ring, id) = with_registered_nobody(cx);
    assert_eq!(changes_keep_bit(&mut ring, id), [false; 3]);
    assert_eq!(changes_keep_bit(&mut ring, 0), [true; 3]);
}

/// Sets or clears a capability of the calling thread's effective ones.
fn make_effective(capability: u32, effective: bool) {
    let mut header = [0x2008_0522u32, 0]; // _LINUX_CAPABILITY_VERSION_3
    let mut sets = [0u32; 6];
    // SAFETY: the header and both sets of that version, as linux/capability.h has them.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_capget, &raw mut header, &raw mut sets), 0, "capget");
        sets[0] = sets[0] & !(1 << capability) | u32::from(effective) << capability;
        assert_eq!(libc::syscall(libc::SYS_capset, &raw mut header, &raw const sets), 0, "capset");
    }
}

/// CAP_FSETID of linux/capability.h.
const CAP_FSETID: u32 = 4;

#[case]
fn capabilities_are_registered_with_the_ids(cx: &Context) {
    needs_root(cx);
    let mut ring = cx.ring(4);
    make_effective(CAP_FSETID, false);
    let id = register(&ring);
    make_effective(CAP_FSETID, true);
    // Changes every thread's user, and back.
    become_user(NOBODY);
    become_user(0);
    assert_eq!(changes_keep_bit(&mut ring, id), [false; 3]);
    assert_eq!(changes_keep_bit(&mut ring, 0), [true; 3]);
}

/// Receives until the message of one byte comes, and returns the user of its sender.
fn sender(socket: &std::os::fd::OwnedFd) -> u32 {
    const CONTROL: usize = 32; // CMSG_SPACE of a struct ucred
    loop {
        let (mut bytes, mut control) = (vec![0u8; 65_536], [0u64; CONTROL / 8]);
        let mut vectors = [iovec_mut(&mut bytes)];
        let mut message = sys::message(&mut vectors);
        (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), CONTROL as _);
        // SAFETY: the message names buffers that outlive the call.
        let got = unsafe { libc::recvmsg(fd(socket), &raw mut message, 0) };
        assert!(got > 0, "recvmsg");
        if got == 1 {
            // Length, level and type, then the process, user and group.
            assert_eq!((control[1] >> 32) as i32, libc::SCM_CREDENTIALS);
            return (control[2] >> 32) as u32;
        }
    }
}

/// Makes `id` the real and the effective user. [`become_user`] changes only the effective user.
fn become_really(id: u32) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::setresuid(id, id, 0) }, 0, "setresuid({id})");
}

#[case]
fn message_tells_the_registered_user(cx: &Context) {
    needs_root(cx);
    let mut ring = cx.ring(4);
    // A message has the real user's id.
    become_really(NOBODY);
    let id = register(&ring);
    become_really(0);
    let (from, to) = unix_pair(libc::SOCK_SEQPACKET);
    sys::set_option(&to, libc::SOL_SOCKET, libc::SO_PASSCRED, &1i32);
    let send = || sqe::send(fd(&from), b"x", 0);
    assert_eq!(ring.run(with_credentials(send(), id)), 1);
    assert_eq!(sender(&to), NOBODY);
    assert_eq!(ring.run(send()), 1);
    assert_eq!(sender(&to), 0);
    sys::fill(&from);
    ring.go(with_credentials(send(), id));
    assert!(ring.peek().is_none(), "there is no room");
    let receiving = std::thread::spawn(move || sender(&to));
    assert_eq!(ring.wait().res, 1);
    assert_eq!(receiving.join().expect("the receiver"), NOBODY);
}
