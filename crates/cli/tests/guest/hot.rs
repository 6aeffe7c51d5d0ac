//! Calls that a guest makes all the time: how many trap, how many instructions are patched, and that nothing else is
//! noticeable.

use crate::common::{guest_command, native, no_reference, program_of, run, scratch, skip, text, Linked};
use anyring_engine::stats::Snapshot;
use std::process::Output;

/// The ways of linking without a libc of the system.
const ALL: [Linked; 3] = [Linked::Static, Linked::StaticPie, Linked::Musl];

/// Runs the part of `tests/c/hot.c` with this name as a guest, linked in each way. Its output must be the same as on
/// the kernel. Returns the counters of each run.
fn counters(name: &str, patches: bool) -> Vec<Snapshot> {
    let mut all = Vec::new();
    for linked in ALL {
        let Some(program) = program_of("hot", linked) else { continue };
        let file = scratch("hot").join(format!("{name}-{linked:?}-{patches}"));
        let _ = std::fs::remove_file(&file);
        let mut command = guest_command(&program, &[name]);
        command.env("ANYRING_STATS", &file);
        if !patches {
            command.env("ANYRING_PATCH", "0");
        }
        let output: Output = run(&mut command);
        assert!(output.status.success(), "{linked:?} {name}: {}", text(&output));
        if no_reference().is_none() {
            let expected = native(&program, &[name]);
            assert_eq!(output, expected, "{linked:?}: {}\ninstead of {}", text(&output), text(&expected));
        }
        let bytes = std::fs::read(&file).expect("counters");
        all.push(Snapshot::from_bytes(&bytes).expect("counters"));
    }
    if all.is_empty() {
        skip(name, "no program could be built");
    }
    all
}

#[test]
fn calls_that_trap_often_become_jumps() {
    for counted in counters("nops", true) {
        assert_eq!(counted.enters, 20_000);
        // liburing's own instruction and libc's generic wrapper: 64 traps each, and those at the start and the end.
        assert!(counted.patches == 2 && counted.traps < 200, "{counted:?}");
    }
    for counted in counters("nops", false) {
        assert!(counted.patches == 0 && counted.traps >= 20_000, "{counted:?}");
    }
}

#[test]
fn a_patched_instruction_leaves_what_it_leaves_natively() {
    for counted in counters("registers", true) {
        assert!(counted.patches == 1 && counted.traps < 200, "{counted:?}");
    }
}

#[test]
fn other_calls_by_a_patched_instruction_are_interrupted_and_restarted_as_natively() {
    for counted in counters("restarts", true) {
        assert!(counted.patches == 1 && counted.traps < 200, "{counted:?}");
    }
}

#[test]
fn signals_meet_a_patched_call_anywhere() {
    for counted in counters("storm", true) {
        assert_eq!(counted.patches, 1, "{counted:?}");
    }
}

#[test]
fn calls_of_linux_aio_become_jumps() {
    for counted in counters("aio", true) {
        assert!(counted.patches == 2 && counted.traps < 300, "{counted:?}");
    }
    for counted in counters("aio", false) {
        assert!(counted.patches == 0 && counted.traps >= 2_000, "{counted:?}");
    }
}

/// Each thread traps until its FS base is known. Threads get the FS bases that earlier threads had.
#[test]
fn threads_and_children_are_distinguished() {
    for counted in counters("threads", true) {
        assert_eq!(counted.patches, 1, "{counted:?}");
        assert!(counted.traps < 5_000 && counted.enters > 36_000, "{counted:?}");
    }
}

/// The kernel refuses to pass a ring over a socket, and so does the preloaded library.
#[test]
fn a_ring_is_not_passed_over_a_socket() {
    counters("passing", true);
}
