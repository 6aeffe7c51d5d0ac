//! The results of a program's run, and how two of them differ.

use crate::program::{opcode_name, Program};
use anyring_abi::{Opcode, IORING_POLL_ADD_MULTI, IOSQE_CQE_SKIP_SUCCESS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The observations of one run, without descriptors of rings, times or addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The program's seed.
    pub seed: u64,
    /// Results of enter, register and the program's own calls, by step.
    pub answers: BTreeMap<usize, Vec<i64>>,
    /// Each request's CQEs: (res, flags), in their order.
    pub completions: BTreeMap<u64, Vec<(i32, u32)>>,
    /// The `user_data` of all CQEs in the order of the CQ.
    pub order: Vec<u64>,
    /// The number of CQEs that had been reaped, or could be, at the end of each step.
    pub counts: Vec<usize>,
    /// The bytes that the kernel wrote into memory, by request and field.
    pub memory: BTreeMap<String, String>,
    /// The final state: contents, positions, descriptors.
    pub state: BTreeMap<String, String>,
    /// The reason why the run ended early, if it did.
    pub failure: Option<String>,
}

/// One point on which two records disagree.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The subject, which is the same in each run: `#5 Read`, `state pipe 0`.
    pub subject: String,
    /// The observations of the first and the second record.
    pub seen: [String; 2],
}

impl Record {
    /// Returns the points in which `other` differs.
    pub fn differences(&self, other: &Record, program: &Program) -> Vec<Difference> {
        let mut found = Vec::new();
        if self.failure != other.failure {
            let text = |record: &Record| record.failure.clone().unwrap_or("came to its end".to_owned());
            found.push(Difference { subject: "run".to_owned(), seen: [text(self), text(other)] });
            return found;
        }
        compare(&mut found, &self.answers, &other.answers, |step| format!("step {step}"));
        let opcodes: BTreeMap<u64, u8> =
            program.requests().map(|request| (request.user_data, request.opcode)).collect();
        let polls = program.multishot_polls();
        let results = [self, other].map(|record| record.comparable(&polls));
        compare(&mut found, &results[0], &results[1], |id| {
            format!("#{id} {}", opcodes.get(id).map_or("message".to_owned(), |opcode| opcode_name(*opcode)))
        });
        compare(&mut found, &self.memory, &other.memory, Clone::clone);
        compare(&mut found, &self.state, &other.state, |name| format!("state {name}"));
        self.compare_chains(other, program, &mut found);
        found
    }

    /// The CQEs without mere hints. The engine does not report more data in a socket (docs/limits.md,
    /// `net_data::recv_sock_nonempty_flag`). Equal successive CQEs of a multishot poll in `polls` count as one. On the
    /// kernel, wakes are one event if task work did not run between them.
    fn comparable(&self, polls: &BTreeSet<u64>) -> BTreeMap<u64, Vec<(i32, u32)>> {
        let without = |&(result, flags): &(i32, u32)| (result, flags & !anyring_abi::IORING_CQE_F_SOCK_NONEMPTY);
        let comparable = |(id, cqes): (&u64, &Vec<(i32, u32)>)| {
            let mut cqes: Vec<_> = cqes.iter().map(without).collect();
            if polls.contains(id) {
                cqes.dedup();
            }
            (*id, cqes)
        };
        self.completions.iter().map(comparable).collect()
    }

    /// Compares the order of CQEs within each chain.
    fn compare_chains(&self, other: &Record, program: &Program, found: &mut Vec<Difference>) {
        for chain in program.chains() {
            let members: BTreeSet<u64> = chain.iter().copied().collect();
            let of = |record: &Record| -> Vec<u64> {
                record.order.iter().copied().filter(|id| members.contains(id)).collect()
            };
            let seen = [of(self), of(other)];
            let same_ones = {
                let mut sorted = seen.clone();
                sorted.iter_mut().for_each(|order| order.sort_unstable());
                sorted[0] == sorted[1]
            };
            if same_ones && seen[0] != seen[1] {
                let subject = format!("order of the chain of #{}", chain[0]);
                found.push(Difference { subject, seen: seen.map(|order| format!("{order:?}")) });
            }
        }
    }
}

fn compare<K: Ord, V: PartialEq + std::fmt::Debug>(
    found: &mut Vec<Difference>,
    ours: &BTreeMap<K, V>,
    theirs: &BTreeMap<K, V>,
    subject: impl Fn(&K) -> String,
) {
    let keys: BTreeSet<&K> = ours.keys().chain(theirs.keys()).collect();
    for key in keys {
        let seen = [ours.get(key), theirs.get(key)];
        if seen[0] != seen[1] {
            let text = |value: Option<&V>| value.map_or("nothing".to_owned(), |value| format!("{value:?}"));
            found.push(Difference { subject: subject(key), seen: seen.map(text) });
        }
    }
}

impl Program {
    /// The `user_data` of its multishot polls.
    pub fn multishot_polls(&self) -> BTreeSet<u64> {
        self.requests()
            .filter(|request| request.opcode == Opcode::PollAdd as u8 && request.len & IORING_POLL_ADD_MULTI != 0)
            .map(|request| request.user_data)
            .collect()
    }

    /// The `user_data` of each chain's requests whose CQEs have an order.
    pub fn chains(&self) -> Vec<Vec<u64>> {
        use anyring_abi::{IOSQE_IO_HARDLINK, IOSQE_IO_LINK};
        let mut chains = Vec::new();
        for step in &self.steps {
            let crate::program::Step::Submit(requests) = step else { continue };
            let mut chain = Vec::new();
            for request in requests {
                // A link timeout ends together with what it watches.
                let timed = request.opcode == Opcode::LinkTimeout as u8;
                if !timed && request.flags & IOSQE_CQE_SKIP_SUCCESS == 0 {
                    chain.push(request.user_data);
                }
                if request.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK) == 0 {
                    chains.push(std::mem::take(&mut chain));
                }
            }
            chains.push(chain);
        }
        chains.retain(|chain| chain.len() > 1);
        chains
    }
}

/// A short name for any number of bytes: how many, a hash, the first ones.
pub fn digest(bytes: &[u8]) -> String {
    // FNV-1a, 64 bits: only equality matters.
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let first: String = bytes.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("{} bytes {hash:016x} {first}", bytes.len())
}
