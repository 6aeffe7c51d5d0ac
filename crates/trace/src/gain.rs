//! What following a finding would bring: how much less elapsed time, or CPU time, of all that the program took.

use serde::{Deserialize, Serialize};

/// Findings that would bring less are not worth a word.
const LEAST_PERCENT: f64 = 3.0;

/// What things cost on this machine and by this engine, in nanoseconds of CPU time, as measured when the program had ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// io_uring_enter(2), without what it submits.
    pub call_ns: f64,
    /// A POLL_ADD that a multishot one would spare, with a call of its own.
    pub poll_ns: f64,
    /// A TIMEOUT that a multishot one would spare, in the call that waits.
    pub timeout_ns: f64,
    /// The same with a call of its own.
    pub timeout_alone_ns: f64,
    /// Having a worker make a request, and its end told.
    pub worker_ns: f64,
    /// Looking a descriptor up that could be registered.
    pub lookup_ns: f64,
    /// A CQE that finds the CQ full.
    pub overflow_ns: f64,
    /// A completion that task work posts where it need not be deferred.
    pub deferred_ns: f64,
    /// Making a thread, and its end.
    pub thread_ns: f64,
    /// Telling of an event.
    pub event_ns: f64,
    /// Processors that the program may run on.
    pub cores: u32,
}

impl Costs {
    /// In whole nanoseconds, which stay the same in a file.
    pub fn rounded(mut self) -> Costs {
        let all = [
            &mut self.call_ns,
            &mut self.poll_ns,
            &mut self.timeout_ns,
            &mut self.timeout_alone_ns,
            &mut self.worker_ns,
            &mut self.lookup_ns,
        ];
        let more = [&mut self.overflow_ns, &mut self.deferred_ns, &mut self.thread_ns, &mut self.event_ns];
        all.into_iter().chain(more).for_each(|cost_ns| *cost_ns = cost_ns.round());
        self
    }
}

/// What the program took in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// From its start, or from when it was joined, to its end.
    pub elapsed_ns: u64,
    /// CPU time of its own and of the children that it waited for; not known of a process that was joined.
    pub cpu_ns: Option<u64>,
    /// None where they could not be measured.
    pub costs: Option<Costs>,
}

/// What a finding would save.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Saved {
    pub elapsed_ns: f64,
    pub cpu_ns: f64,
}

impl Saved {
    pub fn elapsed(elapsed_ns: f64) -> Saved {
        Saved { elapsed_ns, cpu_ns: 0.0 }
    }

    pub fn cpu(cpu_ns: f64) -> Saved {
        Saved { elapsed_ns: 0.0, cpu_ns }
    }

    /// Rings that save the same at the same time: what each elapses is not to be added.
    pub fn and(self, other: Saved) -> Saved {
        Saved { elapsed_ns: self.elapsed_ns.max(other.elapsed_ns), cpu_ns: self.cpu_ns + other.cpu_ns }
    }
}

/// The greater part: of which time, and what percentage of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// In percent.
    pub percent: f64,
    /// `elapsed` or `cpu`.
    pub of: &'static str,
}

impl Gain {
    /// What saving so much is worth to a program that `spent`; `events` were told meanwhile.
    pub(crate) fn of(saved: Saved, spent: &Spent, events: u64) -> Option<Gain> {
        let costs = spent.costs?;
        let told_ns = events as f64 * costs.event_ns;
        let share = |part: f64, whole: u64| {
            // Tracing makes no more than most of it.
            let whole = (whole as f64 - told_ns).max(whole as f64 / 4.0).max(1.0);
            (100.0 * part / whole).clamp(0.0, 99.0)
        };
        let elapsed = share(saved.elapsed_ns, spent.elapsed_ns);
        let cpu = share(saved.cpu_ns, spent.cpu_ns.unwrap_or(spent.elapsed_ns));
        Some(match elapsed >= cpu {
            true => Gain { percent: elapsed, of: "elapsed" },
            false => Gain { percent: cpu, of: "cpu" },
        })
    }

    pub(crate) fn is_worth_it(self) -> bool {
        self.percent >= LEAST_PERCENT
    }
}

impl std::fmt::Display for Gain {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.of == "cpu" { "of its CPU time" } else { "of the elapsed time" };
        write!(formatter, "about {:.0}% {what}", self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greater_share_is_the_gain_without_what_tracing_took() {
        let costs = Costs { event_ns: 10.0, ..Costs::default() };
        let spent = Spent { elapsed_ns: 2_000, cpu_ns: Some(1_000), costs: Some(costs) };
        let gain = |saved, events| Gain::of(saved, &spent, events).expect("a gain");
        assert_eq!(gain(Saved { elapsed_ns: 400.0, cpu_ns: 100.0 }, 0), Gain { percent: 20.0, of: "elapsed" });
        assert_eq!(gain(Saved::cpu(100.0), 50), Gain { percent: 20.0, of: "cpu" });
        assert!(!gain(Saved::cpu(29.0), 0).is_worth_it() && gain(Saved::cpu(30.0), 0).is_worth_it());
        assert_eq!(Gain::of(Saved::cpu(1.0), &Spent { costs: None, ..spent }, 0), None);
    }
}
