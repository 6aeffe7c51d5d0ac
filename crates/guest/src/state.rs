//! The words by which the executable is started as a host: what it is told, and what it runs.

use core::ffi::c_int;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// What the host's second argument begins with.
const STATE: &[u8] = anyring_serve::exec::STATE.as_bytes();

/// What a host tells the one that takes its place at an exec: the environment may have been cleaned. One letter each.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct State {
    /// `r`: the engine serves io_uring.
    pub rings: bool,
    /// `a`: the engine serves Linux AIO.
    pub aio: bool,
    /// `p`: programs that it executes get the library preloaded where that works.
    pub preloads: bool,
    /// `f`: the filter of general calls is installed.
    pub filtered: bool,
    /// `w`: that of calls that only matter with a ring, too.
    pub with_rings: bool,
    /// `l`: that of waits on epoll sets in which a ring is level-triggered, too.
    pub with_levels: bool,
    /// A number: a descriptor that is to be closed when the program has been loaded.
    pub closes: Option<c_int>,
}

impl State {
    /// As the host's second argument.
    pub fn to_argument(self) -> Vec<u8> {
        let flags = [self.rings, self.aio, self.preloads, self.filtered, self.with_rings, self.with_levels];
        let letters = flags.into_iter().zip("rapfwl".chars());
        let letters: String = letters.filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect();
        let number = self.closes.map_or(String::new(), |number| number.to_string());
        [STATE, letters.as_bytes(), number.as_bytes()].concat()
    }

    /// The state that the host's second argument names.
    pub fn parse(argument: &[u8]) -> Option<State> {
        let text = core::str::from_utf8(argument.strip_prefix(STATE)?).ok()?;
        let letters = text.trim_end_matches(|digit: char| digit.is_ascii_digit());
        let number = &text[letters.len()..];
        let has = |letter| letters.contains(letter);
        Some(State {
            rings: has('r'),
            aio: has('a'),
            preloads: has('p'),
            filtered: has('f'),
            with_rings: has('w'),
            with_levels: has('l'),
            closes: if number.is_empty() { None } else { Some(number.parse().ok()?) },
        })
    }
}

/// What the executable is given to be the host of the program in `file`: between its own name and the program's arguments.
pub fn lead(state: State, file: &Path) -> [OsString; 3] {
    [OsString::from_vec(state.to_argument()), file.into(), file.into()]
}
