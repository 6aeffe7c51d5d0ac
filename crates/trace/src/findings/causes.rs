//! Findings about how the program issues its requests, whatever path the requests take.

use super::{Around, Found, FEW};
use crate::gain::{Costs, Saved};
use crate::report::{time, Interface, RingReport};

/// Number of small transfers that a device does at a time. Few devices do fewer. If a device does more, that
/// additional gain is not counted.
const AT_A_TIME: f64 = 4.0;
/// Number of writes that are assumed to share an FSYNC once the program groups them.
const GROUP: f64 = 8.0;

pub(super) fn of_ring(ring: &RingReport, around: &Around) -> Vec<Found> {
    let of_all = [one_in_flight(ring, around), sync_each(ring)];
    let of_rings = [poll_again(ring, around), timeout_again(ring, around)];
    let is_io_uring = ring.interface == Interface::IoUring;
    of_all.into_iter().chain(of_rings.into_iter().filter(|_| is_io_uring)).collect()
}

fn one_in_flight(ring: &RingReport, around: &Around) -> Found {
    let (count, took_ns) = (ring.habits.alone, ring.habits.alone_ns);
    if !ring.habits.is_one_in_flight() {
        return None;
    }
    let evidence = format!(
        "{count} reads and writes of at most 64 KiB waited for their device with nothing else in flight, {} in all",
        time(Some(took_ns))
    );
    let advice = "keep several in flight (8 to 32), as far as none needs what another reads";
    // Other rings keep the device busy as well.
    let left = around.alone as f64 / AT_A_TIME;
    Some(("one_in_flight", evidence, advice, Saved::elapsed(took_ns as f64 * (1.0 - left).max(0.0))))
}

fn sync_each(ring: &RingReport) -> Found {
    let habits = &ring.habits;
    let each = habits.writes as f64 / habits.syncs.max(1) as f64;
    if habits.syncs < FEW || habits.writes < FEW || each >= GROUP / 2.0 {
        return None;
    }
    let evidence =
        format!("{} FSYNCs for {} writes took {} in all", habits.syncs, habits.writes, time(Some(habits.sync_ns)));
    let advice = "share an FSYNC between writes that may be lost together (group commit)";
    let left = each * habits.syncs_together() / GROUP;
    // With an FSYNC the time that the program takes to make it is saved, too.
    let took_ns = (habits.sync_ns + habits.sync_gaps_ns) as f64;
    Some(("sync_each", evidence, advice, Saved::elapsed(took_ns * (1.0 - left).max(0.0))))
}

/// True if most requests are submitted by a call of their own. If such a request is saved, so is its call.
fn submits_alone(ring: &RingReport) -> bool {
    ring.sqes_per_enter.is_some_and(|each| each < 1.5) && !ring.submits_and_waits
}

/// The cost of arming a poll again, which a multishot request spares.
pub(super) fn armed_ns(ring: &RingReport, costs: &Costs) -> f64 {
    let call_ns = if submits_alone(ring) { 0.0 } else { costs.call_ns };
    (costs.poll_ns - call_ns).max(0.0)
}

fn poll_again(ring: &RingReport, around: &Around) -> Found {
    let count = ring.habits.polls_again;
    let evidence = format!("{count} POLL_ADDs polled a descriptor that an earlier one had polled");
    let advice = "poll it once: IORING_POLL_ADD_MULTI (io_uring_prep_poll_multishot)";
    let saved = Saved::cpu(count as f64 * armed_ns(ring, &around.costs));
    (count >= FEW).then_some(("poll_again", evidence, advice, saved))
}

fn timeout_again(ring: &RingReport, around: &Around) -> Found {
    let count = ring.habits.timeouts_again;
    let evidence = format!("{count} TIMEOUTs took about as long as the one before, and ended like it");
    let advice = "make it once, if its time is the same: IORING_TIMEOUT_MULTISHOT (Linux 6.4)";
    let costs = &around.costs;
    let each_ns = if submits_alone(ring) { costs.timeout_alone_ns } else { costs.timeout_ns };
    let spared = if ring.by_kernel { 0.0 } else { ring.habits.wakes_spared() };
    let saved = Saved::cpu(count as f64 * each_ns + spared * costs.tick_ns);
    (count >= FEW).then_some(("timeout_again", evidence, advice, saved))
}
