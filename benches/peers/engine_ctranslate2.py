"""CTranslate2, through its Python package, on a model made with its converter's specifications."""

import sys

# Its converters import PyTorch where it is installed, which would count as memory of this process.
sys.modules["torch"] = None

import ctranslate2
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.common_spec import Activation

import model


SPECIAL = {model.PAD: "<blank>", model.START: "<s>", model.END: "</s>", model.UNKNOWN: "<unk>"}


def token(i):
    return SPECIAL.get(i, str(i))


def write(size, precision, folder):
    weights = model.weights(size)
    spec = TransformerSpec.from_config(size.n_layers, size.n_heads, pre_norm=True, activation=Activation.RELU)
    spec.config.layer_norm_epsilon = model.EPS
    for stack, name in (spec.encoder, "encoder"), (spec.decoder, "decoder"):
        set_stack(stack, weights, name, model.positions(size))
    spec.encoder.embeddings[0].weight = weights["encoder.embedding"]
    spec.decoder.embeddings.weight = weights["decoder.embedding"]
    spec.decoder.projection.weight = weights["decoder.embedding"]
    spec.decoder.projection.bias = weights["output.bias"]
    tokens = [token(i) for i in range(size.vocab)]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.validate()
    spec.optimize(quantization=precision)
    spec.save(str(folder))


def set_stack(stack, weights, name, positions):
    def linear(spec, name):
        spec.weight, spec.bias = weights[f"{name}.weight"], weights[f"{name}.bias"]

    def norm(spec, name):
        spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    stack.position_encodings.encodings = positions
    norm(stack.layer_norm, f"{name}.norm")
    for i, layer in enumerate(stack.layer):
        part = f"{name}.{i}"
        norm(layer.self_attention.layer_norm, f"{part}.norm1")
        linear(layer.self_attention.linear[0], f"{part}.self.qkv")
        linear(layer.self_attention.linear[1], f"{part}.self.output")
        if name == "decoder":
            norm(layer.attention.layer_norm, f"{part}.norm2")
            for spec, matrix in zip(layer.attention.linear, ["query", "kv", "output"]):
                linear(spec, f"{part}.cross.{matrix}")
        norm(layer.ffn.layer_norm, f"{part}.norm3")
        linear(layer.ffn.linear_0, f"{part}.linear1")
        linear(layer.ffn.linear_1, f"{part}.linear2")


class Engine:
    def __init__(self, size, precision, folder):
        self.translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=precision, inter_threads=1, intra_threads=1
        )
        self.source = [[token(i) for i in model.source(size)]]

    def generate(self):
        [result] = self.translator.translate_batch(self.source, beam_size=1, max_decoding_length=model.LEN)
        return [int(token) for token in result.hypotheses[0]]
