//! What a run holds at each moment, from the configuration alone: the least memory that any layout of
//! its tensors can do with.
//!
//! Tensors are as fine as they die: rows of a position, parts of a head.

use model_format::config::{Family, ModelConfig, NormPlace, Positions, StackConfig};

/// Bytes of numbers, and what products of a build need.
#[derive(Clone, Copy)]
pub struct Machine {
    /// Bytes of an activation.
    pub activation: usize,
    /// Bytes of an element of a key or value.
    pub cached: usize,
    /// Bytes of an attention score.
    pub score: usize,
    /// Bytes of a probability.
    pub probability: usize,
    /// Most tokens of one product.
    pub tokens: usize,
    /// Working memory of products with an input of so many tokens and columns, in bytes.
    pub workspace: fn(usize, usize) -> usize,
}

/// A tensor of a trace.
type Tensor = usize;

/// Tensors with their bytes, and the first and the last operator that uses each.
#[derive(Default)]
pub struct Trace {
    tensors: Vec<(usize, Option<[usize; 2]>)>,
    operators: usize,
}

impl Trace {
    /// A tensor that no operator uses yet.
    pub fn tensor(&mut self, bytes: usize) -> Tensor {
        self.tensors.push((bytes, None));
        self.tensors.len() - 1
    }

    fn tensors(&mut self, count: usize, bytes: usize) -> Vec<Tensor> {
        (0..count).map(|_| self.tensor(bytes)).collect()
    }

    /// The next operator reads or writes these.
    pub fn operator(&mut self, uses: &[&[Tensor]]) {
        for &tensor in uses.iter().copied().flatten() {
            let (_, life) = &mut self.tensors[tensor];
            *life = Some([life.map_or(self.operators, |[first, _]| first), self.operators]);
        }
        self.operators += 1;
    }

    /// The most bytes that live at once.
    pub fn peak(&self) -> usize {
        let mut change = vec![0_isize; self.operators + 1];
        for (bytes, life) in &self.tensors {
            if let Some([first, last]) = life {
                change[*first] += *bytes as isize;
                change[*last + 1] -= *bytes as isize;
            }
        }
        let mut live = 0;
        let totals = change.iter().map(|change| {
            live += change;
            live
        });
        totals.max().unwrap_or(0) as usize
    }
}

/// The longest run of a model with these limits, searched greedily.
pub fn of_run(config: &ModelConfig, machine: Machine, source: usize, target: usize) -> Trace {
    let mut run = Run { trace: Trace::default(), config: *config, machine };
    let memory = if config.has_encoder() { run.encode(source) } else { Vec::new() };
    match config.family {
        Family::EncoderDecoder | Family::DecoderOnly => run.decode(&memory, target),
        Family::Tagger => memory.iter().for_each(|&row| run.output(row)),
        Family::Classifier => {
            let mean = run.activation(run.d_model());
            run.trace.operator(&[&memory, &[mean]]);
            run.output(mean);
        }
    }
    run.trace
}

/// Keys and values of one layer, a tensor a position.
#[derive(Default, Clone)]
struct Cache {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
}

struct Run {
    trace: Trace,
    config: ModelConfig,
    machine: Machine,
}

impl Run {
    fn d_model(&self) -> usize {
        self.config.d_model.into()
    }

    fn is_pre(&self) -> bool {
        self.config.norm == NormPlace::Pre
    }

    fn activation(&mut self, len: usize) -> Tensor {
        self.trace.tensor(len * self.machine.activation)
    }

    /// One tensor a head.
    fn heads(&mut self, stack: &StackConfig) -> Vec<Tensor> {
        let d_k = self.d_model() / usize::from(stack.n_heads);
        self.trace.tensors(stack.n_heads.into(), d_k * self.machine.activation)
    }

    fn cached(&mut self) -> Tensor {
        self.trace.tensor(self.d_model() * self.machine.cached)
    }

    /// Sine and cosine of a position, 4 bytes each.
    fn rotation(&mut self) -> Tensor {
        match self.config.positions {
            Positions::Learned => self.trace.tensor(0),
            _ => self.trace.tensor(self.d_model() / 2 * 8),
        }
    }

    /// `inputs` made ready, and every one of `outputs` by a product with them.
    fn products(&mut self, inputs: &[Tensor], cols: usize, outputs: &[&[Tensor]]) {
        let workspace = self.trace.tensor((self.machine.workspace)(inputs.len(), cols));
        self.trace.operator(&[inputs, &[workspace]]);
        for output in outputs {
            self.trace.operator(&[inputs, &[workspace], output]);
        }
    }

    /// What a sublayer reads of these rows of the stream.
    fn before(&mut self, rows: &[Tensor]) -> Vec<Tensor> {
        if !self.is_pre() {
            return rows.to_vec();
        }
        let norm = |row: &Tensor| {
            let normed = self.activation(self.d_model());
            self.trace.operator(&[&[*row], &[normed]]);
            normed
        };
        rows.iter().map(norm).collect()
    }

    /// LayerNorm in place where it follows the sublayer.
    fn after(&mut self, rows: &[Tensor]) {
        if !self.is_pre() {
            rows.iter().for_each(|&row| self.trace.operator(&[&[row]]));
        }
    }

    /// The rows that products take together: of about one size, in fours.
    fn groups(&self, rows: &[Tensor]) -> Vec<Vec<Tensor>> {
        let groups = rows.len().div_ceil(self.machine.tokens).max(1);
        let len = rows.len().div_ceil(groups).next_multiple_of(4).clamp(1, self.machine.tokens);
        rows.chunks(len.max(1)).map(<[_]>::to_vec).collect()
    }

    /// The rows of `memory`.
    fn encode(&mut self, len: usize) -> Vec<Tensor> {
        let rotation = self.rotation();
        let rows: Vec<Tensor> = (0..len).map(|_| self.activation(self.d_model())).collect();
        for &row in &rows {
            self.trace.operator(&[&[rotation], &[row]]);
        }
        let stack = self.config.encoder;
        for _ in 0..stack.n_layers {
            self.self_attention(&rows);
            for group in self.groups(&rows) {
                self.feed_forward(&group, &stack);
            }
        }
        self.after_last(&rows);
        rows
    }

    /// The norm after the last layer, in place.
    fn after_last(&mut self, rows: &[Tensor]) {
        rows.iter().for_each(|&row| self.trace.operator(&[&[row]]));
    }

    /// Queries, keys and values of all positions, then attention of all.
    fn self_attention(&mut self, rows: &[Tensor]) {
        let stack = self.config.encoder;
        let (mut queries, mut cache) = (Vec::new(), Cache::default());
        for group in self.groups(rows) {
            let input = self.before(&group);
            let query: Vec<_> = group.iter().map(|_| self.heads(&stack)).collect();
            let keys: Vec<_> = group.iter().map(|_| self.cached()).collect();
            let values: Vec<_> = group.iter().map(|_| self.cached()).collect();
            self.products(&input, self.d_model(), &[&query.concat(), &keys, &values]);
            queries.extend(query);
            cache.keys.extend(keys);
            cache.values.extend(values);
        }
        let mut queries = queries.into_iter();
        for group in self.groups(rows) {
            let queries: Vec<_> = queries.by_ref().take(group.len()).collect();
            self.attend(&queries, &stack, &cache, &group);
        }
    }

    /// Attention of the positions of `rows` and its output projection.
    fn attend(
        &mut self,
        queries: &[Vec<Tensor>],
        stack: &StackConfig,
        cache: &Cache,
        rows: &[Tensor],
    ) {
        let contexts: Vec<_> =
            queries.iter().map(|query| self.context(query, stack, cache)).collect();
        let workspace = self.trace.tensor((self.machine.workspace)(rows.len(), self.d_model()));
        let contexts = contexts.concat();
        self.trace.operator(&[&contexts, &[workspace]]);
        self.trace.operator(&[&contexts, &[workspace], rows]);
        self.after(rows);
    }

    /// The context of one position, head by head.
    fn context(&mut self, query: &[Tensor], stack: &StackConfig, cache: &Cache) -> Vec<Tensor> {
        let context = self.heads(stack);
        let len = cache.keys.len();
        for (&query, &context) in query.iter().zip(&context) {
            let scores = self.trace.tensor(len * self.machine.score);
            let probabilities = self.trace.tensor(len * self.machine.probability);
            self.trace.operator(&[&[query], &cache.keys, &[scores]]);
            self.trace.operator(&[&[scores], &[probabilities]]);
            self.trace.operator(&[&[probabilities], &cache.values, &[context]]);
        }
        context
    }

    fn feed_forward(&mut self, rows: &[Tensor], stack: &StackConfig) {
        let d_ff = usize::from(stack.d_ff);
        let input = self.before(rows);
        let hidden: Vec<_> = rows.iter().map(|_| self.activation(d_ff)).collect();
        self.products(&input, self.d_model(), &[&hidden]);
        self.products(&hidden, d_ff, &[rows]);
        self.after(rows);
    }

    /// Cross keys and values of all layers.
    fn remember(&mut self, memory: &[Tensor]) -> Vec<Cache> {
        let mut caches = vec![Cache::default(); self.config.decoder.n_layers.into()];
        for cache in &mut caches {
            for group in self.groups(memory) {
                let keys: Vec<_> = group.iter().map(|_| self.cached()).collect();
                let values: Vec<_> = group.iter().map(|_| self.cached()).collect();
                self.products(&group, self.d_model(), &[&keys, &values]);
                cache.keys.extend(keys);
                cache.values.extend(values);
            }
        }
        caches
    }

    /// As many ids as fit, one after the other.
    fn decode(&mut self, memory: &[Tensor], target: usize) {
        let stack = self.config.decoder;
        let cross = match self.config.has_cross_attention() {
            true => self.remember(memory),
            false => Vec::new(),
        };
        let mut caches = vec![Cache::default(); stack.n_layers.into()];
        let rotation = self.rotation();
        for _ in 0..target {
            let x = self.activation(self.d_model());
            self.trace.operator(&[&[rotation], &[x]]);
            for (layer, cache) in caches.iter_mut().enumerate() {
                self.decoder_layer(x, cache, cross.get(layer));
            }
            self.after_last(&[x]);
            self.output(x);
        }
    }

    fn decoder_layer(&mut self, x: Tensor, cache: &mut Cache, cross: Option<&Cache>) {
        let (stack, d_model) = (self.config.decoder, self.d_model());
        let input = self.before(&[x]);
        let (query, key, value) = (self.heads(&stack), self.cached(), self.cached());
        self.products(&input, d_model, &[&query, &[key], &[value]]);
        cache.keys.push(key);
        cache.values.push(value);
        self.attend(&[query], &stack, cache, &[x]);
        if let Some(cross) = cross {
            let input = self.before(&[x]);
            let query = self.heads(&stack);
            self.products(&input, d_model, &[&query]);
            self.attend(&[query], &stack, cross, &[x]);
        }
        self.feed_forward(&[x], &stack);
    }

    /// Logits, which a greedy search takes one by one.
    fn output(&mut self, hidden: Tensor) {
        self.products(&[hidden], self.d_model(), &[&[]]);
    }
}
