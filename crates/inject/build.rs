//! Link settings of libanyring.so.

fn main() {
    // A program may dlopen and dlclose us, but threads, signal handlers and call sites keep pointing into our code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The unwinder that stops panics is linked in: the shared one would cost every program that we are preloaded into
    // half as much again to load.
    println!("cargo:rustc-link-lib=static:-bundle=gcc_eh");
    println!("cargo:rerun-if-changed=build.rs");
}
