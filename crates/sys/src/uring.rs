//! The io_uring of a worker.
