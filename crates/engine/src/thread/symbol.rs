//! Finds functions by name without dlsym(3): libc's own, and those that a symbol of anyring precedes.
//!
//! Another object may define a libc function before libc does. A garbage collector or a tracer does that with
//! pthread_create(3). Its version would wait for engine threads, or run in them.

use core::ffi::{c_int, c_void, CStr};
use libc::{dl_phdr_info, Elf64_Sym};

const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_DEBUG: i64 = 21;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// Names of glibc's objects with pthread_create(3).
const OBJECTS: [&CStr; 2] = [c"libc.so.6", c"libpthread.so.0"];

/// Elf64_Dyn.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

struct Search {
    name: &'static CStr,
    found: Option<usize>,
}

/// Returns the address of a libc function, if the loader knows a glibc.
pub fn of_libc(name: &'static CStr) -> Option<usize> {
    let mut search = Search { name, found: None };
    // SAFETY: `find_in_object` gets the loader's data, and `search`, which lives through the call.
    unsafe { libc::dl_iterate_phdr(Some(find_in_object), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn find_in_object(object: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader and `of_libc` give valid arguments for the time of this call. The loader keeps the headers
    // mapped and knows the object, so its tables are sound.
    unsafe {
        let search = &mut *search.cast::<Search>();
        let tables = Tables::of(&*object).filter(|tables| tables.is_libc());
        search.found = tables.and_then(|tables| tables.find(search.name));
        c_int::from(search.found.is_some())
    }
}

/// True if the object defines the symbol `name`.
///
/// # Safety
/// The loader has passed this description, in the call of dl_iterate_phdr(3) that is under way.
pub unsafe fn is_defined_by(object: &dl_phdr_info, name: &CStr) -> bool {
    // SAFETY: the caller's: the object is loaded.
    unsafe { Tables::of(object).is_some_and(|tables| tables.find(name).is_some()) }
}

/// Returns the address that dlsym(RTLD_NEXT, `name`) gives the object with the code at `own`: the definition in the
/// first object after it. For an object that was loaded late, the search starts again at the first object.
///
/// Makes no libc call: the caller may be a collector or tracer that is just resolving the functions it precedes.
/// dl_iterate_phdr(3) may be among them.
pub fn next_after(own: usize, name: &CStr) -> Option<usize> {
    let objects = || core::iter::successors(first_object(), |object| object.next());
    let ours = objects().filter(|object| object.base <= own).max_by_key(|object| object.base)?;
    // SAFETY: the loader's list contains only loaded objects.
    let found = |object: &'static LinkMap| unsafe { Tables::at(object.base, object.dynamic)?.find(name) };
    let is_other = |object: &&'static LinkMap| !core::ptr::eq(*object, ours);
    let after = core::iter::successors(ours.next(), |object| object.next()).find_map(found);
    after.or_else(|| objects().take_while(is_other).find_map(found))
}

/// The beginning of `struct link_map` of link.h.
#[repr(C)]
struct LinkMap {
    base: usize,
    _name: *const core::ffi::c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

impl LinkMap {
    fn next(&self) -> Option<&'static LinkMap> {
        // SAFETY: null, or the next of the list, which grows at its end.
        unsafe { self.next.as_ref() }
    }
}

/// Returns the base of each object that defines `name`, and the address that it defines. Objects in other namespaces
/// (dlmopen(3)) count if the loader lists them, as glibc does since 2.35.
///
/// # Safety
/// The loader's lists do not change, since the caller is a constructor: its thread holds the loader's lock.
pub unsafe fn definitions(name: &CStr) -> impl Iterator<Item = (usize, usize)> + '_ {
    let namespaces = core::iter::successors(first_namespace(), |namespace| namespace.next());
    // SAFETY: null, or the first of the namespace's list. The loader's lists contain only loaded objects.
    let first = |namespace: &'static Namespace| unsafe { namespace.first.as_ref() };
    let objects =
        namespaces.filter_map(first).flat_map(|first| core::iter::successors(Some(first), |object| object.next()));
    objects.filter_map(move |object| {
        // SAFETY: as above.
        let address = unsafe { Tables::at(object.base, object.dynamic)?.find(name)? };
        Some((object.base, address))
    })
}

/// Returns the program itself. It heads the loader's list, which is published for debuggers.
fn first_object() -> Option<&'static LinkMap> {
    // SAFETY: the loader keeps the list.
    first_namespace().and_then(|namespace| unsafe { namespace.first.as_ref() })
}

/// `struct r_debug_extended` of link.h: the objects of one namespace.
#[repr(C)]
struct Namespace {
    version: i32,
    first: *const LinkMap,
    _break: usize,
    _state: i32,
    _loader: usize,
    /// There from version 2 on, which the loader sets with the second namespace.
    next: *const Namespace,
}

impl Namespace {
    fn next(&self) -> Option<&'static Namespace> {
        if self.version < 2 {
            return None;
        }
        // SAFETY: null, or the next of the list, from which the loader removes nothing.
        unsafe { self.next.as_ref() }
    }
}

/// Returns the namespace of the program.
fn first_namespace() -> Option<&'static Namespace> {
    // SAFETY: the kernel, or the loader, gives the address of the program's headers. These give the address of the
    // program's table of entries, to which the loader has added the address of its list.
    unsafe {
        let (headers, count) = (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM));
        if headers == 0 {
            return None;
        }
        let table = core::slice::from_raw_parts(headers as *const libc::Elf64_Phdr, count as usize);
        let of_kind = |kind| table.iter().find(|header| header.p_type == kind);
        let base = of_kind(libc::PT_PHDR).map_or(0, |own| headers as usize - own.p_vaddr as usize);
        let dynamic = (base + of_kind(libc::PT_DYNAMIC)?.p_vaddr as usize) as *const Dynamic;
        (entry(dynamic, DT_DEBUG)? as *const Namespace).as_ref()
    }
}

/// Returns the value of an entry of an object's table.
///
/// # Safety
/// The table ends with an entry of tag 0.
unsafe fn entry(table: *const Dynamic, tag: i64) -> Option<usize> {
    // SAFETY: the caller's.
    unsafe {
        let mut entry = table;
        while (*entry).tag != 0 && (*entry).tag != tag {
            entry = entry.add(1);
        }
        ((*entry).tag == tag).then(|| (*entry).value as usize)
    }
}

/// The tables in which the loader looks names up. Source: elf(5). For the hash: `do_lookup_x` in glibc's
/// elf/dl-lookup.c.
struct Tables {
    base: usize,
    /// Address of the object's own name, if it has one.
    soname: Option<usize>,
    strings: usize,
    symbols: usize,
    hash: Hash,
}

/// The hash table by which a name is found.
enum Hash {
    Gnu(usize),
    /// The older table, used only for the number of symbols.
    Old(usize),
}

impl Tables {
    /// Returns the tables of the object that the loader describes.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn of(object: &dl_phdr_info) -> Option<Tables> {
        if object.dlpi_phdr.is_null() {
            return None;
        }
        let base = object.dlpi_addr as usize;
        // SAFETY: the caller's; the loader keeps the headers mapped and says how many there are.
        unsafe {
            let headers = core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
            let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
            Tables::at(base, base.wrapping_add(dynamic.p_vaddr as usize) as *const Dynamic)
        }
    }

    /// Returns the tables of the object that is loaded at `base` and has its table of entries at `entries`.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn at(base: usize, entries: *const Dynamic) -> Option<Tables> {
        // SAFETY: the caller's.
        let entry = |tag| unsafe { entry(entries, tag) };
        // glibc has made addresses of these values. Where it cannot write (the vDSO), and in musl, they are offsets
        // from the base.
        let table = |tag| entry(tag).map(|value| if value > base { value } else { base + value });
        let hash = table(DT_GNU_HASH).map(Hash::Gnu).or_else(|| table(DT_HASH).map(Hash::Old))?;
        let (strings, symbols) = (table(DT_STRTAB)?, table(DT_SYMTAB)?);
        Some(Tables { base, soname: entry(DT_SONAME).map(|offset| strings + offset), strings, symbols, hash })
    }

    /// True if the object is one of [`OBJECTS`].
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn is_libc(&self) -> bool {
        // SAFETY: the name is in the table of strings, which end with a zero.
        self.soname.is_some_and(|name| OBJECTS.contains(&unsafe { CStr::from_ptr(name as *const _) }))
    }

    /// Returns the address that the symbol at `index` defines, if the symbol's name is `name`.
    ///
    /// # Safety
    /// The object is loaded, and has at least that many symbols.
    unsafe fn defined(&self, index: u32, name: &CStr) -> Option<usize> {
        // SAFETY: the caller's; names are strings of the object's.
        let (symbol, its) = unsafe {
            let symbol = &*(self.symbols as *const Elf64_Sym).add(index as usize);
            (symbol, CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _))
        };
        (symbol.st_shndx != 0 && its == name).then(|| self.base + symbol.st_value as usize)
    }

    /// Returns the address that the object defines for `name`.
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn find(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the caller's: the tables are as the linker made them.
        unsafe {
            match self.hash {
                Hash::Gnu(table) => self.find_by_hash(table as *const u32, name),
                Hash::Old(table) => {
                    let symbols = *(table as *const u32).add(1);
                    (0..symbols).find_map(|index| self.defined(index, name))
                }
            }
        }
    }

    /// Looks `name` up in the GNU hash table at `words`.
    ///
    /// # Safety
    /// The object is loaded, and its hash table is at `words`.
    unsafe fn find_by_hash(&self, words: *const u32, name: &CStr) -> Option<usize> {
        let hash =
            name.to_bytes().iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()));
        // SAFETY: four words, the filter of 8-byte words, then the buckets and chains of 4-byte words, as the linker
        // made them.
        unsafe {
            let [buckets, first, filter] = [0, 1, 2].map(|at| *words.add(at));
            let heads = words.add(4 + 2 * filter as usize);
            let chains = heads.add(buckets as usize);
            let mut index = *heads.add((hash % buckets) as usize);
            while index >= first {
                let link = *chains.add((index - first) as usize);
                let defined = if link | 1 == hash | 1 { self.defined(index, name) } else { None };
                if defined.is_some() || link & 1 != 0 {
                    return defined;
                }
                index += 1;
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_libc_are_found() {
        assert_eq!(of_libc(c"pthread_create"), Some(libc::pthread_create as *const () as usize));
        assert_eq!(of_libc(c"no_such_function"), None);
    }

    #[test]
    fn functions_after_an_object_are_found() {
        let program = functions_after_an_object_are_found as *const () as usize;
        assert_eq!(next_after(program, c"pthread_create"), Some(libc::pthread_create as *const () as usize));
        // libc's own name for it is not found after libc, so the search starts again at the beginning.
        let libcs = libc::getpid as *const () as usize;
        assert_ne!(next_after(libcs, c"getpid"), Some(libcs));
        assert_eq!(next_after(program, c"no_such_function"), None);
    }
}
