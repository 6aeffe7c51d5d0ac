//! `anyring check`: runs a program, and fails if its io_uring requests break the given expectations.

use crate::chaos::{self, Linted};
use crate::cli::{Bound, CheckOptions};
use crate::failure::{Failure, USAGE};
use crate::junit::{Outcome, Suite};
use crate::trace::{self, Traced, Whom};
use crate::{output, run};
use anyring_abi::Opcode;
use anyring_trace::{Kinds, Report};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The exit status if an expectation did not hold.
const FAILED: i32 = 1;

/// The reasons why nothing is proven.
const NO_RING: &str = "the program made no ring";
const NO_REQUEST: &str = "no request completed that the expectations are about";

/// The version of the JSON below. It changes when a field changes or is removed.
const SCHEMA: u32 = 1;

/// The JSON of `anyring check --json`.
#[derive(Serialize)]
struct Verdict {
    schema: u32,
    /// True if all expectations hold, and the run proves that.
    holds: bool,
    /// The reason why nothing is proven.
    not_proven: Option<String>,
    backend: &'static str,
    /// The reason for this backend.
    why: String,
    /// The program's exit status.
    status: i32,
    rings: usize,
    /// Number of requests; `null` with --lint, which does not count them.
    requests: Option<u64>,
    /// Number of these that an expectation is about.
    #[serde(skip)]
    counted: u64,
    /// Opcodes that --except leaves out.
    except: Vec<String>,
    expectations: Vec<Expectation>,
}

/// An expectation from the command line.
#[derive(Serialize)]
struct Expectation {
    /// The flag and its bound, as given.
    expectation: String,
    holds: bool,
    /// The facts that break it.
    evidence: Vec<String>,
}

/// Runs the program and checks the expectations. Returns the program's exit status if that is not 0, else the
/// verdict's.
pub fn run(options: &CheckOptions) -> Result<i32, Failure> {
    let except = excepted(&options.except)?;
    // Created first: if this fails, the program need not run.
    let mut files = Files::create(options)?;
    if options.lint {
        return lint(options, &mut files);
    }
    let traced = trace::run_traced(
        run::chosen(options.backend, "ANYRING_BACKEND")?,
        about_punts(options),
        Whom::Program(&options.program),
        |_, _, _| true,
        |_| {},
    )?;
    let verdict = verdict(options, except, &traced);
    files.write(&verdict)?;
    say(&verdict)?;
    let status = traced.end_as_it_did()?;
    Ok(if status == 0 && !verdict.holds { FAILED } else { status })
}

/// The files of `--json` and `--junit` for the verdict, which also goes to standard error.
struct Files {
    json: Option<(String, File)>,
    junit: Option<(String, File)>,
}

impl Files {
    fn create(options: &CheckOptions) -> Result<Files, Failure> {
        let create = |file: &Path| trace::create(file).map(|opened| (file.display().to_string(), opened));
        Ok(Files {
            json: options.json.as_deref().map(create).transpose()?,
            junit: options.junit.as_deref().map(create).transpose()?,
        })
    }

    fn write(&mut self, verdict: &Verdict) -> Result<(), Failure> {
        if let (Some((name, file)), Ok(text)) = (&mut self.json, serde_json::to_string_pretty(verdict)) {
            writeln!(file, "{text}").map_err(|error| output::unwritten(name, &error))?;
        }
        if let Some((name, file)) = &mut self.junit {
            file.write_all(junit_of(verdict).as_bytes()).map_err(|error| output::unwritten(name, &error))?;
        }
        Ok(())
    }
}

/// Looks for misuse of the interface, on anyring's engine. Returns the program's exit status if that is not 0, else
/// the verdict's.
fn lint(options: &CheckOptions, files: &mut Files) -> Result<i32, Failure> {
    let Linted { status, rings, findings } = chaos::lint(&options.program)?;
    let evidence: Vec<_> = findings.iter().map(|lines| lines.join("; ").replace(";     at", "; at")).collect();
    let verdict = Verdict {
        schema: SCHEMA,
        holds: status == 0 && rings != 0 && findings.is_empty(),
        not_proven: (rings == 0).then(|| NO_RING.to_owned()),
        backend: "anyring",
        why: "--lint asks for it".to_owned(),
        status,
        rings,
        requests: None,
        counted: 0,
        except: Vec::new(),
        expectations: vec![Expectation { expectation: "--lint".to_owned(), holds: evidence.is_empty(), evidence }],
    };
    files.write(&verdict)?;
    let lines = findings.iter().flatten();
    lines.for_each(|line| output::complain(&format!("anyring check: --lint: {line}")));
    match (status, findings.len()) {
        (0, 0) if rings == 0 => Err(Failure::own(format!("{NO_RING}, so nothing is proven"))),
        (0, 0) => {
            let ring = if rings == 1 { "ring" } else { "rings" };
            output::complain(&format!(
                "anyring check: --lint: nothing was found on {rings} {ring}, served by anyring"
            ));
            Ok(0)
        }
        (0, _) => Ok(FAILED),
        _ => Ok(status),
    }
}

/// Returns the flag by which the user asks whether the kernel uses workers. A run on anyring's engine cannot answer
/// that.
fn about_punts(options: &CheckOptions) -> Option<&'static str> {
    match (options.no_punts, options.max_worker_share) {
        (true, _) => Some("--no-punts"),
        (false, Some(_)) => Some("--max-worker-share"),
        (false, None) => None,
    }
}

/// The opcodes, named as in the report.
fn excepted(names: &[String]) -> Result<Vec<String>, Failure> {
    const AIO: [&str; 8] = ["PREAD", "PWRITE", "FSYNC", "FDSYNC", "POLL", "NOOP", "PREADV", "PWRITEV"];
    let known = |name: &String| {
        let upper = name.to_ascii_uppercase();
        let opcode = upper.strip_prefix("IORING_OP_").unwrap_or(&upper);
        let is_known = AIO.contains(&opcode) || Opcode::ALL.iter().any(|known| known.name() == opcode);
        is_known.then(|| opcode.to_owned()).ok_or_else(|| Failure {
            status: USAGE,
            message: format!(
                "--except {name}: no opcode has this name (docs/conformance.md lists them, as READ or FSYNC)"
            ),
        })
    };
    names.iter().map(known).collect()
}

/// Reports to standard error what did not hold, or one line that all held, or that nothing is proven.
fn say(verdict: &Verdict) -> Result<(), Failure> {
    let (backend, why) = (verdict.backend, &verdict.why);
    let broken: Vec<_> = verdict.expectations.iter().filter(|it| !it.holds).collect();
    for it in &broken {
        for evidence in &it.evidence {
            output::complain(&format!("anyring check: {}: {evidence}", it.expectation));
        }
    }
    if !broken.is_empty() {
        output::complain(&format!("anyring check: served by {backend}: {why}"));
        return Ok(());
    }
    match &verdict.not_proven {
        _ if verdict.status != 0 => Ok(()),
        Some(why) => Err(Failure::own(format!("{why}, so nothing is proven"))),
        None => {
            let stated: Vec<_> = verdict.expectations.iter().map(|it| it.expectation.as_str()).collect();
            let (requests, rings) = (verdict.counted, verdict.rings);
            let ring = if rings == 1 { "ring" } else { "rings" };
            let request = if requests == 1 { "request" } else { "requests" };
            let stated = stated.join(", ");
            output::complain(&format!(
                "anyring check: {stated}: held by {requests} {request} on {rings} {ring}, served by {backend}: {why}"
            ));
            Ok(())
        }
    }
}

fn verdict(options: &CheckOptions, except: Vec<String>, traced: &Traced) -> Verdict {
    let (report, status) = (&traced.report, traced.status());
    let expectations = expectations(options, &except, report);
    let kinds = || report.rings.iter().flat_map(|ring| &ring.kinds);
    let requests = kinds().map(|kinds| kinds.count).sum();
    let is_counted = |kinds: &&Kinds| {
        // Every CQE may find the CQ full, and a request whose purpose is to wait has no bound.
        options.no_overflow
            || !except.contains(&kinds.kind.opcode)
                && (!kinds.waits || options.no_punts || options.max_worker_share.is_some())
    };
    let counted = kinds().filter(is_counted).map(|kinds| kinds.count).sum();
    let not_proven = match report.events_lost {
        0 if report.rings.is_empty() => Some(NO_RING.to_owned()),
        0 => (counted == 0).then(|| NO_REQUEST.to_owned()),
        lost => Some(format!("{lost} events were lost")),
    };
    Verdict {
        schema: SCHEMA,
        holds: status == 0 && not_proven.is_none() && expectations.iter().all(|it| it.holds),
        not_proven,
        backend: traced.backend(),
        why: traced.why().to_owned(),
        status,
        rings: report.rings.len(),
        requests: Some(requests),
        counted,
        except,
        expectations,
    }
}

/// Each expectation, with one line for each fact that breaks it.
fn expectations(options: &CheckOptions, except: &[String], report: &Report) -> Vec<Expectation> {
    let kinds = || {
        let all = report.rings.iter().flat_map(|ring| ring.kinds.iter().map(move |kinds| (ring.ring, kinds)));
        all.filter(|(_, kinds)| !except.contains(&kinds.kind.opcode))
    };
    let mut stated = Vec::new();
    let mut state = |expectation: String, evidence: Vec<String>| {
        stated.push(Expectation { expectation, holds: evidence.is_empty(), evidence });
    };
    if options.no_punts {
        let punted = kinds().filter(|(_, kinds)| kinds.punted() != 0).map(|(ring, kinds)| {
            format!("ring {ring}: {} of {} {} went to a worker", kinds.punted(), kinds.count, kinds.kind)
        });
        state("--no-punts".to_owned(), punted.collect());
    }
    if let Some(most) = options.max_worker_share {
        let (all, by_worker) =
            kinds().fold((0, 0), |(all, worker), (_, kinds)| (all + kinds.count, worker + kinds.punted()));
        let share = 100.0 * by_worker as f64 / all.max(1) as f64;
        let above = (share > most).then(|| format!("{by_worker} of {all} requests, {share:.1}%, went to a worker"));
        state(format!("--max-worker-share {most}%"), above.into_iter().collect());
    }
    if options.no_overflow {
        let overflown = report.rings.iter().filter(|ring| ring.overflows != 0);
        let overflown =
            overflown.map(|ring| format!("ring {}: {} CQEs found the CQ full", ring.ring, ring.overflows));
        state("--no-overflow".to_owned(), overflown.collect());
    }
    if let Some(most) = &options.max_p99 {
        let slow =
            kinds().filter(|(_, kinds)| !kinds.waits && kinds.p99_ns > Some(most.ns)).map(|(ring, kinds)| {
                let took = in_unit_of(most, kinds.p99_ns.unwrap_or(0));
                format!("ring {ring}: {} took {took}", kinds.kind)
            });
        state(format!("--max-p99 {}", most.text), slow.collect());
    }
    stated
}

/// A time in the unit of the bound.
fn in_unit_of(bound: &Bound, ns: u64) -> String {
    let value = ns as f64 / bound.unit_ns;
    let digits = if value < 10.0 && bound.unit_ns > 1.0 { 3 } else { 0 };
    format!("{value:.digits$}{}", bound.unit)
}

/// The verdict as a test report: a case for each expectation, and one for the program.
fn junit_of(verdict: &Verdict) -> String {
    let mut suite = Suite::new("anyring check");
    let ended = match verdict.status {
        0 => Outcome::Passed,
        status => Outcome::Failed(format!("it ended with {status}")),
    };
    suite.case("the program ends with 0", ended, "");
    for it in &verdict.expectations {
        let outcome = match &verdict.not_proven {
            _ if !it.holds => Outcome::Failed(it.evidence.join("; ")),
            Some(why) => Outcome::Error(why.clone()),
            None => Outcome::Passed,
        };
        suite.case(&it.expectation, outcome, "");
    }
    suite.report(&[("backend", verdict.backend), ("why", &verdict.why)])
}
