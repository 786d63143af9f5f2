//! Compiles the kernel path with clang; the object is embedded in the library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join("relay.bpf.o");
    for file in ["relay", "floor.bpf.c", "sequence.bpf.c", "sequence.h"] {
        println!("cargo::rerun-if-changed=src/{file}");
    }
    compile(Path::new("src/relay/relay.bpf.c"), &object);
    compile(Path::new("src/floor.bpf.c"), &out.join("floor.bpf.o"));
    compile(Path::new("src/sequence.bpf.c"), &out.join("sequence.bpf.o"));
    let layout = fs::read("src/relay/layout.h").expect("layout.h lies beside the program");
    println!("cargo::rustc-env=MCR_LAYOUT_HASH={:016x}", fnv1a(&layout));
}

fn compile(source: &Path, object: &Path) {
    let mut clang = Command::new("clang");
    clang.args([
        "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
    ]);
    if let Some(include) = kernel_headers() {
        clang.arg("-I").arg(include);
    }
    clang.arg("-c").arg(source).arg("-o").arg(object);
    match clang.status() {
        Ok(status) if status.success() => {}
        Ok(_) => fail(&format!(
            "clang cannot compile crates/bpf/{} (messages above); it needs clang 12 or later and \
             the kernel's user-space headers (Debian: linux-libc-dev)",
            source.display()
        )),
        Err(error) => fail(&format!(
            "cannot run clang: {error}; the kernel path is compiled with it, install it (Debian, \
             Ubuntu: apt install clang; Fedora: dnf install clang)"
        )),
    }
}

/// Debian keeps `asm/types.h` in a directory named after the machine, which clang does not search
/// for the bpf target.
fn kernel_headers() -> Option<PathBuf> {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    let candidates = [
        format!("/usr/include/{architecture}-linux-gnu"),
        format!("/usr/include/{architecture}-linux-gnueabihf"),
        "/usr/include".to_owned(),
    ];
    candidates
        .into_iter()
        .map(PathBuf::from)
        .find(|directory| directory.join("asm/types.h").exists())
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    process::exit(1)
}
