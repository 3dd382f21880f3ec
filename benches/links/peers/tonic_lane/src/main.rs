//! tonic: unary calls and a stream of messages, bytes as they are, plain and with TLS at both ends. See `turns.py` for what a lane is.
//!
//!     tonic_lane AUTHORITY CHAIN KEY

use std::convert::Infallible;
use std::error::Error;
use std::future::{Future, Ready, ready};
use std::io::{BufRead, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::{Buf, BufMut, Bytes};
use http::uri::PathAndQuery;
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{ClientStreamingService, Grpc as ServerGrpc, NamedService, UnaryService};
use tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig,
};
use tonic::{Request, Response, Status, Streaming};

type Failure = Box<dyn Error + Send + Sync>;

const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// Wide enough that flow control is not what is measured.
const WINDOW_BYTES: u32 = 16 << 20;

/// Bytes as they are.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

/// The service: `/bench.Lane/echo` and `/bench.Lane/take`.
#[derive(Clone, Copy)]
struct Far;

impl NamedService for Far {
    const NAME: &'static str = "bench.Lane";
}

impl UnaryService<Bytes> for Far {
    type Response = Bytes;
    type Future = Ready<Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl ClientStreamingService<Bytes> for Far {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        Box::pin(async move {
            let mut messages = request.into_inner();
            let mut bytes = 0_u64;
            while let Some(message) = messages.next().await {
                bytes += message?.len() as u64;
            }
            Ok(Response::new(Bytes::copy_from_slice(&bytes.to_le_bytes())))
        })
    }
}

impl tower_service::Service<http::Request<Body>> for Far {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move {
            let mut grpc = ServerGrpc::new(Raw)
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX);
            Ok(match request.uri().path() {
                "/bench.Lane/echo" => grpc.unary(Far, request).await,
                _ => grpc.client_streaming(Far, request).await,
            })
        })
    }
}

async fn serve(tls: Option<ServerTlsConfig>) -> Result<std::net::SocketAddr, Failure> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut server = Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES);
    if let Some(tls) = tls {
        server = server.tls_config(tls)?;
    }
    let incoming = tonic::transport::server::TcpIncoming::from(listener).with_nodelay(Some(true));
    tokio::spawn(server.add_service(Far).serve_with_incoming(incoming));
    Ok(address)
}

async fn connect(
    address: std::net::SocketAddr,
    tls: Option<ClientTlsConfig>,
) -> Result<Grpc<Channel>, Failure> {
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))?
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .tcp_nodelay(true);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls)?;
    }
    let channel = endpoint.connect().await?;
    Ok(Grpc::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX))
}

async fn turn(
    lane: &mut Grpc<Channel>,
    is_stream: bool,
    bytes: usize,
    count: usize,
) -> Result<(), Failure> {
    let message = Bytes::from(vec![7; bytes]);
    if is_stream {
        let messages = tokio_stream::iter(std::iter::repeat_n(message, count));
        lane.ready().await?;
        let path = PathAndQuery::from_static("/bench.Lane/take");
        let taken = lane
            .client_streaming(Request::new(messages), path, Raw)
            .await?
            .into_inner();
        if taken != (bytes as u64 * count as u64).to_le_bytes()[..] {
            return Err("not everything has come".into());
        }
        return Ok(());
    }
    for _ in 0..count {
        lane.ready().await?;
        let path = PathAndQuery::from_static("/bench.Lane/echo");
        lane.unary(Request::new(message.clone()), path, Raw).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let files: Vec<_> = std::env::args().skip(1).collect();
    let [authority, chain, key] = &files[..] else {
        return Err("expected AUTHORITY CHAIN KEY".into());
    };
    // Several are there, by what the other peers ask of the same library.
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider
        .install_default()
        .map_err(|_| "there is a provider already")?;
    let authority = Certificate::from_pem(std::fs::read(authority)?);
    let identity = Identity::from_pem(std::fs::read(chain)?, std::fs::read(key)?);
    let server = ServerTlsConfig::new()
        .identity(identity.clone())
        .client_ca_root(authority.clone());
    let client = ClientTlsConfig::new()
        .identity(identity)
        .ca_certificate(authority)
        .domain_name("localhost");
    let mut plain = connect(serve(None).await?, None).await?;
    let mut secure = connect(serve(Some(server)).await?, Some(client)).await?;
    println!("ping_tonic_plain stream_tonic_plain ping_tonic_tls stream_tonic_tls");
    std::io::stdout().flush()?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, bytes, count] = words[..] else {
            return Err("expected LANE BYTES COUNT".into());
        };
        let lane = if name.ends_with("tls") {
            &mut secure
        } else {
            &mut plain
        };
        let start = Instant::now();
        match turn(
            lane,
            name.starts_with("stream"),
            bytes.parse()?,
            count.parse()?,
        )
        .await
        {
            Ok(()) => println!("{:.9}", start.elapsed().as_secs_f64()),
            Err(error) => println!("failed {error}"),
        }
        std::io::stdout().flush()?;
    }
    Ok(())
}
