//! BIND and LISTEN: making a server's socket.

use super::prelude::*;

topic!(since: "6.11", source: "io_uring_enter(2), io_uring/net.c");

const SIZE: u64 = size_of::<libc::sockaddr_in>() as u64;

fn stream() -> OwnedFd {
    socket(libc::AF_INET, libc::SOCK_STREAM)
}

fn bind(fd: i32, address: &libc::sockaddr_in) -> Sqe {
    prep(Opcode::Bind, fd, self::address(address), 0, SIZE)
}

fn listen(fd: i32, backlog: u32) -> Sqe {
    prep(Opcode::Listen, fd, 0, backlog, 0)
}

fn port(socket: &OwnedFd) -> u16 {
    let mut name = loopback(0);
    let mut size = SIZE as libc::socklen_t;
    // SAFETY: both pointers are to live values of the right size.
    let answer = unsafe { libc::getsockname(fd(socket), (&raw mut name).cast(), &raw mut size) };
    assert_eq!(answer, 0, "getsockname");
    u16::from_be(name.sin_port)
}

#[case]
fn bind_listen_and_accept(cx: &Context) {
    let (server, mut ring) = (stream(), cx.ring(4));
    assert_eq!(ring.run(bind(fd(&server), &loopback(0))), 0);
    assert_eq!(ring.run(listen(fd(&server), 4)), 0);
    let _client = std::net::TcpStream::connect(("127.0.0.1", port(&server))).expect("connect");
    let accepted = ring.run(sqe::accept(fd(&server), libc::SOCK_CLOEXEC));
    drop(owned(accepted, "accepted"));
}

#[case]
fn bind_gives_a_port(cx: &Context) {
    let server = stream();
    assert_eq!(port(&server), 0);
    assert_eq!(cx.ring(4).run(bind(fd(&server), &loopback(0))), 0);
    assert_ne!(port(&server), 0);
}

#[case]
fn bind_to_an_address_in_use_is_eaddrinuse(cx: &Context) {
    let (taken, taken_address) = listener();
    let server = stream();
    assert_eq!(cx.ring(4).run(bind(fd(&server), &taken_address)), -libc::EADDRINUSE);
    drop(taken);
}

#[case]
fn bind_twice_is_einval(cx: &Context) {
    let (server, mut ring) = (stream(), cx.ring(4));
    assert_eq!(ring.run(bind(fd(&server), &loopback(0))), 0);
    assert_eq!(ring.run(bind(fd(&server), &loopback(0))), -EINVAL);
}

#[case]
fn bind_bad_address_is_efault(cx: &Context) {
    let server = stream();
    assert_eq!(cx.ring(4).run(prep(Opcode::Bind, fd(&server), bad_address(), 0, SIZE)), -EFAULT);
}

#[case]
fn bind_address_too_long_is_einval(cx: &Context) {
    let (server, mut ring, room) = (stream(), cx.ring(4), [0u8; 256]);
    assert_eq!(ring.run(prep(Opcode::Bind, fd(&server), address(&room), 0, 129)), -EINVAL);
    assert_eq!(ring.run(prep(Opcode::Bind, fd(&server), address(&room), 0, u32::MAX.into())), -EINVAL);
    assert_eq!(ring.run(prep(Opcode::Bind, fd(&server), address(&room), 0, 1)), -EINVAL);
}

#[case]
fn bind_with_unused_fields_is_einval(cx: &Context) {
    let (server, mut ring, name) = (stream(), cx.ring(4), loopback(0));
    let good = bind(fd(&server), &name);
    assert_eq!(ring.run(Sqe { len: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
}

#[case]
fn bind_of_a_file_is_enotsock(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    assert_eq!(ring.run(bind(fd(&file), &loopback(0))), -libc::ENOTSOCK);
    assert_eq!(ring.run(listen(fd(&file), 4)), -libc::ENOTSOCK);
}

#[case]
fn bind_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(bind(9999, &loopback(0))), -EBADF);
}

#[case]
fn bind_copies_the_address_at_submission(cx: &Context) {
    let (server, mut ring, mut name) = (stream(), cx.ring(4), loopback(0));
    ring.push(bind(fd(&server), &name));
    assert_eq!(ring.submit(), 1);
    name.sin_family = 0xffff;
    std::hint::black_box(&name);
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn listen_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(listen(9999, 4)), -EBADF);
}

#[case]
fn listen_of_a_datagram_socket_is_eopnotsupp(cx: &Context) {
    let server = socket(libc::AF_INET, libc::SOCK_DGRAM);
    assert_eq!(cx.ring(4).run(listen(fd(&server), 4)), -EOPNOTSUPP);
}

#[case]
fn listen_with_unused_fields_is_einval(cx: &Context) {
    let (server, mut ring) = (stream(), cx.ring(4));
    let good = listen(fd(&server), 4);
    assert_eq!(ring.run(Sqe { off: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
}

#[case]
fn bind_and_listen_of_registered_sockets(cx: &Context) {
    let (server, mut ring) = (stream(), cx.ring(4));
    ring.register_files(&[fd(&server)]);
    assert_eq!(ring.run(bind(0, &loopback(0)).with(IOSQE_FIXED_FILE)), 0);
    assert_eq!(ring.run(listen(0, 4).with(IOSQE_FIXED_FILE)), 0);
    std::net::TcpStream::connect(("127.0.0.1", port(&server))).expect("connect");
}

#[case]
fn bind_and_listen_in_a_chain(cx: &Context) {
    let (server, mut ring, name) = (stream(), cx.ring(4), loopback(0));
    ring.go_all(&[
        bind(fd(&server), &name).with(IOSQE_IO_LINK).data(1),
        listen(fd(&server), 4).with(IOSQE_ASYNC).data(2),
    ]);
    assert_eq!(ring.wait_ordered(2), [(1, 0), (2, 0)]);
}
