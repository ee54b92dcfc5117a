//! Whether a create could follow a delete (S20), asked before anything is deleted that still exists.
//!
//! Certain is only the API's own answer: a permission is missing, or what the config has changed is not
//! there. All else that may stand in the way is a doubt: the node that is looked at exists, so that its
//! type, version and service account were once good enough.

use std::time::Instant;

use futures::future::join4;
use reqwest::Method;
use serde_json::{Value, json};

use super::tpu::{TpuClient, encode};
use crate::model::failure::FailureClass;
use crate::model::lookup::{CreateCheck, NextCreate};
use crate::model::spec::NodeSpec;
use crate::resource::training::body;

const CREATE: &str = "tpu.nodes.create";
const ACT_AS: &str = "iam.serviceAccounts.actAs";

/// The answer to one question.
enum Finding {
    Fine,
    Doubt(String),
    /// The resource in question is not there, or not to be seen.
    Absent(String),
    Certain(String),
}

use Finding::{Absent, Certain, Doubt, Fine};

impl TpuClient {
    /// Whether a create of this specification could follow a delete (S20). With anonymous
    /// credentials nothing is asked.
    pub async fn create_check(&self, next: &NextCreate, deadline: Instant) -> CreateCheck {
        if self.http.is_anonymous() {
            return CreateCheck::default();
        }
        let (create, act_as, version, kind) = join4(
            self.may_create(deadline),
            self.may_act_as_its_account(next, deadline),
            self.offers(next, &VERSIONS, deadline),
            self.offers(next, &TYPES, deadline),
        )
        .await;
        let (mut check, mut certain) = (CreateCheck::default(), Vec::new());
        for finding in [create, act_as, version, kind] {
            match finding {
                Fine => {}
                Doubt(text) | Absent(text) => check.doubts.push(text),
                Certain(text) => certain.push(text),
            }
        }
        check.certain = Some(certain.join("; ")).filter(|text| !text.is_empty());
        check
    }

    /// Whether the caller may submit a training job as the service account that its specification names. One that names none
    /// runs as the service's own agent.
    pub async fn submission_check(&self, spec: &NodeSpec, deadline: Instant) -> CreateCheck {
        let Some(account) = body::account(spec).filter(|_| !self.http.is_anonymous()) else {
            return CreateCheck::default();
        };
        let mut check = CreateCheck::default();
        match self.may_act_as(account, deadline).await {
            Fine => {}
            Doubt(text) | Absent(text) => check.doubts.push(text),
            Certain(text) => {
                check.certain = Some(format!("{text}; a grant under a condition is not seen here"));
            }
        }
        check
    }

    async fn may_create(&self, deadline: Instant) -> Finding {
        let project = &self.project;
        let Some(base) = &self.checks.resource_manager else {
            return Doubt(format!(
                "whether {CREATE} is granted was not asked: api.tpu is not Google's own endpoint, and api.resource_manager is not set"
            ));
        };
        // unverified: v3 takes a project's id where it documents its number.
        // settled by: gcloud projects test-iam-permissions PROJECT tpu.nodes.create --log-http
        let url = format!("{base}/v3/projects/{}:testIamPermissions", encode(project));
        let mend = format!(
            "gcloud projects add-iam-policy-binding {project} --member serviceAccount:WATCHDOG --role roles/tpu.admin --condition None"
        );
        let place = format!("project {project}");
        let method = "projects.testIamPermissions";
        match self.granted(method, &url, CREATE, &place, &mend, deadline).await {
            Certain(why) => unseen_condition(why),
            found => found,
        }
    }

    async fn may_act_as_its_account(&self, next: &NextCreate, deadline: Instant) -> Finding {
        let named = next.spec.body().get("serviceAccount").and_then(|account| account.get("email"));
        let named = named.and_then(Value::as_str).filter(|email| email.contains('@'));
        let is_number = self.project.bytes().all(|b| b.is_ascii_digit());
        let default = || format!("{}-compute@developer.gserviceaccount.com", self.project);
        let Some(account) = named.map(str::to_owned).or_else(|| is_number.then(default)) else {
            return Doubt(format!(
                "whether {ACT_AS} is granted was not asked: the node names no service account, and that of Compute Engine's default is \
                 not known without the number of project {}; set tpu.create.service_account to have it checked",
                self.project
            ));
        };
        match self.may_act_as(&account, deadline).await {
            Absent(why) if next.new.contains(&"serviceAccount") => Certain(format!(
                "there is no service account {account}: {why}; correct service_account in its [tpu.create]; \
                 where it exists all the same, set create_check = \"warn\""
            )),
            Absent(why) => Doubt(why),
            Certain(why) => unseen_condition(why),
            found => found,
        }
    }

    async fn may_act_as(&self, account: &str, deadline: Instant) -> Finding {
        let Some(base) = &self.checks.iam else {
            return Doubt(format!(
                "whether {ACT_AS} is granted on {account} was not asked: api.tpu is not Google's own endpoint, and api.iam is not set"
            ));
        };
        // unverified: testIamPermissions takes "-" for the account's project, as get does.
        // settled by: gcloud iam service-accounts get-iam-policy ACCOUNT --log-http, and the same call with projects/-
        let url =
            format!("{base}/v1/projects/-/serviceAccounts/{}:testIamPermissions", encode(account));
        let mend = format!(
            "gcloud iam service-accounts add-iam-policy-binding {account} --member serviceAccount:WATCHDOG --role roles/iam.serviceAccountUser"
        );
        let method = "serviceAccounts.testIamPermissions";
        self.granted(method, &url, ACT_AS, account, &mend, deadline).await
    }

    /// Whether the caller has a permission on a resource.
    async fn granted(
        &self,
        method: &'static str,
        url: &str,
        permission: &str,
        place: &str,
        mend: &str,
        deadline: Instant,
    ) -> Finding {
        let body = json!({"permissions": [permission]});
        let answer = self.http.read(method, Method::POST, url, Some(&body), deadline).await;
        let granted = match answer.as_ref().map(|answer| answer.get("permissions")) {
            Ok(None) => &[],
            Ok(Some(Value::Array(granted))) => granted.as_slice(),
            Ok(Some(_)) => {
                let why = self.http.reject(method, "\"permissions\" is not a list".into());
                return Doubt(format!("whether {permission} is granted on {place}: {why}"));
            }
            Err(failure) => {
                let text = format!(
                    "whether {permission} is granted on {place} could not be asked: {failure}"
                );
                let absent = failure.class == FailureClass::NotFound;
                return if absent { Absent(text) } else { Doubt(text) };
            }
        };
        if granted.iter().any(|granted| granted == permission) {
            return Fine;
        }
        // unverified: a grant under an IAM condition is left out of the answer.
        // settled by: gcloud projects add-iam-policy-binding PROJECT --condition …, then test-iam-permissions
        Certain(format!(
            "{permission} is not granted on {place}; run, with the account that the watchdog uses in the place of WATCHDOG: {mend}"
        ))
    }

    /// Whether a zone lists a runtime version or an accelerator type.
    async fn offers(&self, next: &NextCreate, catalogue: &Catalogue, deadline: Instant) -> Finding {
        let Catalogue { field, method, path, noun, list } = catalogue;
        let (zone, name) = (&next.zone, next.spec.body().get(*field).and_then(Value::as_str));
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Fine };
        let url = format!("{}/{path}/{}", self.parent(zone), encode(name));
        match self.http.read(method, Method::GET, &url, None, deadline).await {
            Ok(_) => Fine,
            Err(failure) if failure.class == FailureClass::NotFound && next.new.contains(field) => {
                Certain(format!(
                    "{zone} does not offer the {noun} {name}, which the config asks for: {failure}; correct it in its [[tpu]]; {list} --zone \
                     {zone} shows what there is"
                ))
            }
            Err(failure) if failure.class == FailureClass::NotFound => Doubt(format!(
                "{zone} does not list the {noun} {name}, although a node has it: a create may be refused; {list} --zone {zone} shows \
                 what it offers"
            )),
            Err(failure) => Doubt(format!(
                "whether {zone} offers the {noun} {name} could not be asked: {failure}"
            )),
        }
    }
}

/// A permission is missing, as far as this check can see.
fn unseen_condition(why: String) -> Finding {
    Certain(format!(
        "{why}; where it is granted under a condition, which this check does not see, set create_check = \"warn\""
    ))
}

/// A list of a zone's offers.
struct Catalogue {
    field: &'static str,
    method: &'static str,
    path: &'static str,
    noun: &'static str,
    list: &'static str,
}

const VERSIONS: Catalogue = Catalogue {
    field: "runtimeVersion",
    method: "runtimeVersions.get",
    path: "runtimeVersions",
    noun: "runtime version",
    list: "gcloud compute tpus versions list",
};
const TYPES: Catalogue = Catalogue {
    field: "acceleratorType",
    method: "acceleratorTypes.get",
    path: "acceleratorTypes",
    noun: "accelerator type",
    list: "gcloud compute tpus accelerator-types list",
};
