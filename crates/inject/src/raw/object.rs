//! The objects mapped into the process whose code may hold raw `syscall` instructions.

use super::dlopen;
use super::scan::{self, Sites};
use crate::{backend, copy, sys};
use anyring_engine::{alloc, Errno};
use core::ffi::{c_int, c_void, CStr};
use core::ops::Range;
use libc::dl_phdr_info;
use std::ffi::CString;

/// One executable segment with its `syscall` instructions.
pub struct Object {
    /// Where the segment is mapped.
    pub code: Range<usize>,
    /// The addresses of the instructions.
    pub sites: Vec<usize>,
    /// Whether the loader mapped it readable and executable only.
    pub is_plain: bool,
    /// Whether one of the instructions is sure to make io_uring_enter(2).
    pub enters: bool,
    /// Whether one may change the identity of its thread.
    pub may_change_identity: bool,
    /// A hash of the name of what was loaded there.
    pub name: u64,
}

impl Object {
    /// Tells it from another object, or the same at another place.
    pub fn identity(&self) -> u64 {
        self.name ^ self.code.start as u64
    }
}

/// What was looked at before: a segment is scanned once, as long as it stays mapped.
#[derive(Default)]
pub struct Known {
    /// Those segments in which there are sites.
    pub objects: Vec<Object>,
    /// Whether some instruction, here or elsewhere, may close a descriptor without a wrapper or the filter seeing it.
    pub may_close: bool,
    /// Whether some instruction elsewhere may change the identity of its thread.
    pub may_change_identity: bool,
    /// Whether some instruction may make a process that runs in this memory.
    pub may_lend_memory: bool,
    /// The code that must reach the kernel as it is ([`is_exempt`]). It is never unmapped.
    pub exempt: Vec<Range<usize>>,
    /// Whether a library was passed over at start since this one stands before all its functions.
    passed_over: bool,
    /// Whether the program was running when it was first looked through.
    is_late: bool,
    /// Whether what is loaded may go meanwhile.
    pub holder: Holder,
    segments: Vec<Seen>,
    /// The loader's count of objects ever added.
    additions: u64,
}

impl Known {
    /// Nothing yet, of a program that runs.
    pub fn late() -> Known {
        Known { is_late: true, ..Known::default() }
    }
}

/// Who keeps what is loaded where it is while it is looked through.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// It is kept one by one: see [`Kept`].
    #[default]
    Nobody,
    /// The calling thread holds the loader's lock. What is only just mapped must not be opened.
    Loader,
}

#[derive(PartialEq)]
struct Seen {
    code: Range<usize>,
    /// Tells an object from another that was loaded at the same place later.
    name: u64,
}

/// An executable segment, as the loader told of it under its lock. What takes longer than that is done without: a thread that
/// forks meanwhile would leave the lock held in its child.
struct Listed {
    seen: Seen,
    /// The object's name, which is empty for the program itself.
    path: CString,
    /// `PF_*`.
    flags: u32,
}

struct Search {
    /// The loader's count when last looked.
    known_additions: u64,
    additions: u64,
    listed: Result<Vec<Listed>, Errno>,
}

/// Brings `known` up to date; answers where in its `objects` those begin that were mapped since the last time. What there is no
/// memory for is looked at the next time.
pub fn look(known: &mut Known) -> usize {
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
        (known.may_close, known.may_lend_memory) = (true, true); // nobody has looked
        return known.objects.len();
    };
    let at_start = core::mem::replace(&mut known.additions, search.additions) == 0;
    if listed.is_empty() {
        return known.objects.len();
    }
    for segment in listed {
        // Everything present at the start was loaded with the program, so that its symbols were bound after ours. Whatever uses
        // one that was loaded later past our symbols has made its rings there, too, of the kernel.
        if at_start && is_replaced(&segment.path) {
            known.passed_over = true;
            continue;
        }
        let is_new = !known.segments.contains(&segment.seen);
        if is_new && (is_exempt(&segment.seen.code) || is_copy(&segment.path)) {
            known.exempt.push(segment.seen.code.clone());
        } else if is_new {
            // What the program was started with stays; another thread may be closing a library that was added. One that is
            // gone has not been seen: it may come back to the same place.
            let stays = at_start && !known.is_late || known.holder == Holder::Loader;
            let kept = if stays { None } else { Some(Kept::take(&segment)) };
            if matches!(kept, Some(None)) {
                continue;
            }
            match look_through(known, &segment) {
                Ok(object) => found.extend(object),
                Err(_) => {
                    (known.may_close, known.may_lend_memory) = (true, true); // nobody has looked
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

/// Scans a segment, whose object stays mapped meanwhile.
fn look_through(known: &mut Known, segment: &Listed) -> Result<Option<Object>, Errno> {
    let range = &segment.seen.code;
    if segment.flags & libc::PF_R == 0 {
        (known.may_close, known.may_change_identity, known.may_lend_memory) = (true, true, true); // nobody can look
        return Ok(None);
    }
    if range.len() >= LARGE {
        if !backend::serves_instructions() {
            return Ok(None); // nobody is going to ask for the sites
        }
        populate(range);
    }
    // SAFETY: the loader mapped these bytes readable, and does not unmap the object while the caller keeps it. A program
    // that rewrites its own code meanwhile may spoil the finding, but no memory.
    let code = unsafe { core::slice::from_raw_parts(range.start as *const u8, range.len()) };
    let Sites { offsets: sites, may_close, may_change_identity, may_lend_memory } = scan::sites(code)?;
    let is_of_rings = closes_rings_only(&segment.path);
    known.may_close |= may_close && !is_of_rings;
    known.may_lend_memory |= may_lend_memory && !is_of_rings;
    if sites.is_empty() {
        known.may_change_identity |= may_change_identity;
        return Ok(None);
    }
    let enters = sites.iter().any(|site| scan::follows_load_of_enter(code, *site));
    let sites = sites.into_iter().map(|offset| range.start + offset).collect();
    let (is_plain, name) = (segment.flags & libc::PF_W == 0, segment.seen.name);
    Ok(Some(Object { code: range.clone(), sites, is_plain, enters, may_change_identity, name }))
}

/// Keeps an object from being unmapped.
struct Kept(*mut c_void);

impl Kept {
    /// None when the segment's object is gone.
    fn take(segment: &Listed) -> Option<Kept> {
        let name = if segment.path.is_empty() { core::ptr::null() } else { segment.path.as_ptr() };
        let kept = Kept(dlopen::object_named(name)?);
        let told = copy::told_of(segment.seen.code.start as *const c_void)?;
        // Another object may be there by now, under the same name at another place.
        (segment.path.is_empty() || hash(told.dli_fname) == segment.seen.name).then_some(kept)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: a handle of our own, made by `take`.
        unsafe { libc::dlclose(self.0) };
    }
}

/// dlopen(3) has answered `handle`. If it is a library's that was passed over, its functions can be had by the handle, past our
/// symbols: the next [`look`] looks it through, though nothing was added.
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
    // SAFETY: a handle that the loader has just answered; it fills in the pointer.
    let told = unsafe { libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) } == 0;
    if !told || map.is_null() {
        return;
    }
    // SAFETY: what the loader told lives as long as the handle, which is the caller's; it names objects by C strings.
    let path = unsafe { (!(*map).name.is_null()).then(|| CStr::from_ptr((*map).name)) };
    if path.and_then(known_function).is_some() {
        known.passed_over = false;
        known.additions = u64::MAX; // as many as there never are
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
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_X != 0)
    {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let seen = Seen { code: start..start + header.p_filesz as usize, name: hash(info.dlpi_name) };
        let room = alloc::reserve();
        let Ok(listed) = &mut search.listed else { return 1 };
        let one = Listed { seen, path: name.to_owned(), flags: header.p_flags };
        if let Err(error) = room.and_then(|()| alloc::push(listed, one)) {
            search.listed = Err(error);
        }
    }
    0
}

/// From this size on a segment takes longer to scan than it takes to ask whether that is needed.
const LARGE: usize = 256 * 1024;

/// Maps all pages of a segment at once, which takes a third of the time of one fault after the other.
fn populate(code: &Range<usize>) {
    const PAGE: usize = 4096;
    let start = code.start & !(PAGE - 1);
    // SAFETY: MADV_POPULATE_READ changes no contents. An older kernel refuses it, and the faults happen singly.
    unsafe { sys::call(libc::SYS_madvise, [start, code.end - start, libc::MADV_POPULATE_READ as usize, 0, 0, 0]) };
}

/// Whether `path` is a liburing or libaio all of whose functions this library stands before, so that its instructions are never
/// reached: a filter for them would cost a program like qemu its setuid helpers for nothing. One that is loaded by
/// dlopen later may be used by its handle, past our symbols, and is looked through.
fn is_replaced(path: &CStr) -> bool {
    let Some(function) = known_function(path) else { return false };
    // SAFETY: a C string; the first definition in the process is asked for.
    copy::is_ours(unsafe { libc::dlsym(libc::RTLD_DEFAULT, function.as_ptr()) })
}

/// Whether `path` is another copy of this library, by its file's name. It serves nobody.
fn is_copy(path: &CStr) -> bool {
    file_of(path).starts_with(b"libanyring.so")
}

/// Whether `path` is a liburing or libaio. The one closes the descriptors of its rings and nothing else (io_uring_queue_exit(3),
/// io_uring_close_ring_fd(3) and setup that failed), the other none: neither takes a file away from under a request.
fn closes_rings_only(path: &CStr) -> bool {
    known_function(path).is_some()
}

/// The name of a file in its folder.
fn file_of(path: &CStr) -> &[u8] {
    path.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// By its file's name: a function of the liburing or libaio that `path` is.
fn known_function(path: &CStr) -> Option<&'static CStr> {
    let file = file_of(path);
    let libraries = [
        (&b"liburing.so"[..], c"io_uring_submit"),
        (b"liburing-ffi.so", c"io_uring_submit"),
        (b"libaio.so", c"io_submit"),
    ];
    libraries.iter().find(|(start, _)| file.starts_with(start)).map(|(_, function)| *function)
}

/// The code that must reach the kernel as it is: this library (decision 10), the vdso, the loader and libc, whose
/// functions are wrapped by name where it matters.
fn is_exempt(code: &Range<usize>) -> bool {
    // SAFETY: reads the auxiliary vector.
    let (vdso, loader) = unsafe { (libc::getauxval(libc::AT_SYSINFO_EHDR), libc::getauxval(libc::AT_BASE)) };
    let same_object = |base: u64| base != 0 && (base as usize..base as usize + LOADER_SPAN).contains(&code.start);
    let functions = [list as *const () as usize, libc::getauxval as *const () as usize];
    functions.iter().any(|function| code.contains(function)) || same_object(vdso) || same_object(loader)
}

/// The vdso and the loader are smaller than this, headers to code.
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
