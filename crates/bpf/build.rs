//! Compiles the kernel path with clang; the object is embedded in the library. And for this machine
//! what both paths decide by the same code.

#[path = "build/clang.rs"]
mod clang;
#[path = "build/native.rs"]
mod native;

use std::fs;

fn main() {
    let object = clang::compile("src/relay/relay.bpf.c", "src/relay", "relay.bpf.o");
    let object = fs::read(object).expect("clang has just written it");
    println!("cargo::rustc-env=MCR_OBJECT_HASH={:016x}", fnv1a(&object));
    native::link("src/relay/native.c", "src/relay", "mcr_merge");
    let layout = ["src/relay/layout.h", "src/relay/merge_layout.h"]
        .map(|header| fs::read(header).expect("the layout lies beside the program"))
        .concat();
    println!("cargo::rustc-env=MCR_LAYOUT_HASH={:016x}", fnv1a(&layout));
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
