//! The arguments with which the executable is started as a host: its state, and the program that it runs.

use core::ffi::c_int;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// The beginning of the host's second argument.
const STATE: &[u8] = anyring_serve::exec::STATE.as_bytes();

/// The state that a host passes to the host that replaces it at an exec. The environment does not serve for this, since
/// the program may have cleared it. Each true field is one letter.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct State {
    /// `r`: the engine serves io_uring.
    pub rings: bool,
    /// `a`: the engine serves Linux AIO.
    pub aio: bool,
    /// `p`: programs that the guest executes get the library preloaded if that works.
    pub preloads: bool,
    /// `f`: the filter of general calls is installed.
    pub filtered: bool,
    /// `w`: the filter of calls that only matter with a ring is installed, too.
    pub with_rings: bool,
    /// `l`: the filter of waits on epoll sets with a level-triggered ring is installed, too.
    pub with_levels: bool,
    /// A number: a descriptor to close when the program has been loaded.
    pub closes: Option<c_int>,
}

impl State {
    /// Returns the state as the host's second argument.
    pub fn to_argument(self) -> Vec<u8> {
        let flags = [self.rings, self.aio, self.preloads, self.filtered, self.with_rings, self.with_levels];
        let letters = flags.into_iter().zip("rapfwl".chars());
        let letters: String = letters.filter(|(is_set, _)| *is_set).map(|(_, letter)| letter).collect();
        let number = self.closes.map_or(String::new(), |number| number.to_string());
        [STATE, letters.as_bytes(), number.as_bytes()].concat()
    }

    /// Returns the state that the host's second argument names.
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

/// Returns the arguments that make the executable the host of the program in `file`. They go between its own name and
/// the program's arguments.
pub fn lead(state: State, file: &Path) -> [OsString; 3] {
    [OsString::from_vec(state.to_argument()), file.into(), file.into()]
}
