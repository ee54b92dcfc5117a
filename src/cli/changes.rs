//! The difference that a reload made, for the log: a config that was read again without the change
//! that was meant must not look like one that has it.

use crate::model::settings::{Settings, SlotSettings};

/// The changes in words; of slots alone their names and tables, since values may be secrets.
pub fn changes(before: &Settings, now: &Settings) -> String {
    let mut all = Vec::new();
    let mut list = |verb: &str, names: Vec<&str>| {
        if !names.is_empty() {
            all.push(format!("{verb} {}", names.join(", ")));
        }
    };
    let (old, new) = (&before.slots, &now.slots);
    let lacks = |of: &Settings, name: &&String| !of.slots.contains_key(*name);
    list("watches", new.keys().filter(|name| lacks(before, name)).map(String::as_str).collect());
    list("leaves", old.keys().filter(|name| lacks(now, name)).map(String::as_str).collect());
    let both = old.iter().filter_map(|(name, slot)| Some((slot, new.get(name)?)));
    let changed: Vec<String> = both.filter_map(|(old, new)| of_slot(old, new)).collect();
    list("changes", changed.iter().map(String::as_str).collect());
    list("of the whole fleet", of_fleet(before, now));
    if all.is_empty() { "nothing in it has changed".to_owned() } else { all.join("; ") }
}

/// A slot with the tables that differ; none where none does.
fn of_slot(old: &SlotSettings, new: &SlotSettings) -> Option<String> {
    let policy = old.policy != new.policy;
    let tables = [
        ("zone", old.zones != new.zones),
        (new.filling.name(), old.filling != new.filling),
        ("create", old.create != new.create),
        ("job", old.job != new.job || old.supervisor != new.supervisor),
        ("policy", policy),
    ];
    let differ: Vec<&str> = tables.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    (!differ.is_empty()).then(|| format!("{} ({})", new.name, differ.join(", ")))
}

fn of_fleet(old: &Settings, new: &Settings) -> Vec<&'static str> {
    let all = [
        (
            if new.dry_run { "dry_run = true" } else { "dry_run = false" },
            old.dry_run != new.dry_run,
        ),
        ("poll", old.poll != new.poll),
        ("policy.orphans", old.removes_dead != new.removes_dead),
        ("policy.max_unavailable", old.max_unavailable != new.max_unavailable),
        (
            "policy.max_judged_recreates_per_hour",
            old.max_judged_recreates_per_hour != new.max_judged_recreates_per_hour,
        ),
        ("policy.storm", old.storm != new.storm),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn settings(text: &str) -> Settings {
        let file = std::path::Path::new("c.toml");
        config::parse(file, &format!("project = \"p\"\n{text}"), &|_| None).unwrap().settings
    }

    #[test]
    fn a_reload_names_the_slots_and_tables_that_it_changed() {
        let slot = |name: &str, more: &str| {
            format!("[[tpu]]\nname = \"{name}\"\nzone = \"us-central2-b\"\n{more}")
        };
        let before = settings(&(slot("a", "") + &slot("b", "") + &slot("c", "")));
        assert_eq!(changes(&before, &before.clone()), "nothing in it has changed");
        let job = "[tpu.job]\ncommand = \"SECRET=hunter2 python3 train.py\"\n";
        let now = settings(
            &("dry_run = true\n[policy]\nmax_unavailable = 2\n".to_owned()
                + &slot("a", job)
                + &slot("b", "[tpu.policy]\npriority = 3\n")
                + &slot("d", "")),
        );
        let told = changes(&before, &now);
        assert_eq!(
            told,
            "watches d; leaves c; changes a (job), b (policy); of the whole fleet dry_run = true, policy.max_unavailable"
        );
    }
}
