//! The gain from following a finding, as a share of the elapsed time or of the CPU time of the program.

use serde::{Deserialize, Serialize};

/// Findings with a smaller gain are left out.
const LEAST_PERCENT: f64 = 3.0;

/// Costs on this machine and this engine, in nanoseconds of CPU time, measured after the program ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// io_uring_enter(2), without what it submits.
    pub call_ns: f64,
    /// A POLL_ADD with a call of its own, which a multishot POLL_ADD would save.
    pub poll_ns: f64,
    /// A TIMEOUT that is submitted by the call that waits, which a multishot TIMEOUT would save.
    pub timeout_ns: f64,
    /// A TIMEOUT with a call of its own, which a multishot TIMEOUT would save.
    pub timeout_alone_ns: f64,
    /// A wake-up by a multishot TIMEOUT.
    #[serde(default)]
    pub tick_ns: f64,
    /// An attempt to receive where nothing is there.
    #[serde(default)]
    pub attempt_ns: f64,
    /// Handing a request to a worker, and being notified of its completion.
    pub worker_ns: f64,
    /// Number of times that threads sleep for such a request; 0 if unknown.
    #[serde(default)]
    pub worker_switches: f64,
    /// Looking up a descriptor that could be registered.
    pub lookup_ns: f64,
    /// A CQE that finds the CQ full.
    pub overflow_ns: f64,
    /// A completion that task work posts, instead of being deferred to the call that waits for it.
    pub deferred_ns: f64,
    /// Creating a thread, and its end.
    pub thread_ns: f64,
    /// Reporting one event to the tracer.
    pub event_ns: f64,
    /// Number of processors that the program may run on, without those that other processes used during the trace.
    pub cores: u32,
}

impl Costs {
    /// Rounds to whole nanoseconds, and to halves, which a file keeps unchanged.
    pub fn rounded(mut self) -> Costs {
        let all = [
            &mut self.call_ns,
            &mut self.poll_ns,
            &mut self.timeout_ns,
            &mut self.timeout_alone_ns,
            &mut self.tick_ns,
            &mut self.attempt_ns,
            &mut self.worker_ns,
            &mut self.lookup_ns,
        ];
        let more = [&mut self.overflow_ns, &mut self.deferred_ns, &mut self.thread_ns, &mut self.event_ns];
        all.into_iter().chain(more).for_each(|cost_ns| *cost_ns = cost_ns.round());
        self.worker_switches = (2.0 * self.worker_switches).round() / 2.0;
        self
    }
}

/// The time that the program took in all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// Elapsed time from its start, or from when it was joined, to its end.
    pub elapsed_ns: u64,
    /// CPU time of its own and of the children that it waited for; `None` for a process that was joined.
    pub cpu_ns: Option<u64>,
    /// Number of times that its threads, and those of these children, slept.
    #[serde(default)]
    pub switches: Option<u64>,
    /// CPU time that the tracer itself took meanwhile, on whatever processor.
    #[serde(default)]
    pub tracer_cpu_ns: u64,
    /// The costs on this machine; `None` if they could not be measured.
    pub costs: Option<Costs>,
}

/// The time that a finding would save.
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

    /// Adds the savings of another ring. Of elapsed time the larger saving counts, since rings may work in
    /// parallel. CPU time adds up.
    pub fn and(self, other: Saved) -> Saved {
        Saved { elapsed_ns: self.elapsed_ns.max(other.elapsed_ns), cpu_ns: self.cpu_ns + other.cpu_ns }
    }
}

/// The larger gain: in elapsed time or in CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gain {
    /// The share, in percent.
    pub percent: f64,
    /// `elapsed` or `cpu`.
    pub of: &'static str,
}

impl Gain {
    /// The gain of a program that `spent` this, with `traced_ns` for being traced. `None` without costs.
    pub(crate) fn of(saved: Saved, spent: &Spent, traced_ns: f64) -> Option<Gain> {
        spent.costs?;
        let share = |part: f64, whole: f64| (100.0 * part / whole.max(1.0)).clamp(0.0, 99.0);
        // The times that are saved were traced, too, so the elapsed time stays as it was. CPU time is a number of
        // calls and their cost, which is measured without tracing. At most two thirds of the CPU time count as
        // tracing.
        let elapsed = share(saved.elapsed_ns, spent.elapsed_ns as f64);
        let used_ns = spent.cpu_ns.unwrap_or(spent.elapsed_ns) as f64;
        let cpu = share(saved.cpu_ns, (used_ns - traced_ns).max(used_ns / 3.0));
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
    fn the_greater_share_is_the_gain_without_the_cost_of_tracing() {
        let costs = Costs::default();
        let spent = Spent { elapsed_ns: 2_000, cpu_ns: Some(1_000), costs: Some(costs), ..Spent::default() };
        let gain = |saved, traced_ns| Gain::of(saved, &spent, traced_ns).expect("a gain");
        assert_eq!(gain(Saved { elapsed_ns: 400.0, cpu_ns: 100.0 }, 0.0), Gain { percent: 20.0, of: "elapsed" });
        assert_eq!(gain(Saved::cpu(100.0), 500.0), Gain { percent: 20.0, of: "cpu" });
        assert_eq!(gain(Saved::elapsed(1_500.0), 1_000.0), Gain { percent: 75.0, of: "elapsed" });
        assert!(!gain(Saved::cpu(29.0), 0.0).is_worth_it() && gain(Saved::cpu(30.0), 0.0).is_worth_it());
        assert_eq!(Gain::of(Saved::cpu(1.0), &Spent { costs: None, ..spent }, 0.0), None);
    }
}
