//! Whether a request that no tracepoint tells of between its submission and its completion was completed in the submitting
//! call. Our engine says so itself. The kernel's tracepoints do not, but for the order of what a thread does: a device's
//! request is completed by task work, on the thread that submitted it, perhaps on its way out of that very call.

use std::collections::HashMap;

#[derive(Debug, Clone)]
struct Thread<T> {
    /// How often it has begun something in which what was submitted before is not completed inline.
    steps: u64,
    /// What it has completed in the present one; nothing for what was not in question.
    done: Vec<Option<T>>,
    /// Items of task work that only begin the next request of a chain.
    begun: u32,
}

impl<T> Default for Thread<T> {
    fn default() -> Self {
        Thread { steps: 0, done: Vec::new(), begun: 0 }
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

/// A moment of a thread.
pub type Moment = (u32, u64);

impl<T> Threads<T> {
    /// The present moment of a thread, for what it submits.
    pub fn moment(&self, thread: u32) -> Moment {
        (thread, self.0.get(&thread).map_or(0, |thread| thread.steps))
    }

    /// The thread enters the kernel or begins to wait there: what it has completed before without task work was inline.
    pub fn step(&mut self, thread: u32) -> Vec<Option<T>> {
        let thread = self.0.entry(thread).or_default();
        thread.steps += 1;
        thread.begun = 0;
        core::mem::take(&mut thread.done)
    }

    /// The thread has completed something, which is given if it may have been in the submitting call. Task work of the
    /// thread then `begins_next` of its chain.
    pub fn complete(&mut self, thread: u32, what: Option<T>, begins_next: bool) {
        let thread = self.0.entry(thread).or_default();
        thread.done.push(what);
        thread.begun += u32::from(begins_next);
    }

    /// The thread has run task work, by which as many as `count` of its last completions were made. They come behind those
    /// that were inline.
    pub fn task_work(&mut self, thread: u32, count: u32) -> [Vec<Option<T>>; 2] {
        let Some(thread) = self.0.get_mut(&thread) else { return [Vec::new(), Vec::new()] };
        let count = count.saturating_sub(core::mem::take(&mut thread.begun));
        let mut inline = core::mem::take(&mut thread.done);
        let later = inline.split_off(inline.len().saturating_sub(count as usize));
        [inline, later]
    }

    /// No more will come: those that are open.
    pub fn finish(&mut self) -> Vec<Option<T>> {
        self.0.drain().flat_map(|(_, thread)| thread.done).collect()
    }
}
