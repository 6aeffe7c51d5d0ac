//! `cargo xtask prose`: what a program can check of the English in documents, help and doc comments.
//!
//! A doc comment begins with a verb or a noun, a sentence has at most 25 words, and some words have a plainer one.

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The most words of a sentence.
const LONGEST: usize = 25;

/// Words with which no doc comment may begin, since they leave its subject open.
const NO_BEGINNING: &[&str] = &[
    "and",
    "but",
    "by",
    "for",
    "from",
    "in",
    "it",
    "likewise",
    "of",
    "on",
    "once more",
    "so",
    "that",
    "the other",
    "the same",
    "they",
    "what",
    "which",
    "who",
    "whoever",
    "whom",
    "whose",
    "with",
];

/// Banned words, each with the words to write instead.
const BANNED: &[(&str, &str)] = &[
    ("are had", "are available"),
    ("attends to", "handles"),
    ("behind", "after"),
    ("besides", "also"),
    ("but for", "except"),
    ("for good", "forever"),
    ("heed", "handle"),
    ("heeded", "handled"),
    ("heeds", "handles"),
    ("is had", "is available"),
    ("let go", "release"),
    ("lets go", "releases"),
    ("natively", "the kernel's io_uring ..."),
    ("not had", "unavailable"),
    ("of ours", "of anyring"),
    ("of which", "whose"),
    ("on the spot", "at once"),
    ("struck", "hit"),
    ("tells", "reports"),
    ("to be had", "available"),
    ("told", "reported"),
    ("true if so", "True if, and the condition"),
    ("untold", "pending"),
    ("whoever", "any thread that"),
];

/// Paths that are generated, or whose prose is not this project's.
const LEFT_OUT: &[&str] = &["docs/conformance.md", "docs/results"];

/// A place that breaks a rule.
#[derive(Debug, PartialEq)]
pub struct Finding {
    line: usize,
    message: String,
}

/// Checks the files whose paths begin with one of `paths`, or all files if there is none.
///
/// # Errors
///
/// Places that break a rule, each with its line.
pub fn check(root: &Path, paths: &[String]) -> Result<()> {
    let is_asked = |file: &str| paths.is_empty() || paths.iter().any(|path| file.starts_with(path.as_str()));
    let findings = all(root)?;
    let found: String =
        findings.iter().filter(|(file, _)| is_asked(file)).map(|(file, found)| lines(file, found)).collect();
    if !found.is_empty() {
        bail!("{found}CONTRIBUTING.md, Words, says how sentences are written");
    }
    println!("no place breaks a rule");
    Ok(())
}

fn lines(file: &str, findings: &[Finding]) -> String {
    findings.iter().map(|finding| format!("{file}:{}: {}\n", finding.line, finding.message)).collect()
}

/// Returns all findings, by file.
fn all(root: &Path) -> Result<BTreeMap<String, Vec<Finding>>> {
    let (mut files, mut findings) = (Vec::new(), BTreeMap::new());
    collect(root, root, &mut files)?;
    for file in files {
        let text = std::fs::read_to_string(root.join(&file)).with_context(|| file.clone())?;
        let found = match Path::new(&file).extension().and_then(|extension| extension.to_str()) {
            Some("rs") => of_source(&text),
            Some("md") => of_document(&text),
            _ => of_manual(&text),
        };
        if !found.is_empty() {
            findings.insert(file, found);
        }
    }
    Ok(findings)
}

/// Collects the documents, manual pages and sources below `folder`, by their paths below `root`.
fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let below = path.strip_prefix(root)?.to_string_lossy().into_owned();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_hidden = name.starts_with('.') && name != ".github";
        if is_hidden || name == "target" || name == "node_modules" || LEFT_OUT.contains(&below.as_str()) {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files)?;
        } else if matches!(path.extension().and_then(|extension| extension.to_str()), Some("rs" | "md" | "7")) {
            files.push(below);
        }
    }
    Ok(())
}

fn of_document(text: &str) -> Vec<Finding> {
    let paragraphs = paragraphs(text.lines().zip(1..).map(|(line, number)| (number, line)));
    paragraphs.iter().flat_map(|words| too_long(words).into_iter().chain(banned(words))).collect()
}

/// A page in roff: requests and comments end a paragraph.
fn of_manual(text: &str) -> Vec<Finding> {
    let lines: Vec<(usize, String)> = text
        .lines()
        .zip(1..)
        .map(|(line, number)| match line.strip_prefix('.') {
            Some(_) => (number, String::new()),
            None => (number, line.replace("\\fB", "").replace("\\fR", "").replace("\\fI", "").replace("\\-", "-")),
        })
        .collect();
    let paragraphs = paragraphs(lines.iter().map(|(number, line)| (*number, line.as_str())));
    paragraphs.iter().flat_map(|words| too_long(words).into_iter().chain(banned(words))).collect()
}

/// The doc comments of a source file.
fn of_source(text: &str) -> Vec<Finding> {
    let (mut findings, mut block): (Vec<Finding>, Vec<(usize, &str)>) = (Vec::new(), Vec::new());
    let mut kind = "";
    // The empty line ends the last one.
    for (line, number) in text.lines().chain([""]).zip(1..) {
        let trimmed = line.trim_start();
        let now = ["///", "//!"].into_iter().find(|mark| trimmed.starts_with(mark)).unwrap_or("");
        if now != kind {
            findings.extend(of_comment(&block));
            block.clear();
            kind = now;
        }
        if !now.is_empty() {
            block.push((number, &trimmed[3..]));
        }
    }
    findings
}

fn of_comment(block: &[(usize, &str)]) -> Vec<Finding> {
    let paragraphs = paragraphs(block.iter().copied());
    let mut findings = Vec::new();
    if let Some(first) = paragraphs.first() {
        let begins = NO_BEGINNING.iter().find(|beginning| matches(first, beginning));
        findings.extend(begins.map(|beginning| Finding {
            line: first[0].line,
            message: format!("begins with \"{beginning}\": begin with a verb or a noun"),
        }));
    }
    for words in &paragraphs {
        findings.extend(banned(words));
        findings.extend(too_long(words));
    }
    findings
}

/// A word: where it is, and how it is written. Code is one word.
struct Word {
    line: usize,
    text: String,
}

impl Word {
    /// Returns the word without punctuation and capitals.
    fn bare(&self) -> String {
        self.text.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
    }

    /// True if the word ends a sentence. A dot after a single letter abbreviates a name, and an ellipsis ends no sentence.
    fn ends_sentence(&self) -> bool {
        let text = self.text.trim_end_matches(['"', ')', '*', '_']);
        let abbreviates = text.ends_with("..") || ["e.g.", "i.e."].contains(&text) || text.len() == 2;
        text.ends_with(['.', '!', '?']) && (!abbreviates || text.starts_with('`'))
    }
}

/// Returns the paragraphs of Markdown. Each list item and each table cell is one. Headings, blocks of code and
/// definitions of links are left out.
fn paragraphs<'t>(lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<Vec<Word>> {
    let (mut all, mut open, mut code): (Vec<Vec<Word>>, Vec<Word>, bool) = (Vec::new(), Vec::new(), false);
    let mut span = String::new();
    for (line, text) in lines {
        let text = text.trim();
        if text.starts_with("```") {
            code = !code;
            all.push(std::mem::take(&mut open));
        } else if code {
            continue;
        } else if text.is_empty() || text.starts_with('#') || (text.starts_with('[') && text.contains("]: ")) {
            all.push(std::mem::take(&mut open));
        } else if let Some(row) = text.strip_prefix('|') {
            all.push(std::mem::take(&mut open));
            all.extend(without_code(row, &mut String::new()).split('|').map(|cell| words(line, cell)));
        } else {
            let item = text
                .strip_prefix("- ")
                .or_else(|| text.split_once(". ").filter(|(n, _)| is_number(n)).map(|(_, rest)| rest));
            if item.is_some() {
                all.push(std::mem::take(&mut open));
            }
            open.extend(words(line, &without_code(item.unwrap_or(text), &mut span)));
        }
    }
    all.push(open);
    all.retain(|words| !words.is_empty());
    all
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn words(line: usize, text: &str) -> Vec<Word> {
    let real = |word: &&str| word.contains(|c: char| c.is_alphanumeric() || c == '`');
    text.split_whitespace().filter(real).map(|word| Word { line, text: word.to_owned() }).collect()
}

/// Replaces each code span by one backtick, and each link by the text that it shows. `open` is the mark of a span that
/// the line before has left open.
fn without_code(text: &str, open: &mut String) -> String {
    let mut plain = String::new();
    let mut rest = text;
    loop {
        if !open.is_empty() {
            let Some(end) = rest.find(open.as_str()) else { return plain };
            rest = &rest[end + open.len()..];
            open.clear();
        }
        let Some(at) = rest.find(['`', '[', ']']) else { return plain + rest };
        plain.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with('`') {
            *open = rest.chars().take_while(|c| *c == '`').collect();
            rest = &rest[open.len()..];
            plain.push('`');
        } else if let Some(link) = rest.strip_prefix("](") {
            rest = link.find(')').map_or("", |end| &link[end + 1..]);
        } else {
            rest = &rest[1..];
        }
    }
}

fn too_long(words: &[Word]) -> Vec<Finding> {
    let (mut findings, mut begin) = (Vec::new(), 0);
    for (at, word) in words.iter().enumerate() {
        if word.ends_sentence() || at + 1 == words.len() {
            let count = at + 1 - begin;
            if count > LONGEST {
                let first: Vec<_> = words[begin..begin + 4].iter().map(|word| word.text.as_str()).collect();
                let message = format!("a sentence of {count} words, at most {LONGEST}: {} ...", first.join(" "));
                findings.push(Finding { line: words[begin].line, message });
            }
            begin = at + 1;
        }
    }
    findings
}

fn banned(words: &[Word]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for at in 0..words.len() {
        let found = BANNED.iter().find(|(phrase, _)| matches(&words[at..], phrase));
        findings.extend(found.map(|(phrase, instead)| Finding {
            line: words[at].line,
            message: format!("\"{phrase}\": write \"{instead}\", or turn the sentence round"),
        }));
    }
    for pair in words.windows(3) {
        findings.extend(calls_a_thing_an_error(pair));
    }
    findings
}

/// Finds sentences that call something an error (`is EINVAL`). A call or a request fails with an error, but is not
/// an error.
fn calls_a_thing_an_error(words: &[Word]) -> Option<Finding> {
    let [subject, verb, error] = words else { return None };
    let (name, verb) = (error.bare(), verb.bare());
    let is_error = error.text.starts_with('E')
        && name.len() > 3
        && name.to_uppercase() == error.text.trim_end_matches(|c: char| !c.is_alphanumeric());
    let names_errors = ["error", "errno", "answer", "result"].contains(&subject.bare().as_str());
    (is_error && ["is", "are"].contains(&verb.as_str()) && !names_errors)
        .then(|| Finding { line: error.line, message: format!("\"{verb} {}\": write \"fails with\"", error.text) })
}

/// True if the words begin with those of `phrase`.
fn matches(words: &[Word], phrase: &str) -> bool {
    let mut rest = words.iter();
    phrase.split(' ').all(|wanted| rest.next().is_some_and(|word| word.bare() == wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(findings: &[Finding]) -> Vec<(usize, &str)> {
        findings.iter().map(|finding| (finding.line, finding.message.split(':').next().unwrap_or(""))).collect()
    }

    #[test]
    fn a_sentence_has_at_most_25_words() {
        let sentence = |words: usize| "word ".repeat(words - 1) + "word. ";
        assert_eq!(of_document(&(sentence(25) + "The next " + &sentence(23))), []);
        let found = of_document(&format!("# Title\n\nShort.\nThe {}\n", sentence(25)));
        assert_eq!(messages(&found), [(4, "a sentence of 26 words, at most 25")]);
        // Code is one word, links are what they show, blocks of code are none.
        let code = format!("{}`{}` [a](b c).\n```\n{}```\n", "word ".repeat(23), "b ".repeat(9), sentence(40));
        assert_eq!(of_document(&code), []);
        // A sentence may begin with a name in small letters, and a name may have an initial with a dot.
        assert_eq!(of_document(&("word ".repeat(23) + "`a`. anyring is " + &sentence(20))), []);
        assert_eq!(of_document(&("Word ".repeat(20) + "J. Axboe is " + &sentence(2))), []);
        // Items and cells are read by themselves.
        let items = format!(
            "- {}\n- {}\n\n| {} | {} |\n",
            "a ".repeat(20),
            "a ".repeat(20),
            "a ".repeat(20),
            "a ".repeat(20)
        );
        assert_eq!(of_document(&items), []);
    }

    #[test]
    fn some_words_have_a_plainer_one() {
        assert_eq!(
            messages(&of_document("Nobody is\nTold, but\nfor one.\n")),
            [(2, "\"told\""), (2, "\"but for\"")]
        );
        assert_eq!(of_document("`told`, and ``told ` told``, and toldness.\n"), []);
        assert_eq!(messages(&of_document("The call is\nEINVAL.\n")), [(2, "\"is EINVAL.\"")]);
        assert_eq!(of_document("The error is EINVAL, which fails with EIO.\n"), []);
        assert_eq!(messages(&of_manual(".SH TOLD\nis \\fBtold\\fR\n")), [(2, "\"told\"")]);
    }

    #[test]
    fn a_doc_comment_begins_with_a_verb_or_a_noun() {
        let source = "//! So it is.\n\n/// What it is.\n///\n/// What else.\nfn f() {} // What?\n    /// The same.\n    /// Told.\n";
        let found = of_source(source);
        let begins: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(begins, [1, 3, 7, 8]);
        assert_eq!(of_source("/// Returns `what` it is.\n"), []);
        assert_eq!(of_source("/// By a worker.\n").len(), 1);
        let long = format!("/// {}\n", "Word ".repeat(26));
        assert_eq!(of_source(&long).len(), 1);
    }
}
