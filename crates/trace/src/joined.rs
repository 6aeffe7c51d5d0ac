//! Events of a process that our engine serves already: the head of the engine's `event::session` has how they are asked
//! for. Here is the tracer's part.

use crate::engine::Stream;
use crate::{Event, Source};
use anyring_engine::event::{wish, Reader, REFUSED};
use anyring_engine::stats::{Stats, MAGIC};
use rustix::fs::{fcntl_lock, FallocateFlags, FlockOperation, SealFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

/// A process that was joined. Dropping it leaves.
#[derive(Debug)]
pub struct JoinedSource {
    pid: i32,
    /// The number by which the process knows itself.
    own_pid: u32,
    /// The process's counters, locked as long as this lives.
    counters: File,
    /// The wish that is not answered yet, or the last one.
    number: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The process makes the file of events at its next call on a ring.
    Asked,
    /// Events come, from its next call on.
    Hears(Stream, File),
    /// Why there will be none.
    Refused(String),
}

impl JoinedSource {
    /// Asks the process for its events; `None` where our engine serves it no ring so far.
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
        // After what an earlier tracer asked for; the next odd number.
        let [wanted, answer] = [WANTED, ANSWER].map(|place| read_word(&counters, place));
        let last = (high(wanted?)).max(high(answer?));
        let mut joined =
            JoinedSource { pid, own_pid, counters, number: (last.wrapping_add(1)) | 1, step: Step::Asked };
        joined.ask()?;
        Ok(Some(joined))
    }

    fn ask(&mut self) -> Result<(), String> {
        let word = wish(self.number, self.own_pid);
        self.counters.write_all_at(&word.to_ne_bytes(), WANTED).map_err(|error| format!("its counters: {error}"))
    }

    /// Prepares the file that the process has made, if it has, and asks it to go on.
    fn prepare(&mut self) -> Result<(), String> {
        let answer = read_word(&self.counters, ANSWER)?;
        let (number, what) = (high(answer), answer as u32);
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
        // Its size is sealed, so that neither side can be struck by a SIGBUS.
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
        let answer = read_word(&self.counters, ANSWER).unwrap_or(0);
        match &self.step {
            Step::Refused(why) => Some(why.clone()),
            Step::Hears(..) if answer == wish(self.number, REFUSED) => {
                Some("it cannot use its file of events".to_owned())
            }
            _ => None,
        }
    }
}

impl Drop for JoinedSource {
    fn drop(&mut self) {
        // Whatever fails here, the process is no worse off than if this one had been killed.
        let _ = self.counters.write_all_at(&0u64.to_ne_bytes(), WANTED);
        if let Step::Hears(_, file) = &self.step {
            let bytes = file.metadata().map_or(0, |file| file.len());
            let _ = rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes);
        }
    }
}

const WANTED: u64 = offset_of!(Stats, tracer.wanted) as u64;
const ANSWER: u64 = offset_of!(Stats, tracer.answer) as u64;

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

fn read_word(file: &File, place: u64) -> Result<u64, String> {
    let mut word = [0u8; 8];
    file.read_exact_at(&mut word, place).map_err(|error| format!("its counters: {error}"))?;
    Ok(u64::from_ne_bytes(word))
}

/// Opens what a process has open, if that is a file: opening another thing may have an effect.
fn open(path: &std::path::Path, options: &mut OpenOptions) -> std::io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

/// Whether it is a memfd that nobody has used. The process might be another user's, and name a file that only we may
/// change: none but a memfd that was made to be sealed has no seals.
fn is_new_memfd(file: &File) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.is_empty())
        && file.metadata().is_ok_and(|file| file.len() == 0 && file.nlink() == 0)
}

/// Why the counters of a process cannot be read, where they are of another layout.
pub const ANOTHER_VERSION: &str = "another version of anyring serves it";

/// The counters of the process, opened with these options: the file among its descriptors that has their size and begins as
/// they do. It is there while a ring of our engine's lives.
///
/// # Errors
/// One line that says why it cannot be had.
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
        // It may have been closed meanwhile, and a link may lead to what only this process cannot see.
        let Ok(found) = std::fs::metadata(&path) else { continue };
        if !is_named && found.len() != size_of::<Stats>() as u64 {
            continue;
        }
        let Ok(file) = open(&path, options) else { continue };
        let magic = read_word(&file, 0);
        if found.len() == size_of::<Stats>() as u64 && magic == Ok(MAGIC) {
            return Ok(Some(file));
        }
        // Without bytes it is being made just now.
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
    Ok(own.unwrap_or(pid as u32)) // before Linux 4.1 there was no such line
}
