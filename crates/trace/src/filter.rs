//! A filter of the events to print: `opcode=READ,fd=7,ring=1,res<0`.
//!
//! A condition on the opcode, the descriptor or the length of a request applies to all events of that request. The
//! filter remembers these fields from the submission, since most events do not carry them. A condition on the result
//! applies to CQEs only.

use crate::line::{opcode_name, probe};
use crate::Event;
use anyring_abi::{Opcode, IORING_CQE_F_MORE, IOSQE_FIXED_FILE};
use anyring_engine::event::{Kind, AIO};
use std::collections::HashMap;
use std::str::FromStr;

/// The fields that a condition may name.
const FIELDS: [(&str, Field); 8] = [
    ("opcode", Field::Opcode),
    ("fd", Field::Fd),
    ("ring", Field::Ring),
    ("res", Field::Result),
    ("thread", Field::Thread),
    ("len", Field::Len),
    ("user_data", Field::UserData),
    ("event", Field::Event),
];

/// Longer signs first: `<` is a prefix of `<=`.
const SIGNS: [(&str, Sign); 6] = [
    ("!=", Sign::Unequal),
    ("<=", Sign::AtMost),
    (">=", Sign::AtLeast),
    ("=", Sign::Equal),
    ("<", Sign::Less),
    (">", Sign::More),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Opcode,
    Fd,
    Ring,
    Result,
    Thread,
    Len,
    UserData,
    Event,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    Equal,
    Unequal,
    Less,
    AtMost,
    More,
    AtLeast,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Number(i128),
    Name(String),
}

#[derive(Debug, Clone)]
struct Condition {
    field: Field,
    sign: Sign,
    value: Value,
}

/// The fields of a request that its submission carried.
#[derive(Debug, Clone, Copy, Default)]
struct Submitted {
    opcode: u16,
    user_data: u64,
    fd: Option<i32>,
    len: Option<u32>,
}

/// Conditions that must all hold.
#[derive(Debug, Clone)]
pub struct Filter {
    conditions: Vec<Condition>,
    requests: HashMap<(u32, u32), Submitted>,
}

impl FromStr for Filter {
    type Err = String;

    /// The error is one line that says what is wrong; the caller adds the context.
    fn from_str(text: &str) -> Result<Filter, String> {
        let conditions = text.split(',').map(|part| condition(part.trim())).collect::<Result<_, _>>()?;
        Ok(Filter { conditions, requests: HashMap::new() })
    }
}

fn condition(text: &str) -> Result<Condition, String> {
    let end = text.find(|it: char| !it.is_ascii_alphanumeric() && it != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let found = SIGNS.iter().find_map(|(sign, which)| Some((*which, rest.trim_start().strip_prefix(sign)?.trim())));
    let (sign, value) = match found {
        Some((sign, value)) if !name.is_empty() && !value.is_empty() => (sign, value),
        _ => return Err(format!("{text:?} is no condition (as opcode=READ or res<0, with a comma between two)")),
    };
    let field = FIELDS.iter().find(|(known, _)| *known == name).map(|(_, field)| *field).ok_or_else(|| {
        let known: Vec<_> = FIELDS.iter().map(|(name, _)| *name).collect();
        format!("events have no field {name:?} (there are {})", known.join(", "))
    })?;
    let value = match field {
        Field::Opcode => Value::Name(opcode(value)?),
        Field::Event => Value::Name(event(value)?),
        _ => Value::Number(number(value).ok_or_else(|| format!("{name} is a number, which {value:?} is not"))?),
    };
    if matches!(value, Value::Name(_)) && !matches!(sign, Sign::Equal | Sign::Unequal) {
        return Err(format!("{name} is a name: = and != compare it, not what {text:?} has"));
    }
    Ok(Condition { field, sign, value })
}

fn opcode(text: &str) -> Result<String, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("IORING_OP_").or_else(|| upper.strip_prefix("IOCB_CMD_")).unwrap_or(&upper);
    let of_aio = |name: &str| (0..16).any(|command| opcode_name(AIO | command) == name);
    let is_known =
        Opcode::ALL.iter().any(|known| known.name() == name) || of_aio(name) || name.parse::<u8>().is_ok();
    is_known
        .then(|| name.to_owned())
        .ok_or_else(|| format!("there is no opcode {text:?} (as READ or IORING_OP_READ)"))
}

/// Parses the name of an event. Returns it without `io_uring_`, so that the same condition also finds the events of AIO
/// contexts.
fn event(text: &str) -> Result<String, String> {
    let name = text.rsplit(':').next().unwrap_or(text);
    let of_kind = |kind: &Kind| short_name(kind.name()) == short_name(name);
    let calls = ["sys_enter_io_submit", "sys_enter_io_getevents", "sys_enter_io_pgetevents"];
    let is_known = Kind::ALL.iter().filter(|kind| !kind.is_of_place()).any(of_kind) || calls.contains(&name);
    is_known
        .then(|| short_name(name).to_owned())
        .ok_or_else(|| format!("there is no event {text:?} (as complete or io_uring_complete)"))
}

fn short_name(name: &str) -> &str {
    name.strip_prefix("io_uring_").unwrap_or(name)
}

fn number(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok().map(i128::from),
        None => text.parse::<i64>().map(i128::from).or_else(|_| text.parse::<u64>().map(i128::from)).ok(),
    }
}

impl Filter {
    /// True if the event must be printed. Call it for every event, since it remembers submissions. `has_sqe` as for
    /// [`crate::line`].
    pub fn passes(&mut self, event: &Event, has_sqe: bool) -> bool {
        let request = self.follow(event, has_sqe);
        self.conditions.iter().all(|condition| condition.holds(event, request.as_ref()))
    }

    /// Updates and returns the known fields of the event's request.
    fn follow(&mut self, event: &Event, has_sqe: bool) -> Option<Submitted> {
        let key = (event.ring, event.request);
        match event.kind {
            Kind::SubmitReq | Kind::ReqFailed if event.request != 0 || event.kind == Kind::ReqFailed => {
                let is_told = has_sqe || event.kind == Kind::ReqFailed;
                let Event { opcode, user_data, .. } = *event;
                let request = Submitted {
                    opcode,
                    user_data,
                    fd: is_told.then_some(event.fd).filter(|_| event.flags & u32::from(IOSQE_FIXED_FILE) == 0),
                    len: is_told.then_some(event.len),
                };
                self.requests.insert(key, request);
            }
            Kind::FileGet => {
                if let Some(request) = self.requests.get_mut(&key) {
                    request.fd = Some(event.fd);
                }
            }
            // The event does not number its request: take any request with this user_data.
            Kind::CqeOverflow if event.request == 0 => {
                let of_it = |((ring, _), it): &(&(u32, u32), &Submitted)| {
                    *ring == event.ring && it.user_data == event.user_data
                };
                return self.requests.iter().find(of_it).map(|(_, request)| *request);
            }
            Kind::Complete | Kind::CqeOverflow if event.flags & IORING_CQE_F_MORE == 0 => {
                return self.requests.remove(&key);
            }
            _ => {}
        }
        self.requests.get(&key).copied()
    }
}

impl Condition {
    fn holds(&self, event: &Event, request: Option<&Submitted>) -> bool {
        let is_cqe = matches!(event.kind, Kind::Complete | Kind::CqeOverflow);
        let number = match self.field {
            Field::Opcode => return request.is_some_and(|request| self.is_name(&opcode_name(request.opcode))),
            Field::Event => {
                let probe = probe(event);
                return self.is_name(short_name(probe.rsplit(':').next().unwrap_or_default()));
            }
            Field::Fd => request.and_then(|request| request.fd).map(i128::from),
            Field::Len => request.and_then(|request| request.len).map(i128::from),
            Field::UserData => request.map(|request| request.user_data.into()),
            Field::Ring => (event.ring != 0).then_some(event.ring.into()),
            Field::Result => is_cqe.then_some(event.result.into()),
            Field::Thread => Some(event.thread.into()),
        };
        // A condition on an unknown field never holds, not even `!=`.
        let (Some(number), Value::Number(value)) = (number, &self.value) else { return false };
        match self.sign {
            Sign::Equal => number == *value,
            Sign::Unequal => number != *value,
            Sign::Less => number < *value,
            Sign::AtMost => number <= *value,
            Sign::More => number > *value,
            Sign::AtLeast => number >= *value,
        }
    }

    fn is_name(&self, name: &str) -> bool {
        let Value::Name(value) = &self.value else { return false };
        (name == value) == (self.sign == Sign::Equal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Indexes of the events that pass: of a READ on descriptor 7 that fails, a NOP that succeeds, and an enter call.
    fn passing(filter: &str, has_sqe: bool) -> Vec<usize> {
        let of = |request, kind| Event { ring: 1, request, thread: 9, ..Event::new(kind) };
        let fd = if has_sqe { 7 } else { 0 };
        let events = [
            Event { ring: 1, ..Event::new(Kind::Enter) },
            Event { opcode: Opcode::Read as u16, fd, len: 512, user_data: 0x2a, ..of(1, Kind::SubmitReq) },
            Event { fd: 7, ..of(1, Kind::FileGet) },
            of(2, Kind::SubmitReq), // a NOP
            Event { result: -5, ..of(1, Kind::Complete) },
            of(2, Kind::Complete),
        ];
        let mut filter: Filter = filter.parse().expect("a filter");
        let passing = events.iter().map(|event| filter.passes(event, has_sqe)).enumerate();
        passing.filter(|(_, passes)| *passes).map(|(place, _)| place).collect()
    }

    #[test]
    fn all_conditions_hold_for_all_events_of_a_request() {
        for (filter, events) in [
            ("opcode=READ", &[1, 2, 4][..]),
            ("opcode=nop", &[3, 5]),
            ("opcode!=ioring_op_read", &[3, 5]),
            ("ring=1", &[0, 1, 2, 3, 4, 5]),
            ("res<0", &[4]),
            ("res >= 0", &[5]),
            ("opcode=READ, fd=7, ring=1, res<0", &[4]),
            ("user_data=0x2a,event=io_uring_complete", &[4]),
            ("event=sys_enter_io_uring_enter", &[0]),
            ("len>100", &[1, 2, 4]),
            ("thread=9,event!=complete", &[1, 2, 3]),
        ] {
            assert_eq!(passing(filter, true), events, "{filter}");
        }
        assert_eq!(passing("fd=7", false), [2, 4], "the kernel tells the descriptor when it looks it up");
        assert_eq!(passing("len=0", false), [0; 0], "what is not told is not 0");
    }

    #[test]
    fn an_expression_that_is_no_filter_is_named_in_one_line() {
        for (filter, why) in [
            ("", "\"\" is no condition (as opcode=READ or res<0, with a comma between two)"),
            ("opcode", "\"opcode\" is no condition (as opcode=READ or res<0, with a comma between two)"),
            ("fd=7,", "\"\" is no condition (as opcode=READ or res<0, with a comma between two)"),
            ("opcode=REED", "there is no opcode \"REED\" (as READ or IORING_OP_READ)"),
            ("opcode<READ", "opcode is a name: = and != compare it, not what \"opcode<READ\" has"),
            ("fd=seven", "fd is a number, which \"seven\" is not"),
            ("event=done", "there is no event \"done\" (as complete or io_uring_complete)"),
        ] {
            assert_eq!(filter.parse::<Filter>().expect_err(filter), why);
        }
        let why = "size=1".parse::<Filter>().expect_err("no such field");
        assert!(why.starts_with("events have no field \"size\" (there are opcode, fd, ring, res, "), "{why}");
    }
}
