//! Runs `fuzz::fleet_keys` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::fleet_keys(data));
