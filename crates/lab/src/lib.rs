//! Network namespaces, topologies, scenarios and the bench.
