//! Programs that once broke the engine, or were written to break it: by several threads, forks, signal handlers and
//! closing all descriptors. Each runs on the kernel's io_uring, as the reference, and on the engine. Each checks itself
//! and prints where it failed.

mod common;

use common::running::{Running, USUAL};
use common::{built, compile_with, no_cxx, no_liburing, no_reference, scratch, skip, text};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time after which a program that runs for minutes counts as hanging.
const SOAK_PATIENCE: Duration = Duration::from_secs(3600);

/// The environment variable with a command prefix for programs on the engine. An example is `anyring deny --profile
/// minimal --`. The command makes an environment in which something is missing (scripts/profiles.sh).
const BELOW: &str = "ANYRING_TEST_BELOW";

fn run(program: &Path, case: &str, environment: &[(&str, &Path)]) -> Output {
    let below = std::env::var(BELOW).unwrap_or_default();
    let outer = if environment.is_empty() { "" } else { below.as_str() };
    let mut words = outer.split_whitespace().map(OsStr::new).chain([program.as_os_str()]);
    let mut command = Command::new(words.next().expect("the program at least"));
    command.args(words).arg(case).envs(environment.iter().copied()).current_dir(scratch("engine"));
    if COUNT.iter().any(|count| program.ends_with(count)) {
        // These programs count mappings. So libc must not keep the stacks of ended threads for later use, nor make a
        // heap for each thread.
        command.env("GLIBC_TUNABLES", "glibc.pthread.stack_cache_size=0:glibc.malloc.arena_max=1");
    }
    let output = Running::start(command.stdin(Stdio::null())).output(if case.ends_with("soak") {
        SOAK_PATIENCE
    } else {
        USUAL
    });
    output.unwrap_or_else(|why| panic!("{program:?} {case} with {environment:?} {why}"))
}

/// Programs in C++.
const IN_CXX: [&str; 1] = ["throws"];

/// Returns the program, which is compiled once for all its cases.
fn program(source: &str) -> PathBuf {
    static COMPILED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let path = scratch("engine").join(source);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if !compiled.iter().any(|known| known == source) {
        // For threads that end and clean up variables of C, and for handlers of faults that throw.
        let (compiler, exceptions) =
            if IN_CXX.contains(&source) { ("c++", "-fnon-call-exceptions") } else { ("cc", "-fexceptions") };
        compile_with(compiler, &format!("engine/{source}"), &path, &[exceptions, "-Wl,--as-needed", "-luring"]);
        compiled.push(source.to_owned());
    }
    path
}

/// Programs that count what they hold.
const COUNT: [&str; 3] = ["leftovers", "load", "leaks"];

/// Held while a program counts what remains of its rings, a second after the last ring. Only one program may do that at
/// a time.
static COUNTING: Mutex<()> = Mutex::new(());

/// Runs one case on the kernel's io_uring and on the engine.
fn same_both_ways(test: &str, source: &str, case: &str) {
    let no_compiler = || no_cxx().filter(|_| IN_CXX.contains(&source));
    if let Some(reason) = no_reference().or_else(no_liburing).or_else(no_compiler) {
        return skip(test, reason);
    }
    if passes(test, "natively", source, case, &[]) {
        on_the_engine(test, source, case);
    }
}

fn on_the_engine(test: &str, source: &str, case: &str) {
    let (library, user) = (built().shared, Path::new("user"));
    let engine = [("LD_PRELOAD", library.as_path()), ("ANYRING_BACKEND", user), ("ANYRING_AIO", user)];
    passes(test, "on the engine", source, case, &engine);
}

/// Runs one case. False if the program says that there is nothing to check.
fn passes(test: &str, how: &str, source: &str, case: &str, environment: &[(&str, &Path)]) -> bool {
    let _alone = COUNT.contains(&source).then(|| COUNTING.lock().unwrap_or_else(PoisonError::into_inner));
    let output = run(&program(source), case, environment);
    let printed = String::from_utf8_lossy(&output.stdout);
    if let Some(reason) = printed.strip_prefix("skipped: ") {
        skip(test, reason.trim_end());
        return false;
    }
    assert!(output.status.success() && printed == "done\n", "{how}, {source} {case}: {}", text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{how}, {source} {case}");
    true
}

/// One test for each case: its name, the program, its argument.
macro_rules! cases {
    ($($test:ident: $source:literal $case:literal;)*) => {$(
        #[test]
        fn $test() {
            same_both_ways(stringify!($test), $source, $case);
        }
    )*};
}

cases! {
    threads_close_through_rings_of_their_own: "lifetime" "close-by-threads";
    a_close_waits_for_no_ring: "blocked_calls" "transfers";
    a_change_of_identity_waits_for_no_ring: "blocked_calls" "changes-of-identity";
    a_ring_is_closed_while_its_holder_sleeps: "blocked_calls" "ends";
    a_call_that_sleeps_keeps_nobody_from_its_ring: "blocked_calls" "names";
    a_close_that_lingers_keeps_nobody_from_its_ring: "blocked_calls" "lingers";
    a_registered_file_that_lingers_keeps_nobody_from_its_ring: "blocked_calls" "unregistered";
    a_slot_whose_file_lingers_keeps_nobody_from_its_ring: "blocked_calls" "cleared";
    a_file_of_a_request_that_lingers_keeps_no_other_ring: "blocked_calls" "received";
    a_transfer_without_a_worker_keeps_nobody_from_its_ring: "blocked_calls" "no-worker";
    a_call_on_a_name_without_a_thread_keeps_nobody_from_its_ring: "blocked_calls" "no-creds-pool";
    an_event_of_a_polled_ring_that_is_busy_is_not_lost: "blocked_calls" "polled";
    files_for_a_ring_that_is_kept_keep_no_worker: "blocked_calls" "messages";
    a_message_with_a_file_for_a_ring_that_ends_is_completed: "blocked_calls" "last-message";
    a_message_with_a_file_for_a_ring_that_is_kept_can_be_cancelled: "blocked_calls" "cancelled-message";
    a_file_whose_server_is_gone_keeps_nobody_from_its_ring: "servers" "transfers";
    the_status_of_such_a_file_keeps_nobody_either: "servers" "statuses";
    calls_that_concern_no_ring_cost_no_other_calls: "cheap" "calls";
    a_program_started_where_the_library_is_not_says_nothing: "absent" "name";
    a_program_started_after_a_mount_says_nothing: "absent" "mount";
    signals_of_a_vfork_child_are_its_own: "vfork_signals" "vfork";
    signals_of_a_vfork_childs_children_are_their_own: "vfork_signals" "nested";
    signals_of_a_clone_in_this_memory_are_its_own: "vfork_signals" "clone";
    a_vfork_that_is_refused_changes_nothing: "vfork_signals" "refused";
    an_action_is_changed_in_the_middle_of_a_change: "vfork_signals" "middle";
    actions_are_changed_by_threads_at_once: "vfork_signals" "threads";
    nothing_is_made_under_standard_numbers: "standard_descriptors" "made";
    rings_that_exit_leave_nothing: "lifetime" "leak-exit";
    rings_that_are_closed_leave_nothing: "lifetime" "leak-close";
    rings_that_are_closed_by_syscall_leave_nothing: "lifetime" "leak-syscall";
    rings_that_are_closed_by_instruction_leave_nothing: "lifetime" "leak-instruction";
    rings_whose_duplicate_is_dropped_leave_nothing: "lifetime" "leak-duplicate";
    rings_with_a_drain_after_a_pending_read_leave_nothing: "lifetime" "leak-drain";
    a_late_connect_reaches_no_other_ring: "lifetime" "late-connect";
    a_registered_ring_outlives_its_number: "lifetime" "registered";
    a_duplicate_keeps_level_readiness: "lifetime" "duplicate";
    an_entered_duplicate_keeps_level_readiness: "lifetime" "duplicate-entered";

    a_thousand_rings_that_exit_leave_nothing: "leftovers" "exit";
    a_thousand_rings_that_are_closed_leave_nothing: "leftovers" "close";
    a_thousand_rings_that_are_unmapped_first_leave_nothing: "leftovers" "close-after-unmapping";
    a_thousand_rings_whose_duplicates_are_dropped_leave_nothing: "leftovers" "duplicates";
    a_thousand_rings_that_are_replaced_leave_nothing: "leftovers" "replaced";
    a_thousand_rings_that_are_closed_in_ranges_leave_nothing: "leftovers" "range";
    a_thousand_rings_that_threads_registered_leave_nothing: "leftovers" "thread";
    rings_of_killed_children_leave_nothing: "leftovers" "killed-child";
    no_files_are_left: "leftovers" "files";
    rounds_wear_nothing_out: "leaks" "short";
    many_requests_in_flight_leave_nothing: "load" "requests";
    many_rings_at_once_leave_nothing: "load" "rings";
    many_connections_leave_nothing: "load" "connections";

    a_handler_closes_what_its_thread_submits: "interrupted" "closes";
    a_handler_closes_by_syscall_what_its_thread_submits: "interrupted" "closes-by-syscall";
    a_handler_replaces_what_its_thread_submits: "interrupted" "replaces";
    a_handler_closes_a_range_of_what_its_thread_submits: "interrupted" "closes-range";
    a_handler_shuts_down_what_its_thread_submits: "interrupted" "shuts-down";
    a_handler_closes_the_ring_to_which_its_thread_submits: "interrupted" "closes-ring";
    a_handler_enters_the_ring_to_which_its_thread_submits: "interrupted" "enters";
    a_handler_registers_with_the_ring_to_which_its_thread_submits: "interrupted" "registers";
    a_handler_forks_while_its_thread_submits: "interrupted" "forks";
    a_handler_starts_a_program_while_its_thread_submits: "interrupted" "spawns";
    a_handler_jumps_out_of_a_submission: "interrupted" "jumps";
    a_handler_of_many_signals_loses_none: "interrupted" "queues";
    a_handler_submits_to_the_context_it_interrupts: "interrupted" "io-submit";
    a_handler_that_comes_while_its_thread_submits_ends_its_wait: "interrupted" "waits";
    real_time_signals_come_in_order_while_their_thread_submits: "blocked_calls" "signals";
    a_handler_destroys_the_context_it_interrupts: "interrupted" "io-destroy";

    a_bad_pointer_of_a_thread_that_blocked_faults_early_is_efault: "faults" "blocked-before-the-first-ring";
    a_bad_pointer_of_a_thread_whose_maker_blocked_faults_is_efault: "faults" "blocked-by-a-maker";
    a_bad_pointer_of_a_thread_that_blocked_faults_unseen_is_efault: "faults" "blocked-unseen";
    a_bad_pointer_of_a_thread_that_blocked_faults_and_comes_in_a_handler_is_efault: "faults" "blocked-in-a-handler";
    a_bad_pointer_after_a_handler_set_unseen_is_efault: "faults" "handled-unseen";
    a_bad_pointer_where_a_handler_of_faults_was_left_is_efault: "faults" "left";

    polls_without_end_find_no_memory: "memory" "polls";
    deferred_polls_without_end_find_no_memory: "memory" "deferred-polls";
    vectors_without_end_find_no_memory: "memory" "vectors";
    timeouts_without_end_find_no_memory: "memory" "timeouts";
    chains_without_end_find_no_memory: "memory" "chains";
    workers_find_no_memory: "memory" "workers";
    buffers_without_end_find_no_memory: "memory" "provides";
    rings_without_end_find_no_memory: "memory" "setups";
    tables_without_end_find_no_memory: "memory" "registers";
    iocbs_without_end_find_no_memory: "memory" "aio";
    a_child_finds_no_memory: "memory" "forks";
    no_mapping_is_left: "memory" "mappings";

    workers_have_the_credentials_of_the_submitter: "identity" "credentials";
    workers_have_the_directory_and_umask_of_the_submitter: "identity" "directory";
    a_chain_that_nobody_waits_for_stays_its_submitters: "identity" "chain";
    a_chain_that_another_thread_waits_for_stays_its_submitters: "identity" "chain-another-waits";
    both_ends_of_a_fifo_are_opened_by_one_thread: "identity" "fifo";
    a_connection_is_its_submitters: "identity" "connect";

    workers_write_with_the_rights_of_the_submitter: "rights" "changes";
    a_request_that_waits_its_turn_has_the_rights_of_its_submitter: "rights" "turn";
    a_polling_thread_has_the_rights_of_each_rings_maker: "rights" "polled";
    a_message_that_had_to_wait_tells_who_submitted_it: "rights" "messages";
    accepted_sockets_belong_to_the_submitter: "rights" "accepted";
    an_instruction_that_is_not_trapped_may_change_the_user: "rights_unseen" "write";
    an_instruction_that_is_trapped_may_change_the_user: "rights_trapped" "write";

    a_child_closes_the_pipe_that_is_read: "forks" "closes-pipe";
    a_child_joins_its_parents_ring_without_a_barrier: "forks" "joins";
    a_child_of_several_threads_joins_by_a_barrier: "forks" "joins-threads";
    a_child_closes_the_ring: "forks" "closes-ring";
    a_child_exits_the_ring: "forks" "exits-ring";
    a_child_makes_rings_of_its_own: "forks" "makes-rings";
    a_fork_while_threads_hold_locks_leaves_none_held: "forks" "locks";
    a_child_exits_whose_thread_registered_the_ring: "forks" "registered";
    a_child_makes_the_first_ring_while_libraries_are_loaded: "forks" "first-ring";
    a_child_of_vfork_in_a_child_closes_its_own: "forks" "borrows";
    a_raw_fork_is_noticed: "forks" "raw";
    a_child_of_vfork_closes_its_own_where_no_page_is_wiped: "forks" "unwiped-borrows";
    a_child_closes_the_pipe_where_no_page_is_wiped: "forks" "unwiped-closes-pipe";
    a_raw_fork_is_noticed_where_no_page_is_wiped: "forks" "unwiped-raw";
    three_generations_alternate_where_no_page_is_wiped: "forks" "unwiped-turns";
    a_vfork_child_closes_the_pipe_where_no_page_is_wiped: "forks" "unwiped-vfork";
    three_generations_alternate_on_one_ring: "forks" "turns";
    a_vfork_child_closes_the_pipe_that_is_read: "forks" "vfork-closes-pipe";
    a_vfork_child_closes_everything_and_execs: "forks" "vfork-closes-all";

    a_child_of_vfork_of_an_unseen_fork_closes_its_own: "borrows" "raw";
    a_child_of_vfork_of_a_fork_without_handlers_closes_its_own: "borrows" "_Fork";
    duplicates_of_a_child_of_vfork_are_its_own: "borrows" "dups";
    a_ring_in_a_set_stays_level_whatever_a_child_of_vfork_closes: "borrows" "level";
    a_child_with_its_parents_descriptors_parts_from_them: "borrows" "parts";
    a_bad_pointer_of_a_child_whose_handlers_are_gone_is_efault: "borrows" "bad-pointers";
    a_process_in_the_same_memory_is_killed_while_it_waits: "borrows" "killed";
    a_process_in_the_same_memory_takes_no_worker_along: "borrows" "workers";

    rings_that_a_child_exits_leave_it_nothing: "children" "exits";
    rings_that_a_child_closes_leave_it_nothing: "children" "closes";
    deferred_rings_that_a_child_closes_leave_it_nothing: "children" "closes-deferred";
    polled_rings_that_a_child_closes_leave_it_nothing: "children" "closes-polled";
    a_child_that_rings_are_kept_from_has_nothing: "children" "kept";
    a_parent_outlives_a_hostile_child: "children" "hostile";
    a_child_keeps_one_ring_of_two: "children" "keeps-one";

    processes_submit_to_one_ring_at_once: "processes" "submit-at-once";
    a_child_collects_while_the_owner_computes: "processes" "child-collects";
    an_owner_that_closes_other_numbers_lives: "processes" "other-numbers";
    requests_of_a_killed_owner_end: "processes" "owner-was-killed";
    requests_of_an_owner_that_exited_end: "processes" "owner-exited";
    an_owner_is_killed_while_another_process_waits: "processes" "owner-is-killed";
    an_owner_that_came_late_is_killed_while_another_process_waits: "processes" "late-owner-is-killed";
    a_sleeper_is_woken_by_what_another_process_posts: "processes" "wake";
    a_ring_outlives_processes_killed_anywhere: "processes" "killed-anywhere";
    backends_wait_for_each_others_reads: "processes" "backends";

    an_eventfd_is_signalled_for_all_deferred_work: "notification" "eventfd-deferred";
    only_an_eventfd_is_registered_as_one_without_proc: "notification" "eventfd-without-proc";
    an_eventfd_near_its_maximum_holds_nobody_up: "notification" "eventfd-full";
    a_timer_fires_though_the_program_stays_away: "notification" "timer";
    a_deferred_ring_stays_ready_for_epoll: "notification" "epoll-deferred";
    every_message_wakes_level_triggered_epoll: "notification" "epoll-level";
    every_message_wakes_edge_triggered_epoll: "notification" "epoll-edge";

    a_pipe_is_read_for_a_program_that_only_looks: "cq_polling" "pipe";
    a_pipe_that_breaks_is_signalled_to_a_program_that_only_looks: "cq_polling" "broken-pipe";
    a_socket_that_breaks_is_signalled_to_a_program_that_only_looks: "cq_polling" "broken-socket";
    a_timer_fires_for_a_program_that_only_looks: "cq_polling" "timeout";
    a_timer_fires_before_the_one_that_is_slept_for: "cq_polling" "earlier-timeout";
    a_worker_reads_for_a_program_that_only_looks: "cq_polling" "worker";
    a_program_looks_and_waits_in_turns: "cq_polling" "in-turns";
    a_program_that_waits_shares_with_no_helper: "cq_polling" "waiting";
    a_program_that_comes_back_to_wait_gets_rid_of_the_helper: "cq_polling" "waiting-again";
    a_helper_does_not_tick: "cq_polling" "idle";

    fixed_reads_stay_inside_their_buffer: "transfers" "fixed";
    a_vector_of_3_gib_is_cut_to_what_one_read_moves: "transfers" "huge";
    direct_writes_by_workers_arrive: "transfers" "direct";
    each_read_finds_an_event_that_was_there_already: "transfers" "inotify";
    direct_transfers_of_parts_of_blocks_are_whole: "btrfs" "parts";
    direct_transfers_of_what_is_compressed_are_whole: "btrfs" "compressed";
    fio_verifies_what_it_wrote_in_parts_of_blocks: "btrfs" "fio";

    a_handler_submits_to_the_ring_it_interrupts: "handlers" "submits";
    an_unseen_handler_submits_to_the_ring_it_interrupts: "handlers" "submits-unseen";
    a_handler_waits_on_the_ring_it_interrupts: "handlers" "waits";
    a_cqe_that_a_handler_posts_does_not_end_the_wait_it_interrupts: "handlers" "posts";
    a_handler_waits_on_another_ring: "handlers" "waits-elsewhere";
    a_handler_jumps_out_of_a_wait_after_its_own: "handlers" "jumps-after-a-wait";
    a_handler_jumps_out_of_two_waits: "handlers" "jumps-over-two-waits";
    a_signal_completes_no_poll: "handlers" "interrupts-polls";
    a_handler_jumps_out_of_a_wait_and_the_thread_waits_again: "handlers" "jumps";
    a_handler_jumps_out_of_a_wait_and_the_program_only_looks: "handlers" "jumps-and-looks";
    a_handler_jumps_out_of_a_wait_and_another_thread_waits: "handlers" "jumps-another-waits";

    a_handler_interrupts_the_trap_of_a_call_on_a_small_alternate_stack: "races" "handler-in-trap";
    a_call_is_trapped_where_there_is_no_memory_for_another_stack: "races" "trap-without-memory";
    a_wait_that_blocks_faults_meets_memory_that_is_gone: "races" "faults-blocked-in-wait";
    a_handler_interrupts_fork_and_submits_what_needs_a_thread: "races" "handler-in-fork";
    a_tail_that_is_nonsense_submits_one_ring_full: "races" "tail-far-ahead";

    calls_use_little_of_their_callers_stack: "depth" "depths";
    rings_use_no_memory_that_may_be_locked: "scarce" "locked";
    rings_use_no_memory_that_is_locked_unseen: "scarce" "locked-unseen";
    waits_use_no_descriptors: "scarce" "no-numbers";
    a_read_goes_on_when_its_number_is_closed_in_a_full_table: "scarce" "full-table";
    a_read_submitted_in_a_full_table_goes_on_when_its_number_is_closed: "scarce" "full-table-before";
    a_read_goes_on_when_its_number_is_closed_below_the_hard_limit: "scarce" "full-below-the-hard-limit";
    a_ring_ends_when_its_number_is_reused_in_a_full_table: "scarce" "full-taken";
    polls_of_sets_wait_as_deep_as_those_go: "scarce" "nested";
    more_rings_wait_for_one_event_than_sets_may: "scarce" "crowd";

    a_thread_is_cancelled_in_a_wait: "threads" "ends-waits";
    a_thread_exits_in_a_handler_in_a_wait: "threads" "exits-in-waits";
    a_thread_is_cancelled_in_a_wait_of_a_handler: "threads" "ends-nested-waits";
    a_thread_is_cancelled_in_a_wait_of_linux_aio: "threads" "ends-aio";
    a_thread_is_cancelled_anywhere_in_a_call: "threads" "ends-anywhere";
    a_thread_exits_in_a_handler_anywhere_in_a_call: "threads" "exits-anywhere";
    a_thread_is_cancelled_while_it_submits: "threads" "ends-submissions";
    a_thread_exits_in_a_handler_while_it_submits: "threads" "exits-in-submissions";
    a_handler_in_which_a_thread_exits_cleans_up_once: "threads" "exits-with-cleanup";
    io_uring_enter_is_no_cancellation_point: "threads" "is-no-point";
    cancellation_points_stay_some: "threads" "points";
    a_thread_exits_in_a_handler_in_cancellation_points: "threads" "exits-in-points";
    close_is_a_cancellation_point: "threads" "ends-in-close";

    a_handler_switches_between_user_threads: "contexts" "own-rings";
    a_handler_switches_between_user_threads_of_one_ring: "contexts" "one-ring";

    a_wait_is_left_by_setcontext: "wait_exits" "setcontext";
    a_wait_is_left_by_swapcontext: "wait_exits" "swapcontext";
    a_wait_is_left_by_a_compilers_longjmp: "wait_exits" "builtin";
    a_wait_is_left_by_exit: "wait_exits" "exit";
    a_wait_is_left_by_exit_by_instruction: "wait_exits" "exit-by-instruction";

    a_handler_throws_out_of_a_fault: "throws" "faults";
    a_handler_throws_out_of_a_wait: "throws" "waits";
    a_handler_throws_out_of_a_submission: "throws" "submissions";
    a_thread_that_ends_in_a_handler_destroys_its_frames: "throws" "ends";

    a_process_ends_with_its_last_thread: "ends" "pthread-exit";
    a_process_ends_with_the_return_of_its_last_thread: "ends" "last-return";
    a_process_ends_with_the_status_of_exit: "ends" "exit";
    a_process_without_rings_ends_with_the_status_of_exit: "ends" "exit-without-ring";
    a_process_goes_on_after_the_exit_of_a_thread: "ends" "first-exit";
    a_process_ends_with_its_last_thread_without_proc: "ends" "pthread-exit-without-proc";
    a_process_ends_with_the_status_of_exit_without_proc: "ends" "exit-without-proc";
    a_process_ends_with_the_status_of_its_last_exit: "ends" "both-exit";
    a_process_ends_with_the_status_of_its_last_exit_without_proc: "ends" "both-exit-without-proc";
    a_process_ends_by_exit_after_its_first_thread: "ends" "exit-after-pthread-exit";
    a_process_ends_by_exit_after_its_first_thread_without_proc: "ends" "exit-after-pthread-exit-without-proc";
    a_ring_is_driven_where_the_first_thread_has_left: "ends" "first-left";
    a_cloned_process_ends_with_its_own_status: "ends" "clone";
    a_child_that_shares_descriptors_closes_none: "ends" "shared-descriptors";
    a_first_ring_is_made_where_files_have_to_be_small: "ends" "file-size";
    rings_made_at_once_leave_the_limit_on_files: "ends" "file-size-at-once";

    ranges_are_closed_while_rings_are_made: "ranges" "ranges";
    everything_from_a_number_on_is_closed_while_rings_are_made: "ranges" "from";
    numbers_are_closed_one_by_one_while_rings_are_made: "ranges" "loops";
    rings_that_are_lost_to_a_range_write_to_no_file: "ranges" "files-ranges";
    rings_that_are_lost_one_by_one_write_to_no_file: "ranges" "files-loops";
    a_ring_made_after_closing_everything_is_served: "close_all" "ring-afterwards";
    numbers_free_after_closing_everything_are_the_programs: "close_all" "free-numbers";
    numbers_in_use_before_closing_everything_are_not_written_to: "close_all" "numbers-in-use";

    threads_play_ping_pong_over_pipes: "ring_threads" "ping-pong-pipes";
    threads_play_ping_pong_over_pipes_with_deferred_rings: "ring_threads" "ping-pong-deferred";
    threads_play_ping_pong_over_sockets: "ring_threads" "ping-pong-sockets";
    threads_submit_and_wait_on_one_ring: "ring_threads" "shared-ring";

    threads_replace_files_of_rings_of_their_own: "files" "at-once";
    a_slot_holds_one_file_after_the_other: "files" "replaced";
    the_number_of_a_waiting_read_is_used_again: "files" "reused";
    a_write_that_sleeps_goes_to_its_file_after_a_stop: "numbers" "write";
    a_write_that_sleeps_goes_to_its_file_closed_unseen_after_a_stop: "numbers" "write-unseen";
    a_connect_that_sleeps_connects_its_socket_after_a_stop: "numbers" "connect";
    a_connect_that_sleeps_connects_its_socket_closed_unseen_after_a_stop: "numbers" "connect-unseen";
    an_open_that_sleeps_looks_in_its_directory_after_a_stop: "numbers" "open";
    an_open_that_sleeps_looks_in_its_directory_closed_unseen_after_a_stop: "numbers" "open-unseen";
    waits_after_workers_take_no_number: "lowest" "waits";
    reads_that_wait_read_their_files_after_a_stop: "numbers" "reads";
    reads_that_wait_in_workers_read_their_files_after_a_stop: "numbers" "reads-async";
    a_splice_that_waits_for_its_output_keeps_its_input: "numbers" "splice";
    record_locks_stay_whatever_a_worker_does: "numbers" "locks";
    libcs_syscall_is_ours_by_a_handle: "lookups" "handle";
    libcs_syscall_is_ours_by_a_version: "lookups" "version";
    libcs_syscall_is_ours_by_a_scope: "lookups" "scope";
    other_symbols_are_found_as_ever: "lookups" "others";

    a_child_has_no_files_of_requests: "numbers" "fork";
    children_forked_at_any_moment_have_no_files_of_requests: "numbers" "forks";
    children_forked_without_handlers_have_no_files_of_requests: "numbers" "bare-forks";
    a_closed_ring_leaves_the_memory_alone: "closed" "shared";
    a_closed_ring_leaves_private_memory_alone: "closed" "private";
    a_thread_that_waits_on_a_closed_ring_finds_the_completion: "closed" "stays";
    a_worker_of_a_closed_ring_leaves_the_memory_alone: "closed" "worker";
    the_only_thread_gets_a_table_of_its_own: "tables" "only";
    the_only_thread_gets_a_table_of_its_own_before_its_first_ring: "tables" "early";
    the_only_thread_gets_a_table_of_its_own_without_proc: "tables" "early-without-proc";
    a_thread_of_several_gets_a_table_of_its_own: "tables" "several";
    a_close_in_another_table_ends_nothing: "tables" "elsewhere";
    a_number_that_is_reused_unseen_is_found: "unseen_closes" "reused";
    events_of_a_file_closed_unseen_do_not_count: "unseen_closes" "stale";

    a_poll_of_linux_aio_finds_what_is_left: "aio" "left";
    a_poll_of_linux_aio_finds_what_is_left_beside_others: "aio" "left-beside-others";
    the_knowledge_of_linux_aio_goes_with_the_file: "aio" "reused";
    linux_aio_of_a_description_turned_nonblocking: "aio" "nonblocking";
    polls_of_linux_aio_ask_nothing_again: "aio" "polls";
    polls_of_linux_aio_ask_nothing_again_beside_liburing: "aio" "polls-beside-liburing";
    reads_of_linux_aio_ask_nothing_again: "aio" "reads";

    threads_are_made_when_needed: "host_state" "threads";
    setgid_reaches_every_thread: "host_state" "setgid";
    signals_wait_for_the_program: "host_state" "signals";
    sent_faults_are_waited_for: "engine_threads" "sent-faults";
    sent_faults_are_handled_by_the_program: "engine_threads" "handled-faults";
    sent_faults_are_handled_by_the_program_without_proc: "engine_threads" "handled-faults-without-proc";
    handlers_jump_at_the_limit_of_signals: "engine_threads" "limit";
    handlers_of_a_plain_signal_jump_at_the_limit: "engine_threads" "limit-of-one";
    real_time_waits_for_no_lock: "engine_threads" "real-time";
    a_worker_is_scheduled_as_the_process: "engine_threads" "worker";
    threads_are_made_whatever_local_memory_they_have: "engine_threads" "much-local-memory";
    a_thread_under_a_deadline_uses_a_ring: "engine_threads" "deadline";
    a_thread_of_several_under_a_deadline_uses_a_ring: "engine_threads" "deadline-of-several";
    a_worker_has_no_filter_of_a_thread: "mallocs" "filtered";
    no_thread_of_ours_is_made_by_the_programs_function: "mallocs" "created";
    time_passes_though_a_clock_of_the_programs_stands_still: "mallocs" "clock";
    a_handler_that_interrupts_malloc_uses_a_worker: "mallocs" "interrupted";
    a_handler_that_interrupts_malloc_registers_a_ring: "mallocs" "registers";
    a_child_of_threads_never_asks_malloc: "mallocs" "child-of-threads";
    a_child_never_asks_malloc: "mallocs" "child";
    a_handler_that_interrupts_malloc_uses_a_worker_among_threads: "mallocs" "interrupted-among-threads";
    the_lowest_number_is_the_programs: "host_state" "lowest";
    masks_that_cannot_be_read_are_refused: "host_state" "bad-masks";
    flags_of_descriptions_stay: "host_state" "flags";
    a_cleared_environment_changes_nothing: "environment" "cleared";
    a_jump_makes_no_system_call: "host_state" "jumps";
    pipes_have_no_other_ends_than_the_programs: "host_state" "ends";
    losing_a_pipe_to_another_reader_keeps_nobody: "host_state" "faster-pipe";
    losing_a_fifo_to_another_reader_keeps_nobody: "host_state" "faster-fifo";

    unregistering_a_file_keeps_its_record_locks: "files" "record-locks";
    unregistering_a_file_keeps_its_record_locks_among_those_of_others: "files" "record-locks-among-others";
    unregistering_a_file_keeps_the_record_locks_of_before_exec: "files" "record-locks-before";

    completions_beyond_the_cq_keep_their_order: "overflow" "order";
    each_request_gets_one_cqe_whatever_cancels_it: "cancels" "random";

    rings_that_are_closed_leave_no_waiters: "waiters" "close";
    a_fork_leaves_futex_and_child_waits_alone: "waiters" "fork";
    a_futex_wait_is_either_woken_or_cancelled: "waiters" "race";
    ending_waits_disturbs_no_signals: "waiters" "signals";
    waits_end_without_room_for_signals: "waiters" "limit";
    a_wait_on_unmapped_memory_can_be_cancelled: "waiters" "unmap";
}

#[test]
#[ignore = "soak: it goes round for minutes"]
fn rounds_without_end_wear_nothing_out() {
    same_both_ways("rounds_without_end_wear_nothing_out", "leaks", "soak");
}

/// 10,000 connections, 1,000 rings, and 100,000 requests in flight. On the engine also 1,000,000 requests, for which
/// the kernel would take hours.
#[test]
#[ignore = "soak: it takes a minute or two"]
fn load_leaves_nothing() {
    const NAME: &str = "load_leaves_nothing";
    for case in ["connections-soak", "rings-soak", "requests-soak"] {
        same_both_ways(NAME, "load", case);
    }
    if no_reference().or_else(no_liburing).is_none() {
        on_the_engine(NAME, "load", "million-soak");
    }
}

/// If no thread can be made (RLIMIT_NPROC), the caller carries out the requests, or a thread does as soon as one
/// can be made. The kernel cancels or forgets such requests. `limits.rs` has the same tests in a control group.
macro_rules! without_threads {
    ($($test:ident: $case:literal;)*) => {$(
        #[test]
        fn $test() {
            if let Some(reason) = no_reference().or_else(no_liburing) {
                return skip(stringify!($test), reason);
            }
            on_the_engine(stringify!($test), "limits", $case);
        }
    )*};
}

without_threads! {
    calls_without_threads_are_made_by_the_caller: "alone";
    a_call_after_one_that_sleeps_is_made_once_there_may_be_a_thread: "after-a-sleeper";
    a_worker_without_a_helper_takes_no_number: "no-helper";
    a_family_without_threads_completes_all_requests: "family";
}

/// Runs on the engine only. The kernel's worker looks the file up after the submission, so the program's close may come
/// first, and the pipe then has no reader.
#[test]
fn files_of_requests_take_no_number() {
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip("files_of_requests_take_no_number", reason);
    }
    on_the_engine("files_of_requests_take_no_number", "lowest", "files");
}

/// The output ends only when none of the program's processes is left.
#[test]
fn the_requests_that_a_program_leaves_running_end_with_it() {
    let output = common::running::output(Command::new("sh").args(["-c", "sleep 1000 & echo begun"]));
    assert_eq!(text(&output), "exit status: 0: begun\n");
}

/// The engine knows whether it notices every close, even if instructions are left alone (ANYRING_RAW=0).
#[test]
fn polls_of_linux_aio_ask_nothing_again_with_anyring_raw_0() {
    const NAME: &str = "polls_of_linux_aio_ask_nothing_again_with_anyring_raw_0";
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    let (library, user) = (built().shared, Path::new("user"));
    let environment = [("LD_PRELOAD", library.as_path()), ("ANYRING_AIO", user), ("ANYRING_RAW", Path::new("0"))];
    let output = run(&program("aio"), "polls", &environment);
    assert!(output.status.success(), "{}", text(&output));
}

/// A program may load the library and close it again. The library stays mapped, since the engine's threads run in it.
#[test]
fn a_library_that_is_closed_stays() {
    const NAME: &str = "a_library_that_is_closed_stays";
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    let library = built().shared;
    let library = library.to_str().expect("a path in UTF-8");
    let output = run(&program("unloads"), library, &[("ANYRING_BACKEND", Path::new("user"))]);
    assert!(output.status.success(), "{}", text(&output));
}

/// Removes the file that the engine writes for observers while the program runs. The program must continue.
fn goes_on_without(test: &str, case: &str, variable: &str, file: &Path) {
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(test, reason);
    }
    let library = built().shared;
    let environment = [("LD_PRELOAD", library.as_path()), ("ANYRING_BACKEND", Path::new("user")), (variable, file)];
    let output = run(&program("output_files"), case, &environment);
    assert!(output.status.success(), "{}", text(&output));
    assert!(!file.exists(), "the program truncates and removes the file that it finds");
}

#[test]
fn a_truncated_file_of_counters_ends_nobody() {
    let file = scratch("engine").join("lost-counters");
    let _ = std::fs::remove_file(&file); // of a run that failed
    goes_on_without("a_truncated_file_of_counters_ends_nobody", "counters", "ANYRING_STATS", &file);
}

#[test]
fn a_truncated_file_of_events_ends_nobody() {
    let file = scratch("engine").join("lost-events");
    let _ = std::fs::remove_file(&file); // of a run that failed
    let reader = anyring_engine::event::Reader::create(&file).expect("a file for events");
    goes_on_without("a_truncated_file_of_events_ends_nobody", "events", "ANYRING_TRACE", &file);
    drop(reader);
}

/// A server that is started by root counts, although it cannot open the file by the time of its first ring.
#[test]
fn a_program_that_has_given_up_root_counts() {
    const NAME: &str = "a_program_that_has_given_up_root_counts";
    if let Some(reason) = no_reference().or_else(no_liburing) {
        return skip(NAME, reason);
    }
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } != 0 {
        return skip(NAME, "only root can become another user");
    }
    let file = scratch("engine").join("counters-of-another-user");
    let _ = std::fs::remove_file(&file); // of a run that failed
    let library = built().shared;
    let environment = [
        ("LD_PRELOAD", library.as_path()),
        ("ANYRING_BACKEND", Path::new("user")),
        ("ANYRING_STATS", file.as_path()),
    ];
    let output = run(&program("environment"), "another-user", &environment);
    assert!(output.status.success(), "{}", text(&output));
    let counters = std::fs::read(&file).expect("the file of counters");
    std::fs::remove_file(&file).expect("remove it");
    let snapshot = anyring_engine::stats::Snapshot::from_bytes(&counters).expect("counters");
    assert_eq!(snapshot.rings, 1);
}
