//! The real world: sockets, TLS, processes; a thin router between links and data flow.
