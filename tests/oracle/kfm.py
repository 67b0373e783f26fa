#!/usr/bin/env python3
"""Runs a Kiloformer model file: an independent reading of model-format/FORMAT.md.

The file and the arithmetic were written from that page and not from the Rust, so that both compute the same
bits only where the page is right and complete. (Which texts are refused and how case is folded was then
compared with the Rust, and the page completed.) Plain Python 3 without other packages; clear rather than
fast. "Section" in the comments is a section of the page.

    python3 tests/oracle/kfm.py model.kfm word...

prints `word<TAB>answer<TAB>hash` for every word. The hash is FNV-1a-64 over the logits of every decoding
step, the one that produced the end id included, each logit as four little-endian bytes (an `i32` of
FixedPoint, an `f32` of HalfFloat). A word that the model refuses prints `word<TAB>! reason`.
"""

import math
import re
import struct
import sys
import zlib
from array import array
from operator import add, mul

# Runs of what is not white space in Unicode; Python's own \s has four control characters more.
RUN = re.compile("[^\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")

ENCODER_TENSORS = "norm1 query key value output heads norm2 linear1 linear2".split()
DECODER_TENSORS = (
    "norm1 query key value output heads norm2 "
    "cross_query cross_key cross_value cross_output cross_heads norm3 linear1 linear2"
).split()
ENCODER_FORMATS = "norm1 query context sum1 norm2 hidden sum2".split()
CROSS_TENSORS = "norm2 cross_query cross_key cross_value cross_output cross_heads".split()
ACTIVATIONS = "relu gelu gelu_tanh silu".split()
DECODER_FORMATS = "norm1 query context sum1 norm2 cross_query cross_context sum2 norm3 hidden sum3".split()


def check(condition, message):
    if not condition:
        raise ValueError(message)


# ---- The file: sections 1 to 4 and 8.


class Model:
    def __init__(self, data):
        check(data[:4] == b"KFMF" and data[4:6] == b"\1\0", "not a Kiloformer model of version 1")
        check(zlib.crc32(data[:-4]) == struct.unpack("<I", data[-4:])[0], "CRC")
        half, layout, family, self.post, final_norm, self.positions, output, activation = data[6:14]
        self.source_runs, self.target_runs, self.fold_case, self.replace_unknown = data[14:18]
        shared, self.plain_embedding, self.frame = data[18:21]
        check(layout in ((0, 3) if half else (0, 1, 2)), "a layout that is not known")
        check(family < 4 and activation < 4, "a family or activation that is not known")
        self.family, self.activation = family, ACTIVATIONS[activation]
        has_encoder, has_decoder, has_cross = family != 1, family < 2, family == 0
        words = struct.unpack_from("<15H", data, 22)
        d, encoder, decoder = words[0], words[1:4], words[4:7]
        source_vocab, target_vocab, self.max_source, self.max_target = words[7:11]
        self.pad, self.start, self.end, self.unknown = words[11:]
        (self.epsilon,) = struct.unpack_from("<f", data, 54)
        self.half, self.d, self.encoder_heads, self.decoder_heads = half, d, encoder[1], decoder[1]

        at, parts = 70, []
        for _ in range(5):
            part, at = read_part(data, at)
            parts.append(part)
        formats, directory, vocabulary, padding, weights = parts
        check(at + 4 == len(data) and (at - len(weights)) % 16 == 0 and not any(padding), "parts of the file")

        # Section 3. A format is (fractional bits, width); HalfFloat has none, and None stands for each.
        count = 5 + encoder[0] * len(ENCODER_FORMATS) + decoder[0] * len(DECODER_FORMATS)
        check(len(formats) == (0 if half else 2 * count), "formats")
        entries = iter([None] * count if half else list(struct.iter_unpack("<bB", formats)))
        self.f_source = next(entries)
        f_encoder = [{name: next(entries) for name in ENCODER_FORMATS} for _ in range(encoder[0])]
        self.f_memory, self.f_target = next(entries), next(entries)
        f_decoder = [{name: next(entries) for name in DECODER_FORMATS} for _ in range(decoder[0])]
        self.f_hidden, _logits = entries

        # Section 4. An absent tensor is None.
        entries = struct.iter_unpack("<BxHHxxII", directory)
        free = 0

        def tensor(kinds, rows, cols, exists=True):
            nonlocal free
            kind, found_rows, found_cols, offset, length = next(entries)
            expected = (rows, cols) if exists else (0, 0)
            check(kind in (kinds if exists else [0]), "kind of a tensor")
            check((found_rows, found_cols) == expected, "shape of a tensor")
            check(offset % 16 == 0 and offset >= free and offset + length <= len(weights), "place of a tensor")
            free = offset + length
            reader = LINEAR_READERS[kind, layout] if kind in (1, 3) else READERS[kind]
            return reader(weights[offset:free], rows, cols)

        def linear(rows, cols, exists=True, multiplies=True):
            return tensor([3] if half else [1, 2] if multiplies else [1], rows, cols, exists)

        def norm(exists=True):
            return tensor([5 if half else 4], 1, d, exists)

        def layer(names, heads, d_ff):
            tensors, shapes = {}, {"linear1": (d_ff, d), "linear2": (d, d_ff)}
            for name in names:
                exists = has_cross or names is ENCODER_TENSORS or name not in CROSS_TENSORS
                if "norm" in name:
                    tensors[name] = norm(exists)
                elif "heads" in name:
                    tensors[name] = tensor([6], heads, 2, exists and not half)
                else:
                    tensors[name] = linear(*shapes.get(name, (d, d)), exists)
            return tensors

        tied, learned = output < 2, self.positions == 2
        source_table = linear(source_vocab, d, has_encoder and not shared, False)
        self.target_table = linear(target_vocab, d, has_decoder, tied)
        self.target_look_up = tensor([8], target_vocab, 1, tied and not half)
        self.source_positions = linear(self.max_source, d, learned and has_encoder, False)
        self.target_positions = linear(self.max_target, d, learned and has_decoder, False)
        self.frequencies = tensor([7], d // 2, 2, not learned)
        self.output = linear(target_vocab, d, not tied) or self.target_table
        self.encoder_norm = norm(final_norm and has_encoder)
        self.decoder_norm = norm(final_norm and has_decoder)
        self.source_table = self.target_table if shared else source_table
        self.source_look_up = self.target_look_up if shared else None
        # A layer is its tensors and its formats, by name.
        self.encoder = [(layer(ENCODER_TENSORS, *encoder[1:]), f) for f in f_encoder]
        self.decoder = [(layer(DECODER_TENSORS, *decoder[1:]), f) for f in f_decoder]
        check(next(entries, None) is None, "directory")

        # Section 8.
        source, rest = read_vocabulary(vocabulary, source_vocab)
        self.target_texts, rest = (source, rest) if shared else read_vocabulary(rest, target_vocab)
        check(not rest, "vocabulary")
        # A decoder-only model reads its prompt with the target's symbols.
        read = source if has_encoder else self.target_texts
        self.ids = {text: i for i, text in enumerate(read) if text}

    def symbol_ids(self, text):
        runs = self.target_runs if self.family == 1 else self.source_runs
        symbols = RUN.findall(text) if runs else list(text)
        check(symbols or self.family == 1, "empty")
        if self.fold_case:
            symbols = ["".join(c.lower() for c in symbol) for symbol in symbols]
        check(all(len(symbol.encode()) <= 64 for symbol in symbols), "a symbol that is too long")
        check(self.replace_unknown or all(s in self.ids for s in symbols), "an unknown symbol")
        return [self.ids.get(symbol, self.unknown) for symbol in symbols]

    def framed(self, ids):
        before, after = [[], [self.start], []][self.frame], [[self.end], [self.end], []][self.frame]
        check(len(before + ids + after) <= self.max_source, "too long")
        return before + ids + after

    def text(self, ids):
        texts = (self.target_texts[i] for i in ids)
        return (" " if self.target_runs else "").join(text for text in texts if text)


def read_part(data, at):
    """The bytes after a varint that counts them, and where they end."""
    length = shift = 0
    while data[at] >= 128:
        length |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    start = at + 1
    end = start + (length | data[at] << shift)
    return data[start:end], end


def read_vocabulary(raw, n):
    offsets = struct.unpack_from(f"<{n + 1}I", raw)
    texts = raw[4 * (n + 1) + 2 * n :]
    return [texts[a:b].decode() for a, b in zip(offsets, offsets[1:])], texts[offsets[n] :]


def numbers(fmt, raw):
    check(len(raw) == struct.calcsize("<" + fmt), "length of a tensor")
    return struct.unpack("<" + fmt, raw)


def rows_of(values, cols):
    return [values[i : i + cols] for i in range(0, len(values), cols)]


def row_major_i8(raw, rows, cols):
    n = rows * cols
    values = numbers(f"{n}b{-n % 4}x{2 * rows}i", raw)
    return rows_of(values[:n], cols), values[n : n + rows], values[n + rows :]


def blocks_of_four(block_len, row_of_block, constants_of_block):
    """A reader of blocks of `block_len` bytes, which hold rows of weights, and four biases and multipliers."""

    def read(raw, rows, cols):
        tensor, length = ([], [], []), block_len(cols)
        check(len(raw) == -(-rows // 4) * length, "length of a tensor")
        for row in range(rows):
            block = raw[row // 4 * length :][:length]
            biases, multipliers = constants_of_block(block)
            values = row_of_block(block, row % 4, cols), biases[row % 4], multipliers[row % 4]
            for part, value in zip(tensor, values):
                part.append(value)
        return tensor

    return read


def signed(byte):
    return (byte + 128) % 256 - 128


def paired_row(block, row, cols):
    p, h = divmod(row, 2)
    stored = (block[16 * (c // 4) + 8 * p + 2 * (c % 4) + h] for c in range(cols))
    return [signed(v) if h else v - 128 for v in stored]


def quad_row(block, row, cols):
    return [block[16 * (c // 4) + 4 * (c % 4) + row] - 128 for c in range(cols)]


def nibble_row(block, row, cols):
    weights, groups = [], -(-cols // 16)
    factors = struct.unpack_from(f"<{groups}H", block, 32 * groups)
    for c in range(cols):
        eight, column = divmod(c, 8)
        (word,) = struct.unpack_from("<I", block, 16 * eight + 4 * row)
        v = (word >> (4 * (column // 2) + 16 * (column % 2)) & 15) - 8
        u = factors[c // 16] >> (4 * row) & 15
        check(abs(v) <= 7 and u, "a weight of 4 bits")
        weights.append(u * v)
    return weights


def tile_constants(block):
    return rows_of(struct.unpack("<8i", block[-32:]), 4)


def nibble_constants(block):
    a, m, *numbers = struct.unpack("<6B4h", block[-14:])
    check(a <= 14 and m <= 23, "shifts of 4 bits")
    return [n << a for n in numbers[4:]], [n << m for n in numbers[:4]]


def tiles_len(cols):
    return 16 * -(-cols // 4) + 32


def nibbles_len(cols):
    groups = -(-cols // 16)
    return 32 * groups + 2 * groups + (2 if groups % 2 == 0 else 0) + 14


def row_major_f16(raw, rows, cols):
    n = rows * cols
    values = numbers(f"{n + rows}e", raw)
    # By columns, because sums run over all rows at once.
    return [values[c:n:cols] for c in range(cols)], values[n:]


def sixteen_rows_f16(raw, rows, cols):
    blocks = rows_of(numbers(f"{-(-rows // 16) * 16 * (cols + 1)}e", raw), 16 * (cols + 1))
    columns = ([v for block in blocks for v in block[16 * c :][:16]][:rows] for c in range(cols + 1))
    *weights, bias = columns
    return weights, bias


def read_norm_i32(raw, _, cols):
    epsilon, *values = numbers(f"q{2 * cols}i", raw)
    return epsilon, values[:cols], values[cols:]


READERS = {
    0: lambda raw, *_: numbers("", raw) or None,
    2: blocks_of_four(nibbles_len, nibble_row, nibble_constants),
    4: read_norm_i32,
    5: lambda raw, _, cols: rows_of(numbers(f"{2 * cols}e", raw), cols),
    6: lambda raw, heads, _: rows_of(numbers(f"{2 * heads}i", raw), 2),
    7: lambda raw, pairs, _: rows_of(numbers(f"{2 * pairs}i", raw), 2),
    8: lambda raw, rows, _: numbers(f"{rows}i", raw),
}

# By kind and layout.
LINEAR_READERS = {
    (1, 0): row_major_i8,
    (1, 1): blocks_of_four(tiles_len, paired_row, tile_constants),
    (1, 2): blocks_of_four(tiles_len, quad_row, tile_constants),
    (3, 0): row_major_f16,
    (3, 3): sixteen_rows_f16,
}


# ---- Arithmetic of FixedPoint: section 6.


def rescale(a, m):
    return (a * m + 2**31) >> 32


def sat(values, f):
    low, high = -(1 << (f[1] - 1)), (1 << (f[1] - 1)) - 1
    return [max(low, min(high, v)) for v in values]


EXP2 = [2**30, -1488342683, 1028458883, -457187050, 117371054]


def exp2(z):
    """2^-z in Q15, of z in Q12."""
    k, f = z >> 12, (z & 4095) << 19
    if k > 15:
        return 0
    p = EXP2[4]
    for c in EXP2[3::-1]:
        p = c + rescale(p, f)
    return min(32767, (p + (1 << (14 + k))) >> (15 + k))


def exp2_q20(z):
    """2^-z in Q30, of z in Q20."""
    p, fraction = EXP2[4], (z & (2**20 - 1)) << 11
    for c in EXP2[3::-1]:
        p = c + rescale(p, fraction)
    return p >> (z >> 20)


def reciprocal(d):
    """1 / d in Q30, of d in Q29."""
    r = (2**31 // (d >> 14)) << 14
    return (r * (2**31 - ((d * r) >> 29))) >> 30


def sigmoid(a):
    return reciprocal(2**29 + (exp2_q20(rescale(a << 6, 1549082005)) >> 1))


def tanh_gate(a):
    return sigmoid((a * (107090253 + ((76616651 * (a * a >> 16)) >> 20))) >> 26)


def normal_distribution(a):
    t, s = reciprocal(2**29 + ((a * 248723584) >> 17)), 0
    for c in 569837701, -780155054, 763115691, -152738022, 136810595:
        s = ((s + c) * t) >> 30
    return 2**30 - ((s * exp2_q20(rescale((a * a >> 16) << 6, 774541002))) >> 30)


GATES = {"gelu": (6, normal_distribution), "gelu_tanh": (6, tanh_gate), "silu": (32, sigmoid)}


def gated(x, f, limit, gate):
    a = (abs(x) << 16) >> f
    g = gate(a) if a < limit else 2**30
    return (x * (g if x >= 0 else 2**30 - g) + 2**29) >> 30


def reciprocal_sqrt(v):
    """(y, s): D / sqrt(V) in Q20 is D y / 2^s."""
    z = (64 - v.bit_length()) & ~1
    a = (v << z) >> 32
    y = 2867785095 + ((1759391008 * ((a * a) >> 32)) >> 32) - ((3527614924 * a) >> 32)
    for _ in range(3):
        t = (a * ((y * y) >> 30)) >> 32
        y = (y * (3 * 2**30 - t)) >> 31
    return max(2**30, min(2**31, y)), 42 - z // 2


class Fixed:
    logit = "i"

    def __init__(self, model):
        self.model = model

    def product(self, tensor, x):
        rows, biases, multipliers = tensor
        return [rescale(b + sum(map(mul, row, x)), m) for row, b, m in zip(rows, biases, multipliers)]

    logits = product

    def linear(self, tensor, x, f):
        return sat(self.product(tensor, x), f)

    def activated(self, tensor, x, f):
        if self.model.activation == "relu":
            return [max(0, v) for v in self.linear(tensor, x, f)]
        limit, gate = GATES[self.model.activation]
        return sat((gated(v, f[0], limit << 16, gate) for v in self.product(tensor, x)), f)

    def mean(self, xs):
        n = len(xs)
        return [(2 * sum(column) + n) // (2 * n) for column in zip(*xs)]

    def key_or_value(self, tensor, x):
        return [max(-127, min(127, v)) for v in self.product(tensor, x)]

    def residual(self, tensor, y, x, f_x, f):
        m = 1 << (18 + f[0] - f_x[0])
        return sat((v + rescale(u << 14, m) for v, u in zip(self.product(tensor, y), x)), f)

    def norm(self, tensor, x, f):
        epsilon, gamma, beta = tensor
        d, total = len(x), sum(x)
        y, s = reciprocal_sqrt(d * sum(map(mul, x, x)) - total * total + epsilon)
        n = [((d * v - total) * y + (1 << (s - 1))) >> s for v in x]
        return sat(map(add, map(rescale, n, gamma), beta), f)

    def attend(self, q, keys, values, multipliers, f):
        acc = [sum(map(mul, key, q)) for key in keys]
        u = [exp2(rescale(max(acc) - a, multipliers[0])) for a in acc]
        total = max(32767, sum(u))
        m = ((multipliers[1] << 15) + total // 2) // total
        return sat((rescale(sum(map(mul, u, column)), m) for column in zip(*values)), f)

    def word(self, table, i, multipliers=None):
        m = (multipliers or table[2])[i]
        return [rescale(w << 24, m) for w in table[0][i]]

    def embed(self, table, look_up, i, positions, p, f):
        if positions:
            place = self.word(positions, p)
        else:
            place = [(q + (1 << (29 - f[0]))) >> (30 - f[0]) for q in sinusoid(self.model, p)]
        return sat(map(add, self.word(table, i, look_up), place), f)


def sinusoid(model, position):
    """A position in Q30, turned once for every position before it."""
    turned = lambda q: max(-(2**30), min(2**30, (q + 2**29) >> 30))
    waves = []
    for C, S in model.frequencies:
        s, c = 0, 2**30
        for _ in range(position):
            s, c = turned(s * C + c * S), turned(c * C - s * S)
        waves.append((s, c))
    if model.positions == 1:
        return [s for s, _ in waves] + [c for _, c in waves]
    return [value for pair in waves for value in pair]


# ---- Arithmetic of HalfFloat: section 7. Python computes in f64; a sum, product, quotient or square root of
# f32 numbers in f64, rounded to f32, is what f32 arithmetic gives.


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def rounded(values):
    return array("f", values)


def sum_in_order(values):
    total = 0.0
    for value in values:
        total = f32(total + value)
    return total


LN2_HIGH, LN2_LOW, INV_LN2 = struct.unpack(">3f", bytes.fromhex("3f317200 35bfbe8e 3fb8aa3b"))


def expf(x):
    """The `expf` of the crate libm, which is FreeBSD's."""
    if x < -103.97208:
        return 0.0
    if x >= 88.722839:
        return math.inf
    k, high, low = 0, x, 0.0
    if abs(x) > 0.5 * math.log(2):
        sign = -1 if x < 0 else 1
        k = int(f32(f32(INV_LN2 * x) + 0.5 * sign)) if abs(x) > 1.5 * math.log(2) else sign
        high, low = f32(x - f32(k * LN2_HIGH)), f32(k * LN2_LOW)
        x = f32(high - low)
    elif abs(x) <= 2**-14:
        return f32(1 + x)
    xx = f32(x * x)
    c = f32(x - f32(xx * f32(0xAAAA8F / 2**26 + f32(xx * (-0xB55215 / 2**32)))))
    y = f32(1 + f32(f32(f32(f32(x * c) / f32(2 - c)) - low) + high))
    return f32(math.ldexp(y, k))


def constants(hexes):
    return struct.unpack(f">{len(hexes.split())}f", bytes.fromhex(hexes))


# Numerators and denominators (whose first coefficient is 1) of FreeBSD's erff, by its ranges.
ERF_SMALL = (
    constants("3e0375d4 bea66beb bce9528f bbbd1489 b7c756b1"),
    constants("3f800000 3ecbbbce 3d852a63 3ba68116 390aee49 b684e21a"),
)
ERF_NEAR_ONE = (
    constants("bb1acdc6 3ed46805 bebe9208 3ea2fe54 bde31cc2 3d1151b3 bb0df9c0"),
    constants("3f800000 3dd9f331 3f0a5785 3d931ae7 3e013307 3c5f6e13 3c445aa3"),
)
ERFC_LOW = (
    constants("bc21a093 bf31a0b7 c128f022 c2798057 c322658c c3389ae7 c2a2932b c11d077e"),
    constants("3f800000 419d35ce 4309a863 43d9486f 442158c9 43d6810b 42d9451f 40d23f7c bd777f97"),
)
ERFC_HIGH = (
    constants("bc21a092 bf4c9dd4 c18e104b c320a2ea c41f6441 c480230b c3f1c275"),
    constants("3f800000 41f2b459 43a2e571 44c01759 4547fdbb 451f90ce 43ed43a7 c1b38712"),
)
(ERX,) = constants("3f58560b")
(EFX8,) = constants("3f8375d4")


def ratio(polynomials, s):
    values = []
    for coefficients in polynomials:
        value = coefficients[-1]
        for c in coefficients[-2::-1]:
            value = f32(c + f32(s * value))
        values.append(value)
    return f32(values[0] / values[1])


def erff(x):
    """The `erff` of the crate libm, which is FreeBSD's."""
    a = abs(x)
    if a < 2**-28:
        return f32(0.125 * f32(f32(8 * x) + f32(EFX8 * x)))
    if a < 0.84375:
        return f32(x + f32(x * ratio(ERF_SMALL, f32(x * x))))
    if a >= 6:
        complement = 2**-120
    elif a < 1.25:
        complement = f32(f32(1 - ERX) - ratio(ERF_NEAR_ONE, f32(a - 1)))
    else:
        (bits,) = struct.unpack("<I", struct.pack("<f", a))
        (z,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFFE000))
        r = ratio(ERFC_LOW if bits < 0x4036DB6D else ERFC_HIGH, f32(1 / f32(a * a)))
        first = expf(f32(f32(-z * z) - 0.5625))
        second = expf(f32(f32(f32(z - a) * f32(z + a)) + r))
        complement = f32(f32(first * second) / a)
    return math.copysign(f32(1 - complement), x)


def silu(x):
    return f32(x / f32(1 + expf(-x)))


def gelu(x):
    return f32(f32(0.5 * x) * f32(1 + erff(f32(x * f32(math.sqrt(0.5))))))


def gelu_tanh(x):
    cube = f32(f32(f32(f32(0.044715) * x) * x) * x)
    return f32(x / f32(1 + expf(f32(f32(-1.5957691) * f32(x + cube)))))


FLOAT_ACTIVATIONS = {"relu": lambda x: max(0.0, x), "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}


class Half:
    logit = "f"

    def __init__(self, model):
        self.model = model

    def linear(self, tensor, x, _=None):
        columns, bias = tensor
        sums = [0.0] * len(bias)
        for column, value in zip(columns, x):
            sums = rounded(map(add, sums, rounded(w * value for w in column)))
        return rounded(map(add, sums, bias))

    logits = key_or_value = linear

    def activated(self, tensor, x, _):
        activation = FLOAT_ACTIVATIONS[self.model.activation]
        return rounded(activation(v) for v in self.linear(tensor, x))

    def mean(self, xs):
        return rounded(sum_in_order(column) / len(xs) for column in zip(*xs))

    def residual(self, tensor, y, x, *_):
        return rounded(map(add, x, self.linear(tensor, y)))

    def norm(self, tensor, x, _):
        mean = f32(sum_in_order(x) / len(x))
        x = rounded(v - mean for v in x)
        variance = f32(sum_in_order(rounded(map(mul, x, x))) / len(x))
        scale = f32(1 / f32(math.sqrt(f32(variance + self.model.epsilon))))
        gamma, beta = tensor
        return rounded(map(add, rounded(map(mul, rounded(v * scale for v in x), gamma)), beta))

    def attend(self, q, keys, values, *_):
        dot = lambda a, b: sum_in_order(rounded(map(mul, a, b)))
        scale = f32(1 / f32(math.sqrt(len(q))))
        scores = rounded(dot(key, q) * scale for key in keys)
        u = [expf(f32(score - max(scores))) for score in scores]
        scale = f32(1 / sum_in_order(u))
        return rounded(dot(column, u) * scale for column in zip(*values))

    def embed(self, table, _, i, positions, p, __):
        scale = 1.0 if self.model.plain_embedding else f32(math.sqrt(self.model.d))
        word = rounded(column[i] * scale for column in table[0])
        place = [column[p] for column in positions[0]] if positions else sinusoid_f32(self.model, p)
        return rounded(map(add, word, place))


def sinusoid_f32(model, position):
    return rounded(q / 2**30 for q in sinusoid(model, position))


# ---- The transformer, the same for both: section 5.


class Interpreter:
    def __init__(self, model):
        self.model = model
        self.ops = Half(model) if model.half else Fixed(model)

    def remember(self, tensors, cross, xs, cache):
        """Adds the keys and values of positions to a cache."""
        keys, values = cache
        for x in xs:
            keys.append(self.ops.key_or_value(tensors[cross + "key"], x))
            values.append(self.ops.key_or_value(tensors[cross + "value"], x))

    def attention(self, layer, cross, heads, xs, cache):
        """The contexts of positions: what their heads see in all of a cache."""
        tensors, f = layer
        d_k = self.model.d // heads
        contexts = []
        for x in xs:
            q, context = self.ops.linear(tensors[cross + "query"], x, f[cross + "query"]), []
            for h in range(heads):
                head = slice(h * d_k, (h + 1) * d_k)
                keys, values = ([row[head] for row in rows] for rows in cache)
                multipliers = tensors[cross + "heads"] and tensors[cross + "heads"][h]
                context += self.ops.attend(q[head], keys, values, multipliers, f[cross + "context"])
            contexts.append(context)
        return contexts

    def layer(self, layer, heads, xs, f_x, own, memory=None):
        """One layer on positions `xs` of format `f_x`: the new ones and their format."""
        tensors, f = layer

        def self_attention(xs):
            # All positions are remembered first: an encoder's see each other, and a decoder gives one.
            self.remember(tensors, "", xs, own)
            return self.attention(layer, "", heads, xs, own)

        def cross_attention(xs):
            return self.attention(layer, "cross_", heads, xs, memory)

        def feed_forward(xs):
            return [self.ops.activated(tensors["linear1"], x, f["hidden"]) for x in xs]

        decoder = "cross_query" in tensors
        blocks = [(1, self_attention, "output"), (3 if decoder else 2, feed_forward, "linear2")]
        if memory is not None:
            blocks.insert(1, (2, cross_attention, "cross_output"))
        for n, inner, last in blocks:
            norm, f_norm, f_sum = tensors[f"norm{n}"], f[f"norm{n}"], f[f"sum{n}"]
            ys = inner(xs if self.model.post else self.norm(norm, xs, f_norm))
            xs = [self.ops.residual(tensors[last], y, x, f_x, f_sum) for x, y in zip(xs, ys)]
            xs, f_x = (self.norm(norm, xs, f_norm), f_norm) if self.model.post else (xs, f_sum)
        return xs, f_x

    def norm(self, tensor, xs, f):
        return [self.ops.norm(tensor, x, f) for x in xs]

    def encode(self, ids):
        """`memory` of source ids."""
        m = self.model
        xs, f_x = [
            self.ops.embed(m.source_table, m.source_look_up, i, m.source_positions, p, m.f_source)
            for p, i in enumerate(ids)
        ], m.f_source
        for layer in m.encoder:
            xs, f_x = self.layer(layer, m.encoder_heads, xs, f_x, ([], []))
        return self.norm(m.encoder_norm, xs, m.f_memory) if m.encoder_norm else xs

    def logits(self, x):
        """The logits of what the output reads, which go into the hash."""
        logits = self.ops.logits(self.model.output, x)
        for byte in struct.pack(f"<{len(logits)}{self.ops.logit}", *logits):
            self.hash = (self.hash ^ byte) * 0x100000001B3 % 2**64
        return logits

    def run(self, text):
        """The answer and the hash of all logits."""
        self.hash = 0xCBF29CE484222325
        ids = self.model.symbol_ids(text)
        answer = self.generate(ids) if self.model.family < 2 else self.label(ids)
        return self.model.text(answer), self.hash

    def label(self, ids):
        first = 1 if self.model.frame == 1 else 0
        memory = self.encode(self.model.framed(ids))
        tagger = self.model.family == 2
        xs = memory[first : first + len(ids)] if tagger else [self.ops.mean(memory)]
        return [max(range(len(logits)), key=logits.__getitem__) for logits in map(self.logits, xs)]

    def generate(self, ids):
        m, ops = self.model, self.ops
        prompt, memory = ids, [None for _ in m.decoder]
        if m.family == 0:
            prompt, memory = [], [([], []) for _ in m.decoder]
            xs = self.encode(m.framed(ids))
            for (tensors, _), cache in zip(m.decoder, memory):
                self.remember(tensors, "cross_", xs, cache)
        check(len(prompt) < m.max_target, "too long")
        own = [([], []) for _ in m.decoder]
        produced, last = [], m.start
        for p in range(m.max_target):
            x = ops.embed(m.target_table, m.target_look_up, last, m.target_positions, p, m.f_target)
            xs, f_x = [x], m.f_target
            for layer, *caches in zip(m.decoder, own, memory):
                xs, f_x = self.layer(layer, m.decoder_heads, xs, f_x, *caches)
            if p < len(prompt):
                last = prompt[p]
                continue
            if m.decoder_norm:
                xs = self.norm(m.decoder_norm, xs, m.f_hidden)
            logits = self.logits(xs[0])
            # `max` gives the first of equals.
            last = max((i for i in range(len(logits)) if i not in (m.pad, m.start)), key=logits.__getitem__)
            if last == m.end:
                break
            produced.append(last)
        return produced


def main():
    with open(sys.argv[1], "rb") as file:
        interpreter = Interpreter(Model(file.read()))
    for word in sys.argv[2:]:
        try:
            answer, hash_ = interpreter.run(word)
            print(f"{word}\t{answer}\t{hash_:016x}", flush=True)
        except ValueError as reason:
            print(f"{word}\t! {reason}", flush=True)


if __name__ == "__main__":
    main()
