//! Files that cannot be run: one line on standard error, and a shell's exit status.

use crate::common::{install, run, scratch, text, HOST};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Makes an executable file.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let (source, path) = (scratch("refused").join(format!("{name}.bytes")), scratch("refused").join(name));
    std::fs::write(&source, bytes).expect("write");
    install(&source, &path);
    path
}

/// Asserts that this file is refused with that status, in one line that names it and contains these words.
fn is_refused(path: &Path, status: i32, words: &str) {
    let output = run(Command::new(HOST).arg("--program=ra").args([path, path, path]));
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{path:?}: {}", text(&output));
    assert!(
        output.stdout.is_empty() && printed.lines().count() == 1 && printed.starts_with("anyring: "),
        "{printed}"
    );
    assert!(printed.contains(&*path.to_string_lossy()) && printed.contains(words), "{words}: {printed}");
}

/// A 64-bit x86-64 program with these program headers, each of type, flags, offset, address, bytes in the file and in memory.
fn elf(headers: &[[u64; 6]]) -> Vec<u8> {
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [0x40_0078_u64, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0_u32.to_le_bytes());
    for half in [64_u16, 56, headers.len() as u16, 0, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    for [kind, flags, offset, address, in_file, in_memory] in headers {
        bytes.extend((*kind as u32).to_le_bytes());
        bytes.extend((*flags as u32).to_le_bytes());
        for word in [*offset, *address, *address, *in_file, *in_memory, 0x1000] {
            bytes.extend(word.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn files_that_are_no_programs_are_refused() {
    is_refused(Path::new("/nonexistent/program"), 127, "No such file");
    is_refused(Path::new("/tmp"), 126, "no regular file");
    is_refused(Path::new("/dev/null"), 126, "no regular file");
    is_refused(&file("text", b"just text\n"), 126, "neither an ELF file nor a script");
    is_refused(&file("empty", b""), 126, "neither an ELF file nor a script");
    let forbidden = file("forbidden", &elf(&[[1, 5, 0, 0x40_0000, 120, 120]]));
    std::fs::set_permissions(&forbidden, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    is_refused(&forbidden, 126, "may not be executed");
}

#[test]
fn scripts_without_an_interpreter_are_refused() {
    is_refused(&file("lost", b"#!/nonexistent/interpreter\n"), 127, "No such file");
    is_refused(&file("blank", b"#!  \n"), 126, "#! line is empty");
    let itself = scratch("refused").join("itself");
    is_refused(&file("itself", format!("#!{}\n", itself.display()).as_bytes()), 126, "interpreters of each other");
}

#[test]
fn damaged_and_foreign_elf_files_are_refused() {
    let sound = [1, 5, 0, 0x40_0000, 120, 120];
    let with = |change: fn(&mut Vec<u8>)| {
        let mut bytes = elf(&[sound]);
        change(&mut bytes);
        bytes
    };
    let cases: [(&str, Vec<u8>, &str); 12] = [
        ("truncated_header", with(|bytes| bytes.truncate(40)), "no 64-bit program for x86-64"),
        ("truncated_headers", with(|bytes| bytes.truncate(100)), "shorter than its headers say"),
        ("class_32", with(|bytes| bytes[4] = 1), "no 64-bit program for x86-64"),
        ("big_endian", with(|bytes| bytes[5] = 2), "no 64-bit program for x86-64"),
        ("aarch64", with(|bytes| bytes[18] = 183), "no 64-bit program for x86-64"),
        ("object", with(|bytes| bytes[16] = 1), "no program"),
        ("no_segments", elf(&[[4, 4, 0, 0, 0, 0]]), "segments are damaged"),
        ("overlapping", elf(&[sound, [1, 6, 0, 0x40_0000, 120, 120]]), "segments are damaged"),
        ("after_the_end", elf(&[[1, 5, 0, 0x40_0000, 1 << 20, 1 << 20]]), "segments are damaged"),
        ("wraps", elf(&[[1, 5, 0, 0xffff_ffff_ffff_f000, 120, 0x2000]]), "segments are damaged"),
        ("unaligned", elf(&[[1, 5, 1, 0x40_0000, 100, 100]]), "segments are damaged"),
        ("taken", elf(&[[1, 5, 0, 0x40_0000, 120, 0x7ff0_0000_0000]]), "cannot be mapped"),
    ];
    for (name, bytes, words) in cases {
        is_refused(&file(name, &bytes), 126, words);
    }
    let loader = [3, 4, 0, 0, 0x1000, 0x1000];
    is_refused(&file("long_loader", &elf(&[sound, loader])), 126, "shorter than its headers say");
}

#[test]
fn usage() {
    for words in [&["--program=r"][..], &["--program=r", "a", "b"]] {
        let output = run(Command::new(HOST).args(words));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    }
}
