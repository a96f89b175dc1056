"""models.py: the models of the fixtures, described: configuration, weights.txt, prompt or calls. README.md says how to
add one. What an entry may hold beside config and seed:

prompt, steps   ids of call 0, and how many sampled ids follow one by one
calls, ids      rows of each call, and all ids (0 where they say nothing)
given           taps whose values are the counter's: name, shape, amp, base
part            "qsa" or "ple": forward.py makes that block alone (PART: its taps); the rest is there so that it is a
                model
index_base      base of the indexer's projection
rows            positions whose taps are recorded, one by one; at least one of each call
fused           whether a layer's experts are one tensor; bf16: record a bf16 model too
"""
import math

import numpy as np

import config
import ngram


def amp(inputs, gain=1.0):
    """Of a matrix whose rows turn `inputs` numbers of rms 1 into one of rms `gain`, to the nearest power of two."""
    return round(math.log2(gain * math.sqrt(3 / inputs))) - 23


class Weights:
    """Lines of a weights.txt."""

    def __init__(self, seed):
        self.lines = ["seed %d" % seed]

    def add(self, name, shape, amp_, base=None):
        self.lines.append("%s %s %d%s" % (name, "x".join(map(str, shape)), amp_, "" if base is None else " %r" % base))

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
        # with a base a little above 0 in the mean, so that few blocks score exactly 0
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
PART = {"qsa": ("L00.attn.", "L00.blk"), "ple": ("L00.ple",), None: ("",)}


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
                indexer_n_heads=5, indexer_head_dim=24, indexer_budget=8, indexer_compress_ratio=2,
                ple_layer_ids=[3, 1, 3], ple_embed_dim=36, ple_conv_kernel_size=2, ngram_size=4, heads_per_ngram=3,
                ngram_vocab_size_base=23, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=4)
    prompt = [31, 4, 4, 9, 2, 55, 13, 69, 0, 40, 22, 4, 8, 61, 37, 50, 18, 4, 27, 44, 5, 66]
    return dict(config=conf, seed=1, prompt=prompt, steps=3, fused=False)


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
    return dict(config=conf, part="qsa", seed=41, calls=[2058, 1, 1], rows=rows, index_base=2.0 ** -11,
                given=[("L00.ahc.mix", (2060, 2560), -22, 0.5)])


@fixture
def ple():
    """The n-gram block at the released geometry but for the table's base; ends at the start, in pairs and last."""
    conf = small(hc_count=4, layer_types=["linear_attention", "full_attention"], ple_layer_ids=[1],
                 ple_embed_dim=2560, ple_conv_kernel_size=4, ngram_size=3, heads_per_ngram=8,
                 ngram_vocab_size_base=50, make_ngram_vocab_size_divisible_by=128, split_ngram_parts=2, seed=1234)
    # a layer with attention, since an engine may count positions by its keys alone; as small as it may be
    conf.update(num_hidden_layers=2, num_attention_heads=1, num_key_value_heads=1, indexer_n_heads=1)
    ids = [5, 9, 14, 2, 2, 11, 5, 5, 0, 7, 3, 15, 6, 1, 12, 8, 13, 4, 10, 5, 9, 14, 5]
    # with some seeds a gate's product lies next to 0, where its root magnifies the errors of sums (43: to 1e-5)
    return dict(config=conf, part="ple", seed=44, calls=[20, 1, 2], ids=ids, bf16=True,
                given=[("L00.in", (23, 10240), -22, None)])


# ---- as files ----

def describe(f):
    """-> Config, weights.txt"""
    conf = config.Config(f["config"])
    if "index_base" in f:
        conf.index_base = f["index_base"]
    w = model(conf, f["seed"], f.get("fused", True))
    for name, shape, a, base in f.get("given", []):
        w.add("@" + name, shape, a, base)
    return conf, w.text()


def constants(f):
    """The hash's constants of every layer with n-grams, in the order of the layers."""
    conf, out = describe(f)[0], {}
    for i, l in enumerate(conf.ple):
        h = ngram.Hash(conf, i)
        for what, x in (("layer_multipliers", h.mult), ("ngram_heads_vocab_sizes", h.size),
                        ("ngram_heads_offsets", h.off)):
            out["model.layers.%d.ple.ple_embedding.%s" % (l, what)] = np.array(x, np.int64)
    return out
