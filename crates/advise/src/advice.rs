//! The advice that follows from the measurements, in one sentence.

use crate::answer::Answer;
use crate::measuring::Row;
use crate::report::{digits, digits_of, situation, situation_in_words, size};
use crate::threshold::Threshold;
use anyring_lab::message::Situation;
use anyring_lab::statistics::Estimate;
use anyring_lab::text::figure;
use serde::Serialize;

/// The advice for all situations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The whole advice as a sentence for people, with its confidence.
    pub sentence: String,
    /// The advice for each situation.
    pub clauses: Vec<Clause>,
}

/// The advice for one situation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Clause {
    /// The situation.
    pub situation: Situation,
    /// The verdict on IOSQE_ASYNC.
    pub verdict: Verdict,
    /// The size whose interval the verdict rests on. Of the sizes that support the verdict, it has the smallest
    /// difference.
    pub evidence_bytes: u32,
    /// The time until the CQE at that size, with IOSQE_ASYNC in relation to without.
    pub ratio: Estimate,
    /// The number of pairs that the ratio comes from.
    pub pairs: usize,
}

/// The answer to the question whether to set IOSQE_ASYNC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "set")]
pub enum Verdict {
    /// No size that has an answer is faster with IOSQE_ASYNC, and at least one is slower.
    No,
    /// All sizes that have an answer are faster with IOSQE_ASYNC.
    Yes,
    /// Requests should have IOSQE_ASYNC from this size on only.
    From {
        /// The size.
        bytes: u32,
    },
    /// All sizes that have an answer take as long with IOSQE_ASYNC as without.
    NoDifference,
    /// Some sizes are faster with IOSQE_ASYNC and some are not, in no order of size.
    Mixed,
    /// No size has an answer.
    Undecided,
}

/// Derives the advice from `rows` (ascending by size in each situation) and the thresholds that were found.
pub fn derive(rows: &[Row], thresholds: &[(Situation, Threshold)]) -> Advice {
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

/// Says how much of its time in the call IOSQE_ASYNC saves the submitting thread, for the size and situation that save most.
/// `None` unless more than half is saved, beyond chance.
pub fn relief(rows: &[Row]) -> Option<String> {
    let spares = |row: &&Row| row.submit_ratio.interval.is_some_and(|[_, high]| high < 0.5);
    let spared_us = |row: &Row| row.plain.submit_us.median - row.forced.submit_us.median;
    let row = rows.iter().filter(spares).max_by(|one, other| spared_us(one).total_cmp(&spared_us(other)))?;
    Some(format!(
        "With IOSQE_ASYNC the submitting thread is in the call for {} us instead of {} us (a request of {}, {}): if it \
         has other work to do, that may be worth more than the time until the CQE",
        figure(row.forced.submit_us.median),
        figure(row.plain.submit_us.median),
        size(row.bytes),
        situation(row.situation)
    ))
}

/// Derives the clause from the sizes that have an answer; the others are only listed as undecided.
fn clause(situation: Situation, rows: &[&Row], threshold: Option<Threshold>) -> Clause {
    let decided: Vec<&Row> = rows.iter().copied().filter(|row| !row.answer.is_open()).collect();
    let is_faster = |row: &Row| row.answer == Answer::Faster;
    let faster = decided.iter().filter(|row| is_faster(row)).count();
    let first_faster = decided.iter().position(|row| is_faster(row));
    let verdict = match first_faster {
        Some(0) if faster == decided.len() => Verdict::Yes,
        Some(first) if first > 0 && faster == decided.len() - first => {
            // The cut is known better than the sizes that were measured, if it lies between the two.
            let between = decided[first - 1].bytes..decided[first].bytes;
            let is_open = |bytes| rows.iter().any(|row| row.bytes == bytes && row.answer.is_open());
            let bytes = match threshold {
                Some(Threshold::At { last_bytes, first_bytes, .. })
                    if between.contains(&last_bytes) && !is_open(last_bytes) && !is_open(first_bytes) =>
                {
                    first_bytes
                }
                _ => decided[first].bytes,
            };
            Verdict::From { bytes }
        }
        Some(_) => Verdict::Mixed,
        None if decided.iter().any(|row| row.answer == Answer::Slower) => Verdict::No,
        None if decided.is_empty() => Verdict::Undecided,
        None => Verdict::NoDifference,
    };
    let speaks = |answer: Answer| match verdict {
        Verdict::No => answer == Answer::Slower,
        Verdict::NoDifference => answer == Answer::Same,
        Verdict::Undecided => true,
        Verdict::Yes | Verdict::From { .. } | Verdict::Mixed => answer == Answer::Faster,
    };
    let speaking = rows.iter().filter(|row| speaks(row.answer));
    // If no size differs, or none is decided, the evidence is the size that differs most. Otherwise it is the size
    // that differs least.
    let sign = if matches!(verdict, Verdict::NoDifference | Verdict::Undecided) { -1.0 } else { 1.0 };
    let distance = |row: &&&Row| row.ratio.value.ln().abs() * sign;
    let evidence = speaking.min_by(|one, other| distance(one).total_cmp(&distance(other))).unwrap_or(&rows[0]);
    Clause { situation, verdict, evidence_bytes: evidence.bytes, ratio: evidence.ratio, pairs: evidence.pairs }
}

/// The pair of verdicts after which a sentence goes on with "nor".
const NO_AND_NO: (Verdict, Verdict) = (Verdict::No, Verdict::No);

fn words(clause: &Clause, rows: &[&Row], threshold: Option<Threshold>, again: bool) -> String {
    let what = situation_in_words(clause.situation);
    let evidence = format!(
        "{} at {}, {}, {} pairs",
        times(&clause.ratio),
        size(clause.evidence_bytes),
        interval(&clause.ratio),
        clause.pairs
    );
    let open = reasons(rows);
    let but = open.iter().map(|reason| format!("; undecided {reason}")).collect::<String>();
    match clause.verdict {
        Verdict::No => {
            let same = sizes(rows, Answer::Same);
            let same = if same.is_empty() { same } else { format!("; no difference of 5 % at {same}") };
            match again {
                true => format!("nor {what} (at least {evidence}{same}{but})"),
                false => {
                    format!("do not set IOSQE_ASYNC {what}: requests take longer with it (at least {evidence}{same}{but})")
                }
            }
        }
        Verdict::Yes => format!("set IOSQE_ASYNC {what}: requests take less time with it (at most {evidence}{but})"),
        Verdict::From { bytes } => {
            let range = match threshold {
                Some(Threshold::At { last_bytes, first_bytes, .. }) if first_bytes == bytes => {
                    format!("above {}", size(last_bytes))
                }
                _ => format!("from {} on", size(bytes)),
            };
            format!(
                "set IOSQE_ASYNC {what} {range}, and not below: there requests take less time with it (at most \
                 {evidence}{but})"
            )
        }
        Verdict::NoDifference => {
            format!("IOSQE_ASYNC makes no difference of 5 % {what}: leave it out (the most is {evidence}{but})")
        }
        Verdict::Mixed => format!(
            "{what} it is not the size alone that says whether IOSQE_ASYNC pays: requests of {} take less time with it (at \
             most {evidence}), others do not{but}",
            sizes(rows, Answer::Faster)
        ),
        Verdict::Undecided => format!("undecided here {what}, because {}: leave it out", open.join("; ")),
    }
}

/// The sizes that have this answer.
fn sizes(rows: &[&Row], answer: Answer) -> String {
    let of: Vec<_> = rows.iter().filter(|row| row.answer == answer).map(|row| size(row.bytes)).collect();
    of.join(", ")
}

/// The reasons why sizes have no answer, each with the numbers of the first such size.
fn reasons(rows: &[&Row]) -> Vec<String> {
    let reason = |answer| {
        let first = rows.iter().find(|row| row.answer == answer)?;
        let (at, one) = (sizes(rows, answer), size(first.bytes));
        let numbers = if at == one { String::new() } else { format!(" at {one}") };
        Some(match answer {
            Answer::Chance => format!(
                "at {at}, where chance may have made the difference ({}{numbers}, {})",
                times(&first.ratio),
                interval(&first.ratio)
            ),
            _ => {
                let turns: Vec<_> = first.turns.iter().map(|ratio| format!("{ratio:.*}", digits(*ratio))).collect();
                format!("at {at}, where the turns do not agree ({} times{numbers})", turns.join(", "))
            }
        })
    };
    [Answer::TurnsDiffer, Answer::Chance].into_iter().filter_map(reason).collect()
}

fn times(ratio: &Estimate) -> String {
    format!("{:.*} times", digits_of(ratio), ratio.value)
}

fn interval(ratio: &Estimate) -> String {
    let Some([low, high]) = ratio.interval else { return "too few for an interval".to_owned() };
    let digits = digits_of(ratio);
    format!("interval {low:.digits$} to {high:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measuring::Side;
    use anyring_lab::statistics::Summary;
    use std::collections::BTreeMap;

    fn row(situation: Situation, bytes: u32, low: f64, value: f64, high: f64) -> Row {
        let side =
            || Side { ways: BTreeMap::new(), latency_us: Summary::of(&[1.0]), submit_us: Summary::of(&[1.0]) };
        let (ratio, turns) = (Estimate { value, interval: Some([low, high]) }, vec![value; 3]);
        let answer = Answer::of(&ratio, &turns);
        let (plain, forced) = (side(), side());
        Row { situation, bytes, pairs: 99, plain, forced, ratio, turns, answer, submit_ratio: ratio }
    }

    /// A row whose turns do not agree.
    fn torn(situation: Situation, bytes: u32) -> Row {
        let answer = Answer::TurnsDiffer;
        Row { answer, turns: vec![0.8, 1.25, 1.0], ..row(situation, bytes, 0.9, 0.98, 1.1) }
    }

    use Situation::{Cached, Direct, Uncached};

    #[test]
    fn slower_everywhere_is_no_and_rests_on_the_nearest_to_one() {
        let rows = [
            row(Cached, 4096, 8.0, 9.0, 10.0),
            row(Cached, 65536, 1.4, 1.5, 1.6),
            row(Cached, 1 << 20, 0.9, 1.0, 1.1),
        ];
        let advice = derive(&rows, &[]);
        assert_eq!((advice.clauses[0].verdict, advice.clauses[0].evidence_bytes), (Verdict::No, 65536));
        let expected =
            "Do not set IOSQE_ASYNC for what is in the page cache: requests take longer with it (at least 1.50 \
            times at 64 KiB, interval 1.40 to 1.60, 99 pairs; no difference of 5 % at 1 MiB).";
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
        let verdict = |thresholds: &[_]| derive(&rows, thresholds).clauses[0].verdict;
        assert_eq!(verdict(&[(Direct, at)]), Verdict::From { bytes: 262_656 });
        assert!(derive(&rows, &[(Direct, at)])
            .sentence
            .starts_with("Set IOSQE_ASYNC with O_DIRECT above 256 KiB, and not"));
        assert_eq!(verdict(&[(Cached, at)]), Verdict::From { bytes: 1 << 20 });
        assert!(derive(&rows, &[]).sentence.starts_with("Set IOSQE_ASYNC with O_DIRECT from 1 MiB on, and not"));
        let beyond = Threshold::At { last_bytes: 1 << 21, first_bytes: (1 << 21) + 512, sharp: true };
        assert_eq!(verdict(&[(Direct, beyond)]), Verdict::From { bytes: 1 << 20 });
        assert_eq!(derive(&rows, &[]).clauses[0].evidence_bytes, 2 << 20);
    }

    #[test]
    fn advice_without_an_answer_for_any_size_is_undecided_and_says_why() {
        let rows = [torn(Direct, 512), row(Direct, 4096, 0.8, 0.9, 1.05), torn(Direct, 8192)];
        let advice = derive(&rows, &[]);
        assert_eq!((advice.clauses[0].verdict, advice.clauses[0].evidence_bytes), (Verdict::Undecided, 4096));
        let expected = "Undecided here with O_DIRECT, because at 512 B, 8 KiB, where the turns do not agree (0.80, 1.25, 1.00 \
            times at 512 B); at 4 KiB, where chance may have made the difference (0.90 times, interval 0.80 to 1.05): \
            leave it out.";
        assert_eq!(advice.sentence, expected.split_whitespace().collect::<Vec<_>>().join(" "));
    }

    #[test]
    fn sizes_without_an_answer_are_reported_and_decide_nothing() {
        let with = |answers: &[Row]| derive(answers, &[]);
        let (slower, faster) = (row(Direct, 512, 1.2, 1.3, 1.4), row(Direct, 1 << 20, 0.6, 0.7, 0.8));
        let same = row(Direct, 512, 0.99, 1.0, 1.01);
        let no = with(&[slower.clone(), torn(Direct, 4096)]);
        assert_eq!(no.clauses[0].verdict, Verdict::No);
        assert!(
            no.sentence.ends_with("; undecided at 4 KiB, where the turns do not agree (0.80, 1.25, 1.00 times))."),
            "{no:?}"
        );
        let from = with(&[slower.clone(), torn(Direct, 4096), faster.clone()]);
        assert_eq!(from.clauses[0].verdict, Verdict::From { bytes: 1 << 20 });
        assert_eq!(with(&[torn(Direct, 512), faster.clone()]).clauses[0].verdict, Verdict::Yes);
        assert_eq!(with(&[same, torn(Direct, 4096)]).clauses[0].verdict, Verdict::NoDifference);
        // A cut whose sides have no answer says nothing.
        let at = Threshold::At { last_bytes: 4096, first_bytes: 8192, sharp: true };
        let rows = [slower, row(Direct, 4096, 1.2, 1.3, 1.4), torn(Direct, 8192), faster];
        assert_eq!(derive(&rows, &[(Direct, at)]).clauses[0].verdict, Verdict::From { bytes: 1 << 20 });
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
        let advice = derive(&rows, &[]);
        let verdicts: Vec<_> = advice.clauses.iter().map(|clause| clause.verdict).collect();
        assert_eq!(verdicts, [Verdict::No, Verdict::Yes, Verdict::Mixed]);
        assert_eq!(advice.sentence.matches("; ").count(), 2, "{}", advice.sentence);
        let twice = [row(Cached, 4096, 8.0, 9.0, 10.0), row(Uncached, 4096, 2.0, 3.0, 4.0)];
        let sentence = derive(&twice, &[]).sentence;
        let nor = "99 pairs), nor for what is not in the page cache (at least 3.00 times";
        assert!(sentence.contains(nor), "{sentence}");
        assert!(sentence.contains("(at least 9.0 times at 4 KiB, interval 8.0 to 10.0,"), "{sentence}");
    }

    #[test]
    fn the_greatest_relief_of_the_submitting_thread_is_reported() {
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
        let reported = relief(&rows).expect("a relief");
        assert!(reported.contains("5.00 us instead of 200 us") && reported.contains("1 MiB"), "{reported}");
    }
}
