//! IORING_REGISTER_QUERY: queries of the interface, with a ring or without one.

use super::prelude::*;
use anyring_abi::since::since;

topic!(since: "6.18", source: "io_uring/query.c");

/// `struct io_uring_query_hdr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Entry {
    next: u64,
    data: u64,
    question: u32,
    size: u32,
    result: i32,
    resv: [u32; 3],
}

/// `struct io_uring_query_opcode`.
type Opcodes = [u64; 6];

fn ask(cx: &Context, fd: i32, entry: &mut Entry) -> i32 {
    cx.door.register(fd, IORING_REGISTER_QUERY, &raw mut *entry as usize, 0) as i32
}

fn entry(answer: &mut Opcodes, size: u32) -> Entry {
    Entry { data: address_mut(answer), size, ..Entry::default() }
}

fn whole(cx: &Context, fd: i32, features: u32) {
    let mut answer = [0; 6];
    let mut entry = entry(&mut answer, 48);
    assert_eq!((ask(cx, fd, &mut entry), entry.result, entry.size), (0, 0, 48));
    let (requests, calls) = (answer[0] as u32, (answer[0] >> 32) as u32);
    assert!(requests > Opcode::Pipe as u32 && calls > IORING_REGISTER_QUERY, "{requests}, {calls}");
    assert_eq!(answer[1] & u64::from(features), u64::from(features), "the features of setup");
    assert_ne!(answer[2] & u64::from(IORING_SETUP_DEFER_TASKRUN), 0);
    assert_ne!(answer[3] & u64::from(IORING_ENTER_GETEVENTS), 0);
    assert_ne!(answer[4] & u64::from(IOSQE_IO_LINK), 0);
    assert_ne!(answer[5], 0, "this question is known");
}

/// Compares the lists of docs/conformance.md with the kernel's own: those of its release, or of 7.3.
#[case(own_flags)]
fn names_all_that_the_header_has(cx: &Context) {
    use anyring_abi::interface::{Name, ENTER_FLAGS, FEATURES, OPCODES, REGISTER_CALLS, SETUP_FLAGS, SQE_FLAGS};
    let mut answer = [0; 6];
    assert_eq!(ask(cx, -1, &mut entry(&mut answer, 48)), 0);
    let expected = |last: (u16, u16)| {
        let of = |names: &'static [Name]| names.iter().filter(move |name| since(name) <= last);
        let bits = |names| of(names).fold(0, |bits, name| bits | name.value);
        let counts = [OPCODES, REGISTER_CALLS].map(|names| of(names).count() as u64);
        let [features, setup, enter, sqe] = [FEATURES, SETUP_FLAGS, ENTER_FLAGS, SQE_FLAGS].map(bits);
        [counts[0] | counts[1] << 32, features, setup, enter, sqe]
    };
    assert!([(6, 18), (7, 3)].map(expected).iter().any(|expected| answer[..5] == *expected), "{answer:x?}");
}

#[case]
fn of_a_ring(cx: &Context) {
    let ring = cx.ring(4);
    whole(cx, ring.fd, ring.params.features);
}

#[case(own_flags)]
fn without_a_ring(cx: &Context) {
    let features = cx.ring_with(4, 0).params.features;
    whole(cx, -1, features);
}

#[case(own_flags)]
fn tells_what_fits(cx: &Context) {
    let mut answer = [0; 6];
    let mut entry = entry(&mut answer, 16);
    assert_eq!((ask(cx, -1, &mut entry), entry.result, entry.size), (0, 0, 16));
    assert!(answer[1] != 0 && answer[2..] == [0; 4], "{answer:?}");
}

#[case(own_flags)]
fn clears_what_is_beyond(cx: &Context) {
    let mut answer = [u64::MAX; 100];
    let mut entry = Entry { data: address_mut(&mut answer), size: 640, ..Entry::default() };
    assert_eq!((ask(cx, -1, &mut entry), entry.result, entry.size), (0, 0, 48));
    assert_eq!((answer[6], answer[79], answer[80]), (0, 0, u64::MAX));
}

#[case(own_flags)]
fn unknown_question_is_eopnotsupp(cx: &Context) {
    let mut answer = [7; 6];
    let mut entry = Entry { question: 200, ..entry(&mut answer, 48) };
    assert_eq!((ask(cx, -1, &mut entry), entry.result, entry.size), (0, -EOPNOTSUPP, 0));
    assert_eq!(answer, [0; 6]);
}

#[case(own_flags)]
fn result_and_reserved_must_be_zero(cx: &Context) {
    let mut answer = [7; 6];
    for wrong in [
        Entry { result: 1, ..entry(&mut answer, 48) },
        Entry { resv: [0, 1, 0], ..entry(&mut answer, 48) },
        entry(&mut answer, 0),
    ] {
        let mut wrong = wrong;
        assert_eq!((ask(cx, -1, &mut wrong), wrong.result, wrong.size), (0, -EINVAL, 0));
    }
}

#[case(own_flags)]
fn list_is_followed(cx: &Context) {
    let (mut first, mut second) = ([0; 6], [0; 6]);
    let mut after = entry(&mut second, 48);
    let mut entry = Entry { question: 99, next: address_mut(&mut after), ..entry(&mut first, 48) };
    assert_eq!(ask(cx, -1, &mut entry), 0);
    // SAFETY: `after` lives, and the call that wrote it has returned.
    let after = unsafe { (&raw const after).read_volatile() };
    assert_eq!((entry.result, after.result, after.size), (-EOPNOTSUPP, 0, 48));
}

#[case(own_flags)]
fn circle_is_erange(cx: &Context) {
    let mut answer = [0; 6];
    let mut entry = entry(&mut answer, 48);
    entry.question = 99;
    entry.next = &raw mut entry as u64;
    assert_eq!(ask(cx, -1, &mut entry), -libc::ERANGE);
}

#[case(own_flags)]
fn bad_addresses_are_efault(cx: &Context) {
    let bad = bad_address();
    assert_eq!(cx.door.register(-1, IORING_REGISTER_QUERY, bad as usize, 0) as i32, -EFAULT);
    let mut entry = Entry { data: bad, size: 48, ..Entry::default() };
    assert_eq!(ask(cx, -1, &mut entry), -EFAULT);
    assert_eq!(cx.door.register(-1, IORING_REGISTER_QUERY, 0, 0), 0, "an empty list");
}

#[case(own_flags)]
fn argument_count_is_einval(cx: &Context) {
    let mut answer = [0; 6];
    let mut entry = entry(&mut answer, 48);
    assert_eq!(cx.door.register(-1, IORING_REGISTER_QUERY, &raw mut entry as usize, 1) as i32, -EINVAL);
}

/// Returns the answer to a question with a buffer of `size` bytes: the result, the size, and the buffer.
fn answer(cx: &Context, question: u32, size: u32) -> (i32, u32, [u64; 7]) {
    let mut bytes = [u64::MAX; 7];
    let mut entry = Entry { data: address_mut(&mut bytes), question, size, ..Entry::default() };
    assert_eq!(ask(cx, -1, &mut entry), 0);
    (entry.result, entry.size, bytes)
}

const REST: u64 = u64::MAX;

#[case(own_flags, since = "6.19")]
fn header_of_the_rings(cx: &Context) {
    let params = cx.ring_with(4, 0).params;
    assert_eq!(params.cq_off.cqes, 64, "the CQEs follow the header");
    assert_eq!(answer(cx, IO_URING_QUERY_SCQ, 16), (0, 16, [64, 64, REST, REST, REST, REST, REST]));
    assert_eq!(answer(cx, IO_URING_QUERY_SCQ, 8), (0, 8, [64, REST, REST, REST, REST, REST, REST]));
    assert_eq!(answer(cx, IO_URING_QUERY_SCQ, 40), (0, 16, [64, 64, 0, 0, 0, REST, REST]));
    assert_eq!(answer(cx, IO_URING_QUERY_SCQ, 0), (-EINVAL, 0, [REST; 7]));
}

#[case(own_flags, since = "7.2")]
fn number_of_questions(cx: &Context) {
    let (result, _, words) = answer(cx, IO_URING_QUERY_OPCODES, 48);
    assert_eq!((result, words[5]), (0, u64::from(IO_URING_QUERY_ZCRX_EVENT) + 1));
    for question in 0..words[5] as u32 {
        let (result, size, _) = answer(cx, question, 56);
        assert!(result == 0 && [48, 40, 16, 48][question as usize] == size, "{question}: {result}, {size}");
    }
    assert_eq!(answer(cx, words[5] as u32, 8), (-EOPNOTSUPP, 0, [0, REST, REST, REST, REST, REST, REST]));
}
