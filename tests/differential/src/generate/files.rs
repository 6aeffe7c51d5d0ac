//! Reads and writes of every shape, and operations on files, directories and pipes.

use super::model::{Claim, Model};
use super::Generator;
use crate::execute::FILE_BYTES;
use crate::program::*;
use anyring_abi::*;
use anyring_test_kit::Choices;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "g"];
const ATTRIBUTES: [&str; 3] = ["user.one", "user.two", "user.three"];

/// The way in which a read or write names its bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    Vectors,
    Fixed,
    FixedVectors,
}

impl Generator {
    /// Drafts a request on files, pipes or names.
    pub(super) fn draft_file(&mut self, opcode: Opcode) -> Option<Request> {
        use Opcode as O;
        match opcode {
            O::Read => self.read(opcode, Shape::Plain),
            O::Readv => self.read(opcode, Shape::Vectors),
            O::ReadFixed => self.read(opcode, Shape::Fixed),
            O::ReadvFixed => self.read(opcode, Shape::FixedVectors),
            O::ReadMultishot => self.read_multishot(),
            O::Write => self.write(opcode, Shape::Plain),
            O::Writev => self.write(opcode, Shape::Vectors),
            O::WriteFixed => self.write(opcode, Shape::Fixed),
            O::WritevFixed => self.write(opcode, Shape::FixedVectors),
            O::Fsync | O::SyncFileRange | O::Fallocate | O::Fadvise | O::Ftruncate => self.of_file(opcode),
            O::Madvise => Some(Request {
                addr: Value::Registered(self.random.u16(0..BUFFERS), 0),
                len: self.below(4096),
                op_flags: self.choose(&[libc::MADV_NORMAL, libc::MADV_WILLNEED, libc::MADV_RANDOM]) as u32,
                ..Request::new(opcode)
            }),
            O::Splice | O::Tee => self.splice(opcode),
            O::Fsetxattr | O::Setxattr | O::Fgetxattr | O::Getxattr => self.attribute(opcode),
            O::Close => self.close(),
            _ => self.path(opcode),
        }
    }

    fn transfer(&mut self, request: &mut Request, shape: Shape, bytes: u32, sink: bool) -> Option<()> {
        let buffer = self.random.u16(0..BUFFERS);
        if matches!(shape, Shape::Fixed | Shape::FixedVectors) && !self.claim(Claim::Buffer(buffer)) {
            return None;
        }
        let bytes = if shape == Shape::Plain { bytes } else { bytes.min(BUFFER_BYTES / 2) };
        let half = bytes / 2;
        (request.addr, request.len) = match shape {
            Shape::Plain if sink => (Value::Sink(bytes), bytes),
            Shape::Plain => (Value::Source(bytes), bytes),
            Shape::Vectors if self.chance(1, 2) => (Value::Vectors(vec![half, 0, bytes - half], sink), 3),
            Shape::Vectors => (Value::Vectors(vec![bytes], sink), 1),
            Shape::Fixed => (Value::Registered(buffer, self.below(BUFFER_BYTES / 2)), bytes),
            Shape::FixedVectors => {
                let parts = vec![(0, half), (BUFFER_BYTES / 2, bytes - half)];
                (Value::RegisteredVectors(buffer, parts), 2)
            }
        };
        if matches!(shape, Shape::Fixed | Shape::FixedVectors) {
            request.buf_index = buffer;
        }
        Some(())
    }

    fn read(&mut self, opcode: Opcode, shape: Shape) -> Option<Request> {
        let end = self.choose(&[
            End::File(0),
            End::File(1),
            End::File(2),
            End::File(3),
            End::PipeRead(0),
            End::PipeRead(1),
            End::PipeRead(2),
            End::Stream(0, 0),
            End::Stream(1, 1),
            End::Tcp(0, 1),
            End::Eventfd(0),
            End::Eventfd(1),
        ]);
        if !self.claim_end(end) {
            return None;
        }
        let mut request = Request { fd: Target::Of(end), ..Request::new(opcode) };
        let inside = self.model.readable(end);
        let bytes = match end {
            End::File(_) => {
                request.off = self.offset();
                1 + self.below(3000)
            }
            End::Eventfd(_) => 8,
            _ if inside > 0 && self.chance(3, 4) => 1 + self.below(inside.min(3000) as u32),
            _ => 1 + self.below(3000),
        };
        // After a punted request a socket's read would wait on the kernel, in spite of RWF_NOWAIT.
        if self.chance(1, 16) && self.first_of_chain {
            request.op_flags = self.choose(&[libc::RWF_NOWAIT, libc::RWF_DSYNC, libc::RWF_APPEND]) as u32;
        }
        let chooses = matches!(shape, Shape::Plain | Shape::Vectors) && self.chance(1, 4);
        if chooses && self.choose_buffer(&mut request) {
            match shape {
                Shape::Vectors => (request.addr, request.len) = (Value::Vectors(vec![GROUP_BYTES], true), 1),
                _ => request.len = self.choose(&[0, GROUP_BYTES, 10, 1000]),
            }
        } else {
            self.transfer(&mut request, shape, bytes, true)?;
        }
        self.record_read(end, opcode, bytes)?;
        Some(request)
    }

    /// Makes the request choose its buffer from a group. Returns false if no group can be used.
    pub(super) fn choose_buffer(&mut self, request: &mut Request) -> bool {
        let which = self.random.usize(0..2);
        let group = [RING_GROUP, LIST_GROUP][which];
        if which == 0 && self.model.group_is_held() {
            return false;
        }
        if (self.model.buffers[which] <= 0 && self.chance(7, 8)) || !self.claim(Claim::Group(group)) {
            return false;
        }
        self.model.buffers[which] -= 1;
        request.buf_index = group;
        request.flags |= IOSQE_BUFFER_SELECT;
        true
    }

    /// Records that data is read, or that the request waits. Refuses too many waits.
    pub(super) fn record_read(&mut self, end: End, opcode: Opcode, bytes: u32) -> Option<()> {
        if matches!(end, End::File(_)) {
            return Some(());
        }
        if self.model.readable(end) == 0 || self.model.waits_at(end) {
            // On the kernel a worker sleeps in the read of an eventfd.
            if matches!(end, End::Eventfd(_)) || !self.chance(1, 5) {
                return None;
            }
            self.model.wait(self.next_id, opcode as u8, Some(end));
            return Some(());
        }
        let taken = if matches!(end, End::Datagram(..)) { 1 } else { bytes };
        self.model.read(end, taken);
        Some(())
    }

    fn read_multishot(&mut self) -> Option<Request> {
        let end = self.choose(&[End::PipeRead(0), End::PipeRead(1), End::PipeRead(2), End::Stream(1, 1)]);
        if !self.claim_end(end) || self.model.waits_at(end) || self.model.group_is_held() {
            return None;
        }
        if !self.claim(Claim::Group(RING_GROUP)) {
            return None;
        }
        self.model.group_users.push(self.next_id);
        let parts = self.model.readable(end).div_euclid(i64::from(GROUP_BYTES)) + 1;
        self.model.buffers[0] -= parts;
        self.model.read(end, 1 << 20);
        self.model.wait(self.next_id, opcode_of(Opcode::ReadMultishot), Some(end));
        Some(Request {
            fd: Target::Of(end),
            flags: IOSQE_BUFFER_SELECT,
            buf_index: RING_GROUP,
            ..Request::new(Opcode::ReadMultishot)
        })
    }

    fn write(&mut self, opcode: Opcode, shape: Shape) -> Option<Request> {
        let end = self.choose(&[
            End::File(0),
            End::File(1),
            End::File(2),
            End::File(3),
            End::PipeWrite(0),
            End::PipeWrite(1),
            End::PipeWrite(2),
            End::Stream(0, 1),
            End::Stream(1, 0),
            End::Tcp(0, 0),
            End::Eventfd(0),
            End::Eventfd(1),
        ]);
        if !self.claim_end(end) {
            return None;
        }
        let mut request = Request { fd: Target::Of(end), ..Request::new(opcode) };
        let room = self.model.room(end);
        let bytes = 1 + match end {
            End::File(_) => {
                request.off = self.offset();
                self.below(3000)
            }
            _ if room > 1 && self.chance(15, 16) => self.below((room - 1).min(2000)),
            _ => self.below(3000),
        };
        match end {
            End::Eventfd(_) => {
                if shape != Shape::Plain {
                    return None;
                }
                (request.addr, request.len) = (Value::Number(1 + u64::from(self.below(3))), 8);
                self.model.wrote(end, 1);
            }
            _ => {
                self.transfer(&mut request, shape, bytes, false)?;
                self.record_write(end, opcode, bytes);
            }
        }
        Some(request)
    }

    /// Records that data is written, or that the request waits.
    pub(super) fn record_write(&mut self, end: End, opcode: Opcode, bytes: u32) {
        if matches!(end, End::File(_)) {
            return;
        }
        if self.model.room(end) < bytes {
            self.model.wait(self.next_id, opcode as u8, Some(end));
        } else {
            self.model.wrote(end, bytes);
        }
    }

    fn offset(&mut self) -> Value {
        Value::Plain(match self.below(5) {
            0 => u64::MAX,
            1 => 0,
            2 => u64::from(self.below(20_000)),
            _ => u64::from(self.below(FILE_BYTES)),
        })
    }

    fn of_file(&mut self, opcode: Opcode) -> Option<Request> {
        use Opcode as O;
        let end = End::File(self.random.u8(0..4));
        if !self.claim_end(end) {
            return None;
        }
        let mut request = Request { fd: Target::Of(end), ..Request::new(opcode) };
        let (at, length) = (u64::from(self.below(FILE_BYTES)), self.below(4000));
        match opcode {
            O::Fsync => request.op_flags = self.choose(&[0, IORING_FSYNC_DATASYNC]),
            O::SyncFileRange => {
                (request.off, request.len, request.op_flags) = (Value::Plain(at), length, self.below(8))
            }
            O::Fallocate => {
                request.off = Value::Plain(at);
                request.addr = Value::Plain(u64::from(length));
                request.len = self.choose(&[0, 0, libc::FALLOC_FL_KEEP_SIZE as u32, 3]);
            }
            O::Fadvise => (request.off, request.len, request.op_flags) = (Value::Plain(at), length, self.below(6)),
            _ => request.off = Value::Plain(at),
        }
        Some(request)
    }

    fn splice(&mut self, opcode: Opcode) -> Option<Request> {
        let tee = opcode == Opcode::Tee;
        let pipe = self.choose(&[End::PipeRead(0), End::PipeRead(2)]);
        let from = if tee || self.chance(1, 2) { pipe } else { End::File(self.choose(&[0, 2])) };
        let to = match from {
            End::PipeRead(0) => self.choose(&[End::PipeWrite(2), End::File(0)]),
            End::PipeRead(_) => self.choose(&[End::PipeWrite(0), End::File(3)]),
            _ => self.choose(&[End::PipeWrite(0), End::PipeWrite(2)]),
        };
        let to = if tee && matches!(to, End::File(_)) { End::PipeWrite(1) } else { to };
        let inside = self.model.readable(from);
        if matches!(from, End::PipeRead(_)) && inside == 0 {
            return None;
        }
        if !self.claim_end(from) || !self.claim_end(to) || self.model.waits_at(from) || self.model.waits_at(to) {
            return None;
        }
        let bytes = 1 + self.below(if inside > 0 { inside.min(1500) as u32 } else { 1500 });
        if matches!(to, End::PipeWrite(_)) && self.model.room(to) < bytes + 4096 && to != End::PipeWrite(1) {
            return None;
        }
        let mut request =
            Request { fd: Target::Of(to), file_index_of: Some(from), len: bytes, ..Request::new(opcode) };
        if !tee {
            let none = Value::Plain(u64::MAX);
            let from_file = matches!(from, End::File(_)) && self.chance(2, 3);
            let to_file = matches!(to, End::File(_)) && self.chance(2, 3);
            let at = Value::Plain(u64::from(self.below(FILE_BYTES)));
            request.addr = if from_file { at.clone() } else { none.clone() };
            request.off = if to_file { at } else { none };
            self.model.read(from, bytes);
        }
        self.model.wrote(to, bytes);
        Some(request)
    }

    /// Chooses a directory for a path operation: its number among the two, and its descriptor.
    fn directory(&mut self) -> Option<(u8, Target)> {
        let which = self.random.u8(0..2);
        if !self.claim(Claim::Names(which)) {
            return None;
        }
        let current = which == 0 && self.chance(1, 2);
        let target = if current { Target::Number(libc::AT_FDCWD) } else { Target::Of(End::Directory(which)) };
        Some((which, target))
    }

    /// Chooses an existing name (of this kind) in the directory, or now and then any name.
    fn name(&mut self, directory: u8, wanted: impl Fn(Option<bool>) -> bool) -> Option<&'static str> {
        let first = self.random.usize(0..NAMES.len());
        let any = self.chance(1, 12);
        (0..NAMES.len())
            .map(|at| NAMES[(first + at) % NAMES.len()])
            .find(|name| any || wanted(self.model.name(directory, name)))
    }

    fn path(&mut self, opcode: Opcode) -> Option<Request> {
        use Opcode as O;
        let (which, directory) = self.directory()?;
        let mut request = Request { fd: directory, ..Request::new(opcode) };
        match opcode {
            O::Openat | O::Openat2 => return self.open(request, which),
            O::Statx => {
                let own: &'static str = if which == 0 { "f0" } else { "f2" };
                let file = End::File(if which == 0 { 0 } else { 2 });
                let name = match self.name(which, |kind| kind.is_some()) {
                    Some(name) => name,
                    None if self.claim_end(file) => own,
                    None => return None,
                };
                request.addr = Value::Path(name);
                request.off = Value::Statx;
                request.len = libc::STATX_BASIC_STATS;
                request.op_flags = self.choose(&[0, libc::AT_SYMLINK_NOFOLLOW as u32]);
            }
            O::Unlinkat => {
                let name = self.name(which, |kind| kind.is_some())?;
                if self.model.name(which, name) == Some(true) {
                    request.op_flags = libc::AT_REMOVEDIR as u32;
                }
                request.addr = Value::Path(name);
                self.model.set_name(which, name, None);
            }
            O::Mkdirat => {
                let name = self.name(which, |kind| kind.is_none())?;
                (request.addr, request.len) = (Value::Path(name), 0o755);
                self.model.set_name(which, name, Some(true));
            }
            O::Symlinkat => {
                let name = self.name(which, |kind| kind.is_none())?;
                (request.addr, request.off) = (Value::Path(self.choose(&NAMES)), Value::Path(name));
                self.model.set_name(which, name, Some(false));
            }
            _ => return self.two_paths(request, which),
        }
        Some(request)
    }

    /// RENAMEAT and LINKAT: inside one directory.
    fn two_paths(&mut self, mut request: Request, which: u8) -> Option<Request> {
        let link = request.opcode == opcode_of(Opcode::Linkat);
        let from = self.name(which, |kind| if link { kind == Some(false) } else { kind.is_some() })?;
        let to = self.name(which, |kind| kind.is_none())?;
        request.addr = Value::Path(from);
        request.off = Value::Path(to);
        match request.fd {
            Target::Number(number) => request.len = number as u32,
            // `len` takes a number: the directory is always the first descriptor but standard ones.
            _ if which == 0 => {
                request.fd = Target::Number(libc::AT_FDCWD);
                request.len = libc::AT_FDCWD as u32;
            }
            _ => request.len = FIRST_DESCRIPTOR + 1,
        }
        let kind = self.model.name(which, from);
        self.model.set_name(which, to, kind);
        if !link {
            request.op_flags = self.choose(&[0, 0, libc::RENAME_NOREPLACE]);
            self.model.set_name(which, from, None);
        }
        Some(request)
    }

    fn open(&mut self, mut request: Request, which: u8) -> Option<Request> {
        let creates = self.chance(2, 3);
        let name = self.name(which, |kind| if creates { kind != Some(true) } else { kind.is_some() })?;
        let flags = if creates {
            self.choose(&[0, libc::O_EXCL, libc::O_TRUNC, libc::O_APPEND]) | libc::O_CREAT | libc::O_RDWR
        } else {
            self.choose(&[libc::O_RDONLY, libc::O_PATH, libc::O_DIRECTORY])
        };
        request.addr = Value::Path(name);
        let mode = if creates { 0o640 } else { 0 };
        if request.opcode == opcode_of(Opcode::Openat2) {
            let resolve = self.choose(&[0, 0, 0x08, 0x04, 0x20]);
            (request.off, request.len) = (Value::How(flags as u64, mode, resolve), 24);
        } else {
            (request.op_flags, request.len) = (flags as u32, mode as u32);
        }
        if creates {
            self.model.set_name(which, name, Some(false));
        }
        self.place_descriptor(&mut request)?;
        Some(request)
    }

    /// The new descriptor becomes a number, or a registered file.
    pub(super) fn place_descriptor(&mut self, request: &mut Request) -> Option<()> {
        // In a user-space engine, a file to be registered has a number for a moment.
        if !self.claim(Claim::Numbers) {
            return None;
        }
        if self.chance(1, 4) {
            if !self.claim(Claim::Table) {
                return None;
            }
            let slot = self.model.free_slot();
            request.file_index = match slot {
                Some(slot) if self.chance(1, 2) => slot + 1,
                _ => IORING_FILE_INDEX_ALLOC as u32,
            };
            if let Some(slot) = slot {
                self.model.set_slot(slot, Some(End::Made(self.next_id)));
            }
            return Some(());
        }
        self.model.makes(self.next_id);
        Some(())
    }

    fn close(&mut self) -> Option<Request> {
        let mut request = Request::new(Opcode::Close);
        if self.chance(1, 4) {
            let start = self.below(self.model.slots());
            let slot = self.model.full_slot(start)?;
            if !self.claim(Claim::Table) {
                return None;
            }
            request.file_index = slot + 1;
            request.fd = Target::Number(0);
            self.model.set_slot(slot, None);
            return Some(request);
        }
        if !self.claim(Claim::Numbers) || self.model.made.is_empty() {
            return None;
        }
        let at = self.random.usize(0..self.model.made.len());
        let id = self.model.made.swap_remove(at);
        if !self.claim(Claim::Request(id)) {
            return None;
        }
        request.fd = Target::Of(End::Made(id));
        Some(request)
    }

    fn attribute(&mut self, opcode: Opcode) -> Option<Request> {
        let gets = matches!(opcode, Opcode::Fgetxattr | Opcode::Getxattr);
        // Paths of the xattr calls begin at the current directory.
        let by_path = matches!(opcode, Opcode::Setxattr | Opcode::Getxattr);
        let which = if by_path { 0 } else { self.random.u8(0..2) };
        let (file, path) = [(End::File(0), "f0"), (End::File(2), "f2")][usize::from(which)];
        let set = self.model.attributes.iter().filter(|(of, _)| *of == which).map(|(_, name)| *name);
        let set: Vec<&'static str> = set.collect();
        let name = if gets && !set.is_empty() { self.choose(&set) } else { self.choose(&ATTRIBUTES) };
        if !self.claim_end(file) || !self.claim(Claim::Names(which)) {
            return None;
        }
        if gets && !self.model.attributes.contains(&(which, name)) && !self.chance(1, 8) {
            return None;
        }
        let mut request = Request { addr: Value::Path(name), ..Request::new(opcode) };
        let bytes = if gets { self.choose(&[0, 40, 100]) } else { 1 + self.below(40) };
        request.len = bytes;
        request.off = if gets { Value::Sink(bytes) } else { Value::Source(bytes) };
        if matches!(opcode, Opcode::Fgetxattr | Opcode::Fsetxattr) {
            request.fd = Target::Of(file);
        } else {
            request.fd = Target::Number(0);
            request.addr3 = Value::Path(path);
        }
        if !gets {
            request.op_flags = self.choose(&[0, 0, libc::XATTR_CREATE as u32]);
            self.model.attributes.insert((which, name));
        }
        Some(request)
    }
}

/// The number of the first descriptor that a program has: the directory on disk.
pub const FIRST_DESCRIPTOR: u32 = 3;

/// An opcode's byte.
pub fn opcode_of(opcode: Opcode) -> u8 {
    opcode as u8
}

impl Model {
    /// True if a pipe's end can still be written.
    pub fn open_for_writing(&self, end: End) -> bool {
        !self.shut.contains(&end)
    }
}
