//! The rules of chaos: their names, what each does, and what permits it. The engine, the command's help, the tests
//! and docs/chaos.md all use this one table.

/// A rule of chaos. The number is the rule's place in [`RULES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // `RULES` says what each does
pub enum Rule {
    Short,
    Late,
    Enter,
    Multishot,
    Cancel,
    Nobufs,
    Overflow,
    Busy,
    Spurious,
    Notify,
    Edge,
    Eio,
    Enospc,
    Enomem,
    Corrupt,
    Lifetimes,
    Misuse,
    Eintr,
}

/// A row of [`RULES`].
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The rule.
    pub rule: Rule,
    /// The name on the command line (`--rules`).
    pub name: &'static str,
    /// The effect of the rule.
    pub what: &'static str,
    /// The manual page that permits the rule. `None` if the rule is followed only when it is named.
    pub page: Option<&'static str>,
}

const fn permitted(rule: Rule, name: &'static str, what: &'static str, page: &'static str) -> Row {
    Row { rule, name, what, page: Some(page) }
}

const fn outside(rule: Rule, name: &'static str, what: &'static str) -> Row {
    Row { rule, name, what, page: None }
}

/// Every rule, in the order of [`Rule`].
pub const RULES: [Row; 18] = [
    permitted(Rule::Short, "short", "reads, writes, sends and receives transfer fewer bytes than asked", "read(2)"),
    permitted(Rule::Late, "late", "requests start late, and complete in another order", "io_uring(7)"),
    permitted(
        Rule::Enter,
        "enter",
        "io_uring_enter answers EAGAIN or EINTR, takes fewer SQEs, or returns before the CQEs are there",
        "io_uring_enter(2)",
    ),
    permitted(
        Rule::Multishot,
        "multishot",
        "a multishot request ends after any CQE",
        "io_uring_prep_recv_multishot(3)",
    ),
    permitted(
        Rule::Cancel,
        "cancel",
        "a cancellation answers EALREADY, and what it meant ends later",
        "io_uring_prep_cancel(3)",
    ),
    permitted(
        Rule::Nobufs,
        "nobufs",
        "a stream's receives use up a provided buffer for a byte each, so that buffers run out",
        "io_uring_enter(2)",
    ),
    permitted(
        Rule::Overflow,
        "overflow",
        "a multishot request's CQE goes to the backlog, as if the CQ were full",
        "io_uring_setup(2)",
    ),
    permitted(
        Rule::Busy,
        "busy",
        "io_uring_enter answers EBUSY while CQEs of multishot requests wait in the backlog, and leaves them there",
        "io_uring_enter(2)",
    ),
    permitted(Rule::Spurious, "spurious", "a multishot poll tells the same once more", "select(2)"),
    permitted(
        Rule::Notify,
        "notify",
        "the notification of a zero-copy send comes late, after other CQEs",
        "io_uring_enter(2)",
    ),
    permitted(
        Rule::Edge,
        "edge",
        "a LINK_TIMEOUT or TIMEOUT of up to 100 ms fires just as its request ends, its count is reached, or it is removed",
        "io_uring_enter(2)",
    ),
    outside(Rule::Eio, "eio", "reads, writes, syncs and CLOSE fail with EIO"),
    outside(Rule::Enospc, "enospc", "writes to files and FALLOCATE fail with ENOSPC"),
    outside(Rule::Enomem, "enomem", "requests fail with ENOMEM"),
    outside(Rule::Corrupt, "corrupt", "a read or received byte is wrong"),
    outside(
        Rule::Lifetimes,
        "lifetimes",
        "memory of requests in flight is watched: a run fails where the program writes or unmaps it",
    ),
    outside(
        Rule::Misuse,
        "misuse",
        "a run fails where CQEs are not seen, user_data is twice in flight, or a file is closed that is in use",
    ),
    outside(Rule::Eintr, "eintr", "CLOSE fails with EINTR, and its descriptor is closed"),
];

/// A set of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules(u32);

impl Rules {
    /// No rules.
    pub const fn none() -> Rules {
        Rules(0)
    }

    /// Returns all rules that the manual permits.
    pub fn permitted() -> Rules {
        let permitted = RULES.iter().filter(|row| row.page.is_some());
        Rules(permitted.map(|row| 1 << row.rule as u32).sum())
    }

    /// Parses a list of names, separated by commas. `all` stands for what the manual permits. `thorough` adds the
    /// rules that only observe. `none` is the empty set.
    ///
    /// # Errors
    /// The name that no rule has.
    pub fn parse(list: &str) -> Result<Rules, String> {
        let mut rules = Rules(0);
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match RULES.iter().find(|row| row.name == name) {
                Some(row) => rules.0 |= 1 << row.rule as u32,
                None if name == "none" => {}
                None if name == "all" => rules.0 |= Rules::permitted().0,
                None if name == "thorough" => {
                    rules.0 |= Rules::permitted().0 | 1 << Rule::Lifetimes as u32 | 1 << Rule::Misuse as u32;
                }
                None => return Err(name.to_owned()),
            }
        }
        Ok(rules)
    }

    /// True if `rule` is in the set.
    pub fn has(self, rule: Rule) -> bool {
        self.0 & 1 << rule as u32 != 0
    }

    /// True if the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Rule {
    /// Returns the rule's name, as in `--rules`.
    pub fn name(self) -> &'static str {
        RULES[self as usize].name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_is_in_its_place() {
        for (place, row) in RULES.iter().enumerate() {
            assert_eq!((row.rule as usize, row.rule.name()), (place, row.name));
            assert_eq!(Rules::parse(row.name).map(|rules| rules.has(row.rule)), Ok(true));
        }
    }

    #[test]
    fn a_list_names_rules_and_nothing_else() {
        let rules = Rules::parse("all, eio").expect("rules");
        assert!(rules.has(Rule::Short) && rules.has(Rule::Eio) && !rules.has(Rule::Corrupt));
        let thorough = Rules::parse("thorough").expect("rules");
        assert!([Rule::Late, Rule::Lifetimes, Rule::Misuse].iter().all(|rule| thorough.has(*rule)));
        assert!(!thorough.has(Rule::Eio));
        assert_eq!(Rules::parse("short,shorter"), Err("shorter".to_owned()));
        assert_eq!((Rules::parse(""), Rules::parse("none")), (Ok(Rules(0)), Ok(Rules(0))));
    }
}
