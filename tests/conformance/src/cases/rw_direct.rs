//! Reads and writes of files opened with O_DIRECT: transfers and refusals. `rw_direct_flight.rs` is about those in
//! flight.

use super::prelude::*;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/rw.c");

/// The file that cases read and write: 64 KiB, each page filled with its number and one.
pub fn direct_file(cx: &Context) -> std::fs::File {
    let content: Vec<u8> = (0..16u8).flat_map(|page| [page + 1; 4096]).collect();
    let plain = file("direct", &content);
    plain.sync_all().expect("the blocks are there");
    open(cx, std::fs::File::options().read(true).write(true))
}

fn open(cx: &Context, options: &mut std::fs::OpenOptions) -> std::fs::File {
    let Ok(opened) = options.custom_flags(libc::O_DIRECT).open("direct") else {
        cx.skip("the directory's file system has no O_DIRECT")
    };
    if opened.read_at(&mut pages(1)[..100], 0).is_ok() {
        cx.skip("the directory's file system has no alignment rule for O_DIRECT");
    }
    opened
}

fn content() -> Vec<u8> {
    std::fs::read("direct").expect("read the file")
}

fn is_all(bytes: &[u8], value: u8) -> bool {
    bytes.iter().all(|byte| *byte == value)
}

#[case(since = "5.6")]
fn reads_what_is_there(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(2));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 4096).data(7)), 8192);
    assert!(is_all(&bytes[..4096], 2) && is_all(&bytes[4096..], 3));
}

#[case(since = "5.6")]
fn writes_what_is_asked(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(2));
    bytes.fill(99);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 4096)), 8192);
    let found = content();
    assert!(is_all(&found[..4096], 1) && is_all(&found[4096..12288], 99) && is_all(&found[12288..16384], 4));
}

#[case]
fn vectors_are_filled_and_gathered(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(3));
    let (first, rest) = bytes.split_at_mut(4096);
    let (second, third) = rest.split_at_mut(4096);
    let vectors = [iovec_mut(third), iovec_mut(first)];
    assert_eq!(ring.run(sqe::readv(fd(&file), &vectors, 0)), 8192);
    assert!(is_all(third, 1) && is_all(first, 2) && is_all(second, 0));
    assert_eq!(ring.run(sqe::writev(fd(&file), &[iovec(first), iovec(third)], 8192)), 8192);
    let found = content();
    assert!(is_all(&found[8192..12288], 2) && is_all(&found[12288..16384], 1));
}

#[case(since = "5.6")]
fn batch_of_reads_fills_each_buffer(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(16), pages(16));
    let reads = bytes.chunks_mut(4096).enumerate();
    let reads: Vec<_> = reads.map(|(n, page)| sqe::read(fd(&file), page, n as i64 * 4096).data(n as u64)).collect();
    ring.go_all(&reads);
    assert_eq!(ring.wait_sorted(16), (0..16).map(|n| (n, 4096)).collect::<Vec<_>>());
    assert!(bytes.chunks(4096).zip(1..).all(|(page, value)| is_all(page, value)));
}

#[case(since = "5.6")]
fn batch_of_reads_and_writes_on_two_files(cx: &Context) {
    let (one, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(4));
    let two = open(cx, std::fs::File::options().read(true).write(true));
    let (read, written) = bytes.split_at_mut(8192);
    written.fill(77);
    ring.go_all(&[
        sqe::read(fd(&one), &mut read[..4096], 0).data(1),
        sqe::write(fd(&two), &written[..4096], 4096).data(2),
        sqe::nop().data(3),
        sqe::read(fd(&two), &mut read[4096..], 8192).data(4),
        sqe::write(fd(&one), &written[4096..], 12288).data(5),
    ]);
    assert_eq!(ring.wait_sorted(5), [(1, 4096), (2, 4096), (3, 0), (4, 4096), (5, 4096)]);
    assert!(is_all(&read[..4096], 1) && is_all(&read[4096..], 3));
    let found = content();
    assert!(is_all(&found[4096..8192], 77) && is_all(&found[12288..16384], 77) && is_all(&found[..4096], 1));
}

#[case(since = "5.6")]
fn read_across_the_end_is_short(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(4));
    file.set_len(10_000).expect("shorten the file");
    ring.go_all(&[sqe::read(fd(&file), bytes, 4096).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, 5_904), (2, -ECANCELED)], "a short transfer breaks a chain");
    assert!(is_all(&bytes[..4096], 2) && is_all(&bytes[4096..5_904], 3));
}

#[case(since = "5.6")]
fn read_at_the_end_is_zero(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 65_536)), 0);
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 1 << 40)), 0);
}

#[case(since = "5.6")]
fn read_of_nothing_is_zero(cx: &Context) {
    let (file, mut ring) = (direct_file(cx), cx.ring(4));
    assert_eq!(ring.run(sqe::read(fd(&file), &mut [], 0)), 0);
    assert_eq!(ring.run(sqe::readv(fd(&file), &[], 0)), 0);
    assert_eq!(ring.run(sqe::write(fd(&file), &[], 65_536)), 0);
}

#[case(since = "5.6")]
fn write_beyond_the_end_makes_the_file_longer(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    bytes.fill(50);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 65_536)), 4096);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 1 << 20)), 4096);
    let found = content();
    assert_eq!(found.len(), (1 << 20) + 4096);
    assert!(
        is_all(&found[65_536..69_632], 50) && is_all(&found[69_632..1 << 20], 0) && is_all(&found[1 << 20..], 50)
    );
}

#[case(since = "5.6")]
fn write_into_a_hole(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    file.set_len(1 << 20).expect("a hole at the end");
    bytes.fill(60);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 1 << 19)), 4096);
    let found = content();
    assert!(is_all(&found[1 << 19..(1 << 19) + 4096], 60) && is_all(&found[(1 << 19) + 4096..], 0));
}

/// Reads and writes at offset -1 use the file position. Whether it advances depends on a wait for the device.
#[case(since = "5.6")]
fn position_is_used(cx: &Context) {
    let (mut file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    file.seek(SeekFrom::Start(8192)).expect("seek");
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, -1)), 4096);
    assert!(is_all(bytes, 3));
    file.seek(SeekFrom::Start(4096)).expect("seek");
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, -1)), 4096);
    assert!(is_all(&content()[4096..12_288], 3));
}

#[case(since = "5.6")]
fn position_is_left_alone(cx: &Context) {
    let (mut file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 8192)), 4096);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 0)), 4096);
    assert_eq!(file.stream_position().expect("the position"), 0);
}

#[case(since = "5.6")]
fn append_ignores_the_offset(cx: &Context) {
    let ((), mut ring, bytes) = (drop(direct_file(cx)), cx.ring(4), pages(1));
    let file = open(cx, std::fs::File::options().append(true));
    bytes.fill(70);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 0)), 4096);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 4096)), 4096);
    let found = content();
    assert!(found.len() == 73_728 && is_all(&found[..4096], 1) && is_all(&found[65_536..], 70));
}

#[case(since = "5.6")]
fn rwf_append_appends(cx: &Context) {
    const RWF_APPEND: u32 = 0x10;
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    bytes.fill(71);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 0).op_flags(RWF_APPEND)), 4096);
    let found = content();
    assert!(found.len() == 69_632 && is_all(&found[..4096], 1) && is_all(&found[65_536..], 71));
}

#[case(since = "5.6")]
fn rwf_sync_and_dsync_write(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    bytes.fill(72);
    for (flag, offset) in [(2, 4096), (4, 8192)] {
        assert_eq!(ring.run(sqe::write(fd(&file), bytes, offset).op_flags(flag)), 4096);
    }
    assert!(is_all(&content()[4096..12_288], 72));
}

const RWF_NOWAIT: u32 = 8;

#[case(since = "5.6")]
fn rwf_nowait_reads(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    let answer = ring.run(sqe::read(fd(&file), bytes, 4096).op_flags(RWF_NOWAIT));
    if answer == -EOPNOTSUPP {
        cx.skip("the directory's file system has no RWF_NOWAIT");
    }
    assert_eq!(answer, 4096);
    assert!(is_all(bytes, 2));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 65_536).op_flags(RWF_NOWAIT)), 0);
    assert_eq!(ring.run(sqe::read(fd(&file), &mut bytes[..100], 0).op_flags(RWF_NOWAIT)), -EINVAL);
}

#[case]
fn rwf_nowait_of_an_extending_write_is_eagain(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    match ring.run(sqe::write(fd(&file), bytes, 65_536).op_flags(RWF_NOWAIT)) {
        answer if answer == -EOPNOTSUPP => cx.skip("the directory's file system has no RWF_NOWAIT"),
        answer => assert_eq!(answer, -EAGAIN),
    }
    assert_eq!(content().len(), 65_536);
}

#[case]
fn rwf_flags_that_there_are_not(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 0).op_flags(1 << 12)), -EOPNOTSUPP);
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 0).op_flags(1)), -EINVAL, "RWF_HIPRI");
}

#[case]
fn misaligned_length_is_einval(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), &mut bytes[..100], 0)), -EINVAL);
    let vectors = [iovec_mut(&mut bytes[..100])];
    assert_eq!(ring.run(sqe::readv(fd(&file), &vectors, 0)), -EINVAL);
}

#[case]
fn misaligned_offset_is_einval(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 100)), -EINVAL);
    assert_eq!(ring.run(sqe::readv(fd(&file), &[iovec_mut(bytes)], 100)), -EINVAL);
}

#[case]
fn negative_offset_is_einval(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, -4096)), -EINVAL);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, i64::MIN)), -EINVAL);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, i64::MAX - 4095)), -EINVAL);
}

#[case(since = "5.6")]
fn bad_memory_is_efault(cx: &Context) {
    let (file, mut ring) = (direct_file(cx), cx.ring(8));
    for at in [bad_address(), 0xffff_8000_0000_0000, 1 << 62] {
        assert_eq!(ring.run(prep(Opcode::Read, fd(&file), at, 4096, 0)), -EFAULT, "{at:#x}");
        assert_eq!(ring.run(prep(Opcode::Write, fd(&file), at, 4096, 0)), -EFAULT, "{at:#x}");
    }
    let bytes = pages(1);
    protect(bytes, libc::PROT_READ);
    assert_eq!(ring.run(prep(Opcode::Read, fd(&file), address(bytes), 4096, 0)), -EFAULT, "read-only memory");
    assert_eq!(ring.run(prep(Opcode::Write, fd(&file), address(bytes), 4096, 0)), 4096);
}

#[case]
fn bad_vector_is_efault(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    let bad = libc::iovec { iov_base: bad_address() as *mut libc::c_void, iov_len: 4096 };
    assert_eq!(ring.run(sqe::readv(fd(&file), &[bad], 0)), -EFAULT);
    assert_eq!(ring.run(prep(Opcode::Readv, fd(&file), bad_address(), 1, 0)), -EFAULT);
    ring.go_all(&[
        sqe::readv(fd(&file), &[bad, iovec_mut(bytes)], 0).data(1),
        sqe::readv(fd(&file), &[iovec_mut(bytes)], 4096).data(2),
    ]);
    assert_eq!(ring.wait_sorted(2), [(1, -EFAULT), (2, 4096)]);
    assert!(is_all(bytes, 2));
}

/// A read whose second page of memory is inaccessible fails with EFAULT, or reads the first page.
#[case]
fn half_bad_memory(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(2));
    protect(&bytes[4096..], libc::PROT_NONE);
    let answer = ring.run(prep(Opcode::Read, fd(&file), address(bytes), 8192, 4096));
    assert!(answer == -EFAULT || answer == 4096, "{answer}");
}

#[case(since = "5.6")]
fn read_only_and_write_only_files(cx: &Context) {
    let ((), mut ring, bytes) = (drop(direct_file(cx)), cx.ring(4), pages(1));
    let reader = open(cx, std::fs::File::options().read(true));
    let writer = open(cx, std::fs::File::options().write(true));
    assert_eq!(ring.run(sqe::write(fd(&reader), bytes, 0)), -EBADF);
    assert_eq!(ring.run(sqe::read(fd(&writer), bytes, 0)), -EBADF);
    assert_eq!(ring.run(sqe::read(fd(&reader), bytes, 0)), 4096);
    assert_eq!(ring.run(sqe::write(fd(&writer), bytes, 4096)), 4096);
}

#[case(since = "5.6")]
fn bad_descriptors_are_ebadf(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 0)), 4096);
    let number = fd(&file);
    drop(file);
    assert_eq!(ring.run(sqe::read(number, bytes, 0)), -EBADF, "closed");
    assert_eq!(ring.run(sqe::read(-1, bytes, 0)), -EBADF);
}

#[case]
fn fixed_buffers(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(4));
    assert_eq!(ring.register_buffers(&[iovec(bytes)]), 0);
    let read = |at: u64, len, off| prep(Opcode::ReadFixed, fd(&file), at, len, off);
    assert_eq!(ring.run(read(address(bytes), 8192, 4096)), 8192);
    assert_eq!(ring.run(read(address(bytes) + 8192, 4096, 0)), 4096);
    assert!(is_all(&bytes[..4096], 2) && is_all(&bytes[4096..8192], 3) && is_all(&bytes[8192..12_288], 1));
    assert_eq!(ring.run(prep(Opcode::WriteFixed, fd(&file), address(bytes), 4096, 12_288)), 4096);
    assert!(is_all(&content()[12_288..16_384], 2));
    assert_eq!(ring.run(read(address(bytes) + 4096, 16_384, 0)), -EFAULT, "beyond the buffer");
    assert_eq!(ring.run(read(address(bytes), 4096, 0).buffer(1)), -EFAULT, "no such buffer");
}

#[case]
fn fixed_buffer_may_go_when_it_is_done(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(16));
    assert_eq!(ring.register_buffers(&[iovec(bytes)]), 0);
    ring.go(prep(Opcode::ReadFixed, fd(&file), address(bytes), 65_536, 0).data(1));
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    assert_eq!(ring.wait_ordered(1), [(1, 65_536)]);
    assert!(is_all(&bytes[61_440..], 16));
}

#[case(since = "6.15")]
fn fixed_vectors(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(4));
    assert_eq!(ring.register_buffers(&[iovec(bytes)]), 0);
    let vectors = [iovec(&bytes[8192..12_288]), iovec(&bytes[..4096])];
    let sqe = Sqe { opcode: Opcode::ReadvFixed as u8, ..sqe::readv(fd(&file), &vectors, 0) };
    assert_eq!(ring.run(sqe), 8192);
    assert!(is_all(&bytes[8192..12_288], 1) && is_all(&bytes[..4096], 2) && is_all(&bytes[4096..8192], 0));
    let sqe = Sqe { opcode: Opcode::WritevFixed as u8, ..sqe::writev(fd(&file), &vectors, 16_384) };
    assert_eq!(ring.run(sqe), 8192);
    let found = content();
    assert!(is_all(&found[16_384..20_480], 1) && is_all(&found[20_480..24_576], 2));
}

#[case(since = "5.6")]
fn fixed_files(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(2));
    ring.register_files(&[fd(&file), -1]);
    drop(file);
    let (first, second) = bytes.split_at_mut(4096);
    ring.go_all(&[
        sqe::read(0, first, 4096).with(IOSQE_FIXED_FILE).data(1),
        sqe::read(0, second, 8192).with(IOSQE_FIXED_FILE).data(2),
    ]);
    assert_eq!(ring.wait_sorted(2), [(1, 4096), (2, 4096)]);
    assert!(is_all(first, 2) && is_all(second, 3));
    assert_eq!(ring.run(sqe::read(1, first, 0).with(IOSQE_FIXED_FILE)), -EBADF);
    assert_eq!(ring.run(sqe::read(2, first, 0).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case(since = "5.7")]
fn chosen_buffers(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(2));
    let provide = prep(Opcode::ProvideBuffers, 2, address(bytes), 4096, 5);
    assert_eq!(ring.run(Sqe { buf_index: 3, ..provide }), 0);
    let read = Sqe { buf_index: 3, ..prep(Opcode::Read, fd(&file), 0, 4096, 4096) }.with(IOSQE_BUFFER_SELECT);
    ring.go(read);
    let cqe = ring.wait();
    assert_eq!((cqe.res, cqe.flags & IORING_CQE_F_BUFFER), (4096, IORING_CQE_F_BUFFER));
    let place = ((cqe.flags >> IORING_CQE_BUFFER_SHIFT) as usize - 5) * 4096;
    assert!(is_all(&bytes[place..place + 4096], 2));
}

#[case(since = "5.6")]
fn async_reads_and_writes(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(2));
    let (read, written) = bytes.split_at_mut(4096);
    written.fill(80);
    ring.go_all(&[
        sqe::read(fd(&file), read, 4096).with(IOSQE_ASYNC).data(1),
        sqe::write(fd(&file), written, 8192).with(IOSQE_ASYNC).data(2),
    ]);
    assert_eq!(ring.wait_sorted(2), [(1, 4096), (2, 4096)]);
    assert!(is_all(read, 2) && is_all(&content()[8192..12_288], 80));
}

/// I/O priorities: best effort and idle, which need no privilege, and a class that does not exist.
#[case(since = "5.6")]
fn priorities(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(8), pages(1));
    for ioprio in [2 << 13 | 7, 2 << 13, 3 << 13] {
        assert_eq!(ring.run(sqe::read(fd(&file), bytes, 4096).ioprio(ioprio)), 4096, "{ioprio:#x}");
        assert_eq!(ring.run(sqe::write(fd(&file), bytes, 8192).ioprio(ioprio)), 4096, "{ioprio:#x}");
    }
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 4096).ioprio(5 << 13)), -EINVAL);
}

#[case(since = "5.6")]
fn large_transfers(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(2048));
    bytes.fill(90);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 4096)), 8 << 20);
    bytes.fill(0);
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 4096)), 8 << 20);
    assert!(is_all(bytes, 90));
}

#[case(since = "5.17")]
fn success_without_a_cqe(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    let quiet = |sqe: Sqe| sqe.with(IOSQE_CQE_SKIP_SUCCESS);
    ring.go_all(&[quiet(sqe::read(fd(&file), bytes, 4096)).with(IOSQE_IO_LINK).data(1), sqe::nop().data(2)]);
    assert_eq!(ring.wait_ordered(1), [(2, 0)]);
    assert!(is_all(bytes, 2));
    ring.go(quiet(sqe::read(fd(&file), &mut bytes[..100], 0)).data(3));
    assert_eq!(ring.wait_ordered(1), [(3, -EINVAL)]);
    ring.expect_quiet();
}

#[case(since = "5.6")]
fn o_direct_set_and_cleared_later(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    // SAFETY: F_SETFL takes an integer and touches no memory of the process.
    let set = |flags: i32| assert_eq!(unsafe { libc::fcntl(fd(&file), libc::F_SETFL, flags) }, 0);
    for round in 0..4 {
        assert_eq!(ring.run(sqe::read(fd(&file), bytes, round * 4096)), 4096);
        assert!(is_all(bytes, round as u8 + 1));
        bytes.fill(100 + round as u8);
        assert_eq!(ring.run(sqe::write(fd(&file), bytes, (round + 4) * 4096)), 4096);
        set(if round % 2 == 0 { 0 } else { libc::O_DIRECT });
    }
    drop(file);
    let found = content();
    let page = |n: usize| &found[n * 4096..(n + 1) * 4096];
    assert!((4..8).all(|n| is_all(page(n), 96 + n as u8)));
}

#[case(own_flags, since = "5.6")]
fn block_device(cx: &Context) {
    let (plain, mut ring, bytes) = (loop_device(2048), cx.ring(16), pages(16));
    let path = format!("/proc/self/fd/{}", fd(&plain));
    let options = std::fs::File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path);
    let Ok(device) = options else { cx.skip("the loop device cannot be opened with O_DIRECT") };
    assert_eq!(ring.run(sqe::read(fd(&device), bytes, 0)), 65_536);
    assert!(is_all(bytes, b'x'));
    bytes.fill(b'y');
    assert_eq!(ring.run(sqe::write(fd(&device), &bytes[..8192], 4096)), 8192);
    let reads = bytes.chunks_mut(4096).enumerate();
    let reads: Vec<_> =
        reads.map(|(n, page)| sqe::read(fd(&device), page, n as i64 * 4096).data(n as u64)).collect();
    ring.go_all(&reads);
    assert_eq!(ring.wait_sorted(16), (0..16).map(|n| (n, 4096)).collect::<Vec<_>>());
    assert!(is_all(&bytes[..4096], b'x') && is_all(&bytes[4096..12_288], b'y') && is_all(&bytes[12_288..], b'x'));
    assert_eq!(ring.run(sqe::read(fd(&device), bytes, (1 << 20) - 4096)), 4096, "short at the end");
    assert_eq!(ring.run(sqe::read(fd(&device), bytes, 1 << 20)), 0);
    assert_eq!(ring.run(sqe::write(fd(&device), bytes, 1 << 20)), -libc::ENOSPC);
    assert_eq!(ring.run(sqe::read(fd(&device), &mut bytes[..100], 0)), -EINVAL);
    let mut whole = vec![0; 4096];
    device.read_exact_at(&mut pages(1)[..], 4096).expect("the call by itself");
    std::io::Read::read_exact(&mut &std::fs::File::open("disk").expect("open"), &mut whole).expect("read");
    assert!(is_all(&whole, b'x'));
}

/// Programs that watch the file learn of a read.
#[case(since = "5.6")]
fn read_is_reported_to_inotify(cx: &Context) {
    let (file, mut ring, bytes) = (direct_file(cx), cx.ring(4), pages(1));
    // SAFETY: numbers, and a path that ends with a zero byte.
    let watch = unsafe { libc::inotify_init1(libc::IN_CLOEXEC | libc::IN_NONBLOCK) };
    // SAFETY: as above.
    assert!(unsafe { libc::inotify_add_watch(watch, c"direct".as_ptr(), libc::IN_ACCESS) } > 0);
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 0)), 4096);
    let mut asked = libc::pollfd { fd: watch, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd is passed for one.
    assert_eq!(unsafe { libc::poll(&raw mut asked, 1, 0) }, 1);
}
