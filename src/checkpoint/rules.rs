//! The layouts, and when a step is complete. Sources: Orbax `path/{step,atomicity}.py`;
//! transformers `trainer_utils.py`.

use uuid::Uuid;

use crate::model::settings::CheckpointFormat;

/// The direct content of one step's folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepFolder {
    /// Names of the objects directly under it.
    pub files: Vec<String>,
    /// Names of the folders directly under it.
    pub folders: Vec<String>,
}

/// How complete a step's folder looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// Certainly complete.
    Complete,
    /// Certainly not.
    Incomplete,
    /// Complete only if this location never writes commit files (Orbax in its older rename mode, on
    /// POSIX file systems).
    WithoutCommitFile,
}

impl Completeness {
    /// Whether a step in this state is complete where Orbax renames, or does not.
    pub fn is_whole(self, renames: bool) -> bool {
        self == Completeness::Complete || renames && self == Completeness::WithoutCommitFile
    }
}

/// The step in a folder's name, if it is one of this format's steps.
pub fn step_of(format: CheckpointFormat, folder: &str) -> Option<u64> {
    let digits = match format {
        CheckpointFormat::HuggingFace => folder.strip_prefix("checkpoint-")?,
        // `[<prefix>_]<step>`, optionally zero-padded.
        CheckpointFormat::Orbax => folder.rsplit_once('_').map_or(folder, |(_, digits)| digits),
        CheckpointFormat::Unlisted => return None,
    };
    // u64::from_str takes a sign; a step has none.
    (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// A short name of a set of step folders; empty where there are none.
pub fn set_of<'f>(folders: impl Iterator<Item = &'f str>) -> String {
    let mut names: Vec<&str> = folders.collect();
    if names.is_empty() {
        return String::new();
    }
    names.sort_unstable();
    let id = Uuid::new_v5(&Uuid::NAMESPACE_OID, names.join("/").as_bytes());
    id.simple().to_string()[..12].to_owned()
}

/// Guesses the layout from the folders of a location.
pub fn detect(folders: &[String]) -> Option<CheckpointFormat> {
    [CheckpointFormat::HuggingFace, CheckpointFormat::Orbax]
        .into_iter()
        .find(|format| folders.iter().any(|f| step_of(*format, f).is_some()))
}

/// Whether a temporary folder of the same step exists: then the step is being written, or copied by
/// a "rename".
pub fn has_temporary(folder: &str, siblings: &[String]) -> bool {
    siblings.iter().any(|s| {
        s.strip_prefix(folder).is_some_and(|rest| rest.starts_with(".orbax-checkpoint-tmp"))
    })
}

/// Judges one step.
pub fn completeness(
    format: CheckpointFormat,
    folder: &str,
    siblings: &[String],
    inside: &StepFolder,
) -> Completeness {
    let has = |name: &str| inside.files.iter().any(|f| f == name);
    match format {
        CheckpointFormat::Orbax if has_temporary(folder, siblings) => Completeness::Incomplete,
        // Item folders carry a commit file of their own: only the one directly under the step
        // counts.
        CheckpointFormat::Orbax if has("commit_success.txt") => Completeness::Complete,
        CheckpointFormat::Orbax if inside.files.is_empty() && inside.folders.is_empty() => {
            Completeness::Incomplete
        }
        CheckpointFormat::Orbax => Completeness::WithoutCommitFile,
        CheckpointFormat::Unlisted => Completeness::Incomplete,
        CheckpointFormat::HuggingFace => {
            let weights = |name: &String| {
                let ending =
                    [".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".index.json"];
                name.contains("model") && ending.iter().any(|e| name.ends_with(e))
            };
            let sharded = |name: &String| name.starts_with("global_step") || name.contains("model");
            let whole = has("trainer_state.json")
                && !has("checkpoint-is-incomplete.txt")
                && (inside.files.iter().any(weights) || inside.folders.iter().any(sharded));
            if whole { Completeness::Complete } else { Completeness::Incomplete }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[&str], folders: &[&str]) -> StepFolder {
        let own = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect();
        StepFolder { files: own(files), folders: own(folders) }
    }

    #[test]
    fn steps_are_read_as_numbers_and_nothing_else_is_a_step() {
        use CheckpointFormat::{HuggingFace, Orbax};
        assert_eq!(step_of(Orbax, "1200"), Some(1200));
        assert_eq!(step_of(Orbax, "000012"), Some(12));
        assert_eq!(step_of(Orbax, "state_7"), Some(7));
        for other in [
            "1200.orbax-checkpoint-tmp-17",
            "metadata",
            "+5",
            "-5",
            "",
            "99999999999999999999",
            "_ROOT_METADATA",
        ] {
            assert_eq!(step_of(Orbax, other), None, "{other}");
        }
        assert_eq!(step_of(HuggingFace, "checkpoint-10"), Some(10));
        assert_eq!(step_of(HuggingFace, "10"), None);
    }

    #[test]
    fn a_set_of_steps_is_known_by_its_members_alone() {
        let named = |names: &[&str]| set_of(names.iter().copied());
        assert_eq!((named(&[]).as_str(), named(&["7", "12"])), ("", named(&["12", "7"])));
        assert_ne!(named(&["7", "12"]), named(&["7", "12", "1"]));
    }

    #[test]
    fn orbax_needs_the_commit_file_directly_under_the_step_and_no_temporary_folder() {
        let whole = folder(&["commit_success.txt", "_CHECKPOINT_METADATA"], &["default"]);
        let judge = |siblings: &[&str], inside: &StepFolder| {
            let siblings: Vec<String> = siblings.iter().map(|s| (*s).to_owned()).collect();
            completeness(CheckpointFormat::Orbax, "5", &siblings, inside)
        };
        assert_eq!(judge(&["5", "6"], &whole), Completeness::Complete);
        assert_eq!(judge(&["5", "5.orbax-checkpoint-tmp"], &whole), Completeness::Incomplete);
        assert_eq!(judge(&["5", "5.orbax-checkpoint-tmp-1700"], &whole), Completeness::Incomplete);
        assert_eq!(judge(&["5", "55.orbax-checkpoint-tmp"], &whole), Completeness::Complete);
        assert_eq!(
            judge(&["5"], &folder(&["_CHECKPOINT_METADATA"], &["default"])),
            Completeness::WithoutCommitFile
        );
        assert_eq!(judge(&["5"], &folder(&[], &[])), Completeness::Incomplete);
    }

    #[test]
    fn hugging_face_needs_state_weights_and_no_mark_of_an_unfinished_save() {
        let judge = |files: &[&str], folders: &[&str]| {
            completeness(
                CheckpointFormat::HuggingFace,
                "checkpoint-5",
                &[],
                &folder(files, folders),
            )
        };
        assert_eq!(
            judge(&["trainer_state.json", "model.safetensors"], &[]),
            Completeness::Complete
        );
        assert_eq!(
            judge(&["trainer_state.json", "model.safetensors.index.json"], &[]),
            Completeness::Complete
        );
        assert_eq!(
            judge(&["trainer_state.json", "adapter_model.bin"], &[]),
            Completeness::Complete
        );
        assert_eq!(judge(&["trainer_state.json"], &["global_step5"]), Completeness::Complete);
        assert_eq!(judge(&["trainer_state.json", "optimizer.pt"], &[]), Completeness::Incomplete);
        assert_eq!(judge(&["model.safetensors"], &[]), Completeness::Incomplete);
        assert_eq!(
            judge(
                &["trainer_state.json", "model.safetensors", "checkpoint-is-incomplete.txt"],
                &[]
            ),
            Completeness::Incomplete
        );
    }
}
