use super::chunks::{has, CHUNKS, WORDS};
use super::*;
use crate::os::in_child::in_child;
use crate::Errno;
use std::path::PathBuf;

const ALL: u8 = has::TIME | has::USER_DATA | has::OFFSET | has::FD_LEN | has::RESULT_FLAGS;
/// Number of records of [`ALL`] that fit into a chunk after the record that names the thread.
const IN_A_CHUNK: usize = (WORDS - 1) / 6;

fn event(number: u64) -> Event {
    Event {
        user_data: 1 << 63 | number,
        offset: u64::MAX - number,
        request: 7,
        fd: -1,
        len: 4096,
        result: -11,
        flags: 0x8000_0001,
        opcode: 22,
        ..Event::new(Kind::Complete)
    }
}

/// Makes a reader. Its file is removed at once.
fn reader() -> Reader {
    let file = file("events");
    let reader = Reader::create(&file).expect("a file");
    std::fs::remove_file(file).expect("removed");
    reader
}

fn file(what: &str) -> PathBuf {
    let name = format!("anyring-{what}-{}-{:?}", std::process::id(), std::thread::current().id());
    std::env::temp_dir().join(name)
}

fn drained(reader: &mut Reader) -> Vec<Event> {
    let mut events = Vec::new();
    reader.drain(&mut events);
    reader.convert(&mut events);
    events
}

/// Clears the fields that the writer supplies.
fn bare(event: &Event) -> Event {
    Event { time_ns: 0, ring: 0, thread: 0, ..*event }
}

fn now_ns() -> u64 {
    use crate::os::{Os, Sys};
    Sys::clock_ns(libc::CLOCK_MONOTONIC)
}

#[test]
fn every_kind_comes_back_as_it_was_put_with_its_time_and_thread() {
    let mut reader = reader();
    let mut writer = reader.writer();
    let before = now_ns();
    let sent = Kind::ALL.map(|kind| Event { kind, ..event(5) });
    // The offset of these is a time.
    let sent = sent.map(|event| match event.kind {
        Kind::TaskAdd | Kind::Caller => Event { offset: 0, ..event },
        _ => event,
    });
    sent.iter().for_each(|event| writer.put::<ALL>(event));
    let after = now_ns();
    let events = drained(&mut reader);
    assert_eq!(events.iter().map(bare).collect::<Vec<_>>(), sent);
    let thread = crate::thread::id();
    for pair in events.windows(2) {
        assert!(pair[0].time_ns <= pair[1].time_ns, "time does not go back");
    }
    for event in &events {
        assert_eq!((event.ring, event.thread), (1, thread));
        // The two clocks are read within a microsecond, unless the thread is preempted between the two reads.
        assert!(event.time_ns + 5_000_000 > before && event.time_ns < after + 5_000_000, "{before} {event:?}");
    }
}

#[test]
fn times_that_a_worker_recorded_come_back_as_times_of_the_clock() {
    let mut reader = reader();
    let mut writer = reader.writer();
    let (begun, before) = (reader.now_ticks(), now_ns());
    std::thread::sleep(std::time::Duration::from_millis(20)); // so that the two clocks can drift apart
    let took = reader.now_ticks() - begun;
    let outcome = (took as u32 as i32, (took >> 32) as u32);
    let sent = Event { offset: begun, result: outcome.0, flags: outcome.1, fd: 77, ..Event::new(Kind::TaskAdd) };
    writer.put::<ALL>(&sent);
    let [event] = drained(&mut reader)[..] else { panic!("one event") };
    let worked = event.worked().expect("times");
    assert_eq!(worked.thread, 77);
    assert!(worked.began_ns.abs_diff(before) < 5_000_000, "{worked:?} {before}");
    assert!((19_000_000..2_000_000_000).contains(&worked.took_ns), "{worked:?}");
    assert_eq!(Event { offset: 0, ..event }.worked(), None);
    assert_eq!(Event { kind: Kind::Complete, ..event }.worked(), None);
}

#[test]
fn a_missing_field_is_zero_and_a_file_that_was_looked_up_is_an_event() {
    let mut reader = reader();
    let mut writer = reader.writer();
    let found = Event { file: FileKind::Socket, ..event(1) };
    writer.put::<{ has::TIME | has::USER_DATA }>(&event(1));
    writer.put::<{ has::FD_LEN | has::FILE }>(&found);
    let events = drained(&mut reader);
    let [first, submitted, got] = events[..] else { panic!("three events: {events:?}") };
    assert_eq!(bare(&first), Event { offset: 0, fd: 0, len: 0, result: 0, flags: 0, ..event(1) });
    assert_eq!((submitted.fd, submitted.len, submitted.file), (-1, 4096, FileKind::Unknown));
    assert_eq!((got.kind, got.fd, got.len, got.file), (Kind::FileGet, -1, 0, FileKind::Socket));
    assert!(first.time_ns == submitted.time_ns && submitted.time_ns == got.time_ns, "a step has one time");
}

#[test]
fn a_full_file_drops_and_counts_and_goes_on_when_it_was_read() {
    let mut reader = reader();
    let mut writer = reader.writer();
    let room = (CHUNKS * IN_A_CHUNK) as u64;
    (0..room + 10).for_each(|number| writer.put::<ALL>(&event(number)));
    let mut events = Vec::new();
    assert!(reader.drain(&mut events), "it is time for the next call");
    assert_eq!((events.len() as u64, reader.dropped()), (room, 10));
    assert!(events.iter().map(bare).eq((0..room).map(event)), "in order, across all chunks");
    writer.put::<ALL>(&event(99));
    let events = drained(&mut reader);
    assert_eq!((events.iter().map(bare).collect::<Vec<_>>(), reader.dropped()), (vec![event(99)], 10));
}

#[test]
fn writers_lose_and_repeat_nothing() {
    const EACH: u64 = 200_000;
    let mut reader = reader();
    let writers: Vec<_> = (0..3)
        .map(|_| {
            let mut writer = reader.writer();
            std::thread::spawn(move || (0..EACH).for_each(|n| writer.put::<ALL>(&event(n))))
        })
        .collect();
    let mut events = Vec::new();
    while writers.iter().any(|writer| !writer.is_finished()) {
        reader.drain(&mut events);
    }
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    while reader.drain(&mut events) {}
    assert_eq!(events.len() as u64 + reader.dropped(), 3 * EACH);
    for ring in 1..=3 {
        let mine: Vec<_> = events.iter().filter(|event| event.ring == ring).collect();
        assert!(mine.len() as u64 > EACH / 100, "some found room: {}", mine.len());
        assert!(mine.windows(2).all(|pair| pair[0].user_data < pair[1].user_data), "each writer's order");
        assert!(mine.windows(2).all(|pair| pair[0].time_ns <= pair[1].time_ns), "each writer's time");
        assert!(mine.windows(2).all(|pair| pair[0].thread == pair[1].thread), "each writer's thread");
    }
}

#[test]
fn chunks_of_dead_processes_are_used_again() {
    let mut reader = reader();
    // Twice as many writers as there are chunks. Each writer leaves its chunk in use.
    for _ in 0..2 * CHUNKS / 64 {
        let mut writers: Vec<_> = (0..64).map(|_| reader.writer()).collect();
        let child = || {
            for writer in &mut writers {
                let mut child = writer.in_child().expect("there, too");
                child.put::<ALL>(&event(1));
                core::mem::forget(child);
            }
            0
        };
        assert_eq!(in_child(child), 0);
        let events = drained(&mut reader);
        assert_eq!((events.len(), reader.dropped()), (64, 0));
    }
}

#[test]
fn another_file_is_refused() {
    let file = file("no-events");
    std::fs::write(&file, [0; 4096]).expect("written");
    assert_eq!(open(file.to_str().expect("a name")), Err(Errno::INVAL));
    std::fs::remove_file(file).expect("removed");
}

#[test]
fn an_event_says_why_nothing_was_tried() {
    let arm = Event::new(Kind::PollArm);
    assert_eq!(arm.with_skip(None).skip(), None);
    for skip in Skip::ALL {
        assert_eq!(arm.with_skip(Some(skip)).skip(), Some(skip));
        assert_eq!(Event { kind: Kind::Complete, ..arm.with_skip(Some(skip)) }.skip(), None, "a result");
    }
}
