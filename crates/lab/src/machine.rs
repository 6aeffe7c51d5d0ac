//! The machine of the measurements.

use serde::{Deserialize, Serialize};
use std::fs;

/// The properties of a machine that a reader needs for a comparison.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// True in a virtual machine.
    pub virtualised: bool,
    /// The kernel's release.
    pub kernel: String,
    /// The processor's vulnerabilities against which the kernel has a mitigation that may cost time, and that
    /// mitigation.
    pub mitigations: Vec<String>,
    /// True if this user is root, which some measurements need.
    pub root: bool,
}

impl Machine {
    /// Describes this machine. Facts that it does not report are `unknown`.
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

/// Returns the mitigations in /sys, without vulnerabilities that do not affect this processor.
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
