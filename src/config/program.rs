//! The image that a job runs in, and the code that is fetched for it.

use super::check::Check;

/// A reference of an image as docker takes it: registry, path, tag or digest.
pub fn image(c: &mut Check, key: &str, image: String) -> Option<String> {
    let starts = image.starts_with(|ch: char| ch.is_ascii_alphanumeric());
    let plain = |ch: char| ch.is_ascii_alphanumeric() || "./:_@-".contains(ch);
    if !starts || !image.chars().all(plain) {
        let text =
            "is not the name of an image; write \"us-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE:TAG\"";
        c.wrong(key, format!("{image:?} {text}"));
        return None;
    }
    Some(image)
}

/// An archive in a bucket, its generation pinned or not, or a git repository at a commit.
pub fn code(c: &mut Check, key: &str, code: String) -> Option<String> {
    let (place, pin) =
        code.split_once('#').map_or((code.as_str(), None), |(p, pin)| (p, Some(pin)));
    let plain = place.chars().all(|ch| ch.is_ascii_alphanumeric() || "-_./:=+".contains(ch));
    let rest = place.strip_prefix("gs://");
    let object = rest.and_then(|rest| rest.split_once('/')).map(|(_, object)| object);
    let wrong = match (object, pin) {
        _ if !plain => Some("has other characters than letters, digits and - _ . / : = +"),
        (Some(object), _) if !is_archive(object) => Some(
            "is no archive; its name ends with .tar, .tar.gz, .tgz, .tar.bz2, .tar.xz or .tar.zst",
        ),
        (Some(_), Some(pin)) if pin.is_empty() || !pin.bytes().all(|b| b.is_ascii_digit()) => Some(
            "is not pinned by its generation; write \"gs://bucket/code.tar.gz#1712345678901234\"",
        ),
        (Some(_), _) => None,
        (None, _) if !place.starts_with("https://") => Some(
            "is neither \"gs://bucket/code.tar.gz\" nor \"https://host/repository.git#COMMIT\"",
        ),
        (None, pin) => {
            let commit = |pin: &str| pin.len() == 40 && pin.bytes().all(|b| b.is_ascii_hexdigit());
            let whole = pin.is_some_and(commit);
            (!whole).then_some("names no commit; write \"https://host/repository.git#COMMIT\", all 40 digits of it")
        }
    };
    if let Some(wrong) = wrong {
        c.wrong(key, format!("{code:?} {wrong}"));
        return None;
    }
    Some(code)
}

fn is_archive(object: &str) -> bool {
    const ENDS: [&str; 6] = [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"];
    ENDS.iter().any(|end| object.len() > end.len() && object.ends_with(end))
}
