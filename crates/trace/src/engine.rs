//! Events of anyring's engine, in a file in memory that the traced processes map.

use crate::{is_abandoned, now_ns, take_older, Event, Source, FILE_PREFIX};
use anyring_engine::event::Reader;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The file of events. Dropping this removes it.
#[derive(Debug)]
pub struct EngineSource {
    file: PathBuf,
    /// The lock file, which stays locked while this value lives.
    _lock: Option<File>,
    stream: Stream,
}

/// Opens and locks the file, unless another process holds its lock.
fn lock(file: &Path) -> Option<File> {
    let options = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file, options, Mode::empty()).ok()?;
    rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(opened.into())
}

/// Removes the files of tracers that were killed; each takes 16 MiB of memory. The file's lock shows whether its tracer
/// lives. The process number in the name does not show that. The folder may be shared with another PID namespace,
/// whose tracers have other numbers here.
fn remove_abandoned(folder: &Path) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_abandoned(&entry.file_name()) && lock(&entry.path()).is_some() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

impl EngineSource {
    /// Creates the file in memory (/dev/shm) if possible, otherwise in the folder for temporary files.
    ///
    /// # Errors
    /// One line that says why the file cannot be created.
    pub fn new() -> Result<EngineSource, String> {
        let folders = [Path::new("/dev/shm").to_owned(), std::env::temp_dir()];
        let mut why = String::new();
        for folder in folders {
            remove_abandoned(&folder);
            let file = folder.join(format!("{FILE_PREFIX}{}-{}", std::process::id(), now_ns()));
            match Reader::create(&file) {
                Ok(reader) => return Ok(EngineSource { _lock: lock(&file), file, stream: Stream::new(reader) }),
                Err(error) => why = format!("{}: {error}", file.display()),
            }
        }
        Err(why)
    }

    /// The path for `ANYRING_TRACE`.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// The events of a reader, in order of time.
#[derive(Debug)]
pub struct Stream {
    reader: Reader,
    held: Vec<Event>,
}

impl Stream {
    /// Makes a stream that takes its events from `reader`.
    pub fn new(reader: Reader) -> Stream {
        Stream { reader, held: Vec::new() }
    }

    /// Moves the events before `until_ticks` to `events`, with their times in nanoseconds.
    fn hand_out(&mut self, until_ticks: u64, events: &mut Vec<Event>) {
        let first = events.len();
        events.extend(take_older(&mut self.held, until_ticks, |event| event.time_ns));
        self.reader.convert(&mut events[first..]);
    }
}

impl Source for Stream {
    fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        let busy = self.reader.drain(&mut self.held);
        self.hand_out(self.reader.drained_ticks(), events);
        busy
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        // At most 64 rounds, since other processes of the program may live on and produce events.
        let mut rounds = 0;
        while self.reader.drain(&mut self.held) && rounds < 64 {
            rounds += 1;
        }
        self.hand_out(u64::MAX, events);
    }

    fn dropped(&self) -> u64 {
        self.reader.dropped()
    }
}

impl Source for EngineSource {
    fn drain(&mut self, events: &mut Vec<Event>) -> bool {
        self.stream.drain(events)
    }

    fn finish(&mut self, events: &mut Vec<Event>) {
        self.stream.finish(events);
    }

    fn dropped(&self) -> u64 {
        self.stream.dropped()
    }
}

impl Drop for EngineSource {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file); // the program may have removed it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_killed_tracer_are_removed_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("anyring-left-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        let mut ended = std::process::Command::new("true").spawn().expect("start true");
        ended.wait().expect("wait");
        let names = [
            (format!("{FILE_PREFIX}{}-1", ended.id()), false),
            (format!("{FILE_PREFIX}{}-2", ended.id()), true),
            (format!("{FILE_PREFIX}{}-1", std::process::id()), true),
            (format!("{FILE_PREFIX}notes"), true),
            ("other".to_owned(), true),
        ];
        names.iter().for_each(|(name, _)| std::fs::write(folder.join(name), "").expect("write"));
        // The locked file is that of a tracer in another PID namespace.
        let _locked = lock(&folder.join(&names[1].0)).expect("the lock");
        remove_abandoned(&folder);
        for (name, stays) in &names {
            assert_eq!(folder.join(name).exists(), *stays, "{name}");
        }
        std::fs::remove_dir_all(&folder).expect("remove");
    }
}
