//! Children of a served program: served by the library where it can be preloaded, by the guest host elsewhere.
#![cfg(target_arch = "x86_64")]

mod common;

use common::{anyring, calling, install, library, output, skipped, stdout, Elf};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ways of `tests/c/children.c` that search no PATH and add no arguments.
const WAYS: [&str; 16] = [
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execlp",
    "syscall",
    "execveat",
    "fexecve",
    "empty",
    "below",
    "posix_spawn",
    "posix_spawnp",
    "vfork-execve",
    "vfork-execl",
    "vfork-fexecve",
    "popen",
];

/// The programs of these tests: the parent, and an ELF file that exits with the error of io_uring_setup(-2, NULL). The
/// call fails with EINVAL or EFAULT, depending on the server, and with EPERM if it is refused.
struct Programs {
    parent: PathBuf,
    directory: tempfile::TempDir,
}

fn programs(flags: &[&str]) -> Option<Programs> {
    if Command::new("cc").arg("--version").output().is_err() {
        skipped("children: there is no cc");
        return None;
    }
    library();
    let directory = tempfile::tempdir().expect("a directory");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/children.c");
    let parent = directory.path().join("parent");
    let built = output(
        Command::new("cc")
            .args(["-std=gnu17", "-O1", "-Wall", "-w"])
            .args(flags)
            .arg(source)
            .arg("-o")
            .arg(&parent),
    );
    if !built.status.success() && !flags.is_empty() {
        skipped("children: cc cannot link that way");
        return None;
    }
    assert!(built.status.success(), "{built:?}");
    Some(Programs { parent, directory })
}

impl Programs {
    /// The output of the parent, below `deny` and `run` with these flags, when it starts `child` in that way.
    fn start(&self, flags: &[&str], way: &str, child: &Path) -> String {
        let words = [&["deny", "--aio", "--", common::ANYRING, "run"], flags, &["--"]].concat();
        let mut command = anyring(&words);
        command.arg(&self.parent).arg(way).arg(child).arg("word");
        let output = output(&mut command);
        assert!(output.stderr.is_empty(), "{way}: {output:?}");
        stdout(&output)
    }

    fn child(&self, name: &str, elf: &Elf) -> PathBuf {
        elf.write(&self.directory.path().join(name))
    }
}

/// io_uring_setup(-2, NULL) asks for an invalid number of entries.
const SETUP: u32 = 425;

fn served(printed: &str) -> bool {
    [libc::EINVAL, libc::EFAULT].iter().any(|errno| *printed == format!("status {errno}\n"))
}

#[test]
fn static_children_of_a_preloaded_program_are_served() {
    let Some(programs) = programs(&[]) else { return };
    for (name, kind) in [("fixed", 2), ("pie", 3)] {
        let child = programs.child(name, &Elf { kind, ..Elf::new(calling(SETUP)) });
        for way in WAYS {
            let printed = programs.start(&[], way, &child);
            assert!(served(&printed), "{way} of {name}: {printed}");
        }
        let script = programs.directory.path().join("script");
        install(format!("#!{}\n", child.display()).as_bytes(), &script);
        assert!(served(&programs.start(&[], "execve", &script)));
        let forbidden = format!("status {}\n", libc::EPERM);
        assert_eq!(programs.start(&["--no-guest"], "execve", &child), forbidden);
        assert_eq!(programs.start(&[], "bare", &child), forbidden, "without our environment");
    }
}

#[test]
fn children_of_a_guest_are_served() {
    let Some(programs) = programs(&["-static"]) else { return };
    let child = programs.child("fixed", &Elf::new(calling(SETUP)));
    for way in WAYS.into_iter().filter(|way| *way != "popen") {
        assert!(served(&programs.start(&[], way, &child)), "{way}");
    }
    let shell = programs.directory.path().join("shell");
    install(format!("#!/bin/sh\necho $LD_PRELOAD\n{}\n", child.display()).as_bytes(), &shell);
    let printed = programs.start(&[], "execve", &shell);
    let rest = printed.strip_prefix(&format!("{}\n", library().display()));
    assert!(rest.is_some_and(served), "a dynamic child has the library: {printed}");
}

/// No guarded signal is really blocked in a process that is served. What it executes inherits the mask all the same.
#[test]
fn children_inherit_the_mask_that_their_parent_reads_back() {
    let (Some(dynamic), Some(linked)) = (programs(&[]), programs(&["-static"])) else { return };
    for (first, other) in [(&dynamic, &dynamic), (&dynamic, &linked), (&linked, &dynamic), (&linked, &linked)] {
        // A shell that popen(3) starts has no guarded signal blocked. The other way adds arguments.
        for way in WAYS.into_iter().filter(|way| !["popen", "vfork-execl"].contains(way)) {
            let words = [first.parent.as_os_str(), way.as_ref(), other.parent.as_os_str(), "word".as_ref()];
            let start = |command: &mut Command| output(command.args(words).env("BLOCKS", "1"));
            let natively = start(&mut Command::new("env"));
            let served = start(&mut anyring(&["run", "--backend", "user", "--"]));
            assert_eq!(stdout(&natively), "1111status 0\n", "{way}");
            assert_eq!(served, natively, "{way} {words:?}");
        }
    }
}

/// A child of vfork(2) executes in its parent's memory, in which the list of the host's arguments is made.
#[test]
fn children_of_vfork_with_many_arguments_leave_no_memory() {
    for flags in [&[][..], &["-static"]] {
        let Some(programs) = programs(flags) else { return };
        let child = programs.child("fixed", &Elf::new(calling(SETUP)));
        assert_eq!(programs.start(&[], "many", &child), "kept\n", "{flags:?}");
    }
}

#[test]
fn errors_of_exec_are_the_kernels() {
    let Some(programs) = programs(&[]) else { return };
    let directory = programs.directory.path();
    let plain = programs.child("plain", &Elf::new(calling(SETUP)));
    std::fs::set_permissions(&plain, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("chmod");
    let busy = programs.child("busy", &Elf::new(calling(SETUP)));
    let writer = std::fs::OpenOptions::new().append(true).open(&busy).expect("open");
    let mut damaged = std::fs::read(&busy).expect("read");
    damaged.truncate(70);
    let damaged = install(&damaged, &directory.join("damaged"));
    for path in [directory.join("missing"), plain, busy, damaged, directory.to_owned()] {
        for way in ["execve", "syscall", "vfork-execv", "posix_spawn", "execveat"] {
            let natively = stdout(&output(Command::new(&programs.parent).arg(way).arg(&path).arg("word")));
            assert_eq!(programs.start(&[], way, &path), natively, "{way} {path:?}");
        }
    }
    drop(writer);
    assert!(programs.start(&[], "efault", Path::new("/bin/true")).contains(&format!("errno {}", libc::EFAULT)));
}

#[test]
fn a_child_that_cannot_be_served_is_named_and_counted() {
    let Some(programs) = programs(&[]) else { return };
    let [log, stats] = ["log", "stats"].map(|name| programs.directory.path().join(name).display().to_string());
    let child = programs.child("child", &Elf::new(calling(SETUP)));
    programs.start(&["--no-guest", "--log", &log, "--stats", &stats], "execve", &child);
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(logged.contains(&format!("a child is not served: `{}`", child.display())), "{logged}");
    let foreign = programs.child("foreign", &Elf { class_64: false, machine: 3, ..Elf::new(calling(SETUP)) });
    programs.start(&["--log", &log, "--stats", &stats], "vfork-execve", &foreign);
    let logged = std::fs::read_to_string(&log).expect("a log");
    assert!(logged.contains("it is a 32-bit program"), "{logged}");
    let counters = stdout(&output(&mut anyring(&["stats", "--json", &stats])));
    let counters: serde_json::Value = serde_json::from_str(&counters).expect("JSON");
    assert_eq!(counters["unserved_children"], 2, "{counters}");
    let table = stdout(&output(&mut anyring(&["stats", &stats])));
    for (index, (child, why)) in
        [(&child, "no library can"), (&foreign, "it is a 32-bit program")].iter().enumerate()
    {
        let logged = format!("`{}`: {why}", child.display());
        assert!(counters["unserved"][index].as_str().is_some_and(|child| child.starts_with(&logged)), "{counters}");
        assert!(table.contains(&format!("\n  not served: {logged}")), "{table}");
    }
    let trace = |form: &[&str], log: &str| {
        let words = [&["trace", "--backend", "user"], form, &["--"]].concat();
        let mut command = anyring(&words);
        command.env("ANYRING_LOG", log).arg(&programs.parent).arg("execve").arg(&foreign).arg("word");
        String::from_utf8(output(&mut command).stderr).expect("UTF-8")
    };
    let reason = format!("`{}`: it is a 32-bit program", foreign.display());
    for log in ["", &log] {
        let report = trace(&[], log);
        let reports = report.lines().filter(|line| line.starts_with(&format!("not served: {reason}"))).count();
        assert_eq!(reports, 1, "{report}");
    }
    let report: serde_json::Value = serde_json::from_str(&trace(&["--json"], "")).expect("JSON");
    assert!(report["unserved"][0].as_str().is_some_and(|child| child.starts_with(&reason)), "{report}");
}

/// The library is removed from the environment of a 32-bit child, whose loader would report on standard error that it
/// has the wrong class.
#[test]
fn a_32_bit_child_has_no_library_of_ours_in_its_environment() {
    let Some(programs) = programs(&[]) else { return };
    let code = common::seeing_preload_i386();
    let child = programs.child("foreign", &Elf { class_64: false, machine: 3, code, ..Elf::new(vec![]) });
    if output(Command::new(&child).env("LD_PRELOAD", "")).status.code() != Some(1) {
        return skipped("32-bit children: this kernel runs none");
    }
    for backend in ["user", "auto"] {
        for way in WAYS {
            assert_eq!(programs.start(&["--backend", backend], way, &child), "status 0\n", "{way}");
        }
    }
}

/// Filters are inherited, and a process can have about 250 at most.
fn chain(length: u32) {
    let (Some(dynamic), Some(linked)) = (programs(&[]), programs(&["-static"])) else { return };
    for (first, other) in [(&dynamic, &linked), (&dynamic, &dynamic), (&linked, &linked)] {
        let mut command = anyring(&["deny", "--", common::ANYRING, "run", "--"]);
        command.arg(&first.parent).arg("swap").arg(&other.parent).arg(length.to_string());
        let output = output(&mut command);
        let printed = stdout(&output);
        let filters = printed.strip_prefix("filters ").and_then(|number| number.trim().parse::<u32>().ok());
        assert!(output.stderr.is_empty() && filters.is_some_and(|filters| filters < 25), "{output:?}");
    }
}

#[test]
fn chains_of_exec_pile_up_no_filters() {
    chain(300);
}

#[test]
#[ignore = "soak: takes a minute"]
fn long_chains_of_exec_pile_up_no_filters() {
    chain(1000);
}
