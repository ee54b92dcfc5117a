//! Credentials: Application Default Credentials in all their forms (file, metadata server, workload identity), or none
//! towards a loopback address.

use std::sync::Arc;
use std::time::Duration;

use google_cloud_auth::credentials::{AccessTokenCredentials, Builder};
use object_store::gcp::GcpCredential;

use crate::model::failure::{Failure, FailureClass};

const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// One source of credentials for all of Google's APIs.
#[derive(Clone)]
pub enum Credentials {
    /// Nothing is sent; config allows it towards loopback only.
    Anonymous,
    /// Google's own chain; tokens are cached and renewed by the library.
    ApplicationDefault(AccessTokenCredentials),
}

// Never prints what is inside.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credentials::Anonymous => "Anonymous",
            Credentials::ApplicationDefault(_) => "ApplicationDefault",
        })
    }
}

impl Credentials {
    /// Application Default Credentials.
    ///
    /// # Errors
    /// When there are none, with what to do about it.
    pub fn application_default() -> Result<Self, Failure> {
        let built = Builder::default().with_scopes([SCOPE]).build_access_token_credentials();
        built.map(Credentials::ApplicationDefault).map_err(|error| {
            let advice = "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS, or give the VM a service account";
            Failure::new(FailureClass::Permission, format!("no credentials: {error}; {advice}"))
        })
    }

    /// The bearer token of a request, if one is to be sent.
    ///
    /// # Errors
    /// When the token can't be had now.
    pub async fn token(&self) -> Result<Option<String>, Failure> {
        match self {
            Credentials::Anonymous => Ok(None),
            Credentials::ApplicationDefault(credentials) => match credentials.access_token().await {
                Ok(token) => Ok(Some(token.token)),
                Err(error) => Err(Failure::new(FailureClass::Permission, format!("no access token: {error}"))),
            },
        }
    }
}

/// The same credentials for object storage; a token is waited for that long.
#[derive(Debug, Clone)]
pub struct StorageCredentials(pub Credentials, pub Duration);

#[async_trait::async_trait]
impl object_store::CredentialProvider for StorageCredentials {
    type Credential = GcpCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
        let token = tokio::time::timeout(self.1, self.0.token()).await.unwrap_or_else(|_| {
            Err(Failure::new(FailureClass::Transient, format!("no access token within {:.1} s", self.1.as_secs_f64())))
        });
        let token = token.map_err(|failure| object_store::Error::Generic { store: "gcs", source: Box::new(failure) })?;
        Ok(Arc::new(GcpCredential { bearer: token.unwrap_or_default() }))
    }
}
