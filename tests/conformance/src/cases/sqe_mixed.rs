//! IORING_SETUP_SQE_MIXED: SQEs of 64 bytes, and of 128 for the opcodes that ask for them.

use super::prelude::*;

topic!(since: "6.19", source: "io_uring_setup(2), io_uring/io_uring.c");

fn mixed(cx: &Context, entries: u32, flags: u32) -> Ring {
    cx.ring_with(entries, IORING_SETUP_SQE_MIXED | flags)
}

fn large(user_data: u64) -> Sqe {
    sqe::op(Opcode::Nop128).data(user_data)
}

/// The second half of a large SQE. It is a NOP if it is taken for an SQE.
fn half() -> Sqe {
    sqe::nop().data(99)
}

fn small(user_data: u64) -> Sqe {
    sqe::nop().data(user_data)
}

/// Places SQEs without telling the kernel.
fn push(ring: &mut Ring, sqes: &[Sqe]) {
    sqes.iter().for_each(|sqe| ring.push(*sqe));
}

/// A ring whose next SQE is in the last place.
fn at_the_end(cx: &Context, flags: u32) -> Ring {
    let mut ring = mixed(cx, 4, flags);
    ring.go_all(&[0; 3].map(small));
    ring.wait_all(3);
    ring
}

#[case(own_flags)]
fn a_large_one_counts_twice(cx: &Context) {
    for flags in [0, IORING_SETUP_NO_SQARRAY, IORING_SETUP_CQE_MIXED] {
        let mut ring = mixed(cx, 8, flags);
        ring.go_all(&[small(1), large(2), half(), small(3)]);
        assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 0), (3, 0)]);
        assert_eq!((ring.sq_head(), ring.peek()), (4, None));
    }
}

#[case(own_flags)]
fn a_ring_of_one_entry_is_eoverflow(cx: &Context) {
    let params = Params { flags: IORING_SETUP_SQE_MIXED, ..Params::default() };
    assert_eq!(Ring::from_params(cx.door, 1, params).err(), Some(-(EOVERFLOW as isize)));
    let both = Params { flags: IORING_SETUP_SQE_MIXED | IORING_SETUP_SQE128, ..Params::default() };
    assert_eq!(Ring::from_params(cx.door, 8, both).err(), Some(-(EINVAL as isize)));
}

#[case(own_flags)]
fn half_of_one_is_einval(cx: &Context) {
    let mut ring = mixed(cx, 8, 0);
    ring.push(large(1));
    assert_eq!(ring.submit(), 1);
    assert_eq!(ring.wait_ordered(1), [(1, -EINVAL)]);
    push(&mut ring, &[large(2), half(), small(3)]);
    ring.publish();
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1, "one SQE, and not two, is to be taken");
    assert_eq!(ring.enter(2, 0, 0, 0, 0), 2);
    assert_eq!(ring.wait_ordered(3), [(2, -EINVAL), (99, 0), (3, 0)]);
}

#[case(own_flags)]
fn one_that_wraps_is_einval(cx: &Context) {
    let mut ring = at_the_end(cx, 0);
    push(&mut ring, &[large(1), small(2)]);
    assert_eq!(ring.submit(), 1);
    assert_eq!(ring.enter(1, 0, 0, 0, 0), 1);
    assert_eq!(ring.wait_ordered(2), [(1, -EINVAL), (2, 0)]);
    let mut ring = at_the_end(cx, IORING_SETUP_SUBMIT_ALL);
    ring.go_all(&[large(1), small(2), small(3)]);
    assert_eq!(ring.wait_ordered(3), [(1, -EINVAL), (2, 0), (3, 0)]);
}

/// The array names the first half of a large SQE. Its second half is the SQE after it, so the last SQE cannot be large.
#[case(own_flags)]
fn one_in_the_last_place_of_the_array_is_einval(cx: &Context) {
    let mut ring = mixed(cx, 4, 0);
    push(&mut ring, &[large(1), half(), small(3)]);
    ring.set_sqe(3, large(1));
    ring.set_sq_array(0, 3);
    assert_eq!(ring.submit(), 1);
    assert_eq!(ring.wait().res, -EINVAL);
    let mut ring = mixed(cx, 4, 0);
    push(&mut ring, &[large(1), half(), small(3)]);
    ring.set_sq_array(1, 77);
    assert_eq!(ring.submit(), 3, "the second one's index is not looked at");
    assert_eq!(ring.wait_ordered(2), [(1, 0), (3, 0)]);
}

#[case(own_flags)]
fn links_go_on_after_it(cx: &Context) {
    let mut ring = mixed(cx, 8, 0);
    ring.go_all(&[large(1).with(IOSQE_IO_LINK), half(), small(2).with(IOSQE_ASYNC)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
    ring.go_all(&[small(1).with(IOSQE_IO_LINK), large(2).with(IOSQE_ASYNC), half()]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
}

#[case(own_flags)]
fn a_refused_one_takes_its_second_half_along(cx: &Context) {
    let mut ring = mixed(cx, 8, IORING_SETUP_SUBMIT_ALL);
    ring.go_all(&[large(1).op_flags(1 << 20), half(), small(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, -EINVAL), (2, 0)]);
}

#[case(own_flags)]
fn the_result_can_be_chosen(cx: &Context) {
    let mut ring = mixed(cx, 8, 0);
    let chosen = Sqe { len: -5i32 as u32, ..large(1) }.op_flags(IORING_NOP_INJECT_RESULT);
    ring.go_all(&[chosen, half()]);
    assert_eq!(ring.wait_ordered(1), [(1, -5)]);
}

#[case(own_flags)]
fn of_rings_of_one_size(cx: &Context) {
    let mut ring = cx.ring_with(4, IORING_SETUP_SQE128);
    ring.go_all(&[large(1), small(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
    let mut ring = cx.ring_with(4, 0);
    push(&mut ring, &[large(1), small(2)]);
    assert_eq!(ring.submit(), 1);
    assert_eq!(ring.wait_ordered(1), [(1, -EINVAL)]);
}

#[case(own_flags)]
fn large_commands(cx: &Context) {
    let ((mut client, server), mut ring) = (tcp_pair(), mixed(cx, 8, 0));
    client.write_all(b"12345").expect("write");
    while readable_bytes(&server) < 5 {}
    let command = prep(Opcode::UringCmd128, fd(&server), 0, 0, SOCKET_URING_OP_SIOCINQ.into());
    ring.go_all(&[command.data(1), half()]);
    assert_eq!(ring.wait_ordered(1), [(1, 5)]);
    let file = file("file", b"x");
    ring.go_all(&[Sqe { fd: fd(&file), ..command }.data(1), half()]);
    assert_eq!(ring.wait_ordered(1), [(1, -EOPNOTSUPP)]);
}

#[case(own_flags)]
fn a_polling_thread_takes_both_halves(cx: &Context) {
    let mut ring = mixed(cx, 8, IORING_SETUP_SQPOLL);
    push(&mut ring, &[small(1), large(2), half(), small(3)]);
    ring.publish();
    assert!(ring.enter(0, 3, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP, 0, 0) >= 0);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 0), (3, 0)]);
}
