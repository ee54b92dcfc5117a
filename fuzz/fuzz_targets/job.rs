#![no_main]

#[path = "../../tests/corpora/reading.rs"]
#[allow(dead_code)]
mod reading;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    reading::job(bytes);
});
