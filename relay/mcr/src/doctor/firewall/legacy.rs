//! Rules of legacy iptables, which nft does not list: from `iptables-legacy-save`.

use std::fs;

use anyhow::Result;
use rules::net::Prefix;

use super::chain::{Chain, Field, FilterRule, Target, Test, Value};
use super::printed;

/// Reads the filter tables of both families, where they are loaded in this network namespace.
pub(super) fn chains() -> Result<Vec<Chain>> {
    let mut chains = Vec::new();
    for (family, names, tool) in [
        ("ip", "/proc/net/ip_tables_names", "iptables-legacy-save"),
        ("ip6", "/proc/net/ip6_tables_names", "ip6tables-legacy-save"),
    ] {
        let loaded = fs::read_to_string(names).unwrap_or_default();
        if !loaded.lines().any(|table| table == "filter") {
            continue;
        }
        let saved = printed(tool, &["-t", "filter"])?;
        chains.extend(parse(family, &String::from_utf8_lossy(&saved)));
    }
    Ok(chains)
}

fn parse(family: &str, text: &str) -> Vec<Chain> {
    let mut chains: Vec<Chain> = Vec::new();
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix(':') {
            let mut words = declared.split(' ');
            let name = words.next().unwrap_or_default().to_owned();
            let hook = match name.as_str() {
                "INPUT" | "OUTPUT" | "FORWARD" => name.to_lowercase(),
                _ => String::new(),
            };
            chains.push(Chain {
                family: family.to_owned(),
                table: "filter (legacy)".to_owned(),
                hook,
                drops_by_default: words.next() == Some("DROP"),
                name,
                ..Chain::default()
            });
        } else if let Some(rule) = line.strip_prefix("-A ") {
            let (name, rest) = rule.split_once(' ').unwrap_or((rule, ""));
            let owner = chains.iter_mut().find(|chain| chain.name == name);
            if let Some(owner) = owner {
                owner.rules.push(filter_rule(line, rest));
            }
        }
    }
    chains
}

fn filter_rule(line: &str, words: &str) -> FilterRule {
    let mut rule = FilterRule {
        tests: Vec::new(),
        target: Target::Continue,
        text: format!("rule {line:?}"),
    };
    let mut words = words.split_whitespace();
    let mut negated = false;
    while let Some(word) = words.next() {
        if word == "!" {
            negated = true;
            continue;
        }
        let value = words.next().unwrap_or_default();
        match word {
            // The options of these matches follow and are judged themselves.
            "-m" if matches!(value, "comment" | "conntrack" | "state" | "udp" | "tcp") => {}
            "--comment" => skip_quoted(value, &mut words),
            "-j" => rule.target = target(value),
            "-g" => rule.target = Target::Goto(value.to_owned()),
            _ => rule.tests.push(test(word, value, negated)),
        }
        negated = false;
    }
    rule
}

/// Skips the rest of a comment of several words, which is quoted.
fn skip_quoted<'a>(first: &str, words: &mut impl Iterator<Item = &'a str>) {
    let ends = |word: &str| word.ends_with('"') && !word.ends_with("\\\"");
    if first.starts_with('"') && !(first.len() > 1 && ends(first)) {
        let _ = words.find(|word| ends(word));
    }
}

fn target(word: &str) -> Target {
    match word {
        "ACCEPT" => Target::Accept,
        "DROP" | "REJECT" => Target::Drop,
        "RETURN" => Target::Return,
        "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "TRACE" => Target::Continue,
        chain => Target::Jump(chain.to_owned()),
    }
}

fn test(option: &str, value: &str, negated: bool) -> Test {
    let word = |field| Some((field, vec![Value::Word(value.to_owned())]));
    let comparison = match option {
        "-i" => word(Field::InInterface),
        "-o" => word(Field::OutInterface),
        "-p" => {
            let protocol = match value {
                "2" => "igmp",
                "58" | "ipv6-icmp" => "icmpv6",
                other => other,
            };
            Some((Field::Protocol, vec![Value::Word(protocol.to_owned())]))
        }
        "-s" => net(value).map(|net| (Field::Source, vec![net])),
        "-d" => net(value).map(|net| (Field::Destination, vec![net])),
        "--dport" => ports(value).map(|ports| (Field::DestinationPort, vec![ports])),
        "--ctstate" | "--state" => {
            let states = value.split(',').map(str::to_lowercase).map(Value::Word);
            Some((Field::State, states.collect()))
        }
        _ => None,
    };
    match comparison {
        Some((field, values)) => Test::Is {
            field,
            values,
            negated,
        },
        None => Test::Unknown,
    }
}

fn net(text: &str) -> Option<Value> {
    let (address, length) = text.split_once('/')?;
    let prefix = Prefix::new(address.parse().ok()?, length.parse().ok()?);
    Some(Value::Net(prefix))
}

fn ports(text: &str) -> Option<Value> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some(Value::Ports(first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_policies_rules_and_comments() {
        let chains = parse(
            "ip",
            "# comment\n*filter\n:INPUT DROP [0:0]\n:OUTPUT ACCEPT [1:40]\n:mine - [0:0]\n\
             -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n\
             -A INPUT ! -i lo -p 2 -m comment --comment \"from a -j DROP note\" -j mine\n\
             -A mine -m limit --limit 5/sec -j ACCEPT\nCOMMIT\n",
        );
        let (input, mine) = (&chains[0], &chains[2]);
        assert!(input.drops_by_default && input.hook == "input");
        assert!(!chains[1].drops_by_default && mine.hook.is_empty());
        assert_eq!(input.rules[0].target, Target::Accept);
        assert_eq!(input.rules[1].target, Target::Jump("mine".to_owned()));
        assert_eq!(
            input.rules[1].tests,
            [
                Test::Is {
                    field: Field::InInterface,
                    values: vec![Value::Word("lo".to_owned())],
                    negated: true,
                },
                Test::Is {
                    field: Field::Protocol,
                    values: vec![Value::Word("igmp".to_owned())],
                    negated: false,
                },
            ]
        );
        assert!(mine.rules[0].tests.contains(&Test::Unknown));
    }
}
