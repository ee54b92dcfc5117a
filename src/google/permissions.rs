//! Rights and the clock, asked for by an operator who wants to know before the night whether all is
//! there (`doctor`). No decision rests on these answers.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use reqwest::Method;
use serde_json::{Value, json};

use super::tpu::{TpuClient, encode};
use crate::model::failure::Failure;

impl TpuClient {
    /// The permissions among these that the caller lacks in the project
    /// (`projects.testIamPermissions` of the Resource Manager API); none where nothing is asked:
    /// anonymous credentials, or an endpoint that is not Google's.
    ///
    /// # Errors
    /// When it can't be asked.
    pub async fn lacking(
        &self,
        permissions: &[&str],
        deadline: Instant,
    ) -> Option<Result<Vec<String>, Failure>> {
        let base = self.checks.resource_manager.as_ref().filter(|_| !self.http.is_anonymous())?;
        let url = format!("{base}/v3/projects/{}:testIamPermissions", encode(&self.project));
        let body = json!({ "permissions": permissions });
        let method = "projects.testIamPermissions";
        let answer = self.http.read(method, Method::POST, &url, Some(&body), deadline).await;
        let lacks = |answer: Value| {
            let granted: Vec<&str> = answer["permissions"]
                .as_array()
                .map(|granted| granted.iter().filter_map(Value::as_str).collect())
                .unwrap_or_default();
            let lacks = permissions.iter().filter(|wanted| !granted.contains(wanted));
            lacks.map(|wanted| (*wanted).to_owned()).collect()
        };
        Some(answer.map(lacks))
    }

    /// The location of a bucket, and its type (`region`, `dual-region`, `multi-region`), in Google's words
    /// (`buckets.get` of the Cloud Storage JSON API).
    ///
    /// # Errors
    /// When it can't be read: it takes a right that reading the objects does not.
    pub async fn bucket_location(
        &self,
        bucket: &str,
        deadline: Instant,
    ) -> Result<(String, String), Failure> {
        let base = self.checks.storage.as_deref().unwrap_or_default();
        let bucket = encode(bucket);
        let url = format!("{base}/storage/v1/b/{bucket}?fields=location,locationType");
        let raw = self.http.read("buckets.get", Method::GET, &url, None, deadline).await?;
        let text = |key: &str| raw[key].as_str().unwrap_or_default().to_owned();
        Ok((text("location"), text("locationType")))
    }

    /// Names the account that the credentials are of, for refusals.
    pub fn asks_as(&self, account: String) {
        self.http.asks_as(account);
    }

    /// The account that a metadata server gives tokens for.
    pub async fn account_at(&self, host: &str, limit: Duration) -> Option<String> {
        let path = "instance/service-accounts/default/email";
        self.http.metadata(host, path, limit).await.map(|email| email.trim().to_owned())
    }

    /// How far the clock of this machine is from the API's (`Date` of an answer, to the second), and
    /// whether it is ahead; none where no answer has one.
    pub async fn skew(&self, limit: Duration) -> Option<(Duration, bool)> {
        let text = self.http.date(&self.endpoint, limit).await?;
        let theirs = rfc2822::parse(&text).ok()?.timestamp();
        let ours = Timestamp::now();
        let skew = ours.duration_since(theirs);
        Some((skew.unsigned_abs(), ours > theirs))
    }
}
