//! The places in the program from which requests were submitted. The engine reports the stacks of some calls: FRAMES
//! events with a stack's text, and a CALLER event before each call whose stack is known.

use crate::report::{Kinds, Report};
use crate::Event;
use anyring_engine::chaos::caller::number_of_stack;
use anyring_engine::event::Kind;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// The most places of one kind of request that a report names.
const MOST: usize = 3;
/// The most frames of a place that a finding has.
const FRAMES: usize = 3;
/// Number of walks over a stack whose times are kept.
const WALKS: usize = 4096;
/// A place with this share of the requests stands for all of them.
const NEARLY_ALL: f64 = 90.0;

/// A thread on a ring.
type Of = (u32, u32);

/// The stacks from which threads submit now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers {
    /// The frames of each stack, as `FILE+0xADDRESS`.
    stacks: HashMap<u64, Vec<String>>,
    /// The text of a stack that is incomplete.
    parts: HashMap<Of, Vec<u8>>,
    /// The stack of a thread's next call, and of its present call.
    next: HashMap<Of, u64>,
    now: HashMap<Of, u64>,
    /// The times that the first walks over a stack took, and the number of walks.
    took_ns: Vec<u64>,
    walks: u64,
}

impl Callers {
    /// Notes an event about a place, or the beginning of a call.
    pub fn observe(&mut self, event: &Event) {
        let of = (event.ring, event.thread);
        match event.kind {
            Kind::Frames => {
                let rest = u64::from(event.result as u32) | u64::from(event.flags) << 32;
                let bytes = [event.user_data, event.offset, rest].into_iter().flat_map(u64::to_le_bytes);
                self.parts.entry(of).or_default().extend(bytes.filter(|byte| *byte != 0));
            }
            Kind::Caller => {
                let stack = event.user_data;
                self.walks += 1;
                if event.offset != 0 && self.took_ns.len() < WALKS {
                    self.took_ns.push(event.time_ns.saturating_sub(event.offset));
                }
                // A part may have been lost.
                if let Some(text) = self.parts.remove(&of).filter(|text| number_of_stack(text) == stack) {
                    let text = String::from_utf8_lossy(&text);
                    self.stacks.insert(stack, text.lines().map(str::to_owned).collect());
                }
                self.next.insert(of, stack);
            }
            Kind::Enter => match self.next.remove(&of) {
                Some(stack) => _ = self.now.insert(of, stack),
                None if !self.now.is_empty() => _ = self.now.remove(&of),
                None => {}
            },
            _ => {}
        }
    }

    /// The stack of the thread's present call on the ring, if it is known.
    pub fn now(&self, event: &Event) -> Option<u64> {
        self.now.get(&(event.ring, event.thread)).copied()
    }

    /// Time that the program took to look up the stacks. If a few walks seem longer than most, another process had the
    /// processor.
    pub fn took_ns(&self) -> u64 {
        let mut took_ns = self.took_ns.clone();
        took_ns.sort_unstable();
        took_ns.get(took_ns.len() / 2).map_or(0, |median_ns| median_ns * self.walks)
    }

    /// The frames of all stacks.
    pub fn into_stacks(self) -> HashMap<u64, Vec<String>> {
        self.stacks
    }
}

/// A place from which requests of one kind were submitted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Place {
    /// The share of the requests whose place is known, in percent.
    pub percent: f64,
    /// The functions there, innermost first: `FUNCTION (SOURCE:LINE)`.
    pub at: Vec<String>,
}

impl Report {
    /// Names the places from which the requests were submitted. `describe` returns a line for each function that a
    /// stack's frames belong to, innermost first.
    pub fn name_places(&mut self, describe: impl Fn(&[String]) -> Vec<String>) {
        let lines: HashMap<u64, Vec<String>> =
            self.stacks.iter().map(|(stack, frames)| (*stack, describe(frames))).collect();
        for ring in &mut self.rings {
            ring.kinds.iter_mut().for_each(|kinds| kinds.places = merged(&kinds.stacks, &lines));
        }
        for finding in &mut self.findings {
            let Some(ring) = self.rings.iter().find(|ring| ring.ring == finding.ring) else { continue };
            let mut stacks = BTreeMap::new();
            let concerned = ring.kinds.iter().enumerate().filter(|(at, kinds)| match finding.kinds {
                Some(only) => only == *at,
                None => concerns(finding.name, kinds),
            });
            for (stack, count) in concerned.flat_map(|(_, kinds)| &kinds.stacks) {
                *stacks.entry(*stack).or_insert(0) += count;
            }
            finding.places = merged(&stacks, &lines);
        }
    }
}

/// True if a finding that is about the whole ring concerns requests of this kind.
fn concerns(name: &str, kinds: &Kinds) -> bool {
    let opcode = kinds.kind.opcode.as_str();
    match name {
        "one_in_flight" => opcode.contains("READ") || opcode.contains("WRITE"),
        "sync_each" => opcode.ends_with("SYNC"),
        "poll_again" => opcode == "POLL_ADD",
        "timeout_again" => opcode == "TIMEOUT",
        _ => true,
    }
}

/// The places with the most requests. Stacks that differ only in the callers of the innermost function are one place,
/// with the callers of the most frequent stack.
fn merged(counts: &BTreeMap<u64, u64>, lines: &HashMap<u64, Vec<String>>) -> Vec<Place> {
    let mut known: Vec<_> = counts.iter().filter_map(|(stack, count)| Some((lines.get(stack)?, *count))).collect();
    known.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
    let all: u64 = known.iter().map(|(_, count)| count).sum();
    let mut places: Vec<Place> = Vec::new();
    for (at, count) in known {
        let percent = 100.0 * count as f64 / all as f64;
        match places.iter_mut().find(|place| place.at.first() == at.first()) {
            Some(place) => place.percent += percent,
            None => places.push(Place { percent, at: at.clone() }),
        }
    }
    places.sort_by(|one, other| other.percent.total_cmp(&one.percent));
    places.truncate(MOST);
    places
}

/// The lines that name the places: the innermost function of each, and its callers if it stands for all.
pub(crate) fn lines(places: &[Place], with_callers: bool) -> Vec<String> {
    match places {
        [first, ..] if first.percent >= NEARLY_ALL => {
            first.at.iter().take(if with_callers { FRAMES } else { 1 }).map(|line| format!("at {line}")).collect()
        }
        _ => {
            let innermost = places.iter().filter_map(|place| Some((place.at.first()?, place.percent)));
            innermost.map(|(line, percent)| format!("at {line}: {percent:.0}%")).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Summary;
    use anyring_abi::Opcode;

    fn event(kind: Kind) -> Event {
        Event { ring: 1, thread: 7, ..Event::new(kind) }
    }

    /// The events by which the engine names a stack for the first time.
    fn named(text: &str, lost: usize) -> Vec<Event> {
        let parts = text.as_bytes().chunks(24).map(|part| {
            let word = |at: usize| {
                let byte = |place: usize| u64::from(part.get(8 * at + place).copied().unwrap_or(0)) << (8 * place);
                (0..8).map(byte).sum::<u64>()
            };
            let (result, flags) = (word(2) as u32 as i32, (word(2) >> 32) as u32);
            Event { user_data: word(0), offset: word(1), result, flags, ..event(Kind::Frames) }
        });
        let caller = Event { user_data: number_of_stack(text.as_bytes()), ..event(Kind::Caller) };
        parts.skip(lost).chain([caller]).collect()
    }

    #[test]
    fn looking_up_a_stack_takes_as_long_as_mostly() {
        let mut summary = Summary::new(true);
        for (offset, time_ns) in [(900, 1_000), (1_900, 2_000), (3_000, 9_000_000)] {
            summary.add(&Event { offset, time_ns, ..event(Kind::Caller) });
        }
        assert_eq!(summary.report(0).places_ns, 3 * 100);
    }

    /// A call of each caller, which submits so many NOPs. A caller of "" has no known place.
    fn report(calls: &[(&str, usize)], lost: usize) -> Report {
        let mut summary = Summary::new(true);
        let mut request = 0;
        for (text, count) in calls {
            let naming = if text.is_empty() { Vec::new() } else { named(text, lost) };
            naming.iter().for_each(|event| summary.add(event));
            summary.add(&Event { len: *count as u32, ..event(Kind::Enter) });
            for _ in 0..*count {
                request += 1;
                let of = |kind| Event { request, opcode: Opcode::Nop as u16, ..event(kind) };
                summary.add(&of(Kind::SubmitReq));
                summary.add(&of(Kind::Complete));
            }
        }
        let mut report = summary.report(0);
        report.name_places(|frames| frames.iter().map(|frame| frame.replace("+0x", ":")).collect());
        report
    }

    #[test]
    fn requests_have_the_place_of_the_call_that_submits_them() {
        let [here, there] =
            ["/bin/program+0x1234\n/bin/program+0x5678", "/bin/program+0x9abc\n/bin/program+0x5678"];
        let found = report(&[(here, 60), ("", 100), (there, 20)], 0);
        let kinds = &found.rings[0].kinds[0];
        assert_eq!((kinds.count, kinds.places.len()), (180, 2));
        let place =
            |percent, line: &str| Place { percent, at: vec![line.to_owned(), "/bin/program:5678".to_owned()] };
        assert_eq!(kinds.places, [place(75.0, "/bin/program:1234"), place(25.0, "/bin/program:9abc")]);
        let text = found.to_string();
        assert!(text.contains("\n    at /bin/program:1234: 75%\n    at /bin/program:9abc: 25%\n"), "{text}");
        let alone = report(&[(here, 180)], 0);
        assert!(alone.to_string().contains("\n    at /bin/program:1234\n"), "{alone}");
    }

    #[test]
    fn a_stack_of_which_a_part_was_lost_names_nothing() {
        let found = report(&[("/bin/program+0x1234\n/bin/program+0x5678", 60)], 1);
        assert_eq!(found.rings[0].kinds[0].places, []);
    }
}
