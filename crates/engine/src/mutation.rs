//! Mutations: bugs that a test chooses, each with the check that must find it.
//!
//! Only builds with the feature `mutations` have them. In all other builds [`mutated`] is false at compile time. The
//! variable `ANYRING_MUTATION` names one mutation for the whole process. `cargo xtask mutations` runs each check
//! twice. Without the mutation the check must pass, and with the mutation it must fail.
//!
//! Each mutation is a point in the code of the engine or of `crates/inject`. Two mutations are not in the code that
//! they break:
//!
//! - The library of this build is linked without `-z nodelete`, and keeps itself mapped by dlopen(3) instead, unless
//!   [`Mutation::LibraryIsUnmapped`] is chosen (`crates/inject/src/loader.rs`).
//! - The trampoline of trapped instructions is assembly. [`Mutation::ExtendedStateIsLost`] corrupts the state that it
//!   has saved (`crates/inject/src/raw/trap.rs`).
//!
//! Every part of the sources has a mutation. Such a part (a *room*) is a folder, or a file with a job of its own.

/// The check that must fail because of a mutation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// A conformance case, `TOPIC::NAME`, run through the door and with the flags that it has in `make test`.
    Case(&'static str),
    /// A conformance case in `anyring-conformance-plain`, where the engine notices every close of a descriptor.
    Plain(&'static str),
    /// A test of `crates/inject/tests/engine.rs`.
    Engine(&'static str),
    /// A test of `crates/inject/tests/raw.rs`.
    Raw(&'static str),
    /// The test `crates/inject/tests/panics.rs`, at this point of [`crate::forced::POINTS`].
    Panic(&'static str),
    /// A unit test of this crate.
    Unit(&'static str),
    /// The simulation, which must report a finding whose text contains this string.
    Simulation(&'static str),
}

/// A row of [`MUTATIONS`].
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The mutation.
    pub mutation: Mutation,
    /// Its name in `ANYRING_MUTATION`.
    pub name: &'static str,
    /// The part of the sources that contains it.
    pub room: &'static str,
    /// Description of the broken behaviour.
    pub what: &'static str,
    /// The check that must fail.
    pub check: Check,
}

macro_rules! mutations {
    ($($room:literal { $($mutation:ident $name:literal $kind:ident $of:literal, $what:literal;)* })*) => {
        /// The bugs that can be chosen.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mutation { $($(#[doc = $what] $mutation,)*)* }

        /// Every mutation, by room.
        pub const MUTATIONS: &[Row] = &[$($(Row {
            mutation: Mutation::$mutation,
            name: $name,
            room: $room,
            what: $what,
            check: Check::$kind($of),
        },)*)*];
    };
}

mutations! {
    "alloc" {
        NoReserve "no-reserve" Engine "tables_without_end_find_no_memory",
            "Decision 19: allocations that must not fail have no reserve, so they fail if mmap(2) fails.";
    }
    "memory" {
        ClosedRingsStayWithTheProgram "closed-rings-stay-with-the-program" Engine "a_closed_ring_leaves_the_memory_alone",
            "A ring that is closed while a thread waits writes CQEs to the addresses that its memory had.";
        RingsLeaveADescriptor "rings-leave-a-descriptor" Simulation "leak",
            "A ring that ends leaves a descriptor open.";
    }
    "descriptors" {
        ChildrenKeepFilesInFlight "children-keep-files-in-flight" Engine "a_child_has_no_files_of_requests",
            "A forked child keeps the files open that its parent's requests work on.";
        ForksMeetChanges "forks-meet-changes" Engine "children_forked_at_any_moment_have_no_files_of_requests",
            "Decision 20: a child that is forked while the engine closes a descriptor keeps the file open forever.";
        NothingIsVerified "nothing-is-verified" Engine "a_number_that_is_reused_unseen_is_found",
            "Decision 9: no registration is verified before a sleep.";
        StandardNumbersAreTaken "standard-numbers-are-taken" Engine "nothing_is_made_under_standard_numbers",
            "Decision 12: a descriptor that the engine makes has the number 2 for a moment.";
        OwnNumbersAreLow "own-numbers-are-low" Engine "the_lowest_number_is_the_programs",
            "Decision 12: the engine's descriptors take the numbers that the program expects.";
    }
    "ring" {
        OverflowPostsTwice "overflow-posts-twice" Case "overflow::every_cqe_is_delivered_in_order",
            "A CQE that overflows is stored twice.";
        HandlersSqesForgotten "handlers-sqes-forgotten" Engine "an_unseen_handler_submits_to_the_ring_it_interrupts",
            "Decision 11: an unseen signal handler interrupts a submission and submits, and its SQEs are forgotten.";
        LocksStayHeldAfterFork "locks-stay-held-after-fork" Engine "a_fork_while_threads_hold_locks_leaves_none_held",
            "Decision 11: a forked child inherits locks that no thread releases.";
        WaitsForBusyRings "waits-for-busy-rings" Engine "a_close_waits_for_no_ring",
            "A thread that closes a descriptor, or serves several rings, waits for each ring's lock.";
        CallsUnderTheLock "calls-under-the-lock" Engine "a_call_that_sleeps_keeps_nobody_from_its_ring",
            "The submitting thread holds the ring's lock during a path operation.";
        BrokenRingKeepsRequests "broken-ring-keeps-requests" Panic "arm",
            "Decision 14: requests in flight on a broken ring stay in flight.";
        PanicsAreNotReported "panics-are-not-reported" Panic "post",
            "Decision 14: other processes that share a broken ring are not informed.";
    }
    "shared" {
        DeadHolderKeepsTheLock "dead-holder-keeps-the-lock"
            Unit "shared::control::tests::a_dead_holder_is_replaced_and_what_it_did_not_publish_is_in_flight",
            "Decision 11: the post lock of a dead process stays taken.";
        OtherProcessesSleepOn "other-processes-sleep-on" Engine "a_sleeper_is_woken_by_what_another_process_posts",
            "A CQE does not wake a thread that sleeps in an epoll wait of another process.";
        TheDeadAreNotBuried "the-dead-are-not-buried" Engine "requests_of_a_killed_owner_end",
            "Requests of a process that has died stay in flight.";
        MakersHaveNoFences "makers-have-no-fences" Engine "a_child_joins_its_parents_ring_without_a_barrier",
            "Decision 3: a process that forks gets no fences, so each child that joins forces a barrier.";
        FencesBesideThreads "fences-beside-threads" Engine "a_child_of_several_threads_joins_by_a_barrier",
            "Decision 3: a child forces no barrier although its parent had several threads when it forked.";
    }
    "register" {
        ProbeIsNotZeroed "probe-is-not-zeroed" Case "register::probe_that_is_not_zeroed_is_einval",
            "IORING_REGISTER_PROBE accepts an argument that is not zeroed.";
    }
    "request" {
        CancelAllMissesSome "cancel-all-misses-some" Case "in_flight::cancel_all_posts_every_one",
            "ASYNC_CANCEL with IORING_ASYNC_CANCEL_ALL ends two requests at most.";
        DrainPasses "drain-passes" Case "link::drain_waits_for_what_came_before",
            "IOSQE_IO_DRAIN does not wait for requests in flight.";
        TimeoutCountsOneMore "timeout-counts-one-more" Case "timeout::count_of_several",
            "A TIMEOUT that counts completions waits for one too many.";
        LinkTimeoutIsCancelled "link-timeout-is-cancelled" Case "link::link_timeout_cancels_its_request",
            "A LINK_TIMEOUT that fires has the result ECANCELED, not ETIME.";
    }
    "op" {
        ShortReadKeepsChain "short-read-keeps-chain" Case "link::short_read_breaks_the_chain",
            "A chain continues after a short read.";
        ShortCountsAreFinal "short-counts-are-final" Simulation "result",
            "A transfer of a file that was short before the file's end is not continued.";
        PollWithoutHangUp "poll-without-hang-up" Case "poll::a_peer_that_stopped_sending_is_always_reported",
            "POLL_ADD reports only the requested events, and no hang-up.";
        OwnPositionIsTheStart "own-position-is-the-start" Case "rw_file::read_at_minus_one_advances_the_position",
            "A transfer at the file's own position is made at the file's start, and does not move the position.";
        AsyncForgetsTheOffset "async-forgets-the-offset" Case "rw_file::async_read_of_a_file",
            "IOSQE_ASYNC makes a transfer at the file's own position.";
        ReceiveWithoutPeek "receive-without-peek" Case "net_data::recv_peek_leaves_the_data",
            "RECV and RECVMSG ignore MSG_PEEK.";
        SpliceForgetsTheOffset "splice-forgets-the-offset" Case "splice::splice_file_to_pipe",
            "SPLICE ignores the offset, and reads at the file's own position.";
        TeeConsumes "tee-consumes" Case "splice::tee_duplicates",
            "TEE takes the data out of the pipe.";
        FallocateIgnoresItsMode "fallocate-ignores-its-mode" Case "sync::fallocate_keep_size",
            "FALLOCATE ignores its mode.";
        UnlinkRemovesNoDirectory "unlink-removes-no-directory" Case "fs::unlinkat_of_a_directory",
            "UNLINKAT ignores AT_REMOVEDIR.";
        PathsByAnyWorker "paths-by-any-worker" Engine "workers_have_the_directory_and_umask_of_the_submitter",
            "Decision 12: any worker makes path operations, whatever its identity.";
        PlainAttempts "plain-attempts" Engine "losing_a_pipe_to_another_reader_keeps_nobody",
            "Decision 13: an attempt is made by a call that may block.";
        PlainCallOnFifos "plain-call-on-fifos" Engine "losing_a_fifo_to_another_reader_keeps_nobody",
            "Decision 13: a call without a nonblocking form is made in the program's thread, where it may block.";
    }
    "issue" {
        SkipPostsAllTheSame "skip-posts-all-the-same" Case "link::skip_success_of_a_pending_read",
            "IOSQE_CQE_SKIP_SUCCESS is ignored: a success posts its CQE.";
        ShotWithoutMore "shot-without-more" Case "multishot_recv::recv_answers_each_time",
            "A result of a multishot request lacks IORING_CQE_F_MORE.";
        WorkersKeepTheirMakersRights "workers-keep-their-makers-rights"
            Engine "workers_write_with_the_rights_of_the_submitter",
            "Decision 16: workers make calls with the rights of the thread that made them, not the submitter's.";
        ChainGoesOnAsAnyThread "chain-goes-on-as-any-thread" Engine "a_chain_that_nobody_waits_for_stays_its_submitters",
            "Decision 12: a chain continues with the identity of the thread that continues it, not the submitter's.";
    }
    "poll" {
        StaleEventsCount "stale-events-count" Engine "events_of_a_file_closed_unseen_do_not_count",
            "Decision 9: events of the file that had the descriptor number before are accepted.";
        OwnNumbersStayKnown "own-numbers-stay-known" Engine "a_slot_holds_one_file_after_the_other",
            "Decision 9: facts about one of the engine's descriptor numbers are kept for the number's next file.";
        NoPrivateDuplicate "no-private-duplicate" Engine "the_number_of_a_waiting_read_is_used_again",
            "Decision 9: a request whose descriptor number is closed gets no duplicate.";
        PutOffIsNotMadeUpFor "put-off-is-not-made-up-for" Engine "a_poll_of_linux_aio_finds_what_is_left",
            "A deferred attempt is not made before a sleep.";
        LateComersGoFirst "late-comers-go-first" Case "order_of_waiting::read_that_waited_has_the_first_byte",
            "A read that is submitted later is served before one that waits on the same descriptor.";
        AnswersOfOthersCount "answers-of-others-count" Case "poll_batch::a_refused_one_among_them",
            "One poll(2) serves several POLL_ADDs, and one of them takes another's answer.";
        AnswersOutliveTheirSubmission "answers-outlive-their-submission"
            Case "poll_batch::what_a_refusal_leaves_is_polled_anew",
            "The answers of one poll(2) for several POLL_ADDs are used in a later submission.";
        DescriptionsMadeNonblocking "descriptions-made-nonblocking" Engine "flags_of_descriptions_stay",
            "Decision 13: the program's open file descriptions are made nonblocking.";
        PipesOpenedAnew "pipes-opened-anew" Engine "pipes_have_no_other_ends_than_the_programs",
            "Decision 13: the program's pipes are opened a second time.";
    }
    "wait" {
        DriverSleepsBeyondTimers "driver-sleeps-beyond-timers" Case "timeout::timeout_takes_its_time",
            "A thread that waits in io_uring_enter(2) sleeps beyond the ring's next timer.";
        JumpLeavesTheSleeper "jump-leaves-the-sleeper"
            Engine "a_handler_jumps_out_of_a_wait_and_the_program_only_looks",
            "A longjmp(3) out of a wait leaves the thread counted as asleep.";
        SpinnerSleepsUnannounced "spinner-sleeps-unannounced"
            Unit "wait::spin_first::tests::a_thread_that_sleeps_after_a_spin_is_woken",
            "A thread that goes to sleep after it has spun is not counted as a waiter, so nobody wakes it.";
        HandlersDoNotEndSpins "handlers-do-not-end-spins"
            Unit "wait::spin_first::tests::a_signal_handler_runs_during_a_spin_and_ends_it",
            "A handler that ran while its thread spun does not end the wait.";
        HandlersKeepTheRole "handlers-keep-the-role" Engine "a_wait_is_left_by_a_compilers_longjmp",
            "While one of the program's handlers interrupts a wait, its thread keeps the driver role.";
        HandlersAnswerTheirWaits "handlers-answer-their-waits"
            Engine "a_cqe_that_a_handler_posts_does_not_end_the_wait_it_interrupts",
            "A wait that a signal ends returns success because of the CQEs that the handler has posted.";
        HandlersBeforeASleepEndNothing "handlers-before-a-sleep-end-nothing"
            Engine "a_handler_that_comes_while_its_thread_submits_ends_its_wait",
            "A handler that runs after io_uring_enter(2) has begun, but before its sleep, does not end the wait.";
        EachEnterCallsTheHelper "each-enter-calls-the-helper" Engine "threads_are_made_when_needed",
            "Decision 12: each io_uring_enter(2) wakes the helper.";
        HelperSleepsBeyondTimers "helper-sleeps-beyond-timers" Case "delivery::cq_is_filled_without_a_call_for_a_timeout",
            "Timers of a program that only polls the CQ do not fire.";
        HelpersPanicEscapes "helpers-panic-escapes" Panic "helper-tick",
            "Decision 14: a panic in the helper is not caught.";
        HelperClosesFiles "helper-closes-files" Engine "a_file_of_a_request_that_lingers_keeps_no_other_ring",
            "The helper makes the last close of a file itself, however long that takes.";
        RoomIsNotAnnounced "room-is-not-announced" Case "sqpoll::sq_wait_waits_for_room",
            "The polling thread does not wake threads that wait for room in the SQ.";
        AsleepWithoutSayingSo "asleep-without-saying-so" Case "sqpoll::sleeps_after_the_idle_time_and_says_so",
            "The polling thread goes to sleep without IORING_SQ_NEED_WAKEUP.";
        BufferedFilesArePolled "buffered-files-are-polled" Case "iopoll::buffered_files_are_eopnotsupp",
            "A ring of polled devices takes transfers without O_DIRECT.";
        PostsWhatNobodyAskedFor "posts-what-nobody-asked-for" Case "iopoll::enter_without_getevents_finds_nothing",
            "A ring of polled devices posts completions that nobody asked for.";
    }
    "wq" {
        WritesToOneFileAtOnce "writes-to-one-file-at-once"
            Unit "wq::hashed::tests::jobs_of_one_inode_come_one_by_one_and_in_order",
            "Several workers write to one file at the same time.";
        LateCopiesGoOn "late-copies-go-on" Unit "wq::parallel::tests::late_workers_get_nothing_for_a_while",
            "Workers get copies although other threads keep them from their CPU.";
        NobodyWatches "nobody-watches" Unit "wq::quick::tests::a_read_that_sleeps_keeps_no_other_for_long",
            "A worker that sleeps in a read delays the jobs queued after it.";
        JobKeepsTheNumber "job-keeps-the-number" Unit "wq::fd::tests::a_number_that_is_replaced_is_not_used_again",
            "A job continues with a descriptor number that the program has closed.";
        SleepsOnTheNumber "sleeps-on-the-number" Engine "a_write_that_sleeps_goes_to_its_file_after_a_stop",
            "A worker sleeps in a call on one of the program's descriptor numbers.";
        WorkersAreNotPinned "workers-are-not-pinned" Case "io_wq::affinity_holds_for_workers",
            "IORING_REGISTER_IOWQ_AFF does not restrict workers to its CPUs.";
        NobodyLooksForAWorker "nobody-looks-for-a-worker" Engine "a_call_after_one_that_sleeps_is_made_once_there_may_be_a_thread",
            "If a thread that a job needs cannot be made, no later attempt is made.";
        BitsDoNotMatter "bits-do-not-matter" Case "futex::bits_must_meet",
            "Any wake of the word ends a FUTEX_WAIT, even if the bits differ.";
    }
    "chaos" {
        LotsAreAllDrawn "lots-are-all-drawn" Unit "chaos::tests::the_same_seed_draws_the_same_lots",
            "A chaos rule is applied everywhere, whatever the seed decides.";
    }
    "driver" {
        SleeperIsNotKicked "sleeper-is-not-kicked" Case "msg_ring_targets::a_wait_with_a_mask_ends",
            "A CQE does not wake a thread that sleeps on the ring's poll set.";
        IdleRingsSpin "idle-rings-spin" Unit "driver::spin::tests::two_spins_for_nothing_end_it",
            "A ring whose messages stop goes on spinning.";
    }
    "device" {
        DeviceRefusalIsTheAnswer "device-refusal-is-the-answer" Case "rw_direct::write_into_a_hole",
            "EAGAIN from the kernel's AIO becomes the request's result, instead of sending the request to a worker.";
    }
    "resource" {
        NamesAnotherBuffer "names-another-buffer" Case "buffer_rings_select::read_takes_the_first_buffer",
            "A CQE names the buffer next to the one that was used.";
        LosesABuffer "loses-a-buffer" Case "buffers_provided::recv_at_the_end_gives_it_back",
            "A provided buffer that was not used is not returned to its group.";
        StaleRegisteredFile "stale-registered-file" Case "register::files_update_clears_with_minus_one",
            "Registering -1 does not remove the file that was in the slot.";
        FiltersAreNotAsked "filters-are-not-asked" Case "bpf_filter::denied_opcode_is_eacces",
            "A request is made although a filter denies it.";
        FirstByteIsOutside "first-byte-is-outside" Case "rw_file::write_fixed_from_a_registered_buffer",
            "The first byte of a registered buffer counts as outside of it.";
    }
    "aio" {
        KeyIsNotCleared "key-is-not-cleared" Case "aio_calls::submit_clears_the_key",
            "io_submit(2) leaves the iocb's key as it was.";
    }
    "aio-ring" {
        EventsAreReadAgain "events-are-read-again" Case "aio_events::most_bounds_what_is_read",
            "Events that io_getevents(2) has read stay in the completion ring.";
        MovedContextIsUnknown "moved-context-is-unknown"
            Unit "aio::tests::a_completion_ring_that_the_program_moved_goes_on",
            "A completion ring that the program moved by mremap(2) is no longer recognised.";
    }
    "event" {
        DroppedEventsAreNotCounted "dropped-events-are-not-counted"
            Unit "event::tests::a_full_file_drops_and_counts_and_goes_on_when_it_was_read",
            "Events that find no room are not counted.";
        ChunksOfTheDeadStay "chunks-of-the-dead-stay" Unit "event::tests::chunks_of_dead_processes_are_used_again",
            "Chunks of processes that died stay in use.";
    }
    "os" {
        SleepsUnderTheLock "sleeps-under-the-lock" Engine "a_registered_file_that_lingers_keeps_nobody_from_its_ring",
            "Decision 17: the last close of a file is made under a ring's lock.";
        ServersAreAsked "servers-are-asked" Engine "a_file_whose_server_is_gone_keeps_nobody_from_its_ring",
            "The status of a descriptor's file is requested from a file server, under a ring's lock.";
        ForkLeavesTheWord "fork-leaves-the-word" Engine "a_raw_fork_is_noticed",
            "Decision 11: a fork does not clear the word that shows it.";
        FaultsAreNotRecovered "faults-are-not-recovered" Case "timeout::bad_timespec_address_is_efault",
            "Decision 5: a bad pointer from the program crashes the program.";
    }
    "process" {
        ClosesMeetChanges "closes-meet-changes" Engine "everything_from_a_number_on_is_closed_while_rings_are_made",
            "Decision 12: descriptor numbers are closed while the engine makes a descriptor of its own.";
        BorrowersOwn "borrowers-own" Engine "a_child_of_vfork_of_an_unseen_fork_closes_its_own",
            "Decision 11: after an unseen fork, the child's own child of vfork(2) counts as the memory's owner.";
        BorrowersMakeThreads "borrowers-make-threads" Engine "a_process_in_the_same_memory_takes_no_worker_along",
            "Decision 12: a process that runs in another process's memory makes engine threads for it.";
        VforkChildrenClose "vfork-children-close" Engine "a_vfork_child_closes_the_pipe_that_is_read",
            "Decision 11: closes by a child of vfork(2) count as the parent's.";
        ThreadsOutstayTheLastRing "threads-outstay-the-last-ring" Engine "a_thousand_rings_that_exit_leave_nothing",
            "Decision 12: engine threads remain after the last ring has ended.";
    }
    "thread" {
        TablesDoNotDiffer "tables-do-not-differ" Engine "a_thread_of_several_gets_a_table_of_its_own",
            "Requests of a thread with its own descriptor table are issued in another table.";
        ThreadsTakeSignals "threads-take-signals" Engine "signals_wait_for_the_program",
            "Decision 12: engine threads take the program's signals.";
        ThreadsBlockSetxid "threads-block-setxid" Engine "setgid_reaches_every_thread",
            "Decision 12: engine threads block the C library's signal for setgid(2).";
        ThreadsOfOursCount "threads-of-ours-count" Engine "a_process_ends_with_its_last_thread",
            "Decision 12: engine threads keep the process alive after the program's last thread.";
    }
    "inject" {
        OwnNumbersAreClosed "own-numbers-are-closed" Raw "descriptors_of_the_engine_survive_closing_wholesale",
            "Decision 12: the program can close the engine's descriptors.";
        OwnNumbersAreOpen "own-numbers-are-open" Raw "a_call_on_a_number_of_the_engines_is_refused",
            "Decision 12: the program can read, write or pass on the engine's descriptors.";
        StreamsCloseUnseen "streams-close-unseen" Engine "the_number_of_a_waiting_read_is_used_again",
            "Decision 9: the close of a descriptor by fclose(3) is not seen.";
        RingsArePassed "rings-are-passed" Case "lifetime::ring_cannot_be_passed_over_a_socket",
            "sendmsg(2) passes a ring to another process.";
        LevelIsNotSettled "level-is-not-settled" Case "delivery::level_epoll_reports_until_reaped",
            "epoll_wait(2) reports a ring whose CQ is empty.";
        LibraryIsUnmapped "library-is-unmapped" Engine "a_library_that_is_closed_stays",
            "Decision 11: dlclose(3) unmaps the library.";
    }
    "liburing" {
        OneSqeTooMany "one-sqe-too-many" Case "liburing::get_sqe_ends_when_the_sq_is_full",
            "io_uring_get_sqe(3) returns one SQE more than the SQ has.";
    }
    "signals" {
        HandlersInterruptTheEngine "handlers-interrupt-the-engine" Engine "a_handler_closes_what_its_thread_submits",
            "Decision 11: a signal handler runs in the middle of a call to the engine.";
        HandlersLeaveFaultsBlocked "handlers-leave-faults-blocked"
            Engine "a_bad_pointer_where_a_handler_of_faults_was_left_is_efault",
            "A SIGSEGV handler that ends by a jump leaves the signal blocked, and the next bad pointer kills.";
        ProgramTakesSigsys "program-takes-sigsys" Raw "a_filter_and_sigsys_handler_of_the_program_work",
            "Decision 10: the program changes the real action of SIGSYS.";
        ProgramBlocksSigsys "program-blocks-sigsys" Raw "blocked_and_ignored_sigsys_stays_so_for_the_program",
            "Decision 10: the program blocks SIGSYS in its real mask.";
        InterruptedCallsAreLeft "interrupted-calls-are-left" Engine "a_thread_is_cancelled_anywhere_in_a_call",
            "A thread that ends in a call to the engine does not release what it holds.";
        DeferredSignalsComeLast "deferred-signals-come-last"
            Engine "real_time_signals_come_in_order_while_their_thread_submits",
            "A signal whose handler was deferred is delivered after signals that were sent later.";
        ThrowsAreCaught "throws-are-caught" Engine "a_handler_throws_out_of_a_wait",
            "A C++ exception that passes through the engine's frames is caught as a panic.";
    }
    "raw" {
        FilterIgnoresTheAddress "filter-ignores-the-address"
            Raw "children_under_an_outer_filter_are_served_or_see_its_errno",
            "Decision 10: calls are trapped by number alone.";
        PluginsAreNotScanned "plugins-are-not-scanned" Raw "a_plugin_is_looked_through_when_it_is_loaded",
            "Decision 10: objects that dlopen(3) maps are not scanned.";
        FiltersPileUp "filters-pile-up" Raw "plugins_that_come_and_go_add_few_filters",
            "Decision 10: every dlopen(3) of code with raw instructions adds a filter.";
        ExtendedStateIsLost "extended-state-is-lost" Raw "registers_and_red_zone_survive",
            "Decision 10: vector and floating-point registers are not restored.";
        TrampolineOnTheProgramsStack "trampoline-on-the-programs-stack" Raw "registers_and_red_zone_survive",
            "Decision 10: the trampoline uses the program's stack.";
        EveryProcessGetsAFilter "every-process-gets-a-filter" Raw "a_program_without_raw_instructions_gets_no_filter",
            "Decision 10: every process gets a filter.";
        MasksAreKeptLate "masks-are-kept-late" Raw "a_plugin_is_loaded_while_a_thread_blocks_everything",
            "Decision 28: a thread that blocked SIGSYS before the signal was guarded continues to block it.";
        TrapsKill "traps-kill" Raw "a_plugin_is_loaded_while_a_thread_blocks_everything",
            "Decision 10: calls of a thread that blocks SIGSYS are trapped, which kills it.";
        AlternateStackStaysEnabled "alternate-stack-stays-enabled"
            Raw "a_handler_on_the_alternate_stack_keeps_its_frames",
            "Decision 10: on the alternate stack a handler overwrites another one whose call is being served.";
        RawZeroIsIgnored "raw-zero-is-ignored" Raw "anyring_raw_0_leaves_instructions_alone",
            "Decision 10: ANYRING_RAW=0 has no effect.";
    }
}

/// True if the process has this mutation.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub const fn mutated(_: Mutation) -> bool {
    false
}

#[cfg(feature = "mutations")]
pub use chosen::mutated;

#[cfg(feature = "mutations")]
mod chosen {
    use super::{Mutation, MUTATIONS};
    use core::ffi::CStr;
    use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

    const VARIABLE: &CStr = c"ANYRING_MUTATION";
    const NONE: u32 = u32::MAX;
    const UNASKED: u32 = u32::MAX - 1;
    /// The chosen mutation's place in [`MUTATIONS`], which is its discriminant. The first call reads the environment.
    /// Two threads that read it at once find the same place.
    static CHOSEN: AtomicU32 = AtomicU32::new(UNASKED);

    /// True if the process has this mutation. Takes no lock and allocates nothing, since signal handlers and children
    /// of vfork(2) call it.
    #[inline]
    pub fn mutated(mutation: Mutation) -> bool {
        let chosen = match CHOSEN.load(Relaxed) {
            UNASKED => ask(),
            chosen => chosen,
        };
        chosen == mutation as u32
    }

    #[cold]
    fn ask() -> u32 {
        // SAFETY: a C string. The first caller is the library's constructor, or a test's first thread, so nothing
        // changes the environment during the call.
        let wanted = unsafe { libc::getenv(VARIABLE.as_ptr()) };
        let chosen = match wanted.is_null() {
            true => NONE,
            // SAFETY: getenv(3) returns a C string.
            false => place(unsafe { CStr::from_ptr(wanted) }.to_bytes()),
        };
        CHOSEN.store(chosen, Relaxed);
        chosen
    }

    /// Returns the mutation's place. Ends the process if there is no such mutation, since its check would otherwise
    /// run without the bug.
    fn place(wanted: &[u8]) -> u32 {
        if let Some(place) = MUTATIONS.iter().position(|row| row.name.as_bytes() == wanted) {
            return place as u32;
        }
        let complaint = b"anyring: ANYRING_MUTATION names no mutation\n";
        // SAFETY: standard error is borrowed for this one call, which fails if it is closed.
        let _ = rustix::io::write(unsafe { rustix::fd::BorrowedFd::borrow_raw(2) }, complaint);
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// The rooms of files that are in no folder.
    const FILES: [&str; 2] = ["inject", "process"];

    /// Returns the folders in `folder`, spelled as rooms.
    fn folders(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("the sources").map(|entry| entry.expect("an entry"));
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| entry.file_name().into_string().expect("UTF-8").replace('_', "-")).collect()
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = MUTATIONS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), MUTATIONS.len());
        for (place, row) in MUTATIONS.iter().enumerate() {
            assert_eq!(row.mutation as usize, place, "{}", row.name);
            let variant = row.name.split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect::<String>();
            assert_eq!(format!("{:?}", row.mutation), variant);
        }
    }

    #[test]
    fn every_room_has_a_mutation() {
        let engine = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let inject = engine.join("../../inject/src");
        let found = [&engine, &inject].map(|folder| folders(folder)).concat();
        // Code for one processor belongs to the rooms that use it.
        let found = found.iter().map(String::as_str).filter(|room| *room != "arch").chain(FILES);
        let rooms: BTreeSet<_> = found.collect();
        let of_mutations: BTreeSet<_> = MUTATIONS.iter().map(|row| row.room).collect();
        assert_eq!(of_mutations, rooms);
    }
}
