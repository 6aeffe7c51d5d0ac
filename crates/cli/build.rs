//! Links `anyring` as a static-pie executable, however the rest of the workspace is built. Also builds the program
//! with which doctor tries the preloaded library.

use std::env;
use std::path::Path;
use std::process::Command;

/// Libraries that the linker looks for as shared ones. Each gets a linker script of that name which leads to the
/// archive. The feature crt-static would do the same, but its flags would also apply to crates of the workspace that
/// cannot be built with them.
const SHARED: [&str; 8] = ["c", "m", "rt", "pthread", "util", "dl", "gcc_s", "gcc"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    let is_known = ["aarch64", "x86_64"].contains(&&*target("ARCH"));
    if !is_known || (target("OS"), target("ENV")) != ("linux".into(), "gnu".into()) {
        let target = env::var("TARGET").unwrap_or_default();
        println!(
            "cargo::error=anyring is for x86-64 and aarch64 Linux, linked with glibc's archives, not for {target}"
        );
        return;
    }
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for library in SHARED {
        let archives = match library {
            // glibc's archive calls functions of the compiler's, on aarch64 those for atomics and long doubles.
            "c" => "GROUP(-l:libc.a -l:libgcc.a -l:libgcc_eh.a)".to_owned(),
            "gcc_s" => "INPUT(-l:libgcc_eh.a)".to_owned(),
            other => format!("INPUT(-l:lib{other}.a)"),
        };
        let script = Path::new(&out).join(format!("lib{library}.so"));
        std::fs::write(&script, archives + "\n").expect("write a linker script");
    }
    // In a host the program break belongs to the guest, so glibc's malloc calls a function of this crate instead
    // (src/main.rs).
    for argument in ["-static-pie", "-Wl,--wrap=__sbrk"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-L{out}");
    if let Err(why) = make_trial(&Path::new(&out).join("trial")) {
        println!("cargo::error=cannot make what doctor tries the library by: {}", why.replace('\n', " "));
    }
}

/// Builds a dynamic program that needs only `syscall` from glibc, which every version has.
fn make_trial(program: &Path) -> Result<(), String> {
    const SOURCE: &str = "src/doctor/trial.c";
    println!("cargo::rerun-if-changed={SOURCE}");
    let compiler = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(compiler);
    command.args([
        "-O2",
        "-fPIE",
        "-pie",
        "-nostartfiles",
        "-fno-stack-protector",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-s",
    ]);
    // The functions of liburing are found in the preloaded library, or not at all.
    command.args(["-fuse-ld=bfd", "-Wl,-z,dynamic-undefined-weak", "-o"]).arg(program).arg(SOURCE);
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
