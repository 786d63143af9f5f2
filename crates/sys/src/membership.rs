//! IGMPv3 and MLDv2 memberships, spread over as many sockets as the per-socket limits ask.
