#!/usr/bin/python3
"""against.py FOLDER...: forward.py against the recorded taps of a model (golden-*.safetensors beside its checkpoint or
its weights.txt).

f32 files end to end: relative L2 of every tap, selections and sampled ids equal. bf16 files step by step: every value
computed from the record's own inputs, share of elements with equal bits. Where scores tie exactly the record's choice
is taken, and counted. Exit 1 when a bound is broken.
--twins instead: every wrong choice of forward.WRONG must break a bound of one of the models, and no other set than one
of equal scores is a tie."""
import argparse
import glob
import os
import sys

import numpy as np

import config
import counter
import fixtures
import forward
import st

# f32: forward 0, later ones, taps of fewer than 16 numbers (the folder's README says 2e-5, 3e-5, 5e-4); bf16: share of
# equal bits of a file, and distance in ulp of the row's largest element
FIRST, LATER, FEW, EQUAL, ULP = 2e-5, 1e-4, 1e-3, 0.999, 4


def numbers(meta, key):
    return [int(s) for s in meta[key].replace("[", " ").replace("]", " ").replace(",", " ").split()]


class Tally:
    def __init__(self):
        self.rel = {"first": (0, ""), "later": (0, ""), "few": (0, "")}
        self.taps = self.n = self.equal = self.sets = self.orders = self.ties = 0
        self.ulp = (0, "")
        self.broken, self.judged = [], True

    def floats(self, f, name, got, want, bf16):
        got, want = np.ravel(got).astype(np.float64), np.ravel(want).astype(np.float64)
        self.taps += 1
        self.n += len(got)
        self.equal += int((got == want).sum())
        size = np.linalg.norm(want)
        rel = np.linalg.norm(got - want) / size if size > 0 else np.linalg.norm(got - want)
        kind = "few" if len(want) < 16 else "later" if f else "first"
        if not rel <= self.rel[kind][0]:
            self.rel[kind] = (rel, "f%d/%s" % (f, name))
        if not bf16 and not rel <= {"first": FIRST, "later": LATER, "few": FEW}[kind]:
            self.broken.append("f%d/%s %.2g" % (f, name, rel))

    def ulps(self, f, name, got, want):
        want = want.reshape(-1, want.shape[-1]).astype(np.float64)
        got = np.asarray(got, np.float64).reshape(want.shape)
        top = np.maximum(np.abs(want).max(-1), 1e-30)
        worst = (np.abs(got - want).max(-1) / 2.0 ** (np.floor(np.log2(top)) - 7)).max()
        if not worst <= self.ulp[0]:
            self.ulp = (worst, "f%d/%s" % (f, name))

    def ids(self, f, name, got, want, logits):
        want = want.reshape(got.shape)
        self.taps += 1
        for t in range(len(got)):
            if (got[t] == want[t]).all():
                continue
            self.orders += 1
            if set(got[t].tolist()) == set(want[t].tolist()):
                continue
            # another set: only where the scores at the cut are equal
            if np.array_equal(np.sort(logits[t][got[t]]), np.sort(logits[t][want[t]])):
                self.ties += 1
            else:
                self.sets += 1
                self.broken.append("f%d/%s row %d" % (f, name, t))

    def mask(self, f, name, got, want, scores, ratio):
        """-> the record's rows where they differ at a tie, the others as they were made"""
        self.taps += 1
        out = got.copy()
        differ = [t for t in range(len(got)) if (got[t] != want[t]).any()]
        other = [t for t in differ if not tied(scores[t], ratio, got[t], want[t])]
        for t in set(differ) - set(other):
            out[t] = want[t]
        self.ties += len(differ) - len(other)
        self.sets += len(other)
        if other:
            self.broken.append("f%d/%s %d rows" % (f, name, len(other)))
        return out


def tied(scores, ratio, a, b):
    """Whether two rows of what is seen differ in blocks of equal scores alone."""
    n = len(scores) * ratio
    first, second = a[:n].reshape(-1, ratio), b[:n].reshape(-1, ratio)
    whole = (first == first[:, :1]).all() and (second == second[:, :1]).all() and np.array_equal(a[n:], b[n:])
    return bool(whole and np.array_equal(np.sort(scores[first[:, 0]]), np.sort(scores[second[:, 0]])))


def tie_is_told():
    """Of blocks of two with scores 3, 1, 1 and a tail: what is a tie of the last two, and what is not."""
    score, row = np.array([3, 1, 1], np.float32), lambda text: np.array([s == "1" for s in text])
    ties = [tied(score, 2, row(a), row(b)) for a, b in (
        ("1111001", "1100111"), ("1111001", "0011111"), ("1111001", "1100001"), ("1111001", "1110011"),
        ("1111001", "1100110"))]
    return ties == [True, False, False, False, False]


def model(folder):
    """-> weights, given taps"""
    path = os.path.join(folder, "weights.txt")
    if not os.path.exists(path):
        return st.read(os.path.join(folder, "model.safetensors"))[0], {}
    with open(path) as page:
        w = counter.tensors(page.read())
    return w, {n[1:]: w.pop(n) for n in list(w) if n[0] == "@"}


class Replace:
    """What goes on in place of what the forward made: in bf16 the record's, so that each step has the record's inputs;
    of selections the record's where scores tie."""

    def __init__(self, k, f, m, record, bf16):
        self.k, self.f, self.m, self.record = k, f, m, record
        self.given = {n: x for n, x in record.items() if bf16 and not n.endswith("attn.sel")}
        for n in record:
            if n.endswith("attn.sel"):
                self.given[n] = self.selection(n, bf16)

    def selection(self, name, bf16):
        def seen(got):
            want = self.record[name].reshape(got.shape) == 0
            m = self.m
            out = self.k.mask(self.f, name, got, want, m.scores[name[:4]], m.c.indexer_compress_ratio)
            return want if bf16 else out
        return seen


def run(folder, golden, wrong=None, forwards=None):
    """-> (Tally, ids equal, ids)"""
    bf16 = "bf16" in os.path.basename(golden)
    c = config.Config(os.path.join(folder, "config.json"))
    weights, fixed = model(folder)
    want, meta = st.read(golden)
    greedy = numbers(meta, "greedy")
    rows = numbers(meta, "rows") if "rows" in meta else []
    # a call takes one id that the call before gave, where the file does not say otherwise
    calls = numbers(meta, "calls") if "calls" in meta else [len(numbers(meta, "prompt"))] + [1] * (len(greedy) - 1)
    ids = numbers(meta, "ids") if "ids" in meta else numbers(meta, "prompt") + greedy
    m = forward.Model(c, weights, bf16=bf16, rope_bf16=bf16 and meta.get("rope") != "f32", wrong=wrong)
    k, same = Tally(), 0
    steps = len(calls) if forwards is None else min(forwards, len(calls))
    for f in range(steps):
        mine = {n.split("/", 1)[1]: x for n, x in want.items() if n.startswith("f%d/" % f)}
        given = Replace(k, f, m, mine, bf16).given
        fixtures.part(m, rows, fixed, ids[m.pos:m.pos + calls[f]], given)
        for name, x in mine.items():
            got = m.taps[name]
            if name.endswith(".sel"):
                continue
            if name.endswith(".ids"):
                k.ids(f, name, got, x, mine[name.replace(".ids", ".logits")])
            else:
                k.floats(f, name, got, x, bf16)
                if bf16:
                    k.ulps(f, name, got, x)
        same += not fixed and int(np.argmax(m.taps["logits"][-1])) == greedy[f]
    if bf16 and not fixed and "f0/L00.in" not in want:
        k.judged = False  # the inputs of the steps were not recorded: flips grow with depth
    elif bf16 and not (k.equal >= EQUAL * k.n and k.ulp[0] <= ULP):
        k.broken.append("%.4f %% of bits, %.2f ulp at %s" % ((100 * k.equal / k.n,) + k.ulp))
    if not bf16 and not fixed and same != steps:
        k.broken.append("%d of %d ids" % (same, steps))
    return k, same, 0 if fixed else steps


def twin(folder, wrong):
    broken = run(folder, os.path.join(folder, "golden-f32.safetensors"), wrong, 2)[0].broken
    print("%s %-12s %s" % (folder, wrong, "seen at " + broken[0] if broken else "not seen"))
    return bool(broken)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("folder", nargs="+")
    a.add_argument("--twins", action="store_true")
    a = a.parse_args()
    bad = 0
    if a.twins:
        missed = [w for w in forward.WRONG if not any([twin(folder, w) for folder in a.folder])]
        missed += [] if tie_is_told() else ["no tie"]
        sys.exit("not seen: " + ", ".join(missed) if missed else 0)
    for folder in a.folder:
        for golden in sorted(glob.glob(os.path.join(folder, "golden-*.safetensors"))):
            k, same, n = run(folder, golden)
            bad += bool(k.broken)
            print("%-4s %s: %d taps, %d numbers, bits equal %.4f %%" % (
                "BAD" if k.broken else "ok" if k.judged else "--", golden, k.taps, k.n, 100 * k.equal / k.n))
            print("     rel L2 forward 0 %.1e (%s), later %.1e (%s), few numbers %.1e (%s)" % (
                k.rel["first"] + k.rel["later"] + k.rel["few"]))
            print("     worst %.2f ulp of bf16 (%s)" % k.ulp if k.ulp[1] else "     end to end",
                  "; orders that differ %d, sets at a tie %d, sets else %d; ids %d/%d" % (
                      k.orders, k.ties, k.sets, same, n))
            if k.broken:
                print("     first:", ", ".join(k.broken[:4]))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
