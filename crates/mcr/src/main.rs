//! The `mcr` binary.

fn main() {}
