//! URING_CMD: commands of sockets, and files without commands.

use super::prelude::*;
use std::time::Duration;

topic!(since: "6.7", source: "io_uring_enter(2), io_uring/cmd_net.c, io_uring/uring_cmd.c");

fn command(fd: i32, command: u32) -> Sqe {
    prep(Opcode::UringCmd, fd, 0, 0, command.into())
}

/// `level` and `optname` are in the field that other operations call `addr`, and `optval` is in their `addr3`.
fn option(fd: i32, which: u32, level: i32, name: i32, value: u64, bytes: usize) -> Sqe {
    let addr = u64::from(level as u32) | u64::from(name as u32) << 32;
    Sqe { addr, addr3: value, ..command(fd, which) }.file_index(bytes as u32)
}

fn get(fd: i32, name: i32, value: &mut i32) -> Sqe {
    option(fd, SOCKET_URING_OP_GETSOCKOPT, libc::SOL_SOCKET, name, address_mut(value), 4)
}

fn set(fd: i32, level: i32, name: i32, value: &i32) -> Sqe {
    option(fd, SOCKET_URING_OP_SETSOCKOPT, level, name, address(value), 4)
}

fn plain_option(file: &impl std::os::fd::AsRawFd, level: i32, name: i32) -> i32 {
    let (mut value, mut bytes) = (0, 4);
    // SAFETY: room for one int is passed.
    assert_eq!(unsafe { libc::getsockopt(fd(file), level, name, (&raw mut value).cast(), &mut bytes) }, 0);
    value
}

#[case]
fn bytes_to_receive(cx: &Context) {
    let ((client, mut server), mut ring) = (tcp_pair(), cx.ring(4));
    assert_eq!(ring.run(command(fd(&client), SOCKET_URING_OP_SIOCINQ)), 0);
    server.write_all(b"12345").expect("write");
    while readable_bytes(&client) < 5 {}
    assert_eq!(ring.run(command(fd(&client), SOCKET_URING_OP_SIOCINQ)), 5);
}

#[case]
fn bytes_to_send(cx: &Context) {
    let ((mut client, server), mut ring) = (tcp_pair(), cx.ring(4));
    assert_eq!(ring.run(command(fd(&client), SOCKET_URING_OP_SIOCOUTQ)), 0);
    // More than the other side can take.
    client.set_nonblocking(true).expect("nonblocking");
    let chunk = [0; 1 << 16];
    while client.write(&chunk).is_ok() {}
    let mut waiting = 0;
    // SAFETY: TIOCOUTQ writes one int.
    assert_eq!(unsafe { libc::ioctl(fd(&client), libc::TIOCOUTQ, &mut waiting) }, 0);
    let answer = ring.run(command(fd(&client), SOCKET_URING_OP_SIOCOUTQ));
    assert!(answer > 0 && answer <= waiting, "{answer} of {waiting}");
    drop(server);
}

#[case]
fn datagram_to_receive(cx: &Context) {
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let mut ring = cx.ring(4);
    for bytes in [9, 3] {
        receiver.send_to(&vec![0; bytes], receiver.local_addr().expect("address")).expect("send");
    }
    assert_eq!(ring.run(command(fd(&receiver), SOCKET_URING_OP_SIOCINQ)), 9); // the first one
    assert_eq!(ring.run(command(fd(&receiver), SOCKET_URING_OP_SIOCOUTQ)), 0);
}

#[case]
fn of_a_listener_is_einval(cx: &Context) {
    let (listener, _) = listener();
    assert_eq!(cx.ring(4).run(command(fd(&listener), SOCKET_URING_OP_SIOCINQ)), -EINVAL);
    assert_eq!(cx.ring(4).run(command(fd(&listener), SOCKET_URING_OP_SIOCOUTQ)), -EINVAL);
}

#[case]
fn gets_an_option(cx: &Context) {
    let ((client, _server), mut value, mut ring) = (tcp_pair(), 0, cx.ring(4));
    assert_eq!(ring.run(get(fd(&client), libc::SO_TYPE, &mut value)), 4); // its size
    assert_eq!(std::hint::black_box(value), libc::SOCK_STREAM);
    assert_eq!(ring.run(get(fd(&client), libc::SO_RCVBUF, &mut value)), 4);
    assert_eq!(std::hint::black_box(value), plain_option(&client, libc::SOL_SOCKET, libc::SO_RCVBUF));
}

#[case]
fn gets_part_of_an_option(cx: &Context) {
    let ((client, _server), mut value, mut ring) = (tcp_pair(), [0u8; 16], cx.ring(4));
    let room = |bytes, value: &mut [u8; 16]| {
        option(fd(&client), SOCKET_URING_OP_GETSOCKOPT, libc::SOL_SOCKET, libc::SO_TYPE, address_mut(value), bytes)
    };
    assert_eq!(ring.run(room(2, &mut value)), 2);
    assert_eq!(ring.run(room(16, &mut value)), 4);
    assert_eq!(ring.run(room(0, &mut value)), 0);
    assert_eq!(ring.run(room(u32::MAX as usize, &mut value)), -EINVAL);
}

#[case]
fn gets_options_of_the_socket_only(cx: &Context) {
    let ((client, _server), mut value, mut ring) = (tcp_pair(), 0, cx.ring(4));
    let nodelay = option(
        fd(&client),
        SOCKET_URING_OP_GETSOCKOPT,
        libc::IPPROTO_TCP,
        libc::TCP_NODELAY,
        address_mut(&mut value),
        4,
    );
    assert_eq!(ring.run(nodelay), -EOPNOTSUPP);
}

#[case]
fn sets_an_option(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    assert_eq!(ring.run(set(fd(&client), libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1)), 0);
    assert_eq!(plain_option(&client, libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1);
}

#[case]
fn sets_an_option_of_tcp(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    assert_eq!(ring.run(set(fd(&client), libc::IPPROTO_TCP, libc::TCP_NODELAY, &1)), 0);
    assert_eq!(plain_option(&client, libc::IPPROTO_TCP, libc::TCP_NODELAY), 1);
}

#[case]
fn bad_options(cx: &Context) {
    let ((client, _server), mut value, mut ring) = (tcp_pair(), 0, cx.ring(4));
    assert_eq!(ring.run(get(fd(&client), 9999, &mut value)), -libc::ENOPROTOOPT);
    assert_eq!(ring.run(set(fd(&client), libc::SOL_SOCKET, 9999, &1)), -libc::ENOPROTOOPT);
    assert_eq!(ring.run(set(fd(&client), 9999, 1, &1)), -libc::ENOPROTOOPT);
    let short =
        option(fd(&client), SOCKET_URING_OP_SETSOCKOPT, libc::SOL_SOCKET, libc::SO_KEEPALIVE, address(&1i32), 2);
    assert_eq!(ring.run(short), -EINVAL);
    assert_eq!(ring.run(short.file_index(u32::MAX)), -EINVAL);
}

#[case]
fn bad_addresses_are_efault(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    for which in [SOCKET_URING_OP_GETSOCKOPT, SOCKET_URING_OP_SETSOCKOPT] {
        let bad = option(fd(&client), which, libc::SOL_SOCKET, libc::SO_KEEPALIVE, bad_address(), 4);
        assert_eq!(ring.run(bad), -EFAULT);
        assert_eq!(ring.run(Sqe { addr3: 0, ..bad }), -EFAULT);
    }
}

#[case]
fn with_async(cx: &Context) {
    let ((client, _server), mut value, mut ring) = (tcp_pair(), 0, cx.ring(4));
    assert_eq!(ring.run(get(fd(&client), libc::SO_TYPE, &mut value).with(IOSQE_ASYNC)), 4);
    assert_eq!(std::hint::black_box(value), libc::SOCK_STREAM);
    assert_eq!(ring.run(command(fd(&client), SOCKET_URING_OP_SIOCINQ).with(IOSQE_ASYNC)), 0);
    assert_eq!(ring.run(command(9999, SOCKET_URING_OP_SIOCINQ).with(IOSQE_ASYNC)), -EBADF);
}

#[case]
fn of_a_registered_file(cx: &Context) {
    let ((client, mut server), mut ring) = (tcp_pair(), cx.ring(4));
    ring.register_files(&[fd(&client)]);
    server.write_all(b"123").expect("write");
    while readable_bytes(&client) < 3 {}
    assert_eq!(ring.run(command(0, SOCKET_URING_OP_SIOCINQ).with(IOSQE_FIXED_FILE)), 3);
    assert_eq!(ring.run(command(1, SOCKET_URING_OP_SIOCINQ).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case]
fn unknown_commands_are_eopnotsupp(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    for which in [6, 100, u32::MAX] {
        assert_eq!(ring.run(command(fd(&client), which)), -EOPNOTSUPP, "{which}");
    }
}

/// All sockets have options. Only those whose protocol counts them report bytes in queues.
#[case]
fn other_families(cx: &Context) {
    let (mut value, mut ring) = (0, cx.ring(4));
    let (one, other) = unix_pair(libc::SOCK_STREAM);
    let netlink = socket(libc::AF_NETLINK, libc::SOCK_RAW);
    for socket in [&one, &other, &netlink] {
        assert_eq!(ring.run(command(fd(socket), SOCKET_URING_OP_SIOCINQ)), -EOPNOTSUPP);
        assert_eq!(ring.run(command(fd(socket), SOCKET_URING_OP_SIOCOUTQ)), -EOPNOTSUPP);
        assert_eq!(ring.run(get(fd(socket), libc::SO_TYPE, &mut value)), 4);
        assert_eq!(ring.run(set(fd(socket), libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1)), 0);
        assert_eq!(ring.run(command(fd(socket), 77)), -EOPNOTSUPP);
    }
    let internet6 = socket(libc::AF_INET6, libc::SOCK_DGRAM);
    assert_eq!(ring.run(command(fd(&internet6), SOCKET_URING_OP_SIOCINQ)), 0);
    let bad = get(fd(&one), libc::SO_TYPE, &mut value);
    assert_eq!(ring.run(Sqe { addr: libc::IPPROTO_TCP as u64, ..bad }), -EOPNOTSUPP);
}

#[case]
fn of_other_files_is_eopnotsupp(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let zero = std::fs::File::open("/dev/zero").expect("open");
    for number in [fd(&reader), fd(&eventfd(0, 0)), fd(&epoll()), fd(&memfd()), fd(&file("file", b"")), fd(&zero)] {
        for which in [SOCKET_URING_OP_SIOCINQ, 0x1234] {
            let answer = ring.run(command(number, which));
            assert!([-EOPNOTSUPP, -EBADF].contains(&answer), "{answer}");
        }
    }
    assert_eq!(ring.run(command(fd(&reader), SOCKET_URING_OP_SIOCINQ)), -EOPNOTSUPP);
    assert_eq!(ring.run(command(fd(&zero), SOCKET_URING_OP_SIOCINQ).with(IOSQE_ASYNC)), -EOPNOTSUPP);
}

#[case]
fn of_the_null_device_is_zero(cx: &Context) {
    let (null, mut ring) = (std::fs::File::open("/dev/null").expect("open"), cx.ring(4));
    assert_eq!(ring.run(command(fd(&null), 0)), 0);
    assert_eq!(ring.run(command(fd(&null), 4711).with(IOSQE_ASYNC)), 0);
    assert_eq!(ring.run(command(fd(&null), 1).op_flags(IORING_URING_CMD_FIXED).buffer(7)), 0);
}

#[case]
fn of_a_ring_is_eopnotsupp(cx: &Context) {
    let (mut ring, other) = (cx.ring(4), cx.ring(4));
    let mut value = 0;
    assert_eq!(ring.run(command(other.fd, SOCKET_URING_OP_SIOCINQ)), -EOPNOTSUPP);
    assert_eq!(ring.run(command(ring.fd, SOCKET_URING_OP_SIOCINQ)), -EOPNOTSUPP);
    assert_eq!(ring.run(get(other.fd, libc::SO_TYPE, &mut value)), -EOPNOTSUPP);
    assert_eq!(ring.run(get(other.fd, libc::SO_TYPE, &mut value).with(IOSQE_ASYNC)), -EOPNOTSUPP);
}

#[case]
fn bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(command(9999, SOCKET_URING_OP_SIOCINQ)), -EBADF);
    assert_eq!(cx.ring(4).run(command(-1, SOCKET_URING_OP_SIOCINQ)), -EBADF);
}

#[case]
fn with_unused_fields(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    let good = command(fd(&client), SOCKET_URING_OP_SIOCINQ);
    assert_eq!(ring.run(Sqe { off: u64::from(SOCKET_URING_OP_SIOCINQ) | 1 << 32, ..good }), -EINVAL);
    assert_eq!(ring.run(good.ioprio(1)), -EINVAL);
    // These fields are ignored.
    assert_eq!(ring.run(Sqe { addr: 1, len: 1, addr3: 1, ..good }.buffer(1).file_index(1)), 0);
}

#[case]
fn unknown_flags_are_einval(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    for flag in [4, 8, 1 << 16, 1 << 31] {
        assert_eq!(ring.run(command(fd(&client), SOCKET_URING_OP_SIOCINQ).op_flags(flag)), -EINVAL, "{flag:#x}");
    }
}

/// Only drivers use a registered buffer. Commands of sockets ignore it.
#[case]
fn fixed_is_for_drivers(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    let good = command(fd(&client), SOCKET_URING_OP_SIOCINQ).op_flags(IORING_URING_CMD_FIXED);
    assert_eq!(ring.run(good.buffer(3)), 0);
    assert_eq!(ring.run(good.op_flags(IORING_URING_CMD_FIXED | IORING_URING_CMD_MULTISHOT)), -EINVAL);
}

#[case]
fn multishot_needs_buffers(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    let good = command(fd(&client), SOCKET_URING_OP_SIOCINQ);
    assert_eq!(ring.run(good.op_flags(IORING_URING_CMD_MULTISHOT)), -EINVAL);
    assert_eq!(ring.run(good.with(IOSQE_BUFFER_SELECT)), -EINVAL);
    assert_eq!(ring.run(good.op_flags(IORING_URING_CMD_FIXED).with(IOSQE_BUFFER_SELECT)), -EINVAL);
}

#[case]
fn goes_on_with_its_link(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    let linked = |which| command(fd(&client), which).data(1).with(IOSQE_IO_LINK);
    ring.go_all(&[linked(SOCKET_URING_OP_SIOCINQ), sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
    ring.go_all(&[linked(99), sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -EOPNOTSUPP), (2, -ECANCELED)]);
}

#[case]
fn timestamps_need_large_cqes(cx: &Context) {
    let ((client, _server), mut ring) = (tcp_pair(), cx.ring(4));
    if ring.params.flags & (IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED) == 0 {
        assert_eq!(ring.run(command(fd(&client), SOCKET_URING_OP_TX_TIMESTAMP)), -EINVAL);
    }
}

/// BLOCK_URING_CMD_DISCARD fails for every file other than a block device.
#[case]
fn discard_of_other_files_is_eopnotsupp(cx: &Context) {
    let (file, mut ring) = (file("file", b"1234"), cx.ring(4));
    assert_eq!(ring.run(command(fd(&file), 0x1200)), -EOPNOTSUPP);
}

#[case(own_flags)]
fn discards(cx: &Context) {
    let (device, mut ring) = (loop_device(64), cx.ring(4));
    let discard = |start: u64, bytes: u64| Sqe { addr: start, addr3: bytes, ..command(fd(&device), 0x1200) };
    assert_eq!(ring.run(discard(4096, 8192)), 0);
    let content = std::fs::read("disk").expect("read");
    let (kept, gone) = (content[..4096].iter().chain(&content[12288..]), &content[4096..12288]);
    assert!(kept.into_iter().all(|byte| *byte == b'x') && gone.iter().all(|byte| *byte == 0));
    assert_eq!(ring.run(discard(100, 512)), -EINVAL);
    assert_eq!(ring.run(discard(0, 1 << 30)), -EINVAL);
    assert_eq!(ring.run(discard(0, 0)), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 1, ..discard(0, 4096) }), -EINVAL);
    assert_eq!(ring.run(discard(0, 4096).op_flags(IORING_URING_CMD_FIXED)), -EINVAL);
    assert_eq!(ring.run(command(fd(&device), 0x1201)), -EINVAL);
    assert_eq!(ring.run(command(fd(&device), SOCKET_URING_OP_SIOCINQ)), -EINVAL);
}

/// Asks for times of sent data without the data, in the clock of the system.
fn ask_for_times(socket: &impl std::os::fd::AsRawFd, kinds: u32) {
    let other = libc::SOF_TIMESTAMPING_SOFTWARE | libc::SOF_TIMESTAMPING_OPT_ID | libc::SOF_TIMESTAMPING_OPT_TSONLY;
    set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &(kinds | other));
}

/// The command reports when sent data left, until it is cancelled. The ring has CQEs of 32 bytes.
#[case(own_flags, since = "6.17")]
fn timestamps_of_large_cqes(cx: &Context) {
    let (client, _server) = tcp_pair();
    ask_for_times(&client, libc::SOF_TIMESTAMPING_TX_SOFTWARE);
    let mut ring = cx.ring_with(4, IORING_SETUP_CQE32);
    ring.go(command(fd(&client), SOCKET_URING_OP_TX_TIMESTAMP).data(1));
    ring.expect_quiet();
    for byte in 0..2 {
        (&client).write_all(b"x").expect("write");
        let cqe = ring.wait();
        assert_eq!((cqe.user_data, cqe.res, cqe.flags & IORING_CQE_F_MORE), (1, byte, IORING_CQE_F_MORE));
    }
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

/// A CQE's second half has the seconds and nanoseconds, and its flags say which event the time is of.
#[case(own_flags, since = "6.18")]
fn timestamps_have_a_kind_and_a_time(cx: &Context) {
    for (flags, size) in [(IORING_SETUP_CQE32, 0), (IORING_SETUP_CQE_MIXED, IORING_CQE_F_32)] {
        let (client, _server) = tcp_pair();
        ask_for_times(&client, libc::SOF_TIMESTAMPING_TX_SCHED | libc::SOF_TIMESTAMPING_TX_SOFTWARE);
        let mut ring = cx.ring_with(4, flags);
        let begun = since_epoch();
        (&client).write_all(b"x").expect("write");
        ring.go(command(fd(&client), SOCKET_URING_OP_TX_TIMESTAMP).data(1));
        let entries = if size == 0 { 2 } else { 4 };
        ring.enter(0, entries, IORING_ENTER_GETEVENTS, 0, 0);
        let seen = [(); 2].map(|()| ring.peek_whole().expect("a CQE"));
        let mut kinds = seen.map(|(cqe, _)| cqe.flags);
        kinds.sort_unstable();
        // SCM_TSTAMP_SND and SCM_TSTAMP_SCHED, from bit 17 on.
        assert_eq!(kinds, [0, 1 << 17].map(|kind| kind | IORING_CQE_F_MORE | size));
        for (_, time) in seen {
            let [seconds, nanoseconds] = time.expect("a second half");
            let time = Duration::new(seconds, nanoseconds as u32);
            assert!(begun <= time && time <= since_epoch(), "{begun:?} {time:?}");
        }
    }
}

fn since_epoch() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time after 1970")
}

/// A socket that queues errors has its times reported, too.
#[case(own_flags, since = "6.17")]
fn timestamps_where_errors_are_queued(cx: &Context) {
    let (client, _server) = tcp_pair();
    ask_for_times(&client, libc::SOF_TIMESTAMPING_TX_SOFTWARE);
    set_option(&client, libc::SOL_IP, libc::IP_RECVERR, &1);
    let mut ring = cx.ring_with(4, IORING_SETUP_CQE32);
    (&client).write_all(b"x").expect("write");
    ring.go(command(fd(&client), SOCKET_URING_OP_TX_TIMESTAMP));
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags & IORING_CQE_F_MORE), (0, IORING_CQE_F_MORE));
}

/// A command whose `addr` is a socket's name, with its length at `addr3`.
fn name_of(fd: i32, name: &mut libc::sockaddr_in, bytes: &mut u32, peer: u32) -> Sqe {
    let addr = address_mut(name);
    Sqe { addr, addr3: address_mut(bytes), ..command(fd, SOCKET_URING_OP_GETSOCKNAME) }.file_index(peer)
}

#[case(since = "6.19")]
fn names_of_both_ends(cx: &Context) {
    let ((client, server), mut ring) = (tcp_pair(), cx.ring(4));
    for (peer, port) in [(0, client.local_addr()), (1, client.peer_addr())] {
        let (mut name, mut bytes) = (loopback(0), size_of::<libc::sockaddr_in>() as u32);
        assert_eq!(ring.run(name_of(fd(&client), &mut name, &mut bytes, peer)), 0);
        assert_eq!((std::hint::black_box(name).sin_port.to_be(), bytes), (port.expect("a name").port(), 16));
    }
    let (mut name, mut bytes) = (loopback(0), 4);
    assert_eq!(ring.run(name_of(fd(&server), &mut name, &mut bytes, 0)), 0);
    assert_eq!(std::hint::black_box(bytes), 16, "the length that it has");
    assert_eq!(ring.run(name_of(fd(&server), &mut name, &mut bytes, 2)), -EINVAL);
    let bad = Sqe { addr3: bad_address(), ..name_of(fd(&server), &mut name, &mut 16, 0) };
    assert_eq!(ring.run(bad), -EFAULT);
    assert_eq!(ring.run(Sqe { addr: bad_address(), ..name_of(fd(&server), &mut name, &mut bytes, 0) }), -EFAULT);
    assert_eq!(ring.run(name_of(fd(&server), &mut name, &mut bytes, 0).op_flags(1)), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 1, ..name_of(fd(&server), &mut name, &mut bytes, 0) }), -EINVAL);
}

#[case(since = "6.19")]
fn names_that_there_are_not(cx: &Context) {
    let (socket, mut ring) = (socket(libc::AF_INET, libc::SOCK_STREAM), cx.ring(4));
    let (mut name, mut bytes) = (loopback(0), 16);
    assert_eq!(ring.run(name_of(fd(&socket), &mut name, &mut bytes, 1)), -libc::ENOTCONN);
    let (reader, _writer) = pipe();
    assert_eq!(ring.run(name_of(fd(&reader), &mut name, &mut bytes, 0)), -EOPNOTSUPP);
    let (a, _b) = pair();
    assert_eq!(ring.run(name_of(fd(&a), &mut name, &mut bytes, 1)), 0);
    assert_eq!(std::hint::black_box(bytes), 2, "a Unix socket without a name");
}
