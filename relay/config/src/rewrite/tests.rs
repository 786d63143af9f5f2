//! What is written back, and that nothing else changes.

use proptest::prelude::*;
use rules::document::OutputDocument;

use super::*;

const FILE: &str = r#"# What the head end sends.
version = 1

# Rules of the studio, by Ann.

# The first camera.
[[rule]]
name = "cam1"   # on the roof
input = "239.1.1.1%eth0:5001"
outputs = [
    # to the studio
    "239.10.1.1%eth1:6001",   # main
    { to = "10.9.9.9:7000", ttl = 32 },   # cloud
]
limit = "20000kbit"   # never more

[rule.health]
silence = "3s"

# The second.
[[rule]]
name = "cam2"
inputs = ["239.1.1.2%eth0:5001"]
outputs = ["239.10.1.2%eth1:6001"]

[budget]
unicast = "1Gbit"   # all of it
# The end.
"#;

fn file(text: &str) -> ConfigFile {
    ConfigFile {
        name: "mcr.toml".to_owned(),
        text: text.to_owned(),
    }
}

fn rules(text: &str) -> Vec<RuleDocument> {
    let config = Config::load(&[file(text)], Policy::default());
    config.unwrap().rules.to_documents()
}

/// The text after a change of one of its rules.
fn changed(text: &str, name: &str, change: impl Fn(&mut RuleDocument)) -> String {
    let mut rules = rules(text).into_iter();
    let mut rule = rules.find(|rule| rule.name == name).unwrap();
    change(&mut rule);
    written(text, name, Some(rule))
}

fn written(text: &str, name: &str, rule: Option<RuleDocument>) -> String {
    let files = rewrite(&[file(text)], &[(name.to_owned(), rule)]).unwrap();
    files
        .into_iter()
        .next()
        .map_or_else(|| text.to_owned(), |file| file.text)
}

/// The texts after rewriting them to another configuration.
fn rewritten_to(files: &[&str], wanted: &str) -> Vec<String> {
    let named = |(number, text): (usize, &&str)| ConfigFile {
        name: format!("{number}.toml"),
        text: (*text).to_owned(),
    };
    let files: Vec<ConfigFile> = files.iter().enumerate().map(named).collect();
    let wanted = Config::load(&[file(wanted)], Policy::default()).unwrap();
    let documents = wanted.rules.to_documents();
    let written = rewrite_all(&files, &documents, &wanted.settings).unwrap();
    let now = files.into_iter().map(|file| {
        let changed = written.iter().find(|now| now.name == file.name);
        changed.unwrap_or(&file).text.clone()
    });
    let texts: Vec<String> = now.collect();
    let named = |(number, text): (usize, &String)| named((number, &text.as_str()));
    let rewritten: Vec<ConfigFile> = texts.iter().enumerate().map(named).collect();
    let again = Config::load(&rewritten, Policy::default()).unwrap();
    assert_eq!(again.settings, wanted.settings);
    let by_name = |rules: Vec<RuleDocument>| {
        let named = rules.into_iter().map(|rule| (rule.name.clone(), rule));
        named.collect::<std::collections::BTreeMap<String, RuleDocument>>()
    };
    assert_eq!(by_name(again.rules.to_documents()), by_name(documents));
    texts
}

#[test]
fn a_whole_configuration_is_replaced_and_comments_of_what_stays_stay() {
    assert_eq!(rewritten_to(&[FILE], FILE), [FILE]);
    let budget = FILE.replace("\"1Gbit\"", "\"2Gbit\"");
    assert_eq!(rewritten_to(&[FILE], &budget), [budget.as_str()]);
    // Without a budget, with an interface and a daemon, and another second rule.
    let wanted = "version = 1\nallow_link_local = true\n[interface.eth0]\ngro = \"auto\"\n\
                  [daemon]\nworkers = 2\n[notify]\nwebhook = \"http://10.0.0.9/\"\n";
    let cam1 = &FILE[FILE.find("[[rule]]").unwrap()..FILE.find("# The second.").unwrap()];
    let cam3 = "[[rule]]\nname = \"cam3\"\ninput = \"239.1.1.3%eth0:5001\"\n\
                outputs = [\"239.10.1.3%eth1:6001\"]\n";
    let wanted = format!("{wanted}{cam1}{cam3}");
    let [text] = rewritten_to(&[FILE], &wanted).try_into().unwrap();
    for comment in [
        "# Rules of the studio, by Ann.",
        "# on the roof",
        "# cloud",
        "# The end.",
    ] {
        assert!(text.contains(comment), "no {comment} in {text}");
    }
    assert!(!text.contains("cam2") && !text.contains("1Gbit"), "{text}");
    assert!(
        text.contains("[interface.eth0]") && text.contains("[daemon]"),
        "{text}"
    );
    // Everything is removed if nothing is wanted.
    let [text] = rewritten_to(&[&text], "version = 1\n").try_into().unwrap();
    assert!(!text.contains("rule]]") && !text.contains("eth0"), "{text}");
    assert_eq!(rewritten_to(&[""], FILE).len(), 1);
}

#[test]
fn settings_change_in_the_file_that_has_them() {
    let main =
        "version = 1\n[interface.eth0]\ngro = \"on\"   # the fast one\n[daemon]\n# none yet\n";
    let part = "allow_link_local = true\n# The slow one.\n[interface.eth1]\npath = \"userspace\"\n";
    let wanted = "version = 1\n[interface.eth0]\ngro = \"auto\"\n[interface.eth1]\n\
                  path = \"kernel\"\n[interface.eth2]\ngro = \"on\"\n[daemon]\nworkers = 2\n";
    let texts = rewritten_to(&[main, part], wanted);
    assert!(
        texts[0].contains("gro = \"auto\"   # the fast one"),
        "{}",
        texts[0]
    );
    assert!(texts[0].contains("[interface.eth2]"), "{}", texts[0]);
    assert!(
        texts[0].contains("[daemon]\n# none yet\n") || texts[0].contains("none yet"),
        "{}",
        texts[0]
    );
    assert_eq!(
        texts[1],
        "# The slow one.\n[interface.eth1]\npath = \"kernel\"\n"
    );
}

#[test]
fn targets_of_events_stay_whatever_becomes_of_the_webhook() {
    let target = "[[notify.target]]\nurl = \"https://a.example/\" # ours\n";
    let webhook = "version = 1\n[notify]\nwebhook = \"http://10.0.0.9/\"\n";
    let main = "version = 1\n".to_owned();
    for (files, wanted) in [
        (
            [format!("{webhook}{target}"), String::new()],
            "version = 1\n",
        ),
        ([main.clone() + target, String::new()], webhook),
        ([main.clone(), target.to_owned()], webhook),
    ] {
        let texts = rewritten_to(&[&files[0], &files[1]], wanted).concat();
        assert!(texts.contains(target), "{texts}");
        assert_eq!(
            texts.contains("webhook"),
            wanted.contains("webhook"),
            "{texts}"
        );
    }
}

#[test]
fn a_key_changes_and_everything_else_stays() {
    let same = changed(FILE, "cam1", |_| {});
    assert_eq!(same, FILE);
    let limit = changed(FILE, "cam1", |rule| rule.limit = Some("5pps".to_owned()));
    assert_eq!(limit, FILE.replace("20000kbit", "5pps"));
    let disabled = changed(FILE, "cam2", |rule| rule.enabled = Some(false));
    let outputs = "outputs = [\"239.10.1.2%eth1:6001\"]\n";
    assert_eq!(
        disabled,
        FILE.replace(outputs, &format!("{outputs}enabled = false\n"))
    );
    let enabled = changed(&disabled, "cam2", |rule| rule.enabled = None);
    assert_eq!(enabled, FILE);
    let silence = |rule: &mut RuleDocument| {
        rule.health = Some(rules::document::HealthDocument::from_text("silence=9s").unwrap());
    };
    assert_eq!(changed(FILE, "cam1", silence), FILE.replace("3s", "9s"));
}

#[test]
fn a_rule_becomes_a_reflecting_one_and_back() {
    let text = "version = 1\n[[rule]]\n# discovery\nname = \"m\"\n\
                inputs = [\"239.1.1.1%eth0:1\"]\noutputs = [\"239.1.1.1%eth1:1\"]\nlimit = \"5pps\"\n";
    let plain = rules(text).remove(0);
    let reflects = |rule: &mut RuleDocument| {
        *rule = RuleDocument {
            inputs: Vec::new(),
            outputs: Vec::new(),
            mode: Some("reflect".to_owned()),
            interfaces: ["eth0", "eth1"].map(str::to_owned).into(),
            group: Some("239.1.1.1:1".to_owned()),
            ..rule.clone()
        }
    };
    let reflecting = changed(text, "m", reflects);
    assert!(reflecting.contains("# discovery"), "{reflecting}");
    assert!(!reflecting.contains("put"), "{reflecting}");
    let more = changed(&reflecting, "m", |rule| {
        rule.interfaces.push("eth2".to_owned())
    });
    assert_eq!(rules(&more)[0].interfaces, ["eth0", "eth1", "eth2"]);
    let again = changed(&more, "m", |rule| *rule = plain.clone());
    assert_eq!(rules(&again), std::slice::from_ref(&plain));
    assert!(!again.contains("interfaces"), "{again}");
}

#[test]
fn a_merge_is_a_word_a_table_or_removed() {
    let text = "version = 1\n[[rule]]\nname = \"cam1\"\n\
                inputs = [\"239.1.1.1%red:1\", \"239.2.1.1%blue:1\"]\n\
                outputs = [\"239.10.1.1%eth1:6001\"]\n[rule.health]\nsilence = \"3s\"\n";
    let merge = |text: &str, merge: Option<&str>| {
        changed(text, "cam1", |rule| {
            let merge = merge.map(rules::document::MergeDocument::from_text);
            rule.merge = merge.transpose().unwrap();
        })
    };
    let word = merge(text, Some("rtp"));
    assert!(word.contains("merge = \"rtp\""), "{word}");
    let table = merge(&word, Some("by=sequence,offset=8,bytes=4,session=2:6"));
    assert!(
        table.contains("session = { bytes = 6, offset = 2 }"),
        "{table}"
    );
    let other = merge(&table, Some("by=sequence,offset=8,bytes=4,count=18:2"));
    assert!(!other.contains("session"), "{other}");
    let word = merge(&other, Some("mdp3"));
    assert!(word.contains("merge = \"mdp3\""), "{word}");
    assert_eq!(merge(&word, None), text);
}

#[test]
fn lists_keep_the_elements_that_stay_and_their_comments() {
    let added = changed(FILE, "cam1", |rule| rule.outputs.push("10.9.9.8:1".into()));
    assert_eq!(
        added,
        FILE.replace("# cloud\n", "# cloud\n    \"10.9.9.8:1\",\n")
    );
    let removed = changed(FILE, "cam1", |rule| drop(rule.outputs.remove(0)));
    let removed_lines = "    # to the studio\n    \"239.10.1.1%eth1:6001\",   # main\n";
    assert_eq!(removed, FILE.replace(removed_lines, ""));
    let removed = changed(FILE, "cam1", |rule| drop(rule.outputs.remove(1)));
    let removed_lines = "    { to = \"10.9.9.9:7000\", ttl = 32 },   # cloud\n";
    assert_eq!(removed, FILE.replace(removed_lines, ""));
    let second = |rule: &mut RuleDocument| rule.inputs.push("239.1.1.3%eth0:5001".to_owned());
    let inputs = changed(FILE, "cam1", second);
    let both = r#"inputs = ["239.1.1.1%eth0:5001", "239.1.1.3%eth0:5001"]"#;
    assert_eq!(
        inputs,
        FILE.replace("input = \"239.1.1.1%eth0:5001\"", both)
    );
    let both = r#"inputs = ["239.1.1.2%eth0:5001", "239.1.1.3%eth0:5001"]"#;
    let inputs = changed(FILE, "cam2", second);
    assert_eq!(
        inputs,
        FILE.replace("inputs = [\"239.1.1.2%eth0:5001\"]", both)
    );
}

#[test]
fn comments_of_an_input_stay_when_it_becomes_several() {
    let text = FILE.replace(
        "input = \"239.1.1.1%eth0:5001\"\n",
        "# from the roof\ninput = \"239.1.1.1%eth0:5001\"   # in a\n",
    );
    let both = r#"inputs = ["239.1.1.1%eth0:5001", "239.1.1.3%eth0:5001"]"#;
    let second = |rule: &mut RuleDocument| rule.inputs.push("239.1.1.3%eth0:5001".to_owned());
    assert_eq!(
        changed(&text, "cam1", second),
        text.replace("input = \"239.1.1.1%eth0:5001\"", both)
    );
    let inline = "version = 1\nrule = [{ name = \"cam1\", outputs = [\"10.9.9.9:1\"], \
                  input = \"239.1.1.1%eth0:5001\" }]\n";
    assert_eq!(
        changed(inline, "cam1", second),
        inline.replace("input = \"239.1.1.1%eth0:5001\"", both)
    );
}

#[test]
fn a_byte_order_mark_is_preserved() {
    let file = format!("\u{feff}{FILE}");
    let limit = |rule: &mut RuleDocument| rule.limit = Some("5pps".to_owned());
    let changed = changed(&file, "cam1", limit);
    assert_eq!(changed, file.replace("20000kbit", "5pps"));
}

#[test]
fn windows_line_ends_are_preserved() {
    let file = FILE.replace('\n', "\r\n");
    let limit = |rule: &mut RuleDocument| rule.limit = Some("5pps".to_owned());
    assert_eq!(
        changed(&file, "cam1", limit),
        file.replace("20000kbit", "5pps")
    );
    let more = |rule: &mut RuleDocument| rule.outputs.push("10.9.9.8:1".into());
    let added = file.replace("# cloud\r\n", "# cloud\r\n    \"10.9.9.8:1\",\r\n");
    assert_eq!(changed(&file, "cam1", more), added);
    let removed = written(&file, "cam1", None);
    assert_eq!(removed, written(FILE, "cam1", None).replace('\n', "\r\n"));
    // One line of many.
    let one = FILE.replace("# main\n", "# main\r\n");
    assert_eq!(
        changed(&one, "cam1", limit),
        one.replace("20000kbit", "5pps")
    );
    assert_eq!(
        rewritten_to(&[&file], &FILE.replace("1Gbit", "2Gbit"))[0],
        file.replace("1Gbit", "2Gbit")
    );
}

const INLINE: &str = r#"version = 1
join = [
    # the guide
    "239.9.9.1%eth1",   # always
    "239.9.9.2%eth1",
]
rule = [
    # The first camera.
    { name = "cam1", input = "239.1.1.1%eth0:5001", outputs = ["239.10.1.1%eth1:6001"] },   # on the roof
    # The second.
    { name = "cam2", input = "239.1.1.2%eth0:5001", outputs = ["239.10.1.2%eth1:6001"] },   # at the door
]
"#;

#[test]
fn rules_and_settings_in_lists_stay_there_with_their_comments() {
    let limit = |rule: &mut RuleDocument| rule.limit = Some("5pps".to_owned());
    let limited = INLINE.replace("6001\"] },   # on", "6001\"], limit = \"5pps\" },   # on");
    assert_eq!(changed(INLINE, "cam1", limit), limited);
    let first =
        &INLINE[INLINE.find("    # The first").unwrap()..INLINE.find("    # The second").unwrap()];
    assert_eq!(written(INLINE, "cam1", None), INLINE.replace(first, ""));
    let third = r#"{"name": "cam3", "inputs": ["239.1.1.3%eth0:1"], "outputs": ["10.9.9.9:1"]}"#;
    let added = written(INLINE, "cam3", Some(serde_json::from_str(third).unwrap()));
    let line = r#"    { name = "cam3", input = "239.1.1.3%eth0:1", outputs = ["10.9.9.9:1"] },"#;
    assert_eq!(
        added,
        INLINE.replace("# at the door\n", &format!("# at the door\n{line}\n"))
    );
    let joined = |groups: &[&str]| {
        let join = groups.iter().map(|group| group.parse().unwrap()).collect();
        rewrite_joins(&[file(INLINE)], join).unwrap().remove(0).text
    };
    let removed_lines = "    \"239.9.9.2%eth1\",\n";
    assert_eq!(
        joined(&["239.9.9.1%eth1"]),
        INLINE.replace(removed_lines, "")
    );
    let other = INLINE.replace("9.2%", "9.3%");
    assert_eq!(joined(&["239.9.9.1%eth1", "239.9.9.3%eth1"]), other);
}

#[test]
fn a_replaced_output_keeps_the_comment_of_the_previous_one() {
    let other = changed(FILE, "cam1", |rule| {
        rule.outputs[0] = "239.10.1.7%eth1:6001".into()
    });
    assert_eq!(other, FILE.replace("239.10.1.1%eth1", "239.10.1.7%eth1"));
}

#[test]
fn a_rule_is_appended_and_is_removed_with_its_own_comment() {
    let third = r#"{"name": "cam3", "inputs": ["239.1.1.3%eth0:1"], "outputs": ["10.9.9.9:1"]}"#;
    let third: RuleDocument = serde_json::from_str(third).unwrap();
    let added = written(FILE, "cam3", Some(third.clone()));
    let lines = "\n[[rule]]\nname = \"cam3\"\ninput = \"239.1.1.3%eth0:1\"\n\
                 outputs = [\"10.9.9.9:1\"]\n\n[budget]";
    assert_eq!(added, FILE.replace("\n[budget]", lines));
    let removed = written(FILE, "cam1", None);
    assert!(
        removed.contains("# Rules of the studio, by Ann.\n"),
        "{removed}"
    );
    assert!(
        !removed.contains("first camera") && !removed.contains("roof"),
        "{removed}"
    );
    assert!(removed.contains("# The second.\n") && removed.ends_with("# The end.\n"));
    assert_eq!(rules(&removed).len(), 1);
    let alone = written("", "cam3", Some(third));
    assert!(
        alone.starts_with("version = 1\n\n[[rule]]\nname = \"cam3\"\n"),
        "{alone}"
    );
    assert_eq!(written(&alone, "cam3", None).trim_end(), "version = 1");
}

#[test]
fn a_rule_is_changed_where_it_stands_and_wrong_files_are_not_written() {
    let other = ConfigFile {
        name: "conf.d/a.toml".to_owned(),
        text: FILE
            .replace("cam", "cem")
            .replace("239.1.1", "239.1.9")
            .replace("[budget]", "")
            .replace("unicast = \"1Gbit\"   # all of it", "")
            .replace("version = 1", ""),
    };
    let files = [file(FILE), other];
    let rewritten = rewrite(&files, &[("cem2".to_owned(), None)]).unwrap();
    let names: Vec<&str> = rewritten.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["conf.d/a.toml"]);
    let conflicting =
        r#"{"name": "x", "inputs": ["239.1.1.1%eth0:5001"], "outputs": ["10.9.9.9:1"]}"#;
    let rule = Some(serde_json::from_str(conflicting).unwrap());
    let refused = rewrite(&files, &[("x".to_owned(), rule)]).unwrap_err();
    assert!(refused.to_string().contains("cam1"), "{refused}");
    rewrite(&[file("rule = 1")], &[]).unwrap_err();
}

const TABLES: &str = r#"version = 1
[[rule]]
name = "cam1"
input = "239.1.1.1%eth0:5001"

[rule.labels]
site = "y"

# to the studio
[[rule.outputs]]   # main
to = "239.10.1.1%eth1:6001"
ttl = 0x4   # far
dscp = "AF41"

# to those who listen
[[rule.outputs]]
to = "239.10.1.2%eth1:6001,ttl=7"
demand = "igmp"
[rule.outputs.listeners]
allow = ["10.0.0.0/8"]

# The second.
[[rule]]
name = "cam2"
input = "239.1.1.2%eth0:5001"
outputs = ["239.10.1.3%eth1:6001"]
"#;

#[test]
fn outputs_that_are_tables_change_with_their_comments() {
    let change = |change: &dyn Fn(&mut Vec<OutputDocument>)| {
        changed(TABLES, "cam1", |rule| change(&mut rule.outputs))
    };
    let added = change(&|outputs| outputs.push("10.9.9.8:1,source=keep,sport=7".into()));
    let lines =
        "\n[[rule.outputs]]\nto = \"10.9.9.8:1\"\nsource = \"keep\"\nsport = 7\n\n# The second";
    assert_eq!(added, TABLES.replace("\n# The second", lines));
    let first = TABLES.find("\n# to the studio").unwrap()..TABLES.find("\n# to those").unwrap();
    let second = first.end..TABLES.find("\n# The second").unwrap();
    let [first, second] = [first, second].map(|range| &TABLES[range]);
    let removed = change(&|outputs| drop(outputs.remove(0)));
    assert_eq!(removed, TABLES.replace(first, ""));
    let swapped = change(&|outputs| outputs.swap(0, 1));
    let both = first.to_owned() + second;
    assert_eq!(swapped, TABLES.replace(&both, &(second.to_owned() + first)));
    let other = change(&|outputs| outputs[0] = "239.10.1.7%eth1:6001,ttl=5,dscp=AF41".into());
    let replaced = TABLES.replace("239.10.1.1%", "239.10.1.7%");
    assert_eq!(other, replaced.replace("0x4", "5"));
    let other = change(&|outputs| outputs[1] = "239.10.1.2%eth1:6001,demand=igmp".into());
    let listeners = "[rule.outputs.listeners]\nallow = [\"10.0.0.0/8\"]\n";
    assert_eq!(other, TABLES.replace(",ttl=7", "").replace(listeners, ""));
}

proptest! {
    #[test]
    fn whatever_changes_is_read_back(
        before in rules::samples::valid_rule(),
        after in rules::samples::valid_rule(),
        other in rules::samples::valid_rule(),
    ) {
        let [before, after, other] =
            [before, after, other].map(|rule| RuleDocument::from(&rule));
        let [before, mut after, mut other] = [before, after, other].map(|rule| RuleDocument {
            share: None,
            ..rule
        });
        after.name.clone_from(&before.name);
        other.name = format!("{}x", before.name);
        prop_assume!(other.inputs != before.inputs && other.inputs != after.inputs);
        let first = written("", &before.name, Some(before.clone()));
        let both = written(&first, &other.name.clone(), Some(other));
        let now = written(&both, &before.name, Some(after.clone()));
        prop_assert_eq!(&rules(&now)[0], &after);
        prop_assert_eq!(written(&now, &before.name, Some(after.clone())), now.clone());
        prop_assert_eq!(rules(&written(&now, &before.name, None)).len(), 1);
        let tables = with_tables(&first);
        let now = written(&tables, &before.name, Some(after.clone()));
        prop_assert_eq!(&rules(&now)[0], &after);
    }
}

/// The only rule of a file with its outputs as tables of their own.
fn with_tables(text: &str) -> String {
    let mut document: DocumentMut = text.parse().unwrap();
    let rule = document["rule"].as_array_of_tables_mut().unwrap();
    let rule = rule.get_mut(0).unwrap();
    let outputs = rule
        .remove("outputs")
        .map(|outputs| outputs.into_value().unwrap());
    let texts = outputs
        .iter()
        .flat_map(|outputs| outputs.as_array().unwrap());
    let tables = texts.map(|to| Table::from_iter([("to", to.clone().decorated(" ", ""))]));
    let tables = ArrayOfTables::from_iter(tables);
    if !tables.is_empty() {
        rule.insert("outputs", Item::ArrayOfTables(tables));
    }
    document.to_string()
}
