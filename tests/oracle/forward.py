"""forward.py: the text forward of qwen4_exp and qwen3_5, written from the specification alone (its sections stand at
the functions). numpy; every sum in float64, every rounding that the specification names in rd(). Slow and plain on
purpose.

A value that has a name goes through tap(), which keeps it; with `given` (another engine's taps) the value goes on as
that engine had it, so that each step is computed from the reference's own inputs. A given function says what a value
goes on as.

wrong: one wrong choice by name (WRONG), for the twins of the comparisons.
"""
import numpy as np

import ngram
import st

WRONG = ["gate", "renorm", "budget", "value-heads", "eos", "rope", "one-norm", "l2-eps", "ple-lag", "stream",
         "tap-order", "no-relu", "block-end"]


def sig(x):
    x = np.asarray(x, np.float64)
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def silu(x):
    return np.asarray(x, np.float64) * sig(x)


def best(score, k):
    """The k best, best first; equal scores: the lower index first."""
    return np.argsort(-score, kind="stable")[:k]


def wide(x):
    return np.asarray(x, np.float64)


class Model:
    def __init__(self, config, tensors, bf16=False, rope_bf16=False, wrong=None, noise=None):
        """noise: a generator; products get an error of the size that float32 sums have, so that a bound can be told."""
        assert wrong is None or wrong in WRONG, wrong
        self.c, self.bf16, self.wrong, self.noise = config, bf16, wrong, noise
        self.w = {k.replace("model.language_model.", "model."): v for k, v in tensors.items()}
        c = config
        e = np.arange(0, c.rot, 2).astype(np.float32) / np.float32(c.rot)
        self.freq = (1 / (float(c.theta) ** wide(e)).astype(np.float32)).astype(np.float32)
        if rope_bf16:
            self.freq = st.from_bits(st.bf16_bits(self.freq))
        self.hash = {l: ngram.Hash(c, i) for i, l in enumerate(c.ple)}
        self.reset()

    def reset(self):
        self.pos, self.state, self.taps, self.given, self.ids = 0, {}, {}, None, None
        self.scores = {}  # of an attention layer's call: each row's whole blocks

    # ---- arithmetic (0.2) ----

    def rd(self, x):
        x = np.asarray(x).astype(np.float32)
        return st.from_bits(st.bf16_bits(x)) if self.bf16 else x

    def mm(self, x, name):
        x, w = wide(x), wide(self.w[name + ".weight"])
        y = x @ w.T
        if self.noise:  # 32 chains of K / 32 fmaf and a tree of 5 levels: 0.18 u^2 (K / 64 + 5) sum (w x)^2
            u2 = 0.18 * 2.0 ** -48 * (w.shape[1] / 64 + 5)
            y += self.noise.standard_normal(y.shape) * np.sqrt(u2 * ((x * x) @ (w * w).T))
        return self.rd(y)

    def rms1p(self, x, name, group):
        w = self.w[name + ".weight"]
        x = wide(x)
        g = x.reshape(x.shape[:-1] + (-1, group))
        r = 1 / np.sqrt((g * g).mean(-1, keepdims=True) + self.c.eps)
        return self.rd((g * r).reshape(x.shape) * (1.0 + wide(w)))

    def tap(self, name, x):
        self.taps[name] = x
        if self.given is None or name not in self.given:
            return x
        given = self.given[name]
        return given(x) if callable(given) else given.reshape(np.shape(x))

    def old(self, name, empty):
        return self.state.get(name, empty)

    # ---- hyper-connections (3) ----

    def hc_mix(self, H, name, tap=None):
        c = self.c
        xn = self.rms1p(H, name + ".hc_norm", c.W if self.wrong == "one-norm" else c.D)
        a = self.rd(wide(self.mm(xn, name + ".input_mix_weight_down")) / c.N)
        a = self.rd(silu(a))
        m = self.rd(sig(self.mm(a, name + ".input_mix_weight_up")))
        p = self.rd(wide(m) * xn).reshape(-1, c.N, c.D)
        x = self.rd(wide(p).mean(1))
        if tap is None:
            return x
        inj = self.rd(sig(self.rd(wide(self.mm(xn, name + ".block_inject_weight")) / c.N)))
        return self.tap(tap + ".mix", x), self.tap(tap + ".inj", np.float32(2) * inj)

    def hc_add(self, H, y, inj):
        c = self.c
        if self.wrong == "stream":
            inj = inj[:, ::-1]
        part = self.rd(wide(y)[:, None, :] * wide(inj)[:, :, None]).reshape(-1, c.W)
        return self.rd(wide(H) + part)

    # ---- gated delta rule (4) ----

    def short_conv(self, x, name, lags, state):
        """Depthwise over x and the rows kept before it; lags[j]: how far back tap j looks. -> rounded sum"""
        T, keep = len(x), max(lags)
        rows = np.concatenate([self.old(state, np.zeros((keep, x.shape[1]), np.float32)), x])
        self.state[state] = rows[len(rows) - keep:]
        w = wide(self.w[name + ".weight"]).reshape(x.shape[1], -1)
        total = np.zeros((T, x.shape[1]))
        for j, lag in enumerate(lags[::-1] if self.wrong == "tap-order" else lags):
            total += w[:, j] * wide(rows[keep - lag:keep - lag + T])
        return self.rd(total)

    def delta(self, q, k, v, beta, g, L):
        """The sequential rule, 4.2 and 4.3: exactly what the chunked one (4.4) computes."""
        T, nv, dv = v.shape
        dk = q.shape[2]
        each = nv // q.shape[1]
        source = np.arange(nv) % q.shape[1] if self.wrong == "value-heads" else np.arange(nv) // each
        eps = self.c.eps * 100 if self.wrong == "l2-eps" else 1e-6
        q, k, v, beta, g = wide(q)[:, source], wide(k)[:, source], wide(v), wide(beta), wide(g)
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + eps) / np.sqrt(dk)
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + eps)
        S = self.old(L + "delta", np.zeros((nv, dk, dv)))
        out = np.zeros((T, nv, dv))
        for t in range(T):
            S = S * np.exp(g[t])[:, None, None]
            m = np.einsum("hkv,hk->hv", S, k[t])
            d = (v[t] - m) * beta[t][:, None]
            S = S + k[t][:, :, None] * d[:, None, :]
            out[t] = np.einsum("hkv,hk->hv", S, q[t])
        self.state[L + "delta"] = S
        return self.rd(out)

    def gdn(self, x, L, name):
        c = self.c
        nk, nv, dk, dv = (c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim,
                          c.linear_value_head_dim)
        T, K = len(x), c.linear_conv_kernel_dim
        cols = self.tap(L + "gdn.qkv", self.mm(x, name + ".in_proj_qkv"))
        z = self.tap(L + "gdn.z", self.mm(x, name + ".in_proj_z")).reshape(T, nv, dv)
        bl = self.tap(L + "gdn.b", self.mm(x, name + ".in_proj_b"))
        al = self.tap(L + "gdn.a", self.mm(x, name + ".in_proj_a"))
        u = self.short_conv(cols, name + ".conv1d", [K - 1 - j for j in range(K)], L + "conv")
        u = self.rd(silu(u))
        q = u[:, :nk * dk].reshape(T, nk, dk)
        k = u[:, nk * dk:2 * nk * dk].reshape(T, nk, dk)
        v = u[:, 2 * nk * dk:].reshape(T, nv, dv)
        beta = self.rd(sig(bl))
        s = (wide(al) + wide(self.w[name + ".dt_bias"])).astype(np.float32)
        soft = np.where(s > 20, wide(s), np.log1p(np.exp(np.minimum(wide(s), 20))))
        g = (-np.exp(wide(self.w[name + ".A_log"])) * soft).astype(np.float32)
        o = self.tap(L + "gdn.core", self.delta(q, k, v, beta, g, L).reshape(T * nv, dv)).reshape(T, nv, dv)
        n = wide(o) / np.sqrt((wide(o) ** 2).mean(-1, keepdims=True) + c.eps)
        n = self.rd(wide(self.w[name + ".norm.weight"]) * self.rd(n))
        silu_gate = (c.gate == "silu") != (self.wrong == "gate")
        n = self.rd(wide(n) * (silu(z) if silu_gate else sig(z)))
        n = self.tap(L + "gdn.norm", n.reshape(T, nv * dv))
        return self.mm(n, name + ".out_proj")

    # ---- attention (5) ----

    def rope(self, x, pos):
        """x [T, heads, d], its first rot channels by halves; three roundings (5.3)."""
        half = self.c.rot // 2
        angle = self.freq[None, :] * np.asarray(pos, np.float32)[:, None]  # a float32 product
        co, si = self.rd(np.cos(wide(angle)))[:, None, :], self.rd(np.sin(wide(angle)))[:, None, :]
        lo, hi = (x[..., 0:2 * half:2], x[..., 1:2 * half:2]) if self.wrong == "rope" else \
                 (x[..., :half], x[..., half:2 * half])
        y = x.copy()
        y[..., :half] = self.rd(wide(self.rd(wide(lo) * co)) - self.rd(wide(hi) * si))
        y[..., half:2 * half] = self.rd(wide(self.rd(wide(hi) * co)) + self.rd(wide(lo) * si))
        return y

    def indexer(self, x, L, name):
        """-> what each row sees [T, Tc] (5.4)"""
        c = self.c
        ih, d, ratio = c.indexer_n_heads, c.indexer_head_dim, c.indexer_compress_ratio
        T, p0 = len(x), self.pos
        w = self.mm(x, name + ".indexer.index_qk_proj")
        iq = self.rms1p(w[:, :ih * d].reshape(T, ih, d), name + ".indexer.q_layernorm", d)
        iq = self.rope(iq, np.arange(p0, p0 + T))
        raw = np.concatenate([self.old(L + "idx", np.zeros((0, d), np.float32)), w[:, ih * d:]])
        self.state[L + "idx"] = raw
        blocks = len(raw) // ratio
        pk = self.rd(wide(raw[:blocks * ratio]).reshape(blocks, ratio, d).mean(1))
        pk = self.rms1p(pk, name + ".indexer.k_layernorm", d)
        first = ratio * np.arange(blocks) + (ratio - 1 if self.wrong == "block-end" else 0)
        pk = self.rope(pk[:, None, :], first)[:, 0] if blocks else pk
        see = np.zeros((T, len(raw)), bool)
        chosen = np.full((T, max(min(c.nsel, blocks), 1)), -1, np.int32)
        self.scores[L] = []
        nsel = c.nsel - (self.wrong == "budget")
        for t in range(T):
            nb = (p0 + t + 1) // ratio
            see[t, nb * ratio:p0 + t + 1] = True
            dots = wide(iq[t]) @ wide(pk[:nb]).T
            score = ((dots if self.wrong == "no-relu" else np.maximum(dots, 0)).sum(0) / np.sqrt(d)).astype(np.float32)
            pick = best(score, min(nsel, nb))
            chosen[t, :len(pick)] = pick
            for b in pick:
                see[t, b * ratio:(b + 1) * ratio] = True
            self.scores[L].append(score)
        self.taps[L + "attn.blocks"] = chosen
        return see

    def attend(self, x, L, name, rows=None):
        """rows: outputs of these alone. -> [rows, H * head_dim] before o_proj"""
        c = self.c
        H, G, hd = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        T, p0 = len(x), self.pos
        some = np.arange(T) if rows is None else np.asarray(rows)
        k = self.tap(L + "attn.k", self.mm(x, name + ".k_proj"))
        v = self.tap(L + "attn.v", self.mm(x, name + ".v_proj")).reshape(T, G, hd)
        k = self.tap(L + "attn.kn", self.rms1p(k.reshape(T, G, hd), name + ".k_norm", hd))
        k = self.rope(k, np.arange(p0, p0 + T))
        k = np.concatenate([self.old(L + "k", np.zeros((0, G, hd), np.float32)), k])
        v = np.concatenate([self.old(L + "v", np.zeros((0, G, hd), np.float32)), v])
        self.state[L + "k"], self.state[L + "v"] = k, v
        r = self.tap(L + "attn.qg", self.mm(x[some], name + ".q_proj")).reshape(len(some), H, 2 * hd)
        q = self.tap(L + "attn.qn", self.rms1p(r[..., :hd], name + ".q_norm", hd))
        q = self.rope(q, p0 + some)
        see = np.arange(p0 + T)[None, :] <= (p0 + np.arange(T))[:, None]
        if not c.dense:
            see = self.indexer(x, L, name)
        see = self.tap(L + "attn.sel", see)
        out = np.zeros((len(some), H, hd), np.float32)
        for i, t in enumerate(some):
            at = np.flatnonzero(see[t])
            for h in range(H):
                g = h // (H // G)
                s = self.rd(wide(k[at, g]) @ wide(q[i, h]))
                s = self.rd(wide(s) * np.float32(hd ** -0.5))
                e = np.exp(wide(s) - wide(s).max())
                p = self.rd(e / e.sum())
                out[i, h] = self.rd(wide(p) @ wide(v[at, g]))
        out = self.rd(wide(out) * self.rd(sig(r[..., hd:])))
        return self.tap(L + "attn.gated", out.reshape(len(some), H * hd))

    # ---- experts (6) ----

    def expert(self, x, gate_up, down):
        half = len(gate_up) // 2
        h = self.rd(wide(x) @ wide(gate_up).T)
        a = self.rd(wide(self.rd(silu(h[:, :half]))) * h[:, half:])
        return self.rd(wide(a) @ wide(down).T)

    def expert_weights(self, name, e):
        if name + ".gate_up_proj" in self.w:
            return self.w[name + ".gate_up_proj"][e], self.w[name + ".down_proj"][e]
        g, u, d = (self.w["%s.%d.%s_proj.weight" % (name, e, p)] for p in ("gate", "up", "down"))
        return np.concatenate([g, u]), d

    def moe(self, x, L, name):
        c = self.c
        T, K = len(x), c.num_experts_per_tok
        lg = self.tap(L + "moe.logits", self.mm(x, name + ".gate"))
        e = np.exp(wide(lg) - wide(lg).max(-1, keepdims=True))
        pr = (e / e.sum(-1, keepdims=True)).astype(np.float32)
        ids = self.tap(L + "moe.ids", np.array([best(pr[t], K) for t in range(T)], np.int32))
        p = wide(np.take_along_axis(pr, ids, 1))
        if c.norm_topk_prob != (self.wrong == "renorm"):
            p = p / p.sum(-1, keepdims=True)
        w = self.tap(L + "moe.weights", self.rd(p))
        routed = np.zeros((T, c.D), np.float32)
        for one in sorted(set(ids.ravel().tolist())):  # eager: ascending ids, one rounding each
            t, slot = np.nonzero(ids == one)
            y = self.expert(x[t], *self.expert_weights(name + ".experts", one))
            routed[t] = self.rd(wide(routed[t]) + self.rd(wide(y) * w[t, slot][:, None]))
        routed = self.tap(L + "moe.routed", routed)
        sh = name + ".shared_expert."
        a = self.rd(wide(self.rd(silu(self.mm(x, sh + "gate_proj")))) * self.mm(x, sh + "up_proj"))
        s = self.tap(L + "moe.shared", self.mm(a, sh + "down_proj"))
        sg = self.tap(L + "moe.sgate", self.mm(x, name + ".shared_expert_gate"))
        return self.rd(wide(routed) + self.rd(wide(self.rd(sig(sg))) * s))

    # ---- n-gram embedding (7) ----

    def table(self, name, ids):
        base = name + ".ple_embedding.ngram_embedding"
        if base + ".weight" in self.w:
            return self.w[base + ".weight"][ids]
        rows = len(self.w[base + ".shard_0.weight"])
        return np.stack([[self.w["%s.shard_%d.weight" % (base, i // rows)][i % rows] for i in row] for row in ids])

    def ple(self, H, l, name):
        c, L, T = self.c, "L%02d." % l, len(H)
        hist = self.old(L + "hist", [c.eos] * (c.ngram_size - 1))
        hash_ = self.hash[l]
        if self.wrong == "eos":
            hash_ = ngram.Hash(c, c.ple.index(l))
            hash_.eos = -1  # an end inside the text cuts nothing
        ids = np.array(hash_.ids(hist, self.ids))
        self.state[L + "hist"] = (list(hist) + list(self.ids))[-(c.ngram_size - 1):]
        self.taps[L + "ple.ids"] = ids
        e = self.tap(L + "ple.emb", self.table(name, ids).reshape(T, c.ple_width))
        key = self.tap(L + "ple.key", self.rms1p(self.mm(e, name + ".key_proj"), name + ".norm_key", c.D))
        key = key.reshape(T, c.N, c.D)
        val = self.tap(L + "ple.val", self.mm(e, name + ".value_proj"))
        qry = self.rms1p(H, name + ".norm_query", c.D).reshape(T, c.N, c.D)
        d = self.rd(wide(self.rd(wide(key) * qry)).sum(-1))
        d = self.rd(wide(d) / np.sqrt(c.D))
        mg = self.rd(np.sqrt(wide(self.rd(np.maximum(np.abs(d), np.float32(1e-6))))))
        g = self.rd(sig(self.rd(mg * np.sign(d))))
        g = self.tap(L + "ple.gate", g)
        gv = self.rd(wide(g)[:, :, None] * wide(val)[:, None, :]).reshape(T, c.W)
        gn = self.rms1p(gv, name + ".norm_conv", c.D)
        K = c.ple_conv_kernel_size
        lag = 1 if self.wrong == "ple-lag" else c.ngram_size
        cv = self.rd(silu(self.short_conv(gn, name + ".conv1d", [lag * (K - 1 - j) for j in range(K)], L + "gn")))
        return self.tap(L + "ple", self.rd(wide(gv) + cv))

    # ---- the whole (2, 10) ----

    def mixer(self, x, l):
        L, name = "L%02d." % l, "model.layers.%d." % l
        if not self.c.attends[l]:
            return self.tap(L + "blk", self.gdn(x, L, name + "linear_attn"))
        return self.tap(L + "blk", self.mm(self.attend(x, L, name + "self_attn"), name + "self_attn.o_proj"))

    def layer(self, H, l):
        L, name = "L%02d." % l, "model.layers.%d." % l
        H = self.tap(L + "in", H)
        if l in self.hash:
            H = self.rd(wide(H) + self.ple(H, l, name + "ple"))
        x, inj = self.hc_mix(H, name + "attn_hyper_connection", L + "ahc")
        H = self.tap(L + "s.attn", self.hc_add(H, self.mixer(x, l), inj))
        x, inj = self.hc_mix(H, name + "mlp_hyper_connection", L + "mhc")
        y = self.tap(L + "moe", self.moe(x, L, name + "mlp"))
        return self.tap(L + "out", self.hc_add(H, y, inj))

    def dense_layer(self, h, l):
        L, name, c = "L%02d." % l, "model.layers.%d." % l, self.c
        h = self.tap(L + "in", h)
        x = self.tap(L + "norm.attn", self.rms1p(h, name + "input_layernorm", c.D))
        h = self.tap(L + "s.attn", self.rd(wide(h) + self.mixer(x, l)))
        x = self.tap(L + "norm.mlp", self.rms1p(h, name + "post_attention_layernorm", c.D))
        a = self.rd(wide(self.rd(silu(self.mm(x, name + "mlp.gate_proj")))) * self.mm(x, name + "mlp.up_proj"))
        y = self.tap(L + "mlp", self.mm(a, name + "mlp.down_proj"))
        return self.tap(L + "out", self.rd(wide(h) + y))

    def forward(self, ids, given=None):
        """-> logits of every row; self.taps holds the forward's taps by name."""
        c = self.c
        self.ids, self.given, self.taps = list(ids), given, {}
        E = self.tap("emb", self.w["model.embed_tokens.weight"][self.ids])
        h = E if c.dense else np.tile(E, (1, c.N))
        for l in range(c.num_hidden_layers):
            h = self.dense_layer(h, l) if c.dense else self.layer(h, l)
        if c.dense:
            out = self.rms1p(h, "model.norm", c.D)
        else:
            out = self.hc_mix(h, "model.hyper_connection_mixer")
        out = self.tap("out", out)
        head = "lm_head" if "lm_head.weight" in self.w else "model.embed_tokens"
        logits = self.tap("logits", self.mm(out, head))
        self.pos += len(self.ids)
        return logits
