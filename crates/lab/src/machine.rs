//! The machine that the numbers come from.

use serde::{Deserialize, Serialize};
use std::fs;

/// What a reader has to know of a machine to compare.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// How many processors this process may use.
    pub cores: usize,
    /// Whether a hypervisor is below.
    pub virtualised: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's vulnerabilities for which the kernel does something that may cost time, and what.
    pub mitigations: Vec<String>,
    /// Whether this user is root: some things need it.
    pub root: bool,
}

impl Machine {
    /// The machine this runs on; what it does not tell is `unknown`.
    pub fn here() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease");
        Machine {
            cpu: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtualised: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            kernel: kernel.map_or_else(|_| "unknown".to_owned(), |release| release.trim().to_owned()),
            mitigations: mitigations(),
            // SAFETY: takes nothing and cannot fail.
            root: unsafe { libc::geteuid() } == 0,
        }
    }
}

/// What /sys says, without what does not affect this processor.
fn mitigations() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return vec!["unknown".to_owned()];
    };
    let mut found: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let state = fs::read_to_string(entry.path()).ok()?;
            let state = state.trim();
            (state != "Not affected").then(|| format!("{}: {state}", entry.file_name().to_string_lossy()))
        })
        .collect();
    found.sort();
    found
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.cores == 1 { "" } else { "s" };
        let kind = if self.virtualised { "virtual machine" } else { "no hypervisor" };
        write!(formatter, "{}, {} core{plural}, {kind}, Linux {}", self.cpu, self.cores, self.kernel)
    }
}
