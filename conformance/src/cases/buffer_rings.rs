//! Buffer rings: IORING_REGISTER_PBUF_RING and its companions, and IOSQE_BUFFER_SELECT with them.

use super::prelude::*;
use crate::buffers::{buffer_of, register, unregister, BufferRing, Registration, Status};

cases! {
    any_flags: [
        register_and_unregister,
        register_twice_is_eexist,
        register_of_bad_sizes_is_einval,
        register_of_bad_memory,
        register_of_read_only_memory_is_efault,
        register_of_unknown_flags_is_einval,
        register_with_padding_is_einval,
        register_with_a_bad_argument,
        unregister_of_nothing_is_enoent,
        unregister_with_flags_is_einval,
        status_tells_the_head,
        status_of_nothing_is_enoent,
        mapped_ring_is_used,
        mapped_ring_of_a_high_group_cannot_be_mapped,
        mapping_of_an_unregistered_group_is_enomem,
        mapped_ring_ignores_the_address,
        mapping_outlives_its_group,
        read_takes_the_first_buffer,
        read_of_length_zero_takes_the_whole_buffer,
        read_takes_no_more_than_the_buffer,
        read_of_a_file_takes_a_buffer,
        read_waits_and_takes_the_buffer_then,
        read_at_the_end_takes_a_buffer,
        read_into_a_bad_buffer,
        read_of_a_file_into_a_bad_buffer,
        read_async_waits,
        read_of_a_file_async,
        readv_takes_the_length_of_its_vector,
        readv_of_two_vectors_is_einval,
        readv_of_a_bad_vector_is_efault,
        recv_takes_a_buffer,
        recv_waits_and_takes_the_buffer_then,
        recv_at_the_end_takes_none,
        recv_waitall_keeps_its_buffer,
        recv_without_a_buffer_is_enobufs,
        recv_of_an_unknown_group_is_enobufs,
        recv_of_a_file_is_enotsock,
        recv_cancelled_takes_none,
        recv_dontwait_takes_none,
        recv_async_waits,
        recvmsg_takes_a_buffer,
        recvmsg_of_no_vectors_takes_the_whole_buffer,
        recvmsg_of_two_vectors_is_einval,
        send_takes_a_buffer,
        send_takes_no_more_than_asked,
        send_that_waits_keeps_its_buffer,
        write_with_select_is_eopnotsupp,
        nop_with_select_is_eopnotsupp,
        unregistered_while_a_read_waits,
        tail_beyond_the_entries_is_followed,
        entries_wrap_around,
        short_read_breaks_links,
        enobufs_breaks_links,
        skip_success_hides_the_buffer,
        bad_descriptor_is_ebadf,
        incremental_reads_share_a_buffer,
        incremental_reads_go_on_to_the_next_buffer,
        incremental_read_of_a_file_takes_what_was_asked,
        incremental_recv_tells_when_the_buffer_is_used_up,
        incremental_end_of_data,
        two_groups_are_apart,
        fork_keeps_the_group,
    ],
    own_flags: [],
}

/// READ of at most `len` bytes into a buffer of `group`.
fn read_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Read, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

fn recv_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Recv, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

fn pair() -> (OwnedFd, OwnedFd) {
    unix_pair(libc::SOCK_STREAM)
}

fn put(to: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the bytes live until the call returns.
    assert_eq!(unsafe { libc::send(fd(to), bytes.as_ptr().cast(), bytes.len(), 0) }, bytes.len() as isize);
}

/// A CQE's result and buffer, without IORING_CQE_F_SOCK_NONEMPTY, which is a hint.
fn seen(cqe: &Cqe) -> (i32, Option<u16>) {
    assert_eq!(cqe.flags & (IORING_CQE_F_MORE | IORING_CQE_F_BUF_MORE), 0, "{cqe:?}");
    (cqe.res, buffer_of(cqe))
}

fn run(ring: &mut Ring, sqe: Sqe) -> (i32, Option<u16>) {
    ring.go(sqe);
    seen(&ring.wait())
}

fn register_and_unregister(cx: &Context) {
    let ring = cx.ring(4);
    let _buffers = BufferRing::new(&ring, 7, 8, 64, 0);
    assert_eq!(unregister(&ring, 7), 0);
    assert_eq!(unregister(&ring, 7), -(ENOENT as isize));
    let _again = BufferRing::new(&ring, 7, 8, 64, 0);
}

fn some_memory() -> Registration {
    Registration { ring_addr: pages(256).as_ptr() as u64, ring_entries: 8, group: 1, ..Registration::default() }
}

fn register_twice_is_eexist(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(register(&ring, &some_memory()), 0);
    assert_eq!(register(&ring, &some_memory()), -(EEXIST as isize));
}

fn register_of_bad_sizes_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    for ring_entries in [0, 3, 65536, 1 << 31] {
        let registration = Registration { ring_entries, ..some_memory() };
        assert_eq!(register(&ring, &registration), -(EINVAL as isize), "{ring_entries} entries");
    }
    assert_eq!(register(&ring, &Registration { ring_entries: 1, ..some_memory() }), 0);
    assert_eq!(register(&ring, &Registration { ring_entries: 32768, group: 2, ..some_memory() }), 0);
}

fn register_of_bad_memory(cx: &Context) {
    let (ring, good) = (cx.ring(4), some_memory());
    assert_eq!(register(&ring, &Registration { ring_addr: 0, ..good }), -(EFAULT as isize));
    assert_eq!(register(&ring, &Registration { ring_addr: good.ring_addr + 16, ..good }), -(EINVAL as isize));
    assert_eq!(register(&ring, &Registration { ring_addr: bad_address(), ..good }), -(EFAULT as isize));
}

fn register_of_read_only_memory_is_efault(cx: &Context) {
    let (ring, memory) = (cx.ring(4), pages(2));
    protect(&memory[4096..], libc::PROT_READ);
    let good = Registration { ring_addr: address(memory), ring_entries: 256, group: 1, ..Registration::default() };
    assert_eq!(register(&ring, &Registration { ring_entries: 512, ..good }), -(EFAULT as isize));
    assert_eq!(register(&ring, &good), 0, "the first page alone");
}

fn register_of_unknown_flags_is_einval(cx: &Context) {
    assert_eq!(register(&cx.ring(4), &Registration { flags: 4, ..some_memory() }), -(EINVAL as isize));
}

fn register_with_padding_is_einval(cx: &Context) {
    assert_eq!(register(&cx.ring(4), &Registration { resv: [0, 0, 1], ..some_memory() }), -(EINVAL as isize));
}

fn register_with_a_bad_argument(cx: &Context) {
    let (ring, good) = (cx.ring(4), some_memory());
    let at = &raw const good as usize;
    for opcode in [IORING_REGISTER_PBUF_RING, IORING_UNREGISTER_PBUF_RING, IORING_REGISTER_PBUF_STATUS] {
        assert_eq!(ring.register(opcode, 0, 1), -(EINVAL as isize));
        assert_eq!(ring.register(opcode, at, 0), -(EINVAL as isize));
        assert_eq!(ring.register(opcode, at, 2), -(EINVAL as isize));
        assert_eq!(ring.register(opcode, bad_address() as usize, 1), -(EFAULT as isize));
    }
}

fn unregister_of_nothing_is_enoent(cx: &Context) {
    assert_eq!(unregister(&cx.ring(4), 1), -(ENOENT as isize));
}

fn unregister_with_flags_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    let _buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    let with_flags = Registration { group: 1, flags: 1, ..Registration::default() };
    let at = &raw const with_flags as usize;
    assert_eq!(ring.register(IORING_UNREGISTER_PBUF_RING, at, 1), -(EINVAL as isize));
}

fn status_tells_the_head(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    assert_eq!(buffers.head(&ring), 0);
    put(&a, b"x");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (1, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
}

fn status_of_nothing_is_enoent(cx: &Context) {
    let ring = cx.ring(4);
    let mut status = Status { group: 1, ..Status::default() };
    assert_eq!(ring.register(IORING_REGISTER_PBUF_STATUS, &raw mut status as usize, 1), -(ENOENT as isize));
    let _buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    status.resv[7] = 1;
    assert_eq!(ring.register(IORING_REGISTER_PBUF_STATUS, &raw mut status as usize, 1), -(EINVAL as isize));
    status = Status { group: 0x1_0001, ..Status::default() };
    assert_eq!(ring.register(IORING_REGISTER_PBUF_STATUS, &raw mut status as usize, 1), -(ENOENT as isize));
}

fn map(ring: &Ring, group: u16, bytes: usize) -> isize {
    let offset = u64::from(IORING_OFF_PBUF_RING) | u64::from(group) << IORING_OFF_PBUF_SHIFT;
    ring.door.mmap(bytes, ring.fd, offset)
}

fn register_mapped(ring: &Ring, group: u16) {
    let registration =
        Registration { ring_entries: 8, group, flags: IOU_PBUF_RING_MMAP, ..Registration::default() };
    assert_eq!(register(ring, &registration), 0);
}

fn mapped_ring_is_used(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    register_mapped(&ring, 3);
    let address = map(&ring, 3, 4096);
    assert!(address > 0, "mmap answered {address}");
    let mut buffers = BufferRing::at(address as usize, 3, 8, 64);
    assert_eq!(run(&mut ring, recv_select(fd(&b), 3, 0)), (-libc::ENOBUFS, None));
    buffers.give(5);
    put(&a, b"mapped");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 3, 0)), (6, Some(5)));
    assert_eq!(buffers.content(5, 6), b"mapped");
}

fn mapped_ring_of_a_high_group_cannot_be_mapped(cx: &Context) {
    let ring = cx.ring(4);
    register_mapped(&ring, 0x7ff);
    register_mapped(&ring, 0x800);
    assert!(map(&ring, 0x7ff, 4096) > 0);
    assert_eq!(map(&ring, 0x800, 4096), -(ENOMEM as isize));
}

fn mapping_of_an_unregistered_group_is_enomem(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(map(&ring, 3, 4096), -(ENOMEM as isize));
    let _of_program = BufferRing::new(&ring, 3, 8, 64, 0);
    assert_eq!(map(&ring, 3, 4096), -(ENOMEM as isize));
}

fn mapped_ring_ignores_the_address(cx: &Context) {
    let registration = Registration { flags: IOU_PBUF_RING_MMAP, ring_addr: 7, ..some_memory() };
    assert_eq!(register(&cx.ring(4), &registration), 0);
}

fn mapping_outlives_its_group(cx: &Context) {
    let ring = cx.ring(4);
    register_mapped(&ring, 3);
    let mut buffers = BufferRing::at(map(&ring, 3, 4096) as usize, 3, 8, 64);
    assert_eq!(unregister(&ring, 3), 0);
    buffers.give(1);
    assert_eq!(buffers.entry(0).1, 64);
    assert_eq!(map(&ring, 3, 4096), -(ENOMEM as isize));
}

fn read_takes_the_first_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give(6);
    buffers.give(2);
    writer.write_all(b"abcdef").expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 1, 4)), (4, Some(6)));
    assert_eq!(buffers.content(6, 5), b"abcd\0");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 1, 64)), (2, Some(2)));
    assert_eq!(buffers.content(2, 3), b"ef\0");
}

fn read_of_length_zero_takes_the_whole_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    writer.write_all(&[1; 40]).expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 1, 0)), (16, Some(0)));
}

fn read_takes_no_more_than_the_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    writer.write_all(&[1; 40]).expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 1, 4096)), (16, Some(0)));
}

fn read_of_a_file_takes_a_buffer(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 16);
    assert_eq!(run(&mut ring, Sqe { off: 2, ..read_select(fd(&file), 1, 4) }), (4, Some(0)));
    assert_eq!(buffers.content(0, 4), b"2345");
    assert_eq!(run(&mut ring, read_select(fd(&file), 1, 0)), (10, Some(1)));
    assert_eq!(run(&mut ring, Sqe { off: 100, ..read_select(fd(&file), 1, 0) }), (0, Some(2)));
    assert_eq!(buffers.head(&ring), 3);
}

fn read_waits_and_takes_the_buffer_then(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give(3);
    ring.go(read_select(fd(&reader), 1, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 0);
    writer.write_all(b"later").expect("write");
    assert_eq!(seen(&ring.wait()), (5, Some(3)));
    assert_eq!((buffers.content(3, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

fn read_at_the_end_takes_a_buffer(cx: &Context) {
    let ((reader, writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    drop(writer);
    assert_eq!(run(&mut ring, read_select(fd(&reader), 1, 0)), (0, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
}

fn read_into_a_bad_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give_at(4, bad_address(), 64);
    writer.write_all(b"x").expect("write");
    assert_eq!(run(&mut ring, read_select(fd(&reader), 1, 0)), (-EFAULT, None));
    assert_eq!(buffers.head(&ring), 0);
}

fn read_of_a_file_into_a_bad_buffer(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give_at(4, bad_address(), 64);
    assert_eq!(run(&mut ring, read_select(fd(&file), 1, 0)), (-EFAULT, Some(4)));
    assert_eq!(buffers.head(&ring), 1);
}

fn read_async_waits(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(read_select(fd(&reader), 1, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    writer.write_all(b"later").expect("write");
    assert_eq!(seen(&ring.wait()), (5, Some(0)));
    assert_eq!((buffers.content(0, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

fn read_of_a_file_async(cx: &Context) {
    let (file, mut ring) = (file("f", b"0123456789"), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    assert_eq!(run(&mut ring, read_select(fd(&file), 1, 0).with(IOSQE_ASYNC)), (10, Some(0)));
    assert_eq!(buffers.content(0, 10), b"0123456789");
    let unknown = read_select(fd(&file), 9, 0).with(IOSQE_ASYNC);
    assert_eq!(run(&mut ring, unknown), (-libc::ENOBUFS, None));
}

fn readv_takes_the_length_of_its_vector(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    writer.write_all(b"abcdef").expect("write");
    let vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }];
    let sqe = sqe::readv(fd(&reader), &vector, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run(&mut ring, sqe), (4, Some(0)));
    assert_eq!(buffers.content(0, 5), b"abcd\0");
}

fn readv_of_two_vectors_is_einval(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }; 2];
    let sqe = sqe::readv(fd(&reader), &vectors, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run(&mut ring, sqe), (-EINVAL, None));
    assert_eq!(run(&mut ring, Sqe { len: 0, ..sqe }), (-EINVAL, None));
}

fn readv_of_a_bad_vector_is_efault(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    let sqe = prep(Opcode::Readv, fd(&reader), bad_address(), 1, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run(&mut ring, sqe), (-EFAULT, None));
}

fn recv_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 16);
    put(&a, b"0123456789abcdefghij");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 4)), (4, Some(0)));
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (16, Some(1)));
    assert_eq!((buffers.content(0, 5), buffers.content(1, 16)), (&b"0123\0"[..], &b"456789abcdefghij"[..]));
}

fn recv_waits_and_takes_the_buffer_then(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    buffers.give(3);
    ring.go(recv_select(fd(&b), 1, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 0);
    put(&a, b"later");
    assert_eq!(seen(&ring.wait()), (5, Some(3)));
    assert_eq!((buffers.content(3, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

fn recv_at_the_end_takes_none(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    drop(a);
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (0, None));
    assert_eq!(buffers.head(&ring), 0);
}

fn recv_waitall_keeps_its_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    put(&a, b"abc");
    ring.go(recv_select(fd(&b), 1, 6).op_flags(libc::MSG_WAITALL as u32));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 1);
    put(&a, b"defghi");
    assert_eq!(seen(&ring.wait()), (6, Some(0)));
    assert_eq!((buffers.content(0, 7), buffers.head(&ring)), (&b"abcdef\0"[..], 1));
}

fn recv_without_a_buffer_is_enobufs(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (-libc::ENOBUFS, None));
    put(&a, b"x");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (-libc::ENOBUFS, None));
}

fn recv_of_an_unknown_group_is_enobufs(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (-libc::ENOBUFS, None));
}

fn recv_of_a_file_is_enotsock(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(run(&mut ring, recv_select(fd(&file), 1, 0)), (-ENOTSOCK, None));
}

fn recv_cancelled_takes_none(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_select(fd(&b), 1, 0).data(1));
    ring.expect_quiet();
    ring.go(sqe::cancel(1, 0).data(2));
    let mut cqes = ring.wait_all(2);
    cqes.sort_by_key(|cqe| cqe.user_data);
    assert_eq!(seen(&cqes[0]), (-ECANCELED, None));
    assert_eq!(buffers.head(&ring), 0);
}

fn recv_dontwait_takes_none(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let sqe = recv_select(fd(&b), 1, 0).op_flags(libc::MSG_DONTWAIT as u32);
    assert_eq!(run(&mut ring, sqe), (-EAGAIN, None));
    assert_eq!(buffers.head(&ring), 0);
}

fn recv_async_waits(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(recv_select(fd(&b), 1, 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    put(&a, b"later");
    assert_eq!(seen(&ring.wait()), (5, Some(0)));
    assert_eq!((buffers.content(0, 5), buffers.head(&ring)), (&b"later"[..], 1));
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: msghdr is plain numbers and pointers, for which zeroes are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len();
    message
}

fn recvmsg_select(fd: i32, message: &mut libc::msghdr, group: u16) -> Sqe {
    sqe::recvmsg(fd, message, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

fn recvmsg_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring) = (unix_pair(libc::SOCK_DGRAM), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }];
    let mut header = message(&mut vectors);
    ring.go(recvmsg_select(fd(&b), &mut header, 1));
    ring.expect_quiet();
    put(&a, b"abcdef");
    assert_eq!(seen(&ring.wait()), (4, Some(0)));
    assert_eq!(buffers.content(0, 5), b"abcd\0");
    assert_eq!(std::hint::black_box(&header).msg_flags, libc::MSG_TRUNC);
}

fn recvmsg_of_no_vectors_takes_the_whole_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    put(&a, &[1; 40]);
    let mut header = message(&mut []);
    assert_eq!(run(&mut ring, recvmsg_select(fd(&b), &mut header, 1)), (16, Some(0)));
}

fn recvmsg_of_two_vectors_is_einval(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    put(&a, &[1; 40]);
    let mut vectors = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4 }; 2];
    let mut header = message(&mut vectors);
    assert_eq!(run(&mut ring, recvmsg_select(fd(&b), &mut header, 1)), (-EINVAL, None));
}

fn send_select(fd: i32, group: u16, len: u32) -> Sqe {
    prep(Opcode::Send, fd, 0, len, 0).with(IOSQE_BUFFER_SELECT).buffer(group)
}

fn received(from: &OwnedFd) -> Vec<u8> {
    let mut room = vec![0; 1 << 20];
    // SAFETY: the buffer has the length passed.
    let count = unsafe { libc::recv(fd(from), room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    room.truncate(count.max(0) as usize);
    room
}

fn send_takes_a_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    buffers.content_mut(2).copy_from_slice(b"sent");
    buffers.give(2);
    assert_eq!(run(&mut ring, send_select(fd(&a), 1, 0)), (4, Some(2)));
    assert_eq!((received(&b), buffers.head(&ring)), (b"sent".to_vec(), 1));
    assert_eq!(run(&mut ring, send_select(fd(&a), 1, 0)), (-libc::ENOBUFS, None));
}

fn send_takes_no_more_than_asked(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    buffers.content_mut(2).copy_from_slice(b"sent");
    buffers.give(2);
    assert_eq!(run(&mut ring, send_select(fd(&a), 1, 3)), (3, Some(2)));
    assert_eq!(received(&b), b"sen");
}

fn send_that_waits_keeps_its_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::new(&ring, 1, 8, 4, 0);
    buffers.content_mut(2).copy_from_slice(b"sent");
    buffers.give(2);
    let chunk = [1; 4096];
    // SAFETY: the chunk lives until each call returns.
    while unsafe { libc::send(fd(&a), chunk.as_ptr().cast(), 4096, libc::MSG_DONTWAIT) } > 0 {}
    ring.go(send_select(fd(&a), 1, 0));
    ring.expect_quiet();
    assert_eq!(buffers.head(&ring), 1);
    while !received(&b).is_empty() {}
    assert_eq!(seen(&ring.wait()), (4, Some(2)));
}

fn write_with_select_is_eopnotsupp(cx: &Context) {
    let ((_reader, writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 16);
    let sqe = prep(Opcode::Write, fd(&writer), 0, 1, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(run(&mut ring, sqe), (-EOPNOTSUPP, None));
}

fn nop_with_select_is_eopnotsupp(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::nop().with(IOSQE_BUFFER_SELECT)), -EOPNOTSUPP);
}

fn unregistered_while_a_read_waits(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(read_select(fd(&reader), 1, 0));
    ring.expect_quiet();
    assert_eq!(unregister(&ring, 1), 0);
    writer.write_all(b"later").expect("write");
    assert_eq!(seen(&ring.wait()), (-libc::ENOBUFS, None));
}

fn tail_beyond_the_entries_is_followed(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 2, 64);
    buffers.set_tail(100);
    for expected in [0, 1, 0] {
        put(&a, b"x");
        assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (1, Some(expected)));
    }
    assert_eq!(buffers.head(&ring), 3);
}

fn entries_wrap_around(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::filled(&ring, 1, 4, 64);
    for round in 0..10 {
        put(&a, &[round as u8; 8]);
        assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (8, Some(round % 4)));
        assert_eq!(buffers.content(round % 4, 8), [round as u8; 8]);
        buffers.give(round % 4);
    }
}

fn short_read_breaks_links(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 4, 64);
    writer.write_all(b"abc").expect("write");
    ring.go_all(&[read_select(fd(&reader), 1, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, -ECANCELED)]);
}

fn enobufs_breaks_links(cx: &Context) {
    let ((_a, b), mut ring) = (pair(), cx.ring(4));
    ring.go_all(&[recv_select(fd(&b), 1, 0).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -libc::ENOBUFS), (2, -ECANCELED)]);
}

fn skip_success_hides_the_buffer(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 4, 64);
    put(&a, b"abc");
    ring.go(recv_select(fd(&b), 1, 0).with(IOSQE_CQE_SKIP_SUCCESS));
    ring.expect_quiet();
    assert_eq!((buffers.head(&ring), buffers.content(0, 3)), (1, &b"abc"[..]));
}

fn bad_descriptor_is_ebadf(cx: &Context) {
    let mut ring = cx.ring(4);
    let _buffers = BufferRing::filled(&ring, 1, 4, 64);
    assert_eq!(run(&mut ring, read_select(9999, 1, 0)), (-EBADF, None));
    assert_eq!(run(&mut ring, read_select(9999, 2, 0)), (-EBADF, None));
    assert_eq!(run(&mut ring, recv_select(9999, 1, 0)), (-EBADF, None));
    assert_eq!(run(&mut ring, recv_select(9999, 2, 0)), (-EBADF, None));
}

/// A group of IOU_PBUF_RING_INC.
fn incremental(ring: &Ring, entries: u16, bytes: usize) -> BufferRing {
    let mut buffers = BufferRing::new(ring, 1, entries, bytes, IOU_PBUF_RING_INC);
    (0..entries).for_each(|id| buffers.give(id));
    buffers
}

/// A CQE's result, buffer, and whether that buffer goes on to be used.
fn part(ring: &mut Ring, sqe: Sqe) -> (i32, Option<u16>, bool) {
    ring.go(sqe);
    let cqe = ring.wait();
    (cqe.res, buffer_of(&cqe), cqe.flags & IORING_CQE_F_BUF_MORE != 0)
}

fn incremental_reads_share_a_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = incremental(&ring, 2, 16);
    writer.write_all(b"abcdef").expect("write");
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 4)), (4, Some(0), true));
    assert_eq!(buffers.entry(0), (buffers.start(0) + 4, 12));
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 0)), (2, Some(0), true));
    assert_eq!((buffers.content(0, 6), buffers.head(&ring)), (&b"abcdef"[..], 0));
}

fn incremental_reads_go_on_to_the_next_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = incremental(&ring, 2, 4);
    writer.write_all(b"abcdef").expect("write");
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 3)), (3, Some(0), true));
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 3)), (1, Some(0), false));
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 3)), (2, Some(1), true));
    assert_eq!((buffers.content(0, 4), buffers.content(1, 2)), (&b"abcd"[..], &b"ef"[..]));
    assert_eq!(buffers.head(&ring), 1);
}

fn incremental_read_of_a_file_takes_what_was_asked(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let buffers = incremental(&ring, 2, 16);
    assert_eq!(part(&mut ring, read_select(fd(&file), 1, 8)), (3, Some(0), true));
    assert_eq!(buffers.entry(0), (buffers.start(0) + 8, 8));
    assert_eq!(part(&mut ring, read_select(fd(&file), 1, 0)), (3, Some(0), false));
    assert_eq!(buffers.head(&ring), 1);
}

fn incremental_recv_tells_when_the_buffer_is_used_up(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = incremental(&ring, 2, 4);
    put(&a, b"abcdef");
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (4, Some(0), false));
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (2, Some(1), true));
    assert_eq!((buffers.content(1, 2), buffers.head(&ring)), (&b"ef"[..], 1));
}

fn incremental_end_of_data(cx: &Context) {
    let ((reader, writer), (a, b), mut ring) = (pipe(), pair(), cx.ring(4));
    let buffers = incremental(&ring, 2, 4);
    drop((writer, a));
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (0, None, false));
    let (result, buffer, _) = part(&mut ring, read_select(fd(&reader), 1, 0));
    assert_eq!((result, buffer, buffers.head(&ring)), (0, Some(0), 0));
}

fn two_groups_are_apart(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut first = BufferRing::new(&ring, 0, 8, 64, 0);
    let mut second = BufferRing::new(&ring, u16::MAX, 8, 64, 0);
    first.give(1);
    second.give(2);
    put(&a, b"ab");
    assert_eq!(run(&mut ring, recv_select(fd(&b), u16::MAX, 1)), (1, Some(2)));
    assert_eq!(run(&mut ring, recv_select(fd(&b), u16::MAX, 1)), (-libc::ENOBUFS, None));
    assert_eq!(run(&mut ring, recv_select(fd(&b), 0, 1)), (1, Some(1)));
}

fn fork_keeps_the_group(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 4, 64);
    assert_eq!(in_child(|| ()), 0);
    put(&a, b"abc");
    assert_eq!(run(&mut ring, recv_select(fd(&b), 1, 0)), (3, Some(0)));
    assert_eq!(buffers.content(0, 3), b"abc");
}
