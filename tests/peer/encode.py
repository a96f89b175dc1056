#!/usr/bin/env python3
"""encode.py: our encoders beside llama.cpp's. Not part of `make check`: tests/peer/convert.sh calls it.

  encode.py rows                 what tests/t_encode.c encodes, from the same generator: a checksum a case
  encode.py table REFERENCE.py   tests/vec/encode_peer.txt: RMSE of llama.cpp's encoder and of REFERENCE.quantize
  encode.py demo HFDIR           tests/vec/encode_demo.bf16.bin: eight rows of a trained model
  encode.py compare LIB.so [HFDIR]
                                 our encoders (a shared object of lib/encode*.c and kernels/quant.c) against them: blocks
                                 decoded by llama.cpp's own decoder and by ours must have equal bits; RMSE of both, printed
  encode.py decode LIB.so GGUF   every tensor of a file through both decoders: equal bits

LLAMA_LIB: folder with llama.cpp's libggml-base.so (table, compare, decode). Needs numpy.
"""
import ctypes as C
import importlib.util
import json
import os
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"F16": 1, "BF16": 30, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "IQ4_NL": 20, "Q4_K": 12,
         "Q5_K": 13, "Q6_K": 14, "IQ1_S": 19, "IQ2_XXS": 16}
CASES = ["gauss", "laplace", "sparse", "outlier", "constant", "positive", "zero", "huge", "tiny", "demo"]
ROWS, COLS = 4, 512


# ---- rows, as tests/t_encode.c makes them ----
class Rand:
    def __init__(self, seed):
        self.s = seed

    def u64(self):
        m = (1 << 64) - 1
        self.s = (self.s + 0x9E3779B97F4A7C15) & m
        z = self.s
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & m
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & m
        return z ^ z >> 31

    def gauss(self):
        return np.float32(sum(((self.u64() >> 40) - (1 << 23)) * 2.0**-23 for _ in range(12)) * 0.5)


def value(case, r, row):
    f = np.float32
    if case == "zero":
        return f(0)
    if case == "constant":
        return row
    g = r.gauss()
    if case == "laplace":
        return (g * r.gauss() + r.gauss() * r.gauss()) * f(0.02)
    if case == "sparse":
        return g if r.u64() >> 60 == 0 else f(0)
    if case == "outlier":
        return g * f(30) if r.u64() >> 57 == 0 else g
    if case == "positive":
        return abs(g) + f(1)
    return g * f({"gauss": 0.02, "huge": 1e4, "tiny": 1e-5}[case])


def rows(case):
    if case == "demo":
        b = np.fromfile(os.path.join(HERE, "../vec/encode_demo.bf16.bin"), "<u2")
        return (b.astype("<u4") << 16).view("<f4").reshape(-1, 256)
    r, out = Rand(1000 + CASES.index(case)), np.zeros((ROWS, COLS), "<f4")
    for i in range(ROWS):
        row = r.gauss() if case == "constant" else None
        for j in range(COLS):
            out[i, j] = value(case, r, row)
    return out


# ---- the two sides ----
def address(a):
    return a.ctypes.data


class Theirs:
    """libggml-base: encoder with a flat importance and, where it can, without; decoder from its table of types."""

    class Traits(C.Structure):
        _fields_ = [("name", C.c_char_p), ("elems", C.c_int64), ("interleave", C.c_int64), ("bytes", C.c_size_t),
                    ("quantized", C.c_bool), ("to_float", C.c_void_p), ("from_float", C.c_void_p)]

    def __init__(self):
        self.g = g = C.CDLL(os.path.join(os.environ["LLAMA_LIB"], "libggml-base.so"))
        g.ggml_quantize_chunk.restype = C.c_size_t
        g.ggml_quantize_chunk.argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64, C.c_int64, C.c_int64, C.c_void_p]
        g.ggml_get_type_traits.restype = C.POINTER(self.Traits)
        g.ggml_get_type_traits.argtypes = [C.c_int]

    def row_bytes(self, t, cols):
        d = self.g.ggml_get_type_traits(t).contents
        return cols // d.elems * d.bytes

    def encode(self, t, x, importance):
        out = np.zeros(x.shape[0] * self.row_bytes(t, x.shape[1]), "u1")
        self.g.ggml_quantize_chunk(t, address(x), address(out), 0, x.shape[0], x.shape[1],
                                   None if importance is None else address(importance))
        return out

    def decode(self, t, b, n):
        y = np.empty(n, "<f4")
        if t == 0:
            return b.view("<f4")[:n].copy()
        C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)(self.g.ggml_get_type_traits(t).contents.to_float)(
            address(b), address(y), n)
        return y

    def rmse(self, name, x):
        """The better of its two ways."""
        t, ones, found = TYPES[name], np.ones(x.shape[1], "<f4"), []
        for importance in [ones] if name in ("IQ1_S", "IQ2_XXS") else [ones, None]:
            found.append(rmse(x, self.decode(t, self.encode(t, x, importance), x.size)))
        return min(found)


class Ours:
    class Opts(C.Structure):
        _fields_ = [("importance", C.c_void_p), ("first_row", C.c_int64), ("nth", C.c_int)]

    def __init__(self, so):
        self.so = s = C.CDLL(os.path.abspath(so))
        s.q4x_encode.argtypes = [C.c_int32, C.c_void_p, C.c_int64, C.c_int64, C.c_void_p, C.c_void_p, C.c_void_p]
        s.k_decode_row.argtypes = [C.c_int32, C.c_void_p, C.c_void_p, C.c_int64]

    def encode(self, t, x, row_bytes):
        out, err = np.zeros(x.shape[0] * row_bytes, "u1"), C.create_string_buffer(1024)
        rc = self.so.q4x_encode(t, address(x), x.shape[0], x.shape[1], C.byref(self.Opts(None, 0, 2)), address(out),
                                err)
        if rc:
            raise SystemExit("q4x_encode: rc %d: %s" % (rc, err.raw[4:484].split(b"\0")[0].decode()))
        return out

    def decode(self, t, b, n):
        y = np.empty(n, "<f4")
        self.so.k_decode_row(t, address(b), address(y), n)
        return y


def rmse(x, y):
    d = x.astype("f8").ravel() - y.astype("f8").ravel()
    return float(np.sqrt(np.mean(d * d)))


def same_bits(a, b):
    return np.array_equal(a.view("<u4"), b.view("<u4"))


# ---- files ----
def checkpoint(folder):
    """BF16 matrices of a checkpoint: (name, f32 [rows, cols])."""
    for f in sorted(os.listdir(folder)):
        if not f.startswith("model") or not f.endswith(".safetensors"):
            continue
        data = np.memmap(os.path.join(folder, f), "u1", "r")
        n, = struct.unpack("<Q", bytes(data[:8]))
        for name, t in json.loads(bytes(data[8:8 + n])).items():
            if name == "__metadata__" or t["dtype"] != "BF16" or len(t["shape"]) != 2:
                continue
            a, b = t["data_offsets"]
            bits = np.frombuffer(bytes(data[8 + n + a:8 + n + b]), "<u2")
            yield name, (bits.astype("<u4") << 16).view("<f4").reshape(t["shape"])


def gguf_tensors(path):
    """(name, type, elements, bytes as an array) of a file that is known to be good."""
    size = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    f = open(path, "rb")

    def u(fmt):
        return struct.unpack("<" + fmt, f.read(struct.calcsize("<" + fmt)))

    def text():
        return f.read(u("Q")[0]).decode()

    def skip(t):
        if t == 8:
            text()
        elif t == 9:
            e, n = u("IQ")
            if e == 8:
                for _ in range(n):
                    text()
            else:
                f.seek(n * size[e], 1)
        else:
            f.seek(size[t], 1)

    _, _, nt, nkv = u("IIQQ")
    for _ in range(nkv):
        text()
        skip(u("I")[0])
    out = []
    for _ in range(nt):
        name = text()
        ne = u("%dQ" % u("I")[0])
        t, off = u("iQ")
        out.append((name, t, int(np.prod(ne)), off))
    start = (f.tell() + 31) // 32 * 32
    data = np.memmap(path, "u1", "r")
    for name, t, n, off in out:
        yield name, t, n, data[start + off:]


# ---- commands ----
def table(reference):
    spec = importlib.util.spec_from_file_location("reference", reference)
    ref = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ref)
    theirs = Theirs()
    print("# RMSE of other encoders on the rows of tests/t_encode.c, made by tests/peer/encode.py:")
    print("# type, case, llama.cpp's (the better of flat importance and none), the format's simple encoders")
    for name in TYPES:
        for case in CASES:
            x = rows(case)
            y = np.array(ref.dequant(name, ref.quantize(name, [float(v) for v in x.ravel()])), "f8")
            print("%s %s %.9g %.9g" % (name, case, theirs.rmse(name, x), rmse(x, y)), flush=True)


def demo(folder):
    want = ["layers.0.linear_attn.in_proj_qkv", "layers.1.ple.key_proj", "layers.2.mlp.experts.3.gate_proj",
            "layers.3.self_attn.q_proj", "layers.4.mlp.experts.9.up_proj", "layers.5.linear_attn.in_proj_z",
            "layers.7.self_attn.v_proj", "lm_head"]
    found = dict(checkpoint(folder))
    picked = [next(v for k, v in found.items() if w in k)[5 * i, :256] for i, w in enumerate(want)]
    (np.stack(picked).view("<u4") >> 16).astype("<u2").tofile(os.path.join(HERE, "../vec/encode_demo.bf16.bin"))


def compare(so, folder=None):
    ours, theirs, worst, differ = Ours(so), Theirs(), {}, 0
    sets = [(c, rows(c)) for c in CASES]
    if folder:
        some = [(k, v) for k, v in checkpoint(folder) if v.shape[1] % 256 == 0 and v.shape[0] >= 8]
        sets += [(k, np.ascontiguousarray(v[:16])) for k, v in some[::max(1, len(some) // 24)]]
    print("%-8s %-44s %12s %12s %7s" % ("type", "rows", "ours", "llama.cpp", "ratio"))
    for name, t in TYPES.items():
        for case, x in sets:
            b = ours.encode(t, x, theirs.row_bytes(t, x.shape[1]))
            y = ours.decode(t, b, x.size)
            differ += not same_bits(y, theirs.decode(t, b, x.size))
            a, c = rmse(x, y), theirs.rmse(name, x)
            ratio = a / c if c else 1.0 if a == 0 else float("inf")
            worst[name] = max(worst.get(name, 0), ratio)
            print("%-8s %-44s %12.6g %12.6g %7.3f" % (name, case[-44:], a, c, ratio))
    print("worst ratio: " + ", ".join("%s %.3f" % kv for kv in worst.items()))
    print("blocks that the two decoders read differently: %d" % differ)
    return differ or max(worst.values()) > 1.5


def decode(so, path):
    ours, theirs, differ, count = Ours(so), Theirs(), 0, 0
    for name, t, n, data in gguf_tensors(path):
        b = np.ascontiguousarray(data[:theirs.row_bytes(t, n)])
        if not same_bits(ours.decode(t, b, n), theirs.decode(t, b, n)):
            print("differs: " + name)
            differ += 1
        count += n
    print("%s: %d values, tensors that differ: %d" % (os.path.basename(path), count, differ))
    return differ


def main(a):
    if a[:1] == ["rows"]:
        for case in CASES:
            print(case, "%.17g" % rows(case).astype("f8").sum())
        return 0
    todo = {"table": table, "demo": demo, "compare": compare, "decode": decode}.get(a[0] if a else "")
    if not todo:
        print(__doc__)
        return 2
    return 1 if todo(*a[1:]) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
