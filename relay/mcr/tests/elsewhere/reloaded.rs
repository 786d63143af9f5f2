//! Reloads that change who is served from elsewhere, and where.

use std::fs;

use lab::wait;

use super::Bed;

#[test]
fn a_reload_that_locks_out_is_taken_back_whole() {
    let Some(bed) = Bed::new("") else { return };
    let file = bed.daemon.config_file();
    let good = fs::read_to_string(&file).unwrap();
    // An address that the host lacks: what listened goes on.
    fs::write(&file, good.replace("0.0.0.0:9471", "10.77.77.77:9471")).unwrap();
    let reloaded = bed.mcr("change", &["reload"]);
    assert!(reloaded.contains("api listen: changed"), "{reloaded}");
    bed.wait_for("the wrong address is told", |api| {
        api["reason"]
            .as_str()
            .is_some_and(|why| why.contains("stays in use"))
    });
    bed.mcr("view", &["list"]);
    fs::write(&file, &good).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    bed.wait_for("all is well again", |api| api["state"] == "up");
    // One of those that it listened on together.
    fs::write(&file, good.replace("0.0.0.0:9471", super::RELAY)).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    let listens = |address: &str| {
        let sockets = || bed.chain.relay.tool("ss", "-Hltn").unwrap();
        wait::until(address, || sockets().contains(address)).unwrap();
    };
    listens(super::RELAY);
    bed.mcr("view", &["list"]);
    fs::write(&file, &good).unwrap();
    bed.daemon.mcr(&["reload"]).unwrap();
    listens("0.0.0.0:9471");
    // One where nobody comes, and no client of before: undone without a confirmation.
    let wrong = good
        .replace("0.0.0.0:9471", "127.0.0.1:9472")
        .replace("viewr", "somebody");
    let target = "[[notify.target]]\nurl = \"http://127.0.0.1:9/\"\n";
    fs::write(&file, format!("{wrong}{target}")).unwrap();
    let waits = ["reload", "--confirm", "3s", "--yes"];
    let tried = bed.daemon.client(&waits).unwrap();
    for line in [
        "api client: changed",
        "api listen: changed",
        "notify target: changed",
    ] {
        assert!(tried.stdout.contains(line), "{}", tried.stdout);
    }
    assert!(tried.stderr.contains("to confirm"), "{}", tried.stderr);
    wait::until("nobody is let in", || {
        bed.run("view", &["list"]).status.code() == Some(4)
    })
    .unwrap();
    bed.wait_for("what was before is back", |api| {
        api["listen"] == "0.0.0.0:9471" && api["state"] == "up"
    });
    wait::until("they are let in", || {
        bed.run("view", &["list"]).status.success()
    })
    .unwrap();
    assert!(bed.status()["notify"].as_array().is_none_or(Vec::is_empty));
    // One that is confirmed stays.
    fs::write(&file, good.replace("viewr", "somebody")).unwrap();
    bed.daemon
        .mcr(&["reload", "--confirm", "60s", "--yes"])
        .unwrap();
    bed.daemon.mcr(&["confirm"]).unwrap();
    let clients = bed.daemon.mcr(&["token", "list"]).unwrap();
    assert!(clients.contains("somebody"), "{clients}");
}
