//! IORING_RW_ATTR_FLAG_PI: protection information with a read or write, which only block devices made for it take.

use super::prelude::*;

topic!(since: "6.13", source: "io_uring/rw.c");

/// `struct io_uring_attr_pi`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Protection {
    flags: u16,
    app_tag: u16,
    len: u32,
    addr: u64,
    seed: u64,
    rsvd: u64,
}

/// `sqe` with `attributes` (`IORING_RW_ATTR_FLAG_*`) at `at`.
fn with_attributes(sqe: Sqe, attributes: u64, at: u64) -> Sqe {
    Sqe { addr3: at, pad2: attributes, ..sqe }
}

const PI: u64 = IORING_RW_ATTR_FLAG_PI as u64;

#[case]
fn of_a_file_without_it_is_einval(cx: &Context) {
    let (file, mut ring, mut buffer) = (file("f", b"abcdefgh"), cx.ring(4), [0; 8]);
    let protection = Protection { addr: address(&buffer), len: 8, ..Protection::default() };
    for sqe in [sqe::read(fd(&file), &mut buffer, 0), sqe::write(fd(&file), b"12345678", 0)] {
        assert_eq!(ring.run(with_attributes(sqe, PI, address(&protection))), -EINVAL);
    }
    assert_eq!(std::fs::read("f").expect("read"), b"abcdefgh");
}

#[case]
fn of_a_pipe_is_einval(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 1]);
    let protection = Protection { addr: address(&buffer), len: 1, ..Protection::default() };
    writer.write_all(b"x").expect("write");
    let read = with_attributes(sqe::read(fd(&reader), &mut buffer, 0), PI, address(&protection));
    assert_eq!(ring.run(read), -EINVAL);
}

#[case]
fn unknown_attribute_is_einval(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let protection = Protection::default();
    for attributes in [2, 3, 1 << 63] {
        let read = with_attributes(sqe::read(fd(&file), &mut [0; 1], 0), attributes, address(&protection));
        assert_eq!(ring.run(read), -EINVAL);
    }
}

#[case]
fn bad_address_is_efault(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let read = with_attributes(sqe::read(fd(&file), &mut [0; 1], 0), PI, bad_address());
    assert_eq!(ring.run(read), -EFAULT);
}

#[case]
fn reserved_is_einval(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let protection = Protection { rsvd: 1, ..Protection::default() };
    let read = with_attributes(sqe::read(fd(&file), &mut [0; 1], 0), PI, address(&protection));
    assert_eq!(ring.run(read), -EINVAL);
}

#[case]
fn bad_descriptor_is_ebadf(cx: &Context) {
    let (mut ring, protection) = (cx.ring(4), Protection::default());
    assert_eq!(ring.run(with_attributes(sqe::read(9999, &mut [0; 1], 0), PI, address(&protection))), -EBADF);
    assert_eq!(ring.run(with_attributes(sqe::read(9999, &mut [0; 1], 0), 2, address(&protection))), -EINVAL);
}

/// Other operations, such as NOP, ignore these words.
#[case]
fn other_operations_do_not_look(cx: &Context) {
    assert_eq!(cx.ring(4).run(with_attributes(sqe::nop(), PI, 8)), 0);
}
