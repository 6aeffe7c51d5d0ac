//! SOCKET, CONNECT, ACCEPT and SHUTDOWN.

use super::prelude::*;

topic!(since: "5.5", source: "io_uring_enter(2), io_uring/net.c");

const SIZE: usize = size_of::<libc::sockaddr_in>();

fn stream() -> OwnedFd {
    sys::socket(libc::AF_INET, libc::SOCK_STREAM)
}

fn into_owned(number: i32) -> OwnedFd {
    owned(number, "the CQE's descriptor")
}

fn client(listener: &std::net::TcpListener) -> std::net::TcpStream {
    std::net::TcpStream::connect(listener.local_addr().expect("the address")).expect("connect")
}

fn getfd(file: &OwnedFd) -> (i32, i32) {
    // SAFETY: numbers only.
    unsafe { (libc::fcntl(fd(file), libc::F_GETFD), libc::fcntl(fd(file), libc::F_GETFL) & libc::O_NONBLOCK) }
}

#[case(since = "5.19")]
fn socket_gives_a_descriptor(cx: &Context) {
    let file = into_owned(cx.ring(4).run(sqe::socket(libc::AF_INET, libc::SOCK_STREAM, 0)));
    assert_eq!(getfd(&file), (0, 0));
}

#[case(since = "5.19")]
fn socket_cloexec(cx: &Context) {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let file = into_owned(cx.ring(4).run(sqe::socket(libc::AF_UNIX, kind, 0)));
    assert_eq!(getfd(&file), (libc::FD_CLOEXEC, libc::O_NONBLOCK));
}

#[case]
fn socket_with_a_bad_domain_is_eafnosupport(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::socket(200, libc::SOCK_STREAM, 0)), -libc::EAFNOSUPPORT);
}

#[case]
fn socket_with_flags_is_einval(cx: &Context) {
    let socket = sqe::socket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert_eq!(cx.ring(4).run(socket.op_flags(1)), -EINVAL);
    assert_eq!(cx.ring(4).run(Sqe { addr: 1, ..socket }), -EINVAL);
}

fn sparse(cx: &Context) -> Ring {
    let ring = cx.ring(8);
    ring.register_files(&[-1, -1, -1]);
    ring
}

#[case(since = "5.19")]
fn socket_into_a_fixed_slot(cx: &Context) {
    let (mut ring, (_listener, name)) = (sparse(cx), listener());
    let next = fd(&eventfd(0, 0));
    assert_eq!(ring.run(sqe::socket(libc::AF_INET, libc::SOCK_STREAM, 0).file_index(2)), 0);
    assert_eq!(fd(&eventfd(0, 0)), next, "no descriptor was made");
    assert_eq!(ring.run(sqe::connect(1, &name, SIZE).with(IOSQE_FIXED_FILE)), 0);
}

#[case(since = "5.19")]
fn socket_into_an_allocated_slot(cx: &Context) {
    let mut ring = sparse(cx);
    let socket = sqe::socket(libc::AF_INET, libc::SOCK_STREAM, 0).file_index(IORING_FILE_INDEX_ALLOC as u32);
    assert_eq!([ring.run(socket), ring.run(socket), ring.run(socket)], [0, 1, 2]);
    assert_eq!(ring.run(socket), -libc::ENFILE);
}

#[case]
fn connect_succeeds(cx: &Context) {
    let ((listener, name), socket) = (listener(), stream());
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&socket), &name, SIZE)), 0);
    listener.accept().expect("accept");
}

fn closed_port() -> libc::sockaddr_in {
    listener().1
}

#[case]
fn connect_refused(cx: &Context) {
    let (name, socket) = (closed_port(), stream());
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&socket), &name, SIZE)), -ECONNREFUSED);
}

#[case]
fn connect_of_a_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::connect(-1, &closed_port(), SIZE)), -EBADF);
}

#[case]
fn connect_of_a_file_is_enotsock(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&reader), &closed_port(), SIZE)), -ENOTSOCK);
}

#[case]
fn connect_twice_is_eisconn(cx: &Context) {
    let ((_listener, name), socket, mut ring) = (listener(), stream(), cx.ring(4));
    assert_eq!(ring.run(sqe::connect(fd(&socket), &name, SIZE)), 0);
    assert_eq!(ring.run(sqe::connect(fd(&socket), &name, SIZE)), -EISCONN);
}

#[case]
fn connect_with_a_bad_address_is_efault(cx: &Context) {
    let socket = stream();
    let connect = prep(Opcode::Connect, fd(&socket), bad_address(), 0, SIZE as u64);
    assert_eq!(cx.ring(4).run(connect), -EFAULT);
}

#[case]
fn connect_with_a_bad_length_is_einval(cx: &Context) {
    let (socket, name) = (stream(), closed_port());
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&socket), &name, 4096)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&socket), &name, 1)), -EINVAL);
}

#[case]
fn nonblocking_connect_completes(cx: &Context) {
    let ((_listener, name), mut ring) = (listener(), cx.ring(4));
    let socket = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    let res = ring.run(sqe::connect(fd(&socket), &name, SIZE));
    assert_eq!(res, 0, "loopback completes at once");
}

/// CONNECT reads its result from the socket's error. No connect(2) reports it, so the socket stays in its connecting
/// state.
#[case]
fn nonblocking_connect_that_was_refused_is_still_begun(cx: &Context) {
    let (name, mut ring) = (closed_port(), cx.ring(4));
    let socket = sys::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    assert_eq!(ring.run(sqe::connect(fd(&socket), &name, SIZE)), -ECONNREFUSED);
    assert_eq!(ring.run(prep(Opcode::Listen, fd(&socket), 0, 4, 0)), -EINVAL);
}

#[case(since = "5.6")]
fn async_connect(cx: &Context) {
    let ((_listener, name), socket) = (listener(), stream());
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&socket), &name, SIZE).with(IOSQE_ASYNC)), 0);
    let (refused, socket) = (closed_port(), stream());
    assert_eq!(cx.ring(4).run(sqe::connect(fd(&socket), &refused, SIZE).with(IOSQE_ASYNC)), -ECONNREFUSED);
}

#[case]
fn accept_waits_for_a_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    ring.go(sqe::accept(fd(&listener), 0));
    ring.expect_quiet();
    let _client = client(&listener);
    assert_eq!(getfd(&into_owned(ring.wait().res)), (0, 0));
}

#[case]
fn accept_of_a_waiting_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let _client = client(&listener);
    ring.go(sqe::accept(fd(&listener), 0));
    assert_eq!(ring.cq_ready(), 1);
    into_owned(ring.wait().res);
}

#[case]
fn accept_writes_the_peer(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let (mut peer, mut length) = (loopback(0), SIZE as u32);
    let accept = prep(Opcode::Accept, fd(&listener), address_mut(&mut peer), 0, address_mut(&mut length));
    ring.go(accept);
    ring.expect_quiet();
    let client = client(&listener);
    let _file = into_owned(ring.wait().res);
    assert_eq!(length, SIZE as u32);
    assert_eq!(u16::from_be(peer.sin_port), client.local_addr().expect("the address").port());
}

#[case]
fn accept_cloexec_and_nonblock(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let _client = client(&listener);
    let file = into_owned(ring.run(sqe::accept(fd(&listener), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)));
    assert_eq!(getfd(&file), (libc::FD_CLOEXEC, libc::O_NONBLOCK));
}

#[case]
fn accept_bad_flags_are_einval(cx: &Context) {
    let (listener, _) = listener();
    assert_eq!(cx.ring(4).run(sqe::accept(fd(&listener), 1 << 4)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::accept(fd(&listener), 0).ioprio(1 << 8)), -EINVAL);
}

#[case]
fn accept_of_a_stream_socket_is_einval(cx: &Context) {
    let socket = stream();
    assert_eq!(cx.ring(4).run(sqe::accept(fd(&socket), 0)), -EINVAL);
}

#[case]
fn accept_of_a_file_is_enotsock(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::accept(fd(&reader), 0)), -ENOTSOCK);
}

#[case]
fn accept_on_a_nonblocking_listener_waits(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    listener.set_nonblocking(true).expect("nonblocking");
    ring.go(sqe::accept(fd(&listener), 0));
    ring.expect_quiet();
    let _client = client(&listener);
    into_owned(ring.wait().res);
}

#[case]
fn accept_dontwait_is_eagain(cx: &Context) {
    let (listener, _) = listener();
    let accept = sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_DONTWAIT as u16);
    assert_eq!(cx.ring(4).run(accept), -EAGAIN);
}

#[case(since = "6.10")]
fn accept_dontwait_of_a_waiting_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let _client = client(&listener);
    into_owned(ring.run(sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_DONTWAIT as u16)));
}

#[case(since = "6.10")]
fn accept_poll_first(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    ring.go(sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_POLL_FIRST as u16));
    ring.expect_quiet();
    let _client = client(&listener);
    into_owned(ring.wait().res);
    let (_second, _third) = (client(&listener), client(&listener));
    for _ in 0..2 {
        into_owned(ring.run(sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_POLL_FIRST as u16)));
    }
}

#[case(since = "5.6")]
fn accept_into_a_fixed_slot(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), sparse(cx));
    let mut client = client(&listener);
    client.write_all(b"hi").expect("write");
    assert_eq!(ring.run(sqe::accept(fd(&listener), 0).file_index(3)), 0);
    assert_eq!(ring.run(sqe::recv(2, &mut [0; 8], 0).with(IOSQE_FIXED_FILE)), 2);
}

#[case(since = "5.11")]
fn accept_into_a_busy_slot_replaces_it(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let (reader, _writer) = pipe();
    ring.register_files(&[fd(&reader)]);
    let _client = client(&listener);
    assert_eq!(ring.run(sqe::accept(fd(&listener), 0).file_index(1)), 0);
    assert_eq!(
        ring.run(sqe::read(0, &mut [0; 1], 0).with(IOSQE_FIXED_FILE).op_flags(libc::RWF_NOWAIT as u32)),
        -EAGAIN
    );
    assert_eq!(ring.run(sqe::shutdown(0, libc::SHUT_RDWR).with(IOSQE_FIXED_FILE)), 0, "it is a socket now");
}

#[case]
fn accept_fixed_without_table_is_enxio(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let _client = client(&listener);
    assert_eq!(ring.run(sqe::accept(fd(&listener), 0).file_index(1)), -ENXIO);
    let _client = self::client(&listener);
    ring.register_files(&[-1]);
    assert_eq!(ring.run(sqe::accept(fd(&listener), 0).file_index(2)), -EINVAL, "a slot outside the table");
}

#[case]
fn accept_fixed_with_cloexec_is_einval(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), sparse(cx));
    assert_eq!(ring.run(sqe::accept(fd(&listener), libc::SOCK_CLOEXEC).file_index(1)), -EINVAL);
}

#[case(since = "5.19")]
fn accept_multishot_takes_each_connection(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    ring.go(sqe::accept(fd(&listener), 0).ioprio(IORING_ACCEPT_MULTISHOT as u16).data(1));
    for _ in 0..3 {
        let _client = client(&listener);
        let cqe = ring.wait();
        assert_eq!(cqe.flags, IORING_CQE_F_MORE);
        into_owned(cqe.res);
    }
    ring.go(sqe::cancel(1, 0).data(2));
    assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 0)]);
}

#[case]
fn accept_with_len_is_einval(cx: &Context) {
    let (listener, _) = listener();
    assert_eq!(cx.ring(4).run(Sqe { len: 1, ..sqe::accept(fd(&listener), 0) }), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::accept(fd(&listener), 0).buffer(1)), -EINVAL);
}

#[case]
fn accept_bad_address_is_efault(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    let _client = client(&listener);
    let next = fd(&eventfd(0, 0));
    let bad = bad_address();
    assert_eq!(ring.run(prep(Opcode::Accept, fd(&listener), bad, 0, bad)), -EFAULT);
    assert_eq!(fd(&eventfd(0, 0)), next, "no descriptor is left");
}

#[case]
fn two_accepts_take_two_connections(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    ring.go_all(&[sqe::accept(fd(&listener), 0).data(1), sqe::accept(fd(&listener), 0).data(2)]);
    ring.expect_quiet();
    let (_a, _b) = (client(&listener), client(&listener));
    let results = ring.wait_sorted(2);
    assert_eq!((results[0].0, results[1].0), (1, 2));
    let files = [into_owned(results[0].1), into_owned(results[1].1)];
    assert_ne!(fd(&files[0]), fd(&files[1]));
}

#[case(since = "5.6")]
fn async_accept_waits(cx: &Context) {
    let ((listener, _), mut ring) = (listener(), cx.ring(4));
    ring.go(sqe::accept(fd(&listener), 0).with(IOSQE_ASYNC));
    ring.expect_quiet();
    let _client = client(&listener);
    into_owned(ring.wait().res);
}

#[case(since = "5.11")]
fn shutdown_ends_the_peer(cx: &Context) {
    let ((a, mut b), mut ring) = (tcp_pair(), cx.ring(4));
    assert_eq!(ring.run(sqe::shutdown(fd(&a), libc::SHUT_WR)), 0);
    assert_eq!(b.read(&mut [0; 1]).expect("read"), 0);
}

#[case]
fn shutdown_of_an_unconnected_socket_is_enotconn(cx: &Context) {
    let socket = stream();
    assert_eq!(cx.ring(4).run(sqe::shutdown(fd(&socket), libc::SHUT_RDWR)), -ENOTCONN);
}

#[case]
fn shutdown_of_a_file_is_enotsock(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::shutdown(fd(&reader), libc::SHUT_RDWR)), -ENOTSOCK);
}

#[case]
fn shutdown_bad_how_is_einval(cx: &Context) {
    let ((a, _b), mut ring) = (unix_pair(libc::SOCK_STREAM), cx.ring(4));
    assert_eq!(ring.run(sqe::shutdown(fd(&a), 7)), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..sqe::shutdown(fd(&a), libc::SHUT_RD) }), -EINVAL);
}

#[case]
fn unix_accept_and_connect(cx: &Context) {
    let listener = std::os::unix::net::UnixListener::bind("socket").expect("listen");
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (to, from) in name.sun_path.iter_mut().zip(b"socket") {
        *to = *from as libc::c_char;
    }
    let (socket, mut ring) = (sys::socket(libc::AF_UNIX, libc::SOCK_STREAM), cx.ring(4));
    ring.go(sqe::accept(fd(&listener), 0).data(1));
    ring.go(sqe::connect(fd(&socket), &name, size_of::<libc::sockaddr_un>()).data(2));
    let results = ring.wait_sorted(2);
    assert_eq!(results[1], (2, 0));
    into_owned(results[0].1);
}
