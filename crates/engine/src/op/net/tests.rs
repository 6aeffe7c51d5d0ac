use super::*;
use crate::os::EpollEvent;
use anyring_abi::{IORING_ACCEPT_MULTISHOT, IORING_RECVSEND_POLL_FIRST};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

const WOULD_READ: Verdict = Verdict::WouldBlock(Direction::Read);
const WOULD_WRITE: Verdict = Verdict::WouldBlock(Direction::Write);

fn inline(socket: &impl AsRawFd) -> Context {
    Context { fd: socket.as_raw_fd(), nonblock: true }
}

fn on_worker(socket: &impl AsRawFd) -> Context {
    Context { nonblock: false, ..inline(socket) }
}

fn send_sqe(data: &[u8], flags: i32) -> Sqe {
    Sqe { addr: data.as_ptr() as u64, len: data.len() as u32, op_flags: flags as u32, ..Sqe::default() }
}

fn send(data: &[u8], flags: i32) -> Net {
    Net::prep(Opcode::Send, &send_sqe(data, flags)).unwrap()
}

fn recv_sqe(buffer: &mut [u8], flags: i32) -> Sqe {
    Sqe { addr: buffer.as_mut_ptr() as u64, ..send_sqe(buffer, flags) }
}

fn recv(buffer: &mut [u8], flags: i32) -> Net {
    Net::prep(Opcode::Recv, &recv_sqe(buffer, flags)).unwrap()
}

fn descriptor(verdict: Verdict) -> OwnedFd {
    let Verdict::Descriptor(fd) = verdict else { panic!("{verdict:?}") };
    // SAFETY: the call under test just made this descriptor, and nothing else owns it.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }
}

fn inet(socket: std::net::SocketAddr) -> libc::sockaddr_in {
    let std::net::SocketAddr::V4(socket) = socket else { panic!("{socket}") };
    let sin_addr = libc::in_addr { s_addr: u32::from_ne_bytes(socket.ip().octets()) };
    libc::sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: socket.port().to_be(),
        sin_addr,
        sin_zero: [0; 8],
    }
}

fn connect(address: &libc::sockaddr_in) -> Net {
    let sqe = Sqe { addr: address as *const _ as u64, off: size_of_val(address) as u64, ..Sqe::default() };
    Net::prep(Opcode::Connect, &sqe).unwrap()
}

#[test]
fn recv_waits_in_any_thread_and_even_on_a_nonblocking_socket() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut buffer = [0u8; 8];
    let mut op = recv(&mut buffer, 0);
    assert_eq!(op.issue(inline(&near)), WOULD_READ);
    assert_eq!(op.issue(on_worker(&near)), WOULD_READ);
    near.set_nonblocking(true).unwrap();
    assert_eq!(op.issue(inline(&near)), WOULD_READ);
    let mut impatient = recv(&mut buffer, libc::MSG_DONTWAIT);
    assert_eq!(impatient.issue(inline(&near)), Verdict::error(Errno::AGAIN));
    far.write_all(b"hello").unwrap();
    assert_eq!(op.issue(inline(&near)), Verdict::Done(5));
    assert_eq!(&buffer[..5], b"hello");
    drop(far);
    assert_eq!(recv(&mut buffer, 0).issue(inline(&near)), Verdict::Done(0));
}

#[test]
fn poll_first_waits_once_before_the_first_attempt() {
    let (near, mut far) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    let mut buffer = [0u8; 8];
    let sqe = Sqe { ioprio: IORING_RECVSEND_POLL_FIRST as u16, ..recv_sqe(&mut buffer, 0) };
    let mut recv = Net::prep(Opcode::Recv, &sqe).unwrap();
    assert!(recv.will_poll_first() && recv.waits_for().is_none());
    assert_eq!(recv.wait_first(near.as_raw_fd()), Some(Ok((Direction::Read, Skip::PollFirst))));
    assert!(!recv.will_poll_first());
    assert_eq!(recv.issue(inline(&near)), Verdict::Done(1));
    let impatient = Sqe { op_flags: libc::MSG_DONTWAIT as u32, ..sqe };
    let mut recv = Net::prep(Opcode::Recv, &impatient).unwrap();
    assert_eq!(recv.wait_first(near.as_raw_fd()), Some(Err(Errno::AGAIN)));
}

#[test]
fn waitall_goes_on_where_a_stream_stopped() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let mut buffer = [0u8; 6];
    let mut op = recv(&mut buffer, libc::MSG_WAITALL);
    far.write_all(b"ab").unwrap();
    assert_eq!(op.issue(inline(&near)), WOULD_READ);
    far.write_all(b"cdef").unwrap();
    assert_eq!(op.issue(inline(&near)), Verdict::Done(6));
    assert_eq!(&buffer, b"abcdef");

    far.write_all(b"gh").unwrap();
    let mut impatient = recv(&mut buffer, libc::MSG_WAITALL | libc::MSG_DONTWAIT);
    assert_eq!(impatient.issue(inline(&near)), Verdict::DoneShort(2));
    far.write_all(b"ij").unwrap();
    let mut ended = recv(&mut buffer, libc::MSG_WAITALL);
    assert_eq!(ended.issue(inline(&near)), WOULD_READ);
    drop(far);
    assert_eq!(ended.issue(inline(&near)), Verdict::DoneShort(2));
}

#[test]
fn waitall_on_datagrams_only_breaks_links() {
    let (near, far) = UnixDatagram::pair().unwrap();
    let mut buffer = [0u8; 4];
    let mut attempt = |flags| recv(&mut buffer, flags).issue(inline(&near));
    for message in [&b"ab"[..], b"abcdef", b"abcdef"] {
        far.send(message).unwrap();
    }
    assert_eq!(attempt(libc::MSG_WAITALL), Verdict::DoneShort(2));
    assert_eq!(attempt(libc::MSG_WAITALL), Verdict::DoneShort(4));
    assert_eq!(attempt(0), Verdict::Done(4));
}

#[test]
fn send_fills_the_socket_then_waits() {
    let (near, mut far) = UnixStream::pair().unwrap();
    let data: Vec<u8> = (0..2_000_000).map(|i| (i * 7 % 251) as u8).collect();
    let mut op = send(&data, libc::MSG_WAITALL);
    let mut received = Vec::new();
    let mut part = vec![0; 65536];
    let result = loop {
        match op.issue(inline(&near)) {
            WOULD_WRITE => {
                let count = far.read(&mut part).unwrap();
                received.extend_from_slice(&part[..count]);
            }
            verdict => break verdict,
        }
    };
    assert_eq!(result, Verdict::Done(data.len() as i32));
    while received.len() < data.len() {
        let count = far.read(&mut part).unwrap();
        received.extend_from_slice(&part[..count]);
    }
    assert_eq!(received, data);
}

#[test]
fn a_send_to_nobody_is_epipe_without_a_signal() {
    let (near, _) = UnixStream::pair().unwrap();
    let sigpipe = 1u64 << (libc::SIGPIPE - 1);
    let set_mask = |how: i32, mask: &u64| {
        let args = [how as usize, mask as *const u64 as usize, 0, size_of::<u64>(), 0, 0];
        call(libc::SYS_rt_sigprocmask, args).unwrap();
    };
    // While a signal is blocked it stays pending, even if it is ignored.
    set_mask(libc::SIG_BLOCK, &sigpipe);
    let result = send(b"x", 0).issue(inline(&near));
    let mut pending = 0u64;
    call(libc::SYS_rt_sigpending, [&mut pending as *mut u64 as usize, size_of::<u64>(), 0, 0, 0, 0]).unwrap();
    set_mask(libc::SIG_UNBLOCK, &sigpipe);
    assert_eq!((result, pending & sigpipe), (Verdict::error(Errno::PIPE), 0));
}

#[test]
fn send_goes_to_the_address_as_it_was_at_submission() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut address = inet(receiver.local_addr().unwrap());
    let sqe = Sqe {
        off: &mut address as *mut _ as u64,
        file_index: size_of_val(&address) as u32,
        ..send_sqe(b"datagram", 0)
    };
    let mut send = Net::prep(Opcode::Send, &sqe).unwrap();
    std::hint::black_box(&mut address).sin_port = 0;
    assert_eq!(send.issue(inline(&sender)), Verdict::Done(8));
    let mut buffer = [0; 16];
    let (count, from) = receiver.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..count], from), (&b"datagram"[..], sender.local_addr().unwrap()));
    assert_eq!(Net::prep(Opcode::Send, &Sqe { file_index: 200, ..sqe }).err(), Some(Errno::INVAL));
    assert_eq!(Net::prep(Opcode::Send, &Sqe { file_index: 0x1_0010, ..sqe }).err(), Some(Errno::INVAL));
    assert_eq!(Net::prep(Opcode::Send, &Sqe { off: 8, ..sqe }).err(), Some(Errno::FAULT));
}

/// A `struct msghdr` in "program memory", as words.
fn header(name: (u64, u64), iovecs: &[[usize; 2]], control: &mut [u64]) -> [u64; 7] {
    let (at, length) = (control.as_mut_ptr() as u64, size_of_val(control) as u64);
    [name.0, name.1, iovecs.as_ptr() as u64, iovecs.len() as u64, at, length, 0]
}

fn message(opcode: Opcode, header: &mut [u64; 7], flags: i32) -> Result<Net, Errno> {
    let sqe = Sqe { addr: header.as_mut_ptr() as u64, len: 1, op_flags: flags as u32, ..Sqe::default() };
    Net::prep(opcode, &sqe)
}

#[test]
fn messages_survive_the_reuse_of_what_described_them() {
    let (near, far) = UnixStream::pair().unwrap();
    let (mut one, mut two) = ([0u8; 3], [0u8; 5]);
    let mut iovecs = [[one.as_mut_ptr() as usize, 3], [two.as_mut_ptr() as usize, 5]];
    let mut description = header((0, 0), &iovecs, &mut []);
    let mut recv = message(Opcode::Recvmsg, &mut description, libc::MSG_WAITALL).unwrap();
    assert_eq!(recv.issue(inline(&near)), WOULD_READ);
    std::hint::black_box(&mut iovecs)[0] = [8, 8];
    description[2..4].fill(8);

    let parts = [[b"ab".as_ptr() as usize, 2], [b"cdefgh".as_ptr() as usize, 6]];
    let mut out = header((0, 0), &parts[..1], &mut []);
    assert_eq!(message(Opcode::Sendmsg, &mut out, 0).unwrap().issue(inline(&far)), Verdict::Done(2));
    assert_eq!(recv.issue(inline(&near)), WOULD_READ);
    let mut out = header((0, 0), &parts[1..], &mut []);
    assert_eq!(message(Opcode::Sendmsg, &mut out, 0).unwrap().issue(inline(&far)), Verdict::Done(6));
    assert_eq!(recv.issue(inline(&near)), Verdict::Done(8));
    assert_eq!((&one, &two), (b"abc", b"defgh"));
    assert_eq!(description[6], 0, "msg_flags");
}

#[test]
fn recvmsg_writes_name_control_and_flags_to_the_programs_header() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let on = 1i32;
    let option = [&on as *const i32 as usize, size_of::<i32>()];
    let args = [receiver.as_raw_fd() as usize, libc::SOL_SOCKET as usize, libc::SO_TIMESTAMP as usize];
    call(libc::SYS_setsockopt, [args[0], args[1], args[2], option[0], option[1], 0]).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"longer than that", receiver.local_addr().unwrap()).unwrap();

    let mut buffer = [0u8; 6];
    let mut name = [0u64; 16];
    let mut control = [0u64; 16];
    let iovecs = [[buffer.as_mut_ptr() as usize, buffer.len()]];
    let mut description = header((name.as_mut_ptr() as u64, 128), &iovecs, &mut control);
    let mut recv = message(Opcode::Recvmsg, &mut description, libc::MSG_WAITALL).unwrap();
    assert_eq!(recv.issue(inline(&receiver)), Verdict::DoneShort(6), "cut");
    assert_eq!(&buffer, b"longer");
    assert_eq!(description[1] as u32, size_of::<libc::sockaddr_in>() as u32);
    // One control message: a header of 16 bytes and a timeval.
    assert_eq!((description[5], control[0]), (32, 32));
    assert_eq!(description[6] as u32, libc::MSG_TRUNC as u32);
    assert_eq!((name[0] as u16, (name[0] >> 16) as u16), {
        let from = inet(sender.local_addr().unwrap());
        (from.sin_family, from.sin_port)
    });
}

#[test]
fn sendmsg_passes_descriptors_and_names() {
    let (near, far) = UnixStream::pair().unwrap();
    let passed = std::fs::File::open("/dev/null").unwrap();
    // A cmsghdr: length, level and type, then the descriptor.
    let mut control = [20u64, (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64, passed.as_raw_fd() as u64];
    let iovecs = [[b"fd".as_ptr() as usize, 2]];
    let mut description = header((0, 0), &iovecs, &mut control);
    assert_eq!(message(Opcode::Sendmsg, &mut description, 0).unwrap().issue(inline(&near)), Verdict::Done(2));

    let mut buffer = [0u8; 2];
    let iovecs = [[buffer.as_mut_ptr() as usize, 2]];
    let mut control = [0u64; 4];
    let mut description = header((0, 0), &iovecs, &mut control);
    let mut recv = message(Opcode::Recvmsg, &mut description, libc::MSG_CMSG_CLOEXEC).unwrap();
    assert_eq!(recv.issue(inline(&far)), Verdict::Done(2));
    assert_eq!(control[..2], [20, (libc::SCM_RIGHTS as u64) << 32 | libc::SOL_SOCKET as u64]);
    drop(descriptor(Verdict::Descriptor(control[2] as i32)));
}

#[test]
fn bad_messages_are_refused_at_prep() {
    let (near, _far) = UnixStream::pair().unwrap();
    let many = vec![[8usize, 1]; 1025];
    let refused = |header: &mut [u64; 7]| message(Opcode::Sendmsg, header, 0).err();
    assert_eq!(refused(&mut header((0, 0), &many, &mut [])), Some(Errno::MSGSIZE));
    assert_eq!(refused(&mut header((8, u32::MAX.into()), &[], &mut [])), Some(Errno::INVAL));
    assert_eq!(refused(&mut header((8, 16), &[], &mut [])), Some(Errno::FAULT));
    assert_eq!(refused(&mut header((0, 0), &[[8, usize::MAX]], &mut [])), Some(Errno::INVAL));
    let nowhere = Sqe { addr: 8, ..Sqe::default() };
    assert_eq!(Net::prep(Opcode::Recvmsg, &nowhere).err(), Some(Errno::FAULT));
    let mut unreadable = header((0, 0), &[[8, 4]], &mut []);
    let sent = message(Opcode::Sendmsg, &mut unreadable, 0).map(|mut send| send.issue(inline(&near)));
    assert_eq!(sent.unwrap(), Verdict::error(Errno::FAULT));
}

#[test]
fn unknown_fields_of_transfers_are_refused() {
    let refused = |opcode, sqe: Sqe| Net::prep(opcode, &sqe).err();
    let good = send_sqe(&[0; 4], 0);
    assert_eq!(refused(Opcode::Recv, Sqe { off: 1, ..good }), Some(Errno::INVAL));
    assert_eq!(refused(Opcode::Recv, Sqe { file_index: 1, ..good }), Some(Errno::INVAL));
    assert_eq!(refused(Opcode::Sendmsg, Sqe { file_index: 1, ..good }), Some(Errno::INVAL));
    for opcode in [Opcode::Send, Opcode::Recv] {
        assert_eq!(refused(opcode, Sqe { len: 0x8000_0000, ..good }), Some(Errno::INVAL));
        assert_eq!(refused(opcode, Sqe { ioprio: 2, ..good }), Some(Errno::INVAL));
        assert_eq!(refused(opcode, Sqe { buf_index: 3, ..good }), None);
    }
}

fn accept(options: u32) -> Net {
    Net::prep(Opcode::Accept, &Sqe { ioprio: options as u16, ..Sqe::default() }).unwrap()
}

#[test]
fn accept_on_a_nonblocking_listener_is_inline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(accept(0).issue(inline(&listener)), WOULD_READ);
    assert_eq!(accept(IORING_ACCEPT_DONTWAIT).issue(inline(&listener)), Verdict::error(Errno::AGAIN));
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut late = accept(IORING_ACCEPT_POLL_FIRST);
    assert_eq!(late.wait_first(listener.as_raw_fd()), Some(Ok((Direction::Read, Skip::PollFirst))));
    let mut peer: TcpStream = descriptor(late.issue(inline(&listener))).into();
    drop(client);
    assert_eq!(peer.read(&mut [0; 4]).unwrap(), 0);
}

#[test]
fn accept_on_a_blocking_listener_is_a_workers_once_somebody_is_there() {
    let listener = UnixListener::bind_addr(&abstract_address("accept")).unwrap();
    let mut address = [0u64; 16];
    let mut length = 128u32;
    let (to, room) = (address.as_mut_ptr() as u64, &mut length as *mut u32 as u64);
    let sqe = Sqe { addr: to, off: room, op_flags: libc::SOCK_NONBLOCK as u32, ..Sqe::default() };
    let mut op = Net::prep(Opcode::Accept, &sqe).unwrap();
    assert_eq!(op.issue(inline(&listener)), WOULD_READ);
    assert_eq!(op.issue(on_worker(&listener)), WOULD_READ);
    assert_eq!(accept(IORING_ACCEPT_DONTWAIT).issue(inline(&listener)), Verdict::error(Errno::AGAIN));
    let _client = UnixStream::connect_addr(&abstract_address("accept")).unwrap();
    assert_eq!(op.issue(inline(&listener)), Verdict::NeedsWorker(Punt::NoForm));
    let peer = descriptor(op.issue(on_worker(&listener)));
    assert!(!is_blocking(peer.as_raw_fd()));
    assert_eq!((length, address[0] as u16), (2, libc::AF_UNIX as u16));
}

fn abstract_address(test: &str) -> std::os::unix::net::SocketAddr {
    let name = format!("anyring-net-{}-{test}", std::process::id());
    <std::os::unix::net::SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name).unwrap()
}

#[test]
fn accept_fails_at_once_on_what_does_not_listen() {
    let (connected, _peer) = UnixStream::pair().unwrap();
    assert_eq!(accept(0).issue(inline(&connected)), Verdict::error(Errno::INVAL));
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(accept(0).issue(inline(&file)), Verdict::error(Errno::NOTSOCK));
    assert_eq!(accept(0).issue(inline(&99_999)), Verdict::error(Errno::BADF));
    let refused = |sqe: Sqe| Net::prep(Opcode::Accept, &sqe).err();
    let given_slot = Sqe { ioprio: IORING_ACCEPT_MULTISHOT as u16, file_index: 1, ..Sqe::default() };
    assert_eq!(refused(given_slot), Some(Errno::INVAL));
    assert_eq!(refused(Sqe { len: 1, ..Sqe::default() }), Some(Errno::INVAL));
    assert_eq!(refused(Sqe { op_flags: 1, ..Sqe::default() }), Some(Errno::INVAL));
    let slot = Sqe { op_flags: libc::SOCK_CLOEXEC as u32, file_index: 1, ..Sqe::default() };
    assert_eq!(refused(slot), Some(Errno::INVAL));
}

#[test]
fn connect_of_a_blocking_stream_is_a_workers_and_of_a_nonblocking_one_goes_on_by_readiness() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = inet(listener.local_addr().unwrap());
    let socket = |kind| {
        let sqe = Sqe { fd: libc::AF_INET, off: kind as u64, ..Sqe::default() };
        descriptor(Net::prep(Opcode::Socket, &sqe).unwrap().issue(Context { fd: -1, nonblock: true }))
    };
    let blocking = socket(libc::SOCK_STREAM);
    let mut op = connect(&address);
    assert_eq!(op.issue(inline(&blocking)), Verdict::NeedsWorker(Punt::NoForm));
    assert_eq!(op.issue(on_worker(&blocking)), Verdict::Done(0));
    assert_eq!(connect(&address).issue(on_worker(&blocking)), Verdict::error(Errno::ISCONN));

    let nonblocking = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    assert_eq!(through_readiness(connect(&address), &nonblocking), Verdict::Done(0));
    drop(listener);
    let refused = socket(libc::SOCK_STREAM | libc::SOCK_NONBLOCK);
    assert_eq!(through_readiness(connect(&address), &refused), Verdict::error(Errno::CONNREFUSED));
    assert_eq!(connect(&address).issue(inline(&socket(libc::SOCK_DGRAM))), Verdict::Done(0));
}

/// Issues the operation until it has a result, and waits before each further attempt until the socket is writable.
fn through_readiness(mut op: Net, socket: &OwnedFd) -> Verdict {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    assert_eq!(op.issue(inline(socket)), WOULD_WRITE);
    Sys::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), libc::EPOLLOUT as u32, 0).unwrap();
    loop {
        let mut events = [EpollEvent::default(); 1];
        assert_eq!(Sys::epoll_wait(epoll.as_raw_fd(), &mut events, Some(5_000_000_000), None), Ok(1));
        match op.issue(inline(socket)) {
            WOULD_WRITE => {}
            verdict => return verdict,
        }
    }
}

#[test]
fn a_full_nonblocking_unix_listener_is_eagain_as_it_is_natively() {
    let address = abstract_address("full");
    let listener = UnixListener::bind_addr(&address).unwrap();
    call(libc::SYS_listen, [listener.as_raw_fd() as usize, 0, 0, 0, 0, 0]).unwrap();
    let _queued = UnixStream::connect_addr(&address).unwrap();
    let name = address_bytes(&listener);
    let sqe = Sqe { addr: name.as_ptr() as u64, off: name.len() as u64, ..Sqe::default() };
    let new = Sqe { fd: libc::AF_UNIX, off: (libc::SOCK_STREAM | libc::SOCK_NONBLOCK) as u64, ..Sqe::default() };
    let socket = descriptor(Net::prep(Opcode::Socket, &new).unwrap().issue(Context { fd: -1, nonblock: true }));
    let mut op = Net::prep(Opcode::Connect, &sqe).unwrap();
    assert_eq!(op.issue(inline(&socket)), Verdict::error(Errno::AGAIN));
}

fn address_bytes(socket: &impl AsRawFd) -> Vec<u8> {
    let mut bytes = vec![0u8; ADDRESS_BYTES_MAX];
    let mut length = bytes.len() as u32;
    let (to, room) = (bytes.as_mut_ptr() as usize, &mut length as *mut u32 as usize);
    call(libc::SYS_getsockname, [socket.as_raw_fd() as usize, to, room, 0, 0, 0]).unwrap();
    bytes.truncate(length as usize);
    bytes
}

#[test]
fn sockets_shutdown_and_their_checks() {
    let refused = |opcode, sqe: Sqe| Net::prep(opcode, &sqe).err();
    let stream = Sqe { fd: libc::AF_UNIX, off: libc::SOCK_STREAM as u64, ..Sqe::default() };
    assert_eq!(refused(Opcode::Socket, Sqe { off: stream.off | 0x100, ..stream }), Some(Errno::INVAL));
    assert_eq!(refused(Opcode::Socket, Sqe { op_flags: 1, ..stream }), Some(Errno::INVAL));
    let cloexec = stream.off | libc::SOCK_CLOEXEC as u64;
    assert_eq!(refused(Opcode::Socket, Sqe { off: cloexec, file_index: 1, ..stream }), Some(Errno::INVAL));
    let slotted = Net::prep(Opcode::Socket, &Sqe { off: stream.off | 1 << 40, file_index: 3, ..stream }).unwrap();
    assert_eq!(slotted.slot(), 3);
    let (mut slotted, nowhere) = (slotted, Context { fd: -1, nonblock: true });
    let fd = descriptor(slotted.issue(nowhere));
    assert_eq!(call(libc::SYS_fcntl, [fd.as_raw_fd() as usize, libc::F_GETFD as usize, 0, 0, 0, 0]), Ok(1));
    let mut unknown = Net::prep(Opcode::Socket, &Sqe { fd: 9999, ..stream }).unwrap();
    assert_eq!(unknown.issue(nowhere), Verdict::error(Errno::AFNOSUPPORT));

    let (near, mut far) = UnixStream::pair().unwrap();
    let shutdown = |how| Net::prep(Opcode::Shutdown, &Sqe { len: how, ..Sqe::default() }).unwrap();
    assert_eq!(shutdown(7).issue(inline(&near)), Verdict::uncounted(Err(Errno::INVAL)));
    assert_eq!(shutdown(libc::SHUT_WR as u32).issue(inline(&near)), Verdict::Done(0));
    assert_eq!(far.read(&mut [0; 4]).unwrap(), 0);
    assert_eq!(refused(Opcode::Shutdown, Sqe { off: 1, ..Sqe::default() }), Some(Errno::INVAL));
    assert_eq!(refused(Opcode::Connect, Sqe { off: 200, ..Sqe::default() }), Some(Errno::INVAL));
    assert_eq!(refused(Opcode::Connect, Sqe { addr: 8, off: 16, ..Sqe::default() }), Some(Errno::FAULT));
    assert_eq!(refused(Opcode::Connect, Sqe { len: 1, ..Sqe::default() }), Some(Errno::INVAL));
}

/// Simulates gVisor, which accepts MSG_WAITALL for sendto(2) only.
#[test]
fn waitall_of_a_sent_message_is_ours() {
    const REFUSED: u64 = (libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u64;
    crate::os::refusing::refusing(&[(libc::SYS_sendmsg, Some((2, REFUSED)), libc::EINVAL)], || {
        let (near, mut far) = UnixStream::pair().unwrap();
        let iovecs = [[b"one".as_ptr() as usize, 3], [b"two".as_ptr() as usize, 3]];
        let mut description = header((0, 0), &iovecs, &mut []);
        let mut send = message(Opcode::Sendmsg, &mut description, libc::MSG_WAITALL).unwrap();
        assert_eq!(send.issue(inline(&near)), Verdict::Done(6));
        let mut buffer = [0; 8];
        assert_eq!((far.read(&mut buffer).unwrap(), &buffer[..6]), (6, &b"onetwo"[..]));
    });
}
