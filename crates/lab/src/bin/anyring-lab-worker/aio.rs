//! Linux AIO as a program uses it: libaio's functions if installed, libc's `syscall()`, or the worker's own system call
//! instructions. Events are fetched by io_getevents(2) or read from the completion ring in memory, as fio does.
//!
//! One thread owns an [`Aio`]. The context's server, the kernel or the engine, writes its completion ring.

use crate::outcome::{refused, Outcome, Stop};
use crate::provider;
use crate::ring::calls::Calls;
use anyring_abi::{
    AioRing, IoEvent, Iocb, AIO_RING_MAGIC, NR_IO_DESTROY, NR_IO_GETEVENTS, NR_IO_SETUP, NR_IO_SUBMIT,
};
use anyring_lab::message::{Door, Proof};
use std::ffi::{c_int, c_long, c_void, CStr};
use std::sync::atomic::{AtomicU32, Ordering};

type Setup = unsafe extern "C" fn(c_int, *mut u64) -> c_int;
type Submit = unsafe extern "C" fn(u64, c_long, *const *const Iocb) -> c_int;
type GetEvents = unsafe extern "C" fn(u64, c_long, c_long, *mut IoEvent, *mut libc::timespec) -> c_int;
type Destroy = unsafe extern "C" fn(u64) -> c_int;

/// libaio's functions.
#[derive(Clone, Copy)]
struct Functions {
    setup: Setup,
    submit: Submit,
    get_events: GetEvents,
    destroy: Destroy,
}

impl Functions {
    /// Finds the functions of the installed library, or of one that is preloaded. `None` if there are neither.
    fn open() -> Option<Self> {
        for name in [c"libaio.so.1", c"libaio.so.1t64"] {
            // SAFETY: libaio has no constructor that could disturb this process.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        }
        let symbol = |name: &CStr| {
            // SAFETY: a terminated name, looked up in the global scope.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            (!address.is_null()).then_some(address)
        };
        // SAFETY: each type is that of the function of this name in libaio.h.
        unsafe {
            Some(Functions {
                setup: std::mem::transmute::<*mut c_void, Setup>(symbol(c"io_setup")?),
                submit: std::mem::transmute::<*mut c_void, Submit>(symbol(c"io_submit")?),
                get_events: std::mem::transmute::<*mut c_void, GetEvents>(symbol(c"io_getevents")?),
                destroy: std::mem::transmute::<*mut c_void, Destroy>(symbol(c"io_destroy")?),
            })
        }
    }
}

/// The functions for a context's calls.
#[derive(Clone, Copy)]
enum Way {
    Libaio(Functions),
    Calls(Calls),
}

/// A context. [`Aio::end`] destroys it; otherwise the end of the process does.
pub struct Aio {
    context: u64,
    way: Way,
    in_flight: u64,
    completions: u64,
    negative: u64,
}

impl Aio {
    /// Makes a context by io_setup(2), with room for so many requests in flight.
    pub fn new(door: Door, in_flight: u32) -> Outcome<Self> {
        let way = match door {
            Door::Liburing => Functions::open().map_or(Way::Calls(Calls { raw: false }), Way::Libaio),
            Door::Libc => Way::Calls(Calls { raw: false }),
            Door::Raw => Way::Calls(Calls { raw: true }),
        };
        let mut context = 0u64;
        let answer = match way {
            // SAFETY: `context` is writable and zero.
            Way::Libaio(functions) => unsafe { (functions.setup)(in_flight as c_int, &mut context) as isize },
            Way::Calls(calls) => {
                calls.call::<NR_IO_SETUP>([in_flight as usize, &raw mut context as usize, 0, 0, 0, 0])
            }
        };
        match answer {
            0 => Ok(Aio { context, way, in_flight: 0, completions: 0, negative: 0 }),
            error => Err(refused("io_setup", -error as i32)),
        }
    }

    /// Submits by io_submit(2), until all are accepted.
    ///
    /// # Safety
    /// The pointers are to initialised iocbs. The iocbs' buffers stay alive and untouched until their events.
    #[inline]
    pub unsafe fn submit(&mut self, iocbs: &[*const Iocb]) -> Outcome<()> {
        let mut rest = iocbs;
        while !rest.is_empty() {
            let answer = match self.way {
                // SAFETY: this function's own contract, and as many pointers as stated.
                Way::Libaio(functions) => unsafe {
                    (functions.submit)(self.context, rest.len() as c_long, rest.as_ptr()) as isize
                },
                Way::Calls(calls) => {
                    let args = [self.context as usize, rest.len(), rest.as_ptr() as usize, 0, 0, 0];
                    calls.call::<NR_IO_SUBMIT>(args)
                }
            };
            if answer <= 0 {
                return Err(Stop::Failed(format!("submitting {} iocbs answered {answer}", rest.len())));
            }
            self.in_flight += answer as u64;
            rest = &rest[answer as usize..];
        }
        Ok(())
    }

    /// Waits by io_getevents(2) for at least one event. Stores the events in `events` and returns their number.
    #[inline]
    pub fn get_events(&mut self, events: &mut [IoEvent]) -> Outcome<usize> {
        let (room, to) = (events.len(), events.as_mut_ptr());
        let answer = match self.way {
            // SAFETY: room for as many events as stated; no timeout.
            Way::Libaio(functions) => unsafe {
                (functions.get_events)(self.context, 1, room as c_long, to, std::ptr::null_mut()) as isize
            },
            Way::Calls(calls) => calls.call::<NR_IO_GETEVENTS>([self.context as usize, 1, room, to as usize, 0, 0]),
        };
        if answer <= 0 {
            return Err(Stop::Failed(format!("waiting for an event answered {answer}")));
        }
        Ok(self.record(&events[..answer as usize]))
    }

    /// Reads the events in the completion ring, without a system call. Waits only if there are none.
    #[inline]
    pub fn read_events(&mut self, events: &mut [IoEvent]) -> Outcome<usize> {
        let ring = self.context as *const AioRing;
        // SAFETY: the address of a completion ring, which stays mapped as long as the context lives; both sides store
        // the words at any moment, so they are only read as atomics.
        let word = |word: *const u32| unsafe { AtomicU32::from_ptr(word.cast_mut()) };
        // SAFETY: as above; these fields are constant.
        let (places, magic, begin) = unsafe { ((*ring).nr, (*ring).magic, (*ring).header_bytes as usize) };
        if magic != AIO_RING_MAGIC {
            return self.get_events(events); // an unknown layout
        }
        // SAFETY: in-bounds fields of the structure.
        let (head, tail) = unsafe { (word(&raw const (*ring).head), word(&raw const (*ring).tail)) };
        let mut next = head.load(Ordering::Relaxed); // only this thread stores it
        let end = tail.load(Ordering::Acquire); // pairs with the server's store after it wrote the event
        let mut count = 0;
        while next != end && count < events.len() {
            // SAFETY: an index below `places`, so inside the ring; the server has written the event and does not reuse
            // its place before the head passes it.
            events[count] = unsafe { *ring.byte_add(begin).cast::<IoEvent>().add(next as usize) };
            next = if next + 1 == places { 0 } else { next + 1 };
            count += 1;
        }
        if count == 0 {
            return self.get_events(events);
        }
        head.store(next, Ordering::Release); // pairs with the server's load before it reuses the places
        Ok(self.record(&events[..count]))
    }

    #[inline]
    fn record(&mut self, events: &[IoEvent]) -> usize {
        self.completions += events.len() as u64;
        self.in_flight -= events.len() as u64;
        self.negative += events.iter().filter(|event| event.res < 0).count() as u64;
        events.len()
    }

    /// Destroys the context by io_destroy(2), which ends the requests in flight. Returns the proof of its server and
    /// counts.
    pub fn end(self) -> Outcome<Proof> {
        let provider = match self.way {
            Way::Libaio(functions) => Some(provider::of(functions.submit as *const c_void)),
            Way::Calls(calls) => calls.provider(),
        };
        let ring = mapping_at(self.context);
        let answer = match self.way {
            // SAFETY: a context of this process, not used after this.
            Way::Libaio(functions) => unsafe { (functions.destroy)(self.context) as isize },
            Way::Calls(calls) => calls.call::<NR_IO_DESTROY>([self.context as usize, 0, 0, 0, 0, 0]),
        };
        match answer {
            0 => Ok(Proof {
                provider,
                ring,
                completions: self.completions,
                negative: self.negative + self.in_flight,
            }),
            error => Err(Stop::Failed(format!("io_destroy answered {error}"))),
        }
    }
}

/// Returns the name in /proc/self/maps of the mapping that begins here.
fn mapping_at(address: u64) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.starts_with(&format!("{address:x}-")))?;
    Some(line.split_whitespace().skip(5).collect::<Vec<_>>().join(" "))
}
