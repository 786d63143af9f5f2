//! Memory shared between processes: memfd regions and mapped BPF arrays.
