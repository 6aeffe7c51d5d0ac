//! The processes and threads of events: the numbers and names in /proc, read while they exist.
//!
//! A process in another PID namespace reports numbers that belong to other threads here. Therefore only descendants
//! of the traced process are accepted.

use crate::Event;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs;

/// Number of generations that the search for an ancestor goes up.
const DEEPEST: usize = 64;

/// The processes found so far. A process that ended before it was looked up stays unknown.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Processes {
    /// The ancestor of all accepted processes.
    #[serde(skip)]
    root: u32,
    threads: BTreeMap<u32, Thread>,
    /// The names of the programs, by process.
    programs: BTreeMap<u32, String>,
    /// Threads whose lookup failed.
    #[serde(skip)]
    gone: HashSet<u32>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Thread {
    pid: u32,
    name: String,
}

/// The fields of a thread's /proc/PID/status.
struct Status {
    pid: u32,
    parent: u32,
    name: String,
}

impl Processes {
    /// Accepts `root` and its descendants.
    pub fn below(root: u32) -> Processes {
        Processes { root, ..Processes::default() }
    }

    /// Looks up the threads that the event names, unless they are known.
    pub fn observe(&mut self, event: &Event) {
        self.ask(event.thread);
        if let Some(worked) = event.worked() {
            self.ask(worked.thread);
        }
    }

    fn ask(&mut self, thread: u32) {
        if self.threads.contains_key(&thread) || self.gone.contains(&thread) {
            return;
        }
        let found = look_up(thread).filter(|it| self.programs.contains_key(&it.pid) || self.is_below(it.pid));
        let Some(Status { pid, name, .. }) = found else {
            self.gone.insert(thread);
            return;
        };
        self.programs.entry(pid).or_insert_with(|| look_up(pid).map_or_else(|| name.clone(), |main| main.name));
        self.threads.insert(thread, Thread { pid, name });
    }

    fn is_below(&self, pid: u32) -> bool {
        let mut line = std::iter::successors(Some(pid), |pid| look_up(*pid).map(|it| it.parent)).take(DEEPEST);
        line.any(|pid| pid == self.root)
    }

    /// The process of the thread.
    pub fn of_thread(&self, thread: u32) -> Option<u32> {
        self.threads.get(&thread).map(|thread| thread.pid)
    }

    /// The thread's name, as `ps -T` has it.
    pub fn name_of_thread(&self, thread: u32) -> Option<&str> {
        self.threads.get(&thread).map(|thread| thread.name.as_str())
    }

    /// The name of the process's program, at most 15 bytes.
    pub fn program(&self, pid: u32) -> Option<&str> {
        self.programs.get(&pid).map(String::as_str)
    }

    /// Adds a thread as if it had been found.
    #[cfg(test)]
    pub fn insert(&mut self, thread: u32, pid: u32, name: &str) {
        self.threads.insert(thread, Thread { pid, name: name.to_owned() });
        self.programs.entry(pid).or_insert_with(|| name.to_owned());
    }
}

/// The process of the thread, if the thread exists.
pub(crate) fn process_of(thread: u32) -> Option<u32> {
    look_up(thread).map(|thread| thread.pid)
}

fn look_up(thread: u32) -> Option<Status> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let number = |name: &str| field(name)?.parse().ok();
    Some(Status { pid: number("Tgid:")?, parent: number("PPid:")?, name: field("Name:")?.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_engine::event::Kind;

    #[test]
    fn a_thread_has_a_process_and_both_have_names() {
        let (told, thread) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let other = std::thread::Builder::new().name("other".to_owned()).spawn(move || {
            let number = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            told.send(number).expect("told");
            let _ = ends.recv();
        });
        let thread = thread.recv().expect("its number");
        let mut processes = Processes::below(std::process::id());
        processes.observe(&Event { thread, ..Event::new(Kind::Enter) });
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
        for thread in [1, std::os::unix::process::parent_id(), child.id()] {
            processes.observe(&Event { thread, ..Event::new(Kind::Enter) });
        }
        assert_eq!(processes.of_thread(child.id()), Some(child.id()), "it descends from us");
        drop(child.stdin.take());
        child.wait().expect("its end");
        assert_eq!(processes.of_thread(1), None, "a number of another namespace");
        assert_eq!(processes.of_thread(std::os::unix::process::parent_id()), None);
        drop(end);
        other.expect("a thread").join().expect("its end");
        let own = std::process::id();
        assert_eq!((processes.of_thread(thread), processes.name_of_thread(thread)), (Some(own), Some("other")));
        let program = fs::read_to_string("/proc/self/comm").expect("our name");
        assert_eq!(processes.program(own), Some(program.trim()));
        processes.observe(&Event { thread: u32::MAX, ..Event::new(Kind::Enter) });
        assert_eq!(processes.of_thread(u32::MAX), None);
    }
}
