/* arch_qwen4_give.c: a bound checkpoint of qwen4_exp as a GGUF file has it (sections 1.1, 9.1, 9.5). */
#include <stdio.h>

#include "lib/arch_qwen4_int.h"
#include "lib/io.h"

/* What the format fixes or has one of (9.5, 1.2). */
static int can_say(const q4x_q4_cfg *q, q4x_err *err) {
    const char *where = q->c.where;
    if (!q->renorm)
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "%s: norm_topk_prob is false, which a GGUF file cannot say: its readers take true", where);
    if (q->nple > 1)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: ple_layer_ids names %d layers, a GGUF file holds one table", where,
                        q->nple);
    if (q->nple && q->c.is_attn[q->ple[0]])
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "%s: ple_layer_ids names layer %d, which attends; GGUF readers want it in a linear layer",
                        where, q->ple[0] + 1);
    return 0;
}

static int give_indexer(const q4x_q4_cfg *q, q4x_gguf_out *o, q4x_err *err) {
    const q4x_cfg *c = &q->c;
    int32_t ratio[Q4X_MAXL];
    if (!q->has_idx) return 0;
    for (int64_t i = 0; i < c->v[Q4X_KEY_L]; i++) ratio[i] = c->is_attn[i] ? (int32_t)c->v[Q4X_Q4_RATIO] : 0;
    int rc = q4x_give_keys(c, o, Q4X_Q4_IH, Q4X_Q4_BUDGET, err);
    return rc ? rc : q4x_give_ints(c, o, "attention.compress_ratios", ratio, (size_t)c->v[Q4X_KEY_L], err);
}

static int give_ple(const q4x_q4_cfg *q, const q4x_qwen4 *w, q4x_gguf_out *o, q4x_err *err) {
    const q4x_cfg *c = &q->c;
    const size_t n = (size_t)w->d.n, P = (size_t)w->d.P;
    int64_t image = 0;
    int rc = 0;
    if (!q->nple) return 0;
    const int32_t layer = q->ple[0];
    const int64_t *hash = w->layer[layer].hash;
    const json_t *j = q4x_cfg_get(q4x_model_config(w->model), "image_token_id");
    TRY(q4x_give_ints(c, o, "ple.layers", &layer, 1, err));
    TRY(q4x_give_keys(c, o, Q4X_Q4_NGRAM, Q4X_Q4_KP, err));
    TRY(q4x_give_int(c, o, "embedding_length_per_layer_input", w->d.pw, err)); /* of one row */
    TRY(q4x_give_int(c, o, "ple.eos_token_id", q->eos, err));
    if (j) TRY(q4x_cfg_integer(c, "image_token_id", j, 0, c->v[Q4X_KEY_V] - 1, &image, err));
    if (j) TRY(q4x_give_int(c, o, "ple.image_token_id", image, err));
    TRY(q4x_give_u64s(c, o, "ple.layer_multipliers", hash, n, err));
    TRY(q4x_give_u64s(c, o, "ple.head_vocab_sizes", hash + n, P, err));
    TRY(q4x_give_u64s(c, o, "ple.head_offsets", hash + n + P, P, err));
done:
    return rc;
}

int q4x_qwen4_give(const q4x_taker *to, q4x_gguf_out *o, q4x_qwen4 *w, q4x_err *err) {
    const json_t *text = q4x_model_text_config(w->model);
    q4x_q4_cfg q = {0};
    char where[200];
    int rc;
    snprintf(where, sizeof where, "%s: config.json", q4x_tail(q4x_model_path(w->model)));
    TRY(q4x_q4_cfg_hf(q4x_model_config(w->model), text, where, &q, err));
    TRY(can_say(&q, err));
    TRY(q4x_give_common(&q.c, text, o, err));
    TRY(q4x_give_keys(&q.c, o, Q4X_Q4_E, Q4X_Q4_R, err));
    TRY(give_indexer(&q, o, err));
    TRY(give_ple(&q, w, o, err));
    q.c.container = Q4X_GGUF; /* from here on names are the GGUF file's */
    q4x_bind b = {.m = w->model, .cfg = &q.c, .owned = &w->owned, .taker = to};
    TRY(q4x_q4_tensors_gguf(&b, &q, w, err));
done:
    q4x_q4_cfg_free(&q);
    return rc;
}
