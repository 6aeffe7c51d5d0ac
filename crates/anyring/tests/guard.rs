//! The guard's verdicts, with any server. `scripts/embedding.sh` also runs this where io_uring is refused.

use anyring::{Guard, Server};
use io_uring::IoUring;
use std::panic::catch_unwind;

/// The cases are in one test, since rings are counted over all threads.
#[test]
fn a_test_without_a_ring_fails_where_anyring_serves() {
    let guard = Guard::new();
    let server = guard.server();
    IoUring::new(4).expect("a ring");
    drop(guard);
    let fell_back = catch_unwind(|| drop(Guard::new()));
    assert_eq!(fell_back.is_err(), server == Server::Anyring);
    // The guard does not hide a failing test's own panic with a second one.
    let printed = catch_unwind(|| {
        let _guard = Guard::new();
        panic!("its own");
    });
    assert_eq!(printed.expect_err("it panicked").downcast_ref::<&str>(), Some(&"its own"));
    assert_eq!(anyring::install(), Ok(server));
}

/// The program's panic hook gets the program's own panics.
#[test]
fn panics_of_the_program_reach_its_hook() {
    let output = std::process::Command::new(std::env::current_exe().expect("its path"))
        .args(["--exact", "panics_aloud", "--ignored", "--nocapture"])
        .output()
        .expect("start");
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("guard.rs") && printed.contains("heard"), "{printed}");
}

#[test]
#[ignore = "of the test above"]
fn panics_aloud() {
    panic!("heard");
}
