//! `include_model!` puts the bytes themselves, aligned, where it is told to.
#![cfg(target_os = "linux")]

use model_format::ALIGN;

/// Any file does: what matters is where it lies.
static SOMEWHERE: &[u8] = runtime::include_model!("device/words.txt");
static IN_SECTION: &[u8] = runtime::include_model!("device/errors.txt", section = "kfm_bytes");
/// The compiler itself can read the bytes.
const FIRST: u8 = runtime::include_model!("device/words.txt")[0];

#[allow(unsafe_code, reason = "the linker names the ends of a section by these symbols")]
unsafe extern "C" {
    static __start_kfm_bytes: u8;
    static __stop_kfm_bytes: u8;
}

#[test]
fn bytes_are_those_of_the_file_and_aligned() {
    assert_eq!(SOMEWHERE, include_bytes!("device/words.txt"));
    assert_eq!(IN_SECTION, include_bytes!("device/errors.txt"));
    assert_eq!(FIRST, SOMEWHERE[0]);
    for file in [SOMEWHERE, IN_SECTION] {
        assert_eq!(file.as_ptr().addr() % ALIGN, 0);
    }
}

#[test]
fn bytes_lie_in_the_section() {
    let section = (&raw const __start_kfm_bytes).addr()..(&raw const __stop_kfm_bytes).addr();
    let bytes = IN_SECTION.as_ptr_range();
    assert!(section.start <= bytes.start.addr() && bytes.end.addr() <= section.end);
    assert!(!section.contains(&SOMEWHERE.as_ptr().addr()));
}
