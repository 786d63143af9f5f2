//! Errors of invalid files.

use super::*;

#[test]
fn names_file_and_line_of_every_error() {
    let text = r#"version = 1
ruels = []
[interface.eth0]
gor = true
[interface."a b"]
[interface."eth*"]
[[rule]]
name = "cam1"
input = "239.1.1.1%eth0:0"
outputs = [
    "239.10.1.1%eth1:6001",
    "239.10.1.1%eth1",
    { to = "10.9.9.9:7000", ttl = 0 },
]
[[rule]]
name = "cam1"
inptu = "239.1.1.2%eth0:1"
outputs = []
[[rule]]
name = "cam3"
input = "239.1.1.3%eth0:1"
path = "fast"
outputs = []
[[rule]]
input = "239.1.1.3%eth0:1"
outputs = ["x"]
[[rule]]
name = "cam4"
input = "239.1.1.3%eth0:1"
outputs = [7]
[[rule]]
name = "cam5"
input = "239.1.1.3%eth0:1"
outputs = []
limit = "fast"
"#;
    assert_eq!(
        errors(text),
        [
            "mcr.toml:2: unknown key \"ruels\"; there are version, allow_link_local, [api], [budget], [daemon], [fleet], [interface.NAME], join, [notify], [[rule]]",
            "mcr.toml:4: interface eth0: there is no key gor here; did you mean gro?",
            "mcr.toml:5: interface \"a b\": holds white space; write it without",
            "mcr.toml:6: interface \"eth*\": stands for several; name one, without * and ?",
            "mcr.toml:9: rule \"cam1\": input 239.1.1.1%eth0:0: port 0 cannot be used; give 1 to 65535",
            "mcr.toml:12: rule \"cam1\": output 239.10.1.1%eth1: has no port; write 239.10.1.1%eth1:PORT, as in 239.10.1.1%eth1:5001",
            "mcr.toml:13: rule \"cam1\": output 10.9.9.9:7000,ttl=0: ttl=0: give 1 to 255, dec (one less, as a router) or keep",
            "mcr.toml:17: rule \"cam1\": there is no key inptu here; did you mean input?",
            "mcr.toml:22: rule \"cam3\": path = \"fast\": give \"auto\", \"kernel\" or \"userspace\"",
            "mcr.toml:24: rule without a name: name is missing",
            "mcr.toml:30: rule \"cam4\": outputs = 7: give an output: \"GROUP%IFACE:PORT\" or { to = \"GROUP%IFACE:PORT\", … }",
            "mcr.toml:35: rule \"cam5\": limit=fast: give a rate such as 5000pps or 20Mbit (pps, kpps, Mpps, bit, kbit, Mbit, Gbit)",
        ]
    );
}

#[test]
fn a_value_of_another_type_is_reported_in_words_with_its_key() {
    for (lines, expected) in [
        (
            "outputs = \"10.9.9.9:7000\"",
            "rule \"a\": outputs = \"10.9.9.9:7000\": give a list, as in [\"…\"]",
        ),
        (
            "outputs = []\nenabled = \"no\"",
            "rule \"a\": enabled = \"no\": give true or false",
        ),
        (
            "outputs = []\ncomment = 5",
            "rule \"a\": comment = 5: give a text",
        ),
        (
            "outputs = []\nshare = true",
            "rule \"a\": share = true: give ",
        ),
        (
            "outputs = []\nhealth = 5",
            "rule \"a\": health = 5: give a table, as in { … }",
        ),
        (
            "outputs = []\nlabels = [\"x\"]",
            "rule \"a\": labels = […]: give a table, as in { … }",
        ),
        (
            "outputs = []\ninput = [\"x\"]",
            "rule \"a\": input = […]: give one text, [SOURCE@]GROUP%IFACE:PORT, or several by inputs = [\"…\"]",
        ),
        (
            "outputs = []\nlimit = 99999999999999999999999",
            "rule \"a\": limit = 99999999999999999999999: give a rate, as in \"5000pps\" or \"20Mbit\"",
        ),
        (
            "outputs = []\nburst = [1]",
            "rule \"a\": burst = […]: give packets, or a size as in \"1Mbit\"",
        ),
        (
            "outputs = []\n[daemon]\nwatch = 1.5",
            "daemon: watch = 1.5: give true or false",
        ),
        (
            "outputs = []\n[notify]\nwebhook = { a = 1 }",
            "notify: webhook = {…}: give a text in quotes",
        ),
        (
            "outputs = []\n[daemon]\nlisten_names = 5",
            "daemon: listen_names = 5: give a list, as in [\"…\"]",
        ),
    ] {
        let errors = errors(&format!("version = 1\n[[rule]]\nname = \"a\"\n{lines}\n"));
        let is_reported = errors.iter().any(|error| error.contains(expected));
        assert!(is_reported, "{errors:?}");
    }
}

#[test]
fn refuses_lines_that_cannot_be_merged() {
    let text = r#"version = 1
[[rule]]
name = "one"
input = "239.1.1.1%red:5001"
outputs = ["239.10.1.1%eth1:6001"]
merge = "rtp"
[[rule]]
name = "both"
inputs = ["239.1.1.2%red:5001", "239.2.1.2%blue:5001"]
outputs = ["239.10.1.2%eth1:6001"]
failover = "200ms"
merge = { by = "mdp3", window = "10ms" }
[[rule]]
name = "same"
inputs = ["239.1.1.3%red:5001", "239.1.1.3%red:5001"]
outputs = ["239.10.1.3%eth1:6001"]
merge = "moldudp64"
[[rule]]
name = "range"
inputs = ["239.1.4.0/24%red:5001", "239.2.4.0/24%blue:5001"]
outputs = ["239.10.4.0/24%eth1:6001"]
merge = "payload"
[[rule]]
name = "not"
inputs = ["239.1.1.5%red:5001", "239.2.1.5%blue:5001"]
outputs = ["239.10.1.5%eth1:6001"]
merge = "none"
[[rule]]
name = "where"
inputs = ["239.1.1.6%red:5001", "239.2.1.6%blue:5001"]
outputs = ["239.10.1.6%eth1:6001"]
merge = "sequence"
"#;
    let (sensible, unreadable) = text.split_at(text.find("[[rule]]\nname = \"where\"").unwrap());
    assert_eq!(
        errors(sensible),
        [
            "mcr.toml:6: rule \"one\": merge: has one input; give a second that brings the same, or leave merge out",
            "mcr.toml:12: rule \"both\": merge: there is failover too; legs are merged or stand by for each other, so leave one of the two out",
            "mcr.toml:15: rule \"same\": input 239.1.1.3%red:5001: is an input of this rule already; a stream belongs to one rule, which may have many outputs",
            "mcr.toml:22: rule \"range\": merge: input 239.1.4.0/24%red:5001 may be several streams; a leg is one, so give each a rule of its own",
        ]
    );
    assert_eq!(
        errors(&format!("version = 1\n{unreadable}")),
        [
            "mcr.toml:6: rule \"where\": merge: by=sequence needs offset; give offset and bytes of the number, as in by=sequence,offset=8,bytes=4"
        ]
    );
}

#[test]
fn names_the_line_of_broken_toml() {
    for (text, expected) in [
        (
            "version = 1\n[[rule]\nname = \"a\"\n",
            "mcr.toml:2: [[rule]: close it with ]], as in [[rule]]",
        ),
        (
            "version = 1\nversion = 1\n",
            "mcr.toml:2: version = 1: it stands there twice; take one away",
        ),
        (
            "version = 1\n\nname = \"a\n",
            "mcr.toml:3: name = \"a: the text has no end: close it with \"",
        ),
        (
            "version = 1\n\nname = a\n",
            "mcr.toml:3: name = a: write texts in quotes, as in \"…\", and true and false without",
        ),
        (
            "version = 1\nname: \"a\"\n",
            "mcr.toml:2: name: \"a\": write KEY = VALUE, as in name = \"cam1\"",
        ),
        (
            "version = 1\n[[rule]]\njoin = [\"239.1.1.1%eth0\"]\n",
            "mcr.toml:3: rule without a name: join stands at the top of a file, before [[rule]]",
        ),
        (
            "version = 1\n[rule]\nname = \"a\"\n",
            "mcr.toml:2: rules are a list; write [[rule]] with double brackets before each",
        ),
        (
            "",
            "mcr.toml:1: there is no version; begin the file with version = 1",
        ),
        (
            "# MCR\nversion = 2\n",
            "mcr.toml:2: version = 2: this MCR reads version = 1",
        ),
        (
            "version = \"1\"\n",
            "mcr.toml:1: version = \"1\": this MCR reads version = 1",
        ),
        (
            "version = 1\nrule = [3]\n",
            "mcr.toml:2: a rule is a table; write [[rule]] before its keys",
        ),
        (
            "version = 1\nallow_link_local = 1\n",
            "mcr.toml:2: allow_link_local: give true or false",
        ),
        (
            "version = 1\n[interface.eth0]\ngro = 5\n",
            "mcr.toml:3: interface eth0: gro = \"5\": give \"auto\", \"on\" or \"off\"",
        ),
        (
            "version = 1\ninterface = 1\n",
            "mcr.toml:2: settings stand in a table for each interface; write [interface.eth0]",
        ),
    ] {
        let errors = errors(text);
        assert!(errors[0].starts_with(expected), "{errors:#?}");
        assert_eq!(errors.len(), 1, "{errors:#?}");
    }
}
