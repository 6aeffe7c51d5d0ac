//! The results of a case's requests and calls, in classes: nothing, a count, or an error, with the flags of the CQE.
//! No timing and no descriptor number changes a class. [`evidence`](crate::evidence) gathers them, and the
//! [oracle](crate::oracle) keeps those of the kernel.

use anyring_abi::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most different answers that are kept for a case. If a case has more, its answers depend on chance.
const MOST: usize = 192;

/// The source of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// A request with this opcode.
    Request(u8),
    /// A request that shares its `user_data` with others of another opcode.
    SomeRequest,
    /// A CQE of no request of this ring: a message.
    Message,
    /// io_uring_setup(2).
    Setup,
    /// io_uring_enter(2).
    Enter,
    /// io_uring_register(2) with this opcode.
    Register(u32),
}

/// Flags of a CQE that are part of an answer. IORING_CQE_F_SOCK_NONEMPTY is not: it depends on timing.
const FLAGS: &[(u32, &str)] = &[
    (IORING_CQE_F_BUFFER, "BUFFER"),
    (IORING_CQE_F_MORE, "MORE"),
    (IORING_CQE_F_NOTIF, "NOTIF"),
    (IORING_CQE_F_BUF_MORE, "BUF_MORE"),
    (IORING_CQE_F_32, "32"),
];

/// The answers of one case, in memory that the case's processes share with the runner. Each different answer takes one
/// word; a word of 0 is free.
pub struct Answers([AtomicU64; MOST]);

impl Default for Answers {
    fn default() -> Self {
        Answers(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Answers {
    /// Adds an answer. If there is no room it is left out; [`Answers::take`] then returns none.
    pub fn add(&self, of: Of, result: i32, flags: u32) {
        let word = pack(of, result, flags);
        for place in &self.0 {
            // Relaxed: the words are read once the processes that add them have ended.
            let seen = place.load(Ordering::Relaxed);
            let taken = || place.compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
            if seen == word
                || seen == 0 && matches!(taken(), Ok(_) | Err(_) if place.load(Ordering::Relaxed) == word)
            {
                return;
            }
        }
    }

    /// Takes the answers, as text; none if there were more than could be kept.
    pub fn take(&self) -> BTreeSet<String> {
        let words = self.0.each_ref().map(|place| place.swap(0, Ordering::Relaxed));
        if words.iter().all(|word| *word != 0) {
            return BTreeSet::new();
        }
        words.iter().filter(|word| **word != 0).map(|word| text(*word)).collect()
    }
}

/// Packs `kind` and `number`, the class of the result, and the flags that count into one word.
fn pack(of: Of, result: i32, flags: u32) -> u64 {
    let (kind, number) = match of {
        Of::Request(opcode) => (1, u32::from(opcode)),
        Of::SomeRequest => (2, 0),
        Of::Message => (3, 0),
        Of::Setup => (4, 0),
        Of::Enter => (5, 0),
        Of::Register(call) => (6, call & 0xff),
    };
    let class = result.clamp(-4095, 1); // an error, 0, or 1 for any count
    let flags = FLAGS.iter().filter(|(bit, _)| flags & bit != 0).fold(0, |all, (bit, _)| all | bit) & 0xffff;
    kind << 60 | u64::from(number) << 48 | u64::from((class as i16) as u16) << 32 | u64::from(flags)
}

/// `READ +`, `RECV -ENOBUFS`, `REGISTER_FILES 0`.
fn text(word: u64) -> String {
    let (kind, number) = (word >> 60, (word >> 48) as u32 & 0xff);
    let class = (word >> 32) as u16 as i16;
    let opcode = || Opcode::ALL.get(number as usize).map(|opcode| opcode.name().to_owned());
    let call = || {
        let names = interface::REGISTER_CALLS.iter();
        let name = names.clone().find(|name| name.value == u64::from(number))?.name;
        Some(name.trim_start_matches("IORING_").to_owned())
    };
    let of = match kind {
        1 => opcode().unwrap_or(format!("opcode {number}")),
        2 => "request".to_owned(),
        3 => "message".to_owned(),
        4 => "setup".to_owned(),
        5 => "enter".to_owned(),
        _ => call().unwrap_or(format!("register {number}")),
    };
    let class = match class {
        0 => "0".to_owned(),
        1 => "+".to_owned(),
        error => format!("-{}", error_name(-i32::from(error)).unwrap_or_else(|| (-error).to_string())),
    };
    let flags: Vec<_> = FLAGS.iter().filter(|(bit, _)| word as u32 & bit != 0).map(|(_, name)| *name).collect();
    match flags.is_empty() {
        true => format!("{of} {class}"),
        false => format!("{of} {class} {}", flags.join("|")),
    }
}

/// An error's name; none if there is no such error.
pub fn error_name(error: i32) -> Option<String> {
    let name = nix::errno::Errno::from_raw(error);
    (name != nix::errno::Errno::UnknownErrno).then(|| format!("{name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_reported_in_words_once_each() {
        let answers = Answers::default();
        answers.add(Of::Request(Opcode::Read as u8), 17, 0);
        answers.add(Of::Request(Opcode::Read as u8), 4, 0);
        answers.add(Of::Request(Opcode::Recv as u8), 4, IORING_CQE_F_BUFFER | 7 << 16 | IORING_CQE_F_SOCK_NONEMPTY);
        answers.add(Of::Enter, -libc::EBUSY, 0);
        answers.add(Of::Register(IORING_REGISTER_FILES), 0, 0);
        let reported: Vec<_> = answers.take().into_iter().collect();
        assert_eq!(reported, ["READ +", "RECV + BUFFER", "REGISTER_FILES 0", "enter -EBUSY"]);
        assert!(answers.take().is_empty());
    }

    #[test]
    fn more_than_can_be_kept_is_nothing() {
        let answers = Answers::default();
        (1..=200).for_each(|error| answers.add(Of::Message, -error, 0));
        assert!(answers.take().is_empty());
    }
}
