//! Runs the unit tests of `chaos/crash/disk.rs`. The command has a C `main` of its own, and so no unit tests.
#![allow(dead_code)] // the command uses the rest

#[path = "../src/chaos/crash/change.rs"]
mod change;
#[path = "../src/chaos/crash/disk.rs"]
mod disk;
#[path = "../src/chaos/crash/tree.rs"]
mod tree;
