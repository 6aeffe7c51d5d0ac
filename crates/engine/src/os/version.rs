//! The version of Linux that the engine emulates. The version has two parts: the names (opcodes, flags) that it has,
//! and its answers where versions differ.
//!
//! Names are those of Linux 7.3, unless `ANYRING_KERNEL=6.18` is set. New names harm no program, since a program uses
//! one only if it wants it. Answers are those of the running kernel, so that anyring agrees with it, or those of the
//! variable.
//!
//! Both parts are chosen once, before the first ring. They are read where a ring is made or an answer differs, never
//! for each request.

use super::syscall;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};

/// The bit of a version that has the names that came after Linux 6.18.
const NAMES: u8 = 1;
/// The bit of a version that answers as Linux 7.3.
const ANSWERS: u8 = 2;
/// The bit of a version whose rings of polled devices take URING_CMD for any file (Linux 7.1).
const POLLED_COMMANDS: u8 = 4;

/// The bits of the chosen version. Relaxed: it is chosen before there is a ring, so any thread that has a ring reads
/// the choice.
static VERSION: AtomicU8 = AtomicU8::new(NAMES);

/// Chooses by the value of `ANYRING_KERNEL`. Any value except `6.18` and `7.3` is ignored.
pub fn choose(name: Option<&str>) {
    let chosen = match name {
        Some("6.18") => 0,
        Some("7.3") => NAMES | ANSWERS | POLLED_COMMANDS,
        _ if running_is_older([7, 1]) => NAMES,
        _ if running_is_older([7, 3]) => NAMES | POLLED_COMMANDS,
        _ => NAMES | ANSWERS | POLLED_COMMANDS,
    };
    VERSION.store(chosen, Ordering::Relaxed);
}

/// True if the engine has the names that came after Linux 6.18.
pub fn has_later_names() -> bool {
    VERSION.load(Ordering::Relaxed) & NAMES != 0
}

/// True if the engine answers as Linux 7.3 where that differs from 6.18.
pub fn answers_as_7_3() -> bool {
    VERSION.load(Ordering::Relaxed) & ANSWERS != 0
}

/// True if rings of polled devices take URING_CMD for files that cannot be polled.
pub fn polls_commands() -> bool {
    VERSION.load(Ordering::Relaxed) & POLLED_COMMANDS != 0
}

/// True if the running kernel is older than release `version`, or does not say.
#[allow(clippy::unnecessary_cast)] // c_char is unsigned on aarch64
pub fn running_is_older(version: [u32; 2]) -> bool {
    let mut name = MaybeUninit::<libc::utsname>::zeroed();
    if syscall(libc::SYS_uname, [name.as_mut_ptr() as usize, 0, 0, 0, 0, 0]) != 0 {
        return true;
    }
    // SAFETY: the kernel has filled it in; zeros are valid, too.
    let release = unsafe { name.assume_init() }.release.map(|letter| letter as u8);
    is_older(&release, version)
}

/// True if a release such as `5.10.0-32-amd64` is older than `version`.
fn is_older(release: &[u8], version: [u32; 2]) -> bool {
    let mut numbers = release.split(|letter| !letter.is_ascii_digit()).map(|digits| {
        digits.iter().fold(0_u32, |sum, digit| sum.saturating_mul(10).saturating_add(u32::from(digit - b'0')))
    });
    [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)] < version
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared() {
        let older = |release: &str| is_older(release.as_bytes(), [5, 16]);
        assert!(
            older("5.10.0-32-amd64")
                && older("4.18.0-553.el8.x86_64")
                && older("5.15.167.4-microsoft-standard-WSL2")
        );
        assert!(!older("5.16.0") && !older("6.1.0\0\0") && !older("10.2"));
        assert!(older("") && older("other"));
    }
}
