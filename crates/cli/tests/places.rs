//! Places in programs: the function, source file and line that `anyring chaos`, `anyring check --lint` and
//! `anyring trace` report.

mod common;

use common::{anyring, chaos_program, library, output, stderr, stdout};
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
        let built =
            output(Command::new("c++").args(["-O1", "-Wl,--build-id", flag, &source, "-o", &twice, "-luring"]));
        assert!(built.status.success(), "{}", stderr(&built));
        let printed = stderr(&output(&mut anyring(&["check", "--lint", "--", &twice])));
        let frame = printed.lines().find_map(|line| line.split_once("--lint:     at "));
        frame.unwrap_or_else(|| panic!("no frame: {printed}")).1.to_owned()
    };
    let function = "app::read_twice(io_uring*, int, char*)";
    assert_eq!(frame("-g"), format!("{function} ({source}:11)"));
    // Debug information in a file apart, as distributions have it. A file of another build does not count.
    let apart = |of: &str| {
        frame("-g");
        let link = "objcopy --strip-all --add-gnu-debuglink=twice.debug twice";
        let script = format!(
            "c++ -O2 -g -Wl,--build-id twice.cc -o other -luring && objcopy --only-keep-debug {of} twice.debug && {link}"
        );
        let done = output(Command::new("sh").args(["-c", &script]).current_dir(folder.path()));
        assert!(done.status.success(), "{}", stderr(&done));
        let said = stderr(&output(&mut anyring(&["check", "--lint", "--", &twice])));
        said.lines().find_map(|line| line.split_once("--lint:     at ")).expect("a frame").1.to_owned()
    };
    assert_eq!(apart("twice"), format!("{function} ({source}:11)"));
    assert!(apart("other").starts_with(&format!("{twice}+0x")), "{}", apart("other"));
    assert!(frame("-g0").starts_with(&format!("{function} ({twice}+0x")), "{}", frame("-g0"));
    assert!(frame("-s").starts_with(&format!("{twice}+0x")), "{}", frame("-s"));
}

/// Calls a function from code that was generated, and describes the code in a perf map. Prints its process's number.
const GENERATES: &str = r#"
#define _GNU_SOURCE
#include <liburing.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
/* push rbp; mov rbp, rsp; call rdi; pop rbp; ret */
static const unsigned char code[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };
#else
/* stp x29, x30, [sp, -16]!; mov x29, sp; blr x0; ldp x29, x30, [sp], 16; ret */
static const unsigned code[] = { 0xa9bf7bfd, 0x910003fd, 0xd63f0000, 0xa8c17bfd, 0xd65f03c0 };
#endif
static struct io_uring ring;
static int ends[2];
__attribute__((noinline)) static void read_twice(void) {
    static char data[2];
    for (int at = 0; at < 2; at++) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
        io_uring_prep_read(sqe, ends[0], data + at, 1, 0);
        sqe->user_data = 7;
    }
    io_uring_submit(&ring);
    __asm__ volatile("");
}
int main(int count, char **words) {
    char name[64];
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || io_uring_queue_init(8, &ring, 0) < 0 || pipe(ends) < 0) return 2;
    memcpy(page, code, sizeof code);
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    __builtin___clear_cache(page, (char *)page + sizeof code);
    if (count > 1) {
        snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
        FILE *map = fopen(name, "w");
        fprintf(map, "%lx %zx of another time\n%lx %zx %s\n", (long)page, sizeof code, (long)page, sizeof code, words[1]);
        fclose(map);
    }
    printf("%d\n", getpid());
    fflush(stdout);
    ((void (*)(void (*)(void)))page)(read_twice);
    if (write(ends[1], "ab", 2) != 2) return 2;
    for (int at = 0; at < 2; at++) {
        struct io_uring_cqe *cqe;
        if (io_uring_wait_cqe(&ring, &cqe) < 0) return 2;
        io_uring_cqe_seen(&ring, cqe);
    }
    io_uring_queue_exit(&ring);
}
"#;

#[test]
fn generated_code_has_the_names_of_its_perf_map() {
    if chaos_program().is_none() {
        return;
    }
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [source, program] = ["generates.c", "generates"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&source, GENERATES).expect("write");
    let built = output(Command::new("cc").args([
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        &source,
        "-o",
        &program,
        "-luring",
    ]));
    assert!(built.status.success(), "{}", stderr(&built));
    let frames = |words: &[&str]| {
        let run = output(&mut anyring(&[&["check", "--lint", "--", &program], words].concat()));
        let map = format!("/tmp/perf-{}.map", stdout(&run).trim());
        assert_eq!(std::fs::remove_file(&map).is_ok(), !words.is_empty(), "{map}: {}", stderr(&run));
        let printed = stderr(&run);
        printed
            .lines()
            .filter_map(|line| line.split_once("--lint:     at "))
            .map(|line| line.1.to_owned())
            .collect()
    };
    let is_main = |frame: &str| frame.starts_with(&format!("main ({source}:"));
    for (name, shown) in [
        ("py::work:/app/work.py", "work (/app/work.py)"),
        ("LazyCompile:*work /app/main.js:7:9", "work (/app/main.js:7:9)"),
        ("JS:~ file:///app/main.mjs:1:1", "(anonymous) (file:///app/main.mjs:1:1)"),
        ("work", "work"),
    ] {
        let frames: Vec<String> = frames(&[name]);
        assert!(frames[0].starts_with("read_twice ("), "{frames:?}");
        assert!(frames[1] == shown && is_main(&frames[2]), "{frames:?}");
    }
    // Without a map the frames end there.
    let frames: Vec<String> = frames(&[]);
    assert!(frames.len() == 1 && frames[0].starts_with("read_twice ("), "{frames:?}");
}

/// Submits 30,000 NOPs in one function, and 10,000 in another, one in a call.
const NOPS: &str = r#"
#include <liburing.h>
namespace app {
__attribute__((noinline)) void often(io_uring *ring) {
    io_uring_prep_nop(io_uring_get_sqe(ring));
    io_uring_submit(ring);
    asm volatile("");
}
__attribute__((noinline)) void seldom(io_uring *ring) {
    io_uring_prep_nop(io_uring_get_sqe(ring));
    io_uring_submit(ring);
    asm volatile("");
}
}
int main() {
    io_uring ring;
    if (io_uring_queue_init(8, &ring, 0) < 0) return 2;
    for (int at = 0; at < 40000; at++) {
        io_uring_cqe *cqe;
        at % 4 ? app::often(&ring) : app::seldom(&ring);
        if (io_uring_wait_cqe(&ring, &cqe) < 0) return 2;
        io_uring_cqe_seen(&ring, cqe);
    }
}
"#;

#[test]
fn a_trace_says_where_requests_were_submitted() {
    if chaos_program().is_none() || Command::new("c++").arg("--version").output().is_err() {
        return eprintln!("skipped: there is no C++ compiler");
    }
    library();
    let folder = tempfile::tempdir().expect("a folder");
    let [source, program, recording] =
        ["nops.cc", "nops", "trace.rec"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&source, NOPS).expect("write");
    let built = output(Command::new("c++").args(["-O1", "-g", &source, "-o", &program, "-luring"]));
    assert!(built.status.success(), "{}", stderr(&built));
    let trace = |form: &[&str]| {
        let words = [&["trace", "--backend", "user"], form, &["--", &program]].concat();
        let run = output(&mut anyring(&words));
        assert!(run.status.success(), "{}", stderr(&run));
        stderr(&run)
    };
    let lines = [
        format!("at app::often(io_uring*) ({source}:6): 7"),
        format!("at app::seldom(io_uring*) ({source}:11): 2"),
    ];
    // In the table, and in the finding about the ring. What tracing costs on a busy machine may hide the finding.
    let text = trace(&[]);
    let times = 1 + usize::from(text.contains("one call (io_uring_submit_and_wait)"));
    for line in &lines {
        assert_eq!(text.matches(line).count(), times, "{text}");
    }
    let report: serde_json::Value = serde_json::from_str(&trace(&["--json"])).expect("JSON");
    let found = report["findings"].as_array().expect("a list").iter().map(|finding| &finding["places"]);
    for places in found.chain([&report["rings"][0]["kinds"][0]["places"]]) {
        assert_eq!(places[0]["at"][0], format!("app::often(io_uring*) ({source}:6)"), "{report}");
        assert!(places[0]["at"][1].as_str().is_some_and(|main| main.starts_with("main (")), "{report}");
        let percent = places[0]["percent"].as_f64().expect("a share");
        assert!((70.0..80.0).contains(&percent), "{percent}");
    }
    assert!(!trace(&["--events"]).contains("place:"), "an event is what happened on a ring");
    trace(&["--record", &recording]);
    let later = stdout(&output(&mut anyring(&["report", &recording])));
    assert!(lines.iter().all(|line| later.contains(line)), "{later}");
}
