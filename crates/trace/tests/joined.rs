//! Joins a process that already has a ring and an AIO context: this one, which calls the engine directly. There is
//! one test, since the process has one set of rings.

use anyring_abi::{Opcode, Params, Sqe, Timespec, IOCB_CMD_PREAD, IORING_ENTER_GETEVENTS, IORING_SETUP_NO_MMAP};
use anyring_engine::aio::{io_getevents, io_setup, io_submit, Wait};
use anyring_engine::event::{Event, Kind};
use anyring_engine::{enter, setup, stats, Enter};
use anyring_trace::{JoinedSource, Source};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};

const AREA: usize = 1 << 16;

#[repr(C, align(4096))]
struct Area([u8; AREA]);

/// A ring in this process's own memory, kept until the process ends.
struct Ring {
    fd: i32,
    area: *mut u8,
    sqes: *mut Sqe,
    params: Params,
}

impl Ring {
    fn new() -> Ring {
        let area = Box::leak(Box::new(Area([0; AREA]))).0.as_mut_ptr();
        let sqes = Box::leak(Box::new(Area([0; AREA]))).0.as_mut_ptr().cast::<Sqe>();
        let mut params = Params { flags: IORING_SETUP_NO_MMAP, ..Params::default() };
        (params.cq_off.user_addr, params.sq_off.user_addr) = (area as u64, sqes as u64);
        let fd = setup(8, std::ptr::from_mut(&mut params) as u64).expect("setup");
        Ring { fd, area, sqes, params }
    }

    fn word(&self, offset: u32) -> &AtomicU32 {
        assert!(offset as usize + 4 <= AREA);
        // SAFETY: inside the area, aligned as the engine laid it out, and only used as an atomic.
        unsafe { &*self.area.add(offset as usize).cast::<AtomicU32>() }
    }

    /// Submits one request, waits for its CQE and reaps it.
    fn request(&self, user_data: u64, fd: i32, buffer: &mut [u8]) {
        let tail = self.word(self.params.sq_off.tail);
        let position = tail.load(Ordering::Relaxed);
        let index = position & (self.params.sq_entries - 1);
        let (addr, len) = (buffer.as_mut_ptr() as u64, buffer.len() as u32);
        let sqe = Sqe { opcode: Opcode::Read as u8, fd, addr, len, user_data, ..Sqe::default() };
        // SAFETY: masked, so inside the array; the engine reads it in the call below only.
        unsafe { self.sqes.add(index as usize).write(sqe) };
        self.word(self.params.sq_off.array + 4 * index).store(index, Ordering::Relaxed);
        tail.store(position.wrapping_add(1), Ordering::Release); // partner: the engine's Acquire load
        let flags = IORING_ENTER_GETEVENTS;
        let call = Enter { fd: self.fd as u32, to_submit: 1, min_complete: 1, flags, arg: 0, arg_size: 0 };
        assert_eq!(enter(&call), Ok(1));
        self.word(self.params.cq_off.head).fetch_add(1, Ordering::Release); // partner: the engine's load
    }
}

/// One read by Linux AIO.
fn read_by_aio(context: u64, data: u64, fd: i32, buffer: &mut [u8]) {
    let (fd, buf, bytes) = (fd as u32, buffer.as_mut_ptr() as u64, buffer.len() as u64);
    let iocb = anyring_abi::Iocb { opcode: IOCB_CMD_PREAD, fd, buf, bytes, data, ..Default::default() };
    let iocbs = [&raw const iocb];
    assert_eq!(io_submit(context, 1, iocbs.as_ptr() as u64), Ok(1));
    let mut events = [anyring_abi::IoEvent::default()];
    let time = Timespec { tv_sec: 10, tv_nsec: 0 };
    let (events, timeout) = (events.as_mut_ptr() as u64, &raw const time as u64);
    assert_eq!(io_getevents(&Wait { context, at_least: 1, at_most: 1, events, timeout }), Ok(1));
}

/// Number of descriptors and mappings of the process with this name.
fn traces_of(name: &str) -> usize {
    let fds = std::fs::read_dir("/proc/self/fd").expect("the descriptors").flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    let named = links.filter(|link| link.to_string_lossy().contains(name)).count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    named + maps.lines().filter(|line| line.contains(name)).count()
}

fn has(events: &[Event], kind: Kind, user_data: u64, aio: bool) -> bool {
    events.iter().any(|event| event.kind == kind && event.user_data == user_data && event.is_aio() == aio)
}

#[test]
fn rings_and_contexts_that_are_there_are_heard_from_then_on_until_the_tracer_leaves() {
    anyring_engine::os::handler_installed(); // no address here is bad
    let me = std::process::id() as i32;
    assert!(JoinedSource::of_process(me).expect("no refusal").is_none(), "not served yet");
    stats::open(None).expect("counters");
    let ring = Ring::new();
    let mut context = 0u64;
    io_setup(8, &raw mut context as u64).expect("io_setup");
    let file = std::fs::File::open("/dev/zero").expect("a file");
    let (fd, mut buffer) = (file.as_raw_fd(), [0u8; 512]);
    ring.request(1, fd, &mut buffer);
    read_by_aio(context, 2, fd, &mut buffer);
    for round in 0..3u64 {
        let data = 100 * (round + 1);
        let mut source = JoinedSource::of_process(me).expect("no refusal").expect("it is served");
        let mut events = Vec::new();
        source.drain(&mut events);
        ring.request(data, fd, &mut buffer); // asked, and answers
        source.drain(&mut events);
        assert_eq!((events.len(), source.refusal()), (0, None));
        // Either call may be the one that notices the request, for both.
        match round {
            0 => ring.request(data, fd, &mut buffer),
            _ => read_by_aio(context, data, fd, &mut buffer),
        }
        ring.request(data + 1, fd, &mut buffer);
        read_by_aio(context, data + 2, fd, &mut buffer);
        let late = Ring::new();
        late.request(data + 3, fd, &mut buffer);
        assert_ne!(traces_of("anyring-events"), 0);
        source.finish(&mut events);
        assert_eq!((source.dropped(), source.refusal()), (0, None));
        for (data, aio) in [(data + 1, false), (data + 2, true), (data + 3, false)] {
            assert!(has(&events, Kind::SubmitReq, data, aio), "{data}: {events:?}");
            assert!(has(&events, Kind::Complete, data, aio), "{data}: {events:?}");
        }
        assert!(!has(&events, Kind::SubmitReq, 1, false) && !has(&events, Kind::SubmitReq, 2, true));
        let known = |event: &&Event| event.kind == Kind::Create && !event.is_aio() && event.fd == ring.fd;
        assert_eq!(events.iter().filter(known).count(), 1, "a ring says once that it is there: {events:?}");
        drop(source);
        ring.request(data + 4, fd, &mut buffer);
        let left = std::fs::read_dir("/proc/self/fd").expect("the descriptors").count();
        assert_eq!(traces_of("anyring-events"), 0, "of {left} descriptors");
    }
}
