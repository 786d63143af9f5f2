//! Compiles the bench's floor; the object is embedded in the library.

#[path = "../bpf/build/clang.rs"]
mod clang;

fn main() {
    clang::compile(
        "src/bench/run/relay/floor.bpf.c",
        "../bpf/src/relay",
        "floor.bpf.o",
    );
}
