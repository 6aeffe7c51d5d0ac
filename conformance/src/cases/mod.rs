//! The topics. Each module declares its cases in a table of its own; its name is the topic's.

/// Declares the topics' modules and gathers their tables.
macro_rules! topics {
    ($($topic:ident),* $(,)?) => {
        $(mod $topic;)*
        /// Every topic's table.
        pub const ALL: &[&[crate::case::Case]] = &[$($topic::CASES),*];
    };
}

topics![
    aio_calls,
    aio_events,
    aio_requests,
    buffer_rings,
    buffer_rings_select,
    buffers_provided,
    call_arguments,
    cancel,
    cancel_order,
    clone_buffers,
    cqe_mixed,
    delivery,
    enter,
    epoll_wait,
    file_table,
    files_update2,
    fs,
    futex,
    futex_vector,
    hostile,
    liburing,
    in_flight,
    io_wq,
    iopoll,
    lifetime,
    link,
    msg_ring,
    msg_ring_targets,
    msg_ring_waits,
    multishot,
    multishot_recv,
    napi,
    net_bundles,
    net_connect,
    net_data,
    net_emptied,
    net_errors,
    net_listen,
    net_nonempty,
    net_zero_copy,
    nop,
    order,
    overflow,
    personality,
    poll,
    poll_runs,
    register,
    resize,
    restrictions,
    ring_query,
    rw_attributes,
    rw_cold,
    rw_direct,
    rw_direct_flight,
    rw_file,
    rw_fixed_vectors,
    rw_other,
    rw_pipe,
    setup,
    splice,
    sqpoll,
    sqpoll_requests,
    sqpoll_setup,
    sync,
    sync_cancel,
    timeout,
    timeout_count,
    uring_cmd,
    waitid,
    waits,
    xattr,
    zero_copy_receive
];

/// What nearly every case uses.
mod prelude {
    pub(crate) use crate::case::{cases, Context};
    pub(crate) use crate::ring::Ring;
    pub(crate) use crate::sqe::{self, address, address_mut, fd, iovec, iovec_mut, ms, prep, SqeFields};
    pub(crate) use crate::sys::{self, *};
    pub(crate) use anyring_abi::*;
    pub(crate) use std::io::{Read, Write};
    pub(crate) use std::os::fd::OwnedFd;
}
