//! Events of io_uring, and of Linux AIO: where they come from, what they look like in text, and what they add up to.
//!
//! Both sources give the engine's [`Event`]: `engine` reads what our engine puts into shared memory (`joined` of a process that
//! runs already), `kernel` reads the
//! kernel's own tracepoints.

mod class;
mod engine;
mod file_systems;
mod filter;
mod findings;
mod gain;
mod joined;
mod kernel;
mod later;
mod line;
mod names;
mod page;
mod perfetto;
mod processes;
mod recording;
mod report;
mod summary;
mod table;

pub use anyring_engine::event::Event;
pub use engine::EngineSource;
pub use file_systems::{FileSystems, FilesOn};
pub use filter::Filter;
pub use findings::Finding;
pub use gain::{Costs, Gain, Spent};
pub use joined::{find_counters, JoinedSource, ANOTHER_VERSION};
pub use kernel::KernelSource;
pub use line::line;
pub use page::page;
pub use perfetto::Perfetto;
pub use processes::Processes;
pub use recording::{Head, Recorder, Recording, Tail};
pub use report::{time, Interface, Kinds, Latencies, Lookups, ProcessReport, Report, RequestKind, RingReport};
pub use summary::{Rates, Summary};

/// Where events come from.
pub trait Source {
    /// Adds what has happened since the last call, in the order of time. True when the next call should follow at once,
    /// since much is waiting.
    fn drain(&mut self, events: &mut Vec<Event>) -> bool;

    /// The last call, when the program has ended: adds all that is left.
    fn finish(&mut self, events: &mut Vec<Event>);

    /// Events that were lost because the program was faster.
    fn dropped(&self) -> u64;

    /// Why no more will come, where that is so before the program has ended.
    fn refusal(&self) -> Option<String> {
        None
    }
}

/// Begins the names of what a tracer makes for the time of a trace; its process number follows.
const FILE_PREFIX: &str = "anyring-trace-";

/// Whether this is the name of what a tracer made that has ended: it was killed, or it would have taken it away.
fn was_left_behind(name: &std::ffi::OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(FILE_PREFIX)?.split('-').next()?.parse().ok());
    let maker = number.and_then(rustix::process::Pid::from_raw);
    maker.is_some_and(|maker| rustix::process::test_kill_process(maker) == Err(rustix::io::Errno::SRCH))
}

/// Events that are younger than the moment at which the buffers began to be read wait for the next time: another
/// buffer may hold older ones that were not there yet.
fn take_older<T>(held: &mut Vec<T>, until_ns: u64, time_ns: impl Fn(&T) -> u64) -> Vec<T> {
    held.sort_by_key(&time_ns); // stable: a buffer's own order stays
    let later = held.partition_point(|event| time_ns(event) < until_ns);
    held.drain(..later).collect()
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
