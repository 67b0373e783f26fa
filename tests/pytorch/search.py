"""Greedy and beam search, written from their definition, without a cache: every step reads all ids anew.

Every search also returns its margin: by how little its closest decision was taken. A fixture whose
margin is below the rounding of `f32` would compare nothing but luck.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model import Record, Transformer, combined_mask, padding_mask


class Decoder:
    """A model on one source: from prefixes of one length to the logits that follow."""

    def __init__(self, model: Transformer, source: list[int] | None) -> None:
        self.model = model
        self.memory = self.seen = None
        if source is not None:
            self.seen = padding_mask([len(source)])
            self.memory = model.encode(torch.tensor([source]), self.seen, Record())

    def logits(self, prefixes: list[list[int]]) -> Tensor:
        """`[n, target_vocab]` after each of n prefixes, the start id not among their ids."""
        start = self.model.config.special.start
        ids = torch.tensor([[start, *prefix] for prefix in prefixes])
        n, length = ids.shape
        memory = None if self.memory is None else self.memory.expand(n, -1, -1)
        return self.model.decode(ids, combined_mask([length] * n), memory, self.seen, Record())[:, -1]


@dataclass
class Greedy:
    """One answer: the ids after start (and prompt), the end id among them where it was reached."""

    ids: list[int]
    logits: list[Tensor]
    margin: float


def greedy(decoder: Decoder, prompt: list[int], max_len: int) -> Greedy:
    """The largest logit, the lowest id among equals, never pad or start; `max_len` counts the prompt."""
    special = decoder.model.config.special
    answer = Greedy([], [], math.inf)
    while len(prompt) + len(answer.ids) < max_len and answer.ids[-1:] != [special.end]:
        row = decoder.logits([prompt + answer.ids])[0]
        allowed = row.clone()
        allowed[[special.pad, special.start]] = -math.inf
        best, second = allowed.argsort(descending=True, stable=True)[:2].tolist()
        answer.margin = min(answer.margin, (row[best] - row[second]).item())
        answer.logits.append(row)
        answer.ids.append(best)
    return answer


@dataclass
class Hypothesis:
    """Ids after start, and the sum of their log-probabilities."""

    ids: list[int]
    sum: float

    def score(self, length: int, alpha: float) -> float:
        """`sum / length^alpha`."""
        return self.sum / length**alpha


class Beam:
    """Beam search: `beams` live hypotheses, the `n` best finished ones, length penalty `alpha`."""

    def __init__(self, decoder: Decoder, beams: int, n: int, alpha: float, max_len: int) -> None:
        self.decoder, self.beams, self.n, self.alpha, self.max_len = decoder, beams, n, alpha, max_len
        self.special = decoder.model.config.special
        self.live = [Hypothesis([], 0.0)]
        self.kept: list[Hypothesis] = []
        self.margin = math.inf

    def run(self) -> list[Hypothesis]:
        """The best hypotheses, best first."""
        for length in range(1, self.max_len + 1):
            self._step()
            if self._is_decided():
                return self.kept
        for hypothesis in self.live:
            self._keep(hypothesis)
        return self.kept

    def score(self, hypothesis: Hypothesis) -> float:
        return hypothesis.score(len(hypothesis.ids), self.alpha)

    def _step(self) -> None:
        ranked = self._candidates()
        best = ranked[: 2 * self.beams]
        self._decide_between(ranked, self.beams)
        for hypothesis in best[: self.beams]:
            if hypothesis.ids[-1] == self.special.end:
                self._keep(hypothesis)
        others = [h for h in ranked if h.ids[-1] != self.special.end]
        self._decide_between(others, self.beams)
        self.live = [h for h in best if h.ids[-1] != self.special.end][: self.beams]

    def _candidates(self) -> list[Hypothesis]:
        """The best of every live beam with every id but pad and start, enough of them for this step and
        to see by how little the last was chosen; best first; ties: lower beam, then lower id."""
        rows = torch.log_softmax(self.decoder.logits([h.ids for h in self.live]), dim=-1)
        rows[:, [self.special.pad, self.special.start]] = -math.inf
        sums = rows + torch.tensor([h.sum for h in self.live], dtype=rows.dtype)[:, None]
        # A live beam gives one candidate that ends at most: these hold `beams` that do not, and one more.
        wanted = 2 * self.beams + len(self.live) + 1
        order = sums.flatten().argsort(descending=True, stable=True)[:wanted].tolist()
        places = (divmod(place, rows.shape[1]) for place in order)
        best = [Hypothesis([*self.live[beam].ids, id], sums[beam, id].item()) for beam, id in places]
        return [hypothesis for hypothesis in best if hypothesis.sum > -math.inf]

    def _keep(self, hypothesis: Hypothesis) -> None:
        """Among the n best; the older one among equals."""
        kept = sorted([*self.kept, hypothesis], key=lambda h: -self.score(h))
        for a, b in zip(kept, kept[1:]):
            self.margin = min(self.margin, self.score(a) - self.score(b))
        self.kept = kept[: self.n]

    def _is_decided(self) -> bool:
        """Whether no live beam can still beat the worst that is kept."""
        if not self.live:
            return True
        if len(self.kept) < self.n:
            return False
        bound = max(h.score(self.max_len, self.alpha) for h in self.live)
        worst = self.score(self.kept[-1])
        self.margin = min(self.margin, abs(bound - worst))
        return bound <= worst

    def _decide_between(self, ranked: list[Hypothesis], n: int) -> None:
        """Notes by how little the n-th candidate is better than the next."""
        if len(ranked) > n:
            self.margin = min(self.margin, ranked[n - 1].sum - ranked[n].sum)
