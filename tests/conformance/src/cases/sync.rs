//! FSYNC, SYNC_FILE_RANGE, FALLOCATE, FTRUNCATE, FADVISE and MADVISE.

use super::prelude::*;

topic!(since: "5.1", source: "io_uring_enter(2), io_uring/sync.c, io_uring/advise.c, io_uring/truncate.c");

#[case]
fn fsync_of_a_file(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(sqe::fsync(fd(&file), 0)), 0);
}

#[case]
fn fdatasync_of_a_file(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(sqe::fsync(fd(&file), IORING_FSYNC_DATASYNC)), 0);
}

#[case]
fn fsync_of_a_range(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    assert_eq!(ring.run(Sqe { off: 1, len: 2, ..sqe::fsync(fd(&file), 0) }), 0);
    assert_eq!(ring.run(Sqe { off: 1 << 63, len: 2, ..sqe::fsync(fd(&file), 0) }), -EINVAL);
}

#[case]
fn fsync_of_a_pipe_is_einval(cx: &Context) {
    let (_reader, writer) = pipe();
    assert_eq!(cx.ring(4).run(sqe::fsync(fd(&writer), 0)), -EINVAL);
}

#[case]
fn fsync_unknown_flag_is_einval(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(sqe::fsync(fd(&file), 2)), -EINVAL);
}

#[case]
fn fsync_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::fsync(9999, 0)), -EBADF);
}

#[case]
fn fsync_with_unused_fields_is_einval(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let fsync = sqe::fsync(fd(&file), 0);
    assert_eq!(ring.run(Sqe { addr: 1, ..fsync }), -EINVAL);
    assert_eq!(ring.run(fsync.buffer(1)), -EINVAL);
    assert_eq!(ring.run(fsync.file_index(1)), -EINVAL);
}

#[case(since = "5.6")]
fn fsync_after_write_in_a_chain(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    ring.go_all(&[sqe::write(fd(&file), b"abc", 0).with(IOSQE_IO_LINK).data(1), sqe::fsync(fd(&file), 0).data(2)]);
    assert_eq!(ring.wait_ordered(2), [(1, 3), (2, 0)]);
}

#[case(since = "5.6")]
fn fsync_with_drain(cx: &Context) {
    let (file, mut ring) = (file("f", b""), cx.ring(4));
    ring.go_all(&[
        sqe::write(fd(&file), b"abc", 0).data(1),
        sqe::write(fd(&file), b"def", 3).data(2),
        sqe::fsync(fd(&file), 0).with(IOSQE_IO_DRAIN).data(3),
    ]);
    assert_eq!(ring.wait_all(3).last().map(|cqe| (cqe.user_data, cqe.res)), Some((3, 0)));
}

fn sync_range(fd: i32, flags: u32) -> Sqe {
    prep(Opcode::SyncFileRange, fd, 0, 4096, 0).op_flags(flags)
}

#[case(since = "5.2")]
fn sync_file_range_of_a_file(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    assert_eq!(ring.run(sync_range(fd(&file), libc::SYNC_FILE_RANGE_WRITE)), 0);
    assert_eq!(ring.run(sync_range(fd(&file), 0)), 0);
}

#[case]
fn sync_file_range_unknown_flag_is_einval(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(sync_range(fd(&file), 1 << 9)), -EINVAL);
}

#[case]
fn sync_file_range_with_unused_fields_is_einval(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    let good = sync_range(fd(&file), libc::SYNC_FILE_RANGE_WRITE);
    assert_eq!(ring.run(Sqe { addr: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
    assert_eq!(ring.run(good.ioprio(1)), -EINVAL);
}

#[case]
fn sync_file_range_of_a_pipe_is_espipe(cx: &Context) {
    let (_reader, writer) = pipe();
    assert_eq!(cx.ring(4).run(sync_range(fd(&writer), libc::SYNC_FILE_RANGE_WRITE)), -ESPIPE);
}

fn ftruncate(fd: i32, size: u64) -> Sqe {
    prep(Opcode::Ftruncate, fd, 0, 0, size)
}

#[case(since = "6.9")]
fn ftruncate_shortens_and_extends(cx: &Context) {
    let (file, mut ring) = (file("f", b"abcdef"), cx.ring(4));
    assert_eq!((ring.run(ftruncate(fd(&file), 2)), size()), (0, 2));
    assert_eq!((ring.run(ftruncate(fd(&file), 9000)), size()), (0, 9000));
}

#[case]
fn ftruncate_with_unused_fields_is_einval(cx: &Context) {
    let (file, mut ring) = (file("f", b"abcdef"), cx.ring(4));
    let good = ftruncate(fd(&file), 2);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(Sqe { addr: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.file_index(1)), -EINVAL);
    assert_eq!(size(), 6);
}

#[case]
fn ftruncate_read_only_is_einval(cx: &Context) {
    drop(file("f", b"abcdef"));
    let file = std::fs::File::open("f").expect("open");
    assert_eq!(cx.ring(4).run(ftruncate(fd(&file), 2)), -EINVAL);
}

#[case]
fn ftruncate_to_a_negative_size_is_einval(cx: &Context) {
    let file = file("f", b"abcdef");
    assert_eq!(cx.ring(4).run(ftruncate(fd(&file), 1 << 63)), -EINVAL);
}

#[case]
fn ftruncate_of_a_pipe_is_einval(cx: &Context) {
    let (_reader, writer) = pipe();
    assert_eq!(cx.ring(4).run(ftruncate(fd(&writer), 0)), -EINVAL);
}

/// The length is in `addr`, the mode in `len`.
fn fallocate(fd: i32, mode: i32, off: u64, length: u64) -> Sqe {
    prep(Opcode::Fallocate, fd, length, mode as u32, off)
}

fn size() -> u64 {
    std::fs::metadata("f").expect("stat").len()
}

#[case(since = "5.6")]
fn fallocate_extends(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(fallocate(fd(&file), 0, 0, 10_000)), 0);
    assert_eq!(size(), 10_000);
}

#[case(since = "5.6")]
fn fallocate_keep_size(cx: &Context) {
    let file = file("f", b"abc");
    let res = cx.ring(4).run(fallocate(fd(&file), libc::FALLOC_FL_KEEP_SIZE, 0, 10_000));
    assert_eq!((res, size()), (0, 3));
}

#[case(since = "5.6")]
fn fallocate_punches_a_hole(cx: &Context) {
    let file = file("f", &[7; 8192]);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(cx.ring(4).run(fallocate(fd(&file), mode, 4096, 4096)), 0);
    let content = std::fs::read("f").expect("read");
    assert_eq!((content[4095], content[4096], content.len()), (7, 0, 8192));
}

#[case]
fn fallocate_unknown_mode_is_eopnotsupp(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(fallocate(fd(&file), 1 << 20, 0, 10)), -EOPNOTSUPP);
}

#[case]
fn fallocate_of_a_pipe_is_espipe(cx: &Context) {
    let (_reader, writer) = pipe();
    assert_eq!(cx.ring(4).run(fallocate(fd(&writer), 0, 0, 10)), -ESPIPE);
}

#[case]
fn fallocate_of_nothing_is_einval(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(fallocate(fd(&file), 0, 0, 0)), -EINVAL);
    assert_eq!(cx.ring(4).run(fallocate(fd(&file), 0, 0, 10).op_flags(1)), -EINVAL);
}

#[case]
fn fallocate_read_only_is_ebadf(cx: &Context) {
    drop(file("f", b"abc"));
    let file = std::fs::File::open("f").expect("open");
    assert_eq!(cx.ring(4).run(fallocate(fd(&file), 0, 0, 10)), -EBADF);
}

fn fadvise(fd: i32, advice: i32) -> Sqe {
    prep(Opcode::Fadvise, fd, 0, 4096, 0).op_flags(advice as u32)
}

#[case(since = "5.6")]
fn fadvise_of_a_file(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(8));
    let advices = [libc::POSIX_FADV_NORMAL, libc::POSIX_FADV_WILLNEED, libc::POSIX_FADV_DONTNEED];
    for advice in advices.into_iter().chain([libc::POSIX_FADV_RANDOM, libc::POSIX_FADV_SEQUENTIAL]) {
        assert_eq!(ring.run(fadvise(fd(&file), advice)), 0, "advice {advice}");
    }
}

#[case]
fn fadvise_unknown_advice_is_einval(cx: &Context) {
    let file = file("f", b"abc");
    assert_eq!(cx.ring(4).run(fadvise(fd(&file), 77)), -EINVAL);
    assert_eq!(cx.ring(4).run(fadvise(fd(&file), 0).buffer(1)), -EINVAL);
}

#[case]
fn fadvise_of_a_pipe_is_espipe(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.ring(4).run(fadvise(fd(&reader), libc::POSIX_FADV_NORMAL)), -ESPIPE);
}

fn madvise(addr: u64, length: u32, advice: i32) -> Sqe {
    prep(Opcode::Madvise, -1, addr, length, 0).op_flags(advice as u32)
}

#[case(since = "5.6")]
fn madvise_drops_pages(cx: &Context) {
    let memory = pages(1);
    memory[0] = 7;
    assert_eq!(cx.ring(4).run(madvise(address(memory), 4096, libc::MADV_DONTNEED)), 0);
    // SAFETY: a byte of the case's own mapping, which the kernel has just replaced.
    assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 0);
}

#[case]
fn madvise_unknown_advice_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(madvise(address(pages(1)), 4096, 777)), -EINVAL);
    assert_eq!(cx.ring(4).run(madvise(address(pages(1)), 4096, 0).buffer(1)), -EINVAL);
}

#[case(undisturbed)]
fn madvise_of_nothing_mapped_is_enomem(cx: &Context) {
    let mut ring = cx.ring(4);
    let memory = address(pages(1));
    // SAFETY: the case's own page, which nothing uses any more.
    assert_eq!(unsafe { libc::munmap(memory as *mut libc::c_void, 4096) }, 0);
    assert_eq!(ring.run(madvise(memory, 4096, libc::MADV_DONTNEED)), -ENOMEM);
}

#[case]
fn madvise_unaligned_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(madvise(address(pages(1)) + 1, 4096, libc::MADV_DONTNEED)), -EINVAL);
}

#[case(since = "5.6")]
fn async_sync_operations(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(8));
    for sqe in [
        sqe::fsync(fd(&file), 0),
        sync_range(fd(&file), libc::SYNC_FILE_RANGE_WRITE),
        fallocate(fd(&file), 0, 0, 100),
        fadvise(fd(&file), libc::POSIX_FADV_NORMAL),
        madvise(address(pages(1)), 4096, libc::MADV_DONTNEED),
    ] {
        assert_eq!(ring.run(sqe.with(IOSQE_ASYNC)), 0, "opcode {}", sqe.opcode);
    }
}

#[case(own_flags)]
fn fsync_of_a_negative_range_is_refused_at_submission(cx: &Context) {
    let (file, mut ring) = (file("f", b"abc"), cx.ring(4));
    ring.push(Sqe { off: 1 << 63, ..sqe::fsync(fd(&file), 0) }.data(1));
    ring.push(sqe::nop().data(2));
    assert_eq!(ring.submit(), 1, "the submission ends at what is refused");
    assert_eq!(ring.wait_ordered(1), [(1, -EINVAL)]);
}
