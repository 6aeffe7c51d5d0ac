//! Moves some megabytes over a file and over loopback TCP with the crate `io-uring`, and verifies both by checksum.
//!
//! usage: client-io-uring FILE

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::mem;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use io_uring::{opcode, squeue, types, IoUring};

const BLOCK: usize = 64 << 10;
const DEPTH: usize = 16;
const FILE_BYTES: usize = 8 << 20;
const TCP_BYTES: usize = 4 << 20;
const TIMEOUT_MS: u64 = 20;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: client-io-uring FILE")?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
    let mut ring = IoUring::new(64).context("io_uring_setup")?;
    let data = pattern(FILE_BYTES);
    write_blocks(&mut ring, &file, &data)?;
    read_blocks(&mut ring, &file, &data)?;
    vectored(&mut ring, &file)?;
    timeout(&mut ring)?;
    drop(ring);
    echo(&pattern(TCP_BYTES))?;
    println!("client-io-uring: file {FILE_BYTES} bytes, tcp {TCP_BYTES} bytes each way, checksums equal");
    Ok(())
}

/// Bytes without a short period, so that a block at the wrong place cannot look right.
fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Pushes entries, enters once, waits for all of them and returns their results by user_data.
///
/// Every buffer that an entry points to must live until this returns; it returns only when nothing is in flight.
fn run(ring: &mut IoUring, entries: &[squeue::Entry]) -> Result<Vec<i32>> {
    for (index, entry) in entries.iter().enumerate() {
        let entry = entry.clone().user_data(index as u64);
        // SAFETY: the callers below keep buffers and descriptors alive until `run` has reaped every completion.
        unsafe { ring.submission().push(&entry) }.context("the submission queue is full")?;
    }
    let submitted = ring.submit_and_wait(entries.len()).context("io_uring_enter")?;
    ensure!(submitted == entries.len(), "{submitted} of {} entries were submitted", entries.len());
    let mut results = vec![0; entries.len()];
    let mut seen = HashSet::new();
    for cqe in ring.completion() {
        let index = cqe.user_data() as usize;
        ensure!(index < entries.len() && seen.insert(index), "user_data {index} came twice or was never ours");
        results[index] = cqe.result();
    }
    ensure!(seen.len() == entries.len(), "only {} of {} completions came", seen.len(), entries.len());
    Ok(results)
}

/// Runs one entry and returns its result, a negative one as an error.
fn run_one(ring: &mut IoUring, what: &str, entry: squeue::Entry) -> Result<i32> {
    let result = run(ring, &[entry])?[0];
    if result < 0 {
        bail!("{what}: {}", io::Error::from_raw_os_error(-result));
    }
    Ok(result)
}

fn write_blocks(ring: &mut IoUring, file: &File, data: &[u8]) -> Result<()> {
    let fd = types::Fd(file.as_raw_fd());
    for (batch, bytes) in data.chunks(BLOCK * DEPTH).enumerate() {
        let entry = |(index, block): (usize, &[u8])| {
            let offset = (batch * DEPTH + index) * BLOCK;
            opcode::Write::new(fd, block.as_ptr(), block.len() as u32).offset(offset as u64).build()
        };
        let entries: Vec<_> = bytes.chunks(BLOCK).enumerate().map(entry).collect();
        let results = run(ring, &entries)?;
        ensure!(results.iter().all(|&n| n == BLOCK as i32), "writes completed with {results:?}");
    }
    run_one(ring, "fsync", opcode::Fsync::new(fd).build())?;
    Ok(())
}

fn read_blocks(ring: &mut IoUring, file: &File, expected: &[u8]) -> Result<()> {
    let fd = types::Fd(file.as_raw_fd());
    let mut read = vec![0_u8; expected.len()];
    for (batch, bytes) in read.chunks_mut(BLOCK * DEPTH).enumerate() {
        let entry = |(index, block): (usize, &mut [u8])| {
            let offset = (batch * DEPTH + index) * BLOCK;
            opcode::Read::new(fd, block.as_mut_ptr(), block.len() as u32).offset(offset as u64).build()
        };
        let entries: Vec<_> = bytes.chunks_mut(BLOCK).enumerate().map(entry).collect();
        let results = run(ring, &entries)?;
        ensure!(results.iter().all(|&n| n == BLOCK as i32), "reads completed with {results:?}");
    }
    ensure!(crc32fast::hash(&read) == crc32fast::hash(expected), "the file's checksum differs");
    Ok(())
}

/// A linked pair: three buffers written at once past the end, then read back into two.
fn vectored(ring: &mut IoUring, file: &File) -> Result<()> {
    let fd = types::Fd(file.as_raw_fd());
    let out = [&b"vectored "[..], b"write and ", b"read"];
    let out_iovecs = out.map(|part| libc_iovec(part.as_ptr().cast_mut(), part.len()));
    let (mut first, mut second) = ([0_u8; 10], [0_u8; 13]);
    let in_iovecs = [libc_iovec(first.as_mut_ptr(), first.len()), libc_iovec(second.as_mut_ptr(), second.len())];
    let write = opcode::Writev::new(fd, out_iovecs.as_ptr().cast(), 3).offset(FILE_BYTES as u64).build();
    let read = opcode::Readv::new(fd, in_iovecs.as_ptr().cast(), 2).offset(FILE_BYTES as u64).build();
    let results = run(ring, &[write.flags(squeue::Flags::IO_LINK), read])?;
    ensure!(results == [23, 23], "the linked writev and readv completed with {results:?}");
    ensure!([&first[..], &second].concat() == out.concat(), "readv returned other bytes");
    Ok(())
}

/// `struct iovec`, which the crate takes by pointer but does not define.
#[repr(C)]
struct Iovec {
    base: *mut u8,
    len: usize,
}

fn libc_iovec(base: *mut u8, len: usize) -> Iovec {
    Iovec { base, len }
}

fn timeout(ring: &mut IoUring) -> Result<()> {
    let duration = Duration::from_millis(TIMEOUT_MS);
    let timespec = types::Timespec::from(duration);
    let start = Instant::now();
    let result = run(ring, &[opcode::Timeout::new(&timespec).build()])?[0];
    const ETIME: i32 = 62;
    ensure!(result == -ETIME, "the timeout completed with {result}");
    ensure!(start.elapsed() >= duration, "the timeout came after {:?}", start.elapsed());
    Ok(())
}

/// Sends the data to an echo server on 127.0.0.1 and compares the checksum of the echo. Client and server have a ring
/// each. The client receives on a thread of its own, so that neither side's buffers fill up forever.
fn echo(data: &[u8]) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let mut ring = IoUring::new(8)?;
    let socket = connect(&mut ring, port)?; // the listener's backlog answers it
    thread::scope(|scope| {
        let server = scope.spawn(|| send_back(&listener));
        let receiver = scope.spawn(|| receive(&socket, data.len()));
        send(&mut ring, socket.as_raw_fd(), data)?;
        run_one(&mut ring, "shutdown", opcode::Shutdown::new(types::Fd(socket.as_raw_fd()), 1).build())?;
        let received = receiver.join().expect("the receiver panicked")?;
        ensure!(received == crc32fast::hash(data), "the echo's checksum differs");
        server.join().expect("the server panicked")
    })
}

fn connect(ring: &mut IoUring, port: u16) -> Result<OwnedFd> {
    const AF_INET: u16 = 2;
    const SOCK_STREAM: i32 = 1;
    let fd = run_one(ring, "socket", opcode::Socket::new(i32::from(AF_INET), SOCK_STREAM, 0).build())?;
    // SAFETY: the ring has just made this descriptor for us, and it has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut address = [0_u8; 16]; // struct sockaddr_in
    address[..2].copy_from_slice(&AF_INET.to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
    let entry = opcode::Connect::new(types::Fd(fd), address.as_ptr().cast(), mem::size_of_val(&address) as u32);
    run_one(ring, "connect", entry.build())?;
    Ok(socket)
}

fn send(ring: &mut IoUring, fd: RawFd, mut data: &[u8]) -> Result<()> {
    while !data.is_empty() {
        let chunk = &data[..data.len().min(BLOCK)];
        let entry = opcode::Send::new(types::Fd(fd), chunk.as_ptr(), chunk.len() as u32);
        let sent = run_one(ring, "send", entry.build())?;
        data = &data[sent as usize..];
    }
    Ok(())
}

/// Receives until the peer shuts down and returns the checksum of all of it.
fn receive(socket: &OwnedFd, expected_len: usize) -> Result<u32> {
    let mut ring = IoUring::new(8)?;
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0_u8; BLOCK];
    let mut total = 0;
    loop {
        let n = recv(&mut ring, socket.as_raw_fd(), &mut buffer)?;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        total += n;
    }
    ensure!(total == expected_len, "{total} of {expected_len} bytes came back");
    Ok(hasher.finalize())
}

fn recv(ring: &mut IoUring, fd: RawFd, buffer: &mut [u8]) -> Result<usize> {
    let entry = opcode::Recv::new(types::Fd(fd), buffer.as_mut_ptr(), buffer.len() as u32);
    Ok(run_one(ring, "recv", entry.build())? as usize)
}

/// Accepts one connection and sends back whatever it receives.
fn send_back(listener: &TcpListener) -> Result<()> {
    let mut ring = IoUring::new(8)?;
    let accept = opcode::Accept::new(types::Fd(listener.as_raw_fd()), std::ptr::null_mut(), std::ptr::null_mut());
    let fd = run_one(&mut ring, "accept", accept.build())?;
    let mut buffer = vec![0_u8; BLOCK];
    loop {
        let n = recv(&mut ring, fd, &mut buffer)?;
        if n == 0 {
            break;
        }
        send(&mut ring, fd, &buffer[..n])?;
    }
    run_one(&mut ring, "close", opcode::Close::new(types::Fd(fd)).build())?;
    Ok(())
}
