//! Programs with their own `syscall` instructions. Each runs on the kernel's io_uring, and with the library preloaded,
//! which traps the instructions. Both runs must behave alike, down to the signal that ends the program. Each program
//! checks itself and prints where it failed.

mod common;

use common::running::output;
use common::{built, no_liburing, no_reference, scratch, skip, text};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable with which [`a_rust_program_still_reports_its_stack_overflow`] makes its child overflow the
/// stack.
const OVERFLOW: &str = "ANYRING_TEST_OVERFLOW";

/// Returns the reason why a test cannot run here, if there is one.
fn obstacle() -> Option<&'static str> {
    if !cfg!(target_arch = "x86_64") {
        return Some("raw instructions are trapped on x86-64 only");
    }
    no_reference()
}

/// Compiles `tests/c/raw/SOURCE.c` to `output` in the scratch directory.
fn compile(source: &str, output: &str, arguments: &[&str]) -> PathBuf {
    let program = scratch("raw").join(output);
    let mut all = vec!["-Wno-deprecated-declarations", "-Wno-infinite-recursion", "-mno-red-zone"];
    all.extend(arguments);
    common::compile(&format!("raw/{source}"), &program, &all);
    program
}

fn trapped(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", built().shared).env("ANYRING_BACKEND", "user").env("EXPECT_TRAP", "1");
    command
}

/// Runs `program` without the library, and with the library trapping its instructions. Neither run may complain. Both
/// must end by `signal`, or with success if that is `None`.
fn same_both_ways(program: &Path, arguments: &[&str], signal: Option<i32>) {
    let native = output(Command::new(program).env("EXPECT_TRAP", "0").args(arguments));
    let ours = output(trapped(program).args(arguments));
    for (how, output) in [("natively", native), ("trapped", ours)] {
        assert_eq!(output.status.signal(), signal, "{how}, {program:?} {arguments:?}: {}", text(&output));
        if signal.is_none() {
            assert!(output.status.success(), "{how}, {program:?} {arguments:?}: {}", text(&output));
            assert_eq!(output.stdout, b"done\n", "{how}, {program:?} {arguments:?}");
        }
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{how}, {program:?} {arguments:?}");
    }
}

/// One test for each case of a program: its name, the program, its argument, and the signal that ends it.
macro_rules! cases {
    ($($test:ident: $source:literal $case:literal $(dies by $signal:ident)?;)*) => {$(
        #[test]
        fn $test() {
            if let Some(reason) = obstacle() {
                return skip(stringify!($test), reason);
            }
            let arguments: &[&str] = if $case.is_empty() { &[] } else { &[$case] };
            let signal: &[i32] = &[$(libc::$signal)?];
            same_both_ways(&compile($source, stringify!($test), &[]), arguments, signal.first().copied());
        }
    )*};
}

cases! {
    nops_and_errors_come_back: "nop" "";
    every_wait_sees_the_completions: "waits" "";
    registers_and_red_zone_survive: "registers" "";
    a_filter_and_sigsys_handler_of_the_program_work: "signals" "own-filter";
    blocked_and_ignored_sigsys_stays_so_for_the_program: "signals" "blocked";
    sigsys_blocked_by_instruction_kills_nobody: "signals" "blocked-by-instruction";
    a_process_with_the_same_memory_traps_with_all_blocked: "signals" "traced";
    a_handler_submits_during_a_blocked_enter: "signals" "interrupted";
    leaving_blocked_enters_by_longjmp_leaks_nothing: "signals" "jumped";
    leaving_them_from_the_alternate_stack_leaks_nothing: "signals" "jumped-on-alternate-stack";
    a_handler_on_the_alternate_stack_keeps_its_frames: "alternate" "trapped";
    a_handler_on_the_alternate_stack_keeps_its_frames_during_patched_calls: "alternate" "patched";
    jumping_over_two_handlers_leaves_the_alternate_stack: "alternate" "trapped-jumps";
    jumping_over_two_handlers_from_patched_calls_leaves_the_alternate_stack: "alternate" "patched-jumps";
    a_call_on_the_alternate_stack_changes_mask_and_registers_as_natively: "alternate" "state";
    masks_of_contexts_are_as_set_and_block_no_trap: "masks" "contexts";
    masks_that_jumps_restore_are_as_saved: "masks" "jumps";
    masks_of_new_threads_are_as_set_and_block_no_trap: "masks" "threads";
    programs_inherit_the_mask_as_set: "masks" "started";
    a_handler_calls_while_no_program_can_be_started: "masks" "failing";
    threads_trap_at_the_same_time: "signals" "threads";
    an_unhandled_trap_of_the_program_kills_it: "signals" "dies-by-own-filter" dies by SIGSYS;
    a_blocked_trap_of_the_program_kills_it: "signals" "dies-blocking-own-filter" dies by SIGSYS;
    a_sigsys_that_was_sent_kills: "signals" "dies-by-kill" dies by SIGSYS;
    a_segv_handler_jumps_out: "faults" "jumps";
    a_segv_handler_survives_a_stack_overflow: "faults" "overflows";
    a_segv_handler_changes_where_the_program_goes_on: "faults" "goes-on";
    a_segv_handler_for_one_time_runs_once: "faults" "once" dies by SIGSEGV;
    a_fault_without_a_handler_kills: "faults" "default" dies by SIGSEGV;
    an_ignored_fault_kills: "faults" "ignored" dies by SIGSEGV;
    a_blocked_fault_kills: "faults" "blocked" dies by SIGSEGV;
    a_sigbus_that_was_raised_kills: "faults" "raised" dies by SIGBUS;
    calls_are_patched_where_that_is_safe: "patched" "shapes";
    threads_call_while_it_is_patched: "patched" "threads";
    threads_call_while_a_part_of_a_jump_is_written: "patched" "threads-straddling";
    threads_call_while_a_load_is_moved: "patched" "threads-loading";
    a_fault_in_what_was_moved_is_told_where_it_stood: "patched" "faults";
    a_fault_in_what_was_moved_kills: "patched" "dies" dies by SIGSEGV;
    a_handler_submits_during_a_patched_enter: "patched" "interrupted";
    leaving_patched_enters_by_longjmp_leaks_nothing: "patched" "jumped";
    leaving_patched_ones_from_the_alternate_stack_leaks_nothing: "patched" "jumped-on-alternate-stack";
    forked_and_started_programs_have_patched_calls_too: "patched" "forked";
    a_call_that_cannot_be_patched_keeps_trapping: "patched" "refused";
    a_call_whose_patching_would_kill_keeps_trapping: "patched" "refused-by-death";
    children_under_an_outer_filter_are_served_or_see_its_errno: "execs" "";
}

/// The engine's own descriptors stay open, whichever way the program uses to close all numbers.
#[test]
fn descriptors_of_the_engine_survive_closing_wholesale() {
    const NAME: &str = "descriptors_of_the_engine_survive_closing_wholesale";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let program = compile("closes", NAME, &[]);
    let closing = ["loop", "range", "range-cloexec", "range-unshare", "closefrom", "singly", "refused", "vfork"];
    for how in closing {
        for way in ["libc", "syscall", "instruction"] {
            same_both_ways(&program, &[how, way], None);
        }
    }
}

/// Only a ring's number is open for the program, not the engine's other numbers. A ring does not behave like a socket.
#[test]
fn a_call_on_a_number_of_the_engines_is_refused() {
    const NAME: &str = "a_call_on_a_number_of_the_engines_is_refused";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let program = compile("names", NAME, &[]);
    for named in ["ring", "foreign", "exec"] {
        for way in ["libc", "syscall", "instruction"] {
            same_both_ways(&program, &[named, way], None);
        }
    }
}

#[test]
fn a_plugin_is_looked_through_when_it_is_loaded() {
    if let Some(reason) = obstacle() {
        return skip("a_plugin_is_looked_through_when_it_is_loaded", reason);
    }
    for name in ["libplugin.so", "libplugin2.so"] {
        compile("plugin", name, &["-shared", "-fPIC"]);
    }
    let run_path = format!("-Wl,--enable-new-dtags,-rpath,{}", scratch("raw").display());
    same_both_ways(&compile("loads", "loads", &[&run_path]), &[], None);
}

#[test]
fn constructors_and_what_runs_before_them_are_served() {
    const NAME: &str = "constructors_and_what_runs_before_them_are_served";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let library = compile("early", "libearly.so", &["-shared", "-fPIC", "-DLIBRARY"]);
    let library = library.to_str().expect("a path in UTF-8");
    same_both_ways(&compile("early", NAME, &[library]), &[], None);
}

/// Builds a program whose plugin makes a ring in its constructor.
fn with_early_plugin(name: &str) -> PathBuf {
    compile("early", "libearly.so", &["-shared", "-fPIC", "-DLIBRARY"]);
    let run_path = format!("-Wl,--enable-new-dtags,-rpath,{}", scratch("raw").display());
    compile("early", name, &["-DLOADS", &run_path])
}

#[test]
fn a_plugins_constructor_is_served() {
    const NAME: &str = "a_plugins_constructor_is_served";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    same_both_ways(&with_early_plugin(NAME), &[], None);
}

#[test]
fn a_ring_that_the_kernel_has_made_stays_the_kernels() {
    const NAME: &str = "a_ring_that_the_kernel_has_made_stays_the_kernels";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    // Without patching, nothing serves a call in the constructor of a plugin.
    let program = with_early_plugin(NAME);
    let output = output(trapped(&program).env("ANYRING_PATCH", "0").env("EXPECT_TRAP", "0"));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn plugins_that_come_and_go_add_few_filters() {
    const NAME: &str = "plugins_that_come_and_go_add_few_filters";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    for (index, bytes) in [16, 8_000, 100_000].iter().enumerate() {
        let bytes = format!("-DBYTES={bytes}");
        compile("plugin", &format!("libreload{index}.so"), &["-shared", "-fPIC", &bytes]);
    }
    let run_path = format!("-Wl,--enable-new-dtags,-rpath,{}", scratch("raw").display());
    same_both_ways(&compile("reloads", NAME, &[&run_path]), &[], None);
}

#[test]
fn a_plugin_is_loaded_while_a_thread_blocks_everything() {
    const NAME: &str = "a_plugin_is_loaded_while_a_thread_blocks_everything";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let plugins = scratch("raw").join("blocked-plugins");
    std::fs::create_dir_all(&plugins).expect("a folder");
    compile("plugin", "blocked-plugins/libplugin.so", &["-shared", "-fPIC"]);
    let run_path = format!("-Wl,--enable-new-dtags,-rpath,{}", plugins.display());
    let (program, log) = (compile("blocked", NAME, &[&run_path]), plugins.join("log"));
    let cases = [("unseen", true), ("thread", false), ("inherited", false), ("unseen-without-proc", true)];
    for (how, is_left_alone) in cases {
        if how.ends_with("proc") && Command::new(&program).arg(how).status().is_ok_and(|it| it.code() == Some(11)) {
            skip(&format!("{NAME} {how}"), "nothing may be mounted here");
            continue;
        }
        same_both_ways(&program, &[how], None);
        let output = output(trapped(&program).arg(how).env("ANYRING_LOG", &log));
        assert!(output.status.success(), "{how}: {}", text(&output));
        let logged = std::fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(logged.contains("instructions are left alone"), is_left_alone, "{how}: {logged}");
        let _ = std::fs::remove_file(&log);
    }
}

#[test]
fn a_program_linked_with_liburing_gets_no_filter() {
    const NAME: &str = "a_program_linked_with_liburing_gets_no_filter";
    if let Some(reason) = obstacle().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    same_both_ways(&compile("linked", "linked", &["-luring", "-Wno-error"]), &[], None);
}

#[test]
fn functions_of_a_linked_liburing_are_served_by_its_handle() {
    const NAME: &str = "functions_of_a_linked_liburing_are_served_by_its_handle";
    if let Some(reason) = obstacle().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    same_both_ways(&compile("handle", "handle", &["-luring", "-Wno-error", "-Wno-pedantic"]), &[], None);
}

#[test]
fn anyring_raw_0_leaves_instructions_alone() {
    if let Some(reason) = obstacle() {
        return skip("anyring_raw_0_leaves_instructions_alone", reason);
    }
    let program = compile("nop", "untrapped", &[]);
    for (name, value) in [("ANYRING_RAW", "0"), ("ANYRING_BACKEND", "kernel"), ("ANYRING_BACKEND", "auto")] {
        let output = output(trapped(&program).env("EXPECT_TRAP", "0").env(name, value));
        assert!(output.status.success(), "{name}={value}: {}", text(&output));
    }
}

#[test]
fn a_program_whose_instructions_are_left_alone_gets_no_ring() {
    const NAME: &str = "a_program_whose_instructions_are_left_alone_gets_no_ring";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let program = compile("mixed", NAME, &[]);
    for (trapping, status) in [("1", 0), ("0", 3)] {
        let ended = output(trapped(&program).env("ANYRING_RAW", trapping));
        assert_eq!(ended.status.code(), Some(status), "ANYRING_RAW={trapping}");
    }
}

/// If a filter kills for a call, the call cannot be trapped. So the instructions are replaced before they run.
#[test]
fn calls_are_served_below_filters_that_kill_or_trap_for_them() {
    const NAME: &str = "calls_are_served_below_filters_that_kill_or_trap_for_them";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let below = compile("below", "below", &[]);
    for (source, cases) in [
        ("nop", &[""][..]),
        ("waits", &[""]),
        ("registers", &[""]),
        ("alternate", &["trapped", "patched", "trapped-jumps"]),
        ("faults", &["jumps", "goes-on"]),
        ("patched", &["interrupted", "jumped"]),
        ("signals", &["interrupted", "jumped", "jumped-on-alternate-stack", "threads"]),
    ] {
        let program = compile(source, &format!("{NAME}-{source}"), &[]);
        for (answer, case) in
            ["kill", "trap"].into_iter().flat_map(|answer| cases.iter().map(move |case| (answer, case)))
        {
            let arguments = [case].into_iter().filter(|case| !case.is_empty());
            let output = output(trapped(&below).arg(answer).arg(&program).args(arguments));
            assert!(output.status.success(), "{answer} {source} {case}: {}", text(&output));
        }
    }
}

#[test]
fn anyring_patch_0_leaves_calls_trapping() {
    const NAME: &str = "anyring_patch_0_leaves_calls_trapping";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    for (source, case) in [("patched", "shapes"), ("patched", "forked"), ("registers", "")] {
        let program = compile(source, &format!("{NAME}-{source}-{case}"), &[]);
        let output = output(trapped(&program).env("ANYRING_PATCH", "0").arg(case));
        assert!(output.status.success(), "{source} {case}: {}", text(&output));
    }
}

#[test]
fn the_log_says_why_a_call_keeps_trapping() {
    const NAME: &str = "the_log_says_why_a_call_keeps_trapping";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let program = compile("patched", NAME, &[]);
    let log = scratch("raw").join("patch.log");
    for (case, reasons) in [
        ("refused", &["code must not be writable here"][..]),
        ("shapes", &["no instruction directly before it can be moved"]),
    ] {
        let _ = std::fs::remove_file(&log); // of an earlier run
        let output = output(trapped(&program).env("ANYRING_LOG", &log).arg(case));
        assert!(output.status.success(), "{case}: {}", text(&output));
        let lines = std::fs::read_to_string(&log).expect("read the log");
        let kept: Vec<&str> = lines.lines().filter(|line| line.contains("keeps trapping")).collect();
        assert_eq!(kept.len(), reasons.len(), "{case}: {lines}");
        for (line, reason) in kept.iter().zip(reasons) {
            assert!(line.ends_with(reason), "{case}: {lines}");
        }
    }
}

/// The first copy of the library does not trap the second copy's instructions, and the second copy serves nobody.
#[test]
fn two_copies_do_not_trap_each_other() {
    const NAME: &str = "two_copies_do_not_trap_each_other";
    if let Some(reason) = obstacle() {
        return skip(NAME, reason);
    }
    let (first, folder) = (built().shared, scratch("raw").join("second-copy"));
    std::fs::create_dir_all(&folder).expect("a folder");
    for name in ["libanyring.so", "libcopy.so"] {
        let second = folder.join(name);
        std::fs::copy(&first, &second).expect("a copy");
        let both = format!("{} {}", first.display(), second.display());
        for source in ["nop", "waits", "registers", "copies"] {
            let program = compile(source, NAME, &["-ldl"]);
            let output = output(trapped(&program).env("LD_PRELOAD", &both));
            assert!(output.status.success() && output.stdout == b"done\n", "{name} {source}: {}", text(&output));
        }
        let loads = compile("copies", NAME, &["-ldl"]);
        let output = output(trapped(&loads).arg(&second));
        assert!(output.status.success() && output.stdout == b"done\n", "{name}, loaded: {}", text(&output));
    }
    let both = format!("{} {}", first.display(), folder.join("libanyring.so").display());
    has_no_filter(trapped(Path::new("/bin/cat")).env("LD_PRELOAD", &both));
}

/// Only one copy serves, though the loader looks up each copy's symbols in that copy.
#[test]
fn copies_that_do_not_see_each_other_serve_one_after_the_other() {
    const NAME: &str = "copies_that_do_not_see_each_other_serve_one_after_the_other";
    if let Some(reason) = obstacle().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    let folder = scratch("raw").join("local-copies");
    std::fs::create_dir_all(&folder).expect("a folder");
    let copies = ["libanyring.so", "libcopy.so"].map(|name| folder.join(name));
    for copy in &copies {
        std::fs::copy(built().shared, copy).expect("a copy");
    }
    let program = compile("local_copies", NAME, &["-ldl"]);
    let (mut preloaded, mut local) = (trapped(&program), Command::new(&program));
    for (how, command) in [("namespace", &mut preloaded), ("local", local.env("ANYRING_BACKEND", "user"))] {
        // glibc keeps room for the thread-local memory of one such copy.
        command.env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=16384");
        let output = output(command.args(&copies).arg(how));
        assert!(output.status.success() && output.stdout == b"done\n", "{how}: {}", text(&output));
    }
}

#[test]
fn a_program_without_raw_instructions_gets_no_filter() {
    has_no_filter(&mut trapped(Path::new("/bin/cat")));
}

/// Runs cat(1), which prints its /proc status. It must show no filter except the test's own.
fn has_no_filter(cat: &mut Command) {
    let output = output(cat.arg("/proc/self/status"));
    let status = String::from_utf8_lossy(&output.stdout);
    for line in ["Seccomp:\t0", "NoNewPrivs:\t0", "SigCgt:\t0000000000000000"] {
        let (name, _) = line.split_once('\t').expect("a name");
        let own = std::fs::read_to_string("/proc/self/status").expect("our own status");
        // If the test itself runs under a filter, a child without one of the library's filters has that filter, too.
        let expected = match name {
            "SigCgt:" => line.to_owned(),
            _ => own.lines().find(|own| own.starts_with(name)).expect("the same line").to_owned(),
        };
        assert!(status.lines().any(|seen| seen == expected), "{expected} expected in\n{status}");
    }
}

#[test]
fn a_rust_program_still_reports_its_stack_overflow() {
    fn overflow(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 512]);
        if frame[0] == u64::MAX {
            return depth;
        }
        overflow(depth + 1) + frame[1]
    }
    if std::env::var_os(OVERFLOW).is_some() {
        // SAFETY: with null parameters this only prepares the library, which then guards SIGSEGV.
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, 0) };
        overflow(0);
    }
    let this = std::env::current_exe().expect("the test has a path");
    let mut command = trapped(&this);
    command.args(["--exact", "a_rust_program_still_reports_its_stack_overflow"]).env(OVERFLOW, "1");
    let output = output(&mut command);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{}", text(&output));
    assert!(text(&output).contains("has overflowed its stack"), "{}", text(&output));
}
