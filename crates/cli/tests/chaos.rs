//! `anyring chaos`: for each rule a program with a bug that only the rule reveals, and the same program without the
//! bug (`tests/c/chaos.c`).

mod common;

use common::{
    anyring, chaos, chaos_program as program, library, one_line_failure, output, stderr, stdout, ANYRING,
};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Returns the last rule, which reveals the bug. The rules before it only make the program reach the place.
fn last_of(rules: &str) -> &str {
    rules.rsplit(',').next().expect("a rule")
}

/// A case of the C program, the rule that reveals its bug, and rules that do not affect the program without the bug.
const CASES: [(&str, &str, &str); 24] = [
    ("short-read", "short", "all"),
    ("short-send", "short", "all"),
    ("late", "late", "all"),
    ("enter", "enter", "all"),
    ("multishot", "multishot", "multishot,enter,late,overflow"),
    ("cancel", "cancel", "all"),
    ("nobufs", "nobufs", "all"),
    ("overflow", "overflow", "overflow,late"),
    ("busy", "overflow,busy", "overflow,busy,late"),
    ("spurious", "spurious", "spurious,late,enter,overflow"),
    ("notify", "notify", "all"),
    ("edge", "edge", "edge,late,enter,cancel"),
    ("edge-count", "edge", "all"),
    ("edge-remove", "edge", "all"),
    ("aside", "late", "all"),
    ("faults", "eio", "eio,late,enter"),
    ("faults", "enospc", "enospc,late,enter"),
    ("faults", "enomem", "enomem,late,enter"),
    ("faults", "corrupt", "corrupt,late,enter"),
    ("close-late", "late", "all"),
    ("close-again", "eio", "eio,late,enter"),
    ("close-again", "eintr", "all,eintr"),
    ("reuse-write", "lifetimes", "all,lifetimes"),
    ("misuse-twice", "misuse", "all,misuse"),
];

/// A case that misuses the interface, and the report of `anyring check --lint`.
const MISUSES: [(&str, &str); 4] = [
    ("misuse-twice", "READ, user_data 0x7: its user_data is that of a request in flight, READ"),
    ("misuse-unseen", "1 CQE was not seen when the ring was closed"),
    ("misuse-head", "the CQ's head is 1 past its tail"),
    ("misuse-closed", ": its descriptor was closed while it was in flight"),
];

/// A case that changes memory in flight, the opcode of the request, and the finding.
const CHANGES: [(&str, &str, &str); 21] = [
    ("reuse-write", "WRITE", "byte 3 of 64 was written while in flight"),
    ("reuse-send", "SEND", "byte 3 of 64 was written while in flight"),
    ("reuse-writev", "WRITEV", "byte 13 of 64 was written while in flight"),
    ("reuse-sendmsg", "SENDMSG", "byte 13 of 64 was written while in flight"),
    ("reuse-fixed", "WRITE_FIXED", "byte 3 of 64 was written while in flight"),
    ("unmap-write", "WRITE", "memory of 64 bytes was unmapped or protected while in flight"),
    ("reuse-read", "READ", "byte 3 of 64 was written while in flight"),
    ("reuse-readv", "READV", "byte 13 of 64 was written while in flight"),
    ("reuse-recv", "RECV", "byte 3 of 64 was written while in flight"),
    ("reuse-recvmsg", "RECVMSG", "byte 13 of 64 was written while in flight"),
    ("unmap-recv", "RECV", "memory of 64 bytes was unmapped or protected while in flight"),
    ("reuse-addr", "ACCEPT", "byte 3 of 16 of its addr was written while in flight"),
    ("reuse-addrlen", "ACCEPT", "byte 3 of 4 of its addrlen was written while in flight"),
    ("reuse-flags", "RECVMSG", "byte 3 of 4 of its msg_flags was written while in flight"),
    ("reuse-name", "RECVMSG", "byte 3 of 16 of its msg_name was written while in flight"),
    ("reuse-control", "RECVMSG", "byte 3 of 64 of its msg_control was written while in flight"),
    ("reuse-rights", "SENDMSG", "byte 19 of 24 of its msg_control was written while in flight"),
    ("reuse-statxbuf", "STATX", "byte 3 of 256 of its statxbuf was written while in flight"),
    ("reuse-events", "EPOLL_WAIT", "byte 3 of 48 of its events was written while in flight"),
    ("reuse-infop", "WAITID", "byte 3 of 128 of its infop was written while in flight"),
    ("reuse-value", "FGETXATTR", "byte 3 of 16 of its value was written while in flight"),
];

/// Asserts that some of the first seeds reveal the bug of `case`.
fn finds(program: &str, case: &str, rules: &str) {
    let found = chaos(&["--rules", rules, "--runs", "20", "--timeout", "2s", "--shrink"], &[program, case]);
    assert_eq!(found.status.code(), Some(1), "{case}: {}", stderr(&found));
    let rule = last_of(rules);
    assert!(stderr(&found).contains(&format!(".{rule}: {rule}:")), "{case}: {}", stderr(&found));
}

/// Asserts that the first seeds do not affect the program without the bug.
fn passes(program: &str, case: &str, rules: &str, seeds: &str) {
    let right = chaos(&["--rules", rules, "--runs", seeds], &[program, case, "right"]);
    assert_eq!(right.status.code(), Some(0), "{case} {rules}: {}", stderr(&right));
}

#[test]
fn each_rule_has_a_case() {
    let (tried, rules) = (CASES.map(|(_, rules, _)| last_of(rules)), anyring_engine::chaos::rules::RULES);
    assert!(rules.iter().all(|row| tried.contains(&row.name)), "{tried:?}");
    let page = include_str!("../../../docs/chaos.md");
    let help = stdout(&output(&mut anyring(&["chaos", "--help"])));
    for row in rules {
        let line = page.lines().find(|line| line.starts_with(&format!("| `{}` |", row.name))).expect(row.name);
        assert!(row.page.is_none_or(|page| line.contains(page)), "{line}");
        assert!(help.contains(row.name), "{help}");
    }
}

#[test]
fn each_bug_is_found_by_its_rule() {
    let Some(program) = program() else { return };
    for (case, rule, rules) in CASES {
        finds(program, case, rule);
        passes(program, case, rules, "3");
    }
}

#[test]
#[ignore = "soak: 100 seeds for each case"]
fn programs_without_bugs_pass_many_seeds() {
    let Some(program) = program() else { return };
    for (case, _, rules) in CASES {
        passes(program, case, rules, "100");
    }
    for case in ["whole", "ordered", "close-slot"] {
        passes(program, case, "all", "100");
    }
    passes(program, "copy", "all,lifetimes", "100");
    for (case, _, _) in CHANGES {
        passes(program, case, "lifetimes", "100");
    }
}

#[test]
fn a_transfer_that_is_whole_or_in_order_stays_so() {
    let Some(program) = program() else { return };
    for case in ["whole", "ordered", "close-slot"] {
        passes(program, case, "all", "10");
    }
    passes(program, "copy", "all,lifetimes", "10");
    passes(program, "kept", "late,lifetimes", "10");
}

#[test]
fn a_seed_does_the_same_again() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let log = |name: &str| {
        let file = folder.path().join(name);
        let run = chaos(
            &["--seed", "4", "--rules", "short,late", "--log", file.to_str().expect("UTF-8")],
            &[program, "reuse-write", "right"],
        );
        assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
        let text = std::fs::read_to_string(file).expect("the log");
        let line = |line: &str| -> serde_json::Value {
            let mut line: serde_json::Value = serde_json::from_str(line).expect("JSON");
            (line["pid"], line["after_us"]) = (0.into(), 0.into()); // they differ
            line
        };
        text.lines().map(line).collect::<Vec<_>>()
    };
    let first = log("first");
    assert!(first.len() > 1 && first[0]["made_ring"] == 1, "{first:?}");
    assert_eq!(first, log("second"));
}

#[test]
fn every_injection_and_finding_is_on_the_timeline() {
    let Some(program) = program() else { return };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    for (case, rules, kind) in [("edge-remove", "edge,enter", "injection"), ("reuse-write", "lifetimes", "finding")]
    {
        let _ = std::fs::remove_file(&log);
        let mut traced = anyring(&["trace", "--backend", "user", "--events", "--"]);
        traced.arg(anyring(&[]).get_program()).args(["chaos", "--seed", "4", "--rules", rules, "--log"]);
        traced.arg(&log).args(["--", program, case]);
        let events = stderr(&output(&mut traced));
        let text = std::fs::read_to_string(&log).expect("the log");
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
        let told: Vec<_> = lines.filter(|line| !line[kind].is_null()).collect();
        let shown = events.lines().filter(|line| line.starts_with(&format!("anyring:chaos:{kind} "))).count();
        assert!(!told.is_empty() && told.len() == shown, "{text}{events}");
        for line in told {
            let name = format!(" name {}", line[kind].as_str().expect("a name"));
            let event =
                events.lines().find(|event| event.ends_with(&name)).unwrap_or_else(|| panic!("{name}: {events}"));
            let opcode = line["opcode"].as_str().map_or(String::new(), |opcode| format!(" opcode {opcode}"));
            assert!(event.contains(&format!("{opcode}{name}")), "{event}");
        }
    }
}

#[test]
fn memory_in_flight_is_reported_with_its_request() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let find = |case: &str| {
        let file = log.to_str().expect("UTF-8");
        let found = chaos(&["--rules", "lifetimes", "--runs", "3", "--log", file], &[program, case]);
        assert_eq!(found.status.code(), Some(1), "{case}: {}", stderr(&found));
        let text = std::fs::read_to_string(&log).expect("the log");
        let lines = text.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let mut findings = lines.filter(|line: &serde_json::Value| line.get("finding").is_some());
        (stderr(&found), findings.next().expect("a finding"))
    };
    for (case, opcode, what) in CHANGES {
        let (said, finding) = find(case);
        assert_eq!((&finding["opcode"], &finding["what"]), (&opcode.into(), &what.into()), "{finding}");
        assert_eq!((&finding["user_data"], &finding["rule"]), (&7.into(), &"lifetimes".into()), "{finding}");
        let ns = |field: &str| finding[field].as_u64().expect("a time");
        let by_path = ["STATX", "WAITID"].contains(&opcode); // they have no open file
        assert!(ns("submitted_ns") <= ns("ended_ns"), "{finding}");
        assert_eq!(finding["fd"].as_i64() > Some(2), !by_path, "{finding}");
        let fd = if by_path { String::new() } else { format!(", fd {}", finding["fd"]) };
        let line = format!(": {opcode}, user_data 0x7{fd}: {what}, at 0x");
        assert!(said.contains(&line) && said.contains("memory in flight was changed"), "{said}");
        passes(program, case, "lifetimes", "2");
    }
}

#[test]
fn freed_memory_in_flight_is_reported_with_address_sanitizer() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let instrumented = folder.path().join("chaos");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/chaos.c");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-O1", "-g", "-fsanitize=address"]).arg(source).arg("-o").arg(&instrumented);
    let compiled = output(cc.arg("-luring"));
    if !compiled.status.success() {
        eprintln!("skipped: cc has no AddressSanitizer: {}", String::from_utf8_lossy(&compiled.stderr));
        return;
    }
    library();
    let run = |program: &str, words: &[&str]| {
        let mut command = anyring(&["chaos", "--rules", "lifetimes", "--runs", "3", "--", program, "freed"]);
        // The preload comes before ASan's run-time library. Leaks of the program do not matter here.
        command.args(words).env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0");
        output(&mut command)
    };
    let found = run(instrumented.to_str().expect("UTF-8"), &[]);
    assert_eq!(found.status.code(), Some(1), "{}", stderr(&found));
    let what = "READ, user_data 0x7, fd 3: byte 0 of 64 was poisoned, as by free(3), while in flight";
    assert!(stderr(&found).contains(what), "{}", stderr(&found));
    for program in [instrumented.to_str().expect("UTF-8"), program] {
        let right = run(program, &["right"]);
        assert_eq!(right.status.code(), Some(0), "{}", stderr(&right));
    }
}

#[test]
fn the_test_report_has_a_case_for_each_seed() {
    let Some(program) = program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("chaos.xml");
    let file = file.to_str().expect("UTF-8");
    let report = |rules: &str, words: &[&str]| {
        let run = chaos(&["--rules", rules, "--runs", "3", "--junit", file], words);
        (run.status.code(), std::fs::read_to_string(file).expect("the test report"))
    };
    let (status, xml) = report("lifetimes", &[program, "reuse-write"]);
    assert_eq!((status, xml.matches("<testcase classname=\"anyring chaos\" name=\"seed ").count()), (Some(1), 3));
    assert!(xml.contains("tests=\"3\" failures=\"") && xml.contains("memory in flight was changed; "), "{xml}");
    let again = format!("again: {ANYRING} chaos --seed 1 --rules lifetimes -- {program} reuse-write");
    assert!(xml.contains(&again), "{xml}");
    // What was injected, and where the program was.
    let (_, xml) = report("late", &["sh", "-c", &format!("'{program}' reuse-write right; exit 3")]);
    assert!(xml.contains(".late: late: ") && xml.contains("\n    at main ("), "{xml}");
    assert!(xml.contains(" ms after the first ring\n    at submit_all ("), "{xml}");
    let (status, xml) = report("short", &[program, "reuse-write", "right"]);
    assert_eq!(status, Some(0));
    assert!(xml.contains("tests=\"3\" failures=\"0\" errors=\"0\"") && xml.contains("\"seed 3\"/>"), "{xml}");
    let (status, xml) = report("short", &["true"]);
    assert_eq!(status, Some(125));
    assert!(xml.contains("failures=\"0\" errors=\"3\"") && xml.contains("made no ring"), "{xml}");
    one_line_failure(&chaos(&["--runs", "2", "--junit", "/nowhere/chaos.xml"], &["true"]), 125);
}

/// Each injection of a failed run is a line, with the request, the time and the place.
#[test]
fn a_failure_lists_its_injections_in_the_order_of_time() {
    let Some(program) = program() else { return };
    let begin = Instant::now();
    let found = chaos(
        &["--rules", "late", "--runs", "3"],
        &["sh", "-c", &format!("'{program}' reuse-write right; exit 3")],
    );
    let limit_ms = begin.elapsed().as_secs_f64() * 1e3;
    let said = stderr(&found);
    assert_eq!(found.status.code(), Some(1), "{said}");
    let injections: Vec<_> = said.lines().filter(|line| line.contains(".late: late: ")).collect();
    let count = said.split(" injection").next().and_then(|text| text.rsplit(' ').next()?.parse().ok());
    assert_eq!(count, Some(injections.len()), "{said}");
    let mut last_ms = 0.0;
    for line in &injections {
        assert!(
            line.contains("WRITE, user_data 0x7: ") && line.contains(" ms after the first ring, at submit_all ("),
            "{line}"
        );
        assert!(line.contains("chaos.c:"), "{line}");
        let time =
            line.split(" ms after the first ring").next().and_then(|text| text.rsplit(' ').next()?.parse().ok());
        let time_ms: f64 = time.expect("a time");
        assert!((last_ms..limit_ms).contains(&time_ms) && time_ms > 0.0, "{said}");
        last_ms = time_ms;
    }
    assert!(!injections.is_empty());
}

#[test]
fn misuse_is_reported_by_check() {
    let Some(program) = program() else { return };
    library();
    let lint = |words: &[&str]| output(&mut anyring(&[&["check", "--lint", "--"], words].concat()));
    for (case, what) in MISUSES {
        let found = lint(&[program, case]);
        assert_eq!(found.status.code(), Some(1), "{case}: {}", stderr(&found));
        let said = stderr(&found);
        let (frames, findings): (Vec<_>, Vec<_>) = said.lines().partition(|line| line.contains(":     at "));
        assert_eq!(findings.len(), 1, "{case}: {said}");
        assert!(
            findings[0].starts_with("anyring check: --lint: 1.") && findings[0].ends_with(what),
            "{case}: {said}"
        );
        // A finding at the end of a ring or of a descriptor does not belong to any call on the ring.
        assert!(frames.is_empty() || frames[0].contains("chaos.c:"), "{case}: {said}");
        let right = lint(&[program, case, "right"]);
        assert_eq!(right.status.code(), Some(0), "{case}: {}", stderr(&right));
        assert!(stderr(&right).contains("nothing was found on 1 ring"), "{case}: {}", stderr(&right));
    }
    one_line_failure(&lint(&["true"]), 125);
    assert_eq!(lint(&["false"]).status.code(), Some(1));
}

#[test]
fn misuse_is_reported_in_files() {
    let Some(program) = program() else { return };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [json, xml] = ["lint.json", "lint.xml"].map(|name| folder.path().join(name));
    let lint = |words: &[&str]| {
        let [json, xml] = [&json, &xml].map(|file| file.to_str().expect("UTF-8"));
        let run =
            output(&mut anyring(&[&["check", "--lint", "--json", json, "--junit", xml, "--"], words].concat()));
        let read = |file: &str| std::fs::read_to_string(file).expect("a report");
        let verdict: serde_json::Value = serde_json::from_str(&read(json)).expect("JSON");
        (run.status.code(), verdict, read(xml))
    };
    let (status, verdict, xml) = lint(&[program, "misuse-twice"]);
    assert_eq!((status, &verdict["holds"], &verdict["rings"]), (Some(1), &false.into(), &1.into()), "{verdict}");
    let evidence = verdict["expectations"][0]["evidence"][0].as_str().expect("evidence");
    assert!(
        evidence.contains("its user_data is that of a request in flight") && evidence.contains("; at submit_all ("),
        "{evidence}"
    );
    assert!(xml.contains("name=\"--lint\"><failure message=\"1.2.misuse: "), "{xml}");
    let (status, verdict, xml) = lint(&[program, "misuse-twice", "right"]);
    assert_eq!((status, &verdict["holds"]), (Some(0), &true.into()), "{verdict}");
    assert!(xml.contains("failures=\"0\" errors=\"0\""), "{xml}");
    let (status, verdict, xml) = lint(&["true"]);
    assert_eq!((status, &verdict["not_proven"]), (Some(125), &"the program made no ring".into()), "{verdict}");
    assert!(xml.contains("errors=\"1\""), "{xml}");
}

#[test]
fn two_bugs_together_shrink_to_two_injections() {
    let Some(program) = program() else { return };
    let found = chaos(&["--rules", "short,late", "--runs", "20", "--shrink"], &[program, "both"]);
    let text = stderr(&found);
    assert_eq!(found.status.code(), Some(1), "{text}");
    let injections: Vec<_> = text.lines().filter(|line| line.contains("user_data")).collect();
    assert_eq!(injections.len(), 2, "{text}");
    let again = text.lines().last().expect("a line").split("--only ").nth(1).expect("how to see it again");
    let (names, words) = again.split_once(" -- ").expect("the program's place");
    assert_eq!(words, format!("{program} both"), "the whole command");
    let seed = text.split("--seed ").nth(1).and_then(|rest| rest.split(' ').next()).expect("the seed");
    let run = chaos(&["--seed", seed, "--rules", "short,late", "--only", names], &[program, "both"]);
    assert_eq!(run.status.code(), Some(1), "{}", stderr(&run));
}

#[test]
fn a_failure_of_several_seeds_is_reported_once_with_all_of_them() {
    let run = chaos(&["--runs", "4"], &["sh", "-c", "exit 3"]);
    assert_eq!(run.status.code(), Some(1), "{}", stderr(&run));
    let said = stderr(&run);
    assert_eq!(said.matches(" fails: ").count(), 1, "{said}");
    assert!(said.contains("anyring chaos: exit status 3: 4 seeds: 1-4\n"), "{said}");
}

/// The seeds fail in two ways.
#[test]
fn each_kind_of_failure_has_its_last_output_and_the_command_that_repeats_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let xml = folder.path().join("chaos.xml");
    let script = "seq 100; echo way $((ANYRING_CHAOS % 2)); exit $((3 + ANYRING_CHAOS % 2))";
    for jobs in ["1", "2"] {
        let file = xml.to_str().expect("UTF-8");
        let run = chaos(&["--runs", "4", "--jobs", jobs, "--junit", file], &["sh", "-c", script]);
        let said = stderr(&run);
        for (seed, way) in [("1", "1"), ("2", "0")] {
            let output = format!("[the last 40 of 101 lines]\n62\n{}way {way}\n", numbers(63..=100));
            assert_eq!(said.matches(&output).count(), 1, "{said}");
            let again = format!("anyring chaos: again: {ANYRING} chaos --seed {seed} -- sh -c '{script}'\n");
            assert!(said.contains(&again), "{said}");
        }
        let report = std::fs::read_to_string(&xml).expect("a report");
        assert_eq!((report.matches("\nway 1\n").count(), report.matches("\nway 0\n").count()), (2, 2), "{report}");
    }
}

#[test]
#[ignore = "soak: it takes ten seconds"]
fn the_command_of_a_run_that_took_too_long_has_its_limit() {
    let run = chaos(&["--runs", "1"], &["sleep", "1000"]);
    let again = format!("anyring chaos: again: {ANYRING} chaos --seed 1 --timeout 10s -- sleep 1000\n");
    assert!(stderr(&run).contains(&again), "{}", stderr(&run));
}

fn numbers(range: std::ops::RangeInclusive<u32>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

#[test]
fn a_kind_of_bug_that_was_not_looked_for_is_named_and_thorough_looks_for_it() {
    let Some(program) = program() else { return };
    for case in ["reuse-write", "misuse-closed"] {
        let run = chaos(&["--rules", "short", "--runs", "3"], &[program, case]);
        assert_eq!(run.status.code(), Some(0), "{case}: {}", stderr(&run));
        assert!(stderr(&run).contains("not looked for: "), "{case}: {}", stderr(&run));
        let run = chaos(&["--rules", "thorough", "--runs", "30", "--fail-fast"], &[program, case]);
        assert_eq!(run.status.code(), Some(1), "{case}: {}", stderr(&run));
        assert_eq!(stderr(&run).matches(" fails: ").count(), 1, "the first alone: {}", stderr(&run));
    }
}

#[test]
fn an_interrupt_leaves_the_report_of_the_runs_before() {
    let Some(program) = program() else { return };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [xml, log] = ["chaos.xml", "chaos.log"].map(|name| folder.path().join(name));
    let script =
        format!("'{program}' reuse-write right; [ -e again ] && {{ touch waits; sleep 100; }}; touch again");
    let mut command = anyring(&["chaos", "--runs", "9", "--timeout", "60s", "--junit"]);
    command.arg(&xml).arg("--log").arg(&log).args(["--", "sh", "-c", &script]).current_dir(folder.path());
    let mut run = command.spawn().expect("start");
    while !folder.path().join("waits").exists() {
        assert!(run.try_wait().expect("wait").is_none(), "it ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().expect("kill").success());
    assert_eq!(run.wait().expect("wait").code(), Some(128 + libc::SIGINT));
    let text = std::fs::read_to_string(&xml).expect("a report");
    assert!(text.contains("name=\"seed 1\"") && text.ends_with("</testsuites>\n"), "{text}");
    assert!(
        std::fs::read_to_string(&log).expect("a log").contains("\"seed\":2"),
        "of the run that was interrupted"
    );
}

#[test]
fn an_injection_that_is_not_met_proves_nothing() {
    let Some(program) = program() else { return };
    let only = |name| chaos(&["--seed", "1", "--rules", "all", "--only", name], &[program, "enter", "right"]);
    let unmet = only("1.999999.short");
    assert_eq!(unmet.status.code(), Some(125), "{}", stderr(&unmet));
    assert!(stderr(&unmet).contains("--only 1.999999.short: "), "{}", stderr(&unmet));
}

#[test]
fn runs_without_an_injection_say_so() {
    let Some(program) = program() else { return };
    let run = |rules| stderr(&chaos(&["--rules", rules, "--runs", "2"], &[program, "enter", "right"]));
    assert!(run("nobufs").contains("nothing was injected: "), "{}", run("nobufs"));
    assert!(!run("misuse").contains("nothing was injected: "), "{}", run("misuse"));
}

#[test]
fn the_program_s_output_is_its_own() {
    let Some(program) = program() else { return };
    let script = format!("echo out; echo err >&2; {program} enter right");
    let run = chaos(&["--seed", "3"], &["sh", "-c", &script]);
    assert_eq!((run.status.code(), stdout(&run).as_str()), (Some(0), "out\n"), "{}", stderr(&run));
    let lines: Vec<_> = run.stderr.split(|byte| *byte == b'\n').collect();
    assert_eq!(lines.len(), 3, "{}", stderr(&run));
    assert!(stderr(&run).starts_with("err\nanyring chaos: seed 3: "), "{}", stderr(&run));
    let failed = chaos(&["--seed", "3", "--fail-output", "err"], &["sh", "-c", &script]);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
}

#[test]
fn a_process_that_has_left_its_session_is_killed_with_the_program() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pids");
    // A daemon, which is no longer a child of the run, and its child, which has left the session as well.
    let daemon = "setsid sh -c 'setsid sleep 1000 & echo $! >>pids; echo $$ >>pids; wait' & ";
    let stays = format!("{daemon} until [ \"$(wc -l <pids)\" = 2 ]; do sleep 0.01; done 2>/dev/null; sleep 1000");
    let ends = stays.replace("; sleep 1000", "");
    for (script, timeout) in [(stays, "3s"), (ends, "60s")] {
        let _ = std::fs::remove_file(&file);
        let options = ["chaos", "--runs", "1", "--timeout", timeout, "--", "sh", "-c", &script];
        output(anyring(&options).current_dir(folder.path()));
        let pids = std::fs::read_to_string(&file).expect("the daemon's number");
        assert_eq!(pids.lines().count(), 2, "{pids}");
        for pid in pids.lines() {
            assert!(!Path::new("/proc").join(pid).exists(), "{pid} is alive");
        }
    }
}

#[test]
fn a_refusal_is_one_line() {
    one_line_failure(&chaos(&["--rules", "shorter"], &["true"]), 2);
    one_line_failure(&chaos(&[], &["/nowhere/program"]), 127);
    for options in
        [&["--only", "nonsense"][..], &["--only", "1.2.shorter"], &["--only", "1.2.short,"], &["--timeout", "0s"]]
    {
        let why = String::from_utf8(chaos(options, &["true"]).stderr).expect("UTF-8");
        assert!(why.contains(options[0]) && !why.contains("ring that"), "{options:?}: {why}");
        assert_eq!(chaos(options, &["true"]).status.code(), Some(2), "{options:?}");
    }
    let nothing = one_line_failure(&chaos(&[], &["true"]), 125);
    assert!(nothing.contains("no ring"), "{nothing}");
}
