//! Runs a firmware in QEMU, or in Node: sends text, collects the answer, never waits for ever.

use std::{
    io::{Read, Write},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use crate::board::{Board, firmware_dir};

/// What the firmware prints when it is ready for a line.
const PROMPT: &str = "> ";

/// Sends `input` to the firmware once it prompts, and gives all it printed until it ended with
/// status 0.
///
/// # Panics
/// When it does not end within `limit`, or ends with another status.
pub fn talk(board: &Board, elf: &Path, input: &str, limit: Duration) -> String {
    let (status, output) = run(board, elf, input, limit);
    assert!(status.success(), "{}: {status}; its output:\n{}", board.name, tail(&output));
    output
}

/// As [`talk`], with any status: gives it too.
///
/// # Panics
/// When it does not end within `limit`.
pub fn run(board: &Board, elf: &Path, input: &str, limit: Duration) -> (ExitStatus, String) {
    let deadline = Instant::now() + limit;
    let mut child = start(board, elf);
    let output = collect(&mut child, input.to_owned());
    let status = loop {
        if let Some(status) = child.try_wait().expect("waiting for the emulator") {
            break Some(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        thread::sleep(Duration::from_millis(10));
    };
    let output = output.join().expect("collecting the emulator's output");
    match status {
        Some(status) => (status, output),
        None => panic!("{}: no end after {limit:?}; its output:\n{}", board.name, tail(&output)),
    }
}

fn start(board: &Board, elf: &Path) -> Child {
    let command = board.emulator();
    Command::new(&command[0])
        .args(&command[1..])
        .arg(elf)
        .current_dir(firmware_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}; scripts/setup-device.sh gets it", command[0]))
}

/// Reads the output in a thread of its own, and has another send the input after the first prompt:
/// an emulated UART drops what arrives before its driver is ready.
fn collect(child: &mut Child, input: String) -> thread::JoinHandle<String> {
    let mut stdin = child.stdin.take().expect("a piped standard input");
    let mut stdout = child.stdout.take().expect("a piped standard output");
    let (ready, prompted) = mpsc::channel();
    thread::spawn(move || {
        if prompted.recv().is_ok() {
            // A firmware that ended early does not read; its status and output say why.
            let _ = stdin.write_all(input.as_bytes());
        }
    });
    thread::spawn(move || {
        let mut output = Vec::new();
        let mut chunk = [0; 4096];
        let mut ready = Some(ready);
        while let Ok(length @ 1..) = stdout.read(&mut chunk) {
            output.extend_from_slice(&chunk[..length]);
            if ready.is_some() && String::from_utf8_lossy(&output).contains(PROMPT) {
                ready.take().map(|ready| ready.send(()));
            }
        }
        String::from_utf8_lossy(&output).replace("\r\n", "\n")
    })
}

fn tail(output: &str) -> &str {
    let start = output.len().saturating_sub(2000);
    output.get(start..).unwrap_or(output)
}
