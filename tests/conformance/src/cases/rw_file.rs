//! Reads and writes of regular files, memfds and other seekable things.

use super::prelude::*;
use std::io::{Seek, SeekFrom};
use std::os::fd::AsRawFd;

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/rw.c");

#[case(since = "5.6")]
fn read_at_an_offset(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut buffer = [0; 4];
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut buffer, 3)), 4);
    assert_eq!(&buffer, b"3456");
}

#[case(since = "5.6")]
fn write_at_an_offset(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), b"ab", 5)), 2);
    assert_eq!(std::fs::read("f").expect("read"), b"01234ab789");
}

#[case(since = "5.6")]
fn read_at_minus_one_advances_the_position(cx: &Context) {
    let mut file = file("f", b"0123456789");
    let (mut ring, mut buffer) = (cx.ring(4), [0; 4]);
    assert_eq!(ring.run(sqe::read(fd(&file), &mut buffer, -1)), 4);
    assert_eq!(ring.run(sqe::read(fd(&file), &mut buffer, -1)), 4);
    assert_eq!((&buffer, file.stream_position().expect("seek")), (b"4567", 8));
}

#[case(since = "5.6")]
fn write_at_minus_one_advances_the_position(cx: &Context) {
    let mut file = file("f", b"0123456789");
    file.seek(SeekFrom::Start(2)).expect("seek");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), b"ab", -1)), 2);
    assert_eq!(file.stream_position().expect("seek"), 4);
    assert_eq!(std::fs::read("f").expect("read"), b"01ab456789");
}

#[case(since = "5.6")]
fn read_at_an_offset_leaves_the_position(cx: &Context) {
    let mut file = file("f", b"0123456789");
    file.seek(SeekFrom::Start(1)).expect("seek");
    let mut buffer = [0; 4];
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut buffer, 0)), 4);
    assert_eq!((&buffer, file.stream_position().expect("seek")), (b"0123", 1));
}

#[case(since = "5.6")]
fn sequential_reads_in_one_submission_with_async(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut first, mut second) = ([0; 5], [0; 5]);
    let mut ring = cx.ring(4);
    let link = IOSQE_IO_LINK | IOSQE_ASYNC;
    ring.go_all(&[
        sqe::read(fd(&file), &mut first, -1).with(link).data(1),
        sqe::read(fd(&file), &mut second, -1).with(IOSQE_ASYNC).data(2),
    ]);
    assert_eq!(ring.wait_ordered(2), [(1, 5), (2, 5)]);
    assert_eq!((&first, &second), (b"01234", b"56789"));
}

#[case]
fn readv_fills_each_vector(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut first, mut second) = ([0; 3], [0; 4]);
    let vectors = [iovec_mut(&mut first), iovec(&[]), iovec_mut(&mut second)];
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &vectors, 1)), 7);
    assert_eq!((&first, &second), (b"123", b"4567"));
}

#[case]
fn writev_gathers_each_vector(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::writev(fd(&file), &[iovec(b"ab"), iovec(b"c")], 0)), 3);
    assert_eq!(std::fs::read("f").expect("read"), b"abc3456789");
}

#[case]
fn readv_of_no_vectors_is_zero(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &[], 0)), 0);
}

#[case(since = "5.6")]
fn read_of_nothing_is_zero(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [], 0)), 0);
}

#[case(since = "5.6")]
fn read_at_eof_is_zero(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 10)), 0);
}

#[case(since = "5.6")]
fn read_past_eof_is_zero(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 1 << 40)), 0);
}

#[case(since = "5.6")]
fn read_across_eof_is_short(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 64], 7)), 3);
}

#[case(since = "5.6")]
fn append_ignores_the_offset(cx: &Context) {
    drop(file("f", b"01"));
    let file = std::fs::File::options().append(true).open("f").expect("open");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), b"ab", 0)), 2);
    assert_eq!(std::fs::read("f").expect("read"), b"01ab");
}

#[case(since = "5.6")]
fn write_past_the_end_leaves_a_hole(cx: &Context) {
    let file = file("f", b"x");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), b"y", 3)), 1);
    assert_eq!(std::fs::read("f").expect("read"), b"x\0\0y");
}

#[case(since = "5.6")]
fn big_read_is_whole(cx: &Context) {
    let content: Vec<u8> = (0..3 << 20).map(|n| (n / 7) as u8).collect();
    let file = file("f", &content);
    let mut buffer = vec![0; content.len()];
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut buffer, 0)), 3 << 20);
    assert!(buffer == content);
}

#[case(since = "5.6")]
fn big_async_write_is_whole(cx: &Context) {
    let content: Vec<u8> = (0..3 << 20).map(|n| (n / 7) as u8).collect();
    let file = file("f", b"");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), &content, 0).with(IOSQE_ASYNC)), 3 << 20);
    assert!(std::fs::read("f").expect("read") == content);
}

#[case]
fn bad_fd_is_ebadf(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::read(-1, &mut [0; 4], 0)), -EBADF);
    assert_eq!(ring.run(sqe::write(9999, b"x", 0)), -EBADF);
    assert_eq!(ring.run(sqe::readv(9999, &[iovec_mut(&mut [0; 4])], 0)), -EBADF);
}

#[case]
fn read_of_a_write_only_file_is_ebadf(cx: &Context) {
    let file = std::fs::File::create("f").expect("create");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 0)), -EBADF);
}

#[case]
fn write_to_a_read_only_file_is_ebadf(cx: &Context) {
    drop(file("f", b"x"));
    let file = std::fs::File::open("f").expect("open");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), b"y", 0)), -EBADF);
}

#[case]
fn read_of_a_directory_is_eisdir(cx: &Context) {
    let directory = std::fs::File::open(".").expect("open");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&directory), &mut [0; 4], 0)), -EISDIR);
}

#[case]
fn read_of_a_path_descriptor_is_ebadf(cx: &Context) {
    drop(file("f", b"x"));
    // Not by std, which takes the flag for a part of the access mode where libc is musl.
    // SAFETY: a constant name.
    let path = owned(unsafe { libc::open(c"f".as_ptr(), libc::O_PATH) }, "open");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&path), &mut [0; 4], 0)), -EBADF);
}

#[case]
fn read_into_a_bad_buffer_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut ring = cx.ring(4);
    for flags in [0, IOSQE_ASYNC] {
        let read = prep(Opcode::Read, fd(&file), bad_address(), 4, 0).with(flags);
        assert_eq!(ring.run(read), -EFAULT);
        assert_eq!(ring.run(Sqe { addr: 0, ..read }), -EFAULT);
    }
}

#[case]
fn write_from_a_bad_buffer_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut ring = cx.ring(4);
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(prep(Opcode::Write, fd(&file), bad_address(), 4, 0).with(flags)), -EFAULT);
    }
}

#[case]
fn readv_with_a_bad_array_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(prep(Opcode::Readv, fd(&file), bad_address(), 2, 0)), -EFAULT);
    assert_eq!(ring.run(prep(Opcode::Writev, fd(&file), bad_address(), 1, 0)), -EFAULT);
}

fn bad_vector() -> libc::iovec {
    libc::iovec { iov_base: bad_address() as *mut libc::c_void, iov_len: 8 }
}

#[case]
fn readv_with_a_bad_vector_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &[bad_vector()], 0)), -EFAULT);
}

#[case]
fn writev_with_a_bad_vector_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::writev(fd(&file), &[bad_vector()], 0)), -EFAULT);
}

#[case]
fn readv_with_too_many_vectors_is_einval(cx: &Context) {
    let file = file("f", b"0123456789");
    let vectors = vec![iovec(&[]); 1025];
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &vectors, 0)), -EINVAL);
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &vectors[..1024], 0)), 0);
}

#[case]
fn readv_with_a_negative_length_is_einval(cx: &Context) {
    let file = file("f", b"0123456789");
    let vector = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: usize::MAX };
    assert_eq!(cx.ring(4).run(sqe::readv(fd(&file), &[vector], 0)), -EINVAL);
}

#[case(since = "5.6")]
fn read_into_a_half_bad_buffer_is_short(cx: &Context) {
    let file = file("f", &[7; 8192]);
    let memory = pages(2);
    protect(&memory[4096..], libc::PROT_NONE);
    let start = address(memory) + 4096 - 16;
    assert_eq!(cx.ring(4).run(prep(Opcode::Read, fd(&file), start, 64, 0)), 16);
}

#[case]
fn negative_offset_is_einval(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], -5)), -EINVAL);
}

#[case(since = "5.6")]
fn rwf_flags_that_are_valid(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut ring = cx.ring(4);
    for flag in [libc::RWF_DSYNC, libc::RWF_SYNC] {
        assert_eq!(ring.run(sqe::write(fd(&file), b"x", 0).op_flags(flag as u32)), 1, "flag {flag:#x}");
    }
}

#[case]
fn rwf_unknown_flag_is_eopnotsupp(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 0).op_flags(1 << 20)), -EOPNOTSUPP);
}

#[case(since = "5.6")]
fn rwf_append_appends(cx: &Context) {
    let file = file("f", b"01");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&file), b"ab", 0).op_flags(libc::RWF_APPEND as u32)), 2);
    assert_eq!(std::fs::read("f").expect("read"), b"01ab");
}

/// The current directory's file system is ext4, whose writes through the page cache may always wait.
fn on_ext4() -> bool {
    // SAFETY: all zeroes is a value, and the call fills it.
    let mut about: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the name ends with a zero, and there is room for the answer.
    let answer = unsafe { libc::statfs(c".".as_ptr(), &raw mut about) };
    answer == 0 && about.f_type as i64 == 0xef53
}

#[case(since = "5.6")]
fn rwf_nowait_of_a_write_through_the_page_cache(cx: &Context) {
    if !on_ext4() {
        cx.skip("the directory's file system is not ext4");
    }
    let (mut ring, file, nowait) = (cx.ring(4), file("f", b"data"), libc::RWF_NOWAIT as u32);
    let written = std::fs::File::options().write(true).open("f").expect("open");
    for fd in [fd(&file), fd(&written)] {
        assert_eq!(ring.run(sqe::write(fd, b"x", 0).op_flags(nowait)), -EAGAIN);
        assert_eq!(ring.run(sqe::write(fd, b"x", 0).op_flags(nowait).with(IOSQE_ASYNC)), 1);
    }
}

#[case]
fn rwf_nowait_where_the_file_does_not_know_it(cx: &Context) {
    // SAFETY: the name ends with a zero.
    let memory = unsafe { libc::memfd_create(c"m".as_ptr(), 0) };
    let (mut ring, nowait, mut byte) = (cx.ring(4), libc::RWF_NOWAIT as u32, [0; 1]);
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::write(memory, b"x", 0).op_flags(nowait).with(flags)), -EOPNOTSUPP);
        assert_eq!(ring.run(sqe::read(memory, &mut byte, 0).op_flags(nowait).with(flags)), -EOPNOTSUPP);
    }
}

#[case(since = "5.6")]
fn flags_of_writes_where_there_is_no_file(cx: &Context) {
    const RWF_NOAPPEND: u32 = 0x20;
    let (mut ring, file) = (cx.ring(4), eventfd(0, 0));
    let one = 1u64.to_ne_bytes();
    for flags in [RWF_NOAPPEND, libc::RWF_APPEND as u32, libc::RWF_DSYNC as u32, libc::RWF_SYNC as u32] {
        assert_eq!(ring.run(sqe::write(fd(&file), &one, 0).op_flags(flags)), 8, "{flags:#x}");
    }
}

#[case(since = "5.6")]
fn rwf_nowait_of_cached_data_reads(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut buffer = [0; 4];
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut buffer, 0).op_flags(libc::RWF_NOWAIT as u32)), 4);
}

#[case]
fn rwf_hipri_without_iopoll_is_einval(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 0).op_flags(libc::RWF_HIPRI as u32)), -EINVAL);
}

#[case(since = "5.6")]
fn memfd_reads_and_writes(cx: &Context) {
    let (file, mut ring, mut buffer) = (memfd(), cx.ring(4), [0; 8]);
    assert_eq!(ring.run(sqe::write(fd(&file), b"hello", 0)), 5);
    assert_eq!(ring.run(sqe::read(fd(&file), &mut buffer, 1)), 4);
    assert_eq!(&buffer[..4], b"ello");
}

#[case(since = "5.6")]
fn dev_null_and_dev_zero(cx: &Context) {
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").expect("open");
    let zero = std::fs::File::open("/dev/zero").expect("open");
    let (mut ring, mut buffer) = (cx.ring(4), [9; 8]);
    assert_eq!(ring.run(sqe::read(fd(&null), &mut buffer, 0)), 0);
    assert_eq!(ring.run(sqe::write(fd(&null), &buffer, 0)), 8);
    assert_eq!(ring.run(sqe::read(fd(&zero), &mut buffer, 0)), 8);
    assert_eq!(buffer, [0; 8]);
}

#[case]
fn dev_full_is_enospc(cx: &Context) {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("open");
    assert_eq!(cx.ring(4).run(sqe::write(fd(&full), b"x", 0)), -libc::ENOSPC);
}

#[case(since = "5.6")]
fn procfs_reads(cx: &Context) {
    let Ok(file) = std::fs::File::open("/proc/self/comm") else { cx.skip("there is no /proc here") };
    let mut buffer = [0; 64];
    assert!(cx.ring(4).run(sqe::read(fd(&file), &mut buffer, 0)) > 1);
}

fn registered(cx: &Context) -> (Ring, &'static mut [u8]) {
    let (ring, memory) = (cx.ring(4), pages(2));
    assert_eq!(ring.register_buffers(&[iovec_mut(&mut memory[..4096]), iovec_mut(&mut memory[4096..])]), 0);
    (ring, memory)
}

#[case]
fn read_fixed_into_a_registered_buffer(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut ring, memory) = registered(cx);
    let at = address(&memory[4100..]);
    assert_eq!(ring.run(prep(Opcode::ReadFixed, fd(&file), at, 4, 2).buffer(1)), 4);
    assert_eq!(&memory[4100..4104], b"2345");
}

#[case]
fn write_fixed_from_a_registered_buffer(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut ring, memory) = registered(cx);
    memory[..2].copy_from_slice(b"ab");
    assert_eq!(ring.run(prep(Opcode::WriteFixed, fd(&file), address(memory), 2, 4).buffer(0)), 2);
    assert_eq!(std::fs::read("f").expect("read"), b"0123ab6789");
}

#[case]
fn read_fixed_outside_the_buffer_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut ring, memory) = registered(cx);
    let read = |at: u64, len| prep(Opcode::ReadFixed, fd(&file), at, len, 0).buffer(0);
    assert_eq!(ring.run(read(address(memory) + 4090, 7)), -EFAULT);
    assert_eq!(ring.run(read(address(memory) - 1, 1)), -EFAULT);
    assert_eq!(ring.run(read(address(memory) + 4090, 6)), 6);
}

#[case]
fn read_fixed_with_a_bad_index_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut ring, memory) = registered(cx);
    assert_eq!(ring.run(prep(Opcode::ReadFixed, fd(&file), address(memory), 4, 0).buffer(2)), -EFAULT);
}

#[case]
fn read_fixed_without_buffers_is_efault(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(prep(Opcode::ReadFixed, fd(&file), address(pages(1)), 4, 0)), -EFAULT);
}

/// The file is looked up before the buffer.
#[case]
fn read_fixed_of_a_bad_fd_without_buffers_is_ebadf(cx: &Context) {
    let mut ring = cx.ring(4);
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::op(Opcode::ReadFixed).with(flags)), -EBADF);
    }
}

#[case(since = "5.6")]
fn read_with_buffer_index_is_plain(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 0).buffer(9)), 4);
}

#[case(since = "5.6")]
fn fixed_file_read(cx: &Context) {
    let file = file("f", b"0123456789");
    let (mut ring, mut buffer) = (cx.ring(4), [0; 4]);
    ring.register_files(&[-1, file.as_raw_fd()]);
    drop(file);
    assert_eq!(ring.run(sqe::read(1, &mut buffer, 0).with(IOSQE_FIXED_FILE)), 4);
    assert_eq!(&buffer, b"0123");
}

#[case]
fn fixed_file_bad_index_is_ebadf(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut ring = cx.ring(4);
    ring.register_files(&[file.as_raw_fd(), -1]);
    for index in [1, 2, -1] {
        assert_eq!(ring.run(sqe::read(index, &mut [0; 4], 0).with(IOSQE_FIXED_FILE)), -EBADF, "index {index}");
    }
}

#[case]
fn fixed_file_without_table_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::read(0, &mut [0; 4], 0).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case(since = "5.6")]
fn async_read_of_a_file(cx: &Context) {
    let file = file("f", b"0123456789");
    let mut buffer = [0; 4];
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut buffer, 3).with(IOSQE_ASYNC)), 4);
    assert_eq!(&buffer, b"3456");
}

#[case(since = "5.6")]
fn async_writev_of_a_file(cx: &Context) {
    let file = file("f", b"0123456789");
    let vectors = [iovec(b"ab"), iovec(b"cd")];
    assert_eq!(cx.ring(4).run(sqe::writev(fd(&file), &vectors, 2).with(IOSQE_ASYNC)), 4);
    assert_eq!(std::fs::read("f").expect("read"), b"01abcd6789");
}

#[case(since = "5.6")]
fn file_size_limit_raises_efbig(cx: &Context) {
    let file = file("f", b"");
    count_signal(libc::SIGXFSZ);
    let limit = libc::rlimit { rlim_cur: 100, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: one rlimit is read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(sqe::write(fd(&file), &[1; 64], 80)), 20);
    assert_eq!(ring.run(sqe::write(fd(&file), &[1; 64], 100)), -libc::EFBIG);
}

#[case]
fn ioprio_of_a_bad_class_is_einval(cx: &Context) {
    let file = file("f", b"0123456789");
    assert_eq!(cx.ring(4).run(sqe::read(fd(&file), &mut [0; 4], 0).ioprio(7 << 13)), -EINVAL);
}

fn open_direct(cx: &Context) -> std::fs::File {
    drop(file("f", &[5; 8192]));
    let mut options = std::fs::File::options();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), libc::O_DIRECT);
    let file = options.open("f").unwrap_or_else(|error| cx.skip(&format!("O_DIRECT cannot be opened: {error}")));
    // SAFETY: one zeroed statx is plain data that the call fills in; the path is a constant.
    let stat = unsafe {
        let mut stat: libc::statx = std::mem::zeroed();
        let empty = c"".as_ptr();
        assert_eq!(libc::statx(fd(&file), empty, libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut stat), 0);
        stat
    };
    if stat.stx_dio_offset_align < 512 {
        cx.skip("the temporary directory's file system has no alignment rule for O_DIRECT");
    }
    file
}

#[case(own_flags)]
fn o_direct_misaligned_is_einval(cx: &Context) {
    let (file, mut ring, memory) = (open_direct(cx), cx.ring_with(4, 0), pages(2));
    assert_eq!(ring.run(sqe::read(fd(&file), &mut memory[..4096], 100)), -EINVAL);
    assert_eq!(ring.run(sqe::read(fd(&file), &mut memory[..100], 0)), -EINVAL);
}

#[case(own_flags, since = "5.6")]
fn o_direct_aligned_reads(cx: &Context) {
    let (file, mut ring, memory) = (open_direct(cx), cx.ring_with(4, 0), pages(2));
    for flags in [0, IOSQE_ASYNC] {
        assert_eq!(ring.run(sqe::read(fd(&file), memory, 0).with(flags)), 8192);
        assert!(memory.iter().all(|byte| *byte == 5));
    }
}

#[case(since = "5.6")]
fn write_at_the_position_that_a_limit_cuts_short_leaves_it(cx: &Context) {
    use std::io::Seek;
    let (mut file, mut ring) = (file("f", b""), cx.ring(4));
    let limit = libc::rlimit { rlim_cur: 5, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a limit of the case's own process, and a signal that it ignores.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    assert_eq!(ring.run(sqe::write(fd(&file), b"0123456789", -1)), 5);
    assert_eq!(file.stream_position().expect("lseek"), 0);
}
