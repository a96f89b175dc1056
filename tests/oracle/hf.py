#!/usr/bin/env python3
"""hf.py OUT [NAME...]: the fixtures' models through Hugging Face transformers (5.17 is what the recorded outputs were
made with), with taps. Writes OUT/NAME/{config.json,weights.txt,golden-f32.safetensors}, a folder that against.py
compares with forward.py: `against.py OUT/NAME`. Of a model of which a fixture is about one block, that block's taps;
of the rows that the fixture records, where it says so. What a tap was given in place of the model's own is not kept.

--bf16: a bf16 model too, its rope frequencies in float32, but of a block whose record has none. Needs torch,
transformers and numpy; nothing is fetched. Values are taken by hooks on the modules that the specification names
(2 to 7); a tap whose module is not there is named on stderr and left out. A model that fails does not stop the next."""
import argparse
import json
import os
import sys
import tempfile
import time
import traceback

import numpy as np
import torch

import counter
import fixtures
import models
import st

# module below the layer: what goes in, what comes out (a tuple's parts in their order); None: not kept
LAYER = {
    "": ("in", "out"),
    "attn_hyper_connection": (None, "ahc.mix", None, "ahc.inj"),
    "mlp_hyper_connection": ("s.attn", "mhc.mix", None, "mhc.inj"),
    "input_layernorm": (None, "norm.attn"), "post_attention_layernorm": ("s.attn", "norm.mlp"),
    "linear_attn": (None, "blk"), "self_attn": (None, "blk"),
    "linear_attn.in_proj_qkv": (None, "gdn.qkv"), "linear_attn.in_proj_z": (None, "gdn.z"),
    "linear_attn.in_proj_b": (None, "gdn.b"), "linear_attn.in_proj_a": (None, "gdn.a"),
    "linear_attn.norm": ("gdn.core",), "linear_attn.out_proj": ("gdn.norm",),
    "self_attn.q_proj": (None, "attn.qg"), "self_attn.k_proj": (None, "attn.k"), "self_attn.v_proj": (None, "attn.v"),
    "self_attn.q_norm": (None, "attn.qn"), "self_attn.k_norm": (None, "attn.kn"), "self_attn.o_proj": ("attn.gated",),
    "self_attn.indexer": (None, "attn.sel"),
    "mlp.gate": (None, "moe.logits", "moe.weights", "moe.ids"),
    "mlp.experts": (None, "moe.routed"), "mlp.shared_expert": (None, "moe.shared"),
    "mlp.shared_expert_gate": (None, "moe.sgate"), "mlp": (None, "moe"),
    "ple": (None, "ple"), "ple.ple_embedding": (None, "ple.emb"),
    "ple.norm_key": (None, "ple.key"), "ple.value_proj": (None, "ple.val"),
}
WHOLE = {"model.embed_tokens": (None, "emb"), "model.hyper_connection_mixer": (None, "out"),
         "model.norm": (None, "out"), "lm_head": (None, "logits")}


def first(x):
    return x[0] if isinstance(x, (tuple, list)) else x


def given_in(args, kwargs):
    """The hidden states among a module's arguments."""
    return args[0] if args else kwargs.get("hidden_states", next(iter(kwargs.values())))


class Taps:
    def __init__(self, model, c, only, rows, given):
        """only: beginnings of the taps that are kept; rows: positions of which, all where there are none."""
        self.only, self.rows, self.given, self.now, self.pos = only, rows, given, {}, 0
        modules, wanted = dict(model.named_modules()), dict(WHOLE)
        for l in range(c.num_hidden_layers):
            for name, taps in LAYER.items():
                taps = tuple("mlp" if c.dense and t == "moe" else t for t in taps)
                path = ("model.layers.%d.%s" % (l, name)).rstrip(".")
                wanted[path] = tuple(t and "L%02d.%s" % (l, t) for t in taps)
        for path, taps in wanted.items():
            if path in modules:
                modules[path].register_forward_pre_hook(self.before(taps), with_kwargs=True)
                modules[path].register_forward_hook(self.after(taps))
        kinds = {p.split(".", 3)[-1] for p in modules if p.startswith("model.layers.")}
        for name in LAYER:
            if name and name not in kinds:
                print("hf.py: no module %s" % name, file=sys.stderr)

    def keep(self, tap, x):
        if tap is None or tap in self.given or not tap.startswith(self.only) or not torch.is_tensor(x):
            return
        if tap.endswith("attn.sel"):  # what a score gets added, 0 where it is seen: whole, in bytes
            x = x != 0
            self.now[tap] = x.cpu().numpy().astype(np.uint8)
            return
        if self.rows:
            x = x[:, [r - self.pos for r in self.rows if self.pos <= r < self.pos + x.shape[1]]]
        x = x.detach()
        self.now[tap] = (x.float() if x.is_floating_point() else x.int()).cpu().numpy()

    def replaced(self, tap, x):
        """What the fixture gives in place of x, rows by position; None: nothing."""
        if tap not in self.given:
            return None
        rows = self.given[tap][self.pos:self.pos + x.shape[1]]
        return torch.from_numpy(rows.copy()).reshape(x.shape).to(x.dtype)

    def before(self, taps):
        def hook(module, args, kwargs):
            if taps[0] is None:
                return None
            new = self.replaced(taps[0], given_in(args, kwargs))
            if new is not None:
                args, kwargs = ((new,) + args[1:], kwargs) if args else ((), dict(kwargs, hidden_states=new))
            self.keep(taps[0], given_in(args, kwargs))
            return args, kwargs
        return hook

    def after(self, taps):
        def hook(module, args, out):
            new = self.replaced(taps[1], first(out)) if len(taps) > 1 else None
            if new is not None:
                out = (new,) + tuple(out[1:]) if isinstance(out, (tuple, list)) else new
            for tap, x in zip(taps[1:], out if isinstance(out, (tuple, list)) else (out,)):
                self.keep(tap, x)
            return None if new is None else out
        return hook


def load(folder, dtype):
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                                 experts_implementation="eager")
    for name, x in model.named_buffers():
        if "inv_freq" in name:
            bits = x.float().numpy().view(np.uint32) & 0xFFFF
            assert x.dtype == torch.float32 and bits.any(), name + ": rope frequencies are not float32"
    return model.eval()


def run(model, f):
    """-> tensors by fN/TAP, metadata"""
    c, text = models.describe(f)
    given = {n[1:]: x for n, x in counter.tensors(text, lambda n: n[0] == "@").items()}
    taps = Taps(model, c, models.PART[f.get("part")], f.get("rows", []), given)
    past, out, calls, ids = None, {}, [], []
    total = f.get("calls") or [len(f["prompt"])] + [1] * f["steps"]
    greedy, fixed = [], f.get("ids") or [0] * sum(total)
    for k, n in enumerate(total):
        now = (f["prompt"] if k == 0 else greedy[-1:]) if "prompt" in f else fixed[taps.pos:taps.pos + n]
        taps.now = {}
        with torch.no_grad():
            y = model(input_ids=torch.tensor([list(now)]), past_key_values=past, use_cache=True,
                      position_ids=torch.arange(taps.pos, taps.pos + n)[None])
        past = y.past_key_values
        out.update({"f%d/%s" % (k, t): np.ascontiguousarray(x) for t, x in taps.now.items()})
        greedy.append(int(y.logits[0, -1].float().argmax()))
        taps.pos += n
        calls, ids = calls + [n], ids + list(now)
    return out, {"prompt": json.dumps(ids[:total[0]]), "greedy": json.dumps(greedy), "calls": json.dumps(calls),
                 "ids": json.dumps(ids), "rows": json.dumps(taps.rows)}


def one(name, folder, bf16):
    f, line = models.FIXTURES[name](), []
    os.makedirs(folder, exist_ok=True)
    for file, text in fixtures.page(f).items():
        with open(os.path.join(folder, file), "w") as o:
            o.write(text)
    with tempfile.TemporaryDirectory() as model:
        fixtures.checkpoint(f, model)
        for dtype in (torch.float32, torch.bfloat16)[:1 + (bf16 and (f.get("bf16", False) or "part" not in f))]:
            start, word = time.time(), "f32" if dtype == torch.float32 else "bf16"
            tensors, meta = run(load(model, dtype), f)
            st.write(os.path.join(folder, "golden-%s.safetensors" % word), tensors, dict(meta, rope="f32"))
            line.append("%s %d tensors, %.1f MB, %.0f s" % (
                word, len(tensors), sum(x.nbytes for x in tensors.values()) / 1e6, time.time() - start))
    print("%-4s %s" % (name, "; ".join(line)), flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("out")
    a.add_argument("name", nargs="*", default=list(models.FIXTURES))
    a.add_argument("--bf16", action="store_true")
    a = a.parse_args()
    failed = 0
    for name in a.name:
        try:
            one(name, os.path.join(a.out, name), a.bf16)
        except Exception:  # named with all that is known: what failed is another project's code, or a module's shape
            traceback.print_exc()
            print("%-4s failed" % name, flush=True)
            failed += 1
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
