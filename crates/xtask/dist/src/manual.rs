//! The man pages and the shell completions, from the command's own definition of its flags.

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fs;
use std::path::Path;

#[path = "../../../cli/src/cli.rs"]
#[allow(dead_code)] // only the definition is used here, never a parsed value
mod cli;

/// The page anyring(7), which says how anyring works. It is the only page that describes no flag.
const OVERVIEW: &str = include_str!("anyring.7");

/// Completion for bash: the words after `--` are completed as for the program that they name.
const BASH_PROGRAM: &str = include_str!("program.bash");

/// Completion for fish of the program after `--`.
const FISH_PROGRAM: &str = "\
complete -c anyring -n 'contains -- -- (commandline -opc)' -x \
-a '(set -l words (commandline -opc); \
__fish_complete_subcommand --commandline $words[(math (contains -i -- -- $words) + 1)..] (commandline -ct))'
";

/// Environment variables: the name, what the variable does, and the commands that read it.
const VARIABLES: &[(&str, &str, &[&str])] = &[
    (
        "ANYRING_BACKEND",
        "Who serves io_uring if --backend is not given: auto, kernel or user.",
        &["run", "trace", "check", "advise"],
    ),
    ("ANYRING_AIO", "Who serves Linux AIO if no option says it: auto, kernel or user.", &["run", "trace", "check"]),
    ("ANYRING_RAW", "If 0, the program's own system call instructions are not trapped.", &["run"]),
    ("ANYRING_PATCH", "If 0, instructions that trap are not replaced by jumps.", &["run"]),
    (
        "ANYRING_SPIN",
        "If 0, threads that wait for messages of other rings do not spin before they sleep.",
        &["run"],
    ),
    ("ANYRING_STATS", "The file for counters, if --stats is not given.", &["run"]),
    ("ANYRING_LOG", "The file for messages, if --log is not given.", &["run"]),
    (
        "ANYRING_LIBRARY",
        "The library to preload, instead of the one that was installed with the command.",
        &["run", "trace", "check", "chaos", "doctor", "lab", "advise"],
    ),
    (
        "ANYRING_GUEST",
        "The host of static programs, instead of the installed one. If 0, there is none.",
        &["run", "trace", "check", "chaos"],
    ),
    ("PATH", "Where the program is looked up.", &["run", "deny", "trace", "check", "chaos"]),
    (
        "NO_COLOR",
        "If it is not empty, --help has no colours.",
        &["", "run", "deny", "doctor", "stats", "trace", "report", "check", "chaos", "lab", "advise"],
    ),
];

/// Files: the path, what the file is, and the commands that use it.
const FILES: &[(&str, &str, &[&str])] = &[
    (
        "PREFIX/lib/anyring/libanyring.so",
        "The library that serves the program. The command looks for it relative to itself.",
        &["run", "trace", "check", "chaos", "doctor", "lab", "advise"],
    ),
    ("PREFIX/lib/anyring/anyring-lab-worker", "The programs that are measured.", &["lab"]),
    (
        "/dev/shm/anyring-trace-PID-*",
        "Events in transit, while anyring's own engine is traced.",
        &["trace", "check"],
    ),
    (
        "/sys/kernel/tracing/instances/anyring-trace-PID-*",
        "Events in transit, while the kernel is traced.",
        &["trace", "check"],
    ),
    (
        "PREFIX/share/doc/anyring",
        "The documents.",
        &["", "run", "deny", "doctor", "stats", "trace", "report", "check", "chaos", "lab", "advise"],
    ),
];

/// The description of each command. On its page the paragraphs of `--help` follow.
const DESCRIPTIONS: &[(&str, &str)] = &[
    ("", "Where the kernel refuses io_uring, programs that use it fail or fall back to something slower. anyring puts an implementation of io_uring into their process, made from ordinary system calls. Nothing is recompiled, and no privilege is needed. anyring(7) describes how it works."),
    ("run", "Tries in a child whether the kernel's io_uring and Linux AIO work. The program is started with libanyring.so preloaded, or as a guest that anyring maps into its own process. anyring serves what the kernel refuses. anyring run becomes the program: it stays the same process, and adds nothing to its output."),
    ("deny", "Installs a seccomp filter that answers io_uring's system calls with an error, as a container runtime does. Then anyring deny becomes the program."),
    ("doctor", "Tries the kernel's io_uring and every way in which anyring reaches a program, each in a process of its own. Says which of them work here, and why others do not."),
    ("stats", "Prints the counters that anyring keeps in FILE: rings, calls, errors, and for each opcode how many requests completed in the call, after readiness, by the kernel's AIO and by a worker thread. FILE can be read while the program runs. Of programs that the kernel serves, it prints only the number."),
    ("trace", "Runs a program, or joins one that runs, and reports for each kind of request which path it took, how long it took, and what could be better."),
    ("report", "Reports a recorded trace as anyring-trace(1) would have reported it: as a summary, as events, as a page or for Perfetto. It runs nothing and needs no privilege."),
    ("check", "Runs a program as anyring-trace(1) does, and fails if its requests did not take the stated paths. Use it in continuous integration."),
    ("chaos", "Runs a program on anyring's own engine, which injects behaviour that io_uring permits and programs seldom meet, chosen by a seed: short transfers, late completions, refused calls. A program that then fails has relied on behaviour that io_uring does not promise."),
    ("lab", "Measures workloads on anyring, on the kernel's io_uring and on the alternatives, in turns, and checks every result."),
    ("advise", "Measures whether IOSQE_ASYNC makes requests faster on a file, a block device, pipes or TCP, and from which size on."),
];

/// Writes `man1/*.1`, `man7/anyring.7` and `completions/*` into `out`.
pub fn write(out: &Path) -> Result<()> {
    let [pages, overview, completions] = ["man1", "man7", "completions"].map(|name| out.join(name));
    for folder in [&pages, &overview, &completions] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    for (name, text) in all_pages()? {
        let page = pages.join(name);
        fs::write(&page, text).with_context(|| format!("write {}", page.display()))?;
    }
    fs::write(overview.join("anyring.7"), OVERVIEW).context("write anyring.7")?;
    // Without the hidden subcommands, which clap_complete would offer.
    let all = cli::Cli::command();
    let shown = all.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).cloned();
    let mut command = Command::new("anyring").version(env!("CARGO_PKG_VERSION")).subcommands(shown);
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let file = clap_complete::generate_to(shell, &mut command, "anyring", &completions)
            .with_context(|| format!("write the completions for {shell}"))?;
        let more = match shell {
            Shell::Bash => BASH_PROGRAM,
            Shell::Fish => FISH_PROGRAM,
            _ => continue, // zsh has the flags' own hint
        };
        let text = fs::read_to_string(&file)? + more;
        fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

/// Returns the file name and the text of each page of section 1.
fn all_pages() -> Result<Vec<(String, String)>> {
    let mut all = cli::Cli::command();
    all.build();
    let shown: Vec<_> =
        all.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help").cloned().collect();
    let names: Vec<_> = shown.iter().map(|it| it.get_name().to_owned()).collect();
    let mut pages = vec![("anyring.1".to_owned(), page("", all.clone(), &names)?)];
    for command in shown {
        let name = command.get_name().to_owned();
        pages.push((format!("anyring-{name}.1"), page(&name, command, &names)?));
    }
    Ok(pages)
}

/// Returns the text of one page; `name` is that of the subcommand, or empty for `anyring` itself.
fn page(name: &str, command: Command, names: &[String]) -> Result<String> {
    let own = if name.is_empty() { "anyring".to_owned() } else { format!("anyring-{name}") };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let usage = command.clone().render_usage().to_string();
    let (mut paragraphs, mut examples, mut status) = (Vec::new(), Vec::new(), Vec::new());
    let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for paragraph in more.split("\n\n") {
        match paragraph.split_once('\n') {
            Some(("Examples:", lines)) => examples.extend(lines.lines().map(str::to_owned)),
            _ if paragraph.starts_with("Exit status: ") => {
                status.push(paragraph.trim_start_matches("Exit status: "))
            }
            _ if paragraph.trim().is_empty() => {}
            _ => paragraphs.push(paragraph),
        }
    }
    let mut text =
        format!(".TH {} 1 \"\" \"anyring {}\" \"anyring\"\n", own.to_uppercase(), env!("CARGO_PKG_VERSION"));
    text += &format!(".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.nf\n", plain(&own), plain(about.trim_end_matches('.')));
    for line in usage.trim_start_matches("Usage:").lines() {
        text += &format!("{}\n", plain(line.trim()));
    }
    text += ".fi\n.SH DESCRIPTION\n";
    let described = DESCRIPTIONS.iter().find(|(of, _)| *of == name).context("a command without a description")?.1;
    text += &format!("{}\n", plain(described));
    for paragraph in paragraphs {
        text += &format!(".PP\n{}", body(paragraph));
    }
    let mut options = Vec::new();
    let man = Man::new(command.clone());
    match name {
        "" => man.render_subcommands_section(&mut options)?,
        _ => man.render_options_section(&mut options)?,
    }
    text += &String::from_utf8(options)?;
    text += &listed("ENVIRONMENT", VARIABLES, name);
    text += &listed("FILES", FILES, name);
    let status = if name.is_empty() { vec!["That of the command: see its page."] } else { status };
    text += &format!(".SH \"EXIT STATUS\"\n{}", body(&status.join("\n\n")));
    if name.is_empty() {
        examples = vec!["  anyring doctor".to_owned(), "  anyring run -- fio job.fio".to_owned()];
    }
    text += ".SH EXAMPLES\n.nf\n";
    for line in &examples {
        text += &kept_line(line.strip_prefix("  ").unwrap_or(line), " \\");
    }
    text += ".fi\n.SH \"SEE ALSO\"\n";
    let others = names.iter().filter(|other| *other != name).map(|other| format!("\\fBanyring\\-{other}\\fR(1)"));
    let mut others: Vec<_> = others.collect();
    if !name.is_empty() {
        others.insert(0, "\\fBanyring\\fR(1)".to_owned());
    }
    others.extend(["\\fBanyring\\fR(7)", "\\fBio_uring\\fR(7)"].map(str::to_owned));
    Ok(text + &others.join(",\n") + "\n")
}

/// Returns the section `title` with the entries of `of` that concern the command `name`; empty if there are none.
fn listed(title: &str, of: &[(&str, &str, &[&str])], name: &str) -> String {
    let concerns = of.iter().filter(|(_, _, commands)| commands.contains(&name));
    let entries = concerns.map(|(entry, what, _)| format!(".TP\n\\fB{}\\fR\n{}\n", plain(entry), plain(what)));
    let entries: String = entries.collect();
    if entries.is_empty() {
        entries
    } else {
        format!(".SH {title}\n{entries}")
    }
}

/// Converts text of `--help` to roff. Lines that begin with two blanks are not filled.
fn body(text: &str) -> String {
    let mut out = String::new();
    let mut kept = false;
    for line in text.lines() {
        let keeps = line.starts_with("  ");
        if keeps != kept {
            out += if keeps { ".nf\n" } else { ".fi\n" };
            kept = keeps;
        }
        out += &match line {
            "" => ".PP\n".to_owned(),
            _ if keeps => kept_line(line, ""),
            _ => format!("{}\n", plain(line)),
        };
    }
    if kept {
        out += ".fi\n";
    }
    out
}

/// The width of an unfilled line: 80 columns without the margin of 7.
const KEPT_COLUMNS: usize = 80 - 7;

/// Returns an unfilled line. A line that is too wide continues on the next line. It is broken before its explanation, or
/// at a blank, where `joint` then ends the first line.
fn kept_line(line: &str, joint: &str) -> String {
    if line.len() <= KEPT_COLUMNS {
        return format!("{}\n", plain(line));
    }
    let indent = line.len() - line.trim_start().len();
    if let Some(at) = line[indent..].find("   ").map(|at| indent + at) {
        let explained = format!("{:indent$}    {}", "", line[at..].trim_start());
        return kept_line(line[..at].trim_end(), joint) + &kept_line(&explained, "");
    }
    match line[..KEPT_COLUMNS - joint.len()].rfind(' ').filter(|at| *at > indent + 4) {
        Some(at) => {
            let rest = format!("{:indent$}    {}", "", &line[at + 1..]);
            format!("{}\n", plain(&format!("{}{joint}", &line[..at]))) + &kept_line(&rest, joint)
        }
        None => format!("{}\n", plain(line)),
    }
}

/// Escapes text, so that roff prints it as it is.
fn plain(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    if escaped.starts_with(['.', '\'']) {
        format!("\\&{escaped}")
    } else {
        escaped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_all_their_sections() {
        for (name, text) in all_pages().expect("pages") {
            let titles: Vec<_> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
            let named = |title: &str| titles.iter().any(|it| it.trim_matches('"').eq_ignore_ascii_case(title));
            for title in
                ["NAME", "SYNOPSIS", "DESCRIPTION", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
            {
                assert!(named(title), "{name} has no {title}: {titles:?}");
            }
            assert!(named(if name == "anyring.1" { "SUBCOMMANDS" } else { "OPTIONS" }), "{name}: {titles:?}");
            assert!(!text.contains("entry\\-point"), "{name} names what is hidden");
        }
    }

    /// man(1) breaks filled text, but not unfilled lines, so these must be short enough.
    #[test]
    fn pages_can_be_read_at_80_columns() {
        let pages = all_pages().expect("pages").into_iter().chain([("anyring.7".to_owned(), OVERVIEW.to_owned())]);
        for (name, text) in pages {
            let mut kept = false;
            for line in text.lines() {
                kept = (kept || line == ".nf") && line != ".fi";
                let shown = line.replace("\\-", "-").replace("\\e", "\\").len();
                assert!(!kept || shown <= KEPT_COLUMNS, "{name}: {shown} columns behind the margin of 7: {line}");
            }
        }
    }

    #[test]
    fn pages_lead_to_pages_that_there_are() {
        let pages = all_pages().expect("pages");
        let written = |name: &str, section: &str| match section {
            "7" => ["anyring", "io_uring"].contains(&name),
            _ => pages.iter().any(|(file, _)| *file == format!("{name}.1")),
        };
        for (file, text) in
            pages.iter().map(|(file, text)| (file.as_str(), text.as_str())).chain([("anyring.7", OVERVIEW)])
        {
            let text = text.replace("\\-", "-");
            for reference in text.split("\\fB").skip(1) {
                let Some((name, rest)) = reference.split_once("\\fR(") else { continue };
                if name.starts_with("anyring") && !name.contains(char::is_whitespace) {
                    assert!(written(name, &rest[..1]), "{file} leads to {name}({})", &rest[..1]);
                }
            }
        }
    }

    /// Returns bash's completions of the last of these words.
    fn offered(words: &[&str], folder: &Path) -> String {
        let file = folder.join("completions/anyring.bash");
        let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"; \
                      COMP_POINT=${#COMP_LINE}; _anyring_or_program anyring \"${!#}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
                      printf '%s\\n' \"${COMPREPLY[@]}\"";
        let mut bash = std::process::Command::new("bash");
        let output =
            bash.args(["--norc", "-c", script, "bash"]).arg(file).args(words).output().expect("start bash");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    #[test]
    fn bash_completes_the_program_after_the_dashes() {
        let folder = std::env::temp_dir().join(format!("anyring-manual-{}", std::process::id()));
        write(&folder).expect("written");
        let has = |words: &[&str], word: &str| offered(words, &folder).lines().any(|it| it == word);
        assert!(has(&["anyring", "ru"], "run"), "commands as before");
        assert!(has(&["anyring", "run", "--st"], "--stats"), "flags as before");
        assert!(has(&["anyring", "run", "--", "mkfif"], "mkfifo"), "a program");
        assert!(!has(&["anyring", "run", "--", "--st"], "--stats"), "no flags of ours behind");
        assert!(has(&["anyring", "deny", "--aio", "--", "ls", "/et"], "/etc"), "a file");
        fs::remove_dir_all(&folder).expect("removed");
    }

    /// Runs the script in the shell, with the file of completions as its first argument, and returns the output. Without such
    /// a shell it prints the reason and returns `None`.
    fn loaded(shell: &str, options: &[&str], script: &str, file: &str) -> Option<String> {
        let folder = std::env::temp_dir().join(format!("anyring-manual-{shell}-{}", std::process::id()));
        write(&folder).expect("written");
        let mut command = std::process::Command::new(shell);
        // No file of the user who runs the tests is read or written.
        command.env("HOME", &folder).env("XDG_CONFIG_HOME", &folder).env("XDG_DATA_HOME", &folder);
        command.args(options).args(["-c", script]).arg(shell).arg(folder.join("completions").join(file));
        let outcome = command.output();
        fs::remove_dir_all(&folder).expect("removed");
        match outcome {
            Ok(output) => {
                let printed = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success() && output.stderr.is_empty(), "{shell}: {output:?}");
                Some(printed)
            }
            Err(error) => {
                println!(
                    "skipped: the completions for {shell}: it cannot be run: {error}; `make setup` installs it"
                );
                None
            }
        }
    }

    #[test]
    fn zsh_loads_its_completions() {
        let script =
            "zsh -f -n $1 && autoload -Uz compinit && compinit -D -u && source $1 && print $_comps[anyring]";
        if let Some(printed) = loaded("zsh", &["-f"], script, "_anyring") {
            assert_eq!(printed, "_anyring\n", "the function that completes the command");
        }
    }

    #[test]
    fn fish_loads_its_completions() {
        let script = "fish --no-execute $argv[2]; and source $argv[2]; and complete -C 'anyring ru'";
        if let Some(printed) = loaded("fish", &["--no-config"], script, "anyring.fish") {
            assert!(printed.lines().any(|line| line.starts_with("run\t")), "commands: {printed}");
        }
    }
}
