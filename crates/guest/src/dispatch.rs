//! Serves each trapped call.

use crate::arch::trap::Registers;
use crate::arch::{calls, patch};
use crate::world::{self, Block};
use crate::{exe, exec, filter, hot, signals, start, threads};
use anyring_abi::NR_IO_SETUP;
use anyring_engine::os::arch::page_bytes;
use anyring_engine::thread::follow;
use anyring_engine::{log, Errno};
use anyring_serve::host::Server;
use anyring_serve::{entry, memory, sys, Host};
use core::sync::atomic::Ordering;
use libc::c_int;

/// The process of a guest.
pub struct Guest;

impl Host for Guest {
    #[inline]
    fn rings() -> Server {
        if start::serves_rings() {
            Server::Engine
        } else {
            Server::Kernel
        }
    }

    fn aio() -> Server {
        if start::serves_aio() {
            Server::Engine
        } else {
            Server::Kernel
        }
    }

    /// Does nothing: `start.rs` has done it.
    fn guard_copies() {}

    fn first_ring_made() {
        start::trap_with_rings();
    }

    /// Does nothing: every rt_sigaction(2) of the guest is trapped.
    fn reinstall_handlers() {}

    /// Does nothing: each trap gets the alternate stack from the kernel.
    fn record_alternate(_: &libc::stack_t) {}

    fn sigaction(args: [usize; 6]) -> isize {
        world::mine().map_or(-(libc::EINVAL as isize), |block| signals::sigaction(block, args))
    }

    fn sigprocmask(args: [usize; 6]) -> isize {
        world::mine().map_or(-(libc::EINVAL as isize), |block| signals::sigprocmask(block, args))
    }

    fn with_mask(mask: *const u64, size: usize, wait: impl FnOnce(*const u64) -> isize) -> isize {
        signals::with_mask(mask, size, wait)
    }
}

/// Makes the call that the registers describe, and returns the kernel's register. A fork returns twice.
pub fn call(block: &Block, registers: &mut Registers) -> isize {
    let number = registers.number();
    let args = registers.args();
    let [a, b, c, d, e, _] = args;
    if let Some(answer) = calls::serve(block, registers, number, args) {
        return answer;
    }
    match number {
        libc::SYS_clone => threads::clone(block, registers, calls::clone_arguments(args)),
        // The caller falls back to clone(2).
        libc::SYS_clone3 => -(libc::ENOSYS as isize),
        libc::SYS_execve => exec::execute(libc::AT_FDCWD, a, b, c, 0),
        libc::SYS_execveat => exec::execute(a as c_int, b, c, d, e),
        libc::SYS_readlinkat => exe::read_link(a, b, c, d),
        libc::SYS_mmap => map(args),
        // A context of Linux AIO is a ring, too.
        NR_IO_SETUP if start::serves_aio() => {
            start::trap_with_rings();
            anyring_serve::dispatch::call::<Guest>(number, args)
        }
        _ => {
            if let Some(own) =
                follow::arguments(number, args).filter(|_| !block.is_borrowed.load(Ordering::Relaxed))
            {
                return change_identity(block, number, args, own);
            }
            on_rings(number, args)
        }
    }
}

/// Makes a call that concerns neither threads nor processes.
pub fn on_rings(number: i64, args: [usize; 6]) -> isize {
    let answer = anyring_serve::dispatch::call::<Guest>(number, args);
    start::trap_with_levels();
    answer
}

/// Serves io_uring_enter(2).
pub fn enter([fd, submit, wait, flags, arg, size]: [usize; 6]) -> isize {
    let arg = arg as *const core::ffi::c_void;
    let answer =
        anyring_serve::door::enter::<Guest>(fd as u32, submit as u32, wait as u32, flags as u32, arg, size);
    start::trap_with_levels();
    answer
}

/// Makes a call that changes the identity of the calling thread. The engine's threads change theirs in the same way
/// before the call returns, since the guest's libc does not know them. `own`: the arguments that this call takes.
fn change_identity(block: &Block, number: i64, args: [usize; 6], own: [usize; 3]) -> isize {
    let mut copied = Err(Errno::NOMEM);
    entry::aside(|| copied = follow::Copy::of(number, own));
    let copy = match copied {
        Ok(copy) => copy,
        Err(Errno::NOMEM) => return -(libc::ENOMEM as isize),
        // The kernel returns the reason.
        // SAFETY: the guest's own call.
        Err(_) => return unsafe { sys::call(number, args) },
    };
    let answer = match world::is_only_one(block) {
        // The only thread of the guest's cannot differ from another.
        // SAFETY: the guest's own call, with what its pointers lead to.
        true => unsafe { sys::call(number, copy.own()) },
        false => anyring_serve::dispatch::call::<Guest>(number, copy.own()),
    };
    if (-4095..0).contains(&answer) {
        return answer;
    }
    let digest =
        |before: u64, word: usize| (before ^ word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let identity = [number as usize, own[0], own[1], own[2]].into_iter().fold(0, digest);
    // SeqCst: of two threads at least one sees what the other has stored. Partner: the load in `all_agree`.
    block.identity.store(identity, Ordering::SeqCst);
    // libc makes the call in each thread in turn: after the last one it applies to the whole process.
    let of_process = world::all_agree(block);
    let (mut copy, mut followed) = (Some(copy), true);
    entry::aside(|| followed = copy.take().is_some_and(|copy| follow::follow(copy, of_process)));
    if !followed {
        log::line("a thread of the engine's sleeps in a call that nothing ends, and changes its identity after it");
    }
    answer
}

/// Serves mmap(2) of a ring's descriptor, or of code. Code is mapped at addresses where its calls are trapped.
fn map(args: [usize; 6]) -> isize {
    let [address, bytes, protection, flags, ..] = args;
    let given = args;
    let mut args = match memory::substituted(given) {
        Ok(args) => args,
        Err(error) => return error,
    };
    let of_file = flags as c_int & libc::MAP_ANONYMOUS == 0;
    let is_free = address == 0 && flags as c_int & memory::PLACES == 0;
    let is_private = flags as c_int & libc::MAP_TYPE == libc::MAP_PRIVATE;
    if is_free && is_private && of_file {
        args[0] = filter::place(bytes, 1);
    }
    // SAFETY: the guest's own call, at another free place at most, or of another descriptor with the same meaning.
    let mut answer = unsafe { sys::call(libc::SYS_mmap, args) };
    if answer < 0 && args[0] != address {
        args[0] = address;
        // SAFETY: as above.
        answer = unsafe { sys::call(libc::SYS_mmap, args) };
    }
    if answer > 0 {
        memory::mapped(&given, &args, answer as usize);
    }
    if answer > 0 && of_file && protection as c_int & libc::PROT_EXEC != 0 {
        let start = answer as usize;
        let code = start..start.saturating_add(bytes).next_multiple_of(page_bytes());
        filter::cover(code.clone());
        if protection as c_int & libc::PROT_READ != 0 {
            patch::code_was_mapped(code.clone());
            // The log says what cannot be replaced there.
            let _ = hot::ahead(code);
        }
    }
    answer
}
