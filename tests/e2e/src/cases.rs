//! Runs each case in each environment as one test of its own, with cargo test's options and closing line.

use crate::{stage, Environment};
use libtest_mimic::{Arguments, Trial};
use std::process::ExitCode;

/// A test's name, and the test.
pub type Case = (&'static str, fn(Environment));

/// Cases from functions, by their names.
#[macro_export]
macro_rules! cases {
    ($($name:ident),+ $(,)?) => {
        [$((stringify!($name), $name as fn($crate::Environment))),+]
    };
}

/// The `main` of a test file, which runs the cases that the command line chooses. A case whose environment is
/// unavailable counts as ignored, and the reason is printed.
pub fn run(environments: &[Environment], cases: &[Case]) -> ExitCode {
    run_unless(None, environments, cases)
}

/// The `main` of a test file with several sets of cases. The cases of a set run in the set's own environments.
pub fn run_all(sets: &[(&[Environment], &[Case])]) -> ExitCode {
    run_all_unless(None, sets)
}

/// The `main` of a test file whose program may be missing. If `missing` gives the reason, all cases count as ignored.
pub fn run_unless(missing: Option<&str>, environments: &[Environment], cases: &[Case]) -> ExitCode {
    run_all_unless(missing, &[(environments, cases)])
}

/// Does the same as [`run_unless`], for several sets of cases.
pub fn run_all_unless(missing: Option<&str>, sets: &[(&[Environment], &[Case])]) -> ExitCode {
    let arguments = Arguments::from_args();
    let trials = sets.iter().flat_map(|(environments, cases)| trials(missing, &arguments, environments, cases));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn trials(
    missing: Option<&str>,
    arguments: &Arguments,
    environments: &[Environment],
    cases: &[Case],
) -> Vec<Trial> {
    // On the kernel's io_uring all environments are the same.
    let environments = if stage::on_kernel() { &environments[..1] } else { environments };
    let chosen = std::env::var("E2E_IN").ok();
    let is_chosen = |environment: &&Environment| {
        let name = environment.to_string();
        chosen.as_ref().is_none_or(|names| names.split(',').any(|begin| name.starts_with(begin)))
    };
    let mut trials = Vec::new();
    for &environment in environments.iter().filter(is_chosen) {
        let unavailable = missing.or(environment.unavailable());
        if let (Some(reason), false) = (unavailable, arguments.list) {
            println!("skipped: {environment}, {} tests: {reason}", cases.len());
        }
        trials.extend(cases.iter().map(|&(name, case)| {
            let test = move || {
                case(environment);
                Ok(())
            };
            Trial::test(format!("{environment}::{name}"), test).with_ignored_flag(unavailable.is_some())
        }));
    }
    trials
}
