//! Threads and processes whose filters refuse some system calls, for tests.

use super::in_child::in_child;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};

/// A call that is refused: its number, an argument (index and value) if only calls with that argument are refused,
/// and the errno.
pub type Refusal = (i64, Option<(u8, u64)>, i32);

/// Runs `body` on a new thread, with a filter for each refusal.
pub fn refusing<T: Send + 'static>(refusals: &'static [Refusal], body: impl FnOnce() -> T + Send + 'static) -> T {
    let below = move || {
        for (number, argument, errno) in refusals {
            let condition = |(index, value)| {
                SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).expect("a condition")
            };
            let rules =
                argument.map(|argument| SeccompRule::new(vec![condition(argument)]).expect("a rule")).into_iter();
            let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
            let action = SeccompAction::Errno(*errno as u32);
            let calls = [(*number, rules.collect())].into();
            let filter = SeccompFilter::new(calls, SeccompAction::Allow, action, architecture).expect("a filter");
            let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
            seccompiler::apply_filter(&program).expect("install the filter");
        }
        body()
    };
    std::thread::spawn(below).join().expect("the thread")
}

/// Returns the status of a forked child that runs `body` below a filter that kills the child for these calls. `body`
/// makes system calls only.
pub fn killing(calls: &[i64], body: impl FnOnce() -> u8) -> u8 {
    let architecture = std::env::consts::ARCH.try_into().expect("a known architecture");
    let calls = calls.iter().map(|number| (*number, Vec::new())).collect();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, SeccompAction::KillProcess, architecture);
    let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
    in_child(|| match seccompiler::apply_filter(&program) {
        Ok(()) => body(),
        Err(_) => u8::MAX,
    })
}
