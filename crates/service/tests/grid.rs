//! Grid certificates at the door: proxies, trust directories that change, bans, chains made to hurt.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use exoskel_identity::{DecisionCacheLimits, GridSettings};
use exoskel_service::{
    Audit, AuditTarget, End, Outcome, Peer, Renewable as _, Rules, Settings, Stream,
};
use exoskel_trust::{Trust, TrustDirectories};
use peers::{Card, Running, Scratch};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CustomExtension, DnType,
    IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};
use time::{Duration, OffsetDateTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// By which the directory names the authority. Nobody computes it again.
const HASH: &str = "0a1b2c3d";

/// `proxyCertInfo` of RFC 3820 section 3.8 with the language `id-ppl-inheritAll`.
const PROXY_INFORMATION: [u64; 9] = [1, 3, 6, 1, 5, 5, 7, 1, 14];
const INHERIT_ALL: [u8; 14] = [0x30, 12, 0x30, 10, 0x06, 8, 0x2b, 6, 1, 5, 5, 7, 21, 1];

/// A grid with one authority, in a directory as the IGTF has it.
struct Grid {
    issuer: Issuer<'static, KeyPair>,
    anchors: PathBuf,
}

fn params(serial: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.serial_number = Some(SerialNumber::from(serial));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = OffsetDateTime::now_utc() - Duration::hours(1);
    params.not_after = OffsetDateTime::now_utc() + Duration::days(3);
    params
}

impl Grid {
    fn new(directory: &Path) -> Self {
        let anchors = directory.join("certificates");
        std::fs::create_dir(&anchors).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = params(1);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::OrganizationName, "Grid");
        let root = params.self_signed(&key).unwrap();
        std::fs::write(
            anchors.join(format!("{HASH}.0")),
            peers::pem("CERTIFICATE", root.der()),
        )
        .unwrap();
        std::fs::write(
            anchors.join(format!("{HASH}.signing_policy")),
            "access_id_CA X509 '/O=Grid'\npos_rights globus CA:sign\ncond_subjects globus '\"/O=Grid/*\"'\n",
        )
        .unwrap();
        let grid = Self {
            issuer: Issuer::new(params, key),
            anchors,
        };
        grid.publish(&[]);
        grid
    }

    fn list(&self) -> PathBuf {
        self.anchors.join(format!("{HASH}.r0"))
    }

    /// Writes the list of who is revoked, as fetch-crl does: beside the old one, then over it.
    fn publish(&self, revoked: &[u64]) {
        let now = OffsetDateTime::now_utc();
        let params = CertificateRevocationListParams {
            this_update: now - Duration::hours(1),
            next_update: now + Duration::days(1),
            crl_number: SerialNumber::from(u64::try_from(revoked.len()).unwrap() + 1),
            issuing_distribution_point: None,
            revoked_certs: revoked
                .iter()
                .map(|serial| RevokedCertParams {
                    serial_number: SerialNumber::from(*serial),
                    revocation_time: now - Duration::minutes(1),
                    reason_code: None,
                    invalidity_date: None,
                })
                .collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        let new = self.anchors.join("new");
        std::fs::write(&new, peers::pem("X509 CRL", list.der())).unwrap();
        std::fs::rename(new, self.list()).unwrap();
    }

    /// A user who shows a proxy. The user's own name has no CN, so that the proxy's is the only one: the generator of
    /// certificates knows each kind of name once.
    fn proxy(&self, user: &str, serial: u64) -> Card {
        let mut params = params(serial);
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "Grid");
        name.push(DnType::OrganizationalUnitName, user);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let issuer = Issuer::new(params.clone(), key);
        let mut below = params.clone();
        below.serial_number = Some(SerialNumber::from(4711));
        below.distinguished_name.push(DnType::CommonName, "4711");
        let mut information =
            CustomExtension::from_oid_content(&PROXY_INFORMATION, INHERIT_ALL.to_vec());
        information.set_criticality(true);
        below.custom_extensions = vec![information];
        let key = KeyPair::generate().unwrap();
        let proxy = below.signed_by(&key, &issuer).unwrap();
        Card {
            serial,
            chain: vec![proxy.der().clone(), certificate.der().clone()],
            key: Arc::new(PrivatePkcs8KeyDer::from(key.serialize_der()).into()),
        }
    }

    fn trust(&self) -> Arc<Trust> {
        let directories = TrustDirectories {
            anchors: self.anchors.clone(),
            vomsdir: None,
        };
        let cache = DecisionCacheLimits::default();
        Trust::open(directories, GridSettings::default(), cache).unwrap()
    }
}

/// Tells the client its distinguished name, then sends back what comes.
async fn greet(mut stream: Stream, peer: Peer) {
    let name = peer.identity().grid_subject().unwrap_or_default();
    let greeting = format!("{name}\n");
    let mut buffer = [0; 64];
    let _ = stream.write_all(greeting.as_bytes()).await;
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}

async fn greeting(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(line).unwrap().trim_end().to_owned())
}

fn start(scratch: Scratch, grid: &Grid, change: impl FnOnce(&mut Settings)) -> Running {
    let trust = grid.trust();
    Running::start_in(scratch, greet, |settings| {
        settings.verifier = trust;
        change(settings);
    })
}

#[tokio::test]
async fn proxies_come_in_with_either_version_and_one_verdict() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let trust = grid.trust();
    let shared = trust.clone();
    let server = Running::start_in(scratch, greet, |settings| settings.verifier = shared);
    let card = grid.proxy("Ada", 7);
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = server.client(&card, &[], &[version]);
        let socket = TcpStream::connect(server.address).await.unwrap();
        let mut stream = peers::connect(config, socket).await.unwrap();
        assert_eq!(greeting(&mut stream).await.unwrap(), "/O=Grid/OU=Ada");
    }
    let statistics = trust.statistics();
    assert_eq!((statistics.judged, statistics.identities_found), (1, 1));
    server.stop().await;
}

#[tokio::test]
async fn who_is_revoked_is_out_although_cached() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let server = start(scratch, &grid, |_| ());
    let (ada, bob) = (grid.proxy("Ada", 7), grid.proxy("Bob", 8));
    let mut of_ada = server.connect(&ada).await.unwrap();
    let mut of_bob = server.connect(&bob).await.unwrap();
    assert_eq!(greeting(&mut of_ada).await.unwrap(), "/O=Grid/OU=Ada");
    assert_eq!(greeting(&mut of_bob).await.unwrap(), "/O=Grid/OU=Bob");
    assert!(!server.handle.renew().await.changed, "no file has changed");
    // A list that is half written, or empty, or gone bad says nothing: the last good one counts.
    for bad in ["", "-----BEGIN X509 CRL-----\nMIIB"] {
        std::fs::write(grid.list(), bad).unwrap();
        let renewal = server.handle.renew().await;
        assert!(renewal.faults[0].contains(HASH), "{:?}", renewal.faults);
        let mut again = server.connect(&ada).await.unwrap();
        assert_eq!(greeting(&mut again).await.unwrap(), "/O=Grid/OU=Ada");
    }
    grid.publish(&[7]);
    let renewal = server.handle.renew().await;
    assert!(renewal.changed && renewal.faults.is_empty(), "{renewal:?}");
    assert!(of_ada.read_u8().await.is_err());
    of_bob.write_all(b"x").await.unwrap();
    assert_eq!(of_bob.read_u8().await.unwrap(), b'x');
    let refused = match server.connect(&ada).await {
        Ok(mut stream) => greeting(&mut stream).await.unwrap_err(),
        Err(error) => error,
    };
    assert!(
        refused.to_string().contains("CertificateRevoked"),
        "{refused}"
    );
    // Without any list nobody can say who is revoked.
    std::fs::remove_file(grid.list()).unwrap();
    server.handle.renew().await;
    assert!(of_bob.read_u8().await.is_err());
    server.stop().await;
}

#[tokio::test]
async fn trust_changes_without_a_failed_handshake() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let server = start(scratch, &grid, |_| ());
    let card = grid.proxy("Ada", 7);
    for round in 0..20_u64 {
        // A new list each time, which does not concern this client.
        grid.publish(&vec![1000; usize::try_from(round).unwrap() + 1]);
        let one = async {
            let mut stream = server.connect(&card).await.unwrap();
            greeting(&mut stream).await.unwrap()
        };
        let (renewal, first, second) = tokio::join!(server.handle.renew(), one, async {
            let mut stream = server.connect(&card).await.unwrap();
            greeting(&mut stream).await.unwrap()
        });
        assert!(renewal.changed);
        assert_eq!([first, second], ["/O=Grid/OU=Ada", "/O=Grid/OU=Ada"]);
    }
    assert_eq!(server.handle.metrics().handshakes(Outcome::Accepted), 40);
    assert_eq!(server.handle.metrics().ended(End::NoLongerGood), 0);
    server.stop().await;
}

#[tokio::test]
async fn who_is_banned_is_out_at_once() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let policy = scratch.path().join("policy.toml");
    let bans = scratch.path().join("bans");
    std::fs::write(&bans, "").unwrap();
    std::fs::write(
        &policy,
        "[deny]\nban_list = \"bans\"\n[[allow.rule]]\naction = \"connect\"\ndn = \"/O=Grid/*\"\n",
    )
    .unwrap();
    let rules = Rules::open(&policy).unwrap();
    let server = start(scratch, &grid, |settings| settings.rules = Some(rules));
    let (ada, bob) = (grid.proxy("Ada", 7), grid.proxy("Bob", 8));
    let mut of_ada = server.connect(&ada).await.unwrap();
    let mut of_bob = server.connect(&bob).await.unwrap();
    greeting(&mut of_ada).await.unwrap();
    greeting(&mut of_bob).await.unwrap();
    // Nobody asks the server to look: it does so by itself.
    std::fs::write(&bans, "/O=Grid/OU=Ada\n").unwrap();
    assert!(of_ada.read_u8().await.is_err());
    of_bob.write_all(b"x").await.unwrap();
    assert_eq!(of_bob.read_u8().await.unwrap(), b'x');
    // Rules that can't be read change nothing.
    std::fs::write(&policy, "[[allow.rule]]\nfqan = 7\n").unwrap();
    server.handle.renew_rules().await;
    assert!(match server.connect(&ada).await {
        Ok(mut stream) => greeting(&mut stream).await.is_err(),
        Err(_) => true,
    });
    drop(of_bob);
    server.stop().await;
}

/// Chains from the vectors, shown by somebody who has none of their keys.
#[tokio::test]
async fn chains_made_to_hurt_are_refused() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../vectors/identity");
    let manifest = std::fs::read_to_string(vectors.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    let time = manifest["time"].as_u64().unwrap();
    let trust = Trust::open(
        TrustDirectories {
            anchors: vectors.join("trust/default"),
            vomsdir: Some(vectors.join("vomsdir/default")),
        },
        GridSettings::default(),
        DecisionCacheLimits::default(),
    )
    .unwrap();
    assert!(!trust.renew().changed);
    let scratch = Scratch::new();
    let trail = scratch.path().join("audit");
    let audit = Audit::open(&AuditTarget::File(trail.clone())).unwrap();
    let server = Running::start_in(scratch, greet, |settings| {
        settings.verifier = trust;
        settings.audit = audit;
        settings.time = Arc::new(Fixed(time));
    });
    let key = server.authority.user("thief").key;
    let chain = |name: &str| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(vectors.join(format!("chains/{name}.pem")))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap()
    };
    let big = chain("eec_person");
    let cases = [
        chain("depth_100"),
        chain("chain_of_40"),
        chain("certificate_35k"),
        // More than the engine takes in one message.
        vec![CertificateDer::from(vec![0x30; 50 * 1024]), big[0].clone()],
        vec![CertificateDer::from(vec![0x30; 70 * 1024]), big[0].clone()],
        vec![big[0].clone(); 60],
        big,
    ];
    for chain in cases {
        let card = Card {
            serial: 0,
            chain,
            key: key.clone(),
        };
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let config = server.client(&card, &[], &[version]);
            let socket = TcpStream::connect(server.address).await.unwrap();
            let refused = match peers::connect(config, socket).await {
                Ok(mut stream) => greeting(&mut stream).await.is_err(),
                Err(_) => true,
            };
            assert!(refused);
        }
    }
    let metrics = server.handle.metrics();
    assert_eq!(metrics.handshakes(Outcome::Accepted), 0);
    assert_eq!(metrics.panics(), 0);
    let scratch = server.stop().await;
    let lines = std::fs::read_to_string(&trail).unwrap();
    // The last chain is a good one of somebody else.
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let reason = last["reason"].as_str().unwrap();
    assert!(reason.contains("did not prove"), "{reason}");
    assert!(last["claimed_subject"].as_str().unwrap().contains("Alice"));
    drop(scratch);
}

#[derive(Debug)]
struct Fixed(u64);

impl rustls::time_provider::TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            self.0,
        )))
    }
}
