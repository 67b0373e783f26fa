//! Our side of `benches/peers`.
//!
//! `kiloformer-peer write SIZE NUMBERS FILE` writes a random model. `kiloformer-peer serve FILE` says that
//! it is there and then answers one line of JSON to each line it reads: `load` loads the file and says
//! what that took, `run N` generates N times and says the seconds and the last ids.

use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use kiloformer_benches::{LEN, Numbers, Size, source};
use model_format::config::Precision;
use model_format::{AlignedBytes, Checks, Model};
use runtime::{FixedPoint, GenerateOptions, HalfFloat, Session, TokenId, TypedModel};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["write", size, numbers, file] => write(size, numbers, file),
        ["serve", file] => serve(file),
        _ => {
            Err("usage: kiloformer-peer write S|M|B W8A16|W4A16|HalfFloat FILE | serve FILE".into())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kiloformer-peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(size: &str, numbers: &str, file: &str) -> Result<(), Failure> {
    let size = Size::named(size).ok_or("sizes are S, M and B")?;
    let numbers = Numbers::named(numbers).ok_or("numbers are W8A16, W4A16 and HalfFloat")?;
    Ok(std::fs::write(file, &*size.model(numbers))?)
}

/// Waits for `load`, then for `run`s, until there are no more lines.
fn serve(file: &str) -> Result<(), Failure> {
    answer(r#""engine":"kiloformer""#)?;
    let mut lines = std::io::stdin().lock().lines();
    match lines.next().transpose()?.as_deref() {
        Some("load") => {}
        _ => return Err("the first line is `load`".into()),
    }
    let begin = Instant::now();
    let bytes = read(Path::new(file))?;
    let read_ms = milliseconds(begin);
    let begin = Instant::now();
    let model = Model::from_bytes_with(&bytes, Checks::Structure)?;
    let structure_ms = milliseconds(begin);
    let load = Load { bytes: &bytes, read_ms, structure_ms };
    match model.header().precision {
        Precision::FixedPoint => load.serve::<FixedPoint>(model, lines),
        Precision::HalfFloat => load.serve::<HalfFloat>(model, lines),
    }
}

/// The file, where a model needs it: read once, not copied.
fn read(path: &Path) -> std::io::Result<AlignedBytes> {
    let mut file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    let mut bytes = AlignedBytes::filled(0, len);
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn milliseconds(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

/// A file that was loaded, and what that took.
struct Load<'m> {
    bytes: &'m [u8],
    read_ms: f64,
    structure_ms: f64,
}

impl<'m> Load<'m> {
    fn serve<P: runtime::Precision>(
        &self,
        model: Model<'m>,
        mut lines: impl Iterator<Item = std::io::Result<String>>,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let model = TypedModel::<P>::new(model)?;
        let mut arena = AlignedBytes::filled(0, model.plan().total);
        let mut session = Session::new(&model, &mut arena)?;
        let session_ms = milliseconds(begin);
        answer(&format!(
            r#""read_ms":{},"structure_ms":{},"session_ms":{session_ms},"full_checks_ms":{},"arena_bytes":{}"#,
            self.read_ms,
            self.structure_ms,
            self.full_checks_ms()?,
            session.arena_len(),
        ))?;
        let source = source(model.model().config());
        lines.try_for_each(|line| {
            let line = line?;
            let count = line.strip_prefix("run ").ok_or("after `load` come lines `run N`")?;
            run(&mut session, &source, count.parse()?)
        })
    }

    /// What the checksum and the scan of the weights take besides.
    fn full_checks_ms(&self) -> Result<f64, Failure> {
        let begin = Instant::now();
        Model::from_bytes_with(self.bytes, Checks::Full)?;
        Ok(milliseconds(begin) - self.structure_ms)
    }
}

fn run<P: runtime::Precision>(
    session: &mut Session<'_, '_, P>,
    source: &[TokenId],
    count: u32,
) -> Result<(), Failure> {
    let mut ids = Vec::with_capacity(LEN.into());
    let begin = Instant::now();
    for _ in 0..count {
        ids.clear();
        ids.extend(session.generate(source, &GenerateOptions::default())?);
        if ids.len() != usize::from(LEN) {
            return Err(format!("{} ids instead of {LEN}", ids.len()).into());
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    answer(&format!(r#""seconds":{seconds},"ids":{ids:?}"#))
}

fn answer(fields: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{{{fields}}}")?;
    Ok(out.flush()?)
}
