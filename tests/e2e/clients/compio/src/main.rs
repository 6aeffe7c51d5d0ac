//! Moves some megabytes over a file and over loopback TCP with compio, on a runtime each of several threads, and verifies both
//! by checksum.
//!
//! usage: client-compio FILE

use std::net::Ipv4Addr;

use anyhow::{ensure, Context, Result};
use compio::buf::BufResult;
use compio::fs::OpenOptions;
use compio::io::{AsyncReadAtExt, AsyncReadExt, AsyncWriteAtExt, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};
use compio::runtime::{spawn, Runtime};

const BLOCK: usize = 64 << 10;
const DEPTH: usize = 16;
const THREADS: usize = 3;
const FILE_BYTES: usize = 4 << 20;
const TCP_BYTES: usize = 2 << 20;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).context("usage: client-compio FILE")?;
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let path = format!("{path}.{number}");
            std::thread::spawn(move || Runtime::new()?.block_on(both(&path)))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread that did not panic")?;
    }
    println!(
        "client-compio: {THREADS} threads, file {FILE_BYTES} bytes, tcp {TCP_BYTES} bytes each way, checksums equal"
    );
    Ok(())
}

async fn both(path: &str) -> Result<()> {
    file_round_trip(path).await?;
    echo().await
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
    for first in (0..FILE_BYTES / BLOCK).step_by(DEPTH) {
        let tasks: Vec<_> = (first..first + DEPTH)
            .map(|index| {
                let mut file = file.clone();
                spawn(async move { file.write_all_at(block(index), (index * BLOCK) as u64).await.0 })
            })
            .collect();
        for task in tasks {
            task.await.map_err(|_| anyhow::anyhow!("a task panicked"))?.context("writing")?;
        }
    }
    file.sync_all().await?;
    for index in 0..FILE_BYTES / BLOCK {
        let BufResult(result, read) = file.read_exact_at(vec![0; BLOCK], (index * BLOCK) as u64).await;
        result.with_context(|| format!("reading block {index}"))?;
        verify(&read, index)?;
    }
    file.close().await?;
    Ok(())
}

fn verify(read: &[u8], index: usize) -> Result<()> {
    ensure!(crc32fast::hash(read) == crc32fast::hash(&block(index)), "the checksum of block {index} differs");
    Ok(())
}

/// Sends blocks to an echo server on 127.0.0.1, a task of its own, and verifies what comes back.
async fn echo() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let server = spawn(async move {
        let (mut stream, _) = listener.accept().await?;
        for _ in 0..TCP_BYTES / BLOCK {
            let BufResult(result, buffer) = stream.read_exact(vec![0; BLOCK]).await;
            result?;
            stream.write_all(buffer).await.0?;
        }
        std::io::Result::Ok(())
    });
    let mut stream = TcpStream::connect(address).await?;
    for index in 0..TCP_BYTES / BLOCK {
        stream.write_all(block(index)).await.0?;
        let BufResult(result, read) = stream.read_exact(vec![0; BLOCK]).await;
        result?;
        verify(&read, index)?;
    }
    server.await.map_err(|_| anyhow::anyhow!("the server panicked"))??;
    Ok(())
}
