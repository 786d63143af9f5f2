//! Compiles the bench's floor; the object is embedded in the library.

#[path = "../../relay/bpf/build/clang.rs"]
mod clang;

fn main() {
    clang::compile(
        "src/bench/run/relay/floor.bpf.c",
        "../../relay/bpf/src/relay",
        "floor.bpf.o",
    );
}
