"""st.py: safetensors files as numpy arrays, without the format's own library. BF16 is read as float32 (exact)."""
import json
import struct

import numpy as np

PLAIN = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U16": "<u2", "U8": "u1"}
WORD = {np.dtype(v): k for k, v in PLAIN.items()}


def bf16_bits(x):
    """float32 -> the uint16 of its bf16, to nearest even; finite values."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bits(h):
    """The uint16 of a bf16 -> float32."""
    return (np.asarray(h, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def read(path):
    """-> {name: array}, {metadata}"""
    with open(path, "rb") as f:
        raw = f.read()
    n, = struct.unpack("<Q", raw[:8])
    head = json.loads(raw[8:8 + n])
    meta = head.pop("__metadata__", {})
    out = {}
    for name, t in head.items():
        a, b = t["data_offsets"]
        part = raw[8 + n + a:8 + n + b]
        if t["dtype"] == "BF16":
            x = from_bits(np.frombuffer(part, "<u2"))
        else:
            x = np.frombuffer(part, PLAIN[t["dtype"]])
        out[name] = x.reshape(t["shape"])
    return out, meta


def write(path, tensors, meta=None, bf16=()):
    """float32 tensors named in bf16 are stored as BF16."""
    head, parts, at = {}, [], 0
    if meta:
        head["__metadata__"] = meta
    for name, x in tensors.items():
        x = np.ascontiguousarray(x)
        word = "BF16" if name in bf16 else WORD[x.dtype]
        part = (bf16_bits(x) if name in bf16 else x).tobytes()
        head[name] = {"dtype": word, "shape": list(x.shape), "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
