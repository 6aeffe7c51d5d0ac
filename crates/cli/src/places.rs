//! Finds the function, source file and line of places in the program's code. The engine's log has a place as
//! `FILE+0xADDRESS`. The file's debug information and symbols give the rest. They may be in a file that is kept apart.
//! For generated code the file is a perf map, which has the names.

use addr2line::{demangle_auto, Loader};
use object::Object;
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The folder of debug information that distributions keep apart from their programs.
const DEBUG: &str = "/usr/lib/debug";

/// The files whose places were asked for. `None` for a file without symbols.
pub struct Places {
    files: RefCell<HashMap<String, Option<Loader>>>,
    /// The texts of perf maps.
    maps: RefCell<HashMap<String, String>>,
    folder: PathBuf,
}

impl Places {
    pub fn new() -> Places {
        Places {
            files: RefCell::default(),
            maps: RefCell::default(),
            folder: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// Describes the frames of a stack, innermost first. Leaves out the functions of an io_uring library at its inner
    /// end.
    pub fn callers(&self, frames: &[String]) -> Vec<String> {
        let lines: Vec<_> = frames.iter().flat_map(|frame| self.describe(frame)).collect();
        let inner = lines.iter().take_while(|line| is_of_library(line)).count();
        if inner == lines.len() {
            lines
        } else {
            lines[inner..].to_vec()
        }
    }

    /// Describes a frame for people, as `FUNCTION (SOURCE:LINE)`. Functions that were inlined there come first, a string
    /// each. Without debug information the text is `FUNCTION (FILE+0xADDRESS)`, and without symbols it is the frame
    /// itself.
    pub fn describe(&self, frame: &str) -> Vec<String> {
        let place = frame.rsplit_once("+0x");
        let place = place.and_then(|(file, address)| Some((file, u64::from_str_radix(address, 16).ok()?)));
        let Some((file, address)) = place else { return vec![frame.to_owned()] };
        if file.starts_with("/tmp/perf-") && file.ends_with(".map") {
            let mut maps = self.maps.borrow_mut();
            let text =
                maps.entry(file.to_owned()).or_insert_with(|| std::fs::read_to_string(file).unwrap_or_default());
            return vec![generated(text, address).unwrap_or_else(|| frame.to_owned())];
        }
        let mut files = self.files.borrow_mut();
        let known = files.entry(file.to_owned()).or_insert_with(|| Loader::new(debug_file(file)).ok());
        let Some(known) = known else { return vec![frame.to_owned()] };
        let lines = self.lines(known, address);
        if !lines.is_empty() {
            return lines;
        }
        match known.find_symbol(address) {
            Some(symbol) => vec![format!("{} ({frame})", demangle_auto(Cow::Borrowed(symbol), None))],
            None => vec![frame.to_owned()],
        }
    }

    /// The functions at an address, from its file's debug information: innermost first, empty if there is none.
    fn lines(&self, file: &Loader, address: u64) -> Vec<String> {
        let Ok(mut frames) = file.find_frames(address) else { return Vec::new() };
        let mut lines = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let source = frame.location.and_then(|location| location.file.zip(location.line));
            let (Some(function), Some((source, line))) = (frame.function, source) else { return Vec::new() };
            let Ok(name) = function.demangle() else { return Vec::new() };
            let source = Path::new(source);
            let source = source.strip_prefix(&self.folder).unwrap_or(source);
            lines.push(format!("{name} ({}:{line})", source.display()));
        }
        lines
    }
}

/// True if the line names a function of liburing or of the crate io-uring.
fn is_of_library(line: &str) -> bool {
    let name = line.trim_start_matches(['_', '<']);
    name.starts_with("io_uring_") || name.starts_with("io_uring::") || line.contains("/liburing.so")
}

/// Returns the file with the debug information of a program or library. If there is a separate file with the same build
/// ID, it is that file, else the file itself. gdb's manual, "Debugging Information in Separate Files", lists the places.
fn debug_file(file: &str) -> PathBuf {
    apart(Path::new(file)).unwrap_or_else(|| file.into())
}

fn apart(file: &Path) -> Option<PathBuf> {
    let bytes = std::fs::read(file).ok()?;
    let program = object::File::parse(&bytes[..]).ok()?;
    let id = program.build_id().ok()??;
    if program.section_by_name(".debug_info").is_some() || id.len() < 2 {
        return None;
    }
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let by_id = format!("{DEBUG}/.build-id/{}/{}.debug", hex(&id[..1]), hex(&id[1..]));
    let link = program.gnu_debuglink().ok().flatten().map(|(name, _)| Path::new(OsStr::from_bytes(name)));
    let folder = file.parent()?;
    let linked = link.into_iter().flat_map(|name| {
        let global = Path::new(DEBUG).join(folder.strip_prefix("/").unwrap_or(folder));
        [folder.join(name), folder.join(".debug").join(name), global.join(name)]
    });
    std::iter::once(PathBuf::from(by_id)).chain(linked).find(|path| {
        let bytes = std::fs::read(path).unwrap_or_default();
        object::File::parse(&bytes[..]).is_ok_and(|it| it.build_id() == Ok(Some(id)))
    })
}

/// Describes an address in generated code as the perf map does, whose lines are `START SIZE NAME`. CPython's names are
/// `py::FUNCTION:FILE`. V8's are `KIND:FUNCTION FILE:LINE:COLUMN`, with a sign of the compiler before the function.
fn generated(map: &str, address: u64) -> Option<String> {
    // Memory that was used again has its name in a later line.
    let name = map.lines().rev().find_map(|line| {
        let mut words = line.splitn(3, ' ');
        let mut number = || u64::from_str_radix(words.next()?.trim_start_matches("0x"), 16).ok();
        let (start, size) = (number()?, number()?);
        let is_there = address >= start && address - start < size;
        is_there.then(|| words.next()).flatten()
    })?;
    let python = name.strip_prefix("py::").and_then(|name| name.split_once(':'));
    let v8 = || {
        let (_, name) = name.split_once(':').filter(|(kind, _)| kind.chars().all(char::is_alphanumeric))?;
        let (function, file) = name.trim_start_matches(['*', '~', '^', '+']).rsplit_once(' ')?;
        file.contains(':').then_some((function, file))
    };
    Some(match python.or_else(v8) {
        Some(("", file)) => format!("(anonymous) ({file})"),
        Some((function, file)) => format!("{function} ({file})"),
        None => name.to_owned(),
    })
}
