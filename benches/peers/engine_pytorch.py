"""PyTorch, eager, with key and value caches of full length."""

import torch
from torch.nn.functional import layer_norm, linear, relu, scaled_dot_product_attention

import model


def write(size, precision, folder):
    assert precision == "float32"
    tensors = {name: torch.from_numpy(array) for name, array in model.weights(size).items()}
    torch.save(tensors, folder / "model.pt")


class Engine:
    def __init__(self, size, precision, folder):
        torch.set_num_threads(1)
        self.size = size
        self.tensors = torch.load(folder / "model.pt", weights_only=True)
        self.positions = torch.from_numpy(model.positions(size))
        self.source = torch.tensor(model.source(size))
        heads = (size.n_layers, 2, size.n_heads, model.LEN, size.d_k)
        self.caches, self.cross = torch.zeros(heads), torch.zeros(heads)

    def linear(self, name, x):
        return linear(x, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def norm(self, name, x):
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        return layer_norm(x, (self.size.d_model,), weight, bias, model.EPS)

    def embed(self, stack, ids, positions):
        return self.tensors[f"{stack}.embedding"][ids] * self.size.d_model**0.5 + positions

    def heads(self, x, parts):
        """`[n, parts * d_model]` to `[parts, n_heads, n, d_k]`."""
        return x.view(-1, parts, self.size.n_heads, self.size.d_k).permute(1, 2, 0, 3)

    def attend(self, name, query, key, value):
        context = scaled_dot_product_attention(query, key, value)
        return self.linear(f"{name}.output", context.transpose(0, 1).reshape(-1, self.size.d_model))

    def feed_forward(self, part, x):
        hidden = relu(self.linear(f"{part}.linear1", self.norm(f"{part}.norm3", x)))
        return x + self.linear(f"{part}.linear2", hidden)

    def encode(self):
        x = self.embed("encoder", self.source, self.positions[: len(self.source)])
        for layer in range(self.size.n_layers):
            part = f"encoder.{layer}"
            qkv = self.linear(f"{part}.self.qkv", self.norm(f"{part}.norm1", x))
            x = x + self.attend(f"{part}.self", *self.heads(qkv, 3))
            x = self.feed_forward(part, x)
        memory = self.norm("encoder.norm", x)
        for layer in range(self.size.n_layers):
            self.cross[layer] = self.heads(self.linear(f"decoder.{layer}.cross.kv", memory), 2)

    def step(self, token, position):
        x = self.embed("decoder", token, self.positions[position]).view(1, -1)
        for layer in range(self.size.n_layers):
            part = f"decoder.{layer}"
            qkv = self.heads(self.linear(f"{part}.self.qkv", self.norm(f"{part}.norm1", x)), 3)
            self.caches[layer, :, :, position] = qkv[1:, :, 0]
            keys, values = self.caches[layer, :, :, : position + 1]
            x = x + self.attend(f"{part}.self", qkv[0], keys, values)
            query = self.linear(f"{part}.cross.query", self.norm(f"{part}.norm2", x))
            x = x + self.attend(f"{part}.cross", self.heads(query, 1)[0], *self.cross[layer])
            x = self.feed_forward(part, x)
        logits = linear(self.norm("decoder.norm", x), self.tensors["decoder.embedding"], self.tensors["output.bias"])
        return logits.argmax().item()

    @torch.inference_mode()
    def generate(self):
        self.encode()
        ids = []
        token = model.START
        for position in range(model.LEN):
            token = self.step(token, position)
            if token == model.END:
                break
            ids.append(token)
        return ids
