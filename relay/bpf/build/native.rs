//! Compiles C for the machine that MCR is built for, with the clang that compiles the program: needs no
//! C library, so it goes into static builds too.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::clang::{fail, kernel_headers};

/// Compiles `source` and links it with whatever links this package.
pub(crate) fn link(source: &str, headers: &str, library: &str) {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let object = out.join(format!("{library}.o"));
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed={headers}");
    let mut clang = Command::new("clang");
    clang.args(["-O2", "-g", "-Wall", "-Werror", "-ffreestanding", "-fPIC"]);
    // Without LTO between the languages nothing of the other side's flags matters.
    clang.arg(format!("--target={}", target()));
    if let Some(include) = kernel_headers() {
        clang.arg("-idirafter").arg(include);
    }
    clang.arg("-I").arg(headers);
    clang.arg("-c").arg(source).arg("-o").arg(&object);
    if !clang.status().is_ok_and(|status| status.success()) {
        fail(&format!(
            "clang cannot compile {source} for {} (messages above)",
            target()
        ));
    }
    archive(&object, &out.join(format!("lib{library}.a")));
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=static={library}");
}

/// As clang calls it: Rust adds the extensions to the name of a RISC-V.
fn target() -> String {
    let target = env::var("TARGET").expect("cargo sets the target");
    match target.split_once('-') {
        Some((machine, rest)) if machine.starts_with("riscv64") => format!("riscv64-{rest}"),
        _ => target,
    }
}

/// The first that is there: binutils come with every linker, LLVM's with some clangs.
fn archive(object: &Path, library: &Path) {
    println!("cargo::rerun-if-env-changed=AR");
    let _ = std::fs::remove_file(library);
    let made = [
        env::var("AR").ok(),
        Some("ar".into()),
        Some("llvm-ar".into()),
    ]
    .into_iter()
    .flatten()
    .any(|ar| {
        let status = Command::new(ar)
            .arg("crs")
            .arg(library)
            .arg(object)
            .status();
        status.is_ok_and(|status| status.success())
    });
    if !made {
        fail("neither ar nor llvm-ar can make a library; install binutils");
    }
}
