//! Queues, each for one sender and one receiver, and two ways to wake the receiver.

use super::Channel;
use crate::outcome::{available, checked, expect, Outcome};
use crate::peer::epoll::Epoll;
use anyring_lab::message::Proof;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{fence, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Capacity in messages, a power of two.
const ROOM: u32 = 4096;

/// A ring of messages in memory.
struct Queue {
    slots: Vec<[AtomicU64; 2]>,
    /// Stored by the receiver only.
    head: AtomicU32,
    /// Stored by the sender only.
    tail: AtomicU32,
}

impl Default for Queue {
    fn default() -> Self {
        let slots = (0..ROOM).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
        Queue { slots, head: AtomicU32::new(0), tail: AtomicU32::new(0) }
    }
}

impl Queue {
    /// Adds a message; spins while the queue is full.
    fn push(&self, sent_ns: u64, number: u32) {
        let tail = self.tail.load(Ordering::Relaxed); // only the sender stores it
                                                      // Acquire: pairs with the Release store in `pop`, after which the slot is free.
        while tail.wrapping_sub(self.head.load(Ordering::Acquire)) == ROOM {
            std::hint::spin_loop();
        }
        let [time, place] = &self.slots[(tail % ROOM) as usize];
        time.store(sent_ns, Ordering::Relaxed);
        place.store(u64::from(number), Ordering::Relaxed);
        self.tail.store(tail.wrapping_add(1), Ordering::Release); // partner: the Acquire load in `pop`
    }

    fn pop(&self) -> Option<(u64, u32)> {
        let head = self.head.load(Ordering::Relaxed); // only the receiver stores it
                                                      // Acquire: pairs with the Release store in `push` after the slot was written.
        if self.tail.load(Ordering::Acquire) == head {
            return None;
        }
        let [time, place] = &self.slots[(head % ROOM) as usize];
        let message = (time.load(Ordering::Relaxed), place.load(Ordering::Relaxed) as u32);
        self.head.store(head.wrapping_add(1), Ordering::Release); // partner: the Acquire load in `push`
        Some(message)
    }

    /// Takes all messages. True if there was any.
    fn drain(&self, each: &mut dyn FnMut(u64, u32) -> Outcome<()>) -> Outcome<bool> {
        let mut any = false;
        while let Some((sent, number)) = self.pop() {
            each(sent, number)?;
            any = true;
        }
        Ok(any)
    }
}

/// A queue for each sender.
struct Queues {
    all: Vec<Queue>,
    /// The next sender's queue.
    next: AtomicUsize,
}

impl Queues {
    fn new(senders: usize) -> Self {
        Queues { all: (0..senders).map(|_| Queue::default()).collect(), next: AtomicUsize::new(0) }
    }

    /// Returns the index of a queue that no other sender has.
    fn own(&self) -> Outcome<usize> {
        let own = self.next.fetch_add(1, Ordering::Relaxed); // a number that orders nothing
        expect(own < self.all.len(), || "more senders than queues".to_owned())?;
        Ok(own)
    }

    fn drain(&self, each: &mut dyn FnMut(u64, u32) -> Outcome<()>) -> Outcome<bool> {
        self.all.iter().try_fold(false, |any, queue| Ok(queue.drain(each)? || any))
    }
}

/// A queue whose receiver waits in epoll_wait for an eventfd, which each message signals.
pub struct WithEventfd {
    queues: Queues,
    event: OwnedFd,
}

impl WithEventfd {
    /// Makes an empty queue for `senders` senders.
    pub fn new(senders: usize) -> Outcome<Self> {
        // SAFETY: no pointers.
        let fd = available("eventfd", unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })? as i32;
        // SAFETY: the call just returned this descriptor, and no other code knows it.
        Ok(WithEventfd { queues: Queues::new(senders), event: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Takes all messages.
    pub fn drain(&self, each: &mut dyn FnMut(u64, u32) -> Outcome<()>) -> Outcome<()> {
        self.queues.drain(each).map(|_any| ())
    }
}

impl Channel for WithEventfd {
    type Sender = usize;
    type Receiver = Epoll;

    fn receiver(&self) -> Outcome<Epoll> {
        let epoll = Epoll::new()?;
        // Edge-triggered: the count need not be read.
        epoll.add(self.event.as_raw_fd(), libc::EPOLLET, 0)?;
        Ok(epoll)
    }

    fn sender(&self) -> Outcome<usize> {
        self.queues.own()
    }

    fn send(&self, own: &mut usize, sent_ns: u64, number: u32) -> Outcome<()> {
        self.queues.all[*own].push(sent_ns, number);
        let one = 1u64;
        // SAFETY: eight readable bytes.
        let answer = unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
        expect(answer == 8, || format!("writing to an eventfd answered {answer}"))
    }

    fn receive(
        &self,
        epoll: &mut Epoll,
        polling: bool,
        each: &mut dyn FnMut(u64, u32) -> Outcome<()>,
    ) -> Outcome<()> {
        if !polling {
            epoll.wait()?.count();
        }
        self.queues.drain(each)?;
        std::hint::spin_loop();
        Ok(())
    }

    fn proof(&self, _own: &usize, _receiver: Epoll) -> Option<Proof> {
        None
    }
}

/// A queue whose receiver announces when it sleeps. The sender wakes it only then.
pub struct WithFutex {
    queues: Queues,
    /// 1 while the receiver sleeps or is about to.
    asleep: AtomicU32,
}

impl WithFutex {
    /// Makes an empty queue for `senders` senders.
    pub fn new(senders: usize) -> Self {
        WithFutex { queues: Queues::new(senders), asleep: AtomicU32::new(0) }
    }

    fn futex(&self, operation: i32, value: u32) -> i64 {
        let none = std::ptr::null::<libc::timespec>();
        // SAFETY: the word lives as long as `self`; no timeout.
        unsafe { libc::syscall(libc::SYS_futex, self.asleep.as_ptr(), operation, value, none) }
    }
}

impl Channel for WithFutex {
    type Sender = usize;
    type Receiver = ();

    fn receiver(&self) -> Outcome<()> {
        Ok(())
    }

    fn sender(&self) -> Outcome<usize> {
        self.queues.own()
    }

    fn send(&self, own: &mut usize, sent_ns: u64, number: u32) -> Outcome<()> {
        self.queues.all[*own].push(sent_ns, number);
        // SeqCst: with the fence in `receive`, either the receiver sees the message or the sender sees that the
        // receiver sleeps.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) == 1 {
            self.asleep.store(0, Ordering::Relaxed);
            checked("FUTEX_WAKE", self.futex(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1))?;
        }
        Ok(())
    }

    fn receive(&self, (): &mut (), polling: bool, each: &mut dyn FnMut(u64, u32) -> Outcome<()>) -> Outcome<()> {
        if self.queues.drain(each)? || polling {
            std::hint::spin_loop();
            return Ok(());
        }
        self.asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst); // partner: the fence in `send`
        match self.queues.drain(each)? {
            true => self.asleep.store(0, Ordering::Relaxed),
            // Any answer (woken, the word has changed, a signal) means: check again.
            false => {
                self.futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG, 1);
            }
        }
        Ok(())
    }

    fn proof(&self, _own: &usize, (): ()) -> Option<Proof> {
        None
    }
}
