//! Which layout is fast where.

use crate::config::Precision;
use crate::layout::Layout;

/// A processor that a layout can be chosen for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Processor {
    /// Cortex-M0 and M0+.
    CortexM0Plus,
    /// Cortex-M3.
    CortexM3,
    /// Cortex-M4.
    CortexM4,
    /// Cortex-M7.
    CortexM7,
    /// Cortex-M33.
    CortexM33,
    /// Cortex-M55 and others with Helium.
    CortexM55,
    /// RISC-V of 32 bits.
    RiscV32,
    /// x86 of 64 bits.
    X86_64,
    /// Arm of 64 bits.
    AArch64,
    /// WebAssembly.
    Wasm32,
}

impl Processor {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::CortexM0Plus,
        Self::CortexM3,
        Self::CortexM4,
        Self::CortexM7,
        Self::CortexM33,
        Self::CortexM55,
        Self::RiscV32,
        Self::X86_64,
        Self::AArch64,
        Self::Wasm32,
    ];

    /// What it is called on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CortexM0Plus => "cortex-m0plus",
            Self::CortexM3 => "cortex-m3",
            Self::CortexM4 => "cortex-m4",
            Self::CortexM7 => "cortex-m7",
            Self::CortexM33 => "cortex-m33",
            Self::CortexM55 => "cortex-m55",
            Self::RiscV32 => "riscv32",
            Self::X86_64 => "x86-64",
            Self::AArch64 => "aarch64",
            Self::Wasm32 => "wasm32",
        }
    }

    /// The processor that a build for this target triple runs on, given the `target-cpu` it is built
    /// for, where one is named; for build scripts.
    pub fn of_target(triple: &str, target_cpu: Option<&str>) -> Option<Self> {
        let starts = |prefix| triple.starts_with(prefix);
        Some(match target_cpu {
            Some("cortex-m55" | "cortex-m85") => Self::CortexM55,
            Some("cortex-m7") => Self::CortexM7,
            Some("cortex-m33" | "cortex-m35p" | "star-mc1") => Self::CortexM33,
            _ if starts("thumbv6m") || starts("thumbv8m.base") => Self::CortexM0Plus,
            // Armv8-M has the DSP extension only where the processor is known to have it.
            _ if starts("thumbv7m") || starts("thumbv8m.main") => Self::CortexM3,
            _ if starts("thumbv7em") => Self::CortexM4,
            _ if starts("riscv32") => Self::RiscV32,
            _ if starts("x86_64") => Self::X86_64,
            _ if starts("aarch64") => Self::AArch64,
            _ if starts("wasm32") => Self::Wasm32,
            _ => return None,
        })
    }

    /// The layout whose kernels are the fastest there.
    pub const fn layout(self, precision: Precision) -> Layout {
        if let Precision::HalfFloat = precision {
            return match self {
                // Floats in software, a row at a time.
                Self::CortexM0Plus | Self::CortexM3 | Self::RiscV32 => Layout::RowMajor,
                _ => Layout::SixteenRows,
            };
        }
        match self {
            Self::CortexM4 | Self::CortexM7 | Self::CortexM33 => Layout::PairedRows,
            Self::CortexM0Plus | Self::CortexM3 | Self::RiscV32 | Self::X86_64 => Layout::QuadRows,
            Self::CortexM55 | Self::AArch64 | Self::Wasm32 => Layout::RowMajor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_told_apart() {
        use Processor::*;
        for (triple, cpu, expected) in [
            ("thumbv6m-none-eabi", None, Some(CortexM0Plus)),
            ("thumbv7m-none-eabi", None, Some(CortexM3)),
            ("thumbv7em-none-eabihf", None, Some(CortexM4)),
            ("thumbv7em-none-eabihf", Some("cortex-m7"), Some(CortexM7)),
            ("thumbv8m.main-none-eabihf", None, Some(CortexM3)),
            ("thumbv8m.main-none-eabihf", Some("cortex-m33"), Some(CortexM33)),
            ("thumbv8m.main-none-eabihf", Some("cortex-m55"), Some(CortexM55)),
            ("riscv32imc-unknown-none-elf", None, Some(RiscV32)),
            ("x86_64-unknown-linux-gnu", Some("native"), Some(X86_64)),
            ("aarch64-unknown-none", None, Some(AArch64)),
            ("wasm32-unknown-unknown", None, Some(Wasm32)),
            ("avr-none", None, None),
        ] {
            assert_eq!(Processor::of_target(triple, cpu), expected, "{triple}");
        }
    }

    #[test]
    fn every_choice_suits_its_precision() {
        for processor in Processor::ALL {
            for precision in [Precision::FixedPoint, Precision::HalfFloat] {
                assert!(processor.layout(precision).suits(precision), "{processor:?}");
            }
        }
    }
}
