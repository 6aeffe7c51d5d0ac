//! pthreads(7): a pool of threads that make blocking calls, as usual in programs: a queue, a mutex, two condition
//! variables.

use super::{Transfer, Transfers};
use crate::outcome::Outcome;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Number of threads, as in libuv.
const THREADS: usize = 4;

struct Job(u64, Transfer);

// SAFETY: the memory of a transfer is the pool's alone until its end (see Transfer).
unsafe impl Send for Job {}

#[derive(Default)]
struct Shared {
    queue: Mutex<VecDeque<Job>>,
    queued: Condvar,
    ended: Mutex<Vec<(u64, i64)>>,
    done: Condvar,
}

/// The pool. Its threads end with the process.
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// Starts the threads.
    pub fn new() -> Outcome<Self> {
        let shared = Arc::new(Shared::default());
        for _ in 0..THREADS {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().spawn(move || work(&shared))?;
        }
        Ok(Pool { shared })
    }
}

fn work(shared: &Shared) {
    loop {
        let Job(slot, transfer) = {
            let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
            loop {
                match queue.pop_front() {
                    Some(job) => break job,
                    None => queue = shared.queued.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        let result = carry_out(&transfer);
        shared.ended.lock().unwrap_or_else(PoisonError::into_inner).push((slot, result));
        shared.done.notify_one();
    }
}

/// Makes the blocking call.
pub fn carry_out(what: &Transfer) -> i64 {
    let (address, bytes) = (what.address.cast::<libc::c_void>(), what.bytes as usize);
    // SAFETY: the caller's memory, for this call only until it returns.
    let result = unsafe {
        match (what.write, what.offset) {
            (false, None) => libc::read(what.fd, address, bytes),
            (false, Some(offset)) => libc::pread(what.fd, address, bytes, offset as i64),
            (true, None) => libc::write(what.fd, address, bytes),
            (true, Some(offset)) => libc::pwrite(what.fd, address, bytes, offset as i64),
        }
    };
    match result {
        -1 => -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        result => result as i64,
    }
}

impl Transfers for Pool {
    fn begin(&mut self, slot: u64, transfer: Transfer) -> Outcome<()> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(Job(slot, transfer));
        self.shared.queued.notify_one();
        Ok(())
    }

    fn flush(&mut self) -> Outcome<()> {
        Ok(())
    }

    fn wait(&mut self, ended: &mut Vec<(u64, i64)>) -> Outcome<()> {
        let mut results = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while results.is_empty() {
            results = self.shared.done.wait(results).unwrap_or_else(PoisonError::into_inner);
        }
        ended.append(&mut results);
        Ok(())
    }
}
