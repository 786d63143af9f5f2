//! Compiles the programs that count at ingress and make frames; the objects are embedded in the library.

#[path = "../../relay/bpf/build/clang.rs"]
mod clang;

fn main() {
    println!("cargo::rerun-if-changed=src/ingress");
    println!("cargo::rerun-if-changed=src/driver");
    for (source, object) in [
        ("src/ingress/ingress.bpf.c", "ingress.bpf.o"),
        ("src/driver/driver.bpf.c", "driver.bpf.o"),
    ] {
        clang::compile(source, "../../relay/bpf/src/relay", object);
    }
}
