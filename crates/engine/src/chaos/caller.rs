//! The place in the program from which it called io_uring_enter(2): return addresses on the thread's stack. The log
//! has them as `FILE+0xADDRESS`, for addr2line(1), with each injection and finding of that call. A tracer gets them
//! with some of the calls.
//!
//! Code that the program generates is in no file. If the program describes such code in a perf map, FILE is that map.

use crate::event::session;
use crate::os::{calls, user_read};
use crate::thread;
use rustix::fs::{Mode, OFlags};
use std::ops::Range;
use std::sync::OnceLock;

/// Number of the program's stack frames that the log has.
const FRAMES: usize = 12;
/// Number of further frames to walk, for the library's own frames, which come first.
const OURS: usize = 24;

/// Writes return addresses of the calling thread's frames, innermost first. Returns their number.
type Walk = fn(&mut [usize]) -> usize;

static WALK: OnceLock<Walk> = OnceLock::new();

/// Sets the function that walks a stack. Without one, the log has no frames.
pub fn found_by(walk: Walk) {
    let _ = WALK.set(walk);
}

/// A thread in a call of io_uring_enter(2).
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    thread: u32,
    frames: [usize; FRAMES + OURS],
    count: usize,
    /// The time before the walk, in the ticks of events.
    pub began_ticks: u64,
}

/// Returns the number that stands for a stack with this text: one `FILE+0xADDRESS` a line, innermost frame first.
pub fn number_of_stack(text: &[u8]) -> u64 {
    text.iter().fold(1, |sum, byte| super::mix(sum ^ u64::from(*byte)))
}

impl Caller {
    /// Records the calling thread. Call it without any of the engine's locks, since the walk takes the dynamic
    /// linker's.
    pub fn here() -> Option<Caller> {
        let walk = WALK.get()?;
        let (mut frames, began_ticks) = ([0; FRAMES + OURS], session::now_ticks());
        let count = walk(&mut frames);
        Some(Caller { thread: thread::id(), frames, count, began_ticks })
    }

    /// A thread without a frame.
    #[cfg(test)]
    pub fn nowhere() -> Caller {
        Caller { thread: 0, frames: [0; FRAMES + OURS], count: 0, began_ticks: 0 }
    }

    /// The return addresses, innermost first.
    pub fn addresses(&self) -> &[usize] {
        &self.frames[..self.count]
    }

    /// True if the calling thread is the one that was recorded.
    pub fn is_here(&self) -> bool {
        self.thread == thread::id()
    }
}

/// The mapped files. They are read again when an address is not found among them.
#[derive(Debug, Default)]
pub struct Modules {
    known: Vec<Module>,
    looks: u32,
}

/// Number of times that the mappings are read. After these, an unknown address stays unknown. Without this limit, a
/// program that generates code would cause a new read each time.
const LOOKS: u32 = 64;

#[derive(Debug)]
struct Module {
    range: Range<usize>,
    /// The address of byte 0 of the file's symbols.
    base: usize,
    name: String,
}

impl Modules {
    /// Returns the program's return addresses in `caller` as a JSON field with a leading comma
    /// (`,"at":["FILE+0x1f"]`). Empty if no address is in a mapped file.
    pub fn describe(&mut self, caller: &Caller) -> String {
        let names: Vec<_> = self.names(caller).iter().map(|name| format!("\"{name}\"")).collect();
        if names.is_empty() {
            return String::new();
        }
        format!(r#","at":[{}]"#, names.join(","))
    }

    /// Returns the program's return addresses in `caller`, as `FILE+0x1f`. Leaves the library's own frames out.
    pub fn names(&mut self, caller: &Caller) -> Vec<String> {
        let ours = self.find(found_by as *const () as usize).map(|module| module.name.clone());
        let mut names = Vec::new();
        for address in caller.addresses() {
            // A return address may be past the end of its function. The call before that address is not.
            let Some(module) = self.find(address.wrapping_sub(1)) else { break };
            if Some(&module.name) != ours.as_ref() {
                names.push(format!("{}+{:#x}", module.name, address.wrapping_sub(1) - module.base));
            }
        }
        names.truncate(FRAMES);
        names
    }

    fn find(&mut self, address: usize) -> Option<&Module> {
        if self.looks < LOOKS && !self.known.iter().any(|module| module.range.contains(&address)) {
            self.looks += 1;
            self.known = mapped(&calls::read_text("/proc/self/maps").ok()?, perf_map().as_deref());
        }
        self.known.iter().find(|module| module.range.contains(&address))
    }
}

/// Returns the name of this process's perf map, if there is one (tools/perf/Documentation/jit-interface.txt).
fn perf_map() -> Option<String> {
    let name = format!("/tmp/perf-{}.map", std::process::id());
    calls::open(&name[..], OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok().map(|_| name)
}

/// Returns the files in the text of /proc/PID/maps. `perf_map` stands for executable memory that is in no file. Its
/// addresses are those of the process.
fn mapped(text: &str, perf_map: Option<&str>) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(6, ' ');
        let bounds = words.next().and_then(|range| range.split_once('-'));
        let (Some((start, end)), Some(protection)) = (bounds, words.next()) else { continue };
        let name = words.nth(3).unwrap_or_default();
        let number = |text| usize::from_str_radix(text, 16);
        let (Ok(start), Ok(end)) = (number(start), number(end)) else { continue };
        let is_file = name.trim().starts_with('/') && !name.trim().starts_with("/memfd:");
        if let (false, true, Some(map)) = (is_file, protection.contains('x'), perf_map) {
            modules.push(Module { range: start..end, base: 0, name: map.to_owned() });
        }
        if !is_file {
            continue;
        }
        // A string of JSON. Characters that need an escape become `?`.
        let name: String =
            name.trim().chars().map(|it| if "\"\\".contains(it) || it.is_control() { '?' } else { it }).collect();
        match modules.last_mut().filter(|last| last.name == name) {
            Some(last) => last.range.end = end,
            None => modules.push(Module { range: start..end, base: base_of(start), name }),
        }
    }
    modules
}

/// Returns the load base of an ELF file whose first page is mapped at `start`. 0 for a file with fixed addresses
/// (ET_EXEC).
fn base_of(start: usize) -> usize {
    const E_TYPE: u64 = 16;
    const ET_EXEC: u16 = 2;
    match user_read::<u16>((start as u64).wrapping_add(E_TYPE)) {
        Ok(ET_EXEC) => 0,
        _ => start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_file_and_its_place_there() {
        let here = an_address_has_its_file_and_its_place_there as *const () as usize;
        let caller = Caller { thread: 0, frames: [here + 1; FRAMES + OURS], count: 1, began_ticks: 0 };
        // This call has only the library's own frames, which are left out.
        let mut modules = Modules::default();
        assert_eq!(modules.describe(&caller), "");
        let module = modules.find(here).expect("a module");
        let name = std::env::current_exe().expect("this program");
        assert_eq!((module.name.as_str(), module.range.contains(&here)), (name.to_str().expect("UTF-8"), true));
        let libc = libc::getpid as *const () as usize;
        let names = modules.describe(&Caller { frames: [libc + 1; FRAMES + OURS], ..caller });
        assert!(names.starts_with(",\"at\":[\"/") && names.contains("+0x") && names.ends_with("\"]"), "{names}");
    }

    #[test]
    fn mappings_of_one_file_are_one_module() {
        let text = "1000-2000 r--p 00000000 08:01 1    /a \"b\"\n2000-3000 r-xp 00001000 08:01 1    /a \"b\"\n\
                    5000-6000 rw-p 00000000 00:00 0 \n7000-8000 r-xp 00000000 00:00 0    [vdso]\n";
        let modules = mapped(text, None);
        assert_eq!(modules.len(), 1);
        assert_eq!(
            (modules[0].range.clone(), modules[0].base, modules[0].name.as_str()),
            (0x1000..0x3000, 0x1000, "/a ?b?")
        );
    }

    #[test]
    fn executable_memory_without_a_file_is_in_the_perf_map() {
        let text = "1000-2000 r-xp 00000000 08:01 1    /a\n2000-3000 rwxp 00000000 00:00 0 \n\
                    3000-4000 rw-p 00000000 00:00 0 \n4000-5000 r-xp 00000000 00:01 7    /memfd:jit (deleted)\n";
        let modules: Vec<_> = mapped(text, Some("/tmp/perf-1.map"))
            .into_iter()
            .map(|module| (module.name, module.range, module.base))
            .collect();
        let jit = || "/tmp/perf-1.map".to_owned();
        assert_eq!(
            modules,
            [("/a".to_owned(), 0x1000..0x2000, 0x1000), (jit(), 0x2000..0x3000, 0), (jit(), 0x4000..0x5000, 0)]
        );
    }
}
