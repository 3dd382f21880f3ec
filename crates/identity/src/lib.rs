//! Who a peer is: certificates and a time in, [`VerifiedIdentity`] out.
//!
//! Three types keep apart what is often mixed up. A [`Credential`] is a node's own secret. An [`Identity`] is a claim
//! that anybody can make. A [`VerifiedIdentity`] is a claim that a [`PeerVerifier`] has found proven; only it opens
//! doors, and only this crate can make one.
//!
//! [`PrivateAuthority`] is the verifier for a private authority: the role and the name stand in URIs of the leaf
//! (`exoskel:role:worker`, `exoskel:name:lab1.example.org`), and signed revocation lists take certificates back.
//!
//! [`GridVerifier`] is the verifier for grids: a [`TrustStore`] of authorities in the form of the IGTF, proxy certificates
//! of RFC 3820, revocation lists for every certificate, and the names that authorities may sign.
//!
//! The crate has no clock, no files and no sockets. Bytes and a time are arguments; `clippy.toml` holds it to that.

#![forbid(unsafe_code)]

pub mod authorization;
mod certificate;
mod claim;
mod credential;
mod date;
mod decision_cache;
mod der;
mod distinguished_name;
mod error;
mod grid;
mod hex;
pub mod limits;
mod malformed;
mod peer_text;
pub mod policy_text;
mod private_authority;
mod revocation;
mod signature;
mod slash_name;
mod trust_store;
mod verified;
mod voms;
mod which_certificate;
mod x509;

pub use authorization::Authorization;
pub use certificate::{CertificateDetails, public_key_info};
pub use claim::{ClaimError, Identity, JOB_NUMBER_BYTES, JobNumber, JobProcess, Role};
pub use credential::{
    Credential, CredentialError, CredentialKind, PrivateKey, RemoteKey, revocation_lists_from_pem,
};
pub use date::Date;
pub use decision_cache::{DecisionCache, DecisionCacheLimits, DecisionCacheStatistics};
pub use der::NotDer;
pub use distinguished_name::DistinguishedName;
pub use error::IdentityError;
pub use grid::{
    CertificateKind, ChainCertificate, ChainDetails, GridSettings, GridVerifier, NameSpaceRule,
    NameSpaces, Proxy, ProxyFault, ProxyKind, Revocation, SettingsError,
};
pub use hex::hex;
pub use malformed::Malformed;
pub use peer_text::{Colours, PeerText};
pub use private_authority::{PrivateAuthority, StaleList, TrustError};
pub use revocation::{RevocationListDetails, RevokedCertificate};
pub use trust_store::{
    AuthorityReport, BadFile, BadFileReason, ListFault, RevocationListReport, SelfSignature,
    TrustFile, TrustReport, TrustStore,
};
pub use verified::{Expected, PeerVerifier, VerifiedIdentity, fingerprint};
pub use voms::{
    AttributeCertificateDetails, AttributeFault, AttributeProblem, BadFqan, Fqan, GenericAttribute,
    SignerChainsError, VomsAttributes,
};
pub use which_certificate::WhichCertificate;
pub use x509::{PolicyLanguage, Purposes};
