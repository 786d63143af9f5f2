//! Pictures of the page for the documentation: `make pictures` runs this.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use lab::process::Process;
use lab::wait;

use super::browser::Browser;
use crate::bed::Bed;

const TOOLS: [&str; 3] = ["chromium", "chromedriver", "base64"];
const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:9190"];

const RULES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%veth1:5001"
outputs = ["239.10.1.1%veth2:6001,ttl=16", "239.10.1.2%veth2:6001"]
health = { rate_min = "500pps" }
[[rule]]
name = "cam2"
input = "239.1.1.2%veth1:5001"
outputs = ["239.10.2.1%veth2:6001"]
path = "userspace"
health = {}
[[rule]]
name = "radio"
input = "239.1.1.3%veth1:5001"
outputs = ["239.10.3.1%veth2:6001"]
health = { silence = "1s" }
[[rule]]
name = "stage"
input = "239.1.1.4%veth1:5001"
outputs = ["239.10.4.1%veth2:6001", "239.10.4.2%veth9:6001"]
[[rule]]
name = "studio"
input = "239.1.1.5%veth1:5001"
outputs = ["239.10.5.1%veth2:6001"]
"#;

#[test]
#[ignore = "writes docs/images; make pictures runs it"]
fn the_page_has_its_picture_taken() {
    let Some(bed) = Bed::with_tools(&TOOLS, &LISTEN) else {
        return;
    };
    bed.daemon.apply(RULES).unwrap();
    let streams = [
        (1, 1200, "rtp"),
        (2, 800, "rtp"),
        (3, 50, "rtp"),
        (4, 400, "plain"),
    ];
    let [first, second, third, fourth] = streams.map(|stream| send(&bed, stream));
    let browser = Browser::start(&bed.chain.relay);
    browser.open("http://127.0.0.1:9190/");
    let seconds = "return document.querySelector('tr[data-rule=cam1]')?.cells[6].textContent \
                   .replaceAll('\u{202f}', '') ?? '0'";
    wait::until_within(
        std::time::Duration::from_secs(60),
        "there is something to see",
        || {
            let packets = browser.run(seconds);
            packets.as_str().unwrap().parse::<f64>().unwrap_or(0.0) > 12_000.0
        },
    )
    .unwrap();
    drop(third);
    let red = "return document.querySelector('tr[data-rule=radio]').className.includes('red')";
    wait::until("the stopped stream is red", || browser.run(red) == true).unwrap();
    browser.run("document.querySelector('tr[data-rule=cam1]').click()");
    browser.run("document.querySelector('tr[data-rule=cam1]').click()");
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        wait::until("the plots are drawn anew", || {
            browser.run("return document.querySelectorAll('.uplot canvas').length") == 2
        })
        .unwrap();
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
        write(
            &directory,
            &format!("page-{scheme}.png"),
            &browser.picture(),
        );
    }
    drop((first, second, fourth));
}

fn send(bed: &Bed, (group, pps, form): (u8, u32, &str)) -> Process {
    let mut command = bed.chain.sender.command(lab::binary::mcr().unwrap());
    command.args([
        "send",
        &format!("239.1.1.{group}%veth0:5001"),
        "--duration",
        "120",
    ]);
    command.args(["--rate", &pps.to_string(), "--size", "1328"]);
    if form == "rtp" {
        command.args(["--framing", "rtp"]);
    }
    Process::start(command).unwrap()
}

/// Decodes a picture in base64 and writes it into a directory.
pub(crate) fn write(directory: &Path, name: &str, picture: &str) {
    std::fs::create_dir_all(directory).unwrap();
    let file = std::fs::File::create(directory.join(name)).unwrap();
    let mut command = Command::new("base64");
    command.arg("-d").stdin(Stdio::piped()).stdout(file);
    let mut decoder = command.spawn().unwrap();
    let mut input = decoder.stdin.take().unwrap();
    input.write_all(picture.as_bytes()).unwrap();
    assert!(decoder.wait().unwrap().success());
}
