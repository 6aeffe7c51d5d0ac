//! Operations on paths and descriptors: OPENAT, OPENAT2, CLOSE, STATX, RENAMEAT, UNLINKAT, MKDIRAT, SYMLINKAT, LINKAT.

use super::prelude::*;
use std::ffi::CStr;
use std::os::unix::fs::MetadataExt;

topic!(since: "5.6", source: "io_uring_enter(2), io_uring/openclose.c, io_uring/fs.c, io_uring/statx.c");

const CWD: i32 = libc::AT_FDCWD;

fn opened(number: i32) -> std::fs::File {
    std::fs::File::from(owned(number, "the CQE's descriptor"))
}

#[case]
fn openat_opens(cx: &Context) {
    drop(file("f", b"abc"));
    let mut file = opened(cx.ring(4).run(sqe::openat(CWD, c"f", libc::O_RDONLY, 0)));
    let mut text = String::new();
    file.read_to_string(&mut text).expect("read");
    assert_eq!(text, "abc");
}

#[case]
fn openat_relative_to_a_directory(cx: &Context) {
    std::fs::create_dir("d").expect("mkdir");
    drop(file("d/f", b"abc"));
    let directory = std::fs::File::open("d").expect("open");
    opened(cx.ring(4).run(sqe::openat(fd(&directory), c"f", libc::O_RDONLY, 0)));
}

#[case]
fn openat_creates_with_the_mode(cx: &Context) {
    // SAFETY: numbers only.
    unsafe { libc::umask(0o027) };
    opened(cx.ring(4).run(sqe::openat(CWD, c"new", libc::O_CREAT | libc::O_WRONLY, 0o666)));
    assert_eq!(std::fs::metadata("new").expect("stat").mode() & 0o777, 0o640);
}

#[case]
fn openat_missing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::openat(CWD, c"missing", libc::O_RDONLY, 0)), -ENOENT);
    assert_eq!(cx.ring(4).run(sqe::openat(CWD, c"", libc::O_RDONLY, 0)), -ENOENT);
}

#[case]
fn openat_exclusive_is_eexist(cx: &Context) {
    drop(file("f", b""));
    assert_eq!(cx.ring(4).run(sqe::openat(CWD, c"f", libc::O_CREAT | libc::O_EXCL, 0o600)), -EEXIST);
}

#[case]
fn openat_bad_path_address_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).run(prep(Opcode::Openat, CWD, bad_address(), 0, 0)), -EFAULT);
    assert_eq!(cx.ring(4).run(prep(Opcode::Openat, CWD, 0, 0, 0)), -EFAULT);
}

#[case]
fn openat_bad_directory_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::openat(9999, c"f", libc::O_RDONLY, 0)), -EBADF);
}

#[case]
fn openat_of_a_directory_for_writing_is_eisdir(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::openat(CWD, c".", libc::O_WRONLY, 0)), -EISDIR);
}

#[case]
fn openat_takes_the_lowest_number(cx: &Context) {
    let mut ring = cx.ring(4);
    let next = fd(&eventfd(0, 0));
    assert_eq!(fd(&opened(ring.run(sqe::openat(CWD, c".", libc::O_RDONLY, 0)))), next);
}

#[case]
fn openat_cloexec(cx: &Context) {
    let mut ring = cx.ring(4);
    for (flag, expected) in [(0, 0), (libc::O_CLOEXEC, libc::FD_CLOEXEC)] {
        let file = opened(ring.run(sqe::openat(CWD, c".", libc::O_RDONLY | flag, 0)));
        // SAFETY: numbers only.
        assert_eq!(unsafe { libc::fcntl(fd(&file), libc::F_GETFD) }, expected);
    }
}

#[case]
fn openat_with_buf_index_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::openat(CWD, c".", libc::O_RDONLY, 0).buffer(1)), -EINVAL);
}

#[case]
fn openat_with_fixed_file_flag_is_ebadf(cx: &Context) {
    assert_eq!(cx.ring(4).run(sqe::openat(CWD, c".", libc::O_RDONLY, 0).with(IOSQE_FIXED_FILE)), -EBADF);
}

fn sparse(cx: &Context) -> Ring {
    let ring = cx.ring(8);
    ring.register_files(&[-1, -1]);
    ring
}

#[case]
fn openat_into_a_fixed_slot(cx: &Context) {
    drop(file("f", b"abc"));
    let mut ring = sparse(cx);
    let next = fd(&eventfd(0, 0));
    assert_eq!(ring.run(sqe::openat(CWD, c"f", libc::O_RDONLY, 0).file_index(2)), 0);
    assert_eq!(fd(&eventfd(0, 0)), next, "no descriptor was made");
    assert_eq!(ring.run(sqe::read(1, &mut [0; 8], 0).with(IOSQE_FIXED_FILE)), 3);
}

#[case(since = "5.19")]
fn openat_into_an_allocated_slot(cx: &Context) {
    let mut ring = sparse(cx);
    let open = sqe::openat(CWD, c".", libc::O_RDONLY, 0).file_index(IORING_FILE_INDEX_ALLOC as u32);
    assert_eq!([ring.run(open), ring.run(open), ring.run(open)], [0, 1, -libc::ENFILE]);
}

#[case]
fn openat_fixed_outside_the_table_is_einval(cx: &Context) {
    let open = |slot| sqe::openat(CWD, c".", libc::O_RDONLY, 0).file_index(slot);
    assert_eq!(sparse(cx).run(open(3)), -EINVAL);
    assert_eq!(cx.ring(4).run(open(1)), -ENXIO, "no table");
}

#[case]
fn openat_fixed_with_cloexec_is_einval(cx: &Context) {
    let open = sqe::openat(CWD, c".", libc::O_RDONLY | libc::O_CLOEXEC, 0).file_index(1);
    assert_eq!(sparse(cx).run(open), -EINVAL);
}

#[case]
fn async_openat(cx: &Context) {
    drop(file("f", b"abc"));
    opened(cx.ring(4).run(sqe::openat(CWD, c"f", libc::O_RDONLY, 0).with(IOSQE_ASYNC)));
}

#[case]
fn async_openat_beside_a_poll_takes_the_lowest_number(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    let next = fd(&eventfd(0, 0));
    let open = sqe::openat(CWD, c".", libc::O_RDONLY, 0).with(IOSQE_ASYNC).data(1);
    ring.go_all(&[open, sqe::poll_add(fd(&reader), libc::POLLIN, 0).data(2)]);
    let cqe = ring.wait();
    assert_eq!((cqe.user_data, fd(&opened(cqe.res))), (1, next));
}

#[case]
fn openat_at_the_descriptor_limit_is_emfile(cx: &Context) {
    let mut ring = cx.ring(4);
    let next = fd(&eventfd(0, 0)) as u64;
    let limit = libc::rlimit { rlim_cur: next, rlim_max: next };
    // SAFETY: one rlimit is read.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    assert_eq!(ring.run(sqe::openat(CWD, c".", libc::O_RDONLY, 0)), -EMFILE);
}

fn openat2(path: &CStr, how: &[u64; 4], size: u32) -> Sqe {
    prep(Opcode::Openat2, CWD, path.as_ptr() as u64, size, address(how))
}

fn resolve(flags: u64) -> [u64; 4] {
    [libc::O_RDONLY as u64, 0, flags, 0]
}

#[case]
fn openat2_opens(cx: &Context) {
    drop(file("f", b"abc"));
    let how = resolve(0);
    opened(cx.ring(4).run(openat2(c"f", &how, 24)));
}

#[case(since = "5.19")]
fn openat2_into_registered_slots(cx: &Context) {
    let (mut ring, how) = (sparse(cx), resolve(0));
    assert_eq!(ring.run(openat2(c".", &how, 24).file_index(2)), 0);
    let open = openat2(c".", &how, 24).file_index(IORING_FILE_INDEX_ALLOC as u32);
    assert_eq!([ring.run(open), ring.run(open)], [0, -libc::ENFILE]);
}

#[case]
fn openat2_no_symlinks_is_eloop(cx: &Context) {
    drop(file("f", b"abc"));
    std::os::unix::fs::symlink("f", "l").expect("symlink");
    let (mut ring, how) = (cx.ring(4), resolve(libc::RESOLVE_NO_SYMLINKS));
    assert_eq!(ring.run(openat2(c"l", &how, 24)), -ELOOP);
    opened(ring.run(openat2(c"f", &how, 24)));
}

#[case]
fn openat2_beneath_is_exdev(cx: &Context) {
    let how = resolve(libc::RESOLVE_BENEATH);
    assert_eq!(cx.ring(4).run(openat2(c"..", &how, 24)), -EXDEV);
    assert_eq!(cx.ring(4).run(openat2(c"/", &how, 24)), -EXDEV);
}

#[case]
fn openat2_unknown_resolve_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(openat2(c".", &resolve(1 << 40), 24)), -EINVAL);
}

#[case]
fn openat2_bad_size_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(openat2(c".", &resolve(0), 8)), -EINVAL);
    assert_eq!(cx.ring(4).run(openat2(c".", &resolve(0), 0)), -EINVAL);
}

#[case]
fn openat2_larger_zeroed_size_is_allowed(cx: &Context) {
    let how = resolve(0);
    opened(cx.ring(4).run(openat2(c".", &how, 32)));
}

#[case]
fn openat2_larger_unzeroed_size_is_e2big(cx: &Context) {
    let mut how = resolve(0);
    how[3] = 1;
    assert_eq!(cx.ring(4).run(openat2(c".", &how, 32)), -libc::E2BIG);
}

/// Returns the number of a descriptor that only the ring closes.
fn loose() -> i32 {
    std::os::fd::IntoRawFd::into_raw_fd(eventfd(0, 0))
}

#[case]
fn close_closes(cx: &Context) {
    let number = loose();
    assert_eq!(cx.ring(4).run(sqe::close(number)), 0);
    assert!(!is_open(number));
}

#[case]
fn close_twice_is_ebadf(cx: &Context) {
    let (number, mut ring) = (loose(), cx.ring(4));
    assert_eq!(ring.run(sqe::close(number)), 0);
    assert_eq!(ring.run(sqe::close(number)), -EBADF);
    assert_eq!(ring.run(sqe::close(-1)), -EBADF);
}

#[case]
fn close_of_its_own_ring_is_ebadf(cx: &Context) {
    let mut ring = cx.ring(4);
    let number = ring.fd;
    assert_eq!(ring.run(sqe::close(number)), -EBADF);
    assert_eq!(ring.run(sqe::nop()), 0);
}

#[case]
fn close_of_another_ring(cx: &Context) {
    let (mut ring, mut other) = (cx.ring(4), cx.ring(4));
    let number = other.forget_fd();
    assert_eq!(ring.run(sqe::close(number)), -EBADF, "a ring is closed by close(2) only");
    assert!(is_open(number));
    cx.door.close(number);
}

fn slot_close(slot: u32) -> Sqe {
    sqe::close(0).file_index(slot + 1)
}

#[case]
fn close_of_a_fixed_slot(cx: &Context) {
    let ((reader, mut writer), mut ring) = (pipe(), cx.ring(4));
    ring.register_files(&[fd(&writer), fd(&reader)]);
    drop(reader);
    assert_eq!(ring.run(slot_close(1)), 0);
    assert_eq!(ring.run(sqe::read(1, &mut [0; 1], 0).with(IOSQE_FIXED_FILE)), -EBADF);
    count_signal(libc::SIGPIPE);
    assert!(writer.write(b"x").is_err(), "the last reader is gone");
}

#[case]
fn close_of_an_empty_fixed_slot_is_ebadf(cx: &Context) {
    let mut ring = sparse(cx);
    assert_eq!(ring.run(slot_close(0)), -EBADF);
    assert_eq!(ring.run(slot_close(9)), -EINVAL);
    assert_eq!(cx.ring(4).run(slot_close(0)), -ENXIO);
}

#[case]
fn close_with_fd_and_slot_is_einval(cx: &Context) {
    assert_eq!(sparse(cx).run(sqe::close(5).file_index(1)), -EINVAL);
}

#[case]
fn close_with_other_fields_is_einval(cx: &Context) {
    let (number, mut ring) = (loose(), cx.ring(4));
    for close in [
        Sqe { off: 1, ..sqe::close(number) },
        Sqe { addr: 1, ..sqe::close(number) },
        Sqe { len: 1, ..sqe::close(number) },
        sqe::close(number).op_flags(1),
        sqe::close(number).buffer(1),
    ] {
        assert_eq!(ring.run(close), -EINVAL);
    }
    assert!(is_open(number));
}

#[case]
fn close_with_fixed_file_flag_is_ebadf(cx: &Context) {
    assert_eq!(sparse(cx).run(sqe::close(0).with(IOSQE_FIXED_FILE)), -EBADF);
}

#[case]
fn open_write_close_in_a_chain(cx: &Context) {
    let mut ring = sparse(cx);
    let open = sqe::openat(CWD, c"new", libc::O_CREAT | libc::O_WRONLY, 0o600).file_index(1);
    ring.go_all(&[
        open.with(IOSQE_IO_LINK).data(1),
        sqe::write(0, b"abc", 0).with(IOSQE_FIXED_FILE | IOSQE_IO_LINK).data(2),
        slot_close(0).data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 3), (3, 0)]);
    assert_eq!(std::fs::read("new").expect("read"), b"abc");
}

#[case]
fn open_read_close_of_a_fixed_slot_in_a_chain(cx: &Context) {
    drop(file("f", b"abc"));
    let (mut ring, mut buffer) = (sparse(cx), [0; 3]);
    ring.go_all(&[
        sqe::openat(CWD, c"f", libc::O_RDONLY, 0).file_index(1).with(IOSQE_IO_LINK | IOSQE_ASYNC).data(1),
        sqe::read(0, &mut buffer, 0).with(IOSQE_FIXED_FILE | IOSQE_IO_LINK).data(2),
        slot_close(0).data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 3), (3, 0)]);
    assert_eq!(&buffer, b"abc");
}

fn statx(dir: i32, path: &CStr, flags: i32, buffer: u64) -> Sqe {
    prep(Opcode::Statx, dir, path.as_ptr() as u64, libc::STATX_SIZE | libc::STATX_MODE, buffer)
        .op_flags(flags as u32)
}

fn statx_buffer() -> libc::statx {
    // SAFETY: statx is plain numbers, for which zeroes are valid.
    unsafe { std::mem::zeroed() }
}

#[case]
fn statx_fills_the_structure(cx: &Context) {
    drop(file("f", b"abcde"));
    let mut stat = statx_buffer();
    assert_eq!(cx.ring(4).run(statx(CWD, c"f", 0, address_mut(&mut stat))), 0);
    assert_eq!(stat.stx_size, 5);
}

#[case]
fn statx_of_an_empty_path(cx: &Context) {
    let (file, mut stat) = (file("f", b"abcde"), statx_buffer());
    assert_eq!(cx.ring(4).run(statx(fd(&file), c"", libc::AT_EMPTY_PATH, address_mut(&mut stat))), 0);
    assert_eq!(stat.stx_size, 5);
    assert_eq!(cx.ring(4).run(statx(fd(&file), c"", 0, address_mut(&mut stat))), -ENOENT);
}

#[case]
fn statx_missing_is_enoent(cx: &Context) {
    let mut stat = statx_buffer();
    assert_eq!(cx.ring(4).run(statx(CWD, c"missing", 0, address_mut(&mut stat))), -ENOENT);
}

#[case]
fn statx_bad_buffer_is_efault(cx: &Context) {
    assert_eq!(cx.ring(4).run(statx(CWD, c".", 0, bad_address())), -EFAULT);
    let mut stat = statx_buffer();
    let bad_path = Sqe { addr: bad_address(), ..statx(CWD, c".", 0, address_mut(&mut stat)) };
    assert_eq!(cx.ring(4).run(bad_path), -EFAULT);
}

#[case]
fn statx_bad_flags_is_einval(cx: &Context) {
    let mut stat = statx_buffer();
    assert_eq!(cx.ring(4).run(statx(CWD, c".", 1 << 30, address_mut(&mut stat))), -EINVAL);
}

fn rename(from: &CStr, to: &CStr, flags: u32) -> Sqe {
    let sqe = prep(Opcode::Renameat, CWD, from.as_ptr() as u64, CWD as u32, to.as_ptr() as u64);
    sqe.op_flags(flags)
}

#[case(since = "5.11")]
fn renameat_renames(cx: &Context) {
    drop(file("a", b"abc"));
    assert_eq!(cx.ring(4).run(rename(c"a", c"b", 0)), 0);
    assert_eq!(std::fs::read("b").expect("read"), b"abc");
    assert!(!std::fs::exists("a").expect("stat"));
}

#[case]
fn renameat_noreplace_is_eexist(cx: &Context) {
    drop((file("a", b"abc"), file("b", b"x")));
    assert_eq!(cx.ring(4).run(rename(c"a", c"b", libc::RENAME_NOREPLACE)), -EEXIST);
}

#[case(since = "5.11")]
fn renameat_exchange(cx: &Context) {
    drop((file("a", b"1"), file("b", b"2")));
    assert_eq!(cx.ring(4).run(rename(c"a", c"b", libc::RENAME_EXCHANGE)), 0);
    assert_eq!(std::fs::read("a").expect("read"), b"2");
}

#[case]
fn renameat_missing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(rename(c"missing", c"b", 0)), -ENOENT);
}

#[case]
fn renameat_bad_flags_is_einval(cx: &Context) {
    drop(file("a", b"abc"));
    assert_eq!(cx.ring(4).run(rename(c"a", c"b", 1 << 20)), -EINVAL);
    assert_eq!(cx.ring(4).run(rename(c"a", c"b", 0).with(IOSQE_FIXED_FILE)), -EBADF);
}

fn unlink(path: &CStr, flags: i32) -> Sqe {
    prep(Opcode::Unlinkat, CWD, path.as_ptr() as u64, 0, 0).op_flags(flags as u32)
}

#[case(since = "5.11")]
fn unlinkat_removes(cx: &Context) {
    drop(file("a", b"abc"));
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(unlink(c"a", 0)), 0);
    assert_eq!(ring.run(unlink(c"a", 0)), -ENOENT);
}

#[case(since = "5.11")]
fn unlinkat_of_a_directory(cx: &Context) {
    std::fs::create_dir("d").expect("mkdir");
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(unlink(c"d", 0)), -EISDIR);
    assert_eq!(ring.run(unlink(c"d", libc::AT_REMOVEDIR)), 0);
}

#[case]
fn unlinkat_of_a_full_directory_is_enotempty(cx: &Context) {
    std::fs::create_dir("d").expect("mkdir");
    drop(file("d/f", b""));
    assert_eq!(cx.ring(4).run(unlink(c"d", libc::AT_REMOVEDIR)), -ENOTEMPTY);
}

#[case]
fn unlinkat_unknown_flag_is_einval(cx: &Context) {
    assert_eq!(cx.ring(4).run(unlink(c"a", 1)), -EINVAL);
}

fn mkdir(path: &CStr, mode: u32) -> Sqe {
    prep(Opcode::Mkdirat, CWD, path.as_ptr() as u64, mode, 0)
}

#[case(since = "5.15")]
fn mkdirat_makes(cx: &Context) {
    assert_eq!(cx.ring(4).run(mkdir(c"d", 0o700)), 0);
    assert_eq!(std::fs::metadata("d").expect("stat").mode() & 0o777, 0o700);
}

#[case]
fn mkdirat_existing_is_eexist(cx: &Context) {
    std::fs::create_dir("d").expect("mkdir");
    assert_eq!(cx.ring(4).run(mkdir(c"d", 0o700)), -EEXIST);
}

#[case(since = "5.15")]
fn symlinkat_links(cx: &Context) {
    let target = c"where";
    let link = prep(Opcode::Symlinkat, CWD, target.as_ptr() as u64, 0, c"l".as_ptr() as u64);
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(link), 0);
    assert_eq!(std::fs::read_link("l").expect("readlink"), std::path::Path::new("where"));
    assert_eq!(ring.run(link), -EEXIST);
}

fn hard_link(from: &CStr, to: &CStr, flags: i32) -> Sqe {
    let sqe = prep(Opcode::Linkat, CWD, from.as_ptr() as u64, CWD as u32, to.as_ptr() as u64);
    sqe.op_flags(flags as u32)
}

#[case(since = "5.15")]
fn linkat_links(cx: &Context) {
    drop(file("a", b"abc"));
    assert_eq!(cx.ring(4).run(hard_link(c"a", c"b", 0)), 0);
    assert_eq!(std::fs::metadata("a").expect("stat").nlink(), 2);
}

#[case]
fn linkat_missing_is_enoent(cx: &Context) {
    assert_eq!(cx.ring(4).run(hard_link(c"missing", c"b", 0)), -ENOENT);
}

#[case]
fn linkat_unknown_flag_is_einval(cx: &Context) {
    drop(file("a", b"abc"));
    assert_eq!(cx.ring(4).run(hard_link(c"a", c"b", 1)), -EINVAL);
}

#[case(since = "5.15")]
fn linkat_follow(cx: &Context) {
    drop(file("a", b"abc"));
    std::os::unix::fs::symlink("a", "l").expect("symlink");
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(hard_link(c"l", c"plain", 0)), 0);
    assert_eq!(ring.run(hard_link(c"l", c"followed", libc::AT_SYMLINK_FOLLOW)), 0);
    assert!(std::fs::symlink_metadata("plain").expect("stat").is_symlink());
    assert!(std::fs::symlink_metadata("followed").expect("stat").is_file());
}

#[case(since = "5.15")]
fn async_path_operations(cx: &Context) {
    let mut ring = cx.ring(8);
    let both = IOSQE_ASYNC | IOSQE_IO_LINK;
    ring.go_all(&[
        mkdir(c"d", 0o700).with(both).data(1),
        rename(c"d", c"e", 0).with(both).data(2),
        unlink(c"e", libc::AT_REMOVEDIR).with(IOSQE_ASYNC).data(3),
    ]);
    assert_eq!(ring.wait_ordered(3), [(1, 0), (2, 0), (3, 0)]);
    assert!(!std::fs::exists("e").expect("stat"));
}

#[case]
fn unused_fields_are_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(Sqe { off: 1, ..mkdir(c"d", 0o700) }), -EINVAL);
    assert_eq!(ring.run(mkdir(c"d", 0o700).op_flags(1)), -EINVAL);
    assert_eq!(ring.run(mkdir(c"d", 0o700).buffer(1)), -EINVAL);
    assert_eq!(ring.run(Sqe { off: 1, ..unlink(c"d", 0) }), -EINVAL);
    assert_eq!(ring.run(Sqe { len: 1, ..unlink(c"d", 0) }), -EINVAL);
    assert_eq!(ring.run(rename(c"a", c"b", 0).buffer(1)), -EINVAL);
}
