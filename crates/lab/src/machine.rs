//! Where the numbers come from.

use serde::Serialize;

/// What a reader has to know of a machine to compare.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// How many processors this process may use.
    pub cores: usize,
    /// Whether a hypervisor is below.
    pub virtualised: bool,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// The machine this runs on; what it does not tell is `unknown`.
    pub fn here() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
        };
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        Machine {
            cpu: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtualised: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            kernel: kernel.map_or_else(|_| "unknown".to_owned(), |release| release.trim().to_owned()),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = if self.cores == 1 { "" } else { "s" };
        let kind = if self.virtualised { "virtual machine" } else { "no hypervisor" };
        write!(formatter, "{}, {} core{plural}, {kind}, Linux {}", self.cpu, self.cores, self.kernel)
    }
}
