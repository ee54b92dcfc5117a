//! Who may read what: the paths that are open, the token of the others, and the host's name.

use std::fmt;
use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};

use axum::http::header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A secret: it is compared, and never shown.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    /// From the content of its file.
    pub fn new(text: String) -> Self {
        Token(text)
    }

    /// Compares in a time that tells at most the token's length.
    fn is(&self, given: &[u8]) -> bool {
        let own = self.0.as_bytes();
        let differing = own.iter().zip(given).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        own.len() == given.len() && differing == 0
    }

    /// Whether a request carries it: as a bearer token, or as the password of any user, which is
    /// how a browser can ask for it.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, rest)) = given.and_then(|text| text.split_once(' ')) else {
            return false;
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            return self.is(rest.trim().as_bytes());
        }
        let password = || {
            let decoded = STANDARD.decode(rest.trim()).ok()?;
            let colon = decoded.iter().position(|byte| *byte == b':')?;
            Some(self.is(&decoded[colon + 1..]))
        };
        scheme.eq_ignore_ascii_case("basic") && password().unwrap_or(false)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Whether an address can be reached from this machine alone.
pub fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// The rules of one listener.
#[derive(Debug)]
pub struct Access {
    address: SocketAddr,
    token: Option<Token>,
}

/// Why a request is not answered.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// It came to loopback under a name that is not loopback's.
    Host(SocketAddr),
    /// Off loopback, and no token is configured.
    Closed(SocketAddr),
    /// Off loopback without the token.
    Unauthorized,
}

impl Access {
    /// For the address that is listened on.
    pub fn new(address: SocketAddr, token: Option<Token>) -> Self {
        Access { address, token }
    }

    /// Whether a request may be answered.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
        // Scrapers and probes have no token, and name the host as they reach it.
        if uri.path() == "/metrics" || uri.path().starts_with("/-/") {
            return Ok(());
        }
        if is_loopback(self.address.ip()) {
            let named = self.names_loopback(uri, headers);
            return if named { Ok(()) } else { Err(Refused::Host(self.address)) };
        }
        // Any name will do off loopback: a page that was rebound to this address has no token.
        match &self.token {
            None => Err(Refused::Closed(self.address)),
            Some(token) if token.is_in(headers) => Ok(()),
            Some(_) => Err(Refused::Unauthorized),
        }
    }

    /// Whether a request names loopback, and nothing else. A browser that was sent here by a
    /// foreign name names that one (DNS rebinding).
    fn names_loopback(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let is_ours = |authority: &Authority| {
            let host = authority.host().trim_start_matches('[').trim_end_matches(']');
            let loopback = host.eq_ignore_ascii_case("localhost")
                || host.parse::<IpAddr>().is_ok_and(is_loopback);
            let port = authority.port_u16().is_none_or(|port| port == self.address.port());
            loopback && port && !authority.as_str().contains('@')
        };
        let mut hosts = headers.get_all(HOST).iter();
        let (first, more) = (hosts.next(), hosts.next());
        let named = first.and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
        more.is_none() && named.as_ref().is_some_and(is_ours) && uri.authority().is_none_or(is_ours)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Refused::Host(address) => {
                let text = format!(
                    "This listener answers on loopback alone: open http://{address}/ (or http://localhost:{}/). The Host header of this request \
                     names another host or port.\n",
                    address.port()
                );
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Refused::Closed(address) => {
                let text = format!(
                    "This path needs a token, because {address} is not a loopback address, and no token is configured. Write one into a file \
                     that the service alone can read, set listen_token_file = \"FILE\" in its config, and restart it; or set listen = \
                     \"127.0.0.1:{}\". /metrics, /-/healthy and /-/ready need no token.\n",
                    address.port()
                );
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Refused::Unauthorized => {
                let text = "This path needs the token that is in the file of listen_token_file: send \"Authorization: Bearer TOKEN\", or give \
                            it as the password of any user. /metrics, /-/healthy and /-/ready need none.\n";
                let mut response = (StatusCode::UNAUTHORIZED, text).into_response();
                for scheme in ["Basic realm=\"tpu-watchdog\"", "Bearer realm=\"tpu-watchdog\""] {
                    let scheme = HeaderValue::from_static(scheme);
                    response.headers_mut().append(WWW_AUTHENTICATE, scheme);
                }
                response
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: &str, token: Option<&str>) -> Access {
        Access::new(address.parse().unwrap(), token.map(|text| Token::new(text.into())))
    }

    fn ask(access: &Access, uri: &str, headers: &[(&'static str, &str)]) -> Result<(), Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_str(value).unwrap());
        }
        access.check(&uri.parse().unwrap(), &map)
    }

    #[test]
    fn on_loopback_a_host_is_loopback_with_the_listeners_port_or_none() {
        let access = access("127.0.0.1:9470", None);
        for host in [
            "127.0.0.1:9470",
            "127.0.0.1",
            "127.1.2.3:9470",
            "localhost:9470",
            "LocalHost",
            "[::1]:9470",
            "[::ffff:127.0.0.1]",
        ] {
            assert_eq!(ask(&access, "/", &[("host", host)]), Ok(()), "{host}");
        }
        let refused = Err(Refused::Host(access.address));
        for host in [
            "evil.example",
            "evil.example:9470",
            "localhost.evil.example:9470",
            "127.0.0.1.evil.example",
            "127.0.0.1:80",
            "10.0.0.1:9470",
            "0.0.0.0:9470",
            "localhost@evil.example",
            "evil.example@localhost",
            "",
            "a b",
        ] {
            assert_eq!(ask(&access, "/api/v1/status", &[("host", host)]), refused, "{host}");
        }
        assert_eq!(ask(&access, "/", &[]), refused, "no host at all");
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(ask(&access, "/", &two), refused);
        let absolute = "http://evil.example/";
        assert_eq!(ask(&access, absolute, &[("host", "localhost")]), refused);
        // Scrapers and probes may use any name.
        for path in ["/metrics", "/-/healthy", "/-/ready"] {
            assert_eq!(ask(&access, path, &[("host", "evil.example")]), Ok(()), "{path}");
        }
    }

    #[test]
    fn off_loopback_the_token_is_asked_for_and_any_host_will_do() {
        let access = access("0.0.0.0:9470", Some("se:cret"));
        let asked =
            |value: &str| ask(&access, "/", &[("host", "any.example"), ("authorization", value)]);
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        for good in [
            "Bearer se:cret".into(),
            "bearer  se:cret".into(),
            basic("me:se:cret"),
            basic(":se:cret"),
        ] {
            assert_eq!(asked(&good), Ok(()), "{good}");
        }
        for bad in [
            "Bearer se:cre".into(),
            "Bearer se:crett".into(),
            "Bearer ".into(),
            "Bearer".into(),
            "se:cret".into(),
            "Digest se:cret".into(),
            "Basic ???".into(),
            basic("se:cret"),
            basic("me:"),
            basic("se:cret:"),
        ] {
            assert_eq!(asked(&bad), Err(Refused::Unauthorized), "{bad}");
        }
        assert_eq!(ask(&access, "/", &[]), Err(Refused::Unauthorized));
        for path in ["/metrics", "/-/ready"] {
            assert_eq!(ask(&access, path, &[]), Ok(()), "{path}");
        }
        for path in ["/metrics/", "/metricsx", "//metrics", "/x/-/ready", "/nothing"] {
            assert_eq!(ask(&access, path, &[]), Err(Refused::Unauthorized), "{path}");
        }
    }

    #[test]
    fn off_loopback_without_a_token_a_path_is_closed() {
        for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
            let access = access(address, None);
            let refused = Err(Refused::Closed(access.address));
            assert_eq!(ask(&access, "/", &[("authorization", "Bearer ")]), refused, "{address}");
        }
    }

    #[test]
    fn a_token_is_never_shown() {
        let access = access("0.0.0.0:1", Some("secret"));
        assert!(!format!("{access:?}").contains("secret"));
    }
}
