//! Serde's words in those of the config: the key that may be meant, the value that may be written.

/// Keys that are read to be refused with a reason: they are never offered.
const LATER: [&str; 5] = ["fleet", "notify", "progress", "early_maintenance", "group"];

/// How alike a key is to one that may be meant.
const ALIKE: f64 = 0.8;

/// A message of serde about `key`, so that it says what to write.
pub fn plainly(key: &str, message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field `") {
        return unknown(rest);
    }
    if let Some(name) = message.strip_prefix("missing field ") {
        return format!("missing key {name}");
    }
    if let Some(kind) = message.strip_prefix("data did not match any variant of untagged enum ") {
        return format!("is not understood; write {}", one_of(kind));
    }
    // Of a table at the top serde gives no key.
    let name = key.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let slots = ["", "tpu", "vertex_job", "ai_platform_job"].contains(&name);
    if slots && message == "invalid type: map, expected a sequence" {
        let name = if name.is_empty() { "tpu" } else { name };
        return format!("is one of several; write [[{name}]], with double brackets");
    }
    let rest = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: "));
    match rest.and_then(|rest| rest.split_once(", expected ")) {
        Some((found, expected)) => format!("is {}; write {}", plain(found), wanted(expected)),
        None => message.to_owned(),
    }
}

/// ``x`, expected one of `a`, `b``.
fn unknown(rest: &str) -> String {
    let (name, expected) = rest.split_once('`').unwrap_or((rest, ""));
    let allowed: Vec<&str> =
        expected.split('`').skip(1).step_by(2).filter(|allowed| !LATER.contains(allowed)).collect();
    let alike = allowed
        .iter()
        .map(|allowed| (strsim::jaro_winkler(name, allowed), *allowed))
        .filter(|(how, _)| *how >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let meant = alike.map_or(String::new(), |(_, other)| format!("; did you mean `{other}`?"));
    let meant = elsewhere(name, &allowed).map_or(meant, |text| format!("; {text}."));
    let list = match allowed.as_slice() {
        [] => String::new(),
        all => format!(" Keys here: {}", all.join(", ")),
    };
    let end = if meant.is_empty() { "." } else { "" };
    format!("unknown key `{name}`{meant}{end}{list}")
}

/// Where a key belongs that people look for in another place, or its name here.
fn elsewhere(name: &str, allowed: &[&str]) -> Option<&'static str> {
    let of_create = [
        "accelerator_type",
        "runtime_version",
        "spot",
        "reserved",
        "nodes",
        "max_run",
        "provisioning_model",
    ];
    match name {
        "slices" | "node_count" | "num_slices" if allowed.contains(&"nodes") => {
            Some("write nodes = 2, the number of slices")
        }
        // The table of a slot.
        _ if allowed.contains(&"queued_resource") && of_create.contains(&name) => {
            Some("it belongs under [tpu.create]")
        }
        _ => None,
    }
}

/// The forms of a value that has several.
fn one_of(kind: &str) -> &'static str {
    match kind {
        "RawShare" => "a number as in 3, or a share as in \"25%\"",
        "RawEntry" => "\"text\" to set it, or false to remove it",
        "RawCheckpoint" => {
            "\"gs://bucket/path\", or { uri = \"gs://bucket/path\", format = \"orbax\" }"
        }
        _ => "one of the forms in config/full.toml",
    }
}

/// The value that stands there.
fn plain(found: &str) -> String {
    let (kind, value) = found.split_once(' ').unwrap_or((found, ""));
    let value = value.replace('`', "");
    match kind {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        "integer" => format!("the number {value}"),
        "floating" => format!("the number {}", value.trim_start_matches("point ")),
        "boolean" => value,
        "string" => format!("the text {value}"),
        _ => found.replace('`', ""),
    }
}

/// The value that is expected there.
fn wanted(expected: &str) -> String {
    match expected {
        "a string" => "text in quotes".to_owned(),
        "a boolean" => "true or false, without quotes".to_owned(),
        "i64" | "u64" => "a whole number, without quotes".to_owned(),
        "u32" => "a whole number from 0, without quotes".to_owned(),
        "a sequence" => "a list, as in [ \"a\", \"b\" ]".to_owned(),
        "a map" => "a table, as in { key = \"value\" }".to_owned(),
        "struct RawQuietHours" => "{ cron = \"0 0 9 * * MON-FRI\", for = \"8h\" }".to_owned(),
        expected if expected.starts_with("struct Raw") => {
            "a table, as in { key = \"value\" }".to_owned()
        }
        expected => expected.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_written_wrongly_is_told_with_the_one_that_is_meant() {
        let text = "unknown field `chekpoint`, expected one of `command`, `checkpoint`, `progress`";
        let told = plainly("tpu[0].job", text);
        assert_eq!(
            told,
            "unknown key `chekpoint`; did you mean `checkpoint`? Keys here: command, checkpoint"
        );
    }

    #[test]
    fn a_key_of_another_table_or_tool_is_told_with_its_place_or_name() {
        let of_slot =
            plainly("tpu[0]", "unknown field `spot`, expected one of `name`, `queued_resource`");
        assert!(
            of_slot.starts_with("unknown key `spot`; it belongs under [tpu.create]."),
            "{of_slot}"
        );
        let of_create =
            plainly("tpu[0].create", "unknown field `slices`, expected one of `spot`, `nodes`");
        assert!(of_create.contains("write nodes = 2, the number of slices"), "{of_create}");
    }

    #[test]
    fn types_are_told_as_they_are_written() {
        for (message, told) in [
            ("invalid type: map, expected a sequence", "is one of several; write [[tpu]]"),
            ("invalid type: integer `3600`, expected a string", "is the number 3600; write text"),
            ("invalid type: string \"22:00\", expected struct RawQuietHours", "write { cron ="),
            ("data did not match any variant of untagged enum RawShare", "\"25%\""),
            ("missing field `name`", "missing key `name`"),
        ] {
            let plain = plainly("tpu", message);
            assert!(plain.contains(told), "{plain}");
        }
    }
}
