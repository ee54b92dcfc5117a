//! Credentials: Application Default Credentials in all their forms (file, metadata server, workload
//! identity), or none towards a loopback address.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use google_cloud_auth::build_errors;
use google_cloud_auth::credentials::{
    AccessTokenCredentials, Builder, CacheableResource, CredentialsProvider,
};
use google_cloud_auth::errors::CredentialsError;
use object_store::gcp::GcpCredential;
use reqwest::header::HeaderMap;

use super::sources::{NoCredentials, Places, Source, reason};
use crate::model::failure::{Failure, FailureClass};

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// A token that was fetched because another one was refused is not replaced sooner: an account that
/// is disabled would ask for one with each call.
const RENEWED_AT_MOST_EVERY: Duration = Duration::from_secs(60);

/// One source of credentials for all of Google's APIs.
#[derive(Clone)]
pub enum Credentials {
    /// Nothing is sent; config allows it towards loopback only.
    Anonymous,
    /// Google's own chain; tokens are cached and renewed by the library.
    ApplicationDefault(Arc<Tokens>),
}

/// How the library's credentials are made.
type Make = Box<dyn Fn() -> Result<AccessTokenCredentials, build_errors::Error> + Send + Sync>;

/// The library's credentials, and how to make them again: it has no way to drop a token that it
/// caches.
pub struct Tokens {
    make: Make,
    source: Source,
    current: Mutex<Current>,
}

struct Current {
    credentials: AccessTokenCredentials,
    /// Counts the credentials that were made.
    number: u64,
    renewed: Option<Instant>,
}

impl Tokens {
    fn current(&self) -> MutexGuard<'_, Current> {
        // A panic leaves nothing half-done in it.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The credentials to ask for a token, and their number.
    fn credentials(&self) -> (AccessTokenCredentials, u64) {
        let current = self.current();
        (current.credentials.clone(), current.number)
    }

    /// Puts others in the place of these credentials, if they are still the current ones. The same
    /// file or server is asked again, so that a key that was replaced is found as well.
    fn replace(&self, number: u64) -> Replaced {
        let mut current = self.current();
        if current.number != number {
            return Replaced::Before;
        }
        if current.renewed.is_some_and(|at| at.elapsed() < RENEWED_AT_MOST_EVERY) {
            return Replaced::TooSoon;
        }
        current.renewed = Some(Instant::now());
        let Ok(credentials) = (self.make)() else { return Replaced::NotThere };
        current.credentials = credentials;
        current.number += 1;
        Replaced::Now
    }

    /// The library asks once and never again when a source refuses for good, or breaks off in the
    /// middle of an answer. Either may pass: others take the place of these credentials.
    fn given_up(&self, number: u64, error: &CredentialsError) {
        if !error.is_transient() {
            self.replace(number);
        }
    }
}

enum Replaced {
    /// Just now.
    Now,
    /// By another call that was refused for the same token.
    Before,
    /// Not within a minute of the last time.
    TooSoon,
    /// Not: there is nothing to make others of.
    NotThere,
}

/// The headers that carry a token, and which one it is.
#[derive(Default)]
pub struct Signed {
    /// The token, and the project on whose quota a user's calls count.
    pub headers: HeaderMap,
    /// Which of the credentials that were made gave it.
    pub number: u64,
}

// Never prints what is inside.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credentials::Anonymous => "Anonymous",
            Credentials::ApplicationDefault(..) => "ApplicationDefault",
        })
    }
}

impl Credentials {
    /// Application Default Credentials. The library reads the environment by itself; `places`
    /// is what it finds there.
    ///
    /// # Errors
    /// When there are none, with what to do about it.
    pub fn application_default(places: Places) -> Result<Self, NoCredentials> {
        let source = Source::of(places);
        let make = || Builder::default().with_scopes([SCOPE]).build_access_token_credentials();
        Credentials::made(make, source.clone()).map_err(|error| source.unusable(&error))
    }

    /// Credentials that `make` gives, as often as a token is refused.
    ///
    /// # Errors
    /// When it gives none.
    pub fn made(
        make: impl Fn() -> Result<AccessTokenCredentials, build_errors::Error> + Send + Sync + 'static,
        source: Source,
    ) -> Result<Self, build_errors::Error> {
        let current = Mutex::new(Current { credentials: make()?, number: 0, renewed: None });
        Ok(Credentials::ApplicationDefault(Arc::new(Tokens {
            make: Box::new(make),
            source,
            current,
        })))
    }

    /// Where the tokens come from; none when anonymous.
    pub fn source(&self) -> Option<&Source> {
        match self {
            Credentials::Anonymous => None,
            Credentials::ApplicationDefault(tokens) => Some(&tokens.source),
        }
    }

    /// Asks for a token, to see whether there is one. Later calls do not fetch a valid one
    /// again.
    ///
    /// # Errors
    /// When there is none within `limit`: where was looked, what came back, and what to do about
    /// it.
    pub async fn check(&self, limit: Duration) -> Result<(), NoCredentials> {
        let Credentials::ApplicationDefault(tokens) = self else { return Ok(()) };
        let (credentials, number) = tokens.credentials();
        match tokio::time::timeout(limit, credentials.access_token()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => {
                tokens.given_up(number, &error);
                Err(tokens.source.refused(&error))
            }
            Err(_) => Err(tokens.source.late(limit)),
        }
    }

    /// The headers of a request to an API: the token, and the project on whose quota a user's calls
    /// count. Nothing when anonymous.
    ///
    /// # Errors
    /// When there is no token within `limit`.
    pub async fn headers(&self, limit: Duration) -> Result<Signed, Failure> {
        let Credentials::ApplicationDefault(tokens) = self else { return Ok(Signed::default()) };
        let source = &tokens.source;
        let (credentials, number) = tokens.credentials();
        match tokio::time::timeout(limit, credentials.headers(Default::default())).await {
            Ok(Ok(CacheableResource::New { data, .. })) => Ok(Signed { headers: data, number }),
            Ok(Ok(CacheableResource::NotModified)) => {
                // Given only to callers that hold the headers already, and none is named above.
                Err(Failure::new(
                    FailureClass::Transient,
                    format!("no access token from {source}: it gives none again"),
                ))
            }
            Ok(Err(error)) => {
                tokens.given_up(number, &error);
                Err(refused(source, &error))
            }
            Err(_) => Err(late(source, limit)),
        }
    }

    /// The API refused a token (HTTP 401): it is dropped. Whether another one may be had.
    pub fn renew(&self, number: u64) -> bool {
        let Credentials::ApplicationDefault(tokens) = self else { return false };
        match tokens.replace(number) {
            Replaced::Now => tracing::warn!(
                "the API refused the access token from {} (HTTP 401); another one is fetched",
                tokens.source
            ),
            Replaced::NotThere => tracing::warn!(
                "the API refused the access token from {} (HTTP 401), and no other can be fetched from there; look at that \
                 file or server",
                tokens.source
            ),
            Replaced::Before => {}
            Replaced::TooSoon => return false,
        }
        tokens.current().number != number
    }

    /// The token alone, if one is to be sent.
    ///
    /// # Errors
    /// When there is none within `limit`.
    pub async fn token(&self, limit: Duration) -> Result<Option<String>, Failure> {
        let Credentials::ApplicationDefault(tokens) = self else { return Ok(None) };
        let (credentials, number) = tokens.credentials();
        match tokio::time::timeout(limit, credentials.access_token()).await {
            Ok(Ok(token)) => Ok(Some(token.token)),
            Ok(Err(error)) => {
                tokens.given_up(number, &error);
                Err(refused(&tokens.source, &error))
            }
            Err(_) => Err(late(&tokens.source, limit)),
        }
    }
}

fn refused(source: &Source, error: &CredentialsError) -> Failure {
    let class =
        if error.is_transient() { FailureClass::Transient } else { FailureClass::Permission };
    Failure::new(class, format!("no access token from {source}: {}", reason(error)))
}

fn late(source: &Source, limit: Duration) -> Failure {
    Failure::new(
        FailureClass::Transient,
        format!("no access token from {source} within {:.1} s", limit.as_secs_f64()),
    )
}

/// The same credentials for object storage; a token is waited for that long.
#[derive(Debug, Clone)]
pub struct StorageCredentials(pub Credentials, pub Duration);

#[async_trait::async_trait]
impl object_store::CredentialProvider for StorageCredentials {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        let token = self.0.token(self.1).await;
        let token = token.map_err(|failure| object_store::Error::Generic {
            store: "gcs",
            source: Box::new(failure),
        })?;
        Ok(Arc::new(GcpCredential { bearer: token.unwrap_or_default() }))
    }
}
