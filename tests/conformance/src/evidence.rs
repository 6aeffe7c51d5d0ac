//! The evidence for docs/conformance.md: the parts of the interface that a case used, and which of them succeeded.
//!
//! The runner asks for it (`--record`, `--oracle`); cases know nothing of it. Otherwise nothing is done here.
//! [`Door`](crate::door::Door) reports every setup, enter, register call and mapping, [`Ring`](crate::ring::Ring)
//! every SQE and CQE. The evidence goes into memory that the runner shares with the case's process and its children.
//! It has one bit for each name of [`anyring_abi::interface`] and one word for each kind of answer. Arguments are
//! read through process_vm_readv(2), since cases pass bad addresses on purpose.

use crate::answers::{Answers, Of};
use anyring_abi::interface::{self, Name, Scope};
use anyring_abi::*;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Words of a set: room for every name.
const WORDS: usize = 6;

/// A set of names, by their position in [`interface::names`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Set([u64; WORDS]);

fn positions() -> &'static HashMap<Name, usize> {
    static POSITIONS: OnceLock<HashMap<Name, usize>> = OnceLock::new();
    POSITIONS.get_or_init(|| {
        let positions: HashMap<_, _> = interface::names().copied().zip(0..).collect();
        assert!(positions.len() <= WORDS * 64, "a set has room for every name");
        positions
    })
}

impl Set {
    fn add(&mut self, name: &Name) {
        let position = positions()[name];
        self.0[position / 64] |= 1 << (position % 64);
    }

    /// Adds those of `names` whose bit is set in `bits`.
    fn add_bits(&mut self, names: &[Name], bits: u64) {
        names.iter().filter(|name| bits & name.value != 0).for_each(|name| self.add(name));
    }

    /// Adds the one of `names` that has this number.
    fn add_number(&mut self, names: &[Name], number: u64) {
        names.iter().filter(|name| name.value == number).for_each(|name| self.add(name));
    }

    /// Adds those names of this register call's argument that `test` finds in it.
    fn add_argument(&mut self, call: u32, test: impl Fn(&Name) -> bool) {
        let names = interface::REGISTER_ARGUMENTS.iter();
        names.filter(|name| name.scope == Scope::Register(call) && test(name)).for_each(|name| self.add(name));
    }

    fn common(&self, other: &Set) -> Set {
        Set(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    fn without(&self, other: &Set) -> Set {
        Set(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    /// The names in it.
    pub fn names(&self) -> impl Iterator<Item = &'static Name> + use<'_> {
        interface::names().enumerate().filter(|(at, _)| self.0[at / 64] >> (at % 64) & 1 != 0).map(|(_, name)| name)
    }
}

/// The evidence of one run of a case.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// Names that it passed to the kernel.
    pub tried: Set,
    /// Names with which a call or a request succeeded, and bits that were seen set.
    pub succeeded: Set,
    /// The answers, see [`Answers::take`].
    pub answers: BTreeSet<String>,
}

#[derive(Default)]
struct Shared {
    tried: [AtomicU64; WORDS],
    succeeded: [AtomicU64; WORDS],
    answers: Answers,
}

/// The place for the evidence of the next forked case; null without a request for evidence.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

fn shared() -> Option<&'static Shared> {
    // SAFETY: either null or a place of `Places`, which is zeroed (valid atomics) and never unmapped.
    unsafe { SHARED.load(Ordering::Relaxed).as_ref() }
}

/// The places of the evidence of cases that run at the same time, in memory that the runner shares with their processes.
pub struct Places(&'static [Shared]);

impl Places {
    /// Makes `count` empty places.
    pub fn new(count: usize) -> Places {
        positions();
        let length = count * size_of::<Shared>();
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "mmap");
        // SAFETY: the mapping above has this length, is aligned to a page, zeroed (valid atomics) and never unmapped.
        Places(unsafe { std::slice::from_raw_parts(address.cast(), count) })
    }

    /// Chooses the place for the evidence of processes forked from now on.
    pub fn choose(&self, place: usize) {
        SHARED.store(std::ptr::from_ref(&self.0[place]).cast_mut(), Ordering::Relaxed);
    }

    /// Takes the evidence in a place. The case's process has ended.
    pub fn take(&self, place: usize) -> Evidence {
        let shared = &self.0[place];
        let empty =
            |words: &[AtomicU64; WORDS]| Set(std::array::from_fn(|at| words[at].swap(0, Ordering::Relaxed)));
        Evidence {
            tried: empty(&shared.tried),
            succeeded: empty(&shared.succeeded),
            answers: shared.answers.take(),
        }
    }
}

fn record_answer(of: Of, result: isize, flags: u32) {
    if let Some(shared) = shared() {
        shared.answers.add(of, result as i32, flags);
    }
}

fn record(words: &[AtomicU64; WORDS], set: &Set) {
    for (word, bits) in words.iter().zip(set.0) {
        word.fetch_or(bits, Ordering::Relaxed);
    }
}

fn tried(set: &Set) {
    if let Some(shared) = shared() {
        record(&shared.tried, set);
    }
}

fn succeeded(set: &Set) {
    if let Some(shared) = shared() {
        record(&shared.tried, set);
        record(&shared.succeeded, set);
    }
}

/// Reads the value at `address` of this process, if it can be read.
fn at<T: Copy + Default>(address: usize) -> Option<T> {
    let mut value = T::default();
    let local = libc::iovec { iov_base: (&raw mut value).cast(), iov_len: size_of::<T>() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: size_of::<T>() };
    // SAFETY: the local vector is `value`, plain numbers for which any bytes are valid; the remote one is only read, by
    // the kernel, which answers EFAULT where nothing is.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (read == size_of::<T>() as isize).then_some(value)
}

/// Calls io_uring_setup(2) through `call`; its parameters are at `params`.
pub fn setup(params: usize, call: impl FnOnce() -> isize) -> isize {
    if shared().is_none() {
        return call();
    }
    let mut flags = Set::default();
    if let Some(before) = at::<Params>(params) {
        flags.add_bits(interface::SETUP_FLAGS, u64::from(before.flags));
    }
    tried(&flags);
    let answer = call();
    if answer < 0 {
        record_answer(Of::Setup, answer, 0);
    } else {
        if let Some(after) = at::<Params>(params) {
            flags.add_bits(interface::FEATURES, u64::from(after.features));
        }
        succeeded(&flags);
    }
    answer
}

/// Records an io_uring_enter(2) and its answer.
pub fn enter(to_submit: u32, flags: u32, arg: usize, answer: isize) {
    if shared().is_none() {
        return;
    }
    let mut set = Set::default();
    set.add_bits(interface::ENTER_FLAGS, u64::from(flags));
    // A wait that expires has used its time argument with success.
    let success = answer >= 0 || answer == -libc::ETIME as isize;
    if success && flags & IORING_ENTER_EXT_ARG_REG != 0 {
        // `flags` of struct io_uring_reg_wait.
        let wait = REGION.load(Ordering::Relaxed) as usize + arg + 20;
        if at::<u32>(wait).is_some_and(|flags| flags & IORING_REG_WAIT_TS != 0) {
            set.add_argument(IORING_REGISTER_MEM_REGION, |name| name.name == "IORING_REG_WAIT_TS");
        }
    }
    if success {
        return succeeded(&set);
    }
    tried(&set);
    // Timing decides whether a signal comes during a wait. With IORING_SETUP_SQPOLL the result is always `to_submit`,
    // which liburing's function converts to an int.
    if answer != -libc::EINTR as isize && to_submit <= i32::MAX as u32 {
        record_answer(Of::Enter, answer, 0);
    }
}

/// Records a mapping of a ring's descriptor and its answer.
pub fn mapping(offset: u64, answer: isize) {
    if shared().is_some() && answer >= 0 {
        let area = offset & u64::from(IORING_OFF_MMAP_MASK);
        let mut set = Set::default();
        set.add_number(interface::AREAS, area);
        succeeded(&set);
    }
}

/// Records that the SQ's flags word was seen to hold `flags`.
pub fn sq_flags(flags: u32) {
    if shared().is_some() {
        let mut set = Set::default();
        set.add_bits(interface::SQ_FLAGS, u64::from(flags));
        succeeded(&set);
    }
}

/// Records that the program set these flags of the CQ.
pub fn cq_flags(flags: u32) {
    if shared().is_some() {
        let mut set = Set::default();
        set.add_bits(interface::CQ_FLAGS, u64::from(flags));
        succeeded(&set);
    }
}

/// The region that was registered last, if it is the program's memory.
static REGION: AtomicU64 = AtomicU64::new(0);

/// Calls io_uring_register(2) through `call`.
pub fn register(opcode: u32, arg: usize, count: u32, call: impl FnOnce() -> isize) -> isize {
    if shared().is_none() {
        return call();
    }
    let number = opcode & !IORING_REGISTER_USE_REGISTERED_RING;
    let mut set = Set::default();
    set.add_number(interface::REGISTER_CALLS, u64::from(number));
    set.add_bits(interface::REGISTER_FLAGS, u64::from(opcode));
    of_argument(&mut set, number, arg, count);
    tried(&set);
    let answer = call();
    record_answer(Of::Register(number), answer, 0);
    if answer >= 0 {
        of_result(&mut set, number, arg, count);
        succeeded(&set);
    }
    answer
}

/// Adds the names in a register call's argument.
fn of_argument(set: &mut Set, call: u32, arg: usize, count: u32) {
    let word = |offset: usize| at::<u32>(arg + offset).unwrap_or(0);
    let byte = |offset: usize| at::<u8>(arg + offset).unwrap_or(0);
    match call {
        IORING_REGISTER_FILES2 | IORING_REGISTER_BUFFERS2 => {
            set.add_argument(call, |name| u64::from(word(4)) & name.value != 0);
        }
        IORING_REGISTER_FILES_UPDATE | IORING_REGISTER_FILES_UPDATE2 => {
            let (numbers, length) = match call {
                IORING_REGISTER_FILES_UPDATE => (at::<u64>(arg + 8), count),
                _ => (at::<u64>(arg + 8), word(24)),
            };
            let skip = |at_number: u32| {
                at::<i32>(numbers.unwrap_or(0) as usize + 4 * at_number as usize)
                    == Some(IORING_REGISTER_FILES_SKIP)
            };
            set.add_argument(call, |_| (0..length.min(64)).any(skip));
        }
        IORING_REGISTER_RESTRICTIONS => {
            let kinds: Vec<_> =
                (0..count.min(64)).filter_map(|at_entry| at::<u16>(arg + 16 * at_entry as usize)).collect();
            set.add_argument(call, |name| kinds.iter().any(|kind| u64::from(*kind) == name.value));
        }
        IORING_REGISTER_IOWQ_MAX_WORKERS => set.add_argument(call, |_| true),
        IORING_REGISTER_PBUF_RING => set.add_argument(call, |name| u64::from(word(14) as u16) & name.value != 0),
        IORING_REGISTER_SYNC_CANCEL => set.add_argument(call, |name| u64::from(word(12)) & name.value != 0),
        IORING_REGISTER_NAPI => of_napi(set, byte(5), word(8)),
        IORING_REGISTER_BPF_FILTER => {
            let (command, flags) = (word(0) as u16, word(12));
            set.add_argument(call, |name| match name.name {
                "IO_URING_BPF_CMD_FILTER" => u64::from(command) == name.value,
                _ => u64::from(flags) & name.value != 0,
            });
        }
        IORING_REGISTER_CLONE_BUFFERS => set.add_argument(call, |name| u64::from(word(4)) & name.value != 0),
        IORING_REGISTER_MEM_REGION => {
            let region = at::<u64>(arg).unwrap_or(0) as usize;
            let (kind, flags) = (at::<u32>(region + 16).unwrap_or(0), at::<u64>(arg + 8).unwrap_or(0));
            set.add_argument(call, |name| match name.name {
                "IORING_MEM_REGION_TYPE_USER" => kind & IORING_MEM_REGION_TYPE_USER != 0,
                "IORING_MEM_REGION_REG_WAIT_ARG" => flags & IORING_MEM_REGION_REG_WAIT_ARG != 0,
                _ => false,
            });
        }
        IORING_REGISTER_ZCRX_IFQ => {
            let area = at::<u64>(arg + 16).unwrap_or(0) as usize;
            set.add_argument(call, |name| u64::from(at::<u32>(area + 24).unwrap_or(0)) & name.value != 0);
        }
        IORING_REGISTER_SEND_MSG_RING => {
            if let Some(sqe) = at::<Sqe>(arg) {
                *set = Set(std::array::from_fn(|word| set.0[word] | of_sqe(&sqe).0[word]));
            }
        }
        _ => {}
    }
}

/// Adds the names of an IORING_REGISTER_NAPI with this operation and parameter.
fn of_napi(set: &mut Set, operation: u8, parameter: u32) {
    set.add_argument(IORING_REGISTER_NAPI, |name| match name.name.contains("_TRACKING_") {
        true => operation == IO_URING_NAPI_REGISTER_OP && u64::from(parameter) == name.value,
        false => u64::from(operation) == name.value,
    });
}

/// Adds the names in the results of a successful register call.
fn of_result(set: &mut Set, call: u32, arg: usize, count: u32) {
    match call {
        IORING_REGISTER_PROBE => {
            let flags = |operation: u32| at::<u16>(arg + 16 + 8 * operation as usize + 2).unwrap_or(0);
            set.add_argument(call, |name| {
                (0..count).any(|operation| u64::from(flags(operation)) & name.value != 0)
            });
        }
        IORING_REGISTER_NAPI => of_napi(set, IO_URING_NAPI_REGISTER_OP, at::<u32>(arg + 8).unwrap_or(0)),
        IORING_REGISTER_MEM_REGION => {
            let region = at::<u64>(arg).unwrap_or(0) as usize;
            REGION.store(at::<u64>(region).unwrap_or(0), Ordering::Relaxed);
        }
        IORING_REGISTER_QUERY => {
            // `next_entry`, `query_op` and `result` of struct io_uring_query_hdr.
            let mut entry = arg;
            for _ in 0..16 {
                let (question, result) = (at::<u32>(entry + 16), at::<i32>(entry + 24));
                let answered = result.is_some_and(|result| result >= 0);
                set.add_argument(call, |name| answered && question.map(u64::from) == Some(name.value));
                match at::<u64>(entry) {
                    Some(next) if next != 0 => entry = next as usize,
                    _ => break,
                }
            }
        }
        _ => {}
    }
}

/// Returns the names that an SQE uses.
fn of_sqe(sqe: &Sqe) -> Set {
    let mut set = Set::default();
    set.add_number(interface::OPCODES, u64::from(sqe.opcode));
    set.add_bits(interface::SQE_FLAGS, u64::from(sqe.flags));
    for name in interface::OPERATION_FLAGS {
        match name.scope {
            Scope::Operation(opcode, field) if opcode as u8 == sqe.opcode && field.holds(sqe, name.value) => {
                set.add(name)
            }
            _ => {}
        }
    }
    set
}

/// The requests of one ring whose completions are awaited, to know what succeeded. A CQE does not say which request
/// of one `user_data` it belongs to. So only the names that all of them use count as succeeded.
pub struct Requests {
    alike: HashMap<u64, Alike>,
    /// CQEs of both sizes may come.
    mixed: bool,
}

/// The requests of one `user_data`.
struct Alike {
    common: Set,
    /// The opcode, if they have the same.
    opcode: Option<u8>,
    pending: u32,
    failed: bool,
}

impl Requests {
    /// Requests of a ring with these setup flags.
    pub fn new(flags: u32) -> Requests {
        Requests { alike: HashMap::new(), mixed: flags & IORING_SETUP_CQE_MIXED != 0 }
    }

    /// Records an SQE that was put into the SQ.
    pub fn pushed(&mut self, sqe: &Sqe) {
        if shared().is_none() {
            return;
        }
        let names = of_sqe(sqe);
        tried(&names);
        let one = Alike { common: names, opcode: Some(sqe.opcode), pending: 0, failed: false };
        let alike = self.alike.entry(sqe.user_data).or_insert(one);
        alike.common = alike.common.common(&names);
        alike.opcode = alike.opcode.filter(|opcode| *opcode == sqe.opcode);
        alike.pending += 1;
    }

    /// Records a CQE that was reaped.
    pub fn completed(&mut self, cqe: &Cqe) {
        if shared().is_none() {
            return;
        }
        let mut flags = Set::default();
        if self.mixed {
            flags.add_bits(interface::CQE_FLAGS, u64::from(cqe.flags & (IORING_CQE_F_SKIP | IORING_CQE_F_32)));
            if cqe.flags & IORING_CQE_F_SKIP != 0 {
                // The CQE belongs to no request: it fills the end of the CQ.
                return succeeded(&flags);
            }
        }
        // A completion without a request here is another ring's message, whose flags the sender chose.
        let Some(alike) = self.alike.get_mut(&cqe.user_data) else {
            record_answer(Of::Message, cqe.res as isize, 0);
            return succeeded(&flags);
        };
        record_answer(alike.opcode.map_or(Of::SomeRequest, Of::Request), cqe.res as isize, cqe.flags);
        let own = IORING_CQE_F_BUFFER
            | IORING_CQE_F_MORE
            | IORING_CQE_F_SOCK_NONEMPTY
            | IORING_CQE_F_NOTIF
            | IORING_CQE_F_BUF_MORE;
        flags.add_bits(interface::CQE_FLAGS, u64::from(cqe.flags & own));
        let notice = cqe.flags & IORING_CQE_F_NOTIF != 0;
        if notice {
            flags.add_bits(interface::CQE_FLAGS, u64::from(cqe.res as u32 & IORING_NOTIF_USAGE_ZC_COPIED));
        }
        if alike.opcode == Some(Opcode::UringCmd as u8) {
            flags.add_bits(interface::CQE_FLAGS, u64::from(cqe.flags & IORING_CQE_F_TSTAMP_HW));
        }
        succeeded(&flags);
        if notice || is_success(alike.opcode, cqe.res) {
            // A posted CQE is no evidence for IOSQE_CQE_SKIP_SUCCESS, with which no CQE is posted.
            succeeded(&alike.common.without(&skipping()));
        } else {
            alike.failed = true;
        }
        if cqe.flags & IORING_CQE_F_MORE == 0 {
            alike.pending -= 1;
            if alike.pending == 0 {
                self.alike.remove(&cqe.user_data);
            }
        }
    }
}

impl Drop for Requests {
    /// Counts CQE_SKIP_SUCCESS as succeeded if such requests completed without a CQE.
    fn drop(&mut self) {
        if self.alike.values().any(|alike| !alike.failed && alike.common.common(&skipping()) == skipping()) {
            succeeded(&skipping());
        }
    }
}

/// IOSQE_CQE_SKIP_SUCCESS alone.
fn skipping() -> Set {
    let mut set = Set::default();
    set.add_bits(interface::SQE_FLAGS, u64::from(IOSQE_CQE_SKIP_SUCCESS));
    set
}

/// True if `res` is a success. A timeout succeeds by expiring, and a LINK_TIMEOUT also by being cancelled.
fn is_success(opcode: Option<u8>, res: i32) -> bool {
    let is = |other: Opcode| opcode == Some(other as u8);
    match -res {
        libc::ETIME => is(Opcode::Timeout) || is(Opcode::LinkTimeout),
        libc::ECANCELED => is(Opcode::LinkTimeout),
        error => error <= 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqe::{self, SqeFields};

    fn labels(set: &Set) -> Vec<String> {
        set.names().map(ToString::to_string).collect()
    }

    #[test]
    fn an_sqe_names_its_opcode_and_flags() {
        let set = of_sqe(&sqe::cancel(1, IORING_ASYNC_CANCEL_ALL).with(IOSQE_ASYNC));
        assert_eq!(labels(&set), ["ASYNC_CANCEL", "IOSQE_ASYNC", "ASYNC_CANCEL: IORING_ASYNC_CANCEL_ALL"]);
    }

    #[test]
    fn memory_that_is_not_there_is_not_read() {
        assert_eq!(at::<u32>(8), None);
        let word = 7u32;
        assert_eq!(at::<u32>(&raw const word as usize), Some(7));
    }

    /// One test, since the record belongs to the process.
    #[test]
    fn only_what_all_requests_of_one_user_data_name_succeeds() {
        let places = Places::new(2);
        places.choose(1);
        let take = || places.take(1);
        let mut requests = Requests::new(0);
        requests.pushed(&sqe::nop());
        requests.pushed(&sqe::nop().with(IOSQE_ASYNC));
        requests.completed(&Cqe::default());
        let evidence = take();
        assert_eq!(labels(&evidence.succeeded), ["NOP"]);
        assert_eq!(evidence.answers.iter().collect::<Vec<_>>(), ["NOP 0"]);
        requests.completed(&Cqe::default());
        requests.pushed(&sqe::nop().with(IOSQE_ASYNC));
        requests.completed(&Cqe { res: -libc::EINVAL, ..Cqe::default() });
        let evidence = take();
        assert_eq!(labels(&evidence.tried), ["NOP", "IOSQE_ASYNC"]);
        assert_eq!(labels(&evidence.succeeded), ["NOP"], "of the second, which had a flag less in common");
        requests.pushed(&sqe::nop().with(IOSQE_CQE_SKIP_SUCCESS));
        drop(requests);
        assert_eq!(labels(&places.take(0).tried), [""; 0]);
        assert_eq!(labels(&take().succeeded), ["IOSQE_CQE_SKIP_SUCCESS"]);
    }
}
