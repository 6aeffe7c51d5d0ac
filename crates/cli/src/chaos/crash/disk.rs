//! The possible contents of a disk after a loss of power, for a file system that writes names in order.
//!
//! - Changes of names become durable in their order. Any sync of a file or folder makes all earlier changes of names
//!   durable, and so does a write with O_DSYNC. Creating, changing and removing a name are such changes. So is setting
//!   a file's size.
//! - Bytes become durable by a sync of their file that began after they were written, or by O_DSYNC and the like. A
//!   sync of a range (sync_file_range(2)) does not make a new size durable, so it only helps bytes within the size.
//!   Until then each sector of each write may be on the disk or not, independently of the others.
//! - A file's size follows from the changes that are on the disk.

use super::change::{Change, Content, File};
use super::tree::Tree;
use anyring_engine::chaos::mix;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The fate of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The disk has it.
    Kept,
    /// The disk does not have it.
    Lost,
    /// The disk has some of its sectors, chosen by `lot`.
    Torn { sector_bytes: u64, lot: u64 },
}

/// The changes of a run, in order.
pub type Log = [Change];

/// True if the change is about names, which are written in order.
fn is_of_names(change: &Change) -> bool {
    !matches!(change, Change::Write { .. } | Change::Sync { .. })
}

/// True for each change that was durable when the log ended.
fn lasting(log: &Log) -> Vec<bool> {
    let syncs: Vec<_> = log
        .iter()
        .filter_map(|change| match change {
            Change::Sync { file, begun, range, is_partial } => Some((*file, *begun, *range, *is_partial)),
            _ => None,
        })
        .collect();
    // The number of changes before the last sync began that made names durable.
    let names = log.iter().filter_map(|change| match change {
        Change::Sync { begun, is_partial: false, .. } => Some(*begun),
        Change::Write { lasts, .. } => *lasts,
        _ => None,
    });
    let names = names.max().unwrap_or(0);
    let is_lasting = |(place, change): (usize, &Change)| match change {
        Change::Sync { .. } => true,
        Change::Write { file, offset, size, new, lasts, .. } => {
            let last = offset.saturating_add(new.len() as u64);
            let covers = |range: [u64; 2]| range[0] <= *offset && last <= range[1];
            lasts.is_some()
                || syncs.iter().any(|(of, begun, range, is_partial)| {
                    let has_size = !is_partial || last <= *size;
                    of.is_none_or(|of| of == *file) && *begun > place && covers(*range) && has_size
                })
        }
        _ => names > place,
    };
    log.iter().enumerate().map(is_lasting).collect()
}

/// Draws the fate of each change from a seed. With some seeds everything is lost that may be lost, with others only
/// names or only bytes.
pub fn draw(log: &Log, seed: u64) -> Vec<Fate> {
    let lasting = lasting(log);
    let open_names =
        log.iter().zip(&lasting).filter(|(change, lasts)| is_of_names(change) && !**lasts).count() as u64;
    let (names_kept, bytes) = match mix(seed) % 4 {
        0 => (0, 0),
        1 => (open_names, 1),
        2 => (mix(seed ^ 1) % (open_names + 1), 2),
        _ => (mix(seed ^ 1) % (open_names + 1), 1),
    };
    let mut names = 0;
    let fates = log.iter().zip(lasting).enumerate().map(|(place, (change, lasts))| {
        if lasts {
            return Fate::Kept;
        }
        if is_of_names(change) {
            names += 1;
            return if names <= names_kept { Fate::Kept } else { Fate::Lost };
        }
        let lot = mix(mix(seed) ^ place as u64);
        match (bytes, lot % 4) {
            (0, _) | (1, 0) => Fate::Lost,
            (2, _) | (_, 1) => Fate::Kept,
            _ => torn(change, if lot & 16 == 0 { 512 } else { 4096 }, mix(lot)),
        }
    });
    fates.collect()
}

/// Returns the fate of a write if only some of its sectors reached the disk. A write of a single sector is lost.
fn torn(change: &Change, sector_bytes: u64, lot: u64) -> Fate {
    match change {
        Change::Write { offset, new, .. } if parts(*offset, new, sector_bytes).count() > 1 => {
            Fate::Torn { sector_bytes, lot }
        }
        _ => Fate::Lost,
    }
}

/// Returns the contents of the disk. `killed`: the folders as they were when the program was killed.
pub fn state(killed: &Tree, log: &Log, fates: &[Fate]) -> Tree {
    let mut tree = killed.clone();
    for change in log.iter().rev() {
        undo(&mut tree, change);
    }
    for (change, fate) in log.iter().zip(fates) {
        redo(&mut tree, change, *fate);
    }
    tree
}

fn undo(tree: &mut Tree, change: &Change) {
    match change {
        Change::Write { file, offset, size, old, new, .. } => {
            let Some(bytes) = tree.bytes(*file) else { return };
            put(bytes, *offset, old);
            if offset.saturating_add(new.len() as u64) > *size {
                bytes.truncate(*size as usize);
            }
        }
        Change::Resize { file, from, to, cut } => {
            let Some(bytes) = tree.bytes(*file) else { return };
            bytes.resize(*from as usize, 0);
            put(bytes, *to, cut);
        }
        Change::Create { path, .. } => drop(tree.take(path)),
        Change::Unlink { path, content } => restore(tree, path, content),
        Change::Rename { from, to, replaced, exchanged } => {
            move_name(tree, to, from, *exchanged);
            replaced.iter().for_each(|content| restore(tree, to, content));
        }
        Change::Sync { .. } => {}
    }
}

fn redo(tree: &mut Tree, change: &Change, fate: Fate) {
    if fate == Fate::Lost {
        return;
    }
    match change {
        Change::Write { file, offset, new, .. } => {
            let Some(bytes) = tree.bytes(*file) else { return };
            match fate {
                Fate::Torn { sector_bytes, lot } => {
                    parts(*offset, new, sector_bytes)
                        .filter(|(sector, ..)| mix(lot ^ sector) & 1 == 0)
                        .for_each(|(_, at, part)| put(bytes, at, part));
                }
                _ => put(bytes, *offset, new),
            }
        }
        Change::Resize { file, to, .. } => {
            if let Some(bytes) = tree.bytes(*file) {
                bytes.resize(*to as usize, 0);
            }
        }
        Change::Create { file, path } => drop(tree.names.insert(path.clone(), *file)),
        Change::Unlink { path, .. } => drop(tree.take(path)),
        Change::Rename { from, to, exchanged, .. } => move_name(tree, from, to, *exchanged),
        Change::Sync { .. } => {}
    }
}

fn move_name(tree: &mut Tree, from: &[u8], to: &[u8], exchanged: bool) {
    let other = tree.take(to);
    tree.rename(from, to);
    if exchanged {
        for (name, file) in other {
            tree.names.insert([from, &name[to.len()..]].concat(), file);
        }
    }
}

/// Puts back a name that was removed.
fn restore(tree: &mut Tree, path: &[u8], content: &Content) {
    tree.names.insert(path.to_vec(), content.file);
    tree.files.entry(content.file).or_insert_with(|| content.node.clone());
}

/// Writes `part` at `offset`, and fills a gap before it with zeros.
fn put(bytes: &mut Vec<u8>, offset: u64, part: &[u8]) {
    let (offset, end) = (offset as usize, offset as usize + part.len());
    if part.is_empty() {
        return;
    }
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(part);
}

/// Returns the sectors of a write: the number of each, its offset in the file, and its bytes.
fn parts(offset: u64, bytes: &[u8], sector_bytes: u64) -> impl Iterator<Item = (u64, u64, &[u8])> {
    let end = offset + bytes.len() as u64;
    (offset / sector_bytes..end.div_ceil(sector_bytes)).map(move |sector| {
        let from = (sector * sector_bytes).max(offset);
        let to = ((sector + 1) * sector_bytes).min(end);
        (sector, from, &bytes[(from - offset) as usize..(to - offset) as usize])
    })
}

/// Reduces the losses to those that are needed for the failure. Undoes a loss if `fails` stays true without it.
/// Losses of names are undone in order.
pub fn fewest(log: &Log, fates: &[Fate], mut fails: impl FnMut(&[Fate]) -> bool) -> Vec<Fate> {
    let mut fates = fates.to_vec();
    let mut are_names_done = false;
    for place in 0..log.len() {
        let is_name = is_of_names(&log[place]);
        if fates[place] == Fate::Kept || (is_name && are_names_done) {
            continue;
        }
        let lost = std::mem::replace(&mut fates[place], Fate::Kept);
        if !fails(&fates) {
            fates[place] = lost;
            are_names_done |= is_name;
        }
    }
    fates
}

/// Describes the losses for people, a line each.
pub fn describe(log: &Log, fates: &[Fate], killed: &Tree) -> Vec<String> {
    let shown = |path: &[u8]| Path::new(OsStr::from_bytes(path)).display().to_string();
    let name_of = |file: &File| {
        let name = killed.names.iter().find(|(_, of)| *of == file).map(|(name, _)| shown(name));
        name.unwrap_or_else(|| "a file without a name".to_owned())
    };
    let line = |(change, fate): (&Change, &Fate)| {
        let how = match fate {
            Fate::Kept => return None,
            Fate::Lost => "lost".to_owned(),
            Fate::Torn { sector_bytes, .. } => format!("torn between sectors of {sector_bytes} bytes"),
        };
        let what = match change {
            Change::Write { file, offset, new, .. } => {
                format!("{} bytes written at {offset} of {}", new.len(), name_of(file))
            }
            Change::Resize { file, from, to, .. } => {
                format!("the size of {} from {from} to {to} bytes", name_of(file))
            }
            Change::Create { path, .. } => format!("the new name {}", shown(path)),
            Change::Unlink { path, .. } => format!("the removal of {}", shown(path)),
            Change::Rename { from, to, .. } => format!("the rename of {} to {}", shown(from), shown(to)),
            Change::Sync { .. } => return None,
        };
        Some(format!("{how}: {what}"))
    };
    log.iter().zip(fates).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::Node;
    use super::*;

    const FILE: File = [1, 7, 0];

    /// A folder with a file of these bytes.
    fn tree(bytes: &[u8]) -> Tree {
        let mut tree = Tree::default();
        tree.names.insert(b"/f/a".to_vec(), FILE);
        tree.files.insert(FILE, Node::Regular { mode: 0o644, bytes: bytes.to_vec() });
        tree
    }

    fn write(offset: u64, size: u64, old: &[u8], new: &[u8]) -> Change {
        Change::Write { file: FILE, offset, size, old: old.to_vec(), new: new.to_vec(), lasts: None }
    }

    fn sync(begun: usize) -> Change {
        Change::Sync { file: Some(FILE), begun, range: [0, u64::MAX], is_partial: false }
    }

    fn bytes(tree: &Tree) -> Vec<u8> {
        tree.clone().bytes(FILE).expect("a file").clone()
    }

    #[test]
    fn only_what_a_later_sync_covers_is_lasting() {
        let log = [write(0, 0, b"", b"one"), sync(1), write(3, 3, b"", b"two"), sync(1)];
        assert_eq!(lasting(&log), [true, true, false, true], "the second sync began before the second write ended");
        let rename =
            Change::Rename { from: b"/f/a".to_vec(), to: b"/f/b".to_vec(), replaced: None, exchanged: false };
        let other = Change::Sync { file: Some([1, 8, 0]), begun: 2, range: [0, u64::MAX], is_partial: false };
        let log = [write(0, 0, b"", b"one"), rename, other];
        assert_eq!(
            lasting(&log),
            [false, true, true],
            "names are written with any file's sync, bytes with their own"
        );
    }

    #[test]
    fn a_lost_write_leaves_what_others_wrote() {
        let log = [write(0, 4, b"....", b"AAAA"), write(2, 4, b"AA", b"BB"), write(4, 4, b"", b"CC")];
        let killed = tree(b"AABBCC");
        let after = |fates: [Fate; 3]| bytes(&state(&killed, &log, &fates));
        assert_eq!(after([Fate::Kept; 3]), b"AABBCC");
        assert_eq!(after([Fate::Lost; 3]), b"....");
        assert_eq!(after([Fate::Lost, Fate::Kept, Fate::Lost]), b"..BB");
        assert_eq!(after([Fate::Kept, Fate::Lost, Fate::Kept]), b"AAAACC");
    }

    #[test]
    fn a_torn_write_keeps_whole_sectors() {
        let new: Vec<u8> = (0..2048u32).map(|place| 1 + (place / 512) as u8).collect();
        let log = [write(0, 2048, &[0; 2048], &new)];
        let seen = (0..16).map(|lot| bytes(&state(&tree(&new), &log, &[Fate::Torn { sector_bytes: 512, lot }])));
        let mut torn = 0;
        for bytes in seen {
            for (sector, part) in bytes.chunks(512).enumerate() {
                assert!(part.iter().all(|byte| *byte == part[0]) && [0, 1 + sector as u8].contains(&part[0]));
            }
            torn += usize::from(bytes.contains(&0) && bytes.iter().any(|byte| *byte != 0));
        }
        assert!(torn > 0);
    }

    #[test]
    fn names_go_back_to_what_they_led_to() {
        let (a, b) = (b"/f/a".to_vec(), b"/f/b".to_vec());
        let regular = |bytes: &[u8]| Node::Regular { mode: 0o600, bytes: bytes.to_vec() };
        let replaced = Content { file: [1, 8, 0], node: regular(b"old") };
        let rename = Change::Rename { from: a.clone(), to: b.clone(), replaced: Some(replaced), exchanged: false };
        let mut killed = tree(b"new");
        killed.rename(&a, &b);
        let log =
            [rename, Change::Unlink { path: b.clone(), content: Content { file: FILE, node: regular(b"new") } }];
        killed.take(&b);
        let before = state(&killed, &log, &[Fate::Lost; 2]);
        assert_eq!((before.names.get(&a), before.names.get(&b)), (Some(&FILE), Some(&[1, 8, 0])));
        let between = state(&killed, &log, &[Fate::Kept, Fate::Lost]);
        assert_eq!((between.names.get(&a), between.names.get(&b)), (None, Some(&FILE)));
        assert_eq!(state(&killed, &log, &[Fate::Kept; 2]).names, killed.names);
    }

    #[test]
    fn the_fewest_losses_are_those_that_matter() {
        let log = [write(0, 0, b"", b"1"), write(1, 1, b"", b"2"), write(2, 2, b"", b"3")];
        let fewest = fewest(&log, &[Fate::Lost; 3], |fates| fates[1] == Fate::Lost);
        assert_eq!(fewest, [Fate::Kept, Fate::Lost, Fate::Kept]);
        assert_eq!(describe(&log, &fewest, &tree(b"123")), ["lost: 1 bytes written at 1 of /f/a"]);
    }
}
