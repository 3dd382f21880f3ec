//! Gateways: nodes that connect networks which can't reach each other.
//!
//! A node proves itself to its gateway and names the node that it wants. The gateway judges, reaches that node, and joins the two
//! connections in the kernel. Both ends then shake hands with each other over what is now a tunnel: the gateway has no
//! key of theirs, and each end knows that somebody stands between.
//!
//! - [`connect_through`], [`Registration`]: the two ends' part
//! - [`service`]: the gateway's own

mod budget;
pub mod service;
mod tunnel;

use std::io;
use std::time::Duration;

use exoskel_identity::{Identity, Role};
use exoskel_link::CodecError;
use exoskel_link::handshake::{
    GatewayCall, HandshakeError, NodeConfig, ProcessNumber, Purpose, Refuse, RefuseReason, Ticket,
};

pub use exoskel_node::gateway::GatewayLimits;
use exoskel_node::links::Hindrance;

use crate::address::Address;
use crate::establish::for_gateway::{AnsweredConnection, ask};
use crate::establish::{EstablishError, hindrance_of};
use crate::socket::{Socket, SocketKind};

/// How long a gateway may take to accept a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long a gateway may take for its answer: it tries several ways, and other gateways do so for it.
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Why a gateway was of no use.
#[derive(Debug, thiserror::Error)]
#[error("gateway {name} at {address}: {problem}")]
pub struct GatewayError {
    /// The name that it has to prove.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// What went wrong.
    #[source]
    pub problem: GatewayProblem,
}

impl GatewayError {
    /// Whether it doesn't know the process of the node that was asked for, and others of that node.
    pub(crate) fn is_other_process(&self) -> bool {
        let GatewayProblem::Refused(refuse) = &self.problem else {
            return false;
        };
        refuse.reason == RefuseReason::OtherProcess
    }
}

/// What went wrong with a gateway.
#[derive(Debug, thiserror::Error)]
pub enum GatewayProblem {
    /// Nobody accepts connections there.
    #[error("can't connect: {0}")]
    Connect(#[source] io::Error),
    /// The network doesn't answer.
    #[error("no connection within {0:?}")]
    NoConnection(Duration),
    /// No handshake came about.
    #[error(transparent)]
    Establish(EstablishError),
    /// It says no.
    #[error("refused: {}", .0.text.sentence())]
    Refused(Refuse),
    /// It said something else than a call.
    #[error("can't read its call: {0}")]
    Call(#[source] CodecError),
    /// The name of the node can't be one.
    #[error("got the name {0:?} of a node, expected that of its certificate")]
    Name(String),
    /// A connection of a kind that can't be a tunnel.
    #[error("expected a TCP connection: gateways listen at tcp://HOST:PORT")]
    NoTcp,
}

impl GatewayProblem {
    /// What stood between the two.
    pub(crate) fn hindrance(&self) -> Hindrance {
        match self {
            Self::Establish(error) => error.hindrance(),
            Self::Refused(refuse) => hindrance_of(&refuse.reason),
            _ => Hindrance::Way,
        }
    }
}

impl From<EstablishError> for GatewayProblem {
    fn from(error: EstablishError) -> Self {
        match error {
            EstablishError::Handshake(HandshakeError::Refused(refuse)) => Self::Refused(refuse),
            other => Self::Establish(other),
        }
    }
}

/// One gateway, and how we present ourselves to it.
#[derive(Clone)]
struct OneGateway {
    address: Address,
    name: String,
    config: NodeConfig,
}

impl OneGateway {
    fn new(address: &Address, name: &str, config: &NodeConfig) -> Self {
        Self {
            address: address.clone(),
            name: name.to_owned(),
            config: NodeConfig {
                peer_roles: vec![Role::Gateway],
                // It runs nothing of ours.
                same_versions: Vec::new(),
                properties: Vec::new(),
                job: 0,
                ..config.clone()
            },
        }
    }

    async fn ask(&self, purpose: Purpose) -> Result<AnsweredConnection, GatewayError> {
        let asked = async {
            let connected = tokio::time::timeout(CONNECT_TIME, self.address.connect()).await;
            let connected = connected.map_err(|_| GatewayProblem::NoConnection(CONNECT_TIME))?;
            let socket = connected.map_err(GatewayProblem::Connect)?;
            if socket.kind() != SocketKind::Tcp {
                return Err(GatewayProblem::NoTcp);
            }
            Ok(ask(socket, &self.config, &self.name, purpose, ANSWER_TIME).await?)
        };
        asked.await.map_err(|problem| self.error(problem))
    }

    /// A tunnel that this gateway makes for us.
    async fn tunnel(&self, purpose: Purpose) -> Result<Socket, GatewayError> {
        let socket = self.ask(purpose).await?.into_socket();
        let socket = socket.ok_or(GatewayProblem::NoTcp);
        Ok(socket.map_err(|problem| self.error(problem))?.relayed())
    }

    fn error(&self, problem: GatewayProblem) -> GatewayError {
        GatewayError {
            name: self.name.clone(),
            address: self.address.clone(),
            problem,
        }
    }
}

/// Has a gateway connect us with a node, or with one process of that node. What comes is a connection to that node, on which nothing was said yet: shake hands with the
/// node over it, by its name.
///
/// # Errors
/// [`GatewayError`], with each way that the gateway has tried.
///
/// # Security
/// Nobody has proved to be the node so far. The gateway can read, alter and cut what goes over the connection, as anybody on a network
/// can, and the handshake treats it as unproven.
pub async fn connect_through(
    gateway: &Address,
    gateway_name: &str,
    node: &str,
    process: Option<ProcessNumber>,
    config: &NodeConfig,
) -> Result<Socket, GatewayError> {
    let gateway = OneGateway::new(gateway, gateway_name, config);
    connect(&gateway, node, process, Vec::new()).await
}

async fn connect(
    gateway: &OneGateway,
    node: &str,
    process: Option<ProcessNumber>,
    on_behalf_of: Vec<Identity>,
) -> Result<Socket, GatewayError> {
    // The gateway would refuse the whole Hello, and couldn't say why so well.
    let named = Identity::from_statement(Role::Manager, node);
    let Ok(Identity { name, .. }) = named else {
        return Err(gateway.error(GatewayProblem::Name(node.to_owned())));
    };
    let purpose = Purpose::Connect {
        node: name,
        process,
        on_behalf_of,
    };
    gateway.tunnel(purpose).await
}

/// A node that can't be dialled, waiting at its gateway for calls.
pub struct Registration {
    gateway: OneGateway,
    connection: AnsweredConnection,
}

/// A call that came over a registration: somebody wants to reach us.
pub struct IncomingCall {
    gateway: OneGateway,
    ticket: Ticket,
    asked_by: Identity,
}

impl Registration {
    /// Registers at a gateway.
    ///
    /// # Errors
    /// [`GatewayError`].
    pub async fn begin(
        gateway: &Address,
        gateway_name: &str,
        config: &NodeConfig,
    ) -> Result<Self, GatewayError> {
        let gateway = OneGateway::new(gateway, gateway_name, config);
        let connection = gateway.ask(Purpose::Register).await?;
        Ok(Self {
            gateway,
            connection,
        })
    }

    /// Waits for calls for as long as the gateway keeps us, and hands each to `called`. Gives why it doesn't any more: register again.
    pub async fn serve(mut self, mut called: impl FnMut(IncomingCall)) -> GatewayError {
        loop {
            let message = match self.connection.receive().await {
                Ok(message) => message,
                Err(error) => return self.gateway.error(error.into()),
            };
            match GatewayCall::read(&message) {
                Ok(GatewayCall { ticket, asked_by }) => called(IncomingCall {
                    gateway: self.gateway.clone(),
                    ticket,
                    asked_by,
                }),
                Err(error) => return self.gateway.error(GatewayProblem::Call(error)),
            }
        }
    }
}

impl IncomingCall {
    /// Who wants to reach us, as the gateway says: no proof.
    #[must_use]
    pub fn asked_by(&self) -> &Identity {
        &self.asked_by
    }

    /// Dials back. What comes is a connection on which the other end will begin a handshake: welcome it.
    ///
    /// # Errors
    /// [`GatewayError`], also when this comes too late.
    ///
    /// # Security
    /// As [`connect_through`].
    pub async fn answer(self) -> Result<Socket, GatewayError> {
        let Self {
            gateway, ticket, ..
        } = self;
        gateway.tunnel(Purpose::Callback { ticket }).await
    }
}
