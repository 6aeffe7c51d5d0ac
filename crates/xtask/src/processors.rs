//! Counts the places at which the code differs between processors. They should be in files named `arch`, `aarch64`
//! or `x86_64`, or in folders of these names. [`ELSEWHERE`] has the others.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// The names of files and folders for code of one processor.
const NAMES: [&str; 3] = ["arch", "aarch64", "x86_64"];

/// The condition that is counted.
const CONDITION: &str = "target_arch";

/// Other files with conditions on the processor: the number of these conditions, and the reason. No number may
/// grow. If you remove a condition, lower its number.
pub const ELSEWHERE: &[(&str, usize, &str)] = &[
    ("crates/cli/tests/children.rs", 1, "tests of guests"),
    ("crates/cli/tests/deny.rs", 1, "its programs have x86-64 assembly"),
    ("crates/cli/tests/doctor.rs", 1, "expects guests"),
    ("crates/cli/tests/filters.rs", 1, "tests of guests"),
    ("crates/cli/tests/refused.rs", 1, "tests of guests"),
    ("crates/cli/tests/run.rs", 1, "tests of guests"),
    ("crates/engine/src/os.rs", 2, "two layouts of one struct"),
    ("crates/inject/src/raw/mod.rs", 5, "chooses the files in aarch64/"),
    ("crates/inject/src/raw/object.rs", 1, "aarch64 maps islands with their object"),
    ("crates/inject/src/raw/stack.rs", 1, "not used by the other processor's trap"),
    ("crates/inject/src/signals/contexts.rs", 1, "functions that return twice are wrapped on x86-64 only"),
    ("crates/inject/tests/raw.rs", 1, "its programs have x86-64 assembly"),
    ("crates/inject/tests/unwinding.rs", 1, "reads x86-64 instructions"),
    ("crates/serve/src/dispatch.rs", 4, "calls that only x86-64 has, in a table"),
    ("crates/serve/src/lib.rs", 3, "modules for guests and for patches"),
    ("crates/serve/src/named.rs", 3, "calls that only x86-64 has, in tables"),
];

/// Counts the conditions in each file below `crates` and `tests` that is not for one processor only. `root` is the
/// repository. Comments do not count.
///
/// # Errors
///
/// A file that cannot be read.
pub fn elsewhere(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut found = BTreeMap::new();
    for folder in ["crates", "tests"] {
        count_below(root, &root.join(folder), &mut found)?;
    }
    Ok(found)
}

fn count_below(root: &Path, folder: &Path, found: &mut BTreeMap<String, usize>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        // This file names the condition itself.
        if NAMES.contains(&&*name) || name == "target" || path.ends_with("xtask/src/processors.rs") {
            continue;
        }
        if path.is_dir() {
            count_below(root, &path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            if let count @ 1.. = conditions(&text) {
                found.insert(path.strip_prefix(root)?.display().to_string(), count);
            }
        }
    }
    Ok(())
}

fn conditions(text: &str) -> usize {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| line.matches(CONDITION).count()).sum()
}

/// Compares the files with [`ELSEWHERE`]. Returns what is wrong, one line each.
///
/// # Errors
///
/// A file that cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    Ok(complaints(&elsewhere(root)?, ELSEWHERE))
}

fn complaints(found: &BTreeMap<String, usize>, listed: &[(&str, usize, &str)]) -> Vec<String> {
    let allowed: BTreeMap<&str, usize> = listed.iter().map(|(file, count, _)| (*file, *count)).collect();
    let of_found = found.iter().filter_map(|(file, count)| match allowed.get(&**file).copied().unwrap_or(0) {
        allowed if *count > allowed => {
            Some(format!("{file}: asks for the processor {count} times, not {allowed}: move it into arch/"))
        }
        allowed if *count < allowed => Some(format!("{file}: asks {count} times: lower its number from {allowed}")),
        _ => None,
    });
    let gone = allowed.keys().filter(|file| !found.contains_key(**file));
    of_found.chain(gone.map(|file| format!("{file}: asks no more: take it off the list"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_is_asked_for_in_listed_files_only() {
        assert_eq!(check(crate::root()).expect("sources"), Vec::<String>::new());
    }

    #[test]
    fn a_condition_more_or_less_is_found() {
        let found = |count| BTreeMap::from([("a.rs".to_owned(), count)]);
        let listed = [("a.rs", 2, "")];
        assert_eq!(complaints(&found(2), &listed), Vec::<String>::new());
        assert!(complaints(&found(3), &listed)[0].contains("3 times, not 2"));
        assert!(complaints(&found(1), &listed)[0].contains("lower"));
        assert!(complaints(&found(1), &[])[0].contains("1 times, not 0"));
        assert!(complaints(&BTreeMap::new(), &listed)[0].contains("no more"));
    }

    #[test]
    fn comments_do_not_count() {
        let text = "// cfg(target_arch)\n#[cfg(target_arch = \"x86_64\")]\n    /// target_arch\nmod x86_64;\n";
        assert_eq!(conditions(text), 1);
    }
}
