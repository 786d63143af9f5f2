//! Generator, verifier and latency measurement.
