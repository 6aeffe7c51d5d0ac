//! PROVIDE_BUFFERS and REMOVE_BUFFERS, and IOSQE_BUFFER_SELECT with them.

use super::prelude::*;
use crate::buffers::BufferRing;
use crate::buffers::{buffer_of, register, unregister, Registration};

topic!(since: "5.7", source: "io_uring_enter(2), io_uring/kbuf.c");

/// PROVIDE_BUFFERS of `count` buffers of `bytes` each at `addr`, as `first` and the following ids.
fn provide(addr: u64, bytes: u32, count: i32, group: u16, first: u16) -> Sqe {
    prep(Opcode::ProvideBuffers, count, addr, bytes, first.into()).buffer(group)
}

fn remove(count: i32, group: u16) -> Sqe {
    Sqe { fd: count, ..sqe::op(Opcode::RemoveBuffers) }.buffer(group)
}

fn read_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Read, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

fn recv_select(fd: i32, group: u16, len: u32) -> Sqe {
    Sqe { opcode: Opcode::Recv as u8, ..read_select(fd, group, len) }
}

/// Result and buffer of one request, without IORING_CQE_F_SOCK_NONEMPTY, which is a hint.
fn run(ring: &mut Ring, sqe: Sqe) -> (i32, Option<u16>) {
    ring.go(sqe);
    seen(&ring.wait())
}

fn seen(cqe: &Cqe) -> (i32, Option<u16>) {
    (cqe.res, buffer_of(cqe))
}

const NONE: (i32, Option<u16>) = (-libc::ENOBUFS, None);

#[case]
fn provide_and_read(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(run(&mut ring, provide(address_mut(&mut room), 32, 2, 5, 9)), (0, None));
    writer.write_all(b"abc").expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 0)), (3, Some(9)));
    assert_eq!(&room[..4], b"abc\0");
}

#[case]
fn provided_buffers_are_used_in_order(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 16, 2, 5, 9)), 0);
    assert_eq!(ring.run(provide(address_mut(&mut room) + 32, 16, 2, 5, 2)), 0);
    writer.write_all(&[7; 64]).expect("write");
    for expected in [9, 10, 2, 3] {
        assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 0)), (16, Some(expected)));
    }
    assert_eq!(std::hint::black_box(&room), &[7; 64]);
}

#[case]
fn used_buffer_is_gone(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 0)), 0);
    writer.write_all(b"abc").expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 1)), (1, Some(0)));
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 1)), NONE);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 0)), 0);
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 0)), (2, Some(0)));
}

#[case]
fn provide_adds_to_the_group(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 60, 5, 0)), 0);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 4, 5, 0)), 0);
    assert_eq!(ring.run(remove(100, 5)), 64);
}

#[case]
fn provide_of_none_is_e2big(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 0, 5, 0)), -libc::E2BIG);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, -1, 5, 0)), -libc::E2BIG);
}

#[case]
fn provide_of_too_many_is_e2big(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 65537, 5, 0)), -libc::E2BIG);
    assert_eq!(ring.run(Sqe { off: 65536, ..provide(address_mut(&mut room), 1, 1, 5, 0) }), -libc::E2BIG);
}

#[case]
fn provide_of_empty_buffers_is_einval(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 0, 1, 5, 0)), -EINVAL);
}

#[case]
fn provide_of_ids_beyond_the_last(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 2, 5, 65535)), -EINVAL);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 1, 5, 65535)), 0);
}

#[case]
fn provide_at_the_end_of_memory(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(provide(u64::MAX - 10, 1, 20, 5, 0)), -EOVERFLOW);
    assert_eq!(ring.run(provide(u64::MAX - 100, 1, 20, 5, 0)), -EFAULT);
}

#[case]
fn provide_more_than_a_group_holds(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), vec![0u8; 65536]);
    assert_eq!(ring.run(provide(address_mut(&mut room[..]), 1, 65535, 5, 0)), 0);
    let (too_many, all) = if cx.answers_since("7.3") { (0, 65536) } else { (-EOVERFLOW, 65535) };
    assert_eq!(ring.run(provide(address_mut(&mut room[..]), 1, 1, 5, 0)), too_many);
    assert_eq!(ring.run(remove(1, 5)), 1);
    assert_eq!(ring.run(provide(address_mut(&mut room[..]), 1, 2, 5, 0)), 0);
    assert_eq!(ring.run(remove(65536, 5)), all);
}

#[case]
fn provide_with_unused_fields_is_einval(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    let good = provide(address_mut(&mut room), 1, 1, 5, 0);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
    assert_eq!(ring.run(good.ioprio(1)), -EINVAL);
}

#[case]
fn provide_with_select_is_eopnotsupp(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    let good = provide(address_mut(&mut room), 1, 1, 5, 0);
    assert_eq!(ring.run(good.with(IOSQE_BUFFER_SELECT)), -EOPNOTSUPP);
}

#[case]
fn provide_async_and_in_a_chain(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    writer.write_all(&[1; 64]).expect("write");
    ring.go_all(&[
        provide(address_mut(&mut room), 64, 1, 5, 3).with(IOSQE_ASYNC | IOSQE_IO_LINK).data(1),
        read_select(fd(&reader), 5, 0).with(IOSQE_IO_LINK).data(2),
        read_select(fd(&reader), 5, 0).data(3),
    ]);
    let cqes = ring.wait_all(3);
    let results: Vec<_> = cqes.iter().map(|cqe| (cqe.user_data, seen(cqe))).collect();
    assert_eq!(results, [(1, (0, None)), (2, (64, Some(3))), (3, NONE)]);
}

fn ring_of(group: u16) -> Registration {
    Registration { ring_addr: pages(1).as_ptr() as u64, ring_entries: 8, group, ..Registration::default() }
}

#[case(since = "5.19")]
fn provide_to_a_buffer_ring_is_einval(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(register(&ring, &ring_of(5)), 0);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 1, 5, 0)), -EINVAL);
}

#[case]
fn remove_answers_how_many_there_were(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 10, 5, 0)), 0);
    assert_eq!(ring.run(remove(3, 5)), 3);
    assert_eq!(ring.run(remove(10, 5)), 7);
    assert_eq!(ring.run(remove(10, 5)), 0);
}

#[case]
fn remove_of_an_unknown_group_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(remove(1, 5)), -ENOENT);
}

#[case]
fn remove_of_none_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(remove(0, 5)), -EINVAL);
    assert_eq!(ring.run(remove(65537, 5)), -EINVAL);
    assert_eq!(ring.run(remove(-1, 5)), -EINVAL);
}

#[case]
fn remove_with_unused_fields_is_einval(cx: &Context) {
    let (mut ring, good) = (cx.ring(4), remove(1, 5));
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { off: 1, ..good }), -EINVAL);
}

#[case(since = "5.19")]
fn remove_from_a_buffer_ring_is_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(register(&ring, &ring_of(5)), 0);
    assert_eq!(ring.run(remove(1, 5)), -EINVAL);
}

#[case(since = "5.19")]
fn ring_takes_over_an_empty_group(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 1, 5, 0)), 0);
    assert_eq!(ring.run(remove(1, 5)), 1);
    assert_eq!(register(&ring, &ring_of(5)), 0);
}

#[case]
fn ring_of_a_group_with_buffers_is_eexist(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 1, 5, 0)), 0);
    assert_eq!(register(&ring, &ring_of(5)), -(EEXIST as isize));
}

#[case]
fn status_and_unregister_of_a_provided_group_are_einval(cx: &Context) {
    let (mut ring, mut room) = (cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 1, 1, 5, 0)), 0);
    assert_eq!(unregister(&ring, 5), -(EINVAL as isize));
    let mut status = crate::buffers::Status { group: 5, ..Default::default() };
    assert_eq!(ring.register(IORING_REGISTER_PBUF_STATUS, &raw mut status as usize, 1), -(EINVAL as isize));
}

#[case]
fn read_takes_no_more_than_asked(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 16, 2, 5, 0)), 0);
    writer.write_all(&[7; 64]).expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 3)), (3, Some(0)));
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 99)), (16, Some(1)));
}

#[case]
fn read_that_waits_keeps_its_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 0)), 0);
    ring.go(read_select(fd(&reader), 5, 0).data(1));
    ring.expect_quiet();
    assert_eq!(ring.run(remove(2, 5).data(2)), 0);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 8).data(3)), 0);
    writer.write_all(b"abc").expect("write");
    assert_eq!(seen(&ring.wait()), (3, Some(0)));
}

#[case]
fn read_that_is_cancelled_takes_its_buffer(cx: &Context) {
    let ((reader, _writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 32, 2, 5, 4)), 0);
    ring.go(read_select(fd(&reader), 5, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(seen(&cqes[0]), (-ECANCELED, Some(4)));
    assert_eq!(ring.run(remove(2, 5)), 1);
}

#[case(undisturbed, since = "5.19")]
fn read_beside_a_multishot_one_keeps_its_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(8), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 32, 2, 5, 4)), 0);
    let _buffers = BufferRing::filled(&ring, 1, 4, 16);
    ring.go(prep(Opcode::ReadMultishot, fd(&reader), 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1).data(1));
    ring.expect_quiet();
    ring.go(read_select(fd(&reader), 5, 0).data(2));
    ring.expect_quiet();
    ring.go(read_select(fd(&reader), 5, 0).data(3));
    assert_eq!(ring.run(remove(2, 5).data(4)), 0);
    writer.write_all(b"abc").expect("write");
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, seen(&cqe)), (3, (3, Some(5))));
    ring.go(sqe::cancel(2, 0).data(5));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(seen(&cqes[0]), (-ECANCELED, Some(4)));
}

#[case]
fn recv_that_waits_takes_the_buffer_then(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 32, 2, 5, 4)), 0);
    ring.go(recv_select(fd(&b), 5, 0).data(1));
    ring.expect_quiet();
    assert_eq!(ring.run(remove(1, 5).data(2)), 1);
    put(&a, b"x");
    assert_eq!(seen(&ring.wait()), (1, Some(5)));
}

#[case]
fn read_into_a_bad_buffer_takes_it(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(ring.run(provide(bad_address(), 64, 1, 5, 4)), 0);
    writer.write_all(b"abc").expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 0)), (-EFAULT, Some(4)));
    assert_eq!(run(&mut ring, read_select(fd(&reader), 5, 0)), NONE);
}

#[case]
fn recv_into_a_bad_buffer_gives_it_back(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    assert_eq!(ring.run(provide(bad_address(), 64, 1, 5, 4)), 0);
    put(&a, b"abc");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 5, 0)), (-EFAULT, None));
    assert_eq!(ring.run(remove(2, 5)), 1);
}

#[case]
fn recv_at_the_end_gives_it_back(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 4)), 0);
    drop(a);
    assert_eq!(run(&mut ring, recv_select(fd(&b), 5, 0)), (0, None));
    assert_eq!(ring.run(remove(2, 5)), 1);
}

#[case]
fn recv_that_is_cancelled_gives_it_back(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 32, 2, 5, 4)), 0);
    ring.go(recv_select(fd(&b), 5, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(seen(&cqes[0]), (-ECANCELED, None));
    put(&a, b"x");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 5, 0)), (1, Some(4)));
}

#[case]
fn recv_without_a_buffer_is_enobufs(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 4)), 0);
    assert_eq!(ring.run(remove(1, 5)), 1);
    put(&a, b"x");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 5, 0)), NONE);
}

#[case]
fn read_of_a_file_takes_a_buffer(cx: &Context) {
    let (file, mut ring, mut room) = (file("f", b"0123456789"), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 16, 4, 5, 0)), 0);
    assert_eq!(run(&mut ring, read_select(fd(&file), 5, 0)), (10, Some(0)));
    assert_eq!(run(&mut ring, Sqe { off: 100, ..read_select(fd(&file), 5, 0) }), (0, Some(1)));
    assert_eq!(run(&mut ring, read_select(fd(&file), 5, 4).with(IOSQE_ASYNC)), (4, Some(2)));
    assert_eq!(&room[32..37], b"0123\0");
}

#[case]
fn read_async_waits(cx: &Context) {
    let ((reader, mut writer), mut ring, mut room) = (pipe(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 0)), 0);
    ring.go(read_select(fd(&reader), 5, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(seen(&ring.wait()), (3, Some(0)));
}

#[case]
fn recvmsg_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring, mut room) = (pair(), cx.ring(4), [0u8; 64]);
    assert_eq!(ring.run(provide(address_mut(&mut room), 64, 1, 5, 6)), 0);
    put(&a, b"abc");
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    let sqe = sqe::recvmsg(fd(&b), &mut header, 0).with(IOSQE_BUFFER_SELECT).buffer(5);
    assert_eq!(run(&mut ring, sqe), (3, Some(6)));
    assert_eq!(&room[..4], b"abc\0");
}

#[case]
fn send_takes_a_whole_buffer(cx: &Context) {
    let ((a, b), mut ring, bytes) = (pair(), cx.ring(4), *b"0123456789");
    assert_eq!(ring.run(provide(address(&bytes), 10, 1, 5, 6)), 0);
    let sqe = prep(Opcode::Send, fd(&a), 0, 4, 0).with(IOSQE_BUFFER_SELECT).buffer(5);
    assert_eq!(run(&mut ring, sqe), (10, Some(6)));
    assert_eq!(readable_bytes(&b), 10);
}

#[case]
fn unmapped_buffers_can_be_provided(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(provide(8, 64, 1, 5, 4)), 0);
    assert_eq!(ring.run(remove(2, 5)), 1);
}

/// Requests of each kind that choose a buffer of group 5, on a descriptor.
fn selecting(number: i32, vector: &mut libc::iovec) -> [Sqe; 4] {
    let readv = prep(Opcode::Readv, number, address_mut(vector), 1, 0).with(IOSQE_BUFFER_SELECT).buffer(5);
    let send = Sqe { opcode: Opcode::Send as u8, ..read_select(number, 5, 0) };
    [read_select(number, 5, 16), readv, recv_select(number, 5, 0), send]
}

#[case]
fn a_descriptor_that_is_refused_takes_no_buffer(cx: &Context) {
    drop(file("f", b"x"));
    // As in `rw_file::read_of_a_path_descriptor_is_ebadf`.
    // SAFETY: a constant name.
    let path = owned(unsafe { libc::open(c"f".as_ptr(), libc::O_PATH) }, "open");
    let (mut ring, mut room, mut vector) = (cx.ring(4), [0u8; 64], iovec(&[0; 16]));
    assert_eq!(ring.run(provide(address_mut(&mut room), 16, 4, 5, 0)), 0);
    for number in [9999, fd(&path)] {
        for sqe in selecting(number, &mut vector) {
            assert_eq!(run(&mut ring, sqe), (-EBADF, None));
            assert_eq!(run(&mut ring, sqe.with(IOSQE_BUFFER_SELECT | IOSQE_ASYNC)), (-EBADF, None));
        }
    }
    assert_eq!(ring.run(remove(9, 5)), 4);
}

#[case(since = "6.8")]
fn what_is_no_socket_takes_no_buffer(cx: &Context) {
    let ((mut ring, mut vector), file) = ((cx.ring(4), iovec(&[0; 16])), file("f", b"x"));
    let buffers = BufferRing::filled(&ring, 5, 4, 16);
    let [_, _, recv, send] = selecting(fd(&file), &mut vector);
    let writable = std::fs::OpenOptions::new().write(true).open("f").expect("open");
    let late = Sqe { fd: fd(&writable), ..send };
    for sqe in [recv, late] {
        assert_eq!(run(&mut ring, sqe), (-ENOTSOCK, None));
        assert_eq!(run(&mut ring, sqe.with(IOSQE_BUFFER_SELECT | IOSQE_ASYNC)), (-ENOTSOCK, None));
    }
    assert_eq!(buffers.head(&ring), 0);
}

#[case]
fn send_that_fails_takes_its_buffer(cx: &Context) {
    let (mut ring, mut room, mut vector) = (cx.ring(4), [0u8; 64], iovec(&[0; 16]));
    let socket = socket(libc::AF_INET, libc::SOCK_STREAM);
    assert_eq!(ring.run(provide(address_mut(&mut room), 16, 4, 5, 0)), 0);
    let [.., send] = selecting(fd(&socket), &mut vector);
    assert_eq!(run(&mut ring, send), (-libc::EPIPE, Some(0)));
    assert_eq!(ring.run(remove(9, 5)), 3);
}
