//! Grid certificates at the door: proxies, trust directories that change, bans, chains made to hurt.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::routing::get;
use axum::{Extension, Router};
use exoskel_identity::{DecisionCacheLimits, GridSettings, VerifiedIdentity};
use exoskel_service::{
    Audit, ConnectionEnd, Front, FrontSettings, HandshakeOutcome, Http, LogTarget, Peer,
    Renewable as _, Rules, Settings, Stream, Upstream,
};
use exoskel_trust::{Trust, TrustDirectories};
use hyper::body::Incoming;
use peers::behind::{Behind, Body, text};
use peers::{Card, Running, Scratch, audited, raw};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SerialNumber,
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
    vomsdir: PathBuf,
}

type Voms = rcgen::CertifiedIssuer<'static, KeyPair>;

fn params(serial: u64) -> CertificateParams {
    let mut params = peers::params(serial);
    // Nothing but what is named here.
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

impl Grid {
    fn new(directory: &Path) -> Self {
        let anchors = directory.join("certificates");
        std::fs::create_dir(&anchors).unwrap();
        let vomsdir = directory.join("vomsdir");
        std::fs::create_dir_all(vomsdir.join("vo")).unwrap();
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
            vomsdir,
        };
        grid.publish(&[]);
        grid
    }

    fn list(&self) -> PathBuf {
        self.anchors.join(format!("{HASH}.r0"))
    }

    /// Writes the list of who is revoked, as fetch-crl does: beside the old one, then over it.
    fn publish(&self, revoked: &[u64]) {
        let number = u64::try_from(revoked.len()).unwrap() + 1;
        let list = peers::revocation_list(&self.issuer, number, revoked);
        let new = self.anchors.join("new");
        std::fs::write(&new, peers::pem("X509 CRL", &list)).unwrap();
        std::fs::rename(new, self.list()).unwrap();
    }

    /// A user who shows a proxy. The user's own name has no CN, so that the proxy's is the only one: the generator of
    /// certificates knows each kind of name once.
    fn proxy(&self, user: &str, serial: u64) -> Card {
        self.proxy_with(user, serial, &[], |_| Vec::new())
    }

    /// As [`proxy`](Self::proxy), of a user with these extended key usages, and with further extensions, which may depend
    /// on the user's certificate.
    fn proxy_with(
        &self,
        user: &str,
        serial: u64,
        purposes: &[ExtendedKeyUsagePurpose],
        further: impl FnOnce(&CertificateDer<'_>) -> Vec<CustomExtension>,
    ) -> Card {
        let mut params = params(serial);
        let name = &mut params.distinguished_name;
        name.push(DnType::OrganizationName, "Grid");
        name.push(DnType::OrganizationalUnitName, user);
        params.extended_key_usages = purposes.to_vec();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let issuer = Issuer::new(params.clone(), key);
        let mut below = params.clone();
        below.extended_key_usages = Vec::new();
        below.serial_number = Some(SerialNumber::from(4711));
        below.distinguished_name.push(DnType::CommonName, "4711");
        let mut information =
            CustomExtension::from_oid_content(&PROXY_INFORMATION, INHERIT_ALL.to_vec());
        information.set_criticality(true);
        below.custom_extensions = vec![information];
        below.custom_extensions.extend(further(certificate.der()));
        let key = KeyPair::generate().unwrap();
        let proxy = below.signed_by(&key, &issuer).unwrap();
        Card {
            serial,
            chain: vec![proxy.der().clone(), certificate.der().clone()],
            key: Arc::new(PrivatePkcs8KeyDer::from(key.serialize_der()).into()),
        }
    }

    /// A server that signs attribute certificates.
    fn voms(&self) -> Voms {
        let mut server = params(100);
        let name = &mut server.distinguished_name;
        name.push(DnType::OrganizationName, "Grid");
        name.push(DnType::CommonName, "voms");
        let key = KeyPair::generate().unwrap();
        rcgen::CertifiedIssuer::signed_by(server, key, &self.issuer).unwrap()
    }

    /// Has a server speak for the organisation `vo`.
    fn pin(&self, voms: &Voms) -> PathBuf {
        let pinned = self.vomsdir.join("vo/voms.pem");
        std::fs::write(&pinned, voms.pem()).unwrap();
        pinned
    }

    fn trust(&self) -> Arc<Trust> {
        let directories = TrustDirectories {
            anchors: self.anchors.clone(),
            vomsdir: Some(self.vomsdir.clone()),
        };
        let cache = DecisionCacheLimits::default();
        Trust::open(directories, GridSettings::default(), cache).unwrap()
    }
}

/// Tells the client its distinguished name, then sends back what comes.
async fn greet(mut stream: Stream, peer: Peer) {
    let name = peer.identity().grid_subject().unwrap_or_default();
    let first_line = format!("{name}\n");
    let mut buffer = [0; 64];
    let _ = stream.write_all(first_line.as_bytes()).await;
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}

async fn first_line(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<String> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        line.push(stream.read_u8().await?);
    }
    Ok(String::from_utf8(line).unwrap().trim_end().to_owned())
}

impl Running {
    /// What the server says first, over a connection of its own.
    async fn greeted(&self, card: &Card) -> std::io::Result<String> {
        first_line(&mut self.connect(card).await?).await
    }
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
        assert_eq!(first_line(&mut stream).await.unwrap(), "/O=Grid/OU=Ada");
    }
    let statistics = trust.statistics();
    assert_eq!((statistics.judged, statistics.identities_found), (1, 1));
    server.stop().await;
}

#[tokio::test]
async fn who_is_revoked_is_out_although_cached() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let trust = grid.trust();
    let shared = trust.clone();
    let server = start(scratch, &grid, |settings| settings.verifier = shared);
    let (ada, bob) = (grid.proxy("Ada", 7), grid.proxy("Bob", 8));
    let mut of_ada = server.connect(&ada).await.unwrap();
    let mut of_bob = server.connect(&bob).await.unwrap();
    assert_eq!(first_line(&mut of_ada).await.unwrap(), "/O=Grid/OU=Ada");
    assert_eq!(first_line(&mut of_bob).await.unwrap(), "/O=Grid/OU=Bob");
    assert!(!server.handle.renew().await.changed, "no file has changed");
    // A list that is half written, or empty, or gone bad says nothing: the last good one counts.
    for bad in ["", "-----BEGIN X509 CRL-----\nMIIB"] {
        std::fs::write(grid.list(), bad).unwrap();
        let renewal = server.handle.renew().await;
        assert!(renewal.faults[0].contains(HASH), "{:?}", renewal.faults);
        let mut again = server.connect(&ada).await.unwrap();
        assert_eq!(first_line(&mut again).await.unwrap(), "/O=Grid/OU=Ada");
    }
    assert!(trust.statistics().identities_found > 0, "it is cached");
    grid.publish(&[7]);
    let renewal = server.handle.renew().await;
    assert!(renewal.changed && renewal.faults.is_empty(), "{renewal:?}");
    assert!(of_ada.read_u8().await.is_err());
    of_bob.write_all(b"x").await.unwrap();
    assert_eq!(of_bob.read_u8().await.unwrap(), b'x');
    let refused = match server.connect(&ada).await {
        Ok(mut stream) => first_line(&mut stream).await.unwrap_err(),
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

fn der(tag: u8, content: &[&[u8]]) -> Vec<u8> {
    let content = content.concat();
    let length = u16::try_from(content.len()).unwrap();
    let mut whole = vec![tag, 0x82];
    match u8::try_from(length) {
        Ok(short @ 0..0x80) => whole = vec![tag, short],
        Ok(short) => whole = vec![tag, 0x81, short],
        Err(_) => whole.extend(length.to_be_bytes()),
    }
    whole.extend(content);
    whole
}

fn subject(certificate: &CertificateDer<'_>) -> Vec<u8> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).unwrap();
    parsed.subject().as_raw().to_vec()
}

/// The extension of VOMS with a role for the holder of that certificate.
fn role(server: &Voms, holder: &CertificateDer<'_>, serial: u8) -> CustomExtension {
    use rcgen::SigningKey as _;
    let general = |name: &[u8]| der(0x30, &[&der(0xa4, &[name])]);
    // ecdsa-with-SHA256
    let algorithm = der(0x30, &[&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]]);
    let kind = [6, 10, 0x2b, 6, 1, 4, 1, 0xbe, 0x45, 100, 100, 4];
    let authority = der(0xa0, &[&der(0x86, &[b"vo://voms.example.org:15000"])]);
    let values = der(
        0x30,
        &[
            &authority,
            &der(0x30, &[&der(4, &[b"/vo/Role=production"])]),
        ],
    );
    let time = |from: Duration| {
        let time = (OffsetDateTime::now_utc() + from).date();
        let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
        der(
            0x18,
            &[format!("{year:04}{month:02}{day:02}000000Z").as_bytes()],
        )
    };
    let signed = der(
        0x30,
        &[
            &[2, 1, 1],
            &der(
                0x30,
                &[&der(0xa0, &[&general(&subject(holder)), &[2, 1, serial]])],
            ),
            &der(0xa0, &[&general(&subject(server.der()))]),
            &algorithm,
            &[2, 1, 9],
            &der(0x30, &[&time(-Duration::days(1)), &time(Duration::days(2))]),
            &der(0x30, &[&der(0x30, &[&kind, &der(0x31, &[&values])])]),
        ],
    );
    let signature = server.key().sign(&signed).unwrap();
    let one = der(0x30, &[&signed, &algorithm, &der(3, &[&[0], &signature])]);
    CustomExtension::from_oid_content(
        &[1, 3, 6, 1, 4, 1, 8005, 100, 100, 5],
        der(0x30, &[&der(0x30, &[&one])]),
    )
}

/// Who they are is still proven, what they may do is not: nobody is served by a role of yesterday.
#[tokio::test]
async fn who_loses_a_role_loses_the_connections_that_were_opened_with_it() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let voms = grid.voms();
    let pinned = grid.pin(&voms);
    let trust = grid.trust();
    let server = Running::start_in(
        scratch,
        |mut stream: Stream, peer: Peer| async move {
            let fqans: Vec<_> = peer.identity().fqans().map(ToString::to_string).collect();
            let first_line = format!("{}\n", fqans.join(" "));
            let _ = stream.write_all(first_line.as_bytes()).await;
            while stream.read_u8().await.is_ok() && stream.write_u8(b'x').await.is_ok() {}
        },
        |settings| settings.verifier = trust,
    );
    let ada = grid.proxy_with("Ada", 7, &[], |holder| vec![role(&voms, holder, 7)]);
    let bob = grid.proxy("Bob", 8);
    let mut of_ada = server.connect(&ada).await.unwrap();
    assert_eq!(
        first_line(&mut of_ada).await.unwrap(),
        "/vo/Role=production"
    );
    let mut of_bob = server.connect(&bob).await.unwrap();
    assert_eq!(first_line(&mut of_bob).await.unwrap(), "");
    // A change that is about neither of them.
    grid.publish(&[99]);
    assert!(server.handle.renew().await.changed);
    for stream in [&mut of_ada, &mut of_bob] {
        stream.write_all(b"?").await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), b'x');
    }
    std::fs::remove_file(pinned).unwrap();
    assert!(server.handle.renew().await.changed);
    assert!(of_ada.read_u8().await.is_err());
    of_bob.write_all(b"?").await.unwrap();
    assert_eq!(of_bob.read_u8().await.unwrap(), b'x');
    let mut again = server.connect(&ada).await.unwrap();
    assert_eq!(first_line(&mut again).await.unwrap(), "");
    assert_eq!(
        server.handle.metrics().ended(ConnectionEnd::NoLongerGood),
        1
    );
    drop((of_bob, again));
    server.stop().await;
}

/// What the three doors tell about who asks, in one form.
fn told(identity: &VerifiedIdentity) -> String {
    let fqans: Vec<_> = identity.fqans().map(ToString::to_string).collect();
    let name = identity.grid_subject().unwrap_or_default();
    format!("{name} {:?} {fqans:?}", identity.vo().unwrap_or_default())
}

/// Any protocol: what comes is not looked at.
async fn tell(mut stream: Stream, peer: Peer) {
    let _ = stream.read(&mut [0; 1024]).await;
    let _ = stream.finish(told(peer.identity()).as_bytes()).await;
}

/// The server behind a front, which has nothing but headers to go by.
async fn tell_from_headers(request: http::Request<Incoming>) -> http::Response<Body> {
    let field = |name| {
        let value = request.headers().get(name);
        value.map_or("\"\"", |value| value.to_str().unwrap())
    };
    let name = field("exoskel-subject").trim_matches('"');
    let fqans = field("exoskel-fqan").replace("\"\"", "");
    http::Response::new(text(&format!("{name} {} [{fqans}]", field("exoskel-vo"))))
}

#[tokio::test]
async fn each_door_tells_the_organisation_and_the_attributes() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let (voms, unknown) = (grid.voms(), grid.voms());
    grid.pin(&voms);
    let behind = Behind::start(&scratch, tell_from_headers);
    let front = FrontSettings::new(Upstream::Unix(scratch.path().join("app.sock")));
    let application = Router::new().route(
        "/",
        get(|Extension(who): Extension<_>| async move { told(&who) }),
    );
    let trail = |number: u8| scratch.path().join(format!("audit{number}"));
    let change = |number: u8| {
        let (trust, target) = (grid.trust(), LogTarget::File(trail(number)));
        move |settings: &mut Settings| {
            settings.verifier = trust;
            settings.audit = Audit::open(&target).unwrap();
        }
    };
    let doors = [
        Running::start(tell, change(0)),
        Running::start(Front::new(front), change(1)),
        Running::start(Http::new(application), change(2)),
    ];
    let good = grid.proxy_with("Ada", 7, &[], |holder| vec![role(&voms, holder, 7)]);
    let bad = grid.proxy_with("Ada", 8, &[], |holder| vec![role(&unknown, holder, 8)]);
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for (number, server) in (0..).zip(doors) {
        let answer = raw(&server, &good, request).await;
        let whole = r#"/O=Grid/OU=Ada "vo" ["/vo/Role=production"]"#;
        assert!(answer.ends_with(whole), "{answer}");
        // Attributes that nobody trusted has signed are none, and their owner is who they are.
        let answer = raw(&server, &bad, request).await;
        assert!(answer.ends_with(r#"/O=Grid/OU=Ada "" []"#), "{answer}");
        server.stop().await;
        let lines = audited(&trail(number));
        assert_eq!(
            lines[0]["fqans"],
            serde_json::json!(["/vo/Role=production"])
        );
        assert!(lines[0].get("attribute_faults").is_none());
        assert_eq!(lines[1]["fqans"], serde_json::json!([]));
        assert_eq!(lines[1]["verdict"], "accepted");
        assert_eq!(lines[1]["attribute_faults"].as_array().unwrap().len(), 1);
    }
    drop(behind);
}

#[tokio::test]
async fn who_needs_an_attribute_and_has_a_bad_one_stays_out() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let (voms, unknown) = (grid.voms(), grid.voms());
    grid.pin(&voms);
    let policy = scratch.path().join("policy.toml");
    let rule = "[[allow.rule]]\naction = \"connect\"\nfqan = \"/vo/Role=production\"\n";
    std::fs::write(&policy, rule).unwrap();
    let rules = Rules::open(&policy).unwrap();
    let server = start(scratch, &grid, |settings| settings.rules = Some(rules));
    let good = grid.proxy_with("Ada", 7, &[], |holder| vec![role(&voms, holder, 7)]);
    assert_eq!(server.greeted(&good).await.unwrap(), "/O=Grid/OU=Ada");
    let of_another = grid.proxy_with("Ada", 8, &[], |holder| vec![role(&voms, holder, 9)]);
    let unknown = grid.proxy_with("Ada", 9, &[], |holder| vec![role(&unknown, holder, 9)]);
    for bad in [of_another, unknown, grid.proxy("Ada", 10)] {
        server.greeted(&bad).await.unwrap_err();
    }
    server.stop().await;
}

/// RFC 5280 section 4.2.1.12: who may only serve is no client, with or without a proxy.
#[tokio::test]
async fn a_certificate_for_servers_is_no_clients_unless_the_site_says_so() {
    use ExtendedKeyUsagePurpose::{Any, ClientAuth, ServerAuth};
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let trail = scratch.path().join("audit");
    let audit = Audit::open(&LogTarget::File(trail.clone())).unwrap();
    let strict = start(scratch, &grid, |settings| settings.audit = audit);
    let lenient = start(Scratch::new(), &grid, |settings| {
        settings.server_certificates = true
    });
    for (purposes, is_client) in [
        (&[ServerAuth] as &[_], false),
        (&[ServerAuth, ClientAuth], true),
        // As OpenSSL and webpki have it, "any" is none that is asked for.
        (&[ServerAuth, Any], false),
        (&[], true),
    ] {
        let proxy = grid.proxy_with("Ada", 7, purposes, |_| Vec::new());
        assert_eq!(strict.greeted(&proxy).await.is_ok(), is_client);
        assert_eq!(lenient.greeted(&proxy).await.unwrap(), "/O=Grid/OU=Ada");
    }
    lenient.stop().await;
    let _scratch = strict.stop().await;
    let reason = audited(&trail)[0]["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("certificate 1 of the chain"), "{reason}");
    assert!(reason.contains("clientAuth"), "{reason}");
}

/// Handshakes from all sides all the time, while lists change and hangups come: each of them is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_under_load_lose_no_handshake() {
    const CLIENTS: usize = 6;
    const RELOADS: u64 = 12;
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let server = Arc::new(start(scratch, &grid, |_| ()));
    let hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
    let handle = server.handle.clone();
    let keeper = tokio::spawn(async move {
        handle
            .keep_current(std::time::Duration::from_secs(3600), hangup)
            .await;
    });
    let is_over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let answered = Arc::new(AtomicU64::new(0));
            let (server, is_over, counted) = (server.clone(), is_over.clone(), answered.clone());
            let number = u64::try_from(number).unwrap();
            let card = grid.proxy("Ada", 7 + number);
            let task = tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(server.greeted(&card).await.unwrap(), "/O=Grid/OU=Ada");
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            });
            (task, answered)
        })
        .collect();
    let generation = || {
        let text = server.handle.metrics().text();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("exoskel_trust_generation "));
        line.unwrap().parse::<u64>().unwrap()
    };
    for round in 1..=RELOADS {
        let before: Vec<_> = clients
            .iter()
            .map(|(_, count)| count.load(Ordering::Relaxed))
            .collect();
        // A new list each time, which concerns nobody here.
        grid.publish(&vec![1000; usize::try_from(round).unwrap()]);
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
        while generation() <= round {
            tokio::task::yield_now().await;
        }
        for ((task, count), before) in clients.iter().zip(before) {
            while count.load(Ordering::Relaxed) == before && !task.is_finished() {
                tokio::task::yield_now().await;
            }
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for (task, count) in clients {
        task.await.unwrap();
        answered += count.load(Ordering::Relaxed);
    }
    let metrics = server.handle.metrics();
    assert_eq!(metrics.handshakes(HandshakeOutcome::Accepted), answered);
    assert!(answered >= u64::try_from(CLIENTS).unwrap() * RELOADS);
    assert_eq!(metrics.ended(ConnectionEnd::NoLongerGood), 0);
    Arc::into_inner(server).unwrap().stop().await;
    keeper.await.unwrap();
}

#[tokio::test]
async fn who_is_banned_is_out_at_once() {
    let scratch = Scratch::new();
    let grid = Grid::new(scratch.path());
    let policy = scratch.path().join("policy.toml");
    let bans = scratch.path().join("bans");
    std::fs::write(&bans, "# nobody yet\n").unwrap();
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
    first_line(&mut of_ada).await.unwrap();
    first_line(&mut of_bob).await.unwrap();
    // Nobody asks the server to look: it does so by itself.
    std::fs::write(&bans, "/O=Grid/OU=Ada\n").unwrap();
    assert!(of_ada.read_u8().await.is_err());
    of_bob.write_all(b"x").await.unwrap();
    assert_eq!(of_bob.read_u8().await.unwrap(), b'x');
    // A list that is being written lets nobody in.
    std::fs::write(&bans, "").unwrap();
    server.handle.renew_rules().await;
    assert!(match server.connect(&ada).await {
        Ok(mut stream) => first_line(&mut stream).await.is_err(),
        Err(_) => true,
    });
    // Rules that can't be read change nothing.
    std::fs::write(&policy, "[[allow.rule]]\nfqan = 7\n").unwrap();
    server.handle.renew_rules().await;
    assert!(match server.connect(&ada).await {
        Ok(mut stream) => first_line(&mut stream).await.is_err(),
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
    let audit = Audit::open(&LogTarget::File(trail.clone())).unwrap();
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
                Ok(mut stream) => first_line(&mut stream).await.is_err(),
                Err(_) => true,
            };
            assert!(refused);
        }
    }
    let metrics = server.handle.metrics();
    assert_eq!(metrics.handshakes(HandshakeOutcome::Accepted), 0);
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
