#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| anyring_fuzz_checks::scan(bytes));
