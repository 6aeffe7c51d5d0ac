//! Events of our engine: a file in memory that the traced processes map.

use crate::{now_ns, take_older, Event, Source};
use anyring_engine::event::Reader;
use std::path::{Path, PathBuf};

/// The file, which is removed when this is dropped.
#[derive(Debug)]
pub struct EngineSource {
    file: PathBuf,
    stream: Stream,
}

impl EngineSource {
    /// Makes the file where memory is, if it can be, else among the temporary files.
    ///
    /// # Errors
    /// One line that says why there is no room for it.
    pub fn new() -> Result<EngineSource, String> {
        let folders = [Path::new("/dev/shm").to_owned(), std::env::temp_dir()];
        let mut why = String::new();
        for folder in folders {
            let file = folder.join(format!("anyring-trace-{}-{}", std::process::id(), now_ns()));
            match Reader::create(&file) {
                Ok(reader) => return Ok(EngineSource { file, stream: Stream::new(reader) }),
                Err(error) => why = format!("{}: {error}", file.display()),
            }
        }
        Err(why)
    }

    /// What `ANYRING_TRACE` has to name.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// What a reader reads, in the order of time.
#[derive(Debug)]
pub struct Stream {
    reader: Reader,
    held: Vec<Event>,
}

impl Stream {
    /// What this one reads.
    pub fn new(reader: Reader) -> Stream {
        Stream { reader, held: Vec::new() }
    }

    /// Adds what happened before `until_ticks`, with its time in nanoseconds.
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
        // Bounded: other processes of the program may live on and go on producing.
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
        let _ = std::fs::remove_file(&self.file); // perhaps the program did
    }
}
