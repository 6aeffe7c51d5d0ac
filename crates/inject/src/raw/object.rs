//! The objects mapped into the process whose code may hold raw `syscall` instructions.

use super::dlopen;
use super::island::{self, Region};
use super::scan::{self, Sites};
use crate::{backend, copy, sys};
use anyring_engine::os::arch::page_bytes;
use anyring_engine::thread::symbol;
use anyring_engine::{alloc, Errno};
use core::ffi::{c_int, c_void, CStr};
use core::ops::Range;
use libc::dl_phdr_info;
use std::ffi::CString;

/// One executable segment with its `syscall` instructions.
pub struct Object {
    /// The addresses at which the segment is mapped.
    pub code: Range<usize>,
    /// The addresses of the instructions.
    pub sites: Vec<usize>,
    /// True if the loader mapped it readable and executable only.
    pub is_plain: bool,
    /// True if one of the instructions is sure to make io_uring_enter(2).
    pub enters: bool,
    /// True if one of the instructions may change the identity of its thread.
    pub may_change_identity: bool,
    /// A hash of the object's name.
    pub name: u64,
    /// The memory for islands.
    pub islands: Region,
}

#[cfg_attr(target_arch = "aarch64", expect(dead_code))] // its islands are unmapped with the object
impl Object {
    /// Returns a value that differs between objects, and between the places of one object.
    pub fn identity(&self) -> u64 {
        self.name ^ self.code.start as u64
    }
}

/// The results of earlier scans. A segment that stays mapped is not scanned again.
#[derive(Default)]
pub struct Known {
    /// The segments that have sites.
    pub objects: Vec<Object>,
    /// True if some instruction, in these segments or others, may close a descriptor unnoticed by the wrappers and the
    /// filters.
    pub may_close: bool,
    /// True if some instruction outside these segments may change the identity of its thread.
    pub may_change_identity: bool,
    /// True if some instruction may make a child process that runs in this process's memory.
    pub may_lend_memory: bool,
    /// The code whose calls must reach the kernel unchanged ([`is_exempt`]). It is never unmapped.
    pub exempt: Vec<Range<usize>>,
    /// True if the scan at the start left out a library because this one pre-empts all its functions.
    passed_over: bool,
    /// True if the program was already running at the first scan.
    is_late: bool,
    /// The holder that keeps loaded objects from being unmapped during a scan.
    pub holder: Holder,
    segments: Vec<Seen>,
    /// The loader's count of objects ever added.
    additions: u64,
}

impl Known {
    /// Returns an empty record for a program that is already running.
    pub fn late() -> Known {
        Known { is_late: true, ..Known::default() }
    }
}

/// A holder that keeps loaded objects from being unmapped during a scan.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// Nobody yet: the scan keeps the objects one by one ([`Kept`]).
    #[default]
    Nobody,
    /// The calling thread holds the loader's lock. An object that was only just mapped must not be opened.
    Loader,
}

#[derive(PartialEq)]
struct Seen {
    code: Range<usize>,
    /// Distinguishes an object from another that was loaded at the same place later.
    name: u64,
}

/// An executable segment, as listed while the loader's lock was held. The slower work is done after the lock is
/// released. If another thread forked while the lock is held, it would stay held in the child.
struct Listed {
    seen: Seen,
    /// The object's name, which is empty for the program itself.
    path: CString,
    /// `PF_*`.
    flags: u32,
    /// True if the object is a copy of this library. Such a copy serves nobody.
    is_copy: bool,
}

struct Search {
    /// The loader's count when last looked.
    known_additions: u64,
    additions: u64,
    listed: Result<Vec<Listed>, Errno>,
}

/// Scans what was mapped since the last call. Returns the index in `known.objects` of the first new object. An object
/// for which there is no memory is scanned the next time.
pub fn scan_new(known: &mut Known) -> usize {
    let mut search =
        Search { known_additions: known.additions, additions: known.additions, listed: Ok(Vec::new()) };
    // SAFETY: `list` is called back with `search`, for each object, before this returns.
    unsafe { libc::dl_iterate_phdr(Some(list), (&raw mut search).cast()) };
    let (mut present, mut found) = (Vec::new(), Vec::new());
    let listed = search.listed.and_then(|listed| {
        present.try_reserve_exact(listed.len()).map_err(alloc::refused)?;
        Ok(listed)
    });
    let Ok(listed) = listed else {
        (known.may_close, known.may_lend_memory) = (true, true); // not scanned
        return known.objects.len();
    };
    let at_start = core::mem::replace(&mut known.additions, search.additions) == 0;
    if listed.is_empty() {
        return known.objects.len();
    }
    for segment in listed {
        // An object present at the start was loaded with the program, so this library's symbols come before its own. A
        // library that is loaded later may be used by its handle, without this library's symbols. Then its rings are
        // the kernel's.
        if at_start && is_replaced(&segment.path) {
            known.passed_over = true;
            continue;
        }
        let is_new = !known.segments.contains(&segment.seen);
        if is_new && (is_exempt(&segment.seen.code) || segment.is_copy) {
            known.exempt.push(segment.seen.code.clone());
        } else if is_new {
            // Objects that the program was started with stay. Another thread may be closing a library that was added. A
            // library that is gone is not recorded: it may come back to the same place.
            let stays = at_start && !known.is_late || known.holder == Holder::Loader;
            let kept = if stays { None } else { Some(Kept::open(&segment)) };
            if matches!(kept, Some(None)) {
                continue;
            }
            match scan(known, &segment) {
                Ok(object) => found.extend(object),
                Err(_) => {
                    (known.may_close, known.may_lend_memory) = (true, true); // not scanned
                    continue;
                }
            }
        }
        present.push(segment.seen);
    }
    known.segments = present;
    let Known { objects, segments, .. } = known;
    let is_new = |code: &Range<usize>| found.iter().any(|object: &Object| object.code == *code);
    objects.retain(|object| segments.iter().any(|seen| seen.code == object.code) && !is_new(&object.code));
    let first_new = objects.len();
    objects.extend(found);
    first_new
}

/// Scans a segment. The caller keeps the segment's object mapped during the scan.
fn scan(known: &mut Known, segment: &Listed) -> Result<Option<Object>, Errno> {
    let range = &segment.seen.code;
    if segment.flags & libc::PF_R == 0 {
        (known.may_close, known.may_change_identity, known.may_lend_memory) = (true, true, true); // unreadable
        return Ok(None);
    }
    if range.len() >= LARGE {
        if !backend::serves_instructions() {
            return Ok(None); // the sites will not be needed
        }
        populate(range);
    }
    // SAFETY: the loader mapped these bytes readable, and does not unmap the object while the caller keeps it. A
    // program that rewrites its own code during the scan may spoil the finding, but no memory.
    let code = unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) };
    let Sites { offsets, mut may_close, may_change_identity, mut may_lend_memory } = scan::sites(code)?;
    let mut sites = Vec::new();
    for site in offsets.into_iter().map(|offset| range.start + offset) {
        alloc::push(&mut sites, site)?;
    }
    for site in island::sites_in(range) {
        alloc::push(&mut sites, site)?;
        (may_close, may_lend_memory) = (true, true);
    }
    let is_of_rings = closes_rings_only(&segment.path);
    known.may_close |= may_close && !is_of_rings;
    known.may_lend_memory |= may_lend_memory && !is_of_rings;
    if sites.is_empty() {
        known.may_change_identity |= may_change_identity;
        return Ok(None);
    }
    let enters = sites.iter().any(|site| scan::follows_load_of_enter(code, *site - range.start));
    let (is_plain, name) = (segment.flags & libc::PF_W == 0, segment.seen.name);
    let islands = Region::reserve(range);
    Ok(Some(Object { code: range.clone(), sites, is_plain, enters, may_change_identity, name, islands }))
}

/// Keeps an object from being unmapped.
struct Kept(*mut c_void);

impl Kept {
    /// Returns None if the segment's object is gone.
    fn open(segment: &Listed) -> Option<Kept> {
        let name = if segment.path.is_empty() { core::ptr::null() } else { segment.path.as_ptr() };
        let kept = Kept(dlopen::object_named(name)?);
        let info = copy::loader_info(segment.seen.code.start as *const c_void)?;
        // Another object may be there by now, under the same name at another place.
        (segment.path.is_empty() || hash(info.dli_fname) == segment.seen.name).then_some(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: a handle that `take` has made.
        unsafe { libc::dlclose(self.0) };
    }
}

/// Records that dlopen(3) has returned `handle`. If the first scan left that library out, the program can now call its
/// functions by the handle, past this library's symbols. The next [`scan_new`] then scans it, though nothing was added.
pub fn opened(known: &mut Known, handle: *mut c_void) {
    // The beginning of link.h's struct link_map.
    #[repr(C)]
    struct LinkMap {
        _address: usize,
        name: *const core::ffi::c_char,
    }
    if !known.passed_over || handle.is_null() {
        return;
    }
    let mut map: *const LinkMap = core::ptr::null();
    // SAFETY: a handle that the loader has just returned; it fills in the pointer.
    let is_known = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) } == 0;
    if !is_known || map.is_null() {
        return;
    }
    // SAFETY: the loader's map lives as long as the handle, which is the caller's; it names objects by C strings.
    let path = unsafe { (!(*map).name.is_null()).then(|| CStr::from_ptr((*map).name)) };
    if path.and_then(known_function).is_some() {
        known.passed_over = false;
        known.additions = u64::MAX; // a count that never occurs
    }
}

unsafe extern "C" fn list(info: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid object description and our own argument, and calls from one thread.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if search.known_additions == info.dlpi_adds {
        return 1;
    }
    search.additions = info.dlpi_adds;
    let headers = if info.dlpi_phdr.is_null() {
        &[]
    } else {
        // SAFETY: the loader keeps the program headers mapped and says how many there are.
        unsafe { core::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) }
    };
    let name = match info.dlpi_name.is_null() {
        true => c"",
        // SAFETY: the loader names objects by C strings.
        false => unsafe { CStr::from_ptr(info.dlpi_name) },
    };
    // SAFETY: the loader's description, in its own call.
    let is_copy = unsafe { symbol::is_defined_by(info, copy::NAME) };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
    {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let seen = Seen { code: start..start + header.p_filesz as usize, name: hash(info.dlpi_name) };
        let room = alloc::reserve();
        let Ok(listed) = &mut search.listed else { return 1 };
        let one = Listed { seen, path: name.to_owned(), flags: header.p_flags, is_copy };
        if let Err(error) = room.and_then(|()| alloc::push(listed, one)) {
            search.listed = Err(error);
        }
    }
    0
}

/// Size in bytes above which scanning a segment takes longer than checking whether the scan is necessary.
const LARGE: usize = 256 * 1024;

/// Maps all pages of a segment at once, which takes a third of the time of one page fault after the other.
fn populate(code: &Range<usize>) {
    let start = code.start & !(page_bytes() - 1);
    // SAFETY: MADV_POPULATE_READ changes no contents. An older kernel refuses it, and the faults happen one by one.
    unsafe { sys::call(libc::SYS_madvise, [start, code.end - start, libc::MADV_POPULATE_READ as usize, 0, 0, 0]) };
}

/// True if `path` is a liburing or libaio whose functions are all pre-empted by this library's, so that its
/// instructions are never reached. A filter for them would needlessly deny a program like qemu its setuid helpers. A
/// library that dlopen loads later may be used by its handle, past this library's symbols. It is scanned.
fn is_replaced(path: &CStr) -> bool {
    let Some(function) = known_function(path) else { return false };
    // SAFETY: a C string; looks up the first definition in the process.
    copy::is_ours(unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) })
}

/// True if `path` is a liburing or libaio. Neither closes a file in use by a request. liburing closes the descriptors
/// of its rings only (io_uring_queue_exit(3), io_uring_close_ring_fd(3) and a failed setup), libaio none.
fn closes_rings_only(path: &CStr) -> bool {
    known_function(path).is_some()
}

/// Returns the last component of a path.
fn file_of(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Returns a function of the liburing or libaio that `path` is, by its file's name.
fn known_function(path: &CStr) -> Option<&'static CStr> {
    let file = file_of(path);
    let libraries = [
        (&b"liburing.so"[..], c"io_uring_submit"),
        (b"liburing-ffi.so", c"io_uring_submit"),
        (b"libaio.so", c"io_submit"),
    ];
    libraries.iter().find(|(start, _)| file.starts_with(start)).map(|(_, function)| *function)
}

/// True for code whose calls must reach the kernel unchanged: this library (decision 10), the vdso, the loader and
/// libc. libc's functions are wrapped by name where it matters.
fn is_exempt(code: &Range<usize>) -> bool {
    // SAFETY: reads the auxiliary vector.
    let (vdso, loader) = unsafe { (libc::getauxval(libc::AT_SYSINFO_EHDR), libc::getauxval(libc::AT_BASE)) };
    let same_object = |base: u64| base != 0 && (base as usize..base as usize + LOADER_SPAN).contains(&code.start);
    let functions = [list as *const () as usize, libc::getauxval as *const () as usize];
    functions.iter().any(|function| code.contains(function)) || same_object(vdso) || same_object(loader)
}

/// A distance in bytes. In the vdso and the loader the code is closer to the ELF header than this.
const LOADER_SPAN: usize = 0x10000;

/// FNV-1a of an object's name.
fn hash(name: *const core::ffi::c_char) -> u64 {
    if name.is_null() {
        return 0;
    }
    // SAFETY: the loader names objects by C strings.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
