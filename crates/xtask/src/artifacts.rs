//! Builds by cargo: the libraries of anyring-inject, and the programs that tests need.

use crate::root;
use anyhow::{bail, ensure, Context, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use anyring_dist::dropin::Artifacts;
use anyring_dist::dropin::{linker_variable, Tools};

/// Builds anyring-inject for a target of rustc's, or for this machine, and returns the paths of its libraries.
pub fn build(release: bool, target: Option<&str>) -> Result<Artifacts> {
    let mut cargo = cargo("build", "anyring-inject");
    if let Some(target) = target {
        cargo.args(["--target", target]).env(linker_variable(target), Tools::of(target).compiler());
    }
    if release {
        cargo.arg("--release");
    }
    let paths = built_by(cargo)?;
    match (with_extension(&paths, "so"), with_extension(&paths, "a")) {
        (Some(shared), Some(archive)) => Ok(Artifacts { shared, archive }),
        _ => bail!("cargo named no libanyring.so and libanyring.a among {paths:?}"),
    }
}

/// The results of the build for tests.
#[derive(Debug)]
pub struct ForTests {
    /// The libanyring.so that panics ([`anyring_engine::forced`]) and breaks ([`anyring_engine::mutation`]) on demand.
    pub library: PathBuf,
    /// The program of anyring-engine's unit tests, which breaks on demand in the same way.
    pub units: PathBuf,
}

/// The features that only the build for tests has, of anyring-inject and of anyring-engine.
const FEATURES: &str = "forced-panics,mutations";

/// Builds the libanyring.so that panics and breaks on demand, in a folder of its own. The build takes little time,
/// since tests often need it after a fresh clone. How fast the library is does not matter to them.
pub fn build_for_tests() -> Result<PathBuf> {
    let mut cargo = cargo_for_tests("rustc", "anyring-inject")?;
    cargo.args(["--lib", "--crate-type", "cdylib"]);
    let paths = built_by(cargo)?;
    with_extension(&paths, "so").with_context(|| format!("cargo named no libanyring.so among {paths:?}"))
}

/// Builds the library for tests and the unit tests of anyring-engine.
pub fn build_all_for_tests() -> Result<ForTests> {
    let library = build_for_tests()?;
    let mut cargo = cargo_for_tests("test", "anyring-engine")?;
    cargo.args(["--lib", "--no-run"]);
    let units = executable(&messages_of(cargo)?, "anyring_engine")?;
    Ok(ForTests { library, units })
}

/// Builds these test programs of anyring-inject (`tests/NAME.rs`), and returns their paths.
pub fn build_tests(names: &[&str]) -> Result<Vec<PathBuf>> {
    let mut cargo = cargo("test", "anyring-inject");
    cargo.arg("--no-run");
    cargo.args(names.iter().flat_map(|name| ["--test", name]));
    let messages = messages_of(cargo)?;
    names.iter().map(|name| executable(&messages, name)).collect()
}

/// Builds these programs of the workspace with the development profile, and returns their folder.
pub fn build_programs(packages: &[&str]) -> Result<PathBuf> {
    let (first, others) = packages.split_first().context("a package")?;
    let mut cargo = cargo("build", first);
    cargo.args(others.iter().flat_map(|package| ["--package", package]));
    let messages = messages_of(cargo)?;
    let program =
        messages.iter().find_map(|message| message["executable"].as_str()).context("cargo named no program")?;
    Ok(Path::new(program).parent().context("a program's folder")?.to_owned())
}

/// The folder in which [`build_for_tests`] has cargo build.
pub fn folder_for_tests() -> Result<PathBuf> {
    let mut cargo = Command::new(cargo_itself());
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root());
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo metadata")?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).context("cargo's metadata")?;
    let target = metadata["target_directory"].as_str().context("cargo metadata names no target folder")?;
    Ok(Path::new(target).join("for-tests"))
}

fn cargo_itself() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A cargo command on a package whose messages [`messages_of`] reads.
fn cargo(command: &str, package: &str) -> Command {
    let mut cargo = Command::new(cargo_itself());
    cargo.args([command, "--package", package, "--message-format", "json-render-diagnostics"]).current_dir(root());
    cargo
}

fn cargo_for_tests(command: &str, package: &str) -> Result<Command> {
    let mut cargo = cargo(command, package);
    cargo.args(["--features", FEATURES]).env("CARGO_TARGET_DIR", folder_for_tests()?);
    cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    Ok(cargo)
}

/// Runs the command, and returns cargo's messages about what it built.
fn messages_of(mut cargo: Command) -> Result<Vec<serde_json::Value>> {
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "{cargo:?} failed");
    let messages = String::from_utf8(output.stdout).context("cargo's messages")?;
    Ok(messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// Runs the command, and returns the library files of anyring-inject that it built.
fn built_by(cargo: Command) -> Result<Vec<PathBuf>> {
    let messages = messages_of(cargo)?;
    let files = messages
        .iter()
        .filter(|message| message["target"]["name"] == "anyring")
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    Ok(files.filter_map(|file| file.as_str().map(PathBuf::from)).collect())
}

/// The program that was built from the target `name`.
fn executable(messages: &[serde_json::Value], name: &str) -> Result<PathBuf> {
    let of_target = messages.iter().filter(|message| message["target"]["name"] == name);
    let program = of_target.filter_map(|message| message["executable"].as_str()).next();
    program.map(PathBuf::from).with_context(|| format!("cargo named no program of {name}"))
}

fn with_extension(paths: &[PathBuf], extension: &str) -> Option<PathBuf> {
    paths.iter().find(|path| path.extension().is_some_and(|other| other == extension)).cloned()
}
