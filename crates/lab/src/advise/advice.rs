//! What follows from the measurements, in one sentence.

use crate::advise::measuring::Row;
use crate::advise::report::{digits, situation, situation_in_words, size};
use crate::advise::threshold::Threshold;
use crate::message::Situation;
use crate::statistics::Estimate;
use crate::text::figure;
use serde::Serialize;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// For people: all of it, with its confidence.
    pub sentence: String,
    /// For each situation.
    pub clauses: Vec<Clause>,
}

/// What is to be done in one situation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Clause {
    /// Which.
    pub situation: Situation,
    /// What.
    pub verdict: Verdict,
    /// The bytes of the request whose interval it rests on: of those that speak for it, the one nearest to no difference.
    pub evidence_bytes: u32,
    /// Its time until the CQE, with IOSQE_ASYNC in relation to without.
    pub ratio: Estimate,
    /// From how many pairs.
    pub pairs: usize,
}

/// Whether to set IOSQE_ASYNC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "set")]
pub enum Verdict {
    /// No size is faster with it, and one at least is slower.
    No,
    /// All sizes are faster with it.
    Yes,
    /// Only from this size on.
    From {
        /// The size.
        bytes: u32,
    },
    /// No size differs by more than chance.
    NoDifference,
    /// Some are faster and some are not, and not by size.
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Faster,
    Slower,
    Unclear,
}

/// By the interval: where it holds 1, chance may have made the difference.
fn effect(ratio: &Estimate) -> Effect {
    match ratio.interval {
        Some([_, high]) if high < 1.0 => Effect::Faster,
        Some([low, _]) if low > 1.0 => Effect::Slower,
        _ => Effect::Unclear,
    }
}

/// Of `rows` (ascending by size in each situation) and the thresholds that were found.
pub fn give(rows: &[Row], thresholds: &[(Situation, Threshold)]) -> Advice {
    let mut situations: Vec<Situation> = rows.iter().map(|row| row.situation).collect();
    situations.dedup();
    let mut clauses = Vec::new();
    let mut sentence = String::new();
    for situation in situations {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.situation == situation).collect();
        let threshold = thresholds.iter().find(|(of, _)| *of == situation).map(|(_, threshold)| *threshold);
        let clause = clause(situation, &rows, threshold);
        let again = clauses.last().is_some_and(|last: &Clause| (last.verdict, clause.verdict) == NO_AND_NO);
        sentence.push_str(if sentence.is_empty() {
            ""
        } else if again {
            ", "
        } else {
            "; "
        });
        sentence.push_str(&words(&clause, &rows, threshold, again));
        clauses.push(clause);
    }
    if let Some(first) = sentence.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    Advice { sentence: sentence + ".", clauses }
}

/// What IOSQE_ASYNC spares the submitting thread, where that is more than half of its time in the call and no chance: of
/// the size and situation in which it is most.
pub fn relief(rows: &[Row]) -> Option<String> {
    let spares = |row: &&Row| row.submit_ratio.interval.is_some_and(|[_, high]| high < 0.5);
    let spared_us = |row: &Row| row.plain.submit_us.median - row.forced.submit_us.median;
    let row = rows.iter().filter(spares).max_by(|one, other| spared_us(one).total_cmp(&spared_us(other)))?;
    Some(format!(
        "With IOSQE_ASYNC the submitting thread is in the call for {} us instead of {} us (a request of {}, {}): where it \
         has other work meanwhile, that may be worth more than the time until the CQE",
        figure(row.forced.submit_us.median),
        figure(row.plain.submit_us.median),
        size(row.bytes),
        situation(row.situation)
    ))
}

fn clause(situation: Situation, rows: &[&Row], threshold: Option<Threshold>) -> Clause {
    let effects: Vec<Effect> = rows.iter().map(|row| effect(&row.ratio)).collect();
    let faster = effects.iter().filter(|effect| **effect == Effect::Faster).count();
    let first_faster = effects.iter().position(|effect| *effect == Effect::Faster);
    let verdict = match first_faster {
        Some(0) if faster == rows.len() => Verdict::Yes,
        Some(first) if first > 0 && faster == rows.len() - first => {
            // The cut is known better than the sizes that were measured, if it lies between the two.
            let between = rows[first - 1].bytes..rows[first].bytes;
            let bytes = match threshold {
                Some(Threshold::At { last_bytes, first_bytes, .. }) if between.contains(&last_bytes) => first_bytes,
                _ => rows[first].bytes,
            };
            Verdict::From { bytes }
        }
        Some(_) => Verdict::Mixed,
        None if effects.contains(&Effect::Slower) => Verdict::No,
        None => Verdict::NoDifference,
    };
    let speaks = |effect: &Effect| match verdict {
        Verdict::No => *effect == Effect::Slower,
        Verdict::NoDifference => true,
        Verdict::Yes | Verdict::From { .. } | Verdict::Mixed => *effect == Effect::Faster,
    };
    let speaking = rows.iter().zip(&effects).filter(|(_, effect)| speaks(effect)).map(|(row, _)| row);
    // Where nothing differs, the one that might differ most; else the one that nearly does not.
    let distance =
        |row: &&&Row| row.ratio.value.ln().abs() * if verdict == Verdict::NoDifference { -1.0 } else { 1.0 };
    let evidence = speaking.min_by(|one, other| distance(one).total_cmp(&distance(other))).unwrap_or(&rows[0]);
    Clause { situation, verdict, evidence_bytes: evidence.bytes, ratio: evidence.ratio, pairs: evidence.pairs }
}

/// After which a sentence goes on with "nor".
const NO_AND_NO: (Verdict, Verdict) = (Verdict::No, Verdict::No);

fn words(clause: &Clause, rows: &[&Row], threshold: Option<Threshold>, again: bool) -> String {
    let what = situation_in_words(clause.situation);
    let (ratio, pairs) = (&clause.ratio, clause.pairs);
    let digits = digits(ratio.interval.map_or(ratio.value, |[_, high]| high));
    let interval = match ratio.interval {
        Some([low, high]) => format!("95 % interval {low:.digits$} to {high:.digits$}, {pairs} pairs"),
        None => format!("{pairs} pairs, too few for an interval"),
    };
    let evidence = format!("{:.digits$} times at {}, {interval}", ratio.value, size(clause.evidence_bytes));
    let sizes = |wanted: Effect| {
        let of: Vec<_> =
            rows.iter().filter(|row| effect(&row.ratio) == wanted).map(|row| size(row.bytes)).collect();
        of.join(", ")
    };
    match clause.verdict {
        Verdict::No => {
            let unclear = sizes(Effect::Unclear);
            let except = if unclear.is_empty() { String::new() } else { format!("; no clear difference at {unclear}") };
            match again {
                true => format!("nor {what} (at least {evidence}{except})"),
                false => {
                    format!("do not set IOSQE_ASYNC {what}: requests take longer with it (at least {evidence}{except})")
                }
            }
        }
        Verdict::Yes => format!("set IOSQE_ASYNC {what}: requests take less time with it (at most {evidence})"),
        Verdict::From { bytes } => {
            let range = match threshold {
                Some(Threshold::At { last_bytes, first_bytes, .. }) if first_bytes == bytes => {
                    format!("above {}", size(last_bytes))
                }
                _ => format!("from {} on", size(bytes)),
            };
            format!(
                "set IOSQE_ASYNC {what} {range}, and not below: there requests take less time with it (at most {evidence})"
            )
        }
        Verdict::NoDifference => {
            format!("IOSQE_ASYNC makes no clear difference {what}: leave it out (the most is {evidence})")
        }
        Verdict::Mixed => format!(
            "whether IOSQE_ASYNC pays {what} is no question of size alone: requests of {} take less time with it (at most \
             {evidence}), others do not",
            sizes(Effect::Faster)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::measuring::Side;
    use crate::statistics::Summary;
    use std::collections::BTreeMap;

    fn row(situation: Situation, bytes: u32, low: f64, value: f64, high: f64) -> Row {
        let side =
            || Side { ways: BTreeMap::new(), latency_us: Summary::of(&[1.0]), submit_us: Summary::of(&[1.0]) };
        let ratio = Estimate { value, interval: Some([low, high]) };
        Row { situation, bytes, pairs: 99, plain: side(), forced: side(), ratio, submit_ratio: ratio }
    }

    use Situation::{Cached, Direct, Uncached};

    #[test]
    fn slower_everywhere_is_no_and_rests_on_the_nearest_to_one() {
        let rows = [
            row(Cached, 4096, 8.0, 9.0, 10.0),
            row(Cached, 65536, 1.4, 1.5, 1.6),
            row(Cached, 1 << 20, 0.9, 1.0, 1.1),
        ];
        let advice = give(&rows, &[]);
        assert_eq!((advice.clauses[0].verdict, advice.clauses[0].evidence_bytes), (Verdict::No, 65536));
        let expected =
            "Do not set IOSQE_ASYNC for what is in the page cache: requests take longer with it (at least 1.50 \
            times at 64 KiB, 95 % interval 1.40 to 1.60, 99 pairs; no clear difference at 1 MiB).";
        assert_eq!(advice.sentence, expected.split_whitespace().collect::<Vec<_>>().join(" "));
    }

    #[test]
    fn the_threshold_refines_the_size_from_which_on_it_helps() {
        let rows = [
            row(Direct, 4096, 1.2, 1.3, 1.4),
            row(Direct, 1 << 20, 0.6, 0.7, 0.8),
            row(Direct, 2 << 20, 0.7, 0.75, 0.8),
        ];
        let at = Threshold::At { last_bytes: 262_144, first_bytes: 262_656, sharp: true };
        let verdict = |thresholds: &[_]| give(&rows, thresholds).clauses[0].verdict;
        assert_eq!(verdict(&[(Direct, at)]), Verdict::From { bytes: 262_656 });
        assert!(give(&rows, &[(Direct, at)])
            .sentence
            .starts_with("Set IOSQE_ASYNC with O_DIRECT above 256 KiB, and not"));
        assert_eq!(verdict(&[(Cached, at)]), Verdict::From { bytes: 1 << 20 });
        assert!(give(&rows, &[]).sentence.starts_with("Set IOSQE_ASYNC with O_DIRECT from 1 MiB on, and not"));
        let beyond = Threshold::At { last_bytes: 1 << 21, first_bytes: (1 << 21) + 512, sharp: true };
        assert_eq!(verdict(&[(Direct, beyond)]), Verdict::From { bytes: 1 << 20 });
        assert_eq!(give(&rows, &[]).clauses[0].evidence_bytes, 2 << 20);
    }

    #[test]
    fn chance_is_no_advice() {
        let rows = [row(Direct, 512, 0.9, 1.02, 1.1), row(Direct, 4096, 0.8, 0.9, 1.05)];
        let advice = give(&rows, &[]);
        assert_eq!((advice.clauses[0].verdict, advice.clauses[0].evidence_bytes), (Verdict::NoDifference, 4096));
        let few = Row { ratio: Estimate { value: 0.1, interval: None }, ..rows[0].clone() };
        assert_eq!(give(&[few], &[]).clauses[0].verdict, Verdict::NoDifference);
    }

    #[test]
    fn each_situation_has_its_clause() {
        let rows = [
            row(Cached, 4096, 8.0, 9.0, 10.0),
            row(Uncached, 4096, 0.5, 0.6, 0.7),
            row(Uncached, 65536, 0.6, 0.7, 0.8),
            row(Direct, 512, 0.5, 0.6, 0.7),
            row(Direct, 4096, 1.2, 1.3, 1.4),
        ];
        let advice = give(&rows, &[]);
        let verdicts: Vec<_> = advice.clauses.iter().map(|clause| clause.verdict).collect();
        assert_eq!(verdicts, [Verdict::No, Verdict::Yes, Verdict::Mixed]);
        assert_eq!(advice.sentence.matches("; ").count(), 2, "{}", advice.sentence);
        let twice = [row(Cached, 4096, 8.0, 9.0, 10.0), row(Uncached, 4096, 2.0, 3.0, 4.0)];
        let sentence = give(&twice, &[]).sentence;
        let nor = "99 pairs), nor for what is not in the page cache (at least 3.00 times";
        assert!(sentence.contains(nor), "{sentence}");
        assert!(sentence.contains("(at least 9.0 times at 4 KiB, 95 % interval 8.0 to 10.0,"), "{sentence}");
    }

    #[test]
    fn the_greatest_relief_of_the_submitting_thread_is_told() {
        let mut rows = [
            row(Cached, 4096, 2.0, 2.0, 2.0),
            row(Cached, 1 << 20, 2.0, 2.0, 2.0),
            row(Cached, 8192, 2.0, 2.0, 2.0),
        ];
        assert_eq!(relief(&rows), None);
        for (row, plain_us) in rows.iter_mut().zip([50.0, 200.0, 900.0]) {
            row.plain.submit_us = Summary::of(&[plain_us]);
            row.forced.submit_us = Summary::of(&[5.0]);
        }
        for row in &mut rows[..2] {
            row.submit_ratio = Estimate { value: 0.1, interval: Some([0.05, 0.2]) };
        }
        let told = relief(&rows).expect("a relief");
        assert!(told.contains("5.00 us instead of 200 us") && told.contains("1 MiB"), "{told}");
    }
}
