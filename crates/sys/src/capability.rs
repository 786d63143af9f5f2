//! Capabilities, no-new-privileges and the other fences of a process.
