//! The man pages and the shell completions, from the command's own definition of its flags.

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::fs;
use std::path::Path;

#[path = "../../crates/cli/src/cli.rs"]
#[allow(dead_code)] // only the definition is used here, never a parsed value
mod cli;

/// Writes `man1/*.1` and `completions/*` into `out`.
pub fn write(out: &Path) -> Result<()> {
    let (pages, completions) = (out.join("man1"), out.join("completions"));
    for folder in [&pages, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let all = cli::Cli::command();
    clap_mangen::generate_to(all.clone(), &pages).context("write the man pages")?;
    for page in fs::read_dir(&pages)? {
        // clap_mangen has one title for whatever stands below the options.
        let page = page?.path();
        let text = fs::read_to_string(&page)?.replace("\n.SH EXTRA\n", "\n.SH EXAMPLES AND EXIT STATUS\n");
        fs::write(&page, text).with_context(|| format!("write {}", page.display()))?;
    }
    // Without the hidden subcommands, which clap_complete would offer.
    let shown = all.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned();
    let mut command = Command::new("anyring").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "anyring", &completions)
            .with_context(|| format!("write the completions for {shell}"))?;
    }
    Ok(())
}
