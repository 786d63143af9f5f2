//! How long packets stay in MCR: the same number wherever it is shown.

use api::reply::RuleStats;

use crate::bed::Bed;

#[test]
fn how_long_packets_stay_is_shown_on_both_paths() {
    for path in ["kernel", "userspace"] {
        let Some(bed) = Bed::with_tools(&[], &["--path", path]) else {
            return;
        };
        bed.add();
        let stream = bed.stream(2000);
        let is_sampled = |rule: &RuleStats| rule.residence.iter().any(|one| one.samples > 5);
        let sampled = bed
            .daemon
            .wait_for("cam1", "some are looked at", is_sampled);
        let [residence] = &sampled.unwrap().residence[..] else {
            panic!("on one path");
        };
        assert_eq!(residence.path, path);
        assert!(residence.sum_seconds > 0.0);
        let packets: u64 = residence.buckets.iter().map(|bucket| bucket.packets).sum();
        assert_eq!(packets, residence.samples);
        // On the kernel path it depends on the host whether there are timestamps.
        if path == "userspace" {
            assert_eq!(residence.stamped, residence.samples);
        }
        let shown = bed.daemon.mcr(&["show", "cam1"]).unwrap();
        let line = format!("stay      {path}: half ");
        assert!(shown.contains(&line), "no {line:?} in {shown}");
        drop(stream);
    }
}
