//! Moves some megabytes over a file and over loopback TCP with tokio-uring, and verifies both by checksum.
//!
//! usage: client-tokio-uring FILE

use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use anyhow::{ensure, Context, Result};
use tokio_uring::fs::{File, OpenOptions};
use tokio_uring::net::{TcpListener, TcpStream};

const BLOCK: usize = 64 << 10;
const DEPTH: usize = 16;
const FILE_BYTES: usize = 8 << 20;
const TCP_BYTES: usize = 4 << 20;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: client-tokio-uring FILE")?;
    tokio_uring::start(async {
        file_round_trip(&path).await?;
        echo().await
    })?;
    println!("client-tokio-uring: file {FILE_BYTES} bytes, tcp {TCP_BYTES} bytes each way, checksums equal");
    Ok(())
}

/// The block that belongs at this index: its bytes depend on the index, so that a misplaced block shows.
fn block(index: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32.wrapping_mul(index as u32 + 1) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 11) as u8
    };
    std::iter::repeat_with(next).take(BLOCK).collect()
}

async fn file_round_trip(path: &str) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).await?;
    let file = Rc::new(file);
    for first in (0..FILE_BYTES / BLOCK).step_by(DEPTH) {
        in_parallel(first, |index| write_block(Rc::clone(&file), index)).await?;
    }
    file.sync_all().await?;
    for first in (0..FILE_BYTES / BLOCK).step_by(DEPTH) {
        in_parallel(first, |index| read_block(Rc::clone(&file), index)).await?;
    }
    let file = Rc::try_unwrap(file).ok().context("a finished task still holds the file")?;
    file.close().await?;
    Ok(())
}

/// Runs `work` for DEPTH blocks at once, so that the ring has as many requests in flight.
async fn in_parallel<F, W>(first: usize, work: W) -> Result<()>
where
    F: std::future::Future<Output = Result<()>> + 'static,
    W: Fn(usize) -> F,
{
    let tasks: Vec<_> = (first..first + DEPTH).map(|index| tokio_uring::spawn(work(index))).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

async fn write_block(file: Rc<File>, index: usize) -> Result<()> {
    let (result, _) = file.write_all_at(block(index), (index * BLOCK) as u64).await;
    result.with_context(|| format!("writing block {index}"))
}

async fn read_block(file: Rc<File>, index: usize) -> Result<()> {
    let (result, read) = file.read_exact_at(vec![0; BLOCK], (index * BLOCK) as u64).await;
    result.with_context(|| format!("reading block {index}"))?;
    ensure!(crc32fast::hash(&read) == crc32fast::hash(&block(index)), "the checksum of block {index} differs");
    Ok(())
}

/// Sends blocks to an echo server on 127.0.0.1 and compares the checksum of the echo. The client's reader is a task
/// of its own, so that neither side's buffers fill up forever.
async fn echo() -> Result<()> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    let server = tokio_uring::spawn(send_back(listener));
    let stream = Rc::new(TcpStream::connect(address).await?);
    let receiver = tokio_uring::spawn(receive(Rc::clone(&stream)));
    let mut sent = crc32fast::Hasher::new();
    for index in 0..TCP_BYTES / BLOCK {
        let (result, bytes) = stream.write_all(block(index)).await;
        result.context("sending")?;
        sent.update(&bytes);
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    ensure!(receiver.await?? == sent.finalize(), "the echo's checksum differs");
    server.await?
}

/// Receives until the peer shuts down and returns the checksum of all of it.
async fn receive(stream: Rc<TcpStream>) -> Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; BLOCK];
    let mut total = 0;
    loop {
        let (result, returned) = stream.read(buffer).await;
        let n = result.context("receiving")?;
        buffer = returned;
        if n == 0 {
            break;
        }
        hasher.update(&buffer[..n]);
        total += n;
    }
    ensure!(total == TCP_BYTES, "{total} of {TCP_BYTES} bytes came back");
    Ok(hasher.finalize())
}

/// Accepts one connection and sends back whatever it receives.
async fn send_back(listener: TcpListener) -> Result<()> {
    let (stream, _) = listener.accept().await?;
    let mut buffer = vec![0; BLOCK];
    loop {
        let (result, mut returned) = stream.read(buffer).await;
        let n = result?;
        if n == 0 {
            return Ok(());
        }
        returned.truncate(n);
        let (result, mut returned) = stream.write_all(returned).await;
        result?;
        returned.resize(BLOCK, 0);
        buffer = returned;
    }
}
