//! IORING_REGISTER_RESTRICTIONS: a disabled ring gets restrictions, which count once it is enabled.

use super::prelude::*;

topic!(since: "5.10", source: "io_uring_register(2), io_uring/register.c");

const REGISTER_OP: u16 = 0;
const SQE_OP: u16 = 1;
const SQE_FLAGS_ALLOWED: u16 = 2;
const SQE_FLAGS_REQUIRED: u16 = 3;

/// `struct io_uring_restriction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Restriction {
    opcode: u16,
    value: u8,
    resv: u8,
    resv2: [u32; 3],
}

fn rule(opcode: u16, value: u8) -> Restriction {
    Restriction { opcode, value, ..Restriction::default() }
}

fn operation(opcode: Opcode) -> Restriction {
    rule(SQE_OP, opcode as u8)
}

fn restrict(ring: &Ring, rules: &[Restriction]) -> i32 {
    ring.register(IORING_REGISTER_RESTRICTIONS, rules.as_ptr() as usize, rules.len() as u32) as i32
}

fn enable(ring: &Ring) -> i32 {
    ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0) as i32
}

fn disabled(cx: &Context) -> Ring {
    cx.ring_with(8, cx.flag_set.flags | IORING_SETUP_R_DISABLED)
}

fn restricted(cx: &Context, rules: &[Restriction]) -> Ring {
    let ring = disabled(cx);
    assert_eq!((restrict(&ring, rules), enable(&ring)), (0, 0));
    ring
}

#[case]
fn of_an_enabled_ring_is_ebadfd(cx: &Context) {
    assert_eq!(restrict(&cx.ring(4), &[operation(Opcode::Nop)]), -EBADFD);
}

#[case]
fn operations_that_are_not_listed_are_eacces(cx: &Context) {
    let mut ring = restricted(cx, &[operation(Opcode::Nop), operation(Opcode::Timeout)]);
    assert_eq!(ring.run(sqe::nop()), 0);
    let (reader, _writer) = pipe();
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut [0; 1], 0)), -EACCES);
    assert_eq!(ring.run(Sqe { opcode: 255, ..sqe::nop() }), -EINVAL, "one that nobody knows");
    let soon = ms(1);
    assert_eq!(ring.run(sqe::timeout(&soon, 0, 0)), -ETIME);
}

#[case]
fn nothing_listed_refuses_everything(cx: &Context) {
    let mut ring = disabled(cx);
    let none = Restriction::default();
    let answer = ring.register(IORING_REGISTER_RESTRICTIONS, &raw const none as usize, 0) as i32;
    assert_eq!((answer, enable(&ring)), (0, 0));
    assert_eq!(ring.run(sqe::nop()), -EACCES);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EACCES);
}

#[case]
fn flags_that_are_not_allowed_are_eacces(cx: &Context) {
    let mut ring = restricted(cx, &[operation(Opcode::Nop), rule(SQE_FLAGS_ALLOWED, IOSQE_ASYNC)]);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_ASYNC)), 0);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_IO_LINK)), -EACCES);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_ASYNC | IOSQE_IO_HARDLINK)), -EACCES);
    assert_eq!(ring.run(sqe::nop().with(0x80)), -EINVAL, "a flag that nobody knows");
}

#[case]
fn required_flags_are_allowed_and_demanded(cx: &Context) {
    let mut ring = restricted(cx, &[operation(Opcode::Nop), rule(SQE_FLAGS_REQUIRED, IOSQE_ASYNC)]);
    assert_eq!(ring.run(sqe::nop()), -EACCES);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_ASYNC)), 0);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_ASYNC | IOSQE_IO_DRAIN)), -EACCES);
}

#[case]
fn register_calls_that_are_not_listed_are_eacces(cx: &Context) {
    let listed = IORING_UNREGISTER_BUFFERS as u8;
    let ring = restricted(cx, &[rule(REGISTER_OP, listed), operation(Opcode::Nop)]);
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0) as i32, -ENXIO, "the call's own answer");
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EACCES);
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0) as i32, -EACCES);
    assert_eq!(ring.register(200, 0, 0) as i32, -EINVAL, "a number that nobody knows");
}

#[case]
fn without_restrictions_everything_is_allowed(cx: &Context) {
    let mut ring = disabled(cx);
    assert_eq!(enable(&ring), 0);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -ENXIO);
}

#[case]
fn hold_only_once_enabled(cx: &Context) {
    let ring = disabled(cx);
    assert_eq!(restrict(&ring, &[operation(Opcode::Nop), rule(REGISTER_OP, 0)]), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -ENXIO, "a disabled ring is set up");
    assert_eq!(enable(&ring), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EACCES);
}

#[case(until = "7.3")]
fn one_kind_of_rule_restricts_all(cx: &Context) {
    let mut ring = restricted(cx, &[rule(REGISTER_OP, IORING_UNREGISTER_BUFFERS as u8)]);
    assert_eq!(ring.run(sqe::nop()), -EACCES);
    let ring = restricted(cx, &[operation(Opcode::Nop)]);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EACCES);
    assert_eq!((restrict(&ring, &[operation(Opcode::Nop)]), enable(&ring)), (-EACCES, -EACCES));
}

#[case(from = "7.3")]
fn each_kind_of_rule_restricts_its_own(cx: &Context) {
    let mut ring = restricted(cx, &[rule(REGISTER_OP, IORING_UNREGISTER_BUFFERS as u8)]);
    assert_eq!(ring.run(sqe::nop()), 0);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_IO_DRAIN)), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -EACCES);
    let mut ring = restricted(cx, &[operation(Opcode::Nop)]);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -ENXIO);
    assert_eq!((restrict(&ring, &[operation(Opcode::Nop)]), enable(&ring)), (-EBADFD, -EBADFD));
    let timeout = ms(1);
    assert_eq!(ring.run(sqe::timeout(&timeout, 0, 0)), -EACCES);
    // Restrictions of SQE flags concern SQEs: if only they are listed, no opcode is allowed.
    let mut ring = restricted(cx, &[rule(SQE_FLAGS_ALLOWED, IOSQE_ASYNC)]);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -ENXIO);
    assert_eq!(ring.run(sqe::nop()), -EACCES);
}

#[case]
fn twice_is_ebusy(cx: &Context) {
    let ring = disabled(cx);
    let rules = [operation(Opcode::Nop)];
    assert_eq!((restrict(&ring, &rules), restrict(&ring, &rules)), (0, -EBUSY));
}

#[case]
fn failed_registration_leaves_none(cx: &Context) {
    let mut ring = disabled(cx);
    assert_eq!(restrict(&ring, &[operation(Opcode::Nop), rule(9, 0)]), -EINVAL);
    assert_eq!(enable(&ring), 0);
    let (mut reader, writer) = pipe();
    assert_eq!(ring.run(sqe::write(fd(&writer), b"x", 0)), 1, "nothing is restricted");
    reader.read_exact(&mut [0; 1]).expect("read");
}

#[case]
fn numbers_out_of_range_are_einval(cx: &Context) {
    let ring = disabled(cx);
    for wrong in [rule(SQE_OP, 200), rule(REGISTER_OP, 200), rule(4, 0)] {
        assert_eq!(restrict(&ring, &[wrong]), -EINVAL);
    }
    let reserved = Restriction { resv: 1, resv2: [1; 3], ..operation(Opcode::Nop) };
    assert_eq!(restrict(&ring, &[reserved]), 0, "the reserved fields are not looked at");
}

#[case]
fn too_many_are_einval(cx: &Context) {
    let ring = disabled(cx);
    let rules = vec![operation(Opcode::Nop); 1024];
    assert_eq!(restrict(&ring, &rules), -EINVAL);
    assert_eq!(ring.register(IORING_REGISTER_RESTRICTIONS, 0, 1) as i32, -EINVAL);
}

#[case]
fn bad_address_is_efault(cx: &Context) {
    let ring = disabled(cx);
    assert_eq!(ring.register(IORING_REGISTER_RESTRICTIONS, bad_address() as usize, 1) as i32, -EFAULT);
}

#[case]
fn a_refused_request_breaks_its_chain(cx: &Context) {
    let mut ring = restricted(cx, &[operation(Opcode::Nop), rule(SQE_FLAGS_ALLOWED, IOSQE_IO_LINK)]);
    let (reader, _writer) = pipe();
    ring.go_all(&[
        sqe::nop().with(IOSQE_IO_LINK).data(1),
        sqe::read(fd(&reader), &mut [0; 1], 0).with(IOSQE_IO_LINK).data(2),
        sqe::nop().data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, -ECANCELED), (2, -EACCES), (3, -ECANCELED)]);
}

#[case(own_flags, since = "6.0")]
fn hold_for_a_single_issuer(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER);
    assert_eq!((restrict(&ring, &[operation(Opcode::Timeout)]), enable(&ring)), (0, 0));
    let mut ring = ring;
    assert_eq!(ring.run(sqe::nop()), -EACCES);
}
