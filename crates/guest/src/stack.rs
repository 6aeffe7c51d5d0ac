//! The guest's first stack: the words that the kernel put at the top of the host's, with other arguments and
//! auxiliary vector.

use crate::loader::Loaded;
use crate::script::Program;
use anyring_serve::sys;
use core::ffi::{c_char, CStr};

/// The words that the kernel put at the top of the host's stack. They are the arguments, the
/// environment and the auxiliary vector, each with its end. All strings are at higher addresses.
pub struct First {
    arguments: *const *const c_char,
    count: usize,
}

/// The state with which the guest begins.
pub struct Begin {
    pub entry: usize,
    pub stack: usize,
    /// The words to be copied to `stack` when the host no longer needs that memory.
    pub words: Vec<usize>,
}

impl First {
    /// # Safety
    /// The arguments are those that the kernel has passed to the process, unchanged. They stay for as long as the
    /// host runs on this stack.
    pub unsafe fn new(count: usize, arguments: *const *const c_char) -> First {
        First { arguments, count }
    }

    fn word(&self, index: usize) -> usize {
        // SAFETY: `new`'s caller vouches for it; no caller goes past the end of the auxiliary vector.
        unsafe { self.arguments.add(index).cast::<usize>().read() }
    }

    /// Returns the arguments.
    pub fn arguments(&self) -> Vec<&'static CStr> {
        // SAFETY: each argument is a C string, which stays.
        (0..self.count).map(|index| unsafe { CStr::from_ptr(self.word(index) as *const c_char) }).collect()
    }

    /// Returns the addresses of the environment's strings.
    pub fn environment(&self) -> Vec<usize> {
        (self.count + 1..).map(|index| self.word(index)).take_while(|string| *string != 0).collect()
    }

    /// Returns the auxiliary vector, with its end.
    pub fn vector(&self) -> Vec<(usize, usize)> {
        let start = self.count + 1 + self.environment().len() + 1;
        let mut vector = Vec::new();
        for index in (start..).step_by(2) {
            let entry = (self.word(index), self.word(index + 1));
            vector.push(entry);
            if entry.0 == libc::AT_NULL as usize {
                break;
            }
        }
        vector
    }

    /// Returns the stack of `program`, whose arguments are those from `first` on.
    pub fn of_guest(&self, first: usize, program: &Program, loaded: &Loaded, name: &CStr) -> Begin {
        let mut strings: Vec<usize> = (first..self.count).map(|index| self.word(index)).collect();
        if let Some(added) = &program.arguments {
            strings = in_one_block(added, strings.get(1..).unwrap_or(&[]));
        }
        let (environment, vector) = (self.environment(), self.vector());
        let after = self.count + 1 + environment.len() + 1 + vector.len() * 2;
        let environment: Vec<usize> = environment.into_iter().filter_map(without_library).collect();
        let top = self.arguments.wrapping_add(after) as usize;
        let name = Box::leak(name.to_owned().into_boxed_c_str()).as_ptr() as usize;
        let mut words = vec![strings.len()];
        words.extend(&strings);
        words.push(0);
        words.extend(&environment);
        words.push(0);
        let auxiliary = words.len();
        let (image, loader) = (&loaded.program, &loaded.loader);
        for (kind, value) in vector {
            let value = match kind as u64 {
                libc::AT_PHDR => image.headers,
                libc::AT_PHNUM => image.header_count,
                libc::AT_BASE => loader.as_ref().map_or(0, |loader| loader.base),
                libc::AT_ENTRY => image.entry,
                libc::AT_EXECFN => name,
                _ => value,
            };
            words.extend([kind, value]);
        }
        let stack = (top - words.len() * size_of::<usize>()) & !15;
        set_kernel_records(loaded, &strings, environment.first().copied(), &words[auxiliary..]);
        Begin { entry: loader.as_ref().map_or(image.entry, |loader| loader.entry), stack, words }
    }
}

/// Returns a string of the environment without the library in LD_PRELOAD, or `None` if nothing remains. The library is
/// not for guests. When a guest executes a program that needs it, the library is added again.
fn without_library(string: usize) -> Option<usize> {
    const LIBRARY: &[u8] = b"libanyring.so";
    // SAFETY: a string of the first stack's environment.
    let text = unsafe { CStr::from_ptr(string as *const c_char) }.to_bytes();
    let Some(list) = text.strip_prefix(b"LD_PRELOAD=") else { return Some(string) };
    let all = list.split(|byte| b": \t\n".contains(byte)).filter(|name| !name.is_empty());
    let others: Vec<&[u8]> = all.clone().filter(|name| !name.ends_with(LIBRARY)).collect();
    if others.len() == all.count() {
        return Some(string);
    }
    let kept = [b"LD_PRELOAD=", others.join(&b':').as_slice(), b"\0"].concat();
    (!others.is_empty()).then(|| kept.leak().as_ptr() as usize)
}

/// Copies arguments so that they follow each other in memory, as in /proc/PID/cmdline.
fn in_one_block(added: &[Vec<u8>], others: &[usize]) -> Vec<usize> {
    let mut bytes = Vec::new();
    let mut starts = Vec::new();
    for argument in added {
        starts.push(bytes.len());
        bytes.extend_from_slice(argument);
        bytes.push(0);
    }
    for other in others {
        starts.push(bytes.len());
        // SAFETY: one of the first stack's arguments.
        bytes.extend_from_slice(unsafe { CStr::from_ptr(*other as *const c_char) }.to_bytes_with_nul());
    }
    let block = bytes.leak().as_ptr() as usize;
    starts.into_iter().map(|start| block + start).collect()
}

/// Returns the address after the end of the string at this address.
fn end_of(string: usize) -> usize {
    // SAFETY: an argument or a string of the environment.
    string + unsafe { CStr::from_ptr(string as *const c_char) }.to_bytes_with_nul().len()
}

/// Makes /proc/PID/cmdline, environ and auxv show the guest's arguments, environment and auxiliary vector. If the
/// kernel does not support that (no checkpoint and restore, no /proc), these files keep showing the host's.
fn set_kernel_records(loaded: &Loaded, arguments: &[usize], environment: Option<usize>, auxiliary: &[usize]) {
    /// struct prctl_mm_map (linux/prctl.h).
    #[repr(C)]
    struct Map {
        start_code: usize,
        end_code: usize,
        start_data: usize,
        end_data: usize,
        start_break: usize,
        current_break: usize,
        start_stack: usize,
        argument_start: usize,
        argument_end: usize,
        environment_start: usize,
        environment_end: usize,
        auxiliary: usize,
        auxiliary_bytes: u32,
        executable: u32,
    }
    const PR_SET_MM_MAP: usize = 14;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which may hold anything, comes field 3 of proc_pid_stat(5).
    let fields: Vec<usize> = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    let code = loaded.program.code.first().cloned().unwrap_or(field(26)..field(27));
    // SAFETY: asks where the break is.
    let current_break = unsafe { sys::call(libc::SYS_brk, [0; 6]) } as usize;
    let map = Map {
        start_code: code.start,
        end_code: code.end,
        start_data: field(45),
        end_data: field(46),
        start_break: field(47),
        current_break,
        start_stack: field(28),
        argument_start: arguments.first().copied().unwrap_or(field(48)),
        argument_end: arguments.last().map_or(field(49), |last| end_of(*last)),
        environment_start: environment.unwrap_or(field(50)),
        environment_end: field(51),
        auxiliary: auxiliary.as_ptr() as usize,
        auxiliary_bytes: size_of_val(auxiliary) as u32,
        executable: u32::MAX,
    };
    let set = [libc::PR_SET_MM as usize, PR_SET_MM_MAP, &raw const map as usize, size_of::<Map>(), 0, 0];
    // SAFETY: the kernel reads the map and the vector, which outlive the call, and checks what they say.
    unsafe { sys::call(libc::SYS_prctl, set) };
}
