//! Links `anyring-guest` as a static-pie executable, in whatever way the rest of the workspace is built.

use std::env;
use std::path::Path;

/// The libraries for which the linker is asked, as shared ones: each gets a linker script of that name which leads to the
/// archive. The feature crt-static would do the same, but only by flags that other crates of the workspace cannot be built
/// with.
const SHARED: [&str; 8] = ["c", "m", "rt", "pthread", "util", "dl", "gcc_s", "gcc"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if (target("OS"), target("ARCH"), target("ENV")) != ("linux".into(), "x86_64".into(), "gnu".into()) {
        let target = env::var("TARGET").unwrap_or_default();
        println!("cargo::error=anyring-guest is for x86-64 Linux, linked with glibc's archives, not for {target}");
        return;
    }
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for library in SHARED {
        let archive = match library {
            "gcc_s" => "libgcc_eh.a".to_owned(),
            other => format!("lib{other}.a"),
        };
        let script = Path::new(&out).join(format!("lib{library}.so"));
        std::fs::write(&script, format!("INPUT(-l:{archive})\n")).expect("write a linker script");
    }
    // The program break is the guest's: glibc's malloc calls a function of ours instead (src/start.rs).
    for argument in ["-static-pie", "-Wl,--wrap=__sbrk"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-L{out}");
}
