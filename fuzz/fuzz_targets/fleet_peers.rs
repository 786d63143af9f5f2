//! Runs `fuzz::fleet_peers` under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::fleet_peers(data));
