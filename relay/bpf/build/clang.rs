//! Compiles a BPF program with clang: the one build step of every package that has one, included by
//! its build script.

use std::path::PathBuf;
use std::process::Command;
use std::{env, process};

/// Compiles `source` of the package at hand, with the kernel path's headers at `headers`, into
/// `object` in `OUT_DIR`; gives its path.
pub(crate) fn compile(source: &str, headers: &str, object: &str) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={headers}");
    let mut clang = Command::new("clang");
    clang.args([
        "-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3",
    ]);
    if let Some(include) = kernel_headers() {
        clang.arg("-I").arg(include);
    }
    clang.arg("-I").arg(headers);
    let object = out.join(object);
    clang.arg("-c").arg(source).arg("-o").arg(&object);
    match clang.status() {
        Ok(status) if status.success() => object,
        Ok(_) => fail(&format!(
            "clang cannot compile {source} (messages above); it needs clang 12 or later and \
             the kernel's user-space headers (Debian: linux-libc-dev)",
        )),
        Err(error) => fail(&format!(
            "cannot run clang: {error}; the kernel path is compiled with it, install it (Debian, \
             Ubuntu: apt install clang; Fedora: dnf install clang)"
        )),
    }
}

/// Debian keeps `asm/types.h` in a directory named after the machine, which clang does not search
/// for the bpf target.
pub(crate) fn kernel_headers() -> Option<PathBuf> {
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

/// Stops the build with a message for whoever builds.
pub(crate) fn fail(message: &str) -> ! {
    println!("cargo::error={message}");
    process::exit(1)
}
