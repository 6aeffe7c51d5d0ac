//! `anyring chaos --jobs`: several runs at once print and write the same as one run at a time.

mod common;

use common::{anyring, chaos, chaos_program, library, one_line_failure, output, stderr};
use std::path::Path;
use std::process::{Command, Stdio};

/// `sh -c` with a script in which `$program` is the C program, and `$seed` the seed of the run.
fn script(program: &str, text: &str) -> [String; 3] {
    ["sh".to_owned(), "-c".to_owned(), format!("program='{program}'; seed=$ANYRING_CHAOS; {text}")]
}

/// Returns the lines of a log without what differs in each run.
fn without_pids(text: &str) -> Vec<serde_json::Value> {
    let line = |line: &str| -> serde_json::Value {
        let mut line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        (line["pid"], line["after_us"]) = (0.into(), 0.into());
        line
    };
    text.lines().map(line).collect()
}

/// Returns a report without the times of injections, which differ in each run.
fn without_times(text: &str) -> String {
    let before = |part: &str| part.rsplit_once(", ").map_or(part, |(before, _)| before).to_owned();
    let mut parts: Vec<_> = text.split(" ms after the first ring").map(str::to_owned).collect();
    let rest = parts.pop().expect("at least one part");
    parts.iter().map(|part| before(part)).chain([rest]).collect()
}

/// Asserts that the processes whose numbers the file has are gone.
fn are_gone(pids: &Path) {
    let pids = std::fs::read_to_string(pids).expect("numbers");
    assert!(!pids.is_empty() && pids.lines().all(|pid| !Path::new("/proc").join(pid).exists()), "{pids}");
}

#[test]
fn several_at_once_say_what_one_at_a_time_does() {
    let Some(program) = chaos_program() else { return };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let words = script(
        program,
        "echo \"seed $seed\"; [ $((seed % 4)) = 3 ] && exit 3; exec \"$program\" reuse-write right",
    );
    let all = |jobs: &str| {
        let [xml, log] = ["xml", "log"].map(|kind| folder.path().join(format!("{jobs}.{kind}")));
        let mut command = anyring(&["chaos", "--runs", "12", "--rules", "short,late", "--jobs", jobs, "--junit"]);
        let run = output(command.arg(&xml).arg("--log").arg(&log).arg("--").args(&words));
        assert_eq!(run.status.code(), Some(1), "{}", stderr(&run));
        let [xml, log] = [xml, log].map(|file| std::fs::read_to_string(file).expect("a report"));
        (without_times(&stderr(&run)), without_times(&xml), without_pids(&log))
    };
    let one = all("1");
    assert!(one.0.starts_with("seed 3\n") && one.0.contains("3 seeds: 3, 7, 11"), "{}", one.0);
    assert!(one.2.iter().any(|line| line["seed"] == 12), "{:?}", one.2);
    assert_eq!(one, all("5"));
}

#[test]
fn runs_are_made_at_once_and_reported_in_order() {
    let Some(program) = chaos_program() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("later").display().to_string();
    // The first run ends after a later one has.
    let text = format!(
        "case $seed in 1) until [ -e '{file}' ]; do sleep 0.01; done; exit 4;; 3) touch '{file}'; exit 5;; esac; \
         exec \"$program\" enter right"
    );
    let [sh, flag, text] = script(program, &text);
    let run = chaos(&["--runs", "4", "--jobs", "2", "--timeout", "60s"], &[&sh, &flag, &text]);
    let printed = stderr(&run);
    let place = |what: &str| printed.find(what).unwrap_or_else(|| panic!("{what}: {printed}"));
    assert!(place("seed 1 fails: exit status 4") < place("seed 3 fails: exit status 5"), "{printed}");
    assert!(printed.contains("2 of 4 seeds fail (1 to 4)"), "{printed}");
}

#[test]
fn the_first_failure_ends_the_others() {
    let Some(program) = chaos_program() else { return };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let pids = folder.path().join("pids");
    // The second fails once a later one is at work.
    let words = script(
        program,
        "case $seed in 1) exec \"$program\" enter right;; 2) until [ -s pids ]; do sleep 0.01; done; exit 7;; esac; \
         echo $$ >>pids; exec sleep 1000",
    );
    let options = ["chaos", "--runs", "50", "--jobs", "3", "--timeout", "60s", "--fail-fast", "--"];
    let run = output(anyring(&options).args(&words).current_dir(folder.path()));
    assert_eq!(run.status.code(), Some(1), "{}", stderr(&run));
    assert!(stderr(&run).contains("1 of 2 seeds fail (1 to 2)"), "{}", stderr(&run));
    are_gone(&pids);
}

#[test]
fn shrinking_at_once_finds_the_same() {
    let Some(program) = chaos_program() else { return };
    let shrink = |jobs: &str| {
        let options = ["--rules", "short,late", "--runs", "20", "--shrink", "--jobs", jobs];
        let run = chaos(&options, &[program, "both"]);
        assert_eq!(run.status.code(), Some(1), "{}", stderr(&run));
        without_times(&stderr(&run))
    };
    assert_eq!(shrink("1"), shrink("4"));
}

#[test]
fn an_interrupt_leaves_the_reports_of_the_runs_that_ended() {
    let Some(program) = chaos_program() else { return };
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [xml, log, pids] = ["chaos.xml", "chaos.log", "pids"].map(|name| folder.path().join(name));
    // Two wait, and the one between them has ended once the last waits.
    let words = script(
        program,
        "\"$program\" reuse-write right; case $seed in 2|4) echo $$ >>pids; exec sleep 1000;; esac",
    );
    for (signal, status) in [("-INT", libc::SIGINT), ("-TERM", libc::SIGTERM)] {
        let _ = std::fs::remove_file(&pids);
        let mut command = anyring(&["chaos", "--runs", "9", "--jobs", "2", "--timeout", "60s", "--junit"]);
        command.arg(&xml).arg("--log").arg(&log).arg("--").args(&words).current_dir(folder.path());
        let mut run = command.stderr(Stdio::piped()).spawn().expect("start");
        while std::fs::read_to_string(&pids).unwrap_or_default().lines().count() < 2 {
            assert!(run.try_wait().expect("wait").is_none(), "it ended");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(Command::new("kill").args([signal, &run.id().to_string()]).status().expect("kill").success());
        let run = run.wait_with_output().expect("wait");
        assert_eq!(run.status.code(), Some(128 + status));
        assert!(stderr(&run).contains("interrupted after 2 of 9 seeds, of which 0 fail"), "{}", stderr(&run));
        let text = std::fs::read_to_string(&xml).expect("a report");
        let has = |seed: u32| text.contains(&format!("name=\"seed {seed}\""));
        assert!(has(1) && has(3) && !has(2) && !has(4) && text.ends_with("</testsuites>\n"), "{text}");
        let log = without_pids(&std::fs::read_to_string(&log).expect("a log"));
        let seeds: Vec<_> = log.iter().filter_map(|line| line["seed"].as_u64()).collect();
        assert!(seeds.is_sorted() && (1..=4).all(|seed| seeds.contains(&seed)), "{seeds:?}");
        are_gone(&pids);
    }
}

#[test]
fn a_worker_that_is_killed_is_reported() {
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let options = ["chaos", "--runs", "3", "--jobs", "2", "--timeout", "60s", "--", "sh", "-c"];
    let script = "echo $$ >>pids; [ $ANYRING_CHAOS = 1 ] && kill -KILL $PPID; exec sleep 1000";
    let run = output(anyring(&options).arg(script).current_dir(folder.path()));
    assert!(one_line_failure(&run, 125).contains("the worker of a run was killed"));
    are_gone(&folder.path().join("pids"));
}

#[test]
fn what_cannot_be_a_number_of_jobs_is_refused() {
    for jobs in ["0", "many", "257", "99999999999"] {
        let line = one_line_failure(&chaos(&["--runs", "2", "--jobs", jobs], &["true"]), 2);
        assert!(line.contains("--jobs") && line.contains(jobs), "{line}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().to_str().expect("UTF-8");
    let crash = chaos(&["--crash", folder, "--recover", "true", "--jobs", "2"], &["true"]);
    assert!(one_line_failure(&crash, 2).contains("the same folder"));
    assert_eq!(chaos(&["--runs", "2", "--jobs", "256"], &["true"]).status.code(), Some(125), "none makes a ring");
}
