//! Memory for the lists of arguments and of the environment that a new program gets.
//!
//! A list that is too long for the stack gets a mapping. A child of vfork(2) executes in its parent's memory, where
//! the mapping would stay. When such a child has gone, the kernel clears the word that set_tid_address(2) names.
//! Before the next mapping is made, mappings with a cleared word are unmapped.

use crate::sys;
use core::ffi::c_void;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The most words that are put on the stack.
const ON_STACK: usize = 8192;

/// The first of the mappings that children may have left; 0 if there is none.
static LEFT: AtomicUsize = AtomicUsize::new(0);

/// The head of a mapping. The words follow it.
#[repr(C)]
struct Head {
    bytes: usize,
    /// The address of the next mapping of [`LEFT`]. Relaxed: it is written before the mapping is in the list, and read
    /// by the thread that took the list.
    next: AtomicUsize,
    /// Not 0 as long as a child uses the mapping. The kernel, or the child that could not execute, clears it.
    user: AtomicU32,
}

/// Calls `then` with `words` zeroed words: on the stack if they fit, otherwise in a new mapping. On the stack, they
/// vanish with a child of vfork(2).
pub fn with_words(words: usize, then: &mut dyn FnMut(&mut [usize])) {
    struct Wanted<'a> {
        words: usize,
        then: &'a mut dyn FnMut(&mut [usize]),
    }
    unsafe extern "C" fn have(at: *mut usize, wanted: *mut c_void) {
        // SAFETY: `on_stack` passes on `wanted`, and as many words of the stack, which nothing else uses.
        unsafe {
            let wanted = &mut *wanted.cast::<Wanted>();
            core::ptr::write_bytes(at, 0, wanted.words);
            (wanted.then)(core::slice::from_raw_parts_mut(at, wanted.words));
        }
    }
    if words <= ON_STACK {
        let mut wanted = Wanted { words, then };
        // SAFETY: `have` uses no more words than `words`.
        unsafe { crate::arch::on_stack(words, (&raw mut wanted).cast(), have) };
        return;
    }
    unmap_left();
    let Some(map) = Map::new(words) else { return };
    let is_left = map.leave();
    // SAFETY: the words after the head, which nothing else uses until `then` returns.
    then(unsafe { core::slice::from_raw_parts_mut(map.0.add(1).cast(), words) });
    match is_left {
        true => map.give_back(),
        false => map.unmap(),
    }
}

/// A mapping that begins with its head.
struct Map(*mut Head);

impl Map {
    fn new(words: usize) -> Option<Map> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let bytes = size_of::<Head>() + words * size_of::<usize>();
        let new = [0, bytes, protection as usize, flags as usize, usize::MAX, 0];
        // SAFETY: new memory, which begins with a head of zeroes.
        unsafe {
            let at = sys::call(libc::SYS_mmap, new);
            let head = (!(-4095..0).contains(&at)).then_some(at as *mut Head)?;
            (*head).bytes = bytes;
            Some(Map(head))
        }
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped until `unmap`, which takes the value.
        unsafe { &*self.0 }
    }

    fn unmap(self) {
        let bytes = self.head().bytes;
        // SAFETY: nothing else uses the mapping any more.
        unsafe { sys::call(libc::SYS_munmap, [self.0 as usize, bytes, 0, 0, 0, 0]) };
    }

    /// Puts the mapping into [`LEFT`], and makes the kernel clear the mapping's word when the calling thread leaves
    /// this memory. False if the thread has such a word already, as each thread of a libc has. Such a thread has not
    /// borrowed the memory: if it executes a program, the mapping goes with the memory.
    fn leave(&self) -> bool {
        const PR_GET_TID_ADDRESS: usize = 40;
        let mut word = usize::MAX;
        // SAFETY: the kernel fills in a local.
        let asked = unsafe { sys::call(libc::SYS_prctl, [PR_GET_TID_ADDRESS, &raw mut word as usize, 0, 0, 0, 0]) };
        if asked != 0 || word != 0 {
            return false;
        }
        let user = &self.head().user;
        // Relaxed: the mapping is not in the list yet.
        user.store(1, Ordering::Relaxed);
        // SAFETY: the word is mapped until it is 0, and the thread's word is set back before that.
        unsafe { sys::call(libc::SYS_set_tid_address, [user.as_ptr() as usize, 0, 0, 0, 0, 0]) };
        self.put();
        true
    }

    fn put(&self) {
        let mut first = LEFT.load(Ordering::Relaxed);
        loop {
            self.head().next.store(first, Ordering::Relaxed);
            // Release: partner of the Acquire in `unmap_left`.
            match LEFT.compare_exchange_weak(first, self.0 as usize, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => first = other,
            }
        }
    }

    /// Leaves the mapping to [`unmap_left`], since the program was not executed.
    fn give_back(self) {
        // SAFETY: the thread had no such word before.
        unsafe { sys::call(libc::SYS_set_tid_address, [0; 6]) };
        self.head().user.store(0, Ordering::Release); // partner of the Acquire in `unmap_left`
    }
}

/// Unmaps the mappings of children that have gone.
fn unmap_left() {
    let mut next = LEFT.swap(0, Ordering::Acquire); // partner of the Release in `put`
    while next != 0 {
        let map = Map(next as *mut Head);
        next = map.head().next.load(Ordering::Relaxed);
        // Acquire: partner of the Release in `give_back`. If the kernel cleared the word, the child's last use was
        // before that.
        match map.head().user.load(Ordering::Acquire) {
            0 => map.unmap(),
            _ => map.put(),
        }
    }
}
