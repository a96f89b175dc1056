#!/usr/bin/python3
"""fixtures.py [NAME...]: make tests/golden/oracle-NAME out of the models described here, with forward.py.

A fixture is config.json, weights.txt (counter.py) and golden-{f32,bf16}.safetensors: what each call of the model gave.
A tap is kept as a sketch of five numbers: its L2 norm and four sums with random signs (counter.signs of tensors 1 to 4);
the sum of a difference has the difference's own size, so that nothing hides. Where `rows` is given, a tap's sketch is one
row's. Selections are kept whole. --twins: every wrong choice of forward.WRONG must leave its mark on a fixture."""
import argparse
import json
import math
import os
import sys

import numpy as np

import config
import counter
import forward
import ngram
import st

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
SUMS = 4
# smallest gap, relative, at a choice of experts, blocks or ids: far above what float32 sums may move
GAP = 3e-4


def amp(inputs, gain=1.0):
    """Of a matrix whose rows turn `inputs` numbers of rms 1 into one of rms `gain`, to the nearest power of two."""
    return round(math.log2(gain * math.sqrt(3 / inputs))) - 23


class Weights:
    """Lines of a weights.txt."""

    def __init__(self, seed):
        self.lines = ["seed %d" % seed]

    def add(self, name, shape, amp_, base=None):
        self.lines.append("%s %s %d%s" % (name, "x".join(map(str, shape)), amp_, "" if base is None else " %g" % base))

    def matrix(self, name, rows, cols, gain=1.0):
        self.add(name + ".weight", (rows, cols), amp(cols, gain))

    def norm(self, name, n):
        self.add(name + ".weight", (n,), -24)

    def text(self):
        return "\n".join(self.lines) + "\n"


def layers(which):
    return "model.layers.{%s}." % ",".join(map(str, which))


def hyper(w, name, c, inject=True):
    w.norm(name + "hc_norm", c.W)
    w.matrix(name + "input_mix_weight_down", c.hc_lowrank, c.W, 3)
    w.matrix(name + "input_mix_weight_up", c.W, c.hc_lowrank, 2)
    if inject:
        w.matrix(name + "block_inject_weight", c.N, c.W, 3)


def mixers(w, c):
    d, nk, nv = c.D, c.linear_num_key_heads, c.linear_num_value_heads
    dk, dv, K = c.linear_key_head_dim, c.linear_value_head_dim, c.linear_conv_kernel_dim
    line = [l for l, a in enumerate(c.attends) if not a]
    if line:
        n = layers(line) + "linear_attn."
        cols = 2 * nk * dk + nv * dv
        w.matrix(n + "in_proj_qkv", cols, d, 2)
        w.matrix(n + "in_proj_z", nv * dv, d, 2)
        w.matrix(n + "in_proj_{b,a}", nv, d, 2)
        w.add(n + "conv1d.weight", (cols, 1, K), -23)
        w.add(n + "dt_bias", (nv,), -23, -1)
        w.add(n + "A_log", (nv,), -23)
        w.add(n + "norm.weight", (dv,), -24, 1)
        w.matrix(n + "out_proj", d, nv * dv, 2)
    att = [l for l, a in enumerate(c.attends) if a]
    if att:
        n, H, G, hd = layers(att) + "self_attn.", c.num_attention_heads, c.num_key_value_heads, c.head_dim
        w.matrix(n + "q_proj", 2 * H * hd, d, 2)
        w.matrix(n + "{k,v}_proj", G * hd, d, 2)
        w.matrix(n + "o_proj", d, H * hd, 2)
        w.norm(n + "{q,k}_norm", hd)
    if att and not c.dense:
        ih, i = c.indexer_n_heads, c.indexer_head_dim
        # a little above 0 in the mean, so that few blocks score exactly 0
        w.add(n + "indexer.index_qk_proj.weight", ((ih + 1) * i, d), amp(d, 2), getattr(c, "index_base", None))
        w.norm(n + "indexer.{q,k}_layernorm", i)


def experts(w, c, fused):
    n, d, E = layers(range(c.num_hidden_layers)) + "mlp.", c.D, c.num_experts
    f, s = c.moe_intermediate_size, c.shared_expert_intermediate_size
    w.matrix(n + "gate", E, d, 2)
    if fused:
        w.add(n + "experts.gate_up_proj", (E, 2 * f, d), amp(d, 2))
        w.add(n + "experts.down_proj", (E, d, f), amp(f, 2))
    else:
        w.matrix(n + "experts.{0-%d}.{gate,up}_proj" % (E - 1), f, d, 2)
        w.matrix(n + "experts.{0-%d}.down_proj" % (E - 1), d, f, 2)
    w.matrix(n + "shared_expert.{gate,up}_proj", s, d, 2)
    w.matrix(n + "shared_expert.down_proj", d, s, 2)
    w.matrix(n + "shared_expert_gate", 1, d)


def embedding(w, c):
    for i, l in enumerate(c.ple):
        n, rows = layers([l]) + "ple.", ngram.Hash(c, i).rows
        assert rows % c.split_ngram_parts == 0
        w.add(n + "ple_embedding.ngram_embedding.shard_{0-%d}.weight" % (c.split_ngram_parts - 1),
              (rows // c.split_ngram_parts, c.ple_width // c.P), -23)
        w.matrix(n + "key_proj", c.W, c.ple_width, 2)
        w.matrix(n + "value_proj", c.D, c.ple_width, 2)
        w.norm(n + "norm_{key,query,conv}", c.W)
        w.add(n + "conv1d.weight", (c.W, 1, c.ple_conv_kernel_size), -23)


def dense(w, c, every):
    w.norm(every + "{input,post_attention}_layernorm", c.D)
    w.matrix(every + "mlp.{gate,up}_proj", c.intermediate_size, c.D, 2)
    w.matrix(every + "mlp.down_proj", c.D, c.intermediate_size, 2)
    mixers(w, c)
    w.norm("model.norm", c.D)


def model(c, seed, fused=True):
    w = Weights(seed)
    w.add("model.embed_tokens.weight", (c.vocab_size, c.D), -22)
    every = layers(range(c.num_hidden_layers))
    if c.dense:
        dense(w, c, every)
    else:
        hyper(w, every + "{attn,mlp}_hyper_connection.", c)
        mixers(w, c)
        experts(w, c, fused)
        embedding(w, c)
        hyper(w, "model.hyper_connection_mixer.", c, inject=False)
    if not c.tie_word_embeddings:
        w.matrix("lm_head", c.vocab_size, c.D, 3)
    return w


# ---- the models ----

BASE = {"model_type": "qwen4_exp_text", "architectures": ["Qwen4ExpForCausalLM"], "attention_bias": False,
        "attention_dropout": 0.0, "hidden_act": "silu", "indexer_kv_heads": 1, "max_position_embeddings": 4096,
        "dtype": "float32"}

FIXTURES = {}


def fixture(f):
    FIXTURES[f.__name__] = f
    return f


@fixture
def c():
    """Attention first; as many value heads as key heads, of other widths; silu; no renormalisation; 2 streams."""
    conf = dict(BASE, vocab_size=90, hidden_size=40, num_hidden_layers=4, rms_norm_eps=3e-5, eos_token_id=7,
                tie_word_embeddings=False, num_attention_heads=5, num_key_value_heads=1, head_dim=24,
                layer_types=["full_attention", "linear_attention", "linear_attention", "full_attention"],
                rope_parameters={"rope_theta": 5000.0, "rope_type": "default", "partial_rotary_factor": 0.5,
                                 "mrope_section": [2, 2, 2], "mrope_interleaved": True},
                linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=12, linear_value_head_dim=20,
                linear_conv_kernel_dim=3, output_gate_type="silu", num_experts=10, num_experts_per_tok=4,
                moe_intermediate_size=12, shared_expert_intermediate_size=28, norm_topk_prob=False, hc_count=2,
                hc_lowrank=10, indexer_n_heads=3, indexer_head_dim=20, indexer_budget=9, indexer_compress_ratio=3,
                ple_layer_ids=[2], ple_embed_dim=48, ple_conv_kernel_size=3, ngram_size=2, heads_per_ngram=4,
                ngram_vocab_size_base=31, make_ngram_vocab_size_divisible_by=6, split_ngram_parts=3, seed=99)
    prompt = [7, 12, 45, 88, 3, 3, 61, 7, 7, 29, 54, 0, 89, 17, 33, 72, 41, 5, 66, 20, 81, 38, 7, 59, 14, 70, 26]
    return dict(config=conf, seed=8, prompt=prompt, steps=3, fused=True)


@fixture
def d():
    """All of a head turned; 3 streams, 4-grams in two layers, a list of ends, tied ids, one tensor an expert."""
    conf = dict(BASE, vocab_size=70, hidden_size=36, num_hidden_layers=4, rms_norm_eps=1e-6, eos_token_id=[4, 2],
                tie_word_embeddings=True, num_attention_heads=6, num_key_value_heads=3, head_dim=16,
                full_attention_interval=2, rope_parameters={"rope_theta": 1000000.0, "rope_type": "default",
                                                            "mrope_section": [3, 3, 2], "mrope_interleaved": True},
                linear_num_key_heads=2, linear_num_value_heads=8, linear_key_head_dim=20, linear_value_head_dim=8,
                linear_conv_kernel_dim=5, output_gate_type="sigmoid", num_experts=7, num_experts_per_tok=2,
                moe_intermediate_size=20, shared_expert_intermediate_size=8, hc_count=3, hc_lowrank=7,
                indexer_n_heads=2, indexer_head_dim=24, indexer_budget=8, indexer_compress_ratio=2,
                ple_layer_ids=[3, 1, 3], ple_embed_dim=36, ple_conv_kernel_size=2, ngram_size=4, heads_per_ngram=3,
                ngram_vocab_size_base=23, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=4)
    prompt = [31, 4, 4, 9, 2, 55, 13, 69, 0, 40, 22, 4, 8, 61, 37, 50, 18, 4, 27, 44, 5, 66]
    return dict(config=conf, seed=7, prompt=prompt, steps=3, fused=False)


@fixture
def e():
    """The dense hybrid: attention first and in a row, 5 value heads a key head, a part of a head turned by default."""
    conf = dict(BASE, model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], vocab_size=60, hidden_size=44,
                num_hidden_layers=4, rms_norm_eps=1e-5, eos_token_id=0, tie_word_embeddings=True,
                num_attention_heads=3, num_key_value_heads=1, head_dim=40, intermediate_size=52,
                layer_types=["full_attention", "full_attention", "linear_attention", "linear_attention"],
                rope_parameters={"rope_theta": 20000.0, "rope_type": "default", "mrope_section": [2, 2, 1],
                                 "mrope_interleaved": True},
                linear_num_key_heads=2, linear_num_value_heads=10, linear_key_head_dim=28, linear_value_head_dim=12,
                linear_conv_kernel_dim=6)
    del conf["indexer_kv_heads"]
    prompt = [3, 17, 42, 42, 8, 0, 55, 29, 31, 12, 6, 48, 23, 59, 1, 37, 20, 14, 51, 9]
    return dict(config=conf, seed=5, prompt=prompt, steps=3)


def small(**keys):
    """One layer at the released width; what is around the part in question is as small as it may be."""
    return dict(BASE, vocab_size=16, num_hidden_layers=1, hidden_size=2560, rms_norm_eps=1e-6, eos_token_id=5,
                tie_word_embeddings=False, hc_lowrank=1, num_experts=1, num_experts_per_tok=1,
                moe_intermediate_size=1, shared_expert_intermediate_size=1, output_gate_type="sigmoid",
                linear_num_key_heads=1, linear_num_value_heads=1, linear_key_head_dim=2, linear_value_head_dim=2,
                linear_conv_kernel_dim=2, head_dim=256, num_attention_heads=24, num_key_value_heads=2,
                indexer_n_heads=4, indexer_head_dim=128, indexer_budget=2048, indexer_compress_ratio=4,
                rope_parameters={"rope_theta": 10000000.0, "rope_type": "default", "partial_rotary_factor": 0.25,
                                 "mrope_section": [11, 11, 10], "mrope_interleaved": True}, **keys)


@fixture
def qsa():
    """One sparse layer at the released geometry, 2060 positions, the last two as calls of their own."""
    return sparse(num_attention_heads=24)


@fixture
def qsa2():
    """The same with 2 of the 24 query heads, a tenth of the work: indexer, blocks, keys and widths are the released."""
    return sparse(num_attention_heads=2)


def sparse(**keys):
    conf = dict(small(hc_count=2, layer_types=["full_attention"]), **keys)
    rows = [0, 1, 3, 4, 127, 1000, 1999, 2047, 2050, 2051, 2052, 2055, 2056, 2057, 2058, 2059]
    return dict(config=conf, part="qsa", seed=41, calls=[2058, 1, 1], rows=rows, index_base=2.0 ** -10,
                given=[("L00.ahc.mix", (2060, 2560), -22, 0.5)])


@fixture
def ple():
    """The n-gram block at the released geometry but for the table's base; ends at the start, in pairs and last."""
    conf = small(hc_count=4, layer_types=["linear_attention"], ple_layer_ids=[1], ple_embed_dim=2560,
                 ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=8, ngram_vocab_size_base=50,
                 make_ngram_vocab_size_divisible_by=128, split_ngram_parts=2, seed=1234)
    ids = [5, 9, 14, 2, 2, 11, 5, 5, 0, 7, 3, 15, 6, 1, 12, 8, 13, 4, 10, 5, 9, 14, 5]
    return dict(config=conf, part="ple", seed=43, calls=[20, 1, 2], ids=ids, given=[("L00.in", (23, 10240), -22, None)], bf16=True)


# ---- making one ----

def describe(f):
    """-> Config, weights.txt"""
    conf = config.Config(f["config"])
    if "index_base" in f:
        conf.index_base = f["index_base"]
    w = model(conf, f["seed"], f.get("fused", True))
    for name, shape, a, base in f.get("given", []):
        w.add("@" + name, shape, a, base)
    return conf, w.text()


def part(m, f, given, ids):
    """One call of what the fixture is about: the whole model, or a block of it on what it is given."""
    p0, m.taps, m.ids = m.pos, {}, ids
    if not given:
        m.forward(ids)
        return range(len(ids))
    (name, x), = given.items()
    x = x[p0:p0 + len(ids)]
    rows = [r - p0 for r in f.get("rows", []) if p0 <= r < p0 + len(ids)]
    if name.endswith("ahc.mix"):
        out = m.attend(x, "L00.", "model.layers.0.self_attn", rows)
        m.tap("L00.blk", m.mm(out, "model.layers.0.self_attn.o_proj"))
        for tap in ("k", "v", "kn"):
            m.taps["L00.attn." + tap] = m.taps["L00.attn." + tap].reshape(len(ids), -1)[rows]
    else:
        m.ple(x, 0, "model.layers.0.ple")
    m.pos += len(ids)
    return rows


def sums(x, sign={}):
    x = np.ravel(x).astype(np.float64)
    for k in range(SUMS):
        if k not in sign or len(sign[k]) < len(x):
            sign[k] = counter.signs(k + 1, max(len(x), 1 << 16))
    return [math.sqrt((x * x).sum())] + [(x * sign[k][:len(x)]).sum() for k in range(SUMS)]


SELECTIONS = ("moe.ids", "attn.blocks", "attn.sel", "ple.ids")


class Record:
    """What the calls of one run gave, in the form that is stored."""

    def __init__(self, c):
        self.c, self.names, self.sketch, self.logits = c, None, [], []
        self.kind = []  # of each sketch: first, later, few
        self.experts, self.dropped, self.rows, self.gap = [], [], [], math.inf

    def near(self, top, next_, size):
        self.gap = min(self.gap, (top - next_) / size if size > 0 else 0.0)

    def call(self, m, p0, n, by_row):
        # a dense layer's input is the output before it, and no node of its own
        floats = [t for t in m.taps if not t.endswith(SELECTIONS + ((".in",) if self.c.dense else ()))]
        assert self.names in (None, floats)
        self.names = floats
        for tap in floats:
            x = m.taps[tap].reshape(n if not by_row else by_row, -1)
            x = x if by_row else x.reshape(1, -1)
            self.sketch += [sums(r) for r in x]
            self.kind += ["few" if x.shape[1] < 16 else "later" if p0 else "first"] * len(x)
        for tap, x in m.taps.items():
            layer = int(tap[1:3]) if tap[0] == "L" else -1
            if tap.endswith("moe.ids"):
                self.experts.append(x)
                logits = m.taps[tap.replace("ids", "logits")].astype(np.float64)
                top = -np.sort(-logits, -1)[:, :self.c.num_experts_per_tok + 1]
                self.near(-np.diff(top, axis=-1).max() if top.shape[1] > 1 else math.inf, 0, np.abs(logits).max())
            elif tap.endswith("attn.blocks"):
                self.drop(x, layer, p0)
                for lo, hi in m.cut.values():
                    self.near(lo, hi, lo)
            elif tap.endswith("ple.ids"):
                self.rows.append(x)
        if "logits" in m.taps:
            z = m.taps["logits"][-1]
            top = np.sort(z.astype(np.float64))
            self.near(top[-1], top[-2], np.abs(top).max())
            self.logits.append(z)

    def drop(self, blocks, layer, p0):
        """Blocks that a position sees none of although they are whole: (layer, position, block)."""
        for t, row in enumerate(blocks):
            for b in sorted(set(range((p0 + t + 1) // self.c.indexer_compress_ratio)) - set(row.tolist())):
                self.dropped.append((layer, p0 + t, b))

    def tensors(self):
        out = {"sketch": np.array(self.sketch, np.float32)}
        if self.logits:
            out["logits"] = np.array(self.logits, np.float32)
        if self.experts:  # by call and layer
            out["experts"] = np.concatenate([x.ravel() for x in self.experts]).astype(np.uint16)
        if self.dropped:
            out["dropped"] = np.array(self.dropped, np.uint16)
        if self.rows:
            out["rows"] = np.concatenate([x.ravel() for x in self.rows]).astype(np.int32)
        return out


def make(f, bf16=False, wrong=None, noise=None):
    """-> Record, metadata"""
    conf, text = describe(f)
    wanted = {"qsa": "self_attn", "ple": "ple.", None: ""}[f.get("part")]
    w = counter.tensors(text, lambda name: name[0] == "@" or wanted in name)
    given = {n[1:]: w.pop(n) for n in list(w) if n[0] == "@"}
    m = forward.Model(conf, w, bf16=bf16, wrong=wrong, noise=noise)
    record, ids, calls, greedy = Record(conf), [], [], []
    total = f.get("calls") or [len(f["prompt"])] + [1] * f["steps"]
    for n in total:
        p0 = m.pos
        if "prompt" in f:
            now = greedy[-1:] if ids else f["prompt"]
        else:
            now = (f.get("ids") or [0] * sum(total))[p0:p0 + n]
        rows = part(m, f, given, now)
        record.call(m, p0, n, len(rows) if "rows" in f else 0)
        ids, calls = ids + list(now), calls + [n]
        if record.logits:
            greedy.append(int(np.argmax(record.logits[-1])))
    meta = {"calls": calls, "taps": record.names, "rows": f.get("rows", []), "sampled": greedy,
            "ids": ids if any(ids) else []}
    return record, {k: " ".join(map(str, v)) for k, v in meta.items()}


def constants(f):
    """The hash's constants of every layer with n-grams, in the order of the layers."""
    conf, out = describe(f)[0], {}
    for i, l in enumerate(conf.ple):
        h = ngram.Hash(conf, i)
        for what, x in (("layer_multipliers", h.mult), ("ngram_heads_vocab_sizes", h.size),
                        ("ngram_heads_offsets", h.off)):
            out["model.layers.%d.ple.ple_embedding.%s" % (l, what)] = np.array(x, np.int64)
    return out


def save(name, f, folder):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as o:
        json.dump(f["config"], o, indent=1)
        o.write("\n")
    with open(os.path.join(folder, "weights.txt"), "w") as o:
        o.write(describe(f)[1])
    for bf16 in (False, True) if f.get("bf16") else (False,):
        record, meta = make(f, bf16)
        path = os.path.join(folder, "golden-%s.safetensors" % ("bf16" if bf16 else "f32"))
        tensors = record.tensors()
        if not bf16:
            tensors.update(constants(f))
        st.write(path, tensors, meta)
        print("%-4s %s: %d sketches of %d taps, smallest gap %.1e, %d blocks dropped, greedy %s" % (
            "ok" if bf16 or record.gap >= GAP else "BAD", path, len(record.sketch), len(record.names), record.gap,
            len(record.dropped), meta["sampled"]))


def checkpoint(f, folder):
    """The model as a checkpoint for any engine, bf16 weights."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as o:
        json.dump(dict(f["config"], dtype="bfloat16"), o, indent=1)
    w = {n: x for n, x in counter.tensors(describe(f)[1]).items() if n[0] != "@"}
    st.write(os.path.join(folder, "model.safetensors"), {**w, **constants(f)}, {"format": "pt"}, bf16=set(w))


def distance(a, b):
    """-> the largest difference of the sketches' numbers relative to their norms, of each kind; equal selections"""
    x, y, out = np.array(a.sketch), np.array(b.sketch), {}
    d = np.abs(x - y).max(1) / np.maximum(y[:, 0], 1e-30)
    for kind in ("first", "later", "few"):
        here = np.array(b.kind) == kind
        out[kind] = float(d[here].max()) if here.any() else 0.0
    a, b = a.tensors(), b.tensors()
    return out, all(np.array_equal(a.get(k), b.get(k)) for k in ("experts", "dropped", "rows"))


def figures(f, name):
    """What the noise of float32 sums does to the sketches: the largest of five tries. The bounds in tests/t_oracle.c
    are at least three times as far."""
    for bf16 in (False, True) if f.get("bf16") else (False,):
        sound, worst, same = make(f, bf16)[0], {}, True
        for seed in range(5):
            d, equal = distance(make(f, bf16, noise=np.random.default_rng(seed))[0], sound)
            worst = {k: max(v, worst.get(k, 0)) for k, v in d.items()}
            same &= equal
        print("%-5s %s" % (name, "bf16" if bf16 else "f32 "), "".join("%s %.1e  " % i for i in worst.items()),
              "selections equal" if same else "selections differ")


def twins(f, name):
    """-> the wrong choices that leave a mark: ten times the loosest bound of tests/t_oracle.c, or another selection"""
    sound, seen = make(f)[0], []
    for wrong in forward.WRONG:
        d, equal = distance(make(f, wrong=wrong)[0], sound)
        if not equal or max(d["first"], d["later"]) > 1e-3:
            seen.append(wrong)
    print("%-5s shows %s" % (name, ", ".join(seen)))
    return seen


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("name", nargs="*", default=list(FIXTURES))
    a.add_argument("--twins", action="store_true", help="which wrong choices of forward.WRONG leave a mark where")
    a.add_argument("--figures", action="store_true", help="what the noise of float32 sums does")
    a.add_argument("--seeds", type=int, default=0, help="print the first seed of so many that leaves no near tie")
    a.add_argument("--checkpoint", metavar="DIR", help="write DIR/NAME, a folder for another engine (hf.py)")
    a.add_argument("--out", default=HOME, help="folder for the fixtures' folders")
    a = a.parse_args()
    seen = set()
    for name in a.name:
        f = FIXTURES[name]()
        if a.seeds:
            good = (s for s in range(1, a.seeds + 1) if make(dict(f, seed=s))[0].gap >= GAP)
            print(name, "seed", next(good, None))
        elif a.checkpoint:
            checkpoint(f, os.path.join(a.checkpoint, name))
        elif a.figures:
            figures(f, name)
        elif a.twins:
            seen |= set(twins(f, name))
        else:
            save(name, f, os.path.join(a.out, "oracle-" + name))
    missed = set(forward.WRONG) - seen if a.twins and a.name == list(FIXTURES) else set()
    if missed:
        sys.exit("not seen: " + ", ".join(sorted(missed)))


if __name__ == "__main__":
    main()
