//! Who a peer is: certificates and a time in, VerifiedIdentity out.
