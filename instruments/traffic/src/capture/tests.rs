use std::io::Write;

use packet::craft::Craft;

use super::*;

/// A classic capture with microseconds, little-endian, Ethernet.
fn pcap(packets: &[(u64, Vec<u8>)]) -> tempfile::NamedTempFile {
    let mut bytes = Vec::new();
    let word = |bytes: &mut Vec<u8>, word: u32| bytes.extend(word.to_le_bytes());
    word(&mut bytes, 0xa1b2_c3d4);
    bytes.extend([2, 0, 4, 0]);
    for value in [0, 0, 65535, 1] {
        word(&mut bytes, value);
    }
    for (micros, frame) in packets {
        word(&mut bytes, (micros / 1_000_000) as u32);
        word(&mut bytes, (micros % 1_000_000) as u32);
        word(&mut bytes, frame.len() as u32);
        word(&mut bytes, frame.len() as u32);
        bytes.extend(frame);
    }
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&bytes).unwrap();
    file
}

fn frame(destination: &str, payload: &[u8]) -> Vec<u8> {
    let source = "10.0.0.1:4000".parse().unwrap();
    Craft::new(source, destination.parse().unwrap(), payload.to_vec()).frame()
}

/// A process information block, of which the parser accepts any length.
#[test]
fn a_block_shorter_than_its_own_frame_is_damage() {
    let mut bytes = vec![0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a];
    bytes.extend([1, 0, 0, 0]);
    bytes.extend([0xff; 8]);
    bytes.extend([28, 0, 0, 0]);
    assert!(Capture::read(&*bytes).is_ok());
    bytes.extend([1, 0, 0, 0x80, 4, 0, 0, 0, 1, 0, 0, 0]);
    let error = Capture::read(&*bytes).unwrap_err();
    assert!(error.contains("shorter"), "{error}");
}

#[test]
fn datagrams_have_their_times_and_flows() {
    let mut tagged = frame("239.1.1.2:5002", b"tagged");
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
    let file = pcap(&[
        (1_700_000_000_000_100, frame("239.1.1.1:5001", b"one")),
        (1_700_000_000_000_350, tagged),
        (1_700_000_001_000_100, frame("239.1.1.1:5001", b"")),
        (1_700_000_001_000_200, vec![0; 60]),
    ]);
    let capture = Capture::open(file.path()).unwrap();
    let seen: Vec<_> = capture
        .datagrams
        .iter()
        .map(|d| (d.after_ns, d.flow, capture.payload(d)))
        .collect();
    assert_eq!(
        seen,
        [
            (0, 0, &b"one"[..]),
            (250_000, 1, &b"tagged"[..]),
            (1_000_000_000, 0, &b""[..])
        ]
    );
    assert_eq!((capture.skipped.other, capture.flows.len()), (1, 2));
}

#[test]
fn a_capture_cut_in_a_packet_counts_as_far_as_it_goes() {
    let file = pcap(&[
        (1, frame("239.1.1.1:5001", b"one")),
        (2, frame("239.1.1.1:5001", b"two")),
    ]);
    let length = file.as_file().metadata().unwrap().len();
    file.as_file().set_len(length - 5).unwrap();
    assert_eq!(Capture::open(file.path()).unwrap().datagrams(), 1);
}

#[test]
fn a_file_that_is_no_capture_is_refused_by_name() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"certainly not a capture file").unwrap();
    let error = Capture::open(file.path()).unwrap_err().to_string();
    assert!(error.contains(file.path().to_str().unwrap()), "{error}");
    assert!(matches!(
        Capture::open(pcap(&[]).path()),
        Err(Error::Empty { .. })
    ));
}

#[test]
fn skipped_packets_are_reported_by_reason() {
    let mut first = frame("239.1.1.1:5001", b"the first fragment");
    first[20] = 0x20;
    let mut short = frame("239.1.1.1:5001", b"longer than captured");
    short.truncate(short.len() - 1);
    let file = pcap(&[(1, first), (2, short.clone()), (3, short), (4, vec![0; 60])]);
    let error = Capture::open(file.path()).unwrap_err().to_string();
    for reason in ["1 not UDP over IP", "1 fragments", "2 cut short"] {
        assert!(error.contains(reason), "{error}");
    }
}

/// A section, an interface with this `if_tsresol` and two packets, little-endian.
fn pcapng(tsresol: u8, units: [u64; 2]) -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let length = (12 + body.len()) as u32;
        let mut block = [kind.to_le_bytes(), length.to_le_bytes()].concat();
        block.extend(body);
        block.extend(length.to_le_bytes());
        block
    };
    let mut bytes = block(
        0x0a0d_0d0a,
        &[[0x4d, 0x3c, 0x2b, 0x1a], [1, 0, 0, 0], [0xff; 4], [0xff; 4]].concat(),
    );
    let interface = [
        1, 0, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, tsresol, 0, 0, 0, 0, 0, 0, 0,
    ];
    bytes.extend(block(1, &interface));
    for units in units {
        let mut frame = frame("239.1.1.1:5001", b"two!");
        let length = (frame.len() as u32).to_le_bytes();
        frame.resize(frame.len().next_multiple_of(4), 0);
        let (high, low) = ((units >> 32) as u32, units as u32);
        let head = [
            [0; 4],
            high.to_le_bytes(),
            low.to_le_bytes(),
            length,
            length,
        ];
        bytes.extend(block(6, &[head.as_flattened(), &frame[..]].concat()));
    }
    bytes
}

#[test]
fn times_count_in_the_units_that_the_file_names() {
    for (tsresol, a_second) in [(6, 1_000_000), (9, 1_000_000_000), (0x80 | 20, 1 << 20)] {
        let start = 1_700_000_000 * a_second;
        let capture = Capture::read(&*pcapng(tsresol, [start, start + a_second])).unwrap();
        assert_eq!(capture.datagrams(), 2, "{tsresol}");
        assert_eq!(capture.length_ns(), SECOND_NS, "{tsresol}");
    }
}
