//! Rows of a matrix to 4 bits, with a whole factor for every group of columns.
//!
//! A row is `step * factor[group] * weight`. The step is searched for, and for each step the factors: a
//! smaller one resolves a group's small weights better and cuts its large ones off. What counts is the
//! squared error of the row's product, taking columns as independent: that of a weight times the mean
//! square of its column.

use model_format::layout::{GROUP_COLS, MAX_FACTOR, MAX_NIBBLE};

/// Steps that are tried for a row, from [`FINEST`] on to [`COARSEST`] times the one at which its largest
/// weight just fits.
const STEPS: u32 = 48;
const FINEST: f64 = 0.6;
const COARSEST: f64 = 2.4;

/// A group's factor is no less than so much of the one at which its largest weight just fits.
const LEAST_FACTOR: f64 = 0.5;

/// The best step for a row whose squared errors count as much as `importance` says, by column; 0 for a
/// row of zeros.
pub fn best_step(row: &[f32], importance: &[f32]) -> f64 {
    let max = row.iter().fold(0.0_f64, |max, w| max.max(f64::from(w.abs())));
    let fits = max / f64::from(MAX_NIBBLE.unsigned_abs() * MAX_FACTOR);
    let candidate = |i: u32| {
        let share = f64::from(i) / f64::from(STEPS - 1);
        fits * FINEST * (COARSEST / FINEST).powf(share)
    };
    let loss = |step: f64| -> f64 {
        let groups = row.chunks(GROUP_COLS).zip(importance.chunks(GROUP_COLS));
        groups.map(|(group, importance)| best_factor(group, importance, step).1).sum()
    };
    let steps = (0..STEPS).map(candidate).map(|step| (loss(step), step));
    steps.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(0.0, |(_, step)| step)
}

/// Rounds a row with this step: weights in [-7, 7], `[cols]`, and the factors of the groups, 1 to 15,
/// `[cols / 16]`, rounded up.
pub fn round_row(row: &[f32], importance: &[f32], step: f64) -> (Vec<i8>, Vec<u8>) {
    let (mut weights, mut factors) = (Vec::new(), Vec::new());
    for (group, importance) in row.chunks(GROUP_COLS).zip(importance.chunks(GROUP_COLS)) {
        let (factor, _) = best_factor(group, importance, step);
        let unit = step * f64::from(factor);
        factors.push(factor);
        weights.extend(group.iter().map(|&w| nearest(w, unit) as i8));
    }
    (weights, factors)
}

/// The weight in units, within its range.
fn nearest(weight: f32, unit: f64) -> f64 {
    let top = f64::from(MAX_NIBBLE);
    (f64::from(weight) / unit).round().clamp(-top, top)
}

/// The factor at which a group loses least, and what it loses.
fn best_factor(group: &[f32], importance: &[f32], step: f64) -> (u8, f64) {
    let max = group.iter().fold(0.0_f64, |max, w| max.max(f64::from(w.abs())));
    let fits = max / (f64::from(MAX_NIBBLE) * step);
    let bounded = |factor: f64| (factor as u8).clamp(1, MAX_FACTOR);
    let factors = bounded((fits * LEAST_FACTOR).floor())..=bounded(fits.ceil());
    let loss = |factor: u8| -> f64 {
        let unit = step * f64::from(factor);
        let error = |(&w, &h): (&f32, &f32)| {
            f64::from(h) * (f64::from(w) - nearest(w, unit) * unit).powi(2)
        };
        group.iter().zip(importance).map(error).sum()
    };
    let best = factors.map(|factor| (factor, loss(factor))).min_by(|a, b| a.1.total_cmp(&b.1));
    best.unwrap_or((1, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a rounded row stands for.
    fn values((weights, factors): (Vec<i8>, Vec<u8>), step: f64) -> Vec<f64> {
        let weights = weights.iter().enumerate();
        weights.map(|(c, &w)| step * f64::from(factors[c / 16]) * f64::from(w)).collect()
    }

    #[test]
    fn rows_that_four_bits_hold_are_exact() {
        let weight = |c: usize| ((c * 5) % 15) as f32 - 7.0;
        let row: Vec<f32> = (0..40).map(|c| weight(c) * [15.0, 4.0, 1.0][c / 16] / 64.0).collect();
        let rounded = round_row(&row, &[1.0; 40], 1.0 / 64.0);
        assert_eq!(rounded.1, [15, 4, 1]);
        let expected: Vec<f64> = row.iter().map(|&w| f64::from(w)).collect();
        assert_eq!(values(rounded, 1.0 / 64.0), expected);
    }

    #[test]
    fn the_search_beats_the_step_that_just_fits() {
        let row: Vec<f32> = (0..64).map(|c| ((c * 37 % 101) as f32 - 50.0) * 0.01).collect();
        let importance: Vec<f32> = (0..64).map(|c| 1.0 + (c % 7) as f32).collect();
        let loss = |step: f64| -> f64 {
            let values = values(round_row(&row, &importance, step), step);
            let errors = row.iter().zip(values).zip(&importance);
            errors.map(|((&w, v), &h)| f64::from(h) * (f64::from(w) - v).powi(2)).sum()
        };
        let best = best_step(&row, &importance);
        assert!(loss(best) < loss(0.5 / 105.0), "{best}");
        // A step is 1/15 of half a unit at most, where the largest factor is taken: 16 columns lose at
        // most a quarter of the square of 0.5 / 7 each.
        assert!(loss(best) < 64.0 * 7.0 * (0.5_f64 / 7.0 / 2.0).powi(2), "{}", loss(best));
    }

    #[test]
    fn a_row_of_zeros_is_zeros() {
        assert_eq!(best_step(&[0.0; 20], &[1.0; 20]), 0.0);
        assert_eq!(round_row(&[0.0; 20], &[1.0; 20], 1.0).0, [0; 20]);
    }
}
