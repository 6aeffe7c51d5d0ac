//! How the engine's rooms depend on each other, by their imports. A room is a file or a folder directly in
//! `crates/engine/src`. Tests are left out.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// The names that one file imports from each other room.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// One source file.
pub struct File {
    /// The file's path below the folder of the crate's sources.
    pub path: PathBuf,
    /// The room that the file is in.
    pub room: String,
    imports: Imports,
    /// True if the file extends `RingGuard`.
    pub extends_guard: bool,
}

/// All files of the engine.
pub struct Rooms {
    /// The files, in the order of their paths.
    pub files: Vec<File>,
}

impl Rooms {
    /// Reads the sources below `folder`.
    pub fn read(folder: &Path) -> Result<Rooms> {
        let files: Result<Vec<Option<File>>> =
            sources(folder)?.into_iter().map(|path| File::read(folder, &path)).collect();
        let mut rooms = Rooms { files: files?.into_iter().flatten().collect() };
        let names: BTreeSet<String> = rooms.files.iter().map(|file| file.room.clone()).collect();
        for file in &mut rooms.files {
            let own = file.room.clone();
            file.imports.retain(|room, _| *room != own && names.contains(room));
        }
        Ok(rooms)
    }

    /// The names of the rooms.
    pub fn names(&self) -> BTreeSet<&str> {
        self.files.iter().map(|file| file.room.as_str()).collect()
    }

    /// The imports between rooms: pairs of rooms, with `file: names`.
    pub fn arrows(&self) -> BTreeMap<(&str, &str), Vec<String>> {
        let mut arrows: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for file in &self.files {
            for (room, names) in &file.imports {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let line = format!("{}: {}", file.path.display(), names.join(", "));
                arrows.entry((&file.room, room)).or_default().push(line);
            }
        }
        arrows
    }

    /// Number of pairs of rooms in which one imports from the other, and number of all pairs.
    pub fn pairs(&self) -> (usize, usize) {
        let arrows = self.arrows();
        let known: BTreeSet<_> = arrows.keys().map(|(a, b)| (a.min(b), a.max(b))).collect();
        let rooms = self.names().len();
        (known.len(), rooms * rooms.saturating_sub(1) / 2)
    }

    /// Circles: sets of rooms in which imports lead from each room to each other one.
    pub fn circles(&self) -> Vec<BTreeSet<&str>> {
        let arrows = self.arrows();
        let reach = |from: &str| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(room) = next.pop() {
                for (_, to) in arrows.keys().filter(|(of, _)| *of == room) {
                    if seen.insert(*to) {
                        next.push(to);
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.names().into_iter().map(|room| (room, reach(room))).collect();
        let circle_of = |room: &str| -> BTreeSet<&str> {
            let there = reached[room].iter().copied();
            there.filter(|other| reached[other].contains(room)).collect()
        };
        let all: BTreeSet<_> = self.names().into_iter().map(circle_of).filter(|circle| circle.len() > 1).collect();
        all.into_iter().collect()
    }
}

/// The source files below `folder` but tests, in the order of their paths.
pub fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    list(folder, &mut paths)?;
    paths.sort();
    Ok(paths)
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}

impl File {
    /// Reads one file. Returns `None` for the crate's root, which only lists the rooms.
    fn read(folder: &Path, path: &Path) -> Result<Option<File>> {
        let below = path.strip_prefix(folder)?;
        let first = below.components().next().context("a file in the folder")?;
        let room = Path::new(&first).with_extension("").to_string_lossy().into_owned();
        if room == "lib" {
            return Ok(None);
        }
        let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("parse {}", path.display()))?;
        let mut module: Vec<String> =
            below.with_extension("").iter().map(|part| part.to_string_lossy().into()).collect();
        if module.last().is_some_and(|last| last == "mod") {
            module.pop();
        }
        let mut finder = Finder { module, imports: Imports::new(), extends_guard: false };
        finder.visit_file(&parsed);
        let (imports, extends_guard) = (finder.imports, finder.extends_guard);
        Ok(Some(File { path: below.to_owned(), room, imports, extends_guard }))
    }
}

struct Finder {
    /// The module of the names that are being read.
    module: Vec<String>,
    imports: Imports,
    extends_guard: bool,
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|one| one.path().is_ident("cfg") && one.parse_args::<syn::Ident>().is_ok_and(|word| word == "test"))
}

impl Finder {
    /// Records the use of a name, given as `crate::room::...` or by `super`.
    fn record(&mut self, path: &[String]) {
        let mut at: Vec<String> = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("super") => self.module[..self.module.len().saturating_sub(1)].to_vec(),
            _ => return,
        };
        for part in &path[1..] {
            match part.as_str() {
                "super" => drop(at.pop()),
                part => at.push(part.to_owned()),
            }
        }
        if let Some((room, rest)) = at.split_first() {
            self.imports.entry(room.clone()).or_default().insert(rest.join("::"));
        }
    }

    fn record_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.record_tree(&with(&path.ident), &path.tree),
            syn::UseTree::Name(name) if name.ident == "self" => self.record(before),
            syn::UseTree::Name(name) => self.record(&with(&name.ident)),
            syn::UseTree::Rename(name) if name.ident == "self" => self.record(before),
            syn::UseTree::Rename(name) => self.record(&with(&name.ident)),
            syn::UseTree::Glob(_) => self.record(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.record_tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_for_tests(&item.attrs) {
            self.record_tree(&[], &item.tree);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let (None, syn::Type::Path(of)) = (&item.trait_, &*item.self_ty) {
            self.extends_guard |= of.path.segments.last().is_some_and(|last| last.ident == "RingGuard");
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path_of: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.record(&path_of);
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that circles of rooms stay few and small. Otherwise a lower room could begin to depend on `ring/`
    /// unnoticed. ARCHITECTURE.md orders the rooms.
    #[test]
    fn the_engines_rooms_depend_one_way() {
        let root = crate::root();
        let rooms = Rooms::read(&root.join("crates/engine/src")).expect("the sources");
        let circles = rooms.circles();
        assert!(circles.len() <= 3, "as many arrows run back up: {circles:?}");
        assert!(circles.iter().all(|circle| circle.len() <= 2), "{circles:?}");
        let (known, all) = rooms.pairs();
        assert!(2 * known < all, "{known} of {all} pairs know each other");
    }

    #[test]
    fn few_files_extend_the_guard() {
        let root = crate::root();
        let rooms = Rooms::read(&root.join("crates/engine/src")).expect("the sources");
        let files: Vec<_> = rooms.files.iter().filter(|file| file.extends_guard).map(|file| &file.path).collect();
        assert!(files.len() <= 15, "a signature should say what it touches; {} files: {files:?}", files.len());
    }
}
