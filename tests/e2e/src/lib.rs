//! Runs real io_uring programs where the kernel refuses io_uring, and checks from this project's own statistics that
//! anyring's engine completed their requests.
//!
//! - [`environment`]: the refused calls, and the user.
//! - [`mod@cases`]: each case in each environment, as tests.
//! - [`stage`]: one test's folder, and how its programs are run and ended.
//! - [`statistics`]: the only reader of `anyring stats --json`.
//! - [`programs`]: where the programs are.
//! - [`daemon`]: a server in a stage.
//! - [`postgres`]: a PostgreSQL server.
//!
//! With `E2E_ON=kernel` the same programs run on the kernel's io_uring. This checks the tests themselves. Statistics
//! are then not asserted, and each test says so. `E2E_IN=docker::user,noaio` runs only the environments whose names
//! begin so.

pub mod cases;
pub mod daemon;
pub mod environment;
pub mod postgres;
pub mod programs;
pub mod stage;
pub mod statistics;

pub use environment::{Environment, Refusal, User};
pub use stage::{Outcome, Stage};
pub use statistics::Statistics;
