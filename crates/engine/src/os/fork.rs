//! A page by which a process notices that it was forked, also by a raw clone(2). A child of vfork(2), which runs in
//! its parent's memory, is not mistaken for a forked one.
//!
//! The page's word reads 0 in a forked child until the child stores something in it. The kernel clears the word, if
//! it has MADV_WIPEONFORK (Linux 4.14). On other systems (gVisor) the page is marked MADV_DONTFORK, so the child
//! lacks the page. A guarded load or futex(2) detects that, and the child maps a new page.

use super::{check, syscall, GuardedWords};
use crate::mutation::{mutated, Mutation};
use crate::Errno;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const PAGE: usize = 4096;
/// Set in [`ForkPage::page`] if the page is absent in a forked child.
const ABSENT: usize = 1;
/// How to check a page that may be absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A guarded load. It costs a few nanoseconds, but faults if the page is absent.
    ByLoad,
    /// A futex(2) call, which raises no signal.
    ByCall,
}

/// The page: see the module's head.
pub struct ForkPage {
    /// The page's address, with [`ABSENT`] or without it. `ABSENT` alone before there is a page.
    page: AtomicUsize,
}

impl ForkPage {
    /// Makes a value without a page.
    pub const fn new() -> ForkPage {
        ForkPage { page: AtomicUsize::new(ABSENT) }
    }

    /// Maps the page, with `word` in it. If two threads do so at once, the first one's page counts.
    ///
    /// # Errors
    /// That of mmap(2).
    pub fn map(&self, word: u32) -> Result<(), Errno> {
        self.replace(ABSENT, self.new_page(word)?);
        Ok(())
    }

    /// Returns the word, or `None` before [`ForkPage::map`].
    #[inline]
    pub fn word(&self, look: Access) -> Option<&AtomicU32> {
        // Acquire pairs with the Release in `replace`.
        let page = self.page.load(Ordering::Acquire);
        if page & ABSENT != 0 {
            return self.perhaps_absent(page, look);
        }
        // SAFETY: a mapping that is never unmapped and that a fork does not take away. It is only touched as an
        // atomic.
        Some(unsafe { &*(page as *const AtomicU32) })
    }

    /// Returns a word for the process's id, which is also 0 in a forked child. `None` before [`ForkPage::map`].
    pub fn child(&self, look: Access) -> Option<&AtomicU32> {
        let word = core::ptr::from_ref(self.word(look)?);
        // SAFETY: the third word of the same page, which is only touched as an atomic.
        Some(unsafe { &*word.add(2) })
    }

    /// Returns the word's address if the word can be read without a check, since it reads 0 in a forked child.
    /// `None` if the child may lack the page.
    pub fn wiped_word(&self) -> Option<*mut AtomicU32> {
        let page = self.page.load(Ordering::Acquire); // partner: the Release in `replace`
        (page & ABSENT == 0).then_some(page as *mut AtomicU32)
    }

    #[cold]
    fn perhaps_absent(&self, page: usize, look: Access) -> Option<&AtomicU32> {
        let address = page & !ABSENT;
        if address == 0 {
            return None;
        }
        let seen = look == Access::ByLoad && GuardedWords::load(address + 4) == Ok(self.mark());
        if !seen && !self.is_there(address) {
            self.replace(page, self.new_page(0).ok()?);
        }
        // Acquire: partner as in `word`. Another thread of the child may have mapped the page first.
        let address = self.page.load(Ordering::Acquire) & !ABSENT;
        // SAFETY: `address` was just found to be mapped, by this process, which never unmaps it.
        Some(unsafe { &*(address as *const AtomicU32) })
    }

    fn replace(&self, old: usize, new: usize) {
        // Release pairs with the Acquire loads: a thread that reads the page's address finds its words set.
        if self.page.compare_exchange(old, new, Ordering::Release, Ordering::Relaxed).is_err() {
            syscall(libc::SYS_munmap, [new & !ABSENT, PAGE, 0, 0, 0, 0]);
        }
    }

    /// Returns the second word of a page that may be absent in a forked child. This word differs for each `ForkPage`.
    /// So the child recognises memory that something else has mapped at the page's address, even the new page of
    /// another `ForkPage`.
    fn mark(&self) -> u32 {
        0x6172_666b ^ core::ptr::from_ref(self) as usize as u32
    }

    /// Maps a new page with `word` in it. Returns its address, with [`ABSENT`] if it is absent in forked children.
    fn new_page(&self, word: u32) -> Result<usize, Errno> {
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        let page = check(syscall(libc::SYS_mmap, [0, PAGE, protection, flags, usize::MAX, 0]))?;
        let advise = |advice: i32| check(syscall(libc::SYS_madvise, [page, PAGE, advice as usize, 0, 0, 0]));
        let wipe = if mutated(Mutation::ForkLeavesTheWord) { libc::MADV_DOFORK } else { libc::MADV_WIPEONFORK };
        let absent = advise(wipe).is_err();
        if absent {
            advise(libc::MADV_DONTFORK)?;
        }
        // SAFETY: two words of the page just mapped, which nobody else knows yet.
        unsafe {
            *(page as *mut u32) = word;
            *((page + 4) as *mut u32) = self.mark();
        }
        Ok(page | usize::from(absent))
    }

    /// True if the page at `address` is there. Checked without a fault, since the child may have mapped something
    /// unreadable at that address.
    fn is_there(&self, address: usize) -> bool {
        let operation = (libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG) as usize;
        let (mark, no_one) = (address + 4, 0);
        // Compares only, since nobody waits. Fails with EAGAIN if the word differs, and with EFAULT if there is no
        // word.
        syscall(libc::SYS_futex, [mark, operation, no_one, no_one, mark, self.mark() as usize]) == 0
    }
}

impl Default for ForkPage {
    fn default() -> Self {
        ForkPage::new()
    }
}
