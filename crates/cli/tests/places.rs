//! Places in programs: the function, source file and line that `anyring chaos` and `anyring check --lint` report.

mod common;

use common::{anyring, chaos_program, library, output, stderr};
use std::process::Command;

/// Submits a read twice with one user_data, in a function whose name is mangled.
const TWICE: &str = r#"
#include <liburing.h>
#include <unistd.h>
namespace app {
__attribute__((noinline)) void read_twice(io_uring *ring, int fd, char *data) {
    for (int at = 0; at < 2; at++) {
        io_uring_sqe *sqe = io_uring_get_sqe(ring);
        io_uring_prep_read(sqe, fd, data + at, 1, 0);
        sqe->user_data = 7;
    }
    io_uring_submit(ring);
    asm volatile("");
}
}
int main() {
    io_uring ring;
    int ends[2];
    char data[2];
    if (io_uring_queue_init(8, &ring, 0) < 0 || pipe(ends) < 0) return 2;
    app::read_twice(&ring, ends[0], data);
    if (write(ends[1], "ab", 2) != 2) return 2;
    for (int at = 0; at < 2; at++) {
        io_uring_cqe *cqe;
        if (io_uring_wait_cqe(&ring, &cqe) < 0) return 2;
        io_uring_cqe_seen(&ring, cqe);
    }
    io_uring_queue_exit(&ring);
}
"#;

#[test]
fn a_place_has_its_function_and_line_as_far_as_the_file_has_them() {
    if chaos_program().is_none() || Command::new("c++").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no C++ compiler");
    }
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [source, twice] = ["twice.cc", "twice"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&source, TWICE).expect("write");
    let frame = |flag: &str| {
        let built = output(Command::new("c++").args(["-O1", flag, &source, "-o", &twice, "-luring"]));
        assert!(built.status.success(), "{}", stderr(&built));
        let said = stderr(&output(&mut anyring(&["check", "--lint", "--", &twice])));
        let frame = said.lines().find_map(|line| line.split_once("--lint:     at "));
        frame.unwrap_or_else(|| panic!("no frame: {said}")).1.to_owned()
    };
    let function = "app::read_twice(io_uring*, int, char*)";
    assert_eq!(frame("-g"), format!("{function} ({source}:11)"));
    assert!(frame("-g0").starts_with(&format!("{function} ({twice}+0x")), "{}", frame("-g0"));
    assert!(frame("-s").starts_with(&format!("{twice}+0x")), "{}", frame("-s"));
}
