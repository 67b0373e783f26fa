"""A small `MarianMTModel` of `transformers` with random weights, against our network and searches."""

from __future__ import annotations

import torch
from transformers import MarianConfig, MarianMTModel

from config import Config, Special, Stack
from model import Transformer
from search import Beam, Decoder, greedy

VOCAB, MAX_LEN = 53, 20
# `generate` adds log-probabilities up in f32, whatever the model computes in.
TOLERANCE = 1e-4

OURS = Config(
    d_model=32,
    encoder=Stack(2, 4, 48),
    decoder=Stack(2, 4, 40),
    source_vocab=VOCAB,
    target_vocab=VOCAB,
    max_source_len=MAX_LEN,
    max_target_len=MAX_LEN,
    norm="post",
    final_norm=False,
    positions="sinusoidal-halves",
    output="tied-bias",
    shared_embedding=True,
    activation="silu",
    special=Special(pad=VOCAB - 1, start=VOCAB - 1, end=0, unknown=1),
)
PARTS = (
    ("target_embedding", "model.shared"),
    ("encoder.layers", "model.encoder.layers"),
    ("decoder.layers", "model.decoder.layers"),
    ("self_attention", "self_attn"),
    ("cross_attention", "encoder_attn"),
    (".query.", ".q_proj."),
    (".key.", ".k_proj."),
    (".value.", ".v_proj."),
    ("attn.output.", "attn.out_proj."),
    ("feed_forward.linear", "fc"),
    ("output.bias", "final_logits_bias"),
)


def random_marian(seed: int) -> MarianMTModel:
    """One whose weights are large enough that its answers differ."""
    torch.manual_seed(seed)
    config = MarianConfig(
        vocab_size=VOCAB,
        d_model=OURS.d_model,
        encoder_layers=OURS.encoder.n_layers,
        decoder_layers=OURS.decoder.n_layers,
        encoder_attention_heads=OURS.encoder.n_heads,
        decoder_attention_heads=OURS.decoder.n_heads,
        encoder_ffn_dim=OURS.encoder.d_ff,
        decoder_ffn_dim=OURS.decoder.d_ff,
        max_position_embeddings=OURS.max_source_len,
        pad_token_id=OURS.special.pad,
        eos_token_id=OURS.special.end,
        decoder_start_token_id=OURS.special.start,
        forced_eos_token_id=None,
        scale_embedding=True,
        activation_function="swish",
        init_std=0.25,
    )
    model = MarianMTModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.uniform_(parameter, -0.3, 0.3)
    torch.nn.init.uniform_(model.final_logits_bias, -0.5, 0.5)
    return model


def _norm(name: str) -> str:
    """Our norm1, norm2 and norm3 by what they follow."""
    last = "norm3" if "decoder" in name else "norm2"
    name = name.replace(f".{last}.", ".final_layer_norm.")
    return name.replace(".norm1.", ".self_attn_layer_norm.").replace(".norm2.", ".encoder_attn_layer_norm.")


def our_model(theirs: MarianMTModel) -> Transformer:
    """Our network with Marian's weights, in f64."""
    state, model = theirs.state_dict(), Transformer(OURS).double().eval()
    for name, parameter in model.named_parameters():
        foreign = _norm(name)
        for part in PARTS:
            foreign = foreign.replace(*part)
        parameter.data = state[foreign].double().reshape(parameter.shape)
    return model


def compare(theirs: MarianMTModel, ours: Transformer, sources: list[list[int]]) -> None:
    """`generate` in f64 gives the ids of our searches, and with beams their scores."""
    theirs = theirs.double()
    common = {"max_new_tokens": MAX_LEN, "do_sample": False, "bad_words_ids": [[OURS.special.pad]]}
    for source in sources:
        decoder, ids = Decoder(ours, source), torch.tensor([source])
        found = theirs.generate(ids, num_beams=1, **common)[0].tolist()
        assert found == [OURS.special.start, *greedy(decoder, [], MAX_LEN).ids], source
        for alpha in (0.0, 0.6, 1.0):
            found = theirs.generate(
                ids,
                num_beams=4,
                num_return_sequences=4,
                length_penalty=alpha,
                early_stopping="never",
                return_dict_in_generate=True,
                output_scores=True,
                **common,
            )
            search = Beam(decoder, 4, 4, alpha, MAX_LEN)
            for row, score, best in zip(found.sequences.tolist(), found.sequences_scores, search.run()):
                assert row[1 : 1 + len(best.ids)] == best.ids, (source, alpha, row, best)
                assert set(row[1 + len(best.ids) :]) <= {OURS.special.pad}, (source, alpha, row)
                assert abs(score.item() - search.score(best)) < TOLERANCE, (source, alpha, score)
