//! SETXATTR, GETXATTR, FSETXATTR and FGETXATTR, with attributes of the user namespace on a file of the case's own.

use super::prelude::*;
use std::ffi::CStr;

topic!(since: "5.19", source: "io_uring_enter(2), io_uring/xattr.c");

const NAME: &CStr = c"user.anyring";

fn set(opcode: Opcode, fd: i32, name: &CStr, value: &[u8], flags: u32) -> Sqe {
    prep(opcode, fd, name.as_ptr() as u64, value.len() as u32, address(value)).op_flags(flags)
}

fn fset(file: &std::fs::File, value: &[u8]) -> Sqe {
    set(Opcode::Fsetxattr, fd(file), NAME, value, 0)
}

fn fget(file: &std::fs::File, room: &mut [u8]) -> Sqe {
    prep(Opcode::Fgetxattr, fd(file), NAME.as_ptr() as u64, room.len() as u32, address_mut(room))
}

/// Turns a request by descriptor into one by path.
fn at(path: &CStr, opcode: Opcode, sqe: Sqe) -> Sqe {
    Sqe { opcode: opcode as u8, fd: 0, addr3: path.as_ptr() as u64, ..sqe }
}

#[case]
fn set_and_get_by_descriptor(cx: &Context) {
    let (file, mut ring, mut room) = (file("f", b""), cx.ring(4), [0u8; 16]);
    assert_eq!(ring.run(fset(&file, b"value")), 0);
    assert_eq!(ring.run(fget(&file, &mut room)), 5);
    assert_eq!(&room[..6], b"value\0");
}

#[case]
fn set_and_get_by_path(cx: &Context) {
    let (file, mut ring, mut room) = (file("f", b""), cx.ring(4), [0u8; 16]);
    assert_eq!(ring.run(at(c"f", Opcode::Setxattr, fset(&file, b"path"))), 0);
    assert_eq!(ring.run(at(c"f", Opcode::Getxattr, fget(&file, &mut room))), 4);
    assert_eq!(&room[..4], b"path");
    assert_eq!(ring.run(at(c"missing", Opcode::Getxattr, fget(&file, &mut room))), -ENOENT);
}

#[case]
fn a_value_of_no_bytes(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(fset(&file, b"")), 0);
    assert_eq!(ring.run(fget(&file, &mut [0; 4])), 0);
}

#[case]
fn size_zero_asks_for_the_size(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(fset(&file, b"12345678")), 0);
    assert_eq!(ring.run(fget(&file, &mut [])), 8);
}

#[case]
fn too_little_room_is_erange(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(fset(&file, b"12345678")), 0);
    assert_eq!(ring.run(fget(&file, &mut [0; 7])), -libc::ERANGE);
}

#[case]
fn a_missing_attribute_is_enodata(cx: &Context) {
    let file = file("f", b"");
    assert_eq!(cx.ring(4).run(fget(&file, &mut [0; 7])), -libc::ENODATA);
}

#[case]
fn create_and_replace(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    let with = |flags: i32| set(Opcode::Fsetxattr, fd(&file), NAME, b"v", flags as u32);
    assert_eq!(ring.run(with(libc::XATTR_REPLACE)), -libc::ENODATA);
    assert_eq!(ring.run(with(libc::XATTR_CREATE)), 0);
    assert_eq!(ring.run(with(libc::XATTR_CREATE)), -libc::EEXIST);
    assert_eq!(ring.run(with(libc::XATTR_REPLACE)), 0);
}

#[case]
fn unknown_flag_is_einval(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(fset(&file, b"v").op_flags(4)), -EINVAL);
    // The flags are checked before the name.
    assert_eq!(ring.run(Sqe { addr: bad_address(), ..fset(&file, b"v").op_flags(4) }), -EINVAL);
}

#[case]
fn get_with_a_flag_is_einval(cx: &Context) {
    let file = file("f", b"");
    assert_eq!(cx.ring(4).run(fget(&file, &mut [0; 4]).op_flags(1)), -EINVAL);
}

#[case]
fn an_empty_name_is_erange(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    let empty = c"".as_ptr() as u64;
    assert_eq!(ring.run(Sqe { addr: empty, ..fset(&file, b"v") }), -libc::ERANGE);
    assert_eq!(ring.run(Sqe { addr: empty, ..fget(&file, &mut [0; 4]) }), -libc::ERANGE);
}

#[case]
fn a_long_name_is_erange(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    let name = |bytes: usize| std::ffi::CString::new(["user.", &"n".repeat(bytes - 5)].concat()).expect("no zero");
    let (longest, longer) = (name(255), name(256));
    assert_eq!(ring.run(set(Opcode::Fsetxattr, fd(&file), &longest, b"v", 0)), 0);
    assert_eq!(ring.run(set(Opcode::Fsetxattr, fd(&file), &longer, b"v", 0)), -libc::ERANGE);
}

#[case]
fn a_bad_name_is_efault(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(Sqe { addr: bad_address(), ..fset(&file, b"v") }), -EFAULT);
    assert_eq!(ring.run(Sqe { addr: bad_address(), ..fget(&file, &mut [0; 4]) }), -EFAULT);
}

#[case]
fn a_bad_value_is_efault(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(Sqe { off: bad_address(), ..fset(&file, b"v") }), -EFAULT);
    assert_eq!(ring.run(fset(&file, b"v")), 0);
    assert_eq!(ring.run(Sqe { off: bad_address(), ..fget(&file, &mut [0; 4]) }), -EFAULT);
}

#[case]
fn a_huge_value_is_e2big(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    let value = vec![0u8; 65_537];
    assert_eq!(ring.run(fset(&file, &value)), -libc::E2BIG);
}

#[case]
fn an_empty_path_is_enoent(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(at(c"", Opcode::Setxattr, fset(&file, b"v"))), -ENOENT);
    assert_eq!(ring.run(at(c"", Opcode::Getxattr, fget(&file, &mut [0; 4]))), -ENOENT);
}

#[case]
fn a_path_with_a_fixed_file_is_ebadf(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    ring.register_files(&[fd(&file)]);
    assert_eq!(ring.run(at(c"f", Opcode::Setxattr, fset(&file, b"v")).with(IOSQE_FIXED_FILE)), -EBADF);
    assert_eq!(ring.run(at(c"f", Opcode::Getxattr, fget(&file, &mut [0; 4])).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case]
fn bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(set(Opcode::Fsetxattr, 9999, NAME, b"v", 0)), -EBADF);
}

#[case]
fn of_a_registered_file(cx: &Context) {
    let (file, mut ring, mut room) = (file("f", b""), cx.ring(4), [0u8; 4]);
    ring.register_files(&[fd(&file)]);
    assert_eq!(ring.run(Sqe { fd: 0, ..fset(&file, b"v") }.with(IOSQE_FIXED_FILE)), 0);
    assert_eq!(ring.run(Sqe { fd: 0, ..fget(&file, &mut room) }.with(IOSQE_FIXED_FILE)), 1);
}

#[case]
fn name_and_value_are_copied_at_submission(cx: &Context) {
    let (file, mut ring, mut room) = (file("f", b""), cx.ring(4), [0u8; 8]);
    let (mut name, mut value) = (*b"user.copied\0", *b"before");
    let sqe = prep(Opcode::Fsetxattr, fd(&file), address(&name), value.len() as u32, address(&value));
    ring.push(sqe.data(1));
    assert_eq!(ring.submit(), 1);
    name.fill(b'x');
    value.fill(b'x');
    assert_eq!(ring.wait().res, 0);
    let get = prep(Opcode::Fgetxattr, fd(&file), c"user.copied".as_ptr() as u64, 8, address_mut(&mut room));
    assert_eq!(ring.run(get), 6);
    assert_eq!(&room[..6], b"before");
}

#[case]
fn async_and_linked(cx: &Context) {
    let (file, mut ring, mut room) = (file("f", b""), cx.ring(4), [0u8; 8]);
    ring.go_all(&[
        fset(&file, b"linked").with(IOSQE_IO_LINK | IOSQE_ASYNC).data(1),
        fget(&file, &mut room).with(IOSQE_ASYNC).data(2),
    ]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 6)]);
}
