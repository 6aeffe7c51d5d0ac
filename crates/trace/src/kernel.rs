//! Events of the kernel's io_uring, read from its tracepoints in private instances of tracefs. This needs root.
//! Nothing is compiled: the tracepoints' format files give the offset of each field.
//!
//! There are two instances. The first is filtered by process and reports the program's own threads. It does not
//! include io-wq's workers, polling threads, and kernel threads on which a ring ends. Nor does it include threads
//! of other programs that make a file ready. The second instance is filtered by thread name and reports all of
//! these. Its events of other processes' rings are dropped.
//!
//! The pages of `trace_pipe_raw` have the layout that `events/header_page` and `events/header_event` in tracefs
//! describe.

use crate::{is_abandoned, now_ns, processes, take_older, Event, Source, FILE_PREFIX};
use anyring_abi::{Opcode, IORING_ENTER_REGISTERED_RING, IOSQE_ASYNC, IOSQE_IO_DRAIN};
use anyring_engine::event::{FileKind, Kind};
use anyring_engine::op;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The mount points of tracefs.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const PAGE_BYTES: usize = 4096;
/// Number of pages of each processor that are read at a time.
const PAGES: usize = 512;
/// Size of each processor's event buffer, in KiB.
const BUFFER_KIB: &str = "8192";

/// The folder for instances, or one line that says why it is unavailable.
fn find_tracefs() -> Result<PathBuf, String> {
    let found = |place: &Path| fs::metadata(place.join("events/io_uring")).map(|_| place.join("instances"));
    if let Some(instances) = MOUNTS.iter().find_map(|place| found(Path::new(place)).ok()) {
        return Ok(instances);
    }
    let is_mounted = |place: &str| Path::new(place).join("events").is_dir();
    let is_closed =
        |place: &str| found(Path::new(place)).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    Err(if let Some(place) = MOUNTS.iter().find(|place| is_mounted(place)) {
        format!(
            "this kernel has no tracepoints of io_uring in {place}/events (CONFIG_IO_URING, CONFIG_EVENT_TRACING)"
        )
    } else if MOUNTS.iter().any(|place| is_closed(place)) || !rustix::process::geteuid().is_root() {
        "only root may use tracefs".to_owned()
    } else {
        format!("tracefs is not mounted (mount -t tracefs nodev {})", MOUNTS[0])
    })
}

/// Removes the instances of tracers that were killed, which would record forever. The kernel refuses to remove an
/// instance that is in use.
fn remove_abandoned(instances: &Path) {
    for entry in fs::read_dir(instances).into_iter().flatten().flatten() {
        if is_abandoned(&entry.file_name()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The fields of a tracepoint: the offset and size of each in the record.
#[derive(Debug)]
struct Format {
    kind: Kind,
    fields: HashMap<String, (usize, usize)>,
}

impl Format {
    fn parse(text: &str, kind: Kind) -> Option<(u16, Format)> {
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
        let fields = text.lines().filter_map(|line| {
            let mut parts = line.trim().strip_prefix("field:")?.split(';').map(str::trim);
            let name = parts.next()?.rsplit(' ').next()?.trim_start_matches('*').to_owned();
            let number = |part: Option<&str>, key: &str| part?.strip_prefix(key)?.parse().ok();
            let (offset, size) = (number(parts.next(), "offset:")?, number(parts.next(), "size:")?);
            Some((name, (offset, size)))
        });
        Some((id, Format { kind, fields: fields.collect() }))
    }

    /// The field's value; 0 if there is no such field.
    fn value(&self, record: &[u8], name: &str) -> u64 {
        let Some(&(offset, size)) = self.fields.get(name) else { return 0 };
        let Some(bytes) = record.get(offset..offset + size.min(8)) else { return 0 };
        let mut word = [0u8; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }
}

/// A record as it was read: its time and its bytes.
type Record = (u64, Vec<u8>);

/// Parses the records of one page.
fn records(page: &[u8]) -> Vec<Record> {
    let word =
        |at: usize| page.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let mut found = Vec::new();
    let (Some(low), Some(high), Some(commit)) = (word(0), word(4), word(8)) else { return found };
    let mut time_ns = u64::from(low) | u64::from(high) << 32;
    let end = (16 + (commit as usize & 0xf_ffff)).min(page.len());
    let mut at = 16;
    while at + 4 <= end {
        let Some(header) = word(at) else { break };
        let (kind, delta) = (header & 0x1f, u64::from(header >> 5));
        let next = u64::from(word(at + 4).unwrap_or(0));
        let (data, bytes) = match kind {
            0 => (at + 8, (next as usize).saturating_sub(4)),
            29 if delta == 0 => break,
            29 => (at + 4, next as usize),
            30 => (at + 8, 0),
            31 => (at + 8, 0),
            words => (at + 4, words as usize * 4),
        };
        match kind {
            30 => time_ns += (next << 27) + delta,
            31 => time_ns = time_ns & !((1 << 59) - 1) | next << 27 | delta,
            29 => time_ns += delta,
            _ => {
                time_ns += delta;
                if let Some(record) = page.get(data..data + bytes) {
                    found.push((time_ns, record.to_vec()));
                }
            }
        }
        at = data + bytes;
    }
    found
}

/// Numbers for the kernel's addresses of rings and requests, in order of appearance.
#[derive(Debug, Default)]
struct Names {
    /// The program's rings, each with the thread that made it.
    ours: HashMap<u64, u64>,
    rings: HashMap<u64, u32>,
    requests: HashMap<u64, u32>,
    last_ring: u32,
    last_request: u32,
    /// Kernel threads that submit for one of these rings (IORING_SETUP_SQPOLL).
    pollers: HashSet<u32>,
    /// The process of each thread.
    processes: HashMap<u32, u32>,
    /// The ring of a process's descriptor.
    numbers: HashMap<(u32, i32), u32>,
    /// The kinds of a process's descriptors when they were last seen.
    files: HashMap<(u32, i32), FileKind>,
    /// Whether a thread that only [`Whose::All`] reports is an io-wq worker.
    io_wq: HashMap<u32, bool>,
    /// Rings on which a request was drained.
    drained: HashSet<u64>,
}

impl Names {
    /// True if the record becomes an event.
    fn concerns_us(&mut self, whose: Whose, format: &Format, record: &[u8]) -> bool {
        let (ring, thread) = (format.value(record, "ctx"), format.value(record, "common_pid"));
        match (whose, format.kind) {
            (Whose::Own, Kind::Create) => {
                self.ours.insert(ring, thread);
                true
            }
            (Whose::Own, _) => {
                // The ring may be older than the trace.
                if ring != 0 {
                    self.ours.entry(ring).or_insert(thread);
                }
                true
            }
            (Whose::All, Kind::Create) => {
                // The other instance reports the program's rings. Another process's ring may reuse the address of one
                // of them.
                if self.ours.get(&ring).is_some_and(|maker| *maker != thread) {
                    self.ours.remove(&ring);
                }
                false
            }
            // This event names no ring.
            (Whose::All, Kind::TaskWorkRun) => self.pollers.contains(&(thread as u32)),
            (Whose::All, kind) => {
                let concerns = self.ours.contains_key(&ring);
                if concerns && kind == Kind::SubmitReq {
                    self.pollers.insert(thread as u32);
                }
                concerns
            }
        }
    }

    fn ring(&mut self, address: u64) -> u32 {
        let next = self.last_ring + 1;
        let ring = *self.rings.entry(address).or_insert(next);
        self.last_ring = self.last_ring.max(ring);
        ring
    }

    fn new_ring(&mut self, address: u64) -> u32 {
        self.rings.remove(&address);
        self.drained.remove(&address);
        self.ring(address)
    }

    fn request(&mut self, address: u64, is_new: bool) -> u32 {
        if address == 0 {
            return 0;
        }
        let next = self.last_request + 1;
        let request = self.requests.entry(address).or_insert(next);
        if is_new {
            *request = next; // the kernel reuses a request's memory
        }
        self.last_request = self.last_request.max(*request);
        *request
    }

    /// The kind of the file with this number; the last known kind if it cannot be looked up any more.
    fn file(&mut self, whose: Whose, ring: u64, thread: u32, fd: i32) -> FileKind {
        let maker = self.ours.get(&ring).filter(|_| whose == Whose::All).map(|maker| *maker as u32);
        let process = self.process(maker.unwrap_or(thread));
        match file_kind(thread, fd) {
            FileKind::Unknown => self.files.get(&(process, fd)).copied().unwrap_or(FileKind::Unknown),
            kind => *self.files.entry((process, fd)).and_modify(|known| *known = kind).or_insert(kind),
        }
    }

    /// True if the thread is an io-wq worker: neither a kworker nor a polling thread. A thread that has ended counts
    /// as one, since io-wq's workers end with their program.
    fn is_io_wq(&mut self, whose: Whose, thread: u32) -> bool {
        let is_kworker = || fs::read(format!("/proc/{thread}/comm")).is_ok_and(|name| name.starts_with(b"kworker"));
        whose == Whose::All
            && !self.pollers.contains(&thread)
            && *self.io_wq.entry(thread).or_insert_with(|| !is_kworker())
    }

    /// The SQE flags of a request. IOSQE_ASYNC is cleared where the kernel may have set this bit itself.
    fn sqe_flags(&mut self, ring: u64, opcode: u16, flags: u32) -> u32 {
        let flags = flags & 0xff; // the bits above are the kernel's own
        if flags & u32::from(IOSQE_IO_DRAIN) != 0 {
            self.drained.insert(ring);
        }
        match may_be_forced(opcode) || self.drained.contains(&ring) {
            true => flags & !u32::from(IOSQE_ASYNC),
            false => flags,
        }
    }

    fn process(&mut self, thread: u32) -> u32 {
        *self.processes.entry(thread).or_insert_with(|| processes::process_of(thread).unwrap_or(thread))
    }
}

/// True if the kernel may send requests of this opcode to a worker without IOSQE_ASYNC (REQ_F_FORCE_ASYNC).
pub(crate) fn may_be_forced(opcode: u16) -> bool {
    use Opcode::{Fadvise, Openat, Openat2};
    let opcode = u8::try_from(opcode).ok().and_then(Opcode::from_u8);
    opcode.is_some_and(|it| matches!(it, Fadvise | Openat | Openat2) || op::row(it).is_some_and(|row| row.forced))
}

/// The kind of the file that has this number now. The file of the event may have been closed since then.
fn file_kind(thread: u32, fd: i32) -> FileKind {
    fs::metadata(format!("/proc/{thread}/fd/{fd}")).map_or(FileKind::Unknown, |it| FileKind::of_mode(it.mode()))
}

/// An instance of tracefs. Dropping it removes the instance.
#[derive(Debug)]
struct Instance {
    folder: PathBuf,
    pipes: Vec<File>,
}

/// The scope of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The program's threads.
    Own,
    /// Kernel threads of all programs, and events that any thread may cause.
    All,
}

impl Whose {
    fn reports(self, kind: Kind) -> bool {
        match self {
            _ if kind.is_of_chaos() || kind.is_of_place() => false,
            Whose::Own => kind != Kind::TaskAdd,
            Whose::All => kind != Kind::Enter,
        }
    }

    /// The kernel's filter for events of this kind: by thread name, where the scope is not the program's threads. A
    /// polling thread reports each look for task work, thousands a second, so those that found none are left out.
    fn filter(self, kind: Kind) -> Option<&'static str> {
        match (self, kind) {
            (Whose::Own, Kind::TaskWorkRun) => Some("count != 0"),
            (Whose::Own, _) | (Whose::All, Kind::Create | Kind::TaskAdd) => None,
            (Whose::All, Kind::TaskWorkRun) => Some("(comm ~ \"iou-*\" || comm ~ \"kworker*\") && count != 0"),
            (Whose::All, _) => Some("comm ~ \"iou-*\" || comm ~ \"kworker*\""),
        }
    }
}

/// The kernel's tracepoints, for one program.
#[derive(Debug)]
pub struct KernelSource {
    own: Instance,
    all: Instance,
    formats: HashMap<u16, Format>,
    held: Vec<(Whose, Record)>,
    names: Names,
}

impl Instance {
    /// Creates an instance. For [`Whose::Own`] it records `threads` and all that they start.
    fn new(whose: Whose, threads: &str, formats: &mut HashMap<u16, Format>) -> Result<Instance, String> {
        let suffix = if whose == Whose::Own { "own" } else { "all" };
        let instances = find_tracefs()?;
        remove_abandoned(&instances);
        let folder = instances.join(format!("{FILE_PREFIX}{}-{suffix}", std::process::id()));
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut instance = Instance { folder, pipes: Vec::new() };
        instance.write("trace_clock", "mono")?;
        instance.write("buffer_size_kb", BUFFER_KIB)?;
        if whose == Whose::Own {
            instance.write("options/event-fork", "1")?;
            instance.write("set_event_pid", threads)?;
        }
        let processors = fs::read_dir(instance.folder.join("per_cpu")).map_err(|error| error.to_string())?;
        for processor in processors.flatten() {
            let path = processor.path().join("trace_pipe_raw");
            let pipe = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
            instance.pipes.push(pipe.map_err(|error| format!("{}: {error}", path.display()))?);
        }
        for kind in Kind::ALL.into_iter().filter(|kind| whose.reports(*kind)) {
            let group = if kind == Kind::Enter { "syscalls" } else { "io_uring" };
            let event = format!("events/{group}/{}", kind.name());
            // Not every kernel has each of them.
            let Ok(text) = fs::read_to_string(instance.folder.join(&event).join("format")) else { continue };
            let parsed = Format::parse(&text, kind).ok_or_else(|| format!("{event}/format is not understood"))?;
            formats.insert(parsed.0, parsed.1);
            if let Some(filter) = whose.filter(kind) {
                instance.write(&format!("{event}/filter"), filter)?;
            }
            instance.write(&format!("{event}/enable"), "1")?;
        }
        Ok(instance)
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(file);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads at most `pages` pages of each processor. Returns the time until which all is read: `u64::MAX` if nothing
    /// is left.
    fn read(&mut self, pages: usize, mut found: impl FnMut(Record)) -> u64 {
        let mut until_ns = u64::MAX;
        let mut page = [0u8; PAGE_BYTES];
        for pipe in &mut self.pipes {
            let (mut left, mut last_ns) = (pages, 0);
            while left != 0 {
                match pipe.read(&mut page) {
                    Ok(bytes) if bytes > 16 => records(&page[..bytes]).into_iter().for_each(|record| {
                        last_ns = record.0;
                        found(record);
                    }),
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    _ => break,
                }
                left -= 1;
            }
            if left == 0 {
                until_ns = until_ns.min(last_ns);
            }
        }
        until_ns
    }

    /// Number of events that the kernel dropped because the instance's buffer was full.
    fn dropped(&self) -> u64 {
        let processors = fs::read_dir(self.folder.join("per_cpu")).into_iter().flatten().flatten();
        let stats = processors.filter_map(|processor| fs::read_to_string(processor.path().join("stats")).ok());
        let lost = |text: String| -> u64 {
            let counts = text.lines().filter_map(|line| line.split_once(':'));
            counts
                .filter(|(name, _)| ["overrun", "dropped events"].contains(name))
                .filter_map(|(_, count)| count.trim().parse::<u64>().ok())
                .sum()
        };
        stats.map(lost).sum()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The kernel refuses to remove an instance while one of its files is open.
        self.pipes.clear();
        for group in ["io_uring", "syscalls"] {
            let _ = self.write(&format!("events/{group}/enable"), "0");
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

impl KernelSource {
    /// Records the events of the calling process's future children and of their descendants.
    ///
    /// # Errors
    /// One line that says what was refused.
    pub fn new() -> Result<KernelSource, String> {
        KernelSource::of_threads(&std::process::id().to_string())
    }

    /// Records the events of a running process and of all that it starts. The descriptors of its existing rings are
    /// unknown.
    ///
    /// # Errors
    /// One line that says what was refused.
    pub fn of_process(pid: i32) -> Result<KernelSource, String> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| error.to_string())?;
        // The other instance reports io-wq's threads.
        let is_own = |task: &fs::DirEntry| {
            fs::read_to_string(task.path().join("comm")).is_ok_and(|name| !name.starts_with("iou-"))
        };
        let tasks = tasks.flatten().filter(is_own).map(|task| task.file_name().to_string_lossy().into_owned());
        KernelSource::of_threads(&tasks.collect::<Vec<_>>().join(" "))
    }

    fn of_threads(threads: &str) -> Result<KernelSource, String> {
        let mut formats = HashMap::new();
        let all = Instance::new(Whose::All, threads, &mut formats)?;
        let own = Instance::new(Whose::Own, threads, &mut formats)?;
        Ok(KernelSource { own, all, formats, held: Vec::new(), names: Names::default() })
    }

    /// Reads a part of the records. Returns the same as [`Instance::read`].
    fn read(&mut self) -> u64 {
        let held = &mut self.held;
        let own_ns = self.own.read(PAGES, |record| held.push((Whose::Own, record)));
        self.all.read(PAGES, |record| held.push((Whose::All, record))).min(own_ns)
    }

    fn convert(&mut self, until_ns: u64, events: &mut Vec<Event>) {
        for (whose, (time_ns, record)) in take_older(&mut self.held, until_ns, |(_, record)| record.0) {
            let Some(format) = record.get(..2).and_then(|id| self.formats.get(&u16::from_le_bytes([id[0], id[1]])))
            else {
                continue;
            };
            if self.names.concerns_us(whose, format, &record) {
                events.push(event_of(&mut self.names, whose, format, &record, time_ns));
            }
        }
    }
}

fn event_of(names: &mut Names, whose: Whose, format: &Format, record: &[u8], time_ns: u64) -> Event {
    let value = |name: &str| format.value(record, name);
    let kind = format.kind;
    let thread = value("common_pid") as u32;
    let is_new = matches!(kind, Kind::SubmitReq | Kind::ReqFailed);
    let mut event = Event {
        time_ns,
        thread,
        user_data: value("user_data") | value("data"),
        request: names.request(value("req"), is_new),
        opcode: (value("opcode") as u8).into(),
        fd: value("fd") as i32,
        result: value("res") as i32,
        flags: (value("flags") | value("cflags")) as u32,
        ..Event::new(kind)
    };
    event.ring = match kind {
        Kind::Create => names.new_ring(value("ctx")),
        Kind::Enter | Kind::TaskWorkRun => 0,
        _ => names.ring(value("ctx")),
    };
    match kind {
        Kind::Create => {
            (event.len, event.offset) = (value("sq_entries") as u32, value("cq_entries"));
            let process = names.process(thread);
            names.numbers.insert((process, event.fd), event.ring);
        }
        Kind::Register => {
            (event.len, event.offset) = (value("nr_files") as u32, value("nr_bufs"));
            event.result = value("ret") as i32;
        }
        Kind::SubmitReq | Kind::QueueAsyncWork => {
            let is_sent = kind == Kind::SubmitReq && event.flags & u32::from(IOSQE_ASYNC) != 0;
            event.len = is_sent.into();
            event.flags = names.sqe_flags(value("ctx"), event.opcode, event.flags);
        }
        Kind::ReqFailed => {
            (event.len, event.offset) = (value("len") as u32, value("off"));
            event.result = value("error") as i32;
        }
        Kind::FileGet => {
            event.file = names.file(whose, value("ctx"), thread, event.fd);
            event.len = names.is_io_wq(whose, thread).into();
        }
        Kind::Complete | Kind::CqeOverflow => event.len = names.is_io_wq(whose, thread).into(),
        Kind::PollArm => event.flags = value("events") as u32,
        Kind::Link => event.offset = names.request(value("target_req"), false).into(),
        Kind::FailLink => event.offset = names.request(value("link"), false).into(),
        Kind::CqringWait => event.len = value("min_events") as u32,
        Kind::TaskWorkRun | Kind::LocalWorkRun => event.len = value("count") as u32,
        Kind::ShortWrite => (event.len, event.result) = (value("wanted") as u32, value("got") as i32),
        Kind::Enter => {
            (event.len, event.offset) = (value("to_submit") as u32, value("min_complete") as u32 as u64);
            let process = names.process(thread);
            // A registered number is private to the thread: the ring is known only if the process has a single one.
            let by_number = event.flags & IORING_ENTER_REGISTERED_RING == 0;
            let mut rings =
                names.numbers.iter().filter(|((of, fd), _)| *of == process && (!by_number || *fd == event.fd));
            event.ring = match (rings.next(), rings.next()) {
                (Some((_, ring)), None) => *ring,
                _ => 0,
            };
        }
        _ => {}
    }
    event
}

impl Source for KernelSource {
    fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        let now_ns = now_ns();
        let until_ns = self.read();
        self.convert(until_ns.min(now_ns), events);
        until_ns != u64::MAX
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        for instance in [&self.own, &self.all] {
            let _ = instance.write("tracing_on", "0"); // other programs may continue
        }
        while self.read() != u64::MAX {}
        self.convert(u64::MAX, events);
    }

    fn dropped(&self) -> u64 {
        self.own.dropped() + self.all.dropped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: io_uring_file_get\nID: 2099\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:void * ctx;\toffset:8;\tsize:8;\tsigned:0;\n\
        \tfield:int fd;\toffset:16;\tsize:4;\tsigned:1;\n\nprint fmt: \"\"\n";

    #[test]
    fn fields_are_found_by_the_format_file() {
        let (id, format) = Format::parse(FORMAT, Kind::FileGet).expect("a format");
        let mut record = vec![0u8; 20];
        record[4..8].copy_from_slice(&77u32.to_le_bytes());
        record[16..20].copy_from_slice(&(-1i32).to_le_bytes());
        assert_eq!(id, 2099);
        assert_eq!(format.value(&record, "common_pid"), 77);
        assert_eq!(format.value(&record, "fd") as i32, -1);
        assert_eq!(format.value(&record, "missing"), 0);
        assert_eq!(format.value(&record[..18], "fd"), 0, "a record that ends early");
    }

    #[test]
    fn records_of_all_lengths_and_times_are_read() {
        let mut page = 1_000u64.to_le_bytes().to_vec();
        let mut body = Vec::new();
        let header = |kind: u32, delta: u32| (kind | delta << 5).to_le_bytes();
        body.extend([header(1, 5), 0xaau32.to_le_bytes()].concat());
        body.extend([header(30, 1), 2u32.to_le_bytes()].concat());
        body.extend([header(0, 3), 8u32.to_le_bytes(), 0xbbu32.to_le_bytes()].concat());
        body.extend([header(29, 1), 4u32.to_le_bytes()].concat());
        body.extend([header(1, 7), 0xccu32.to_le_bytes()].concat());
        page.extend((body.len() as u64).to_le_bytes());
        page.extend(&body);
        page.extend([0xff; 64]); // after the committed bytes
        let found: Vec<_> = records(&page).into_iter().map(|(time, bytes)| (time, bytes[0])).collect();
        let later = 1_005 + (2 << 27) + 1 + 3;
        assert_eq!(found, [(1_005, 0xaa), (later, 0xbb), (later + 1 + 7, 0xcc)]);
        assert!(records(&page[..10]).is_empty());
    }

    #[test]
    fn a_flag_that_the_kernel_sets_itself_is_not_the_sqe_s() {
        let mut names = Names::default();
        let (is_async, drain) = (u32::from(IOSQE_ASYNC), u32::from(IOSQE_IO_DRAIN));
        for forced in [Opcode::Fsync, Opcode::Statx, Opcode::Openat, Opcode::Fadvise] {
            assert_eq!(names.sqe_flags(1, forced as u16, is_async | 4 | 1 << 20), 4, "{forced:?}");
        }
        let read = Opcode::Read as u16;
        assert_eq!(names.sqe_flags(1, read, is_async), is_async);
        assert_eq!(names.sqe_flags(1, read, drain | is_async), drain);
        assert_eq!(names.sqe_flags(1, read, is_async), 0, "what comes behind a drain is sent there, too");
        assert_eq!(names.sqe_flags(2, read, is_async), is_async, "on another ring");
    }

    #[test]
    fn the_file_of_a_number_is_remembered_for_a_program_that_has_ended() {
        let mut names = Names::default();
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let (reader, _writer) = std::io::pipe().expect("a pipe");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        assert_eq!(names.file(Whose::Own, 1, own, fd), FileKind::Fifo);
        drop(reader);
        assert_eq!(names.file(Whose::Own, 1, own, fd), FileKind::Fifo);
        // An io-wq thread that has ended also works for the process that made the ring.
        names.ours.insert(1, own.into());
        assert_eq!(names.file(Whose::All, 1, u32::MAX, fd), FileKind::Fifo);
        assert!(names.is_io_wq(Whose::All, u32::MAX) && !names.is_io_wq(Whose::Own, own));
    }

    #[test]
    fn a_request_whose_memory_is_used_again_is_another() {
        let mut names = Names::default();
        let first = names.request(0x10, true);
        assert_eq!(names.request(0x10, false), first);
        assert_ne!(names.request(0x10, true), first);
        assert_eq!(names.request(0, false), 0);
        assert_ne!(names.new_ring(0x20), names.new_ring(0x20));
    }
}
