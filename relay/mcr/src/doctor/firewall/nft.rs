//! The nftables rules of this network namespace, from `nft --json list ruleset`.

use anyhow::{Context, Result};
use rules::net::Prefix;
use serde_json::Value as Json;

use super::chain::{Chain, Field, FilterRule, Target, Test, Value};
use super::printed;

/// Reads all chains with their rules.
pub(super) fn chains() -> Result<Vec<Chain>> {
    let ruleset = printed("nft", &["--json", "list", "ruleset"])?;
    let mut chains = parse(&serde_json::from_slice(&ruleset).context("nft --json")?)?;
    // Up to 1.0.6 the devices are in the text alone.
    if chains
        .iter()
        .any(|it| it.is_at_devices() && it.devices.is_empty())
    {
        let text = printed("nft", &["list", "chains"])?;
        add_devices(&mut chains, &String::from_utf8_lossy(&text));
    }
    Ok(chains)
}

/// Adds the devices that chains have in `nft list chains`: `device "eth0"` or `devices = { eth0, eth1 }`.
fn add_devices(chains: &mut [Chain], text: &str) {
    let (mut table, mut name) = (String::new(), "");
    for line in text.lines().map(str::trim) {
        if let Some(opened) = line.strip_prefix("table ") {
            opened.trim_end_matches(" {").clone_into(&mut table);
        } else if let Some(opened) = line.strip_prefix("chain ") {
            name = opened.trim_end_matches(" {");
        } else if let Some((_, behind)) = line.split_once(" device") {
            let list = behind.split(" priority ").next().unwrap_or_default();
            let is_part = |c: char| c.is_whitespace() || "={},\"".contains(c);
            let devices = list.trim_start_matches('s').split(is_part);
            let named = format!("{table} {name}");
            if let Some(chain) = chains.iter_mut().find(|it| it.to_string() == named) {
                let devices = devices.filter(|device| !device.is_empty());
                chain.devices = devices.map(str::to_owned).collect();
            }
        }
    }
}

fn parse(ruleset: &Json) -> Result<Vec<Chain>> {
    let list = ruleset["nftables"].as_array();
    let items = list.context("nft --json: no list of objects")?;
    let mut chains: Vec<Chain> = items
        .iter()
        .filter_map(|item| item.get("chain"))
        .map(chain)
        .collect();
    for rule in items.iter().filter_map(|item| item.get("rule")) {
        let owner = chains.iter_mut().find(|chain| {
            chain.family == text(&rule["family"])
                && chain.table == text(&rule["table"])
                && chain.name == text(&rule["chain"])
        });
        if let Some(owner) = owner {
            owner.rules.push(filter_rule(rule));
        }
    }
    Ok(chains)
}

fn chain(json: &Json) -> Chain {
    Chain {
        family: text(&json["family"]),
        table: text(&json["table"]),
        name: text(&json["name"]),
        hook: text(&json["hook"]),
        devices: match &json["dev"] {
            Json::Array(devices) => devices.iter().map(text).collect(),
            device => device.as_str().into_iter().map(str::to_owned).collect(),
        },
        drops_by_default: json["policy"] == "drop",
        rules: Vec::new(),
    }
}

fn filter_rule(json: &Json) -> FilterRule {
    let mut rule = FilterRule {
        tests: Vec::new(),
        target: Target::Continue,
        text: format!("rule with handle {}", json["handle"]),
    };
    for expression in json["expr"].as_array().into_iter().flatten() {
        let Some((key, body)) = expression
            .as_object()
            .and_then(|object| object.iter().next())
        else {
            continue;
        };
        match key.as_str() {
            "match" => rule.tests.push(test(body)),
            "accept" => rule.target = Target::Accept,
            "drop" | "reject" => rule.target = Target::Drop,
            "return" => rule.target = Target::Return,
            "jump" => rule.target = Target::Jump(text(&body["target"])),
            "goto" => rule.target = Target::Goto(text(&body["target"])),
            "counter" | "log" | "mangle" | "notrack" | "comment" => {}
            // Verdict maps and extensions of iptables: cannot be judged.
            "vmap" | "xt" => {
                rule.tests.push(Test::Unknown);
                rule.target = Target::Accept;
            }
            _ => rule.tests.push(Test::Unknown),
        }
    }
    rule
}

fn test(json: &Json) -> Test {
    let comparison = || {
        let field = field(&json["left"])?;
        let negated = match json["op"].as_str()? {
            "==" | "in" => false,
            "!=" => true,
            _ => return None,
        };
        let values = values(field, &json["right"])?;
        Some(Test::Is {
            field,
            values,
            negated,
        })
    };
    comparison().unwrap_or(Test::Unknown)
}

fn field(left: &Json) -> Option<Field> {
    if let Some(meta) = left.get("meta") {
        return match meta["key"].as_str()? {
            "iifname" | "iif" => Some(Field::InInterface),
            "oifname" | "oif" => Some(Field::OutInterface),
            "l4proto" => Some(Field::Protocol),
            "nfproto" | "protocol" => Some(Field::Family),
            _ => None,
        };
    }
    if let Some(payload) = left.get("payload") {
        return match (payload["protocol"].as_str()?, payload["field"].as_str()?) {
            ("ip", "protocol") | ("ip6", "nexthdr") => Some(Field::Protocol),
            ("ip" | "ip6", "saddr") => Some(Field::Source),
            ("ip" | "ip6", "daddr") => Some(Field::Destination),
            ("udp" | "tcp" | "th", "dport") => Some(Field::DestinationPort),
            ("icmpv6", "type") => Some(Field::IcmpType),
            _ => None,
        };
    }
    (left["ct"]["key"] == "state").then_some(Field::State)
}

fn values(field: Field, right: &Json) -> Option<Vec<Value>> {
    if let Some(list) = right.get("set").unwrap_or(right).as_array() {
        let each: Option<Vec<_>> = list.iter().map(|item| values(field, item)).collect();
        return Some(each?.concat());
    }
    let value = match field {
        Field::Source | Field::Destination => Value::Net(net(right)?),
        Field::DestinationPort => ports(right)?,
        _ => Value::Word(word(right)?),
    };
    Some(vec![value])
}

fn word(json: &Json) -> Option<String> {
    if let Some(number) = json.as_u64() {
        let name = match number {
            2 => "igmp",
            17 => "udp",
            58 => "icmpv6",
            _ => return Some(number.to_string()),
        };
        return Some(name.to_owned());
    }
    let word = json.as_str().filter(|word| !word.starts_with('@'))?;
    Some(match word {
        "ip" => "ipv4".to_owned(),
        "ip6" => "ipv6".to_owned(),
        "ipv6-icmp" => "icmpv6".to_owned(),
        word => word.to_owned(),
    })
}

fn net(json: &Json) -> Option<Prefix> {
    if let Some(prefix) = json.get("prefix") {
        let address = prefix["addr"].as_str()?.parse().ok()?;
        let length = u8::try_from(prefix["len"].as_u64()?).ok()?;
        return Some(Prefix::new(address, length));
    }
    Some(Prefix::host(json.as_str()?.parse().ok()?))
}

fn ports(json: &Json) -> Option<Value> {
    let port = |json: &Json| u16::try_from(json.as_u64()?).ok();
    if let Some(range) = json.get("range").and_then(Json::as_array) {
        return Some(Value::Ports(port(range.first()?)?, port(range.get(1)?)?));
    }
    let port = port(json)?;
    Some(Value::Ports(port, port))
}

fn text(json: &Json) -> String {
    json.as_str().unwrap_or_default().to_owned()
}
