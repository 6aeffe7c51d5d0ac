//! io_uring_register(2): probe, buffers, files, eventfd, ring descriptors.

use super::prelude::*;

topic!(since: "5.1", source: "io_uring_register(2), io_uring/register.c, io_uring/rsrc.c");

#[case]
fn unknown_opcode_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(ring.register(200, 0, 0) as i32, -EINVAL);
    assert_eq!(ring.register(0x7fff_ffff, 0, 0) as i32, -EINVAL);
}

#[case(own_flags)]
fn bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(cx.door.register(9999, IORING_UNREGISTER_FILES, 0, 0) as i32, -EBADF);
    assert_eq!(
        cx.door.register(-1, IORING_UNREGISTER_FILES, 0, 0) as i32,
        -EINVAL,
        "-1 asks for what needs no ring"
    );
}

#[case(own_flags)]
fn another_file_is_eopnotsupp(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(cx.door.register(fd(&reader), IORING_UNREGISTER_FILES, 0, 0) as i32, -EOPNOTSUPP);
}

/// `struct io_uring_probe` and its 256 entries of 8 bytes.
type Probe = [[u8; 8]; 258];

fn probe(ring: &Ring, count: u32) -> (i32, Probe) {
    let mut probe = [[0; 8]; 258];
    (ring.register(IORING_REGISTER_PROBE, address_mut(&mut probe) as usize, count) as i32, probe)
}

fn supported(probe: &Probe, opcode: Opcode) -> bool {
    probe[2 + opcode as usize][2] & 1 == 1
}

#[case(since = "5.6")]
fn probe_reports_the_operations(cx: &Context) {
    let (answer, probe) = probe(&cx.ring(4), 256);
    assert_eq!(answer, 0);
    let (last, length) = (usize::from(probe[0][0]), usize::from(probe[0][1]));
    assert!(last >= Opcode::Linkat as usize && length == last + 1, "last {last}, length {length}");
    for (number, entry) in probe[2..2 + length].iter().enumerate() {
        assert_eq!((usize::from(entry[0]), entry[2] & !1), (number, 0));
    }
    assert_eq!(probe[2 + length], [0; 8], "nothing after the last");
}

#[case(own_flags, since = "5.6")]
fn operations_that_are_served_are_supported(cx: &Context) {
    let (_, probe) = probe(&cx.ring_with(4, 0), 256);
    use Opcode::*;
    for opcode in [
        Nop,
        Readv,
        Writev,
        Fsync,
        ReadFixed,
        WriteFixed,
        PollAdd,
        PollRemove,
        SyncFileRange,
        Sendmsg,
        Recvmsg,
        Timeout,
        TimeoutRemove,
        Accept,
        AsyncCancel,
        LinkTimeout,
        Connect,
        Fallocate,
        Openat,
        Close,
        Statx,
        Read,
        Write,
        Fadvise,
        Madvise,
        Send,
        Recv,
        Openat2,
        EpollCtl,
        Splice,
        Tee,
        Shutdown,
        Renameat,
        Unlinkat,
        Mkdirat,
        Symlinkat,
        Linkat,
        Socket,
        Fsetxattr,
        Setxattr,
        Fgetxattr,
        Getxattr,
        FilesUpdate,
        FixedFdInstall,
        Ftruncate,
        Bind,
        Listen,
        EpollWait,
        ReadvFixed,
        WritevFixed,
        Pipe,
        MsgRing,
    ] {
        assert!(supported(&probe, opcode), "{}", opcode.name());
    }
}

#[case(since = "5.6")]
fn probe_of_a_few(cx: &Context) {
    let (answer, probe) = probe(&cx.ring(4), 3);
    assert_eq!((answer, probe[0][1]), (0, 3));
    assert!(supported(&probe, Opcode::Nop) && probe[5] == [0; 8]);
}

#[case]
fn probe_that_is_not_zeroed_is_einval(cx: &Context) {
    let mut probe: Probe = [[0; 8]; 258];
    probe[1][0] = 1;
    let answer = cx.ring(4).register(IORING_REGISTER_PROBE, address_mut(&mut probe) as usize, 256);
    assert_eq!(answer as i32, -EINVAL);
}

#[case]
fn probe_of_too_many_is_einval(cx: &Context) {
    assert_eq!(probe(&cx.ring(4), 257).0, -EINVAL);
}

#[case]
fn probe_bad_address_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_REGISTER_PROBE, bad_address() as usize, 8) as i32, -EFAULT);
    assert_eq!(cx.ring(4).register(IORING_REGISTER_PROBE, 0, 8) as i32, -EINVAL, "no address");
}

fn buffers(ring: &Ring, vectors: &[libc::iovec]) -> i32 {
    ring.register_buffers(vectors) as i32
}

fn page() -> libc::iovec {
    iovec_mut(pages(1))
}

#[case]
fn buffers_register_and_unregister(cx: &Context) {
    let ring = cx.ring(4);
    for _ in 0..3 {
        assert_eq!(buffers(&ring, &[page(), page()]), 0);
        assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    }
}

#[case]
fn buffers_twice_is_ebusy(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!((buffers(&ring, &[page()]), buffers(&ring, &[page()])), (0, -EBUSY));
}

#[case]
fn buffers_none_is_einval(cx: &Context) {
    assert_eq!(buffers(&cx.ring(4), &[]), -EINVAL);
}

#[case]
fn buffers_that_cannot_be_written_are_efault(cx: &Context) {
    let (ring, memory) = (cx.ring(4), pages(4));
    protect(&memory[..4096], libc::PROT_READ);
    protect(&memory[3 * 4096..], libc::PROT_NONE);
    let at = |first: usize, bytes: usize| {
        let range = libc::iovec { iov_base: (address(memory) as usize + first) as *mut _, iov_len: bytes };
        ring.register(IORING_REGISTER_BUFFERS, &raw const range as usize, 1) as i32
    };
    assert_eq!([at(0, 4096), at(4095, 2), at(2 * 4096, 4097)], [-EFAULT; 3]);
    assert_eq!(at(4096, 2 * 4096), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    assert_eq!(at(4097, 1), 0, "at no boundary");
}

#[case]
fn buffers_are_kept_whatever_mprotect_forbids(cx: &Context) {
    let ((_reader, writer), mut ring, memory) = (pipe(), cx.ring(4), pages(1));
    assert_eq!(ring.register_buffers(&[iovec_mut(memory)]), 0);
    protect(memory, libc::PROT_NONE);
    assert_eq!(ring.run(prep(Opcode::WriteFixed, fd(&writer), address(memory), 8, 0)), 8);
}

#[case]
fn buffers_unregister_without_is_enxio(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_UNREGISTER_BUFFERS, 0, 0) as i32, -ENXIO);
}

#[case]
fn buffers_bad_array_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_REGISTER_BUFFERS, bad_address() as usize, 1) as i32, -EFAULT);
}

fn vector(base: u64, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base as *mut libc::c_void, iov_len: length }
}

#[case]
fn buffers_bad_memory_is_efault(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(buffers(&ring, &[page(), vector(bad_address(), 4096)]), -EFAULT);
    assert_eq!(buffers(&ring, &[page()]), 0, "nothing of the failed one is left");
}

#[case]
fn buffers_null_entry_is_sparse(cx: &Context) {
    assert_eq!(buffers(&cx.ring(4), &[vector(0, 0), page()]), 0);
}

#[case]
fn buffers_null_with_length_is_efault(cx: &Context) {
    assert_eq!(buffers(&cx.ring(4), &[vector(0, 4096)]), -EFAULT);
    assert_eq!(buffers(&cx.ring(4), &[vector(address(pages(1)), 0)]), -EFAULT);
}

#[case]
fn buffers_too_many_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(buffers(&ring, &vec![page(); 16385]), -EINVAL);
}

#[case]
fn buffers_too_large_is_efault(cx: &Context) {
    assert_eq!(buffers(&cx.ring(4), &[vector(address(pages(1)), (1 << 30) + 1)]), -EFAULT);
}

/// Registers a buffer of 1 GiB and a page, and writes from it. The memory is one file that is mapped again and again.
#[case(from = "7.3")]
fn buffers_may_be_large(cx: &Context) {
    const PART: usize = 64 << 20;
    let (mut ring, memory, bytes) = (cx.ring(4), memfd(), (1 << 30) + 4096);
    memory.set_len(PART as u64).expect("the file's length");
    let room = pages(17 * PART / 4096).as_mut_ptr();
    for part in 0..17 {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: these pages are the case's own, and nothing uses them.
        let at = unsafe { libc::mmap(room.add(part * PART).cast(), PART, protection, flags, fd(&memory), 0) };
        assert_ne!(at, libc::MAP_FAILED);
    }
    let end = room as u64 + bytes as u64;
    assert_eq!(buffers(&ring, &[vector(room as u64, bytes)]), 0);
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").expect("open");
    let write = |at: u64| prep(Opcode::WriteFixed, fd(&null), at, 100, 0);
    assert_eq!((ring.run(write(end - 100)), ring.run(write(end - 99))), (100, -EFAULT));
}

#[case(from = "7.3")]
fn buffers_too_large_by_far(cx: &Context) {
    const BASE: u64 = 1 << 44; // where nothing is
    let ring = cx.ring(4);
    for (bytes, error) in
        [(1 << 39, EFAULT), (1 << 40, libc::EOVERFLOW), ((1 << 40) + 1, EINVAL), (1 << 62, EINVAL)]
    {
        assert_eq!(buffers(&ring, &[vector(BASE, bytes)]), -error, "{bytes:#x} bytes");
    }
}

/// The kernel pins no memory for long that is written back to a disk.
#[case]
fn a_file_of_a_disk_as_buffer_is_efault(cx: &Context) {
    use std::os::unix::fs::MetadataExt;
    let (ring, file) = (cx.ring(4), std::fs::File::options().read(true).write(true).create_new(true).open("f"));
    let file = file.expect("open");
    file.set_len(8192).expect("the file's length");
    if libc::major(file.metadata().expect("fstat").dev()) == 0 {
        cx.skip("there is no disk below this folder");
    }
    let map = |flags| {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the place.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, protection, flags, fd(&file), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    };
    assert_eq!(buffers(&ring, &[vector(map(libc::MAP_SHARED) + 4096, 4096)]), -EFAULT);
    assert_eq!(buffers(&ring, &[iovec(pages(1)), vector(map(libc::MAP_PRIVATE), 8192)]), 0);
}

#[case]
fn buffers_may_overlap(cx: &Context) {
    let (ring, memory) = (cx.ring(4), pages(2));
    assert_eq!(buffers(&ring, &[iovec(memory), iovec(&memory[100..5000])]), 0);
}

#[case]
fn buffers_unregister_with_a_request_in_flight(cx: &Context) {
    let ((reader, mut writer), mut ring, memory) = (pipe(), cx.ring(4), pages(1));
    assert_eq!(buffers(&ring, &[iovec_mut(memory)]), 0);
    ring.go(prep(Opcode::ReadFixed, fd(&reader), address(memory), 8, 0));
    ring.expect_quiet();
    assert_eq!(ring.register(IORING_UNREGISTER_BUFFERS, 0, 0), 0);
    writer.write_all(b"abc").expect("write");
    assert_eq!(ring.wait().res, 3, "the request keeps its buffer");
    assert_eq!(&memory[..3], b"abc");
}

fn files(ring: &Ring, numbers: &[i32]) -> i32 {
    ring.register(IORING_REGISTER_FILES, numbers.as_ptr() as usize, numbers.len() as u32) as i32
}

#[case]
fn files_register_and_unregister(cx: &Context) {
    let ((reader, writer), ring) = (pipe(), cx.ring(4));
    for _ in 0..3 {
        assert_eq!(files(&ring, &[fd(&reader), -1, fd(&writer)]), 0);
        assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
    }
}

#[case]
fn files_twice_is_ebusy(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!((files(&ring, &[-1]), files(&ring, &[-1])), (0, -EBUSY));
}

#[case]
fn files_none_is_einval(cx: &Context) {
    assert_eq!(files(&cx.ring(4), &[]), -EINVAL);
}

#[case]
fn files_unregister_without_is_enxio(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_UNREGISTER_FILES, 0, 0) as i32, -ENXIO);
}

#[case]
fn files_bad_descriptor_is_ebadf(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(files(&ring, &[-1, 9999]), -EBADF);
    assert_eq!(files(&ring, &[-1]), 0, "nothing of the failed one is left");
}

#[case]
fn files_bad_array_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_REGISTER_FILES, bad_address() as usize, 1) as i32, -EFAULT);
}

#[case]
fn files_beyond_the_limit_is_emfile(cx: &Context) {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: one rlimit is read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let ring = cx.ring(4);
    assert_eq!(files(&ring, &[-1; 65]), -EMFILE);
    assert_eq!(files(&ring, &[-1; 64]), 0);
}

#[case]
fn files_holding_the_ring_is_ebadf(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(files(&ring, &[ring.fd]), -EBADF);
}

/// `struct io_uring_files_update`, which is also `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    offset: u32,
    resv: u32,
    data: u64,
}

fn update(ring: &Ring, offset: u32, numbers: &[i32]) -> i32 {
    let update = Update { offset, resv: 0, data: address(numbers) };
    ring.register(IORING_REGISTER_FILES_UPDATE, &raw const update as usize, numbers.len() as u32) as i32
}

fn nowait_read(ring: &mut Ring, slot: i32) -> i32 {
    let read = sqe::read(slot, &mut [0; 1], 0).with(IOSQE_FIXED_FILE);
    ring.run(read.op_flags(libc::RWF_NOWAIT as u32))
}

#[case(since = "5.5")]
fn files_update_replaces(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(files(&ring, &[-1, -1, -1]), 0);
    assert_eq!(update(&ring, 1, &[fd(&reader), fd(&reader)]), 2);
    assert_eq!([0, 1, 2].map(|slot| nowait_read(&mut ring, slot)), [-EBADF, -EAGAIN, -EAGAIN]);
}

#[case(since = "5.5")]
fn files_update_clears_with_minus_one(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(files(&ring, &[fd(&reader)]), 0);
    assert_eq!(update(&ring, 0, &[-1]), 1);
    assert_eq!(nowait_read(&mut ring, 0), -EBADF);
}

#[case(since = "5.12")]
fn files_update_skip_leaves(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(files(&ring, &[fd(&reader), -1]), 0);
    assert_eq!(update(&ring, 0, &[IORING_REGISTER_FILES_SKIP, fd(&reader)]), 2);
    assert_eq!([0, 1].map(|slot| nowait_read(&mut ring, slot)), [-EAGAIN, -EAGAIN]);
}

#[case]
fn files_update_outside_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(files(&ring, &[-1, -1]), 0);
    assert_eq!(update(&ring, 1, &[-1, -1]), -EINVAL);
    assert_eq!(update(&ring, u32::MAX, &[-1, -1]), -EOVERFLOW);
    assert_eq!(update(&ring, 0, &[]), -EINVAL);
}

/// An update of more entries than the table has fails before an entry is read or memory is allocated.
#[case(since = "5.19")]
fn updates_of_more_than_the_table_has_are_einval(cx: &Context) {
    const MANY: u32 = u32::MAX - 15;
    let ring = cx.ring(4);
    assert_eq!(files(&ring, &[-1, -1]), 0);
    assert_eq!(sparse(&ring, IORING_REGISTER_BUFFERS2, 2), 0);
    let short = Update { offset: 0, resv: 0, data: 8 };
    assert_eq!(ring.register(IORING_REGISTER_FILES_UPDATE, &raw const short as usize, MANY) as i32, -EINVAL);
    // struct io_uring_rsrc_update2: offset, resv, data, tags, nr, resv2.
    let update = |offset: u64| [offset, 8, 8, MANY.into()];
    for opcode in [IORING_REGISTER_FILES_UPDATE2, IORING_REGISTER_BUFFERS_UPDATE] {
        assert_eq!(ring.register(opcode, address(&update(0)) as usize, 32) as i32, -EINVAL);
        assert_eq!(ring.register(opcode, address(&update(16)) as usize, 32) as i32, -EOVERFLOW);
    }
}

#[case]
fn files_update_without_table_is_enxio(cx: &Context) {
    assert_eq!(update(&cx.ring(4), 0, &[-1]), -ENXIO);
}

#[case(since = "5.5")]
fn files_update_of_a_bad_descriptor_counts_what_was_done(cx: &Context) {
    let ((reader, _writer), ring) = (pipe(), cx.ring(4));
    assert_eq!(files(&ring, &[-1, -1]), 0);
    assert_eq!(update(&ring, 0, &[fd(&reader), 9999]), 1);
    assert_eq!(update(&ring, 0, &[9999, fd(&reader)]), -EBADF);
}

#[case]
fn files_update_reserved_is_einval(cx: &Context) {
    let ring = cx.ring(4);
    assert_eq!(files(&ring, &[-1]), 0);
    let update = Update { offset: 0, resv: 1, data: address(&[-1]) };
    assert_eq!(ring.register(IORING_REGISTER_FILES_UPDATE, &raw const update as usize, 1) as i32, -EINVAL);
}

/// `struct io_uring_rsrc_register`.
#[repr(C)]
struct Resources {
    count: u32,
    flags: u32,
    resv2: u64,
    data: u64,
    tags: u64,
}

fn sparse(ring: &Ring, opcode: u32, count: u32) -> i32 {
    let resources = Resources { count, flags: IORING_RSRC_REGISTER_SPARSE, resv2: 0, data: 0, tags: 0 };
    ring.register(opcode, &raw const resources as usize, size_of::<Resources>() as u32) as i32
}

#[case(since = "5.19")]
fn files2_sparse(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(sparse(&ring, IORING_REGISTER_FILES2, 8), 0);
    assert_eq!(nowait_read(&mut ring, 7), -EBADF);
    assert_eq!(update(&ring, 7, &[fd(&reader)]), 1);
    assert_eq!(nowait_read(&mut ring, 7), -EAGAIN);
}

#[case]
fn registration_that_fails_leaves_no_tags(cx: &Context) {
    let ((reader, _writer), mut ring, memory, tags) = (pipe(), cx.ring(4), pages(1), [1u64, 2]);
    let mut registers = |opcode, data| {
        let resources = Resources { count: 2, flags: 0, resv2: 0, data, tags: address(&tags) };
        let answer = ring.register(opcode, &raw const resources as usize, size_of::<Resources>() as u32) as i32;
        ring.expect_quiet();
        answer
    };
    let mut vectors = [iovec_mut(memory); 2];
    vectors[1].iov_base = std::ptr::without_provenance_mut(1);
    assert_eq!(registers(IORING_REGISTER_BUFFERS2, address(&vectors)), -EFAULT);
    assert_eq!(registers(IORING_REGISTER_FILES2, address(&[fd(&reader), 9999])), -EBADF);
}

#[case(since = "5.19")]
fn buffers2_sparse_and_update(cx: &Context) {
    let (file, mut ring, memory) = (file("f", b"abc"), cx.ring(4), pages(1));
    assert_eq!(sparse(&ring, IORING_REGISTER_BUFFERS2, 4), 0);
    let read = prep(Opcode::ReadFixed, fd(&file), address(memory), 8, 0).buffer(2);
    assert_eq!(ring.run(read), -EFAULT);
    let vectors = [iovec_mut(memory)];
    // struct io_uring_rsrc_update2: offset, resv, data, tags, nr, resv2.
    let update: [u64; 4] = [2, address(&vectors), 0, 1];
    let answer = ring.register(IORING_REGISTER_BUFFERS_UPDATE, address(&update) as usize, 32);
    assert_eq!(answer, 1);
    assert_eq!(ring.run(read), 3);
}

#[case(since = "6.0")]
fn file_alloc_range_limits_allocation(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(files(&ring, &[-1; 6]), 0);
    let range: [u32; 4] = [3, 2, 0, 0];
    assert_eq!(ring.register(IORING_REGISTER_FILE_ALLOC_RANGE, address(&range) as usize, 0), 0);
    let socket = sqe::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0).file_index(IORING_FILE_INDEX_ALLOC as u32);
    assert_eq!([ring.run(socket), ring.run(socket), ring.run(socket)], [3, 4, -libc::ENFILE]);
}

#[case(since = "5.6")]
fn file_stays_registered_after_close(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(files(&ring, &[fd(&reader)]), 0);
    drop(reader);
    writer.write_all(b"x").expect("the table keeps the reader open");
    assert_eq!(nowait_read(&mut ring, 0), 1);
}

fn register_eventfd(ring: &Ring, number: i32, count: u32) -> i32 {
    ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, count) as i32
}

#[case(since = "5.2")]
fn eventfd_twice_is_ebusy(cx: &Context) {
    let (ring, file) = (cx.ring(4), eventfd(0, 0));
    let answers = (register_eventfd(&ring, fd(&file), 1), register_eventfd(&ring, fd(&file), 1));
    assert_eq!(answers, (0, -EBUSY));
}

#[case]
fn eventfd_of_another_file_is_einval(cx: &Context) {
    let (reader, _writer) = pipe();
    assert_eq!(register_eventfd(&cx.ring(4), fd(&reader), 1), -EINVAL);
}

#[case]
fn eventfd_of_a_bad_descriptor_is_ebadf(cx: &Context) {
    assert_eq!(register_eventfd(&cx.ring(4), 9999, 1), -EBADF);
}

#[case]
fn eventfd_count_must_be_one(cx: &Context) {
    let (ring, file) = (cx.ring(4), eventfd(0, 0));
    assert_eq!(register_eventfd(&ring, fd(&file), 0), -EINVAL);
    assert_eq!(register_eventfd(&ring, fd(&file), 2), -EINVAL);
}

#[case]
fn eventfd_unregister_without_is_enxio(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_UNREGISTER_EVENTFD, 0, 0) as i32, -ENXIO);
}

#[case(since = "5.15")]
fn iowq_max_workers_tells_the_former(cx: &Context) {
    let ring = cx.ring(4);
    let mut counts = [7u32, 9];
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, address_mut(&mut counts) as usize, 2), 0);
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    let mut counts = [0u32, 0];
    assert_eq!(ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, address_mut(&mut counts) as usize, 2), 0);
    assert_eq!(counts, [7, 9]);
    let one = ring.register(IORING_REGISTER_IOWQ_MAX_WORKERS, address_mut(&mut counts) as usize, 1);
    assert_eq!(one as i32, -EINVAL);
}

#[case]
fn enable_rings_of_an_enabled_ring_is_ebadfd(cx: &Context) {
    assert_eq!(cx.ring(4).register(IORING_REGISTER_ENABLE_RINGS, 0, 0) as i32, -EBADFD);
}

fn register_ring(ring: &Ring, slot: u32, number: i32) -> (i32, u32) {
    let mut update = Update { offset: slot, resv: 0, data: number as u64 };
    let answer = ring.register(IORING_REGISTER_RING_FDS, &raw mut update as usize, 1);
    (answer as i32, update.offset)
}

#[case(own_flags, since = "5.18")]
fn ring_fd_registers_and_enters(cx: &Context) {
    let mut ring = cx.ring_with(4, 0);
    assert_eq!(register_ring(&ring, u32::MAX, ring.fd), (1, 0));
    ring.push(sqe::nop());
    ring.publish();
    assert_eq!(ring.door.enter(0, 1, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_REGISTERED_RING, 0, 0), 1);
    assert_eq!(ring.wait().res, 0);
}

#[case(own_flags, since = "5.18")]
fn ring_fd_unregister(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(register_ring(&ring, u32::MAX, ring.fd), (1, 0));
    let update = Update { offset: 0, resv: 0, data: 0 };
    assert_eq!(ring.register(IORING_UNREGISTER_RING_FDS, &raw const update as usize, 1), 1);
    assert_eq!(ring.door.enter(0, 0, 0, IORING_ENTER_REGISTERED_RING, 0, 0) as i32, -EBADF);
}

#[case(own_flags, since = "5.18")]
fn ring_fd_at_a_chosen_slot(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(register_ring(&ring, 5, ring.fd), (1, 5));
    assert_eq!(ring.door.enter(5, 0, 0, IORING_ENTER_REGISTERED_RING, 0, 0), 0);
    assert_eq!(register_ring(&ring, 5, ring.fd).0, -EBUSY, "the slot is taken");
}

#[case(own_flags)]
fn ring_fd_bad_slot_is_einval(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(register_ring(&ring, 16, ring.fd).0, -EINVAL);
    assert_eq!(ring.door.enter(16, 0, 0, IORING_ENTER_REGISTERED_RING, 0, 0) as i32, -EINVAL);
}

#[case(own_flags)]
fn ring_fd_of_another_file_is_eopnotsupp(cx: &Context) {
    let ((reader, _writer), ring) = (pipe(), cx.ring_with(4, 0));
    assert_eq!(register_ring(&ring, u32::MAX, fd(&reader)).0, -EOPNOTSUPP);
    assert_eq!(register_ring(&ring, u32::MAX, 9999).0, -EBADF);
}

#[case(own_flags, since = "6.3")]
fn ring_fd_register_by_index(cx: &Context) {
    let ring = cx.ring_with(4, 0);
    assert_eq!(register_ring(&ring, u32::MAX, ring.fd), (1, 0));
    let opcode = IORING_REGISTER_FILES | IORING_REGISTER_USE_REGISTERED_RING;
    let numbers = [-1];
    assert_eq!(ring.door.register(0, opcode, address(&numbers) as usize, 1), 0);
    assert_eq!(ring.register(IORING_UNREGISTER_FILES, 0, 0), 0);
}
