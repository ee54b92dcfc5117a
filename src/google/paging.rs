//! Lists that come a page at a time.

use std::collections::HashSet;
use std::time::Instant;

use reqwest::Method;
use serde_json::Value;

use super::http::{CallFailure, Sent};
use super::tpu::{TpuClient, encode};
use crate::model::failure::Failure;

/// More pages than a project has of anything: a server that never ends its list is not believed.
const PAGES_MAX: usize = 2_000;

impl TpuClient {
    /// Reads all pages of a list; `read` takes one in, and gives the token of the next. `url` has
    /// parameters already.
    ///
    /// # Errors
    /// When any page can't be read, or the list does not end.
    pub(super) async fn each_page(
        &self,
        method: &'static str,
        url: &str,
        deadline: Instant,
        read: impl FnMut(Value) -> Result<Option<String>, String>,
    ) -> Result<(), Failure> {
        let read = self.pages(method, url, (deadline, false), read).await;
        read.map_err(|error| error.failure)
    }

    /// The same, with whether the server was asked at all; `once`: no page is asked for a second time.
    ///
    /// # Errors
    /// As above.
    pub(super) async fn pages(
        &self,
        method: &'static str,
        url: &str,
        (deadline, once): (Instant, bool),
        mut read: impl FnMut(Value) -> Result<Option<String>, String>,
    ) -> Result<(), CallFailure> {
        let garbage = |text: String| CallFailure::of(self.http.reject(method, text), Sent::Perhaps);
        let (mut next, mut tokens) = (url.to_owned(), HashSet::new());
        for _ in 0..PAGES_MAX {
            let page = if once {
                self.http.ask(method, Method::GET, &next, None, deadline).await?
            } else {
                let page = self.http.read(method, Method::GET, &next, None, deadline).await;
                page.map_err(|failure| CallFailure::of(failure, Sent::Perhaps))?
            };
            let Some(token) = read(page).map_err(garbage)? else { return Ok(()) };
            next = format!("{url}&pageToken={}", encode(&token));
            if !tokens.insert(token) {
                return Err(garbage("the list repeats a page".into()));
            }
        }
        Err(garbage(format!("the list did not end within {PAGES_MAX} pages")))
    }
}
