//! Embedding and positions (Vaswani et al. 2017, sections 3.4 and 3.5).

use model_format::Model;
use model_format::config::Positions;
use model_format::directory::Slot;
use model_format::formats::ActivationSlot;

use crate::kernels;
use crate::precision::{Position, Precision};
use crate::profile::{self, Operator};

/// A table of embeddings with its kind of positions.
pub struct Embedding<'m, P: Precision> {
    table: P::Embedding<'m>,
    positions: Positions,
    learned: P::Embedding<'m>,
}

impl<'m, P: Precision> Embedding<'m, P> {
    /// The source embedding.
    pub fn source(model: &Model<'m>) -> Self {
        let output = ActivationSlot::EncoderEmbed;
        let table = Slot::source_table(model.config());
        Self::new(model, table, Slot::SourcePositions, output)
    }

    /// The target embedding.
    pub fn target(model: &Model<'m>) -> Self {
        let output = ActivationSlot::DecoderEmbed;
        Self::new(model, Slot::TargetEmbedding, Slot::TargetPositions, output)
    }

    fn new(model: &Model<'m>, table: Slot, learned: Slot, output: ActivationSlot) -> Self {
        Self {
            table: P::embedding(model, table, output),
            positions: model.config().positions,
            learned: P::embedding(model, learned, output),
        }
    }

    /// `out = embedding[id] * scale + position`; `rotation` is that of `position`.
    pub fn forward(
        &self,
        id: u16,
        position: usize,
        rotation: &[[i32; 2]],
        out: &mut [P::Activation],
    ) {
        let position = match self.positions {
            Positions::Learned => Position::Learned { table: self.learned, position },
            Positions::SinusoidalInterleaved => {
                Position::Sinusoidal { rotation, interleaved: true }
            }
            Positions::SinusoidalHalves => Position::Sinusoidal { rotation, interleaved: false },
        };
        profile::run(Operator::Embedding, || {
            P::embed(&self.table, usize::from(id), &position, out);
        });
    }
}

const ONE_Q30: i32 = 1 << 30;

/// Sine and cosine of position 0.
pub fn start_rotation(rotation: &mut [[i32; 2]]) {
    rotation.fill([0, ONE_Q30]);
}

/// Moves `[sin, cos]` of every frequency to the next position: an angle sum, rounded half up.
///
/// `frequencies` holds `[cos, sin]` of the angle of one step.
pub fn rotate(rotation: &mut [[i32; 2]], frequencies: &[[i32; 2]]) {
    kernels::wide(
        #[inline(always)]
        || {
            for ([sin, cos], &[step_cos, step_sin]) in rotation.iter_mut().zip(frequencies) {
                let (s, c) = (i64::from(*sin), i64::from(*cos));
                let (step_s, step_c) = (i64::from(step_sin), i64::from(step_cos));
                *sin = round_q30(s * step_c + c * step_s);
                *cos = round_q30(c * step_c - s * step_s);
            }
        },
    );
}

/// From Q60 to Q30, kept in [-1, 1].
#[inline(always)]
fn round_q30(q60: i64) -> i32 {
    let rounded = (q60 + (1 << 29)) >> 30;
    rounded.max(-i64::from(ONE_Q30)).min(i64::from(ONE_Q30)) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn rotation_follows_sine_and_cosine() {
        let angles: Vec<f64> = (0..40).map(|i| 10_000_f64.powf(-f64::from(i) / 40.0)).collect();
        let q30 = |x: f64| (x * f64::from(ONE_Q30)).round() as i32;
        let frequencies: Vec<_> = angles.iter().map(|a| [q30(a.cos()), q30(a.sin())]).collect();
        let mut rotation = std::vec![[0; 2]; angles.len()];
        start_rotation(&mut rotation);
        for position in 0..512 {
            for ([sin, cos], angle) in rotation.iter().zip(&angles) {
                let angle = angle * f64::from(position);
                let error = |q: i32, truth: f64| (f64::from(q) / f64::from(ONE_Q30) - truth).abs();
                assert!(error(*sin, angle.sin()) < 1e-6 && error(*cos, angle.cos()) < 1e-6);
            }
            rotate(&mut rotation, &frequencies);
        }
    }
}
