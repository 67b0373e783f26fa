//! Which of the kernels runs.

#[cfg(feature = "std")]
use core::sync::atomic::{AtomicU8, Ordering};

/// A set of instructions that there are kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// What every x86-64 has: the portable kernels, compiled for it.
    Baseline,
    /// AVX2, with F16C.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512Vnni,
}

impl Isa {
    /// All of them, from the slowest on.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512Vnni];

    /// Whether this processor has it: asked of the processor with feature `std`, else of the target.
    pub fn is_here(self) -> bool {
        /// One list of features for both questions.
        macro_rules! has {
            ($($feature:tt),*) => {{
                #[cfg(feature = "std")]
                let answer = true $(&& std::is_x86_feature_detected!($feature))*;
                #[cfg(not(feature = "std"))]
                let answer = cfg!(all($(target_feature = $feature),*));
                answer
            }};
        }
        match self {
            Self::Baseline => true,
            Self::Avx2 => has!("avx2", "f16c"),
            Self::Avx512Vnni => {
                has!("avx2", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni")
            }
        }
    }

    /// The fastest that is here.
    fn best() -> Self {
        let [_, others @ ..] = Self::ALL;
        others.into_iter().rev().find(|isa| isa.is_here()).unwrap_or(Self::Baseline)
    }
}

/// The code of the choice and 1, or 0 before the first.
#[cfg(feature = "std")]
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// The kernels that run: the fastest, or those that were forced.
#[inline]
pub fn chosen() -> Isa {
    #[cfg(feature = "std")]
    return match CHOSEN.load(Ordering::Relaxed) {
        1 => Isa::Baseline,
        2 => Isa::Avx2,
        3 => Isa::Avx512Vnni,
        _ => choose(Isa::best()),
    };
    #[cfg(not(feature = "std"))]
    Isa::best()
}

#[cfg(feature = "std")]
#[cold]
fn choose(isa: Isa) -> Isa {
    CHOSEN.store(isa as u8 + 1, Ordering::Relaxed);
    isa
}

/// Forces these kernels from here on, in every thread, so that tests run them all; whether they are
/// here. Inputs that are ready keep theirs.
#[cfg(feature = "std")]
#[doc(hidden)]
pub fn force(isa: Isa) -> bool {
    let is_here = isa.is_here();
    if is_here {
        choose(isa);
    }
    is_here
}
