//! Steps of Linux AIO.

use super::{call, poke_u32, resolve};
use crate::program::*;
use anyring_abi::*;
use std::sync::atomic::{AtomicU64, Ordering};

static KNOWN: [AtomicU64; CONTEXTS as usize] = [const { AtomicU64::new(0) }; CONTEXTS as usize];

fn context(slot: u8, instead: Option<Word>) -> u64 {
    instead.map_or_else(|| KNOWN[usize::from(slot)].load(Ordering::Relaxed), resolve)
}

/// Makes one step. The alarm interrupts any call that sleeps.
pub fn step(step: &Step) {
    match *step {
        Step::AioSetup { slot, events, context } => {
            let mut made = 0u64;
            let address = context.map_or(&raw mut made as u64, resolve);
            let answer = call::call(NR_IO_SETUP, [u64::from(events), address, 0, 0, 0, 0]);
            if answer == 0 && made != 0 {
                KNOWN[usize::from(slot)].store(made, Ordering::Relaxed);
            }
        }
        Step::AioSubmit { slot, count, pointers, context } => {
            call::call(NR_IO_SUBMIT, [self::context(slot, context), count as u64, resolve(pointers), 0, 0, 0]);
        }
        Step::AioGetevents { slot, min, max, events, timeout, context } => {
            let context = self::context(slot, context);
            call::call(NR_IO_GETEVENTS, [context, min as u64, max as u64, resolve(events), resolve(timeout), 0]);
        }
        Step::AioCancel { slot, iocb, result, context } => {
            call::call(NR_IO_CANCEL, [self::context(slot, context), resolve(iocb), resolve(result), 0, 0, 0]);
        }
        Step::AioDestroy { slot, context } => {
            call::call(NR_IO_DESTROY, [self::context(slot, context), 0, 0, 0, 0, 0]);
        }
        Step::AioScramble { slot, word, value } => {
            let known = KNOWN[usize::from(slot)].load(Ordering::Relaxed);
            // Nothing is written unless a completion ring is still there: another mapping could have its address by
            // now.
            if known != 0 && call::peek_u32(known as usize + 16) == Some(AIO_RING_MAGIC) && word != 4 {
                poke_u32(known as usize + 4 * usize::from(word), value);
            }
        }
        _ => unreachable!("{step:?} is no step of Linux AIO"),
    }
}

/// Destroys every context that is known.
pub fn destroy_all() {
    for known in &KNOWN {
        let context = known.swap(0, Ordering::Relaxed);
        if context != 0 {
            call::call(NR_IO_DESTROY, [context, 0, 0, 0, 0, 0]);
        }
    }
}
