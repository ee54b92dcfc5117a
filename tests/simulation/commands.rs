//! The commands that an operator gives in the simulation.

use tpu_watchdog::model::command::{Command, CommandKind};

use crate::process::wall;
use crate::setup::*;
use crate::world::World;

impl World {
    pub fn give_a_command(&mut self) {
        let names: Vec<String> = self.setup.settings.slots.keys().cloned().collect();
        let slot = names[self.rng.usize(0..names.len())].clone();
        let until = self.rng.bool().then(|| wall(self.now + self.rng.i64(MINUTE..2 * HOUR), 0));
        let kind = match self.rng.u32(0..9) {
            0 => CommandKind::Pause {
                slot: None,
                until: Some(until.unwrap_or(wall(self.now + HOUR, 0))),
            },
            1 | 2 => CommandKind::Pause { slot: Some(slot), until },
            3 => {
                let slot = if self.rng.bool() { Some(slot) } else { None };
                let adopt = slot
                    .as_ref()
                    .is_some_and(|slot| self.setup.origins.get(slot) == Some(&Origin::Owned));
                CommandKind::Resume { slot, adopt }
            }
            4 => {
                // Now and then from an older step than the newest.
                // Of those a few from one that is not there yet.
                let back = |step: u64| {
                    if self.now / MINUTE % 5 == 0 { step + 2 } else { step.saturating_sub(4) }
                };
                let from = (self.now / MINUTE % 3 == 0)
                    .then(|| self.newest_step(&slot))
                    .flatten()
                    .map(back);
                CommandKind::Retry { slot, from }
            }
            5 => CommandKind::Forget { slot, purge: self.rng.u32(0..4) == 0 },
            6 => {
                let node = self.cloud.nodes.iter().find(|((_, name), _)| *name == slot);
                let incarnation = node.map(|((zone, _), node)| self.identity(zone, node));
                CommandKind::Recreate { slot, incarnation }
            }
            7 => CommandKind::Relaunch { slot },
            _ => CommandKind::BreakerReset,
        };
        self.command(kind);
    }

    pub fn command(&mut self, kind: CommandKind) {
        self.tell(|| format!("an operator gives {kind:?}"));
        let id = format!("command-{}-{}", self.now, self.rng.u32(..));
        let command = Command { id, at: wall(self.now, 0), who: "ada".into(), reason: None, kind };
        self.commanded(&command.kind);
        self.shelf.submit(command);
    }
}
