//! The HTTP client for destinations that jobs and users name.
//!
//! Guarantees that the addresses which were decided on are the ones that are dialled: a name is resolved once, every
//! address is checked, and the connection has no other way to find an address. It uses no proxy, keeps no cookie, keeps
//! connections only for a caller that is alone with them, and follows redirects itself, so that each is decided like a
//! first request.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use reqwest::{
    Response,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_ENCODING, LOCATION},
    redirect,
};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use super::{
    address::translated,
    encoding::decode,
    host::{Destination, Host},
    look_up::LookUp,
    policy::{EgressDenied, EgressPolicy, EgressRecord, EgressRules},
    request::{InvalidRequest, OutboundRequest},
};
use base::error_chain;

/// Maximum number of redirects that are followed.
const MAX_REDIRECTS: usize = 5;
/// Maximum time until the addresses of a name are known, and then until there is a connection, with TLS.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept. Less than the 5 s after which servers of Node.js and uvicorn close one: a request that
/// is sent in that moment fails.
const KEEP_CONNECTION: Duration = Duration::from_secs(4);
/// A name with more addresses is cut: a few are enough to reach it.
const MAX_ADDRESSES: usize = 8;
const USER_AGENT: &str = concat!("gantry/", env!("CARGO_PKG_VERSION"));

/// Sends requests to destinations that the policy allows.
#[derive(Clone)]
pub struct EgressClient {
    policy: Arc<EgressPolicy>,
    look_up: LookUp,
    /// The HTTP client of the last request, which has its connections.
    last: Option<Arc<Mutex<Option<PinnedClient>>>>,
}

/// A response, with as much of its body as was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboundResponse {
    /// The URL that answered, after redirects.
    pub url: String,
    /// Where the response redirects to, if it is not followed because the request would carry its body to another origin.
    pub redirected_to: Option<String>,
    pub status: u16,
    /// The headers, in the order of the response. Values are read as Latin-1, as HTTP defines them.
    pub headers: Vec<(String, String)>,
    /// Decoded, unless `undecoded` names its encoding.
    pub body: Vec<u8>,
    pub body_end: BodyEnd,
    /// The `Content-Encoding` of a body that cannot be decoded.
    pub undecoded: Option<String>,
}

/// Why no more of a body was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// It is complete.
    Complete,
    /// It is larger than was asked for.
    TooLarge,
    /// The connection failed.
    BrokenOff,
    /// It was not complete after this time, which began with the request.
    TimedOut(Duration),
}

/// How much of a response is waited for.
#[derive(Debug, Clone, Copy)]
pub struct ResponseLimits {
    /// Maximum size of the body, as it is sent and as it is decoded.
    pub body_bytes: usize,
    /// For the whole exchange, with its redirects.
    pub time: Duration,
}

/// A response whose body the caller reads.
#[derive(Debug)]
pub struct OpenResponse {
    response: Response,
    destination: Destination,
}

impl OpenResponse {
    pub fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    /// A header, if it is visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    /// The next part of the body; `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, EgressError> {
        self.response.chunk().await.map_err(|error| transport(&self.destination, error))
    }
}

/// A request without a response.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// The destination is not allowed.
    #[error(transparent)]
    Denied(#[from] EgressDenied),
    /// A redirect leads to a destination that is not allowed, or to an invalid URL.
    #[error("the response redirects to where it is not followed: {0}")]
    Redirect(#[source] Box<EgressError>),
    /// There were more than five redirects.
    #[error("the response redirects more than {MAX_REDIRECTS} times")]
    TooManyRedirects,
    /// The name has no address.
    #[error("{0} cannot be resolved")]
    Unresolved(Host),
    /// There was no response in the time for it.
    #[error("{destination} did not answer within {} s; the request may have been carried out", time.as_secs_f64())]
    TimedOut { destination: Destination, time: Duration },
    /// The connection, TLS or the response failed.
    #[error("{destination} cannot be reached: {message}")]
    Transport {
        destination: Destination,
        /// Whether there was no connection yet, so that nothing of the request can have arrived.
        is_unsent: bool,
        /// What failed, without the URL, which may contain a credential.
        message: String,
    },
}

impl EgressError {
    /// The decision that refuses the destination, if it is refused.
    const fn denial(&self) -> Option<&EgressDenied> {
        match self {
            Self::Denied(denied) => Some(denied),
            _ => None,
        }
    }
}

impl EgressClient {
    pub const fn new(policy: Arc<EgressPolicy>, look_up: LookUp) -> Self {
        Self { policy, look_up, last: None }
    }

    /// The same client for a caller that may reach these destinations, too.
    #[must_use]
    pub fn allowing(&self, destinations: impl IntoIterator<Item = Destination>) -> Self {
        Self { policy: Arc::new(self.policy.allowing(destinations)), look_up: Arc::clone(&self.look_up), last: None }
    }

    /// The same client, which keeps its connections for a few seconds. For requests of one user to one server, which may
    /// take a connection for a login. Each request is still decided, and uses a connection only if it was made to the
    /// addresses that are allowed now.
    #[must_use]
    pub fn keeping_connections(&self) -> Self {
        Self { last: Some(Arc::default()), ..self.clone() }
    }

    /// The policy that it keeps to.
    pub const fn policy(&self) -> &Arc<EgressPolicy> {
        &self.policy
    }

    /// Sends a request under these rules and returns its response before the body. Follows no redirect.
    pub async fn open(&self, rules: &EgressRules<'_>, request: &OutboundRequest) -> Result<OpenResponse, EgressError> {
        let (response, destination) = self.send_once(rules, request, &mut Vec::new()).await?;
        Ok(OpenResponse { response, destination })
    }

    /// As [`Self::open`], and follows redirects within the request's origin that keep its method. Any other one is the
    /// response.
    pub async fn open_within_origin(
        &self,
        rules: &EgressRules<'_>,
        mut request: OutboundRequest,
    ) -> Result<OpenResponse, EgressError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.open(rules, &request).await?;
            match redirected(&request, &response.response)? {
                Some(next) if next.has_origin_of(&request) && next.method == request.method => request = next,
                _ => return Ok(response),
            }
        }
        Err(EgressError::TooManyRedirects)
    }

    /// Sends a request under these rules and reads its response. Once there are headers, what has come of the body by
    /// then is the result, however it ends. Each decision, of redirects as well, is added to `records` when it is made.
    pub async fn send(
        &self,
        rules: &EgressRules<'_>,
        request: OutboundRequest,
        limits: ResponseLimits,
        records: &mut Vec<EgressRecord>,
    ) -> Result<OutboundResponse, EgressError> {
        let mut request = request;
        request.accept_compressed();
        let deadline = Instant::now() + limits.time;
        for redirects in 0..=MAX_REDIRECTS {
            let of_redirect = |error| if redirects == 0 { error } else { EgressError::Redirect(Box::new(error)) };
            let sent = timeout_at(deadline, self.send_once(rules, &request, records)).await;
            let (response, _) = match sent {
                Ok(sent) => sent.map_err(of_redirect)?,
                Err(_) => {
                    return Err(EgressError::TimedOut { destination: request.destination()?, time: limits.time });
                }
            };
            let redirected_to = match redirected(&request, &response)? {
                // The request was allowed for its own origin, and its body with it.
                Some(next) if next.body.is_some() && !next.has_origin_of(&request) => Some(next.url.into()),
                Some(next) => {
                    request = next;
                    continue;
                }
                None => None,
            };
            let (response, received_bytes) = read(response, limits, deadline).await;
            if let Some(record) = records.last_mut() {
                record.bytes_down += received_bytes as u64;
            }
            return Ok(OutboundResponse { redirected_to, ..response });
        }
        Err(EgressError::TooManyRedirects)
    }

    async fn send_once(
        &self,
        rules: &EgressRules<'_>,
        request: &OutboundRequest,
        records: &mut Vec<EgressRecord>,
    ) -> Result<(Response, Destination), EgressError> {
        let destination = request.destination()?;
        let addresses = self.addresses(rules, &destination, None).await;
        records.extend(addresses.as_ref().err().and_then(EgressError::denial).map(EgressDenied::record));
        let addresses = addresses?;
        records.push(EgressRecord {
            destination: destination.clone(),
            allowed: true,
            rule: rules.rule_of(&destination).unwrap_or_default(),
            bytes_up: request.body.as_ref().map_or(0, Vec::len) as u64,
            bytes_down: 0,
        });
        let failed = |error: reqwest::Error| transport(&destination, error);
        let client = self.client(&destination, addresses).map_err(failed)?;
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        let response = builder.send().await.map_err(failed)?;
        Ok((response, destination))
    }

    /// A client that can connect to these addresses only: the last one, or a new one.
    fn client(&self, to: &Destination, mut addresses: Vec<SocketAddr>) -> Result<reqwest::Client, reqwest::Error> {
        // A name server gives the same addresses in another order.
        addresses.sort_unstable();
        let Some(last) = &self.last else { return PinnedClient::new(to, addresses).map(|new| new.client) };
        let mut last = last.lock();
        if let Some(last) = last.as_ref().filter(|last| last.to == *to && last.addresses == addresses) {
            return Ok(last.client.clone());
        }
        Ok(last.insert(PinnedClient::new(to, addresses)?).client.clone())
    }

    /// The addresses of a destination. One that is refused refuses them all: the name is not what it seems to be.
    pub(super) async fn addresses(
        &self,
        rules: &EgressRules<'_>,
        to: &Destination,
        look_ups: Option<&Arc<Semaphore>>,
    ) -> Result<Vec<SocketAddr>, EgressError> {
        rules.check_destination(to)?;
        let mut addresses = match &to.host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let looking_up = async {
                    let permit = match look_ups {
                        Some(look_ups) => Some(Arc::clone(look_ups).acquire_owned().await.map_err(io::Error::other)?),
                        None => None,
                    };
                    (self.look_up)(name.clone(), permit).await
                };
                let found = tokio::time::timeout(LOOK_UP_TIMEOUT, looking_up).await;
                found.ok().and_then(Result::ok).unwrap_or_default()
            }
        };
        addresses.truncate(MAX_ADDRESSES);
        if addresses.is_empty() {
            return Err(EgressError::Unresolved(to.host.clone()));
        }
        let addresses: Vec<_> = addresses.into_iter().map(|address| SocketAddr::new(address, to.port)).collect();
        for address in &addresses {
            rules.check_address(to, *address, is_own_host(translated(address.ip())))?;
        }
        Ok(addresses)
    }
}

impl fmt::Debug for EgressClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressClient").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// Whether this host has the address: only then can a socket be bound to it. Nothing is sent.
fn is_own_host(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// A client that can connect to these addresses only.
struct PinnedClient {
    to: Destination,
    addresses: Vec<SocketAddr>,
    client: reqwest::Client,
}

impl PinnedClient {
    fn new(to: &Destination, addresses: Vec<SocketAddr>) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(KEEP_CONNECTION)
            .redirect(redirect::Policy::none())
            // A proxy of the environment would resolve the name itself.
            .no_proxy()
            .dns_resolver(Arc::new(PinnedAddresses { name: to.host.to_string(), addresses: addresses.clone() }))
            .build()?;
        Ok(Self { to: to.clone(), addresses, client })
    }
}

/// Answers for one name. An address in a URL is dialled without asking.
struct PinnedAddresses {
    name: String,
    addresses: Vec<SocketAddr>,
}

impl Resolve for PinnedAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        let known = name.as_str() == self.name;
        let addresses = if known { self.addresses.clone() } else { Vec::new() };
        Box::pin(async move { Ok(Box::new(addresses.into_iter()) as Addrs) })
    }
}

fn transport(destination: &Destination, error: reqwest::Error) -> EgressError {
    let is_unsent = error.is_connect() || error.is_builder();
    EgressError::Transport { destination: destination.clone(), is_unsent, message: error_chain(&error.without_url()) }
}

/// The request that the response redirects to, if it does.
fn redirected(request: &OutboundRequest, response: &Response) -> Result<Option<OutboundRequest>, EgressError> {
    let status = response.status();
    let redirects = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|to| redirects && !to.is_empty()) else {
        return Ok(None);
    };
    let next = request.redirected(status, &String::from_utf8_lossy(location.as_bytes()));
    next.map(Some).map_err(|error| EgressError::Redirect(Box::new(EgressError::Invalid(error))))
}

/// The response, and how many bytes of its body were received.
async fn read(mut response: Response, limits: ResponseLimits, deadline: Instant) -> (OutboundResponse, usize) {
    let latin1 = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect::<String>();
    let headers = response.headers().iter();
    let headers = headers.map(|(name, value)| (name.as_str().to_owned(), latin1(value.as_bytes()))).collect();
    let (url, status) = (response.url().to_string(), response.status().as_u16());
    let encodings: Vec<_> =
        response.headers().get_all(CONTENT_ENCODING).iter().map(|value| latin1(value.as_bytes())).collect();
    let encoding = encodings.join(", ");
    let mut body = Vec::new();
    let body_end = loop {
        let chunk = match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => chunk,
            Ok(Ok(None)) => break BodyEnd::Complete,
            Ok(Err(_)) => break BodyEnd::BrokenOff,
            Err(_) => break BodyEnd::TimedOut(limits.time),
        };
        let left = limits.body_bytes - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(left)]);
        if chunk.len() > left {
            break BodyEnd::TooLarge;
        }
    };
    let received_bytes = body.len();
    let (body, body_end, undecoded) = match decode(&encoding, body, body_end, limits.body_bytes) {
        Ok((body, body_end)) => (body, body_end, None),
        Err(body) => (body, body_end, Some(encoding)),
    };
    (OutboundResponse { url, redirected_to: None, status, headers, body, body_end, undecoded }, received_bytes)
}

#[cfg(test)]
mod tests;
