//! A trace in a file, for a later report: `anyring trace --record` writes it, `anyring report` reads it.
//!
//! The file has these parts, with all numbers in little-endian order:
//!
//! - a line with the format's version ([`MAGIC`]), and a line of JSON ([`Head`]);
//! - the events: a byte [`EVENT`] and 56 bytes each;
//! - the end: a byte [`END`], JSON ([`Tail`]), the length of that JSON in 8 bytes, and the first line again.
//!
//! A file without its end was cut off.

use crate::gain::Spent;
use crate::{Event, FileSystems, Processes, Report, Summary};
use anyring_engine::event::{FileKind, Kind};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Result, Seek, SeekFrom, Write};

/// Names the version, and changes with the format.
const MAGIC: &[u8] = b"anyring recording 2\n";
const EVENT: u8 = b'e';
const END: u8 = b'.';
const BYTES: usize = 56;

/// The facts known before the first event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    /// True if the events come from the kernel, whose tracepoints carry fewer fields of an SQE.
    pub by_kernel: bool,
    /// The reason for that engine.
    pub why: String,
    /// The reason why the kernel does not serve the program, if `auto` would have preferred it.
    pub not_kernel: Option<String>,
    /// The command line, or the process.
    pub title: String,
    /// The anyring version, the machine and the time of the trace.
    #[serde(default)]
    pub made: String,
}

/// The facts known after the last event.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Tail {
    /// Events that were lost because the program was faster.
    pub events_lost: u64,
    /// The processes of the threads.
    pub processes: Processes,
    /// The file systems of the files.
    pub file_systems: FileSystems,
    /// Children that could not be served, each with the reason.
    #[serde(default)]
    pub unserved: Vec<String>,
    /// Reasons why processes wrote no events.
    #[serde(default)]
    pub unheard: Vec<String>,
    /// The time that the program took.
    #[serde(default)]
    pub spent: Spent,
}

impl Tail {
    /// The report on the events.
    pub fn report(&self, summary: Summary) -> Report {
        let mut report = summary.report(self.events_lost);
        report.name_processes(&self.processes);
        report.name_file_systems(&self.file_systems);
        report.set_spent(self.spent);
        report.unserved.clone_from(&self.unserved);
        report.unheard.clone_from(&self.unheard);
        report
    }
}

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder<W: Write>(W);

impl<W: Write> Recorder<W> {
    /// Starts the file.
    ///
    /// # Errors
    /// Every method returns the error of a failed write.
    pub fn new(mut out: W, head: &Head) -> Result<Recorder<W>> {
        out.write_all(MAGIC)?;
        serde_json::to_writer(&mut out, head)?;
        out.write_all(b"\n")?;
        Ok(Recorder(out))
    }

    /// Appends an event.
    pub fn add(&mut self, event: &Event) -> Result<()> {
        self.0.write_all(&[EVENT])?;
        self.0.write_all(&to_bytes(event))
    }

    /// Ends the file.
    pub fn finish(mut self, tail: &Tail) -> Result<()> {
        let json = serde_json::to_vec(tail)?;
        self.0.write_all(&[END])?;
        self.0.write_all(&json)?;
        self.0.write_all(&(json.len() as u64).to_le_bytes())?;
        self.0.write_all(MAGIC)?;
        self.0.flush()
    }
}

/// Reads a recording.
#[derive(Debug)]
pub struct Recording<R: Read> {
    file: BufReader<R>,
    /// The head of the file.
    pub head: Head,
    /// The tail of the file; `None` if it was cut off.
    pub tail: Option<Tail>,
}

impl<R: Read + Seek> Recording<R> {
    /// # Errors
    /// One line that says why the file is not a recording.
    pub fn open(mut file: R) -> std::result::Result<Recording<R>, String> {
        let tail = read_tail(&mut file).unwrap_or_default();
        file.rewind().map_err(|error| error.to_string())?;
        let mut file = BufReader::new(file);
        let mut magic = [0u8; MAGIC.len()];
        let begins = file.read_exact(&mut magic).is_ok();
        if !begins || magic != *MAGIC {
            let kind = MAGIC.len() - 2;
            return Err(match begins && magic[..kind] == MAGIC[..kind] {
                true => "another version of anyring recorded it".to_owned(),
                false => "it is no recording of anyring trace --record".to_owned(),
            });
        }
        let mut line = String::new();
        let head = file.read_line(&mut line).ok().and_then(|_| serde_json::from_str(&line).ok());
        let head = head.ok_or("its head cannot be read: it was cut off, or changed")?;
        Ok(Recording { file, head, tail })
    }

    /// The next event; `None` at the end, or where the file was cut off.
    ///
    /// # Errors
    /// One line that says what is wrong with the file.
    pub fn next_event(&mut self) -> std::result::Result<Option<Event>, String> {
        let mut record = [0u8; 1 + BYTES];
        let mut filled = 0;
        while filled < record.len() {
            match self.file.read(&mut record[filled..]) {
                Ok(0) => return Ok(None),
                Ok(_) if record[0] == END => return Ok(None),
                Ok(count) => filled += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        let event = (record[0] == EVENT).then(|| from_bytes(&record[1..])).flatten();
        event.map(Some).ok_or_else(|| "it has what is no event: it was changed".to_owned())
    }
}

/// Reads the tail of the file; `None` if the file was cut off.
fn read_tail<R: Read + Seek>(file: &mut R) -> Result<Option<Tail>> {
    let mut last = [0u8; 8 + MAGIC.len()];
    let end = file.seek(SeekFrom::End(-(last.len() as i64)))?;
    file.read_exact(&mut last)?;
    let (length, magic) = last.split_at(8);
    let length = length.try_into().map_or(u64::MAX, u64::from_le_bytes);
    if magic != MAGIC || length > end {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(end - length))?;
    let mut json = Vec::new();
    file.take(length).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json).ok())
}

fn to_bytes(event: &Event) -> [u8; BYTES] {
    let Event { time_ns, user_data, offset, ring, request, thread, fd, len, result, flags, kind, opcode, file } =
        *event;
    let mut bytes = [0u8; BYTES];
    let long = [time_ns, user_data, offset].into_iter().flat_map(u64::to_le_bytes);
    let short =
        [ring, request, thread, fd as u32, len, result as u32, flags].into_iter().flat_map(u32::to_le_bytes);
    let rest = [kind as u8, file as u8].into_iter().chain(opcode.to_le_bytes());
    bytes.iter_mut().zip(long.chain(short).chain(rest)).for_each(|(to, from)| *to = from);
    bytes
}

fn from_bytes(bytes: &[u8]) -> Option<Event> {
    use FileKind::*;
    let files = [Unknown, Regular, Directory, Block, Character, Fifo, Socket, Other];
    let long = |place: usize| Some(u64::from_le_bytes(bytes.get(8 * place..8 * place + 8)?.try_into().ok()?));
    let short =
        |place: usize| Some(u32::from_le_bytes(bytes.get(24 + 4 * place..28 + 4 * place)?.try_into().ok()?));
    let [kind, file, low, high] = *bytes.get(52..56)? else { return None };
    Some(Event {
        time_ns: long(0)?,
        user_data: long(1)?,
        offset: long(2)?,
        ring: short(0)?,
        request: short(1)?,
        thread: short(2)?,
        fd: short(3)? as i32,
        len: short(4)?,
        result: short(5)? as i32,
        flags: short(6)?,
        kind: Kind::ALL.into_iter().find(|known| *known as u8 == kind)?,
        opcode: u16::from_le_bytes([low, high]),
        file: files.into_iter().find(|known| *known as u8 == file)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn events() -> [Event; 2] {
        let first = Event {
            time_ns: u64::MAX - 1,
            user_data: 0x0102_0304_0506_0708,
            offset: 7,
            ring: 1,
            request: 2,
            thread: 3,
            fd: -4,
            len: 5,
            result: -6,
            flags: 0x8000_0001,
            kind: Kind::FileGet,
            opcode: 0x122,
            file: FileKind::Socket,
        };
        [first, Event::new(Kind::Enter)]
    }

    fn recorded() -> Vec<u8> {
        let head = Head {
            by_kernel: true,
            why: "asked for".into(),
            not_kernel: None,
            title: "sh -c 'a\n'".into(),
            made: String::new(),
        };
        let mut bytes = Vec::new();
        let mut recorder = Recorder::new(&mut bytes, &head).expect("written");
        events().iter().for_each(|event| recorder.add(event).expect("written"));
        recorder.finish(&Tail { events_lost: 3, ..Tail::default() }).expect("written");
        bytes
    }

    #[test]
    fn a_recording_is_read() {
        let mut recording = Recording::open(Cursor::new(recorded())).expect("a recording");
        assert!(recording.head.by_kernel && recording.head.title == "sh -c 'a\n'");
        assert_eq!(recording.tail.as_ref().map(|tail| tail.events_lost), Some(3));
        for event in events() {
            assert_eq!(recording.next_event(), Ok(Some(event)));
        }
        assert_eq!(recording.next_event(), Ok(None));
    }

    #[test]
    fn a_recording_that_was_cut_off_is_read_so_far_and_the_rest_is_refused() {
        let whole = recorded();
        let events_begin = whole.iter().skip(MAGIC.len()).position(|byte| *byte == b'\n').expect("a line");
        for length in 0..whole.len() {
            match Recording::open(Cursor::new(&whole[..length])) {
                Ok(mut recording) => {
                    assert!(recording.tail.is_none());
                    let count =
                        std::iter::from_fn(|| recording.next_event().expect("an event, or the end")).count();
                    let body = length.saturating_sub(MAGIC.len() + events_begin + 1);
                    assert_eq!(count, (body / (1 + BYTES)).min(2), "{length} bytes");
                }
                Err(why) => assert!(length <= MAGIC.len() + events_begin, "{length} bytes: {why}"),
            }
        }
        let refused = |bytes: &[u8]| Recording::open(Cursor::new(bytes)).expect_err("no recording");
        assert_eq!(refused(b"an ELF file, or whatever it is"), "it is no recording of anyring trace --record");
        assert_eq!(refused(b"anyring recording 7\n{}\n"), "another version of anyring recorded it");
        let mut changed = whole.clone();
        changed[MAGIC.len() + events_begin + 1] = b'x';
        let mut recording = Recording::open(Cursor::new(&changed)).expect("its ends are there");
        assert!(recording.next_event().is_err());
    }
}
