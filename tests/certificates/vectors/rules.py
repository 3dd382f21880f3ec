"""The rules that the vectors are about: an identifier, where it is written, what it says."""

from __future__ import annotations

# An identifier is also the `reason` of a refusal, or the reason why an attribute certificate counts for nothing.
RULES: dict[str, tuple[str, str]] = {
    # --- certificates -----------------------------------------------------------------------------
    "encoding": (
        "RFC 5280 4.1",
        "each element is one DER certificate, nothing missing, nothing after it, both algorithm fields alike",
    ),
    "extension-once": ("RFC 5280 4.2", "no extension stands twice in a certificate"),
    "alternative-names": (
        "RFC 5280 4.2.1.6",
        "where there are alternative names of the subject, there is one at least, and none is empty",
    ),
    "signature": ("RFC 5280 6.1.3 (a)(1)", "each certificate is signed by the key of the next one"),
    "validity": (
        "RFC 5280 6.1.3 (a)(2)",
        "the time lies between notBefore and notAfter of every certificate",
    ),
    "revoked": ("RFC 5280 6.1.3 (a)(3)", "no certificate that an authority issued is on its list"),
    "crl-missing": (
        "RFC 5280 6.3",
        "there is a list for every authority of the path, unless settings ask only where there is one",
    ),
    "crl-current": (
        "RFC 5280 6.3.3 (a)",
        "the time lies between thisUpdate and nextUpdate of a list",
    ),
    "crl-issuer": (
        "RFC 5280 6.3.3 (f)-(g)",
        "a list is signed by its authority, whose key may sign lists",
    ),
    "crl-encoding": (
        "RFC 5280 5.1 to 5.3",
        "a list is DER, with no extension twice in it or in one of its entries",
    ),
    "crl-extensions": (
        "RFC 5280 5.2 and 5.3",
        "a list decides about the certificates that it says it is about; with a critical extension that isn't understood it decides nothing",
    ),
    "trust-anchor": (
        "RFC 5280 6.1.1 (d)",
        "the path ends at an authority of the trust directory, through names that chain",
    ),
    "trust-names": (
        "OpenSSL HASH.0, HASH.1",
        "authorities whose names collide, or are equal, are all tried",
    ),
    "intermediate": (
        "RFC 5246 7.4.2, RFC 8446 4.4.2",
        "intermediate authorities come from the peer or from the trust directory",
    ),
    "ca-basic-constraints": ("RFC 5280 6.1.4 (k)", "an issuer of certificates is a CA"),
    "ca-key-usage": ("RFC 5280 6.1.4 (n)", "an authority with a keyUsage has keyCertSign"),
    "ca-path-length": (
        "RFC 5280 6.1.4 (m)",
        "no more authorities follow than the path length allows, that of the anchor too",
    ),
    "name-constraints": (
        "RFC 5280 6.1.3 (b)-(c)",
        "names lie within what the authorities above are permitted",
    ),
    "critical-extension": (
        "RFC 5280 4.2",
        "a critical extension that isn't understood refuses the certificate",
    ),
    "key-usage": (
        "RFC 5280 4.2.1.3, RFC 8446 4.4.2.2",
        "the key of the leaf may make digital signatures",
    ),
    "extended-key-usage": (
        "RFC 5280 4.2.1.12",
        "a leaf with an extended key usage may be a TLS client, or server",
    ),
    "ca-extended-key-usage": (
        "RFC 5280 4.2.1.12, OpenSSL",
        "an authority with an extended key usage, the anchor too, may sign for TLS clients, or servers, as what is below it",
    ),
    "end-entity": (
        "RFC 5280 6.1.5",
        "the leaf is no authority, and only authorities issue end entities",
    ),
    "digest": (
        "NIST SP 800-131A",
        "SHA-2 signs everything but the anchors themselves; no SHA-1, no MD5",
    ),
    "key-strength": (
        "NIST SP 800-131A",
        "keys are RSA 2048 or P-256 at least, those of anchors RSA 1024",
    ),
    "rsa-numbers": (
        "RFC 8017 3.1; own bound, 33 bits",
        "the modulus of an RSA key is odd and positive, its exponent odd and from 3 to 33 bits long",
    ),
    "signing-policy": (
        "Globus EACL signing_policy",
        "an authority signs the names that its signing_policy allows",
    ),
    "namespaces": (
        "EUGridPMA namespaces",
        "an authority signs the names that its namespaces file permits",
    ),
    "chain-order": (
        "RFC 8446 4.4.2",
        "the leaf comes first; the others in any order, strangers and copies among them don't count",
    ),
    "chain-length": ("own bound, 32", "a peer sends at most so many certificates"),
    "certificate-size": ("own bound, 32 KiB", "a certificate has at most so many bytes"),
    "extension-size": ("own bound, 8 KiB", "an extension has at most so many bytes"),
    # --- proxies ----------------------------------------------------------------------------------
    "proxy": ("RFC 3820 3", "a full proxy is its issuer"),
    "proxy-issuer": ("RFC 3820 3.1", "end entities and proxies issue proxies, authorities don't"),
    "proxy-name": ("RFC 3820 3.4", "the subject is the issuer's with one commonName more"),
    "proxy-alternative-names": (
        "RFC 3820 3.2 and 3.5",
        "no issuer's and no subject's alternative name",
    ),
    "proxy-usage": (
        "RFC 3820 3.6",
        "an issuer of proxies has digitalSignature where it has a keyUsage",
    ),
    "proxy-not-ca": ("RFC 3820 3.7", "a proxy is no authority"),
    "proxy-info": ("RFC 3820 3.8", "proxyCertInfo is there once, critical and sound"),
    "proxy-path-length": (
        "RFC 3820 3.8.1",
        "no more proxies follow than each one's path length allows",
    ),
    "proxy-language": (
        "RFC 3820 3.8.2",
        "the policy's language is understood, or allowed by name; inheritance and independence have no policy",
    ),
    "proxy-limited": ("Globus limited proxies", "what is below a limited proxy is limited"),
    "proxy-independent": (
        "RFC 3820 3.8.2",
        "an independent proxy is somebody of its own, without its issuers' attributes",
    ),
    "proxy-depth": ("own bound, 10", "no more proxies than settings allow"),
    "proxy-legacy": (
        "Globus Toolkit 2",
        "proxies that only their name shows are refused unless settings allow them",
    ),
    "proxy-draft": (
        "draft-ietf-pkix-proxy-06",
        "proxies of the draft are refused unless settings allow them",
    ),
    "proxy-mixed": ("RFC 3820 3.1", "proxies of two kinds are never in one chain"),
    # --- attribute certificates -------------------------------------------------------------------
    "ac": (
        "RFC 5755, VOMS",
        "an attribute certificate gives its holder's names in a virtual organisation, in order",
    ),
    "ac-encoding": ("RFC 5755 4.1", "the extension holds attribute certificates, in DER"),
    "ac-place": (
        "VOMS",
        "the certificate nearest the leaf that holds any decides; those of issuers above it, or of certificates beside the path, don't count",
    ),
    "ac-holder": ("RFC 5755 4.2.2", "the holder is the end entity of the chain"),
    "ac-issuer": ("RFC 5755 4.2.3", "the issuer's name is the signer's"),
    "ac-signature": ("RFC 5755 5", "it is signed by its signer's key, with a good algorithm"),
    "ac-validity": ("RFC 5755 4.2.6", "the time lies in its validity"),
    "ac-targets": ("RFC 5755 4.3.2", "one of its targets is this host, where it has targets"),
    "ac-extensions": ("RFC 5755 4.3", "a critical extension that isn't understood refuses it"),
    "ac-vo": ("VOMS vomsdir", "its signer is named for that virtual organisation"),
    "ac-signer-list": (
        "VOMS .lsc",
        "the signer's chain is one that an .lsc file lists, name by name",
    ),
    "ac-signer-pinned": ("VOMS .pem", "or the signer's certificate is there itself"),
    "ac-signer-path": ("RFC 5755 5", "the signer's own path holds: anchor, validity, revocation"),
    "ac-attributes": ("VOMS", "the names begin with the virtual organisation's"),
}
