//! From bytes to streams: detects the format and calls its reader.

use std::fmt;

use crate::error::{BYTES_MAX, ReadError};
use crate::parsed::Parsed;
use crate::remark::{Position, Why};
use crate::{is05, m3u, sdp, smcroute, xspf};

/// A kind of file that rules are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Session descriptions, RFC 8866.
    Sdp,
    /// Playlists, one URL a line.
    M3u,
    /// Playlists in XML.
    Xspf,
    /// What smcroute reads.
    Smcroute,
    /// Staged or active parameters of AMWA IS-05 senders and receivers.
    Is05,
}

/// Reads a file; without a given format, its content decides.
///
/// # Errors
///
/// Why nothing can be read; problems of single lines are remarks.
pub fn read(bytes: &[u8], format: Option<Format>) -> Result<Parsed, ReadError> {
    if bytes.len() > BYTES_MAX {
        return Err(ReadError::TooLarge);
    }
    if let Some(zero) = bytes.iter().position(|byte| *byte == 0) {
        return Err(ReadError::NotText(zero));
    }
    let mut parsed = Parsed::default();
    let text = String::from_utf8(bytes.to_vec()).unwrap_or_else(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = bytes[..valid].iter().filter(|byte| **byte == b'\n').count() + 1;
        parsed.note(Position::line("", line), "", Why::NotUtf8);
        bytes.iter().copied().map(char::from).collect()
    });
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let format = format.or_else(|| Format::of(text));
    match format.ok_or(ReadError::Unknown)? {
        Format::Sdp => sdp::read(text, "", &mut parsed),
        Format::M3u => m3u::read(text, &mut parsed),
        Format::Xspf => xspf::read(text, &mut parsed)?,
        Format::Smcroute => smcroute::read(text, &mut parsed),
        Format::Is05 => is05::read(text, &mut parsed)?,
    }
    Ok(parsed)
}

impl Format {
    /// The format of a text, by its first line that is not blank or a comment.
    fn of(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim);
        let first = lines.clone().find(|line| !line.is_empty())?;
        if first.starts_with(['{', '[']) {
            return Some(Self::Is05);
        }
        if first.starts_with('<') {
            return Some(Self::Xspf);
        }
        if first.starts_with("v=") {
            return Some(Self::Sdp);
        }
        if first.starts_with("#EXTM3U") || first.starts_with("#EXTINF") {
            return Some(Self::M3u);
        }
        let entry = lines.find(|line| !line.is_empty() && !line.starts_with('#'))?;
        let word = entry.split_whitespace().next().unwrap_or_default();
        if smcroute::is_directive(word) {
            return Some(Self::Smcroute);
        }
        word.contains("://").then_some(Self::M3u)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sdp => "sdp",
            Self::M3u => "m3u",
            Self::Xspf => "xspf",
            Self::Smcroute => "smcroute",
            Self::Is05 => "is05",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make::{Options, make};

    #[test]
    fn detects_a_format_by_what_a_file_begins_with() {
        for (text, format) in [
            ("v=0\r\no=- 1 1 IN IP4 10.0.0.1\r\n", Some(Format::Sdp)),
            ("\u{feff}#EXTM3U\n", Some(Format::M3u)),
            ("# my channels\nudp://@239.1.1.1:1234\n", Some(Format::M3u)),
            ("\n<?xml version=\"1.0\"?>", Some(Format::Xspf)),
            ("<playlist/>", Some(Format::Xspf)),
            ("# eth0 in\n\nphyint eth0 enable\n", Some(Format::Smcroute)),
            ("mgroup from eth0 group 225.1.2.3", Some(Format::Smcroute)),
            ("  {\"transport_params\": []}", Some(Format::Is05)),
            ("[{}]", Some(Format::Is05)),
            ("version = 1\n[[rule]]\n", None),
            ("", None),
            ("# nothing\n", None),
        ] {
            let text = text.strip_prefix('\u{feff}').unwrap_or(text);
            assert_eq!(Format::of(text), format, "{text:?}");
        }
    }

    #[test]
    fn says_why_nothing_can_be_read() {
        let error = |bytes: &[u8], format| read(bytes, format).unwrap_err().to_string();
        let large = vec![b'#'; BYTES_MAX + 1];
        assert_eq!(error(&large, None), "holds more than 4 MiB; divide it");
        assert_eq!(error(b"v=0\0", None), "is not text: byte 3 is 0");
        assert!(error(b"hello", None).contains("--format says which it is"));
        assert!(error(b"<a>", None).starts_with("cannot be read as XSPF: "));
        assert!(error(b"{", None).starts_with("cannot be read as JSON: EOF"));
    }

    /// Anything quadratic would take minutes here.
    #[test]
    fn files_made_to_be_slow_are_read_as_fast_as_others() {
        let session = "v=0\nc=IN IP4 239.0.0.1/1/1024\n";
        let filter = "a=source-filter: incl IN IP4 * 10.0.0.1\n";
        let section = |n: u32| format!("m=a 1 udp\na=mid:{n}\n");
        let sections: String = (0..15_000).map(section).collect();
        let pair = |n: u32| format!("a=group:DUP {n} {}\n", n + 1);
        let copies: String = (0..15_000).map(pair).collect();
        for (text, streams) in [
            (session.to_owned() + &"m=a 1 udp\n".repeat(30_000), 20_000),
            (
                session.to_owned() + &filter.repeat(15_000) + "m=a 1 udp\n",
                1024,
            ),
            (format!("v=0\n{copies}{sections}"), 0),
            ("udp://@239.1.1.1:1\n".repeat(6_000), 6_000),
            (
                format!("mroute from a group 225.1.1.1 to{}", " b".repeat(1 << 18)),
                0,
            ),
            (
                format!("{{\"transport_params\":[{}7]}}", "{},".repeat(1 << 18)),
                0,
            ),
            ("mgroup from a group 225.1.1.1\n".repeat(30_000), 0),
        ] {
            let parsed = read(text.as_bytes(), None).unwrap();
            assert_eq!(parsed.streams.len(), streams, "{}", &text[..40]);
            let options = Options {
                interfaces: vec!["eth0".to_owned()],
                to: vec!["%eth1".parse().unwrap()],
                ports: None,
            };
            assert!(make(parsed, &options).is_ok());
        }
    }

    #[test]
    fn what_is_not_utf8_is_read_as_latin_1_and_reported() {
        let parsed = read(
            b"#EXTM3U\n#EXTINF:-1,Espa\xf1a\nudp://@239.1.1.1:1234\n",
            None,
        )
        .unwrap();
        assert_eq!(parsed.streams[0].name.as_deref(), Some("España"));
        let remarks: Vec<String> = parsed.remarks.iter().map(ToString::to_string).collect();
        assert_eq!(remarks, ["2: note: is not UTF-8; it is read as Latin-1"]);
    }
}
