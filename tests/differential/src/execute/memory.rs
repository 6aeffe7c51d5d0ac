//! The memory that a program's requests name. Each request has its own, kept until the process ends.

use crate::generate::flags_of_word;
use crate::program::{Value, BUFFERS, BUFFER_BYTES, WORDS};
use crate::record::digest;
use anyring_abi::Timespec;
use anyring_conformance::sys;
use std::collections::BTreeMap;

/// The part of a piece of memory that is the same in each run.
#[derive(Clone, Copy)]
enum Kept {
    /// All bytes.
    Bytes,
    /// Mode, size and links of a struct statx.
    Statx,
    /// The family of a socket address.
    Family,
    /// Signal, code and status of a child's siginfo_t.
    Child,
}

/// The distance of two words, in bytes.
const WORD_DISTANCE: usize = 64;

/// A program's memory.
pub struct Memory {
    sinks: Vec<(String, usize, usize, Kept)>,
    lengths: BTreeMap<u64, usize>,
    registered: usize,
    words: usize,
    bad: u64,
    listener: libc::sockaddr_in,
}

/// Returns new, aligned memory of this many bytes, filled with `fill`. It is never freed.
fn allocate(bytes: usize, fill: u8) -> usize {
    let words = vec![u64::from_ne_bytes([fill; 8]); bytes.div_ceil(8).max(1)];
    words.leak().as_mut_ptr() as usize
}

/// Returns memory that holds `value`. It is never freed.
fn put<T>(value: T) -> u64 {
    Box::leak(Box::new(value)) as *mut T as u64
}

fn put_all<T>(values: Vec<T>) -> u64 {
    values.leak().as_mut_ptr() as u64
}

/// The bytes that request `id` sends.
pub fn pattern(id: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (id as u8).wrapping_mul(31).wrapping_add((at % 251) as u8)).collect()
}

/// A msghdr. Of a received one, msg_controllen and msg_flags are recorded.
#[repr(C)]
struct Header {
    header: libc::msghdr,
}

/// The fixed address of the inaccessible page. It must not vary: as an offset or user_data it appears in results.
const BAD_ADDRESS: usize = 1 << 44;

fn bad_address() -> u64 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
    let address = unsafe { libc::mmap(BAD_ADDRESS as *mut libc::c_void, 1 << 16, libc::PROT_NONE, flags, -1, 0) };
    assert_eq!(address as usize, BAD_ADDRESS, "the inaccessible page is where it belongs");
    address as u64
}

impl Memory {
    /// Memory for one program, whose listener has this address.
    pub fn new(listener: libc::sockaddr_in) -> Memory {
        Memory {
            sinks: Vec::new(),
            lengths: BTreeMap::new(),
            registered: sys::pages(usize::from(BUFFERS) * BUFFER_BYTES as usize / 4096).as_mut_ptr() as usize,
            words: allocate(usize::from(WORDS) * WORD_DISTANCE, 0),
            bad: bad_address(),
            listener,
        }
    }

    /// Returns the address of a registered buffer.
    pub fn registered(&self, index: u16) -> u64 {
        self.registered as u64 + u64::from(index) * u64::from(BUFFER_BYTES)
    }

    /// Returns the address of a word.
    pub fn word(&self, index: u8) -> u64 {
        (self.words + usize::from(index) * WORD_DISTANCE) as u64
    }

    fn sink(&mut self, label: String, bytes: usize, kept: Kept) -> u64 {
        let address = allocate(bytes + 8, 0xee);
        self.sinks.push((label, address, bytes, kept));
        address as u64
    }

    fn vectors(&mut self, label: &str, id: u64, lengths: &[u32], sink: bool) -> Vec<libc::iovec> {
        lengths
            .iter()
            .enumerate()
            .map(|(at, &length)| {
                let address = if sink {
                    self.sink(format!("{label} [{at}]"), length as usize, Kept::Bytes)
                } else {
                    put_all(pattern(id + at as u64, length as usize))
                };
                libc::iovec { iov_base: address as *mut libc::c_void, iov_len: length as usize }
            })
            .collect()
    }

    fn message(&mut self, label: &str, id: u64, lengths: &[u32], control: Option<u32>) -> u64 {
        let vectors = self.vectors(label, id, lengths, control.is_some());
        // SAFETY: a msghdr is plain numbers and pointers, for which zeroes are valid.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iovlen = vectors.len();
        header.msg_iov = put_all(vectors) as *mut libc::iovec;
        if let Some(room) = control.filter(|room| *room > 0) {
            header.msg_control = allocate(room as usize, 0) as *mut libc::c_void;
            header.msg_controllen = room as usize;
        }
        let address = put(Header { header });
        if control.is_some() {
            let flags = address as usize + std::mem::offset_of!(libc::msghdr, msg_controllen);
            self.sinks.push((format!("{label} header"), flags, 12, Kept::Bytes));
        }
        address
    }

    /// Returns the value for a field of request `id`, and makes the memory that it points to. `number` resolves
    /// descriptors.
    pub fn place(
        &mut self,
        id: u64,
        field: &str,
        value: &Value,
        number: impl Fn(&crate::program::Target) -> i32,
    ) -> u64 {
        let label = format!("#{id} {field}");
        match value {
            Value::Plain(number) => *number,
            Value::Source(bytes) => put_all(pattern(id, *bytes as usize)),
            Value::Sink(bytes) => self.sink(label, *bytes as usize, Kept::Bytes),
            Value::Number(number) => put(*number),
            Value::Vectors(lengths, sink) => {
                let vectors = self.vectors(&label, id, lengths, *sink);
                put_all(vectors)
            }
            Value::Registered(index, at) => self.registered(*index) + u64::from(*at),
            Value::RegisteredVectors(index, parts) => {
                let start = self.registered(*index);
                let vector = |&(at, length): &(u32, u32)| libc::iovec {
                    iov_base: (start + u64::from(at)) as *mut libc::c_void,
                    iov_len: length as usize,
                };
                put_all(parts.iter().map(vector).collect())
            }
            Value::Path(path) => put_all([path.as_bytes(), b"\0"].concat()),
            Value::Time(tv_sec, tv_nsec) => put(Timespec { tv_sec: *tv_sec, tv_nsec: *tv_nsec }),
            Value::Later(clock, milliseconds) => {
                let mut at = sys::clock(*clock);
                let nanoseconds = at.tv_nsec + milliseconds * 1_000_000;
                at.tv_sec += nanoseconds.div_euclid(1_000_000_000);
                at.tv_nsec = nanoseconds.rem_euclid(1_000_000_000);
                put(at)
            }
            Value::Message(lengths) => self.message(&label, id, lengths, None),
            Value::Receive(lengths, control) => self.message(&label, id, lengths, Some(*control)),
            Value::How(flags, mode, resolve) => put([*flags, *mode, *resolve]),
            Value::Statx => self.sink(label, size_of::<libc::statx>(), Kept::Statx),
            Value::Event(events, data) => put(libc::epoll_event { events: *events, u64: *data }),
            Value::Events(count) => self.sink(label, *count as usize * size_of::<libc::epoll_event>(), Kept::Bytes),
            Value::ListenerAddress => put(self.listener),
            Value::AnyAddress => put(sys::loopback(0)),
            Value::AddressSink => {
                let address = self.sink(label, size_of::<libc::sockaddr_in>(), Kept::Family);
                self.lengths.insert(id, put(size_of::<libc::sockaddr_in>() as u32) as usize);
                address
            }
            Value::AddressLength => self.lengths.get(&id).map_or(0, |address| *address as u64),
            Value::Descriptors(targets) => put_all(targets.iter().map(number).collect()),
            Value::TwoNumbers => self.sink(label, 8, Kept::Bytes),
            Value::Buffers(count, bytes) => {
                let address = allocate((count * bytes) as usize, 0xee);
                self.sinks.push((label, address, (count * bytes) as usize, Kept::Bytes));
                address as u64
            }
            Value::Word(index) => self.word(*index),
            Value::Words(words) => {
                // struct futex_waitv: value, address, flags with a reserved word.
                let entry = |&word: &u8| [0, self.word(word), u64::from(flags_of_word(word))];
                put_all(words.iter().map(entry).collect())
            }
            Value::ChildInfo => self.sink(label, size_of::<libc::siginfo_t>(), Kept::Child),
            Value::Bad => self.bad,
        }
    }

    /// Returns what the kernel wrote, by request and field.
    pub fn record(&self) -> BTreeMap<String, String> {
        self.sinks
            .iter()
            .map(|(label, address, bytes, kept)| (label.clone(), seen(*address, *bytes, *kept)))
            .collect()
    }

    /// The registered buffers' bytes.
    pub fn registered_digest(&self) -> String {
        seen(self.registered, usize::from(BUFFERS) * BUFFER_BYTES as usize, Kept::Bytes)
    }
}

fn seen(address: usize, bytes: usize, kept: Kept) -> String {
    // SAFETY: `sink`, `message` and `new` made this memory with at least this many bytes, and it is never freed.
    // Requests that could still write it have been cancelled and waited for.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
    let touched = bytes.iter().any(|byte| *byte != 0xee);
    match kept {
        _ if !touched => "untouched".to_owned(),
        Kept::Bytes => digest(bytes),
        Kept::Statx => {
            // SAFETY: the memory has this size and alignment, and statx is plain numbers.
            let statx = unsafe { &*(address as *const libc::statx) };
            let size =
                if statx.stx_mode & libc::S_IFMT as u16 == libc::S_IFREG as u16 { statx.stx_size } else { 0 };
            format!("mask {:#x} mode {:o} size {size} links {}", statx.stx_mask, statx.stx_mode, statx.stx_nlink)
        }
        Kept::Child => format!("signal {} code {} status {}", word(0), word(8), word(24)),
        Kept::Family => format!("family {}", word(0) & 0xffff),
    }
}
