//! Finds the programs: anyring's in the target directory, the others in PATH.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// The repository's root.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/e2e/ is inside the repository")
}

/// The target directory that this test was built in: `TARGET/PROFILE/deps/TEST`.
fn target() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.ancestors().nth(3).expect("cargo puts tests three levels below its target directory").to_owned()
}

/// The `anyring` command of the release build, the one that users get. `make build` makes it.
///
/// # Panics
///
/// When it or the library beside it is missing.
pub fn anyring() -> PathBuf {
    let directory = target().join("release");
    for name in ["anyring", "libanyring.so"] {
        let file = directory.join(name);
        assert!(file.is_file(), "{} is missing: `make build` makes it", file.display());
    }
    directory.join("anyring")
}

/// The library that goes with [`anyring`].
pub fn library() -> PathBuf {
    anyring().with_file_name("libanyring.so")
}

/// True if everybody may reach and read this file. A folder must also let everybody enter it, and a program let
/// everybody execute it.
pub fn open_to_all(file: &Path) -> bool {
    let mode = |path: &Path| path.metadata().map_or(0, |metadata| metadata.mode());
    let wanted = if mode(file) & 0o100 != 0 { 0o5 } else { 0o4 };
    mode(file) & wanted == wanted && file.ancestors().skip(1).all(|above| mode(above) & 0o1 != 0)
}

/// One of the clients that `tests/e2e/clients/build.sh` builds, by its name there.
///
/// # Panics
///
/// When the build fails.
pub fn client(name: &str) -> PathBuf {
    client_or_reason(name).unwrap_or_else(|reason| panic!("{name}: {reason}"))
}

/// Builds and finds a client as [`client`] does, but returns an error that says which compiler is missing.
///
/// # Panics
///
/// When the build fails.
pub fn client_or_reason(name: &str) -> Result<PathBuf, String> {
    static BUILT: Mutex<BTreeMap<String, Result<PathBuf, String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let build = || {
        let out = target().join("e2e");
        let mut command = Command::new(root().join("tests/e2e/clients/build.sh"));
        by_script(command.arg(&out).arg(name), out.join(name))
    };
    built.entry(name.to_owned()).or_insert_with(build).clone()
}

/// Returns the program that a script builds. If the script cannot, it prints why and exits with 77.
fn by_script(command: &mut Command, program: PathBuf) -> Result<PathBuf, String> {
    let output = command.output().expect("run the script");
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match output.status.code() {
        Some(0) => Ok(program),
        Some(77) => Err(printed),
        _ => panic!("{command:?}: {}: {printed}{}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

/// fio, linked statically. The error is the reason why it is unavailable.
///
/// # Panics
///
/// When the build fails.
pub fn static_fio() -> Result<PathBuf, String> {
    let mut command = Command::new(root().join("scripts/static-fio.sh"));
    by_script(command.arg("build"), root().join(".build/fio/source/fio"))
}

/// Node 20: the machine's own or the one that `scripts/setup.sh` installed.
///
/// # Panics
///
/// When there is none.
pub fn node() -> PathBuf {
    let output = Command::new(root().join("scripts/node.sh")).arg("--path").output().expect("run node.sh");
    let node = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    assert!(node.is_file(), "no Node 20: `scripts/setup.sh` installs it");
    node
}

/// The folder of MariaDB's programs that `scripts/mariadb.sh` unpacked. The error is why there are none.
///
/// # Panics
///
/// When there is neither.
pub fn mariadb() -> Result<PathBuf, String> {
    let folder = root().join(".build/mariadb");
    if let Ok(reason) = std::fs::read_to_string(folder.join("unavailable")) {
        return Err(reason);
    }
    let programs = folder.join("root/usr");
    assert!(programs.is_dir(), "{} is missing: `make setup` makes it", programs.display());
    Ok(programs)
}

/// The folder in `.build/` that `scripts/setup.sh soak` fetches a program's libraries into. The error is why it is not there.
pub fn fetched(name: &str) -> Result<PathBuf, String> {
    let folder = root().join(".build").join(name);
    match folder.is_dir() {
        true => Ok(folder),
        false => Err(format!("{} is missing: `scripts/setup.sh soak` fetches it", folder.display())),
    }
}

/// Checks that Debian 11's programs are there, which `scripts/debian11.sh` fetched. The error is why they are not.
pub fn debian11() -> Result<(), String> {
    match std::fs::read_to_string(root().join(".build/debian11/unavailable")) {
        Ok(reason) => Err(reason),
        Err(_) => Ok(()),
    }
}

/// Puts them, with their glibc and libraries, into a folder.
///
/// # Panics
///
/// When they cannot be copied.
pub fn place_debian11(directory: &Path) {
    let output = Command::new(root().join("scripts/debian11.sh")).arg("place").arg(directory).output();
    let output = output.expect("run debian11.sh");
    assert!(output.status.success(), "debian11.sh place: {}", String::from_utf8_lossy(&output.stderr));
}

/// The script that Node runs.
pub fn node_script() -> PathBuf {
    root().join("tests/e2e/clients/node.js")
}
