//! AMWA IS-05: the parameters of a sender or receiver (`staged`, `active`, and the lists of bulk
//! requests). Parameters take precedence; where they leave group or port open, the SDP in
//! `transport_file` supplies them.

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

/// One sender or receiver; in a bulk request its parameters are in `params`.
fn resource(value: &Value, part: &str, parsed: &mut Parsed) {
    let (value, part) = match value.get("params") {
        Some(params) => (params, join(part, "params")),
        None => (value, part.to_owned()),
    };
    let legs = value.get("transport_params").and_then(Value::as_array);
    // One more than can be merged, so that the excess is reported.
    let parameters: Vec<&Value> = legs.into_iter().flatten().take(LINES_MAX + 1).collect();
    let description = value
        .pointer("/transport_file/data")
        .and_then(Value::as_str);
    if parameters.is_empty() && description.is_none() {
        return parsed.skip(Position::part(&part), "", Why::NoTransport);
    }
    let enabled = value.get("master_enable") != Some(&Value::Bool(false));
    let legs = read_legs(&parameters, &part, parsed);
    match description {
        Some(text) if legs.is_empty() || legs.iter().any(|(_, leg)| is_open(leg)) => {
            let before = parsed.streams.len();
            sdp::read(text, &join(&part, "transport_file.data"), parsed);
            let streams = &mut parsed.streams[before..];
            let is_alone = streams.len() == 1;
            for stream in streams {
                stream.enabled = enabled;
                apply_parameters(stream, is_alone, &legs);
            }
            skip(legs.into_iter().filter(|(_, leg)| !is_open(leg)), parsed);
        }
        _ => add_stream(legs, description.and_then(sdp::name), enabled, parsed),
    }
}

/// The legs that parameters describe, each with its position.
fn read_legs(
    legs: &[&Value],
    part: &str,
    parsed: &mut Parsed,
) -> Vec<(Position, Result<Leg, Why>)> {
    let mut parsed_legs = Vec::new();
    for (index, value) in legs.iter().enumerate() {
        let position = Position::part(&join(part, &format!("transport_params[{index}]")));
        let leg = leg(value).map(|leg| Leg {
            number: index,
            ..leg
        });
        if leg.is_ok() || is_open(&leg) {
            unsupported(value, &position, parsed);
        }
        parsed_legs.push((position, leg));
    }
    parsed_legs
}

/// Adds the stream that has these legs.
fn add_stream(
    legs: Vec<(Position, Result<Leg, Why>)>,
    name: Option<String>,
    enabled: bool,
    parsed: &mut Parsed,
) {
    let (legs, invalid): (Vec<_>, Vec<_>) = legs.into_iter().partition(|(_, leg)| leg.is_ok());
    skip(invalid.into_iter(), parsed);
    let Some((position, _)) = legs.first() else {
        return;
    };
    parsed.add(Stream {
        position: position.clone(),
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

/// Reports what is wrong with legs.
fn skip(legs: impl Iterator<Item = (Position, Result<Leg, Why>)>, parsed: &mut Parsed) {
    for (position, leg) in legs {
        if let Err(why) = leg {
            parsed.skip(position, "", why);
        }
    }
}

/// Whether the parameters leave a leg to the SDP.
fn is_open(leg: &Result<Leg, Why>) -> bool {
    matches!(leg, Err(Why::Unset(_)))
}

/// Applies parameters to the legs of a stream from the SDP: they take precedence, and switch legs off.
fn apply_parameters(stream: &mut Stream, is_alone: bool, legs: &[(Position, Result<Leg, Why>)]) {
    let parameters = |leg: &Leg| Some(&legs.get(leg.number)?.1);
    let is_off = |leg: &Leg| matches!(parameters(leg), Some(Err(Why::LegOff)));
    if !stream.legs.iter().all(is_off) {
        stream.legs.retain(|leg| !is_off(leg));
    }
    for leg in stream.legs.iter_mut().filter(|_| is_alone) {
        if let Some(Ok(own)) = parameters(leg) {
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
    // The keys of a receiver and of a sender.
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

/// A text that is set: neither null nor `auto`.
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

/// Reports settings of a leg that rules have no equivalent for.
fn unsupported(leg: &Value, position: &Position, parsed: &mut Parsed) {
    let is_on = |key| leg.get(key) == Some(&Value::Bool(true));
    if is_on("fec_enabled") {
        parsed.skip(position.clone(), "fec_enabled", Why::Fec);
    }
    if is_on("rtcp_enabled") {
        parsed.skip(position.clone(), "rtcp_enabled", Why::Rtcp);
    }
}

#[cfg(test)]
mod tests;
