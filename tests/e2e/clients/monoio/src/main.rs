//! A monoio runtime in each thread. Connections echo, and a timer cancels reads that wait. Other threads wake threads
//! whose rings sleep. Each verifies its data.
//!
//! usage: client-monoio

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::mpsc::{channel, Receiver, TryRecvError};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};
use monoio::io::{AsyncReadRent, AsyncReadRentExt, AsyncWriteRentExt, CancelableAsyncReadRent, Canceller};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};

const CONNECTIONS: usize = 32;
const ROUNDS: usize = 20;
const THREADS: usize = 2;
const MESSAGES: u64 = 200;

fn main() -> Result<()> {
    // `FusionDriver` would use epoll where io_uring is missing.
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().enable_timer().build()?;
    runtime.block_on(echo())?;
    wakes()?;
    println!("client-monoio: {CONNECTIONS} connections echoed, {THREADS} threads woken, all as they should be");
    Ok(())
}

async fn echo() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    monoio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            monoio::spawn(send_back(stream));
        }
    });
    let clients: Vec<_> = (0..CONNECTIONS).map(|index| monoio::spawn(ask(address, index))).collect();
    for client in clients {
        client.await?;
    }
    Ok(())
}

async fn send_back(mut stream: TcpStream) {
    let mut buffer = vec![0; 4096];
    loop {
        let (count, mut bytes) = stream.read(buffer).await;
        let Ok(count @ 1..) = count else { return };
        bytes.truncate(count);
        let (written, bytes) = stream.write_all(bytes).await;
        if written.is_err() {
            return;
        }
        buffer = bytes;
        buffer.resize(4096, 0);
    }
}

async fn ask(address: SocketAddr, index: usize) -> Result<()> {
    let mut stream = TcpStream::connect(address).await?;
    for round in 0..ROUNDS {
        let length = 1 + (index * 37 + round * 11) % 4000;
        let (written, sent) = stream.write_all(vec![(index + round) as u8; length]).await;
        written?;
        let (read, got) = stream.read_exact(vec![0; length]).await;
        read?;
        ensure!(got == sent, "connection {index} got other bytes in round {round}");
        if round % 5 == 0 {
            cancel_a_read(&mut stream).await?;
        }
    }
    Ok(())
}

/// A read that never gets data, which a timer cancels.
async fn cancel_a_read(stream: &mut TcpStream) -> Result<()> {
    let canceller = Canceller::new();
    let mut read = Box::pin(stream.cancelable_read(vec![0; 16], canceller.handle()));
    monoio::select! {
        _ = &mut read => return Err(anyhow!("a read of nothing ended")),
        () = monoio::time::sleep(Duration::from_millis(1)) => {}
    }
    canceller.cancel();
    let (result, _) = read.await;
    let error = result.err().context("a cancelled read had bytes")?;
    ensure!(error.raw_os_error() == Some(125), "a cancelled read ended with {error}");
    Ok(())
}

/// Threads whose rings sleep until others wake them. Each adds up the numbers that it is sent.
fn wakes() -> Result<()> {
    for _ in 0..THREADS {
        let (to_it, from_us) = channel();
        let waker = Arc::new(Mutex::new(None::<Waker>));
        let theirs = Arc::clone(&waker);
        let thread = std::thread::spawn(move || -> Result<u64> {
            let mut runtime = RuntimeBuilder::<IoUringDriver>::new().enable_timer().build()?;
            Ok(runtime.block_on(sum(from_us, theirs)))
        });
        for message in 1..=MESSAGES {
            to_it.send(message)?;
            if let Some(waker) = waker.lock().expect("no thread panics with it").take() {
                waker.wake();
            }
            if message % 20 == 0 {
                while waker.lock().expect("no thread panics with it").is_none() {
                    std::thread::yield_now(); // it has not taken them all yet
                }
                std::thread::sleep(Duration::from_millis(2)); // it goes to sleep, if the machine lets it
            }
        }
        drop(to_it);
        if let Some(waker) = waker.lock().expect("no thread panics with it").take() {
            waker.wake();
        }
        let sum = thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        ensure!(sum == MESSAGES * (MESSAGES + 1) / 2, "a thread got {sum}");
    }
    Ok(())
}

async fn sum(messages: Receiver<u64>, waker: Arc<Mutex<Option<Waker>>>) -> u64 {
    let mut sum = 0;
    poll_fn(|context| {
        // Stored before the check: a later sender finds it.
        *waker.lock().expect("no thread panics with it") = Some(context.waker().clone());
        loop {
            match messages.try_recv() {
                Ok(message) => sum += message,
                Err(TryRecvError::Empty) => return Poll::Pending,
                Err(TryRecvError::Disconnected) => return Poll::Ready(sum),
            }
        }
    })
    .await
}
