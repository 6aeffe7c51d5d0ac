//! Children of a traced program that cannot be served, and processes that cannot write their events. The log names
//! them, and the report repeats them.

use std::path::{Path, PathBuf};

/// The text before the name of a child that is not served, in the logs of the library and of the host.
const SAID: &str = "a child is not served: ";

/// The text before the reason why a process writes no events, in the library's log.
const UNHEARD: &str = "there are no events: ";

/// The lines that are written to the program's log during the trace.
pub struct Unserved {
    file: PathBuf,
    /// Number of bytes that were in the log before the trace.
    from: usize,
    is_own: bool,
}

impl Unserved {
    /// Follows the log that `ANYRING_LOG` names. If the variable is unset, sets it to a file beside the file of
    /// events.
    pub fn follow(events: &Path) -> Unserved {
        if let Some(file) = std::env::var_os("ANYRING_LOG").filter(|file| !file.is_empty()).map(PathBuf::from) {
            let from = std::fs::metadata(&file).map_or(0, |file| file.len() as usize);
            return Unserved { file, from, is_own: false };
        }
        let mut file = events.as_os_str().to_owned();
        file.push("-log");
        std::env::set_var("ANYRING_LOG", &file);
        Unserved { file: file.into(), from: 0, is_own: true }
    }

    /// Returns the children that the log names, each once, with the reason.
    pub fn children(&self) -> Vec<String> {
        self.lines_with(SAID)
    }

    /// Returns the reasons why processes wrote no events, each once.
    pub fn unheard(&self) -> Vec<String> {
        self.lines_with(UNHEARD)
    }

    /// Returns what follows this text in the lines of the log, each once.
    fn lines_with(&self, said: &str) -> Vec<String> {
        let log = std::fs::read(&self.file).unwrap_or_default();
        let log = String::from_utf8_lossy(log.get(self.from..).unwrap_or_default());
        let mut found = Vec::new();
        for (_, rest) in log.lines().filter_map(|line| line.split_once(said)) {
            if !found.iter().any(|known| known == rest) {
                found.push(rest.to_owned());
            }
        }
        found
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        if self.is_own {
            let _ = std::fs::remove_file(&self.file); // perhaps no process has written one
        }
    }
}
