//! The columns of the table of texts.

use crate::model::names::named;

named! {
/// Where texts come from. Within a section the first match wins.
Section {
    /// Asking for machines: Cloud TPU API, Compute Engine.
    Api = "api",
    /// Rights and ways in.
    Access = "access",
    /// Chips and libtpu.
    Chips = "chips",
    /// Coordinator and siblings.
    Coordinator = "coordinator",
    /// Memory and compiling.
    Memory = "memory",
    /// Signals, host, set-up.
    Host = "host",
    /// Checkpoints and buckets.
    Checkpoints = "checkpoints",
    /// Vertex AI, AI Platform Training.
    Vertex = "vertex",
}
}

named! {
/// Whose fault it is.
Blame {
    /// Google has no room.
    Capacity = "capacity",
    /// Machine, network or service.
    Infra = "infra",
    /// The training program.
    Code = "code",
    /// The request itself, or rights.
    Config = "config",
    /// Another worker is the cause.
    Victim = "victim",
}
}

named! {
/// The remedy.
Action {
    /// Again later, in the same place.
    Again = "again",
    /// The next zone or region, with backoff.
    Next = "next",
    /// Stop and tell: time cures nothing.
    Hold = "hold",
    /// Look what the world is, then decide.
    Read = "read",
    /// Free the chips, then start again.
    Clean = "clean",
    /// Start the job again, uncounted.
    Relaunch = "relaunch",
    /// Start the job again, counted against it.
    RelaunchCounted = "relaunch_counted",
    /// New machines.
    Replace = "replace",
    /// Permanent: tell.
    Stop = "stop",
    /// Look for the cause on the siblings; never count.
    Cause = "cause",
    /// Expect the loss, ask for a checkpoint.
    Save = "save",
    /// Show it; do nothing.
    Note = "note",
}
}

/// A text means its class only as the end of a create's operation with this code. Elsewhere it is to
/// be taken literally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Disguise {
    /// `google.rpc.Code`.
    pub code: i64,
    /// Of Spot capacity alone.
    pub spot: bool,
}

/// One text of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// Regular expressions: case-insensitive, unanchored. One is enough.
    pub patterns: &'static [&'static str],
    /// The name of its class. Of refusals of the API it is that of a `FailureClass`.
    pub class: &'static str,
    /// Whose fault it is.
    pub blame: Blame,
    /// The remedy.
    pub action: Action,
    /// One or two sentences for the person.
    pub advice: &'static str,
    /// Where it comes from.
    pub section: Section,
    /// G: Google's or OpenXLA's own page or code; SDK: the code of the Cloud SDK; a number: so many
    /// independent operators; `[1]`: one alone; gen: a general tool.
    pub seen: &'static str,
    /// When it means its class only as the end of a create's operation.
    pub only_by_create: Option<Disguise>,
}

impl Text {
    pub(super) const fn only_by_create(self, code: i64, spot: bool) -> Text {
        Text { only_by_create: Some(Disguise { code, spot }), ..self }
    }

    /// A cause before its victims, and both before a remark.
    pub(super) fn rank(&self) -> u8 {
        match (self.blame, self.action) {
            (_, Action::Note) => 2,
            (Blame::Victim, _) => 1,
            _ => 0,
        }
    }
}

pub(super) const fn row(
    section: Section,
    class: &'static str,
    blame: Blame,
    action: Action,
    patterns: &'static [&'static str],
    advice: &'static str,
    seen: &'static str,
) -> Text {
    Text { patterns, class, blame, action, advice, section, seen, only_by_create: None }
}
