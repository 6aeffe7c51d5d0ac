//! What `make install` installs besides cargo's own outputs, apart from xtask so that users build little for it.

pub mod dropin;
