//! Functions of libc's own, past every object that puts one of its own in front: a collector or tracer does that with
//! pthread_create(3), and would wait for threads of ours, or run in them.

use core::ffi::{c_int, c_void, CStr};
use libc::{dl_phdr_info, Elf64_Sym};

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_SONAME: i64 = 14;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// What glibc's objects with pthread_create(3) are called.
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

/// The address of a function of libc's, if it is a glibc that the loader knows.
pub fn of_libc(name: &'static CStr) -> Option<usize> {
    let mut search = Search { name, found: None };
    // SAFETY: `look` gets the loader's data, and `search`, which is there through the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}

unsafe extern "C" fn look(object: *mut dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's and `of_libc`'s, for the time of this call.
    let (object, search) = unsafe { (&*object, &mut *search.cast::<Search>()) };
    // SAFETY: the loader knows the object, so that its tables are mapped and sound.
    search.found = unsafe { Tables::of(object).and_then(|tables| tables.find(search.name)) };
    c_int::from(search.found.is_some())
}

/// What the loader looks names up in. Source: elf(5), and `do_lookup_x` in glibc's elf/dl-lookup.c for the hash.
struct Tables {
    base: usize,
    strings: usize,
    symbols: usize,
    hash: usize,
}

impl Tables {
    /// Those of one of [`OBJECTS`].
    ///
    /// # Safety
    /// The object is loaded.
    unsafe fn of(object: &dl_phdr_info) -> Option<Tables> {
        let base = object.dlpi_addr as usize;
        let entry = |tag| {
            // SAFETY: the caller's; the table of entries ends with one of tag 0.
            unsafe {
                let headers = core::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
                let dynamic = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC)?;
                let mut entry = (base + dynamic.p_vaddr as usize) as *const Dynamic;
                while (*entry).tag != 0 && (*entry).tag != tag {
                    entry = entry.add(1);
                }
                ((*entry).tag == tag).then(|| (*entry).value as usize)
            }
        };
        // glibc has made addresses of these; where it cannot write (the vDSO), they are below.
        let table = |tag| entry(tag).filter(|address| *address > base);
        let strings = table(DT_STRTAB)?;
        // SAFETY: the name is in the table of strings, which end with a zero.
        let name = unsafe { CStr::from_ptr((strings + entry(DT_SONAME)?) as *const _) };
        let tables = Tables { base, strings, symbols: table(DT_SYMTAB)?, hash: table(DT_GNU_HASH)? };
        OBJECTS.contains(&name).then_some(tables)
    }

    /// # Safety
    /// The object is loaded.
    unsafe fn find(&self, name: &CStr) -> Option<usize> {
        let hash =
            name.to_bytes().iter().fold(5381_u32, |hash, byte| hash.wrapping_mul(33).wrapping_add((*byte).into()));
        // SAFETY: four words, the filter's of 8 bytes, the buckets' and the chains' of 4: as the linker made them.
        unsafe {
            let words = self.hash as *const u32;
            let [buckets, first, filter] = [0, 1, 2].map(|at| *words.add(at));
            let heads = words.add(4 + 2 * filter as usize);
            let chains = heads.add(buckets as usize);
            let mut index = *heads.add((hash % buckets) as usize);
            while index >= first {
                let link = *chains.add((index - first) as usize);
                let symbol = &*(self.symbols as *const Elf64_Sym).add(index as usize);
                let its = CStr::from_ptr((self.strings + symbol.st_name as usize) as *const _);
                if link | 1 == hash | 1 && its == name && symbol.st_shndx != 0 {
                    return Some(self.base + symbol.st_value as usize);
                }
                if link & 1 != 0 {
                    break;
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
}
