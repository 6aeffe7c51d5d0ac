//! Opens the files that `anyring run` was asked to write: counters and messages. If a file cannot be used, this is
//! reported before the program starts, since the library has no output in which to report it.

use crate::cli::RunOptions;
use crate::doctor::Server;
use crate::failure::Failure;
use crate::{errno, stats};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The server, and the reason.
#[derive(Serialize, Deserialize)]
pub struct Decision {
    /// The server.
    pub server: Server,
    /// True if `auto` chose the server. Then anyring serves what the kernel refuses.
    pub is_auto: bool,
    /// The reason, for people.
    pub why: String,
}

impl Decision {
    /// Describes the decision for the log. `library`: whether the library is preloaded.
    fn of(&self, what: &str, library: bool) -> String {
        let server = if self.server == Server::User { "anyring" } else { "the kernel" };
        let refused = if self.kernel_is_first() && library { ", and anyring what the kernel refuses" } else { "" };
        format!("{server} serves {what} ({}){refused}", self.why)
    }

    /// True if the kernel serves, and the library serves what the kernel refuses.
    pub fn kernel_is_first(&self) -> bool {
        self.is_auto && self.server == Server::Kernel
    }
}

/// The way in which the program is started.
#[derive(Serialize, Deserialize)]
pub enum Means {
    /// The program has this library preloaded. The text, if any, says why the program's own system call instructions
    /// are not served.
    Library(OsString, Option<String>),
    /// The program starts without the library. If the library should have been preloaded, the text says why it was
    /// not.
    Plain(Option<String>),
    /// The program is a guest, for this reason.
    Guest(String),
}

/// Opens the counters and the log, by flag or variable, and writes the decisions there.
pub fn open(options: &RunOptions, rings: &Decision, aio: &Decision, means: &Means) -> Result<(), Failure> {
    if let Some((name, file)) = named(&options.stats, "--stats", "ANYRING_STATS") {
        let left = [rings, aio].map(|decision| u64::from(decision.server == Server::Kernel));
        stats::open(&file, left).map_err(|why| refused(name, &file, &why))?;
    }
    if let Some((name, file)) = named(&options.log, "--log", "ANYRING_LOG") {
        let program = options.program.words[0].to_string_lossy();
        let library = matches!(means, Means::Library(..));
        let means = match means {
            Means::Library(library, without) => {
                let without = without
                    .as_ref()
                    .map(|why| format!("; system calls by its own instructions are left to the kernel ({why})"));
                format!("with {}{}", Path::new(library).display(), without.unwrap_or_default())
            }
            Means::Plain(None) => "started without the library".to_owned(),
            Means::Plain(Some(why)) => {
                format!("started without the library ({why}): what the kernel refuses stays refused")
            }
            Means::Guest(why) => format!("as a guest ({why})"),
        };
        let line =
            format!("{program}: {}; {}; {means}", rings.of("io_uring", library), aio.of("Linux AIO", library));
        write_line(&file, &line).map_err(|why| refused(name, &file, &why))?;
    }
    Ok(())
}

/// Returns the file that a flag or variable names, with the name of that flag or variable.
fn named(flag: &Option<PathBuf>, name: &'static str, variable: &'static str) -> Option<(&'static str, PathBuf)> {
    let by_variable = || std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    flag.clone().map(|file| (name, file)).or_else(|| by_variable().map(|file| (variable, file)))
}

fn refused(name: &str, file: &Path, why: &str) -> Failure {
    Failure::own(format!("{name}: cannot use {}: {why}", file.display()))
}

/// Opens the file as the library does, but without waiting for the reader of a FIFO.
fn write_line(file: &Path, text: &str) -> Result<(), String> {
    if file.to_str().is_none() {
        return Err("its name is not UTF-8".to_owned());
    }
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o644).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let text: String = text.chars().map(|it| if it.is_control() { '?' } else { it }).collect();
    // A single call, as the library writes: other processes append to the file as well.
    let line = format!("anyring[{}]: {text}\n", std::process::id());
    let written = options.open(file).and_then(|mut file| file.write(line.as_bytes()));
    match written.map_err(|error| errno::of(&error))? {
        bytes if bytes == line.len() => Ok(()),
        _ => Err("no space left on device".to_owned()),
    }
}
