//! AMWA IS-05: the parameters of a sender or receiver (`staged`, `active`, and the lists of bulk
//! requests). Parameters come first; where they leave group or port open, the SDP in `transport_file`
//! says them.

use std::time::Duration;

use rules::merge::LINES_MAX;
use rules::net::{Ports, Prefix};
use serde_json::{Map, Value};

use crate::address;
use crate::error::ReadError;
use crate::parsed::{Leg, Parsed, Stream};
use crate::remark::{Position, Why, excerpt};
use crate::sdp;

/// A JSON object.
type Object = Map<String, Value>;

/// Reads the streams of a document.
pub(crate) fn read(text: &str, parsed: &mut Parsed) -> Result<(), ReadError> {
    match serde_json::from_str(text).map_err(ReadError::Json)? {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                resource(item, &format!("[{index}]"), parsed);
            }
        }
        value => resource(&value, "", parsed),
    }
    Ok(())
}

/// One sender or receiver; of a bulk request its parameters stand in `params`.
fn resource(value: &Value, part: &str, parsed: &mut Parsed) {
    let (value, part) = match value.get("params") {
        Some(params) => (params, join(part, "params")),
        None => (value, part.to_owned()),
    };
    let legs = value.get("transport_params").and_then(Value::as_array);
    // One more than can be merged, so that this is said.
    let legs: Vec<&Value> = legs.into_iter().flatten().take(LINES_MAX + 1).collect();
    let description = value
        .pointer("/transport_file/data")
        .and_then(Value::as_str);
    if legs.is_empty() && description.is_none() {
        return parsed.leave(Position::part(&part), "", Why::NoTransport);
    }
    let enabled = value.get("master_enable") != Some(&Value::Bool(false));
    let legs = read_legs(&legs, &part, parsed);
    match description {
        Some(text) if legs.is_empty() || legs.iter().any(|(_, leg)| is_open(leg)) => {
            let before = parsed.streams.len();
            sdp::read(text, &join(&part, "transport_file.data"), parsed);
            let streams = &mut parsed.streams[before..];
            let is_alone = streams.len() == 1;
            for stream in streams {
                stream.enabled = enabled;
                as_told(stream, is_alone, &legs);
            }
            leave(legs.into_iter().filter(|(_, leg)| !is_open(leg)), parsed);
        }
        _ => take(legs, description.and_then(sdp::name), enabled, parsed),
    }
}

/// The legs that parameters describe, each at its place.
fn read_legs(
    legs: &[&Value],
    part: &str,
    parsed: &mut Parsed,
) -> Vec<(Position, Result<Leg, Why>)> {
    let mut read = Vec::new();
    for (index, value) in legs.iter().enumerate() {
        let place = Position::part(&join(part, &format!("transport_params[{index}]")));
        let leg = leg(value).map(|leg| Leg {
            number: index,
            ..leg
        });
        if leg.is_ok() || is_open(&leg) {
            unsupported(value, &place, parsed);
        }
        read.push((place, leg));
    }
    read
}

/// Takes the stream that has these legs.
fn take(
    legs: Vec<(Position, Result<Leg, Why>)>,
    name: Option<String>,
    enabled: bool,
    parsed: &mut Parsed,
) {
    let (legs, left): (Vec<_>, Vec<_>) = legs.into_iter().partition(|(_, leg)| leg.is_ok());
    leave(left.into_iter(), parsed);
    let Some((place, _)) = legs.first() else {
        return;
    };
    parsed.take(Stream {
        place: place.clone(),
        name,
        legs: legs.into_iter().filter_map(|(_, leg)| leg.ok()).collect(),
        delay: Duration::ZERO,
        to: Vec::new(),
        enabled,
    });
}

fn join(part: &str, key: &str) -> String {
    if part.is_empty() {
        key.to_owned()
    } else {
        format!("{part}.{key}")
    }
}

/// Says what is wrong with legs.
fn leave(legs: impl Iterator<Item = (Position, Result<Leg, Why>)>, parsed: &mut Parsed) {
    for (place, leg) in legs {
        if let Err(why) = leg {
            parsed.leave(place, "", why);
        }
    }
}

/// Says whether a leg leaves to the SDP what it is.
fn is_open(leg: &Result<Leg, Why>) -> bool {
    matches!(leg, Err(Why::Unset(_)))
}

/// Has the legs of a stream of the SDP as parameters say: those come first, and switch legs off.
fn as_told(stream: &mut Stream, is_alone: bool, legs: &[(Position, Result<Leg, Why>)]) {
    let told = |leg: &Leg| Some(&legs.get(leg.number)?.1);
    let is_off = |leg: &Leg| matches!(told(leg), Some(Err(Why::LegOff)));
    if !stream.legs.iter().all(is_off) {
        stream.legs.retain(|leg| !is_off(leg));
    }
    for leg in stream.legs.iter_mut().filter(|_| is_alone) {
        if let Some(Ok(own)) = told(leg) {
            *leg = own.clone();
        }
    }
}

fn leg(value: &Value) -> Result<Leg, Why> {
    let value = value.as_object().ok_or(Why::Form("an object"))?;
    if value.get("rtp_enabled") == Some(&Value::Bool(false)) {
        return Err(Why::LegOff);
    }
    let foreign = ["connection_uri", "broker_topic", "broker_protocol"];
    if foreign.iter().any(|key| value.contains_key(*key)) {
        return Err(Why::OtherTransport);
    }
    // A receiver's key; a sender's.
    let keys = ["multicast_ip", "destination_ip"];
    let group = keys.iter().find_map(|key| text(value, key));
    let group = address::group(group.ok_or(Why::Unset("multicast_ip or destination_ip"))?)?;
    let source = text(value, "source_ip");
    Ok(Leg {
        sources: address::sources(source, group)?,
        group: Prefix::host(group),
        ports: Some(port(value)?),
        interface: None,
        number: 0,
    })
}

/// A text that says something: neither null nor `auto`.
fn text<'v>(value: &'v Object, key: &str) -> Option<&'v str> {
    let text = value.get(key)?.as_str()?;
    (text != "auto").then_some(text)
}

fn port(value: &Object) -> Result<Ports, Why> {
    match value.get("destination_port") {
        None | Some(Value::Null) => Err(Why::Unset("destination_port")),
        Some(Value::String(text)) if text == "auto" => Err(Why::Unset("destination_port")),
        Some(Value::String(text)) => address::port(text),
        Some(number) => address::port(&number.to_string()).map_err(|why| match why {
            Why::Port(text) => Why::Port(excerpt(&text)),
            why => why,
        }),
    }
}

/// What a leg says beyond its stream, and rules have nothing for.
fn unsupported(leg: &Value, place: &Position, parsed: &mut Parsed) {
    let is_on = |key| leg.get(key) == Some(&Value::Bool(true));
    if is_on("fec_enabled") {
        parsed.leave(place.clone(), "fec_enabled", Why::Fec);
    }
    if is_on("rtcp_enabled") {
        parsed.leave(place.clone(), "rtcp_enabled", Why::Rtcp);
    }
}

#[cfg(test)]
mod tests;
