//! Mistakes in a config, each with its place in the file and the words that are told.

/// The text after GOOD's four lines, the place that is named, and words of the remedy.
pub const AFTER_A_SLOT: [(&str, &str, &str); 79] = [
    ("nmae = \"b\"", "w.toml:5: tpu[0].nmae:", "unknown key `nmae`; did you mean `name`?"),
    (
        "queued_resource = \"q\"\n[tpu.policy]\non_success = \"stop\"",
        "w.toml:7: tpu[0].policy.on_success:",
        "the API stops no TPU of a queued resource",
    ),
    ("queued_resource = \"a b\"", "w.toml:5: tpu[0].queued_resource:", "is not the id of a queued"),
    ("kind = \"slice\"", "w.toml:5: tpu[0].kind:", "not supported yet"),
    ("kind = \"nodes\"", "w.toml:5: tpu[0].kind:", "write \"node\" or \"queued_resource\""),
    ("kind = \"node\"\nqueued_resource = \"q\"", "w.toml:5: tpu[0].kind:", "keep one of them"),
    (
        "[tpu.create]\nvalid_until = \"7d\"",
        "w.toml:6: tpu[0].create.valid_until:",
        "set queued_resource",
    ),
    ("zones = [\"us-east5-a\"]", "w.toml:5: tpu[0].zones:", "keep one of them"),
    ("startup_script = \"none.sh\"", "w.toml:5: tpu[0].startup_script:", "relative to the config"),
    ("startup_script = \"${NOPE}\"", "w.toml:5: tpu[0].startup_script:", "NOPE is not set"),
    (
        "[[tpu]]\nname = \"a\"\nzone = \"us-east5-a\"",
        "w.toml:6: tpu[1].name:",
        "names must be unique",
    ),
    (
        "queued_resource = \"q\"\n[[tpu]]\nname = \"a-1\"\nzone = \"us-central2-b\"\nqueued_resource = \"q\"",
        "w.toml:9: tpu[1].queued_resource:",
        "\"q\" is the slot \"a\" already; one slot is a queued resource with all its nodes",
    ),
    (
        "[[tpu]]\nname = \"B_1\"\nzone = \"us-east5-a\"",
        "w.toml:6: tpu[1].name:",
        "lower-case letters",
    ),
    ("[[tpu]]\nname = \"b\"", "w.toml:5: tpu[1].zone:", "is missing; write zone"),
    ("[[tpu]]\nname = \"b\"\nzones = []", "w.toml:7: tpu[1].zones:", "name at least one zone"),
    (
        "[[tpu]]\nname = \"b\"\nzone = \"us-central2\"",
        "w.toml:7: tpu[1].zone:",
        "look like \"us-central2-b\"",
    ),
    ("[[tpu]]\nzone = \"us-east5-a\"", "w.toml:5: tpu[1]:", "missing key `name`"),
    (
        "[tpu.policy]\nmax_unavailable = 2",
        "w.toml:6: tpu[0].policy.max_unavailable:",
        "set it under [policy]",
    ),
    (
        "[tpu.policy]\nconfirmations = 0",
        "w.toml:6: tpu[0].policy.confirmations:",
        "from 1 to 1000000, got 0",
    ),
    (
        "[tpu.create]\nspot = true\nreserved = true",
        "w.toml:7: tpu[0].create.reserved:",
        "choose one",
    ),
    (
        "[tpu.create]\ncidr_block = \"10.2.0.0/20\"",
        "w.toml:6: tpu[0].create.cidr_block:",
        "is a /20; the API takes a /29 alone",
    ),
    (
        "[tpu.create]\ncidr_block = \"10.2.0.0\"",
        "w.toml:6: tpu[0].create.cidr_block:",
        "write \"10.2.0.0/29\"",
    ),
    (
        "[tpu.create]\ncidr_block = \"10.2.0.5/29\"",
        "w.toml:6: tpu[0].create.cidr_block:",
        "write \"10.2.0.0/29\"",
    ),
    (
        "[tpu.create]\naccelerator_type = \"\"",
        "w.toml:6: tpu[0].create.accelerator_type:",
        "is empty; write one like \"v4-8\"",
    ),
    (
        "[tpu.create]\naccelerator_config = { type = \"V4\", topology = \"2x2x\" }",
        "w.toml:6: tpu[0].create.accelerator_config.topology:",
        "look like \"2x4\"",
    ),
    (
        "[tpu.create]\nruntime_version = \"tpu ubuntu\"",
        "w.toml:6: tpu[0].create.runtime_version:",
        "write one word like",
    ),
    (
        "[tpu.create]\nnetwork = \"Default\"",
        "w.toml:6: tpu[0].create.network:",
        "\"projects/my-project/global/networks/my-name\"",
    ),
    (
        "[tpu.create]\nsubnetwork = \"projects/p/global/networks/n\"",
        "w.toml:6: tpu[0].create.subnetwork:",
        "/subnetworks/my-name\"",
    ),
    (
        "[tpu.create]\ntags = [\n  \"tpu\",\n  \"my_tag\",\n]",
        "w.toml:8: tpu[0].create.tags[1]:",
        "\"my_tag\" is not a network tag: 1 to 63 lower-case letters",
    ),
    (
        "[tpu.create]\nnodes = 2",
        "w.toml:6: tpu[0].create.nodes:",
        "is of a queued resource alone; set queued_resource",
    ),
    (
        "queued_resource = \"q\"\n[tpu.create]\nnodes = 0",
        "w.toml:7: tpu[0].create.nodes:",
        "0 is no number of slices; write 1 to 4096",
    ),
    (
        "[tpu.create]\nprovisioning_model = \"flex-start\"",
        "w.toml:6: tpu[0].create.provisioning_model:",
        "is of a queued resource alone; set queued_resource",
    ),
    (
        "queued_resource = \"q\"\n[tpu.create]\nprovisioning_model = \"spot\"",
        "w.toml:7: tpu[0].create.provisioning_model:",
        "for other capacity use spot = true or reserved = true",
    ),
    (
        "queued_resource = \"q\"\n[tpu.create]\nprovisioning_model = \"flex-start\"\nmax_run = \"8d\"",
        "w.toml:8: tpu[0].create.max_run:",
        "7 days at most",
    ),
    (
        "queued_resource = \"q\"\n[tpu.create]\nmax_run = \"8h\"",
        "w.toml:7: tpu[0].create.max_run:",
        "set provisioning_model = \"flex-start\"",
    ),
    (
        "queued_resource = \"q\"\n[tpu.create]\nprovisioning_model = \"flex-start\"\nspot = true",
        "w.toml:8: tpu[0].create.spot:",
        "different capacity",
    ),
    (
        "[tpu.create]\nboot_disk_gb = 0",
        "w.toml:6: tpu[0].create.boot_disk_gb:",
        "0 is no size of a disk",
    ),
    (
        "[tpu.create]\nlabels = { Team = \"x\" }",
        "w.toml:6: tpu[0].create.labels.Team:",
        "lower-case",
    ),
    (
        "[tpu.create]\nlabels = { team = true }",
        "w.toml:6: tpu[0].create.labels.team:",
        "false to remove",
    ),
    (
        "[tpu.create.metadata]\ntpu-watchdog-run = \"x\"",
        "w.toml:6: tpu[0].create.metadata.tpu-watchdog-run:",
        "this program alone",
    ),
    (
        "[tpu.create.metadata]\nstartup-script = \"x\"",
        "w.toml:6: tpu[0].create.metadata.startup-script:",
        "startup_script = \"file\"",
    ),
    (
        "[tpu.job]\nresume = \"none\"",
        "w.toml:6: tpu[0].job.resume:",
        "use \"framework\" or \"watchdog\"",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\non_notice = \"SIGTERM\"",
        "w.toml:7: tpu[0].job.on_notice:",
        "as \"pkill -TERM -f train.py\"",
    ),
    (
        "[tpu.job]\ncheckpoint = { uri = \"gs://b\", as = \"mnt\" }",
        "w.toml:6: tpu[0].job.checkpoint.as:",
        "as \"/mnt/checkpoints\"",
    ),
    (
        "[tpu.job]\nsecret = { A = \"projects/p/secrets/a\" }",
        "w.toml:6: tpu[0].job.secret:",
        "needs `command`",
    ),
    ("[tpu.job]\nimage = \"train:1\"", "w.toml:6: tpu[0].job.image:", "needs `command`"),
    (
        "[tpu.job]\ncommand = \"x\"\nimage = \"train:1; reboot\"",
        "w.toml:7: tpu[0].job.image:",
        "write \"us-docker.pkg.dev/",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\ncode = \"gs://b/train.py\"",
        "w.toml:7: tpu[0].job.code:",
        "its name ends with .tar",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\ncode = \"gs://b/code.tar.gz#main\"",
        "w.toml:7: tpu[0].job.code:",
        "pinned by its generation",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\ncode = \"https://github.com/o/r.git#main\"",
        "w.toml:7: tpu[0].job.code:",
        "all 40 digits",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\ncode = \"https://me:token@host/r.git#0\"",
        "w.toml:7: tpu[0].job.code:",
        "other characters",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\nimage = \"train:1\"\ncode = \"gs://b/c.tar\"",
        "w.toml:8: tpu[0].job.code:",
        "with `image` needs `dir`",
    ),
    ("[tpu.job]\ncommand = \"x\"\ncode = \"./src\"", "w.toml:7: tpu[0].job.code:", "is neither"),
    (
        "[tpu.job]\nlogs = \"s3://bucket/logs\"",
        "w.toml:6: tpu[0].job.logs:",
        "write \"gs://bucket/path\"",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\nenv_file = \"train.env\"",
        "w.toml:7: tpu[0].job.env_file:",
        "write its whole path",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\nsecret = { HF_TOKEN = \"hf_0123\" }",
        "w.toml:7: tpu[0].job.secret.HF_TOKEN:",
        "keep the value in Secret Manager",
    ),
    (
        "[tpu.job]\ncommand = \"x\"\nsecret = { 1X = \"projects/p/secrets/hf\" }",
        "w.toml:7: tpu[0].job.secret.1X:",
        "letters, digits and '_'",
    ),
    (
        "[tpu.job]\ncheckpoint = \"gs://b/run//x\"",
        "w.toml:6: tpu[0].job.checkpoint:",
        "an empty part (//)",
    ),
    (
        "[tpu.job]\ncheckpoint = \"gs://b/./x\"",
        "w.toml:6: tpu[0].job.checkpoint:",
        "the part \".\"",
    ),
    (
        "[tpu.job]\ncheckpoint = \"file:///a/../x\"",
        "w.toml:6: tpu[0].job.checkpoint:",
        "the part \"..\"",
    ),
    (
        "[tpu.job]\ncheckpoint = { uri = \"gs://b\", orbax_mode = \"copy\" }",
        "w.toml:6: tpu[0].job.checkpoint.orbax_mode:",
        "use \"auto\", \"rename\" or \"commit_file\"",
    ),
    (
        "[tpu.job]\ncheckpoint = \"bucket/path\"",
        "w.toml:6: tpu[0].job.checkpoint:",
        "gs://bucket/path",
    ),
    (
        "[tpu.job]\ncheckpoint = { uri = \"gs://b\", format = \"t5x\" }",
        "w.toml:6: tpu[0].job.checkpoint.format:",
        "\"orbax\", \"huggingface\" and \"none\" are",
    ),
    ("[tpu.job]\nlaunch = \"ssh\"", "w.toml:6: tpu[0].job.launch:", "use \"startup-script\""),
    ("[tpu.job]\ncommand = \" \"", "w.toml:6: tpu[0].job.command:", "leave it out"),
    ("[tpu.job]\nuser = \"a b\"", "w.toml:6: tpu[0].job.user:", "not a user name"),
    ("[tpu.job.env]\n\"1A\" = \"x\"", "w.toml:6: tpu[0].job.env.1A:", "letters, digits"),
    (
        "[tpu.job]\nrestart = { transient_exit_codes = [6, 0] }",
        "w.toml:6: tpu[0].job.restart.transient_exit_codes:",
        "0 is no code of a failure; those are 1 to 255",
    ),
    (
        "[tpu.job]\nrestart = { per_run = -1 }",
        "w.toml:6: tpu[0].job.restart.per_run:",
        "from 0 to 1000000",
    ),
    (
        "[tpu.policy]\nquiet_hours = [{ cron = \"at nine\", for = \"8h\" }]",
        "w.toml:6: tpu[0].policy.quiet_hours[0].cron:",
        "write seconds, minutes, hours",
    ),
    (
        "[tpu.job]\nrestart = { no_progress = 0 }",
        "w.toml:6: tpu[0].job.restart.no_progress:",
        "from 1 to 1000000",
    ),
    (
        "[[vertex_job]]\nregion = \"us-central1\"\nname = \"v\"",
        "w.toml:5: vertex_job[0]:",
        "exactly one of display_name, job and labels",
    ),
    (
        "[[vertex_job]]\nregion = \"us-central1-a\"\ndisplay_name = \"v\"",
        "w.toml:6: vertex_job[0].region:",
        "is not a region; they look like \"us-central1\"",
    ),
    (
        "[[vertex_job]]\nregion = \"us-central1\"\ndisplay_name = \"My job\"",
        "w.toml:5: vertex_job[0].name:",
        "is no name of a slot: write `name`",
    ),
    (
        "[[vertex_job]]\njob = \"projects/p/customJobs/1\"\nname = \"v\"",
        "w.toml:6: vertex_job[0].job:",
        "they look like \"projects/P/locations/us-central1/customJobs/123\"",
    ),
    (
        "[[vertex_job]]\nregion = \"us-central1\"\ndisplay_name = \"v\"\nmax_wait = \"1h\"",
        "w.toml:8: vertex_job[0].max_wait:",
        "is of flex-start capacity alone",
    ),
    (
        "[[vertex_job]]\nregion = \"us-central1\"\ndisplay_name = \"v\"\nnext_machine = [\"m\", \"m\"]",
        "w.toml:8: vertex_job[0].next_machine:",
        "is empty, or named twice",
    ),
    (
        "[[ai_platform_job]]\njob = \"2024-census\"\nname = \"c\"",
        "w.toml:6: ai_platform_job[0].job:",
        "a letter first",
    ),
    (
        "[[vertex_job]]\nregion = \"us-central1\"\ndisplay_name = \"v\"\ncreate = \"no.yaml\"",
        "w.toml:8: vertex_job[0].create:",
        "can't be read",
    ),
];

/// The text between `project` and the slot.
pub const BEFORE_A_SLOT: [(&str, &str, &str); 28] = [
    ("dry_run = \"yes\"", "w.toml:2: dry_run:", "write true or false, without quotes"),
    ("polll = 1", "w.toml:2: polll:", "unknown key `polll`"),
    ("owner = \"\"", "w.toml:2: owner:", "leave it out"),
    ("lease = \"100ms\"", "w.toml:2: lease:", "at least 1s"),
    ("pushgateway = \"gateway:9091\"", "w.toml:2: pushgateway:", "http://127.0.0.1:9091"),
    ("listen = \"9470\"", "w.toml:2: listen:", "\"127.0.0.1:9470\" or \"off\""),
    ("listen_token_file = \"\"", "w.toml:2: listen_token_file:", "name a file"),
    ("state = \"gs://bucket\"", "w.toml:2: state:", "needs a bucket and a prefix"),
    ("state = \"s3:/b/p\"", "w.toml:2: state:", "needs a bucket and a prefix"),
    ("state = \"gs://b/a//c\"", "w.toml:2: state:", "not a path in a bucket"),
    ("state = \"postgres://h/d\"", "w.toml:2: state:", "not supported yet"),
    ("state = \"file\"", "w.toml:2: state:", "not a place for state"),
    ("state = \"sqlite:\"", "w.toml:2: state:", "needs a path"),
    ("[poll]\nevery = \"soon\"", "w.toml:3: poll.every:", "write \"90s\", \"15m\" or \"1h 30m\""),
    ("[poll]\nevery = \"1ms\"", "w.toml:3: poll.every:", "must be at least"),
    ("[poll]\nevery = 30", "w.toml:3: poll.every:", "30 has no unit; write \"30s\""),
    ("[poll]\ncron = \"* * * * * *\"", "w.toml:3: poll.cron:", "not supported yet"),
    ("[api]\ncredentials = \"anonymous\"", "w.toml:3: api.credentials:", "only towards loopback"),
    ("[api]\ncredentials = \"key\"", "w.toml:3: api.credentials:", "\"application-default\""),
    ("[api]\ntpu = \"http://tpu.example\"", "w.toml:3: api.tpu:", "use https"),
    ("[api]\ntpu = \"tpu\"", "w.toml:3: api.tpu:", "is not a URL"),
    ("[api]\nversion = \"v3\"", "w.toml:3: api.version:", "\"v2\" or \"v2alpha1\""),
    (
        "[policy]\nmax_unavailable = \"half\"",
        "w.toml:3: policy.max_unavailable:",
        "write 2 or \"25%\"",
    ),
    (
        "[policy]\nwhen_missing = \"panic\"",
        "w.toml:3: policy.when_missing:",
        "\"create\" or \"hold\"",
    ),
    (
        "[policy]\non_success = \"halt\"",
        "w.toml:3: policy.on_success:",
        "use \"keep\", \"stop\" or \"delete\"",
    ),
    ("[policy]\norphans = \"alive\"", "w.toml:3: policy.orphans:", "use \"report\" or \"dead\""),
    (
        "[policy]\ngrace = { maintenence = \"1h\" }",
        "w.toml:3: policy.grace.maintenence:",
        "unknown key `maintenence`",
    ),
    (
        "[policy]\nbackoff = { first = \"1h\", max = \"1m\" }",
        "w.toml:3: policy.backoff.max:",
        "must not be shorter",
    ),
];
