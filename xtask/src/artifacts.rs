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
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--package", "anyring-inject", "--message-format", "json-render-diagnostics"]);
    if release {
        cargo.arg("--release");
    }
    let output = cargo.stderr(Stdio::inherit()).output().context("cargo build")?;
    ensure!(output.status.success(), "cargo build --package anyring-inject failed");
    let messages = String::from_utf8(output.stdout).context("cargo's messages")?;
    let files = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "anyring")
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default());
    let paths: Vec<PathBuf> = files.filter_map(|file| file.as_str().map(PathBuf::from)).collect();
    let with_extension = |extension| paths.iter().find(|path| path.extension().is_some_and(|e| e == extension));
    match (with_extension("so"), with_extension("a")) {
        (Some(shared), Some(archive)) => Ok(Artifacts { shared: shared.clone(), archive: archive.clone() }),
        _ => bail!("cargo named no libanyring.so and libanyring.a among {paths:?}"),
    }
}
