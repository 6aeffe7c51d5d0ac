//! Buffer rings: IORING_REGISTER_PBUF_RING and its companions, mapped rings, incremental ones.

use super::prelude::*;
use crate::buffers::*;

topic!(since: "5.19", source: "io_uring_register(2), io_uring/kbuf.c");

#[case]
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

#[case]
fn register_twice_is_eexist(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(register(&ring, &some_memory()), 0);
    assert_eq!(register(&ring, &some_memory()), -(EEXIST as isize));
}

#[case]
fn register_of_bad_sizes_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    for ring_entries in [0, 3, 65536, 1 << 31] {
        let registration = Registration { ring_entries, ..some_memory() };
        assert_eq!(register(&ring, &registration), -(EINVAL as isize), "{ring_entries} entries");
    }
    assert_eq!(register(&ring, &Registration { ring_entries: 1, ..some_memory() }), 0);
    assert_eq!(register(&ring, &Registration { ring_entries: 32768, group: 2, ..some_memory() }), 0);
}

#[case]
fn register_of_bad_memory(cx: &Context) {
    let (ring, good) = (cx.ring(4), some_memory());
    assert_eq!(register(&ring, &Registration { ring_addr: 0, ..good }), -(EFAULT as isize));
    assert_eq!(register(&ring, &Registration { ring_addr: good.ring_addr + 16, ..good }), -(EINVAL as isize));
    assert_eq!(register(&ring, &Registration { ring_addr: bad_address(), ..good }), -(EFAULT as isize));
}

#[case]
fn register_of_read_only_memory_is_efault(cx: &Context) {
    let (ring, memory) = (cx.ring(4), pages(2));
    protect(&memory[4096..], libc::PROT_READ);
    let good = Registration { ring_addr: address(memory), ring_entries: 256, group: 1, ..Registration::default() };
    assert_eq!(register(&ring, &Registration { ring_entries: 512, ..good }), -(EFAULT as isize));
    assert_eq!(register(&ring, &good), 0, "the first page alone");
}

#[case]
fn register_of_unknown_flags_is_einval(cx: &Context) {
    assert_eq!(register(&cx.ring(4), &Registration { flags: 4, ..some_memory() }), -(EINVAL as isize));
}

#[case]
fn register_with_padding_is_einval(cx: &Context) {
    assert_eq!(register(&cx.ring(4), &Registration { resv: [0, 0, 0, 0, 1], ..some_memory() }), -(EINVAL as isize));
}

#[case]
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

#[case]
fn unregister_of_nothing_is_enoent(cx: &Context) {
    assert_eq!(unregister(&cx.ring(4), 1), -(ENOENT as isize));
}

#[case]
fn unregister_with_flags_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    let _buffers = BufferRing::new(&ring, 1, 8, 64, 0);
    let with_flags = Registration { group: 1, flags: 1, ..Registration::default() };
    let at = &raw const with_flags as usize;
    assert_eq!(ring.register(IORING_UNREGISTER_PBUF_RING, at, 1), -(EINVAL as isize));
}

#[case(since = "6.8")]
fn status_tells_the_head(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 8, 64);
    assert_eq!(buffers.head(&ring), 0);
    put(&a, b"x");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (1, Some(0)));
    assert_eq!(buffers.head(&ring), 1);
}

#[case]
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

#[case(since = "6.4")]
fn mapped_ring_is_used(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    register_mapped(&ring, 3);
    let address = map(&ring, 3, 4096);
    assert!(address > 0, "mmap answered {address}");
    let mut buffers = BufferRing::at(address as usize, 3, 8, 64);
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 3, 0)), (-libc::ENOBUFS, None));
    buffers.give(5);
    put(&a, b"mapped");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 3, 0)), (6, Some(5)));
    assert_eq!(buffers.content(5, 6), b"mapped");
}

#[case(since = "6.4")]
fn mapped_ring_of_a_high_group_cannot_be_mapped(cx: &Context) {
    let ring = cx.ring(4);
    register_mapped(&ring, 0x7ff);
    register_mapped(&ring, 0x800);
    assert!(map(&ring, 0x7ff, 4096) > 0);
    assert_eq!(map(&ring, 0x800, 4096), no_mapping(cx));
}

/// Returns the errno of mmap(2) for a group that has nothing to map.
fn no_mapping(cx: &Context) -> isize {
    -(if cx.answers_since("7.3") { EINVAL } else { ENOMEM } as isize)
}

#[case]
fn mapping_of_an_unregistered_group_fails(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(map(&ring, 3, 4096), no_mapping(cx));
    let _of_program = BufferRing::new(&ring, 3, 8, 64, 0);
    assert_eq!(map(&ring, 3, 4096), no_mapping(cx));
}

#[case(since = "6.4")]
fn mapped_ring_ignores_the_address(cx: &Context) {
    let registration = Registration { flags: IOU_PBUF_RING_MMAP, ring_addr: 7, ..some_memory() };
    assert_eq!(register(&cx.ring(4), &registration), 0);
}

#[case(since = "6.4")]
fn mapping_outlives_its_group(cx: &Context) {
    let ring = cx.ring(4);
    register_mapped(&ring, 3);
    let mut buffers = BufferRing::at(map(&ring, 3, 4096) as usize, 3, 8, 64);
    assert_eq!(unregister(&ring, 3), 0);
    buffers.give(1);
    assert_eq!(buffers.entry(0).1, 64);
    assert_eq!(map(&ring, 3, 4096), no_mapping(cx));
}

#[case]
fn unregistered_while_a_read_waits(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 8, 64);
    ring.go(read_select(fd(&reader), 1, 0));
    ring.expect_quiet();
    assert_eq!(unregister(&ring, 1), 0);
    writer.write_all(b"later").expect("write");
    assert_eq!(last_buffer(&ring.wait()), (-libc::ENOBUFS, None));
}

#[case(since = "6.8")]
fn tail_beyond_the_entries_is_followed(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 2, 64);
    buffers.set_tail(100);
    for expected in [0, 1, 0] {
        put(&a, b"x");
        assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (1, Some(expected)));
    }
    assert_eq!(buffers.head(&ring), 3);
}

#[case]
fn entries_wrap_around(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut buffers = BufferRing::filled(&ring, 1, 4, 64);
    for round in 0..10 {
        put(&a, &[round as u8; 8]);
        assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (8, Some(round % 4)));
        assert_eq!(buffers.content(round % 4, 8), [round as u8; 8]);
        buffers.give(round % 4);
    }
}

/// A group of IOU_PBUF_RING_INC.
fn incremental(ring: &Ring, entries: u16, bytes: usize) -> BufferRing {
    let mut buffers = BufferRing::new(ring, 1, entries, bytes, IOU_PBUF_RING_INC);
    (0..entries).for_each(|id| buffers.give(id));
    buffers
}

/// Returns a CQE's result, its buffer, and whether that buffer stays in use.
fn part(ring: &mut Ring, sqe: Sqe) -> (i32, Option<u16>, bool) {
    ring.go(sqe);
    let cqe = ring.wait();
    (cqe.res, buffer_of(&cqe), cqe.flags & IORING_CQE_F_BUF_MORE != 0)
}

#[case(since = "6.12")]
fn incremental_reads_share_a_buffer(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let buffers = incremental(&ring, 2, 16);
    writer.write_all(b"abcdef").expect("write");
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 4)), (4, Some(0), true));
    assert_eq!(buffers.entry(0), (buffers.start(0) + 4, 12));
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 0)), (2, Some(0), true));
    assert_eq!((buffers.content(0, 6), buffers.head(&ring)), (&b"abcdef"[..], 0));
}

#[case(since = "6.12")]
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

#[case(since = "6.12")]
fn incremental_read_of_a_file_takes_what_was_asked(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let buffers = incremental(&ring, 2, 16);
    assert_eq!(part(&mut ring, read_select(fd(&file), 1, 8)), (3, Some(0), true));
    assert_eq!(buffers.entry(0), (buffers.start(0) + 8, 8));
    assert_eq!(part(&mut ring, read_select(fd(&file), 1, 0)), (3, Some(0), false));
    assert_eq!(buffers.head(&ring), 1);
}

#[case(since = "6.12")]
fn incremental_recv_tells_when_the_buffer_is_used_up(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = incremental(&ring, 2, 4);
    put(&a, b"abcdef");
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (4, Some(0), false));
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (2, Some(1), true));
    assert_eq!((buffers.content(1, 2), buffers.head(&ring)), (&b"ef"[..], 1));
}

#[case(since = "6.12")]
fn incremental_end_of_data(cx: &Context) {
    let ((reader, writer), (a, b), mut ring) = (pipe(), pair(), cx.ring(4));
    let buffers = incremental(&ring, 2, 4);
    drop((writer, a));
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (0, None, false));
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 0)), (0, Some(0), true));
    assert_eq!(buffers.head(&ring), 0);
}

/// An incremental group whose buffers keep at least `min_left` bytes.
fn at_least(ring: &Ring, min_left: u32) -> BufferRing {
    let address = address(pages(1));
    let registration = Registration {
        ring_addr: address,
        ring_entries: 4,
        group: 1,
        flags: IOU_PBUF_RING_INC,
        min_left,
        ..Registration::default()
    };
    assert_eq!(register(ring, &registration), 0);
    let mut buffers = BufferRing::at(address as usize, 1, 4, 100);
    (0..4).for_each(|id| buffers.give(id));
    buffers
}

#[case(since = "7.1")]
fn incremental_buffer_with_too_little_left_is_used_up(cx: &Context) {
    for (bytes, stays) in [(67, true), (68, true), (69, false), (100, false)] {
        let ((a, b), mut ring) = (pair(), cx.ring(4));
        let buffers = at_least(&ring, 32);
        put(&a, &vec![7; bytes]);
        assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (bytes as i32, Some(0), stays));
        let left =
            if stays { (buffers.start(0) + bytes as u64, 100 - bytes as u32) } else { (buffers.start(0), 0) };
        assert_eq!((buffers.entry(0), buffers.head(&ring)), (left, u32::from(!stays)));
    }
}

#[case(since = "7.1")]
fn incremental_buffer_that_is_smaller_than_what_must_be_left(cx: &Context) {
    let ((a, b), (reader, mut writer), mut ring) = (pair(), pipe(), cx.ring(4));
    let buffers = at_least(&ring, 200);
    put(&a, b"abc");
    assert_eq!(part(&mut ring, recv_select(fd(&b), 1, 0)), (3, Some(0), false));
    writer.write_all(b"ab").expect("write");
    assert_eq!(part(&mut ring, read_select(fd(&reader), 1, 0)), (2, Some(1), false));
    assert_eq!(buffers.head(&ring), 2);
}

#[case(since = "7.1")]
fn incremental_bundle_with_too_little_left(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = at_least(&ring, 32);
    put(&a, &[7; 170]);
    let bundle = recv_select(fd(&b), 1, 0).ioprio(IORING_RECVSEND_BUNDLE as u16);
    assert_eq!(part(&mut ring, bundle), (170, Some(0), false));
    assert_eq!((buffers.entry(1), buffers.head(&ring)), ((buffers.start(1), 0), 2));
}

#[case(since = "7.1")]
fn least_left_is_for_incremental_groups(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(register(&ring, &Registration { min_left: 1, ..some_memory() }), -(EINVAL as isize));
    let incremental = Registration { flags: IOU_PBUF_RING_INC, ..some_memory() };
    let padded = Registration { resv: [1, 0, 0, 0, 0], ..incremental };
    assert_eq!(register(&ring, &padded), -(EINVAL as isize));
    for (group, min_left) in [(1, 1), (2, 1 << 31), (3, u32::MAX)] {
        assert_eq!(register(&ring, &Registration { group, min_left, ..incremental }), 0);
    }
}

/// A datagram of 100 bytes for a buffer of 60, received with MSG_TRUNC, which counts all of it.
fn cut_off(cx: &Context, left: (u64, u32), stays: bool) {
    let [a, b] = [0; 2].map(|_| std::net::UdpSocket::bind("127.0.0.1:0").expect("bind"));
    let mut ring = cx.ring(4);
    let mut buffers = BufferRing::new(&ring, 1, 2, 60, IOU_PBUF_RING_INC);
    (0..2).for_each(|id| buffers.give(id));
    a.send_to(&[7; 100], b.local_addr().expect("address")).expect("send");
    let receive = recv_select(fd(&b), 1, 0).op_flags(libc::MSG_TRUNC as u32);
    assert_eq!(part(&mut ring, receive), (100, Some(0), stays));
    assert_eq!(buffers.entry(1), (buffers.start(1) + left.0, left.1));
    assert_eq!(buffers.head(&ring), 1);
}

#[case(since = "6.12", until = "7.3")]
fn incremental_recv_that_is_cut_off_takes_from_the_next_buffer(cx: &Context) {
    cut_off(cx, (40, 20), true);
}

#[case(since = "6.12", from = "7.3")]
fn incremental_recv_that_is_cut_off_takes_one_buffer(cx: &Context) {
    cut_off(cx, (0, 60), false);
}

#[case]
fn two_groups_are_apart(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let mut first = BufferRing::new(&ring, 0, 8, 64, 0);
    let mut second = BufferRing::new(&ring, u16::MAX, 8, 64, 0);
    first.give(1);
    second.give(2);
    put(&a, b"ab");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), u16::MAX, 1)), (1, Some(2)));
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), u16::MAX, 1)), (-libc::ENOBUFS, None));
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 0, 1)), (1, Some(1)));
}

#[case]
fn fork_keeps_the_group(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    let buffers = BufferRing::filled(&ring, 1, 4, 64);
    assert_eq!(in_child(|| ()), 0);
    put(&a, b"abc");
    assert_eq!(run_taking(&mut ring, recv_select(fd(&b), 1, 0)), (3, Some(0)));
    assert_eq!(buffers.content(0, 3), b"abc");
}
