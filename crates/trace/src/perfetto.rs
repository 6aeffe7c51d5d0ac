//! Events as a file for the Perfetto UI (ui.perfetto.dev), in the JSON trace event format. The file's processes and
//! threads are those of the system, including workers. Each request is a slice of its own in the process that
//! submitted it, and its waits are slices inside that slice. An arrow leads from the submission to the completion,
//! through the worker if there was one.

use crate::line::opcode_name;
use crate::names::{cqe_flags, enter_flags, setup_flags, sqe_flags};
use crate::processes::Processes;
use crate::Event;
use anyring_abi::IORING_CQE_F_MORE;
use anyring_engine::chaos::Name;
use anyring_engine::event::{FileKind, Kind, Worked};
use std::collections::{HashMap, HashSet};
use std::io::{Result, Write};

/// Length of the marks of a submission and of a completion, in microseconds: an arrow needs a slice to start at.
const MARK_US: f64 = 0.05;

/// Writes the file.
#[derive(Debug)]
pub struct Perfetto<W: Write> {
    out: W,
    is_first: bool,
    /// Processes, and threads of each, whose names were written.
    named: HashSet<(u32, Option<u32>)>,
    /// The process of each thread.
    pids: HashMap<u32, u32>,
    open: HashMap<(u32, u32), Open>,
}

/// Escapes a name for JSON: a program may have any name.
fn escape(text: &str) -> String {
    let escape = |it: char| match it {
        '"' | '\\' => format!("\\{it}"),
        it if it.is_control() => format!("\\u{:04x}", it as u32),
        it => it.to_string(),
    };
    text.chars().map(escape).collect()
}

/// The fields of a request's arrow. The UI accepts only numbers as its id.
fn arrow_of(event: &Event) -> String {
    format!(",\"cat\":\"flow\",\"id\":{}", u64::from(event.ring) << 32 | u64::from(event.request))
}

/// A request in flight.
#[derive(Debug)]
struct Open {
    opcode: u16,
    /// The process that shows its slice.
    pid: u32,
    /// The name of the present wait inside its slice.
    inner: Option<&'static str>,
}

impl<W: Write> Perfetto<W> {
    /// Starts the file.
    ///
    /// # Errors
    /// Every method returns the error of a failed write.
    pub fn new(mut out: W) -> Result<Perfetto<W>> {
        out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")?;
        Ok(Perfetto { out, is_first: true, named: HashSet::new(), pids: HashMap::new(), open: HashMap::new() })
    }

    /// Writes one entry: its phase, name, process, thread and time. `rest` holds further fields, each after a comma.
    fn entry(&mut self, phase: &str, name: &str, event: &Event, rest: &str) -> Result<()> {
        self.entry_of(self.pid_of(event.thread), phase, name, event, rest)
    }

    fn entry_of(&mut self, pid: u32, phase: &str, name: &str, event: &Event, rest: &str) -> Result<()> {
        let comma = if std::mem::take(&mut self.is_first) { "" } else { ",\n" };
        let (thread, us) = (event.thread, event.time_ns as f64 / 1e3);
        write!(
            self.out,
            "{comma}{{\"ph\":\"{phase}\",\"name\":\"{name}\",\"pid\":{pid},\"tid\":{thread},\"ts\":{us:.3}{rest}}}"
        )
    }

    /// The process of a thread. An unknown thread counts as a process of its own.
    fn pid_of(&self, thread: u32) -> u32 {
        self.pids.get(&thread).copied().unwrap_or(thread)
    }

    /// Writes a step of the request's own slice, or of one inside it.
    fn of_request(&mut self, phase: &str, name: &str, event: &Event, rest: &str) -> Result<()> {
        let Event { ring, request, thread, .. } = *event;
        let pid = self.open.get(&(ring, request)).map_or_else(|| self.pid_of(thread), |open| open.pid);
        // A local id makes the UI show the slice in its process.
        let id = format!(",\"cat\":\"ring {ring}\",\"id2\":{{\"local\":\"{ring}.{request}\"}}{rest}");
        self.entry_of(pid, phase, name, event, &id)
    }

    /// Writes a mark on the thread's track, and the start or the end of the request's arrow.
    fn mark(&mut self, name: &str, event: &Event, arrow: &str) -> Result<()> {
        self.entry("X", name, event, &format!(",\"dur\":{MARK_US}"))?;
        let end = if arrow == "f" { ",\"bp\":\"e\"" } else { "" };
        self.entry(arrow, "request", event, &format!("{}{end}", arrow_of(event)))
    }

    /// Writes the names of a thread and of its process. The UI shows their numbers next to them.
    fn name(&mut self, event: &Event, processes: &Processes) -> Result<()> {
        let thread = event.thread;
        let known = processes.of_thread(thread);
        let pid = known.unwrap_or(thread);
        self.pids.insert(thread, pid);
        let args = |name: &str| format!(",\"args\":{{\"name\":\"{}\"}}", escape(name));
        if self.named.insert((pid, None)) {
            let name = known.map_or("unknown process", |pid| processes.program(pid).unwrap_or("unknown program"));
            self.entry("M", "process_name", event, &args(name))?;
        }
        if self.named.insert((pid, Some(thread))) {
            let name = processes.name_of_thread(thread).unwrap_or("thread");
            self.entry("M", "thread_name", event, &args(name))?;
        }
        Ok(())
    }

    /// Adds one event; those of a ring must come in order of time. Calls on an unknown ring are left out. `has_sqe`:
    /// SUBMIT_REQ carries the fields of the SQE.
    pub fn add(&mut self, event: &Event, has_sqe: bool, processes: &Processes) -> Result<()> {
        if event.ring == 0 || event.kind.is_of_place() {
            return Ok(());
        }
        self.name(event, processes)?;
        let Event { ring, fd, len, result, flags, offset, user_data, .. } = *event;
        match event.kind {
            Kind::ReqFailed if event.is_aio() => self.complete(event), // it was submitted, and gets no event
            Kind::SubmitReq | Kind::ReqFailed => self.submit(event, has_sqe),
            Kind::Complete | Kind::CqeOverflow => self.complete(event),
            Kind::FileGet if event.file != FileKind::Unknown => {
                let args = format!(",\"args\":{{\"fd\":{fd},\"file\":\"{}\"}}", event.file.name());
                self.of_request("n", "file_get", event, &args)
            }
            Kind::PollArm => self.begin_inner("waits to be ready", event),
            Kind::QueueAsyncWork => self.begin_inner("with a worker", event),
            Kind::Defer => self.begin_inner("drains", event),
            Kind::TaskAdd => {
                if let Some(worked) = event.worked() {
                    self.work(event, worked, processes)?;
                }
                self.end_inner(event)
            }
            Kind::Link | Kind::FailLink => {
                let args = format!(",\"args\":{{\"other\":{offset},\"user_data\":\"{user_data:#x}\"}}");
                self.of_request("n", event.kind.name(), event, &args)
            }
            Kind::ShortWrite => {
                let args = format!(",\"args\":{{\"wanted\":{len},\"got\":{result}}}");
                self.of_request("n", "short_write", event, &args)
            }
            Kind::Injection | Kind::Finding => {
                let name = Name::of(event).map_or_else(String::new, |name| name.to_string());
                let args = format!(",\"args\":{{\"name\":\"{name}\"}}");
                match event.request {
                    0 => self.entry("i", event.kind.name(), event, &format!(",\"s\":\"t\"{args}")),
                    _ => self.of_request("n", event.kind.name(), event, &args),
                }
            }
            Kind::Create => {
                let args = format!("\"ring\":{ring},\"fd\":{fd},\"flags\":\"{}\"", setup_flags(flags));
                self.entry("i", event.kind.name(), event, &format!(",\"s\":\"t\",\"args\":{{{args}}}"))
            }
            Kind::Enter => {
                let flags = enter_flags(flags);
                let args =
                    format!("\"ring\":{ring},\"to_submit\":{len},\"min_complete\":{offset},\"flags\":\"{flags}\"");
                self.entry("i", "enter", event, &format!(",\"s\":\"t\",\"args\":{{{args}}}"))
            }
            _ => self.entry("i", event.kind.name(), event, &format!(",\"s\":\"t\",\"args\":{{\"count\":{len}}}")),
        }
    }

    fn submit(&mut self, event: &Event, has_sqe: bool) -> Result<()> {
        let Event { ring, fd, len, flags, offset, user_data, .. } = *event;
        let (name, flags) = (opcode_name(event.opcode), sqe_flags(flags));
        let mut args = format!("\"ring\":{ring},\"user_data\":\"{user_data:#x}\",\"flags\":\"{flags}\"");
        if has_sqe || event.kind == Kind::ReqFailed {
            args += &format!(",\"fd\":{fd},\"len\":{len},\"off\":{}", offset as i64);
        }
        let pid = self.pid_of(event.thread);
        self.open.insert((event.ring, event.request), Open { opcode: event.opcode, pid, inner: None });
        self.mark(&format!("submit {name}"), event, "s")?;
        self.of_request("b", &name, event, &format!(",\"args\":{{{args}}}"))
    }

    fn complete(&mut self, event: &Event) -> Result<()> {
        let Event { result, flags, .. } = *event;
        let args = format!(",\"args\":{{\"result\":{result},\"cflags\":\"{}\"}}", cqe_flags(flags));
        if flags & IORING_CQE_F_MORE != 0 {
            return self.of_request("n", "complete, more follow", event, &args);
        }
        self.end_inner(event)?;
        // The CQE of a message, or of a request whose submission was lost, belongs to no slice.
        let Some(open) = self.open.get(&(event.ring, event.request)) else {
            return self.entry("i", event.kind.name(), event, &format!(",\"s\":\"t\"{args}"));
        };
        let name = opcode_name(open.opcode);
        self.mark(&format!("complete {name}"), event, "f")?;
        self.of_request("e", &name, event, &args)?;
        self.open.remove(&(event.ring, event.request));
        Ok(())
    }

    /// Draws a worker's part of the request, which has ended, on the worker's track.
    fn work(&mut self, event: &Event, worked: Worked, processes: &Processes) -> Result<()> {
        let Worked { thread, began_ns, took_ns } = worked;
        let begun = Event { thread, time_ns: began_ns, ..*event };
        self.name(&begun, processes)?;
        let (us, ring, user_data) = (took_ns as f64 / 1e3, event.ring, event.user_data);
        let args = format!("\"ring\":{ring},\"user_data\":\"{user_data:#x}\"");
        let slice = format!(",\"dur\":{us:.3},\"args\":{{{args}}}");
        self.entry("X", &opcode_name(event.opcode), &begun, &slice)?;
        self.entry("t", "request", &begun, &arrow_of(event))
    }

    fn begin_inner(&mut self, name: &'static str, event: &Event) -> Result<()> {
        self.end_inner(event)?;
        match self.open.get_mut(&(event.ring, event.request)) {
            Some(open) => open.inner = Some(name),
            None => return Ok(()),
        }
        self.of_request("b", name, event, "")
    }

    fn end_inner(&mut self, event: &Event) -> Result<()> {
        let open = self.open.get_mut(&(event.ring, event.request));
        match open.and_then(|open| open.inner.take()) {
            Some(name) => self.of_request("e", name, event, ""),
            None => Ok(()),
        }
    }

    /// Ends the file.
    pub fn finish(mut self) -> Result<()> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_abi::Opcode;

    #[test]
    fn a_request_is_a_slice_with_what_it_waited_for_inside_and_an_arrow() {
        let mut text = Vec::new();
        let mut perfetto = Perfetto::new(&mut text).expect("written");
        let mut processes = Processes::default();
        processes.insert(9, 8, "a \"server\"");
        processes.insert(11, 8, "wq");
        let of = |kind, time_ns| {
            let opcode = Opcode::Read as u16;
            Event { ring: 2, request: 7, thread: 9, time_ns, opcode, fd: 4, len: 16, ..Event::new(kind) }
        };
        let kinds = [
            Kind::Create,
            Kind::Enter,
            Kind::SubmitReq,
            Kind::FileGet,
            Kind::PollArm,
            Kind::Injection,
            Kind::TaskAdd,
            Kind::Complete,
        ];
        for (step, kind) in (1..).zip(kinds) {
            perfetto
                .add(&Event { file: FileKind::Fifo, ..of(kind, step * 1_000) }, true, &processes)
                .expect("written");
        }
        perfetto.add(&Event { request: 0, ..of(Kind::Complete, 9_000) }, true, &processes).expect("written");
        perfetto.add(&Event { ring: 0, ..of(Kind::Enter, 9_000) }, true, &processes).expect("written");
        perfetto.finish().expect("written");
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let entries = json["traceEvents"].as_array().expect("entries");
        let phases: Vec<_> = entries.iter().map(|entry| entry["ph"].as_str().expect("a phase")).collect();
        // Names, creation, enter; mark and arrow of the submission, slice, file, wait; an injection; end of the wait,
        // mark, arrow, end of the slice; a message.
        assert_eq!(phases.concat(), ["MMii", "Xsbnb", "n", "eXfe", "i"].concat());
        let slice = entries.iter().find(|entry| entry["ph"] == "b").expect("a slice");
        assert_eq!(
            (&slice["name"], &slice["ts"], &slice["args"]["len"]),
            (&"READ".into(), &3.0.into(), &16.into())
        );
        assert!(entries.iter().all(|entry| entry["pid"] == 8 && entry["tid"] == 9), "{entries:?}");
        assert_eq!(entries[0]["args"]["name"], "a \"server\"");
        let ends: Vec<_> = entries.iter().filter(|entry| entry["ph"] == "e").map(|entry| &entry["name"]).collect();
        assert_eq!(ends, ["waits to be ready", "READ"]);
    }

    #[test]
    fn a_worker_has_a_track_with_what_it_did_when_it_did_it() {
        let mut text = Vec::new();
        let mut perfetto = Perfetto::new(&mut text).expect("written");
        let mut processes = Processes::default();
        processes.insert(9, 8, "a \"server\"");
        processes.insert(11, 8, "wq");
        let of = |kind, time_ns| Event {
            ring: 2,
            request: 7,
            thread: 9,
            time_ns,
            opcode: Opcode::Read as u16,
            ..Event::new(kind)
        };
        let worked = Event { fd: 11, offset: 3_500, result: 1_200, ..of(Kind::TaskAdd, 5_000) };
        for event in
            [of(Kind::SubmitReq, 1_000), of(Kind::QueueAsyncWork, 2_000), worked, of(Kind::Complete, 6_000)]
        {
            perfetto.add(&event, true, &processes).expect("written");
        }
        perfetto.finish().expect("written");
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let entries = json["traceEvents"].as_array().expect("entries");
        let of_workers: Vec<_> = entries.iter().filter(|entry| entry["tid"] == 11).collect();
        let phases: Vec<_> = of_workers.iter().map(|entry| entry["ph"].as_str().expect("a phase")).collect();
        assert_eq!(phases.concat(), "MXt", "its name, the work, the arrow's way");
        assert_eq!((&of_workers[0]["pid"], &of_workers[0]["args"]["name"]), (&8.into(), &"wq".into()));
        let work = of_workers[1];
        assert_eq!(
            (&work["name"], &work["tid"], &work["ts"], &work["dur"]),
            (&"READ".into(), &11.into(), &3.5.into(), &1.2.into())
        );
        let arrow: Vec<_> = entries.iter().filter(|it| it["cat"] == "flow").map(|it| &it["ph"]).collect();
        assert_eq!(arrow, ["s", "t", "f"]);
    }
}
