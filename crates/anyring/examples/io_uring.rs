//! Reads the beginning of a file with the crate io-uring, even where the kernel refuses io_uring.

use io_uring::{opcode, types, IoUring};
use std::os::fd::AsRawFd;

fn main() -> std::io::Result<()> {
    println!("served by {:?}", anyring::install()?);
    let file = std::fs::File::open(std::env::args().nth(1).unwrap_or("Cargo.toml".to_owned()))?;
    let mut ring = IoUring::new(8)?;
    let mut text = [0; 64];
    let read = opcode::Read::new(types::Fd(file.as_raw_fd()), text.as_mut_ptr(), text.len() as u32).build();
    // SAFETY: the file and the buffer live until the completion has arrived.
    unsafe { ring.submission().push(&read).expect("the queue is empty") };
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().expect("it was waited for").result();
    if result < 0 {
        return Err(std::io::Error::from_raw_os_error(-result));
    }
    println!("{result} bytes");
    Ok(())
}
