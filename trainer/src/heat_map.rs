//! Attention weights as a picture: one panel for every head, SVG.

use svg::Document;
use svg::node::element::{Group, Rectangle, Text};

/// Weights of one head: `[rows, columns]`, rows being target positions and columns source positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What stands above it.
    pub title: String,
    /// Row-major, each row a distribution.
    pub weights: Vec<f32>,
}

/// Side of a cell, in the units of the picture.
const CELL: usize = 22;
/// Width of one character of a label, about.
const CHARACTER: usize = 8;
/// Room around a panel.
const MARGIN: usize = 16;
/// Height of a title.
const TITLE: usize = 24;
/// Panels side by side.
const COLUMNS: usize = 4;

/// Places of everything in a panel.
struct Shape {
    rows: usize,
    columns: usize,
    /// Room for the longest label of each side.
    left: usize,
    top: usize,
}

impl Shape {
    fn new(columns: &[String], rows: &[String]) -> Self {
        let longest = |labels: &[String]| {
            let longest = labels.iter().map(|label| label.chars().count()).max();
            longest.unwrap_or(0) * CHARACTER + MARGIN
        };
        Self {
            rows: rows.len(),
            columns: columns.len(),
            left: longest(rows),
            top: TITLE + longest(columns),
        }
    }

    fn width(&self) -> usize {
        self.left + self.columns * CELL + MARGIN
    }

    fn height(&self) -> usize {
        self.top + self.rows * CELL + MARGIN
    }
}

/// Draws all panels, `COLUMNS` side by side. `columns` are the source symbols, `rows` the target
/// symbols.
pub fn draw(columns: &[String], rows: &[String], panels: &[Panel]) -> String {
    let shape = Shape::new(columns, rows);
    let across = panels.len().clamp(1, COLUMNS);
    let (width, height) = (across * shape.width(), panels.len().div_ceil(across) * shape.height());
    let background =
        Rectangle::new().set("width", width).set("height", height).set("fill", "white");
    let mut document = Document::new()
        .set("viewBox", (0, 0, width, height))
        .set("width", width)
        .set("height", height)
        .set("font-family", "monospace")
        .set("font-size", 13)
        .add(background);
    for (i, panel) in panels.iter().enumerate() {
        let (x, y) = (i % across * shape.width(), i / across * shape.height());
        let place = format!("translate({x} {y})");
        document = document.add(draw_panel(&shape, columns, rows, panel).set("transform", place));
    }
    document.to_string()
}

fn draw_panel(shape: &Shape, columns: &[String], rows: &[String], panel: &Panel) -> Group {
    let title = Text::new(&panel.title).set("x", shape.left).set("y", TITLE - 8);
    let mut group = Group::new().add(title.set("font-weight", "bold"));
    for (column, label) in columns.iter().enumerate() {
        let (x, y) = (shape.left + column * CELL + CELL / 2 + 4, shape.top - 6);
        let text = Text::new(label).set("transform", format!("translate({x} {y}) rotate(-90)"));
        group = group.add(text);
    }
    for (row, label) in rows.iter().enumerate() {
        let (x, y) = (shape.left - 6, shape.top + row * CELL + CELL / 2 + 4);
        group = group.add(Text::new(label).set("x", x).set("y", y).set("text-anchor", "end"));
    }
    for (i, weight) in panel.weights.iter().enumerate() {
        let (row, column) = (i / shape.columns.max(1), i % shape.columns.max(1));
        let cell = Rectangle::new()
            .set("x", shape.left + column * CELL)
            .set("y", shape.top + row * CELL)
            .set("width", CELL - 1)
            .set("height", CELL - 1)
            .set("fill", "#0b3d91")
            .set("fill-opacity", format!("{:.3}", weight.clamp(0.0, 1.0)));
        group = group.add(cell);
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_weight_is_a_cell_and_symbols_are_escaped() {
        let columns = ["a", "<", "&"].map(String::from);
        let rows = ["AA", "B\""].map(String::from);
        let weights = vec![0.25, 0.5, 0.25, 1.0, 0.0, 2.0];
        let panel = |title: &str| Panel { title: title.into(), weights: weights.clone() };
        let panels: Vec<Panel> = (0..5).map(|i| panel(&format!("head {i}"))).collect();
        let picture = draw(&columns, &rows, &panels);
        assert_eq!(picture.matches("fill-opacity").count(), 5 * 6);
        assert!(picture.contains("&lt;") && picture.contains("&amp;"), "{picture}");
        assert!(!picture.contains("fill-opacity=\"2"), "weights stay in [0, 1]");
        assert_eq!(picture.matches("head 4").count(), 1);
    }
}
