//! The encoder-decoder of Vaswani et al. 2017 from its definition: nested loops in `f64`, one sentence
//! at a time, no padding, no mask but "not after me", no cache.

use model_format::config::{NormPlace, Positions, StackConfig};

use super::networks::Weighted;

/// `[positions, width]`
pub type Rows = Vec<Vec<f64>>;

/// `softmax(q k^T / sqrt(d_k)) v` of every head, in four nested loops.
pub fn attention(q: &Rows, k: &Rows, v: &Rows, n_heads: usize, causal: bool) -> Rows {
    let d_model = q.first().map_or(0, Vec::len);
    let d_k = d_model / n_heads;
    let mut context = vec![vec![0.0; d_model]; q.len()];
    for head in 0..n_heads {
        let columns = head * d_k..(head + 1) * d_k;
        for (i, q) in q.iter().enumerate() {
            let visible = if causal { i + 1 } else { k.len() };
            let mut weights = Vec::new();
            for k in &k[..visible] {
                let product: f64 = columns.clone().map(|c| q[c] * k[c]).sum();
                weights.push((product / (d_k as f64).sqrt()).exp());
            }
            let sum: f64 = weights.iter().sum();
            for c in columns.clone() {
                context[i][c] = weights.iter().zip(v).map(|(w, v)| w / sum * v[c]).sum();
            }
        }
    }
    context
}

fn add(a: &Rows, b: &Rows) -> Rows {
    let row = |(a, b): (&Vec<f64>, &Vec<f64>)| a.iter().zip(b).map(|(a, b)| a + b).collect();
    a.iter().zip(b).map(row).collect()
}

impl Weighted {
    fn tensor(&self, name: &str) -> Vec<f64> {
        let spec = self.network.layout.specs.iter().find(|spec| spec.name == name);
        let range = spec.unwrap_or_else(|| panic!("no tensor `{name}`")).range();
        self.params[range].iter().map(|&p| p.into()).collect()
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let (weight, bias) =
            (self.tensor(&format!("{name}.weight")), self.tensor(&format!("{name}.bias")));
        product(x, &weight, &bias)
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let (gamma, beta) =
            (self.tensor(&format!("{name}.weight")), self.tensor(&format!("{name}.bias")));
        let eps = f64::from(self.config().layer_norm_eps);
        let row = |x: &Vec<f64>| {
            let n = x.len() as f64;
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let affine = x.iter().zip(gamma.iter().zip(&beta));
            affine.map(|(x, (g, b))| g * (x - mean) / (variance + eps).sqrt() + b).collect()
        };
        x.iter().map(row).collect()
    }

    fn sublayer(&self, norm: &str, x: &Rows, f: impl Fn(&Rows) -> Rows) -> Rows {
        match self.config().norm {
            NormPlace::Pre => add(x, &f(&self.norm(norm, x))),
            NormPlace::Post => self.norm(norm, &add(x, &f(x))),
        }
    }

    fn attend(&self, name: &str, heads: usize, x: &Rows, memory: &Rows, causal: bool) -> Rows {
        let [q, k, v] = [("query", x), ("key", memory), ("value", memory)]
            .map(|(part, x)| self.linear(&format!("{name}.{part}"), x));
        self.linear(&format!("{name}.output"), &attention(&q, &k, &v, heads, causal))
    }

    fn embed(&self, side: &str, ids: &[u32]) -> Rows {
        let d = usize::from(self.config().d_model);
        let table = self.tensor(&format!("{side}_embedding.weight"));
        let learned = (self.config().positions == Positions::Learned)
            .then(|| self.tensor(&format!("{side}_positions.weight")));
        let place = |position: usize, c: usize| match &learned {
            Some(table) => table[position * d + c],
            None => {
                let angle = position as f64 / 10_000_f64.powf((c / 2 * 2) as f64 / d as f64);
                if c.is_multiple_of(2) { angle.sin() } else { angle.cos() }
            }
        };
        let row = |(position, &id): (usize, &u32)| {
            let number = |c| table[id as usize * d + c] * (d as f64).sqrt() + place(position, c);
            (0..d).map(number).collect()
        };
        ids.iter().enumerate().map(row).collect()
    }

    fn stack(&self, name: &str, sizes: &StackConfig, mut x: Rows, memory: Option<&Rows>) -> Rows {
        let heads = usize::from(sizes.n_heads);
        for layer in 0..sizes.n_layers {
            let at = |part: &str| format!("{name}.layers.{layer}.{part}");
            x = self.sublayer(&at("norm1"), &x, |x| {
                self.attend(&at("self_attention"), heads, x, x, memory.is_some())
            });
            if let Some(memory) = memory {
                x = self.sublayer(&at("norm2"), &x, |x| {
                    self.attend(&at("cross_attention"), heads, x, memory, false)
                });
            }
            let last = if memory.is_some() { "norm3" } else { "norm2" };
            x = self.sublayer(&at(last), &x, |x| {
                let mut hidden = self.linear(&at("feed_forward.linear1"), x);
                hidden.iter_mut().flatten().for_each(|v| *v = v.max(0.0));
                self.linear(&at("feed_forward.linear2"), &hidden)
            });
        }
        if self.config().final_norm { self.norm(&format!("{name}.norm"), &x) } else { x }
    }

    /// Logits of every step of an answer `ids`; without the one after the last that fits.
    pub fn naive_steps(&self, source: &[u32], ids: &[u32]) -> Rows {
        let most = usize::from(self.config().max_target_len) - 1;
        self.naive_logits(source, &ids[..ids.len().min(most)])
    }

    /// Logits `[target.len() + 1, target_vocab]` of symbols, without start and end.
    pub fn naive_logits(&self, source: &[u32], target: &[u32]) -> Rows {
        let start = u32::from(self.config().special.start);
        let target: Vec<u32> = [start].into_iter().chain(target.iter().copied()).collect();
        self.naive_decoder(source, &target)
    }

    /// Logits `[target.len(), target_vocab]` of a decoder that reads `target` from position 0 on.
    pub fn naive_decoder(&self, source: &[u32], target: &[u32]) -> Rows {
        let config = self.config();
        let source: Vec<u32> = source.iter().copied().chain([config.special.end.into()]).collect();
        let memory = self.stack("encoder", &config.encoder, self.embed("source", &source), None);
        let embedded = self.embed("target", target);
        let hidden = self.stack("decoder", &config.decoder, embedded, Some(&memory));
        let weight = if config.output.is_tied() { "target_embedding" } else { "output" };
        product(&hidden, &self.tensor(&format!("{weight}.weight")), &self.tensor("output.bias"))
    }
}

/// `x W^T + b`.
fn product(x: &Rows, weight: &[f64], bias: &[f64]) -> Rows {
    let mut out = Vec::new();
    for x in x {
        let mut row = bias.to_vec();
        for (y, weights) in row.iter_mut().zip(weight.chunks_exact(x.len())) {
            *y += x.iter().zip(weights).map(|(x, w)| x * w).sum::<f64>();
        }
        out.push(row);
    }
    out
}
