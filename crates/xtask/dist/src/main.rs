//! `anyring-dist RELEASE`: makes the drop-ins, the archive, the man pages and the completions in RELEASE/dist, of what cargo built there.

mod manual;

use anyhow::{bail, Result};
use anyring_dist::dropin::{self, Artifacts};
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let [release] = &arguments[..] else { bail!("usage: anyring-dist RELEASE") };
    let release = Path::new(release);
    let out = release.join("dist");
    let built = Artifacts::in_directory(release)?;
    dropin::link(&built, &out.join("dropin"))?;
    dropin::strip_archive(&built, &out)?;
    manual::write(&out)
}
