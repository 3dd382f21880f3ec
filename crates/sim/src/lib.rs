//! Virtual time: the same link and flow machines through a simulated network with faults.
