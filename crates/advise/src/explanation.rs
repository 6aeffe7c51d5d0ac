//! Explains the path that requests take, from what is known of the file and the device.

use crate::report::size;
use crate::subject::{Kind, Subject};
use crate::threshold::Threshold;
use crate::Question;
use anyring_lab::message::Situation;

/// Returns sentences for people. There is at least one if requests need a worker.
pub fn explain(subject: &Subject, question: &Question, situation: Situation, threshold: &Threshold) -> Vec<String> {
    let ours = question.backend.is_ours();
    let mut because = match threshold {
        Threshold::Never { .. } => return never(situation, ours),
        Threshold::None => Vec::new(),
        _ if ours => of_engine(situation),
        Threshold::Always { .. } => Vec::new(),
        Threshold::At { last_bytes, first_bytes, .. } => of_device(subject, *last_bytes, *first_bytes),
    };
    if subject.nowait == Some(false) && !(ours && situation == Situation::Direct) {
        let what = if question.operation.is_write() && !question.direct {
            "writes to the page cache"
        } else {
            "transfers"
        };
        let file_system = subject.file_system.as_deref().unwrap_or("the device");
        because.push(format!(
            "RWF_NOWAIT is not supported for {what} on {file_system} here: whether one would block cannot be tried"
        ));
    }
    if question.operation.is_write() && subject.has_holes {
        because.push("the file has holes: writing there allocates blocks, which may block".to_owned());
    }
    if because.is_empty() {
        because.push(unexplained(subject));
    }
    because
}

fn never(situation: Situation, ours: bool) -> Vec<String> {
    let because = match situation {
        Situation::Uncached if !ours => {
            "what is not in the page cache is begun in the submitting call, and the page cache calls back: no thread waits"
        }
        Situation::Direct if !ours => {
            "each request is begun in the submitting call, and the device completes it: no thread waits"
        }
        _ => return Vec::new(),
    };
    vec![because.to_owned()]
}

/// Reasons from the rules of anyring's engine.
fn of_engine(situation: Situation) -> Vec<String> {
    let because = match situation {
        Situation::Direct => {
            "anyring's engine gives O_DIRECT transfers that the kernel's AIO does not take to a worker: RWF_NOWAIT does not \
             keep a system call from waiting for the device"
        }
        Situation::Uncached => {
            "anyring's engine gives what is not in the page cache to a worker: a system call would wait for the device"
        }
        _ => return Vec::new(),
    };
    vec![because.to_owned()]
}

/// Returns the device's limits that lie at the threshold, as reasons for it.
fn of_device(subject: &Subject, last_bytes: u32, first_bytes: u32) -> Vec<String> {
    let (Some(limits), Some(device)) = (subject.request_limits, &subject.device) else { return Vec::new() };
    let (last, first) = (u64::from(last_bytes), u64::from(first_bytes));
    let (sectors, segments) = (limits.sectors_kib * 1024, limits.segments_kib * 1024);
    let split = "a larger one must be split, which may block";
    let because = match () {
        () if (last..first).contains(&sectors) => format!(
            "queue/max_sectors_kb of {device} is {}: it takes so much in one request; {split}",
            limits.sectors_kib
        ),
        () if (last..first).contains(&segments) => format!(
            "queue/max_segments of {device} is {}: one request takes so many pages, {}, where no two of them lie side by \
             side in memory; {split}",
            limits.segments_kib / 4,
            size((segments).min(u64::from(u32::MAX)) as u32)
        ),
        () if segments < last && last < sectors => format!(
            "queue/max_segments of {device} is {}, pages that lie side by side in memory count once, and \
             queue/max_sectors_kb is {}: between the two it depends on the buffer's pages; {split}",
            limits.segments_kib / 4,
            limits.sectors_kib
        ),
        () => return Vec::new(),
    };
    vec![because]
}

fn unexplained(subject: &Subject) -> String {
    let limits = match (&subject.device, subject.request_limits) {
        (Some(device), Some(limits)) => format!(
            " ({device}: queue/max_sectors_kb {}, queue/max_segments {})",
            limits.sectors_kib,
            limits.segments_kib / 4
        ),
        _ => String::new(),
    };
    let what = if subject.kind == Kind::File { "file system and device" } else { "device" };
    format!("no limit of the {what} that anyring knows explains it{limits}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_lab::backend::Backend;
    use anyring_lab::message::{On, Transferring};
    use anyring_lab::scratch::RequestLimits;

    fn subject(sectors_kib: u64, segments_kib: u64) -> Subject {
        Subject {
            name: "/dev/loop0".to_owned(),
            kind: Kind::BlockDevice,
            on: On::Path("/dev/loop0".into()),
            bytes: Some(1 << 30),
            file_system: None,
            device: Some("loop0".to_owned()),
            request_limits: Some(RequestLimits { sectors_kib, segments_kib }),
            step: 512,
            nowait: Some(true),
            has_holes: false,
        }
    }

    fn question(backend: Backend) -> Question {
        Question { backend, operation: Transferring::Write, sizes: Vec::new(), direct: true, rounds: 1 }
    }

    fn at(last_bytes: u32) -> Threshold {
        Threshold::At { last_bytes, first_bytes: last_bytes + 512, sharp: true }
    }

    #[test]
    fn the_limit_at_the_cut_is_named() {
        let explain = |subject: &Subject, threshold| {
            explain(subject, &question(Backend::Kernel), Situation::Direct, &threshold).join(" ")
        };
        assert!(explain(&subject(256, 512), at(256 << 10)).contains("max_sectors_kb of loop0 is 256"));
        assert!(explain(&subject(1280, 512), at(512 << 10)).contains("max_segments of loop0 is 128"));
        let between = explain(&subject(1280, 512), at(700 << 10));
        assert!(between.contains("max_segments of loop0 is 128") && between.contains("max_sectors_kb is 1280"));
        assert!(explain(&subject(1280, 512), at(4096)).contains("no limit"));
        assert!(explain(&subject(256, 512), Threshold::Never { up_to_bytes: 4096 }).contains("no thread waits"));
    }

    #[test]
    fn the_file_system_and_holes_are_named_when_everything_needs_a_worker() {
        let always = Threshold::Always { from_bytes: 512 };
        let file = Subject {
            kind: Kind::File,
            file_system: Some("tmpfs".to_owned()),
            nowait: Some(false),
            has_holes: true,
            ..subject(256, 512)
        };
        let because = explain(&file, &question(Backend::Kernel), Situation::Cached, &always);
        assert!(
            because[0].contains("RWF_NOWAIT is not supported for transfers on tmpfs")
                && because[1].contains("holes"),
            "{because:?}"
        );
        let plain = Subject { nowait: Some(true), has_holes: false, ..file };
        let because = explain(&plain, &question(Backend::Kernel), Situation::Cached, &always).join(" ");
        assert!(because.contains("no limit of the file system and device"), "{because}");
    }

    #[test]
    fn the_engines_own_rules_are_named() {
        let always = Threshold::Always { from_bytes: 512 };
        let because =
            explain(&subject(256, 512), &question(Backend::Anyring), Situation::Direct, &always).join(" ");
        assert!(
            because.starts_with("anyring's engine gives O_DIRECT") && !because.contains("max_sectors"),
            "{because}"
        );
    }
}
