//! Descriptions in the style of cameras, encoders and the RFCs.

use rules::endpoint::Endpoint;

use super::*;

/// ST 2110-20 and -30 of one sender, each on two networks (ST 2022-7), as in ST 2110-10's examples.
pub(crate) const ST2110: &str = "v=0\r
o=- 1443716955 1443716955 IN IP4 192.168.10.20\r
s=Studio 3: Camera 1\r
t=0 0\r
a=group:DUP primary secondary\r
a=group:DUP a1 a2\r
m=video 20000 RTP/AVP 96\r
i=Video\r
c=IN IP4 239.100.1.1/64\r
a=source-filter: incl IN IP4 239.100.1.1 192.168.10.20\r
a=rtpmap:96 raw/90000\r
a=fmtp:96 sampling=YCbCr-4:2:2; width=1920; height=1080; exactframerate=30000/1001; depth=10; TCS=SDR; colorimetry=BT709; PM=2110GPM; SSN=ST2110-20:2017; TP=2110TPN; \r
a=ts-refclk:ptp=IEEE1588-2008:39-A7-94-FF-FE-07-CB-D0:37\r
a=mediaclk:direct=0\r
a=mid:primary\r
m=video 20000 RTP/AVP 96\r
i=Video\r
c=IN IP4 239.101.1.1/64\r
a=source-filter: incl IN IP4 239.101.1.1 192.168.20.20\r
a=rtpmap:96 raw/90000\r
a=mid:secondary\r
m=audio 20002 RTP/AVP 97\r
c=IN IP4 239.100.1.2/64\r
a=source-filter: incl IN IP4 239.100.1.2 192.168.10.20\r
a=rtpmap:97 L24/48000/8\r
a=ptime:0.125\r
a=mid:a1\r
m=audio 20002 RTP/AVP 97\r
c=IN IP4 239.101.1.2/64\r
a=source-filter: incl IN IP4 239.101.1.2 192.168.20.20\r
a=mid:a2\r
";

fn parsed(text: &str) -> (Vec<String>, Vec<String>) {
    let mut parsed = Parsed::default();
    read(text, "", &mut parsed);
    let leg = |leg: &Leg| {
        let endpoint = Endpoint {
            sources: leg.senders(),
            destination: leg.group,
            interface: None,
            ports: leg.ports.unwrap(),
            rejoin: None,
        };
        endpoint.to_string()
    };
    let stream = |stream: &Stream| {
        let legs: Vec<String> = stream.legs.iter().map(leg).collect();
        let name = stream.name.as_deref().unwrap_or("?");
        format!("{}: {name}: {}", stream.position, legs.join(" + "))
    };
    (
        parsed.streams.iter().map(stream).collect(),
        parsed.remarks.iter().map(ToString::to_string).collect(),
    )
}

/// Parses a description of one section that consists of these lines.
fn section(lines: &str) -> (Vec<String>, Vec<String>) {
    parsed(&format!(
        "v=0\no=- 1 1 IN IP4 10.0.0.1\ns=cam\nt=0 0\n{lines}"
    ))
}

#[test]
fn both_legs_of_st_2022_7_are_one_stream() {
    let (streams, remarks) = parsed(ST2110);
    assert_eq!(
        streams,
        [
            "7: Studio 3: Camera 1 Video: 192.168.10.20@239.100.1.1:20000 + \
             192.168.20.20@239.101.1.1:20000",
            "22: Studio 3: Camera 1 audio: 192.168.10.20@239.100.1.2:20002 + \
             192.168.20.20@239.101.1.2:20002",
        ]
    );
    assert_eq!(remarks, [""; 0]);
}

#[test]
fn session_attributes_apply_to_sections_that_do_not_override_them() {
    let (streams, remarks) = parsed(
        "v=0\ns=-\nc=IN IP4 233.252.0.1/127\na=source-filter: incl IN IP4 * 198.51.100.1\n\
         m=audio 49170 RTP/AVP 0\nm=video 51372 RTP/AVP 99\nc=IN IP6 ff3e::1234\n\
         a=source-filter:incl IN IP6 ff3e::1234 2001:db8::1 2001:db8::2\n",
    );
    assert_eq!(
        streams,
        [
            "5: ?: 198.51.100.1@233.252.0.1:49170",
            "6: ?: [2001:db8::1,2001:db8::2@ff3e::1234]:51372",
        ]
    );
    assert_eq!(remarks, [""; 0]);
}

#[test]
fn what_a_section_says_overrides_the_session_even_if_it_cannot_be_used() {
    for own in [
        "IN IP4 10.1.1.1",
        "IN IP4 239.2.2.2/32/x",
        "IN IP4 239.2.2.2/1/5000",
    ] {
        let (streams, remarks) = parsed(&format!(
            "v=0\ns=x\nc=IN IP4 239.1.1.1/32\nm=video 5000 RTP/AVP 96\n\
             m=audio 5300 RTP/AVP 97\nc={own}\n"
        ));
        assert_eq!(streams, ["4: x: 239.1.1.1:5000"], "{own}");
        assert_eq!(remarks.len(), 1, "{remarks:?}");
    }
    let (streams, remarks) = parsed(
        "v=0\ns=x\na=source-filter: incl IN IP4 * 10.0.0.1\nm=video 5000 RTP/AVP 96\n\
         c=IN IP4 239.1.1.1/32\na=source-filter: incl IN IP4 239.1.1.1 cam.example\n",
    );
    assert_eq!(streams, ["4: x: 239.1.1.1:5000"]);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
}

#[test]
fn each_of_several_groups_and_ports_is_a_stream() {
    let streams = |lines| section(lines).0;
    assert_eq!(
        streams("m=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/32/3\n"),
        [
            "5: cam video: 239.1.1.1:5000",
            "5: cam video: 239.1.1.2:5000",
            "5: cam video: 239.1.1.3:5000"
        ]
    );
    assert_eq!(
        streams("m=video 5000/2 RTP/AVP 96\nc=IN IP6 ff3e::1/2\n"),
        [
            "5: cam video: [ff3e::1]:5000",
            "5: cam video: [ff3e::2]:5002"
        ]
    );
    assert_eq!(
        streams("m=video 5000/2 udp 96\nc=IN IP4 239.1.1.1/32\n"),
        [
            "5: cam video: 239.1.1.1:5000",
            "5: cam video: 239.1.1.1:5001"
        ]
    );
    let range = "m=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/32/2\n\
                 a=source-filter: incl IN IP4 239.1.1.1 10.0.0.1\n";
    assert_eq!(streams(range)[1], "5: cam video: 10.0.0.1@239.1.1.2:5000");
}

#[test]
fn reports_with_its_line_what_is_not_taken_over() {
    for (lines, expected) in [
        (
            "m=video 5000 RTP/AVP 96\n",
            "5: not taken over: m=video 5000 RTP/AVP 96: has no address",
        ),
        (
            "m=video 5000 RTP/AVP 96\nc=IN IP4 10.0.0.1\n",
            "6: not taken over: c=IN IP4 10.0.0.1: 10.0.0.1 is not a multicast",
        ),
        (
            "m=video 5000 RTP/AVP 96\nc=IN IP4 cam.example\n",
            "cam.example is not an address",
        ),
        (
            "m=video 0 RTP/AVP 96\nc=IN IP4 239.1.1.1\n",
            "is switched off",
        ),
        (
            "m=video 9 TCP/RTP/AVP 96\nc=IN IP4 239.1.1.1\n",
            "TCP/RTP/AVP is not UDP",
        ),
        (
            "m=video 5000/3 RTP/AVP 96\nc=IN IP4 239.1.1.1/32/2\n",
            "3 ports for 2 groups",
        ),
        (
            "m=video 65534/2 RTP/AVP 96\nc=IN IP4 239.1.1.1/32\n",
            "65534/2 is not a port",
        ),
        ("m=video\n", "is not m=MEDIA PORT"),
        (
            "m=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/300\n",
            "is not c=IN IP4",
        ),
        (
            "m=video 5000 RTP/AVP 96\nc=IN IP4 239.255.255.255/1/2\n",
            "is not c=IN IP4",
        ),
        (
            "m=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/1/4000000000\n",
            "is not c=IN IP4",
        ),
        (
            "m=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/1/5000\n",
            "5000 groups are more",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=source-filter: excl IN IP4 * 10.0.0.1\n",
            "7: not taken over",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=source-filter: incl IN IP4 * cam\n",
            "cam is not an address",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=source-filter:incl IN IP4 239.1.1.2 10.0.0.1\n",
            "is for another group",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=rtcp:5009\n",
            "7: not taken over: a=rtcp:5009: RTCP is not",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=duplication-delay:50\n",
            "no sections are copies",
        ),
        (
            "a=rtcp:5009\nm=v 5000 udp x\nc=IN IP4 239.1.1.1\n",
            "5: not taken over: a=rtcp:5009: RTCP is not",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=inactive\n",
            "5: not taken over: m=v 5000 udp x: is switched off: a=inactive",
        ),
        (
            "a=inactive\nm=v 5000 udp x\nc=IN IP4 239.1.1.1\n",
            "6: not taken over: m=v 5000 udp x: is switched off: a=inactive",
        ),
        (
            "m=v 5000 udp x\nc=IN IP4 239.1.1.1\na=ssrc-group:DUP 1 2\n",
            "SSRC",
        ),
        (
            "a=group:DUP a b\nm=v 5000 udp x\nc=IN IP4 239.1.1.1\na=mid:a\n",
            "5: not taken over: a=group:DUP a b: the section \"b\"",
        ),
        (
            "nonsense\n",
            "5: not taken over: nonsense: is not TYPE=VALUE",
        ),
    ] {
        let (_, remarks) = section(lines);
        let [remark] = &remarks[..] else {
            panic!("{lines}: {remarks:?}");
        };
        assert!(remark.contains(expected), "{lines}: {remark}");
    }
}

#[test]
fn legs_that_do_not_fit_each_other_become_streams_of_their_own() {
    let (streams, remarks) = section(
        "a=group:DUP a b\nm=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/32/2\na=mid:a\n\
         m=video 5000 RTP/AVP 96\nc=IN IP4 239.2.1.1/32\na=mid:b\n",
    );
    assert_eq!(streams.len(), 3);
    assert_eq!(remarks.len(), 1);
    // If one leg cannot be taken, the other one is a stream by itself.
    let (streams, remarks) = section(
        "a=group:DUP a b\nm=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/32\na=mid:a\n\
         m=video 5000 RTP/AVP 96\nc=IN IP4 10.0.0.1\na=mid:b\n",
    );
    assert_eq!(streams, ["6: cam: 239.1.1.1:5000"]);
    assert_eq!(remarks.len(), 1);
}

#[test]
fn descriptions_may_follow_each_other() {
    let one = "v=0\ns=a\nm=video 5000 RTP/AVP 96\nc=IN IP4 239.1.1.1/32\n";
    let (streams, _) = parsed(&format!("{one}{}", one.replace("s=a", "s=b")));
    assert_eq!(streams, ["3: a: 239.1.1.1:5000", "7: b: 239.1.1.1:5000"]);
}

#[test]
fn a_description_may_be_indented() {
    let text = ST2110.replace("\r\n", "\n").replace('\n', "\n    ");
    assert_eq!(parsed(&format!("    {text}")), parsed(ST2110));
}
