//! The commands of `docs/programs/` and `docs/debuggers.md`, run as they are written, where io_uring is refused.
//!
//! What a page shows between "```sh" and "```" is one script, in an empty folder. It leaves the program's counters in the
//! file `stats`.

use anyring_e2e::postgres::Programs;
use anyring_e2e::{cases, programs, stage::on_kernel, stage::Program, Environment, Outcome, Refusal, Stage};
use anyring_e2e::{Statistics, User};
use rustix::process::{kill_process_group, Pid, Signal};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    // The users of `make e2e`: PostgreSQL refuses to run as root, smbd as any other user.
    let ordinary = [Environment { refusal: Refusal::Docker, user: User::Ordinary }];
    let caller = [Environment::of_caller(Refusal::NoAio)];
    let cases = cases![fio, node, plocate, postgresql, qemu, tokio_uring];
    anyring_e2e::cases::run_all(&[
        (&ordinary, &cases),
        (&caller, &cases![debuggers, mariadb, netty, samba, tigerbeetle, tigerbeetle_in_node]),
    ])
}

/// Returns true if these programs are in PATH or where root has them. Prints the reason if one is not.
fn installed(page: &str, names: &[&str]) -> bool {
    let path = std::env::var("PATH").expect("PATH") + SUPERUSERS;
    let missing = names.iter().find(|name| !path.split(':').any(|folder| Path::new(folder).join(name).is_file()));
    if let Some(name) = missing {
        println!("skipped: the commands of {page}: no {name} here");
    }
    missing.is_none()
}

/// The folders, after those of PATH, in which Debian has programs that only administrators use.
const SUPERUSERS: &str = ":/usr/sbin:/sbin";

/// The blocks of commands of one page in docs/.
fn blocks(page: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let blocks = text.split("```sh\n").skip(1).map(|rest| rest.split("```").next().expect("a block").to_owned());
    let blocks: Vec<String> = blocks.collect();
    let served = |block: &String| block.contains("anyring run --stats stats -- ");
    assert!(!blocks.is_empty() && blocks.iter().all(served), "{page} has a block without such a command");
    blocks
}

/// Runs all of a page's commands as one script.
fn runs_as_written(page: &str, stage: &Stage, folders: &[PathBuf], minimum: &[(&str, u64)]) -> Outcome {
    runs(&blocks(page).concat(), stage, folders, minimum)
}

/// Runs a script, with the programs of `folders` before those of PATH; each command must end well. Asserts that the engine
/// completed at least these requests.
fn runs(script: &str, stage: &Stage, folders: &[PathBuf], minimum: &[(&str, u64)]) -> Outcome {
    std::fs::write(stage.file("page.sh"), script).expect("write the script");
    let anyring = stage.readable(&programs::anyring());
    stage.readable(&programs::library());
    let ours = anyring.parent().expect("a folder").to_owned();
    let mut path: Vec<String> = Vec::new();
    path.extend(folders.iter().chain([&ours]).map(|folder| folder.to_str().expect("UTF-8").to_owned()));
    path.push(std::env::var("PATH").expect("PATH") + SUPERUSERS);
    let shell = Program::new("sh").args(["-eu", "page.sh"]).env("PATH", &path.join(":"));
    if on_kernel() {
        return stage.plain(&shell).succeeded();
    }
    let outcome = stage.deny(&shell).succeeded();
    Statistics::read(&stage.file("stats")).assert_served(stage.environment().refusal.errno(), minimum);
    outcome
}

/// Runs each block, which uses one tool. A block is left out where its tool is missing.
fn debuggers(environment: Environment) {
    let page = "debuggers.md";
    let client = programs::client("nop");
    for block in blocks(page) {
        let tools = ["cc", "gdb", "perf", "strace", "valgrind"];
        let has = |tool: &&&str| block.split_whitespace().any(|word| word == **tool);
        let tools: Vec<&str> = tools.iter().filter(has).copied().collect();
        assert_eq!(tools.len(), 1, "one tool: {block}");
        let stage = Stage::new(environment);
        if installed(page, &tools) && may_be_used(page, &stage, tools[0]) {
            symlink(stage.readable(&client), stage.file("app")).expect("a link");
            put(&stage, "nop.c", "app.c");
            let outcome = runs(&block, &stage, &[], &[("NOP", 1000)]);
            assert!(outcome.stdout.contains("completions verified"), "{outcome}");
            // Reports of sanitizers and of Memcheck, which say nothing of a program without defects.
            let silent = ["cc", "valgrind"].contains(&tools[0]);
            assert!(!silent || outcome.stderr.is_empty(), "{outcome}");
            let seen = ["io_uring_submit ()", "one_nop ("].iter().all(|frame| outcome.stdout.contains(frame));
            assert!(tools[0] != "gdb" || seen, "the program's frames behind ours: {outcome}");
        }
    }
}

/// Returns true if a tool works on a program that has no ring. Containers refuse ptrace(2) and perf_event_open(2).
fn may_be_used(page: &str, stage: &Stage, tool: &str) -> bool {
    let arguments: &[&str] = match tool {
        "gdb" => &["-batch", "-return-child-result", "-ex", "run", "true"],
        "perf" => &["record", "-q", "-o", "trial", "true"],
        "strace" => &["-o", "trial", "true"],
        _ => return true,
    };
    let outcome = stage.deny(&Program::new(tool).args(arguments));
    if !outcome.status.success() {
        println!("skipped: the commands of {page} for {tool}: it does not work here: {}", outcome.stderr.trim());
    }
    outcome.status.success()
}

fn fio(environment: Environment) {
    let stage = Stage::new(environment);
    let outcome = runs_as_written("programs/fio.md", &stage, &[], &[("READ", 1), ("WRITE", 1)]);
    assert!(outcome.stdout.contains("err= 0"), "{outcome}");
}

fn qemu(environment: Environment) {
    let stage = Stage::new(environment);
    let outcome = runs_as_written("programs/qemu.md", &stage, &[], &[("WRITEV", 4096), ("READV", 1)]);
    assert!(!outcome.stdout.contains("verification failed"), "{outcome}");
}

fn node(environment: Environment) {
    let stage = Stage::new(environment);
    let folder = stage.readable(&programs::node()).parent().expect("a folder").to_owned();
    let outcome = runs_as_written("programs/node.md", &stage, &[folder], &[("OPENAT", 2), ("WRITEV", 2)]);
    assert!(outcome.stdout.contains("1000000\n"), "{outcome}");
}

fn plocate(environment: Environment) {
    let page = "programs/plocate.md";
    if installed(page, &["plocate", "updatedb.plocate"]) {
        let stage = Stage::new(environment);
        let outcome = runs_as_written(page, &stage, &[], &[("READV", 4)]);
        assert!(outcome.stdout.contains("/tree/some/needle\n"), "{outcome}");
    }
}

fn tokio_uring(environment: Environment) {
    let stage = Stage::new(environment);
    symlink(stage.readable(&programs::client("tokio-uring")), stage.file("app")).expect("a link");
    let outcome = runs_as_written("programs/tokio-uring.md", &stage, &[], &[("WRITE", 256), ("READ", 256)]);
    assert!(outcome.stdout.contains("checksums equal"), "{outcome}");
}

fn mariadb(environment: Environment) {
    let usr = match programs::mariadb() {
        Ok(usr) => usr,
        Err(reason) => return println!("skipped: the commands of programs/mariadb.md: {reason}"),
    };
    let stage = Stage::new(environment);
    // MariaDB's programs are not installed: options name the folders of their libraries and messages.
    let [libraries, messages] = ["lib/x86_64-linux-gnu", "share/mysql"].map(|below| usr.join(below));
    let folder = stage.file("programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, program, options) in [
        ("mariadb", "bin/mariadb", String::new()),
        ("mariadbd", "sbin/mariadbd", format!("--lc-messages-dir={}", messages.display())),
    ] {
        let (libraries, program) = (libraries.display(), usr.join(program));
        let text = format!("#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {} \"$@\" {options}\n", program.display());
        std::fs::write(folder.join(name), text).expect("write");
        let executable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.join(name), executable).expect("chmod");
    }
    let outcome = runs_as_written("programs/mariadb.md", &stage, &[folder], &[("WRITEV", 10)]);
    assert!(outcome.stdout.contains("InnoDB: Using io_uring") && outcome.stdout.contains("20000\n"), "{outcome}");
}

/// A file of `clients/` under the name that the page has for it.
fn put(stage: &Stage, client: &str, name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(client);
    std::fs::copy(source, stage.file(name)).expect("copy");
}

fn netty(environment: Environment) {
    let page = "programs/netty.md";
    let jars = match programs::fetched("netty") {
        Ok(jars) => jars,
        Err(reason) => return println!("skipped: the commands of {page}: {reason}"),
    };
    if installed(page, &["java"]) {
        let stage = Stage::new(environment);
        put(&stage, "netty/Echo.java", "Echo.java");
        symlink(jars, stage.file("jars")).expect("a link");
        let minimum = [("ACCEPT", 1), ("CONNECT", 1), ("RECV", 2), ("SEND", 2)];
        let outcome = runs_as_written(page, &stage, &[], &minimum);
        assert!(outcome.stdout.contains("4194304 bytes came back as they were sent"), "{outcome}");
    }
}

fn tigerbeetle(environment: Environment) {
    let page = "programs/tigerbeetle.md";
    let library = match programs::fetched("tigerbeetle") {
        Ok(library) => library,
        Err(reason) => return println!("skipped: the commands of {page}: {reason}"),
    };
    let stage = Stage::new(environment);
    put(&stage, "tigerbeetle.py", "app.py");
    // Where Python looks first: beside the script.
    symlink(library.join("tigerbeetle"), stage.file("tigerbeetle")).expect("a link");
    let outcome = runs_as_written(page, &stage, &[], &[("CONNECT", 1)]);
    assert!(outcome.stdout.contains("the client sent 512 bytes"), "{outcome}");
}

/// Node has threads that block all signals before it loads the client, whose calls are trapped.
fn tigerbeetle_in_node(environment: Environment) {
    let module = match programs::fetched("tigerbeetle-node") {
        Ok(module) => module,
        Err(reason) => return println!("skipped: TigerBeetle's client in Node: {reason}"),
    };
    let stage = Stage::new(environment);
    let folder = stage.readable(&programs::node()).parent().expect("a folder").to_owned();
    put(&stage, "tigerbeetle.js", "app.js");
    symlink(module.join("node_modules"), stage.file("node_modules")).expect("a link");
    let outcome = runs("anyring run --stats stats -- node app.js", &stage, &[folder], &[("CONNECT", 1)]);
    assert!(outcome.stdout.contains("the client sent 512 bytes"), "{outcome}");
}

fn postgresql(environment: Environment) {
    let programs = match Programs::place() {
        Ok(programs) => programs,
        Err(reason) => return println!("skipped: the commands of programs/postgresql.md: {reason}"),
    };
    let stage = Stage::new(environment);
    let folder = programs.bin().to_owned();
    let outcome = runs_as_written("programs/postgresql.md", &stage, &[folder], &[("READ", 10)]);
    assert!(outcome.stdout.contains("io_uring") && outcome.stdout.contains("45000150000"), "{outcome}");
}

fn samba(environment: Environment) {
    let page = "programs/samba.md";
    if environment.user != User::Root {
        return println!("skipped: the commands of {page}: smbd wants to be root");
    }
    if !installed(page, &["smbd", "smbclient"]) {
        return;
    }
    let stage = Stage::new(environment);
    let data = stage.make_file("data", 7, 4 << 20);
    let folder = stage.directory().display();
    let states = ["private dir", "lock directory", "state directory", "cache directory", "pid directory"];
    let states: String = states.iter().map(|name| format!("  {name} = {folder}/state\n")).collect();
    let text = format!(
        "[global]\n  smb ports = 4450\n  interfaces = lo\n  bind interfaces only = yes\n  map to guest = Bad User\n\
         {states}  ncalrpc dir = {folder}/state/ncalrpc\n[share]\n  path = {folder}/share\n  guest ok = yes\n  \
         read only = no\n  vfs objects = io_uring\n"
    );
    std::fs::write(stage.file("smb.conf"), text).expect("write");
    let everybody = std::fs::Permissions::from_mode(0o777);
    for name in ["state", "share"] {
        std::fs::create_dir(stage.file(name)).expect("a folder");
    }
    // The guest is another user.
    std::fs::set_permissions(stage.file("share"), everybody.clone()).expect("chmod");
    std::fs::set_permissions(stage.directory(), everybody).expect("chmod");
    let _server = Smbd(stage.file("state/smbd.pid"));
    runs_as_written(page, &stage, &[], &[("READV", 1), ("WRITEV", 1)]);
    let [sent, kept] = [data, stage.file("share/data")].map(|file| std::fs::read(file).expect("read"));
    assert!(sent == kept, "what the server wrote");
}

/// The server, found by its file with the process's id, since it leaves the script's process group. If the script
/// failed, the server is still there, and is then killed.
struct Smbd(PathBuf);

impl Drop for Smbd {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let text = std::fs::read_to_string(&self.0).unwrap_or_default();
        if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
            _ = kill_process_group(pid, Signal::KILL);
        }
    }
}
