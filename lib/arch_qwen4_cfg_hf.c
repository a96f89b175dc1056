/* Hyper-parameters of qwen4_exp from config.json beyond the common ones: indexer, per-layer embedding, router. */
#include <stdio.h>

#include "lib/arch_qwen4_int.h"

/* The five keys of the indexer: all or none. */
static int read_indexer(q4x_q4_cfg *q, const json_t *text, q4x_err *err) {
    static const int ids[] = {Q4X_Q4_IH, Q4X_Q4_IKV, Q4X_Q4_ID, Q4X_Q4_BUDGET, Q4X_Q4_RATIO};
    const char *some = NULL, *lacks = NULL;
    for (size_t i = 0; i < 5; i++) {
        const char *name = q4x_key_name(&q->c, ids[i]);
        *(q4x_cfg_get(text, name) ? &some : &lacks) = name;
    }
    if (some && lacks)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %s is there but %s is not: expected all five indexer keys or none",
                        q->c.where, some, lacks);
    for (size_t i = 0; some && i < 5; i++) {
        int rc = q4x_cfg_key(&q->c, text, ids[i], err);
        if (rc) return rc;
    }
    q->has_idx = some != NULL;
    return 0;
}

/* The n-gram context is cut at eos, the first of a list. */
static int read_eos(q4x_q4_cfg *q, const json_t *text, q4x_err *err) {
    static const char key[] = "eos_token_id";
    const int64_t last = q->c.v[Q4X_KEY_V] - 1;
    const json_t *j = q4x_cfg_get(text, key);
    if (json_is_array(j)) {
        if (!json_array_size(j))
            return q4x_fail(err, Q4X_E_FORMAT, "%s: eos_token_id is an empty list, expected an id", q->c.where);
        for (size_t i = 1; i < json_array_size(j); i++) {
            int64_t id;
            int rc = q4x_cfg_integer(&q->c, key, json_array_get(j, i), 0, last, &id, err);
            if (rc) return rc;
        }
        j = json_array_get(j, 0);
    }
    int rc = q4x_cfg_integer(&q->c, key, j, 0, last, &q->eos, err);
    if (!rc) q4x_cfg_file(&q->c, q4x_say_int("eos", q->eos), key);
    return rc;
}

static void note_ple_layers(q4x_q4_cfg *q, int given) {
    static const char key[] = "ple_layer_ids";
    int64_t at[Q4X_Q4_MAXPLE];
    for (int i = 0; i < q->nple; i++) at[i] = q->ple[i];
    q4x_setting s = q->nple ? q4x_say_ints("ple_layers", at, q->nple) : q4x_say_text("ple_layers", "none");
    if (given)
        q4x_cfg_file(&q->c, s, key);
    else
        q4x_cfg_default(&q->c, s, key, "no n-gram embedding");
}

/* ple_layer_ids are 1-based; doubles count once, order does not matter. */
static int read_ple_layers(q4x_q4_cfg *q, const json_t *text, q4x_err *err) {
    static const char key[] = "ple_layer_ids";
    const int64_t L = q->c.v[Q4X_KEY_L];
    const json_t *ids = q4x_cfg_get(text, key);
    char has[Q4X_MAXL] = {0};
    if (ids && !json_is_array(ids)) return q4x_cfg_wants(&q->c, key, "an array", ids, err);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int64_t id = 1;
        int rc = q4x_cfg_integer(&q->c, key, json_array_get(ids, i), 1, L, &id, err);
        if (rc) return rc;
        has[id - 1] = 1;
    }
    for (int i = 0; i < (int)L; i++) {
        if (!has[i]) continue;
        if (q->nple == Q4X_Q4_MAXPLE)
            return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: ple_layer_ids names more than %d layers", q->c.where,
                            Q4X_Q4_MAXPLE);
        q->ple[q->nple++] = i;
    }
    note_ple_layers(q, ids != NULL);
    return 0;
}

static int read_ple(q4x_q4_cfg *q, const json_t *text, q4x_err *err) {
    int rc = read_ple_layers(q, text, err);
    if (rc || !q->nple) return rc;
    for (int id = Q4X_Q4_NGRAM; id < Q4X_Q4_END; id++) {
        if (id == Q4X_Q4_PLEW && !q4x_cfg_get(text, "ple_embed_dim")) {
            q->c.v[id] = q->c.v[Q4X_KEY_D];
            q4x_cfg_default(&q->c, q4x_say_int("ple_width", q->c.v[id]), "ple_embed_dim", "hidden");
        } else
            rc = q4x_cfg_key(&q->c, text, id, err);
        if (rc) return rc;
    }
    return read_eos(q, text, err);
}

int q4x_q4_cfg_hf(const json_t *root, const json_t *text, const char *where, q4x_q4_cfg *ret, q4x_err *err) {
    int rc;
    q4x_q4_cfg q = {.c = {.t = &q4x_q4_traits, .container = Q4X_HF}};
    snprintf(q.c.where, sizeof q.c.where, "%s", where);
    TRY(q4x_cfg_hf(&q.c, root, text, err));
    for (int id = Q4X_Q4_E; id <= Q4X_Q4_R; id++) TRY(q4x_cfg_key(&q.c, text, id, err));
    TRY(q4x_cfg_bool(&q.c, text, "renormalised", "norm_topk_prob", 1, "of the configuration's class", &q.renorm, err));
    TRY(read_indexer(&q, text, err));
    TRY(read_ple(&q, text, err));
    *ret = q;
done:
    return rc;
}
