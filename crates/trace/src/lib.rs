//! Events of io_uring and Linux AIO: their sources, their form as text, and the reports made of them.
//!
//! All sources produce the engine's [`Event`]. `engine` reads the events that anyring's engine writes to shared
//! memory; `joined` does so for a process that runs already. `kernel` reads the kernel's own tracepoints.

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
mod places;
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
pub use names::setup_flags;
pub use page::page;
pub use perfetto::Perfetto;
pub use places::Place;
pub use processes::Processes;
pub use recording::{Head, Recorder, Recording, Tail};
pub use report::{time, Interface, Kinds, Latencies, Lookups, ProcessReport, Report, RequestKind, RingReport};
pub use summary::{Rates, Summary};

/// A source of events.
pub trait Source {
    /// Appends the events since the last call, in order of time, to `events`. True if many more events wait: the
    /// caller should then call again at once.
    fn drain(&mut self, events: &mut Vec<Event>) -> bool;

    /// Adds all events that are left. This is the last call, made when the program has ended.
    fn finish(&mut self, events: &mut Vec<Event>);

    /// Number of events that were lost because the program was faster than the reader.
    fn dropped(&self) -> u64;

    /// The reason why no more events will come, if the source gave up before the program ended.
    fn refusal(&self) -> Option<String> {
        None
    }
}

/// The prefix of the names of a tracer's temporary files. The tracer's process number follows it.
const FILE_PREFIX: &str = "anyring-trace-";

/// True if a tracer that has ended left this file: it was killed before it could remove the file.
fn is_abandoned(name: &std::ffi::OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix(FILE_PREFIX)?.split('-').next()?.parse().ok());
    let maker = number.and_then(rustix::process::Pid::from_raw);
    maker.is_some_and(|maker| rustix::process::test_kill_process(maker) == Err(rustix::io::Errno::SRCH))
}

/// Takes the events before `until_ns`, the moment at which the reading of the buffers began. Younger events stay in
/// `held` until the next call, since an older event may have come meanwhile to a buffer that was read early.
fn take_older<T>(held: &mut Vec<T>, until_ns: u64, time_ns: impl Fn(&T) -> u64) -> Vec<T> {
    held.sort_by_key(&time_ns); // stable: keeps each buffer's own order
    let later = held.partition_point(|event| time_ns(event) < until_ns);
    held.drain(..later).collect()
}

fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
