"""counter.py: weights that a counter gives, so that a model is a page of text.

Number i (row-major) of tensor t is mix64(i + seed + (t << 48)) of the specification's 7.1; its upper 24 bits, less
2^23, times 2^amp, rounded to bf16; where a base is given it is added and the sum rounded again. The recorded block of
experts (tests/golden/moe-block) is made so, without bases.

A model's weights.txt: `seed N`, then a tensor a line: NAME SHAPE AMP [BASE]. {a,b,3-5} in a name stands for one tensor
each, the first braces outermost; tensors are numbered from 1 as they come. A name that begins with @ is no weight but
what a tap is given, its rows by position.
"""
import re

import numpy as np

import st

M1, M2, GAMMA = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)
PART = 1 << 22


def upper(seed, tensor, first, n):
    """The upper 24 bits of the hash, less 2^23, as float64."""
    with np.errstate(over="ignore"):
        z = np.arange(first, first + n, dtype=np.uint64) + np.uint64((seed + (tensor << 48)) % (1 << 64)) + GAMMA
        z ^= z >> np.uint64(30)
        z *= M1
        z ^= z >> np.uint64(27)
        z *= M2
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64) - 2.0 ** 23


def numbers(seed, tensor, first, n, amp, base=0.0):
    out = np.empty(n, np.float32)
    for at in range(0, n, PART):
        k = min(PART, n - at)
        x = st.from_bits(st.bf16_bits((upper(seed, tensor, first + at, k) * 2.0 ** amp).astype(np.float32)))
        out[at:at + k] = st.from_bits(st.bf16_bits(x + np.float32(base))) if base else x
    return out


def signs(k, n):
    """+1 or -1: which side number i of tensor k of seed 0 lies on."""
    return np.where(upper(0, k, 0, n) < 0, -1.0, 1.0)


def names(pattern):
    """'a.{0,2-3}.b' -> a.0.b a.2.b a.3.b"""
    m = re.search(r"\{([^}]*)\}", pattern)
    if not m:
        return [pattern]
    out = []
    for item in m.group(1).split(","):
        lo, dash, hi = item.partition("-")
        for word in map(str, range(int(lo), int(hi) + 1)) if dash else [item]:
            out += names(pattern[:m.start()] + word + pattern[m.end():])
    return out


def tensors(text, wanted=lambda name: True):
    """-> {name: float32 array} of a weights.txt"""
    out, t, seed = {}, 0, None
    for line in text.splitlines():
        word = line.split()
        if not word:
            continue
        if word[0] == "seed":
            seed = int(word[1])
            continue
        shape = [int(n) for n in word[1].split("x")]
        for name in names(word[0]):
            t += 1
            if wanted(name):
                out[name] = numbers(seed, t, 0, int(np.prod(shape)), int(word[2]), float((word + ["0"])[3]))
                out[name] = out[name].reshape(shape)
    return out
