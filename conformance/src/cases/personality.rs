//! Personalities: requests that run with credentials registered before.

use super::prelude::*;

topic!(since: "5.6", source: "io_uring_register(2), io_uring/register.c");

const NOBODY: u32 = 65534;

fn register(ring: &Ring) -> i32 {
    ring.register(IORING_REGISTER_PERSONALITY, 0, 0) as i32
}

/// A ring on which another user's credentials are registered, who may not open the guarded file: their number.
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

/// Becomes another user until it becomes root again: only in a case's own process.
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
    // Relative paths lead there whoever may not search the directories above.
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

/// Registered by a thread that is gone when the credentials are used.
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
