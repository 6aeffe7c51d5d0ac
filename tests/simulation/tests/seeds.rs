//! A few seeds, as `make simulation` runs many.

use std::process::Command;

fn run(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_anyring-simulation")).arg("run").args(words).output();
    let output = output.expect("run the simulation");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    printed
}

#[test]
fn a_seed_goes_the_same_way_each_time() {
    assert!(run(&["--seed", "0", "--runs", "8", "--twice"]).starts_with("8 runs"));
}
