//! Zero-copy receive (zcrx): RECV_ZC and IORING_REGISTER_ZCRX_IFQ need a queue of a network card that supports it.
//! Without one they fail, on kernels with the feature and on those built without it.

use super::prelude::*;

topic!(since: "6.15", source: "io_uring/zcrx.c");

#[case]
fn receive_without_a_queue_is_einval(cx: &Context) {
    let ((a, b), mut ring) = (pair(), cx.ring(4));
    put(&b, b"abc");
    for ioprio in [IORING_RECV_MULTISHOT as u16, 0] {
        assert_eq!(ring.run(prep(Opcode::RecvZc, fd(&a), 0, 0, 0).ioprio(ioprio)), -EINVAL);
    }
    assert_eq!(ring.run(sqe::recv(fd(&a), &mut [0; 8], 0)), 3, "the data is left");
}

/// `struct io_uring_zcrx_area_reg`.
#[repr(C)]
#[derive(Default)]
struct Area {
    addr: u64,
    len: u64,
    token: u64,
    flags: u32,
    dmabuf_fd: u32,
    resv: [u64; 2],
}

/// `struct io_uring_zcrx_ifq_reg`: interface, queue, entries, flags; area, region; and the results.
#[repr(C)]
#[derive(Default)]
struct Queue {
    interface: u32,
    queue: u32,
    entries: u32,
    flags: u32,
    area: u64,
    region: u64,
    answers: [u64; 8],
}

/// Returns the result of a registration for the loopback interface with these flags of its area.
fn registered(ring: &Ring, flags: u32) -> i32 {
    let memory = pages(16);
    let area = Area { addr: address(memory), len: 16 * 4096, flags, ..Area::default() };
    // struct io_uring_region_desc, of the program's memory.
    let region = [address(pages(1)), 4096, u64::from(IORING_MEM_REGION_TYPE_USER), 0, 0, 0, 0, 0];
    let queue =
        Queue { interface: 1, entries: 64, area: address(&area), region: address(&region), ..Queue::default() };
    ring.register(IORING_REGISTER_ZCRX_IFQ, &raw const queue as usize, 1) as i32
}

/// EOPNOTSUPP on a kernel built without zcrx. A kernel with zcrx refuses for another reason. A privilege is missing,
/// the ring has the wrong flags, or the loopback interface has no such queue.
fn refused(answer: i32) -> bool {
    [EOPNOTSUPP, libc::EPERM, EINVAL, libc::ENODEV].contains(&-answer)
}

#[case]
fn registration_fails(cx: &Context) {
    let answer = registered(&cx.ring(4), 0);
    assert!(refused(answer), "{answer}");
}

#[case]
fn registration_of_shared_memory_fails(cx: &Context) {
    let answer = registered(&cx.ring(4), IORING_ZCRX_AREA_DMABUF);
    assert!(refused(answer), "{answer}");
}

#[case]
fn registration_without_an_argument_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(ring.register(IORING_REGISTER_ZCRX_IFQ, 0, 1) as i32, -EINVAL);
    let queue = Queue::default();
    assert_eq!(ring.register(IORING_REGISTER_ZCRX_IFQ, &raw const queue as usize, 2) as i32, -EINVAL);
}

#[case(own_flags)]
fn registration_fails_on_a_ring_that_is_made_for_it(cx: &Context) {
    let flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQE32;
    let answer = registered(&cx.ring_with(4, flags), 0);
    assert!(refused(answer), "{answer}");
}

#[case(since = "6.19")]
fn control_of_no_queue_fails(cx: &Context) {
    let (ring, none) = (cx.ring(4), [0u64; 8]);
    assert!(ring.register(IORING_REGISTER_ZCRX_CTRL, address(&none) as usize, 0) < 0);
}
