//! AF_PACKET sockets: vnet headers, packet_fanout, statistics.
