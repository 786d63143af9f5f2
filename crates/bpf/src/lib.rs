//! Kernel path: the BPF programs, their layout in Rust, loading and pinning.
