//! Listings of checkpoints that failed, for the person who has to mend them.

use crate::model::failure::{Failure, FailureClass};

/// A listing that failed, in words that say what to do.
pub fn listing_failure(uri: &str, error: &object_store::Error) -> Failure {
    let text = error.to_string();
    let status = text.split("status code: ").nth(1).and_then(|rest| rest.get(..3));
    let bucket = uri.split('/').take(3).collect::<Vec<_>>().join("/");
    match (error, status) {
        (
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. },
            _,
        )
        | (_, Some("401" | "403")) => {
            let grant = if uri.starts_with("gs://") {
                format!(
                    "grant it: gcloud storage buckets add-iam-policy-binding {bucket} --role roles/storage.objectViewer --member \
                     serviceAccount:ACCOUNT-OF-THE-WATCHDOG"
                )
            } else {
                format!("grant it the right to list {bucket}")
            };
            let code = status.unwrap_or("403");
            Failure::new(
                FailureClass::Permission,
                format!("the watchdog may not list {uri} (HTTP {code}); {grant}"),
            )
        }
        (object_store::Error::NotFound { .. }, _) | (_, Some("404")) => Failure::new(
            FailureClass::NotFound,
            format!("{bucket} does not exist (HTTP 404), so {uri} can't be listed"),
        ),
        _ => Failure::new(FailureClass::Transient, format!("listing {uri} failed: {text}")),
    }
}
