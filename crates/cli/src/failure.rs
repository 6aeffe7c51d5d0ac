//! Failures of the command: one line on standard error and an exit status, numbered as by env(1) and timeout(1).

use serde::{Deserialize, Serialize};

/// The command line is wrong.
pub const USAGE: i32 = 2;
/// The status if anyring itself failed.
pub const OWN_FAILURE: i32 = 125;
/// The program was found, but cannot be executed or cannot be served.
pub const CANNOT_EXECUTE: i32 = 126;
/// The program was not found.
pub const NOT_FOUND: i32 = 127;

/// A failure that ends the command.
#[derive(Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Exit status.
    pub status: i32,
    /// The line for standard error, without the leading `anyring: `. Empty if there is nothing to report.
    pub message: String,
}

impl Failure {
    /// Prints the failure's line to standard error.
    pub fn say(&self) {
        if !self.message.is_empty() {
            crate::output::complain(&format!("anyring: {}", self.message));
        }
    }

    /// A failure of anyring itself.
    pub fn own(message: impl Into<String>) -> Self {
        Failure { status: OWN_FAILURE, message: message.into() }
    }
}
