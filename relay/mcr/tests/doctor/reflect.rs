//! Rules that reflect: whether unicast answers are routed.

use super::bed::bed;

const SSDP: &str = r#"version = 1
[[rule]]
name = "ssdp"
mode = "reflect"
interfaces = ["veth1", "veth2"]
group = "239.255.255.250:1900"
"#;

#[test]
fn finds_answers_that_nobody_routes() {
    let Some(bed) = bed(SSDP) else { return };
    bed.relay().sysctl("net/ipv4/ip_forward", "0").unwrap();
    bed.doctor(&[]).has_no("reflect");
    let Some(bed) = self::bed(&format!("{SSDP}source = \"keep\"\n")) else {
        return;
    };
    bed.relay().sysctl("net/ipv4/ip_forward", "0").unwrap();
    let diagnosis = bed.doctor(&[]);
    diagnosis.has("reflect", "note", &["ssdp", "net.ipv4.ip_forward=1"]);
    bed.relay().sysctl("net/ipv4/ip_forward", "1").unwrap();
    bed.doctor(&[]).has_no("reflect");
}
