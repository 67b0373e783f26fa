"""Writes the graphs that ONNX Runtime runs."""

import logging
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import model

OPSET = 17


class Graph:
    """Nodes in their order; every method gives the name of what it computes."""

    def __init__(self, size):
        self.size = size
        self.weights = model.weights(size)
        self.nodes, self.initializers, self.inputs, self.outputs = [], {}, [], []
        self.scale = self.constant("scale", np.float32(size.d_model**0.5))

    def constant(self, name, array):
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def op(self, kind, *inputs, outputs=None, **attributes):
        names = outputs or [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}{len(self.nodes)}", **attributes))
        return names[0] if len(names) == 1 else names

    def input(self, name, shape, kind=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name, shape, kind=TensorProto.FLOAT):
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def linear(self, name, x):
        matrix = self.constant(f"{name}.weight", self.weights[f"{name}.weight"].T)
        return self.op("Add", self.op("MatMul", x, matrix), self.constant(f"{name}.bias", self.weights[f"{name}.bias"]))

    def norm(self, name, x):
        weight, bias = (self.constant(f"{name}.{part}", self.weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return self.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=model.EPS)

    def embed(self, stack, ids, positions):
        rows = self.op("Gather", self.constant(f"{stack}.embedding", self.weights[f"{stack}.embedding"]), ids)
        return self.op("Add", self.op("Mul", rows, self.scale), positions)

    def split(self, x, parts):
        return self.op("Split", x, axis=-1, outputs=[f"{x}_{i}" for i in range(parts)])

    def heads(self, x, permutation, outputs=None):
        shape = self.constant("heads", np.array([1, -1, self.size.n_heads, self.size.d_k]))
        return self.op("Transpose", self.op("Reshape", x, shape), perm=permutation, outputs=outputs)

    def query(self, x):
        scale = self.constant("query_scale", np.float32(self.size.d_k**-0.5))
        return self.op("Mul", self.heads(x, HEADS), scale)

    def attend(self, name, query, keys, values):
        """`keys` are `[1, n_heads, d_k, n]`, `values` `[1, n_heads, n, d_k]`."""
        probabilities = self.op("Softmax", self.op("MatMul", query, keys), axis=-1)
        context = self.op("Transpose", self.op("MatMul", probabilities, values), perm=HEADS)
        shape = self.constant("joined", np.array([1, -1, self.size.d_model]))
        return self.linear(f"{name}.output", self.op("Reshape", context, shape))

    def feed_forward(self, part, x):
        hidden = self.op("Relu", self.linear(f"{part}.linear1", self.norm(f"{part}.norm3", x)))
        return self.op("Add", x, self.linear(f"{part}.linear2", hidden))

    def save(self, path):
        graph = helper.make_graph(self.nodes, path.stem, self.inputs, self.outputs, list(self.initializers.values()))
        # The version that opset 17 came with, which every runtime since reads.
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        onnx.checker.check_model(proto, full_check=True)
        onnx.save(proto, path)


HEADS, KEYS = [0, 2, 1, 3], [0, 2, 3, 1]


def encoder(size):
    g = Graph(size)
    ids = g.input("ids", [1, model.LEN], TensorProto.INT64)
    x = g.embed("encoder", ids, g.constant("positions", model.positions(size)[: model.LEN]))
    for layer in range(size.n_layers):
        part = f"encoder.{layer}"
        query, key, value = g.split(g.linear(f"{part}.self.qkv", g.norm(f"{part}.norm1", x)), 3)
        attended = g.attend(f"{part}.self", g.query(query), g.heads(key, KEYS), g.heads(value, HEADS))
        x = g.feed_forward(part, g.op("Add", x, attended))
    memory = g.norm("encoder.norm", x)
    for layer in range(size.n_layers):
        key, value = g.split(g.linear(f"decoder.{layer}.cross.kv", memory), 2)
        g.heads(key, KEYS, [g.output(f"cross_key_{layer}", [1, size.n_heads, size.d_k, model.LEN])])
        g.heads(value, HEADS, [g.output(f"cross_value_{layer}", [1, size.n_heads, model.LEN, size.d_k])])
    return g


def decoder(size):
    g = Graph(size)
    token = g.input("token", [1, 1], TensorProto.INT64)
    position = g.input("position", [1, 1], TensorProto.INT64)
    g.output("next", [1, 1], TensorProto.INT64)
    table = g.constant("positions", model.positions(size))
    x = g.embed("decoder", token, g.op("Gather", table, position))
    heads, d_k = size.n_heads, size.d_k
    for layer in range(size.n_layers):
        part = f"decoder.{layer}"
        cross_keys = g.input(f"cross_key_{layer}", [1, heads, d_k, model.LEN])
        cross_values = g.input(f"cross_value_{layer}", [1, heads, model.LEN, d_k])
        past_keys = g.input(f"past_key_{layer}", [1, heads, d_k, "past"])
        past_values = g.input(f"past_value_{layer}", [1, heads, "past", d_k])
        query, key, value = g.split(g.linear(f"{part}.self.qkv", g.norm(f"{part}.norm1", x)), 3)
        g.output(f"key_{layer}", [1, heads, d_k, "present"])
        g.output(f"value_{layer}", [1, heads, "present", d_k])
        keys = g.op("Concat", past_keys, g.heads(key, KEYS), axis=3, outputs=[f"key_{layer}"])
        values = g.op("Concat", past_values, g.heads(value, HEADS), axis=2, outputs=[f"value_{layer}"])
        x = g.op("Add", x, g.attend(f"{part}.self", g.query(query), keys, values))
        query = g.query(g.linear(f"{part}.cross.query", g.norm(f"{part}.norm2", x)))
        x = g.op("Add", x, g.attend(f"{part}.cross", query, cross_keys, cross_values))
        x = g.feed_forward(part, x)
    hidden = g.op("Reshape", g.norm("decoder.norm", x), g.constant("row", np.array([1, size.d_model])))
    bias = g.constant("output.bias", g.weights["output.bias"])
    # The matrix is stored once: the look-up's.
    logits = g.op("Gemm", hidden, "decoder.embedding", bias, transB=1)
    g.op("ArgMax", logits, axis=-1, keepdims=1, outputs=["next"])
    return g


def write(size, precision, folder):
    # It recommends a pass that infers shapes and fuses; the shapes are here, and sessions fuse.
    logging.disable(logging.WARNING)
    for name, graph in ("encoder", encoder(size)), ("decoder", decoder(size)):
        if precision == "float32":
            graph.save(folder / f"{name}.onnx")
            continue
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / f"{name}.onnx"
            graph.save(path)
            quantize_dynamic(path, folder / f"{name}.onnx", weight_type=QuantType.QInt8)
