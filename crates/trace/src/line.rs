//! One event as a line of text: the tracepoint's name as bpftrace(8) prints it, then its fields as the kernel names
//! them. For AIO contexts the kernel has tracepoints of the calls only. The other events are named after io_uring's.

use crate::{names, Event};
use anyring_abi::{
    Opcode, IOCB_CMD_FDSYNC, IOCB_CMD_FSYNC, IOCB_CMD_NOOP, IOCB_CMD_POLL, IOCB_CMD_PREAD, IOCB_CMD_PREADV,
    IOCB_CMD_PWRITE, IOCB_CMD_PWRITEV, IORING_ENTER_EXT_ARG, IORING_ENTER_GETEVENTS,
};
use anyring_engine::chaos::Name;
use anyring_engine::event::{FileKind, Kind, Worked, AIO};
use std::fmt::Write;

/// Returns the line, without a newline. `has_sqe`: SUBMIT_REQ carries the fields of the SQE, as it does only in the
/// engine's events. Times are relative to `zero_ns`.
pub fn line(event: &Event, has_sqe: bool, zero_ns: u64) -> String {
    let mut text = probe(event);
    let _ = write!(text, " time {} thread {}", seconds(event.time_ns.saturating_sub(zero_ns)), event.thread);
    let _ = match event.ring {
        0 => write!(text, " ring unknown"),
        ring => write!(text, " ring {ring}"),
    };
    if event.request != 0 {
        let _ = write!(text, " req {}", event.request);
    }
    if has_user_data(event.kind) && (event.request != 0 || !event.kind.is_of_chaos()) {
        let _ = write!(text, " user_data {:#x}", event.user_data);
    }
    let _ = write_fields(&mut text, event, has_sqe, zero_ns);
    text
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The name of the event, with its group.
pub(crate) fn probe(event: &Event) -> String {
    let name = event.kind.name();
    match (event.kind, event.is_aio()) {
        (Kind::Injection | Kind::Finding, _) => format!("anyring:chaos:{name}"),
        (Kind::Caller | Kind::Frames, _) => format!("anyring:place:{name}"),
        (Kind::Enter, true) => format!("tracepoint:syscalls:sys_enter_{}", aio_call(event.flags)),
        (_, true) => format!("anyring:aio:{}", name.strip_prefix("io_uring_").unwrap_or(name)),
        (Kind::Enter, false) => format!("tracepoint:syscalls:{name}"),
        (_, false) => format!("tracepoint:io_uring:{name}"),
    }
}

/// The AIO system call that an ENTER event with these flags stands for.
fn aio_call(flags: u32) -> &'static str {
    match (flags & IORING_ENTER_GETEVENTS != 0, flags & IORING_ENTER_EXT_ARG != 0) {
        (false, _) => "io_submit",
        (true, false) => "io_getevents",
        (true, true) => "io_pgetevents",
    }
}

fn has_user_data(kind: Kind) -> bool {
    use Kind::*;
    !matches!(kind, Create | Register | TaskWorkRun | LocalWorkRun | CqringWait | Enter | Link)
}

/// The opcode's name, or its number if it has none.
pub(crate) fn opcode_name(opcode: u16) -> String {
    let name = if opcode & AIO == 0 { ring_opcode(opcode).map(Opcode::name) } else { command_name(opcode & !AIO) };
    name.map_or_else(|| (opcode & !AIO).to_string(), str::to_owned)
}

/// The io_uring opcode, unless this is an AIO command or unknown.
pub(crate) fn ring_opcode(opcode: u16) -> Option<Opcode> {
    u8::try_from(opcode).ok().and_then(Opcode::from_u8)
}

/// The name of an iocb's command, without `IOCB_CMD_`.
fn command_name(command: u16) -> Option<&'static str> {
    Some(match command {
        IOCB_CMD_PREAD => "PREAD",
        IOCB_CMD_PWRITE => "PWRITE",
        IOCB_CMD_FSYNC => "FSYNC",
        IOCB_CMD_FDSYNC => "FDSYNC",
        IOCB_CMD_POLL => "POLL",
        IOCB_CMD_NOOP => "NOOP",
        IOCB_CMD_PREADV => "PREADV",
        IOCB_CMD_PWRITEV => "PWRITEV",
        _ => return None,
    })
}

fn write_fields(text: &mut String, event: &Event, has_sqe: bool, zero_ns: u64) -> std::fmt::Result {
    let Event { len, offset, fd, result, flags, .. } = *event;
    let opcode = || opcode_name(event.opcode);
    match event.kind {
        Kind::Create if event.is_aio() => {
            write!(text, " context {:#x} nr_events {len} places {offset}", event.user_data)
        }
        Kind::Create => write!(text, " fd {fd} sq size {len} cq size {offset} flags {}", names::setup_flags(flags)),
        Kind::Register => {
            write!(text, " opcode {} nr_user_files {len} nr_user_bufs {offset} ret {result}", event.opcode)
        }
        Kind::FileGet if event.file == FileKind::Unknown => write!(text, " fd {fd}"),
        Kind::FileGet => write!(text, " fd {fd} file {}", event.file.name()),
        Kind::SubmitReq if has_sqe => {
            let (flags, off) = (names::sqe_flags(flags), offset as i64);
            write!(text, " opcode {} flags {flags} fd {fd} len {len} off {off}", opcode())
        }
        Kind::SubmitReq | Kind::QueueAsyncWork => {
            write!(text, " opcode {} flags {}", opcode(), names::sqe_flags(flags))?;
            event.punt().map_or(Ok(()), |why| write!(text, " why {}", why.name()))
        }
        Kind::PollArm => {
            write!(text, " opcode {} events {}", opcode(), names::poll_events(flags))?;
            event.skip().map_or(Ok(()), |skip| write!(text, " untried {}", skip.name()))
        }
        Kind::TaskAdd => {
            write!(text, " opcode {}", opcode())?;
            match event.worked() {
                None => Ok(()),
                Some(Worked { thread, began_ns, took_ns }) => {
                    let began = seconds(began_ns.saturating_sub(zero_ns));
                    write!(text, " worker {thread} began {began} took_ns {took_ns}")
                }
            }
        }
        Kind::Defer => write!(text, " opcode {}", opcode()),
        Kind::TaskWorkRun | Kind::LocalWorkRun => write!(text, " count {len}"),
        Kind::Link => write!(text, " linked after {offset}"),
        Kind::FailLink => write!(text, " opcode {} link {offset}", opcode()),
        Kind::CqringWait => write!(text, " min_events {len}"),
        Kind::CqeOverflow | Kind::Complete => {
            write!(text, " result {result} cflags {}", names::cqe_flags(flags))
        }
        Kind::ShortWrite => write!(text, " wanted {len} got {result}"),
        Kind::ReqFailed if event.is_aio() => write!(text, " opcode {} error {result}", opcode()),
        Kind::ReqFailed => {
            let (flags, off) = (names::sqe_flags(flags), offset as i64);
            write!(text, " opcode {} flags {flags} fd {fd} len {len} off {off} error {result}", opcode())
        }
        Kind::Injection | Kind::Finding => {
            if event.request != 0 {
                write!(text, " opcode {}", opcode())?;
            }
            Name::of(event).map_or(Ok(()), |name| write!(text, " name {name}"))
        }
        Kind::Caller | Kind::Frames => Ok(()),
        Kind::Enter if event.is_aio() && flags == 0 => write!(text, " nr {len}"),
        Kind::Enter if event.is_aio() => write!(text, " min_nr {offset}"),
        Kind::Enter => {
            write!(text, " fd {fd} to_submit {len} min_complete {offset} flags {}", names::enter_flags(flags))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyring_engine::op::Punt;

    #[test]
    fn lines_begin_as_bpftrace_prints_the_probe() {
        let event = Event {
            time_ns: 3_000_000_007,
            thread: 12,
            ring: 1,
            request: 5,
            user_data: 0x2a,
            opcode: Opcode::Read as u16,
            fd: 4,
            len: 512,
            ..Event::new(Kind::SubmitReq)
        };
        let expected = "tracepoint:io_uring:io_uring_submit_req time 3.000000007 thread 12 ring 1 req 5 \
            user_data 0x2a opcode READ flags none fd 4 len 512 off 0";
        assert_eq!(line(&event, true, 0), expected);
        assert!(line(&event, false, 0).ends_with(" opcode READ flags none"));
        let aio = Event { opcode: AIO | IOCB_CMD_PREAD, ..event };
        assert!(line(&aio, true, 0).starts_with("anyring:aio:submit_req time 3.0"));
        assert!(line(&aio, true, 0).ends_with(" opcode PREAD flags none fd 4 len 512 off 0"));
        let wait = Event { flags: IORING_ENTER_GETEVENTS, offset: 3, kind: Kind::Enter, ..aio };
        assert!(line(&wait, true, 0).starts_with("tracepoint:syscalls:sys_enter_io_getevents "));
        assert!(line(&wait, true, 0).ends_with(" min_nr 3"));
        assert_eq!(opcode_name(200), "200", "of a ring's SQE, which may have any");
        let arm = Event { flags: 0x201b, ..Event::new(Kind::PollArm) };
        assert!(line(&arm, true, 0).ends_with(" events IN|PRI|ERR|HUP|RDHUP"));
        let untried = Event { result: 3, ..arm };
        assert!(line(&untried, true, 0).ends_with(" events IN|PRI|ERR|HUP|RDHUP untried poll_first"));
        let queued = Event { opcode: Opcode::Read as u16, ..Event::new(Kind::QueueAsyncWork) };
        assert!(line(&queued, true, 0).ends_with(" opcode READ flags none"), "the kernel does not say why");
        assert!(line(&queued.with_punt(Punt::WouldWait), true, 0).ends_with(" flags none why would_wait"));
        let enter = Event { ring: 1, len: 2, ..Event::new(Kind::Enter) };
        assert!(line(&enter, true, 0).starts_with("tracepoint:syscalls:sys_enter_io_uring_enter time "));
        let of_unknown = line(&Event { ring: 0, time_ns: 3_000, thread: 12, flags: 9, ..enter }, true, 2_000);
        assert!(of_unknown.contains(" time 0.000001000 thread 12 ring unknown "), "{of_unknown}");
        assert!(of_unknown.ends_with(" flags GETEVENTS|EXT_ARG"), "{of_unknown}");
    }
}
