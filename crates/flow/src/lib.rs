//! Skeleton programs as macro data flow: who runs what next, without I/O.
