//! Chaos: rare but permitted behaviour, injected by a seeded choice (`anyring chaos`).
//!
//! This module decides *what* to inject, and works on no ring. At a few places `issue/chaos.rs` and `wait/enter.rs`
//! ask this module, and carry out its decision. On a ring without chaos, which has no [`Chaos`], they ask nothing.
//!
//! A decision depends on four things: the seed, the ring (its number in the process, from 1), the rule, and a
//! position. The position counts, from 1, the ring's SQEs, its calls of io_uring_enter(2), or the CQEs of its
//! multishot requests. Neither a clock nor an earlier decision influences it. So a program with one thread that
//! makes the same calls gets the same injections. Each injection has a name, `RING.POSITION.RULE`. By this name one
//! injection can be left out while the others stay (`ANYRING_CHAOS_ONLY`).
//!
//! [`Chaos`] is part of a ring's state, guarded by the ring's lock.

pub mod caller;
mod journal;
pub mod lifetimes;
pub mod rules;

use crate::event::Event;
use crate::mutation::{mutated, Mutation};
use crate::os::{calls, Clock};
use crate::request::Id;
use crate::Errno;
use caller::{Caller, Modules};
use lifetimes::{Change, Lifetime};
use rules::{Rule, Rules};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::OnceLock;

/// The settings that the environment asks for.
struct Settings {
    seed: u64,
    rules: Rules,
    /// The injections to make. `None` for all injections that are drawn.
    only: Option<BTreeSet<Name>>,
    /// The time at which the engine was prepared for the process's first ring, by CLOCK_MONOTONIC.
    began_ns: u64,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// The settings of rings that only report the memory they fill.
static NOTHING: Settings = Settings { seed: 0, rules: Rules::none(), only: None, began_ns: 0 };

/// The hook that is called for program memory that a request has filled, with its address and size in bytes.
static FILLED: OnceLock<fn(usize, usize)> = OnceLock::new();

/// Makes every ring created from now on call `filled` with the program memory that its requests have filled. The
/// thread that has the result makes the call, with the ring's lock held and before it posts the CQE. Sanitizers use
/// this.
pub fn set_fill_observer(filled: fn(usize, usize)) {
    let _ = FILLED.set(filled);
}

/// Reports the first `bytes` bytes of these ranges (addresses and sizes) as filled.
pub fn filled(ranges: &[[usize; 2]], bytes: usize) {
    let Some(tell) = FILLED.get() else { return };
    let mut left = bytes;
    for [address, size] in ranges {
        let part = left.min(*size);
        if part != 0 {
            tell(*address, part);
        }
        left -= part;
    }
}

/// A request that has begun, with the memory that it fills, as addresses and sizes.
#[derive(Debug)]
pub struct Fills {
    /// The request.
    pub id: Id,
    /// Data of a read or receive.
    pub data: Vec<[usize; 2]>,
    /// Other memory that the request fills, always in full.
    pub outputs: Vec<[usize; 2]>,
}

/// Number of rings created so far.
static RINGS: AtomicU32 = AtomicU32::new(0);

/// Turns chaos on: it disturbs every ring that is made from now on. `rules` is a list of names. Without it, all rules
/// that the manual permits are followed. `only` is the path of a file with one injection name a line. `log` is the
/// path of the log.
///
/// # Errors
/// The setting that cannot be used, in words. Nothing is disturbed in that case.
pub fn begin(seed: &str, rules: Option<&str>, only: Option<&str>, log: Option<&str>) -> Result<(), String> {
    let seed = seed.parse().map_err(|_| format!("ANYRING_CHAOS={seed}: it must be a number"))?;
    let rules = rules.map_or(Ok(Rules::permitted()), Rules::parse).map_err(|name| format!("no rule is {name}"))?;
    let only = match only {
        Some(file) => Some(read_names(file)?),
        None => None,
    };
    if let Some(file) = log {
        journal::open(file).map_err(|error| format!("{file}: {error}"))?;
    }
    let _ = SETTINGS.set(Settings { seed, rules, only, began_ns: Clock::Monotonic.now_ns() });
    Ok(())
}

fn read_names(file: &str) -> Result<BTreeSet<Name>, String> {
    let text = calls::read_text(file).map_err(|error| format!("{file}: {error}"))?;
    let names = text.lines().map(|line| Name::parse(line.trim()).ok_or_else(|| format!("no injection is {line}")));
    names.collect()
}

/// Mixes all bits of a number (the finalizer of splitmix64: Steele, Lea, Flood 2014).
pub fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

/// Returns the rate of a rule, in injections per 1000 positions. It depends on the seed: in some runs all rules are
/// frequent, in others only one rule is.
fn rate(seed: u64, rule: Rule) -> u64 {
    const RATES: [u64; 4] = [30, 120, 300, 600];
    RATES[mix(mix(seed) ^ rule as u64) as usize % RATES.len()]
}

/// Random bits for the details of one injection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw(u64);

impl Draw {
    /// Returns a number from `1` to `most`. The ends and the middle are more frequent than other numbers.
    pub fn part_of(self, most: usize) -> usize {
        let any = 1 + (self.0 >> 8) as usize % most;
        match self.0 % 4 {
            0 => 1,
            1 => most.div_ceil(2),
            2 => most,
            _ => any,
        }
    }

    /// Returns a number below `end`.
    pub fn below(self, end: u64) -> u64 {
        (self.0 >> 8) % end
    }
}

/// The turn of a request that is released only by its timer, and not because the program waits.
pub const NOT_BY_WAITING: u64 = u64::MAX;

/// A request that is held back.
#[derive(Debug, Clone, Copy)]
pub struct HeldBack {
    /// The order of release while the program waits: the turn, then the SQE's number.
    pub turn: (u64, u64),
    /// The latest time of release, in nanoseconds by CLOCK_MONOTONIC.
    pub until_ns: u64,
    /// The request.
    pub id: Id,
    /// The descriptor of a stream, on which later requests must not overtake this request. `None` for other
    /// requests.
    pub stream: Option<i32>,
}

/// A ring's SQE or CQE, or a call of io_uring_enter(2), as the log names it.
#[derive(Debug, Clone, Copy)]
pub struct Subject {
    /// The name of the opcode.
    pub opcode: &'static str,
    /// The `user_data`.
    pub user_data: u64,
}

/// The name of an injection or finding: `RING.POSITION.RULE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    /// The ring's number in the process, from 1.
    pub ring: u32,
    /// The position on the ring.
    pub position: u64,
    /// The rule.
    pub rule: Rule,
}

impl Name {
    /// Parses a name. `None` if `name` is not one.
    pub fn parse(name: &str) -> Option<Name> {
        let mut parts = name.split('.');
        let (ring, position, rule) = (parts.next()?, parts.next()?, parts.next()?);
        let rule = rules::RULES.iter().find(|row| row.name == rule)?.rule;
        let name = Name { ring: ring.parse().ok()?, position: position.parse().ok()?, rule };
        parts.next().is_none().then_some(name)
    }

    /// Returns the name in an INJECTION or FINDING event. `None` for other events.
    pub fn of(event: &Event) -> Option<Name> {
        let row = rules::RULES.get(usize::try_from(event.result).ok()?).filter(|_| event.kind.is_of_chaos())?;
        Some(Name { ring: event.len, position: event.offset, rule: row.rule })
    }
}

impl core::fmt::Display for Name {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{}.{}.{}", self.ring, self.position, self.rule.name())
    }
}

/// The chaos state of one ring.
pub struct Chaos {
    settings: &'static Settings,
    ring: u32,
    /// Number of SQEs consumed so far, except NOPs.
    pub sqes: u64,
    /// Number of io_uring_enter(2) calls so far.
    pub enters: u64,
    /// Number of CQEs of multishot requests so far.
    pub shots: u64,
    /// Requests that are held back.
    pub held: Vec<HeldBack>,
    /// True if the overflow list is not flushed until the program asks for events.
    pub keeps_backlog: bool,
    /// Reads that get one wrong byte: the SQE's number, and the data's address.
    pub spoiled: Vec<(u64, u64)>,
    /// The memory of requests in flight.
    pub lifetimes: Vec<Lifetime>,
    /// True if the finding "the CQ's head is past its tail" was already logged.
    pub reported_head: bool,
    /// Requests whose filled memory must be reported to the hook.
    fills: Vec<Fills>,
    /// The latest thread to call io_uring_enter(2) on this ring, while it is in that call.
    pub caller: Option<Caller>,
    modules: RefCell<Modules>,
}

/// Returns the chaos state of a new ring. `None`, unless chaos has [begun](begin) or a [sanitizer's
/// hook](set_fill_observer) is set.
pub fn of_new_ring() -> Option<Box<Chaos>> {
    let settings = SETTINGS.get().or_else(|| FILLED.get().map(|_| &NOTHING))?;
    let ring = RINGS.fetch_add(1, Ordering::Relaxed) + 1;
    let chaos = Chaos::new(settings, ring);
    if journal::is_open() {
        let (seed, pid) = (settings.seed, std::process::id());
        journal::line(&format!("{{\"seed\":{seed},\"pid\":{pid},\"made_ring\":{ring}}}\n"));
    }
    Some(Box::new(chaos))
}

impl Chaos {
    fn new(settings: &'static Settings, ring: u32) -> Chaos {
        Chaos {
            settings,
            ring,
            sqes: 0,
            enters: 0,
            shots: 0,
            held: Vec::new(),
            keeps_backlog: false,
            spoiled: Vec::new(),
            lifetimes: Vec::new(),
            reported_head: false,
            fills: Vec::new(),
            caller: None,
            modules: RefCell::default(),
        }
    }

    /// Decides whether `rule` is followed at `position`. Returns the random bits of the injection, or `None` if there
    /// is none.
    pub fn draw(&self, rule: Rule, position: u64) -> Option<Draw> {
        let Settings { seed, rules, only, .. } = self.settings;
        if !rules.has(rule) {
            return None;
        }
        let place = mix(u64::from(self.ring) << 32 | rule as u64).wrapping_add(position);
        let lot = mix(mix(*seed) ^ mix(place));
        let follows = lot % 1_000 < rate(*seed, rule) || mutated(Mutation::LotsAreAllDrawn);
        let enabled = only.as_ref().is_none_or(|only| only.contains(&self.name(rule, position)));
        (follows && enabled).then_some(Draw(mix(lot)))
    }

    /// Returns the name of an injection or finding.
    pub fn name(&self, rule: Rule, position: u64) -> Name {
        Name { ring: self.ring, position, rule }
    }

    /// Writes an injection into the log.
    pub fn log(&self, rule: Rule, position: u64, subject: Option<Subject>, what: &str) {
        if journal::is_open() {
            self.write("injection", rule, position, &format!("{}{}", of(subject), self.at()), what);
        }
    }

    /// Writes a line into the log. `fields` are JSON, each after a comma. `what` is one of this crate's own texts,
    /// without quotes.
    fn write(&self, kind: &str, rule: Rule, position: u64, fields: &str, what: &str) {
        let (name, seed, pid) = (self.name(rule, position), self.settings.seed, std::process::id());
        let (ring, rule) = (self.ring, rule.name());
        let after_us = Clock::Monotonic.now_ns().saturating_sub(self.settings.began_ns) / 1_000;
        let whose = format!("\"rule\":\"{rule}\",\"pid\":{pid},\"ring\":{ring},\"after_us\":{after_us}");
        journal::line(&format!("{{\"seed\":{seed},\"{kind}\":\"{name}\",{whose}{fields},\"what\":\"{what}\"}}\n"));
    }

    /// Returns the code addresses from which the calling thread called io_uring_enter(2), as a field of the log.
    /// Empty if it is in no such call, or if none is known.
    pub fn at(&self) -> String {
        let caller = self.caller.as_ref().filter(|caller| journal::is_open() && caller.is_here());
        caller.map_or(String::new(), |caller| self.modules.borrow_mut().describe(caller))
    }

    /// True if memory in flight is watched. This rule covers every request, so no draw decides it.
    pub fn checks_lifetimes(&self) -> bool {
        self.follows(Rule::Lifetimes)
    }

    /// True if `rule` is enabled.
    pub fn follows(&self, rule: Rule) -> bool {
        self.settings.rules.has(rule)
    }

    /// True if the memory that this request fills must be reported, and is not recorded yet.
    pub fn observes_fills(&self, id: Id) -> bool {
        FILLED.get().is_some() && self.fills.iter().all(|fills| fills.id != id)
    }

    /// Records the memory of a request that begins and [must be reported](Self::observes_fills). Drops the requests
    /// for which `gone` is true, since they ended without a result. If there is no memory for the record, the request
    /// is not reported.
    pub fn begin_fill(&mut self, fills: Fills, gone: impl Fn(Id) -> bool) {
        self.fills.retain(|fills| !gone(fills.id));
        if self.fills.try_reserve(1).is_ok() {
            self.fills.push(fills);
        }
    }

    /// Reports the memory that a request has filled, since the request has ended with `result`.
    pub fn end_fill(&mut self, id: Id, result: i32) {
        let Some(place) = self.fills.iter().position(|fills| fills.id == id) else { return };
        let fills = self.fills.swap_remove(place);
        filled(&fills.data, usize::try_from(result).unwrap_or(0));
        if result >= 0 {
            filled(&fills.outputs, usize::MAX);
        }
    }

    /// Writes misuse into the log.
    pub fn log_misuse(&self, position: u64, subject: Option<Subject>, fd: Option<i32>, what: &str) {
        if journal::is_open() {
            let fields = format!("{}{}{}", of(subject), of_fd(fd), self.at());
            self.write("finding", Rule::Misuse, position, &fields, what);
        }
    }

    /// Stops watching the memory of a request that has ended, and copies the data read into it. Returns true if the
    /// memory has changed or cannot be written, and logs that. Also returns FAULT if it cannot be written.
    pub fn end_lifetime(&mut self, id: Id, subject: Subject, result: i32) -> (bool, Result<(), Errno>) {
        let Some(place) = self.lifetimes.iter().position(|lifetime| lifetime.id == id) else {
            return (false, Ok(()));
        };
        let mut lifetime = self.lifetimes.swap_remove(place);
        let change = lifetime.memory.change();
        let filled = lifetime.fill(result);
        let unwritable = filled.err().map(|_| lifetime.memory.unwritable());
        let change = change.or(unwritable);
        if let Some(change) = change.filter(|_| journal::is_open()) {
            self.log_change(&lifetime, change, subject);
        }
        (change.is_some(), filled)
    }

    fn log_change(&self, lifetime: &Lifetime, change: Change, subject: Subject) {
        let (Change::Written { address, part, .. }
        | Change::Poisoned { address, part, .. }
        | Change::Unmapped { address, part }) = change;
        let of_what = part.name.map_or(String::new(), |name| format!(" of its {name}"));
        let (number, bytes) = (lifetime.number, part.bytes);
        let what = match change {
            Change::Written { place, .. } => format!("byte {place} of {bytes}{of_what} was written"),
            Change::Poisoned { place, .. } => {
                format!("byte {place} of {bytes}{of_what} was poisoned, as by free(3),")
            }
            Change::Unmapped { .. } => format!("memory of {bytes} bytes{of_what} was unmapped or protected"),
        };
        let (submitted_ns, ended_ns) = (lifetime.since_ns, Clock::Monotonic.now_ns());
        let times = format!(r#","address":{address},"submitted_ns":{submitted_ns},"ended_ns":{ended_ns}"#);
        let fields = format!("{}{}{times}{}", of(Some(subject)), of_fd(lifetime.fd), lifetime.at);
        self.write("finding", Rule::Lifetimes, number, &fields, &format!("{what} while in flight"));
    }

    /// Takes the held-back request with the lowest turn.
    pub fn take_next_held(&mut self) -> Option<HeldBack> {
        let by_waiting = (0..self.held.len()).filter(|place| self.held[*place].turn.0 != NOT_BY_WAITING);
        let next = by_waiting.min_by_key(|place| self.held[*place].turn)?;
        Some(self.held.swap_remove(next))
    }

    /// Drops a request from those held back. False if it was not among them.
    pub fn forget_held(&mut self, id: Id) -> bool {
        let place = self.held.iter().position(|held| held.id == id);
        place.map(|place| self.held.swap_remove(place)).is_some()
    }
}

/// Returns the request that a line of the log is about, as fields.
fn of(subject: Option<Subject>) -> String {
    subject.map_or(String::new(), |Subject { opcode, user_data }| {
        format!(r#","opcode":"{opcode}","user_data":{user_data}"#)
    })
}

fn of_fd(fd: Option<i32>) -> String {
    fd.map_or(String::new(), |fd| format!(r#","fd":{fd}"#))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chaos(seed: u64, only: Option<&str>) -> Chaos {
        let only = only.map(|name| BTreeSet::from([Name::parse(name).expect("a name")]));
        Chaos::new(Box::leak(Box::new(Settings { seed, rules: Rules::permitted(), only, began_ns: 0 })), 1)
    }

    fn drawn(chaos: &Chaos, rule: Rule) -> Vec<u64> {
        (1..=1_000).filter(|position| chaos.draw(rule, *position).is_some()).collect()
    }

    #[test]
    fn the_same_seed_draws_the_same_lots() {
        for seed in 1..20 {
            let once = drawn(&chaos(seed, None), Rule::Short);
            assert_eq!(once, drawn(&chaos(seed, None), Rule::Short));
            assert_ne!(once, drawn(&chaos(seed + 1, None), Rule::Short));
            assert_ne!(once, drawn(&chaos(seed, None), Rule::Late));
            let rate = rate(seed, Rule::Short) as usize;
            assert!((rate / 2..rate * 2).contains(&once.len()), "{} of 1000 at {rate}", once.len());
        }
    }

    #[test]
    fn rules_that_are_not_chosen_are_not_followed() {
        assert!(drawn(&chaos(1, None), Rule::Eio).is_empty());
    }

    #[test]
    fn one_injection_alone_is_the_same_as_among_all() {
        let all = chaos(7, None);
        for position in drawn(&all, Rule::Short) {
            let one = chaos(7, Some(&format!("1.{position}.short")));
            assert_eq!(drawn(&one, Rule::Short), [position]);
            assert_eq!(one.draw(Rule::Short, position), all.draw(Rule::Short, position));
        }
        assert!(drawn(&chaos(7, Some("2.1.short")), Rule::Short).is_empty());
    }

    #[test]
    fn a_part_is_at_least_one_and_not_more() {
        for lot in 0..1_000 {
            let part = Draw(mix(lot)).part_of(7);
            assert!((1..=7).contains(&part));
            assert_eq!(Draw(mix(lot)).part_of(1), 1);
        }
    }

    #[test]
    fn a_word_that_is_no_name_is_refused() {
        for name in ["", "1", "1.2", "1.2.shorter", "x.2.short", "1.2.short.3"] {
            assert_eq!(Name::parse(name), None);
        }
    }
}
