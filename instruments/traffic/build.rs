//! Compiles the program that counts at ingress; the object is embedded in the library.

#[path = "../../relay/bpf/build/clang.rs"]
mod clang;

fn main() {
    println!("cargo::rerun-if-changed=src/ingress");
    clang::compile(
        "src/ingress/ingress.bpf.c",
        "../../relay/bpf/src/relay",
        "ingress.bpf.o",
    );
}
