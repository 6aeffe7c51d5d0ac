//! Linux AIO's polls, their events, and cancelling them.

use super::prelude::*;
use crate::aio::{is_readable, poll, pread, Aio};
use std::os::fd::AsRawFd;

topic!(since: "4.19", source: "io_submit(2), aio_poll in fs/aio.c");

#[case(own_flags)]
fn poll_of_what_is_ready_completes(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.run(poll(&writer, libc::POLLOUT)), i64::from(libc::POLLOUT));
    (&writer).write_all(b"x").expect("write");
    assert_eq!(aio.run(poll(&reader, libc::POLLIN | libc::POLLPRI)), i64::from(libc::POLLIN));
}

#[case(own_flags)]
fn poll_waits_for_data(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN)];
    for _ in 0..10 {
        assert_eq!(aio.submit(&mut polls), 1);
        assert_eq!(aio.get(0, 8, 0), Ok(vec![]));
        (&writer).write_all(b"x").expect("write");
        assert!(is_readable(&aio.wait(1)[0]));
        (&reader).read_exact(&mut [0]).expect("read");
    }
}

/// Waits for one byte in the pipe, again and again, and reads it.
fn wait_often(aio: &Aio, (mut reader, mut writer): (&std::fs::File, &std::fs::File)) {
    for _ in 0..8 {
        let mut polls = [poll(reader, libc::POLLIN)];
        assert_eq!(aio.submit(&mut polls), 1);
        writer.write_all(b"x").expect("write");
        assert!(is_readable(&aio.wait(1)[0]));
        reader.read_exact(&mut [0]).expect("read");
    }
}

/// Calls [`wait_often`], then polls once more while two bytes come. Reads one byte, and leaves the other for the next
/// poll.
fn leave_something(aio: &Aio, (mut reader, mut writer): (&std::fs::File, &std::fs::File)) {
    wait_often(aio, (reader, writer));
    let mut polls = [poll(reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    writer.write_all(b"xy").expect("write");
    assert!(is_readable(&aio.wait(1)[0]));
    reader.read_exact(&mut [0]).expect("read");
}

#[case(own_flags)]
fn poll_finds_what_is_left_after_polls_that_waited(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    leave_something(&aio, (&reader, &writer));
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    assert!(is_readable(&aio.wait(1)[0]));
}

#[case(own_flags)]
fn poll_finds_what_is_left_beside_others_that_are_always_ready(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (left, busy) = (pipe(), pipe());
    leave_something(&aio, (&left.0, &left.1));
    let mut rare = [Iocb { data: 1, ..poll(&left.0, libc::POLLIN) }];
    assert_eq!(aio.submit(&mut rare), 1);
    let mut often = [Iocb { data: 2, ..poll(&busy.0, libc::POLLIN) }];
    let found = (0..2_000).any(|_| {
        assert_eq!(aio.submit(&mut often), 1);
        (&busy.1).write_all(b"x").expect("write");
        let events = aio.get(1, 2, 10_000).expect("io_getevents");
        if events.iter().any(|event| event.data == 2) {
            (&busy.0).read_exact(&mut [0]).expect("read");
        }
        events.iter().any(|event| event.data == 1)
    });
    assert!(found, "what is left is never found");
}

#[case(own_flags)]
fn poll_of_a_number_that_names_another_file(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    wait_often(&aio, (&reader, &writer));
    let (other, other_writer) = pipe();
    (&other_writer).write_all(b"x").expect("write");
    // SAFETY: both numbers are open, and stay so.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), reader.as_raw_fd()) } >= 0);
    assert!(aio.run(poll(&reader, libc::POLLIN)) & i64::from(libc::POLLIN) != 0);
    let regular = file("data", b"0123456789");
    // SAFETY: as above.
    assert!(unsafe { libc::dup2(regular.as_raw_fd(), reader.as_raw_fd()) } >= 0);
    assert_eq!(aio.refused(poll(&reader, libc::POLLPRI)), -EINVAL as isize);
    let mut buffer = [0; 4];
    assert_eq!(aio.run(pread(&reader, &mut buffer, 3)), 4);
    assert_eq!(buffer, *b"3456");
    // SAFETY: as above; opened for writing only.
    assert!(unsafe { libc::dup2(writer.as_raw_fd(), reader.as_raw_fd()) } >= 0);
    assert_eq!(aio.refused(pread(&reader, &mut buffer, 0)), -EBADF as isize);
}

#[case(own_flags)]
fn poll_waits_for_hang_up(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, 0)];
    assert_eq!(aio.submit(&mut polls), 1);
    drop(writer);
    assert_eq!(aio.wait(1)[0].res, i64::from(libc::POLLHUP));
}

#[case(own_flags)]
fn poll_does_not_tell_what_was_not_asked(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (one, other) = pair();
    let mut polls = [poll(&other, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    put(&one, b"x");
    assert!(is_readable(&aio.wait(1)[0]));
    // POLLRDHUP is no event unless requested; with io_uring it is.
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::shutdown(one.as_raw_fd(), libc::SHUT_WR) }, 0);
    assert_eq!(aio.run(poll(&other, libc::POLLIN)), i64::from(libc::POLLIN));
    let both = libc::POLLIN | libc::POLLRDHUP;
    assert_eq!(aio.run(poll(&other, both)), i64::from(both));
}

#[case(own_flags)]
fn poll_of_a_regular_file(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let both = libc::POLLIN | libc::POLLOUT;
    assert_eq!(aio.run(poll(&file, both)), i64::from(both));
}

#[case(own_flags)]
fn poll_of_a_regular_file_for_what_never_comes_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.refused(poll(&file("data", b""), libc::POLLPRI)), -EINVAL as isize);
}

#[case(own_flags)]
fn poll_with_other_fields_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe();
    let plain = poll(&reader, libc::POLLIN);
    let others = [
        Iocb { buf: 0x10001, ..plain },
        Iocb { bytes: 1, ..plain },
        Iocb { offset: 1, ..plain },
        Iocb { rw_flags: 8, ..plain },
    ];
    for iocb in others {
        assert_eq!(aio.refused(iocb), -EINVAL as isize, "{iocb:?}");
    }
}

#[case(own_flags)]
fn poll_of_many_descriptors(cx: &Context) {
    let aio = Aio::new(cx.door, 64);
    let pipes: Vec<_> = (0..64).map(|_| pipe()).collect();
    let mut polls: Vec<Iocb> = Vec::new();
    for (index, (reader, _)) in pipes.iter().enumerate() {
        polls.push(Iocb { data: index as u64, ..poll(reader, libc::POLLIN) });
    }
    assert_eq!(aio.submit(&mut polls), 64);
    for (_, writer) in pipes.iter().rev() {
        let mut writer = writer;
        writer.write_all(b"x").expect("write");
    }
    let mut seen: Vec<u64> = aio.wait(64).iter().map(|event| event.data).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..64).collect::<Vec<_>>());
}

#[case(own_flags)]
fn polls_of_one_descriptor_are_all_reported(cx: &Context) {
    let aio = Aio::new(cx.door, 16);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN); 16];
    assert_eq!(aio.submit(&mut polls), 16);
    (&writer).write_all(b"x").expect("write");
    assert!(aio.wait(16).iter().all(is_readable));
}

#[case(own_flags)]
fn poll_survives_the_close_of_its_descriptor(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let copy = reader.try_clone().expect("dup");
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    drop(reader);
    (&writer).write_all(b"x").expect("write");
    assert!(is_readable(&aio.wait(1)[0]));
    drop(copy);
}

#[case(own_flags)]
fn cancel_of_a_poll_is_an_event(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN), Iocb { data: 7, ..poll(&reader, libc::POLLIN) }];
    assert_eq!(aio.submit(&mut polls), 2);
    assert_eq!(aio.cancel(&polls[1]), -libc::EINPROGRESS as isize);
    let event = aio.wait(1)[0];
    assert_eq!((event.data, event.obj, event.res), (7, &raw const polls[1] as u64, 0));
    assert_eq!(aio.get(0, 8, 20), Ok(vec![]));
}

#[case(own_flags)]
fn cancel_twice_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    assert_eq!(aio.cancel(&polls[0]), -libc::EINPROGRESS as isize);
    assert_eq!(aio.cancel(&polls[0]), -EINVAL as isize);
    aio.wait(1);
}

#[case(own_flags)]
fn cancel_of_what_is_done_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let mut iocbs = [pread(&file, &mut buffer, 0)];
    assert_eq!(aio.submit(&mut iocbs), 1);
    aio.wait(1);
    assert_eq!(aio.cancel(&iocbs[0]), -EINVAL as isize);
}

#[case(own_flags)]
fn cancel_with_another_key_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    polls[0].key = 1;
    assert_eq!(aio.cancel(&polls[0]), -EINVAL as isize);
}

#[case(own_flags)]
fn cancel_at_a_bad_address_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.cancel(bad_address() as *const Iocb), -EFAULT as isize);
}

#[case(own_flags)]
fn destroy_ends_pending_polls(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN); 4];
    assert_eq!(aio.submit(&mut polls), 4);
    assert_eq!(aio.destroy(), 0);
    (&writer).write_all(b"x").expect("write");
    let again = Aio::new(cx.door, 8);
    assert_eq!(again.run(poll(&reader, libc::POLLIN)), i64::from(libc::POLLIN));
    assert_eq!(again.get(0, 8, 20), Ok(vec![]));
}

/// A context and a pipe that was polled often, and a poll of it that waits now.
fn poll_after_others(cx: &Context, polls: &mut [Iocb; 1]) -> (Aio, std::fs::File, std::fs::File) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    wait_often(&aio, (&reader, &writer));
    polls[0] = Iocb { data: 7, ..poll(&reader, libc::POLLIN) };
    assert_eq!(aio.submit(polls), 1);
    (aio, reader, writer)
}

#[case(own_flags)]
fn poll_after_others_appears_in_memory(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, _reader, writer) = poll_after_others(cx, &mut polls);
    let before = aio.header().tail;
    (&writer).write_all(b"x").expect("write");
    assert!(aio.appear(1), "no event after {before}");
    assert_eq!(aio.wait(1)[0].data, 7);
}

#[case(own_flags)]
fn poll_after_others_is_cancelled(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, reader, writer) = poll_after_others(cx, &mut polls);
    assert_eq!(aio.cancel(&polls[0]), -libc::EINPROGRESS as isize);
    let event = aio.wait(1)[0];
    assert_eq!((event.data, event.obj, event.res), (7, &raw const polls[0] as u64, 0));
    (&writer).write_all(b"x").expect("write");
    assert_eq!(aio.get(0, 8, 20), Ok(vec![]));
    assert_eq!(aio.cancel(&polls[0]), -EINVAL as isize);
    assert_eq!(aio.run(poll(&reader, libc::POLLIN)), i64::from(libc::POLLIN));
}

#[case(own_flags)]
fn poll_after_others_survives_the_close_of_its_descriptor(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, reader, writer) = poll_after_others(cx, &mut polls);
    let copy = reader.try_clone().expect("dup");
    drop(reader);
    (&writer).write_all(b"x").expect("write");
    let event = aio.wait(1)[0];
    assert!(is_readable(&event) && event.data == 7);
    drop(copy);
}

#[case(own_flags)]
fn polls_after_others_are_all_reported(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, reader, writer) = poll_after_others(cx, &mut polls);
    let mut more = [poll(&reader, libc::POLLIN), poll(&reader, libc::POLLIN | libc::POLLPRI)];
    assert_eq!(aio.submit(&mut more), 2);
    let mut rest = [poll(&reader, libc::POLLPRI)];
    assert_eq!(aio.submit(&mut rest), 1);
    (&writer).write_all(b"x").expect("write");
    assert!(aio.wait(3).iter().all(is_readable));
    assert_eq!(aio.get(0, 8, 20), Ok(vec![]));
    drop(writer);
    assert_eq!(aio.wait(1)[0].res & i64::from(libc::POLLHUP), i64::from(libc::POLLHUP));
}

#[case(own_flags)]
fn destroy_ends_a_poll_after_others(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, reader, writer) = poll_after_others(cx, &mut polls);
    assert_eq!(aio.destroy(), 0);
    (&writer).write_all(b"x").expect("write");
    let again = Aio::new(cx.door, 8);
    assert_eq!(again.run(poll(&reader, libc::POLLIN)), i64::from(libc::POLLIN));
    assert_eq!(again.get(0, 8, 20), Ok(vec![]));
}
