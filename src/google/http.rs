//! One HTTP call: credentials, a timeout an attempt, a bound on the answer, retries for reads
//! alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use backon::{BackoffBuilder, ExponentialBuilder};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::auth::{Credentials, Signed};
use super::classify::{excerpt, http_failure_masked, quota_project_denied};
use super::origin::Origin;
use crate::model::failure::{Failure, FailureClass};
use crate::resource::mask::Mask;

/// The largest answer that is read: a page of 100 nodes with 512 KiB of metadata each fits.
const BODY_MAX: usize = 64 << 20;
/// Attempts of one read.
const ATTEMPTS: usize = 4;
/// A longer `Retry-After` than this is not waited out within one read: the next poll comes anyway.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);

/// Names the project on whose quota a call counts; calls of a user without it count on gcloud's own
/// project and are refused.
const QUOTA_PROJECT: &str = "x-goog-user-project";

/// A mutation's connection is there by then, or the mutation is not sent.
pub const CONNECT_MAX: Duration = Duration::from_secs(2);

/// The headers of a mutation's credentials, fetched before it leaves.
pub struct Prepared(Signed);

/// Told about each attempt: method's name, how long it took, and the failure if it was one.
pub trait Observer: Send + Sync {
    /// One attempt is over.
    fn attempt(&self, method: &'static str, took: Duration, failure: Option<&Failure>);
    /// An answer that came through as JSON turned out not to be the API's.
    fn rejected(&self, method: &'static str, failure: &Failure);
}

/// Whether the server may have carried a failed request out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It never left.
    No,
    /// It left and was certainly refused.
    Refused,
    /// It left; what became of it is not known.
    Perhaps,
}

/// A failed attempt.
#[derive(Debug, Clone)]
pub struct CallFailure {
    /// The failure itself.
    pub failure: Failure,
    /// Whether the server may have carried it out.
    pub sent: Sent,
    /// It was refused for its access token (HTTP 401), and another one may be had.
    pub with_another_token: bool,
    retry_after: Option<Duration>,
    repeat: Repeat,
}

/// When a read that failed may be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// As its class says.
    ByClass,
    /// At once: it was refused for its quota project, which is left out from now on.
    WithoutQuotaProject,
    /// Not by this read: the library asks for a token again in its own time, and gives the same
    /// failure until then.
    NoToken,
}

impl CallFailure {
    /// A failure that no server asked to wait for.
    pub fn of(failure: Failure, sent: Sent) -> Self {
        CallFailure {
            failure,
            sent,
            with_another_token: false,
            retry_after: None,
            repeat: Repeat::ByClass,
        }
    }

    pub(super) fn new(class: FailureClass, message: String, sent: Sent) -> Self {
        CallFailure::of(Failure::new(class, message), sent)
    }
}

/// One call, as often as it is attempted.
struct Call<'a> {
    name: &'static str,
    method: Method,
    url: &'a str,
    body: Option<&'a Value>,
    origin: Origin,
}

/// The transport below the typed clients.
#[derive(Clone)]
pub struct Http {
    client: reqwest::Client,
    // Connects quickly or not at all: what was checked right before a mutation must still hold when
    // it leaves.
    mutations: reqwest::Client,
    credentials: Credentials,
    // Set when the API refused the quota project, for as long as the process lives.
    no_quota_project: Arc<AtomicBool>,
    // Whose credentials these are, once that is known.
    account: Arc<OnceLock<String>>,
    // The same proxies as the client takes, to name them in an error.
    proxies: Arc<Matcher>,
    timeout: Duration,
    observer: Arc<dyn Observer>,
}

impl Http {
    /// A transport with `timeout` for each attempt.
    ///
    /// # Errors
    /// When the TLS roots of the machine can't be loaded.
    pub fn new(
        credentials: Credentials,
        timeout: Duration,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, Failure> {
        let client = |connect: Duration| {
            reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .user_agent(concat!("tpu-watchdog/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(connect)
                .build()
                .map_err(|error| {
                    Failure::new(
                        FailureClass::Transient,
                        format!("the HTTP client can't be made: {}", chain(&error)),
                    )
                })
        };
        let mutations = client(timeout.min(CONNECT_MAX))?;
        Ok(Http {
            client: client(timeout)?,
            mutations,
            credentials,
            no_quota_project: Arc::default(),
            account: Arc::default(),
            proxies: Arc::new(Matcher::from_system()),
            timeout,
            observer,
        })
    }

    /// Whatever a mutation needs before it can leave at once: an access token.
    ///
    /// # Errors
    /// When there is none: nothing can be sent.
    pub async fn prepare(&self) -> Result<Prepared, Failure> {
        self.credentials.headers(self.timeout).await.map(Prepared)
    }

    /// A read: repeated with exponential backoff and jitter on 429, 5xx and broken connections,
    /// until `deadline`; at once, and once, with another access token on 401.
    ///
    /// # Errors
    /// The last failure.
    pub async fn read(
        &self,
        name: &'static str,
        method: Method,
        url: &str,
        body: Option<&Value>,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let read = self.repeated(name, method, url, body, deadline, ATTEMPTS);
        read.await.map_err(|error| error.failure)
    }

    /// A read for whose failure there is a remedy: it is not repeated.
    ///
    /// # Errors
    /// The failure, for [`Http::wait_out`].
    pub async fn ask(
        &self,
        name: &'static str,
        method: Method,
        url: &str,
        body: Option<&Value>,
        deadline: Instant,
    ) -> Result<Value, CallFailure> {
        self.repeated(name, method, url, body, deadline, 1).await
    }

    /// Waits as long as the server asked for before anything else is tried.
    ///
    /// # Errors
    /// The failure itself when that is too long.
    pub async fn wait_out(&self, error: CallFailure, deadline: Instant) -> Result<(), Failure> {
        let Some(wait) = error.retry_after else { return Ok(()) };
        if wait > RETRY_AFTER_MAX || Instant::now() + wait >= deadline {
            return Err(error.failure);
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }

    async fn repeated(
        &self,
        name: &'static str,
        method: Method,
        url: &str,
        body: Option<&Value>,
        deadline: Instant,
        attempts: usize,
    ) -> Result<Value, CallFailure> {
        let mut waits = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(300))
            .with_max_delay(Duration::from_secs(8))
            .with_max_times(attempts - 1)
            .with_jitter()
            .build();
        let (mut without_quota_project, mut with_another_token) = (false, false);
        let call = Call { name, method, url, body, origin: Origin::READ };
        loop {
            let error = match self.once(&call, None, deadline).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            if error.with_another_token && !std::mem::replace(&mut with_another_token, true) {
                continue;
            }
            let passing = match error.repeat {
                Repeat::WithoutQuotaProject
                    if !std::mem::replace(&mut without_quota_project, true) =>
                {
                    continue;
                }
                Repeat::NoToken => false,
                _ => matches!(error.failure.class, FailureClass::Transient | FailureClass::Rate),
            };
            let Some(wait) = waits.next().filter(|_| passing) else { return Err(error) };
            let wait = error.retry_after.map_or(wait, |asked| asked.max(wait));
            if wait > RETRY_AFTER_MAX || Instant::now() + wait >= deadline {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// The `Date` of an answer of any kind, asked for without credentials.
    pub async fn date(&self, url: &str, limit: Duration) -> Option<String> {
        let answer = tokio::time::timeout(limit, self.client.head(url).send()).await.ok()?.ok()?;
        Some(answer.headers().get(reqwest::header::DATE)?.to_str().ok()?.to_owned())
    }

    /// The text of a metadata server, as Google's documentation asks for it.
    pub async fn metadata(&self, host: &str, path: &str, limit: Duration) -> Option<String> {
        let url = format!("http://{host}/computeMetadata/v1/{path}");
        let request = self.client.get(url).header("Metadata-Flavor", "Google").send();
        let answer = tokio::time::timeout(limit, request).await.ok()?.ok()?;
        let answer = answer.error_for_status().ok()?;
        tokio::time::timeout(limit, answer.text()).await.ok()?.ok()
    }

    /// Names the account that the credentials are of: a refusal tells whom it concerns.
    pub fn asks_as(&self, account: String) {
        // It is the same account each time.
        let _ = self.account.set(account);
    }

    /// A refusal for want of a permission, with whom it concerns and what to do.
    fn refused_whom(&self, mut failure: Failure) -> Failure {
        if failure.class == FailureClass::Permission && !self.is_anonymous() {
            let account = self.account.get().map_or("the logged-in user", String::as_str);
            failure.message += &format!(
                " The caller is {account}. Roles: tpuWatchdog (deploy/iam/role.yaml), for training jobs roles/aiplatform.user, for actAs roles/iam.serviceAccountUser; `tpu-watchdog doctor` prints the command."
            );
        }
        failure
    }

    /// The server that could not be reached, and the proxy on the way to it.
    fn unreached(&self, url: &str, error: &dyn std::error::Error) -> String {
        let Ok(target) = url.parse::<hyper::Uri>() else { return chain(error) };
        let host = target.host().unwrap_or_default();
        match self.proxies.intercept(&target) {
            Some(proxy) => format!(
                "{host} through the proxy {} (HTTPS_PROXY, NO_PROXY): {}",
                address(proxy.uri()),
                chain(error)
            ),
            None => format!("{host}: {}", chain(error)),
        }
    }

    /// Whether nothing is sent as credentials.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.credentials, Credentials::Anonymous)
    }

    /// An answer that is JSON but not what the method returns.
    pub fn reject(&self, name: &'static str, text: String) -> Failure {
        let failure = Failure::new(FailureClass::Garbage, text);
        self.observer.rejected(name, &failure);
        failure
    }

    /// A mutation: one attempt, never repeated here.
    ///
    /// # Errors
    /// With what the server may have done.
    pub async fn mutate(
        &self,
        name: &'static str,
        method: Method,
        origin: Origin,
        url: &str,
        body: Option<&Value>,
        prepared: Prepared,
    ) -> Result<Value, CallFailure> {
        let call = Call { name, method, url, body, origin };
        self.once(&call, Some(prepared), Instant::now() + self.timeout).await
    }

    async fn once(
        &self,
        call: &Call<'_>,
        prepared: Option<Prepared>,
        deadline: Instant,
    ) -> Result<Value, CallFailure> {
        let began = Instant::now();
        let limit = self.timeout.min(deadline.saturating_duration_since(began));
        let credentials = match prepared {
            Some(Prepared(signed)) => Ok((&self.mutations, signed)),
            None => self.credentials.headers(limit).await.map(|signed| (&self.client, signed)),
        };
        let result = match credentials {
            Ok((client, signed)) => {
                let attempt = self.attempt(client, call, signed);
                tokio::time::timeout(limit.saturating_sub(began.elapsed()), attempt)
                    .await
                    .unwrap_or_else(|_| {
                        let message = format!("no answer within {:.1} s", limit.as_secs_f64());
                        Err(CallFailure::new(FailureClass::Transient, message, Sent::Perhaps))
                    })
            }
            Err(failure) => Err(CallFailure {
                failure,
                sent: Sent::No,
                with_another_token: false,
                retry_after: None,
                repeat: Repeat::NoToken,
            }),
        };
        self.observer.attempt(
            call.name,
            began.elapsed(),
            result.as_ref().err().map(|e| &e.failure),
        );
        result
    }

    async fn attempt(
        &self,
        client: &reqwest::Client,
        call: &Call<'_>,
        signed: Signed,
    ) -> Result<Value, CallFailure> {
        let Signed { mut headers, number } = signed;
        if self.no_quota_project.load(Ordering::Relaxed) {
            headers.remove(QUOTA_PROJECT);
        }
        let quota_project = headers.get(QUOTA_PROJECT).cloned();
        let mut request = client.request(call.method.clone(), call.url).headers(headers);
        if let Some(body) = call.body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let mut response = request.send().await.map_err(|error| {
            let sent =
                if error.is_connect() || error.is_builder() { Sent::No } else { Sent::Perhaps };
            let text = match sent {
                Sent::No => self.unreached(call.url, &error.without_url()),
                _ => chain(&error.without_url()),
            };
            CallFailure::new(FailureClass::Transient, text, sent)
        })?;
        let status = response.status();
        let retry_after = response
            .headers()
            .get("retry-after")
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.parse().ok())
            .map(Duration::from_secs);
        let bytes = body_of(&mut response).await?;
        let mask = Mask::of(call.body);
        if status.is_success() {
            return match serde_json::from_slice::<Value>(&bytes) {
                Ok(value) if value.is_object() => Ok(value),
                _ => {
                    let message = format!(
                        "HTTP {status}, but the answer is not a JSON object: {}",
                        excerpt(&bytes, &mask)
                    );
                    Err(CallFailure::new(FailureClass::Garbage, message, Sent::Perhaps))
                }
            };
        }
        let failure = http_failure_masked(call.origin, status.as_u16(), &bytes, &mask);
        let refused = status.is_client_error()
            && status != StatusCode::REQUEST_TIMEOUT
            && failure.class != FailureClass::Garbage;
        let mut repeat = Repeat::ByClass;
        if let Some(project) =
            quota_project.filter(|_| quota_project_denied(status.as_u16(), &bytes))
        {
            self.leave_out(project.to_str().unwrap_or_default());
            repeat = Repeat::WithoutQuotaProject;
        }
        Err(CallFailure {
            with_another_token: refused
                && status == StatusCode::UNAUTHORIZED
                && self.credentials.renew(number),
            failure: self.refused_whom(failure),
            sent: if refused { Sent::Refused } else { Sent::Perhaps },
            retry_after,
            repeat,
        })
    }

    /// The caller may not use its quota project: without one the call counts on the project that it
    /// is about.
    fn leave_out(&self, project: &str) {
        if !self.no_quota_project.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "the credentials may not use their quota project {project}, so calls leave without it from now on; if they are \
                 refused, grant serviceusage.services.use on {project} (roles/serviceusage.serviceUsageConsumer), or name \
                 another project with `gcloud auth application-default set-quota-project` or GOOGLE_CLOUD_QUOTA_PROJECT, and \
                 restart"
            );
        }
    }
}

/// The whole body of an answer, up to the bound.
async fn body_of(response: &mut reqwest::Response) -> Result<Vec<u8>, CallFailure> {
    let status = response.status();
    let mut bytes = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if bytes.len() + chunk.len() > BODY_MAX => {
                let message =
                    format!("HTTP {status}: the answer is larger than {} MiB", BODY_MAX >> 20);
                return Err(CallFailure::new(FailureClass::Garbage, message, Sent::Perhaps));
            }
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
            Ok(None) => return Ok(bytes),
            Err(error) => {
                let message = format!(
                    "HTTP {status}, but the answer broke off: {}",
                    chain(&error.without_url())
                );
                return Err(CallFailure::new(FailureClass::Transient, message, Sent::Perhaps));
            }
        }
    }
}

/// Host and port alone: a proxy's address may hold its password.
fn address(uri: &hyper::Uri) -> String {
    let host = uri.host().unwrap_or_default();
    uri.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
