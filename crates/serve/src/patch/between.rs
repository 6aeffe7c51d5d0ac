//! Code in which tests, also those of `crates/inject`, search for instructions.

/// Returns some plain code on both sides of `middle`, with the offset at which `middle` starts.
pub fn between_code(middle: &[u8]) -> (Vec<u8>, usize) {
    // mov rdi,[rsi+8]; add rdi,rdx; mov [rsp+16],rdi
    let plain = [0x48, 0x8b, 0x7e, 0x08, 0x48, 0x01, 0xd7, 0x48, 0x89, 0x7c, 0x24, 0x10];
    let before = plain.repeat(8);
    let start = before.len();
    ([&before, middle, &plain.repeat(4), &[0xc3]].concat(), start)
}
