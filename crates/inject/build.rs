//! Link settings of libanyring.so, and the targets that it refuses.

#[path = "stubs.rs"]
mod stubs;

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    let is_known = ["aarch64", "x86_64"].contains(&&*target("ARCH"));
    if !is_known || (target("OS"), target("ENV")) != ("linux".into(), "gnu".into()) {
        // cargo shows this one line and compiles nothing of the crate.
        println!(
            "cargo::error=libanyring.so is for x86-64 and aarch64 Linux with glibc, not for {}",
            env::var("TARGET").unwrap_or_default()
        );
        return;
    }
    // A program may dlopen and dlclose this library, but threads, signal handlers and call sites keep pointing into its
    // code. The build with mutations keeps itself mapped (src/raw/dlopen.rs), unless a mutation prevents that.
    if env::var_os("CARGO_FEATURE_MUTATIONS").is_none() || target("ARCH") != "x86_64" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    // This library's constructor runs before those of the program's other libraries, and before its .preinit_array.
    // These may make system calls by their own instructions (src/constructor.rs).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Programs that are linked with the library know it by this name. Its exported symbols have no version, so each
    // pre-empts all versions of another library's symbol.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libanyring.so.0");
    // The unwinder that stops panics is linked in. With the shared one, every program into which this library is
    // preloaded would load 50 % slower.
    println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
    // Only this linker describes the stubs by which other libraries are called (.plt) to unwinders. A thread that ends
    // may have been interrupted in one (src/unwind.rs).
    println!("cargo::rustc-cdylib-link-arg=-fuse-ld=bfd");
    // The library is linked with stubs instead of glibc's own libraries (stubs.rs). The system's libc.so is not used
    // either: that linker script also names glibc's loader. If the library needed the loader, every musl program that
    // inherits LD_PRELOAD would end at its start (src/musl.rs). The symbol that comes from the loader (__tls_get_addr)
    // stays undefined. At run time it is found in the loader, or in musl.
    println!("cargo::rerun-if-changed=stubs.rs");
    println!("cargo::rerun-if-changed=maps");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let maps = Path::new(env!("CARGO_MANIFEST_DIR")).join("maps");
    if let Err(error) = stubs::make(Path::new(&linker), &maps, &target("ARCH"), &out) {
        println!("cargo::error=cannot make what libanyring.so is linked with: {}", error.replace('\n', " "));
        return;
    }
    println!("cargo::rustc-cdylib-link-arg=-L{}", out.display());
}
