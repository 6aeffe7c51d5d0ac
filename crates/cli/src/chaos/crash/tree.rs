//! Folders in memory: names, and the files to which they lead. So each possible content of a disk is a value, computed
//! from another such value.

use super::change::{Born, File};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file that a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Folder { mode: u32 },
    Link { target: PathBuf },
    Regular { mode: u32, bytes: Vec<u8> },
}

impl Node {
    /// Reads what a path leads to. `None` for a device, a pipe or a socket, and for a file of more than `most` bytes.
    pub fn read(path: &Path, about: &fs::Metadata, most: u64) -> io::Result<Option<Node>> {
        let mode = about.mode();
        Ok(match about.file_type() {
            kind if kind.is_dir() => Some(Node::Folder { mode }),
            kind if kind.is_symlink() => Some(Node::Link { target: fs::read_link(path)? }),
            kind if kind.is_file() && about.size() <= most => Some(Node::Regular { mode, bytes: fs::read(path)? }),
            _ => None,
        })
    }
}

/// Folders and all their contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// Absolute paths.
    pub names: BTreeMap<Vec<u8>, File>,
    pub files: BTreeMap<File, Node>,
}

impl Tree {
    /// Reads the contents of `folders`. Leaves out all but regular files, folders and symbolic links.
    pub fn read(folders: &[PathBuf], born: &Born) -> io::Result<Tree> {
        let mut tree = Tree::default();
        for folder in folders {
            tree.read_folder(folder, born)?;
        }
        Ok(tree)
    }

    fn read_folder(&mut self, folder: &Path, born: &Born) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            let about = fs::symlink_metadata(&path)?;
            let file = born.file(about.dev(), about.ino());
            let Some(node) = Node::read(&path, &about, u64::MAX)? else { continue };
            if matches!(node, Node::Folder { .. }) {
                self.read_folder(&path, born)?;
            }
            self.names.insert(path.into_os_string().into_vec(), file);
            self.files.insert(file, node);
        }
        Ok(())
    }

    /// Makes the contents of `folders` equal to this tree. A name whose folder is missing is left out.
    pub fn write(&self, folders: &[PathBuf]) -> io::Result<()> {
        for folder in folders {
            empty(folder)?;
        }
        let mut there: BTreeSet<&[u8]> = folders.iter().map(|folder| folder.as_os_str().as_bytes()).collect();
        let mut written: BTreeMap<File, &Path> = BTreeMap::new();
        for (name, file) in &self.names {
            let path = Path::new(OsStr::from_bytes(name));
            let parent = path.parent().map_or(&[][..], |parent| parent.as_os_str().as_bytes());
            let Some(node) = self.files.get(file).filter(|_| there.contains(parent)) else { continue };
            match node {
                Node::Folder { mode } => {
                    fs::create_dir(path)?;
                    fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777))?;
                    there.insert(name);
                }
                Node::Link { target } => symlink(target, path)?,
                Node::Regular { mode, bytes } => match written.get(file) {
                    Some(first) => fs::hard_link(first, path)?,
                    None => {
                        fs::write(path, bytes)?;
                        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o7777))?;
                        written.insert(*file, path);
                    }
                },
            }
        }
        Ok(())
    }

    /// Moves a name and all names below it.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        for (name, file) in self.take(from) {
            let name = [to, &name[from.len()..]].concat();
            self.names.insert(name, file);
        }
    }

    /// Removes a name and all names below it, and returns them.
    pub fn take(&mut self, path: &[u8]) -> Vec<(Vec<u8>, File)> {
        let is_below = |name: &[u8]| name.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        let taken: Vec<_> = self
            .names
            .iter()
            .filter(|(name, _)| is_below(name))
            .map(|(name, file)| (name.clone(), *file))
            .collect();
        taken.iter().for_each(|(name, _)| _ = self.names.remove(name));
        taken
    }

    /// Returns the bytes of a regular file, or `None` for other files.
    pub fn bytes(&mut self, file: File) -> Option<&mut Vec<u8>> {
        match self.files.get_mut(&file) {
            Some(Node::Regular { bytes, .. }) => Some(bytes),
            _ => None,
        }
    }
}

fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match fs::symlink_metadata(&path)?.is_dir() {
            true => fs::remove_dir_all(&path)?,
            false => fs::remove_file(&path)?,
        }
    }
    Ok(())
}
