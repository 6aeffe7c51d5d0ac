//! The kernel's and the engine's rings and contexts in one process (`tests/c/mixed.c`), in which the kernel is asked
//! first for each. `anyring run` chooses this if the kernel's io_uring works. Without `anyring run`, the library finds
//! it out by itself.

mod common;

use common::running::{Running, USUAL};
use common::{built, compile, no_liburing, no_reference, scratch, skip, text};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The program, compiled once.
fn program() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let path = scratch("mixed").join("mixed");
        compile("mixed", &path, &["-luring"]);
        path
    })
}

fn passes(test: &str, case: &str, backends: &[&str]) {
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(test, reason);
    }
    for backend in backends {
        let mut command = Command::new(program());
        command.arg(case).env("LD_PRELOAD", built().shared).stdin(Stdio::null());
        command.env("ANYRING_BACKEND", backend).env("ANYRING_AIO", backend);
        let output =
            Running::start(&mut command).output(USUAL).unwrap_or_else(|why| panic!("{case} {backend} {why}"));
        let printed = String::from_utf8_lossy(&output.stdout);
        if let Some(reason) = printed.strip_prefix("skipped: ") {
            return skip(test, reason.trim_end());
        }
        assert!(output.status.success() && printed == "done\n", "{case} {backend}: {}", text(&output));
        assert!(output.stderr.is_empty(), "{case} {backend}: {}", text(&output));
    }
}

/// One test for each case.
macro_rules! cases {
    ($($test:ident: $case:literal;)*) => {$(
        #[test]
        fn $test() {
            passes(stringify!($test), $case, &["kernel-first", "auto"]);
        }
    )*};
}

cases! {
    rings_of_both_sides_work: "rings";
    refusals_that_are_a_lack_are_served: "refusals";
    a_ring_that_asks_for_less_is_served_last: "index-array";
    messages_to_the_other_side_are_refused: "messages";
    buffers_of_the_other_side_are_refused: "clones";
    a_ring_is_attached_to_one_of_the_other_side: "attached";
    each_side_polls_the_other: "polls";
    links_of_polls_and_messages_of_the_other_side_are_links: "links";
    both_sides_are_waited_for_together: "waits";
    a_ring_of_the_other_side_is_registered_or_closed: "files";
    registered_rings_are_told_apart: "registered";
    forked_children_have_both: "children";
    threads_are_refused_at_once: "threads";
    numbers_change_sides: "numbers";
    signals_that_were_blocked_before_do_not_kill: "faults";
    contexts_beyond_the_limit_of_all_processes_are_served: "contexts";
}

/// The test leaves out `auto`, which at the start already prepares for a kernel that refuses everything.
#[test]
fn nothing_is_touched_before_a_refusal() {
    passes("nothing_is_touched_before_a_refusal", "untouched", &["kernel-first"]);
}
