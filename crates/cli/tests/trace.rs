//! `anyring trace`: the end of the program, and the report on its requests.

mod common;

use common::{anyring, conformance, library, one_line_failure, output};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The output of `trace` for these conformance cases, served by `backend`: events with `--events`, else JSON.
fn trace(backend: &str, form: &str, cases: &[&str]) -> String {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let report = directory.path().join("report");
    let mut command = anyring(&["trace", "--backend", backend, form, "-o"]);
    command.arg(&report).arg("--").arg(conformance()).args(["--quiet", "--exact"]);
    cases.iter().for_each(|case| {
        command.args(["--filter", case]);
    });
    let output = output(&mut command);
    assert!(output.status.success(), "{output:?}");
    std::fs::read_to_string(report).expect("the report")
}

fn files_of_events() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.contains("anyring-trace-"))
        .collect()
}

#[test]
fn the_programs_end_is_ours() {
    library();
    let ends = [("exit 7", Some(7)), ("kill -TERM $$", None)];
    for (script, status) in ends {
        let output = output(&mut anyring(&["trace", "--backend", "user", "--", "sh", "-c", script]));
        assert_eq!(output.status.code(), status, "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("No ring was made."));
    }
}

#[test]
fn a_program_that_cannot_be_started_has_no_report() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let (report, script) = (directory.path().join("report"), directory.path().join("script"));
    std::fs::write(&report, "of yesterday").expect("write");
    common::install(b"#!/nonexistent/interpreter\n", &script);
    let with = |program: &Path| {
        let mut command = anyring(&["trace", "--backend", "user", "-o"]);
        one_line_failure(&output(command.arg(&report).arg("--").arg(program)), 127)
    };
    assert!(with(Path::new("no-such-program")).contains("no-such-program"));
    assert_eq!(std::fs::read_to_string(&report).expect("read"), "of yesterday");
    assert!(with(&script).contains("script"));
    assert_eq!(std::fs::read_to_string(&report).expect("read"), "", "no report of a program that never ran");
}

#[test]
fn two_reports_in_one_file_are_a_usage_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("report");
    for flag in ["--html", "--perfetto"] {
        let mut command = anyring(&["trace", "-o"]);
        let why = one_line_failure(&output(command.arg(&file).arg(flag).arg(&file).args(["--", "true"])), 2);
        assert!(why.contains("--output") && why.contains(flag), "{why}");
        assert!(!file.exists(), "nothing was made");
    }
}

#[test]
fn the_report_says_why_the_kernels_io_uring_was_not_traced() {
    library();
    let trace = |form: &[&str]| {
        let words = [&["deny", "--", common::ANYRING, "trace"], form, &["--", "true"]].concat();
        String::from_utf8(output(&mut anyring(&words)).stderr).expect("UTF-8")
    };
    let why = "the kernel's io_uring does not work here: io_uring_setup answered EPERM";
    assert!(trace(&[]).starts_with(&format!("served by anyring: {why}\n")), "{}", trace(&[]));
    let report: serde_json::Value = serde_json::from_str(&trace(&["--json"])).expect("JSON");
    assert_eq!((&report["schema"], &report["not_kernel"]), (&1.into(), &why.into()));
    assert_eq!(report["why"], why);
    assert!(trace(&["--backend", "user"]).starts_with("served by anyring: asked for\n"), "it was asked for");
}

/// A program with one thread takes no more CPU time than elapses. The first milliseconds count, too.
#[test]
fn the_elapsed_time_begins_before_the_program() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    for _ in 0..5 {
        let mut trace = anyring(&["trace", "--backend", "user", "--json", "-o"]);
        let run = output(trace.arg(&report).args(["--", "true"]));
        assert_eq!(run.status.code(), Some(0), "{run:?}");
        let text = std::fs::read_to_string(&report).expect("the report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let ns = |name: &str| report[name].as_u64().expect("a time");
        assert!(ns("elapsed_ns") >= ns("cpu_ns"), "{report}");
    }
}

#[test]
fn a_report_that_cannot_be_written_stops_nothing_else() {
    library();
    for form in [&["--events"][..], &["--json"], &[]] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let mut command = anyring(&[&["trace", "--backend", "user"], form, &["--"]].concat());
        command.arg(conformance()).args(["--quiet", "--filter", "nop::completes_with_zero"]);
        let mut tracer = command.stderr(writer).stdout(Stdio::null()).spawn().expect("start");
        drop(command); // this process's end of the pipe
        let (status, file) = (tracer.wait().expect("wait"), format!("anyring-trace-{}-", tracer.id()));
        assert_eq!(status.code(), Some(128 + libc::SIGPIPE), "{form:?}: not killed by it");
        let left: Vec<_> = files_of_events().into_iter().filter(|name| name.contains(&file)).collect();
        assert!(left.is_empty(), "{form:?}: left behind: {left:?}");
    }
    let output = output(&mut anyring(&["trace", "--backend", "user", "-o", "/dev/full", "--", "true"]));
    assert!(one_line_failure(&output, 125).contains("/dev/full"), "{output:?}");
}

#[test]
fn a_program_that_makes_the_file_of_events_smaller_does_not_end_the_tracer() {
    library();
    let script = ": > \"$ANYRING_TRACE\"; exit 7";
    let output = output(&mut anyring(&["trace", "--backend", "user", "--", "sh", "-c", script]));
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("No ring was made."));
}

/// The file of events belongs to the user who traces.
#[test]
fn a_process_that_may_not_write_events_is_named() {
    if !rustix::process::geteuid().is_root() {
        return common::skipped("a process without events: only root can change the user");
    }
    // Another user may not reach the folder of the build.
    let folder = tempfile::Builder::new().prefix("anyring-").tempdir_in("/var/tmp").expect("a directory");
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), everybody).expect("open the folder to all");
    let copied = |file: &Path| {
        let copy = folder.path().join(file.file_name().expect("a name"));
        std::fs::copy(file, &copy).expect("copy");
        copy
    };
    let (program, copy) = (copied(conformance()), copied(common::ANYRING.as_ref()));
    copied(library());
    let mut trace = Command::new(copy);
    trace.args(["trace", "--backend", "user", "--", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
    trace.arg(program).args(["--quiet", "--filter", "nop::completes_with_zero"]).current_dir("/");
    let traced = output(&mut trace);
    let said = String::from_utf8_lossy(&traced.stderr);
    assert!(traced.status.success() && said.contains("No ring was traced.\n"), "{said}");
    assert!(said.contains("not traced: a process that could not open /dev/shm/anyring-trace-"), "{said}");
}

/// The kernel would record events in such an instance forever, although nobody reads them.
#[test]
fn instances_of_killed_tracers_are_removed() {
    let places = ["/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"];
    let Some(place) = places.map(Path::new).into_iter().find(|place| place.is_dir()) else {
        return common::skipped("instances of killed tracers: tracefs is not mounted, or only for root");
    };
    let mut ended = Command::new("true").spawn().expect("start true");
    ended.wait().expect("wait");
    let left = place.join(format!("anyring-trace-{}-own", ended.id()));
    std::fs::create_dir(&left).expect("an instance");
    output(&mut anyring(&["trace", "--backend", "kernel", "--", "true"]));
    assert!(!left.exists());
}

#[test]
fn a_signal_is_passed_on_and_the_file_of_events_is_removed() {
    library();
    let mut command = anyring(&["trace", "--backend", "user", "--", "sh", "-c"]);
    command.arg("trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done");
    let mut tracer = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("start");
    let mut ready = [0u8; 6];
    std::io::Read::read_exact(&mut tracer.stdout.take().expect("a pipe"), &mut ready).expect("ready");
    let file = format!("anyring-trace-{}-", tracer.id());
    let kill = Command::new("kill").args(["-TERM", &tracer.id().to_string()]).status().expect("kill");
    assert!(kill.success());
    let limit = Instant::now() + Duration::from_secs(20);
    let status = loop {
        match tracer.try_wait().expect("wait") {
            Some(status) => break status,
            None => assert!(Instant::now() < limit, "the tracer did not end"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(9));
    let left: Vec<_> = files_of_events().into_iter().filter(|name| name.contains(&file)).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

#[test]
fn a_program_that_cannot_be_traced_is_refused_in_one_line() {
    library();
    let output = output(&mut anyring(&["trace", "-o", "/no/such/folder/report", "--", "true"]));
    one_line_failure(&output, 125);
}

/// Names of the events of each request: rings in order of creation, requests by their user_data.
type Streams = BTreeMap<(u32, String), Vec<String>>;

/// `queue_async_work` of a request with IOSQE_ASYNC.
const ASKED_FOR: &str = "queue_async_work (asked for)";

/// Events that depend only on the moment at which a thread deals with a request.
const NOT_COMPARED: [&str; 4] = ["task_add", "task_work_run", "local_work_run", "sys_enter_io_uring_enter"];

fn streams(events: &str) -> Streams {
    let mut streams = Streams::new();
    let mut names = BTreeMap::new();
    for line in events.lines() {
        let mut words = line.split(' ');
        let probe = words.next().unwrap_or_default();
        let name = probe.rsplit(':').next().unwrap_or_default();
        let name = name.strip_prefix("io_uring_").unwrap_or(name);
        let words: Vec<_> = words.collect();
        let field = |key: &str| words.iter().position(|word| *word == key).map(|at| words[at + 1].to_owned());
        let ring = field("ring").expect("a ring").parse().unwrap_or(0); // "unknown" for calls
        let (request, user_data) = (field("req"), field("user_data"));
        if let (Some(request), Some(user_data)) = (&request, &user_data) {
            names.insert((ring, request.clone()), user_data.clone());
        }
        let user_data = user_data.or_else(|| names.get(&(ring, request?)).cloned());
        let Some(user_data) = user_data.filter(|_| !NOT_COMPARED.contains(&name)) else { continue };
        let is_async = field("flags").is_some_and(|flags| flags.split('|').any(|flag| flag == "ASYNC"));
        let name = if name == "queue_async_work" && is_async { ASKED_FOR } else { name };
        streams.entry((ring, user_data)).or_default().push(name.to_owned());
    }
    streams
}

/// True if anyring's engine reports the same as the kernel. IOSQE_ASYNC is a hint to anyring's (docs/limits.md).
fn are_same(kernel: &[String], ours: Option<&Vec<String>>) -> bool {
    let without_hints =
        |names: &[String]| names.iter().filter(|name| *name != ASKED_FOR).cloned().collect::<Vec<_>>();
    ours.is_some_and(|ours| {
        let has_hints = ours.iter().any(|name| name == ASKED_FOR);
        // For FSYNC, OPENAT and the like the kernel's events do not say whether the flag was set.
        let is_same = |(kernel, ours): (&String, &String)| {
            kernel == ours || kernel == "queue_async_work" && ours == ASKED_FOR
        };
        let all_same = kernel.len() == ours.len() && kernel.iter().zip(ours).all(is_same);
        all_same || !has_hints && without_hints(kernel) == *ours
    })
}

/// The cases of `tests/conformance/traced.txt`.
fn traced_cases() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/traced.txt");
    let text = std::fs::read_to_string(file).expect("the list");
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn tracefs_is_there() -> bool {
    ["/sys/kernel/tracing/instances", "/sys/kernel/debug/tracing/instances"]
        .iter()
        .any(|place| Path::new(place).is_dir())
}

#[test]
fn our_events_are_the_kernels_in_names_and_order() {
    if !common::kernel_works("comparing streams of events") {
        return;
    }
    if !tracefs_is_there() {
        return common::skipped("comparing streams of events: tracefs is not mounted, or only for root");
    }
    let cases = traced_cases();
    assert!(cases.len() >= 50, "the list has become short: {}", cases.len());
    let cases: Vec<_> = cases.iter().map(String::as_str).collect();
    let (theirs, ours) = (trace("kernel", "--events", &cases), trace("user", "--events", &cases));
    for text in [&theirs, &ours] {
        assert!(!text.contains("events were lost"), "{}", text.lines().last().unwrap_or_default());
    }
    let (theirs, ours) = (streams(&theirs), streams(&ours));
    assert!(theirs.len() >= cases.len(), "there were requests: {}", theirs.len());
    let differ: Vec<_> = theirs
        .iter()
        .filter(|(request, names)| !are_same(names, ours.get(*request)))
        .map(|(request, names)| format!("{request:?}: kernel {names:?}, ours {:?}", ours.get(request)))
        .collect();
    assert!(differ.is_empty(), "{} requests differ:\n{}", differ.len(), differ.join("\n"));
    assert_eq!(theirs.len(), ours.len(), "requests of which only we say something");
}

#[test]
fn the_summary_has_the_path_of_each_kind_of_request() {
    let text = trace("user", "--json", &["rw_pipe::readv_waits_for_data", "nop::completes_with_zero"]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["backend"], "anyring");
    assert_eq!(report["events_lost"], 0);
    let rings = report["rings"].as_array().expect("rings");
    let kinds: Vec<_> = rings.iter().flat_map(|ring| ring["kinds"].as_array().expect("kinds")).collect();
    let kind = |opcode: &str| *kinds.iter().find(|kind| kind["opcode"] == opcode).expect("that opcode");
    let (nop, read) = (kind("NOP"), kind("READV"));
    assert_eq!((&nop["inline"], &nop["worker"]), (&nop["count"], &serde_json::json!(0)));
    assert_eq!(read["file"], "pipe");
    assert!(read["poll"].as_u64() > Some(0), "{read}");
    assert!(read["p50_ns"].as_u64() <= read["p99_ns"].as_u64());
    assert!(rings.iter().all(|ring| ring["enters"].as_u64() > Some(0)), "{text}");
    let processes = report["processes"].as_array().expect("processes");
    let program = processes.iter().find(|process| process["program"] == "anyring-conform").expect("the program");
    assert!(program["pid"].as_u64() > Some(1) && program["submitted"].as_u64() > Some(0), "{program}");
}

#[test]
fn an_event_says_why_a_worker_gets_the_request() {
    let events = trace("user", "--events", &["sync::fsync_of_a_file"]);
    let mut queued = events.lines().filter(|line| line.contains("queue_async_work") && line.contains("FSYNC"));
    assert!(queued.next().is_some_and(|line| line.ends_with(" why no_nonblocking_form")), "{events}");
}

#[test]
fn nops_on_the_kernels_rings_are_inline_and_finished_though_the_cq_is_full() {
    const WHAT: &str = "the kernel's NOPs";
    if !common::kernel_works(WHAT) {
        return;
    }
    if !tracefs_is_there() {
        return common::skipped(&format!("{WHAT}: tracefs is not mounted, or only for root"));
    }
    let text =
        trace("kernel", "--json", &["overflow::every_cqe_is_delivered_in_order", "nop::completes_with_zero"]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rings = report["rings"].as_array().expect("rings");
    assert!(rings.iter().any(|ring| ring["overflows"].as_u64() > Some(0)), "{text}");
    for kind in rings.iter().flat_map(|ring| ring["kinds"].as_array().expect("kinds")) {
        assert_eq!((&kind["opcode"], &kind["unfinished"]), (&"NOP".into(), &0.into()), "{text}");
        assert_eq!(kind["inline"], kind["count"], "{text}");
    }
}

#[test]
fn requests_of_linux_aio_have_events_and_a_summary() {
    let waiting = "aio_polls::poll_waits_for_data";
    let full = "aio_calls::submit_is_refused_once_there_is_no_room";
    let direct = "aio_requests::direct_read_and_write";
    let events = trace("user", "--events", &[waiting]);
    let names = events.lines().filter_map(|line| line.split(' ').next());
    // A thread may or may not have to sleep for a completion.
    let names: Vec<_> = names.filter(|name| *name != "anyring:aio:cqring_wait").collect();
    let begin = [
        "anyring:aio:create",
        "tracepoint:syscalls:sys_enter_io_submit",
        "anyring:aio:submit_req",
        "anyring:aio:file_get",
        "tracepoint:syscalls:sys_enter_io_getevents",
        "tracepoint:syscalls:sys_enter_io_getevents",
        "anyring:aio:task_add",
        "anyring:aio:complete",
    ];
    assert!(names.starts_with(&begin), "{events}");
    let (sleeping, short) = ("aio_events::timeout_ends_the_wait", "aio_requests::short_read_at_the_end");
    let text = trace("user", "--json", &[waiting, full, direct, sleeping, short]);
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rings = report["rings"].as_array().expect("rings");
    assert!(rings.iter().all(|ring| ring["interface"] == "aio" && ring["fd"].is_null()), "{text}");
    let sum = |key: &str| rings.iter().filter_map(|ring| ring[key].as_u64()).sum::<u64>();
    assert!(sum("refused") > 0 && sum("waits") > 0 && sum("cqes") > 0, "{text}");
    let kinds: Vec<_> = rings.iter().flat_map(|ring| ring["kinds"].as_array().expect("kinds")).collect();
    let kind = |opcode: &'static str| kinds.iter().filter(move |kind| kind["opcode"] == opcode);
    assert!(kind("POLL").any(|kind| kind["file"] == "pipe" && kind["poll"] == kind["count"]), "{text}");
    assert!(kind("PREAD").any(|kind| kind["short"] == 1 && kind["inline"].as_u64() > Some(0)), "{text}");
    if !kind("PWRITE").any(|kind| kind["worker"] == 1 && kind["size"] == "<=4K") {
        common::skipped("that direct writes take a worker: the file system has no O_DIRECT");
    }
}

#[test]
fn perfetto_gets_each_request_as_a_slice() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("trace.json");
    let mut command = anyring(&["trace", "--backend", "user", "--perfetto"]);
    command.arg(&file).arg("--").arg(conformance()).args(["--quiet", "--filter", "rw_pipe::readv_waits_for_data"]);
    let output = output(&mut command);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(file).expect("the file");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let entries = json["traceEvents"].as_array().expect("entries");
    let count =
        |phase: &str, name: &str| entries.iter().filter(|it| it["ph"] == phase && it["name"] == name).count();
    assert!(count("b", "READV") > 0, "{text}");
    for name in ["READV", "waits to be ready"] {
        assert_eq!(count("b", name), count("e", name), "what begins ends: {name}");
    }
    assert_eq!(count("s", "request"), count("f", "request"), "each arrow has an end");
    let named = entries.iter().filter(|it| it["name"] == "process_name" && it["args"]["name"] == "anyring-conform");
    let pids: Vec<_> = named.map(|it| &it["pid"]).collect();
    assert!(entries.iter().any(|it| it["ph"] == "b" && pids.contains(&&it["pid"])), "requests are the process's");
}

#[test]
fn the_page_has_the_shares_and_the_latencies() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let (file, report) = (directory.path().join("page.html"), directory.path().join("report"));
    let mut command = anyring(&["trace", "--backend", "user", "-o"]);
    command.arg(&report).arg("--html").arg(&file).arg("--").arg(conformance());
    let output = output(command.args(["--quiet", "--filter", "rw_pipe::readv_waits_for_data"]));
    assert!(output.status.success(), "{output:?}");
    let page = std::fs::read_to_string(file).expect("the page");
    for part in
        ["--filter rw_pipe::readv_waits_for_data</h1>", "<td>READV<br>at ", "<td>pipe</td>", "<title>poll: "]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("<script") && !page.contains("http"), "it needs nothing else: {page}");
}

/// A child that ends with the test, however the test ends.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_running_process_is_joined_until_it_ends_or_a_signal_comes() {
    if !common::kernel_works("joining a process") {
        return;
    }
    if !tracefs_is_there() {
        return common::skipped("joining a process: tracefs is not mounted, or only for root");
    }
    for by_signal in [true, false] {
        let mut program = std::process::Command::new(conformance());
        program.args(["--quiet", "--repeat", "1000000", "--filter", "rw_pipe::readv_waits_for_data"]);
        let mut program = Ended(program.stdout(std::process::Stdio::null()).spawn().expect("start the cases"));
        let directory = tempfile::tempdir().expect("a directory");
        let report = directory.path().join("report");
        let mut tracer = anyring(&["trace", "--json", "--pid", &program.0.id().to_string(), "-o"]);
        let mut tracer = Ended(tracer.arg(&report).spawn().expect("start anyring"));
        std::thread::sleep(Duration::from_secs(1));
        match by_signal {
            // SAFETY: kill(2) on a child that was not waited for.
            true => assert_eq!(unsafe { libc::kill(tracer.0.id() as i32, libc::SIGINT) }, 0),
            false => program.0.kill().expect("kill the cases"),
        }
        assert_eq!(tracer.0.wait().expect("wait").code(), Some(0));
        let text = std::fs::read_to_string(report).expect("the report");
        let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let rings = report["rings"].as_array().expect("rings");
        let is_poll = |kind: &serde_json::Value| kind["opcode"] == "READV" && kind["poll"].as_u64() > Some(0);
        assert!(
            rings.iter().any(|ring| ring["kinds"].as_array().is_some_and(|it| it.iter().any(is_poll))),
            "{text}"
        );
    }
}

#[test]
fn a_process_that_cannot_be_joined_is_named_in_one_line() {
    for number in ["0", "-1"] {
        one_line_failure(&output(&mut anyring(&["trace", &format!("--pid={number}")])), 2);
    }
    if !tracefs_is_there() {
        let own = std::process::id().to_string();
        assert!(one_line_failure(&output(&mut anyring(&["trace", "--pid", &own])), 125).contains("no ring now"));
    }
    one_line_failure(&output(&mut anyring(&["trace", "--pid", "1", "--backend", "user"])), 125);
    assert_eq!(output(&mut anyring(&["trace", "--pid", "1", "--", "true"])).status.code(), Some(2));
}

/// Times count from the first event, unless CLOCK_MONOTONIC is requested.
#[test]
fn events_are_filtered_and_have_times_since_the_first() {
    library();
    let events = |more: &[&str]| {
        let mut command = anyring(&["trace", "--backend", "user", "--events"]);
        command.args(more).arg("--").arg(conformance()).args(["--quiet", "--filter", "nop::"]);
        let output = output(&mut command);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stderr).expect("text")
    };
    let failed = events(&["--filter", "opcode=NOP,event=complete,res<0"]);
    assert!(failed.lines().count() > 0, "a NOP with an injected error");
    for line in failed.lines() {
        assert!(
            line.starts_with("tracepoint:io_uring:io_uring_complete time 0.") && line.contains(" result -"),
            "{line}"
        );
    }
    let all = events(&[]);
    assert!(all.lines().next().is_some_and(|line| line.contains(" time 0.000000000 ")), "{all}");
    assert!(all.lines().count() > failed.lines().count());
    assert!(events(&["--monotonic"]).lines().all(|line| !line.contains(" time 0.0")));
    let wrong = |words: &[&str]| {
        let all = [&["trace"], words, &["--", "true"]].concat();
        one_line_failure(&output(&mut anyring(&all)), 2)
    };
    assert!(wrong(&["--events", "--filter", "opcode=REED"]).contains("--filter: there is no opcode \"REED\""));
    assert!(wrong(&["--filter", "opcode=READ"]).contains("--events"));
}

/// A recording is reported like a trace that is reported at once.
#[test]
fn a_recorded_trace_is_reported_later() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let [now, record, cut] = ["now", "record", "cut"].map(|name| directory.path().join(name));
    let mut command = anyring(&["trace", "--backend", "user", "--json", "-o"]);
    command.arg(&now).arg("--record").arg(&record).arg("--").arg(conformance());
    assert!(output(command.args(["--quiet", "--filter", "rw_pipe::readv_waits_for_data"])).status.success());
    let report = |words: &[&str], file: &Path| output(anyring(&["report"]).args(words).arg(file));
    let later = report(&["--json"], &record);
    assert_eq!(String::from_utf8(later.stdout).ok(), std::fs::read_to_string(&now).ok());
    let events = common::stdout(&report(&["--events", "--filter", "opcode=READV,event=poll_arm"], &record));
    assert!(events.starts_with("tracepoint:io_uring:io_uring_poll_arm time 0.0"), "{events}");
    let mut command = anyring(&["trace", "--backend", "user", "--record"]);
    let quiet = output(command.arg(&cut).args(["--", "true"]));
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "the report is for later: {quiet:?}");
    let empty = common::stdout(&report(&[], &cut));
    let made = empty.strip_prefix("served by anyring: asked for\nNo ring was made.\nanyring ").expect("all of it");
    assert!(made.lines().count() == 1 && made.contains(", Linux ") && made.ends_with(" UTC\n"), "{empty}");
    let bytes = std::fs::read(&record).expect("the recording");
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).expect("write");
    let some = report(&[], &cut);
    assert_eq!(some.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&some.stderr).contains("the end is missing"), "{some:?}");
    assert!(common::stdout(&some).starts_with("served by anyring: asked for\nring 1"), "{some:?}");
    assert!(one_line_failure(&report(&[], Path::new("/proc/self/status")), 125).contains("it is no recording"));
    one_line_failure(&report(&["--html", record.to_str().expect("UTF-8")], &record), 2);
    assert_eq!(std::fs::read(&record).expect("the recording"), bytes, "it is not written over");
}

/// The program ends once the interval with its requests has been shown.
#[test]
fn rates_are_reported_while_the_program_runs() {
    library();
    let mut command = anyring(&["trace", "--backend", "user", "--live", "--json", "-o", "/dev/null"]);
    command
        .args(["--", "sh", "-c", "\"$0\" --quiet --filter nop::completes_with_zero; read end; exit 0"])
        .arg(conformance());
    let mut program = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start");
    let mut lines = BufReader::new(program.stderr.take().expect("standard error")).lines().map_while(Result::ok);
    let printed: Vec<_> = lines.by_ref().take_while(|line| !line.contains(" NOP ")).collect();
    assert!(printed.iter().any(|line| line.contains(" in flight: ") && line.ends_with(" CQEs/s")), "{printed:?}");
    drop(program.stdin.take());
    assert!(program.wait().expect("its end").success());
    assert_eq!(output(&mut anyring(&["trace", "--live=0", "--", "true"])).status.code(), Some(2));
}

/// The report shows a ring that a child inherited as the same ring, and the child's requests as requests of their own.
#[test]
fn a_child_that_inherited_a_ring_is_traced() {
    let events = trace("user", "--events", &["ring_memory::words_of_a_ring_in_two_processes"]);
    let field = |line: &str, key: &str| {
        let mut words = line.split(' ').skip_while(|word| *word != key);
        words.nth(1).unwrap_or_default().to_owned()
    };
    let mut makers: BTreeMap<String, String> = BTreeMap::new();
    let mut foreign = 0;
    for line in events.lines() {
        let (ring, thread) = (field(line, "ring"), field(line, "thread"));
        if line.starts_with("tracepoint:io_uring:io_uring_create ") {
            assert_eq!(makers.insert(ring, thread), None, "each ring is made once: {line}");
        } else if line.contains(":io_uring_submit_req ") && makers.get(&ring).is_some_and(|maker| *maker != thread)
        {
            foreign += 1;
        }
    }
    assert!(foreign > 0, "nobody but the maker submitted");
}
