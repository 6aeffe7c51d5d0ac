//! IORING_REGISTER_CLONE_BUFFERS: one ring takes over another's registered buffers.

use super::prelude::*;

topic!(since: "6.12", source: "io_uring_clone_buffers(3), io_uring/rsrc.c");

/// `struct io_uring_clone_buffers`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Clone {
    source: i32,
    flags: u32,
    from: u32,
    to: u32,
    count: u32,
    pad: [u32; 3],
}

fn clone(ring: &Ring, clone: Clone) -> i32 {
    ring.register(IORING_REGISTER_CLONE_BUFFERS, &raw const clone as usize, 1) as i32
}

/// A ring with two buffers.
fn source(cx: &Context, bytes: &mut [[u8; 8]; 2]) -> Ring {
    let ring = cx.ring(4);
    let [a, b] = bytes;
    let vectors = [iovec_mut(a), iovec_mut(b)];
    assert_eq!(ring.register(IORING_REGISTER_BUFFERS, vectors.as_ptr() as usize, 2), 0);
    ring
}

/// True if `ring` has the buffer `bytes` in `slot`.
fn has(ring: &mut Ring, slot: u16, bytes: &[u8]) -> bool {
    let (_reader, writer) = pipe();
    let write = prep(Opcode::WriteFixed, fd(&writer), address(bytes), bytes.len() as u32, 0).buffer(slot);
    match ring.run(write) {
        8 => true,
        error => {
            assert_eq!(error, -EFAULT);
            false
        }
    }
}

#[case]
fn all_of_another_ring(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (source, mut ring) = (source(cx, &mut bytes), cx.ring(4));
    assert_eq!(clone(&ring, Clone { source: source.fd, ..Clone::default() }), 0);
    assert_eq!([has(&mut ring, 0, &bytes[0]), has(&mut ring, 1, &bytes[1])], [true; 2]);
}

#[case]
fn of_none_is_enxio(cx: &Context) {
    let (source, ring) = (cx.ring(4), cx.ring(4));
    assert_eq!(clone(&ring, Clone { source: source.fd, ..Clone::default() }), -ENXIO);
}

#[case]
fn onto_registered_ones_is_ebusy(cx: &Context) {
    let (mut bytes, mut others) = ([[1; 8]; 2], [[2; 8]; 2]);
    let (first, second) = (source(cx, &mut bytes), source(cx, &mut others));
    assert_eq!(clone(&second, Clone { source: first.fd, ..Clone::default() }), -EBUSY);
}

#[case(since = "6.13")]
fn replacing(cx: &Context) {
    let (mut bytes, mut others) = ([[1; 8]; 2], [[2; 8]; 2]);
    let (first, mut second) = (source(cx, &mut bytes), source(cx, &mut others));
    let flags = IORING_REGISTER_DST_REPLACE;
    assert_eq!(clone(&second, Clone { source: first.fd, flags, to: 1, count: 1, ..Clone::default() }), 0);
    assert_eq!([has(&mut second, 0, &others[0]), has(&mut second, 1, &bytes[0])], [true; 2]);
    assert_eq!(clone(&second, Clone { source: first.fd, flags, ..Clone::default() }), 0);
    assert_eq!([has(&mut second, 0, &bytes[0]), has(&mut second, 1, &bytes[1])], [true; 2]);
}

#[case(since = "6.13")]
fn tags_are_posted_from_the_last_slot(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (first, mut ring) = (source(cx, &mut bytes), cx.ring(8));
    let [a, b] = &mut bytes;
    let (vectors, tags) = ([iovec_mut(a), iovec_mut(b)], [7u64, 8]);
    // struct io_uring_rsrc_register: count, flags, padding, data, tags.
    let resources = [2, 0, vectors.as_ptr() as u64, address(&tags)];
    assert_eq!(ring.register(IORING_REGISTER_BUFFERS2, address(&resources) as usize, 32), 0);
    let flags = IORING_REGISTER_DST_REPLACE;
    assert_eq!(clone(&ring, Clone { source: first.fd, flags, ..Clone::default() }), 0);
    assert_eq!(ring.wait_ordered(2), [(8, 0), (7, 0)]);
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    assert_eq!(ring.register(IORING_REGISTER_BUFFERS2, address(&resources) as usize, 32), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    assert_eq!(ring.wait_ordered(2), [(8, 0), (7, 0)]);
}

#[case]
fn a_part(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (source, mut ring) = (source(cx, &mut bytes), cx.ring(4));
    assert_eq!(clone(&ring, Clone { source: source.fd, from: 1, to: 3, count: 1, ..Clone::default() }), 0);
    assert_eq!([has(&mut ring, 0, &bytes[1]), has(&mut ring, 3, &bytes[1])], [false, true]);
}

#[case]
fn beyond_the_table(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (source, ring) = (source(cx, &mut bytes), cx.ring(4));
    let all = Clone { source: source.fd, ..Clone::default() };
    assert_eq!(clone(&ring, Clone { count: 3, ..all }), -EINVAL);
    assert_eq!(clone(&ring, Clone { from: 2, count: 1, ..all }), -libc::EOVERFLOW);
    assert_eq!(clone(&ring, Clone { from: 1, ..all }), -EINVAL, "an offset needs a count");
    assert_eq!(clone(&ring, Clone { to: 1 << 14, count: 1, ..all }), -EINVAL);
    assert_eq!(clone(&ring, Clone { to: u32::MAX, count: 1, ..all }), -libc::EOVERFLOW);
}

#[case(since = "6.13")]
fn within_one_ring(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let mut ring = source(cx, &mut bytes);
    let (source, flags) = (ring.fd, IORING_REGISTER_DST_REPLACE);
    assert_eq!(clone(&ring, Clone { source, flags, to: 2, count: 2, ..Clone::default() }), 0);
    assert_eq!([has(&mut ring, 0, &bytes[0]), has(&mut ring, 3, &bytes[1])], [true; 2]);
}

#[case]
fn of_a_registered_ring(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (first, mut ring) = (source(cx, &mut bytes), cx.ring(4));
    // struct io_uring_rsrc_update: offset, resv, data.
    let slot = [15, first.fd as u64];
    assert_eq!(first.register(IORING_REGISTER_RING_FDS, address(&slot) as usize, 1), 1);
    let flags = IORING_REGISTER_SRC_REGISTERED;
    assert_eq!(clone(&ring, Clone { source: 15, flags, ..Clone::default() }), 0);
    assert_eq!([has(&mut ring, 0, &bytes[0]), has(&mut ring, 1, &bytes[1])], [true; 2]);
    let other = cx.ring(4);
    assert_eq!(clone(&other, Clone { source: 14, flags, ..Clone::default() }), -EBADF);
    assert_eq!(
        clone(&other, Clone { source: 15, ..Clone::default() }),
        -EBADF,
        "without the flag it is a descriptor"
    );
}

#[case]
fn outlives_the_source(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (source, mut ring) = (source(cx, &mut bytes), cx.ring(4));
    assert_eq!(clone(&ring, Clone { source: source.fd, ..Clone::default() }), 0);
    assert_eq!(source.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    drop(source);
    assert!(has(&mut ring, 0, &bytes[0]));
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
}

#[case]
fn of_another_file_is_eopnotsupp(cx: &Context) {
    let (ring, (reader, _writer)) = (cx.ring(4), pipe());
    assert_eq!(clone(&ring, Clone { source: fd(&reader), ..Clone::default() }), -EOPNOTSUPP);
    assert_eq!(clone(&ring, Clone { source: 9999, ..Clone::default() }), -EBADF);
}

#[case]
fn reserved_is_einval(cx: &Context) {
    let mut bytes = [[1; 8]; 2];
    let (source, ring) = (source(cx, &mut bytes), cx.ring(4));
    let all = Clone { source: source.fd, ..Clone::default() };
    assert_eq!(clone(&ring, Clone { pad: [0, 0, 1], ..all }), -EINVAL);
    assert_eq!(clone(&ring, Clone { flags: 4, ..all }), -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_CLONE_BUFFERS, &raw const all as usize, 0) as i32, -EINVAL);
}
