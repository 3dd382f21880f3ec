//! rustls, both ends with certificates, as a program would use it that wants no more than an encrypted socket.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertifiedIssuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use super::raw::{READ_BYTES, tcp_pair};
use super::{Arrivals, Failure, Lane, Lanes, payload};

pub(crate) const SERVER: &str = "far.example.org";

type Near = StreamOwned<ClientConnection, TcpStream>;

/// What both ends of all connections are made of.
pub(crate) struct Tls {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
}

impl Tls {
    /// One authority, and a certificate for each end. Nothing is resumed.
    pub(crate) fn new() -> Result<Self, Failure> {
        let mut parameters = rcgen::CertificateParams::new(Vec::new())?;
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?;
        let leaf = |name: &str| -> Result<_, Failure> {
            let key = KeyPair::generate()?;
            let leaf = rcgen::CertificateParams::new(vec![name.to_owned()])?;
            let leaf = leaf.signed_by(&key, &authority)?;
            let key = PrivateKeyDer::try_from(key.serialize_der())?;
            Ok((vec![CertificateDer::from(leaf)], key))
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone())?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (chain, key) = leaf("near.example.org")?;
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain, key)?;
        client.resumption = rustls::client::Resumption::disabled();
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build()?;
        let (chain, key) = leaf(SERVER)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)?;
        server.send_tls13_tickets = 0;
        Ok(Self {
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }

    pub(crate) fn dial(&self, socket: TcpStream) -> Result<Near, Failure> {
        let name = ServerName::try_from(SERVER)?;
        let connection = ClientConnection::new(self.client.clone(), name)?;
        Ok(StreamOwned::new(connection, socket))
    }

    pub(crate) fn welcome(
        &self,
        socket: TcpStream,
    ) -> Result<StreamOwned<ServerConnection, TcpStream>, Failure> {
        let connection = ServerConnection::new(self.server.clone())?;
        Ok(StreamOwned::new(connection, socket))
    }
}

struct TlsStream {
    near: Near,
    arrivals: Arc<Arrivals>,
}

pub(crate) fn lanes(lanes: &mut Lanes) -> Result<(), Failure> {
    let tls = Tls::new()?;
    let (near, far) = tcp_pair()?;
    let mut far = tls.welcome(far)?;
    let arrivals = Arc::new(Arrivals::new());
    let heard = arrivals.clone();
    thread::spawn(move || {
        let mut piece = vec![0; READ_BYTES];
        while let Ok(count @ 1..) = far.read(&mut piece) {
            heard.add(count as u64);
        }
    });
    let near = tls.dial(near)?;
    lanes.insert(
        "stream_rustls".to_owned(),
        Box::new(TlsStream { near, arrivals }),
    );
    Ok(())
}

impl Lane for TlsStream {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let message = payload(bytes);
        let target = self.arrivals.count() + bytes as u64 * count;
        self.arrivals.want(target);
        let start = Instant::now();
        for _ in 0..count {
            self.near.write_all(&message)?;
        }
        self.near.flush()?;
        self.arrivals.wait(target);
        Ok(start.elapsed())
    }
}
