//! Models that wait for readiness and read by read(2): poll, epoll, asynchronous poll.

use super::{Field, Model};
use crate::aio::Aio;
use crate::outcome::{checked, expect, Outcome};
use crate::peer::epoll::Epoll;
use crate::peer::kernel_aio::poll_of;
use anyring_abi::{IoEvent, Iocb};
use anyring_lab::message::{Door, Proof};

/// poll(2).
pub struct Poll {
    fds: Vec<libc::pollfd>,
    memory: Vec<u8>,
}

impl Poll {
    pub fn new(field: &Field) -> Self {
        let fds = field.read_ends().map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        Poll { fds: fds.collect(), memory: vec![0; field.bytes] }
    }
}

impl Model for Poll {
    fn turn(&mut self, field: &mut Field) -> Outcome<u64> {
        // SAFETY: as many structures as stated.
        let answer = unsafe { libc::poll(self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t, -1) };
        let mut left = checked("poll", answer)?;
        let mut passed = 0;
        for index in 0..self.fds.len() {
            if left == 0 {
                break;
            }
            if self.fds[index].revents == 0 {
                continue;
            }
            expect(index < field.active.len(), || format!("an idle pipe has {:#x}", self.fds[index].revents))?;
            left -= 1;
            field.read(index, &mut self.memory)?;
            field.pass(index, &mut self.memory)?;
            field.write_on(index, &self.memory)?;
            passed += 1;
        }
        Ok(passed)
    }

    fn end(self) -> Outcome<Option<Proof>> {
        Ok(None)
    }
}

/// Number of tokens that a read has room for. A read that fills less than its room has emptied the pipe (epoll(7)).
const ROOM: usize = 4;

/// An edge-triggered epoll set of nonblocking pipes.
pub struct Edges {
    epoll: Epoll,
    memory: Vec<u8>,
    ready: Vec<usize>,
}

impl Edges {
    pub fn new(field: &Field) -> Outcome<Self> {
        let epoll = Epoll::new()?;
        for (index, fd) in field.read_ends().enumerate() {
            // SAFETY: takes and returns numbers.
            checked("fcntl", unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) })?;
            epoll.add(fd, libc::EPOLLET, index as u64)?;
        }
        Ok(Edges { epoll, memory: vec![0; ROOM * field.bytes], ready: Vec::new() })
    }
}

impl Model for Edges {
    fn turn(&mut self, field: &mut Field) -> Outcome<u64> {
        self.ready.extend(self.epoll.wait()?.map(|index| index as usize));
        let mut passed = 0;
        while let Some(index) = self.ready.pop() {
            expect(index < field.active.len(), || "an idle pipe became ready".to_owned())?;
            let read = field.read(index, &mut self.memory)?;
            if read == self.memory.len() {
                self.ready.push(index);
            }
            for token in self.memory[..read].chunks_exact_mut(field.bytes) {
                field.pass(index, token)?;
                field.write_on(index, token)?;
                passed += 1;
            }
        }
        Ok(passed)
    }

    fn end(self) -> Outcome<Option<Proof>> {
        Ok(None)
    }
}

/// IOCB_CMD_POLL on each pipe, submitted again after each event.
pub struct AioPoll {
    aio: Aio,
    from_memory: bool,
    iocbs: Vec<Iocb>,
    events: Vec<IoEvent>,
    again: Vec<*const Iocb>,
    /// Room for a token of each event.
    memory: Vec<u8>,
}

impl AioPoll {
    pub fn new(field: &Field, door: Door, from_memory: bool) -> Outcome<Self> {
        let mut aio = Aio::new(door, field.read_end_count() as u32)?;
        let polls = field.read_ends().enumerate();
        let iocbs: Vec<Iocb> = polls.map(|(index, fd)| poll_of(index as u64, fd)).collect();
        let all: Vec<*const Iocb> = iocbs.iter().map(std::ptr::from_ref).collect();
        // SAFETY: iocbs that stay where they are as long as the context lives; a poll has no memory.
        unsafe { aio.submit(&all) }?;
        let most = field.active.len();
        let (events, memory) = (vec![IoEvent::default(); most], vec![0; most * field.bytes]);
        Ok(AioPoll { aio, from_memory, iocbs, events, again: Vec::new(), memory })
    }
}

impl Model for AioPoll {
    fn turn(&mut self, field: &mut Field) -> Outcome<u64> {
        let count = match self.from_memory {
            true => self.aio.read_events(&mut self.events)?,
            false => self.aio.get_events(&mut self.events)?,
        };
        let bytes = field.bytes;
        self.again.clear();
        for (event, token) in self.events[..count].iter().zip(self.memory.chunks_exact_mut(bytes)) {
            let index = event.data as usize;
            let readable = event.res & i64::from(libc::POLLIN) != 0 && index < field.active.len();
            expect(readable, || format!("a poll ended with {event:?}"))?;
            field.read(index, token)?;
            field.pass(index, token)?;
            self.again.push(&raw const self.iocbs[index]);
        }
        // SAFETY: as in `new`.
        unsafe { self.aio.submit(&self.again) }?;
        for (event, token) in self.events[..count].iter().zip(self.memory.chunks_exact(bytes)) {
            field.write_on(event.data as usize, token)?;
        }
        Ok(count as u64)
    }

    fn end(self) -> Outcome<Option<Proof>> {
        self.aio.end().map(Some)
    }
}
