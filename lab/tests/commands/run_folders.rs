//! Run folders: what is in them outlives damage, crashes and full disks, and one command at a time
//! works in them.
#![cfg(unix)]

use crate::coordinated::LAB;
use crate::processes;
use crate::program::{MODEL, codedgrad, command, flags, json, refused, text};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A model small enough for a debug build.
static SMALL: LazyLock<Vec<&str>> =
    LazyLock::new(|| flags(&["--clock virtual", MODEL, "--workers 4 --scheme uncoded"]));
/// More steps than a run makes before the test ends it.
const ENDLESS: [&str; 4] = ["--steps", "5000", "--checkpoint-every", "5"];
const CURRENT: &str = "checkpoint.safetensors";
const BEFORE: &str = "checkpoint.before.safetensors";

fn train(folder: &Path, arguments: &[&str]) -> Output {
    codedgrad(folder, &[&["train"], &SMALL[..], arguments].concat())
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// A run of 12 steps that broke off in step 10, with checkpoints of steps 4 and 8, and the same run
/// without a break.
struct Broken {
    home: TempDir,
}

impl Broken {
    fn make() -> Self {
        let home = tempfile::tempdir().unwrap();
        let plan = ["--steps", "12", "--checkpoint-every", "4"];
        json(&train(home.path(), &[&plan[..], &["--out", "whole", "--json"]].concat()));
        let output = train(
            home.path(),
            &[&plan[..], &["--out", "broken", "--fault", "panic@10:2"]].concat(),
        );
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("kept up to step 8"), "{}", text(&output.stderr));
        let examined = text(&codedgrad(home.path(), &["doctor", "broken"]).stderr);
        assert!(examined.contains("warning: the run broke off in step 10, "), "{examined}");
        let plan = home.path().join("broken/plan.json");
        let mut parsed: Value = serde_json::from_slice(&fs::read(&plan).unwrap()).unwrap();
        parsed["faults"] = Value::Array(Vec::new());
        fs::write(&plan, parsed.to_string()).unwrap();
        Self { home }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn checkpoint(&self) -> Vec<u8> {
        fs::read(self.path("broken").join(CURRENT)).unwrap()
    }

    /// Resumes a copy whose files were changed: what it said. Its outcome must be that of the run
    /// without a break.
    fn resumes(&self, what: &str, change: impl FnOnce(&Path)) -> String {
        let cut = self.path("cut");
        copy(&self.path("broken"), &cut);
        change(&cut);
        let output = codedgrad(self.home.path(), &["train", "--resume", "cut", "--json"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{what}: {said}");
        for file in ["run.jsonl", "summary.json", "model-0-uncoded/model.safetensors", CURRENT] {
            let read = |out: &str| fs::read(self.path(out).join(file)).unwrap();
            assert!(read("whole") == read("cut"), "{what}: {file} differs; {said}");
        }
        fs::remove_dir_all(cut).unwrap();
        said
    }
}

/// The header of a safetensors file, and what comes after it.
fn split(bytes: &[u8]) -> (Value, &[u8]) {
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).unwrap(), data)
}

fn joined(header: &Value, data: &[u8]) -> Vec<u8> {
    let mut text = header.to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), data].concat()
}

#[test]
fn an_altered_checkpoint_is_never_gone_on_from() {
    let broken = Broken::make();
    let whole = broken.checkpoint();
    let data = whole.len() - split(&whole).1.len();
    for part in 0..50 {
        let (at, bit) = (whole.len() * part / 50, part % 8);
        let said = broken.resumes(&format!("bit {bit} of byte {at}"), |cut| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            fs::write(cut.join(CURRENT), bytes).unwrap();
        });
        if at >= data {
            assert!(
                said.contains("cut/checkpoint.safetensors: ")
                    && said.contains("going on from step 4"),
                "byte {at}: {said}"
            );
        }
    }
    let said = broken.resumes("another step", |cut| {
        let text = "next_step\\\":8";
        let at = whole.windows(text.len()).position(|found| found == text.as_bytes()).unwrap();
        let mut bytes = whole.clone();
        bytes[at + text.len() - 1] = b'9';
        fs::write(cut.join(CURRENT), bytes).unwrap();
    });
    assert!(
        said.contains("cut/checkpoint.safetensors: ") && said.contains("going on from step 4"),
        "{said}"
    );
}

#[test]
fn a_cut_or_missing_checkpoint_leaves_the_one_before() {
    let broken = Broken::make();
    let whole = broken.checkpoint();
    for kept in (0..10).map(|part| whole.len() * part / 10).chain([7, 9, whole.len() - 1]) {
        let said = broken.resumes(&format!("{kept} bytes"), |cut| {
            fs::write(cut.join(CURRENT), &whole[..kept]).unwrap();
        });
        assert!(
            said.contains("cut/checkpoint.safetensors: ") && said.contains("going on from step 4"),
            "{kept} bytes: {said}"
        );
    }
    let said = broken.resumes("gone", |cut| fs::remove_file(cut.join(CURRENT)).unwrap());
    assert!(
        said.contains("cut/checkpoint.safetensors: ") && said.contains("going on from step 4"),
        "{said}"
    );
    // Killed while the checkpoint of step 8 is written, and between its two renames.
    let said = broken.resumes("half written", |cut| {
        fs::write(cut.join(format!("{CURRENT}.part")), &whole[..whole.len() / 2]).unwrap();
        fs::rename(cut.join(BEFORE), cut.join(CURRENT)).unwrap();
    });
    assert!(!said.contains("checkpoint"), "nothing is wrong with the one of step 4: {said}");
    let said = broken.resumes("between the renames", |cut| {
        fs::rename(cut.join(CURRENT), cut.join(format!("{CURRENT}.part"))).unwrap();
    });
    assert!(said.contains("going on from step 4"), "{said}");
    let said = broken.resumes("as it is", |_| {});
    assert!(!said.contains("checkpoint"), "{said}");
}

/// Kills a run so many times, and resumes it each time: it must end as one that was never killed.
/// Some kills come while the checkpoint is read, others while steps are made or one is written.
fn killed_and_resumed(times: u64) {
    let home = tempfile::tempdir().unwrap();
    let steps = (150 * times).to_string();
    let plan = ["--steps", &steps, "--checkpoint-every", "3"];
    json(&train(home.path(), &[&plan[..], &["--out", "whole", "--json"]].concat()));
    let begin = [&["train"], &SMALL[..], &plan[..], &["--out", "cut"]].concat();
    let mut arguments = begin;
    let mut killed = 0;
    for moment in 0..times {
        let mut run = Kept::start(home.path(), &arguments);
        run.has_file(&home.path().join("cut/run.jsonl"));
        // Spread over a fifth of a second, in no order.
        std::thread::sleep(Duration::from_micros(moment * 7_919_333 % 200_000));
        killed += u64::from(run.ends_by("-KILL") != Some(0));
        arguments = vec!["train", "--resume", "cut", "--json"];
    }
    assert!(2 * killed > times, "only {killed} of {times} kills came before the end");
    let output = codedgrad(home.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for file in ["run.jsonl", "summary.json", "model-0-uncoded/model.safetensors", CURRENT] {
        let read = |out: &str| fs::read(home.path().join(out).join(file)).unwrap();
        assert!(read("whole") == read("cut"), "{file} differs after {killed} kills");
    }
}

#[test]
fn a_run_killed_at_any_moment_goes_on_to_the_same_bytes() {
    killed_and_resumed(12);
}

#[test]
#[ignore = "long"]
fn a_run_killed_200_times_goes_on_to_the_same_bytes() {
    killed_and_resumed(200);
}

/// What is damaged must not take the place of the good one when the next checkpoint is written.
#[test]
fn a_damaged_checkpoint_is_put_aside() {
    let broken = Broken::make();
    let (cut, good) = (broken.path("cut"), fs::read(broken.path("broken").join(BEFORE)).unwrap());
    copy(&broken.path("broken"), &cut);
    fs::write(cut.join(CURRENT), "garbage").unwrap();
    // The next checkpoint cannot be written.
    fs::create_dir(cut.join(format!("{CURRENT}.part"))).unwrap();
    let output = codedgrad(broken.home.path(), &["train", "--resume", "cut"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("checkpoint.safetensors") && said.contains("kept up to step 4"),
        "{said}"
    );
    assert!(fs::read(cut.join(CURRENT)).unwrap() == good);
    assert_eq!(fs::read(cut.join("checkpoint.damaged.safetensors")).unwrap(), b"garbage");
    fs::remove_dir(cut.join(format!("{CURRENT}.part"))).unwrap();
    json(&codedgrad(broken.home.path(), &["train", "--resume", "cut", "--json"]));
    assert!(
        fs::read(cut.join("run.jsonl")).unwrap()
            == fs::read(broken.path("whole/run.jsonl")).unwrap()
    );
}

#[test]
fn two_damaged_checkpoints_are_both_named() {
    let broken = Broken::make();
    let cut = broken.path("broken");
    let mut bytes = broken.checkpoint();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(cut.join(CURRENT), &bytes).unwrap();
    fs::write(cut.join(BEFORE), &bytes[..bytes.len() / 2]).unwrap();
    let record = fs::read(cut.join("run.jsonl")).unwrap();
    let needles =
        ["broken/checkpoint.safetensors: ", "digest", "broken/checkpoint.before.safetensors: "];
    refused(broken.home.path(), &["train", "--resume", "broken"], &needles);
    fs::remove_file(cut.join(BEFORE)).unwrap();
    refused(broken.home.path(), &["train", "--resume", "broken"], &needles[..2]);
    assert!(fs::read(cut.join("run.jsonl")).unwrap() == record, "the record is as it was");
}

/// Checkpoints of earlier versions say nothing of their digest.
#[test]
fn a_checkpoint_without_a_digest_is_gone_on_from() {
    let broken = Broken::make();
    let whole = broken.checkpoint();
    let said = broken.resumes("an old one", |cut| {
        let (mut header, data) = split(&whole);
        let metadata = header["__metadata__"].as_object_mut().unwrap();
        metadata.retain(|key, _| key == "place");
        fs::write(cut.join(CURRENT), joined(&header, data)).unwrap();
        let _ = fs::remove_file(cut.join(BEFORE));
    });
    assert!(!said.contains("checkpoint"), "{said}");
}

/// A limit on the size of files stands in for a full disk.
#[test]
fn a_full_disk_is_told_with_the_step_that_is_kept() {
    let broken = Broken::make();
    let run = |arguments: &[&str]| {
        let script = "trap '' XFSZ; ulimit -f 40; exec \"$0\" train \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, LAB]).args(arguments).current_dir(broken.home.path());
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let said = run(&["--resume", "broken"]);
    assert!(
        said.contains("checkpoint.safetensors") && said.contains("kept up to step 8"),
        "{said}"
    );
    let said =
        run(&[&SMALL[..], &["--steps", "12", "--checkpoint-every", "4", "--out", "new"]].concat());
    assert!(
        said.contains("checkpoint.safetensors") && said.contains("kept up to step 0"),
        "{said}"
    );
    broken.resumes("with room again", |_| {});
}

/// A process that does not outlive its test.
struct Kept {
    child: Child,
    home: PathBuf,
}

impl Kept {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let mut command = command(arguments);
        command.current_dir(home).stdin(Stdio::null()).stdout(Stdio::null());
        let log = fs::File::options().create(true).append(true).open(home.join("said")).unwrap();
        Self { child: command.stderr(log).spawn().unwrap(), home: home.into() }
    }

    #[expect(clippy::disallowed_methods, reason = "a test that hangs must end")]
    fn waits<T>(&mut self, what: &str, mut look: impl FnMut(&mut Child) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = look(&mut self.child) {
                return found;
            }
            let said = fs::read_to_string(self.home.join("said")).unwrap();
            assert!(
                begin.elapsed() < Duration::from_secs(180),
                "waited in vain for {what}: {said}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn has_steps(&mut self, record: &Path, count: usize) {
        self.waits("steps", |_| {
            (fs::read_to_string(record).unwrap_or_default().lines().count() >= count).then_some(())
        });
    }

    fn has_file(&mut self, file: &Path) {
        self.waits("a file", |_| file.exists().then_some(()));
    }

    fn ends_by(&mut self, signal: &str) -> Option<i32> {
        processes::signal(&self.child, signal);
        self.waits("the end", |child| child.try_wait().unwrap()).code()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The steps of a record, one after the other.
fn steps(record: &Path) -> Vec<u64> {
    let text = fs::read_to_string(record).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_run_under_way_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("run/run.jsonl");
    let begin = [&["train"], &SMALL[..], &ENDLESS[..], &["--out", "run"]].concat();
    let mut owner = Kept::start(home.path(), &begin);
    owner.has_steps(&record, 8);
    let plan = fs::read(home.path().join("run/plan.json")).unwrap();
    let who = format!("in use by process {}", owner.child.id());
    refused(home.path(), &["train", "--resume", "run"], &[&who, "run is"]);
    refused(home.path(), &[&begin[..], &["--force"]].concat(), &[&who]);
    refused(home.path(), &begin, &["holds a run already"]);
    let seen = steps(&record).len();
    owner.has_steps(&record, seen + 10);
    assert_eq!(owner.ends_by("-KILL"), None);
    assert!(fs::read(home.path().join("run/plan.json")).unwrap() == plan);
    // The system has let go of the folder of a command that was killed.
    let mut heir = Kept::start(home.path(), &["train", "--resume", "run"]);
    let seen = steps_there(&record);
    heir.has_steps(&record, seen + 10);
    let who = format!("in use by process {}", heir.child.id());
    refused(home.path(), &["train", "--resume", "run"], &[&who]);
    assert_eq!(heir.ends_by("-INT"), Some(130));
    let found = steps(&record);
    assert!(found.iter().copied().eq(0..found.len() as u64), "{found:?}");
    assert!(!home.path().join("run/lock.owner").exists(), "no worker works there any more");
}

/// Whole lines of a record that may be growing.
fn steps_there(record: &Path) -> usize {
    fs::read_to_string(record).unwrap_or_default().lines().count()
}

#[test]
fn a_coordinator_under_way_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let address = home.path().join("run/address");
    let begin = flags(&["serve --listen 127.0.0.1:0 --out run --workers 4 --scheme uncoded"]);
    let mut owner = Kept::start(home.path(), &begin);
    owner.has_file(&address);
    let told = fs::read(&address).unwrap();
    let who = format!("in use by process {}", owner.child.id());
    refused(home.path(), &["serve", "--resume", "run", "--listen", "127.0.0.1:0"], &[&who]);
    refused(home.path(), &[&begin[..], &["--force"]].concat(), &[&who]);
    assert_eq!(fs::read(&address).unwrap(), told, "workers go on calling the first one");
    assert_eq!(owner.ends_by("-KILL"), None);
    fs::remove_file(&address).unwrap();
    fs::write(&address, &told).unwrap();
    let mut heir =
        Kept::start(home.path(), &["serve", "--resume", "run", "--listen", "127.0.0.1:0"]);
    heir.waits("another address", |_| {
        (fs::read(&address).is_ok_and(|now| now != told)).then_some(())
    });
    assert_eq!(heir.ends_by("-INT"), Some(130));
}

#[test]
fn a_command_that_fails_before_its_first_step_leaves_no_folder() {
    let home = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let listen = |out| {
        let own = ["serve", "--listen", &address, "--out", out];
        [&own, &["--workers", "4", "--scheme", "uncoded"][..]].concat()
    };
    for _ in 0..2 {
        let output = codedgrad(home.path(), &listen("new"));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("in use"), "{}", text(&output.stderr));
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0, "the folder is gone");
    }
    // A folder that a user made stays, and the same command can use it again.
    fs::create_dir(home.path().join("mine")).unwrap();
    fs::write(home.path().join("mine/notes"), "keep").unwrap();
    for _ in 0..2 {
        assert_eq!(codedgrad(home.path(), &listen("mine")).status.code(), Some(2));
        assert_eq!(fs::read(home.path().join("mine/notes")).unwrap(), b"keep");
    }
    let output = train(home.path(), &["--steps", "3", "--fault", "panic@0:2", "--out", "new"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("dead workers {2}")
            && said.contains("before its first step")
            && !said.contains("--resume"),
        "{said}"
    );
    assert!(!home.path().join("new").exists());
    drop(taken);
    let mut again = Kept::start(home.path(), &listen("new"));
    again.has_file(&home.path().join("new/address"));
}

#[test]
fn what_workers_said_is_kept() {
    let home = tempfile::tempdir().unwrap();
    let launcher = flags(&["run -n 4 --scheme uncoded --out new --restarts 0 --return-wait 1"]);
    let worker = flags(&["worker --steps 3 --fault panic@0:2", MODEL]);
    let output = codedgrad(home.path(), &[&launcher[..], &[LAB], &worker].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("new/worker-2.log"), "{said}");
    assert!(
        fs::read_to_string(home.path().join("new/worker-2.log"))
            .unwrap()
            .contains("injected fault")
    );
    // A run that had begun before stays as well.
    json(&train(home.path(), &["--steps", "2", "--out", "old", "--json"]));
    let output =
        train(home.path(), &["--steps", "3", "--fault", "panic@0:2", "--out", "old", "--force"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(home.path().join("old/plan.json").exists());
}

/// Sets a field of a plan, wherever in it it lies.
fn set(plan: &mut Value, name: &str, to: &Value) -> bool {
    let Some(fields) = plan.as_object_mut() else { return false };
    match fields.get_mut(name) {
        Some(field) => {
            *field = to.clone();
            true
        }
        None => fields.values_mut().any(|inner| set(inner, name, to)),
    }
}

#[test]
fn a_plan_that_somebody_edited_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    json(&train(home.path(), &["--steps", "2", "--out", "run", "--json"]));
    let mut good: Value =
        serde_json::from_slice(&fs::read(home.path().join("run/plan.json")).unwrap()).unwrap();
    // As of an earlier version: what is wrong is then told by its own name.
    good.as_object_mut().unwrap().remove("digest");
    fs::create_dir(home.path().join("edited")).unwrap();
    let huge = 1u64 << 62;
    let cases: &[(&str, Value, &str)] = &[
        ("steps", huge.into(), "--steps"),
        ("steps", u64::MAX.into(), "--steps"),
        ("steps", (1u64 << 28).into(), "268435456 rounds"),
        ("schemes", serde_json::json!(["mine:s=1"]), "this program knows no family \"mine\""),
        ("micro_steps", 0.into(), "--accumulate 0"),
        ("micro_steps", (1u64 << 60).into(), "--accumulate"),
        ("checkpoint_every", 0.into(), "--checkpoint-every 0"),
        ("audit_every", 0.into(), "--audit-every 0"),
        ("heads", 0.into(), "heads"),
        ("layers", 0.into(), "layers"),
        ("layers", (1u64 << 40).into(), "layers"),
        ("width", (1u64 << 19).into(), "parameters"),
        ("width", (1u64 << 40).into(), "width"),
        ("context", huge.into(), "context"),
        ("vocabulary", huge.into(), "vocabulary"),
        ("vocabulary", 7.into(), "7 tokens"),
        ("devices_per_worker", 0.into(), "--gpus-per-worker 0"),
        ("workers", 0.into(), "--workers 0"),
        ("workers", (1u64 << 40).into(), "--workers"),
        ("micro_batches", 0.into(), "--micro-batches 0"),
        ("micro_batch_rows", 0.into(), "--micro-batch-rows 0"),
        ("micro_batch_rows", (1u64 << 60).into(), "--micro-batch-rows"),
        ("models", (1u64 << 60).into(), "--models"),
        ("max_wait_seconds", 1e300.into(), "--max-wait 1e300: at most 1e9"),
        ("return_seconds", (-1.0).into(), "--return-wait -1"),
        ("grace_seconds", 1e300.into(), "--grace 1e300"),
        ("mu", (-3.0).into(), "--mu -3"),
        ("step_seconds", (-1.0).into(), "--step-seconds -1"),
        ("learning_rate", (-1.0).into(), "--learning-rate -1"),
        ("schemes", Value::Array(Vec::new()), "no scheme"),
        ("attackers", serde_json::json!([77]), "worker 77"),
        ("faults", serde_json::json!(["nan@2:0"]), "steps are 0 to 1"),
    ];
    for (name, value, needle) in cases {
        let mut plan = good.clone();
        assert!(set(&mut plan, name, value), "{name}");
        fs::write(home.path().join("edited/plan.json"), plan.to_string()).unwrap();
        refused(home.path(), &["train", "--resume", "edited"], &[needle]);
    }
}

/// Other legal numbers would train something else, and no user would know.
#[test]
fn a_plan_that_was_altered_is_refused() {
    let home = tempfile::tempdir().unwrap();
    json(&train(home.path(), &["--steps", "2", "--out", "run", "--json"]));
    let path = home.path().join("run/plan.json");
    let written = fs::read(&path).unwrap();
    let good: Value = serde_json::from_slice(&written).unwrap();
    for (name, value) in [
        ("beta1", Value::from(0.5)),
        ("clip_norm", 0.25.into()),
        ("decay_steps", 7.into()),
        ("warmup_steps", (1u64 << 40).into()),
        ("seed", 77.into()),
    ] {
        let mut plan = good.clone();
        assert!(set(&mut plan, name, &value), "{name}");
        fs::write(&path, plan.to_string()).unwrap();
        let more = ["train", "--resume", "run", "--steps", "4"];
        refused(home.path(), &more, &["plan.json was altered since the run began"]);
        // Without its digest the checkpoint's still tells.
        plan.as_object_mut().unwrap().remove("digest");
        fs::write(&path, plan.to_string()).unwrap();
        refused(home.path(), &more, &["not of this plan"]);
    }
    // What may be given again may be changed by hand too, and the order of fields is nothing.
    let mut plan = good.clone();
    assert!(set(&mut plan, "audit_every", &7.into()));
    fs::write(&path, plan.to_string()).unwrap();
    json(&codedgrad(home.path(), &["train", "--resume", "run", "--steps", "4", "--json"]));
    assert_eq!(fs::read_to_string(home.path().join("run/run.jsonl")).unwrap().lines().count(), 4);
}

/// Runs of versions that wrote more into a plan are named as such, and as nothing that was altered.
#[test]
fn a_plan_of_an_earlier_version_is_refused() {
    let home = tempfile::tempdir().unwrap();
    json(&train(home.path(), &["--steps", "2", "--out", "run", "--json"]));
    let path = home.path().join("run/plan.json");
    let mut plan: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    plan["transport"] = "local".into();
    fs::write(&path, plan.to_string()).unwrap();
    let needles = ["plan.json is not a plan of this version", "begin a new run"];
    refused(home.path(), &["train", "--resume", "run", "--steps", "4"], &needles);
}

#[test]
fn a_service_that_somebody_edited_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let good = serde_json::json!({
        "id": 1, "workers": 2, "scheme": "uncoded", "join_wait_seconds": 1.0,
        "return_wait_seconds": 1.0, "max_wait_seconds": 1.0, "min_workers": null,
        "give_up_after": 0, "unit_tries": 3, "exchange": null, "wire": "f32", "facts": null,
        "over": false,
    });
    let cases: &[(&str, Value, &str)] = &[
        ("workers", (1u64 << 40).into(), "--workers"),
        ("workers", 0.into(), "--workers 0"),
        ("max_wait_seconds", 1e300.into(), "--max-wait 1e300"),
        ("join_wait_seconds", (-1.0).into(), "--join-wait -1"),
        ("unit_tries", 0.into(), "--unit-tries 0"),
    ];
    let mut auto = good.clone();
    auto["scheme"] = "auto:probe=200".into();
    fs::write(home.path().join("serve.json"), auto.to_string()).unwrap();
    refused(home.path(), &["serve", "--resume", "."], &["probe=200 is not from 1 to 199"]);
    for (name, value, needle) in cases {
        let mut plan = good.clone();
        plan[*name] = value.clone();
        fs::write(home.path().join("serve.json"), plan.to_string()).unwrap();
        refused(home.path(), &["serve", "--resume", "."], &["serve.json asks for", needle]);
    }
}

#[test]
fn times_that_no_clock_holds_are_refused() {
    let home = tempfile::tempdir().unwrap();
    for flag in ["--max-wait", "--grace", "--step-seconds"] {
        let output = train(home.path(), &[flag, "1e300"]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(&format!("{flag} 1e300: at most 1e9")));
    }
    let served = ["serve", "--workers", "2", "--max-wait", "1e300"];
    refused(home.path(), &served, &["--max-wait 1e300: at most 1e9"]);
}

#[test]
fn a_folder_that_is_removed_ends_its_run() {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("run/run.jsonl");
    let begin = [&["train"], &SMALL[..], &ENDLESS[..], &["--out", "run"]].concat();
    let mut owner = Kept::start(home.path(), &begin);
    owner.has_steps(&record, 3);
    // A checkpoint may be written meanwhile, which keeps the folder from being removed at once.
    while record.exists() {
        let _ = fs::remove_dir_all(home.path().join("run"));
    }
    let status = owner.waits("the end", |child| child.try_wait().unwrap());
    let said = fs::read_to_string(home.path().join("said")).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("was removed or moved while the run went on"), "{said}");
    assert!(said.contains("of which nothing is left"), "{said}");
}

#[test]
fn a_folder_that_is_moved_ends_its_run_and_is_named() {
    let home = tempfile::tempdir().unwrap();
    let begin = [&["train"], &SMALL[..], &ENDLESS[..], &["--out", "run"]].concat();
    let mut owner = Kept::start(home.path(), &begin);
    owner.has_steps(&home.path().join("run/run.jsonl"), 7);
    fs::rename(home.path().join("run"), home.path().join("moved")).unwrap();
    let status = owner.waits("the end", |child| child.try_wait().unwrap());
    let said = fs::read_to_string(home.path().join("said")).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("since run was moved; `codedgrad-lab train --resume`"), "{said}");
    assert!(!said.contains("nothing is left"), "{said}");
    let record = home.path().join("moved/run.jsonl");
    let mut heir = Kept::start(home.path(), &["train", "--resume", "moved"]);
    heir.has_steps(&record, steps_there(&record) + 10);
    assert_eq!(heir.ends_by("-INT"), Some(130));
}

#[test]
fn a_folder_whose_lock_is_removed_has_one_user_all_the_same() {
    let home = tempfile::tempdir().unwrap();
    let record = home.path().join("run/run.jsonl");
    let begin = [&["train"], &SMALL[..], &ENDLESS[..], &["--out", "run"]].concat();
    let mut owner = Kept::start(home.path(), &begin);
    owner.has_steps(&record, 3);
    fs::remove_file(home.path().join("run/lock")).unwrap();
    let who = ["run.jsonl is in use by another command, though the folder's lock was removed"];
    refused(home.path(), &["train", "--resume", "run"], &who);
    owner.has_steps(&record, steps_there(&record) + 10);
    assert_eq!(owner.ends_by("-INT"), Some(130));
    let found = steps(&record);
    assert!(found.iter().copied().eq(0..found.len() as u64), "no worker cut it: {found:?}");
}

#[test]
fn a_limit_of_the_shell_is_named() {
    let home = tempfile::tempdir().unwrap();
    let words = [&["train"], &SMALL[..], &["--steps", "200", "--out", "run"]].concat().join(" ");
    let script = format!("ulimit -f 8; exec {} {words}", LAB);
    let output = Command::new("bash").args(["-c", &script]).current_dir(home.path()).output();
    let output = output.unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("(os error 27); `ulimit -f` says how much is allowed"), "{said}");
    // What is there goes on.
    let resumed = codedgrad(home.path(), &["train", "--resume", "run", "--json"]);
    assert_eq!(json(&resumed)["runs"][0]["steps"], 200);
}

#[test]
fn what_a_folder_holds_instead_is_named() {
    let home = tempfile::tempdir().unwrap();
    for out in ["runs/a", "runs/b"] {
        json(&train(home.path(), &["--steps", "2", "--out", out, "--json"]));
    }
    let named = ["runs/a, runs/b; the newest is runs/b"];
    refused(home.path(), &["train", "--resume", "runs"], &named);
    refused(home.path(), &["train", "--out", "runs"], &named);
    refused(
        home.path(),
        &["train", "--init", "runs/b"],
        &["this is a run, whose models are runs/b/model-0-uncoded"],
    );
    refused(home.path(), &["train", "--init", "."], &["model .: config.json"]);
    // A record that lost lines, and the way on that is told.
    let record = home.path().join("runs/b/run.jsonl");
    let whole = fs::read(&record).unwrap();
    fs::write(&record, text(&whole).split_inclusive('\n').next().unwrap()).unwrap();
    refused(home.path(), &["train", "--resume", "runs/b"], &["(whole lines: 1)", "begins again"]);
    fs::remove_file(home.path().join("runs/b").join(CURRENT)).unwrap();
    json(&codedgrad(home.path(), &["train", "--resume", "runs/b", "--json"]));
    assert!(fs::read(&record).unwrap() == whole, "it does not begin again");
}
