//! Network namespaces: enter one on a thread of its own, run there, come back.
