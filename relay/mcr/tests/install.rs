//! What is installed where: by `make install` for every prefix, and by the packages, which bring the
//! same. Nothing of it touches the running system.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use toml::{Table, Value};

const BINARY: &str = env!("CARGO_BIN_EXE_mcr");
const CONFIGURATION: &str = "etc/mcr/mcr.toml";

/// A file of the repository.
fn repository(file: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(file)
}

fn install(stage: &Path, variables: &[(&str, &str)], argument: &str) -> Output {
    let mut command = Command::new(repository("dist/install"));
    command.arg(argument).env("DESTDIR", stage);
    command.env("INIT", "systemd");
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// Every file below, by its path from there.
fn files(stage: &Path) -> BTreeSet<String> {
    let mut files = BTreeSet::new();
    let mut directories = vec![stage.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let path = path.strip_prefix(stage).unwrap();
                files.insert(path.to_str().unwrap().to_owned());
            }
        }
    }
    files
}

#[test]
fn what_is_installed_names_its_own_path_and_can_be_uninstalled() {
    for (prefix, units) in [
        ("/usr", "usr/lib"),
        ("/usr/local", "usr/local/lib"),
        ("/opt/mcr", "etc"),
    ] {
        let stage = tempfile::tempdir().unwrap();
        let variables = [("PREFIX", prefix)];
        let output = install(stage.path(), &variables, BINARY);
        let stdout = String::from_utf8_lossy(&output.stdout);
        let next = "to start it: systemctl enable --now mcr\n";
        assert!(
            stdout.contains(&format!("{prefix}/bin/mcr; /etc/mcr/mcr.toml says")),
            "{stdout}"
        );
        assert!(stdout.ends_with(next), "{stdout}");
        let there = files(stage.path());
        let below = prefix.trim_start_matches('/');
        let expected = [
            format!("{below}/bin/mcr"),
            format!("{below}/share/man/man1/mcr.1"),
            format!("{below}/share/man/man1/mcr-add.1"),
            format!("{below}/share/man/man5/mcr.toml.5"),
            format!("{below}/share/bash-completion/completions/mcr"),
            format!("{below}/share/zsh/site-functions/_mcr"),
            format!("{below}/share/fish/vendor_completions.d/mcr.fish"),
            format!("{units}/systemd/system/mcr.service"),
            format!("{units}/systemd/system/mcr@.service"),
            format!("{units}/sysusers.d/mcr.conf"),
            format!("{units}/tmpfiles.d/mcr.conf"),
            CONFIGURATION.to_owned(),
        ];
        for file in expected {
            assert!(there.contains(&file), "{prefix}: no {file} in {there:?}");
        }
        for unit in ["mcr.service", "mcr@.service"] {
            let unit = stage.path().join(units).join("systemd/system").join(unit);
            let text = fs::read_to_string(unit).unwrap();
            let lines = text.lines().filter(|line| line.starts_with("Exec"));
            let commands = lines.filter_map(|line| line.split_once("/mcr "));
            let programs: BTreeSet<&str> = commands.map(|(before, _)| before).collect();
            let [starts, checks] =
                ["ExecStart=", "ExecReload="].map(|key| format!("{key}{prefix}/bin"));
            assert_eq!(programs, BTreeSet::from([&*starts, &*checks]));
        }
        systemd_accepts(stage.path());
        // Once more, with a configuration that was edited meanwhile.
        fs::write(stage.path().join(CONFIGURATION), "version = 1\n# mine\n").unwrap();
        install(stage.path(), &variables, BINARY);
        assert_eq!(files(stage.path()), there);
        let output = install(stage.path(), &variables, "--uninstall");
        assert!(String::from_utf8_lossy(&output.stdout).contains("was changed and stays"));
        assert_eq!(
            files(stage.path()),
            BTreeSet::from([CONFIGURATION.to_owned()])
        );

        fs::remove_file(stage.path().join(CONFIGURATION)).unwrap();
        install(stage.path(), &variables, BINARY);
        install(stage.path(), &variables, "--uninstall");
        assert_eq!(files(stage.path()), BTreeSet::new());
    }
}

fn systemd_accepts(stage: &Path) {
    let mut command = Command::new("systemd-analyze");
    command.arg(format!("--root={}", stage.display()));
    command.args(["--man=no", "--recursive-errors=no", "verify"]);
    let Ok(output) = command.args(["mcr.service", "mcr@studio.service"]).output() else {
        eprintln!("skipped: needs systemd-analyze");
        return;
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !complaint.contains("mcr"),
        "{complaint}"
    );
}

#[test]
fn without_systemd_there_is_a_script_for_its_place() {
    for init in ["openrc", "procd"] {
        let stage = tempfile::tempdir().unwrap();
        let variables = [("INIT", init), ("PREFIX", "/opt/mcr")];
        install(stage.path(), &variables, BINARY);
        let there = files(stage.path());
        assert!(
            !there.iter().any(|file| file.contains("systemd")),
            "{there:?}"
        );
        let text = fs::read_to_string(stage.path().join("etc/init.d/mcr")).unwrap();
        assert!(
            text.contains("=/opt/mcr/bin/mcr\n") && !text.contains("/usr/bin"),
            "{text}"
        );
        install(stage.path(), &variables, "--uninstall");
        assert_eq!(files(stage.path()), BTreeSet::new());
    }
}

fn manifest() -> Table {
    let text = fs::read_to_string(repository("relay/mcr/Cargo.toml")).unwrap();
    let manifest: Table = text.parse().unwrap();
    manifest["package"]["metadata"].as_table().unwrap().clone()
}

/// Where an asset goes, without a leading `/`; a directory stands for the files it is made of.
fn destination(source: &Value, to: &Value) -> String {
    let (source, to) = (source.as_str().unwrap(), to.as_str().unwrap());
    let to = to.trim_start_matches('/');
    let name = source.rsplit('/').next().unwrap();
    if to.ends_with('/') {
        format!("{to}{name}")
    } else {
        to.to_owned()
    }
}

#[test]
fn packages_and_make_install_bring_the_same() {
    let stage = tempfile::tempdir().unwrap();
    install(stage.path(), &[("PREFIX", "/usr")], BINARY);
    let is_page = |file: &String| file.contains("/man/");
    let installed: BTreeSet<String> = files(stage.path())
        .into_iter()
        .filter(|file| !is_page(file) && !file.ends_with("share/mcr/installed"))
        .collect();

    // What documents link to is installed, too.
    for document in installed.iter().filter(|file| file.ends_with(".md")) {
        let text = fs::read_to_string(stage.path().join(document)).unwrap();
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap();
            let beside = Path::new(document).with_file_name(link);
            let is_one = link.ends_with(".md") && !link.contains('/');
            let is_there = installed.contains(beside.to_str().unwrap());
            assert!(!is_one || is_there, "{document} leads to {link}");
        }
    }

    let metadata = manifest();
    let assets = metadata["deb"]["assets"].as_array().unwrap().iter();
    let deb: BTreeSet<String> = assets
        .map(|asset| destination(&asset[0], &asset[1]))
        .map(|file| file.replace("zsh/vendor-completions", "zsh/site-functions"))
        .filter(|file| !is_page(file))
        .collect();
    assert_eq!(deb, installed);

    let assets = metadata["generate-rpm"]["assets"]
        .as_array()
        .unwrap()
        .iter();
    let rpm: BTreeSet<String> = assets
        .map(|asset| destination(&asset["source"], &asset["dest"]))
        .filter(|file| !is_page(file) && !file.contains("/licenses/"))
        .collect();
    assert_eq!(rpm, installed);
}

#[test]
fn versions_agree_wherever_they_are_written() {
    let read = |file| fs::read_to_string(repository(file)).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for (file, before) in [
        ("dist/compose.yaml", "image: mcr:"),
        ("dist/kubernetes.yaml", "image: mcr:"),
        ("dist/kubernetes.yaml", "app.kubernetes.io/version: "),
        ("dist/Containerfile", "--tag mcr:"),
    ] {
        let written = format!("{before}{version}");
        assert!(read(file).contains(&written), "{file}: no {written}");
    }
    let toolchain: Table = read("rust-toolchain.toml").parse().unwrap();
    let rust = toolchain["toolchain"]["channel"].as_str().unwrap();
    let container = read("dist/Containerfile");
    for written in [
        format!("rust:{rust}-"),
        format!("RUSTUP_TOOLCHAIN={rust}\n"),
    ] {
        assert!(container.contains(&written), "Containerfile: no {written}");
    }
}

#[test]
fn configurations_that_are_given_away_are_good() {
    let read = |file| fs::read_to_string(repository(file)).unwrap();
    let embedded = |file, key: &str| {
        let text = read(file);
        let (_, block) = text.split_once(key).unwrap();
        let indent = block.len() - block.trim_start_matches([' ', '\n']).len() - 1;
        let lines = block.lines().skip(1);
        let inside =
            lines.take_while(|line| line.is_empty() || line.starts_with(&" ".repeat(indent)));
        inside
            .map(|line| format!("{}\n", line.trim_start()))
            .collect::<String>()
    };
    for text in [
        read("dist/mcr.toml"),
        embedded("dist/kubernetes.yaml", "mcr.toml: |"),
        embedded("dist/ansible/site.yml", "mcr: |"),
        embedded("dist/ansible/roles/mcr/defaults/main.yml", "mcr: |"),
    ] {
        assert!(text.contains("version = 1\n"), "{text}");
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let output = Command::new(BINARY)
            .arg("check")
            .arg(file.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{text}: {output:?}");
    }
}

/// Whether every shell script can be read by the plainest of shells.
#[test]
fn every_script_is_a_script() {
    let dist = repository("dist");
    let mut seen = 0;
    for file in files(&dist) {
        let path = dist.join(&file);
        let text = String::from_utf8(fs::read(&path).unwrap()).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        if !first.starts_with("#!") {
            continue;
        }
        let output = Command::new("sh").arg("-n").arg(&path).output().unwrap();
        assert!(output.status.success(), "{file}: {output:?}");
        seen += 1;
    }
    assert!(seen >= 10, "{seen}");
}
