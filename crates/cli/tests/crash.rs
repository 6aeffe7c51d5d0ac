//! `anyring chaos --crash`: programs that lose data with the power (`tests/c/crash.c`), and the same programs without
//! the bug.

mod common;

use common::{anyring, library, output};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The C program in a folder of its own; `None`, after saying so, if it cannot be compiled.
fn program() -> Option<(tempfile::TempDir, PathBuf)> {
    let compiler = Command::new("cc").arg("--version").output();
    if compiler.is_err() || !Path::new("/usr/include/liburing.h").exists() {
        eprintln!("skipped: there is no C compiler, or no liburing.h (Debian: liburing-dev)");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/crash.c");
    let program = folder.path().join("crash");
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]).arg(source);
    let compiled = output(cc.arg("-o").arg(&program).args(["-luring", "-pthread"]));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    std::fs::create_dir(folder.path().join("kept")).expect("a folder");
    Some((folder, program))
}

/// Loses power with `options` while the program stores data as in `case`, then lets it check. Starts with an empty
/// folder.
fn crash_anew(folder: &Path, program: &Path, case: &str, options: &[&str]) -> Output {
    let kept = folder.join("kept");
    std::fs::remove_dir_all(&kept).and_then(|()| std::fs::create_dir(&kept)).expect("a folder");
    crash(folder, program, case, options)
}

/// Does the same as [`crash_anew`], but starts with the contents that the folder has.
fn crash(folder: &Path, program: &Path, case: &str, options: &[&str]) -> Output {
    library();
    let kept = folder.join("kept").display().to_string();
    let (program, check) =
        (program.display().to_string(), case.trim_start_matches("bad-").trim_start_matches("plain-"));
    let recover = format!("'{program}' check {check} '{kept}'");
    let words =
        [&["chaos", "--crash", &kept, "--recover", &recover], options, &["--", &program, "store", case, &kept]];
    output(&mut anyring(&words.concat()))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_loss_is_found_and_lasting_data_is_not() {
    let Some((folder, program)) = program() else { return };
    for (case, lost) in [
        ("log", "bytes written at"),
        ("rename", "the rename of"),
        ("header", ""),
        ("page", "torn between sectors"),
        ("plain-log", "bytes written at"),
        ("plain-rename", "the rename of"),
        ("plain-mapped", "4096 bytes written at"),
        ("plain-dsync", ""),
        ("plain-range", "100 bytes written at"),
        ("plain-current", "the rename of"),
        ("plain-nameless", "100 bytes written at 0 of"),
        ("plain-together", "100 bytes written at"),
    ] {
        let right = crash_anew(folder.path(), &program, case, &["--runs", "60"]);
        assert_eq!(right.status.code(), Some(0), "{case}: {}", text(&right));
        assert!(text(&right).contains("0 of 60 seeds fail (1 to 60)"), "{case}: {}", text(&right));
        let bad = crash_anew(folder.path(), &program, &format!("bad-{case}"), &["--runs", "100", "--shrink"]);
        assert_eq!(bad.status.code(), Some(1), "bad-{case}: {}", text(&bad));
        assert!(
            text(&bad).contains(lost) && text(&bad).contains("/anyring chaos --seed"),
            "{case}: {}",
            text(&bad)
        );
    }
}

#[test]
fn a_failure_comes_again_and_its_folder_is_left() {
    let Some((folder, program)) = program() else { return };
    let kept = folder.path().join("kept");
    std::fs::write(kept.join("other"), "stays").expect("a file");
    let bad = crash(folder.path(), &program, "bad-log", &["--runs", "100", "--fail-fast"]);
    let printed = text(&bad);
    let seed = printed.split("--seed ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a seed").to_owned();
    let left = std::fs::read(kept.join("data")).unwrap_or_default();
    let again = crash(folder.path(), &program, "bad-log", &["--seed", &seed]);
    assert_eq!(again.status.code(), Some(1), "{}", text(&again));
    assert_eq!(std::fs::read(kept.join("data")).unwrap_or_default(), left);
    assert_eq!(std::fs::read(kept.join("other")).expect("the file"), b"stays");
    let right = crash(folder.path(), &program, "log", &["--seed", &seed]);
    assert_eq!(right.status.code(), Some(0), "{}", text(&right));
}

#[test]
fn an_interrupt_leaves_the_folder_as_it_was() {
    let Some((folder, program)) = program() else { return };
    library();
    let [kept, begun] = ["kept", "begun"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(format!("{kept}/other"), "stays").expect("a file");
    // The first recovery follows the run without a loss. The second waits for the interrupt.
    let recover = format!("if test -e '{begun}.1'; then : >'{begun}.2'; exec sleep 100; fi; : >'{begun}.1'");
    let mut chaos = anyring(&["chaos", "--crash", &kept, "--recover", &recover, "--timeout", "90s", "--"]);
    let mut chaos = chaos.arg(&program).args(["store", "log", &kept]).spawn().expect("start");
    let second = format!("{begun}.2");
    while !Path::new(&second).exists() {
        assert!(chaos.try_wait().expect("its status").is_none(), "it ended before its second recovery");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // SAFETY: no pointers; the child has not been waited for.
    unsafe { libc::kill(chaos.id() as libc::pid_t, libc::SIGINT) };
    assert_eq!(chaos.wait().expect("its status").code(), Some(128 + libc::SIGINT));
    let names: Vec<_> =
        std::fs::read_dir(&kept).expect("a folder").map(|it| it.expect("an entry").file_name()).collect();
    assert_eq!(names, ["other"]);
    // Nor does a program that fails by itself change the folder.
    let failing = crash(folder.path(), &program, "no-such-case", &[]);
    assert_eq!(failing.status.code(), Some(125), "{}", text(&failing));
    assert_eq!(std::fs::read(format!("{kept}/other")).expect("the file"), b"stays");
}

#[test]
fn arguments_that_cannot_be_used_are_named() {
    library();
    let refused = |words: &[&str]| {
        let output = output(&mut anyring(words));
        assert!(output.status.code().is_some_and(|status| status != 0));
        text(&output)
    };
    assert!(refused(&["chaos", "--crash", "/nowhere", "--recover", "true", "--", "true"])
        .contains("--crash /nowhere: "));
    assert!(refused(&["chaos", "--crash", "/tmp", "--", "true"]).contains("--recover"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let printed = refused(&["chaos", "--crash", path, "--recover", "true", "--", "true"]);
    assert!(printed.contains("changed nothing in the folders"), "{printed}");
}
