//! The states of a queued resource, the commands that an operator gives in them, and the trouble that follows: the axes of the
//! matrix that `standings` plays.

use crate::world::Loss;

pub const ZONES: [&str; 2] = ["us-central2-b", "us-east5-a"];

pub const CONFIG: &str = r#"
project = "p"
state = "memory:"
owner = "team"
[poll]
every = "60s"
[[tpu]]
name = "a"
zones = ["us-central2-b", "us-east5-a"]
queued_resource = "qr"
[tpu.create]
accelerator_type = "v4-8"
runtime_version = "tpu-ubuntu2204-base"
spot = true
[tpu.job]
command = "python3 train.py"
checkpoint = "gs://bucket/a"
[[tpu]]
name = "b"
zone = "us-central2-b"
"#;

pub const SCENARIO: &str = r#"
times = { create = "4m", delete = "30s", boot = "40s", beat = "60s", refusal = "1m" }
[[nodes]]
names = ["b"]
zone = "us-central2-b"
"#;

pub const CLOSED: &str = "User does not have permission to submit requests into this queue for accelerator type v4-8 in location us-central2-b.";

/// The states in which a request, or its node, is when the command comes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standing {
    Unsent,
    Creating,
    Accepted,
    Waiting,
    Provisioning,
    /// From PROVISIONING to FAILED, for want of capacity.
    Collapsing,
    Active,
    NodePreempted,
    /// Another hand deletes the node inside the request.
    NodeDeleting,
    NodeGone,
    Suspending,
    Suspended,
    SuspendedByUser,
    Failed,
    Closed,
    Deleting,
    Gone,
    /// Flex-start: its next request waits for its end …
    Ahead,
    /// … which comes …
    Ending,
    /// … and then has its place, and waits for capacity.
    HandedOver,
}

pub const FLEX: [Standing; 3] = [Standing::Ahead, Standing::Ending, Standing::HandedOver];

pub const STANDINGS: [Standing; 17] = [
    Standing::Unsent,
    Standing::Creating,
    Standing::Accepted,
    Standing::Waiting,
    Standing::Provisioning,
    Standing::Collapsing,
    Standing::Active,
    Standing::NodePreempted,
    Standing::NodeDeleting,
    Standing::NodeGone,
    Standing::Suspending,
    Standing::Suspended,
    Standing::SuspendedByUser,
    Standing::Failed,
    Standing::Closed,
    Standing::Deleting,
    Standing::Gone,
];

/// Commands of operators, and then changes of the config.
pub const COMMANDS: [&str; 16] = [
    "nothing",
    "pause",
    "resume",
    "adopt",
    "retry",
    "forget",
    "purge",
    "recreate",
    "relaunch",
    "done",
    "release",
    "leave",
    "other id",
    "other spec",
    "rename",
    "rename and leave",
];

/// The trouble after the command.
#[derive(Debug, Clone, Copy)]
pub enum Hindrance {
    Nothing,
    /// The process dies at which of the next calls, and whether that has arrived by then.
    Death(usize, bool),
    /// The answer to the next call is lost.
    Lost(Loss),
    /// The zone of the request can't be listed for a while.
    Unreachable,
}

pub const HINDRANCES: [Hindrance; 15] = [
    Hindrance::Nothing,
    Hindrance::Death(0, false),
    Hindrance::Death(0, true),
    Hindrance::Death(1, false),
    Hindrance::Death(1, true),
    Hindrance::Death(2, false),
    Hindrance::Death(2, true),
    Hindrance::Death(3, false),
    Hindrance::Death(3, true),
    Hindrance::Death(4, false),
    Hindrance::Death(4, true),
    Hindrance::Lost(Loss::NeverArrives),
    Hindrance::Lost(Loss::Arrives),
    Hindrance::Lost(Loss::ArrivesLate(40_000)),
    Hindrance::Unreachable,
];

/// From which capacity it is asked for: Spot's is taken back, flex-start's ends, and what is gone of the other was a
/// person's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Capacity {
    Spot,
    OnDemand,
    FlexStart,
}

/// The capacity and the number of slices of the request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Form {
    pub capacity: Capacity,
    pub slices: usize,
}

impl Form {
    pub const ALL: [Form; 4] = [
        Form { capacity: Capacity::Spot, slices: 1 },
        Form { capacity: Capacity::OnDemand, slices: 1 },
        Form { capacity: Capacity::Spot, slices: 2 },
        Form { capacity: Capacity::OnDemand, slices: 2 },
    ];

    pub const FLEX: [Form; 2] = [
        Form { capacity: Capacity::FlexStart, slices: 1 },
        Form { capacity: Capacity::FlexStart, slices: 2 },
    ];

    /// The nodes of a slot of this name.
    pub fn nodes(self, slot: &str) -> Vec<String> {
        match self.slices {
            1 => vec![slot.to_owned()],
            slices => (0..slices).map(|slice| format!("{slot}-{slice}")).collect(),
        }
    }
}

/// The ids that the request has in the config, and the names of the slot.
pub const IDS: [&str; 4] = ["qr", "other", "qr-next", "other-next"];
pub const SLOTS: [&str; 2] = ["a", "c"];
/// Their nodes are called after these.
pub const NODES: [&str; 4] = ["a", "c", "a-next", "c-next"];
