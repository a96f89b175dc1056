"""ngram.py: constants, rows and ids of the hashed n-gram embedding (specification 7.1, 7.2). Integers only."""
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix64(z):
    z = (z + GAMMA) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def is_prime(v):
    d = 2
    while d * d <= v:
        if v % d == 0:
            return False
        d += 1
    return v > 1


class Hash:
    """One layer's: multipliers, sizes and offsets of the heads."""

    def __init__(self, c, index):
        n, self.n, self.per, self.eos = c.ngram_size, c.ngram_size, c.heads_per_ngram, c.eos
        heads = (n - 1) * self.per
        half = max(1, ((1 << 63) - 1) // max(c.vocab_size, 1) // 2)
        base = c.seed + 10007 * index
        self.mult = [2 * (mix64((base + GAMMA * (i + 1)) & MASK) % half) + 1 for i in range(n)]
        primes, v = [], c.ngram_vocab_size_base - 1
        while len(primes) < (index + 1) * heads:
            v += 1
            if is_prime(v):
                primes.append(v)
        self.size = primes[index * heads:]
        self.off = [sum(self.size[:h]) for h in range(heads)]
        step = c.make_ngram_vocab_size_divisible_by
        self.rows = -(-sum(self.size) // step) * step

    def ids(self, history, tokens):
        """Rows of each token; history: the n - 1 ids before the first."""
        seq, out = list(history) + list(tokens), []
        for p in range(len(history), len(seq)):
            context, cut = [seq[p]], False
            for s in range(1, self.n):
                # an end, or the beginning of what is known: it and all older read as the end
                cut = cut or p - s < 0 or seq[p - s] == self.eos
                context.append(self.eos if cut else seq[p - s])
            x, row = context[0] * self.mult[0], []
            for r in range(1, self.n):
                x ^= context[r] * self.mult[r]
                for h in range((r - 1) * self.per, r * self.per):
                    row.append(x % self.size[h] + self.off[h])
            out.append(row)
        return out
