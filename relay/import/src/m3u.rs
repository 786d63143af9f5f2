//! Playlists with one URL per line, as tvheadend, VLC and providers write them: a title before each
//! (`#EXTINF`), and what only players need.

use crate::parsed::Parsed;
use crate::remark::Position;
use crate::url;

/// Reads the streams of a playlist.
pub(crate) fn read(text: &str, parsed: &mut Parsed) {
    let (mut name, mut options) = (None, Vec::new());
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(info) = line.strip_prefix("#EXTINF:") {
            name = title(info);
        }
        if let Some(option) = line.strip_prefix("#EXTVLCOPT:") {
            options.push(option.trim().to_owned());
        }
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let position = Position::line("", index + 1);
        let about = (name.take(), &*std::mem::take(&mut options));
        if let Err(why) = url::stream(line, &position, about, parsed) {
            parsed.skip(position, line, why);
        }
    }
}

/// The title after duration and attributes: `-1 tvg-id="x" tvg-name="News, 24 h",News`.
fn title(info: &str) -> Option<String> {
    let mut is_quoted = false;
    let comma = info.find(|c| {
        is_quoted ^= c == '"';
        c == ',' && !is_quoted
    });
    // An unclosed quote does not hide the title.
    let comma = comma.or_else(|| info.find(','))?;
    let title = info[comma + 1..].trim();
    (!title.is_empty()).then(|| title.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As tvheadend, IPTV providers and VLC write it.
    const PLAYLIST: &str = "#EXTM3U url-tvg=\"http://epg.example/guide.xml\"\r
#EXTINF:-1 tvg-id=\"daserste.de\" tvg-logo=\"http://x/y.png\" group-title=\"Public, HD\",Das Erste HD\r
udp://@239.35.10.4:10000\r
\r
#EXTINF:-1 tvg-id=\"zdf.de\",ZDF HD\r
#EXTVLCOPT:network-caching=1000\r
rtp://10.0.0.5@232.35.10.2:10000\r
#EXTINF:-1,Web radio\r
http://radio.example/stream.mp3\r
udp://@[ff3e::8000:1]:5000\r
#EXTINF:-1 broken=\"quote,Shop\r
udp://@239.35.10.9:10000";

    #[test]
    fn options_of_a_stream_name_its_interface() {
        let mut parsed = Parsed::default();
        let options = "#EXTVLCOPT:miface=eth7\nudp://@239.1.1.1:1234|x=y\n\
                       #EXTVLCOPT:miface-addr=10.0.0.1\nudp://@239.1.1.2:1234\n";
        read(options, &mut parsed);
        let streams = parsed.streams.iter();
        let interfaces = streams.map(|stream| stream.legs[0].interface.as_deref());
        assert_eq!(interfaces.collect::<Vec<_>>(), [Some("eth7"), None]);
        assert!(
            parsed.remarks[0]
                .to_string()
                .contains("10.0.0.1 is no interface's name")
        );
    }

    #[test]
    fn reads_a_playlist_of_a_provider() {
        let mut parsed = Parsed::default();
        read(PLAYLIST, &mut parsed);
        let streams: Vec<(String, Option<&str>)> = parsed
            .streams
            .iter()
            .map(|stream| (stream.position.to_string(), stream.name.as_deref()))
            .collect();
        assert_eq!(
            streams,
            [
                ("3".to_owned(), Some("Das Erste HD")),
                ("7".to_owned(), Some("ZDF HD")),
                ("10".to_owned(), None),
                ("12".to_owned(), Some("Shop")),
            ]
        );
        let remarks: Vec<String> = parsed.remarks.iter().map(ToString::to_string).collect();
        assert_eq!(
            remarks,
            ["9: not taken over: http://radio.example/stream.mp3: http is not multicast over UDP"]
        );
    }
}
