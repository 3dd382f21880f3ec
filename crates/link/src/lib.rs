//! Links between authenticated processes: records, sessions, endpoints and policy, without I/O.
