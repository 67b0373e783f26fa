//! `model-format`: the checks, and every accessor of a model that passed them.

use model_format::{
    Checks, Model, Vocabulary,
    config::Precision,
    directory::Slot,
    fold_case,
    formats::ActivationSlot,
    header::Header,
    layout::{Layout, linear_f16_len, linear_i4_len, linear_i8_len},
    numeric::rescale,
    residual_multiplier,
};

use crate::opaque::{any, print, sink};

/// Everything a caller can do with the bytes of a file.
pub fn probe(bytes: &'static [u8]) {
    sink(Header::read(bytes));
    if let Err(error) = Model::from_bytes(bytes) {
        print(&error);
    }
    for checks in [Checks::Full, Checks::SkipCrc, Checks::Structure] {
        if let Ok(model) = Model::from_bytes_with(bytes, any(checks)) {
            accessors(&model);
        }
    }
    loose_functions();
}

fn accessors(model: &Model<'_>) {
    sink((model.file_len(), *model.config(), *model.text(), model.header().encode()));
    for slot in Slot::all(model.config()) {
        tensors(model, slot);
    }
    for slot in ActivationSlot::all(model.config()) {
        let format = model.formats().get(any(slot));
        sink((format.max_abs(), residual_multiplier(format, any(format))));
    }
    for vocabulary in [model.source_vocabulary(), model.target_vocabulary()] {
        words(vocabulary);
    }
    sink(model.header().precision == Precision::FixedPoint);
}

fn tensors(model: &Model<'_>, slot: Slot) {
    let (slot, row) = (any(slot), any(7_usize));
    let linear = model.linear_int(slot);
    sink((linear, linear.row(row).last(), linear.constants(row), linear.nibbles(row)));
    sink((model.kind(slot), slot.may_be_i4(model.config())));
    let linear = model.linear_f16(slot);
    sink((linear, linear.row(row).last(), linear.row_bias(row)));
    sink((model.norm_i32(slot), model.norm_f16(slot)));
    sink((model.pairs(slot), model.multipliers(slot), model.byte_len(slot)));
    sink(slot.expected(model.header().precision, model.config()).byte_len(model.header().layout));
    sink((slot.index(model.config()), slot.input(model.config())));
}

fn words(vocabulary: &Vocabulary<'_>) {
    sink((vocabulary.len(), vocabulary.is_empty()));
    sink((vocabulary.text(any(9)), vocabulary.id(any("a"))));
}

fn loose_functions() {
    sink(fold_case(any('K')).next());
    sink(rescale(any(1), any(2)));
    sink((
        linear_i8_len(any(Layout::RowMajor), any(1), any(2)),
        linear_f16_len(any(Layout::RowMajor), any(1), any(2)),
    ));
    sink(linear_i4_len(any(1), any(2)));
    let layout = Layout::from_code(any(0));
    sink(layout.map(|layout| (layout.code(), layout.suits(any(Precision::FixedPoint)))));
}
