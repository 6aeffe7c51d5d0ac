//! Linux AIO's requests: reads, writes and syncs, and their events.

use super::prelude::*;
use crate::aio::{pread, pwrite, sync, vector, Aio};
use std::io::Seek;
use std::os::fd::AsRawFd;

topic!(since: "4.13", source: "io_submit(2), fs/aio.c");

#[case(own_flags)]
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

#[case(own_flags)]
fn read_at_an_offset(cx: &Context) {
    let mut buffer = [0; 4];
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut buffer, 3)), 4);
    assert_eq!(buffer, *b"3456");
}

#[case(own_flags)]
fn read_at_the_end_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut [0; 4], 10)), 0);
}

#[case(own_flags)]
fn read_of_nothing_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut [], 0)), 0);
}

#[case(own_flags)]
fn short_read_at_the_end(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.run(pread(&file("data", b"0123456789"), &mut [0; 4], 8)), 2);
}

#[case(own_flags)]
fn read_into_bad_memory_is_an_event(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { buf: bad_address(), ..pread(&file, &mut [0; 4], 0) };
    assert_eq!(aio.run(iocb), -i64::from(EFAULT));
}

#[case(own_flags)]
fn write_at_an_offset(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.run(pwrite(&file, b"abc", 4)), 3);
    assert_eq!(std::fs::read("data").expect("read"), b"0123abc789");
}

#[case(own_flags)]
fn write_leaves_the_files_position(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let mut file = file("data", b"0123456789");
    assert_eq!(aio.run(pwrite(&file, b"abc", 4)), 3);
    assert_eq!(aio.run(pread(&file, &mut [0; 4], 2)), 4);
    assert_eq!(file.stream_position().expect("seek"), 0);
}

#[case(own_flags)]
fn appending_write_goes_to_the_end(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    drop(file("data", b"0123456789"));
    let file = std::fs::File::options().append(true).open("data").expect("open");
    assert_eq!(aio.run(pwrite(&file, b"abc", 4)), 3);
    assert_eq!(std::fs::read("data").expect("read"), b"0123456789abc");
}

#[case(own_flags)]
fn write_from_bad_memory_is_an_event(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { buf: bad_address(), ..pwrite(&file, &[0; 4], 0) };
    assert_eq!(aio.run(iocb), -i64::from(EFAULT));
}

#[case(own_flags)]
fn vectors_are_read_and_written(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.run(vector(IOCB_CMD_PWRITEV, &file, &[iovec(b"ab"), iovec(b"cde")], 2)), 5);
    let (mut one, mut two) = ([0; 3], [0; 4]);
    assert_eq!(aio.run(vector(IOCB_CMD_PREADV, &file, &[iovec_mut(&mut one), iovec_mut(&mut two)], 1)), 7);
    assert_eq!((one, two), (*b"1ab", *b"cde7"));
    assert_eq!(aio.run(vector(IOCB_CMD_PREADV, &file, &[], 1)), 0);
}

#[case(own_flags)]
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

#[case(own_flags)]
fn bad_vector_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let iocb = Iocb { buf: bad_address(), bytes: 2, ..vector(IOCB_CMD_PREADV, &file, &[], 0) };
    assert_eq!(aio.refused(iocb), -EFAULT as isize);
}

#[case(own_flags)]
fn large_transfer_is_whole(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let content: Vec<u8> = (0..3 << 20).map(|index| (index / 509) as u8).collect();
    let file = file("data", b"");
    assert_eq!(aio.run(pwrite(&file, &content, 0)), content.len() as i64);
    let mut read = vec![0; content.len()];
    assert_eq!(aio.run(pread(&file, &mut read, 0)), content.len() as i64);
    assert!(read == content);
}

#[case(own_flags)]
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

#[case(own_flags)]
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
    // The file has fewer bytes than the read asks for.
    assert_eq!(aio.run(pread(&file, &mut buffers[0], (PAGES * 4096 - 100) as i64)), 100);
    assert_eq!(aio.run(pread(&file, &mut buffers[0], (PAGES * 4096) as i64)), 0);
}

#[case(own_flags)]
fn fsync_and_fdsync_are_events(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.run(sync(IOCB_CMD_FSYNC, &file)), 0);
    assert_eq!(aio.run(sync(IOCB_CMD_FDSYNC, &file)), 0);
}

#[case(own_flags)]
fn fsync_with_other_fields_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let plain = sync(IOCB_CMD_FSYNC, &file);
    let others = [
        Iocb { buf: 1, ..plain },
        Iocb { bytes: 1, ..plain },
        Iocb { offset: 1, ..plain },
        Iocb { rw_flags: 8, ..plain },
    ];
    for iocb in others {
        assert_eq!(aio.refused(iocb), -EINVAL as isize, "{iocb:?}");
    }
}

#[case(own_flags)]
fn fsync_of_a_pipe_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.refused(sync(IOCB_CMD_FSYNC, &reader)), -EINVAL as isize);
    assert_eq!(aio.refused(sync(IOCB_CMD_FDSYNC, &writer)), -EINVAL as isize);
    assert_eq!(aio.refused(sync(IOCB_CMD_FSYNC, &eventfd(0, 0))), -EINVAL as isize);
}

#[case(own_flags)]
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

#[case(own_flags)]
fn read_of_a_nonblocking_empty_pipe_is_eagain(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, _writer) = pipe_with(libc::O_NONBLOCK);
    for _ in 0..8 {
        assert_eq!(aio.run(pread(&reader, &mut [0; 8], 0)), -i64::from(EAGAIN));
    }
}

/// O_NONBLOCK counts as soon as it is set, even if earlier reads had to wait.
#[case(own_flags)]
fn read_of_a_pipe_turned_nonblocking_is_eagain(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    let (tid, mut buffer) = (gettid(), [0; 8]);
    for _ in 0..8 {
        // On the kernel io_submit(2) waits for it.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_thread_asleep(tid);
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

#[case(own_flags)]
fn read_of_a_closed_pipe_is_zero(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    drop(writer);
    assert_eq!(aio.run(pread(&reader, &mut [0; 8], 0)), 0);
}

#[case(own_flags)]
fn write_to_a_pipe(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.run(pwrite(&writer, b"hello", 0)), 5);
    let mut buffer = [0; 8];
    assert_eq!((&reader).read(&mut buffer).expect("read"), 5);
}

#[case(own_flags)]
fn read_of_a_socket_with_data(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (one, other) = pair();
    put(&one, b"hello");
    let mut buffer = [0; 8];
    assert_eq!(aio.run(pread(&other, &mut buffer, 0)), 5);
    assert_eq!(aio.run(pwrite(&other, b"back", 0)), 4);
}

#[case(own_flags)]
fn socket_with_an_offset_is_espipe(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (one, other) = pair();
    put(&one, b"hello");
    assert_eq!(aio.run(pread(&other, &mut [0; 8], 1)), -i64::from(ESPIPE));
}

#[case(own_flags)]
fn nowait_flag_on_an_empty_socket_is_eagain(cx: &Context) {
    const RWF_NOWAIT: u32 = 8;
    let aio = Aio::new(cx.door, 8);
    let (_one, other) = pair();
    let mut buffer = [0; 8];
    let iocb = Iocb { rw_flags: RWF_NOWAIT, ..pread(&other, &mut buffer, 0) };
    assert_eq!(aio.run(iocb), -i64::from(EAGAIN));
}

#[case(own_flags)]
fn nowait_flag_of_a_write_through_the_page_cache_is_reported_by_the_event(cx: &Context) {
    const RWF_NOWAIT: u32 = 8;
    // SAFETY: all zeroes is a value, and the call fills it.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the name ends with a zero, and there is room for the answer.
    let answer = unsafe { libc::statfs(c".".as_ptr(), &raw mut about) };
    if answer != 0 || about.f_type as i64 != 0xef53 {
        cx.skip("the directory's file system is not ext4");
    }
    let (aio, file) = (Aio::new(cx.door, 8), file("data", b"data"));
    let iocb = Iocb { rw_flags: RWF_NOWAIT, ..pwrite(&file, b"x", 0) };
    assert_eq!(aio.run(iocb), -i64::from(EOPNOTSUPP));
}

#[case(own_flags)]
fn atomic_flag_without_direct_is_refused(cx: &Context) {
    const RWF_ATOMIC: u32 = 0x40;
    let (aio, file) = (Aio::new(cx.door, 8), file("data", b"data"));
    let mut byte = [0; 1];
    for iocb in [pwrite(&file, b"x", 0), pread(&file, &mut byte, 0)] {
        let refused = aio.submit(&mut [Iocb { rw_flags: RWF_ATOMIC, ..iocb }]);
        assert_eq!(refused, -EOPNOTSUPP as isize);
    }
}

#[case(own_flags)]
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
