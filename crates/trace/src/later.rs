//! Decides whether a request on a kernel ring completed in the submitting call. If no tracepoint says what happened
//! between submission and completion, only the order of the submitting thread's events shows that. If a device
//! completes a request, task work on the submitting thread posts the CQE, perhaps on the way out of the same call.
//! anyring's engine reports the path itself.

use std::collections::HashMap;

#[derive(Debug, Clone)]
struct Thread<T> {
    /// Number of steps so far. A step begins when the thread enters the kernel, or begins to wait there, and lasts
    /// until the next such moment. A request that was submitted before the present step does not complete inline.
    steps: u64,
    /// Completions in the present step; `None` for one whose path is known.
    done: Vec<Option<T>>,
    /// Number of items of task work that only start the next request of a chain.
    begun: u32,
    /// Number of items of task work to come that only free a request which io-wq completed.
    frees: u32,
}

impl<T> Default for Thread<T> {
    fn default() -> Self {
        Thread { steps: 0, done: Vec::new(), begun: 0, frees: 0 }
    }
}

/// The threads that submit.
#[derive(Debug, Clone)]
pub struct Threads<T>(HashMap<u32, Thread<T>>);

impl<T> Default for Threads<T> {
    fn default() -> Self {
        Threads(HashMap::new())
    }
}

/// A thread, and the number of its step.
pub type Moment = (u32, u64);

impl<T> Threads<T> {
    /// The present moment of a thread. A request keeps the moment at which it was submitted.
    pub fn moment(&self, thread: u32) -> Moment {
        (thread, self.0.get(&thread).map_or(0, |thread| thread.steps))
    }

    /// Ends a step, since the thread enters the kernel or begins to wait there. Returns the step's completions for
    /// which no task work ran: these were inline.
    pub fn step(&mut self, thread: u32) -> Vec<Option<T>> {
        let thread = self.0.entry(thread).or_default();
        thread.steps += 1;
        (thread.begun, thread.frees) = (0, 0);
        core::mem::take(&mut thread.done)
    }

    /// Returns the completions before a submission by the thread. They were inline, since the thread reports task work
    /// before it takes more SQEs. A polling thread has no other steps.
    pub fn submit(&mut self, thread: u32) -> Vec<Option<T>> {
        self.0.get_mut(&thread).map_or(Vec::new(), |thread| core::mem::take(&mut thread.done))
    }

    /// Records that io-wq completed a request of the thread. Task work of the thread frees it.
    pub fn complete_in_io_wq(&mut self, thread: u32) {
        self.0.entry(thread).or_default().frees += 1;
    }

    /// Records a completion by the thread. `what` is given if the request may have completed in the submitting call.
    /// `begins_next`: after this completion, task work of the thread starts the next request of the chain.
    pub fn complete(&mut self, thread: u32, what: Option<T>, begins_next: bool) {
        let thread = self.0.entry(thread).or_default();
        thread.done.push(what);
        thread.begun += u32::from(begins_next);
    }

    /// Records that the thread ran `count` items of task work. At most that many of its last completions came by task
    /// work. The completions before those were inline. Returns the inline completions and the later ones.
    pub fn task_work(&mut self, thread: u32, count: u32) -> [Vec<Option<T>>; 2] {
        let Some(thread) = self.0.get_mut(&thread) else { return [Vec::new(), Vec::new()] };
        let count = count.saturating_sub(core::mem::take(&mut thread.begun));
        let freed = count.min(thread.frees);
        thread.frees -= freed;
        let count = count - freed;
        let mut inline = core::mem::take(&mut thread.done);
        let later = inline.split_off(inline.len().saturating_sub(count as usize));
        [inline, later]
    }

    /// Returns the completions that are still undecided at the end of the trace.
    pub fn finish(&mut self) -> Vec<Option<T>> {
        self.0.drain().flat_map(|(_, thread)| thread.done).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Threads;

    /// A polling thread enters no call. Between its requests it only reports task work.
    #[test]
    fn a_polling_thread_s_completions_are_told_apart_without_steps() {
        let mut threads = Threads::default();
        threads.complete(7, Some("read"), true); // task work starts the FSYNC of its chain
        assert_eq!(threads.task_work(7, 1), [vec![Some("read")], vec![]]);
        threads.complete_in_io_wq(7);
        threads.complete(7, Some("read"), true);
        assert_eq!(threads.task_work(7, 2), [vec![Some("read")], vec![]], "it also freed the FSYNC");
        threads.complete(7, Some("direct"), false);
        assert_eq!(threads.task_work(7, 1), [vec![], vec![Some("direct")]]);
        threads.complete(7, Some("nop"), false);
        assert_eq!(threads.submit(7), [Some("nop")]);
    }
}
