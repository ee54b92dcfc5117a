//! The file of `listen_token_file`. The service alone reads it, at its start: other commands may
//! run as another user.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Longer than any token that a header carries.
const LONGEST: u64 = 4096;
/// Permissions of users that are neither the owner nor of the group.
const OTHERS: u32 = 0o007;

/// See [`super::read_token`].
pub fn read_token(path: &Path) -> Result<String, String> {
    let wrong = |what: &str| format!("listen_token_file {}: {what}", path.display());
    let file = File::open(path).map_err(|error| {
        wrong(&format!(
            "the file can't be read: {error}; correct the path, or make it readable for the user of the service"
        ))
    })?;
    let mode = file.metadata().map_or(0, |metadata| metadata.permissions().mode() & 0o777);
    if mode & OTHERS != 0 {
        return Err(wrong(&format!(
            "the file is open to every user of this machine (mode {mode:04o}); run: chmod o= {}",
            path.display()
        )));
    }
    let mut text = String::new();
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(|error| {
        wrong(&format!("the file can't be read as text: {error}; write one line into it"))
    })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(wrong(&format!(
            "the file is empty; write a token into it: openssl rand -hex 32 > {}",
            path.display()
        )));
    }
    if text.len() as u64 > LONGEST || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong(
            "the file must hold one line of at most 4096 printable ASCII characters, without spaces",
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &[u8], mode: u32) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read_token(&path)
    }

    #[test]
    fn a_token_is_one_line_of_a_private_file() {
        assert_eq!(read(b"secret\n", 0o600).unwrap(), "secret");
        assert_eq!(read(b"  secret", 0o440).unwrap(), "secret", "systemd's credentials");
    }

    #[test]
    fn a_bad_file_is_told_with_its_path_and_remedy_and_without_its_content() {
        let many = vec![b'x'; 5000];
        for (content, mode, words) in [
            (&b" \n"[..], 0o600, "is empty; write a token into it: openssl rand -hex 32 > /"),
            (b"secret\n", 0o644, "(mode 0644); run: chmod o= /"),
            (b"secret\n", 0o602, "(mode 0602); run: chmod o= /"),
            (b"secret\nsecret2\n", 0o600, "must hold one line"),
            (b"secret\xff", 0o600, "can't be read as text"),
            (&many, 0o600, "at most 4096"),
        ] {
            let message = read(content, mode).unwrap_err();
            assert!(message.starts_with("listen_token_file /"), "{message}");
            assert!(message.contains(words) && !message.contains("secret"), "{message}");
        }
        let message = read_token(Path::new("/nonexistent/token")).unwrap_err();
        assert!(message.contains("/nonexistent/token") && message.contains("can't be read"));
        let message = read_token(Path::new("/tmp")).unwrap_err();
        assert!(message.starts_with("listen_token_file /tmp: "), "a folder: {message}");
    }
}
