//! The drop-ins: the code of libanyring.so with liburing's names and symbol versions.

use anyhow::{ensure, Context, Result};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "../../../inject/stubs.rs"]
mod stubs;

/// The results of one build of anyring-inject.
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

/// The programs that link and strip for one processor.
#[derive(Debug)]
pub struct Tools {
    processor: String,
    compiler: OsString,
    strip: OsString,
}

impl Tools {
    /// The tools for a target of rustc's. The compiler is cargo's linker for that target, else CC for this machine's
    /// processor, else the one of Debian's cross compilers.
    pub fn of(target: &str) -> Tools {
        let processor = target.split('-').next().unwrap_or_default().to_owned();
        let is_here = processor == std::env::consts::ARCH;
        let prefix = if is_here { String::new() } else { format!("{processor}-linux-gnu-") };
        let own = if is_here { std::env::var_os("CC") } else { None };
        let compiler = std::env::var_os(linker_variable(target)).or(own);
        let default = if is_here { "cc".to_owned() } else { format!("{prefix}gcc") };
        Tools {
            processor,
            compiler: compiler.unwrap_or_else(|| default.into()),
            strip: format!("{prefix}strip").into(),
        }
    }

    /// The tools for this machine.
    pub fn here() -> Tools {
        Tools::of(&format!("{}-unknown-linux-gnu", std::env::consts::ARCH))
    }

    /// Returns the compiler, which links.
    pub fn compiler(&self) -> &OsStr {
        &self.compiler
    }
}

/// Returns the name of cargo's environment variable for the linker of a target.
pub fn linker_variable(target: &str) -> String {
    format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"))
}

/// The libraries, each with its version map in `crates/inject/maps`.
pub const DROPINS: [(&str, &str); 3] =
    [("liburing.so.2", "liburing.map"), ("liburing-ffi.so.2", "liburing-ffi.map"), ("libaio.so.1", "libaio.map")];

/// The path of the version map of this name.
pub fn map_path(map: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../inject/maps").join(map)
}

/// Links the drop-ins into `out`, in the order of [`DROPINS`].
pub fn link(built: &Artifacts, tools: &Tools, out: &Path) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    // Not in `out`, which is a folder for LD_LIBRARY_PATH.
    let stubs = built.directory().join("stubs");
    fs::create_dir_all(&stubs).with_context(|| format!("create {}", stubs.display()))?;
    stubs::make(Path::new(&tools.compiler), &map_path(""), &tools.processor, &stubs).map_err(anyhow::Error::msg)?;
    let link = Link { compiler: tools.compiler.clone(), stubs };
    DROPINS.iter().map(|(name, map)| link_one(&link, &built.archive, &map_path(map), &out.join(name))).collect()
}

/// Writes the archive for programs that are linked with it into `out`. It lacks the sections that only debuggers
/// and compilers read, and so has a sixth of the size.
pub fn strip_archive(built: &Artifacts, tools: &Tools, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("create {}", out.display()))?;
    let mut strip = Command::new(&tools.strip);
    strip.args(["--strip-unneeded", "--enable-deterministic-archives"]);
    // Bitcode for link-time optimisation by rustc.
    strip.args(["--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    let output = strip.arg("-o").arg(out.join("libanyring.a")).arg(&built.archive).output().context("run strip")?;
    ensure!(output.status.success(), "strip libanyring.a: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The inputs of every link.
struct Link {
    compiler: OsString,
    /// The folder of the libraries that stand for glibc's.
    stubs: PathBuf,
}

fn link_one(link: &Link, archive: &Path, map: &Path, library: &Path) -> Result<PathBuf> {
    let name = library.file_name().unwrap_or_default().display();
    let mut cc = Command::new(&link.compiler);
    cc.arg("-shared").arg("-o").arg(library);
    cc.arg(format!("-Wl,--version-script={}", map.display())).arg(format!("-Wl,-soname,{name}"));
    // The engine's threads and signal handlers outlive a dlclose. Symbols are bound at once because a call may come
    // from a handler.
    cc.args(["-Wl,-z,nodelete", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,--gc-sections"]);
    // The whole archive, because nothing but the version map refers to the exported functions.
    cc.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    // The unwinder is linked in, as in libanyring.so.
    cc.arg("-L").arg(&link.stubs);
    cc.args(["-Wl,--as-needed", "-static-libgcc", "-lpthread", "-ldl", "-lc"]);
    let output = cc.output().context("run the C compiler to link")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "linking {name} failed:\n{errors}");
    Ok(library.to_owned())
}
