//! The events of an interval, in the manner of iostat(1): rates, shares of the paths and latencies, in lines of at
//! most 80 characters.

use super::tally::{named, Key, RingTally, Tally, PATHS};
use super::Summary;
use crate::line::opcode_name;
use hdrhistogram::Histogram;
use std::fmt::Write;
use std::time::Duration;

/// Most lines per interval: there may be thousands of rings.
const MOST_LINES: usize = 20;
/// Characters for a request's kind.
const NAME: usize = 19;

/// The state at the end of the last interval.
#[derive(Debug, Clone, Default)]
pub struct Rates {
    last: Summary,
}

/// One kind of request of one ring, in the interval.
struct Line {
    ring: u32,
    key: Key,
    paths: [u64; PATHS],
    latency_ns: Option<[u64; 2]>,
}

impl Line {
    /// The difference between `now` and `before`.
    fn since(ring: u32, key: Key, now: &Tally, before: Option<&Tally>) -> Line {
        let mut paths = now.paths;
        let mut latency_ns = now.latency_ns.clone();
        if let Some(before) = before {
            paths.iter_mut().zip(before.paths).for_each(|(now, before)| *now -= before.min(*now));
            for (now, before) in latency_ns.iter_mut().zip(&before.latency_ns) {
                let _ = now.subtract(before); // its counts only grow
            }
        }
        let [mut all, others @ ..] = latency_ns;
        others.iter().for_each(|others| all += others);
        let quantiles = |of: &Histogram<u64>| [of.value_at_quantile(0.5), of.value_at_quantile(0.99)];
        Line { ring, key, paths, latency_ns: (!all.is_empty()).then(|| quantiles(&all)) }
    }

    fn count(&self) -> u64 {
        self.paths.iter().sum()
    }

    fn write(&self, seconds: f64, text: &mut String) {
        let count = self.count();
        // A size cut short would read as another size, so it is left out.
        let words =
            [opcode_name(self.key.opcode), self.key.file.name().to_owned(), self.key.size.name().to_owned()];
        let shown = if words.join(" ").len() <= NAME { &words[..] } else { &words[..2] };
        let name: String = shown.join(" ").trim_end_matches([' ', '-']).chars().take(NAME).collect();
        let _ = write!(text, "{:>5} {name:<NAME$} {:>8.0}", self.ring, count as f64 / seconds);
        for part in self.paths {
            let _ = write!(text, " {:>6.1}", 100.0 * part as f64 / count.max(1) as f64);
        }
        for place in 0..2 {
            let _ = write!(text, " {:>8}", us(self.latency_ns.map(|ns| ns[place])));
        }
        text.push('\n');
    }
}

/// Microseconds in at most eight characters; "-" for `None`.
fn us(ns: Option<u64>) -> String {
    match ns.map(|ns| ns as f64 / 1e3) {
        None => "-".to_owned(),
        Some(us) if us < 999_999.0 => format!("{us:.1}"),
        Some(us) if us < 99_999_999.0 => format!("{us:.0}"),
        Some(us) => format!("{us:.1e}"),
    }
}

impl Rates {
    /// Describes the interval since the last call, which was `since` ago.
    pub fn next(&mut self, now: &Summary, since: Duration) -> String {
        let last = std::mem::replace(&mut self.last, now.clone());
        let seconds = since.as_secs_f64().max(1e-9);
        let sum = |summary: &Summary, of: fn(&RingTally) -> u64| summary.rings.values().map(of).sum::<u64>();
        let rate = |of| sum(now, of).saturating_sub(sum(&last, of)) as f64 / seconds;
        let ring = if now.rings.len() == 1 { "ring" } else { "rings" };
        let mut text = format!(
            "{} {ring}, {} in flight: {:.0} requests/s, {:.0} enter calls/s, {:.0} CQEs/s\n",
            now.rings.len(),
            now.in_flight.len(),
            rate(|ring| ring.submitted),
            rate(|ring| ring.enters),
            rate(|ring| ring.cqes),
        );
        let mut lines = now.lines_since(&last);
        if lines.is_empty() {
            return text;
        }
        lines.sort_by_key(|line| std::cmp::Reverse(line.count()));
        let _ = writeln!(
            text,
            "{:>5} {:<NAME$} {:>8} {:>6} {:>6} {:>6} {:>6} {:>8} {:>8}",
            "ring", "request", "req/s", "inl %", "poll %", "kaio %", "wrk %", "p50 us", "p99 us"
        );
        lines.iter().take(MOST_LINES).for_each(|line| line.write(seconds, &mut text));
        if lines.len() > MOST_LINES {
            let _ = writeln!(text, "{} more kinds of request, with fewer each", lines.len() - MOST_LINES);
        }
        text
    }
}

impl Summary {
    fn lines_since(&self, last: &Summary) -> Vec<Line> {
        let of_ring = |(number, ring): (&u32, &RingTally)| {
            let named = |of: &RingTally| named(of.kinds.clone(), ring);
            let before = last.rings.get(number).map(named).unwrap_or_default();
            let line = |(key, tally): (&Key, &Tally)| Line::since(*number, *key, tally, before.get(key));
            named(ring).iter().map(line).filter(|line| line.count() != 0).collect::<Vec<_>>()
        };
        self.rings.iter().flat_map(of_ring).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::SizeClass;
    use crate::Event;
    use anyring_abi::Opcode;
    use anyring_engine::event::{FileKind, Kind};

    /// Adds `count` requests of this ring, each with a latency of `took_ns`.
    fn add(summary: &mut Summary, ring: u32, count: u32, took_ns: u64) {
        let opcode = Opcode::Read as u16;
        let of = |kind, request, time_ns| Event { ring, request, opcode, len: 4096, time_ns, ..Event::new(kind) };
        for request in 1..=count {
            summary.add(&Event { len: 1, ..of(Kind::Enter, 0, 0) });
            summary.add(&of(Kind::SubmitReq, request, 0));
            summary.add(&Event { file: FileKind::Directory, ..of(Kind::FileGet, request, 0) });
            summary.add(&of(Kind::Complete, request, took_ns));
        }
    }

    #[test]
    fn an_interval_tells_its_own_requests() {
        let (mut summary, mut rates) = (Summary::new(true), Rates::default());
        add(&mut summary, 1, 4_000, 1_000_000);
        let first = rates.next(&summary, Duration::from_secs(2));
        assert!(
            first.starts_with("1 ring, 0 in flight: 2000 requests/s, 2000 enter calls/s, 2000 CQEs/s\n"),
            "{first}"
        );
        add(&mut summary, 1, 100, 10_000);
        add(&mut summary, 12_345, 300, 9_999_999_000);
        let second = rates.next(&summary, Duration::from_secs(1));
        let lines: Vec<_> = second.lines().collect();
        assert_eq!(lines.len(), 4, "{second}");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(
            words(2)[..6],
            ["12345", "READ", "directory", "<=4K", "300", "100.0"],
            "the most first: {second}"
        );
        assert_eq!((words(3)[0], words(3)[4]), ("1", "100"), "{second}");
        assert!(words(3)[9].starts_with("10."), "not those before: {second}");
        assert!(lines.iter().all(|line| line.len() <= 80), "{second}");
        let key = Key {
            opcode: Opcode::WriteFixed as u16,
            file: FileKind::Regular,
            size: SizeClass::Upto64K,
            unnamed: None,
        };
        let mut text = String::new();
        Line { ring: 1, key, paths: [1, 0, 0, 0], latency_ns: None }.write(1.0, &mut text);
        assert!(text.starts_with("    1 WRITE_FIXED file           1 "), "no other size: {text}");
        assert_eq!(us(Some(3_600_000_000_000)), "3.6e9");
        let third = rates.next(&summary, Duration::from_secs(1));
        assert_eq!(third, "2 rings, 0 in flight: 0 requests/s, 0 enter calls/s, 0 CQEs/s\n");
    }

    #[test]
    fn thousands_of_rings_are_not_thousands_of_lines() {
        let mut summary = Summary::new(true);
        (1..=1_000).for_each(|ring| add(&mut summary, ring, 1, 10));
        let text = Rates::default().next(&summary, Duration::from_secs(1));
        assert_eq!(text.lines().count(), 2 + MOST_LINES + 1, "{text}");
        assert!(text.ends_with("980 more kinds of request, with fewer each\n"), "{text}");
    }
}
