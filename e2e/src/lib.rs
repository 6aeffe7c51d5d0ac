//! Runs real io_uring programs where the kernel refuses io_uring, and checks from this project's own statistics that
//! our engine completed their requests.
//!
//! - [`stage`]: one test's folder, and how its programs are run and ended.
//! - [`statistics`]: the only reader of `anyring stats --json`.
//! - [`programs`]: where the programs are.
//!
//! With `E2E_ON=kernel` the same programs run on the kernel's io_uring, which shows that a test is right before it
//! judges us; statistics are then not asserted, and each test says so.

pub mod programs;
pub mod stage;
pub mod statistics;

pub use stage::{Outcome, Refusal, Stage};
pub use statistics::Statistics;

/// Makes two tests of each function `fn name(refusal: Refusal)`: one where the kernel answers EPERM, one for ENOSYS.
#[macro_export]
macro_rules! under_each_refusal {
    ($($name:ident),+ $(,)?) => {
        mod eperm {
            $(#[test] fn $name() { super::$name($crate::Refusal::Eperm) })+
        }
        mod enosys {
            $(#[test] fn $name() { super::$name($crate::Refusal::Enosys) })+
        }
    };
}
