//! Descriptors handed from one process to another.
