//! Compiles the kernel path with clang; the object is embedded in the library.

#[path = "build/clang.rs"]
mod clang;

use std::fs;

fn main() {
    clang::compile("src/relay/relay.bpf.c", "src/relay", "relay.bpf.o");
    let layout = fs::read("src/relay/layout.h").expect("layout.h lies beside the program");
    println!("cargo::rustc-env=MCR_LAYOUT_HASH={:016x}", fnv1a(&layout));
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
