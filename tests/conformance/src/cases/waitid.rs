//! WAITID: waitid(2) as a request.

use super::prelude::*;
use crate::buffers::BufferRing;
use crate::ring::QUIET;
use std::fs::File;
use std::time::Instant;

topic!(since: "6.7", source: "io_uring_enter(2), io_uring/waitid.c");

/// A child that ends with `status` once the pipe is written to.
pub(super) struct Child {
    pub(super) pid: i32,
    writer: Option<File>,
}

impl Child {
    pub(super) fn new(status: i32) -> Child {
        let (mut reader, writer) = pipe();
        let begin = |act: &mut dyn FnMut()| {
            // SAFETY: the child makes system calls only, and ends.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0, "fork");
            if pid == 0 {
                act();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(status) };
            }
            pid
        };
        let number = fd(&writer);
        let pid = begin(&mut || {
            // SAFETY: the child's own copy, so that the parent's is the last.
            unsafe { libc::close(number) };
            let _ = reader.read(&mut [0]);
        });
        Child { pid, writer: Some(writer) }
    }

    fn ended(status: i32) -> Child {
        let mut child = Child::new(status);
        child.end();
        child.await_end();
        child
    }

    /// Lets the child end.
    fn end(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            let _ = writer.write(b"x"); // unless it was killed
        }
    }

    /// Waits until the child has ended, without reaping it.
    fn await_end(&self) {
        let mut info = none();
        // SAFETY: `info` is what the call fills in.
        let answer = unsafe { libc::waitid(libc::P_PID, self.pid as u32, &mut info, EXITED | libc::WNOWAIT) };
        assert_eq!(answer, 0, "waitid");
    }

    /// pidfd_open(2).
    fn pidfd(&self, flags: i32) -> OwnedFd {
        // SAFETY: no pointers.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_open, self.pid, flags) as i32 }, "pidfd_open")
    }

    fn signal(&self, signal: i32) {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Ends the child and reaps it. True if it was still there to be reaped.
    fn reap(&mut self) -> bool {
        self.end();
        // SAFETY: no status is asked for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) == self.pid }
    }
}

pub(super) fn none() -> libc::siginfo_t {
    // SAFETY: plain numbers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_code = 77;
    info
}

pub(super) fn wait(kind: libc::idtype_t, id: i32, options: i32, info: &mut libc::siginfo_t) -> Sqe {
    prep(Opcode::Waitid, id, 0, kind, address_mut(info)).file_index(options as u32)
}

/// Signal, code, pid and status.
fn seen(info: &libc::siginfo_t) -> [i32; 4] {
    let info = std::hint::black_box(info);
    // SAFETY: of every siginfo these bytes are there.
    unsafe { [info.si_signo, info.si_code, info.si_pid(), info.si_status()] }
}

const EXITED: i32 = libc::WEXITED;

#[case]
fn child_that_has_exited(cx: &Context) {
    let (child, mut info) = (Child::ended(7), none());
    assert_eq!(cx.ring(4).run(wait(libc::P_PID, child.pid, EXITED, &mut info)), 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 7]);
    // SAFETY: as in `seen`; getuid has no arguments.
    assert_eq!((info.si_errno, unsafe { info.si_uid() }), (0, unsafe { libc::getuid() }));
}

fn later(cx: &Context, flags: u8) {
    let (mut child, mut info, mut ring) = (Child::new(3), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, EXITED, &mut info).with(flags));
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 3]);
    assert!(!child.reap());
}

#[case]
fn child_that_exits_later(cx: &Context) {
    later(cx, 0);
}

#[case]
fn with_async(cx: &Context) {
    later(cx, IOSQE_ASYNC);
}

/// The failed read must leave no trace for the next request. That one waits, and a call of io_uring_enter(2) in between
/// does not end it.
#[case]
fn after_a_multishot_read_that_failed(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(4), none(), cx.ring(4));
    let _buffers = BufferRing::filled(&ring, 1, 2, 16);
    let read = prep(Opcode::ReadMultishot, 9999, 0, 0, 0).with(IOSQE_BUFFER_SELECT).buffer(1);
    assert_eq!(ring.run(read), -EBADF);
    ring.go(wait(libc::P_PID, child.pid, EXITED, &mut info));
    for _ in 0..3 {
        assert_eq!(ring.enter(0, 0, IORING_ENTER_GETEVENTS, 0, 0), 0);
    }
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait().res, 0);
}

#[case]
fn child_that_is_killed(cx: &Context) {
    let (child, mut info, mut ring) = (Child::new(0), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, EXITED, &mut info));
    child.signal(libc::SIGKILL);
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_KILLED, child.pid, libc::SIGKILL]);
}

#[case]
fn without_infop(cx: &Context) {
    let mut child = Child::ended(0);
    assert_eq!(cx.ring(4).run(Sqe { off: 0, ..wait(libc::P_PID, child.pid, EXITED, &mut none()) }), 0);
    assert!(!child.reap());
}

#[case]
fn bad_infop_is_efault_and_reaps(cx: &Context) {
    let mut child = Child::ended(0);
    assert_eq!(
        cx.ring(4).run(Sqe { off: bad_address(), ..wait(libc::P_PID, child.pid, EXITED, &mut none()) }),
        -EFAULT
    );
    assert!(!child.reap());
}

#[case]
fn nohang_finds_nothing(cx: &Context) {
    let (mut child, mut info) = (Child::new(0), none());
    assert_eq!(cx.ring(4).run(wait(libc::P_PID, child.pid, EXITED | libc::WNOHANG, &mut info)), 0);
    assert_eq!(seen(&info), [0; 4]);
    assert!(child.reap());
}

#[case]
fn nohang_finds_it(cx: &Context) {
    let (child, mut info) = (Child::ended(1), none());
    assert_eq!(cx.ring(4).run(wait(libc::P_ALL, 0, EXITED | libc::WNOHANG, &mut info)), 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 1]);
}

#[case]
fn nowait_leaves_it(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(9), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, EXITED | libc::WNOWAIT, &mut info));
    child.end();
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 9]);
    assert!(child.reap());
}

#[case]
fn stopped_and_continued(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(0), none(), cx.ring(4));
    child.signal(libc::SIGSTOP);
    assert_eq!(ring.run(wait(libc::P_PID, child.pid, libc::WSTOPPED, &mut info)), 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_STOPPED, child.pid, libc::SIGSTOP]);
    child.signal(libc::SIGCONT);
    assert_eq!(ring.run(wait(libc::P_PID, child.pid, libc::WCONTINUED | EXITED, &mut info)), 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_CONTINUED, child.pid, libc::SIGCONT]);
    assert!(child.reap());
}

#[case]
fn waits_for_a_stop(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(0), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, libc::WSTOPPED, &mut info));
    ring.expect_quiet();
    child.signal(libc::SIGSTOP);
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info)[1], libc::CLD_STOPPED);
    child.signal(libc::SIGCONT);
    assert!(child.reap());
}

#[case]
fn by_pidfd(cx: &Context) {
    let (child, mut info) = (Child::ended(5), none());
    assert_eq!(cx.ring(4).run(wait(libc::P_PIDFD, fd(&child.pidfd(0)), EXITED, &mut info)), 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 5]);
}

#[case]
fn by_pidfd_later(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(5), none(), cx.ring(4));
    let pidfd = child.pidfd(0);
    ring.go(wait(libc::P_PIDFD, fd(&pidfd), EXITED, &mut info));
    drop(pidfd); // it has been looked up
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 5]);
}

#[case]
fn by_nonblocking_pidfd(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(5), none(), cx.ring(4));
    let pidfd = child.pidfd(libc::O_NONBLOCK);
    assert_eq!(ring.run(wait(libc::P_PIDFD, fd(&pidfd), EXITED, &mut info)), 0);
    assert_eq!(seen(&info), [0; 4]);
    child.end();
    child.await_end();
    assert_eq!(ring.run(wait(libc::P_PIDFD, fd(&pidfd), EXITED, &mut info)), 0);
    assert_eq!(seen(&info)[2], child.pid);
}

#[case]
fn by_another_descriptor_is_ebadf(cx: &Context) {
    let ((reader, _writer), mut ring) = (pipe(), cx.ring(4));
    assert_eq!(ring.run(wait(libc::P_PIDFD, fd(&reader), EXITED, &mut none())), -EBADF);
    assert_eq!(ring.run(wait(libc::P_PIDFD, 9999, EXITED, &mut none())), -EBADF);
    assert_eq!(ring.run(wait(libc::P_PIDFD, -1, EXITED, &mut none())), -EINVAL);
}

#[case]
fn by_group(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(6), none(), cx.ring(4));
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::setpgid(child.pid, child.pid) }, 0);
    ring.go(wait(libc::P_PGID, child.pid, EXITED, &mut info));
    let _other = Child::ended(1);
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 6]);
}

#[case]
fn by_own_group(cx: &Context) {
    let (child, mut info) = (Child::ended(6), none());
    assert_eq!(cx.ring(4).run(wait(libc::P_PGID, 0, EXITED, &mut info)), 0);
    assert_eq!(seen(&info)[2], child.pid);
}

#[case]
fn any_child(cx: &Context) {
    let (child, mut info) = (Child::ended(2), none());
    assert_eq!(cx.ring(4).run(wait(libc::P_ALL, 0, EXITED, &mut info)), 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, 2]);
    assert_eq!(cx.ring(4).run(wait(libc::P_ALL, 4711, EXITED, &mut info)), -libc::ECHILD);
}

#[case]
fn any_child_later(cx: &Context) {
    let (mut first, mut second, mut info, mut ring) = (Child::new(1), Child::new(2), none(), cx.ring(4));
    ring.go(wait(libc::P_ALL, 0, EXITED, &mut info));
    ring.expect_quiet();
    second.end();
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info), [libc::SIGCHLD, libc::CLD_EXITED, second.pid, 2]);
    ring.go(wait(libc::P_ALL, 0, EXITED, &mut info));
    first.end();
    assert_eq!(ring.wait().res, 0);
    assert_eq!(seen(&info)[2], first.pid);
}

#[case]
fn without_children_is_echild(cx: &Context) {
    let mut info = none();
    assert_eq!(cx.ring(4).run(wait(libc::P_ALL, 0, EXITED, &mut info)), -libc::ECHILD);
    assert_eq!(seen(&info), [0; 4]);
    assert_eq!(cx.ring(4).run(wait(libc::P_ALL, 0, EXITED, &mut info).with(IOSQE_ASYNC)), -libc::ECHILD);
}

#[case]
fn of_a_stranger_is_echild(cx: &Context) {
    // SAFETY: no arguments.
    let parent = unsafe { libc::getppid() };
    assert_eq!(cx.ring(4).run(wait(libc::P_PID, parent, EXITED, &mut none())), -libc::ECHILD);
}

#[case]
fn bad_kinds_are_einval(cx: &Context) {
    let mut ring = cx.ring(4);
    assert_eq!(ring.run(wait(4, 1, EXITED, &mut none())), -EINVAL);
    assert_eq!(ring.run(wait(u32::MAX, 1, EXITED, &mut none())), -EINVAL);
    assert_eq!(ring.run(wait(libc::P_PID, 0, EXITED, &mut none())), -EINVAL);
    assert_eq!(ring.run(wait(libc::P_PID, -5, EXITED, &mut none())), -EINVAL);
    assert_eq!(ring.run(wait(libc::P_PGID, -1, EXITED, &mut none())), -EINVAL);
}

#[case]
fn bad_options_are_einval(cx: &Context) {
    let (_child, mut ring) = (Child::ended(0), cx.ring(4));
    for options in [0, libc::WNOHANG, libc::WNOWAIT, EXITED | 0x10, EXITED | 0x1000, EXITED | 1 << 28] {
        let mut info = none();
        assert_eq!(ring.run(wait(libc::P_ALL, 0, options, &mut info)), -EINVAL, "{options:#x}");
        assert_eq!(seen(&info)[1], 77);
    }
}

#[case]
fn with_unused_fields_is_einval(cx: &Context) {
    let (child, mut info, mut ring) = (Child::ended(0), none(), cx.ring(4));
    let good = wait(libc::P_PID, child.pid, EXITED, &mut info);
    assert_eq!(ring.run(Sqe { addr: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(Sqe { addr3: 1, ..good }), -EINVAL);
    assert_eq!(ring.run(good.buffer(1)), -EINVAL);
    assert_eq!(ring.run(good.op_flags(1)), -EINVAL);
    assert_eq!(ring.run(good.ioprio(1)), -EINVAL);
}

#[case]
fn two_wait_for_one(cx: &Context) {
    let (mut child, mut infos, mut ring) = (Child::new(0), [none(), none()], cx.ring(4));
    let [first, second] = &mut infos;
    ring.go_all(&[
        wait(libc::P_PID, child.pid, EXITED, first).data(1),
        wait(libc::P_PID, child.pid, EXITED, second).data(2),
    ]);
    ring.expect_quiet();
    child.end();
    let mut results = ring.wait_sorted(2).iter().map(|it| it.1).collect::<Vec<_>>();
    results.sort_unstable();
    assert_eq!(results, [-libc::ECHILD, 0]);
}

#[case]
fn taken_by_a_plain_wait(cx: &Context) {
    let (mut child, mut other, mut info, mut ring) = (Child::new(0), Child::new(0), none(), cx.ring(4));
    // The order is open: either way one of the two reaps it.
    ring.go(wait(libc::P_PID, child.pid, EXITED, &mut info));
    let reaped = child.reap();
    assert_eq!(ring.wait().res, if reaped { -libc::ECHILD } else { 0 });
    assert!(other.reap());
}

fn cancelled(cx: &Context, kind: libc::idtype_t, options: i32) {
    let (mut child, mut info, mut ring) = (Child::new(0), none(), cx.ring(4));
    let id = if kind == libc::P_ALL { 0 } else { child.pid };
    for flags in [0, IOSQE_ASYNC] {
        ring.go(wait(kind, id, options, &mut info).data(1).with(flags));
        ring.expect_quiet();
        wait_others_asleep(&[]); // a worker has had it
        ring.go(sqe::cancel(1, 0).data(2));
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, 1)]);
        assert_eq!(seen(&info), [0; 4]);
        info.si_code = 77;
    }
    child.end();
    child.await_end();
    ring.expect_quiet();
    assert!(child.reap());
}

#[case]
fn is_cancelled_and_reaps_nothing(cx: &Context) {
    cancelled(cx, libc::P_PID, EXITED);
}

#[case]
fn any_child_is_cancelled(cx: &Context) {
    cancelled(cx, libc::P_ALL, EXITED | libc::WSTOPPED);
}

#[case]
fn all_are_counted_once(cx: &Context) {
    let (mut child, mut infos, mut ring) = (Child::new(0), [none(), none()], cx.ring(4));
    let [first, second] = &mut infos;
    ring.go_all(&[wait(libc::P_PID, child.pid, EXITED, first), wait(libc::P_ALL, 0, EXITED, second)]);
    ring.go(sqe::cancel(0, IORING_ASYNC_CANCEL_ALL).data(2));
    assert_eq!(ring.wait_sorted(3), [(0, -ECANCELED), (0, -ECANCELED), (2, 1)]);
    assert!(child.reap());
}

#[case]
fn link_timeout_ends_it(cx: &Context) {
    let (mut child, mut info, mut ring, limit) = (Child::new(0), none(), cx.ring(4), ms(20));
    for (kind, id) in [(libc::P_PID, child.pid), (libc::P_ALL, 0)] {
        let waits = wait(kind, id, EXITED, &mut info).data(1).with(IOSQE_IO_LINK);
        ring.go_all(&[waits, sqe::link_timeout(&limit).data(2)]);
        assert_eq!(ring.wait_sorted(2), [(1, -ECANCELED), (2, cx.link_timeout_result())]);
    }
    assert!(child.reap());
}

#[case]
fn goes_on_with_its_link(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(4), none(), cx.ring(4));
    let waits = wait(libc::P_ALL, 0, EXITED, &mut info).data(1).with(IOSQE_IO_LINK);
    ring.go_all(&[waits, sqe::nop().data(2)]);
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait_sorted(2), [(1, 0), (2, 0)]);
}

#[case]
fn error_breaks_its_link(cx: &Context) {
    let (mut info, mut ring) = (none(), cx.ring(4));
    let waits = wait(libc::P_ALL, 0, EXITED, &mut info).data(1).with(IOSQE_IO_LINK);
    ring.go_all(&[waits, sqe::nop().data(2)]);
    assert_eq!(ring.wait_sorted(2), [(1, -libc::ECHILD), (2, -ECANCELED)]);
}

#[case]
fn that_skips_success(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(4), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, EXITED, &mut info).with(IOSQE_CQE_SKIP_SUCCESS));
    child.end();
    let begun = Instant::now();
    while seen(&info)[2] != child.pid {
        ring.expect_quiet();
        assert!(begun.elapsed() < crate::ring::PATIENCE, "it is reaped without a CQE");
    }
}

#[case]
fn close_reaps_nothing(cx: &Context) {
    let (mut child, mut infos, mut ring) = (Child::new(0), [none(), none()], cx.ring(4));
    let [first, second] = &mut infos;
    ring.go_all(&[wait(libc::P_PID, child.pid, EXITED, first), wait(libc::P_ALL, 0, EXITED, second)]);
    ring.close_fd();
    drop(ring);
    std::thread::sleep(QUIET); // in which the kernel ends the waits
    child.end();
    child.await_end();
    std::thread::sleep(QUIET); // in which one that was left would reap it
    assert!(child.reap());
}

#[case]
fn many_children(cx: &Context) {
    const COUNT: usize = 50;
    let mut children: Vec<_> = (0..COUNT).map(|status| Child::new(status as i32)).collect();
    let mut infos: Vec<_> = children.iter().map(|_| none()).collect();
    let mut ring = cx.ring(64);
    for (place, (child, info)) in children.iter().zip(&mut infos).enumerate() {
        let by_stop = if place % 2 == 0 { 0 } else { libc::WSTOPPED };
        ring.push(wait(libc::P_PID, child.pid, EXITED | by_stop, info));
    }
    assert_eq!(ring.submit(), COUNT as isize);
    children.iter_mut().for_each(Child::end);
    assert!(ring.wait_all(COUNT).iter().all(|cqe| cqe.res == 0));
    for (status, (child, info)) in children.iter().zip(&infos).enumerate() {
        assert_eq!(seen(info), [libc::SIGCHLD, libc::CLD_EXITED, child.pid, status as i32]);
    }
}

/// The parent of a child is the process, not the thread that forked.
#[case(own_flags)]
fn of_any_thread(cx: &Context) {
    let (forked, end) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let forker = std::thread::spawn(move || {
        forked.0.send(Child::new(1)).expect("the case waits for it");
        let _ = end.1.recv();
    });
    let (mut child, mut info, mut ring) = (forked.1.recv().expect("a child"), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, EXITED | libc::WSTOPPED, &mut info));
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait().res, 0);
    // With __WNOTHREAD the forking thread is the parent.
    let only_own = wait(libc::P_PID, child.pid, EXITED | libc::__WNOTHREAD, &mut info);
    assert_eq!(ring.run(only_own), -libc::ECHILD);
    drop(end.0);
    forker.join().expect("the thread");
}

#[case]
fn clone_children_only(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::ended(1), none(), cx.ring(4));
    assert_eq!(ring.run(wait(libc::P_PID, child.pid, EXITED | libc::__WCLONE, &mut info)), -libc::ECHILD);
    assert_eq!(ring.run(wait(libc::P_PID, child.pid, EXITED | libc::__WALL, &mut info)), 0);
    assert!(!child.reap());
}

#[case(own_flags)]
fn of_own_thread_only(cx: &Context) {
    let (mut child, mut info, mut ring) = (Child::new(1), none(), cx.ring(4));
    ring.go(wait(libc::P_PID, child.pid, EXITED | libc::__WNOTHREAD, &mut info));
    ring.expect_quiet();
    child.end();
    assert_eq!(ring.wait().res, 0);
    assert!(!child.reap());
}

/// The thread reaps the child before its task work looks for it.
#[case(own_flags, undisturbed)]
fn child_that_the_submitting_thread_reaps_meanwhile(cx: &Context) {
    let (mut ring, mut child, mut info) = (cx.ring_with(4, 0), Child::new(7), none());
    let pid = child.pid;
    ring.go(wait(libc::P_PID, pid, EXITED, &mut info));
    let killer = once_asleep(move || {
        child.end();
        child
    });
    // SAFETY: no status is asked for.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
    assert_eq!(ring.wait().res, -libc::ECHILD);
    drop(killer.join().expect("the killer"));
}
