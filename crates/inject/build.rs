//! Link settings of libanyring.so.

fn main() {
    // A program may dlopen and dlclose us, but threads, signal handlers and call sites keep pointing into our code.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
