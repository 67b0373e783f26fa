"""Writes the small checkpoints of this folder and what PyTorch computes with them.

    python make_checkpoints.py        (torch 2.15.0, transformers 5.24.0, safetensors 0.8.0)

All weights are multiples of 1/64 below 2, which every float format holds exactly.
"""

import json
import math
import pathlib

import torch
from torch import Tensor, nn

HERE = pathlib.Path(__file__).parent
D_MODEL, HEADS, D_FF, SOURCE, TARGET = 8, 2, 12, 9, 10
PAD, START, END = 0, 1, 2
MAX_LEN = 12
SOURCES = [[4, 5, 6, END], [8, END], [7, 7, 4, 3, 5, END]]
TARGET_IN = [START, 4, 9, 3, 5]


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        position = torch.arange(MAX_LEN)[:, None]
        rate = torch.exp(torch.arange(0, D_MODEL, 2) * (-math.log(10_000.0) / D_MODEL))
        pe = torch.zeros(MAX_LEN, D_MODEL)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("pe", pe[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.shape[1]]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(D_MODEL, D_MODEL) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor, causal: bool) -> Tensor:
        heads = lambda z: z.unflatten(2, (HEADS, -1)).transpose(1, 2)
        q, k, v = heads(self.W_q(x)), heads(self.W_k(y)), heads(self.W_v(y))
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return self.W_o(z.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(D_MODEL, D_FF), nn.Linear(D_FF, D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.feed_forward = Attention(), FeedForward()
        self.norm1, self.norm2 = nn.LayerNorm(D_MODEL), nn.LayerNorm(D_MODEL)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x, False))
        return self.norm2(x + self.feed_forward(x))


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.cross_attn, self.feed_forward = Attention(), Attention(), FeedForward()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(D_MODEL) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = self.norm1(x + self.self_attn(x, x, True))
        x = self.norm2(x + self.cross_attn(x, memory, False))
        return self.norm3(x + self.feed_forward(x))


class Tutorial(nn.Module):
    """Post-LN, sinusoidal positions, untied output with bias."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder_embedding = nn.Embedding(SOURCE, D_MODEL)
        self.decoder_embedding = nn.Embedding(TARGET, D_MODEL)
        self.positional_encoding = Positions()
        self.encoder_layers = nn.ModuleList([EncoderLayer(), EncoderLayer()])
        self.decoder_layers = nn.ModuleList([DecoderLayer()])
        self.fc = nn.Linear(D_MODEL, TARGET)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        scale = math.sqrt(D_MODEL)
        memory = self.positional_encoding(self.encoder_embedding(source) * scale)
        for layer in self.encoder_layers:
            memory = layer(memory)
        x = self.positional_encoding(self.decoder_embedding(target) * scale)
        for layer in self.decoder_layers:
            x = layer(x, memory)
        return self.fc(x)


class Torch(nn.Module):
    """`torch.nn.Transformer`, pre-LN, GELU, learned positions, no embedding scale."""

    def __init__(self) -> None:
        super().__init__()
        self.src_embed = nn.Embedding(SOURCE, D_MODEL)
        self.tgt_embed = nn.Embedding(TARGET, D_MODEL)
        self.pos_embedding = nn.Parameter(torch.zeros(1, MAX_LEN, D_MODEL))
        self.transformer = nn.Transformer(
            D_MODEL, HEADS, 1, 2, D_FF, activation="gelu", batch_first=True, norm_first=True
        )
        self.generator = nn.Linear(D_MODEL, TARGET, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x = self.src_embed(source) + self.pos_embedding[:, : source.shape[1]]
        y = self.tgt_embed(target) + self.pos_embedding[:, : target.shape[1]]
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.generator(self.transformer(x, y, tgt_mask=causal, tgt_is_causal=True))


def randomize(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        steps = torch.randint(-70, 71, parameter.shape, generator=generator)
        one = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        parameter.data = one + steps / 64


@torch.no_grad()
def greedy(logits, source: list[int], start: int, end: int, banned: list[int], longest: int):
    ids = [start]
    while len(ids) <= longest:
        last = logits(torch.tensor([source]), torch.tensor([ids]))[0, -1]
        last[banned] = -math.inf
        best, second = last.topk(2).values
        assert best - second > 1e-3, "a tie: take another seed"
        if (token := int(last.argmax())) == end:
            break
        ids.append(token)
    return ids[1:]


@torch.no_grad()
def judge(name: str, logits, sources, target_in, start, end, banned) -> None:
    answers = [greedy(logits, source, start, end, banned, MAX_LEN) for source in sources]
    values = logits(torch.tensor([sources[0]]), torch.tensor([target_in]))[0].flatten()
    judged = {
        "sources": [source[:-1] for source in sources],
        "answers": answers,
        "target_in": target_in,
        "logits": [round(v, 6) for v in values.tolist()],
    }
    (HERE / f"{name}.expected.json").write_text(json.dumps(judged) + "\n")
    print(name, answers)


def tutorial() -> None:
    torch.manual_seed(0)
    model = Tutorial().eval()
    randomize(model, 5)
    judge("tutorial", model, SOURCES, TARGET_IN, START, END, [PAD, START])
    torch.save(model.state_dict(), HERE / "tutorial.pt")
    # A training checkpoint: bf16, under DataParallel's names, some matrices as transposed views, the
    # norms of a layer as views into one storage.
    tensors = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
    for name, tensor in tensors.items():
        if "pe" not in name.split("."):
            tensors[name] = tensor.bfloat16()
        if name.endswith("W_q.weight"):
            tensors[name] = tensor.bfloat16().t().contiguous().t()
        if name.endswith("W_k.weight"):
            tensors[name] = tensor.double()
        if name.endswith("W_v.weight"):
            tensors[name] = torch.nn.Parameter(tensor.half())
    names = ["module.encoder_layers.0.norm1.weight", "module.encoder_layers.0.norm1.bias"]
    both = torch.stack([tensors[name] for name in names])
    for row, name in zip(both, names):
        tensors[name] = row
    optimizer = torch.optim.Adam(nn.Linear(2, 1).parameters())
    training = {
        "epoch": 3,
        "optimizer_state_dict": optimizer.state_dict(),
        "model_state_dict": tensors,
        "loss": 0.5,
        "config": {"d_model": D_MODEL, "names": ("a", None, True)},
    }
    torch.save(training, HERE / "training.pt")
    torch.save({"a": torch.zeros(1)}, HERE / "legacy.pt", _use_new_zipfile_serialization=False)


def torch_nn() -> None:
    torch.manual_seed(0)
    model = Torch().eval()
    randomize(model, 3)
    judge("torch", model, SOURCES, TARGET_IN, START, END, [PAD, START])
    torch.save(model.half().state_dict(), HERE / "torch.pt")


def marian() -> None:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=12, d_model=D_MODEL, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=D_FF,
        decoder_ffn_dim=D_FF, activation_function="swish", scale_embedding=True,
        max_position_embeddings=MAX_LEN, pad_token_id=11, eos_token_id=0, decoder_start_token_id=11,
        forced_eos_token_id=None, bos_token_id=None,
    )
    torch.manual_seed(0)
    model = MarianMTModel(config).eval()
    positions = {k: v.clone() for k, v in model.state_dict().items() if "embed_positions" in k}
    randomize(model, 8)
    model.load_state_dict(positions, strict=False)
    model.final_logits_bias = torch.randint(-64, 65, (1, 12)) / 64
    logits = lambda source, target: model(input_ids=source, decoder_input_ids=target).logits
    sources = [[4, 5, 6, 0], [8, 0], [7, 7, 4, 3, 5, 0]]
    judge("marian", logits, sources, [11, 4, 9, 3, 5], 11, 0, [11])
    for source, answer in zip(sources, json.loads((HERE / "marian.expected.json").read_text())["answers"]):
        ids = model.generate(
            torch.tensor([source]), num_beams=1, do_sample=False, max_new_tokens=MAX_LEN,
            bad_words_ids=[[11]],
        )[0].tolist()
        assert [i for i in ids[1:] if i != 0] == answer, (ids, answer)
    folder = HERE / "marian"
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    vocab = {"</s>": 0, "<unk>": 1, **{chr(95 + i): i for i in range(2, 11)}, "<pad>": 11}
    (folder / "vocab.json").write_text(json.dumps(vocab) + "\n")


tutorial()
torch_nn()
marian()
