//! Runs are killed, resumed and starved of disk space; nothing may be lost.

mod common;

use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use common::{begin, trainer, write_pairs};
use trainer::checkpoint::{self, FILE_NAME};
use trainer::session::Session;

fn step(folder: &Path) -> u64 {
    checkpoint::load(folder).map_or(0, |run| run.header.progress.step)
}

/// Kills a run without warning once it has passed a step; false where it ended before.
fn kill_after(mut run: Child, folder: &Path, at: u64) -> bool {
    while step(folder) < at {
        if run.try_wait().unwrap().is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    run.kill().unwrap();
    !run.wait().unwrap().success()
}

#[test]
fn a_run_killed_at_three_steps_ends_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_pairs(folder.path());
    let (whole, killed) = (folder.path().join("whole"), folder.path().join("killed"));
    assert!(begin(&pairs, &whole).status().unwrap().success());
    assert!(kill_after(begin(&pairs, &killed).spawn().unwrap(), &killed, 7));
    for at in [60, 133] {
        let resumed = trainer(&["--resume", killed.to_str().unwrap()]).spawn().unwrap();
        assert!(kill_after(resumed, &killed, at), "the run ended before step {at}");
        assert!(step(&killed) >= at, "a checkpoint was lost");
    }
    assert!(trainer(&["--resume", killed.to_str().unwrap()]).status().unwrap().success());
    let bytes = |run: &Path| std::fs::read(run.join(FILE_NAME)).unwrap();
    assert_eq!(step(&whole), step(&killed));
    assert!(bytes(&whole) == bytes(&killed), "the resumed run's checkpoint differs");
}

#[test]
fn a_full_disk_is_reported_and_the_last_checkpoint_kept() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_pairs(folder.path());
    let out = folder.path().join("run");
    let run = begin(&pairs, &out).spawn().unwrap();
    assert!(kill_after(run, &out, 3));
    let before = std::fs::read(out.join(FILE_NAME)).unwrap();
    // Every write to /dev/full fails as one to a full disk does.
    let _ = std::fs::remove_file(out.join("checkpoint.tmp"));
    std::os::unix::fs::symlink("/dev/full", out.join("checkpoint.tmp")).unwrap();
    let mut session = Session::resume(&out).unwrap();
    let error = session.train(&AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error.contains("No space left") && error.contains("previous one is kept"), "{error}");
    assert_eq!(std::fs::read(out.join(FILE_NAME)).unwrap(), before);
    Session::resume(&out).unwrap();
}

#[test]
fn a_stop_between_two_steps_leaves_a_run_to_go_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_pairs(folder.path());
    let out = folder.path().join("run");
    let mut run = begin(&pairs, &out).spawn().unwrap();
    while step(&out) < 2 {
        std::thread::sleep(Duration::from_millis(2));
    }
    let status = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(status.success());
    assert!(run.wait().unwrap().success(), "Ctrl-C is no failure");
    assert!(Session::resume(&out).is_ok());
}

#[test]
fn changed_training_pairs_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = write_pairs(folder.path());
    let out = folder.path().join("run");
    assert!(kill_after(begin(&pairs, &out).spawn().unwrap(), &out, 1));
    let text = std::fs::read_to_string(&pairs).unwrap();
    std::fs::write(&pairs, text.replacen("\tA", "\tB", 1)).unwrap();
    let error = Session::resume(&out).unwrap().train(&AtomicBool::new(false)).unwrap_err();
    assert!(error.to_string().contains("not those"), "{error}");
}
