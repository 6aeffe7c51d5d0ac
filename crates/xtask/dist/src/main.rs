//! `anyring-dist RELEASE [TARGET]`: makes the drop-ins, the archive, the man pages and the completions in RELEASE/dist.
//! It makes them from what cargo built there, for rustc's target TARGET or for this machine.

mod manual;

use anyhow::{bail, Result};
use anyring_dist::dropin::{self, Artifacts, Tools};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let (release, tools) = match &arguments[..] {
        [release] => (Path::new(release), Tools::here()),
        [release, target] => (Path::new(release), Tools::of(&target.to_string_lossy())),
        _ => bail!("usage: anyring-dist RELEASE [TARGET]"),
    };
    let out = release.join("dist");
    let built = Artifacts::in_directory(release)?;
    dropin::link(&built, &tools, &out.join("dropin"))?;
    dropin::strip_archive(&built, &tools, &out)?;
    manual::write(&out)
}
