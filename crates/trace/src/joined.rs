//! The tracer's side of `anyring trace --pid`, for a process that anyring's engine serves. The engine's module
//! `event::session` documents how a tracer requests the events.

use crate::engine::Stream;
use crate::{Event, Source};
use anyring_engine::event::{trace_request, Reader, REFUSED};
use anyring_engine::stats::{Stats, MAGIC};
use rustix::fs::{fcntl_lock, FallocateFlags, FlockOperation, SealFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

/// A running process whose events are read. Dropping it ends its trace.
#[derive(Debug)]
pub struct JoinedSource {
    pid: i32,
    /// The process's number in its own PID namespace.
    own_pid: u32,
    /// The process's counters, locked while this lives.
    counters: File,
    /// The number of the tracer's last request for events, whether the process has answered it or not.
    number: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The process creates the file of events at its next call on a ring.
    Asked,
    /// The process writes events from its next call on.
    Hears(Stream, File),
    /// The reason why no events will come.
    Refused(String),
}

impl JoinedSource {
    /// Asks the process for its events; `None` if anyring's engine does not serve any ring of the process yet.
    ///
    /// # Errors
    /// One line that says why it cannot be asked.
    pub fn of_process(pid: i32) -> Result<Option<JoinedSource>, String> {
        let Some(counters) = find_counters(pid, OpenOptions::new().read(true).write(true))? else {
            return Ok(None);
        };
        match fcntl_lock(&counters, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::ACCESS) => {
                return Err("another anyring trace has joined it, or a process that shares its counters".to_owned());
            }
            Err(error) => return Err(format!("its counters cannot be locked: {error}")),
        }
        let own_pid = own_pid(pid)?;
        // The next odd number after those that earlier tracers used.
        let [wanted, reply] = [WANTED, REPLY].map(|place| read_word(&counters, place));
        let last = (high(wanted?)).max(high(reply?));
        let mut joined =
            JoinedSource { pid, own_pid, counters, number: (last.wrapping_add(1)) | 1, step: Step::Asked };
        joined.ask()?;
        Ok(Some(joined))
    }

    fn ask(&mut self) -> Result<(), String> {
        let word = trace_request(self.number, self.own_pid);
        self.counters.write_all_at(&word.to_ne_bytes(), WANTED).map_err(|error| format!("its counters: {error}"))
    }

    /// Prepares the file once the process has created it, and asks the process to continue.
    fn prepare(&mut self) -> Result<(), String> {
        let reply = read_word(&self.counters, REPLY)?;
        let (number, what) = (high(reply), reply as u32);
        if number != self.number {
            return Ok(());
        }
        if what == REFUSED || what == 0 {
            return Err("its events go to another anyring trace, or it has no room for them".to_owned());
        }
        let path = format!("/proc/{}/fd/{}", self.pid, what - 1);
        let file = open(path.as_ref(), OpenOptions::new().read(true).write(true));
        let file = file.map_err(|error| format!("its file of events: {error}"))?;
        if !is_new_memfd(&file) {
            return Err("what it gave as its file of events is something else".to_owned());
        }
        // The size is sealed, so that no truncation can cause a SIGBUS on either side.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let reader = Reader::in_file(&file, || rustix::fs::fcntl_add_seals(&file, seals));
        let reader = reader.map_err(|error| format!("its file of events: {error}"))?;
        self.number = self.number.wrapping_add(1);
        self.ask()?;
        self.step = Step::Hears(Stream::new(reader), file);
        Ok(())
    }
}

impl Source for JoinedSource {
    fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        match &mut self.step {
            Step::Asked => {
                if let Err(why) = self.prepare() {
                    self.step = Step::Refused(why);
                }
                false
            }
            Step::Hears(stream, _) => stream.drain(events),
            Step::Refused(_) => false,
        }
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        if let Step::Hears(stream, _) = &mut self.step {
            stream.finish(events);
        }
    }

    fn dropped(&self) -> u64 {
        match &self.step {
            Step::Hears(stream, _) => stream.dropped(),
            _ => 0,
        }
    }

    fn refusal(&self) -> Option<String> {
        let reply = read_word(&self.counters, REPLY).unwrap_or(0);
        match &self.step {
            Step::Refused(why) => Some(why.clone()),
            Step::Hears(..) if reply == trace_request(self.number, REFUSED) => {
                Some("it cannot use its file of events".to_owned())
            }
            _ => None,
        }
    }
}

impl Drop for JoinedSource {
    fn drop(&mut self) {
        // A failure here leaves the process no worse off than if the tracer had been killed.
        let _ = self.counters.write_all_at(&0u64.to_ne_bytes(), WANTED);
        if let Step::Hears(_, file) = &self.step {
            let bytes = file.metadata().map_or(0, |file| file.len());
            let _ = rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes);
        }
    }
}

const WANTED: u64 = offset_of!(Stats, tracer.wanted) as u64;
const REPLY: u64 = offset_of!(Stats, tracer.reply) as u64;

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

fn read_word(file: &File, place: u64) -> Result<u64, String> {
    let mut word = [0u8; 8];
    file.read_exact_at(&mut word, place).map_err(|error| format!("its counters: {error}"))?;
    Ok(u64::from_ne_bytes(word))
}

/// Opens a file of another process if it is a regular file: opening anything else may have side effects.
fn open(path: &std::path::Path, options: &mut OpenOptions) -> std::io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// True if the file is an unused memfd. The process may belong to another user and name a file that only the tracer
/// may change. Only a memfd that was created for sealing has an empty set of seals.
fn is_new_memfd(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.is_empty())
        && file.metadata().is_ok_and(|file| file.len() == 0 && file.nlink() == 0)
}

/// The reason why the counters of a process cannot be read if they have another layout.
pub const ANOTHER_VERSION: &str = "another version of anyring serves it";

/// Opens the counters of the process with these options. They are in that file among its descriptors that has the
/// counters' size and magic number. The file exists while the process has a ring of anyring's engine.
///
/// # Errors
/// One line that says why the counters are unavailable.
pub fn find_counters(pid: i32, options: &mut OpenOptions) -> Result<Option<File>, String> {
    let folder = format!("/proc/{pid}/fd");
    let refused = |error: std::io::Error| match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "not permitted (it is another user's, or may not be looked into: prctl(2), PR_SET_DUMPABLE)".to_owned()
        }
        _ => format!("{folder}: {error}"),
    };
    for entry in std::fs::read_dir(&folder).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        let name = std::fs::read_link(&path).unwrap_or_default();
        let is_named = name.to_string_lossy().starts_with("/memfd:anyring-counters");
        // The descriptor may have been closed since, or its link may lead to a file that is not visible here.
        let Ok(found) = std::fs::metadata(&path) else { continue };
        if !is_named && found.len() != size_of::<Stats>() as u64 {
            continue;
        }
        let Ok(file) = open(&path, options) else { continue };
        let magic = read_word(&file, 0);
        if found.len() == size_of::<Stats>() as u64 && magic == Ok(MAGIC) {
            return Ok(Some(file));
        }
        // An empty file is still being created.
        if is_named && found.len() != 0 {
            return Err(ANOTHER_VERSION.to_owned());
        }
    }
    Ok(None)
}

/// The process's number in its own PID namespace.
fn own_pid(pid: i32) -> Result<u32, String> {
    let file = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let own = line.and_then(|line| line.split_whitespace().next_back()).and_then(|number| number.parse().ok());
    Ok(own.unwrap_or(pid as u32)) // Linux before 4.1 has no such line
}
