//! Traces that are recorded now and reported later: `anyring trace --record FILE`, `anyring report FILE`.

use super::name_places;
use super::outputs::{check_files, create, filter_of, Outputs};
use crate::cli::ReportOptions;
use crate::failure::Failure;
use crate::output;
use anyring_trace::{Event, Head, Recorder, Recording, Summary, Tail};
use std::fs::File;
use std::io::{BufWriter, Result as IoResult};
use std::path::Path;

/// A file that is being recorded.
pub struct Record {
    name: String,
    /// Present until the first event, since the server is known only then.
    file: Option<BufWriter<File>>,
    recorder: Option<Recorder<BufWriter<File>>>,
    written: IoResult<()>,
}

impl Record {
    /// Creates or empties the file.
    pub fn create(file: &Path) -> Result<Record, Failure> {
        let opened = BufWriter::new(create(file)?);
        let name = file.display().to_string();
        Ok(Record { name, file: Some(opened), recorder: None, written: Ok(()) })
    }

    fn begin(&mut self, head: &Head) -> IoResult<()> {
        if let Some(file) = self.file.take() {
            self.recorder = Some(Recorder::new(file, head)?);
        }
        Ok(())
    }

    /// Records the next event. False once the file could not be written.
    pub fn add(&mut self, event: &Event, head: &Head) -> bool {
        if self.written.is_ok() {
            self.written =
                self.begin(head).and_then(|()| self.recorder.as_mut().map_or(Ok(()), |it| it.add(event)));
        }
        self.written.is_ok()
    }

    /// Ends the recording.
    pub fn finish(mut self, head: &Head, tail: &Tail) -> Result<(), Failure> {
        let written = std::mem::replace(&mut self.written, Ok(())).and_then(|()| self.begin(head));
        let finished = written.and_then(|()| self.recorder.map_or(Ok(()), |recorder| recorder.finish(tail)));
        finished.map_err(|error| output::unwritten(&self.name, &error))
    }
}

/// Reports a recording. Returns the exit status.
pub fn report(options: &ReportOptions) -> Result<i32, Failure> {
    let name = options.file.display();
    let filter = filter_of(&options.form)?;
    check_files(&options.form, ("FILE", Some(&options.file)))?;
    let file = File::open(&options.file).map_err(|error| Failure::own(format!("{name}: {error}")))?;
    let mut recording = Recording::open(file).map_err(|why| Failure::own(format!("{name}: {why}")))?;
    let mut outputs = Outputs::open(&options.form, filter, ("standard output", Box::new(std::io::stdout())))?;
    let (head, tail) = (recording.head.clone(), recording.tail.take());
    let is_whole = tail.is_some();
    let tail = tail.unwrap_or_default();
    let mut summary = Summary::new(!head.by_kernel);
    while let Some(event) = recording.next_event().map_err(|why| Failure::own(format!("{name}: {why}")))? {
        if !outputs.add(&event, &head, &tail.processes) {
            break;
        }
        summary.add(&event);
    }
    let mut report = tail.report(summary);
    name_places(&mut report);
    outputs.finish(&report, &head)?;
    match is_whole {
        true => Ok(0),
        false => Err(Failure::own(format!(
            "{name}: the end is missing, since the trace was killed or still runs; later events are left out"
        ))),
    }
}
