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
    clang::compile("src/relay/hook.bpf.c", "src/relay", "hook.bpf.o");
    println!("cargo::rustc-env=MCR_OBJECT_HASH={:016x}", fnv1a(&object));
    native::link("src/relay/native.c", "src/relay", "mcr_merge");
    let layout = ["src/relay/layout.h", "src/relay/merge_layout.h"]
        .map(|header| fs::read_to_string(header).expect("the layout lies beside the program"))
        .concat();
    let layout = match fnv1a(code(&layout).as_bytes()) {
        FORMER => FORMER_NAME,
        other => other,
    };
    println!("cargo::rustc-env=MCR_LAYOUT_HASH={layout:016x}");
}

/// The layout as it is: what it has more than one that was there before is room that was zero. Pinned maps
/// keep that one's name.
const FORMER: u64 = 0x5ba2_9cf8_3601_505c;
const FORMER_NAME: u64 = 0xcb35_7e02_905f_6506;

/// What the compiler goes by: the text without comments and the space between its words.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("/*").into_iter().chain(rest.find("//")).min() {
        let comment = &rest[start..];
        let end = if comment.starts_with("/*") {
            comment.find("*/").map(|end| end + 2)
        } else {
            comment.find('\n')
        };
        code += &rest[..start];
        rest = end.map_or("", |end| &comment[end..]);
    }
    code += rest;
    code.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
