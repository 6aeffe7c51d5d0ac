//! The places in the program from which it submits. Stacks of some of the calls are taken. A new stack is recorded
//! as text, in as many FRAMES events as it needs. The CALLER event after these says that the thread's next call has
//! this stack.

use super::Recorder;
use crate::chaos::caller::number_of_stack;
use crate::chaos::caller::{Caller, Modules};
use crate::event::chunks::has;
use crate::event::{Event, Kind};

/// The number of calls of a ring whose stacks are all taken.
const FIRST: u32 = 256;
/// Number of later calls for each one whose stack is taken. A prime, so that no rhythm of the program hides a place.
const ONE_IN: u32 = 127;
/// The most stacks of a ring that are distinguished.
const STACKS: usize = 128;
/// Stands for a stack without a frame in a file.
const NOWHERE: u64 = 0;
/// Bytes of text in an event.
const BYTES: usize = 24;

/// The stacks of one ring's callers.
#[derive(Default)]
pub(super) struct Callers {
    calls: u32,
    modules: Modules,
    /// The sums of the addresses of each stack, and the number that stands for its text.
    known: Vec<(u64, u64)>,
}

impl Recorder {
    /// True if the stack of the call that begins is to be taken.
    #[cold]
    pub fn wants_caller(&mut self) -> bool {
        let callers = &mut self.callers;
        callers.calls = callers.calls.wrapping_add(1);
        callers.calls <= FIRST || callers.calls.is_multiple_of(ONE_IN)
    }

    /// Records from where the thread is about to make its call.
    #[cold]
    pub fn caller(&mut self, caller: &Caller) {
        let sum = caller.addresses().iter().fold(0, |sum, address| crate::chaos::mix(sum ^ *address as u64));
        let known = self.callers.known.iter().find(|(known, _)| *known == sum).map(|(_, stack)| *stack);
        self.writer.check_thread();
        let stack = known.or_else(|| self.describe(sum, caller)).filter(|stack| *stack != NOWHERE);
        let Some(stack) = stack else { return };
        let event = Event { user_data: stack, offset: caller.began_ticks, ..Event::new(Kind::Caller) };
        self.writer.put::<{ has::TIME | has::USER_DATA | has::OFFSET }>(&event);
    }

    /// Records the text of a new stack. Returns its number; `None` if the stack is not distinguished.
    fn describe(&mut self, sum: u64, caller: &Caller) -> Option<u64> {
        if self.callers.known.len() >= STACKS || self.callers.known.try_reserve(1).is_err() {
            return None;
        }
        let text = self.callers.modules.names(caller).join("\n");
        let stack = if text.is_empty() { NOWHERE } else { number_of_stack(text.as_bytes()) };
        self.callers.known.push((sum, stack));
        for part in text.as_bytes().chunks(BYTES) {
            let mut words = [0u64; 3];
            part.iter().enumerate().for_each(|(at, byte)| words[at / 8] |= u64::from(*byte) << (8 * (at % 8)));
            let [user_data, offset, rest] = words;
            let (result, flags) = (rest as u32 as i32, (rest >> 32) as u32);
            let event = Event { user_data, offset, result, flags, ..Event::new(Kind::Frames) };
            self.writer.put::<{ has::USER_DATA | has::OFFSET | has::RESULT_FLAGS }>(&event);
        }
        Some(stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Reader;

    #[test]
    fn the_first_calls_are_all_taken_and_of_the_rest_a_few() {
        let file = std::env::temp_dir().join(format!("anyring-callers-{}", std::process::id()));
        let mut reader = Reader::create(&file).expect("a file of events");
        let mut recorder = Recorder::by_writer(reader.writer(), 0);
        let taken = (0..100_000).filter(|_| recorder.wants_caller()).count();
        assert!((800..1_200).contains(&taken), "{taken}");
        // A stack that is known is named, and not described once more.
        recorder.callers.known.push((0, 7));
        let mut caller = Caller::nowhere();
        caller.began_ticks = reader.now_ticks();
        recorder.caller(&caller);
        let mut events = Vec::new();
        reader.drain(&mut events);
        reader.convert(&mut events);
        std::fs::remove_file(file).expect("remove");
        assert_eq!(events.iter().map(|it| (it.kind, it.user_data)).collect::<Vec<_>>(), [(Kind::Caller, 7)]);
        let took_ns = events[0].time_ns.checked_sub(events[0].offset).expect("it began before it ended");
        assert!(took_ns < 1_000_000_000, "in nanoseconds of one clock: {took_ns}");
    }
}
