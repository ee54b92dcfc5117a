//! The marker: a small file or object that says that a state was made here. Where it is and the
//! state is not, the state was lost, and no new one is begun until an operator accepts that.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Says that it is ours.
const FORMAT: &str = "tpu-watchdog marker";

/// The content of a marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    format: String,
    /// The id of the state that was made here.
    pub owner: String,
    /// When the marker was made, by its maker's clock.
    pub created_at: Timestamp,
}

impl Marker {
    /// Of a state with this id, made now.
    pub fn new(owner: &str) -> Self {
        Marker { format: FORMAT.to_owned(), owner: owner.to_owned(), created_at: Timestamp::now() }
    }

    /// The content of these bytes; none of a torn marker, which is a marker all the same.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|marker: &Marker| marker.format == FORMAT)
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Never in practice: two strings and a time are JSON.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|e| format!("its marker can't be written as JSON: {e}"))
    }
}

/// A state that was here and is gone.
#[derive(Debug)]
pub struct Lost {
    /// The sign that there was one, as a place.
    pub sign: String,
    /// The marker's content, where it can be read.
    pub marker: Option<Marker>,
}

impl Lost {
    /// The message of every command that needs the state. `restore` says how a copy is put back.
    pub fn message(&self, restore: &str) -> String {
        format!(
            "it is gone: {} says that there was one{}. The specifications of TPUs, pending creates, pauses and counters are lost with it; nothing was changed, and no TPU is touched. {restore}. Without a copy, `tpu-watchdog state init --accept-loss --config F` begins a new state: it creates no TPU that is missing by then unless [tpu.create] describes it, and holds TPUs that carry the lost id as other_owner until `tpu-watchdog resume SLOT --adopt`",
            self.sign,
            self.whose()
        )
    }

    /// Which state it was, as an addition to a sentence.
    pub fn whose(&self) -> String {
        self.marker.as_ref().map_or_else(String::new, |marker| {
            format!(" (its id {}, marked {:.0})", marker.owner, marker.created_at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_reads_what_it_wrote_and_nothing_else() {
        let marker = Marker::new("tpu-watchdog-1");
        assert_eq!(Marker::read(&marker.bytes().unwrap()), Some(marker));
        for other in [&b""[..], b"{\"format\":", b"{\"format\":\"x\",\"owner\":\"o\"}"] {
            assert_eq!(Marker::read(other), None);
        }
    }

    #[test]
    fn the_message_says_which_state_is_gone_and_what_to_do() {
        let marker = Some(Marker::new("tpu-watchdog-1"));
        let lost = Lost { sign: "/s/state.db.exists".into(), marker };
        let text = lost.message("Copy it back");
        for words in
            ["/s/state.db.exists", "tpu-watchdog-1", "Copy it back", "state init --accept-loss"]
        {
            assert!(text.contains(words), "{text}");
        }
    }
}
