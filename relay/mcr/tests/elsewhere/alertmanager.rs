//! Notifications to a real Alertmanager.

use std::fs;
use std::time::Duration;

use lab::link;
use lab::process::Process;
use lab::wait;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{Bed, PATIENCE, ends_in};
use crate::bed::{INPUT, OUTPUT, can_run};

#[test]
fn an_alertmanager_has_what_goes_on_and_its_end() {
    if let Err(reason) = can_run("prometheus-alertmanager") {
        eprintln!("skipped: {reason}");
        return;
    }
    let Some(bed) = Bed::new("") else { return };
    // On the side of the relay whose link stays up.
    link::up((&bed.chain.sender, "lo")).unwrap();
    let file = bed.keys.path("alertmanager.yml");
    fs::write(
        &file,
        "route: { receiver: none }\nreceivers: [{ name: none }]\n",
    )
    .unwrap();
    let begin = |storage: &str| {
        let mut command = bed.chain.sender.command("prometheus-alertmanager");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!(
            "--storage.path={}",
            bed.keys.path(storage).display()
        ));
        command.args([
            "--web.listen-address=10.0.0.1:9093",
            "--cluster.listen-address=",
        ]);
        Process::start(command).unwrap()
    };
    let alerts = || {
        let ask = "-s http://10.0.0.1:9093/api/v2/alerts";
        bed.chain.sender.tool("curl", ask).unwrap_or_default()
    };
    let listens = || wait::until_within(PATIENCE, "it listens", || alerts().starts_with('['));
    let alertmanager = begin("one");
    listens().unwrap();
    // Existing problems are reported, too.
    let soon = ends_in(5 * 86_400);
    let away = format!(
        "[[api.client]]\nname = \"soon\"\nrole = \"view\"\ntoken = \"{}\"\nexpires = \"{soon}\"\n\
         [[rule]]\nname = \"away\"\ninput = \"239.1.1.2%veth9:5002\"\n\
         outputs = [\"239.10.1.2%veth2:6002\"]\n",
        tls::token::hash("soon")
    );
    let away = &away[..];
    bed.configure(away);
    let target = "[[notify.target]]\nurl = \"http://10.0.0.1:9093\"\nformat = \"alertmanager\"\n\
                  labels = { site = \"ber\" }\n";
    let unreachable = "[[notify.target]]\nurl = \"http://10.0.1.2:1\"\n";
    bed.configure(&[away, target, unreachable].concat());
    bed.daemon.add("cam1", INPUT, &[OUTPUT]).unwrap();
    let named = |kind: &str, subject: &str| {
        let all: Vec<Value> = serde_json::from_str(&alerts()).unwrap_or_default();
        let is_named = |alert: &Value| {
            let labels = &alert["labels"];
            (&labels["alertname"], &labels["subject"]) == (&json!(kind), &json!(subject))
        };
        all.into_iter().find(is_named)
    };
    // The alerts about a client that expires and a target that fails last, too.
    let own = || {
        let expiry = named("expires_soon", "api");
        let of_client = expiry.filter(|alert| alert["labels"]["part"] == "client soon");
        [
            of_client.is_some(),
            named("notify_failed", "target 2").is_some(),
        ]
    };
    let goes_on = |subject: &str| {
        named("rule_down", subject)
            .or_else(|| named("rule_degraded", subject))
            .is_some()
    };
    wait::until_within(PATIENCE, "what is wrong already is told", || {
        goes_on("away") && own() == [true; 2]
    })
    .unwrap();
    link::down((&bed.chain.relay, "veth2")).unwrap();
    wait::until_within(PATIENCE, "an alert of each", || {
        goes_on("cam1") && named("output_down", "cam1").is_some()
    })
    .unwrap();
    let alert = named("output_down", "cam1").unwrap();
    let (labels, summary) = (&alert["labels"], &alert["annotations"]["summary"]);
    assert_eq!(
        (&labels["site"], &labels["severity"]),
        (&json!("ber"), &json!("warning"))
    );
    assert!(
        labels["part"].as_str().unwrap().contains("veth2"),
        "{alert}"
    );
    assert!(summary.as_str().unwrap().contains("cam1"), "{alert}");
    // An Alertmanager without state gets all again, within a minute and the current pauses.
    alertmanager.stop(Signal::SIGTERM).unwrap();
    let _alertmanager = begin("two");
    listens().unwrap();
    wait::until_within(Duration::from_secs(180), "it is told again", || {
        goes_on("away") && named("output_down", "cam1").is_some() && own() == [true; 2]
    })
    .unwrap();
    bed.configure(target);
    link::up((&bed.chain.relay, "veth2")).unwrap();
    wait::until_within(Duration::from_secs(180), "all is over", || {
        own() == [false; 2]
            && !goes_on("cam1")
            && !goes_on("away")
            && named("output_down", "cam1").is_none()
    })
    .unwrap();
}
