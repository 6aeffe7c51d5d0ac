//! Requests that depend on who submitted them, and another thread may issue.

use crate::alloc;
use crate::identity;
use crate::mutation::{mutated, Mutation};
use crate::request::{Id, Request, State};
use crate::ring::RingGuard;
use crate::wq::creds::{Crew, Hold};
use crate::wq::Job;
use std::sync::Arc;

/// What the present holder of a ring's lock submitted that depends on who it is.
#[derive(Default)]
pub struct Submission {
    pub(crate) crew: Option<Arc<Crew>>,
    /// Requests that may have to wait their turn.
    pub(crate) waiting: Vec<Id>,
}

impl Submission {
    /// Keeps the requests of which `keeps` is true; answers the others.
    pub fn split(&mut self, keeps: impl Fn(Id) -> bool) -> Option<Submission> {
        let (kept, others) = core::mem::take(&mut self.waiting).into_iter().partition(|id| keeps(*id));
        self.waiting = kept;
        let others: Vec<Id> = others;
        (!others.is_empty()).then(|| Submission { crew: self.crew.clone(), waiting: others })
    }
}

impl RingGuard {
    /// Notes a request that may be issued by another thread, if that would make a difference.
    pub fn note_submitter(&mut self, id: Id) {
        if self.slab[id].depends_on_caller() && !mutated(Mutation::ChainGoesOnAsWhoever) {
            // Where there is no memory nobody holds a crew for it: it ends with an error if it has to wait.
            let _ = alloc::push(&mut self.submission.get_or_insert_default().waiting, id);
        }
    }

    /// The calling thread is about to let go of the ring: what it submitted and was not issued holds a crew.
    #[cold]
    pub fn leave_submission(&mut self) {
        let Some(mut submission) = self.submission.take() else { return };
        for id in submission.waiting {
            self.hold_crew(id, &mut submission.crew);
        }
    }

    /// The calling thread is about to change its identity, as the first one: what is in flight keeps the one that all have.
    #[cold]
    pub fn keep_identity(&mut self) {
        if self.ring().defers() {
            return; // whoever submitted it completes it
        }
        let (mut place, mut crew) = (0, None);
        while let Some(id) = self.slab.next_from(place) {
            place = id.place() + 1;
            let request = &self.slab[id];
            let acts = match request.state() {
                State::Polling(_) | State::Staged | State::Submitted => request.acts_when_ready(),
                _ => request.depends_on_caller(),
            };
            if acts {
                self.hold_crew(id, &mut crew);
            }
        }
    }

    /// Has a request that waits hold `crew`, which is the calling thread's, or a new one.
    fn hold_crew(&mut self, id: Id, crew: &mut Option<Arc<Crew>>) {
        if self.is_polled() {
            return; // the thread that submitted goes on with it itself
        }
        let waits = |request: &&mut Request| {
            let waits = match request.state() {
                State::Chained | State::Deferred | State::Polling(_) | State::Staged | State::Submitted => true,
                State::Issuing | State::Ready | State::Queued(_) | State::Timed | State::Cancelled(_) => false,
            };
            waits && request.hold.is_none()
        };
        if let Some(request) = self.slab.get_mut(id).filter(waits) {
            request.hold = Some(Hold::new(crew.get_or_insert_with(Crew::new)));
        }
    }

    /// A request is going to wait until it can act: notes it, if another thread might do so for it.
    #[inline]
    pub fn note_waiting(&mut self, id: Id) {
        if identity::may_differ() && self.slab[id].acts_when_ready() && !self.ring().defers() {
            self.note_submitter(id);
        }
    }

    /// Queues a request to a crew of its submitter. False when there cannot be one any more.
    pub fn queue_to_crew(&mut self, id: Id, job: Arc<Job>) -> bool {
        match self.slab[id].hold.take().filter(|hold| !hold.is_mine()) {
            Some(hold) => hold.0.queue(job, false),
            None => {
                let submission = self.submission.get_or_insert_default();
                submission.crew.get_or_insert_with(Crew::new).clone().queue(job, true)
            }
        }
    }

    /// Whether a request must be made by a crew, since another thread than its submitter issues it.
    pub fn is_others(&self, id: Id) -> bool {
        self.slab[id].hold.as_ref().is_some_and(|hold| !hold.is_mine())
    }
}
