//! `cargo xtask rooms --list`: prints every source file with the first sentence of its head.

use anyhow::{ensure, Context, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The crates, in the order in which a reader meets them.
const CRATES: &[&str] = &[
    "crates/abi",
    "crates/engine",
    "crates/serve",
    "crates/inject",
    "crates/guest",
    "crates/cli",
    "crates/trace",
    "crates/lab",
    "crates/advise",
    "tests/conformance",
    "tests/differential",
    "tests/files",
    "tests/hostile",
    "tests/simulation",
    "tests/fuzz",
    "tests/kit",
    "tests/e2e",
    "crates/xtask",
    "crates/xtask/dist",
];

/// Folders with many files of one kind, which the README.md of their crate describes.
const LEFT_OUT: &[&str] = &["tests/conformance/src/cases"];

/// The most characters of a first sentence.
const LONGEST: usize = 200;

/// The text's width, in columns.
const WIDTH: usize = 116;

/// Returns the list as text. `root` is the repository.
///
/// # Errors
///
/// A file that cannot be read, or whose head does not begin with one sentence of at most `LONGEST` characters.
pub fn list(root: &Path) -> Result<String> {
    let mut text = String::new();
    for crate_name in CRATES {
        let folder = root.join(crate_name).join("src");
        let files = sources(root, &folder)?;
        let head =
            ["lib.rs", "main.rs"].map(|file| folder.join(file)).into_iter().find(|file| files.contains(file));
        let head = head.with_context(|| format!("{crate_name} has no root"))?;
        write!(text, "\n## {crate_name}\n\n{}\n", wrap(&first_sentence_of(&head)?, ""))?;
        for (at, file) in files.iter().filter(|file| **file != head).enumerate() {
            let below = file.strip_prefix(&folder)?;
            let name = match below.parent().filter(|parent| stands_for_folder(below) && *parent != Path::new("")) {
                Some(parent) => format!("{}/", parent.display()),
                None => below.display().to_string(),
            };
            let separator = if at == 0 { "\n" } else { "" };
            let line = wrap(&format!("- `{name}`: {}", first_sentence_of(file)?), "  ");
            writeln!(text, "{separator}{line}")?;
        }
    }
    Ok(text)
}

/// The files of a crate that are listed, each before those of its folder.
fn sources(root: &Path, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = crate::rooms::sources(folder)?;
    files.retain(|file| !LEFT_OUT.iter().any(|left_out| file.starts_with(root.join(left_out))));
    files.sort_by_key(|file| match file.parent().filter(|_| stands_for_folder(file)) {
        Some(parent) => parent.to_owned(),
        None => file.with_extension(""),
    });
    Ok(files)
}

fn stands_for_folder(file: &Path) -> bool {
    file.ends_with("mod.rs") || file.ends_with("main.rs")
}

fn first_sentence_of(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let sentence = first_sentence(&text);
    ensure!(sentence.ends_with('.'), "{}: its head does not begin with a sentence", file.display());
    let length = sentence.chars().count();
    ensure!(length <= LONGEST, "{}: its first sentence has {length} characters: split it", file.display());
    Ok(sentence)
}

/// The first sentence of a file's `//!` head, as one line, without links to other items. Empty if there is no head.
fn first_sentence(text: &str) -> String {
    let head = text.lines().skip_while(|line| !line.starts_with("//!")).map_while(|line| line.strip_prefix("//!"));
    let paragraph: Vec<&str> = head.map(str::trim).take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ").replace("[`", "`").replace("`]", "`");
    // An ellipsis does not end the sentence.
    let ends = paragraph.match_indices(". ").map(|(at, _)| at).find(|at| !paragraph[..*at].ends_with('.'));
    ends.map_or(paragraph.clone(), |end| paragraph[..=end].to_owned())
}

/// Breaks a paragraph into lines; all but the first begin with `indent`.
fn wrap(paragraph: &str, indent: &str) -> String {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in paragraph.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, format!("{indent}{word}")));
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_ends_at_a_full_stop_or_with_its_paragraph() {
        let of = |head: &str| first_sentence(head);
        assert_eq!(of("//! One\n//! line. Another.\n"), "One line.");
        assert_eq!(of("#![no_std]\n\n//! All of it.\n//!\n//! More.\n"), "All of it.");
        assert_eq!(of("//! Calls (OPENAT ... CLOSE ...). More.\n"), "Calls (OPENAT ... CLOSE ...).");
        assert_eq!(of("//! Emulated by [`crate::dispatch`].\n"), "Emulated by `crate::dispatch`.");
        assert_eq!(of("use std::io;\n"), "");
    }

    #[test]
    fn no_line_is_too_wide() {
        let text = wrap(&"word ".repeat(100), "  ");
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")), "{text}");
    }

    #[test]
    fn every_head_begins_with_one_sentence() {
        let root = crate::root();
        list(root).expect("a list");
    }
}
