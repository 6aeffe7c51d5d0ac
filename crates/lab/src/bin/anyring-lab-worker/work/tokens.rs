//! pipetest, as published in 2002: tokens go round many pipes, beside pipes that stay empty.
//!
//! A pass finds a token, reads it, and writes it to the next pipe. Each model ([`Model`]) waits on the read ends of all
//! pipes. It asks for the next token of a pipe before it writes to another. Writes are write(2), except for io_uring.

mod asynchronous;
mod park;
mod ready;

use crate::outcome::{checked, expect, figure, want_descriptors, Outcome, Stop};
use crate::peer::not_for;
use anyring_lab::message::{Door, Measured, Program, Proof, TokenPasses};
use anyring_lab::scratch::word_at;
use park::Parked;
use std::io;
use std::time::Instant;

/// The number of timed passes for each untimed pass at the beginning.
const WARM_UP: u64 = 10;
/// Bytes of a token's number and its passes so far.
const HEAD: usize = 12;
/// Bytes at the end of a token, derived from its number and passes, if it has room.
const TAIL: usize = 8;

/// One way of waiting.
trait Model {
    /// Waits for tokens and passes on those that are there. Returns their number.
    fn turn(&mut self, field: &mut Field) -> Outcome<u64>;

    /// Returns the proof of its server.
    fn end(self) -> Outcome<Option<Proof>>;
}

/// Runs the workload on this program. The figure is token passes a second.
pub fn run(program: Program, door: Door, work: &TokenPasses) -> Outcome<Measured> {
    match program {
        Program::Poll => {
            // poll(2) checks every descriptor each time, so this program gets fewer passes in proportion.
            let passes = (work.passes / u64::from(1 + (work.active + work.idle) / 64)).max(16);
            time(&TokenPasses { passes, ..*work }, |field| Ok(ready::Poll::new(field)))
        }
        Program::Epoll => time(work, ready::Edges::new),
        Program::AioPoll => time(work, |field| ready::AioPoll::new(field, door, work.from_memory)),
        Program::Aio => time(work, |field| asynchronous::AioRead::new(field, door, work.from_memory)),
        Program::Uring => time(work, |field| asynchronous::Uring::new(field, door)),
        other => not_for(other),
    }
}

fn time<M: Model>(work: &TokenPasses, model: impl FnOnce(&Field) -> Outcome<M>) -> Outcome<Measured> {
    let mut field = Field::new(work)?;
    let mut model = model(&field)?;
    field.seed(work.tokens)?;
    let mut pass = |field: &mut Field, passes: u64| {
        let (start, mut done) = (Instant::now(), 0);
        while done < passes {
            done += model.turn(field)?;
        }
        Ok::<_, Stop>(done as f64 / start.elapsed().as_secs_f64())
    };
    pass(&mut field, work.passes / WARM_UP)?;
    let rate = pass(&mut field, work.passes)?;
    // Each token must come out of the pipe that it is in, exactly once.
    field.gathering = true;
    pass(&mut field, u64::from(work.tokens))?;
    Ok(figure(rate, model.end()?))
}

/// The expected next pass of one token.
#[derive(Debug, Clone, Copy)]
struct Token {
    passes: u64,
    pipe: usize,
}

/// The pipes and the tokens that go through them.
struct Field {
    /// The read and write ends of the pipes that tokens go through, in order.
    active: Vec<[i32; 2]>,
    idle: Parked,
    bytes: usize,
    tokens: Vec<Token>,
    /// True: tokens that were read are not written to another pipe.
    gathering: bool,
}

impl Field {
    fn new(work: &TokenPasses) -> Outcome<Self> {
        let (active, idle, bytes) = (work.active as usize, work.idle as usize, work.bytes as usize);
        expect(bytes >= HEAD && work.tokens <= work.active, || format!("{work:?}"))?;
        want_descriptors((2 * active + idle + idle.min(park::CHUNK) + 200) as u64)?;
        let mut field =
            Field { active: Vec::new(), idle: Parked::default(), bytes, tokens: Vec::new(), gathering: false };
        // The active ones are spread among the idle ones.
        let mut parked = 0;
        for number in 0..active {
            field.active.push(pipe()?);
            let until = idle * (number + 1) / active;
            field.idle.add(until - parked)?;
            parked = until;
        }
        field.idle.flush()?;
        Ok(field)
    }

    fn seed(&mut self, tokens: u32) -> Outcome<()> {
        let step = self.active.len() / tokens as usize;
        let mut memory = vec![0; self.bytes];
        for number in 0..tokens as usize {
            self.tokens.push(Token { passes: 0, pipe: number * step });
            self.mark(number, &mut memory);
            self.write(number * step, &memory)?;
        }
        Ok(())
    }

    /// Returns the pipe after this one.
    #[inline]
    fn after(&self, pipe: usize) -> usize {
        if pipe + 1 == self.active.len() {
            0
        } else {
            pipe + 1
        }
    }

    /// Writes the token's number and passes into `memory`.
    #[inline]
    fn mark(&self, number: usize, memory: &mut [u8]) {
        let passes = self.tokens[number].passes;
        memory[..4].copy_from_slice(&(number as u32).to_ne_bytes());
        memory[4..HEAD].copy_from_slice(&passes.to_ne_bytes());
        if let Some(tail) = memory.len().checked_sub(TAIL).filter(|tail| *tail >= HEAD) {
            memory[tail..].copy_from_slice(&tail_of(number, passes).to_ne_bytes());
        }
    }

    /// Checks the token in `memory`, which came out of this pipe. Changes it into the token to be written to the
    /// next pipe.
    #[inline]
    fn pass(&mut self, pipe: usize, memory: &mut [u8]) -> Outcome<()> {
        let number = u32::from_ne_bytes([memory[0], memory[1], memory[2], memory[3]]) as usize;
        let next = self.after(pipe);
        let Some(token) = self.tokens.get_mut(number) else {
            return Err(format!("token {number} came out of pipe {pipe}").into());
        };
        let expected = *token;
        *token = Token { passes: expected.passes + 1, pipe: next };
        let same = memory[4..HEAD] == expected.passes.to_ne_bytes()
            && (memory.len() < HEAD + TAIL
                || memory[memory.len() - TAIL..] == tail_of(number, expected.passes).to_ne_bytes());
        expect(same && expected.pipe == pipe, || {
            format!("out of pipe {pipe} came {:?} of token {number}, which was {expected:?}", &memory[..HEAD])
        })?;
        self.mark(number, memory);
        Ok(())
    }

    /// Writes the token that came out of this pipe to the next.
    #[inline]
    fn write_on(&self, pipe: usize, memory: &[u8]) -> Outcome<()> {
        match self.gathering {
            true => Ok(()),
            false => self.write(self.after(pipe), memory),
        }
    }

    #[inline]
    fn write(&self, pipe: usize, memory: &[u8]) -> Outcome<()> {
        // SAFETY: `memory` is readable.
        let answer = unsafe { libc::write(self.active[pipe][1], memory.as_ptr().cast(), memory.len()) };
        match answer == memory.len() as isize {
            true => Ok(()),
            false => Err(format!("writing to pipe {pipe} answered {answer}").into()),
        }
    }

    /// Reads up to `memory.len()` bytes, in whole tokens. Returns the number of bytes, 0 for an empty nonblocking pipe.
    #[inline]
    fn read(&self, pipe: usize, memory: &mut [u8]) -> Outcome<usize> {
        // SAFETY: `memory` is writable.
        let answer = unsafe { libc::read(self.active[pipe][0], memory.as_mut_ptr().cast(), memory.len()) };
        match answer {
            1.. if (answer as usize).is_multiple_of(self.bytes) => Ok(answer as usize),
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => Ok(0),
            _ => Err(format!("reading from pipe {pipe} answered {answer}").into()),
        }
    }

    /// Iterates over all read ends: those of active pipes, then the others.
    fn read_ends(&self) -> impl Iterator<Item = i32> + '_ {
        self.active.iter().map(|[read_end, _]| *read_end).chain(self.idle.read_ends().iter().copied())
    }

    fn read_end_count(&self) -> usize {
        self.active.len() + self.idle.read_ends().len()
    }
}

fn tail_of(number: usize, passes: u64) -> u64 {
    word_at((number as u64) << 40 | passes)
}

fn pipe() -> Outcome<[i32; 2]> {
    let mut pair = [0; 2];
    // SAFETY: room for two descriptors.
    checked("pipe2", unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok(pair)
}
