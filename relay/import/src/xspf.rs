//! Playlists in XML, as VLC saves them. Each track becomes its first location that a rule can take.

use roxmltree::{Document, Node, ParsingOptions};

use crate::error::ReadError;
use crate::parsed::Parsed;
use crate::remark::{Position, Why};
use crate::url;

/// Reads the streams of a playlist. Entities beyond XML's own are refused (`allow_dtd` is off), so a
/// short text stays short.
pub(crate) fn read(text: &str, parsed: &mut Parsed) -> Result<(), ReadError> {
    let document =
        Document::parse_with_options(text, ParsingOptions::default()).map_err(ReadError::Xml)?;
    let lines = Lines::of(text);
    let is_track = |node: &Node| node.tag_name().name() == "track";
    for track in document.descendants().filter(is_track) {
        self::track(track, &lines, parsed);
    }
    Ok(())
}

fn track(track: Node, lines: &Lines, parsed: &mut Parsed) {
    let name = children(track, "title").find_map(text);
    let nodes = children(track, "extension").flat_map(|it| children(it, "option"));
    let options: Vec<String> = nodes.filter_map(text).collect();
    let mut rejected = Vec::new();
    for location in children(track, "location") {
        let position = lines.position(location);
        let url = text(location).unwrap_or_default();
        match url::stream(&url, &position, (name.clone(), &options), parsed) {
            // The other locations are fallbacks for players, so nothing is lost.
            Ok(()) => return,
            Err(why) => rejected.push((position, url, why)),
        }
    }
    if rejected.is_empty() {
        let name = name.unwrap_or_default();
        parsed.skip(lines.position(track), &name, Why::NoGroup);
    }
    for (position, url, why) in rejected {
        parsed.skip(position, &url, why);
    }
}

fn children<'d>(node: Node<'d, 'd>, name: &'static str) -> impl Iterator<Item = Node<'d, 'd>> {
    node.children()
        .filter(move |child| child.tag_name().name() == name)
}

fn text(node: Node) -> Option<String> {
    let text = node.text().map(str::trim).unwrap_or_default();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The offsets of the line ends of a text; the parser's own lookup counts lines anew each time.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Self(ends.map(|(at, _)| at).collect())
    }

    fn position(&self, node: Node) -> Position {
        let before = self.0.partition_point(|end| *end < node.range().start);
        Position::line("", before + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As VLC 3 saves a list.
    const PLAYLIST: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<playlist xmlns="http://xspf.org/ns/0/" xmlns:vlc="http://www.videolan.org/vlc/playlist/ns/0/" version="1">
	<title>Wiedergabeliste</title>
	<trackList>
		<track>
			<location>udp://@239.35.10.4:10000</location>
			<title>Rock &amp; Pop</title>
			<extension application="http://www.videolan.org/vlc/playlist/0">
				<vlc:id>0</vlc:id>
				<vlc:option>network-caching=1000</vlc:option>
			</extension>
		</track>
		<track>
			<location>http://example.org/b</location>
			<location>rtp://@239.35.10.5:5004</location>
		</track>
		<track>
			<location>file:///home/me/film.ts</location>
			<title>Film</title>
		</track>
		<track><title>Empty</title></track>
	</trackList>
</playlist>
"#;

    #[test]
    fn reads_a_playlist_of_vlc() {
        let mut parsed = Parsed::default();
        read(PLAYLIST, &mut parsed).unwrap();
        let streams: Vec<(String, Option<&str>)> = parsed
            .streams
            .iter()
            .map(|stream| (stream.position.to_string(), stream.name.as_deref()))
            .collect();
        assert_eq!(
            streams,
            [
                ("6".to_owned(), Some("Rock & Pop")),
                ("15".to_owned(), None)
            ]
        );
        let remarks: Vec<String> = parsed.remarks.iter().map(ToString::to_string).collect();
        assert_eq!(
            remarks,
            [
                "18: not taken over: file:///home/me/film.ts: file is not multicast over UDP",
                "21: not taken over: Empty: names no group",
            ]
        );
    }

    #[test]
    fn takes_no_entity_and_survives_any_depth() {
        let entity = "<!DOCTYPE p [<!ENTITY a \"b\">]><playlist>&a;</playlist>";
        assert!(read(entity, &mut Parsed::default()).is_err());
        let deep = "<track>".repeat(200_000) + &"</track>".repeat(200_000);
        let mut parsed = Parsed::default();
        read(&deep, &mut parsed).unwrap();
        assert_eq!(parsed.remarks.len(), 200_000);
    }
}
