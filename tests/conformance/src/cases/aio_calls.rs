//! Linux AIO's calls: setup and end of contexts, the completion ring's memory, refusals of io_submit.

use super::prelude::*;
use crate::aio::{self, pread, pwrite, setup, Aio};
use crate::arch::ADDRESSES_END;

topic!(since: "2.6", source: "io_setup(2), io_submit(2), fs/aio.c");

#[case(own_flags)]
fn setup_stores_the_address_of_a_ring(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let header = aio.header();
    assert_eq!((header.magic, header.header_bytes), (AIO_RING_MAGIC, 32));
    assert_eq!((header.compat_features, header.incompat_features), (AIO_RING_COMPAT_FEATURES, 0));
    assert_eq!((header.head, header.tail), (0, 0));
    assert_eq!(aio.context % 4096, 0);
}

#[case(own_flags)]
fn ring_has_the_kernels_size(cx: &Context) {
    // SAFETY: takes an integer.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) } as u32;
    for requests in [1, 63, 64, 500, 1000] {
        let aio = Aio::new(cx.door, requests);
        let events = requests.max(processors * 4) * 2 + 2;
        let bytes = (32 + events * 32).next_multiple_of(4096);
        assert_eq!(aio.header().nr, (bytes - 32) / 32, "{requests}");
    }
}

#[case(own_flags)]
fn setup_of_no_requests_is_einval(cx: &Context) {
    assert_eq!(setup(cx.door, 0, 0), (-EINVAL as isize, 0));
}

#[case(own_flags)]
fn setup_over_another_context_is_einval(cx: &Context) {
    assert_eq!(setup(cx.door, 8, 1), (-EINVAL as isize, 1));
}

#[case(own_flags)]
fn setup_at_a_bad_address_is_efault(cx: &Context) {
    let answer = cx.door.aio(NR_IO_SETUP, [8, bad_address() as usize, 0, 0, 0, 0]);
    assert_eq!(answer, -EFAULT as isize);
}

#[case(own_flags)]
fn setup_of_too_many_is_einval(cx: &Context) {
    assert_eq!(setup(cx.door, 0x0fff_ffff, 0), (-EINVAL as isize, 0));
}

#[case(own_flags)]
fn setup_beyond_the_limit_of_all_processes_is_eagain(cx: &Context) {
    let limit = std::fs::read_to_string("/proc/sys/fs/aio-max-nr").unwrap_or_else(|_| "65536".to_owned());
    let limit: u32 = limit.trim().parse().expect("a number");
    assert_eq!(setup(cx.door, limit + 1, 0), (-EAGAIN as isize, 0));
}

#[case(own_flags)]
fn contexts_are_independent(cx: &Context) {
    let file = file("data", b"0123456789");
    let (one, other) = (Aio::new(cx.door, 8), Aio::new(cx.door, 8));
    assert_ne!(one.context, other.context);
    let mut buffer = [0; 4];
    assert_eq!(one.submit(&mut [pread(&file, &mut buffer, 2)]), 1);
    assert_eq!(one.wait(1)[0].res, 4);
    assert_eq!(other.get(0, 8, 0), Ok(vec![]));
    assert_eq!(one.destroy(), 0);
    assert_eq!(other.run(pread(&file, &mut buffer, 6)), 4);
    assert_eq!(buffer, *b"6789");
}

#[case(own_flags)]
fn many_contexts_come_and_go(cx: &Context) {
    for _ in 0..20 {
        let contexts: Vec<Aio> = (0..10).map(|_| Aio::new(cx.door, 4)).collect();
        assert!(contexts.iter().all(|aio| aio.header().magic == AIO_RING_MAGIC));
    }
}

#[case(own_flags)]
fn destroy_twice_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    assert_eq!(aio.destroy(), 0);
    assert_eq!(aio.destroy(), -EINVAL as isize);
}

#[case(own_flags)]
fn calls_without_a_context_are_einval(cx: &Context) {
    aio::skip_libaio(cx.door);
    for context in [0, bad_address()] {
        let none = std::mem::ManuallyDrop::new(Aio { door: cx.door, context });
        let mut nothing = Iocb::default();
        assert_eq!(none.submit(std::slice::from_mut(&mut nothing)), -EINVAL as isize);
        assert_eq!(none.get(0, 1, 0), Err(-EINVAL as isize));
        assert_eq!(none.cancel(&nothing), -EINVAL as isize);
        assert_eq!(none.destroy(), -EINVAL as isize);
    }
}

#[case(own_flags)]
fn calls_with_a_context_of_zeroes_are_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let none = std::mem::ManuallyDrop::new(Aio { door: cx.door, context: pages(1).as_ptr() as u64 });
    assert_eq!(none.get(0, 1, 0), Err(-EINVAL as isize));
    assert_eq!(none.destroy(), -EINVAL as isize);
    assert_eq!(aio.get(0, 1, 0), Ok(vec![]));
}

#[case(own_flags)]
fn child_of_fork_has_no_context(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let status = in_child(|| {
        assert_eq!(aio.get(1, 1, 10), Err(-EINVAL as isize));
        assert_eq!(aio.destroy(), -EINVAL as isize);
        let own = Aio::new(cx.door, 8);
        let mut buffer = [0; 4];
        assert_eq!(own.run(pread(&file, &mut buffer, 0)), 4);
    });
    assert_eq!(status, 0);
    assert_eq!(aio.run(pread(&file, &mut buffer, 0)), 4);
}

#[case(own_flags)]
fn submit_of_nothing_is_zero(cx: &Context) {
    assert_eq!(Aio::new(cx.door, 8).submit_at(0, 0), 0);
}

#[case(own_flags)]
fn submit_of_a_negative_count_is_einval(cx: &Context) {
    assert_eq!(Aio::new(cx.door, 8).submit_at(-1, 0), -EINVAL as isize);
}

#[case(own_flags)]
fn submit_of_a_bad_array_is_efault(cx: &Context) {
    assert_eq!(Aio::new(cx.door, 8).submit_at(1, bad_address() as usize), -EFAULT as isize);
}

#[case(own_flags)]
fn submit_of_a_bad_iocb_is_efault(cx: &Context) {
    let addresses = [bad_address()];
    assert_eq!(Aio::new(cx.door, 8).submit_at(1, addresses.as_ptr() as usize), -EFAULT as isize);
}

#[case(own_flags)]
fn submit_stops_at_the_first_refused(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let (mut one, mut two) = ([0; 2], [0; 2]);
    let bad = Iocb { opcode: 99, ..pread(&file, &mut two, 0) };
    assert_eq!(aio.submit(&mut [pread(&file, &mut one, 0), bad, pread(&file, &mut two, 4)]), 1);
    assert_eq!(aio.wait(1)[0].res, 2);
    assert_eq!(aio.get(0, 8, 50), Ok(vec![]));
    assert_eq!(two, [0; 2]);
}

/// Submits polls that stay pending, one by one, until one is refused. Returns the number accepted.
fn fill(aio: &Aio, polls: &mut [Iocb]) -> u32 {
    for (taken, poll) in polls.iter_mut().enumerate() {
        match aio.submit(std::slice::from_mut(poll)) {
            1 => {}
            answer => {
                assert_eq!(answer, -EAGAIN as isize);
                return taken as u32;
            }
        }
    }
    panic!("{} requests were taken in", polls.len());
}

#[case(own_flags)]
fn submit_is_refused_once_there_is_no_room(cx: &Context) {
    const REQUESTS: u32 = 64;
    let aio = Aio::new(cx.door, REQUESTS);
    let (reader, writer) = pipe();
    let mut polls = vec![aio::poll(&reader, libc::POLLIN); 1000];
    let taken = fill(&aio, &mut polls);
    assert!(taken >= REQUESTS && taken < aio.header().nr, "{taken}");
    (&writer).write_all(b"x").expect("write");
    assert!(aio.appear(taken), "every event is there");
    assert_eq!(aio.refused(aio::poll(&reader, libc::POLLIN)), -EAGAIN as isize);
    assert_eq!(aio.wait(taken as usize).len(), taken as usize);
}

#[case(own_flags)]
fn reading_events_makes_room(cx: &Context) {
    let aio = Aio::new(cx.door, 16);
    let file = file("data", b"0123456789");
    let mut buffers = [[0u8; 2]; 8];
    // Several times round the ring, by calls and from memory.
    for round in 0..100 {
        let mut reads: Vec<Iocb> = buffers.iter_mut().map(|buffer| pread(&file, buffer, 4)).collect();
        assert_eq!(aio.submit(&mut reads), 8);
        if round % 2 == 0 {
            assert!(aio.wait(8).iter().all(|event| event.res == 2));
        } else {
            assert!(aio.appear(8));
            let AioRing { head, nr, .. } = aio.header();
            assert!((0..8).all(|index| aio.event_at((head + index) % nr).res == 2));
            aio.set_head((head + 8) % nr);
        }
    }
}

#[case(own_flags)]
fn closed_descriptor_is_ebadf(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let mut buffer = [0; 4];
    let iocb = Iocb { fd: 900, ..pread(&file("data", b""), &mut buffer, 0) };
    for opcode in [IOCB_CMD_PREAD, IOCB_CMD_FSYNC, IOCB_CMD_POLL, 99] {
        assert_eq!(aio.refused(Iocb { opcode, ..iocb }), -EBADF as isize, "{opcode}");
    }
    assert_eq!(aio.refused(Iocb { fd: u32::MAX, ..iocb }), -EBADF as isize);
}

#[case(own_flags)]
fn path_descriptor_is_ebadf(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    drop(file("data", b""));
    // SAFETY: a constant name.
    let path = owned(unsafe { libc::open(c"data".as_ptr(), libc::O_PATH) }, "open");
    assert_eq!(aio.refused(pread(&path, &mut [0; 4], 0)), -EBADF as isize);
    assert_eq!(aio.refused(aio::poll(&path, libc::POLLIN)), -EBADF as isize);
}

#[case(own_flags)]
fn wrong_mode_is_ebadf(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let (reader, writer) = pipe();
    assert_eq!(aio.refused(pread(&writer, &mut [0; 4], 0)), -EBADF as isize);
    assert_eq!(aio.refused(pwrite(&reader, &[0; 4], 0)), -EBADF as isize);
}

#[case(own_flags)]
fn directory_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let directory = std::fs::File::open(".").expect("open the directory");
    assert_eq!(aio.refused(pread(&directory, &mut [0; 4], 0)), -EINVAL as isize);
}

#[case(own_flags)]
fn unknown_opcodes_are_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    for opcode in [4, 9, 99, u16::MAX] {
        assert_eq!(aio.refused(Iocb { opcode, ..pread(&file, &mut [0; 4], 0) }), -EINVAL as isize, "{opcode}");
    }
}

#[case(own_flags)]
fn noop_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"");
    assert_eq!(aio.refused(Iocb { opcode: IOCB_CMD_NOOP, ..pread(&file, &mut [], 0) }), -EINVAL as isize);
}

#[case(own_flags)]
fn reserved_field_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.refused(Iocb { reserved: 1, ..pread(&file, &mut [0; 4], 0) }), -EINVAL as isize);
    // Checked before the descriptor.
    assert_eq!(aio.refused(Iocb { reserved: 1, fd: 900, ..Iocb::default() }), -EINVAL as isize);
}

#[case(own_flags)]
fn length_beyond_signed_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.refused(Iocb { bytes: 1 << 63, ..pread(&file, &mut [0; 4], 0) }), -EINVAL as isize);
}

#[case(own_flags)]
fn address_beyond_the_program_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    for buf in [0xffff_8000_0000_0000, ADDRESSES_END] {
        assert_eq!(aio.refused(Iocb { buf, ..pread(&file, &mut [0; 4], 0) }), -EFAULT as isize, "{buf:#x}");
    }
}

#[case(own_flags)]
fn negative_offset_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let (reader, writer) = pipe();
    (&writer).write_all(b"x").expect("write");
    assert_eq!(aio.refused(pread(&file, &mut [0; 4], -1)), -EINVAL as isize);
    assert_eq!(aio.refused(pread(&reader, &mut [0; 4], -1)), -EINVAL as isize);
}

#[case(own_flags)]
fn end_beyond_the_largest_offset_is_einval(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    assert_eq!(aio.refused(pread(&file, &mut [0; 4], i64::MAX - 2)), -EINVAL as isize);
    assert_eq!(aio.run(pread(&file, &mut [0; 4], i64::MAX - 4)), 0);
}

#[case(own_flags)]
fn unknown_rw_flag_is_eopnotsupp(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut iocb = pread(&file, &mut [0; 4], 0);
    iocb.rw_flags = 1 << 20;
    assert_eq!(aio.refused(iocb), -EOPNOTSUPP as isize);
}

#[case(own_flags)]
fn priority_counts_with_its_flag_only(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let mut iocb = pread(&file, &mut buffer, 0);
    iocb.priority = 7 << 13;
    assert_eq!(aio.run(iocb), 4);
    iocb.flags = IOCB_FLAG_IOPRIO;
    assert_eq!(aio.refused(iocb), -EINVAL as isize);
    iocb.priority = 2 << 13 | 4;
    assert_eq!(aio.run(iocb), 4);
}

#[case(own_flags)]
fn submit_clears_the_key(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let mut buffer = [0; 4];
    let mut iocbs = [Iocb { key: 77, ..pread(&file, &mut buffer, 0) }];
    assert_eq!(aio.submit(&mut iocbs), 1);
    assert_eq!(iocbs[0].key, 0);
    aio.wait(1);
}

#[case(own_flags)]
fn iocb_in_memory_that_is_read_only_is_efault(cx: &Context) {
    let aio = Aio::new(cx.door, 8);
    let file = file("data", b"0123456789");
    let page = pages(1);
    let iocb = pread(&file, &mut [0; 4], 0);
    // SAFETY: the page is writable still, and large and aligned enough.
    unsafe { page.as_mut_ptr().cast::<Iocb>().write(iocb) };
    protect(page, libc::PROT_READ);
    let addresses = [page.as_ptr()];
    assert_eq!(aio.submit_at(1, addresses.as_ptr() as usize), -EFAULT as isize);
}
