//! Runs seeds on the engine under chaos. Each request that was accepted must have one final CQE, as it has on the
//! kernel, and no program may hang or crash.

use crate::compare::{lock, Runner, RunnerOptions, Side};
use crate::program::{opcode_name, Program, Request, Step, Value};
use crate::record::Record;
use anyhow::{Context, Result};
use anyring_abi::{
    Opcode, IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_POLL_UPDATE_USER_DATA, IOSQE_CQE_SKIP_SUCCESS,
    IOSQE_IO_HARDLINK, IOSQE_IO_LINK,
};
use std::collections::BTreeSet;
use std::sync::Mutex;

/// The number of programs that one process runs, under one chaos seed.
const BATCH: u64 = 10;
/// Microseconds without a CQE before the next step begins. Some requests that chaos holds back are not waited for.
const QUIET_US: u64 = 8_000;

/// The results of the seeds.
#[derive(Default)]
struct Totals {
    passed: u64,
    /// Programs that fail on the kernel itself, so that nothing is known of them.
    skipped: Vec<String>,
    failed: Vec<String>,
}

/// Runs the seeds. Returns true if each request of each program had one final CQE.
pub fn chaos(options: &RunnerOptions) -> Result<bool> {
    let runner = Runner::new(options.clone())?;
    let totals = Mutex::new(Totals::default());
    options.seeds.in_batches(BATCH, |seeds| batch(&runner, &Vec::from_iter(seeds), &totals))?;
    let Totals { passed, skipped, failed } = &*lock(&totals);
    skipped.iter().for_each(|line| println!("skip: {line}"));
    failed.iter().for_each(|line| println!("FAIL   {line}"));
    println!("{passed} passed, {} failed, {} skipped", failed.len(), skipped.len());
    Ok(failed.is_empty() && *passed != 0)
}

/// Runs some programs, with the first one's seed as the chaos seed. Returns true if any failed.
fn batch(runner: &Runner, seeds: &[u64], totals: &Mutex<Totals>) -> Result<bool> {
    let chaos_seed = seeds[0];
    let (native, _) = runner.run(Side::Kernel, seeds, None, 4_000, &[])?;
    let (ours, _) = runner.run(Side::Disturbed(chaos_seed), seeds, None, QUIET_US, &[])?;
    let mut any = false;
    for seed in seeds {
        let [native, ours] = [&native, &ours].map(|side| side.get(seed).context("a record"));
        let (native, ours) = (native?, ours?);
        let mut totals = lock(totals);
        if let Some(failure) = &native.failure {
            totals.skipped.push(format!("seed {seed}: natively {failure}"));
            continue;
        }
        let found = faults(&runner.program(*seed), native, ours);
        if found.is_empty() {
            totals.passed += 1;
        } else {
            any = true;
            totals.failed.push(format!("seed {seed} with ANYRING_CHAOS={chaos_seed}: {}", found.join("; ")));
        }
    }
    Ok(any)
}

/// Returns the faults of a run under chaos. The kernel's run says which requests are accepted at all.
fn faults(program: &Program, native: &Record, ours: &Record) -> Vec<String> {
    if let Some(failure) = &ours.failure {
        return vec![failure.clone()];
    }
    let (quiet, renamed) = (may_be_quiet(program), renamed(program));
    let mut found = Vec::new();
    for request in program.requests().filter(|request| !renamed.contains(&request.user_data)) {
        let id = request.user_data;
        // A request without a CQE on the kernel was not accepted, or ends only after the run.
        let may_have_none = quiet.contains(&id) || !native.completions.contains_key(&id);
        let [had, notified] = ends(ours, id);
        if had > 1 || had == 0 && !may_have_none || notified > 1 {
            let name = opcode_name(request.opcode);
            found.push(format!("#{id} {name} has {had} final CQEs and {notified} notifications"));
        }
    }
    found
}

/// Returns a request's final CQEs and its notifications. A send with zero copy posts its notification after its
/// result.
fn ends(record: &Record, id: u64) -> [usize; 2] {
    let cqes = record.completions.get(&id).map_or(&[][..], Vec::as_slice);
    let notified = cqes.iter().filter(|(_, flags)| flags & IORING_CQE_F_NOTIF != 0).count();
    let finals = cqes.iter().filter(|(_, flags)| flags & (IORING_CQE_F_MORE | IORING_CQE_F_NOTIF) == 0).count();
    // If the send's own CQE has F_MORE, the notification is the last.
    [if finals == 0 { notified } else { finals }, notified]
}

/// Polls whose CQEs may have another `user_data`, if they are still pending when it is changed.
fn renamed(program: &Program) -> BTreeSet<u64> {
    let renames = |request: &&Request| {
        request.opcode == Opcode::PollRemove as u8 && request.len & IORING_POLL_UPDATE_USER_DATA != 0
    };
    let poll = |request: &Request| if let Value::Plain(id) = request.addr { Some(id) } else { None };
    program.requests().filter(renames).filter_map(poll).collect()
}

/// Requests that may end without a CQE: those with CQE_SKIP_SUCCESS, and the rest of a chain after such a request. A
/// broken chain cancels that rest without CQEs (`req_set_fail` in io_uring/io_uring.h).
fn may_be_quiet(program: &Program) -> BTreeSet<u64> {
    let mut quiet = BTreeSet::new();
    for step in &program.steps {
        let Step::Submit(requests) = step else { continue };
        let mut is_quiet = false;
        for request in requests {
            is_quiet |= request.flags & IOSQE_CQE_SKIP_SUCCESS != 0;
            if is_quiet {
                quiet.insert(request.user_data);
            }
            is_quiet &= request.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) != 0;
        }
    }
    quiet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_or_second_cqe_is_reported() {
        let program = crate::generate::program(1, None);
        let id =
            program.requests().find(|request| request.flags & IOSQE_CQE_SKIP_SUCCESS == 0).expect("one").user_data;
        let with = |cqes: Vec<(i32, u32)>| {
            let mut record = Record::default();
            record.completions.insert(id, cqes);
            record
        };
        let native = with(vec![(1, 0)]);
        assert!(faults(&program, &native, &with(vec![(1, IORING_CQE_F_MORE), (-4, 0)])).is_empty());
        for wrong in [vec![], vec![(1, IORING_CQE_F_MORE)], vec![(1, 0), (1, 0)]] {
            assert_eq!(faults(&program, &native, &with(wrong)).len(), 1);
        }
    }
}
