//! Checks the libraries' unwinding tables, which threads need that end inside the libraries' code.

#![cfg(target_arch = "x86_64")]

mod common;

use anyring_xtask::dropin::{self, Tools};
use anyring_xtask::unwinding;
use common::{built, scratch};

#[test]
fn tables_are_right_at_each_instruction() {
    let built = built();
    let mut libraries = dropin::link(&built, &Tools::here(), &scratch("unwinding")).expect("link the drop-ins");
    libraries.push(built.shared);
    for library in libraries {
        let complaints = unwinding::check(&library).expect("a library with tables");
        assert_eq!(complaints, Vec::<String>::new(), "{}", library.display());
    }
}
