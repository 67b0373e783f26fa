"""ONNX Runtime: an encoder, which also gives the keys and values of cross-attention, and a decoder step
with a cache, as exporters write them; int8 is its dynamic quantization with its defaults."""

import numpy as np
import onnxruntime as ort

import model


def write(size, precision, folder):
    import onnx_graphs

    onnx_graphs.write(size, precision, folder)


def session(path):
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Engine:
    """Arrays go in and out without a copy; `run` with them is faster than `OrtValue` or a binding."""

    def __init__(self, size, precision, folder):
        self.encoder = session(folder / "encoder.onnx")
        self.decoder = session(folder / "decoder.onnx")
        self.source = {"ids": np.array([model.source(size)])}
        self.start = np.array([[model.START]])
        self.positions = [np.array([[i]]) for i in range(model.LEN)]
        self.crosses = [output.name for output in self.encoder.get_outputs()]
        self.outputs = [output.name for output in self.decoder.get_outputs()]
        self.caches = [f"past_{name}" for name in self.outputs[1:]]
        empty = {
            "key": np.zeros((1, size.n_heads, size.d_k, 0), np.float32),
            "value": np.zeros((1, size.n_heads, 0, size.d_k), np.float32),
        }
        self.empty = {name: empty[name.split("_")[1]] for name in self.caches}

    def generate(self):
        cross = dict(zip(self.crosses, self.encoder.run(self.crosses, self.source)))
        token, past = self.start, self.empty
        ids = []
        for position in self.positions:
            inputs = {"token": token, "position": position, **cross, **past}
            token, *present = self.decoder.run(self.outputs, inputs)
            token_id = token.item()
            if token_id == model.END:
                break
            ids.append(token_id)
            past = dict(zip(self.caches, present))
        return ids
