//! Everything that can go wrong in a simulated world. A seed picks which of them its world knows.

use std::fmt;

macro_rules! faults {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// One kind of fault.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Fault { $($(#[$doc])* $variant,)+ }

        impl Fault {
            /// Every kind.
            pub const ALL: &'static [Fault] = &[$(Fault::$variant),+];

            /// Its name, from which its place in a seed's draw is derived: a new fault reshuffles
            /// no other.
            pub fn name(self) -> &'static str {
                match self { $(Fault::$variant => $name,)+ }
            }
        }
    };
}

faults! {
    /// A process ends at a random moment.
    Crash = "crash",
    /// It ends while a write is under way: before or after it has become durable.
    CommitCrash = "commit-crash",
    /// It ends right before or right after a request has left.
    SendCrash = "send-crash",
    /// It ends when the answer is there and not yet taken in.
    AnswerCrash = "answer-crash",
    /// The power fails within the bytes of a write.
    TornWrite = "torn-write",
    /// A process stands still for longer than its lease, often while it has something to send.
    Pause = "pause",
    /// A process's clock is set.
    ClockJump = "clock-jump",
    /// The config changes in the middle.
    Reload = "reload",
    /// Operators give commands. Its name seeds its dice: the goldens stand on it.
    Commands = "levers",
    /// Reads fail: 401, 403, 429, 5xx, something that is not the API.
    ReadFails = "read-fails",
    /// Reads show what was a while ago, and not in order.
    StaleRead = "stale-read",
    /// Listings that look complete lack nodes.
    ListLacksNodes = "list-lacks-nodes",
    /// A zone can't be reached.
    Unreachable = "unreachable",
    /// Values that no version knows.
    StrangeValues = "strange-values",
    /// Answers that take longer than what they say is good for.
    SlowRead = "slow-read",
    /// Guest attributes can't be read.
    AttributesFail = "attributes-fail",
    /// Guest attributes lack workers.
    AttributesShort = "attributes-short",
    /// Checkpoint listings fail.
    SurveyFails = "survey-fails",
    /// Checkpoint listings show what was a while ago.
    SurveyStale = "survey-stale",
    /// Checkpoint listings look whole and lack objects.
    SurveyPartial = "survey-partial",
    /// Somebody deletes the newest checkpoints of a job, or all of them.
    CheckpointsTaken = "checkpoints-taken",
    /// Jobs write checkpoints that never become complete.
    HalfWritten = "half-written",
    /// A call is not sent: no token, no connection.
    CallNotSent = "call-not-sent",
    /// A call is refused: 400, 401, 403, 404, 409, 429.
    CallRefused = "call-refused",
    /// A call is answered 5xx, and is carried out or not.
    ServerError = "server-error",
    /// A call is lost before it is accepted.
    CallLostBefore = "call-lost-before",
    /// A call is accepted, and its answer is lost.
    CallLostAfter = "call-lost-after",
    /// A call arrives late.
    CallLate = "call-late",
    /// A call arrives twice.
    CallDuplicated = "call-duplicated",
    /// Operations end in errors.
    OperationFails = "operation-fails",
    /// Operations never end, as far as can be read.
    OperationHangs = "operation-hangs",
    /// Operations can't be found any more.
    OperationVanishes = "operation-vanishes",
    /// Nodes fall sick, each in a way of its own, for a while or for good.
    Sickness = "sickness",
    /// Nodes that are sick and well in turn.
    Flapping = "flapping",
    /// A node heals right after a GET has shown it sick.
    HealsBetween = "heals-between",
    /// Nodes are preempted or terminated.
    Preemption = "preemption",
    /// Nodes vanish.
    Vanishing = "vanishing",
    /// Somebody stops or hides nodes.
    PersonStops = "person-stops",
    /// Somebody replaces nodes under the same name.
    PersonReplaces = "person-replaces",
    /// Somebody deletes nodes.
    PersonDeletes = "person-deletes",
    /// Somebody opts nodes out.
    OptOut = "opt-out",
    /// Replacements are preempted while they are created.
    PreemptedAtBirth = "preempted-at-birth",
    /// Replacements are born sick.
    BornSick = "born-sick",
    /// Replacements never boot.
    NeverBoots = "never-boots",
    /// The hosts of replacements come up without an index each of their own.
    Ungathered = "ungathered",
    /// Workers fall silent while the node looks healthy.
    Silence = "silence",
    /// 10 to 100 % of the fleet at once.
    Outage = "outage",
    /// Zones are out of stock.
    StockOut = "stock-out",
    /// The quota is exhausted.
    Quota = "quota",
    /// The right to create TPUs is taken for a while.
    RightsTaken = "rights-taken",
    /// Every replacement fails to boot for a while.
    BadScript = "bad-script",
    /// A job that gets nowhere from its checkpoint.
    StuckJob = "stuck-job",
    /// Jobs crash, on one host of several.
    JobCrashes = "job-crashes",
    /// Jobs end, or fail for good.
    JobEnds = "job-ends",
    /// The store can't be written, or read.
    StoreFails = "store-fails",
    /// The store was written and says that it was not.
    StoreUnknown = "store-unknown",
    /// The disk is full for a while.
    DiskFull = "disk-full",
    /// Somebody else is faster at taking the lock.
    StoreConflict = "store-conflict",
    /// Writes take long.
    SlowStore = "slow-store",
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
