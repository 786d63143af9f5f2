//! Tools that tests use and that may be missing.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Whether a tool is installed and can enter the network namespaces of the tests.
pub(crate) fn can_run(tool: &str) -> Result<(), String> {
    let missing = || format!("{tool} is not installed (dist/bootstrap test installs it)");
    let script = format!("command -v {tool}");
    let output = Command::new("sh").args(["-c", &script]).output();
    let succeeded = output.ok().filter(|output| output.status.success());
    let stdout = succeeded.ok_or_else(missing)?.stdout;
    if is_snap(Path::new(String::from_utf8_lossy(&stdout).trim())) {
        return Err(format!(
            "{tool} is a snap here, which cannot enter a network namespace"
        ));
    }
    Ok(())
}

/// Whether a program is a snap, or Ubuntu's script that starts one.
fn is_snap(program: &Path) -> bool {
    const LONGEST_SCRIPT: u64 = 64 << 10;
    let real = program.canonicalize().unwrap_or_default();
    if program.starts_with("/snap") || real.ends_with("bin/snap") {
        return true;
    }
    let small = fs::metadata(&real).is_ok_and(|file| file.len() < LONGEST_SCRIPT);
    small && fs::read_to_string(&real).is_ok_and(|text| text.contains("/snap/bin/"))
}

#[test]
fn a_snap_is_recognised_by_its_path_its_link_and_its_script() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    };
    assert!(is_snap(Path::new("/snap/bin/chromium")));
    let link = directory.path().join("chromium");
    std::os::unix::fs::symlink(file("usr/bin/snap", "\x7fELF"), &link).unwrap();
    assert!(is_snap(&link));
    let stub = "#!/bin/sh\nif ! [ -x /snap/bin/chromium ]; then exit 1; fi\n";
    assert!(is_snap(&file("chromium-browser", stub)));
    assert!(!is_snap(&file(
        "wrapper",
        "#!/bin/sh\nexec /usr/lib/chromium/chromium\n"
    )));
}
