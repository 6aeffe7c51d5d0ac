//! Linux AIO's requests: reads, writes, syncs and polls, their events, and cancelling them.

use super::prelude::*;
use crate::aio::{is_readable, poll, pread, pwrite, sync, vector, Aio};
use std::io::Seek;
use std::os::fd::AsRawFd;
use std::time::Duration;

cases! {
    any_flags: [],
    own_flags: [
        event_tells_data_and_address,
        read_at_an_offset,
        read_at_the_end_is_zero,
        read_of_nothing_is_zero,
        short_read_at_the_end,
        read_into_bad_memory_is_an_event,
        write_at_an_offset,
        write_leaves_the_files_position,
        appending_write_goes_to_the_end,
        write_from_bad_memory_is_an_event,
        vectors_are_read_and_written,
        too_many_vectors_are_einval,
        bad_vector_is_efault,
        large_transfer_is_whole,
        many_requests_all_complete,
        reads_that_miss_the_page_cache,
        fsync_and_fdsync_are_events,
        fsync_with_other_fields_is_einval,
        fsync_of_a_pipe_is_einval,
        read_of_a_pipe_with_data,
        read_of_a_nonblocking_empty_pipe_is_eagain,
        read_of_a_pipe_turned_nonblocking_is_eagain,
        read_of_a_closed_pipe_is_zero,
        write_to_a_pipe,
        read_of_a_socket_with_data,
        socket_with_an_offset_is_espipe,
        nowait_flag_on_an_empty_socket_is_eagain,
        direct_read_and_write,
        poll_of_what_is_ready_completes,
        poll_waits_for_data,
        poll_finds_what_is_left_after_polls_that_waited,
        poll_finds_what_is_left_beside_others_that_are_always_ready,
        poll_of_a_number_that_names_another_file,
        poll_waits_for_hang_up,
        poll_does_not_tell_what_was_not_asked,
        poll_of_a_regular_file,
        poll_of_a_regular_file_for_what_never_comes_is_einval,
        poll_with_other_fields_is_einval,
        poll_of_many_descriptors,
        polls_of_one_descriptor_are_all_told,
        poll_survives_the_close_of_its_descriptor,
        cancel_of_a_poll_is_an_event,
        cancel_twice_is_einval,
        cancel_of_what_is_done_is_einval,
        cancel_with_another_key_is_einval,
        cancel_at_a_bad_address_is_efault,
        destroy_ends_pending_polls,
        poll_after_others_appears_in_memory,
        poll_after_others_is_cancelled,
        poll_after_others_survives_the_close_of_its_descriptor,
        polls_after_others_are_all_told,
        destroy_ends_a_poll_after_others,
    ],
}

fn event_tells_data_and_address(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let mut iocbs = [Iocb { data: 0x0123_4567_89ab_cdef, ..pread(&file, &mut buffer, 0) }];
    assert_eq!(aio.submit(&mut iocbs), 1);
    let event = aio.wait(1)[0];
    let obj = &raw const iocbs[0] as u64;
    assert_eq!(event, IoEvent { data: 0x0123_4567_89ab_cdef, obj, res: 4, res2: 0 });
}

fn read_at_an_offset(cx: &Context) {
    let mut buffer = [0; 4];
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut buffer, 3)), 4);
    assert_eq!(buffer, *b"3456");
}

fn read_at_the_end_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut [0; 4], 10)), 0);
}

fn read_of_nothing_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut [], 0)), 0);
}

fn short_read_at_the_end(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut [0; 4], 8)), 2);
}

fn read_into_bad_memory_is_an_event(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { buf: bad_address(), ..pread(&file, &mut [0; 4], 0) };
    assert_eq!(aio.run(iocb), -i64::from(EFAULT));
}

fn write_at_an_offset(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.run(pwrite(&file, b"abc", 4)), 3);
    assert_eq!(std::fs::read("data").expect("read"), b"0123abc789");
}

fn write_leaves_the_files_position(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let mut file = file("data", b"0123456789");
    assert_eq!(aio.run(pwrite(&file, b"abc", 4)), 3);
    assert_eq!(aio.run(pread(&file, &mut [0; 4], 2)), 4);
    assert_eq!(file.stream_position().expect("seek"), 0);
}

fn appending_write_goes_to_the_end(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    drop(file("data", b"0123456789"));
    let file = std::fs::File::options().append(true).open("data").expect("open");
    assert_eq!(aio.run(pwrite(&file, b"abc", 4)), 3);
    assert_eq!(std::fs::read("data").expect("read"), b"0123456789abc");
}

fn write_from_bad_memory_is_an_event(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { buf: bad_address(), ..pwrite(&file, &[0; 4], 0) };
    assert_eq!(aio.run(iocb), -i64::from(EFAULT));
}

fn vectors_are_read_and_written(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.run(vector(IOCB_CMD_PWRITEV, &file, &[iovec(b"ab"), iovec(b"cde")], 2)), 5);
    let (mut one, mut two) = ([0; 3], [0; 4]);
    assert_eq!(aio.run(vector(IOCB_CMD_PREADV, &file, &[iovec_mut(&mut one), iovec_mut(&mut two)], 1)), 7);
    assert_eq!((one, two), (*b"1ab", *b"cde7"));
    assert_eq!(aio.run(vector(IOCB_CMD_PREADV, &file, &[], 1)), 0);
}

fn too_many_vectors_are_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut byte = [0];
    let iovecs = vec![iovec_mut(&mut byte); 1025];
    assert_eq!(aio.refused(vector(IOCB_CMD_PREADV, &file, &iovecs, 0)), -EINVAL as isize);
    assert_eq!(aio.run(vector(IOCB_CMD_PREADV, &file, &iovecs[..1024], 0)), 10);
    // The count is 32 bits wide.
    assert_eq!(aio.run(Iocb { bytes: (1 << 32) + 2, ..vector(IOCB_CMD_PREADV, &file, &iovecs, 0) }), 2);
}

fn bad_vector_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { buf: bad_address(), bytes: 2, ..vector(IOCB_CMD_PREADV, &file, &[], 0) };
    assert_eq!(aio.refused(iocb), -EFAULT as isize);
}

fn large_transfer_is_whole(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let content: Vec<u8> = (0..3 << 20).map(|index| (index / 509) as u8).collect();
    let file = file("data", b"");
    assert_eq!(aio.run(pwrite(&file, &content, 0)), content.len() as i64);
    let mut read = vec![0; content.len()];
    assert_eq!(aio.run(pread(&file, &mut read, 0)), content.len() as i64);
    assert!(read == content);
}

fn many_requests_all_complete(cx: &Context) {
    let aio = Aio::new(cx.door, 128);
    let content: Vec<u8> = (0..128 * 4096).map(|index| (index / 4096) as u8).collect();
    let file = file("data", &content);
    let mut buffers = vec![[0u8; 4096]; 128];
    let mut reads: Vec<Iocb> = Vec::new();
    for (index, buffer) in buffers.iter_mut().enumerate() {
        reads.push(Iocb { data: index as u64, ..pread(&file, buffer, index as i64 * 4096) });
    }
    assert_eq!(aio.submit(&mut reads), 128);
    let mut seen: Vec<u64> = aio.wait(128).iter().map(|event| event.data).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..128).collect::<Vec<_>>());
    assert!(buffers.iter().enumerate().all(|(index, buffer)| buffer.iter().all(|byte| *byte == index as u8)));
}

fn reads_that_miss_the_page_cache(cx: &Context) {
    const PAGES: usize = 128;
    let aio = Aio::new(cx.door, 16);
    let content: Vec<u8> = (0..PAGES * 4096).map(|index| (index / 4096) as u8).collect();
    let file = file("data", &content);
    file.sync_all().expect("fsync");
    let mut buffers = vec![[0xffu8; 4096]; PAGES];
    // The first half is dropped from the page cache each time, the second half is in it.
    for _ in 0..2 {
        // SAFETY: no pointers.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        // SAFETY: as above.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 64 * 4096, libc::POSIX_FADV_DONTNEED) };
        for (round, some) in buffers.chunks_mut(16).enumerate() {
            let page = |index: usize| (index * 7 + 3) % 16 + 16 * round;
            let reads = some.iter_mut().enumerate();
            let mut reads: Vec<Iocb> =
                reads.map(|(index, buffer)| pread(&file, buffer, page(index) as i64 * 4096)).collect();
            assert_eq!(aio.submit(&mut reads), 16);
            assert!(aio.wait(16).iter().all(|event| event.res == 4096));
            let wrong = some.iter().enumerate().find(|(index, bytes)| **bytes != [page(*index) as u8; 4096]);
            assert_eq!(wrong.map(|(index, _)| index), None, "of round {round}");
            some.fill([0xff; 4096]);
        }
    }
    // Not all of what is asked for is in the file.
    assert_eq!(aio.run(pread(&file, &mut buffers[0], (PAGES * 4096 - 100) as i64)), 100);
    assert_eq!(aio.run(pread(&file, &mut buffers[0], (PAGES * 4096) as i64)), 0);
}

fn fsync_and_fdsync_are_events(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.run(sync(IOCB_CMD_FSYNC, &file)), 0);
    assert_eq!(aio.run(sync(IOCB_CMD_FDSYNC, &file)), 0);
}

fn fsync_with_other_fields_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let plain = sync(IOCB_CMD_FSYNC, &file);
    let others =
        [Iocb { buf: 1, ..plain }, Iocb { bytes: 1, ..plain }, Iocb { offset: 1, ..plain }, Iocb { rw_flags: 8, ..plain }];
    for iocb in others {
        assert_eq!(aio.refused(iocb), -EINVAL as isize, "{iocb:?}");
    }
}

fn fsync_of_a_pipe_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.refused(sync(IOCB_CMD_FSYNC, &reader)), -EINVAL as isize);
    assert_eq!(aio.refused(sync(IOCB_CMD_FDSYNC, &writer)), -EINVAL as isize);
    assert_eq!(aio.refused(sync(IOCB_CMD_FSYNC, &eventfd(0, 0))), -EINVAL as isize);
}

fn read_of_a_pipe_with_data(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut buffer = [0; 8];
    // A pipe ignores the offset.
    for offset in [0, 100] {
        (&writer).write_all(b"hello").expect("write");
        assert_eq!(aio.run(pread(&reader, &mut buffer, offset)), 5);
        assert_eq!(&buffer[..5], b"hello");
    }
}

fn read_of_a_nonblocking_empty_pipe_is_eagain(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe_with(libc::O_NONBLOCK);
    for _ in 0..8 {
        assert_eq!(aio.run(pread(&reader, &mut [0; 8], 0)), -i64::from(EAGAIN));
    }
}

/// O_NONBLOCK counts from when it is set, whatever the reads before had to wait for.
fn read_of_a_pipe_turned_nonblocking_is_eagain(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut buffer = [0; 8];
    for _ in 0..8 {
        // Natively io_submit(2) waits for it.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(3));
                (&writer).write_all(b"x").expect("write");
            });
            assert_eq!(aio.run(pread(&reader, &mut buffer, 0)), 1);
        });
    }
    // SAFETY: takes and answers numbers.
    assert_eq!(unsafe { libc::fcntl(reader.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
    for bytes in [&b""[..], b"", b"", b"", b"", b"", b"ab"] {
        (&writer).write_all(bytes).expect("write");
        let answer = if bytes.is_empty() { -i64::from(EAGAIN) } else { 2 };
        assert_eq!(aio.run(pread(&reader, &mut buffer, 0)), answer);
    }
}

fn read_of_a_closed_pipe_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    drop(writer);
    assert_eq!(aio.run(pread(&reader, &mut [0; 8], 0)), 0);
}

fn write_to_a_pipe(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.run(pwrite(&writer, b"hello", 0)), 5);
    let mut buffer = [0; 8];
    assert_eq!((&reader).read(&mut buffer).expect("read"), 5);
}

fn read_of_a_socket_with_data(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (one, other) = pair();
    put(&one, b"hello");
    let mut buffer = [0; 8];
    assert_eq!(aio.run(pread(&other, &mut buffer, 0)), 5);
    assert_eq!(aio.run(pwrite(&other, b"back", 0)), 4);
}

fn socket_with_an_offset_is_espipe(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (one, other) = pair();
    put(&one, b"hello");
    assert_eq!(aio.run(pread(&other, &mut [0; 8], 1)), -i64::from(ESPIPE));
}

fn nowait_flag_on_an_empty_socket_is_eagain(cx: &Context) {
    const RWF_NOWAIT: u32 = 8;
    let aio = Aio::new(cx.door, 8);
    let (_one, other) = pair();
    let mut buffer = [0; 8];
    let iocb = Iocb { rw_flags: RWF_NOWAIT, ..pread(&other, &mut buffer, 0) };
    assert_eq!(aio.run(iocb), -i64::from(EAGAIN));
}

fn direct_read_and_write(cx: &Context) {
    use std::os::unix::fs::OpenOptionsExt;
    let aio = Aio::new(cx.door, 8);
    drop(file("data", &[0; 8192]));
    let direct = std::fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open("data");
    let Ok(direct) = direct else { cx.skip("this file system has no O_DIRECT") };
    let memory = pages(2);
    let (written, read) = memory.split_at_mut(4096);
    written.fill(b'd');
    assert_eq!(aio.run(pwrite(&direct, written, 4096)), 4096);
    assert_eq!(aio.run(pread(&direct, read, 4096)), 4096);
    assert!(written == read);
    assert_eq!(aio.run(pread(&direct, &mut read[..4096], 8192)), 0);
}

fn poll_of_what_is_ready_completes(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.run(poll(&writer, libc::POLLOUT)), i64::from(libc::POLLOUT));
    (&writer).write_all(b"x").expect("write");
    assert_eq!(aio.run(poll(&reader, libc::POLLIN | libc::POLLPRI)), i64::from(libc::POLLIN));
}

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

/// [`wait_often`], then a poll of one of two bytes: what is left is for the next one.
fn leave_something(aio: &Aio, (mut reader, mut writer): (&std::fs::File, &std::fs::File)) {
    wait_often(aio, (reader, writer));
    let mut polls = [poll(reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    writer.write_all(b"xy").expect("write");
    assert!(is_readable(&aio.wait(1)[0]));
    reader.read_exact(&mut [0]).expect("read");
}

fn poll_finds_what_is_left_after_polls_that_waited(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    leave_something(&aio, (&reader, &writer));
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    assert!(is_readable(&aio.wait(1)[0]));
}

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

fn poll_waits_for_hang_up(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, 0)];
    assert_eq!(aio.submit(&mut polls), 1);
    drop(writer);
    assert_eq!(aio.wait(1)[0].res, i64::from(libc::POLLHUP));
}

fn poll_does_not_tell_what_was_not_asked(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (one, other) = pair();
    let mut polls = [poll(&other, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    put(&one, b"x");
    assert!(is_readable(&aio.wait(1)[0]));
    // POLLRDHUP is no event unless asked for, other than with io_uring.
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::shutdown(one.as_raw_fd(), libc::SHUT_WR) }, 0);
    assert_eq!(aio.run(poll(&other, libc::POLLIN)), i64::from(libc::POLLIN));
    let both = libc::POLLIN | libc::POLLRDHUP;
    assert_eq!(aio.run(poll(&other, both)), i64::from(both));
}

fn poll_of_a_regular_file(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let both = libc::POLLIN | libc::POLLOUT;
    assert_eq!(aio.run(poll(&file, both)), i64::from(both));
}

fn poll_of_a_regular_file_for_what_never_comes_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.refused(poll(&file("data", b""), libc::POLLPRI)), -EINVAL as isize);
}

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

fn polls_of_one_descriptor_are_all_told(cx: &Context) {
    let aio = Aio::new(cx.door, 16);
    let (reader, writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN); 16];
    assert_eq!(aio.submit(&mut polls), 16);
    (&writer).write_all(b"x").expect("write");
    assert!(aio.wait(16).iter().all(is_readable));
}

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

fn cancel_twice_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    assert_eq!(aio.cancel(&polls[0]), -libc::EINPROGRESS as isize);
    assert_eq!(aio.cancel(&polls[0]), -EINVAL as isize);
    aio.wait(1);
}

fn cancel_of_what_is_done_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let mut iocbs = [pread(&file, &mut buffer, 0)];
    assert_eq!(aio.submit(&mut iocbs), 1);
    aio.wait(1);
    assert_eq!(aio.cancel(&iocbs[0]), -EINVAL as isize);
}

fn cancel_with_another_key_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe();
    let mut polls = [poll(&reader, libc::POLLIN)];
    assert_eq!(aio.submit(&mut polls), 1);
    polls[0].key = 1;
    assert_eq!(aio.cancel(&polls[0]), -EINVAL as isize);
}

fn cancel_at_a_bad_address_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.cancel(bad_address() as *const Iocb), -EFAULT as isize);
}

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

fn poll_after_others_appears_in_memory(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, _reader, writer) = poll_after_others(cx, &mut polls);
    let before = aio.header().tail;
    (&writer).write_all(b"x").expect("write");
    assert!(aio.appear(1), "no event after {before}");
    assert_eq!(aio.wait(1)[0].data, 7);
}

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

fn polls_after_others_are_all_told(cx: &Context) {
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

fn destroy_ends_a_poll_after_others(cx: &Context) {
    let mut polls = [Iocb::default()];
    let (aio, reader, writer) = poll_after_others(cx, &mut polls);
    assert_eq!(aio.destroy(), 0);
    (&writer).write_all(b"x").expect("write");
    let again = Aio::new(cx.door, 8);
    assert_eq!(again.run(poll(&reader, libc::POLLIN)), i64::from(libc::POLLIN));
    assert_eq!(again.get(0, 8, 20), Ok(vec![]));
}
