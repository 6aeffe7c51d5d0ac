//! `anyring advise`: measures whether IOSQE_ASYNC pays, and reports it.

use crate::cli::{AdviseOperation, AdviseOptions};
use crate::doctor::Server;
use crate::failure::{Failure, USAGE};
use crate::{lab, library, output, run};
use anyring_advise::{self as advise, report, subject, Question};
use anyring_lab::backend::Backend;
use anyring_lab::message::Transferring;
use anyring_lab::worker::Launcher;

/// Measures and prints the report.
pub fn run(options: &AdviseOptions) -> Result<i32, Failure> {
    let default = if options.subject == "tcp" { AdviseOperation::Recv } else { AdviseOperation::Read };
    let operation = match options.op.unwrap_or(default) {
        AdviseOperation::Read => Transferring::Read,
        AdviseOperation::Write => Transferring::Write,
        AdviseOperation::Recv => Transferring::Recv,
        AdviseOperation::Send => Transferring::Send,
    };
    let usage = |message| Failure { status: USAGE, message };
    let subject =
        subject::find(&options.subject, operation, options.direct, options.rewrite).map_err(
            |fault| match fault {
                subject::Fault::Usage(message) => usage(message),
                subject::Fault::Refused(message) => Failure::own(message),
            },
        )?;
    let backend = match run::server_of_rings(run::chosen(options.backend, "ANYRING_BACKEND")?)?.server {
        Server::Kernel => Backend::Kernel,
        Server::User => Backend::Anyring,
    };
    let rounds = u32::from(options.rounds);
    let question = Question { backend, operation, sizes: options.sizes.clone(), direct: options.direct, rounds };
    let sizes = advise::sizes(&subject, &question).map_err(usage)?;
    let library = library::find_loadable().map_err(Failure::own)?;
    let launcher = Launcher::new(&library).map_err(Failure::own)?;
    lab::catch_interruptions();
    let bar = lab::progress("advise", advise::steps(&subject, &question, &sizes));
    let measured = advise::run(&launcher, &subject, &question, &sizes, || {
        bar.inc(1);
        lab::check_interrupted()
    });
    bar.finish_and_clear();
    let report = measured.map_err(lab::failed)?;
    let text = match options.json {
        true => lab::json(&report)?,
        false => report::text(&report),
    };
    output::print(&text)?;
    Ok(0)
}
