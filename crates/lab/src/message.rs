//! What passes between the lab and its worker process: a task on the command line, one line of JSON back.

use serde::{Deserialize, Serialize};

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Submit and reap NOPs, `batch` at a time, `operations` in all (a multiple of `batch`).
    Nop {
        /// SQEs a submit call.
        batch: u32,
        /// How many are timed.
        operations: u64,
    },
    /// Call `syscall(SYS_getpid)` so many times.
    Syscall {
        /// How many are timed.
        calls: u64,
    },
}

impl Task {
    /// As a command line.
    pub fn words(self) -> Vec<String> {
        match self {
            Task::Nop { batch, operations } => vec!["nop".into(), batch.to_string(), operations.to_string()],
            Task::Syscall { calls } => vec!["syscall".into(), calls.to_string()],
        }
    }

    /// From a command line without the program's name.
    pub fn parse(words: &[String]) -> Option<Task> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["nop", batch, operations] => {
                Some(Task::Nop { batch: batch.parse().ok()?, operations: operations.parse().ok()? })
            }
            ["syscall", calls] => Some(Task::Syscall { calls: calls.parse().ok()? }),
            _ => None,
        }
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// It was done, and every result was as it must be.
    Measured(Measured),
    /// io_uring is not to be had here.
    Refused(Refusal),
    /// Something is missing, or a result was wrong: why.
    Failed(String),
}

/// A task that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Wall time of all operations divided by their number.
    pub ns_per_operation: f64,
    /// The file whose function was measured, by dladdr(3).
    pub provider: String,
    /// What /proc/self/fd says that the ring's descriptor is.
    pub ring: Option<String>,
}

/// An interface that answered with an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Who answered.
    pub call: String,
    /// With which error number.
    pub errno: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_survives_its_command_line() {
        for task in [Task::Nop { batch: 32, operations: 64_000 }, Task::Syscall { calls: 9 }] {
            assert_eq!(Task::parse(&task.words()), Some(task));
        }
        for wrong in [&["nop", "1"][..], &["nop", "-1", "5"], &["fork"], &[]] {
            assert_eq!(Task::parse(&wrong.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()), None);
        }
    }
}
