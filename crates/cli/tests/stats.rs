//! `anyring stats`: the counters that it prints, and the files that it refuses to read.

mod common;

use anyring_abi::Opcode;
use anyring_engine::stats;
use anyring_engine::stats::Path as Route;
use common::{anyring, library, one_line_failure, output, stdout, ANYRING};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::Ordering;

fn json_of(file: &Path) -> serde_json::Value {
    let output = output(anyring(&["stats", "--json"]).arg(file));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("stats --json prints JSON")
}

/// The engine's own writer fills the file, so that writer and reader cannot drift apart.
#[test]
fn counters_are_printed_as_they_were_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counters");
    stats::open(file.to_str()).expect("a counters file");
    stats::completed(Opcode::Read, Route::Inline, 4096);
    stats::completed(Opcode::Read, Route::Worker, 4096);
    stats::completed(Opcode::Read, Route::Worker, -libc::EIO);
    stats::completed(Opcode::PollAdd, Route::Poll, 1);
    stats::completed(Opcode::Read, Route::Device, 4096);
    stats::stats().kernel_refused_errno.store(libc::ENOSYS as u64, Ordering::Relaxed);
    stats::stats().rings.store(3, Ordering::Relaxed);
    stats::stats().kernel_rings.store(7, Ordering::Relaxed);
    stats::shard().enters.store(40, Ordering::Relaxed);
    stats::stats().left_to_kernel[0].store(2, Ordering::Relaxed);
    stats::stats().overflows.store(5, Ordering::Relaxed);
    stats::stats().traps.store(64, Ordering::Relaxed);
    stats::stats().patches.store(2, Ordering::Relaxed);
    let expected = json!({
        "schema": 1, "kernel_refused_errno": libc::ENOSYS, "rings": 3, "kernel_rings": 7, "enters": 40,
        "overflows": 5, "errors": 1, "traps": 64, "patches": 2,
        "left_to_kernel": {"io_uring": 2, "aio": 0},
        "unserved_children": 0,
        "unserved": [], "kept_out": [],
        "completions": {
            "READ": {"inline": 1, "poll": 0, "kernel_aio": 1, "worker": 2},
            "POLL_ADD": {"inline": 0, "poll": 1, "kernel_aio": 0, "worker": 0},
        },
    });
    assert_eq!(json_of(&file), expected);

    let text = stdout(&output(anyring(&["stats"]).arg(&file)));
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        &["kernel", "refused", "io_uring", "ENOSYS"][..],
        &["failed", "requests", "1"],
        &["rings", "of", "the", "kernel", "7", "(not", "counted", "otherwise)"],
        &["trapped", "calls", "64"],
        &["patched", "instructions", "2"],
        &["io_uring", "left", "to", "kernel", "2", "programs,", "which", "may", "not", "have", "used", "it"],
        &["completions", "inline", "poll", "kernel", "AIO", "worker"],
        &["READ", "1", "0", "1", "2"],
        &["POLL_ADD", "0", "1", "0", "0"],
    ] {
        assert!(rows.iter().any(|words| words == row), "{row:?} is missing: {text}");
    }
    let ends: Vec<_> = text.lines().filter(|line| line.starts_with(['c', 'R', 'P']) && line.len() > 40).collect();
    assert!(ends.windows(2).all(|pair| pair[0].len() == pair[1].len()), "columns are aligned: {text}");
}

#[test]
fn a_served_programs_counters_say_so() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counters");
    let mut words = vec!["deny", "--errno", "ENOSYS", "--", ANYRING, "run", "--stats"];
    words.push(file.to_str().expect("UTF-8"));
    words.extend(["--", ANYRING, "entry-point", "guest"]);
    let served = output(&mut anyring(&words));
    assert!(served.status.success(), "{served:?}");
    let counters = json_of(&file);
    assert_eq!(counters["kernel_refused_errno"], libc::ENOSYS, "{counters}");
    let once = json!({"inline": 1, "poll": 0, "kernel_aio": 0, "worker": 0});
    let waited = json!({"inline": 0, "poll": 1, "kernel_aio": 0, "worker": 0});
    // Where the file system cannot report whether a read would wait, a worker reads.
    let read = counters["completions"]["READ"].clone();
    assert_eq!(
        ["inline", "worker"].map(|path| read[path].as_u64().expect("a count")).iter().sum::<u64>(),
        1,
        "{counters}"
    );
    let all = json!({"NOP": once, "READ": read, "POLL_ADD": once, "RECV": waited, "TIMEOUT": waited});
    assert_eq!(counters["completions"], all);
    assert!(counters["rings"].as_u64() >= Some(1) && counters["enters"].as_u64() >= Some(1), "{counters}");
}

/// The file belongs to root, and the program has another user by the time it makes its rings.
#[test]
fn a_process_that_may_not_write_its_counters_is_named() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counters");
    let mut command = anyring(&["deny", "--", ANYRING, "run", "--stats"]);
    command.arg(&file).args(["--", "setpriv", "--reuid=54322", "--regid=54322", "--clear-groups", "cat"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("start");
    let expected = format!("process {} (cat), of user 54322", child.id());
    let start = std::time::Instant::now();
    let named = loop {
        let has_counters = file.metadata().is_ok_and(|about| about.len() != 0); // it is created before it has a size
        let named = has_counters.then(|| json_of(&file)["kept_out"].clone());
        if named == Some(json!([expected]))
            || start.elapsed().as_secs() >= 10
            || child.try_wait().expect("a status").is_some()
        {
            break named;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    drop(child.stdin.take());
    if !child.wait().expect("an end").success() {
        return common::skipped("a process that gives its user up: there is no leave to, or no setpriv");
    }
    assert_eq!(named, Some(json!([expected])));
}

/// Includes the first ring that a child makes after it closed its parent's.
#[test]
fn each_ring_of_a_forked_child_is_counted() {
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counters");
    let Some(program) = common::compiled("rings", directory.path()) else {
        return common::skipped("there is no C compiler");
    };
    let mut words = vec!["deny", "--", ANYRING, "run", "--stats", file.to_str().expect("UTF-8"), "--"];
    words.extend([program.to_str().expect("UTF-8"), "2", "3"]);
    let ran = output(&mut anyring(&words));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(json_of(&file)["rings"], 5);
}

#[test]
fn a_run_that_the_kernel_serves_is_counted_as_such() {
    if !common::kernel_works("counters of a run that the kernel serves") {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counters");
    for programs in 1..3 {
        let run = output(anyring(&["run", "--stats"]).arg(&file).args(["--", "true"]));
        assert!(run.status.success(), "{run:?}");
        assert_eq!(json_of(&file)["left_to_kernel"]["io_uring"], programs);
    }
    let text = stdout(&output(anyring(&["stats"]).arg(&file)));
    assert!(text.contains("anyring trace --backend kernel"), "says what counts them: {text}");
    assert!(
        text.contains("Linux AIO left to kernel ") && !text.contains("kernel served"),
        "true(1) asked for none: {text}"
    );
}

/// ANYRING_STATS may name one of the user's files by mistake.
#[test]
fn the_library_overwrites_no_other_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let size = size_of::<stats::Stats>();
    for (name, bytes) in
        [("text", b"mine\n".to_vec()), ("large", vec![b'x'; 1 << 16]), ("same-size", vec![b'x'; size])]
    {
        let file = directory.path().join(name);
        std::fs::write(&file, &bytes).expect("write");
        assert!(stats::open(file.to_str()).is_err(), "{name}");
        assert!(std::fs::read(&file).expect("read") == bytes, "{name} was changed");
    }
}

#[test]
fn a_file_without_counters_is_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let magic = stats::MAGIC.to_ne_bytes();
    let mut other_version = magic;
    other_version[7] = 99;
    let cases: [(&str, &[u8], &str); 4] = [
        ("foreign", b"root:x:0:0:root", "not a counters file"),
        ("empty", b"", "nothing was counted"),
        ("version", &other_version, "layout version 99"),
        ("short", &magic, "damaged: 8 bytes"),
    ];
    for (name, bytes, why) in cases {
        let file = directory.path().join(name);
        std::fs::write(&file, bytes).expect("write");
        let message = one_line_failure(&output(anyring(&["stats"]).arg(&file)), 125);
        assert!(message.contains(why) && message.contains(name), "{message}");
    }
    let fifo = directory.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("start mkfifo").success());
    assert!(one_line_failure(&output(anyring(&["stats"]).arg(&fifo)), 125).contains("not a regular file"));
    let missing = output(&mut anyring(&["stats", "/nonexistent/counters"]));
    assert!(one_line_failure(&missing, 125).contains("no such file"));
    assert!(one_line_failure(&output(&mut anyring(&["stats", "/"])), 125).contains("directory"));
}

/// A program with two rings that keeps its counters in memory, and stays.
struct Served(std::process::Child);

impl Served {
    fn start(folder: &Path) -> Option<Served> {
        library();
        let program = common::compiled("rings", folder)?;
        let mut command = anyring(&["deny", "--", ANYRING, "run", "--backend", "user", "--"]);
        command.arg(program).args(["2", "0", "stay"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start");
        let mut printed = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe"));
        while printed.lines().count() < 2 {
            assert_ne!(lines.read_line(&mut printed).expect("read"), 0, "{printed}");
        }
        Some(Served(child))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The families of an OpenMetrics text, with their samples; asserts that the text is valid.
fn families(text: &str) -> BTreeMap<String, Vec<(String, u64)>> {
    let mut families: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    let (mut name, mut suffix) = (String::new(), "");
    let body = text.strip_suffix("# EOF\n").expect("the end is marked");
    for line in body.lines() {
        if let Some(family) = line.strip_prefix("# TYPE ") {
            let (family, kind) = family.split_once(' ').expect("a type");
            (name, suffix) = (family.to_owned(), if kind == "counter" { "_total" } else { "" });
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            assert!(families.insert(name.clone(), Vec::new()).is_none(), "twice: {name}");
        } else if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(help.starts_with(&format!("{name} ")), "{line}");
        } else {
            let rest = line.strip_prefix(&format!("{name}{suffix}{{")).expect("a sample of the family");
            let (labels, value) = rest.rsplit_once("} ").expect("a value");
            let samples = families.get_mut(&name).expect("a family");
            assert!(samples.iter().all(|(other, _)| other != labels), "twice: {line}");
            samples.push((labels.to_owned(), value.parse().expect("a number")));
        }
    }
    families
}

#[test]
fn a_process_that_runs_is_asked_without_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let Some(served) = Served::start(directory.path()) else {
        return common::skipped("there is no C compiler");
    };
    let pid = served.0.id().to_string();
    let counters = output(&mut anyring(&["stats", "--json", "--pid", &pid]));
    let counters: serde_json::Value = serde_json::from_slice(&counters.stdout).expect("JSON");
    assert_eq!((&counters["rings"], &counters["completions"]["NOP"]["inline"]), (&json!(2), &json!(2)));
    let printed = stdout(&output(&mut anyring(&["doctor", "--pid", &pid])));
    assert!(printed.contains("\nrings                    2\n"), "{printed}");
    let labels = format!("pid=\"{pid}\",program=\"rings\"");
    let nops: Vec<_> = [("inline", 2), ("poll", 0), ("kernel_aio", 0), ("worker", 0)]
        .map(|(path, count)| (format!("{labels},opcode=\"NOP\",path=\"{path}\""), count))
        .into();
    for words in [&["stats", "--prometheus", "--pid", &pid][..], &["stats", "--prometheus"]] {
        let mut families = families(&stdout(&output(&mut anyring(words))));
        // Other tests' processes may be included: keep only this one's.
        families.values_mut().for_each(|samples| samples.retain(|(sample, _)| sample.contains(&labels)));
        assert_eq!(families["anyring_rings"], [(labels.clone(), 2)]);
        assert_eq!(families["anyring_completions"], nops);
    }
    let own = std::process::id().to_string();
    let unserved = one_line_failure(&output(&mut anyring(&["stats", "--pid", &own])), 125);
    assert!(unserved.contains("no ring of anyring's"), "{unserved}");
}

#[test]
fn files_are_labelled_with_their_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let [first, second] = ["a \"b\" \\c", "second"].map(|name| directory.path().join(name));
    let mut block = vec![0; size_of::<stats::Stats>()];
    block[..8].copy_from_slice(&stats::MAGIC.to_ne_bytes());
    for file in [&first, &second] {
        std::fs::write(file, &block).expect("write");
    }
    let text = stdout(&output(anyring(&["stats", "--prometheus"]).args([&first, &second])));
    let folder = directory.path().display();
    let label = |name: &str| (format!("file=\"{folder}/{name}\""), 0);
    assert_eq!(families(&text)["anyring_rings"], [label(r#"a \"b\" \\c"#), label("second")]);
    let several = output(anyring(&["stats"]).args([&first, &second]));
    assert!(one_line_failure(&several, 2).contains("--prometheus"));
}

/// The answer of a server that listens there.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn metrics_are_sent_on_this_machine_alone() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("socket");
    let path = socket.to_str().expect("UTF-8");
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let listen = |address: &str| Served(anyring(&["stats", "--listen", address]).spawn().expect("start"));
    fn connected<S>(connect: impl Fn() -> std::io::Result<S>) -> S {
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            match connect() {
                Ok(stream) => return stream,
                Err(error) => assert!(std::time::Instant::now() < limit, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    let by_tcp = listen(&port.to_string());
    let by_path = listen(path);
    let at_port = || connected(|| std::net::TcpStream::connect(port));
    let at_path = || connected(|| UnixStream::connect(&socket));
    for answer in [
        ask(at_port(), "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        ask(at_path(), "GET /metrics HTTP/1.0\r\n\r\n"),
    ] {
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text;"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(families(body).contains_key("anyring_completions"), "{body}");
    }
    assert!(ask(at_port(), "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
    assert!(ask(at_port(), "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    // A client that sends nothing delays the others only for a time.
    let silent = at_port();
    assert!(ask(at_port(), "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    drop((silent, by_tcp));
    // A socket in use is not taken over; a left-over one is.
    assert!(one_line_failure(&output(&mut anyring(&["stats", "--listen", path])), 125).contains("in use"));
    drop(by_path);
    let again = listen(path);
    assert!(ask(at_path(), "GET /metrics HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));
    drop(again);
    for address in ["0.0.0.0:9639", "192.0.2.1:9639", "localhost", "[::]:9639"] {
        let refused = one_line_failure(&output(&mut anyring(&["stats", "--listen", address])), 125);
        assert!(refused.contains("loopback"), "{refused}");
    }
}

/// The words in each `expr` of the dashboard that begin as anyring's names do.
fn names_in(panel: &serde_json::Value, names: &mut BTreeSet<String>) {
    match panel {
        serde_json::Value::Object(fields) => {
            for (field, value) in fields {
                if let (true, Some(text)) =
                    (["expr", "query", "definition"].contains(&field.as_str()), value.as_str())
                {
                    let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
                    names.extend(words.filter(|word| word.starts_with("anyring_")).map(str::to_owned));
                }
                names_in(value, names);
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| names_in(value, names)),
        _ => {}
    }
}

#[test]
fn the_dashboard_shows_what_is_exported() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana/anyring.json");
    let dashboard: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the dashboard")).expect("JSON");
    let mut shown = BTreeSet::new();
    names_in(&dashboard, &mut shown);
    let text = stdout(&output(&mut anyring(&["stats", "--prometheus"])));
    let counters: BTreeSet<_> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter")).collect();
    let exported: BTreeSet<_> = families(&text)
        .into_keys()
        .map(|name| if counters.contains(&*name) { name + "_total" } else { name })
        .collect();
    assert_eq!(shown, exported);
    let ids: Vec<_> = dashboard["panels"].as_array().expect("panels").iter().map(|panel| &panel["id"]).collect();
    assert!(ids.iter().enumerate().all(|(index, id)| !ids[..index].contains(id)), "each panel has its own id");
}
