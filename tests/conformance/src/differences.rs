//! The list of known differences between anyring and the kernel: a file of lines, see README.md.

use crate::report::{Outcome, Report};

/// A line of the list.
#[derive(Debug, Clone)]
pub struct Difference {
    pattern: String,
    /// The reason of the difference.
    pub reason: String,
    /// The kind of the difference.
    pub kind: Kind,
}

/// The kind of a known difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Fails.
    Fails,
    /// Passes or fails, by timing (`?CASE`).
    MayFail,
    /// Passes, but its answers are not the kernel's (`~CASE`).
    Answers,
    /// Passes, and its answers are sometimes not the kernel's, by timing (`~?CASE`).
    MayAnswer,
}

impl Kind {
    /// Returns the kind of the signs before a case's name, and the rest.
    fn parse(pattern: &str) -> (Kind, &str) {
        let signs = [("~?", Kind::MayAnswer), ("~", Kind::Answers), ("?", Kind::MayFail)];
        let known = signs.iter().find_map(|(sign, kind)| Some((*kind, pattern.strip_prefix(sign)?)));
        known.unwrap_or((Kind::Fails, pattern))
    }

    /// True if the difference is in the case's answers, not in its claim.
    pub fn is_of_answers(self) -> bool {
        matches!(self, Kind::Answers | Kind::MayAnswer)
    }

    /// True if the line predicts this outcome.
    pub fn explains(self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Failed(_) => !self.is_of_answers(),
            Outcome::Otherwise(_) => self.is_of_answers(),
            _ => false,
        }
    }

    /// True if the line may stay although a run shows no difference.
    pub fn may_agree(self) -> bool {
        matches!(self, Kind::MayFail | Kind::MayAnswer)
    }
}

impl Difference {
    /// True if the line covers this run: its name may omit the flag set and the door.
    pub fn covers(&self, report: &Report) -> bool {
        let (rest, door) = match self.pattern.rsplit_once('@') {
            Some((rest, door)) => (rest, Some(door)),
            None => (self.pattern.as_str(), None),
        };
        let (case, set) = match rest.strip_suffix(']').and_then(|rest| rest.split_once('[')) {
            Some((case, set)) => (case, Some(set)),
            None => (rest, None),
        };
        case == report.case
            && door.is_none_or(|door| door == report.door)
            && set.is_none_or(|set| Some(set) == report.flag_set)
    }

    /// The name as it stands in the list.
    pub fn pattern(&self) -> &str {
        &self.pattern
    }
}

/// Adds the list in `text` to those `known`. A line that begins with `!` takes an earlier one out: the case passes in
/// the environment of that file. [`Kind`] lists the other signs. A line without a reason is an error.
pub fn parse(text: &str, known: &mut Vec<Difference>) -> Result<(), String> {
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (pattern, reason) =
            line.split_once(char::is_whitespace).ok_or(format!("a known difference without a reason: {line}"))?;
        match pattern.strip_prefix('!') {
            None => {
                let (kind, pattern) = Kind::parse(pattern);
                known.push(Difference { pattern: pattern.to_owned(), reason: reason.trim().to_owned(), kind });
            }
            Some(pattern) => {
                let before = known.len();
                known.retain(|difference| difference.pattern != pattern);
                if known.len() == before {
                    return Err(format!("{pattern} is not a known difference, so it cannot be taken out"));
                }
            }
        }
    }
    Ok(())
}

/// Removes the lines about answers of cases that pass: there is no record to compare the answers with.
pub fn forget_answers(known: &mut Vec<Difference>) {
    known.retain(|difference| !difference.kind.is_of_answers());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_covers_what_its_line_names() {
        let text = "# text\n\nnop::a why\nnop::a[cqe32] why\nnop::a@raw why\nnop::a[plain]@raw why";
        let mut list = Vec::new();
        parse(text, &mut list).expect("well-formed");
        let report = |flag_set, door| Report { flag_set, door, ..Report::of("nop::a", Outcome::Passed) };
        let covered = |set, door| list.iter().map(|line| line.covers(&report(set, door))).collect::<Vec<_>>();
        assert_eq!(covered(None, "libc"), [true, false, false, false]);
        assert_eq!(covered(Some("cqe32"), "libc"), [true, true, false, false]);
        assert_eq!(covered(Some("plain"), "raw"), [true, false, true, true]);
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(parse("nop::a", &mut Vec::new()).is_err());
    }

    #[test]
    fn signs_before_a_name_say_how_it_differs() {
        let mut list = Vec::new();
        parse("a::b why\n?a::b why\n~a::b why\n~?a::b why", &mut list).expect("well-formed");
        let kinds: Vec<_> = list.iter().map(|line| line.kind).collect();
        assert_eq!(kinds, [Kind::Fails, Kind::MayFail, Kind::Answers, Kind::MayAnswer]);
        assert!(list.iter().all(|line| line.pattern() == "a::b"));
    }

    #[test]
    fn lines_of_answers_need_a_record() {
        let mut list = Vec::new();
        parse("a::b why\n~a::c why\n~?a::d why\n?a::e why", &mut list).expect("well-formed");
        forget_answers(&mut list);
        assert_eq!(list.iter().map(Difference::pattern).collect::<Vec<_>>(), ["a::b", "a::e"]);
    }

    #[test]
    fn a_later_list_removes_lines() {
        let mut list = Vec::new();
        parse("nop::a why\nnop::b why", &mut list).expect("well-formed");
        parse("!nop::a as natively here", &mut list).expect("it was listed");
        assert_eq!(list.iter().map(Difference::pattern).collect::<Vec<_>>(), ["nop::b"]);
        assert!(parse("!nop::a as natively here", &mut list).is_err());
    }
}
