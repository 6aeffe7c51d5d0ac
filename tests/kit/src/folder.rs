//! A folder for the files of one run, which is removed with it.

use anyhow::{Context, Result};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder in the one for temporary files.
pub struct Folder {
    /// Its path.
    pub path: PathBuf,
    next: AtomicUsize,
}

impl Folder {
    /// Makes the folder, named after the program and this process. Other users may enter it.
    pub fn new(program: &str) -> Result<Folder> {
        let path = std::env::temp_dir().join(format!("{program}-{}", std::process::id()));
        std::fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(Folder { path, next: AtomicUsize::new(0) })
    }

    /// Returns a number that no other call has returned. Relaxed: only that matters.
    pub fn number(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a path in it that nothing has yet.
    pub fn fresh(&self) -> PathBuf {
        self.path.join(self.number().to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            eprintln!("remove {}: {error}", self.path.display());
        }
    }
}
