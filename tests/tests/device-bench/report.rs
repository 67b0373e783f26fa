//! The tables.

use crate::measure::{Line, Measured};

/// CMSIS-NN's figures: a line of names, then a line a kernel.
const CMSIS_NN: &str = include_str!("../../../benches/device/cmsis-nn.tsv");

/// Prints all that was measured on a board; `macs` of all `words`.
pub fn print(measured: &Measured<'_>, macs: u64, words: u64) {
    let subject = measured.subject;
    println!("\n=== {} ({})", subject.core, subject.board.name);
    products(measured);
    others(measured);
    println!(
        "whole model: {} instructions a word / {} multiply-accumulates = {:.3}",
        measured.total / words,
        macs / words,
        measured.total as f64 / macs as f64
    );
    profile(measured);
}

/// Instructions per multiply-accumulate of matrices, CMSIS-NN's first.
fn products(measured: &Measured<'_>) {
    let is_product = |line: &&Line| ["raw", "full", "add"].contains(&&*line.operator);
    let lines: Vec<&Line> = measured.lines.iter().filter(is_product).collect();
    let mut shapes: Vec<&str> = lines.iter().map(|line| &*line.shape).collect();
    let mut kernels: Vec<String> = lines.iter().map(|line| kernel(line)).collect();
    in_order_of_appearance(&mut shapes);
    in_order_of_appearance(&mut kernels);
    print!("{:<30}", "instructions / MAC, in x out");
    shapes.iter().for_each(|shape| print!("{:>11}", shape.replace(" x ", ",")));
    println!();
    for (name, figures) in cmsis_nn(measured.subject.core) {
        let figures = figures.iter().map(|figure| format!("{figure:>11}"));
        println!("{:<30}{}", format!("CMSIS-NN {name}"), figures.collect::<String>());
    }
    for name in &kernels {
        let figures = shapes.iter().map(|shape| {
            let line = lines.iter().find(|line| line.shape == **shape && kernel(line) == *name);
            line.map_or(String::new(), |line| per_product(line))
        });
        let figures = figures.map(|figure| format!("{figure:>11}"));
        println!("{name:<30}{}", figures.collect::<String>());
    }
}

fn per_product(line: &Line) -> String {
    format!("{:.2}", line.count as f64 / line.products() as f64)
}

fn kernel(line: &Line) -> String {
    let tokens = if line.tokens == 1 { "token" } else { "tokens" };
    format!("{}, {}, {} {tokens}", line.packing, line.operator, line.tokens)
}

fn in_order_of_appearance<T: PartialEq + Clone>(list: &mut Vec<T>) {
    let all = core::mem::take(list);
    for item in all {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// The kernels of a core with their figures, in the order of the comparison's shapes.
fn cmsis_nn(core: &str) -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = CMSIS_NN.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .filter(|fields| fields[0] == core)
        .map(|fields| (fields[1], fields[2..].to_vec()))
        .collect()
}

/// Operators that are no products of matrices: instructions per element, or per product.
fn others(measured: &Measured<'_>) {
    for line in &measured.lines {
        if !["raw", "full", "add"].contains(&&*line.operator) {
            let (count, each) = (line.count, line.count as f64 / line.products() as f64);
            println!("{:<12}{:>10} {count:>10} = {each:.2} each", line.operator, line.shape);
        }
    }
}

/// Instructions of every operator per token, and its part of all.
fn profile(measured: &Measured<'_>) {
    let all: u64 = measured.shares.iter().map(|share| share.count).sum();
    println!("{:<16}{:>12}{:>12}{:>9}", "per token", "encoder", "decoder", "of all");
    let mut operators: Vec<&str> = measured.shares.iter().map(|share| &*share.operator).collect();
    in_order_of_appearance(&mut operators);
    for operator in operators {
        let of_side = |side| {
            let mut shares = measured.shares.iter().filter(move |share| share.side == side);
            let tokens = shares.clone().find(|share| share.operator == "embedding");
            let tokens = tokens.map_or(1, |share| share.calls.max(1));
            let count = shares.find(|share| share.operator == operator);
            let count = count.map_or(0, |share| share.count);
            (count, count / tokens)
        };
        let [(encoder, per_source), (decoder, per_target)] = ["encoder", "decoder"].map(of_side);
        let part = (encoder + decoder) as f64 * 100.0 / all as f64;
        println!("{operator:<16}{per_source:>12}{per_target:>12}{part:>8.1}%");
    }
}
