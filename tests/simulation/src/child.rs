//! One run, in a process of its own: the engine keeps much of what it knows for the whole process.

use crate::program::Program;
use crate::report;
use crate::ring::Ring;
use crate::system::Simulated;
use anyhow::Result;
use anyring_engine::os::simulated;
use std::sync::OnceLock;

/// The options of one run.
#[derive(clap::Args, Debug, Clone)]
pub struct ChildOptions {
    /// The seed
    #[arg(long)]
    seed: u64,
    /// Steps of the program's threads
    #[arg(long)]
    steps: u64,
    /// No call fails
    #[arg(long)]
    no_faults: bool,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();
static SYSTEM: OnceLock<Simulated> = OnceLock::new();

/// Counts the open descriptors, and the mappings of shared memory.
fn held() -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let shared = |line: &&str| line.contains("memfd:") || line.contains("/dev/zero");
    (open, maps.lines().filter(shared).count())
}

/// Runs the seed, and prints its figures.
///
/// # Errors
/// None: what is found ends the process.
pub fn run(options: &ChildOptions) -> Result<()> {
    std::panic::set_hook(Box::new(|panic| {
        report::finding(&format!("panic: {panic}\n{}", std::backtrace::Backtrace::force_capture()))
    }));
    report::show_with(|| PROGRAM.get().map_or(String::new(), |program| program.describe()));
    let system = SYSTEM.get_or_init(|| Simulated::new(options.seed));
    simulated::stand_in(system);
    anyring_engine::os::handler_installed(); // no address here is bad, so there is nothing to be handled
    let program = PROGRAM.get_or_init(|| Program::new(system, options.seed, options.steps));
    system.on_jump(|until_ns| PROGRAM.get()?.world().forgotten(until_ns));
    // A first ring makes everything that the engine keeps until the process ends.
    Ring::new(0, 8, 16).map(|ring| ring.close()).map_err(anyhow::Error::msg)?;
    wait_for_threads(system);
    let before = held();
    system.set_faulty(!options.no_faults);
    program.run();
    let requests = program.finish();
    wait_for_threads(system);
    let after = held();
    if after.0 > before.0 {
        report::finding(&format!("leak: {} descriptors are open, {} were before", after.0, before.0));
    }
    if after.1 > before.1 {
        report::finding(&format!("leak: {} shared mappings are there, {} were before", after.1, before.1));
    }
    let figures = system.figures();
    println!("steps {} requests {requests} jumps {} digest {:016x}", figures.steps, figures.jumps, figures.digest);
    for (kind, count) in figures.faults {
        println!("fault {count} {kind}");
    }
    Ok(())
}

/// Waits until the engine's threads that have nothing left to do have ended.
fn wait_for_threads(system: &Simulated) {
    let begin_ns = system.now_ns();
    while system.engines_threads() > 0 {
        if system.now_ns() > begin_ns + 4_000_000_000 {
            report::finding(&format!("leak: threads outlive the last ring\n{}", system.states()));
        }
        system.sleep(20_000_000);
    }
    system.progresses();
}
