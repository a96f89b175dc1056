/* Hyper-parameters of qwen4exp from GGUF keys beyond the common ones (sections 1.1, 1.2.7, 9.1, 9.5). What the format
 * does not store is fixed: renormalised router, one indexer key head. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/arch_qwen4_int.h"
#include "lib/io.h"

/* Which layers attend. With an indexer: those with a compress ratio, which is one number; recurrent_layers must agree.
 * Without: recurrent_layers, or the interval. */
static int layers_by_ratio(q4x_cfg *c, const int64_t *ratio, q4x_err *err) {
    int64_t one = 0;
    for (int64_t i = 0; i < c->v[Q4X_KEY_L]; i++) {
        c->is_attn[i] = ratio[i] != 0;
        if (!ratio[i]) continue;
        if (ratio[i] < 1 || ratio[i] > c->t->key[Q4X_Q4_RATIO].hi || (one && ratio[i] != one))
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: attention.compress_ratios[%lld] is %lld, expected 0 or one ratio in all layers",
                            c->where, (long long)i, (long long)ratio[i]);
        one = ratio[i];
    }
    c->v[Q4X_Q4_RATIO] = one;
    q4x_cfg_kinds(c, Q4X_FROM_DERIVED, "", "layers whose entry in compress_ratios is not 0 attend");
    if (one) q4x_cfg_derived(c, q4x_say_int("block_ratio", one), "the one ratio in compress_ratios");
    return 0;
}

static int read_layers(q4x_q4_cfg *q, const q4x_model *m, q4x_err *err) {
    static const int ids[] = {Q4X_Q4_IH, Q4X_Q4_ID, Q4X_Q4_BUDGET};
    q4x_cfg *c = &q->c;
    int64_t *ratio = NULL, n = 0, v;
    int has = 0,
        rc = q4x_cfg_list(c, m, "compress_ratios", "attention.compress_ratios", c->v[Q4X_KEY_L], &ratio, &n, err);
    if (rc < 0) return rc;
    if (!rc) TRY(layers_by_ratio(c, ratio, err));
    for (size_t i = 0; i < 3; i++) {
        rc = q4x_cfg_optional(c, m, c->t->key[ids[i]].name, c->t->key[ids[i]].gguf, INT64_MIN, INT64_MAX, &v, err);
        if (rc < 0) goto done;
        has += !rc;
    }
    rc = 0;
    q->has_idx = c->v[Q4X_Q4_RATIO] > 0;
    /* an indexer that no layer uses (too few layers) is a whole one, too */
    if (has != (q->has_idx || (ratio && has) ? 3 : 0))
        TRY(q4x_fail(
            err, Q4X_E_FORMAT,
            "%s: %d of attention.indexer.{head_count,key_length,top_k} are there and attention.compress_ratios "
            "%s: expected all of the indexer or none",
            c->where, has,
            q->has_idx ? "has a ratio"
            : ratio    ? "has none"
                       : "is missing"));
    if (q->has_idx) {
        TRY(q4x_cfg_keys(c, m, Q4X_Q4_IH, Q4X_Q4_RATIO, err));
        q4x_cfg_fixed(c, q4x_say_int("indexer_kv_heads", 1), "GGUF has no key for it");
    } else if (!has)
        TRY(q4x_cfg_interval(c, m, err));
    TRY(q4x_cfg_recurrent(c, m, has ? "attention.compress_ratios" : NULL, err));
done:
    free(ratio);
    return rc;
}

/* The resolved hash arrays, into one. */
static int read_hash(q4x_q4_cfg *q, const q4x_model *m, int64_t P, q4x_err *err) {
    int64_t n = q->c.v[Q4X_Q4_NGRAM];
    const struct {
        const char *name, *key;
        int64_t n;
    } parts[] = {{"ngram_multipliers", "ple.layer_multipliers", n},
                 {"ngram_sizes", "ple.head_vocab_sizes", P},
                 {"ngram_offsets", "ple.head_offsets", P}};
    int64_t *to = q->hash = malloc((size_t)(n + 2 * P) * sizeof *to);
    if (!to) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for the hash constants", q->c.where);
    for (size_t i = 0; i < 3; i++) {
        int64_t *v = NULL, have;
        int rc = q4x_cfg_list(&q->c, m, parts[i].name, parts[i].key, parts[i].n, &v, &have, err);
        if (rc) return rc == 1 ? q4x_cfg_absent(&q->c, parts[i].key, err) : rc;
        memcpy(to, v, (size_t)parts[i].n * sizeof *to);
        to += parts[i].n;
        free(v);
    }
    return 0;
}

static int read_ple(q4x_q4_cfg *q, const q4x_model *m, q4x_err *err) {
    q4x_cfg *c = &q->c;
    int64_t *layers = NULL, n = 0, pw = 0;
    int rc = q4x_cfg_list(c, m, "ple_layers", "ple.layers", 0, &layers, &n, err);
    if (rc < 0) return rc;
    if (rc == 1 || !n) { /* exports of the prediction head alone omit all of these */
        free(layers);
        if (rc) q4x_cfg_default(c, q4x_say_text("ple_layers", "none"), "ple.layers", "no n-gram embedding");
        return 0;
    }
    int64_t layer = layers[0];
    free(layers);
    if (n != 1)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: ple.layers has %lld entries, expected one: the file has one table",
                        c->where, (long long)n);
    TRY(q4x_cfg_in_range(c, "ple.layers[0]", layer, 0, c->v[Q4X_KEY_L] - 1, err));
    if (c->is_attn[layer])
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: ple.layers[0] is %lld, which is an attention layer", c->where,
                     (long long)layer));
    q->nple = 1;
    q->ple[0] = (int)layer;
    TRY(q4x_cfg_keys(c, m, Q4X_Q4_NGRAM, Q4X_Q4_KP, err));
    int64_t P = (c->v[Q4X_Q4_NGRAM] - 1) * c->v[Q4X_Q4_HPN];
    /* this key is the width of one row, not of all heads together */
    TRY(q4x_cfg_need(c, m, "ngram_width", "embedding_length_per_layer_input", 1, c->t->key[Q4X_Q4_PLEW].hi / P, &pw,
                     err));
    c->v[Q4X_Q4_PLEW] = pw * P;
    q4x_cfg_derived(c, q4x_say_int("ple_width", pw * P), "ngram_width x ngram_heads");
    TRY(q4x_cfg_need(c, m, "eos", "ple.eos_token_id", 0, c->v[Q4X_KEY_V] - 1, &q->eos, err));
    TRY(read_hash(q, m, P, err));
done:
    return rc;
}

int q4x_q4_cfg_gguf(const q4x_model *m, q4x_q4_cfg *ret, q4x_err *err) {
    int rc;
    q4x_q4_cfg q = {.c = {.t = &q4x_q4_traits, .container = Q4X_GGUF}, .renorm = 1};
    snprintf(q.c.where, sizeof q.c.where, "%s", q4x_tail(q4x_model_path(m)));
    TRY(q4x_cfg_gguf(&q.c, m, err));
    q4x_cfg_fixed(&q.c, q4x_say_bool("renormalised", 1), "GGUF has no key for it");
    TRY(q4x_cfg_keys(&q.c, m, Q4X_Q4_E, Q4X_Q4_R, err));
    TRY(read_layers(&q, m, err));
    TRY(read_ple(&q, m, err));
    *ret = q;
    return 0;
done:
    q4x_q4_cfg_free(&q);
    return rc;
}
