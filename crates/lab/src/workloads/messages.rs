//! Messages from ring to ring, as published in June 2024.

use super::{Measurement, Plan, Setting, Workload};
use crate::backend::Backend::*;
use crate::message::{FanIn, FanOut, Messages, Receiver, Work};
use crate::report::{Figure, Published};
use crate::statistics::PERCENTILES;

/// The workload `msg`.
pub const MSG: Workload = Workload {
    name: "msg",
    title: "Messages from one thread to another",
    axis: "percentile",
    about: "A thread sends a message every 10 or 20 us, with the time in it (IORING_OP_MSG_RING; an eventfd or a futex \
            beside a queue). Sender: what sending cost it, until its own CQE. Receiver: from just before it was \
            sent until the other thread had it. In ns; each percentile is the median over the runs. The receiver waits \
            (in enter, epoll_wait or futex), also for messages that come every 100 us, or looks all the time. The numbers are checked to come in order. Fan-in: \
            threads send to one as fast as it takes; a message, in ns and us of CPU. Fan-out: one thread accepts TCP \
            connections and hands each to one of two that receive 64 bytes, send them back and close; a connection of \
            16 at a time, from connect(2) until the client has compared them, in us.",
    share: 1,
    plan,
};

const SOURCE: &str = "J. Axboe, io_uring/msg_ring patches v3, linux-kernel, June 2024";

/// The published figures at a delay of 10 us, before and after the patches: first the sender's, then the
/// receiver's.
const PUBLISHED: [(&str, [[f64; 17]; 2]); 2] = [
    (
        "published, before",
        [
            [
                1896.0, 2064.0, 2096.0, 2192.0, 2352.0, 2480.0, 2544.0, 2608.0, 2896.0, 2992.0, 3376.0, 3472.0,
                3568.0, 3728.0, 6880.0, 14656.0, 42752.0,
            ],
            [
                1160.0, 1288.0, 1336.0, 1384.0, 1448.0, 1624.0, 1688.0, 1736.0, 1768.0, 1848.0, 2256.0, 2320.0,
                2416.0, 2480.0, 3184.0, 14400.0, 18304.0,
            ],
        ],
    ),
    (
        "published, after",
        [
            [
                181.0, 191.0, 201.0, 211.0, 231.0, 262.0, 290.0, 322.0, 390.0, 482.0, 748.0, 892.0, 1032.0, 1096.0,
                1336.0, 1512.0, 1992.0,
            ],
            [
                350.0, 382.0, 410.0, 482.0, 572.0, 652.0, 764.0, 860.0, 1080.0, 1480.0, 1768.0, 1896.0, 2448.0,
                2576.0, 3184.0, 3792.0, 17280.0,
            ],
        ],
    ),
];
/// The published numbers of messages, delivered and expected, before and after the patches. They are given for a
/// delay of 10 us and, in round numbers, of 20 us.
const DELIVERED: [(u32, [(f64, f64); 2]); 2] = [
    (10, [(131_950.0, 299_882.0), (247_931.0, 299_926.0)]),
    (20, [(110_000.0, 150_000.0), (142_000.0, 150_000.0)]),
];
/// The receiver's behaviour, the delay in us, and the time in ms.
const STEADY: [(Receiver, u32, u32); 5] = [
    (Receiver::Looks, 10, 3_000),
    (Receiver::Looks, 20, 3_000),
    (Receiver::Waits, 10, 3_000),
    (Receiver::Waits, 20, 3_000),
    (Receiver::Waits, 100, 1_000),
];
/// Number of runs. Five runs are enough for intervals, and the messages of one turn take a minute.
const RUNS: usize = 5;
/// The percentiles in the terminal's table.
const HEADLINES: [f64; 3] = [50.0, 99.0, 99.9];

fn plan(setting: &mut Setting) -> Result<Plan, String> {
    let mut measurements = Vec::new();
    for (receiver, delay_us, for_ms) in STEADY {
        let figures = figures(receiver, delay_us);
        let work = Work::Messages(Messages { delay_us, for_ms: setting.pick(for_ms, 20), receiver });
        let backends = [Anyring, Kernel, Epoll, Futex];
        measurements.push(Measurement { runs: RUNS, ..Measurement::new(work, &backends, figures) });
    }
    for delay_us in [10, 20] {
        let work =
            Work::Messages(Messages { delay_us, for_ms: setting.pick(1_000, 20), receiver: Receiver::Looks });
        let figure = Figure::new(&group(Receiver::Looks, delay_us), "undelivered, where nothing is sent", "%");
        measurements.push(Measurement { runs: RUNS, ..Measurement::new(work, &[Libc], vec![figure]) });
    }
    for senders in [2, 4] {
        let name = format!("{senders} senders");
        let figures = vec![Figure::new("fan-in", &name, "ns"), Figure::new("fan-in, CPU a message", name, "us")];
        let work = Work::FanIn(FanIn { senders, each: setting.pick(100_000, 500) / senders });
        let backends = [Anyring, Kernel, Epoll, Futex];
        measurements.push(Measurement { runs: RUNS, ..Measurement::new(work, &backends, figures) });
    }
    let work = Work::FanOut(FanOut { workers: 2, connections: 16, total: setting.pick(2_000, 40) });
    let figures = vec![Figure::new("fan-out", "one connection", "us")];
    let backends = [Anyring, Kernel, Epoll, Threads];
    measurements.push(Measurement { runs: RUNS, ..Measurement::new(work, &backends, figures) });
    let notes = vec![
        "Undelivered: messages that the time had room for if each took no more than the delay after it, and that were not \
         sent, in %. What the sender takes to see that the delay is over is not counted. Where nothing is sent, the same \
         loop runs beside a thread that looks: what it misses no channel can deliver."
            .to_owned(),
        "The published figures are from another machine, where the receiver waited.".to_owned(),
        "Each sender of the fan-in has at most 256 messages under way, so that no CQ overflows. Each has a ring of its \
         own, or (eventfd, futex) a queue of its own."
            .to_owned(),
        "The acceptor's ring has a multishot ACCEPT and sends descriptors by MSG_RING; with epoll it puts them into a \
         queue beside an eventfd; blocking threads take them from one queue."
            .to_owned(),
    ];
    Ok(Plan { measurements, notes, ..Plan::default() })
}

/// Returns the name of the figures of this receiver.
fn group(receiver: Receiver, delay_us: u32) -> String {
    let receiver = match receiver {
        Receiver::Looks => "looking receiver",
        Receiver::Waits => "waiting receiver",
    };
    format!("{receiver}, every {delay_us} us")
}

fn figures(receiver: Receiver, delay_us: u32) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (side, who) in ["sender", "receiver"].into_iter().enumerate() {
        for (index, percentile) in PERCENTILES.into_iter().enumerate() {
            let group = format!("{}: {who}", group(receiver, delay_us));
            let mut figure = Figure::new(&group, format!("p{percentile}"), "ns").at(percentile);
            figure.headline = HEADLINES.contains(&percentile);
            if delay_us == 10 {
                figure.published = PUBLISHED
                    .iter()
                    .map(|(label, sides)| Published {
                        label: (*label).to_owned(),
                        value: sides[side][index],
                        spread: None,
                        source: SOURCE.to_owned(),
                    })
                    .collect();
            }
            figures.push(figure);
        }
    }
    let group = group(receiver, delay_us);
    let mut undelivered = Figure::new(&group, "undelivered", "%");
    if let Some((_, delivered)) = DELIVERED.iter().find(|(delay, _)| *delay == delay_us) {
        undelivered.published = delivered
            .iter()
            .zip(PUBLISHED)
            .map(|((sent, expected), (label, _))| Published {
                label: label.to_owned(),
                value: 100.0 * (1.0 - sent / expected),
                spread: None,
                source: SOURCE.to_owned(),
            })
            .collect();
    }
    figures.push(undelivered);
    figures.push(Figure::new(&group, "CPU a message", "us"));
    figures
}
