//! liburing programs with the installed library, with the preloaded libanyring.so and with the drop-in, all on the
//! kernel's io_uring. Their output must be the same. Other tests check the layout and names of the exported symbols.

mod common;

use anyring::liburing::layout::{Cq, Ring, Sq};
use anyring_xtask::artifacts::Artifacts;
use anyring_xtask::dropin::{self, Tools};
use anyring_xtask::symbols;
use common::running::output;
use common::{built, no_liburing, no_reference, scratch, skip, text};
use std::collections::BTreeMap;
use std::fs;
use std::mem::offset_of;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The libraries under test: this build's libanyring.so, and the drop-ins linked from it.
struct Libraries {
    built: Artifacts,
    dropins: Vec<PathBuf>,
}

impl Libraries {
    fn dropin_directory(&self) -> &Path {
        self.dropins[0].parent().expect("a drop-in has a directory")
    }
}

fn libraries() -> &'static Libraries {
    static LIBRARIES: OnceLock<Libraries> = OnceLock::new();
    LIBRARIES.get_or_init(|| {
        let built = built();
        let dropins = dropin::link(&built, &Tools::here(), &scratch("dropin")).expect("link the drop-ins");
        Libraries { built, dropins }
    })
}

/// Returns the reason why C programs that use liburing cannot be built or run here, if there is one.
fn obstacle() -> Option<&'static str> {
    no_reference().or_else(no_liburing)
}

/// Compiles `tests/c/NAME.c`.
fn compile(name: &str, arguments: &[&str]) -> PathBuf {
    let program = scratch("liburing").join(name);
    common::compile(name, &program, arguments);
    program
}

/// Runs a program with the environment variables in `environment`, which choose the library. Returns its output.
fn run(program: &Path, arguments: &[&Path], environment: &[(&str, &Path)]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env("ANYRING_BACKEND", "kernel").envs(environment.iter().copied());
    let output = output(&mut command);
    assert!(output.status.success(), "{program:?} with {environment:?}: {}", text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{program:?} with {environment:?} wrote to stderr");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `tests/c/NAME.c` with each of the three libraries. All outputs must be the same.
fn same_three_ways(name: &str) {
    if let Some(reason) = obstacle() {
        return skip(name, reason);
    }
    let program = compile(name, &["-luring"]);
    let native = run(&program, &[], &[]);
    assert!(native.lines().count() > 20, "the program did little: {native}");
    let preloaded = run(&program, &[], &[("LD_PRELOAD", &libraries().built.shared)]);
    assert_eq!(native, preloaded, "{name}: natively (left) and preloaded (right)");
    let replaced = run(&program, &[], &[("LD_LIBRARY_PATH", libraries().dropin_directory())]);
    assert_eq!(native, replaced, "{name}: natively (left) and with the drop-in (right)");
}

#[test]
fn queues_files_and_registrations_behave_alike() {
    same_three_ways("basic");
}

#[test]
fn waits_with_and_without_ext_arg_behave_alike() {
    same_three_ways("waits");
}

/// Returns the running kernel's major and minor version.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel's release");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// liburing.so.1 has another layout of `struct io_uring`, which the library must not touch. The program's own liburing
/// is served through the system calls that it makes.
#[test]
fn programs_of_liburing_so_1_use_its_own_functions() {
    if let Some(reason) = no_reference() {
        return skip("older", reason);
    }
    let folder = scratch("older");
    let library = folder.join("liburing.so.1");
    common::compile("older", &library, &["-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname,liburing.so.1"]);
    let program = folder.join("older");
    common::compile("older", &program, &[library.to_str().expect("a readable path")]);
    let run = |backend: &Path, preloaded: &Path| {
        let environment = [
            ("LD_LIBRARY_PATH", folder.as_path()),
            ("ANYRING_BACKEND", backend),
            ("LD_PRELOAD", preloaded),
            ("LD_BIND_NOW", Path::new("1")),
        ];
        run(&program, &[], &environment)
    };
    let (nothing, ours) = (Path::new(""), libraries().built.shared.as_path());
    let [kernel, engine] = ["kernel", "user"].map(Path::new);
    assert_eq!(run(kernel, nothing), "0 wrong, a ring of anon_inode:\n");
    assert_eq!(run(kernel, ours), "0 wrong, a ring of anon_inode:\n");
    assert_eq!(run(engine, ours), "0 wrong, a ring of socket:\n");
}

#[test]
fn functions_newer_than_the_header_answer_as_liburing_does() {
    if let Some(reason) = obstacle() {
        return skip("newer", reason);
    }
    if kernel() < (6, 18) {
        return skip("newer", "the expected results are those of Linux 6.18");
    }
    let libraries = libraries();
    let program = compile("newer", &[libraries.dropins[0].to_str().expect("a readable path")]);
    let dropin = ("LD_LIBRARY_PATH", libraries.dropin_directory());
    assert_eq!(run(&program, &[], &[dropin]), "0 unexpected\n");
    assert_eq!(run(&program, &[], &[dropin, ("LD_PRELOAD", &libraries.built.shared)]), "0 unexpected\n");
}

#[test]
fn exported_preparations_fill_sqes_as_the_header_does() {
    if let Some(reason) = obstacle() {
        return skip("ffi", reason);
    }
    let program = compile("ffi", &["-ldl"]);
    for library in [&libraries().dropins[1], &libraries().built.shared] {
        let printed = run(&program, &[library], &[]);
        assert!(printed.ends_with(" compared, 0 differ\n"), "{printed}");
    }
}

#[test]
fn struct_io_uring_is_the_installed_header_s() {
    if let Some(reason) = obstacle() {
        return skip("layout", reason);
    }
    let printed = run(&compile("layout", &[]), &[], &[]);
    let theirs: BTreeMap<&str, usize> = printed
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(field, number)| (field, number.parse().expect("a number")))
        .collect();
    macro_rules! ours {
        ($($c_name:literal = $type:ty { $($field:ident),* })*) => { BTreeMap::from([$(
            ($c_name, size_of::<$type>()),
            $((concat!($c_name, ".", stringify!($field)), offset_of!($type, $field)),)*
        )*]) };
    }
    let ours = ours! {
        "io_uring_sq" = Sq {
            khead, ktail, kring_mask, kring_entries, kflags, kdropped, array, sqes, sqe_head, sqe_tail, ring_sz,
            ring_ptr, ring_mask, ring_entries
        }
        "io_uring_cq" = Cq {
            khead, ktail, kring_mask, kring_entries, kflags, koverflow, cqes, ring_sz, ring_ptr, ring_mask,
            ring_entries
        }
        "io_uring" = Ring { sq, cq, flags, ring_fd, features, enter_ring_fd, int_flags }
    };
    assert_eq!(theirs, ours);
}

#[test]
fn every_library_exports_what_its_map_says() {
    let libraries = libraries();
    let mut complaints = symbols::check_preload(&libraries.built.shared).expect("read libanyring.so");
    complaints.extend(symbols::check_needed(&libraries.built.shared, symbols::OF_ANY_LIBC).expect("readelf"));
    complaints.extend(symbols::check_versions(&libraries.built.shared).expect("nm"));
    for library in &libraries.dropins {
        complaints.extend(symbols::check_dropin(library).expect("read a drop-in"));
        complaints.extend(symbols::check_needed(library, symbols::OF_GLIBC).expect("readelf"));
        complaints.extend(symbols::check_versions(library).expect("nm"));
    }
    match symbols::installed(&Tools::here(), "liburing.so.2").expect("ask cc") {
        Some(path) => complaints.extend(symbols::check_replaces(&libraries.dropins[0], &path).expect("read it")),
        None => skip("check_replaces", "liburing.so.2 is not installed (Debian: liburing2)"),
    }
    assert_eq!(complaints, Vec::<String>::new());
}

/// Builds a set-user-ID program of root that finds the drop-in by its own search path.
fn set_user_id_program(folder: &Path) -> PathBuf {
    let program = folder.join("secure");
    let libraries = libraries();
    for library in &libraries.dropins {
        fs::copy(library, folder.join(library.file_name().expect("a name"))).expect("copy the drop-in");
    }
    let runpath = format!("-Wl,-rpath,{}", folder.display());
    let library = folder.join(libraries.dropins[0].file_name().expect("a name"));
    common::compile("secure", &program, &[library.to_str().expect("a readable path"), &runpath]);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    program
}

#[test]
fn a_program_with_more_rights_than_its_caller_hears_no_variable() {
    const NAME: &str = "a_program_with_more_rights_than_its_caller_hears_no_variable";
    // SAFETY: takes no arguments.
    let reason =
        if unsafe { libc::geteuid() } == 0 { obstacle() } else { Some("only root can make such a program") };
    if let Some(reason) = reason {
        return skip(NAME, reason);
    }
    let folder = tempfile::tempdir().expect("a directory");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    let program = set_user_id_program(folder.path());
    let [log, stats] = ["log", "stats"].map(|name| folder.path().join(name));
    let run = |user: u32| {
        let mut command = Command::new(&program);
        command.uid(user).gid(user).env("ANYRING_BACKEND", "user").env("ANYRING_AIO", "user");
        text(&output(command.env("ANYRING_LOG", &log).env("ANYRING_STATS", &stats)))
    };
    let secure = run(65534);
    if secure.contains("not secure") {
        return skip(NAME, "the folder for temporary files is mounted nosuid");
    }
    assert!(secure.contains("secure: 0"), "{secure}");
    assert!(!log.exists() && !stats.exists(), "{secure}");
    // The same program is served if it gains no rights.
    let plain = run(0);
    assert!(plain.contains("not secure: 0") && stats.exists(), "{plain}");
}
