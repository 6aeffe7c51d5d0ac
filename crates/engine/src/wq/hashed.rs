//! Serialisation of jobs that change one file. They are made one after the other, in the order in which they were
//! queued. So two writes to the same page, or a write and a later truncation, have the same result as in the kernel.
//! Source: `io_prep_async_work` in io_uring/io_uring.c, `io_wq_hash_work` in io_uring/io-wq.c.
//!
//! This state is part of the pool, under the pool's lock.

use crate::mutation::{mutated, Mutation};
use crate::wq::Job;
use std::collections::{BTreeMap, TryReserveError, VecDeque};
use std::sync::Arc;

/// The file that a job changes: its device and inode number.
pub type Inode = (u64, u64);

/// The jobs that wait for an earlier job on the same inode. An inode is present while one of its jobs runs, or is ready
/// to run.
pub struct Hashed {
    queued: BTreeMap<Inode, VecDeque<Arc<Job>>>,
    /// Number of jobs that wait, in all.
    waiting: usize,
}

impl Hashed {
    /// The value when nothing is queued or running.
    pub const NONE: Hashed = Hashed { queued: BTreeMap::new(), waiting: 0 };

    /// Returns the number of jobs that wait for others.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns the job if it may run now. `None` if it waits in this value.
    ///
    /// # Errors
    /// There is no memory for the job to wait.
    pub fn admit(&mut self, job: Arc<Job>) -> Result<Option<Arc<Job>>, TryReserveError> {
        let inode = job.inode.filter(|_| !mutated(Mutation::WritesToOneFileAtOnce));
        let Some(inode) = inode else { return Ok(Some(job)) };
        if let Some(queued) = self.queued.get_mut(&inode) {
            queued.try_reserve(1)?;
            queued.push_back(job);
            self.waiting += 1;
            return Ok(None);
        }
        self.queued.insert(inode, VecDeque::new());
        Ok(Some(job))
    }

    /// True if a job of this inode is queued, or runs.
    pub fn has(&self, inode: Inode) -> bool {
        self.queued.contains_key(&inode)
    }

    /// Records that a job of this inode has been made. Returns the next job of the inode, which may run now.
    pub fn done(&mut self, inode: Inode) -> Option<Arc<Job>> {
        let next = self.queued.get_mut(&inode)?.pop_front();
        match next {
            Some(_) => self.waiting -= 1,
            None => drop(self.queued.remove(&inode)),
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_one_inode_come_one_by_one_and_in_order() {
        let mut hashed = Hashed::NONE;
        let jobs: Vec<_> = (0..3).map(|_| Job::idle(Some((1, 2)))).collect();
        let turns: Vec<bool> = jobs.iter().map(|job| hashed.admit(job.clone()).unwrap().is_some()).collect();
        assert_eq!(turns, [true, false, false]);
        assert!(hashed.admit(Job::idle(Some((1, 3)))).unwrap().is_some(), "another file");
        assert!(hashed.admit(Job::idle(None)).unwrap().is_some(), "no file");
        for next in &jobs[1..] {
            assert!(hashed.done((1, 2)).is_some_and(|job| Arc::ptr_eq(&job, next)));
        }
        assert!(hashed.done((1, 2)).is_none());
        assert!(hashed.admit(jobs[0].clone()).unwrap().is_some(), "nobody is before it any more");
    }
}
