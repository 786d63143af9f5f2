//! Documents of the kinds that the examples of AMWA IS-05 v1.1 show.

use super::*;

/// `receiver-active-get-200.json`, its SDP shortened.
const ACTIVE: &str = r#"{
  "sender_id": "5709255c-c0ae-4e1e-99a0-e872e83e48e0",
  "master_enable": true,
  "activation": {
    "mode": "activate_immediate",
    "requested_time": "1496739062:0",
    "activation_time": "1496739062:263900"
  },
  "transport_file": {
    "data": "v=0\r\no=- 1496222842 1496222842 IN IP4 172.29.226.25\r\ns=IP Studio Stream\r\nt=0 0\r\nm=video 5010 RTP/AVP 103\r\nc=IN IP4 232.250.98.80/32\r\na=source-filter: incl IN IP4 232.250.98.80 172.29.226.25\r\na=rtpmap:103 raw/90000\r\n",
    "type": "application/sdp"
  },
  "transport_params": [{
    "source_ip": "172.29.226.25",
    "multicast_ip": "232.250.98.80",
    "interface_ip": "172.23.19.35",
    "destination_port": 5010,
    "fec_enabled": false,
    "fec_mode": "2D",
    "fec1D_destination_port": 5012,
    "fec2D_destination_port": 5014,
    "rtcp_enabled": false,
    "rtcp_destination_ip": "232.250.98.80",
    "rtcp_destination_port": 5001,
    "rtp_enabled": true
  }]
}"#;

/// `receiver-patch-redundant-streams.json`.
const REDUNDANT: &str = r#"{
  "sender_id": "5709255c-c0ae-4e1e-99a0-e872e83e48e0",
  "master_enable": true,
  "activation": { "mode": "activate_immediate", "requested_time": null },
  "transport_params": [{
      "interface_ip": "192.168.200.15",
      "multicast_ip": "232.105.26.177",
      "source_ip": "192.168.200.10",
      "destination_port": 5000,
      "rtp_enabled": true
    },
    {
      "interface_ip": "192.168.210.15",
      "multicast_ip": "232.3.28.144",
      "source_ip": "192.168.210.10",
      "destination_port": 5000,
      "rtp_enabled": true
    }
  ]
}"#;

fn parsed(text: &str) -> (Vec<Stream>, Vec<String>) {
    let mut parsed = Parsed::default();
    read(text, &mut parsed).unwrap();
    let remarks = parsed.remarks.iter().map(ToString::to_string).collect();
    (parsed.streams, remarks)
}

fn written(legs: &[Leg]) -> Vec<String> {
    let leg = |leg: &Leg| format!("{:?}@{}:{}", leg.sources, leg.group, leg.ports.unwrap());
    legs.iter().map(leg).collect()
}

#[test]
fn an_active_receiver_is_a_stream_with_the_name_of_its_sdp() {
    let (streams, remarks) = parsed(ACTIVE);
    let [stream] = &streams[..] else {
        panic!("{streams:?}");
    };
    assert_eq!(stream.name.as_deref(), Some("IP Studio Stream"));
    assert_eq!(
        written(&stream.legs),
        ["[172.29.226.25]@232.250.98.80:5010"]
    );
    assert!(stream.enabled);
    assert_eq!(stream.position.to_string(), "transport_params[0]");
    assert_eq!(remarks, [""; 0]);
}

#[test]
fn both_legs_are_one_stream() {
    let (streams, remarks) = parsed(REDUNDANT);
    assert_eq!(streams.len(), 1);
    assert_eq!(
        written(&streams[0].legs),
        [
            "[192.168.200.10]@232.105.26.177:5000",
            "[192.168.210.10]@232.3.28.144:5000"
        ]
    );
    assert_eq!(remarks, [""; 0]);
    let off = REDUNDANT.replacen("\"rtp_enabled\": true", "\"rtp_enabled\": false", 1);
    let (streams, remarks) =
        parsed(&off.replace("\"master_enable\": true", "\"master_enable\": false"));
    assert_eq!(written(&streams[0].legs).len(), 1);
    assert!(!streams[0].enabled);
    assert_eq!(
        remarks,
        ["transport_params[0]: not taken over: is switched off: rtp_enabled is false"]
    );
}

#[test]
fn the_sdp_supplies_what_parameters_leave_open() {
    for open in ["\"auto\"", "null"] {
        let (streams, remarks) = parsed(&ACTIVE.replace(
            "\"multicast_ip\": \"232.250.98.80\"",
            &format!("\"multicast_ip\": {open}"),
        ));
        assert_eq!(
            written(&streams[0].legs),
            ["[172.29.226.25]@232.250.98.80:5010"]
        );
        assert_eq!(streams[0].position.to_string(), "transport_file.data:5");
        assert_eq!(remarks, [""; 0]);
    }
    let bulk =
        format!("[{{\"id\": \"a\", \"params\": {ACTIVE}}}, {{\"id\": \"b\", \"params\": {{}}}}]");
    let bulk = bulk.replace(
        "\"destination_port\": 5010",
        "\"destination_port\": \"auto\"",
    );
    let (streams, remarks) = parsed(&bulk);
    assert_eq!(
        streams[0].position.to_string(),
        "[0].params.transport_file.data:5"
    );
    assert_eq!(
        remarks,
        ["[1].params: not taken over: has neither transport_params nor an SDP in transport_file"]
    );
}

#[test]
fn legs_that_the_parameters_switch_off_are_off_in_the_sdp_too() {
    let description = crate::sdp::tests::ST2110.replace("\r\n", "\\r\\n");
    let (streams, remarks) = parsed(&format!(
        r#"{{"transport_params": [{{"rtp_enabled": false}}, {{"rtp_enabled": true}}],
            "transport_file": {{"data": "{description}", "type": "application/sdp"}}}}"#
    ));
    assert_eq!(
        written(&streams[0].legs),
        ["[192.168.20.20]@239.101.1.1:20000"]
    );
    assert_eq!(remarks.len(), 1);
}

#[test]
fn reports_what_is_no_stream_that_a_rule_can_take() {
    for (leg, expected) in [
        (
            r#"{"multicast_ip": null, "destination_port": 5000}"#,
            "multicast_ip or destination_ip is not set",
        ),
        (
            r#"{"destination_ip": "172.29.82.95", "destination_port": 5000}"#,
            "172.29.82.95 is not a multicast group",
        ),
        (
            r#"{"multicast_ip": "232.1.1.1", "destination_port": "auto"}"#,
            "destination_port is not set",
        ),
        (
            r#"{"multicast_ip": "232.1.1.1", "destination_port": 70000}"#,
            "70000 is not a port",
        ),
        (
            r#"{"multicast_ip": "232.1.1.1", "destination_port": [1]}"#,
            "[1] is not a port",
        ),
        (
            r#"{"broker_topic": "x", "destination_port": 1883}"#,
            "is not RTP over multicast",
        ),
        (
            r#"{"connection_uri": "ws://x"}"#,
            "is not RTP over multicast",
        ),
        ("7", "is not an object"),
    ] {
        let (streams, remarks) = parsed(&format!("{{\"transport_params\": [{leg}]}}"));
        assert_eq!(streams, [], "{leg}");
        assert!(remarks[0].contains(expected), "{leg}: {remarks:?}");
    }
    for document in ["7", "[]", "[1, \"a\"]", "{}"] {
        assert_eq!(parsed(document).0, []);
    }
    let fec = ACTIVE.replace("_enabled\": false", "_enabled\": true");
    let (streams, remarks) = parsed(&fec);
    assert_eq!((streams.len(), remarks.len()), (1, 2));
}
