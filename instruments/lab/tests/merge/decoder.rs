//! Receivers of others behind two lossy lines: FFmpeg decodes the picture, tshark counts continuity.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use lab::capture::{Capture, Captured};
use lab::daemon::Options;
use lab::process::{self, Process};
use lab::{binary, wait};

use super::runs::{Bed, GROUPS, rule};

const PATIENCE: Duration = Duration::from_secs(120);
/// Pictures of the film.
const PICTURES: u64 = 100;

lab::on_both_paths!(
    ffmpeg_decodes_what_two_lossy_lines_bring,
    no_ts_packet_is_missing
);

fn has(tool: &str) -> bool {
    let there = Command::new(tool).arg("-version").output().is_ok();
    if !there {
        println!("skipped: {tool} is not installed (dist/bootstrap test installs it)");
    }
    there
}

/// Both lines fail in turns. They are level: a relay puts nothing back in order where they are not.
const FAULTS: [&str; 2] = [
    "cut=500ms-1s,cut=2s-2500ms",
    "cut=1300ms-1700ms,cut=2800ms-3200ms",
];

/// Records a film as RTP, with what describes it in `directory`.
fn film(bed: &Bed, directory: &Path) -> Captured {
    let capture = Capture::start((&bed.chain.sender, "lo"), "udp dst port 5004").unwrap();
    let mut ffmpeg = bed.chain.sender.command("ffmpeg");
    let source = format!("testsrc=size=320x240:rate=25:duration={}", PICTURES / 25);
    ffmpeg.args(["-nostdin", "-loglevel", "error", "-re", "-f", "lavfi"]);
    ffmpeg.args(["-i", &source, "-c:v", "libx264", "-preset", "ultrafast"]);
    ffmpeg
        .args(["-g", "25", "-sdp_file"])
        .arg(directory.join("sent.sdp"));
    ffmpeg.args(["-f", "rtp", "rtp://127.0.0.1:5004"]);
    process::run(ffmpeg, PATIENCE).unwrap().success().unwrap();
    capture.finish().unwrap()
}

fn ffmpeg_decodes_what_two_lossy_lines_bring(path: &str) {
    if !has("ffmpeg") {
        return;
    }
    let merge = r#"{ by = "rtp", window = "500ms", packets = 8192 }"#;
    let bed = Bed::new(path, &rule(2, merge));
    let directory = tempfile::tempdir().unwrap();
    let film = film(&bed, directory.path());
    let sent = fs::read_to_string(directory.path().join("sent.sdp")).unwrap();
    let received = sent
        .replace("127.0.0.1", "239.10.1.1/16")
        .replace("m=video 5004", "m=video 6001");
    let sdp = directory.path().join("received.sdp");
    fs::write(&sdp, received).unwrap();
    let recorded = directory.path().join("recorded.mkv");
    let mut record = bed.chain.sink.command("ffmpeg");
    record.args([
        "-nostdin",
        "-loglevel",
        "warning",
        "-protocol_whitelist",
        "file,udp,rtp",
        // Keeps the order though a line is late on a busy machine: microseconds and packets.
        "-max_delay",
        "5000000",
        "-reorder_queue_size",
        "5000",
        "-i",
    ]);
    record
        .arg(&sdp)
        .args(["-c", "copy", "-frames:v"])
        .arg(PICTURES.to_string())
        .arg(&recorded);
    let recorder = Process::start(record).unwrap();
    wait::until("FFmpeg has joined", || {
        let joined = bed.chain.sink.read_proc_net("igmp");
        joined.is_ok_and(|table| table.contains("01010AEF"))
    })
    .unwrap();
    let mut send = bed.chain.sender.command(binary::mcr().unwrap());
    send.arg("send").arg("--replay").arg(film.file());
    for (group, faults) in GROUPS.iter().zip(FAULTS) {
        send.arg("--line")
            .arg(format!("{group}%veth0:5001,{faults}"));
    }
    process::run(send, PATIENCE).unwrap().success().unwrap();
    let recorder = recorder.wait(PATIENCE).unwrap();
    let errors = recorder.stderr.to_lowercase();
    assert!(
        !errors.contains("missed") && !errors.contains("error"),
        "{errors}"
    );
    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args([
        "-v",
        "warning",
        "-count_frames",
        "-select_streams",
        "v:0",
        "-show_entries",
        "stream=nb_read_frames",
        "-of",
        "csv=p=0",
        recorded.to_str().unwrap(),
    ]);
    let decoded = process::run(ffprobe, PATIENCE).unwrap().success().unwrap();
    assert_eq!(decoded.trim(), PICTURES.to_string());
}

fn no_ts_packet_is_missing(path: &str) {
    let config = rule(2, r#"{ by = "rtp", window = "400ms" }"#)
        // tshark follows a stream by its ports, and the lines have one of their own each.
        .replace("veth2:6001", "veth2:6001,sport=5000");
    // Of several workers one takes each line, so they may change the order.
    let options = Options {
        arguments: vec!["--workers".to_owned(), "1".to_owned()],
        ..Options::path(path)
    };
    let bed = Bed::with(options, &config);
    let capture = Capture::start((&bed.chain.sink, "veth3"), "udp port 6001").unwrap();
    let run = bed.run("rtp-ts", 500, "4", &FAULTS, &["--size", "1328"]);
    run.assert_once();
    let packets = capture.finish().unwrap();
    let captured = packets.decoded_as("udp.port==6001,rtp");
    let count = captured.count("udp.dstport == 6001").unwrap();
    assert_eq!(count as u64, run.union("received"));
    let gaps = captured.fields("mp2t.cc.drop", &["mp2t.cc.drop"]).unwrap();
    assert!(gaps.is_empty(), "{} gaps: {run:?}", gaps.len());
    let decoded = captured.count("mp2t").unwrap();
    assert!(
        decoded as u64 > run.union("received") / 2,
        "tshark sees {decoded}"
    );
}
