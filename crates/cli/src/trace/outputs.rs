//! The outputs of a trace or a recording: lines, a report, a page, a file for Perfetto.

use crate::cli::Form;
use crate::failure::{Failure, USAGE};
use crate::output;
use anyring_trace::{line, page, Event, Filter, Head, Perfetto, Processes, Report};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The version of the JSON below. It changes when a field changes or is removed.
const SCHEMA: u32 = 1;

/// The JSON of `anyring trace --json`.
#[derive(serde::Serialize)]
struct JsonReport<'a> {
    schema: u32,
    backend: &'static str,
    why: &'a str,
    not_kernel: Option<&'a str>,
    made: &'a str,
    #[serde(flatten)]
    report: &'a Report,
}

/// The server's name in the report and the JSON.
pub fn backend_of(head: &Head) -> &'static str {
    if head.by_kernel {
        "kernel"
    } else {
        "anyring"
    }
}

/// The outputs that were requested.
pub struct Outputs<'a> {
    form: &'a Form,
    output: BufWriter<Box<dyn Write>>,
    output_name: String,
    page: Option<File>,
    perfetto: Option<Perfetto<BufWriter<File>>>,
    filter: Option<Filter>,
    /// The time that is printed as 0: that of the first event, or 0 for CLOCK_MONOTONIC.
    zero_ns: Option<u64>,
    written: Result<(), Failure>,
}

impl<'a> Outputs<'a> {
    /// Creates or empties the named files. If no file is named for the text, it goes to `otherwise`, which has a name
    /// for messages.
    pub fn open(
        form: &'a Form,
        filter: Option<Filter>,
        otherwise: (&str, Box<dyn Write>),
    ) -> Result<Outputs<'a>, Failure> {
        let (output_name, output) = match &form.output {
            None => (otherwise.0.to_owned(), otherwise.1),
            Some(file) => (file.display().to_string(), Box::new(create(file)?) as Box<dyn Write>),
        };
        let page = form.html.as_deref().map(create).transpose()?;
        let perfetto = match &form.perfetto {
            Some(file) => Some(
                Perfetto::new(BufWriter::new(create(file)?)).map_err(|error| unwritten(&form.perfetto, &error))?,
            ),
            None => None,
        };
        Ok(Outputs {
            form,
            output: BufWriter::new(output),
            output_name,
            page,
            perfetto,
            filter,
            zero_ns: form.monotonic.then_some(0),
            written: Ok(()),
        })
    }

    /// Writes the next event. False once an output could not be written.
    pub fn add(&mut self, event: &Event, head: &Head, processes: &Processes) -> bool {
        let (zero_ns, has_sqe) = (*self.zero_ns.get_or_insert(event.time_ns), !head.by_kernel);
        let is_printed = self.form.events && !event.kind.is_of_place();
        let is_wanted = is_printed && self.filter.as_mut().is_none_or(|filter| filter.passes(event, has_sqe));
        if is_wanted && self.written.is_ok() {
            let written = writeln!(self.output, "{}", line(event, has_sqe, zero_ns));
            self.written = written.map_err(|error| output::unwritten(&self.output_name, &error));
        }
        if let (Some(perfetto), true) = (&mut self.perfetto, self.written.is_ok()) {
            let written = perfetto.add(event, has_sqe, processes);
            self.written = written.map_err(|error| unwritten(&self.form.perfetto, &error));
        }
        self.written.is_ok()
    }

    /// Writes the report.
    pub fn finish(mut self, report: &Report, head: &Head) -> Result<(), Failure> {
        self.written?;
        let form = self.form;
        let finished = self.perfetto.map_or(Ok(()), Perfetto::finish);
        finished.map_err(|error| unwritten(&form.perfetto, &error))?;
        if let Some(file) = &mut self.page {
            let text = page(report, backend_of(head), head);
            file.write_all(text.as_bytes()).map_err(|error| unwritten(&form.html, &error))?;
        }
        let written = write_report(form, report, head, &mut self.output).and_then(|()| self.output.flush());
        written.map_err(|error| output::unwritten(&self.output_name, &error))
    }
}

fn unwritten(file: &Option<PathBuf>, error: &std::io::Error) -> Failure {
    output::unwritten(&file.as_deref().unwrap_or(Path::new("")).display().to_string(), error)
}

fn write_report(form: &Form, report: &Report, head: &Head, output: &mut impl Write) -> std::io::Result<()> {
    let (backend, why, not_kernel) = (backend_of(head), &head.why, head.not_kernel.as_deref());
    if form.events {
        return match report.events_lost {
            0 => Ok(()),
            lost => writeln!(output, "{lost} events were lost (the program was faster)"),
        };
    }
    if form.json {
        let json = JsonReport { schema: SCHEMA, backend, why, not_kernel, made: &head.made, report };
        return writeln!(output, "{}", serde_json::to_string_pretty(&json)?);
    }
    let made = if head.made.is_empty() { String::new() } else { format!("{}\n", head.made) };
    write!(output, "served by {backend}: {why}\n{report}{made}")
}

/// The filter from the command line.
pub fn filter_of(form: &Form) -> Result<Option<Filter>, Failure> {
    let parse =
        |text: &str| text.parse().map_err(|why| Failure { status: USAGE, message: format!("--filter: {why}") });
    form.filter.as_deref().map(parse).transpose()
}

/// Creates a file that the program does not inherit.
pub fn create(file: &Path) -> Result<File, Failure> {
    File::create(file).map_err(|error| Failure::own(format!("{}: {error}", file.display())))
}

/// Checks that no two outputs name the same file. `more` is another output, with its flag.
pub fn check_files(form: &Form, more: (&str, Option<&Path>)) -> Result<(), Failure> {
    let files = [
        ("--output", form.output.as_deref()),
        ("--perfetto", form.perfetto.as_deref()),
        ("--html", form.html.as_deref()),
        more,
    ];
    let named: Vec<_> = files.iter().filter_map(|(flag, file)| Some((flag, (*file)?))).collect();
    for (index, (flag, file)) in named.iter().enumerate() {
        if let Some((other, _)) = named[..index].iter().find(|(_, before)| is_same(before, file)) {
            let message = format!("{other} and {flag} name the same file: {}", file.display());
            return Err(Failure { status: USAGE, message });
        }
    }
    Ok(())
}

/// True if both paths name one regular file, existing or not.
fn is_same(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino()),
        (Err(_), Err(_)) => std::path::absolute(one).ok() == std::path::absolute(other).ok(),
        _ => false,
    }
}
