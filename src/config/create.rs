//! `[tpu.create]`: values that the API would refuse are mistakes of the config. Otherwise they would
//! show when the TPU is gone and its create is owed.
//!
//! Source: Cloud TPU REST reference v2 (`cidrBlock` is a /29, `description` has at most 512
//! characters), and Compute Engine's naming of networks and tags (RFC 1035).

use std::net::Ipv4Addr;

use super::check::Check;
use super::raw::RawCreate;

/// Longest `description`, in characters.
const DESCRIPTION_MAX: usize = 512;
/// The one size of a TPU's own address range.
const PREFIX: u32 = 29;

/// Checks what is written under `key`.
pub fn values(c: &mut Check, key: &str, raw: &RawCreate) {
    if let Some(gb) = raw.boot_disk_gb.filter(|gb| !(1..=65_536).contains(gb)) {
        c.wrong(
            &format!("{key}.boot_disk_gb"),
            format!("{gb} is no size of a disk; write 1 to 65536"),
        );
    }
    let mut checked = |name: &str, value: Option<&String>, check: &dyn Fn(&str) -> Fits| {
        if let Some(Err(why)) = value.map(|value| check(value)) {
            c.wrong(&format!("{key}.{name}"), why);
        }
    };
    checked("accelerator_type", raw.accelerator_type.as_ref(), &|v| word(v, "v4-8"));
    if let Some(config) = &raw.accelerator_config {
        checked("accelerator_config.type", Some(&config.kind), &|v| word(v, "V4"));
        checked("accelerator_config.topology", Some(&config.topology), &topology);
    }
    checked("runtime_version", raw.runtime_version.as_ref(), &|v| word(v, "tpu-ubuntu2204-base"));
    checked("description", raw.description.as_ref(), &description);
    checked("cidr_block", raw.cidr_block.as_ref(), &cidr_block);
    checked("network", raw.network.as_ref(), &|v| network(v, "networks"));
    checked("subnetwork", raw.subnetwork.as_ref(), &|v| network(v, "subnetworks"));
    checked("reservation", raw.reservation.as_ref(), &reservation);
    for (index, tag) in raw.tags.iter().flatten().enumerate() {
        checked(&format!("tags[{index}]"), Some(tag), &tag_fits);
    }
}

/// Nothing, or what is wrong and what is allowed.
type Fits = Result<(), String>;

fn word(value: &str, example: &str) -> Fits {
    match value {
        "" => Err(format!("is empty; write one like {example:?}, or leave it out")),
        _ if value.chars().any(|ch| ch.is_whitespace() || ch.is_control()) => {
            Err(format!("{value:?} has spaces; write one word like {example:?}"))
        }
        _ => Ok(()),
    }
}

fn topology(value: &str) -> Fits {
    let size = |part: &str| part.parse::<u16>().is_ok_and(|n| n > 0);
    let dimensions = value.split('x').count();
    if (2..=3).contains(&dimensions) && value.split('x').all(size) {
        return Ok(());
    }
    Err(format!("{value:?} is not a topology; they look like \"2x4\" or \"2x2x4\""))
}

fn description(value: &str) -> Fits {
    match value.chars().count() {
        length if length > DESCRIPTION_MAX => {
            Err(format!("has {length} characters; at most {DESCRIPTION_MAX} are allowed"))
        }
        _ => Ok(()),
    }
}

fn cidr_block(value: &str) -> Fits {
    let parts = value.split_once('/');
    let address = parts.and_then(|(address, _)| address.parse::<Ipv4Addr>().ok());
    let prefix = parts.and_then(|(_, prefix)| prefix.parse::<u32>().ok()).filter(|n| *n <= 32);
    let (Some(address), Some(prefix)) = (address, prefix) else {
        return Err(format!(
            "{value:?} is not a range of IPv4 addresses; write \"10.2.0.0/{PREFIX}\""
        ));
    };
    if prefix != PREFIX {
        return Err(format!("{value:?} is a /{prefix}; the API takes a /{PREFIX} alone"));
    }
    let first = Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - PREFIX)));
    if first != address {
        return Err(format!(
            "{value:?} does not begin at the first address of a /{PREFIX}; write \"{first}/{PREFIX}\""
        ));
    }
    Ok(())
}

fn tag_fits(value: &str) -> Fits {
    if is_label(value) {
        return Ok(());
    }
    Err(format!(
        "{value:?} is not a network tag: 1 to 63 lower-case letters, digits and '-', starting with a letter and not ending \
         with '-'"
    ))
}

/// A name, or the path or URL of a resource whose last two parts are `kind` and its name.
fn network(value: &str, kind: &str) -> Fits {
    let path = value.strip_prefix("https://").unwrap_or(value);
    let mut parts = path.rsplit('/');
    let named = parts.next().is_some_and(is_label);
    let placed = match parts.next() {
        None => value == path,
        Some(before) => before == kind && parts.all(|part| !part.is_empty() && !part.contains(' ')),
    };
    if named && placed {
        return Ok(());
    }
    let place = if kind == "networks" { "global" } else { "regions/us-central2" };
    Err(format!(
        "{value:?} names no network; write its name (lower-case letters, digits and '-'), or \
         \"projects/my-project/{place}/{kind}/my-name\""
    ))
}

/// A name, or the path of a reservation, which may be of another project that shares it.
fn reservation(value: &str) -> Fits {
    let parts: Vec<&str> = value.split('/').collect();
    let fits = match parts[..] {
        [name] => is_label(name),
        ["projects", project, "locations", zone, "reservations", name] => {
            is_label(zone) && !project.is_empty() && (is_label(name) || name == "-")
        }
        _ => false,
    };
    let example = "projects/my-project/locations/us-central2-b/reservations/my-name";
    fits.then_some(()).ok_or_else(|| {
        format!(
            "{value:?} names no reservation; write its name (lower-case letters, digits and '-'), or \"{example}\""
        )
    })
}

/// RFC 1035, in lower case.
fn is_label(value: &str) -> bool {
    value.len() <= 63
        && value.starts_with(|ch: char| ch.is_ascii_lowercase())
        && !value.ends_with('-')
        && value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_takes_is_taken() {
        for value in ["10.2.0.0/29", "192.168.255.248/29", "0.0.0.8/29"] {
            assert_eq!(cidr_block(value), Ok(()), "{value}");
        }
        for value in [
            "default",
            "global/networks/default",
            "projects/host-1/global/networks/shared",
            "projects/example.com:p/global/networks/shared",
            "https://www.googleapis.com/compute/v1/projects/p/global/networks/n",
        ] {
            assert_eq!(network(value, "networks"), Ok(()), "{value}");
        }
        assert_eq!(network("projects/p/regions/us-east5/subnetworks/s", "subnetworks"), Ok(()));
        for name in [
            "r",
            "projects/p/locations/us-east5-b/reservations/r",
            "projects/1/locations/us-east5-b/reservations/-",
        ] {
            assert_eq!(reservation(name), Ok(()), "{name}");
        }
        assert!(["2x2x1", "4x4", "16x16x24"].iter().all(|value| topology(value).is_ok()));
        assert!(tag_fits("a").is_ok() && tag_fits(&"a".repeat(63)).is_ok());
        assert!(description(&"ü".repeat(512)).is_ok(), "characters are counted, not bytes");
    }

    #[test]
    fn what_the_api_refuses_is_not() {
        for value in
            ["", "10.2.0.0", "10.2.0/29", "10.2.0.0/33", "10.2.0.0/-1", "fd00::/29", "10.2.0.4/29"]
        {
            assert!(cidr_block(value).is_err(), "{value}");
        }
        for value in [
            "",
            "Default",
            "a/b",
            "networks/",
            "/networks/n",
            "global//networks/n",
            "https://n",
            "a b",
        ] {
            assert!(network(value, "networks").is_err(), "{value}");
        }
        for name in [
            "",
            "-",
            "R",
            "a/b",
            "projects/p/reservations/r",
            "projects//locations/us-east5-b/reservations/r",
        ] {
            assert!(reservation(name).is_err(), "{name}");
        }
        assert!(
            ["", "4", "2x", "2x0", "2x2x2x2", "2X2"].iter().all(|value| topology(value).is_err())
        );
        assert!(["", "-a", "a-", "1a", "A", "a_b"].iter().all(|value| tag_fits(value).is_err()));
        assert!(tag_fits(&"a".repeat(64)).is_err() && description(&"ü".repeat(513)).is_err());
    }
}
