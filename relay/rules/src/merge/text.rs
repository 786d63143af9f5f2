//! A merge as keys and values: `by=sequence,offset=8,bytes=4,order=little,session=2:8`.

use std::time::Duration;

use super::{
    By, ByteOrder, DEFAULT_PACKETS, DEFAULT_STREAMS, DEFAULT_WINDOW, Field, Merge, MergeProblem,
    PACKETS_MAX, STREAMS_MAX, Sequence, WINDOW_MAX, WINDOW_MIN,
};
use crate::setting::{ANY, Form, Options, Refusal, Setting, TextForm, Word, options, words};

/// The keys that locate a sequence.
const SEQUENCE_KEYS: [&str; 5] = ["offset", "bytes", "order", "session", "count"];

/// Where a field may begin: within a packet that crosses any Ethernet.
const OFFSET_MAX: u16 = 1_400;

/// A merge as keys and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeKeys {
    by: Option<ByWord>,
    window: Option<Duration>,
    packets: Option<u32>,
    streams: Option<u32>,
    offset: Option<u16>,
    bytes: Option<u8>,
    order: Option<ByteOrder>,
    session: Option<Field>,
    count: Option<Field>,
}

words! {
    /// What tells copies.
    pub enum ByWord = Rtp {
        /// RTP's sequence number, of each SSRC by itself.
        Rtp = "rtp",
        /// A number at a place of the payload.
        Sequence = "sequence",
        /// MoldUDP64: its session and the number of its first message.
        MoldUdp64 = "moldudp64",
        /// MDP 3.0 of the CME: the number of the packet.
        Mdp3 = "mdp3",
        /// All of the payload, of two inputs.
        Payload = "payload",
        /// Nothing is merged.
        None = "none",
    }
}

options! {
    /// How inputs that bring the same become one stream; all but `by` may be left out.
    MergeKeys, MergeProblem, {
        name: "merge",
        document: "MergeTable",
        example: "by=rtp,window=50ms",
        alone: "",
        subject: &[],
        expecting: "struct MergeTable",
    }
    /// What tells copies: RTP's sequence number, of each SSRC by itself; a number at a place of the
    /// payload (`sequence`); that of MoldUDP64 or MDP 3.0; or all of the payload, of two inputs.
    required by: Option<ByWord> = by,
        remedy: "give rtp, sequence, moldudp64, mdp3, payload, or none";
    /// How long one input may lie behind another.
    optional window: Option<Duration> = window, form: Form::time(WINDOW_MIN, WINDOW_MAX),
        default: "50ms", remedy: "give a time from 1ms to 500ms, such as 50ms";
    /// How many packets of a stream are remembered, rounded up to a power of two, at least 2048. What
    /// comes further behind is `late`.
    optional packets: Option<u32> = packets, form: Form::number(1, PACKETS_MAX as u64),
        default: "2048", remedy: "give how many are remembered, 1 to 65536";
    /// How many SSRCs or sessions are told apart at a time. What comes of more is `streams_exceeded`.
    optional streams: Option<u32> = streams, form: Form::number(1, STREAMS_MAX as u64),
        default: "256", remedy: "give how many are told apart, 1 to 4096";
    /// Of `by = "sequence"`: bytes of the payload before the number. Required there.
    optional offset: Option<u16> = offset, form: Form::number(0, OFFSET_MAX as u64),
        remedy: "give the bytes of the payload before the number, 0 to 1400";
    /// Of `by = "sequence"`: bytes of the number. Required there.
    optional bytes: Option<u8> = bytes, form: Form::Words(LENGTHS),
        remedy: "a number has 2, 4 or 8 bytes";
    /// Of `by = "sequence"`: which byte of a number comes first.
    optional order: Option<ByteOrder> = order, default: "big",
        remedy: "give big (the most significant byte first) or little";
    /// Of `by = "sequence"`: what tells streams of numbers apart, 1 to 16 bytes of the payload, as in
    /// `{ offset = 2, bytes = 8 }`.
    optional session: Option<Field> = session, form: Form::Bytes(&SESSION);
    /// Of `by = "sequence"`: how many numbers a packet takes up, in 1, 2 or 4 bytes of the payload;
    /// a packet with 0 is a heartbeat. Without it each takes up one.
    optional count: Option<Field> = count, form: Form::Bytes(&COUNT);

    impl {
        fn alone(text: &str) -> Option<&'static str> {
            (!text.contains(['=', ','])).then_some("by")
        }
    }
}

const LENGTHS: &[Word] = &[Word::plain("2"), Word::plain("4"), Word::plain("8")];

const SESSION: TextForm = TextForm {
    name: "OFFSET:BYTES",
    fits: |text| field(text).is_some_and(|field| (1..=16).contains(&field.bytes)),
    pattern: "[0-9]{1,4}:0*([1-9]|1[0-6])",
    remedy: "offset and bytes, as in 2:8; 1 to 16 bytes that begin within the first 1400",
    is_quoted: false,
    numbers: None,
};

const COUNT: TextForm = TextForm {
    name: "OFFSET:BYTES",
    fits: |text| field(text).is_some_and(|field| matches!(field.bytes, 1 | 2 | 4)),
    pattern: "[0-9]{1,4}:0*[124]",
    remedy: "offset and bytes, as in 18:2; 1, 2 or 4 bytes that begin within the first 1400",
    ..ANY
};

impl Setting for Field {
    const FORM: Form = Form::Bytes(&SESSION);

    fn parse(text: &str, _: &Form) -> Result<Self, Refusal> {
        field(text).ok_or(Refusal::Form)
    }

    fn text(&self, _: &Form) -> String {
        format!("{}:{}", self.offset, self.bytes)
    }
}

/// Reads `OFFSET:BYTES`.
fn field(text: &str) -> Option<Field> {
    let (offset, bytes) = text.split_once(':')?;
    Some(Field {
        offset: whole(offset).filter(|offset| *offset <= OFFSET_MAX)?,
        bytes: whole(bytes)?,
    })
}

fn whole<N: std::str::FromStr>(text: &str) -> Option<N> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

impl MergeKeys {
    /// The merge that they describe; `none` is no merge.
    ///
    /// # Errors
    ///
    /// Names the first key that conflicts with the others.
    pub fn merge(&self) -> Result<Option<Merge>, MergeProblem> {
        let by = match self.by.ok_or(MergeProblem::NoBy)? {
            ByWord::None => {
                let other = self.texts().into_iter().nth(1);
                let refused = |(key, _): (&str, _)| Err(MergeProblem::BesideNone(key.to_owned()));
                return other.map_or(Ok(None), refused);
            }
            ByWord::Rtp => By::Rtp,
            ByWord::Sequence => By::Sequence(self.sequence()?),
            ByWord::MoldUdp64 => By::MoldUdp64,
            ByWord::Mdp3 => By::Mdp3,
            ByWord::Payload => By::Payload,
        };
        let is_fixed = !matches!(by, By::Sequence(_));
        let mut given = self.texts().into_iter().map(|(key, _)| key);
        if let Some(key) = given.find(|key| is_fixed && SEQUENCE_KEYS.contains(key)) {
            let by = by.as_str();
            return Err(MergeProblem::FieldFixed { key, by });
        }
        // Rounded up to the size of a ring.
        let rounded = |packets: u32| packets.next_power_of_two().max(DEFAULT_PACKETS);
        Ok(Some(Merge {
            by,
            window: self.window.unwrap_or(DEFAULT_WINDOW),
            packets: self.packets.map_or(DEFAULT_PACKETS, rounded),
            streams: self.streams.unwrap_or(DEFAULT_STREAMS),
        }))
    }

    fn sequence(&self) -> Result<Sequence, MergeProblem> {
        let number = Field {
            offset: self.offset.ok_or(MergeProblem::FieldMissing("offset"))?,
            bytes: self.bytes.ok_or(MergeProblem::FieldMissing("bytes"))?,
        };
        let Self { session, count, .. } = *self;
        let overlaps = [
            ("the number", Some(number), "session", session),
            ("the number", Some(number), "count", count),
            ("session", session, "count", count),
        ];
        let end = |field: Field| field.offset + u16::from(field.bytes);
        for (one, first, other, second) in overlaps {
            if let (Some(first), Some(second)) = (first, second)
                && first.offset < end(second)
                && second.offset < end(first)
            {
                return Err(MergeProblem::Overlap(one, other));
            }
        }
        Ok(Sequence {
            number,
            order: self.order.unwrap_or_default(),
            session,
            count,
        })
    }
}

impl From<&Merge> for MergeKeys {
    fn from(merge: &Merge) -> Self {
        let sequence = match &merge.by {
            By::Sequence(sequence) => Some(sequence),
            _ => None,
        };
        let order = sequence.map(|sequence| sequence.order);
        Self {
            by: ByWord::parse(merge.by.as_str(), &ByWord::FORM).ok(),
            window: Some(merge.window).filter(|window| *window != DEFAULT_WINDOW),
            packets: Some(merge.packets).filter(|packets| *packets != DEFAULT_PACKETS),
            streams: Some(merge.streams).filter(|streams| *streams != DEFAULT_STREAMS),
            offset: sequence.map(|sequence| sequence.number.offset),
            bytes: sequence.map(|sequence| sequence.number.bytes),
            order: order.filter(|order| *order == ByteOrder::Little),
            session: sequence.and_then(|sequence| sequence.session),
            count: sequence.and_then(|sequence| sequence.count),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::setting::{parse, split};

    fn read(text: &str) -> Result<Option<Merge>, MergeProblem> {
        parse::<MergeKeys>(split::<MergeKeys>(text)?)?.merge()
    }

    #[test]
    fn reads_every_key() {
        assert_eq!(read("rtp").unwrap(), Some(Merge::default()));
        assert_eq!(read("by=rtp").unwrap(), Some(Merge::default()));
        assert_eq!(read("none").unwrap(), None);
        let merge = read(
            "by=sequence,offset=10,bytes=4,order=little,window=450ms,packets=5000,streams=8,\
             session=2:8,count=18:2",
        );
        let field = |offset, bytes| Field { offset, bytes };
        let expected = Merge {
            by: By::Sequence(Sequence {
                number: field(10, 4),
                order: ByteOrder::Little,
                session: Some(field(2, 8)),
                count: Some(field(18, 2)),
            }),
            window: Duration::from_millis(450),
            packets: 8_192,
            streams: 8,
        };
        assert_eq!(merge.unwrap(), Some(expected));
        for (text, by) in [
            ("moldudp64", By::MoldUdp64),
            ("mdp3", By::Mdp3),
            ("payload", By::Payload),
        ] {
            assert_eq!(read(text).unwrap().unwrap().by, by);
        }
    }

    #[test]
    fn packets_are_rounded_up_to_what_rings_hold() {
        for (text, packets) in [
            ("1", 2_048),
            ("2048", 2_048),
            ("2049", 4_096),
            ("40000", 65_536),
            ("65536", 65_536),
        ] {
            let merge = read(&format!("by=rtp,packets={text}")).unwrap().unwrap();
            assert_eq!(merge.packets, packets, "{text}");
        }
    }

    #[test]
    fn an_error_contains_what_to_write() {
        for (text, expected) in [
            (
                "rtp,window=5ms",
                "merge: \"rtp\" is not KEY=VALUE, as in by=rtp,window=50ms",
            ),
            (
                "by=rtp,widow=5ms",
                "merge: there is no key \"widow\"; there are by, window, packets, streams, offset, bytes, order, session, count; did you mean window?",
            ),
            ("by=rtp,by=mdp3", "merge: by is given twice; leave one out"),
            (
                "window=5ms",
                "merge: does not say what tells copies; give by=rtp, or another of rtp, sequence, moldudp64, mdp3, payload",
            ),
            (
                "rtcp",
                "merge: by=rtcp: give rtp, sequence, moldudp64, mdp3, payload, or none",
            ),
            (
                "by=rtp,window=2s",
                "merge: window=2s: give a time from 1ms to 500ms, such as 50ms",
            ),
            (
                "by=rtp,packets=65537",
                "merge: packets=65537: give how many are remembered, 1 to 65536",
            ),
            (
                "by=rtp,streams=0",
                "merge: streams=0: give how many are told apart, 1 to 4096",
            ),
            (
                "sequence",
                "merge: by=sequence needs offset; give offset and bytes of the number, as in by=sequence,offset=8,bytes=4",
            ),
            (
                "by=sequence,offset=8",
                "merge: by=sequence needs bytes; give offset and bytes of the number, as in by=sequence,offset=8,bytes=4",
            ),
            (
                "by=sequence,offset=1401,bytes=4",
                "merge: offset=1401: give the bytes of the payload before the number, 0 to 1400",
            ),
            (
                "by=sequence,offset=8,bytes=3",
                "merge: bytes=3: a number has 2, 4 or 8 bytes",
            ),
            (
                "by=sequence,offset=8,bytes=4,order=middle",
                "merge: order=middle: give big (the most significant byte first) or little",
            ),
            (
                "by=sequence,offset=0,bytes=2,session=2:17",
                "merge: session=2:17: give offset and bytes, as in 2:8; 1 to 16 bytes that begin within the first 1400",
            ),
            (
                "by=sequence,offset=0,bytes=2,count=2",
                "merge: count=2: give offset and bytes, as in 18:2; 1, 2 or 4 bytes that begin within the first 1400",
            ),
            (
                "by=sequence,offset=8,bytes=4,session=2:8",
                "merge: the number and session share bytes; look up their offsets, which count from the payload's begin",
            ),
            (
                "by=mdp3,order=big",
                "merge: order says where a sequence stands, and by=mdp3 knows; leave order out",
            ),
            (
                "by=none,window=5ms",
                "merge: none takes no window; leave it out, or say what tells copies",
            ),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), expected);
            crate::document::check_in_a_rule("merge", text, expected);
        }
        for text in [
            "by=sequence,offset=+8,bytes=4",
            "by=sequence,offset=8,bytes=4,session=0:8,count=4:4",
            "by=sequence,offset=8,bytes=4,count=12:3",
            "by=rtp,packets=0",
            "by=rtp,window=0ms",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn survives_printing_and_parsing(merge in crate::samples::merge()) {
            let texts = MergeKeys::from(&merge).texts();
            let pairs = texts.iter().map(|(key, value)| (*key, value.as_str()));
            prop_assert_eq!(parse::<MergeKeys>(pairs).unwrap().merge().unwrap(), Some(merge));
        }
    }
}
