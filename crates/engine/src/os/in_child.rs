//! A forked child of a process in which other tests run, for tests.

/// Returns the exit status of a forked child that runs `body`, which makes system calls only. The child shares the
/// descriptor table. With a copy of the table, files that other tests close would stay open until the child ends.
pub fn in_child(body: impl FnOnce() -> u8) -> u8 {
    let flags = i64::from(libc::CLONE_FILES | libc::SIGCHLD);
    // SAFETY: as fork(2). No stack is given, so the child has a copy of this stack, and of everything else.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } as i32;
    if child == 0 {
        let status = body();
        // SAFETY: ends the child, and nothing else of the test.
        unsafe { libc::_exit(status.into()) };
    }
    let mut status = 0;
    // SAFETY: our own child, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status) as u8
}
