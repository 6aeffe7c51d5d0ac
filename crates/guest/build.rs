//! Links `anyring-guest` as a static-pie executable, in whatever way the rest of the workspace is built.

use std::env;
use std::path::Path;

/// The libraries that the standard library and the engine ask the linker for, as shared ones.
const SHARED: [&str; 8] = ["c", "m", "rt", "pthread", "util", "dl", "gcc_s", "gcc"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    for library in SHARED {
        let archive = match library {
            "gcc_s" => "libgcc_eh.a".to_owned(),
            other => format!("lib{other}.a"),
        };
        let script = Path::new(&out).join(format!("lib{library}.so"));
        std::fs::write(&script, format!("INPUT(-l:{archive})\n")).expect("write a linker script");
    }
    for argument in ["-static-pie", "-Wl,--wrap=__sbrk"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-L{out}");
}
