//! UDP sockets for the traffic tools: sendmmsg, recvmmsg, segmentation offload, timestamps.
