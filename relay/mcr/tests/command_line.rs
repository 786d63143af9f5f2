//! The command line by itself: what needs no daemon.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use serde_json::json;

fn mcr(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mcr"))
        .args(arguments)
        .env_remove("MCR_SOCKET")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Runs `mcr`, expects this exit status and every one of `words` on standard error, nothing on
/// standard output.
#[track_caller]
fn fails(arguments: &[&str], status: i32, words: &[&str]) {
    let output = mcr(arguments);
    let message = err(&output);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{arguments:?}: {message}"
    );
    assert_eq!(out(&output), "", "{arguments:?}");
    for word in words {
        assert!(
            message.contains(word),
            "{arguments:?}: no {word:?} in: {message}"
        );
    }
}

#[test]
fn no_subcommand_shows_the_help_and_is_wrong_usage() {
    fails(&[], 2, &["Usage: mcr"]);
    fails(&["frobnicate"], 2, &["frobnicate"]);
}

#[test]
fn help_lists_every_subcommand_that_works_and_no_other() {
    let help = out(&mcr(&["--help"]));
    for name in [
        "run",
        "add",
        "remove",
        "list",
        "show",
        "stats",
        "history",
        "check",
        "diff",
        "apply",
        "export",
        "import",
        "send",
        "receive",
        "demo",
        "events",
        "doctor",
        "top",
        "bench",
        "completions",
        "man",
    ] {
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
    }
    for hidden in ["worker", "keeper", "guard"] {
        assert!(!help.contains(&format!("\n  {hidden} ")), "{help}");
    }
}

#[test]
fn add_names_what_is_wrong_with_an_endpoint() {
    let good = "239.10.1.1%eth1:6001";
    fails(&["add", "239.1.1.1%eth0:5001"], 2, &["OUTPUT"]);
    fails(
        &["add", "0.0.0.0%eth0:5001", good],
        2,
        &["0.0.0.0", "unicast%eth0:5001"],
    );
    fails(
        &["add", "239.1.1.1%eth0:0", good],
        2,
        &["239.1.1.1%eth0:0", "port 0"],
    );
    fails(
        &["add", "239.1.1.1:5001", good],
        2,
        &["239.1.1.1:5001", "interface"],
    );
    fails(
        &["add", "239.1.1.1%eth0:5001", "239.10.1.1%eth1:0"],
        2,
        &["port 0"],
    );
    fails(
        &["add", "239.1.1.1%eth0:5001", "239.10.1.1%eth1:6001,ttl=0"],
        2,
        &["ttl=0"],
    );
    fails(
        &["add", "239.1.1.1%eth0:5001", good, "--name", "a b"],
        2,
        &["name"],
    );
    fails(
        &["add", "239.1.1.1%eth0:5001", good, "--limit", "fast"],
        2,
        &["limit=fast"],
    );
}

#[test]
fn manual_pages_have_sections_besides_the_options() {
    let directory = tempfile::tempdir().unwrap();
    let written = mcr(&["man", "--directory", directory.path().to_str().unwrap()]);
    assert!(written.status.success(), "{}", err(&written));
    let page = |name: &str| fs::read_to_string(directory.path().join("man1").join(name)).unwrap();
    let sections = ["FILES", "SIGNALS", "ENVIRONMENT", "EXIT STATUS", "SEE ALSO"];
    for section in sections {
        let title = |page: &str| {
            page.lines().any(|line| {
                line == format!(".SH {section}") || line == format!(".SH \"{section}\"")
            })
        };
        assert!(
            title(&page("mcr.1")) && title(&page("mcr-run.1")),
            "{section}"
        );
        assert!(title(&out(&mcr(&["man"]))), "{section}");
        let is_expected = !matches!(section, "FILES" | "SIGNALS");
        assert_eq!(title(&page("mcr-add.1")), is_expected, "{section}");
    }
}

#[test]
fn what_watches_names_what_is_wrong_before_it_asks_a_daemon() {
    let filter = ["tap", "cam1", "src", "10.0.0.5", "and", "tcp"];
    fails(
        &filter,
        2,
        &["filter: \"tcp\": no such filter", "dst] port N"],
    );
    for command in ["top", "stats --watch", "show cam1 --watch"] {
        let mut arguments: Vec<&str> = command.split(' ').collect();
        arguments.extend(["--interval", "0"]);
        fails(&arguments, 2, &["at least 0.1 s"]);
    }
    fails(&["events", "--recent", "201"], 2, &["201"]);
}

#[test]
fn an_absent_daemon_is_status_4_and_says_how_to_start_one() {
    let socket = "/nonexistent/mcr.sock";
    for command in [
        &["list"][..],
        &["stats"],
        &["show", "cam1"],
        &["remove", "cam1"],
        &["export"],
        &["add", "239.1.1.1%eth0:5001", "239.10.1.1%eth1:6001"],
    ] {
        let before = [&["--socket", socket], command].concat();
        fails(&before, 4, &[socket, "mcr run"]);
        let after = [command, &["--socket", socket, "--json"]].concat();
        fails(&after, 4, &[socket, "mcr run"]);
    }
    // A socket that is named without its directory is not taken for another host.
    fails(
        &["list", "--socket", "none.sock"],
        4,
        &["/none.sock", "mcr run"],
    );
}

#[test]
fn the_socket_comes_from_option_environment_or_instance() {
    fails(
        &["list", "--instance", "no-such-instance"],
        4,
        &["/run/mcr/no-such-instance.sock"],
    );
    let output = Command::new(env!("CARGO_BIN_EXE_mcr"))
        .args(["list", "--instance", "other"])
        .env("MCR_SOCKET", "/nonexistent/environment.sock")
        .output()
        .unwrap();
    assert!(err(&output).contains("/nonexistent/environment.sock"));
    fails(&["list", "--instance", "../etc"], 2, &["instance"]);
}

#[test]
fn a_file_that_is_no_socket_is_status_4() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    fails(&["list", "--socket", path], 4, &[path]);
}

#[test]
fn check_accepts_a_good_file_and_needs_no_daemon() {
    let config = write(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%eth0:5001\"\n\
         outputs = [\"239.10.1.1%eth1:6001\", { to = \"10.9.9.9:7000\", ttl = 32 }]\n",
    );
    let output = mcr(&["check", path(&config)]);
    assert!(output.status.success(), "{}", err(&output));
    let output = mcr(&["check", path(&config), "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["rules"], 1);
    assert_eq!(report["merge_memory_bytes"], 0);
}

#[test]
fn check_says_what_merging_takes_of_memory() {
    let config = write(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninputs = [\"239.1.1.1%eth0:5001\", \"239.2.1.1%eth1:5001\"]\n\
         outputs = [\"239.10.1.1%eth1:6001\"]\nmerge = { by = \"rtp\", streams = 1000, packets = 4096 }\n",
    );
    let output = mcr(&["check", path(&config)]);
    let text = out(&output);
    assert!(text.contains("good; up to 6.5 MB remember"), "{text}");
    let output = mcr(&["check", path(&config), "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["merge_memory_bytes"], 1_000 * (1_408 + 2 * 2_560));
}

#[test]
fn check_reports_what_is_wrong_in_json_too() {
    let config = write(
        "version = 1\n[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%eth0:5001\"\noutputs = 5\n",
    );
    let output = mcr(&["check", path(&config), "--json"]);
    assert_eq!(output.status.code(), Some(78));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = &report["errors"][0];
    assert_eq!(
        (&error["file"], &error["line"]),
        (&json!(path(&config)), &json!(5))
    );
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("cam1") && message.contains("outputs = 5: give"),
        "{message}"
    );
    let output = mcr(&["check", "/nonexistent.toml", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        report["errors"][0]["message"]
            .as_str()
            .unwrap()
            .contains("/nonexistent.toml")
    );
}

#[test]
fn check_names_file_line_and_fault() {
    let unknown = write(
        "version = 1\n\n[[rule]]\nname = \"cam1\"\ninput = \"239.1.1.1%eth0:5001\"\n\
         outptus = [\"239.10.1.1%eth1:6001\"]\n",
    );
    fails(
        &["check", path(&unknown)],
        78,
        &[path(&unknown), "6", "outptus"],
    );
    let twice = write(
        "version = 1\n\
         [[rule]]\nname = \"a\"\ninput = \"239.1.1.1%eth0:5001\"\noutputs = [\"10.9.9.9:1\"]\n\
         [[rule]]\nname = \"a\"\ninput = \"239.1.1.2%eth0:5001\"\noutputs = [\"10.9.9.9:2\"]\n",
    );
    fails(&["check", path(&twice)], 78, &["\"a\""]);
    let zero = write(
        "version = 1\n[[rule]]\nname = \"a\"\ninput = \"239.1.1.1%eth0:0\"\noutputs = [\"10.9.9.9:1\"]\n",
    );
    fails(&["check", path(&zero)], 78, &["port 0"]);
    fails(&["check", "/nonexistent.toml"], 78, &["/nonexistent.toml"]);
}

#[test]
fn run_refuses_a_bad_configuration_before_anything_else() {
    let config = write("version = 2\n");
    // Another's daemon may run here.
    let instance = format!("bad{}", std::process::id());
    for (config, named) in [
        (path(&config), "version"),
        ("/nonexistent.toml", "/nonexistent.toml"),
    ] {
        let run = ["run", "--instance", &instance, "--config", config];
        fails(&run, 78, &[named]);
    }
}

#[test]
fn run_and_demo_without_privilege_are_status_77() {
    if !is_root() {
        eprintln!("skipped: needs root, to become nobody");
        return;
    }
    // The build directory may be closed to others.
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let binary = directory.path().join("mcr");
    lab::binary::copy(env!("CARGO_BIN_EXE_mcr").as_ref(), &binary).unwrap();
    let socket = directory.path().join("mcr.sock");
    for arguments in [&["run"][..], &["demo"]] {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&binary)
            .args(arguments)
            .arg("--socket")
            .arg(&socket)
            .current_dir("/")
            .output()
            .unwrap();
        assert_eq!(
            output.status.code(),
            Some(77),
            "{arguments:?}: {}",
            err(&output)
        );
        assert!(err(&output).contains("root"), "{}", err(&output));
    }
}

#[test]
fn bench_names_what_it_cannot_measure() {
    fails(&["bench", "run", "nosuch"], 2, &["nosuch", "one-stream"]);
    fails(&["bench", "run", "--size", "10"], 2, &["--size"]);
    fails(&["bench", "run", "--seconds", "0"], 2, &["above 0"]);
    fails(&["bench", "run", "--rate", "-5"], 2, &["above 0"]);
    let no_results = ["bench", "compare", "/dev/null", "/dev/null"];
    fails(&no_results, 69, &["not results of mcr bench run"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for arguments in [&["man"][..], &["completions", "bash"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_mcr"))
            .args(arguments)
            .stdout(writer.try_clone().unwrap())
            .output()
            .unwrap();
        assert!(output.status.success());
        assert_eq!(err(&output), "");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_mcr"))
        .arg("man")
        .stdout(File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(69));
    assert!(err(&output).contains("standard output"));
}

#[test]
fn completions_know_the_subcommands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = out(&mcr(&["completions", shell]));
        assert!(script.contains("complete --"), "{shell}");
    }
    let offered = out(&mcr(&["complete", "--", "re"]));
    assert_eq!(offered, "remove\nreload\nreceive\n");
}

#[test]
fn every_subcommand_has_a_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let output = mcr(&["man", "--directory", directory.path().to_str().unwrap()]);
    assert!(output.status.success(), "{}", err(&output));
    let pages = [
        "man1/mcr.1",
        "man1/mcr-run.1",
        "man1/mcr-add.1",
        "man1/mcr-receive.1",
        "man5/mcr.toml.5",
    ];
    for page in pages {
        let page = directory.path().join(page);
        let text = fs::read_to_string(&page).unwrap();
        assert!(text.contains(".SH NAME"), "{}", page.display());
        // What the formatter does not understand, it complains about.
        let mut man = Command::new("man");
        man.args(["--warnings", "--local-file"]).arg(&page);
        let Ok(read) = man.env("MANPAGER", "cat").output() else {
            eprintln!("skipped: needs man, to read {}", page.display());
            continue;
        };
        assert!(read.status.success(), "{}", err(&read));
        assert_eq!(err(&read), "", "{}", page.display());
    }
    assert!(!directory.path().join("man1/mcr-worker.1").exists());
}

fn write(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0)
}

#[test]
fn lines_that_cannot_be_merged_are_refused_with_what_to_do() {
    let (red, blue) = ("239.1.1.1%red:5001", "239.2.1.1%blue:5001");
    let (third, output) = ("239.3.1.1%red:5001", "239.10.1.1%eth1:6001");
    let range = "239.2.1.0/24%blue:5001";
    for (inputs, merge, expected) in [
        (&[][..], &["--merge", "rtp"][..], "has one input"),
        (&[blue], &["--merge", "fast"], "merge: by=fast: give rtp"),
        (&[blue], &["--merge", "sequence"], "needs offset"),
        (&[blue], &["--merge", "by=rtp,window=1s"], "1ms to 500ms"),
        (
            &[blue],
            &["--merge", "by=rtp,widow=1s"],
            "there is no key \"widow\"",
        ),
        (
            &[blue],
            &["--merge", "rtp", "--failover", "200ms"],
            "there is failover too",
        ),
        (&[range], &["--merge", "rtp"], "may be several streams"),
        (&[blue, third], &["--merge", "payload"], "merges two legs"),
        (
            &[blue, third, "239.4.1.1%red:1", "239.5.1.1%red:1"],
            &["--merge", "rtp"],
            "at most 4 legs",
        ),
        (
            &[red],
            &["--merge", "rtp"],
            "is an input of this rule already",
        ),
    ] {
        let mut arguments = vec!["add", red, output];
        arguments.extend(inputs.iter().flat_map(|input| ["--input", input]));
        arguments.extend(merge);
        fails(&arguments, 2, &[expected]);
    }
}
