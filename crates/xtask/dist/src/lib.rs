//! The files that `make install` installs in addition to cargo's outputs. They are not in xtask, so that users build little.

pub mod dropin;
