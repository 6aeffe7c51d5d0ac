//! IORING_SETUP_IOPOLL: a ring of O_DIRECT transfers. A caller of io_uring_enter(2) polls for their completions.

use super::prelude::*;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

topic!(since: "5.1", source: "io_uring_setup(2), io_uring/rw.c");

const DEFERRED: u32 = IORING_SETUP_IOPOLL | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

/// The most time that a transfer of a few pages takes: only polling the ring shows that it is done.
const LONG: std::time::Duration = std::time::Duration::from_millis(100);

/// A file of 64 KiB in the case's directory, opened with O_DIRECT, and a buffer as long. Skips where it cannot be polled.
fn direct_file(cx: &Context) -> (std::fs::File, &'static mut [u8]) {
    let mut options = std::fs::File::options();
    options.read(true).write(true).create(true).truncate(false).custom_flags(libc::O_DIRECT);
    let Ok(file) = options.open("direct") else { cx.skip("the directory's file system has no O_DIRECT") };
    // SAFETY: statfs is plain data that the call fills in.
    let kind = unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        assert_eq!(libc::fstatfs(fd(&file), &mut stat), 0);
        stat.f_type
    };
    if ![0xef53, 0x5846_5342, 0x9123_683e].contains(&kind) {
        cx.skip("the directory's file system is none whose files can be polled: ext4, XFS, btrfs");
    }
    let bytes = pages(16);
    bytes.fill(7);
    std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).expect("write the file");
    (file, bytes)
}

/// True if the device of `file` has queues to poll.
fn is_polled(file: &std::fs::File) -> bool {
    let device = file.metadata().expect("the metadata").dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    ["queue", "../queue"].iter().any(|queue| {
        std::fs::read(format!("/sys/dev/block/{major}:{minor}/{queue}/io_poll")).is_ok_and(|text| text == b"1\n")
    })
}

/// Calls io_uring_enter(2) with this `min_complete` until a CQE is there. The kernel may return early when another
/// thread wants the CPU, and the device takes its time.
fn ask(ring: &Ring, min_complete: u32) {
    let deadline = std::time::Instant::now() + crate::ring::PATIENCE;
    while ring.cq_ready() == 0 {
        assert!(std::time::Instant::now() < deadline, "no CQE came");
        assert_eq!(ring.enter(0, min_complete, IORING_ENTER_GETEVENTS, 0, 0), 0);
    }
}

fn found(ring: &mut Ring) -> (u64, i32) {
    ask(ring, 1);
    let cqe = ring.peek().expect("a CQE");
    (cqe.user_data, cqe.res)
}

#[case(own_flags, since = "6.18")]
fn setup_flags_beside_it(cx: &Context) {
    let hybrid = IORING_SETUP_HYBRID_IOPOLL;
    assert_eq!(Ring::new(cx.door, 4, hybrid).err(), Some(-EINVAL as isize), "only with IOPOLL");
    for flags in [
        hybrid,
        IORING_SETUP_COOP_TASKRUN,
        DEFERRED,
        IORING_SETUP_SQPOLL,
        IORING_SETUP_CQE32,
        IORING_SETUP_SQE128,
        IORING_SETUP_CQE_MIXED,
        IORING_SETUP_NO_MMAP,
        IORING_SETUP_NO_SQARRAY,
        IORING_SETUP_R_DISABLED,
    ] {
        assert!(Ring::new(cx.door, 4, IORING_SETUP_IOPOLL | flags).is_ok(), "{flags:#x}");
    }
}

#[case(own_flags)]
fn takes_these_operations_only(cx: &Context) {
    let taken = [
        Opcode::Nop,
        Opcode::Readv,
        Opcode::Writev,
        Opcode::ReadFixed,
        Opcode::WriteFixed,
        Opcode::Read,
        Opcode::Write,
        Opcode::ReadvFixed,
        Opcode::WritevFixed,
        Opcode::MsgRing,
        Opcode::ProvideBuffers,
        Opcode::RemoveBuffers,
        Opcode::FilesUpdate,
        Opcode::UringCmd,
    ];
    for opcode in Opcode::ALL.iter().filter(|opcode| !taken.contains(opcode)) {
        let mut ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
        ring.push(sqe::op(*opcode));
        ring.push(sqe::nop());
        assert_eq!(ring.submit(), 1, "{} is refused at submission", opcode.name());
        assert_eq!(ring.peek().map(|cqe| cqe.res), Some(-EINVAL), "{}", opcode.name());
    }
    for opcode in [Opcode::Read, Opcode::Writev, Opcode::ReadFixed, Opcode::WritevFixed, Opcode::MsgRing] {
        let mut ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
        ring.go(sqe::op(opcode));
        assert_eq!(ring.wait().res, -EBADF, "{}", opcode.name());
    }
}

#[case(own_flags)]
fn nop_and_messages_complete_at_once(cx: &Context) {
    let (mut ring, mut other) = (cx.ring_with(4, IORING_SETUP_IOPOLL), cx.ring_with(4, 0));
    ring.go_all(&[sqe::nop().data(1), prep(Opcode::MsgRing, other.fd, 0, 5, 77).data(2)]);
    assert_eq!(ring.cq_ready(), 2);
    assert_eq!(other.wait().user_data, 77);
}

#[case(own_flags, since = "5.7")]
fn buffers_and_files_can_be_changed(cx: &Context) {
    let (mut ring, mut bytes) = (cx.ring_with(4, IORING_SETUP_IOPOLL), [0u8; 64]);
    let provide = Sqe { fd: 1, ..prep(Opcode::ProvideBuffers, 1, address_mut(&mut bytes), 64, 0).buffer(3) };
    assert_eq!(ring.run(provide), 0);
    assert_eq!(ring.run(Sqe { fd: 1, ..sqe::op(Opcode::RemoveBuffers) }.buffer(3)), 1);
    assert_eq!(ring.run(Sqe { fd: 1, ..sqe::op(Opcode::RemoveBuffers) }.buffer(4)), -ENOENT);
    ring.register_files(&[-1]);
    let files = [-1];
    assert_eq!(ring.run(prep(Opcode::FilesUpdate, -1, address(&files), 1, 0)), 1);
}

#[case(own_flags, since = "5.6")]
fn transfer_of_nothing_is_0(cx: &Context) {
    let (file, bytes) = direct_file(cx);
    let mut ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
    let none: [libc::iovec; 0] = [];
    let nothing = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 0 }];
    for vectors in [&none[..], &nothing[..]] {
        for sqe in [sqe::readv(fd(&file), vectors, 0), sqe::writev(fd(&file), vectors, 0)] {
            assert_eq!(ring.run(sqe), 0);
            assert_eq!(ring.run(sqe.with(IOSQE_ASYNC)), 0);
        }
    }
    for sqe in [sqe::read(fd(&file), &mut bytes[..0], 0), sqe::write(fd(&file), &bytes[..0], 0)] {
        assert_eq!(ring.run(sqe), 0);
        assert_eq!(ring.run(sqe.with(IOSQE_ASYNC)), 0);
    }
}

#[case(own_flags)]
fn buffered_files_are_eopnotsupp(cx: &Context) {
    let (mut ring, file, bytes) = (cx.ring_with(4, IORING_SETUP_IOPOLL), sys::file("plain", b"abcd"), pages(1));
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 0)), -EOPNOTSUPP);
    assert_eq!(ring.run(sqe::write(fd(&file), bytes, 0)), -EOPNOTSUPP);
    assert_eq!(ring.run(sqe::read(fd(&file), bytes, 0).with(IOSQE_ASYNC)), -EOPNOTSUPP);
}

#[case(own_flags)]
fn files_without_the_operation_are_eopnotsupp(cx: &Context) {
    let (mut ring, (reader, mut writer)) = (cx.ring_with(4, IORING_SETUP_IOPOLL), pipe());
    writer.write_all(b"abcd").expect("write");
    let (bytes, event) = (pages(1), eventfd(1, 0));
    assert_eq!(ring.run(sqe::read(fd(&reader), bytes, 0)), -EOPNOTSUPP);
    assert_eq!(ring.run(sqe::read(fd(&event), &mut bytes[..8], 0)), -EOPNOTSUPP);
    let null = std::fs::File::open("/dev/null").expect("open");
    assert_eq!(ring.run(sqe::read(fd(&null), bytes, 0)), -EOPNOTSUPP);
    let memory = memfd();
    // SAFETY: F_SETFL takes an integer and touches no memory of the process.
    if unsafe { libc::fcntl(fd(&memory), libc::F_SETFL, libc::O_DIRECT) } == 0 {
        assert_eq!(ring.run(sqe::write(fd(&memory), bytes, 0)), -EOPNOTSUPP, "tmpfs");
    }
}

#[case(own_flags)]
fn bad_descriptors_are_ebadf(cx: &Context) {
    let (mut ring, bytes) = (cx.ring_with(4, IORING_SETUP_IOPOLL), pages(1));
    assert_eq!(ring.run(sqe::read(-1, bytes, 0)), -EBADF);
    assert_eq!(ring.run(sqe::read(4000, bytes, 0).with(IOSQE_ASYNC)), -EBADF);
    assert_eq!(ring.run(sqe::read(0, bytes, 0).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn hipri_is_for_polled_rings(cx: &Context) {
    const RWF_HIPRI: u32 = 1;
    let (file, bytes) = direct_file(cx);
    let write = sqe::write(fd(&file), bytes, 0).op_flags(RWF_HIPRI).data(5);
    assert_eq!(cx.ring_with(4, 0).run(write), -EINVAL);
    let mut ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
    ring.go(write);
    assert_eq!(found(&mut ring), (5, 65536));
}

/// URING_CMDs of files whose commands are not polled, with the results on a plain ring.
fn commands(cx: &Context) -> (Ring, [Sqe; 5], Vec<OwnedFd>) {
    let ring = cx.ring_with(8, IORING_SETUP_IOPOLL);
    let (socket, other) = tcp_pair();
    let null = std::fs::File::open("/dev/null").expect("open");
    let command = |fd, what: u32| prep(Opcode::UringCmd, fd, 0, 0, what.into());
    let sqes = [
        command(fd(&socket), SOCKET_URING_OP_SIOCINQ),
        command(fd(&socket), SOCKET_URING_OP_SIOCOUTQ),
        command(fd(&null), 0),
        command(-1, 0),
        command(fd(&null), 0).op_flags(1 << 31),
    ];
    (ring, sqes, vec![socket.into(), other.into(), null.into()])
}

fn results(ring: &mut Ring, sqes: &[Sqe]) -> Vec<i32> {
    sqes.iter().map(|sqe| ring.run(*sqe)).collect()
}

#[case(own_flags, since = "6.7", until = "7.1")]
fn commands_need_a_driver_that_polls(cx: &Context) {
    let (mut ring, sqes, _files) = commands(cx);
    let refused = [-EOPNOTSUPP, -EOPNOTSUPP, -EOPNOTSUPP, -EBADF, -EINVAL];
    assert_eq!(results(&mut ring, &sqes), refused);
    assert_eq!(results(&mut ring, &sqes.map(|sqe| sqe.with(IOSQE_ASYNC))), refused);
}

#[case(own_flags, since = "6.6", from = "7.1")]
fn commands_of_files_that_are_not_polled(cx: &Context) {
    let (mut ring, sqes, _files) = commands(cx);
    assert_eq!(results(&mut ring, &sqes), [0, 0, 0, -EBADF, -EINVAL]);
    assert_eq!(results(&mut ring, &sqes.map(|sqe| sqe.with(IOSQE_ASYNC))), [0, 0, 0, -EBADF, -EINVAL]);
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn write_is_found_in_enter_only(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    bytes.fill(8);
    ring.go(sqe::write(fd(&file), bytes, 0).data(5));
    std::thread::sleep(LONG);
    assert_eq!(ring.cq_ready(), 0, "nobody has asked");
    ask(&ring, 0);
    assert_eq!(ring.peek().map(|cqe| (cqe.user_data, cqe.res, cqe.flags)), Some((5, 65536, 0)));
    assert!(std::fs::read("direct").expect("read").iter().all(|byte| *byte == 8));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn write_by_other_forms(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    let vectors = [iovec(&bytes[..4096]), iovec(&bytes[8192..12288])];
    ring.go(sqe::writev(fd(&file), &vectors, 4096).data(1));
    assert_eq!(found(&mut ring), (1, 8192));
    assert_eq!(ring.register_buffers(&[iovec(bytes)]), 0);
    ring.go(Sqe { opcode: Opcode::WriteFixed as u8, ..sqe::write(fd(&file), bytes, 0) }.data(2));
    assert_eq!(found(&mut ring), (2, 65536));
    ring.register_files(&[fd(&file)]);
    ring.go(sqe::write(0, &bytes[..512], 512).with(IOSQE_FIXED_FILE).data(3));
    assert_eq!(found(&mut ring), (3, 512));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn async_write(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    ring.go(sqe::write(fd(&file), bytes, 0).with(IOSQE_ASYNC).data(5));
    std::thread::sleep(LONG);
    assert_eq!(found(&mut ring), (5, 65536));
}

#[case(own_flags)]
fn read_needs_a_device_with_poll_queues(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    let expected = if is_polled(&file) { 4096 } else { -EOPNOTSUPP };
    for flags in [0, IOSQE_ASYNC] {
        ring.go(sqe::read(fd(&file), &mut bytes[..4096], 4096).with(flags));
        std::thread::sleep(LONG);
        assert_eq!(found(&mut ring), (0, expected));
    }
}

#[case(own_flags, since = "5.6")]
fn read_at_the_end_is_zero(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    ring.go(sqe::read(fd(&file), bytes, 65536).data(1));
    assert_eq!(found(&mut ring), (1, 0));
    ring.go(sqe::read(fd(&file), bytes, 1 << 20).data(2));
    assert_eq!(found(&mut ring), (2, 0));
}

#[case(own_flags, until = "7.3")]
fn read_that_may_not_wait(cx: &Context) {
    const RWF_NOWAIT: u32 = 8;
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    // A worker returns the device's own error.
    for (flags, refusal) in [(0, -EAGAIN), (IOSQE_ASYNC, -EOPNOTSUPP)] {
        let expected = if is_polled(&file) { 4096 } else { refusal };
        ring.go(sqe::read(fd(&file), &mut bytes[..4096], 0).op_flags(RWF_NOWAIT).with(flags));
        assert_eq!(found(&mut ring).1, expected);
    }
}

#[case(own_flags)]
fn misaligned_transfers_are_einval(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    assert_eq!(ring.run(sqe::read(fd(&file), &mut bytes[..100], 0)), -EINVAL);
    assert_eq!(ring.run(sqe::write(fd(&file), &bytes[..4096], 1)), -EINVAL);
}

#[case(own_flags)]
fn enter_with_nothing_under_way_returns(cx: &Context) {
    let ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
    assert_eq!(ring.enter(0, 3, IORING_ENTER_GETEVENTS, 0, 0), 0);
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn enter_with_a_cqe_there_returns(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    ring.go_all(&[sqe::nop().data(1), sqe::write(fd(&file), bytes, 0).data(2)]);
    std::thread::sleep(LONG);
    assert_eq!(ring.enter(0, 2, IORING_ENTER_GETEVENTS, 0, 0), 0);
    assert_eq!(ring.cq_ready(), 1, "the CQ was not empty: nothing is looked for");
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(1));
    assert_eq!(found(&mut ring), (2, 65536));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn enter_without_getevents_finds_nothing(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    ring.go(sqe::write(fd(&file), bytes, 0).data(1));
    std::thread::sleep(LONG);
    assert_eq!((ring.enter(0, 1, 0, 0, 0), ring.cq_ready()), (0, 0));
    ring.go(sqe::nop().data(2));
    assert_eq!(ring.peek().map(|cqe| cqe.user_data), Some(2));
    assert_eq!(found(&mut ring), (1, 65536));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn enter_finds_all_that_it_waits_for(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(16, IORING_SETUP_IOPOLL));
    let block = &bytes[..4096];
    ring.go_all(&(0..8).map(|n| sqe::write(fd(&file), block, n * 4096).data(n as u64)).collect::<Vec<_>>());
    let mut seen = Vec::new();
    while seen.len() < 8 {
        ask(&ring, 8);
        seen.extend(std::iter::from_fn(|| ring.peek()).map(|cqe| (cqe.user_data, cqe.res)));
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..8).map(|n| (n, 4096)).collect::<Vec<_>>());
}

#[case(own_flags, since = "5.11", until = "7.3")]
fn deadlines_do_not_matter(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    let limit = ms(0);
    let arg = GeteventsArg { ts: address(&limit), ..GeteventsArg::default() };
    let flags = IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG;
    let wait = |ring: &Ring| ring.enter(0, 1, flags, &raw const arg as usize, size_of_val(&arg));
    assert_eq!(wait(&ring), 0, "nothing is under way");
    ring.go(sqe::write(fd(&file), bytes, 0).data(1));
    while ring.cq_ready() == 0 {
        assert_eq!(wait(&ring), 0, "not ETIME");
    }
    assert_eq!(ring.peek().map(|cqe| cqe.res), Some(65536));
}

#[case(own_flags, since = "5.11")]
fn arguments_of_the_wait_are_checked(cx: &Context) {
    let (ring, arg) = (cx.ring_with(4, IORING_SETUP_IOPOLL), [0u64; 8]);
    let wait = |flags, at: u64, size| ring.enter(0, 1, IORING_ENTER_GETEVENTS | flags, at as usize, size) as i32;
    assert_eq!(wait(IORING_ENTER_EXT_ARG, address(&arg), 24), 0);
    assert_eq!(wait(IORING_ENTER_EXT_ARG, address(&arg), 20), -EINVAL);
    assert_eq!(wait(IORING_ENTER_EXT_ARG, bad_address(), 24), -EFAULT);
    assert_eq!(wait(IORING_ENTER_EXT_ARG | IORING_ENTER_EXT_ARG_REG, 0, 64), -EINVAL);
    assert_eq!(wait(0, address(&arg), 3), 0, "a signal mask is not looked at");
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn linked_writes(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    ring.go_all(&[
        sqe::write(fd(&file), bytes, 0).with(IOSQE_IO_LINK).data(1),
        sqe::write(fd(&file), bytes, 0).with(IOSQE_IO_LINK).data(2),
        sqe::nop().data(3),
    ]);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(found(&mut ring));
    }
    assert_eq!(seen, [(1, 65536), (2, 65536), (3, 0)]);
}

#[case(own_flags, since = "5.17", until = "7.3")]
fn writes_without_a_cqe(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    ring.go(sqe::write(fd(&file), bytes, 0).with(IOSQE_CQE_SKIP_SUCCESS).data(1));
    std::thread::sleep(LONG);
    assert_eq!((ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), ring.cq_ready()), (0, 0));
    ring.go(sqe::write(fd(&file), bytes, 0).data(2));
    assert_eq!(found(&mut ring), (2, 65536));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn overflow_of_found_ones(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(2, IORING_SETUP_IOPOLL));
    for n in 0..6 {
        ring.go(sqe::write(fd(&file), &bytes[..512], n * 512).data(n as u64));
    }
    std::thread::sleep(LONG);
    let mut seen = Vec::new();
    while seen.len() < 6 {
        ask(&ring, 1);
        seen.extend(std::iter::from_fn(|| ring.peek()).map(|cqe| cqe.user_data));
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5]);
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn eventfd_is_signalled_when_found(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    let event = eventfd(0, libc::EFD_NONBLOCK);
    let number = fd(&event);
    assert_eq!(ring.register(IORING_REGISTER_EVENTFD, &raw const number as usize, 1), 0);
    ring.go(sqe::write(fd(&file), bytes, 0).data(1));
    std::thread::sleep(LONG);
    assert!((&event).read(&mut [0; 8]).is_err(), "nobody has asked");
    assert_eq!(found(&mut ring), (1, 65536));
    assert_eq!((&event).read(&mut [0; 8]).ok(), Some(8));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn descriptor_is_readable_when_found(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL));
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 0), 0);
    ring.go(sqe::write(fd(&file), bytes, 0).data(1));
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, LONG.as_millis() as i32), 0, "nobody has asked");
    ask(&ring, 1);
    assert_eq!(ring.door.poll(ring.fd, libc::POLLIN, 0), isize::from(libc::POLLIN));
    assert_eq!(found(&mut ring), (1, 65536));
}

#[case(own_flags, since = "6.1", until = "7.3")]
fn deferred_ring(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, DEFERRED));
    assert_eq!(ring.run(sqe::nop()), 0);
    ring.go(sqe::write(fd(&file), bytes, 0).data(1));
    std::thread::sleep(LONG);
    assert_eq!(ring.cq_ready(), 0);
    assert_eq!(found(&mut ring), (1, 65536));
    let other = std::thread::scope(|scope| {
        scope.spawn(|| ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0)).join().expect("the thread")
    });
    assert_eq!(other as i32, -EEXIST);
}

#[case(own_flags, since = "6.1", until = "7.3")]
fn deferred_ring_is_readable_once_somebody_asks(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, DEFERRED));
    ring.go(sqe::write(fd(&file), bytes, 0).data(1));
    std::thread::sleep(LONG);
    assert_eq!(cx.door.poll(ring.fd, libc::POLLIN, 0), 0, "the first look finds nothing");
    ask(&ring, 1);
    assert_eq!(cx.door.poll(ring.fd, libc::POLLIN, 10_000), libc::POLLIN as isize);
    assert_eq!(found(&mut ring), (1, 65536));
}

#[case(own_flags, since = "6.13", until = "7.3")]
fn hybrid_ring(cx: &Context) {
    let ((file, bytes), mut ring) =
        (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL | IORING_SETUP_HYBRID_IOPOLL));
    for n in 0..3 {
        ring.go(sqe::write(fd(&file), bytes, 0).data(n));
        assert_eq!(found(&mut ring), (n, 65536));
    }
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn polling_thread_finds_by_itself(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(4, IORING_SETUP_IOPOLL | IORING_SETUP_SQPOLL));
    ring.push(sqe::write(fd(&file), bytes, 0).data(1));
    let count = ring.publish();
    assert_eq!(ring.enter(count, 0, IORING_ENTER_SQ_WAKEUP, 0, 0), 1);
    let deadline = std::time::Instant::now() + crate::ring::PATIENCE;
    while ring.cq_ready() == 0 {
        assert!(std::time::Instant::now() < deadline, "no CQE came");
        std::thread::yield_now();
    }
    assert_eq!(ring.peek().map(|cqe| (cqe.user_data, cqe.res)), Some((1, 65536)));
}

#[case(own_flags)]
fn closed_with_a_transfer_kept(cx: &Context) {
    let (file, bytes) = direct_file(cx);
    for _ in 0..20 {
        let mut ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
        ring.go_all(&[sqe::write(fd(&file), bytes, 0), sqe::write(fd(&file), bytes, 0)]);
        ring.close_fd();
    }
    std::thread::sleep(LONG);
    assert_eq!(cx.ring_with(4, 0).run(sqe::nop()), 0);
}

#[case(own_flags, since = "6.1")]
fn messages_between_polled_rings(cx: &Context) {
    let kinds = [0, IORING_SETUP_IOPOLL, DEFERRED];
    for from in kinds {
        for to in [IORING_SETUP_IOPOLL, DEFERRED] {
            let (mut sender, mut ring) = (cx.ring_with(4, from), cx.ring_with(4, to));
            assert_eq!(sender.run(prep(Opcode::MsgRing, ring.fd, 0, 5, 77)), 0, "{from:#x} to {to:#x}");
            let cqe = ring.peek().map(|cqe| (cqe.user_data, cqe.res));
            assert_eq!(cqe, Some((77, 5)), "{from:#x} to {to:#x}: it is there without an enter");
        }
    }
    let mut ring = cx.ring_with(4, IORING_SETUP_IOPOLL);
    ring.go(prep(Opcode::MsgRing, ring.fd, 0, 5, 77).data(1));
    let mut seen: Vec<u64> = (0..2).map(|_| ring.wait().user_data).collect();
    seen.sort_unstable();
    assert_eq!(seen, [1, 77], "to itself");
}

#[case(own_flags, since = "5.18", until = "7.3")]
fn message_to_a_polled_ring_while_it_waits(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(16, IORING_SETUP_IOPOLL));
    let (mut sender, target, number) = (cx.ring_with(4, 0), ring.fd, fd(&file));
    let sent = std::thread::spawn(move || {
        for n in 0..50 {
            assert_eq!(sender.run(prep(Opcode::MsgRing, target, 0, 5, 1000 + n)), 0);
        }
    });
    let (mut writes, mut messages) = (0, 0);
    while writes + messages < 100 {
        if writes < 50 && ring.sq_head() == writes {
            ring.go(sqe::write(number, &bytes[..512], 0).data(u64::from(writes)));
        }
        assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0);
        while let Some(cqe) = ring.peek() {
            match cqe.user_data {
                1000.. => messages += 1,
                _ => writes += 1,
            }
        }
    }
    sent.join().expect("the sender");
    assert_eq!((writes, messages), (50, 50));
}

#[case(own_flags, since = "5.6", until = "7.3")]
fn two_threads_ask(cx: &Context) {
    let ((file, bytes), mut ring) = (direct_file(cx), cx.ring_with(16, IORING_SETUP_IOPOLL));
    for round in 0..20 {
        ring.go_all(&[0, 1, 2, 3].map(|n| sqe::write(fd(&file), &bytes[..512], n * 512).data(n as u64)));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let deadline = std::time::Instant::now() + crate::ring::PATIENCE;
                    while ring.cq_ready() == 0 {
                        assert!(std::time::Instant::now() < deadline, "no CQE came in round {round}");
                        assert_eq!(ring.enter(0, 1, IORING_ENTER_GETEVENTS, 0, 0), 0);
                    }
                });
            }
        });
        let mut seen: Vec<u64> = (0..4).map(|_| ring.wait().user_data).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
    }
}
