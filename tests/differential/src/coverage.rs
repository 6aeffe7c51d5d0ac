//! How often each opcode, flag and result class occurred on the kernel.

use crate::generate::supported;
use crate::program::{opcode_name, Program, SETUP_FLAGS, SQE_FLAGS};
use crate::record::Record;
use anyring_abi::Opcode;
use std::collections::{BTreeMap, BTreeSet};

/// The number of seeds in which every opcode has to succeed.
pub const SEEDS_EACH: usize = 50;

/// Counts over all programs.
#[derive(Debug, Default)]
pub struct Coverage {
    requests: usize,
    succeeded: usize,
    mutated: usize,
    opcodes: BTreeMap<u8, OfOpcode>,
    flags: BTreeMap<&'static str, usize>,
    setups: BTreeMap<&'static str, usize>,
    results: BTreeMap<String, usize>,
}

#[derive(Debug, Default)]
struct OfOpcode {
    requests: usize,
    succeeded: usize,
    seeds: BTreeSet<u64>,
}

/// True if the request succeeded. A timeout succeeds by expiring.
fn succeeded(opcode: u8, results: &[(i32, u32)]) -> bool {
    let timed = [Opcode::Timeout as u8, Opcode::LinkTimeout as u8].contains(&opcode);
    results.first().is_some_and(|(result, _)| *result >= 0 || (timed && *result == -libc::ETIME))
}

impl Coverage {
    /// Counts what the kernel answered to one program.
    pub fn add(&mut self, program: &Program, native: &Record) {
        for (bit, name) in SETUP_FLAGS {
            *self.setups.entry(name).or_default() += usize::from(program.setup_flags & bit != 0);
        }
        for request in program.requests() {
            let none = Vec::new();
            let results = native.completions.get(&request.user_data).unwrap_or(&none);
            let succeeded = succeeded(request.opcode, results);
            self.requests += 1;
            self.mutated += usize::from(request.mutated);
            self.succeeded += usize::from(succeeded);
            let of_opcode = self.opcodes.entry(request.opcode).or_default();
            of_opcode.requests += 1;
            if succeeded {
                of_opcode.succeeded += 1;
                of_opcode.seeds.insert(program.seed);
            }
            for (bit, name) in SQE_FLAGS {
                *self.flags.entry(name).or_default() += usize::from(request.flags & bit != 0);
            }
            *self.results.entry(class(request.len, results)).or_default() += 1;
        }
    }

    /// Prints the tables. Returns what they lack.
    pub fn report(&self) -> Vec<String> {
        println!("opcode             requests  succeeded  in seeds");
        for (opcode, of_opcode) in &self.opcodes {
            let (name, seeds) = (opcode_name(*opcode), of_opcode.seeds.len());
            println!("{name:<18} {:>8}  {:>9}  {seeds:>8}", of_opcode.requests, of_opcode.succeeded);
        }
        let table = |title: &str, counts: Vec<(String, usize)>| {
            let line: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
            println!("{title}: {}", line.join(", "));
        };
        table("flags", self.flags.iter().map(|(name, count)| (name.to_string(), *count)).collect());
        table("setup", self.setups.iter().map(|(name, count)| (name.to_string(), *count)).collect());
        let mut results: Vec<_> = self.results.iter().map(|(name, count)| (name.clone(), *count)).collect();
        results.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        table("results", results);
        println!(
            "{} requests, {} of them succeeded, {} were made to be refused",
            self.requests, self.succeeded, self.mutated
        );
        self.missing()
    }

    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.succeeded * 2 < self.requests {
            missing.push("fewer than half of the requests succeeded".to_owned());
        }
        for opcode in supported() {
            let seeds = self.opcodes.get(&(opcode as u8)).map_or(0, |of_opcode| of_opcode.seeds.len());
            if seeds < SEEDS_EACH {
                missing.push(format!("{opcode:?} succeeded in {seeds} seeds, not in {SEEDS_EACH}"));
            }
        }
        missing
    }
}

/// The kind of a request's first result.
fn class(length: u32, results: &[(i32, u32)]) -> String {
    match results.first() {
        None => "no CQE".to_owned(),
        Some(_) if results.len() > 1 => "several".to_owned(),
        // A message carries any result, the lowest number, too.
        Some((result, _)) if *result < 0 => errno_name(result.wrapping_neg()),
        Some((0, _)) => "zero".to_owned(),
        Some((result, _)) if (*result as u32) < length => "short".to_owned(),
        Some(_) => "positive".to_owned(),
    }
}

/// Returns a short name of an error.
fn errno_name(error: i32) -> String {
    let known = [
        (libc::ECANCELED, "cancelled"),
        (libc::EINVAL, "EINVAL"),
        (libc::EBADF, "EBADF"),
        (libc::EFAULT, "EFAULT"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOENT, "ENOENT"),
        (libc::EEXIST, "EEXIST"),
        (libc::ENOBUFS, "ENOBUFS"),
        (libc::ETIME, "ETIME"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EPIPE, "EPIPE"),
        (libc::ENOTCONN, "ENOTCONN"),
        (libc::EALREADY, "EALREADY"),
        (libc::ENODATA, "ENODATA"),
    ];
    known
        .iter()
        .find(|(number, _)| *number == error)
        .map_or(format!("errno {error}"), |(_, name)| (*name).to_owned())
}
