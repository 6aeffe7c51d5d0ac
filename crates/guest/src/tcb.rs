//! TCBs of the host's glibc for threads that it did not make.
//!
//! With such a TCB, `errno`, malloc, mutexes, thread-locals and unwinding work in a guest's thread, and it can make
//! threads for the engine. The code calls hidden glibc functions, which a static link can reach. Parts of the TCB's
//! layout are not part of the ABI. [`prepare`] learns them from the first thread's own TCB, and fails if it does not
//! find them.

use crate::arch::tls;
use anyring_serve::sys::{self, set_mask};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering};

extern "C" {
    fn _dl_allocate_tls(memory: *mut c_void) -> *mut c_void;
    fn _dl_allocate_tls_init(tcb: *mut c_void, is_main: bool) -> *mut c_void;
    fn __call_tls_dtors();
    fn __ctype_init();
    static __rseq_offset: isize;
    static __rseq_size: u32;
}

/// The distance of the list of robust mutexes in `struct pthread` from the thread pointer. The fields for the thread's id and the list of stacks
/// come before it.
static ROBUST_HEAD: AtomicUsize = AtomicUsize::new(0);
const TID_BEFORE_ROBUST: usize = 16;
const LIST_BEFORE_ROBUST: usize = 32;

/// Learns the layout from the calling thread's own TCB, and withdraws glibc's restartable sequence from the kernel.
/// Then makes glibc believe that there are several threads, since it skips locks until it has made a thread itself.
pub fn prepare() -> Result<(), &'static str> {
    let (fs, mut head, mut size) = (tls::current(), 0_usize, 0_usize);
    let ask = [0, &raw mut head as usize, &raw mut size as usize, 0, 0, 0];
    // SAFETY: the kernel writes two words.
    unsafe { sys::call(libc::SYS_get_robust_list, ask) };
    let offset = head.wrapping_sub(fs);
    if !tls::ROBUST_AT.contains(&(offset as isize)) {
        return Err("the layout of glibc's TCB is unknown");
    }
    // SAFETY: the field is in the same `struct pthread` as the list, which glibc has registered with the kernel.
    let tid = unsafe { ((head - TID_BEFORE_ROBUST) as *const i32).read() };
    if tid != sys::thread_id() {
        return Err("the layout of glibc's TCB is unknown");
    }
    ROBUST_HEAD.store(offset, Ordering::Relaxed);
    const UNREGISTER: usize = 1;
    const SIGNATURE: usize = 0x5305_3053;
    // SAFETY: the area that glibc has registered, with the address and size that it names. The guest registers one of
    // its own.
    unsafe {
        if __rseq_size != 0 {
            let area = fs.wrapping_add_signed(__rseq_offset);
            sys::call(libc::SYS_rseq, [area, 32, UNREGISTER, SIGNATURE, 0, 0]);
        }
    }
    become_multithreaded()
}

fn become_multithreaded() -> Result<(), &'static str> {
    extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
        core::ptr::null_mut()
    }
    let mask = set_mask(u64::MAX);
    // SAFETY: a thread that does nothing, and is joined.
    let made = unsafe {
        let mut thread = core::mem::zeroed();
        libc::pthread_create(&mut thread, core::ptr::null(), nothing, core::ptr::null_mut()) == 0
            && libc::pthread_join(thread, core::ptr::null_mut()) == 0
    };
    set_mask(mask);
    made.then_some(()).ok_or("no thread can be made")
}

/// Returns a new TCB. `None` if there is no memory.
pub fn allocate() -> Option<usize> {
    // SAFETY: glibc's own function; null asks for memory.
    let tcb = unsafe { _dl_allocate_tls(core::ptr::null_mut()) } as usize;
    (tcb != 0).then(|| {
        fill(tcb);
        tcb
    })
}

/// Resets the TCB of a thread that has ended. If `ends`, the calling thread first runs the ended thread's destructors
/// of thread-locals.
pub fn renew(tcb: usize, ends: bool) {
    let (mine, mask) = (tls::current(), set_mask(u64::MAX));
    // SAFETY: the thread has ended, so that nothing uses its TCB; and all signals are blocked, so that no handler runs
    // here.
    unsafe {
        if ends {
            tls::set(tcb);
            __call_tls_dtors();
            tls::set(mine);
        }
        _dl_allocate_tls_init(tcb as *mut c_void, false);
    }
    fill(tcb);
    set_mask(mask);
}

fn fill(tcb: usize) {
    let mine = tls::current();
    let robust = ROBUST_HEAD.load(Ordering::Relaxed);
    let at = |offset: usize| tcb.wrapping_add(offset) as *mut usize;
    let mask = set_mask(u64::MAX);
    // SAFETY: a whole `struct pthread` that nothing else uses; each offset is one of its fields. `__ctype_init` acts on
    // the current thread, which blocks all signals, so that no handler runs.
    unsafe {
        tls::fill(tcb, mine, robust);
        at(robust).write(at(robust) as usize);
        let list = robust.wrapping_sub(LIST_BEFORE_ROBUST);
        at(list).write(at(list) as usize);
        at(list.wrapping_add(8)).write(at(list) as usize);
        if __rseq_size != 0 {
            // cpu_id: not registered.
            (tcb.wrapping_add_signed(__rseq_offset + 4) as *mut i32).write(-1);
        }
        tls::set(tcb);
        __ctype_init();
        tls::set(mine);
    }
    set_mask(mask);
}

/// Writes the thread's id into the calling thread's own TCB, since recursive mutexes compare it.
pub fn set_thread(tid: u32) {
    let field = tls::current().wrapping_add(ROBUST_HEAD.load(Ordering::Relaxed)) - TID_BEFORE_ROBUST;
    // SAFETY: in the host's world the thread pointer is the thread's own TCB.
    unsafe { (field as *mut u32).write(tid) };
}

/// glibc's own locks, and lists of the stacks of threads that it made.
mod lists {
    #[repr(C)]
    pub struct List {
        pub next: *mut List,
        pub previous: *mut List,
    }
    extern "C" {
        pub fn __malloc_fork_lock_parent();
        pub fn __malloc_fork_unlock_parent();
        pub fn __malloc_fork_unlock_child();
        pub static mut _dl_stack_used: List;
        pub static mut _dl_stack_user: List;
        pub static mut _dl_stack_cache: List;
        pub static mut _dl_stack_cache_actsize: usize;
        pub static mut _dl_in_flight_stack: usize;
        pub static mut _dl_stack_cache_lock: i32;
        pub static mut _dl_load_lock: libc::pthread_mutex_t;
        pub static mut _dl_load_tls_lock: libc::pthread_mutex_t;
        pub static mut _dl_load_write_lock: libc::pthread_mutex_t;
    }
    pub const MUTEX: libc::pthread_mutex_t = libc::PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
}

/// Makes a copy of the process with `clone`, while no thread is in the host's malloc. In the child, glibc's locks are
/// free, and glibc knows of no other thread. `clone` returns the kernel's register.
pub fn fork(clone: impl FnOnce() -> isize) -> isize {
    // SAFETY: glibc's own functions, called in the order in which its fork(3) does. In the child, which has one
    // thread, no thread holds the locks, and the stacks of missing threads are not used again.
    unsafe {
        lists::__malloc_fork_lock_parent();
        let answer = clone();
        if answer != 0 {
            lists::__malloc_fork_unlock_parent();
            return answer;
        }
        lists::__malloc_fork_unlock_child();
        for list in
            [&raw mut lists::_dl_stack_used, &raw mut lists::_dl_stack_user, &raw mut lists::_dl_stack_cache]
        {
            (*list).next = list;
            (*list).previous = list;
        }
        lists::_dl_stack_cache_actsize = 0;
        lists::_dl_in_flight_stack = 0;
        lists::_dl_stack_cache_lock = 0;
        // Registering a destructor of a thread-local takes the first of these, too.
        lists::_dl_load_lock = lists::MUTEX;
        lists::_dl_load_tls_lock = lists::MUTEX;
        lists::_dl_load_write_lock = lists::MUTEX;
        0
    }
}
