//! Beam search: its definition over lists of whole hypotheses, the runtime's bookkeeping of slots alone,
//! and what a device finds.

use bytemuck::Zeroable;
use model_format::AlignedBytes;
use model_format::config::Precision as Stored;
use model_format::formats::ActivationSlot;
use runtime::search::{
    Beam, BeamBuffers, BeamOptions, BeamSearch, Candidate, Constraints, Hypothesis, Link, LogProb,
    LogSumExp, Q16,
};
use runtime::{
    FixedPoint, GenerateOptions, HalfFloat, Limits, Logit, Precision, Session, TokenId, TypedModel,
    arena_len_with,
};
use trainer::data::batch::Example;

use super::networks::Weighted;

/// One output.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Without the end id.
    pub ids: Vec<u32>,
    /// Log-probability in nats over `length^length_penalty`, the end id being counted.
    pub score: f64,
    pub ended: bool,
}

/// How to search.
#[derive(Clone, Copy)]
pub struct Search {
    pub beams: u16,
    pub n_best: u16,
    pub length_penalty: Q16,
    /// End id included.
    pub max_len: u16,
}

const PAD: u32 = 0;
const START: u32 = 1;
const END: u32 = 2;

/// The definition: lists of whole hypotheses, whose prefixes are read anew at every step.
pub fn defined(w: &Weighted, source: &[u32], search: Search) -> Vec<Output> {
    let Search { beams, n_best, length_penalty, max_len } = search;
    let (beams, alpha) = (usize::from(beams), f64::from(length_penalty.to_f32()));
    let mut live = vec![(Vec::new(), 0.0)];
    let mut finished: Vec<Output> = Vec::new();
    let mut finish = |ids: &[u32], sum: f64, ended: bool| {
        let len = ids.len() + usize::from(ended);
        let score = sum / (len as f64).powf(alpha);
        finished.push(Output { ids: ids.to_vec(), score, ended });
    };
    for _ in 0..max_len {
        let mut all = Vec::new();
        for (ids, sum) in &live {
            let logits = w.naive_logits(source, ids).pop().expect("a row");
            let log_sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
            let next = (0..).zip(&logits).filter(|(id, _)| ![PAD, START].contains(id));
            all.extend(next.map(|(id, logit)| (ids.clone(), id, sum + logit - log_sum)));
        }
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        let ended = all.iter().take(beams).filter(|(_, id, _)| *id == END);
        ended.for_each(|(ids, _, sum)| finish(ids, *sum, true));
        let going_on = all.into_iter().filter(|(_, id, _)| *id != END).take(beams);
        live = going_on.map(|(ids, id, sum)| ([&ids[..], &[id]].concat(), sum)).collect();
    }
    live.iter().for_each(|(ids, sum)| finish(ids, *sum, false));
    finished.sort_by(|a, b| b.score.total_cmp(&a.score));
    finished.truncate(n_best.into());
    finished
}

/// The bookkeeping that a device uses, over logits of the engine. A slot's cache is the list of ids that
/// were read into it; it is copied only where the search says so.
pub fn kept(w: &Weighted, source: &[u32], search: Search) -> Vec<Output> {
    let Search { beams, n_best, length_penalty, max_len } = search;
    let options = BeamOptions { beams, n_best, length_penalty };
    options.check().expect("sound options");
    let n = usize::from(beams);
    let (mut live, mut candidates) = (vec![Beam::zeroed(); n], vec![Candidate::zeroed(); 2 * n]);
    let mut finished = vec![Hypothesis::zeroed(); n_best.into()];
    let mut links = vec![Link::zeroed(); n * usize::from(max_len)];
    let mut buffers = BeamBuffers {
        live: &mut live,
        candidates: &mut candidates,
        finished: &mut finished,
        links: &mut links,
    };
    let special = [START, END].map(|id| id as TokenId);
    let mut search = BeamSearch::new(&options, special, max_len, buffers.reborrow());
    let mut caches = vec![Vec::new(); n];
    while search.is_running() {
        let now = search.live(&buffers).to_vec();
        for (rank, beam) in now.iter().enumerate() {
            let target = caches[usize::from(beam.slot)].clone();
            let mut logits = w.engine_logits(&[Example { source: source.to_vec(), target }]);
            let mut last = logits.split_off(logits.len() - usize::from(w.config().target_vocab));
            let log_sum = LogSumExp::of(&last, 0);
            for id in [PAD, START] {
                last[id as usize] = f32::EXCLUDED;
            }
            search.extend(buffers.reborrow(), rank, &last, (log_sum, 0));
        }
        search.advance(buffers.reborrow());
        for beam in search.live(&buffers).iter().filter(|beam| beam.slot != beam.parent) {
            caches[usize::from(beam.slot)] = caches[usize::from(beam.parent)].clone();
        }
        for beam in search.live(&buffers) {
            caches[usize::from(beam.slot)].push(beam.id.into());
        }
    }
    let output = |(index, hypothesis): (usize, &Hypothesis)| {
        let mut ids = vec![0; max_len.into()];
        let len = search.ids(&buffers, index, &mut ids);
        ids.truncate(len);
        let score = nats(hypothesis.score);
        let ids = ids.into_iter().map(u32::from).collect();
        Output { ids, score, ended: hypothesis.has_end() }
    };
    search.finished(&buffers).iter().enumerate().map(output).collect()
}

/// What a device finds, in the arena planned for it.
pub fn on_device(
    stored: Stored,
    file: &AlignedBytes,
    source: &[u32],
    search: Search,
) -> Vec<Output> {
    match stored {
        Stored::FixedPoint => found::<FixedPoint>(file, source, search),
        Stored::HalfFloat => found::<HalfFloat>(file, source, search),
    }
}

fn found<P: Precision>(file: &AlignedBytes, source: &[u32], search: Search) -> Vec<Output> {
    let Search { beams, n_best, length_penalty, max_len } = search;
    with_session::<P, _>(file, beams, |session| {
        let source = framed(source);
        let limit = GenerateOptions { max_len: Some(max_len), ..GenerateOptions::default() };
        let generation = session.generate(&source, &limit).expect("ids of the vocabulary");
        let options = BeamOptions { beams, n_best, length_penalty };
        let mut beams = generation.beams(&Constraints::default(), &options).expect("sound options");
        beams.run();
        let hypotheses = beams.hypotheses().to_vec();
        let output = |(index, hypothesis): (usize, &Hypothesis)| Output {
            ids: beams.ids(index).iter().map(|&id| id.into()).collect(),
            score: nats(hypothesis.score),
            ended: hypothesis.has_end(),
        };
        hypotheses.iter().enumerate().map(output).collect()
    })
}

fn with_session<P: Precision, T>(
    file: &AlignedBytes,
    beams: u16,
    f: impl FnOnce(&mut Session<'_, '_, P>) -> T,
) -> T {
    let model = TypedModel::<P>::from_bytes(file).expect("a sound file");
    let limits = Limits::of(model.model().config()).with_beams(beams);
    let needed = arena_len_with(file, limits).expect("a sound file");
    let mut arena = AlignedBytes::filled(0xA5, needed);
    f(&mut Session::with_limits(&model, &mut arena, limits).expect("the arena that it asks for"))
}

fn framed(source: &[u32]) -> Vec<TokenId> {
    source.iter().chain([&END]).map(|&id| id as TokenId).collect()
}

fn nats(log_prob: LogProb) -> f64 {
    f64::from(log_prob.to_bits()) / 65_536.0
}

/// Log-probability of an output where a device reads all ids before each anew.
pub fn log_prob_on_device(
    stored: Stored,
    file: &AlignedBytes,
    source: &[u32],
    output: &Output,
) -> f64 {
    match stored {
        Stored::FixedPoint => log_prob::<FixedPoint>(file, source, output),
        Stored::HalfFloat => log_prob::<HalfFloat>(file, source, output),
    }
}

fn log_prob<P: Precision>(file: &AlignedBytes, source: &[u32], output: &Output) -> f64 {
    with_session::<P, _>(file, 0, |session| {
        let format = session.model().model().formats().get(ActivationSlot::Logits);
        let frac_bits = format.frac_bits as u32;
        let source = framed(source);
        let ids: Vec<TokenId> = output.ids.iter().map(|&id| id as TokenId).collect();
        let mut sum = LogProb::CERTAIN;
        let wanted = ids.iter().copied().chain(output.ended.then_some(END as TokenId));
        for (step, id) in wanted.enumerate() {
            let options = GenerateOptions { max_len: None, prefix: &ids[..step] };
            let mut logits = Vec::new();
            let mut generation = session.generate(&source, &options).expect("sound ids");
            generation.next_observed(|_, logit| logits.push(logit));
            let log_sum = LogSumExp::of(&logits, frac_bits);
            sum = sum.and(log_sum.log_prob(logits[usize::from(id)], frac_bits));
        }
        nats(sum)
    })
}

/// Whether two lists hold the same outputs by score; scores lose 16 bits of fraction a token, and outputs
/// of the same score may change places, or the last of them fall off the list.
pub fn same(a: &[Output], b: &[Output]) -> bool {
    const NEAR: f64 = 1e-3;
    let near = |a: f64, b: f64| (a - b).abs() < NEAR;
    let scores = a.iter().zip(b).all(|(a, b)| near(a.score, b.score));
    let least = b.last().map_or(0.0, |output| output.score);
    let is_in = |a: &Output| {
        b.iter().any(|b| (&a.ids, a.ended) == (&b.ids, b.ended) && near(a.score, b.score))
    };
    let rest = a.iter().filter(|output| output.score > least + NEAR).all(is_in);
    a.len() == b.len() && scores && rest
}
