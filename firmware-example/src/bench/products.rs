//! Matrices times vectors, in the packing that is the cheapest in this build, row-major, and of 4 bits.

use embedded_io::{Read, Write};
use runtime::kernels::{self, Block, Input, ROWS, TOKENS};
use runtime::model_format::{
    Model,
    formats::{ActivationSlot, DecoderActivation},
    layout::Packing,
};
use runtime::{FixedPoint, Precision};

use super::{Operands, cost, line, name};
use crate::console::Console;

/// Inputs and outputs: those of the comparison with CMSIS-NN, and those of the model that ships.
const SHAPES: [[usize; 2]; 9] = [
    [64, 64],
    [128, 128],
    [128, 512],
    [512, 128],
    [256, 1024],
    [512, 2048],
    [80, 80],
    [80, 160],
    [160, 80],
];

/// The shape that the cheapest packing is found with.
const DECIDING_SHAPE: [usize; 2] = [128, 128];

pub fn run<S: Read + Write>(
    console: &mut Console<S>,
    model: &Model<'static>,
    operands: &mut Operands,
) {
    let packings = [Packing::RowMajor, cheapest(model, operands), Packing::Nibbles];
    for shape in SHAPES {
        for (index, packing) in packings.into_iter().enumerate() {
            if packings.iter().take(index).any(|before| *before == packing) {
                continue;
            }
            for tokens in [1, TOKENS] {
                Product { packing, shape, tokens }.measure(console, model, operands);
                if TOKENS == 1 {
                    break;
                }
            }
        }
    }
}

/// The packing of 8-bit weights whose kernel spends the least.
fn cheapest(model: &Model<'static>, operands: &mut Operands) -> Packing {
    let cost = |packing: &Packing| {
        Product { packing: *packing, shape: DECIDING_SHAPE, tokens: 1 }.project(model, operands)
    };
    let packings = [Packing::RowMajor, Packing::PairedRows, Packing::QuadRows];
    packings.into_iter().min_by_key(cost).unwrap_or(Packing::RowMajor)
}

/// A matrix times vectors.
#[derive(Clone, Copy)]
struct Product {
    packing: Packing,
    shape: [usize; 2],
    tokens: usize,
}

impl Product {
    fn measure<S: Read + Write>(
        self,
        console: &mut Console<S>,
        model: &Model<'_>,
        operands: &mut Operands,
    ) {
        let costs = [
            ("raw", self.blocks(operands)),
            ("full", self.project(model, operands)),
            ("add", self.project_add(model, operands)),
        ];
        for (operator, cost) in costs {
            line(console, [operator, name(self.packing)], self.shape, self.tokens, cost);
        }
    }

    fn macs(self) -> usize {
        let [cols, rows] = self.shape;
        cols * rows * self.tokens
    }

    /// The kernel alone, block after block.
    fn blocks(self, operands: &mut Operands) -> u64 {
        let [cols, rows] = self.shape;
        let matrix = operands.matrix(self.packing, self.shape);
        let input = Input::new(operands.inputs, [self.tokens, cols], operands.scratch);
        let mut block: Block = [[0; ROWS]; TOKENS];
        cost(self.macs(), &mut || {
            for first in (0..rows).step_by(kernels::rows(&matrix, &input)) {
                kernels::block(&matrix, first, &input, &mut block);
            }
        })
    }

    /// Input made ready, products, saturation.
    fn project(self, model: &Model<'_>, operands: &mut Operands) -> u64 {
        let [cols, _] = self.shape;
        let matrix = operands.matrix(self.packing, self.shape);
        let range = FixedPoint::range(model, ActivationSlot::DecoderFinal);
        let Operands { inputs, outputs, scratch, .. } = operands;
        cost(self.macs(), &mut || {
            let input = Input::new(inputs, [self.tokens, cols], scratch);
            FixedPoint::project(&matrix, &input, range, outputs);
        })
    }

    /// The same, added to a stream.
    fn project_add(self, model: &Model<'_>, operands: &mut Operands) -> u64 {
        let [cols, _] = self.shape;
        let matrix = operands.matrix(self.packing, self.shape);
        let sum = ActivationSlot::Decoder(0, DecoderActivation::Sum1);
        let residual = FixedPoint::residual(model, sum);
        let Operands { inputs, outputs, scratch, .. } = operands;
        cost(self.macs(), &mut || {
            let input = Input::new(inputs, [self.tokens, cols], scratch);
            FixedPoint::project_add(&matrix, &input, residual, outputs);
        })
    }
}
