//! The symbols that the libraries export, compared with the version maps and with the installed liburing.

use crate::dropin::{map_path, Tools, DROPINS};
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name and version of each symbol; the version is empty for an unversioned one.
pub type Exports = BTreeMap<String, String>;

/// The names of a version map, each with its version.
pub fn parse_map(text: &str) -> Exports {
    let mut exports = Exports::new();
    let mut version = "";
    for line in text.lines().map(str::trim) {
        if let Some(node) = line.strip_suffix('{') {
            version = node.trim();
        } else if let Some(name) = line.strip_suffix(';').filter(|name| !name.starts_with('}') && *name != "*") {
            exports.insert(name.to_owned(), version.to_owned());
        }
    }
    exports
}

fn read_map(map: &str) -> Result<Exports> {
    let path = map_path(map);
    Ok(parse_map(&fs::read_to_string(&path).with_context(|| path.display().to_string())?))
}

/// The functions that `library` exports, as nm(1) lists them.
pub fn exports(library: &Path) -> Result<Exports> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output().context("run nm")?;
    ensure!(output.status.success(), "nm {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    Ok(parse_nm(&String::from_utf8(output.stdout).context("nm's output")?))
}

/// The functions in nm(1)'s output: `ADDRESS T NAME@@VERSION`.
pub fn parse_nm(text: &str) -> Exports {
    text.lines()
        .filter_map(|line| match *line.split_whitespace().collect::<Vec<_>>() {
            [_, "T" | "W", symbol] => Some(symbol),
            _ => None,
        })
        .map(|symbol| symbol.split_once("@@").unwrap_or((symbol, "")))
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect()
}

/// Returns the faults of libanyring.so: it must export every name of both maps, without a version, so that it pre-empts
/// each version.
pub fn check_preload(library: &Path) -> Result<Vec<String>> {
    let found = exports(library)?;
    let mut complaints = Vec::new();
    for (_, map) in DROPINS {
        let wanted = read_map(map)?.into_keys().map(|name| (name, String::new())).collect();
        complaints.extend(missing(library, &found, &wanted));
    }
    Ok(complaints)
}

/// Returns the faults of a drop-in: it must export exactly what its map lists, each name in its version.
pub fn check_dropin(library: &Path) -> Result<Vec<String>> {
    let (_, map) = DROPINS
        .iter()
        .find(|(name, _)| library.file_name().is_some_and(|file| file == *name))
        .with_context(|| format!("{} is no drop-in", library.display()))?;
    let (found, wanted) = (exports(library)?, read_map(map)?);
    let mut complaints = missing(library, &found, &wanted);
    let surplus = found.keys().filter(|name| !wanted.contains_key(*name));
    complaints.extend(surplus.map(|name| format!("{}: exports {name}, which is not in {map}", library.display())));
    Ok(complaints)
}

/// Returns the symbols that `installed` exports and `library`, which is to replace it, does not.
pub fn check_replaces(library: &Path, installed: &Path) -> Result<Vec<String>> {
    Ok(missing(library, &exports(library)?, &exports(installed)?))
}

/// Returns the faults of a library that will be installed: it must not panic or break on demand.
pub fn check_not_for_tests(library: &Path) -> Result<Vec<String>> {
    const OF_FEATURES: [(&str, &[u8]); 2] =
        [("forced-panics", b"ANYRING_PANIC"), ("mutations", b"ANYRING_MUTATION")];
    let content = fs::read(library).with_context(|| library.display().to_string())?;
    let built_with =
        OF_FEATURES.iter().filter(|(_, variable)| content.windows(variable.len()).any(|part| part == *variable));
    let complaint = |feature| format!("{}: was built with the feature {feature}", library.display());
    Ok(built_with.map(|(feature, _)| complaint(feature)).collect())
}

/// The libraries that libanyring.so may need. Each image that runs dynamic programs has them, and musl's loader takes
/// the name for itself (crates/inject/src/musl.rs).
pub const OF_ANY_LIBC: &[&str] = &["libc.so.6"];
/// The libraries that a drop-in may need: glibc's, which every program that uses it has.
pub const OF_GLIBC: &[&str] = &["libc.so.", "ld-linux", "libpthread.so.", "libdl.so.", "libm.so."];

/// Returns the libraries that `library` needs and whose names begin with none of `allowed`.
pub fn check_needed(library: &Path, allowed: &[&str]) -> Result<Vec<String>> {
    let output = Command::new("readelf").arg("-dW").arg(library).output().context("run readelf")?;
    ensure!(output.status.success(), "readelf {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("readelf's output")?;
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split_once('[')?.1.strip_suffix(']'))
        .collect();
    ensure!(!needed.is_empty(), "readelf shows nothing that {} needs", library.display());
    let surplus = needed.into_iter().filter(|name| !allowed.iter().any(|part| name.starts_with(part)));
    Ok(surplus.map(|name| format!("{}: needs {name}", library.display())).collect())
}

/// The newest version of glibc's symbols that anything may need.
const NEWEST_GLIBC: [u32; 3] = [2, 17, 0];
/// Symbols that may be needed without a version. glibc's loader and musl's libc have them.
const WITHOUT_VERSION: &[&str] = &["__tls_get_addr"];

/// Returns the symbols that `library` needs and that glibc 2.17 lacks, or may have in another version. Weak symbols may be
/// missing.
pub fn check_versions(library: &Path) -> Result<Vec<String>> {
    let output = Command::new("nm").args(["-D", "--undefined-only"]).arg(library).output().context("run nm")?;
    ensure!(output.status.success(), "nm {}: {}", library.display(), String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).context("nm's output")?;
    ensure!(!text.is_empty(), "nm shows nothing that {} takes from glibc", library.display());
    Ok(too_new(&text).into_iter().map(|complaint| format!("{}: {complaint}", library.display())).collect())
}

/// Finds these symbols in nm(1)'s output: `KIND NAME@VERSION`.
fn too_new(text: &str) -> Vec<String> {
    const WHAT_TO_DO: &str = "name it in crates/inject/maps with the oldest version, or do without it";
    let mut complaints = Vec::new();
    for line in text.lines() {
        let Some((kind, symbol)) = line.trim().split_once(' ') else { continue };
        let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
        let version = version.trim_start_matches('@');
        match version.strip_prefix("GLIBC_") {
            Some(numbers) => {
                let mut parts = numbers.split('.').map(|part| part.parse().unwrap_or(u32::MAX));
                let version: [u32; 3] = std::array::from_fn(|_| parts.next().unwrap_or(0));
                if version > NEWEST_GLIBC {
                    complaints.push(format!("needs {symbol}: {WHAT_TO_DO}"));
                }
            }
            None if version.is_empty() && kind != "w" && !WITHOUT_VERSION.contains(&name) => {
                complaints.push(format!("needs {name} without a version: {WHAT_TO_DO}"));
            }
            None => {}
        }
    }
    complaints
}

fn missing(library: &Path, found: &Exports, wanted: &Exports) -> Vec<String> {
    let show = |name: &str, version: &str| match version {
        "" => name.to_owned(),
        _ => format!("{name}@@{version}"),
    };
    let wrong = wanted.iter().filter_map(|(name, version)| match found.get(name) {
        Some(actual) if actual == version => None,
        Some(actual) => Some(format!("exports {} instead of {}", show(name, actual), show(name, version))),
        None => Some(format!("lacks {}", show(name, version))),
    });
    wrong.map(|complaint| format!("{}: {complaint}", library.display())).collect()
}

/// The path of the dynamic library `name` that is installed for the tools' processor; `None` if it is not installed.
pub fn installed(tools: &Tools, name: &str) -> Result<Option<PathBuf>> {
    let output = Command::new(tools.compiler())
        .arg(format!("-print-file-name={name}"))
        .output()
        .context("run the C compiler")?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    Ok(path.is_absolute().then_some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_gives_each_name_its_node() {
        let map = "/* text */\nA_1 {\n    global:\n        one;\n    local:\n        *;\n};\nA_2 {\n        two;\n} A_1;\n";
        assert_eq!(parse_map(map), Exports::from([("one".into(), "A_1".into()), ("two".into(), "A_2".into())]));
    }

    #[test]
    fn only_functions_of_nm_count() {
        let listing = "0000 A A_1\n0010 T one@@A_1\n0020 T two\n0030 D data@@A_1\n";
        assert_eq!(parse_nm(listing), Exports::from([("one".into(), "A_1".into()), ("two".into(), String::new())]));
    }

    #[test]
    fn a_missing_name_and_a_wrong_version_are_reported() {
        let found = Exports::from([("one".into(), "A_2".into())]);
        let wanted = Exports::from([("one".into(), "A_1".into()), ("two".into(), "A_1".into())]);
        assert_eq!(
            missing(Path::new("lib"), &found, &wanted),
            ["lib: exports one@@A_2 instead of one@@A_1", "lib: lacks two@@A_1"]
        );
    }

    #[test]
    fn newer_versions_and_none_are_reported() {
        let listing = "                 U memcpy@GLIBC_2.14\n U dlinfo@GLIBC_2.3.3\n w statx\n U __tls_get_addr\n";
        assert_eq!(too_new(listing), [""; 0]);
        let findings = too_new(" U stat64@GLIBC_2.33\n w gettid@GLIBC_2.30\n U arc4random\n U x@GLIBC_PRIVATE\n");
        let names = ["stat64@GLIBC_2.33", "gettid@GLIBC_2.30", "arc4random without", "x@GLIBC_PRIVATE"];
        assert_eq!(findings.len(), names.len(), "{findings:?}");
        assert!(
            findings.iter().zip(names).all(|(finding, name)| finding.contains(&format!("needs {name}"))),
            "{findings:?}"
        );
    }

    #[test]
    fn the_maps_have_liburings_counts() {
        let count = |map| read_map(map).map(|names| names.len()).unwrap_or_default();
        assert_eq!((count("liburing.map"), count("liburing-ffi.map")), (83, 222));
    }
}
