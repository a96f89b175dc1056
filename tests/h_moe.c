#include "tests/h_moe.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"
#include "lib/io.h"
#include "lib/json_in.h"
#include "lib/sha256.h"

static const q4x_json_limits LIMITS = {.bytes = 1 << 16, .depth = 8, .containers = 64, .commas = 512};

void h_sha256(const void *data, size_t n, char hex[65]) {
    q4x_sha256 s;
    q4x_sha256_begin(&s);
    q4x_sha256_add(&s, data, n);
    q4x_sha256_end(&s, hex);
}

/* ---- the formula ---- */

static inline uint16_t weight_at(uint64_t z, float amp) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    uint32_t u = k_f32_bits((float)((int32_t)(z >> 40) - (1 << 23)) * amp); /* exact, and no NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void h_moe_make(const h_moe *m, const h_moe_formula *f, int64_t first, int64_t n, uint16_t *restrict w) {
    const uint64_t from = (uint64_t)first + m->seed + (f->id << 48);
    const float amp = f->amp;
    const int64_t part = 1 << 14;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < n; b += part) {
        int64_t end = b + part < n ? b + part : n;
        for (int64_t i = b; i < end; i++) w[i] = weight_at(from + (uint64_t)i, amp);
    }
}

/* ---- frozen_config.json ---- */

static int whole(const json_t *o, const char *key, int64_t lo, int64_t hi, int64_t *ret, q4x_err *err) {
    const json_t *v = json_object_get(o, key);
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return q4x_fail(err, Q4X_E_FORMAT, "config: %s: expected a whole number from %lld to %lld", key, (long long)lo,
                        (long long)hi);
    *ret = json_integer_value(v);
    return 0;
}

static int word_is(const json_t *o, const char *key, const char *want, q4x_err *err) {
    const char *s = json_string_value(json_object_get(o, key));
    if (s && !strcmp(s, want)) return 0;
    return q4x_fail(err, Q4X_E_MISMATCH, "config: %s: expected %s, found %s", key, want, s ? s : "none");
}

static int dims(const json_t *o, k_dims *d, q4x_err *err) {
    const struct {
        const char *key;
        int32_t *to;
    } field[] = {{"hidden_size", &d->D},
                 {"num_experts", &d->E},
                 {"num_experts_per_tok", &d->K},
                 {"moe_intermediate_size", &d->F},
                 {"shared_expert_intermediate_size", &d->Fs}};
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        int64_t v = 0;
        int rc = whole(o, field[i].key, 1, 65536, &v, err);
        if (rc) return rc;
        *field[i].to = (int32_t)v;
    }
    d->N = 1, d->renorm = 1; /* norm_topk_prob is absent from the model's config and true */
    int rc = word_is(o, "model_type", "qwen4_exp_text", err);
    return rc ? rc : word_is(o, "hidden_act", "silu", err);
}

static int formula(const json_t *gen, const char *name, const char *id, const char *amp, int64_t rows, int64_t cols,
                   h_moe_formula *f, q4x_err *err) {
    int64_t k = 0, a = 0;
    int rc = whole(json_object_get(gen, "tensor_ids"), id, 0, 65535, &k, err);
    if (!rc) rc = whole(json_object_get(gen, "amp_log2"), amp, -100, 0, &a, err);
    if (rc) return rc;
    *f = (h_moe_formula){.id = (uint64_t)k, .amp = ldexpf(1.0f, (int)a), .rows = rows, .cols = cols};
    snprintf(f->name, sizeof f->name, "%s", name);
    return 0;
}

static const int32_t TOKENS[H_MOE_CASES] = {8, 12, 1, 16};

static int read_config(const void *text, size_t n, h_moe *m, q4x_err *err) {
    json_t *o = NULL;
    int64_t seed = 0;
    int rc = q4x_json_read(text, n, &LIMITS, "config", &o, err);
    if (rc) return rc;
    const json_t *gen = json_object_get(o, "generator");
    TRY(dims(o, &m->d, err));
    TRY(whole(gen, "seed", 0, INT64_MAX, &seed, err));
    m->seed = (uint64_t)seed;
    const k_dims *d = &m->d;
    const struct {
        const char *name, *id, *amp;
        int64_t rows, cols;
    } row[H_MOE_FREE] = {{"gate_weight", "gate", "gate", d->E, d->D},
                         {"shared_gate_proj", "shared_gate_proj", "shared", d->Fs, d->D},
                         {"shared_up_proj", "shared_up_proj", "shared", d->Fs, d->D},
                         {"shared_down_proj", "shared_down_proj", "shared_down", d->D, d->Fs},
                         {"shared_expert_gate", "shared_expert_gate", "shared_gate", 1, d->D},
                         {"case0_hidden", "hidden_case0", "hidden", TOKENS[0], d->D},
                         {"case1_hidden", "hidden_case1", "hidden", TOKENS[1], d->D},
                         {"case2_hidden", "hidden_case2", "hidden", TOKENS[2], d->D}};
    for (int i = 0; i < H_MOE_FREE; i++)
        TRY(formula(gen, row[i].name, row[i].id, row[i].amp, row[i].rows, row[i].cols, &m->f[i], err));
    TRY(formula(gen, "experts_gate_up", "experts_gate_up", "experts_gate_up", 2 * (int64_t)d->E * d->F, d->D,
                &m->experts_in, err));
    TRY(formula(gen, "experts_down", "experts_down", "experts_down", (int64_t)d->E * d->D, d->F, &m->experts_out, err));
done:
    json_decref(o);
    return rc;
}

/* ---- who made the recorded file ---- */

static int meta(const h_moe *m, const char *key, json_t **ret, q4x_err *err) {
    const char *text = q4x_st_meta(m->st, key);
    if (!text) return q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: metadata: there is no %s", key);
    return q4x_json_read(text, strlen(text), &LIMITS, key, ret, err);
}

static int provenance(const h_moe *m, const void *config, size_t nconfig, q4x_err *err) {
    json_t *o = NULL;
    char hex[65];
    int rc = meta(m, "q4x_moe_golden", &o, err);
    if (rc) return rc;
    h_sha256(config, nconfig, hex);
    int64_t version = json_integer_value(json_object_get(o, "format_version"));
    int64_t seed = json_integer_value(json_object_get(o, "seed"));
    const char *sha = json_string_value(json_object_get(o, "config_sha256"));
    const char *hf = json_string_value(json_object_get(o, "transformers"));
    const char *torch = json_string_value(json_object_get(o, "torch"));
    if (version != 2)
        rc = q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: format_version: expected 2, found %lld", (long long)version);
    else if (!sha || strcmp(sha, hex))
        rc = q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: config_sha256: frozen_config.json has %s, the file says %s",
                      hex, sha ? sha : "nothing");
    else if ((uint64_t)seed != m->seed)
        rc = q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: seed: the config has %llu, the file %lld",
                      (unsigned long long)m->seed, (long long)seed);
    else if (!hf || !*hf || !torch || !*torch)
        rc = q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: the versions of transformers and torch are missing");
    json_decref(o);
    return rc;
}

/* ---- tensors ---- */

/* The stored tensor, or Q4X_E_MISMATCH; *ret NULL when it is not there and may be missing. */
static int stored(const h_moe *m, const char *name, int32_t type, int64_t rows, int64_t cols, int may_miss,
                  const void **ret, q4x_err *err) {
    const q4x_st_tensor *t = q4x_st_find(m->st, name);
    *ret = NULL;
    if (!t && may_miss) return 0;
    if (!t) return q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: there is no %s", name);
    if (t->type != type || t->ndim != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: %s: expected %s [%lld, %lld]", name,
                        type == K_T_BF16 ? "BF16" : "I32", (long long)rows, (long long)cols);
    *ret = m->bytes + t->off;
    return 0;
}

static float *widen(const void *p, int64_t n) {
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; x && i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)p + 2 * i, 2);
        x[i] = k_f32_from_bf16(h);
    }
    return x;
}

/* What the formula gives is what was recorded: by bytes where it is stored, else by its sha256. */
static int make_free(h_moe *m, q4x_err *err) {
    json_t *left = NULL;
    int rc = 0;
    for (int i = 0; i < H_MOE_FREE; i++) {
        const h_moe_formula *f = &m->f[i];
        const void *p;
        size_t bytes = (size_t)(f->rows * f->cols) * 2;
        if (!(m->made[i] = malloc(bytes))) TRY(q4x_fail(err, Q4X_E_NOMEM, "moe-golden: no memory for %s", f->name));
        h_moe_make(m, f, 0, f->rows * f->cols, m->made[i]);
        TRY(stored(m, f->name, K_T_BF16, f->rows, f->cols, 1, &p, err));
        if (p) {
            if (memcmp(p, m->made[i], bytes))
                TRY(q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: %s is not what the formula gives", f->name));
            continue;
        }
        if (!left) TRY(meta(m, "q4x_moe_reduced", &left, err));
        char hex[65];
        h_sha256(m->made[i], bytes, hex);
        const char *sha = json_string_value(json_object_get(json_object_get(left, "sha256"), f->name));
        if (!sha || strcmp(sha, hex))
            TRY(q4x_fail(err, Q4X_E_MISMATCH, "moe-golden: sha256 of %s: the formula gives %s, the file says %s",
                         f->name, hex, sha ? sha : "nothing"));
    }
done:
    json_decref(left);
    return rc;
}

static int read_case(h_moe *m, int c, q4x_err *err) {
    h_moe_case *k = &m->c[c];
    const k_dims *d = &m->d;
    const struct {
        const char *name;
        int64_t cols;
        float **to;
    } row[] = {{"hidden", d->D, &k->hidden},           {"router_logits", d->E, &k->logits},
               {"routing_weights", d->K, &k->weights}, {"expert_out", d->D, &k->expert_out},
               {"shared_out", d->D, &k->shared_out},   {"out", d->D, &k->out}};
    char name[32];
    const void *p;
    int rc;
    k->T = TOKENS[c];
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        int made = i == 0 && c < 3; /* the last three of the formula's */
        snprintf(name, sizeof name, "case%d_%s", c, row[i].name);
        if ((rc = stored(m, name, K_T_BF16, k->T, row[i].cols, made, &p, err))) return rc;
        *row[i].to = widen(p ? p : m->made[H_MOE_FREE - 3 + c], k->T * row[i].cols);
        if (!*row[i].to) return q4x_fail(err, Q4X_E_NOMEM, "moe-golden: no memory for %s", name);
    }
    snprintf(name, sizeof name, "case%d_selected_experts", c);
    if ((rc = stored(m, name, K_T_I32, k->T, d->K, 0, &p, err))) return rc;
    k->ids = malloc((size_t)(k->T * d->K) * sizeof *k->ids);
    if (!k->ids) return q4x_fail(err, Q4X_E_NOMEM, "moe-golden: no memory for %s", name);
    memcpy(k->ids, p, (size_t)(k->T * d->K) * sizeof *k->ids);
    for (int32_t i = 0; i < k->T * d->K; i++)
        if (k->ids[i] < 0 || k->ids[i] >= d->E)
            return q4x_fail(err, Q4X_E_FORMAT, "moe-golden: %s: expected 0 to %d, found %d", name, d->E - 1, k->ids[i]);
    return 0;
}

int h_moe_read(const void *config, size_t nconfig, const void *st, size_t nst, h_moe *ret, q4x_err *err) {
    h_moe m = {.bytes = st};
    int rc = read_config(config, nconfig, &m, err);
    if (!rc) rc = q4x_st_parse(st, nst, "moe-golden", &m.st, err);
    if (!rc) rc = provenance(&m, config, nconfig, err);
    if (!rc) rc = make_free(&m, err);
    for (int c = 0; !rc && c < H_MOE_CASES; c++) rc = read_case(&m, c, err);
    if (rc)
        h_moe_free(&m);
    else
        *ret = m;
    return rc;
}

void h_moe_free(h_moe *m) {
    for (int i = 0; i < H_MOE_FREE; i++) free(m->made[i]);
    for (int c = 0; c < H_MOE_CASES; c++) {
        h_moe_case *k = &m->c[c];
        void *const owned[] = {k->hidden, k->logits, k->weights, k->expert_out, k->shared_out, k->out, k->ids};
        for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) free(owned[i]);
    }
    q4x_st_free(m->st);
}

/* ---- the reduced file ---- */

static int is_free(const h_moe *m, const char *name) {
    for (int i = 0; i < H_MOE_FREE; i++)
        if (!strcmp(m->f[i].name, name)) return 1;
    return 0;
}

/* Header: the recorded metadata as they are, the sha256 of what is left out, offsets anew. NULL: no memory. */
static char *reduced_header(const h_moe *m) {
    json_t *h = json_object(), *left = json_object(), *md = json_object();
    json_int_t off = 0;
    char hex[65];
    for (int64_t i = 0; i < m->st->n; i++) {
        const q4x_st_tensor *t = &m->st->t[i];
        if (is_free(m, t->name)) {
            h_sha256(m->bytes + t->off, t->bytes, hex);
            json_object_set_new(left, t->name, json_string(hex));
            continue;
        }
        json_object_set_new(h, t->name,
                            json_pack("{s:s, s:[I,I], s:[I,I]}", "dtype", t->dtype, "shape", (json_int_t)t->shape[0],
                                      (json_int_t)t->shape[1], "data_offsets", off, off + (json_int_t)t->bytes));
        off += (json_int_t)t->bytes;
    }
    json_t *note = json_pack("{s:o}", "sha256", left);
    char *words = json_dumps(note, JSON_COMPACT);
    json_object_set_new(md, "q4x_moe_golden", json_string(q4x_st_meta(m->st, "q4x_moe_golden")));
    json_object_set_new(md, "q4x_moe_reduced", json_string(words));
    json_object_set_new(h, "__metadata__", md);
    char *text = json_dumps(h, JSON_COMPACT);
    free(words);
    json_decref(note);
    json_decref(h);
    return text;
}

static int write_reduced(const h_moe *m, const char *path, q4x_err *err) {
    q4x_out *o = NULL;
    char *text = reduced_header(m);
    if (!text) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its header", path);
    size_t n = strlen(text), pad = (8 - n % 8) % 8;
    uint64_t all = n + pad;
    int rc = q4x_out_open(path, &o, err);
    if (!rc) rc = q4x_out_write(o, &all, sizeof all, err);
    if (!rc) rc = q4x_out_write(o, text, n, err);
    if (!rc) rc = q4x_out_write(o, "       ", pad, err);
    for (int64_t i = 0; !rc && i < m->st->n; i++)
        if (!is_free(m, m->st->t[i].name)) rc = q4x_out_write(o, m->bytes + m->st->t[i].off, m->st->t[i].bytes, err);
    free(text);
    if (!rc) return q4x_out_close(o, err);
    q4x_out_abort(o);
    return rc;
}

int h_moe_reduce(const char *dir_from, const char *dir_to, q4x_err *err) {
    char path[512];
    q4x_map config = {.fd = -1}, st = {.fd = -1};
    h_moe m;
    int rc;
    snprintf(path, sizeof path, "%s/frozen_config.json", dir_from);
    TRY(q4x_map_open(path, &config, err));
    snprintf(path, sizeof path, "%s/moe-golden.safetensors", dir_from);
    TRY(q4x_map_open(path, &st, err));
    TRY(h_moe_read(config.data, config.size, st.data, st.size, &m, err));
    snprintf(path, sizeof path, "%s/moe-golden.safetensors", dir_to);
    rc = write_reduced(&m, path, err);
    h_moe_free(&m);
done:
    q4x_map_close(&config);
    q4x_map_close(&st);
    return rc;
}
