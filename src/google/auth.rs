//! Credentials: Application Default Credentials in all their forms (file, metadata server, workload
//! identity), or none towards a loopback address.

use std::sync::Arc;
use std::time::Duration;

use google_cloud_auth::credentials::{
    AccessTokenCredentials, Builder, CacheableResource, CredentialsProvider,
};
use google_cloud_auth::errors::CredentialsError;
use object_store::gcp::GcpCredential;
use reqwest::header::HeaderMap;

use super::sources::{NoCredentials, Places, Source, reason};
use crate::model::failure::{Failure, FailureClass};

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// One source of credentials for all of Google's APIs.
#[derive(Clone)]
pub enum Credentials {
    /// Nothing is sent; config allows it towards loopback only.
    Anonymous,
    /// Google's own chain; tokens are cached and renewed by the library.
    ApplicationDefault(AccessTokenCredentials, Source),
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
    /// Application Default Credentials. The library reads the environment by itself; `places` is
    /// what it finds there.
    ///
    /// # Errors
    /// When there are none, with what to do about it.
    pub fn application_default(places: Places) -> Result<Self, NoCredentials> {
        let source = Source::of(places);
        match Builder::default().with_scopes([SCOPE]).build_access_token_credentials() {
            Ok(tokens) => Ok(Credentials::ApplicationDefault(tokens, source)),
            Err(error) => Err(source.unusable(&error)),
        }
    }

    /// Asks for a token, to see whether there is one. One that is there is not fetched again by
    /// what follows.
    ///
    /// # Errors
    /// When there is none within `limit`: where was looked, what came back, and what to do about
    /// it.
    pub async fn check(&self, limit: Duration) -> Result<(), NoCredentials> {
        let Credentials::ApplicationDefault(tokens, source) = self else { return Ok(()) };
        match tokio::time::timeout(limit, tokens.access_token()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(source.refused(&error)),
            Err(_) => Err(source.late(limit)),
        }
    }

    /// The headers of a request to an API: the token, and the project on whose quota a user's calls
    /// count. Nothing when anonymous.
    ///
    /// # Errors
    /// When there is no token within `limit`.
    pub async fn headers(&self, limit: Duration) -> Result<HeaderMap, Failure> {
        let Credentials::ApplicationDefault(tokens, source) = self else {
            return Ok(HeaderMap::new());
        };
        match tokio::time::timeout(limit, tokens.headers(Default::default())).await {
            Ok(Ok(CacheableResource::New { data, .. })) => Ok(data),
            Ok(Ok(CacheableResource::NotModified)) => {
                // Given only to callers that hold the headers already, and none is named above.
                Err(Failure::new(
                    FailureClass::Transient,
                    format!("no access token from {source}: it gives none again"),
                ))
            }
            Ok(Err(error)) => Err(refused(source, &error)),
            Err(_) => Err(late(source, limit)),
        }
    }

    /// The token alone, if one is to be sent.
    ///
    /// # Errors
    /// When there is none within `limit`.
    pub async fn token(&self, limit: Duration) -> Result<Option<String>, Failure> {
        let Credentials::ApplicationDefault(tokens, source) = self else { return Ok(None) };
        match tokio::time::timeout(limit, tokens.access_token()).await {
            Ok(Ok(token)) => Ok(Some(token.token)),
            Ok(Err(error)) => Err(refused(source, &error)),
            Err(_) => Err(late(source, limit)),
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
