//! Makes a library without code that takes the place of glibc's while libanyring.so and the drop-ins are linked. So
//! these need the oldest versions of glibc's symbols, and not those of the build machine. build.rs and `cargo xtask
//! dropin` use this file.
//!
//! A name that is not in the map stays undefined without a version. The loader accepts any definition of it, and no
//! definition for a weak name. `cargo xtask check-symbols` lists those names.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The file name of that library. maps/libc.so.6.map lists the symbols that are taken from it. The list includes
/// symbols that were in libpthread.so.0 and libdl.so.2 before glibc 2.34 (src/joined.rs).
pub const STUB: &str = "libc.so.6";

/// Makes the library in `out`, and linker scripts by which `-lc`, `-lpthread` and `-ldl` lead to it. `linker` is a C
/// compiler for `architecture`. The error is a few lines for people.
pub fn make(linker: &Path, maps: &Path, architecture: &str, out: &Path) -> Result<(), String> {
    let map = maps.join(format!("{STUB}.map"));
    let text = fs::read_to_string(&map).map_err(|error| format!("{}: {error}", map.display()))?;
    let library = out.join(STUB);
    link(linker, &text, architecture, &library)?;
    for script in ["libc.so", "libpthread.so", "libdl.so"] {
        write(&out.join(script), &format!("INPUT(\"{}\")\n", library.display()))?;
    }
    Ok(())
}

fn link(linker: &Path, map: &str, architecture: &str, library: &Path) -> Result<(), String> {
    let names = map.lines().filter_map(|line| line.trim().strip_suffix(';')).filter(|name| !name.starts_with('}'));
    let functions = names.clone().map(|name| format!(".globl {name}\n.type {name}, @function\n{name}:\n"));
    // The maps are those of x86-64. On aarch64 glibc began with 2.17, so that all of them has that version there.
    let map = match architecture {
        "x86_64" => map.to_owned(),
        _ => format!("GLIBC_2.17 {{ global: {}; }};\n", names.collect::<Vec<_>>().join("; ")),
    };
    let script = library.with_extension("map");
    write(&script, &map)?;
    let source = library.with_extension("s");
    write(&source, &format!(".text\n{}\n.section .note.GNU-stack\n", functions.collect::<String>()))?;
    let mut command = Command::new(linker);
    command.args(["-shared", "-nostdlib", "-fuse-ld=bfd", "-o"]).arg(library).arg(&source);
    let name = library.file_name().unwrap_or_default().display();
    command.arg(format!("-Wl,-soname,{name}")).arg(format!("-Wl,--version-script={}", script.display()));
    let output = command.output().map_err(|error| format!("{}: {error}", linker.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("linking {}: {}", library.display(), String::from_utf8_lossy(&output.stderr))),
    }
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}
