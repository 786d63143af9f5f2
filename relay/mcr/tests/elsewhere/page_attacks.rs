//! Attackers who make the operator's browser send requests, or who have stolen its credentials.

use std::io::{Read, Write};
use std::process::Command;

use lab::process::{self, Process};
use lab::wait;

use super::page::{Hand, Operator, PAGE};
use super::{Bed, PATIENCE, RELAY, TOKENS};

/// The cookie and the CSRF token of a session that was begun by curl.
fn session(bed: &Bed, role: &str) -> (String, String) {
    let (_, token) = TOKENS.iter().find(|(name, _)| *name == role).unwrap();
    bed.secret("token.header", &format!("Authorization: Bearer {token}\n"));
    let (status, reply) = bed.curl(&format!(
        "-H @token.header -X POST -D - https://{RELAY}/v1/session"
    ));
    assert_eq!(status, 204, "{reply}");
    let line = reply
        .lines()
        .find(|line| line.to_lowercase().starts_with("set-cookie: "))
        .unwrap();
    for word in ["; Path=/", "; Secure", "; HttpOnly", "; SameSite=Strict"] {
        assert!(line.contains(word), "{line}");
    }
    let cookie = line["set-cookie: ".len()..]
        .split(';')
        .next()
        .unwrap()
        .to_owned();
    assert!(cookie.starts_with("__Host-mcr="), "{cookie}");
    bed.secret("cookie.header", &format!("Cookie: {cookie}\n"));
    let (_, json) = bed.curl(&format!("-H @cookie.header https://{RELAY}/v1/session"));
    let session: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(session["role"], role);
    (cookie, session["csrf"].as_str().unwrap().to_owned())
}

#[test]
fn a_cookie_alone_changes_nothing() {
    let Some(bed) = Bed::new("") else { return };
    let (_, csrf) = session(&bed, "change");
    let rules = "{\"rules\":[{\"name\":\"evil\",\"input\":\"239.1.1.1%veth1:1\",\"outputs\":[\"239.1.1.2%veth2:1\"]}]}";
    bed.secret("rules.json", rules);
    let post = |headers: &[&str]| {
        for (at, header) in headers.iter().enumerate() {
            bed.secret(&format!("more{at}.header"), &format!("{header}\n"));
        }
        let more: String = (0..headers.len())
            .map(|at| format!("-H @more{at}.header "))
            .collect();
        bed.curl(&format!(
            "-H @cookie.header {more}-d @rules.json https://{RELAY}/v1/rules"
        ))
    };
    let own = &format!("Origin: https://{RELAY}")[..];
    let token = &format!("X-MCR-CSRF: {csrf}")[..];
    for (headers, code) in [
        (&[][..], 403),
        (&[own], 403),
        (&[token], 403),
        (&[own, "X-MCR-CSRF: mcr_guessed"], 403),
        (&["Origin: https://evil.example", token], 403),
        (&["Origin: null", token], 403),
        (&["Origin: http://10.0.1.1:9471", token], 403),
        // A foreign name that resolves to this relay.
        (
            &["Host: evil.example", "Origin: https://evil.example", token],
            421,
        ),
    ] {
        let (status, reply) = post(headers);
        assert_eq!(status, code, "{headers:?}: {reply}");
    }
    assert!(!bed.daemon.mcr(&["export"]).unwrap().contains("evil"));
    assert_eq!(post(&[own, token]).0, 200);
    bed.mcr("change", &["remove", "evil"]);
    // Nor does a token from a foreign page, nor a certificate that a browser presents on behalf of any page.
    let (status, _) = bed.curl(&format!(
        "-H @token.header -H Origin:https://evil.example -d @rules.json https://{RELAY}/v1/rules"
    ));
    assert_eq!(status, 403);
    let by_certificate = "--cert ci.pem --key ci.key";
    for (more, code) in [
        ("-H Origin:https://evil.example", 403),
        ("-H Sec-Fetch-Site:cross-site", 403),
        ("-H Cookie:a=b", 401),
    ] {
        let request = format!("{by_certificate} {more} -d @rules.json https://{RELAY}/v1/rules");
        assert_eq!(bed.curl(&request).0, code, "{more}");
        let begins = format!("{by_certificate} {more} -X POST https://{RELAY}/v1/session");
        assert_eq!(bed.curl(&begins).0, 403, "{more}");
    }
    assert!(!bed.daemon.mcr(&["export"]).unwrap().contains("evil"));
    // A session begun by certificate is only valid with that certificate.
    let own = format!("-H Origin:https://{RELAY}");
    let (status, reply) = bed.curl(&format!(
        "{by_certificate} {own} -X POST -D - https://{RELAY}/v1/session"
    ));
    assert_eq!(status, 204, "{reply}");
    let cookie = reply
        .split("__Host-mcr=")
        .nth(1)
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    bed.secret("cookie.header", &format!("Cookie: __Host-mcr={cookie}\n"));
    let status = format!("-H @cookie.header https://{RELAY}/v1/status");
    assert_eq!(bed.curl(&status).0, 401);
    assert_eq!(bed.curl(&format!("{by_certificate} {status}")).0, 200);
}

#[test]
fn a_cookie_of_before_is_worth_nothing() {
    let Some(bed) = Bed::new("") else { return };
    let (_, csrf) = session(&bed, "change");
    let request = format!("-H @cookie.header https://{RELAY}/v1/status");
    assert_eq!(bed.curl(&request).0, 200);
    // A stolen cookie is presented by another host.
    let mut thief = bed.chain.sender.command("curl");
    let header = format!("@{}", bed.keys.path("cookie.header").display());
    thief.args([
        "-sk",
        "--max-time",
        "20",
        "-w",
        "%{http_code}",
        "-H",
        &header,
    ]);
    thief.arg("https://10.0.0.2:9471/v1/status");
    let stdout = process::run(thief, PATIENCE).unwrap().stdout;
    assert!(stdout.ends_with("401"), "{stdout}");
    // A cookie cannot begin a session, which would then never end.
    let (status, _) = bed.curl(&format!(
        "-H @cookie.header -H Origin:https://{RELAY} -H X-MCR-CSRF:{csrf} -X POST https://{RELAY}/v1/session"
    ));
    assert_eq!(status, 401);
    let (status, reply) = bed.curl(&format!(
        "-H @cookie.header -H Origin:https://{RELAY} -H X-MCR-CSRF:{csrf} -X DELETE https://{RELAY}/v1/session"
    ));
    assert_eq!(status, 204, "{reply}");
    assert_eq!(bed.curl(&request).0, 401, "it was replayed");
    // The secrets of sessions are not logged.
    let log = bed.daemon.log();
    assert!(!log.contains(&csrf) && !log.contains("__Host-mcr"), "{log}");
}

#[test]
fn the_page_is_nobodys_frame_and_comes_under_known_names_alone() {
    let Some(bed) = Bed::new("") else { return };
    let (status, page) = bed.curl(&format!("-D - https://{RELAY}/"));
    assert_eq!(status, 200);
    for word in [
        "frame-ancestors 'none'",
        "default-src 'none'",
        "script-src 'self'",
        "nosniff",
    ] {
        assert!(page.contains(word), "{word}: {page}");
    }
    assert!(
        !page.contains("cam1") && !page.to_lowercase().contains("access-control"),
        "{page}"
    );
    for path in ["", "web/main.js", "v1/session"] {
        let request = format!("-H Host:evil.example -H Sec-Fetch-Site:none https://{RELAY}/{path}");
        assert_eq!(bed.curl(&request).0, 421, "{path}");
    }
    let (status, reply) = bed.curl(&format!(
        "-X OPTIONS -H Origin:https://evil.example https://{RELAY}/v1/rules"
    ));
    assert!(status >= 400, "{status} {reply}");
}

/// Serves another site with this page.
fn site(bed: &Bed, html: &str) -> Process {
    bed.secret("index.html", html);
    let mut command: Command = bed.chain.sink.command("python3");
    command
        .args(["-m", "http.server", "8000", "--bind", "127.0.0.1"])
        .current_dir(bed.keys.directory());
    Process::start(command).unwrap()
}

#[test]
fn another_sites_page_gets_nothing_from_the_operators_browser() {
    let Some(bed) = Bed::new("") else { return };
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("change");
    let cookie = operator.browser.run("return document.cookie");
    assert_eq!(cookie, "", "no script sees it");
    let body = "{&quot;rules&quot;:[{&quot;name&quot;:&quot;evil&quot;,&quot;input&quot;:&quot;239.1.1.1%veth1:1&quot;,\
                &quot;outputs&quot;:[&quot;239.1.1.2%veth2:1&quot;],&quot;comment&quot;:&quot;";
    let html = format!(
        "<form method=post enctype=text/plain action='{PAGE}v1/rules'><input name='{body}' value='&quot;}}]}}'></form>\
         <iframe src='{PAGE}'></iframe><script>addEventListener('load', () => \
         fetch('{PAGE}v1/rules', {{ credentials: 'include' }}).then((a) => a.text(), () => 'nothing')\
         .then((told) => {{ document.title = told; }}))</script>"
    );
    let _site = site(&bed, &html);
    let connect = || {
        bed.chain.sink.run(|| {
            let mut stream = std::net::TcpStream::connect("127.0.0.1:8000")?;
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            stream.read_to_string(&mut String::new())?;
            Ok(())
        })
    };
    wait::until("the site is there", || connect().is_ok()).unwrap();
    operator.browser.open("http://127.0.0.1:8000/");
    operator.waits_for("it reads nothing", "return document.title === 'nothing'");
    let is_refused = |line: &serde_json::Value| line.to_string().contains("frame-ancestors");
    wait::until("the frame is refused", || {
        operator.browser.complaints().iter().any(is_refused)
    })
    .unwrap();
    operator
        .browser
        .run("document.querySelector('form').submit()");
    operator.waits_for(
        "it is answered",
        "return location.hostname === '10.0.1.1' && document.readyState === 'complete'",
    );
    operator.waits_for(
        "it is refused",
        "return document.body.innerText.includes('another site')",
    );
    assert!(!bed.daemon.mcr(&["export"]).unwrap().contains("evil"));
}

#[test]
fn a_script_in_a_name_is_a_text() {
    let Some(bed) = Bed::new("") else { return };
    let evil = "<img src=x onerror=\"window.pwned=1\"><script>window.pwned=1</script>";
    let rule = [
        "add",
        "239.1.1.1%veth1:5001",
        "239.10.1.1%veth9:6001",
        "--name",
        "cam1",
    ];
    let label = format!("site={evil}");
    let more = ["--comment", evil, "--label", &label, "--message", evil];
    bed.mcr("change", &[&rule[..], &more].concat());
    let Some(operator) = Operator::at(&bed, Hand::Mouse) else {
        return;
    };
    operator.sign_in("change");
    operator.press("cam1");
    operator.press("Log …");
    operator.sees("<img src=x");
    operator.press("Close");
    operator.press("Change …");
    operator.waits_for(
        "it is in the form",
        "return document.querySelector('[data-key=comment] input')?.value.startsWith('<img') ?? false",
    );
    operator.press("As text");
    operator.press("Review …");
    operator.sees("nothing changes");
    operator.press("Cancel");
    operator.press("Cancel");
    let touched = "return window.pwned ?? document.querySelectorAll('img, #rows script, dialog script').length";
    assert_eq!(operator.browser.run(touched), 0);
    assert_eq!(
        operator.browser.complaints(),
        Vec::<serde_json::Value>::new()
    );
}
