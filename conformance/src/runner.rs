//! Runs each case in a forked child of its own, so that a crash or a hang is one failing case, and judges the results
//! against the list of known differences.
//!
//! The runner has one thread, so that a child may use everything after the fork.

use crate::case::{Case, Context, SKIP_STATUS};
use crate::evidence::Evidence;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long a case may take.
const LIMIT: Duration = Duration::from_secs(10);

/// How a case ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "outcome", content = "message", rename_all = "lowercase")]
pub enum Outcome {
    /// The claim held.
    Passed,
    /// It did not, or the case crashed or hung: what was seen.
    Failed(String),
    /// It failed once and then held each time that it was confirmed: what was seen. Neither proof nor refutation.
    Flaky(String),
    /// It could not be tried here: why.
    Skipped(String),
}

/// One case, with one flag set and one door.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Report {
    /// `topic::claim`.
    pub case: &'static str,
    /// The flag set's name; none for a case that chooses its own flags.
    pub flag_set: Option<&'static str>,
    /// `liburing`, `libc` or `raw`.
    pub door: String,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// How long it took, in milliseconds.
    pub elapsed_ms: u64,
    /// What it used of the interface the last time it ran; empty without a recording.
    #[serde(skip)]
    pub evidence: Evidence,
}

impl Report {
    /// `topic::claim[flag_set]@door`, without the parts that do not apply.
    pub fn name(&self) -> String {
        match self.flag_set {
            Some(set) => format!("{}[{set}]@{}", self.case, self.door),
            None => format!("{}@{}", self.case, self.door),
        }
    }
}

/// Runs one case once, in a directory of its own.
pub fn run(case: &Case, context: Context, directory: &std::path::Path) -> (Outcome, Duration) {
    let start = Instant::now();
    std::fs::create_dir_all(directory).expect("make the case's directory");
    let outcome = run_in(case, context, directory);
    if let Err(error) = std::fs::remove_dir_all(directory) {
        eprintln!("anyring-conformance: {}: {error}", directory.display());
    }
    (outcome, start.elapsed())
}

fn run_in(case: &Case, context: Context, directory: &std::path::Path) -> Outcome {
    let (mut output, input) = crate::sys::pipe_with(libc::O_NONBLOCK);
    std::io::stdout().flush().expect("write the report");
    // SAFETY: the runner has one thread, so the child's memory is consistent and it may run anything.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        in_child(case, context, directory, input);
    }
    drop(input);
    let hung = !wait_for_exit(child);
    let mut status = 0;
    // SAFETY: the child is ours and not reaped yet, so its number and its process group are still its own: only it
    // and what it forked are ended. `status` is one int.
    unsafe {
        libc::kill(-child, libc::SIGKILL);
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, &mut status, 0), child, "waitpid");
    }
    let mut text = Vec::new();
    // Nonblocking: something that the case left behind may still hold the other end.
    let _ = output.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    judge(status, hung, text)
}

fn judge(status: i32, hung: bool, text: String) -> Outcome {
    if hung {
        return Outcome::Failed(format!("still running after {LIMIT:?}; {text}"));
    }
    if libc::WIFSIGNALED(status) {
        return Outcome::Failed(format!("killed by signal {}; {text}", libc::WTERMSIG(status)));
    }
    match libc::WEXITSTATUS(status) {
        0 => Outcome::Passed,
        SKIP_STATUS if !text.is_empty() => Outcome::Skipped(text),
        SKIP_STATUS => Outcome::Failed("skipped without a reason".to_owned()),
        code if text.is_empty() => Outcome::Failed(format!("exit status {code}")),
        _ => Outcome::Failed(text),
    }
}

/// Waits until the child ended, without reaping it: whether it did within the limit.
fn wait_for_exit(child: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(child).expect("a process id");
    let process = match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::NOSYS) => return look_for_exit(pid), // before Linux 5.3
        Err(error) => panic!("pidfd_open: {error}"),
    };
    let limit = rustix::time::Timespec { tv_sec: LIMIT.as_secs() as i64, tv_nsec: 0 };
    let mut entries = [rustix::event::PollFd::from_borrowed_fd(process.as_fd(), rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut entries, Some(&limit)).expect("poll the child") == 1
}

/// [`wait_for_exit`] without pidfd_open(2): looks every millisecond.
fn look_for_exit(pid: rustix::process::Pid) -> bool {
    use rustix::process::{waitid, WaitId, WaitIdOptions};
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let start = Instant::now();
    while waitid(WaitId::Pid(pid), options).expect("waitid").is_none() {
        if start.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The child: the claim is checked with stdout and stderr in the runner's hands.
fn in_child(case: &Case, context: Context, directory: &std::path::Path, output: File) -> ! {
    use std::os::fd::AsRawFd;
    // SAFETY: numbers only; the descriptors are this process's own.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::dup2(output.as_raw_fd(), 1);
        libc::dup2(output.as_raw_fd(), 2);
    }
    drop(output);
    std::env::set_current_dir(directory).expect("enter the case's directory");
    std::panic::set_hook(Box::new(|panic| eprintln!("{panic}")));
    let passed = std::panic::catch_unwind(|| (case.body)(&context)).is_ok();
    std::process::exit(if passed { 0 } else { 1 });
}

/// A line of the list of known differences.
#[derive(Debug, Clone)]
pub struct Difference {
    pattern: String,
    /// Why it differs.
    pub reason: String,
    /// It depends on timing: the case may also pass.
    pub may_pass: bool,
}

impl Difference {
    /// Whether the line covers this run: its name may leave out the flag set and the door.
    pub fn covers(&self, report: &Report) -> bool {
        let (rest, door) = match self.pattern.rsplit_once('@') {
            Some((rest, door)) => (rest, Some(door)),
            None => (self.pattern.as_str(), None),
        };
        let (case, set) = match rest.strip_suffix(']').and_then(|rest| rest.split_once('[')) {
            Some((case, set)) => (case, Some(set)),
            None => (rest, None),
        };
        case == report.case
            && door.is_none_or(|door| door == report.door)
            && set.is_none_or(|set| Some(set) == report.flag_set)
    }

    /// The name as it stands in the list.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
}

/// Adds the list in `text` to those `known`. A line that begins with `!` takes an earlier one out: in the environment that
/// its file is about the case passes. One that begins with `?` is about a case that passes or fails by timing. A line
/// without a reason is an error.
pub fn parse_differences(text: &str, known: &mut Vec<Difference>) -> Result<(), String> {
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (pattern, reason) =
            line.split_once(char::is_whitespace).ok_or(format!("a known difference without a reason: {line}"))?;
        match pattern.strip_prefix('!') {
            None => {
                let (pattern, may_pass) = match pattern.strip_prefix('?') {
                    Some(pattern) => (pattern.to_owned(), true),
                    None => (pattern.to_owned(), false),
                };
                known.push(Difference { pattern, reason: reason.trim().to_owned(), may_pass });
            }
            Some(pattern) => {
                let before = known.len();
                known.retain(|difference| difference.pattern != pattern);
                if known.len() == before {
                    return Err(format!("{pattern} is not a known difference, so it cannot be taken out"));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(flag_set: Option<&'static str>, door: &str) -> Report {
        Report {
            case: "nop::a",
            flag_set,
            door: door.to_owned(),
            outcome: Outcome::Passed,
            elapsed_ms: 0,
            evidence: Evidence::default(),
        }
    }

    #[test]
    fn a_difference_covers_what_its_line_names() {
        let text = "# text\n\nnop::a why\nnop::a[cqe32] why\nnop::a@raw why\nnop::a[plain]@raw why";
        let mut list = Vec::new();
        parse_differences(text, &mut list).expect("well-formed");
        let covered = |set, door| list.iter().map(|line| line.covers(&report(set, door))).collect::<Vec<_>>();
        assert_eq!(covered(None, "libc"), [true, false, false, false]);
        assert_eq!(covered(Some("cqe32"), "libc"), [true, true, false, false]);
        assert_eq!(covered(Some("plain"), "raw"), [true, false, true, true]);
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(parse_differences("nop::a", &mut Vec::new()).is_err());
    }

    #[test]
    fn a_later_list_takes_lines_out() {
        let mut list = Vec::new();
        parse_differences("nop::a why\nnop::b why", &mut list).expect("well-formed");
        parse_differences("!nop::a as natively here", &mut list).expect("it was listed");
        assert_eq!(list.iter().map(Difference::pattern).collect::<Vec<_>>(), ["nop::b"]);
        assert!(parse_differences("!nop::a as natively here", &mut list).is_err());
    }

    #[test]
    fn a_skip_needs_a_reason() {
        let status = SKIP_STATUS << 8;
        assert_eq!(judge(status, false, "no tmpfs".into()), Outcome::Skipped("no tmpfs".into()));
        assert!(matches!(judge(status, false, String::new()), Outcome::Failed(_)));
    }
}
