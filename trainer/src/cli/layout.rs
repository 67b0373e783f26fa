//! `--layout` and `--for`, and `trainer repack`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, ValueEnum};
use model_format::config::Precision;
use model_format::layout::Layout;
use model_format::{AlignedBytes, Model, Processor, repack};

use crate::checkpoint::write_atomically;

/// How matrices lie in the file. The answers are the same in every layout, bit by bit, on every
/// processor; each is fast on some.
#[derive(Debug, Clone, Copy, ClapArgs)]
#[group(multiple = false)]
pub struct LayoutArgs {
    /// The order of a matrix's weights [default: row-major].
    #[arg(long, value_enum)]
    layout: Option<LayoutArg>,
    /// The processor whose fastest layout is taken.
    #[arg(long = "for", value_name = "PROCESSOR", value_parser = processor_parser())]
    processor: Option<Processor>,
}

/// The order of a matrix's weights.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutArg {
    /// Row after row.
    RowMajor,
    /// Two rows in a halfword: Cortex-M4, M7, M33; integer files.
    PairedRows,
    /// Four rows in a word: Cortex-M0+, M3, RISC-V, x86-64; integer files.
    QuadRows,
    /// Sixteen rows side by side: half-float files.
    SixteenRows,
}

impl From<LayoutArg> for Layout {
    fn from(layout: LayoutArg) -> Self {
        match layout {
            LayoutArg::RowMajor => Self::RowMajor,
            LayoutArg::PairedRows => Self::PairedRows,
            LayoutArg::QuadRows => Self::QuadRows,
            LayoutArg::SixteenRows => Self::SixteenRows,
        }
    }
}

fn processor_parser() -> impl TypedValueParser<Value = Processor> {
    let find = |name: String| Processor::ALL.into_iter().find(|p| p.name() == name);
    PossibleValuesParser::new(Processor::ALL.map(Processor::name))
        .map(move |name| find(name).expect("a possible value"))
}

impl LayoutArgs {
    /// The layout for files of `precision`, where one is asked for.
    ///
    /// # Errors
    /// A layout that such files cannot have.
    pub fn chosen(self, precision: Precision) -> Result<Option<Layout>> {
        let chosen = match (self.layout, self.processor) {
            (Some(layout), _) => Some(layout.into()),
            (None, Some(processor)) => Some(processor.layout(precision)),
            (None, None) => None,
        };
        if let Some(layout) = chosen {
            let kind = match precision {
                Precision::FixedPoint => "an integer file",
                Precision::HalfFloat => "a half-float file",
            };
            ensure!(layout.suits(precision), "{kind} cannot have its matrices in {layout:?}");
        }
        Ok(chosen)
    }
}

/// `file`, in `layout` where that is another.
pub fn in_layout(file: AlignedBytes, layout: Option<Layout>) -> Result<AlignedBytes> {
    match layout {
        Some(layout) => {
            let model = Model::from_bytes(&file)?;
            repack(&model, layout).context("packing the matrices")
        }
        None => Ok(file),
    }
}

/// Writes an exported file with its matrices in another layout.
///
/// What it answers stays the same, bit by bit.
#[derive(ClapArgs)]
pub struct Args {
    /// The file.
    file: PathBuf,
    #[command(flatten)]
    layout: LayoutArgs,
    /// The file to write.
    #[arg(short, long, value_name = "KFM")]
    output: PathBuf,
}

/// Repacks.
pub fn run(args: &Args) -> Result<()> {
    let path = args.file.display();
    let bytes = std::fs::read(&args.file).with_context(|| format!("reading {path}"))?;
    let bytes = AlignedBytes::from(&bytes[..]);
    let model = Model::from_bytes(&bytes).with_context(|| path.to_string())?;
    let header = model.header();
    let layout = args.layout.chosen(header.precision)?;
    let layout = layout.context("to which layout? name it: --layout LAYOUT or --for PROCESSOR")?;
    let packed = repack(&model, layout)?;
    write_atomically(&args.output, &packed)?;
    println!(
        "{}: {:?}, {} bytes ({:?} had {})",
        args.output.display(),
        layout,
        packed.len(),
        header.layout,
        bytes.len()
    );
    Ok(())
}
