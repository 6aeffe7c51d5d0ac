//! The libraries that cargo builds from anyring-inject.

use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What one build of anyring-inject yields.
#[derive(Debug)]
pub struct Artifacts {
    /// libanyring.so.
    pub shared: PathBuf,
    /// libanyring.a.
    pub archive: PathBuf,
}

impl Artifacts {
    /// The two libraries in one of cargo's output directories (`target/debug`, `target/debug/deps`).
    pub fn in_directory(directory: &Path) -> Result<Artifacts> {
        let built = Artifacts { shared: directory.join("libanyring.so"), archive: directory.join("libanyring.a") };
        for file in [&built.shared, &built.archive] {
            ensure!(file.is_file(), "{} is missing: cargo build -p anyring-inject makes it", file.display());
        }
        Ok(built)
    }

    /// The directory that holds them.
    pub fn directory(&self) -> &Path {
        self.shared.parent().unwrap_or(Path::new("."))
    }
}

/// Builds anyring-inject and answers where its libraries are.
pub fn build(release: bool) -> Result<Artifacts> {
    let mut cargo = cargo("build");
    if release {
        cargo.arg("--release");
    }
    let paths = built_by(cargo)?;
    match (with_extension(&paths, "so"), with_extension(&paths, "a")) {
        (Some(shared), Some(archive)) => Ok(Artifacts { shared, archive }),
        _ => bail!("cargo named no libanyring.so and libanyring.a among {paths:?}"),
    }
}

/// Builds, into `target`, the libanyring.so that can be made to panic, for the test of that. Cheaply: that test often
/// starts from nothing, and does not ask how fast the library is.
pub fn build_with_forced_panics(target: &Path) -> Result<PathBuf> {
    let mut cargo = cargo("rustc");
    cargo.args(["--lib", "--crate-type", "cdylib", "--features", "forced-panics"]);
    cargo.env("CARGO_TARGET_DIR", target);
    cargo.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    let paths = built_by(cargo)?;
    with_extension(&paths, "so").with_context(|| format!("cargo named no libanyring.so among {paths:?}"))
}

/// A cargo command on anyring-inject whose messages [`built_by`] reads.
fn cargo(command: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([command, "--package", "anyring-inject", "--message-format", "json-render-diagnostics"]);
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    cargo
}

/// Runs the command: the library files that it built.
fn built_by(mut cargo: Command) -> Result<Vec<PathBuf>> {
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo")?;
    ensure!(output.status.success(), "cargo could not build anyring-inject");
    let messages = String::from_utf8(output.stdout).context("cargo's messages")?;
    let files = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "anyring")
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    Ok(files.filter_map(|file| file.as_str().map(PathBuf::from)).collect())
}

fn with_extension(paths: &[PathBuf], extension: &str) -> Option<PathBuf> {
    paths.iter().find(|path| path.extension().is_some_and(|other| other == extension)).cloned()
}
