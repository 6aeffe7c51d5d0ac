//! IORING_REGISTER_BPF_FILTER: classic BPF programs of a ring allow or deny its requests.

use super::prelude::*;
use libc::{
    BPF_ABS, BPF_ADD, BPF_ALU, BPF_AND, BPF_DIV, BPF_H, BPF_IMM, BPF_JEQ, BPF_JMP, BPF_LD, BPF_LDX, BPF_LEN,
    BPF_LSH, BPF_MEM, BPF_MOD, BPF_RET, BPF_ST, BPF_W, BPF_X,
};

topic!(since: "7.0", source: "io_uring/bpf_filter.c, io_uring_register_bpf_filter(3)");

/// `struct io_uring_bpf`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Filter {
    command: u16,
    command_flags: u16,
    resv: u32,
    opcode: u32,
    flags: u32,
    length: u32,
    size: u8,
    resv2: [u8; 3],
    program: u64,
    resv3: [u64; 5],
}

/// Offsets in `struct io_uring_bpf_ctx`.
const HEAD: u32 = 8;
const FIRST: u32 = 16;

/// `struct sock_filter`: code, jumps and a constant.
fn instruction(code: u32, if_true: u8, if_false: u8, k: u32) -> u64 {
    u64::from(code) | u64::from(if_true) << 16 | u64::from(if_false) << 24 | u64::from(k) << 32
}

fn load(offset: u32) -> u64 {
    instruction(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset)
}

fn ret(answer: u32) -> u64 {
    instruction(BPF_RET, 0, 0, answer)
}

/// A program that denies where the masked word at `offset` has this value.
fn denying(offset: u32, mask: u32, value: u32) -> [u64; 5] {
    let and = instruction(BPF_ALU | BPF_AND, 0, 0, mask);
    [load(offset), and, instruction(BPF_JMP | BPF_JEQ, 0, 1, value), ret(0), ret(1)]
}

fn filter(opcode: Opcode, flags: u32, size: u8, program: &[u64]) -> Filter {
    let (length, program) = (program.len() as u32, program.as_ptr() as u64);
    let opcode = opcode as u32;
    let command = IO_URING_BPF_CMD_FILTER;
    Filter {
        command,
        command_flags: 0,
        resv: 0,
        opcode,
        flags,
        length,
        size,
        resv2: [0; 3],
        program,
        resv3: [0; 5],
    }
}

fn register(ring: &Ring, filter: &mut Filter) -> i32 {
    ring.register(IORING_REGISTER_BPF_FILTER, address_mut(filter) as usize, 1) as i32
}

fn add(ring: &Ring, opcode: Opcode, size: u8, program: &[u64]) -> i32 {
    register(ring, &mut filter(opcode, 0, size, program))
}

fn filtered(cx: &Context, opcode: Opcode, size: u8, program: &[u64]) -> Ring {
    let ring = cx.ring(8);
    assert_eq!(add(&ring, opcode, size, program), 0);
    ring
}

#[case]
fn denied_opcode_is_eacces(cx: &Context) {
    let mut ring = filtered(cx, Opcode::Nop, 0, &[ret(0)]);
    assert_eq!(ring.run(sqe::nop()), -EACCES);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_ASYNC)), -EACCES);
    let (reader, mut writer) = pipe();
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut [0; 4], 0)), 1, "no filter is about READ");
    assert_eq!(add(&ring, Opcode::Read, 0, &[ret(0)]), 0);
    writer.write_all(b"x").expect("write");
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut [0; 4], 0)), -EACCES);
    assert_eq!(cx.ring(4).run(sqe::nop()), 0, "another ring");
}

#[case]
fn every_filter_of_the_opcode_must_allow(cx: &Context) {
    let allows_some = denying(0, u32::MAX, 1);
    let mut ring = filtered(cx, Opcode::Nop, 0, &allows_some);
    let numbered = |user_data| Sqe { user_data, ..sqe::nop() };
    assert_eq!([1, 2, 3].map(|number| ring.run(numbered(number))), [-EACCES, 0, 0]);
    assert_eq!(add(&ring, Opcode::Nop, 0, &denying(0, u32::MAX, 2)), 0);
    assert_eq!(add(&ring, Opcode::Nop, 0, &[ret(u32::MAX)]), 0);
    assert_eq!([1, 2, 3].map(|number| ring.run(numbered(number))), [-EACCES, -EACCES, 0]);
    assert_eq!(ring.run(numbered(2 << 32)), 0, "the word has the lower half");
    assert_eq!(add(&ring, Opcode::Nop, 0, &denying(4, u32::MAX, 2)), 0);
    assert_eq!(ring.run(numbered(2 << 32)), -EACCES);
}

#[case]
fn rest_is_denied_for_good(cx: &Context) {
    let (ring, allow) = (&mut cx.ring(8), [ret(1)]);
    assert_eq!(add(ring, Opcode::Timeout, 0, &allow), 0);
    assert_eq!(register(ring, &mut filter(Opcode::Nop, IO_URING_BPF_FILTER_DENY_REST, 0, &allow)), 0);
    let soon = ms(1);
    assert_eq!((ring.run(sqe::nop()), ring.run(sqe::timeout(&soon, 0, 0))), (0, -ETIME));
    let (reader, _writer) = pipe();
    assert_eq!(ring.run(sqe::poll_add(fd(&reader), libc::POLLIN, 0)), -EACCES);
    assert_eq!(add(ring, Opcode::PollAdd, 0, &allow), 0);
    assert_eq!(ring.run(sqe::poll_add(fd(&reader), libc::POLLIN, 0)), -EACCES);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0) as i32, -ENXIO, "calls are not filtered");
}

/// Checks of the SQE come first, restrictions too.
#[case]
fn errors_of_the_sqe_come_first(cx: &Context) {
    let mut ring = filtered(cx, Opcode::Nop, 0, &[ret(0)]);
    assert_eq!(ring.run(sqe::nop().with(0x80)), -EINVAL);
    assert_eq!(ring.run(Sqe { op_flags: 1 << 31, ..sqe::nop() }), -EINVAL);
    assert_eq!(ring.run(Sqe { personality: 77, ..sqe::nop() }), -EINVAL);
    assert_eq!(ring.run(sqe::nop().ioprio(1)), -EINVAL);
    assert_eq!(add(&ring, Opcode::Socket, 12, &[ret(0)]), 0);
    assert_eq!(ring.run(Sqe { addr: 1, ..sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0) }), -EINVAL);
    assert_eq!(ring.run(sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0)), -EACCES);
}

#[case]
fn denied_request_ends_its_chain(cx: &Context) {
    let mut ring = filtered(cx, Opcode::Timeout, 0, &[ret(0)]);
    let soon = ms(1);
    for (sqe, user_data) in [(sqe::nop(), 1), (sqe::timeout(&soon, 0, 0), 2), (sqe::nop(), 3)] {
        let flags = if user_data < 3 { IOSQE_IO_LINK } else { 0 };
        ring.push(Sqe { user_data, ..sqe.with(flags) });
    }
    assert_eq!(ring.submit(), 3, "a chain is submitted to its end");
    let mut results: Vec<_> = ring.wait_all(3).into_iter().map(|cqe| (cqe.user_data, cqe.res)).collect();
    results.sort_unstable();
    assert_eq!(results, [(1, -ECANCELED), (2, -EACCES), (3, -ECANCELED)]);
}

/// Byte 8 has the opcode, byte 9 the flags, byte 10 the size of the arguments. What is always given to a worker has
/// IOSQE_ASYNC.
#[case]
fn head_has_opcode_and_flags(cx: &Context) {
    let file = file("data", b"x");
    let head = |opcode: Opcode, flags: u8| u32::from_ne_bytes([opcode as u8, flags, 0, 0]);
    let mut ring = filtered(cx, Opcode::Nop, 0, &denying(HEAD, u32::MAX, head(Opcode::Nop, 0)));
    assert_eq!((ring.run(sqe::nop()), ring.run(sqe::nop().with(IOSQE_ASYNC))), (-EACCES, 0));
    assert_eq!(add(&ring, Opcode::Nop, 0, &denying(HEAD, u32::MAX, head(Opcode::Nop, IOSQE_ASYNC))), 0);
    assert_eq!(ring.run(sqe::nop().with(IOSQE_ASYNC)), -EACCES);
    assert_eq!(add(&ring, Opcode::Fsync, 0, &denying(HEAD, u32::MAX, head(Opcode::Fsync, 0))), 0);
    assert_eq!(ring.run(sqe::fsync(fd(&file), 0)), 0);
    assert_eq!(add(&ring, Opcode::Fsync, 0, &denying(HEAD, u32::MAX, head(Opcode::Fsync, IOSQE_ASYNC))), 0);
    assert_eq!(ring.run(sqe::fsync(fd(&file), 0)), -EACCES);
}

/// The type has no flags.
#[case]
fn sockets_have_family_kind_and_protocol(cx: &Context) {
    let deny = |offset, value| filtered(cx, Opcode::Socket, 12, &denying(offset, u32::MAX, value));
    let tcp = || sqe::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP);
    let made = |ring: &mut Ring| match ring.run(tcp()) {
        made if made >= 0 => drop(owned(made, "a socket")),
        error => panic!("{error}"),
    };
    let kind = libc::SOCK_STREAM as u32;
    for (offset, value, other) in [
        (FIRST, libc::AF_INET as u32, libc::AF_INET6 as u32),
        (FIRST + 4, kind, kind | libc::SOCK_CLOEXEC as u32),
        (FIRST + 8, libc::IPPROTO_TCP as u32, 0),
        (HEAD, u32::from_ne_bytes([Opcode::Socket as u8, 0, 12, 0]), 0),
    ] {
        assert_eq!(deny(offset, value).run(tcp()), -EACCES, "{offset}");
        made(&mut deny(offset, other));
    }
}

#[case]
fn opens_have_flags_mode_and_resolve(cx: &Context) {
    drop(file("data", b"x"));
    let open = |ring: &mut Ring, flags: i32| match ring.run(sqe::openat(libc::AT_FDCWD, c"data", flags, 0o600)) {
        made if made >= 0 => drop(owned(made, "a file")),
        error => assert_eq!(error, -EACCES),
    };
    let result = |ring: &mut Ring, flags, mode| ring.run(sqe::openat(libc::AT_FDCWD, c"data", flags, mode));
    let creates = denying(FIRST, libc::O_CREAT as u32, libc::O_CREAT as u32);
    let mut ring = filtered(cx, Opcode::Openat, 24, &creates);
    assert_eq!(result(&mut ring, libc::O_CREAT | libc::O_RDWR, 0o600), -EACCES);
    open(&mut ring, libc::O_RDWR);
    // The mode counts only for a file that may be created.
    let mut ring = filtered(cx, Opcode::Openat, 24, &denying(FIRST + 8, u32::MAX, 0o600));
    assert_eq!(result(&mut ring, libc::O_CREAT | libc::O_RDWR, 0o600 | 0o10_0000), -EACCES);
    let number = result(&mut ring, libc::O_RDWR, 0o600);
    drop(owned(number, "a file"));
    // O_PATH leaves few other flags. All other opens have O_LARGEFILE, whose number libc hides.
    let path = (libc::O_PATH | libc::O_NOFOLLOW) as u32;
    let mut ring = filtered(cx, Opcode::Openat, 24, &denying(FIRST, u32::MAX, path));
    assert_eq!(result(&mut ring, libc::O_PATH | libc::O_NOFOLLOW | libc::O_RDWR | libc::O_APPEND, 0), -EACCES);
    let mut ring = filtered(cx, Opcode::Openat, 24, &denying(FIRST, u32::MAX, libc::O_RDWR as u32));
    drop(owned(result(&mut ring, libc::O_RDWR, 0), "a file"));
}

/// `struct open_how` is read once: what the filter has seen is what is opened.
#[case]
fn openat2_has_its_structure(cx: &Context) {
    drop(file("data", b"x"));
    let how = |flags: i32, resolve: u64| [flags as u64, 0, resolve];
    let run = |ring: &mut Ring, how: [u64; 3]| {
        let size = size_of_val(&how) as u32;
        let sqe = prep(Opcode::Openat2, libc::AT_FDCWD, c"data".as_ptr() as u64, size, address(&how));
        ring.run(sqe)
    };
    let mut ring = filtered(cx, Opcode::Openat2, 24, &denying(FIRST + 16, u32::MAX, libc::RESOLVE_NO_XDEV as u32));
    assert_eq!(run(&mut ring, how(libc::O_RDONLY, libc::RESOLVE_NO_XDEV)), -EACCES);
    drop(owned(run(&mut ring, how(libc::O_RDONLY, 0)), "a file"));
    assert_eq!(ring.run(Sqe { fd: libc::AT_FDCWD, ..prep(Opcode::Openat2, 0, 0, 8, 0) }), -EINVAL);
}

#[case(since = "7.2")]
fn connects_have_family_port_and_address(cx: &Context) {
    let (listener, name) = listener();
    let port = u32::from(name.sin_port);
    let client = || socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let bytes = size_of::<libc::sockaddr_in>();
    let length = |ring: &mut Ring, bytes| ring.run(sqe::connect(fd(&client()), &name, bytes));
    for (offset, value) in [(FIRST, libc::AF_INET as u32), (FIRST + 4, port), (FIRST + 8, name.sin_addr.s_addr)] {
        let mut ring = filtered(cx, Opcode::Connect, 24, &denying(offset, u32::MAX, value));
        assert_eq!(length(&mut ring, bytes), -EACCES, "{offset}");
        let mut ring = filtered(cx, Opcode::Connect, 24, &denying(offset, u32::MAX, value + 1));
        assert_eq!(length(&mut ring, bytes), 0, "{offset}");
    }
    // Too short for the port, and too short for the family.
    let mut ring = filtered(cx, Opcode::Connect, 24, &denying(FIRST + 4, u32::MAX, 0));
    assert_eq!(length(&mut ring, 8), -EACCES);
    let mut ring = filtered(cx, Opcode::Connect, 24, &denying(FIRST, u32::MAX, 0));
    assert_eq!(length(&mut ring, 1), -EACCES);
    drop(listener);
}

#[case(since = "7.2")]
fn connects_have_all_of_an_address_of_version_6(cx: &Context) {
    // SAFETY: it has only integers.
    let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    name.sin6_family = libc::AF_INET6 as u16;
    name.sin6_port = 7;
    name.sin6_flowinfo = 9;
    let bytes: [u8; 16] = std::array::from_fn(|at| at as u8 + 1);
    name.sin6_addr.s6_addr = bytes;
    let client = pair().0;
    for (word, value) in bytes.chunks_exact(4).enumerate() {
        let value = u32::from_ne_bytes(value.try_into().expect("four bytes"));
        let offset = FIRST + 8 + 4 * word as u32;
        let mut ring = filtered(cx, Opcode::Connect, 24, &denying(offset, u32::MAX, value));
        let connect = sqe::connect(fd(&client), &name, size_of_val(&name));
        assert_eq!(ring.run(connect), -EACCES, "{offset}");
    }
}

#[case]
fn size_of_the_arguments_is_told(cx: &Context) {
    let (ring, allow) = (cx.ring(4), [ret(1)]);
    let sized = |opcode, flags, size| {
        let mut filter = filter(opcode, flags, size, &allow);
        (register(&ring, &mut filter), filter.size)
    };
    let strict = IO_URING_BPF_FILTER_SZ_STRICT;
    assert_eq!(sized(Opcode::Socket, 0, 24), (-EMSGSIZE, 12), "more than there is");
    assert_eq!(sized(Opcode::Socket, 0, 8), (0, 12));
    assert_eq!(sized(Opcode::Socket, strict, 8), (-EMSGSIZE, 12));
    assert_eq!(sized(Opcode::Socket, strict, 12), (0, 12));
    assert_eq!((sized(Opcode::Openat, strict, 24), sized(Opcode::Openat2, strict, 24)), ((0, 24), (0, 24)));
    assert_eq!((sized(Opcode::Nop, strict, 0), sized(Opcode::Nop, 0, 1)), ((0, 0), (-EMSGSIZE, 0)));
}

#[case(since = "7.2")]
fn size_of_the_arguments_of_connect(cx: &Context) {
    let mut filter = filter(Opcode::Connect, IO_URING_BPF_FILTER_SZ_STRICT, 0, &[ret(1)]);
    assert_eq!((register(&cx.ring(4), &mut filter), filter.size), (-EMSGSIZE, 24));
}

#[case]
fn structure_is_checked(cx: &Context) {
    let (mut ring, deny) = (cx.ring(4), [ret(0)]);
    let good = filter(Opcode::Nop, 0, 0, &deny);
    for (what, wrong) in [
        ("command", Filter { command: 0, ..good }),
        ("command", Filter { command: 2, ..good }),
        ("flags of the command", Filter { command_flags: 1, ..good }),
        ("padding", Filter { resv: 1, ..good }),
        ("opcode", Filter { opcode: 200, ..good }),
        ("opcode", Filter { opcode: 256, ..good }),
        ("flags", Filter { flags: 4, ..good }),
        ("length", Filter { length: 0, ..good }),
        ("length", Filter { length: 4097, ..good }),
        ("padding", Filter { resv2: [0, 0, 1], ..good }),
        ("padding", Filter { resv3: [0, 0, 0, 0, 1], ..good }),
        ("program", Filter { program: 0, ..good }),
    ] {
        let mut wrong = wrong;
        assert_eq!(register(&ring, &mut wrong), -EINVAL, "{what}");
    }
    assert_eq!(register(&ring, &mut Filter { program: bad_address(), ..good }), -EFAULT);
    let call = |at, count| ring.register(IORING_REGISTER_BPF_FILTER, at, count) as i32;
    assert_eq!((call(address(&good) as usize, 0), call(address(&good) as usize, 2)), (-EINVAL, -EINVAL));
    assert_eq!((call(0, 1), call(bad_address() as usize, 1)), (-EFAULT, -EFAULT));
    assert_eq!(ring.run(sqe::nop()), 0, "nothing was registered");
}

/// A program may load aligned words, calculate, compare, and jump forward.
#[case]
fn program_is_checked(cx: &Context) {
    let (ring, allow) = (cx.ring(4), ret(1));
    let with = |code, k| add(&ring, Opcode::Nop, 0, &[instruction(code, 0, 0, k), allow]);
    for (code, k) in [
        (BPF_LD | BPF_W | BPF_ABS, 40),
        (BPF_LD | BPF_W | BPF_ABS, 2),
        (BPF_LD | BPF_H | BPF_ABS, 0),
        (BPF_ALU | BPF_DIV, 0),
        (BPF_ALU | BPF_MOD, 2),
        (BPF_ALU | BPF_LSH, 32),
        (BPF_LD | BPF_MEM, 0),
        (BPF_ST, 16),
        (BPF_JMP, 1),
        (0xffff, 0),
    ] {
        assert_eq!(with(code, k), -EINVAL, "{code:#x} {k}");
    }
    for (code, k) in [(BPF_LD | BPF_W | BPF_ABS, 36), (BPF_LDX | BPF_W | BPF_LEN, 0), (BPF_ST, 15), (BPF_JMP, 0)] {
        assert_eq!(with(code, k), 0, "{code:#x} {k}");
    }
    assert_eq!(add(&ring, Opcode::Nop, 0, &[load(0)]), -EINVAL, "it does not end");
    assert_eq!(add(&ring, Opcode::Nop, 0, &[instruction(BPF_JMP | BPF_JEQ, 1, 0, 0), allow]), -EINVAL);
}

#[case]
fn division_by_zero_denies(cx: &Context) {
    let divide = instruction(BPF_ALU | BPF_DIV | BPF_X, 0, 0, 0);
    let mut ring = filtered(cx, Opcode::Nop, 0, &[instruction(BPF_LD | BPF_IMM, 0, 0, 5), divide, ret(1)]);
    assert_eq!(ring.run(sqe::nop()), -EACCES);
    // The length of the context, which the program gets as a number.
    let sums = [
        instruction(BPF_LD | BPF_W | BPF_LEN, 0, 0, 0),
        instruction(BPF_ALU | BPF_ADD, 0, 0, 2),
        instruction(BPF_JMP | BPF_JEQ, 0, 1, 42),
        ret(1),
        ret(0),
    ];
    assert_eq!(filtered(cx, Opcode::Nop, 0, &sums).run(sqe::nop()), 0);
}

/// Filters and restrictions are registered independently of each other.
#[case]
fn restrictions_hold_beside_filters(cx: &Context) {
    let mut ring = cx.ring_with(8, cx.flag_set.flags | IORING_SETUP_R_DISABLED);
    assert_eq!(add(&ring, Opcode::Nop, 0, &denying(0, u32::MAX, 1)), 0);
    // `struct io_uring_restriction`: NOP is allowed.
    let allowed = [u64::from(IORING_RESTRICTION_SQE_OP), 0];
    let restrict = |ring: &Ring| ring.register(IORING_REGISTER_RESTRICTIONS, address(&allowed) as usize, 1) as i32;
    assert_eq!((restrict(&ring), restrict(&ring)), (0, -EBUSY));
    assert_eq!(ring.register(IORING_REGISTER_ENABLE_RINGS, 0, 0), 0);
    let numbered = |user_data| Sqe { user_data, ..sqe::nop() };
    assert_eq!((ring.run(numbered(1)), ring.run(numbered(2))), (-EACCES, 0));
    let soon = ms(1);
    assert_eq!(ring.run(sqe::timeout(&soon, 0, 0)), -EACCES);
}

#[case]
fn forked_child_has_the_filters(cx: &Context) {
    let mut ring = filtered(cx, Opcode::Nop, 0, &denying(0, u32::MAX, 1));
    let numbered = |user_data| Sqe { user_data, ..sqe::nop() };
    if cx.flag_set.flags & IORING_SETUP_SINGLE_ISSUER != 0 {
        cx.skip("the ring has one submitter");
    }
    let status = in_child(|| {
        assert_eq!((ring.run(numbered(1)), ring.run(numbered(2))), (-EACCES, 0));
    });
    assert_eq!(status, 0);
}
