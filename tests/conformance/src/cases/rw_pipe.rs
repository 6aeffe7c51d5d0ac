//! Reads and writes of pipes: waits, their wake-ups and their ends.

use super::prelude::*;
use std::os::fd::AsRawFd;

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/rw.c");

#[case(undisturbed, since = "5.6")]
fn data_that_is_there_is_read_at_once_after_reads_that_waited(cx: &Context) {
    let ((reader, mut writer), mut ring, mut byte) = (pipe(), cx.ring(8), [0]);
    for _ in 0..8 {
        ring.go(sqe::read(fd(&reader), &mut byte, 0));
        writer.write_all(b"x").expect("room");
        assert_eq!(ring.wait().res, 1);
    }
    for round in 0..70 {
        writer.write_all(b"y").expect("room");
        ring.go(sqe::read(fd(&reader), &mut byte, 0));
        // Completions may wait for a GETEVENTS (IORING_SETUP_DEFER_TASKRUN); nothing else has to be waited for.
        ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0);
        assert_eq!(ring.peek().map(|cqe| cqe.res), Some(1), "round {round}");
    }
}

fn waits_for_data(cx: &Context, flags: u8, offset: i64) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 8]);
    ring.go(sqe::read(fd(&reader), &mut buffer, offset).with(flags).data(5));
    ring.expect_quiet();
    writer.write_all(b"hey").expect("write");
    assert_eq!(ring.wait_ordered(1), [(5, 3)]);
    assert_eq!(&buffer[..3], b"hey");
}

#[case(since = "5.6")]
fn read_with_offset_zero_waits_for_data(cx: &Context) {
    waits_for_data(cx, 0, 0);
}

#[case(since = "5.6")]
fn read_with_offset_minus_one_waits_for_data(cx: &Context) {
    waits_for_data(cx, 0, -1);
}

#[case(since = "5.6")]
fn async_read_waits_for_data(cx: &Context) {
    waits_for_data(cx, IOSQE_ASYNC, 0);
}

#[case(undisturbed, since = "5.6")]
fn read_of_ready_data_completes_in_submit(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 8]);
    writer.write_all(b"hey").expect("write");
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    assert_eq!(ring.cq_ready(), 1, "without another call");
    assert_eq!(ring.wait().res, 3);
}

#[case(since = "5.6")]
fn read_takes_what_is_there(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 2]);
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut buffer, 0)), 2);
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut buffer, 0)), 1);
}

fn vectors_wait_for_data(cx: &Context, flags: u8) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let (mut first, mut second) = ([0; 2], [0; 8]);
    let vectors = [iovec_mut(&mut first), iovec_mut(&mut second)];
    ring.go(sqe::readv(fd(&reader), &vectors, 0).with(flags));
    ring.expect_quiet();
    writer.write_all(b"hello").expect("write");
    assert_eq!(ring.wait().res, 5);
    assert_eq!((&first, &second[..3]), (b"he", &b"llo"[..]));
}

#[case]
fn readv_waits_for_data(cx: &Context) {
    vectors_wait_for_data(cx, 0);
}

#[case(since = "5.6")]
fn async_readv_waits_for_data(cx: &Context) {
    vectors_wait_for_data(cx, IOSQE_ASYNC);
}

#[case]
fn read_fixed_waits_for_data(cx: &Context) {
    let ((reader, mut writer), mut ring, memory) = (pipe(), cx.ring(4), pages(1));
    assert_eq!(ring.register_buffers(&[iovec_mut(memory)]), 0);
    ring.go(prep(Opcode::ReadFixed, fd(&reader), address(memory) + 8, 8, 0));
    ring.expect_quiet();
    writer.write_all(b"hello").expect("write");
    assert_eq!(ring.wait().res, 5);
    assert_eq!(&memory[8..13], b"hello");
}

fn two_readers(cx: &Context) -> [u64; 2] {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    let mut buffers = [[0; 4]; 2];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        ring.go(sqe::read(fd(&reader), buffer, 0).data(n as u64));
    }
    let mut order = [0; 2];
    for (place, text) in order.iter_mut().zip([b"abcd", b"efgh"]) {
        writer.write_all(text).expect("write");
        let cqe = ring.wait();
        assert_eq!((cqe.res, &buffers[cqe.user_data as usize]), (4, text));
        ring.expect_quiet();
        *place = cqe.user_data;
    }
    order
}

#[case(since = "5.6")]
fn each_of_two_readers_gets_one_message(cx: &Context) {
    let mut order = two_readers(cx);
    order.sort_unstable();
    assert_eq!(order, [0, 1]);
}

/// A pipe's wait queue takes io_uring's entries at its head.
#[case(undisturbed, since = "5.6")]
fn of_two_readers_the_last_is_served_first(cx: &Context) {
    assert_eq!(two_readers(cx), [1, 0]);
}

#[case(since = "5.6")]
fn many_readers_each_get_their_byte(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(32));
    let mut bytes = [[0u8; 1]; 32];
    for (n, byte) in bytes.iter_mut().enumerate() {
        ring.push(sqe::read(fd(&reader), byte, 0).data(n as u64));
    }
    assert_eq!(ring.submit(), 32);
    writer.write_all(&(0..32).collect::<Vec<u8>>()).expect("write");
    assert_eq!(ring.wait_sorted(32), (0..32).map(|n| (n, 1)).collect::<Vec<_>>());
    let mut seen: Vec<u8> = bytes.iter().map(|byte| byte[0]).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..32).collect::<Vec<u8>>());
}

#[case(since = "5.6")]
fn read_of_a_closed_pipe_is_eof(cx: &Context) {
    let (reader, _) = pipe();
    assert_eq!(cx.ring(4).run(sqe::read(fd(&reader), &mut [0; 8], 0)), 0);
}

#[case(since = "5.6")]
fn pending_read_ends_when_the_writer_closes(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 8]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    ring.expect_quiet();
    drop(writer);
    assert_eq!(ring.wait().res, 0);
}

#[case(since = "5.6")]
fn write_completes_at_once(cx: &Context) {
    let ((mut reader, writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(ring.run(sqe::write(fd(&writer), b"hey", 0)), 3);
    let mut buffer = [0; 3];
    reader.read_exact(&mut buffer).expect("read");
    assert_eq!(&buffer, b"hey");
}

fn full_pipe_write_waits(cx: &Context, flags: u8) {
    let ((mut reader, writer), mut ring) = (full_pipe(), cx.ring(4));
    ring.go(sqe::write(fd(&writer), b"tail", 0).with(flags));
    ring.expect_quiet();
    let mut buffer = [0; 4096];
    reader.read_exact(&mut buffer).expect("read");
    assert_eq!(ring.wait().res, 4);
    assert_eq!(readable_bytes(&reader), 4);
}

#[case(since = "5.6")]
fn write_to_a_full_pipe_waits(cx: &Context) {
    full_pipe_write_waits(cx, 0);
}

#[case(since = "5.6")]
fn async_write_to_a_full_pipe_waits(cx: &Context) {
    full_pipe_write_waits(cx, IOSQE_ASYNC);
}

#[case(since = "5.6")]
fn write_larger_than_the_pipe_goes_on_as_it_drains(cx: &Context) {
    let ((mut reader, writer), mut ring) = (pipe(), cx.ring(4));
    let content: Vec<u8> = (0..300_000).map(|n| (n / 3) as u8).collect();
    ring.go(sqe::write(fd(&writer), &content, 0));
    let drain = std::thread::spawn(move || {
        let mut seen = vec![0; 65536];
        let mut count = 0;
        while count < 65536 {
            count += reader.read(&mut seen[count..]).expect("read");
        }
        (seen, reader)
    });
    let res = ring.wait().res;
    let (seen, _reader) = drain.join().expect("the reader");
    assert!(seen == content[..65536]);
    assert!(res >= 65536, "a write reports what fitted: {res}");
}

#[case]
fn write_without_readers_is_epipe_and_raises_sigpipe(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let (_, writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::write(fd(&writer), b"x", 0)), -EPIPE);
    assert_eq!(SIGNALS.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[case]
fn async_write_without_readers_is_epipe(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let (_, writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::write(fd(&writer), b"x", 0).with(IOSQE_ASYNC)), -EPIPE);
    assert_eq!(
        SIGNALS.load(std::sync::atomic::Ordering::SeqCst),
        0,
        "the signal goes to a worker, where it is lost"
    );
}

#[case]
fn pending_write_ends_with_epipe_when_the_reader_closes(cx: &Context) {
    count_signal(libc::SIGPIPE);
    let ((reader, writer), mut ring) = (full_pipe(), cx.ring(4));
    ring.go(sqe::write(fd(&writer), b"tail", 0));
    ring.expect_quiet();
    drop(reader);
    assert_eq!(ring.wait_for(crate::ring::PATIENCE).map(|cqe| cqe.res), Some(-EPIPE));
}

#[case(since = "5.6")]
fn read_with_an_offset_is_allowed(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut [0; 8], 100)), 3);
}

#[case(since = "5.6")]
fn nonblocking_descriptor_read_waits_for_data(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe_with(libc::O_NONBLOCK), cx.ring(4), [0; 8]);
    ring.go(sqe::read(fd(&reader), &mut buffer, 0));
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3);
}

#[case(since = "5.6")]
fn nonblocking_descriptor_write_to_a_full_pipe_waits(cx: &Context) {
    let ((mut reader, mut writer), mut ring) = (pipe_with(libc::O_NONBLOCK), cx.ring(4));
    while writer.write(&[0; 4096]).is_ok() {}
    ring.go(sqe::write(fd(&writer), b"tail", 0));
    ring.expect_quiet();
    while reader.read(&mut [0; 4096]).is_ok() {}
    assert_eq!(ring.wait().res, 4);
}

#[case(since = "5.6")]
fn offset_beyond_all_is_einval(cx: &Context) {
    let ((reader, mut writer), mut ring, mut bytes) = (pipe(), cx.ring(4), [0; 4]);
    writer.write_all(b"data").expect("write");
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut bytes, i64::MAX)), -EINVAL);
    assert_eq!(ring.run(sqe::read(fd(&reader), &mut bytes, i64::MAX - 4)), 4);
}

#[case(since = "5.6")]
fn read_of_nothing_beside_one_that_waits(cx: &Context) {
    let ((reader, _writer), mut ring, mut bytes) = (pipe(), cx.ring(4), [0; 4]);
    ring.go(sqe::read(fd(&reader), &mut bytes, 0).data(1));
    ring.go(sqe::read(fd(&reader), &mut [], 0).data(2));
    assert_eq!(ring.wait_ordered(1), [(2, 0)]);
}

#[case]
fn rwf_nowait_read_of_an_empty_pipe_is_eagain(cx: &Context) {
    let (reader, _writer) = pipe();
    let read = sqe::read(fd(&reader), &mut [0; 8], 0).op_flags(libc::RWF_NOWAIT as u32);
    assert_eq!(cx.ring(4).run(read), -EAGAIN);
}

#[case]
fn rwf_nowait_write_to_a_full_pipe_is_eagain(cx: &Context) {
    let (_reader, writer) = full_pipe();
    assert_eq!(cx.ring(4).run(sqe::write(fd(&writer), b"x", 0).op_flags(libc::RWF_NOWAIT as u32)), -EAGAIN);
}

#[case(since = "5.6")]
fn read_of_nothing_from_an_empty_pipe_is_zero(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::read(fd(&reader), &mut [], 0)), 0);
}

#[case]
fn bad_buffer_with_data_is_efault(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(prep(Opcode::Read, fd(&reader), bad_address(), 8, 0).with(flags)), -EFAULT);
    }
    assert_eq!(ring.run(prep(Opcode::Write, fd(&writer), bad_address(), 8, 0)), -EFAULT);
}

#[case]
fn bad_buffer_keeps_the_data(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.run(prep(Opcode::Read, fd(&reader), bad_address(), 8, 0)), -EFAULT);
    assert_eq!(readable_bytes(&reader), 3);
}

#[case]
fn bad_buffer_on_an_empty_pipe_waits_first(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.go(prep(Opcode::Read, fd(&reader), bad_address(), 8, 0));
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, -EFAULT);
}

fn fifo(flags: i32) -> std::fs::File {
    // SAFETY: a constant path.
    assert_eq!(unsafe { libc::mkfifo(c"fifo".as_ptr(), 0o600) }, 0);
    let mut options = std::fs::File::options();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true).write(true), flags);
    options.open("fifo").expect("open the FIFO")
}

fn fifo_waits(cx: &Context, flags: i32) {
    let (mut fifo, mut ring, mut buffer) = (fifo(flags), cx.ring(4), [0; 8]);
    ring.go(sqe::read(fd(&fifo), &mut buffer, 0));
    ring.expect_quiet();
    fifo.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3);
}

#[case(since = "5.6")]
fn named_fifo_waits_for_data(cx: &Context) {
    fifo_waits(cx, 0);
}

#[case(since = "5.6")]
fn nonblocking_fifo_read_waits_for_data(cx: &Context) {
    fifo_waits(cx, libc::O_NONBLOCK);
}

#[case]
fn read_of_the_write_end_is_ebadf(cx: &Context) {
    let (_reader, writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::read(fd(&writer), &mut [0; 8], 0)), -EBADF);
}

#[case(since = "5.6")]
fn several_pipes_complete_as_they_are_written(cx: &Context) {
    let (mut pipes, mut ring) = ([pipe(), pipe(), pipe()], cx.ring(4));
    let mut buffers = [[0; 1]; 3];
    for (n, buffer) in buffers.iter_mut().enumerate() {
        ring.push(sqe::read(fd(&pipes[n].0), buffer, 0).data(n as u64));
    }
    assert_eq!(ring.submit(), 3);
    for n in [1, 2, 0] {
        pipes[n].1.write_all(&[n as u8]).expect("write");
        assert_eq!(ring.wait_ordered(1), [(n as u64, 1)]);
    }
    assert_eq!(buffers, [[0], [1], [2]]);
}

#[case(since = "5.6")]
fn fixed_file_pipe_read_waits(cx: &Context) {
    let ((reader, mut writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 8]);
    ring.register_files(&[reader.as_raw_fd()]);
    drop(reader);
    ring.go(sqe::read(0, &mut buffer, 0).with(IOSQE_FIXED_FILE));
    ring.expect_quiet();
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3);
}

#[case(since = "5.6")]
fn write_then_read_in_one_submission(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 8]);
    ring.go_all(&[sqe::write(fd(&writer), b"abc", 0).data(1), sqe::read(fd(&reader), &mut buffer, 0).data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, 3)]);
}

#[case(since = "5.6")]
fn read_then_write_in_one_submission(cx: &Context) {
    let ((reader, writer), mut ring, mut buffer) = (pipe(), cx.ring(4), [0; 8]);
    ring.go_all(&[sqe::read(fd(&reader), &mut buffer, 0).data(1), sqe::write(fd(&writer), b"abc", 0).data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 3), (2, 3)]);
    assert_eq!(&buffer[..3], b"abc");
}

/// RWF_ATOMIC (0x40) and RWF_DONTCACHE (0x80) are about files, and refused at once for a pipe.
#[case]
fn flags_of_files_are_eopnotsupp_at_once(cx: &Context) {
    let (mut ring, mut buffer, (reader, writer)) = (cx.ring(4), [0; 4], pipe());
    let (a, _b) = pair();
    for flags in [0x40, 0x80, 0x88, 0xc0] {
        for number in [fd(&reader), fd(&a)] {
            assert_eq!(
                ring.run(sqe::read(number, &mut buffer, 0).op_flags(flags)),
                -libc::EOPNOTSUPP,
                "{flags:#x}"
            );
            assert_eq!(ring.run(sqe::read(number, &mut [], 0).op_flags(flags)), -libc::EOPNOTSUPP, "{flags:#x}");
        }
        assert_eq!(ring.run(sqe::write(fd(&writer), b"x", 0).op_flags(flags)), -libc::EOPNOTSUPP, "{flags:#x}");
    }
}

/// The last read of a pipe took one of two bytes. Other descriptors that are always ready must not delay the next
/// one.
#[case(since = "5.6")]
fn read_finds_what_is_left_beside_others_that_are_always_ready(cx: &Context) {
    let ((left, mut to_left), (busy, mut to_busy)) = (pipe(), pipe());
    let (mut ring, mut one, mut two) = (cx.ring(4), [0; 1], [0; 1]);
    let rare = sqe::read(fd(&left), &mut one, 0).data(1);
    for _ in 0..8 {
        ring.go(rare);
        to_left.write_all(b"x").expect("write");
        assert_eq!(ring.wait().res, 1);
    }
    ring.go(rare);
    to_left.write_all(b"xy").expect("write");
    assert_eq!(ring.wait().res, 1);
    ring.go(rare);
    let often = sqe::read(fd(&busy), &mut two, 0).data(2);
    let found = (0..2_000).any(|_| {
        ring.go(often);
        to_busy.write_all(b"x").expect("write");
        (0..ring.cq_ready().max(1)).any(|_| ring.wait().user_data == 1)
    });
    assert!(found, "what is left is never found");
}
