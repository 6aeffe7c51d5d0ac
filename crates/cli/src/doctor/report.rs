//! The report for people: the verdict, then advice, then aligned rows of at most 100 columns.

use super::{Check, Report, Server};

const NAME_COLUMNS: usize = 27;
const STATE_COLUMNS: usize = 8;
const COLUMNS: usize = 100;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = format!("{}\n", report.verdict.summary);
    if !report.advice.is_empty() {
        section(&mut text, "what to do");
        for advice in &report.advice {
            wrapped(&mut text, "  ", advice);
        }
    }
    kernel(&mut text, report);
    section(&mut text, "anyring");
    let library = match (&report.library, &report.no_library) {
        (Some(path), _) => path.display().to_string(),
        (None, why) => why.clone().unwrap_or_default(),
    };
    row(&mut text, "libanyring.so", yes(report.library.is_some()), &library);
    if let Some(version) = &report.glibc {
        row(&mut text, "glibc", version, "what it was loaded with");
    }
    checks(&mut text, &report.entry_points);
    section(&mut text, "what anyring is built from");
    checks(&mut text, &report.building_blocks);
    section(&mut text, "what `anyring run` does");
    for (option, choices) in [("--backend", &report.run), ("--aio", &report.run_aio)] {
        for (name, choice) in [("auto", choices.auto), ("kernel", choices.kernel), ("user", choices.user)] {
            let what = match choice {
                Some(Server::Kernel) if name == "auto" && report.library.is_some() => {
                    "leaves it to the kernel; anyring serves what the kernel refuses"
                }
                Some(Server::Kernel) => "leaves it to the kernel, without anyring if both options do",
                Some(Server::User) if report.library.is_some() => {
                    "starts the program with libanyring.so, or as a guest; anyring serves it"
                }
                Some(Server::User) => "starts the program as a guest, anyring serves it",
                None => "refuses",
            };
            row(&mut text, &format!("{option} {name}"), "", what);
        }
    }
    text
}

fn kernel(text: &mut String, report: &Report) {
    section(text, "the kernel");
    let evidence = &report.evidence;
    row(text, "io_uring", yes(report.io_uring.works), &report.io_uring.answer);
    if !report.io_uring.works {
        row(text, "  cause", "", &format!("{}: {}", report.io_uring.cause.name(), report.io_uring.because));
    }
    for call in &evidence.calls {
        row(
            text,
            &format!("  {}", call.call),
            "",
            &format!("answers {} (the kernel: {})", call.answer, call.of_kernel),
        );
    }
    row(text, "  unused call number", "", &format!("answers {} (the kernel: ENOSYS)", evidence.unused_call));
    row(text, "kernel AIO", yes(report.kernel_aio.works), &report.kernel_aio.answer);
    let number = |value: Option<i64>| value.map_or("not reported".to_owned(), |value| value.to_string());
    let disabled = number(evidence.io_uring_disabled);
    let member = if evidence.in_io_uring_group { "a member" } else { "not a member" };
    let group = number(evidence.io_uring_group);
    row(text, "io_uring_disabled", &disabled, &format!("io_uring_group {group}, {member}"));
    let filters = number(evidence.seccomp_filters);
    let privileges = if evidence.no_new_privs { "set" } else { "not set" };
    let seccomp = format!("mode; filters: {filters}; no_new_privs {privileges}");
    row(text, "seccomp", &number(evidence.seccomp_mode), &seccomp);
    let memlock =
        evidence.memlock_limit_bytes.map_or("unlimited".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    row(text, "locked memory limit", "", &memlock);
    if let Some(room) = &report.io_uring.room {
        let end = room.end.as_ref().map_or("no more were tried".to_owned(), |end| format!("then {end}"));
        row(text, "  rings of 64 entries", &room.rings.to_string(), &format!("at the same time; {end}"));
    }
}

fn checks(text: &mut String, checks: &[Check]) {
    for check in checks {
        let detail = match check.instead {
            _ if check.works => check.purpose.clone(),
            Some(instead) => format!("{} ({}). Instead: {instead}", check.answer, check.purpose),
            None => format!("{} ({})", check.answer, check.purpose),
        };
        row(text, &check.name, yes(check.works), &detail);
    }
}

fn yes(fact: bool) -> &'static str {
    if fact {
        "yes"
    } else {
        "no"
    }
}

fn section(text: &mut String, title: &str) {
    text.push_str(&format!("\n{title}\n"));
}

fn row(text: &mut String, name: &str, state: &str, detail: &str) {
    wrapped(text, &format!("  {name:NAME_COLUMNS$} {state:STATE_COLUMNS$} "), detail);
}

/// Appends `detail` after `head`, wrapped between words and indented.
fn wrapped(text: &mut String, head: &str, detail: &str) {
    let mut line = head.to_owned();
    for word in detail.split_whitespace() {
        if line.len() > head.len() && line.len() + word.len() > COLUMNS {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(head.len());
        }
        line.push_str(word);
        line.push(' ');
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
