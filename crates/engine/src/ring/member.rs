//! How a process joins a ring, and what becomes of what a dead one leaves.

use crate::mutation::{mutated, Mutation};
use crate::ring::RingGuard;
use crate::shared::control::{MEMBERS, NO_MEMBER, RECORD_FREE};
use crate::shared::member::{record_lock, MAKER};
use crate::Errno;
use anyring_abi::Cqe;
use core::sync::atomic::Ordering;

impl RingGuard {
    /// Whether another process uses this ring, or did.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.control.header().shared.load(Ordering::Relaxed) != 0
    }

    /// Whether the process that made the ring lives.
    pub fn maker_lives(&self) -> bool {
        let control = self.control;
        let died = control.header().maker_died.load(Ordering::Relaxed) != 0;
        !died && (control.member == MAKER || control.lives(MAKER))
    }

    /// Makes the process, a forked child, a member of the ring.
    pub(crate) fn join(&mut self) -> Result<(), Errno> {
        if crate::thread::tables::shares_descriptors() {
            // Relaxed: whoever does not see it yet has looked at the lock before this process is a member.
            self.control.header().locks_are_blind.store(1, Ordering::Relaxed);
        }
        let number = self.control.take_number()?;
        self.control.member = number;
        if self.control.begin_sharing() {
            // Whoever sleeps on the ring by now sleeps without looking for the dead.
            self.control.lock_post().waiters().bump();
            self.wake();
        }
        if let Err(error) = self.follow_areas() {
            self.control.member = NO_MEMBER;
            return Err(error);
        }
        self.bury(number);
        self.control.member(number).joined.store(1, Ordering::Relaxed);
        // What others left would count against what the ring can keep account of.
        self.look_for_the_dead();
        Ok(())
    }

    /// Looks for members that died and takes over what they left.
    #[cold]
    pub fn look_for_the_dead(&mut self) {
        if mutated(Mutation::TheDeadAreNotBuried) {
            return;
        }
        let control = self.control;
        for number in 0..control.header().members_end.load(Ordering::Relaxed).min(MEMBERS) {
            let joined = control.member(number).joined.load(Ordering::Relaxed) != 0;
            if number == control.member || !joined || control.lives(number) {
                continue;
            }
            // Its lock makes this process the only one that buries it.
            if record_lock(control.lock_file, libc::F_SETLK, libc::F_WRLCK, number).is_err() {
                continue;
            }
            self.bury(number);
            control.member(number).joined.store(0, Ordering::Relaxed);
            let _ = record_lock(control.lock_file, libc::F_SETLK, libc::F_UNLCK, number);
        }
    }

    /// Takes over what dead member `dead`, whose lock this process holds, left: its waiters are gone, its requests end.
    fn bury(&mut self, dead: u32) {
        let control = self.control;
        let (header, member) = (control.header(), control.member(dead));
        if dead == MAKER && member.joined.load(Ordering::Relaxed) != 0 {
            header.maker_died.store(1, Ordering::Relaxed); // from now on the number may be another's
        }
        header.waiters.leave(member.waiting.swap(0, Ordering::Relaxed), member.in_futex.swap(0, Ordering::Relaxed));
        for chunk in control.chunks_of(dead).collect::<Vec<_>>() {
            // From here on the records are this process's: should it die now, its own heir goes on.
            header.chunk_owner[chunk].store(control.member + 1, Ordering::Relaxed);
            for record in crate::ring::records_of(chunk) {
                let shared = control.record(record.0.into(), record.1.into());
                // Acquire pairs with the Release stores of the owner and of `repair`.
                if shared.state.load(Ordering::Acquire) == RECORD_FREE {
                    continue;
                }
                let user_data = shared.user_data.load(Ordering::Relaxed);
                let cqe = Cqe { user_data, res: -Errno::CANCELED.raw_os_error(), flags: 0 };
                self.post(cqe, true);
                self.batch.ends(record);
            }
            self.flush();
            self.records.lose(chunk);
            header.chunk_owner[chunk].store(0, Ordering::Relaxed);
        }
    }
}
