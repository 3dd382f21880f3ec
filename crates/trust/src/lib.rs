//! Trust directories on disk, read and kept current for those who judge peers.

#![forbid(unsafe_code)]
