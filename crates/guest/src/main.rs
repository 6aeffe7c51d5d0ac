//! x
#![no_main]
/// x
#[no_mangle]
pub extern "C" fn __wrap___sbrk(_: isize) -> *mut libc::c_void {
    -1isize as *mut _
}
/// x
#[no_mangle]
pub extern "C" fn main(_argc: i32, _argv: *const *const u8) -> i32 {
    let r = std::panic::catch_unwind(|| {
        if std::hint::black_box(true) {
            std::panic::resume_unwind(Box::new(5u32))
        }
    })
    .is_err();
    println!("hello {r} {}", anyring_engine::process::has_rings());
    std::thread::spawn(|| println!("thread")).join().unwrap();
    0
}
