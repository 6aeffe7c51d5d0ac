//! Programs that run as guests: their output and their end are the same as on the kernel.

use crate::common::{
    guest, guest_command, native, no_reference, program, run, scratch, skip, text, Linked, ALL, HOST,
};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Runs the part of `tests/c/guest.c` with this name both ways, linked in each way.
fn as_natively(name: &str) {
    as_natively_below(name, &|command| run(command));
}

/// Does the same as [`as_natively`], but has `run_guest` run the guest.
fn as_natively_below(name: &str, run_guest: &dyn Fn(&mut Command) -> Output) {
    if let Some(why) = no_reference() {
        return skip(name, why);
    }
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        let (expected, output) = (native(&program, &[name]), run_guest(&mut guest_command(&program, &[name])));
        assert!([Some(0), Some(17)].contains(&expected.status.code()), "natively {linked:?} {}", text(&expected));
        assert_eq!(output, expected, "{linked:?}: {}\ninstead of {}", text(&output), text(&expected));
    }
}

macro_rules! parts {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            as_natively(stringify!($name));
        }
    )* };
}

parts! {
    nop file socket worker poll threads detached signals queued alternate nested jumps fork borrowers fork_among_threads exec masks
    identity descriptors names killed
}

/// Under a filter that kills for io_uring's calls, no trap is needed: instructions that may make these calls are
/// replaced before the guest starts.
#[test]
fn guests_are_served_below_filters_that_kill_or_trap() {
    for errno in ["kill", "trap"] {
        let below = |guest: &mut Command| {
            let mut denied = Command::new(HOST);
            denied.args(["deny", "--errno", errno, "--", HOST]).args(guest.get_args());
            run(&mut denied)
        };
        for part in
            ["nop", "socket", "threads", "signals", "alternate", "jumps", "fork", "fork_among_threads", "names"]
        {
            as_natively_below(part, &below);
        }
    }
}

/// No thread of the program keeps root's rights, on the kernel's own io_uring either.
#[test]
fn rights_that_are_given_up_are_given_up_by_all_threads() {
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        return skip("give_up", "only root has something to give up");
    }
    as_natively("give_up_alone");
    as_natively("give_up_together");
}

#[test]
#[ignore = "soak: takes a minute"]
fn no_signal_of_very_many_is_lost() {
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        let output = guest(&program, &["queued", "250000"]);
        assert!(output.status.success(), "{linked:?}: {}", text(&output));
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("250000 queued signals"), "{}", text(&output));
    }
}

#[test]
fn arguments_and_exit_statuses_pass_through() {
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        for words in [&["words", "one", "two words", "", "--program=x"][..], &["exit", "42"], &["exit", "0"]] {
            assert_eq!(guest(&program, words), native(&program, words), "{linked:?} {words:?}");
        }
        for signal in [libc::SIGTERM, libc::SIGKILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGABRT] {
            let output = guest(&program, &["kill", &signal.to_string()]);
            assert_eq!(output.status.signal(), Some(signal), "{linked:?}: {}", text(&output));
        }
    }
}

/// Filters cannot be removed, and a process can have about 250 at most.
#[test]
fn a_long_chain_of_programs_adds_no_filters() {
    for linked in [Linked::Static, Linked::StaticPie] {
        let Some(program) = program(linked) else { continue };
        let output = guest(&program, &["chain", "1000"]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let filters = printed.lines().find_map(|line| line.strip_prefix("filters: ")).map(str::trim);
        let filters: usize = filters.and_then(|number| number.parse().ok()).unwrap_or(usize::MAX);
        assert!(output.status.success() && printed.contains("the end of the chain"), "{}", text(&output));
        assert!(filters <= 3, "{linked:?}: {}", text(&output));
    }
}

#[test]
fn every_program_that_a_guest_becomes_is_served() {
    let shell = std::path::Path::new("/bin/sh");
    for linked in ALL {
        let Some(program) = program(linked) else { continue };
        let script = format!("{0} nop && env -i {0} nop && exec {0} exec", program.display());
        let mut command = guest_command(shell, &["-c", &script]);
        let output = run(&mut command);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.code() == Some(17), "{linked:?}: {}", text(&output));
        assert_eq!(printed.matches("1000 NOPs").count(), 2, "{linked:?}: {}", text(&output));
        assert!(printed.contains("word 3: two words"), "{linked:?}: {}", text(&output));
    }
}

/// `anyring run` executes the host when it runs in a guest.
#[test]
fn a_guest_may_execute_the_host() {
    let Some(program) = program(Linked::Static) else { return };
    let script = format!("exec {} --program=r {1} {1} {1} nop", HOST, program.display());
    let output = guest(std::path::Path::new("/bin/sh"), &["-c", &script]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    assert_eq!(output.stdout, b"1000 NOPs\n", "{}", text(&output));
}

#[test]
fn the_log_says_by_which_way_a_program_is_served() {
    let Some(program) = program(Linked::StaticPie) else { return };
    let log = scratch("log").join("log");
    let _ = std::fs::remove_file(&log);
    let output = run(guest_command(&program, &["nop"]).env("ANYRING_LOG", &log));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(logged.contains(&format!("the program runs as a guest: {}", program.display())), "{logged}");
}
