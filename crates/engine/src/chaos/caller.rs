//! Where the program was when it entered a ring: return addresses on its stack. They are told with what is injected and found in
//! that call, as `FILE+0xADDRESS`, for addr2line(1).

use crate::os::{calls, user_read};
use crate::thread;
use std::ops::Range;
use std::sync::OnceLock;

/// So many frames of the program's are told.
const FRAMES: usize = 8;
/// Of ours there are not more than so many before them.
const OURS: usize = 24;

/// Writes return addresses of the calling thread's frames, innermost first; how many.
type Walk = fn(&mut [usize]) -> usize;

static WALK: OnceLock<Walk> = OnceLock::new();

/// Who knows how to walk a stack, if anybody does.
pub fn found_by(walk: Walk) {
    let _ = WALK.set(walk);
}

/// A thread in a call.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    thread: u32,
    frames: [usize; FRAMES + OURS],
    count: usize,
}

impl Caller {
    /// The calling thread. Called with no lock of ours: the walk takes the dynamic linker's.
    pub fn here() -> Option<Caller> {
        let walk = WALK.get()?;
        let mut frames = [0; FRAMES + OURS];
        let count = walk(&mut frames);
        Some(Caller { thread: thread::id(), frames, count })
    }

    /// Whether the calling thread is in that call.
    pub fn is_here(&self) -> bool {
        self.thread == thread::id()
    }
}

/// What is mapped where, as it was when a place was asked about that was not known.
#[derive(Debug, Default)]
pub struct Modules {
    known: Vec<Module>,
    looks: u32,
}

/// After so many looks what is not known stays so: a program that makes code as it runs has always something new.
const LOOKS: u32 = 64;

#[derive(Debug)]
struct Module {
    range: Range<usize>,
    /// Address 0 of its file's symbols.
    base: usize,
    name: String,
}

impl Modules {
    /// The program's frames in a call, as the log has them: a field of JSON, or nothing where none is known.
    pub fn describe(&mut self, caller: &Caller) -> String {
        let ours = self.find(found_by as *const () as usize).map(|module| module.name.clone());
        let mut told = Vec::new();
        for address in &caller.frames[..caller.count] {
            // A return address may be behind the end of its function, the call is not.
            let Some(module) = self.find(address.wrapping_sub(1)) else { break };
            if Some(&module.name) != ours.as_ref() {
                told.push(format!("\"{}+{:#x}\"", module.name, address.wrapping_sub(1) - module.base));
            }
        }
        told.truncate(FRAMES);
        if told.is_empty() {
            return String::new();
        }
        format!(r#","at":[{}]"#, told.join(","))
    }

    fn find(&mut self, address: usize) -> Option<&Module> {
        if self.looks < LOOKS && !self.known.iter().any(|module| module.range.contains(&address)) {
            self.looks += 1;
            self.known = mapped(&calls::read_text("/proc/self/maps").ok()?);
        }
        self.known.iter().find(|module| module.range.contains(&address))
    }
}

/// The files in the text of /proc/PID/maps.
fn mapped(text: &str) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for line in text.lines() {
        let mut words = line.splitn(6, ' ');
        let bounds = words.next().and_then(|range| range.split_once('-'));
        let (Some((start, end)), Some(name)) = (bounds, words.nth(4)) else { continue };
        let number = |text| usize::from_str_radix(text, 16);
        let (Ok(start), Ok(end), true) = (number(start), number(end), name.trim().starts_with('/')) else {
            continue;
        };
        // As a string of JSON, without a thought of how such a name is told.
        let name: String =
            name.trim().chars().map(|it| if "\"\\".contains(it) || it.is_control() { '?' } else { it }).collect();
        match modules.last_mut().filter(|last| last.name == name) {
            Some(last) => last.range.end = end,
            None => modules.push(Module { range: start..end, base: base_of(start), name }),
        }
    }
    modules
}

/// What is taken off the addresses of an ELF file whose first page is mapped here: nothing where it is mapped where it says.
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
        let caller = Caller { thread: 0, frames: [here + 1; FRAMES + OURS], count: 1 };
        // Frames of ours are left out, and this is one.
        let mut modules = Modules::default();
        assert_eq!(modules.describe(&caller), "");
        let module = modules.find(here).expect("a module");
        let name = std::env::current_exe().expect("this program");
        assert_eq!((module.name.as_str(), module.range.contains(&here)), (name.to_str().expect("UTF-8"), true));
        let libc = libc::getpid as *const () as usize;
        let told = modules.describe(&Caller { frames: [libc + 1; FRAMES + OURS], ..caller });
        assert!(told.starts_with(",\"at\":[\"/") && told.contains("+0x") && told.ends_with("\"]"), "{told}");
    }

    #[test]
    fn mappings_of_one_file_are_one_module() {
        let text = "1000-2000 r--p 00000000 08:01 1    /a \"b\"\n2000-3000 r-xp 00001000 08:01 1    /a \"b\"\n\
                    5000-6000 rw-p 00000000 00:00 0 \n7000-8000 r-xp 00000000 00:00 0    [vdso]\n";
        let modules = mapped(text);
        assert_eq!(modules.len(), 1);
        assert_eq!(
            (modules[0].range.clone(), modules[0].base, modules[0].name.as_str()),
            (0x1000..0x3000, 0x1000, "/a ?b?")
        );
    }
}
