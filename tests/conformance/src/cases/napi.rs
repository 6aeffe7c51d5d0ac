//! IORING_REGISTER_NAPI: the settings for busy polling can be read back, whether or not there is a queue to poll.

use super::prelude::*;

topic!(since: "6.9", source: "io_uring_register_napi(3), io_uring/napi.c");

/// `struct io_uring_napi`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Napi {
    timeout: u32,
    prefer: u8,
    operation: u8,
    pad: [u8; 2],
    parameter: u32,
    resv: u32,
}

const INACTIVE: Napi = Napi { timeout: 0, prefer: 0, operation: 0, pad: [0; 2], parameter: 255, resv: 0 };

fn call(ring: &Ring, opcode: u32, mut napi: Napi) -> (i32, Napi) {
    let answer = ring.register(opcode, &raw mut napi as usize, 1) as i32;
    (answer, napi)
}

#[case(since = "6.13")]
fn settings_are_returned(cx: &Context) {
    let ring = cx.ring(4);
    let settings = Napi { timeout: 60, prefer: 1, ..Napi::default() };
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, settings), (0, INACTIVE));
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, Napi { parameter: 1, ..settings }), (0, settings));
}

#[case(since = "6.13")]
fn unregister_tells_and_resets(cx: &Context) {
    let ring = cx.ring(4);
    let settings = Napi { timeout: 60, prefer: 1, ..Napi::default() };
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, settings).0, 0);
    assert_eq!(call(&ring, IORING_UNREGISTER_NAPI, Napi::default()), (0, settings));
    assert_eq!(call(&ring, IORING_UNREGISTER_NAPI, INACTIVE), (0, Napi::default()), "tracking is not told");
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, settings), (0, INACTIVE));
    assert_eq!(ring.register(IORING_UNREGISTER_NAPI, 0, 1), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_NAPI, 0, 0) as i32, -EINVAL);
}

#[case(since = "6.13")]
fn unknown_values_are_einval(cx: &Context) {
    let ring = cx.ring(4);
    for wrong in [
        Napi { operation: 3, ..Napi::default() },
        Napi { parameter: 7, ..Napi::default() },
        Napi { pad: [0, 1], ..Napi::default() },
        Napi { resv: 1, ..Napi::default() },
    ] {
        assert_eq!(call(&ring, IORING_REGISTER_NAPI, wrong).0, -EINVAL, "{wrong:?}");
    }
    assert_eq!(ring.register(IORING_REGISTER_NAPI, 0, 1) as i32, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_NAPI, bad_address() as usize, 1) as i32, -EFAULT);
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, Napi::default()), (0, INACTIVE), "nothing was set");
}

#[case(since = "6.13")]
fn ids_that_no_queue_has_are_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, Napi { parameter: 1, ..Napi::default() }).0, 0);
    for operation in [1, 2] {
        let wrong = Napi { operation, parameter: 1, ..Napi::default() };
        assert_eq!(call(&ring, IORING_REGISTER_NAPI, wrong).0, -EINVAL);
    }
}

#[case(since = "6.13")]
fn static_ids(cx: &Context) {
    let ring = cx.ring(4);
    let of = |operation, parameter| {
        call(&ring, IORING_REGISTER_NAPI, Napi { operation, parameter, ..Napi::default() }).0
    };
    let (add, delete) = (IO_URING_NAPI_STATIC_ADD_ID, IO_URING_NAPI_STATIC_DEL_ID);
    assert_eq!(of(add, 1 << 20), -EINVAL, "only with static tracking");
    assert_eq!(of(IO_URING_NAPI_REGISTER_OP, IO_URING_NAPI_TRACKING_STATIC), 0);
    assert_eq!(of(delete, 1 << 20), -libc::ENOENT);
    assert_eq!([of(add, 1 << 20), of(add, 1 << 20)], [0, -EEXIST]);
    assert_eq!([of(delete, 1 << 20), of(delete, 1 << 20)], [0, -libc::ENOENT]);
    assert_eq!([of(add, 1 << 20), of(add, 1 << 21)], [0, 0]);
    assert_eq!(of(IO_URING_NAPI_REGISTER_OP, IO_URING_NAPI_TRACKING_STATIC), 0);
    assert_eq!([of(delete, 1 << 20), of(delete, 1 << 21)], [-libc::ENOENT; 2], "new settings forget the queues");
}

#[case(since = "6.13")]
fn loopback_is_served_as_before(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, Napi { timeout: 50, ..Napi::default() }).0, 0);
    let (mut client, server) = tcp_pair();
    let mut byte = [0; 1];
    ring.go(sqe::recv(fd(&server), &mut byte, 0));
    client.write_all(b"x").expect("write");
    assert_eq!(ring.wait().res, 1);
}

#[case(since = "6.9")]
fn a_ring_of_polled_devices_has_none(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
    assert_eq!(call(&ring, IORING_REGISTER_NAPI, Napi { timeout: 60, ..Napi::default() }).0, -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_NAPI, bad_address() as usize, 1) as i32, -EINVAL);
}
