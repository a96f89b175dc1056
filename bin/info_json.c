/* info_json.c: `q4x info --json` of a model, and what both forms ask of a file. Keys are documented in the README. */
#include <stdio.h>
#include <string.h>

#include "bin/info.h"
#include "kernels/dev.h"
#include "kernels/quant.h"
#include "lib/amount.h"
#include "lib/machine.h"

static json_t *words(const char *s) {
    return cmd_string(s, strlen(s));
}

/* ---- asked of the file ---- */

static void say(info_says *s, const char *key, const char *value, size_t n) {
    s->key = key;
    cmd_plain(value, n, s->value, sizeof s->value);
}

static int says_gguf(const q4x_model *m, info_says *ret) {
    int n = 0;
    for (int64_t i = 0; i < q4x_kv_count(m) && n < INFO_SAYS; i++) {
        const char *key = q4x_kv_key(m, i), *s;
        char num[32];
        size_t len;
        int64_t v;
        int on;
        if (strncmp(key, "general.", 8) || !strcmp(key, "general.architecture")) continue;
        if (!q4x_kv_str(m, key, &s, &len, NULL))
            say(&ret[n++], key, s, len);
        else if (!q4x_kv_i64(m, key, &v, NULL)) {
            snprintf(num, sizeof num, "%lld", (long long)v);
            say(&ret[n++], key, num, strlen(num));
        } else if (!q4x_kv_bool(m, key, &on, NULL))
            say(&ret[n++], key, on ? "true" : "false", on ? 4 : 5);
    }
    return n;
}

int info_says_of(const q4x_model *m, info_says ret[INFO_SAYS]) {
    static const char *const keys[] = {"_name_or_path", "dtype", "torch_dtype", "transformers_version"};
    int n = 0;
    if (q4x_model_container(m) == Q4X_GGUF) return says_gguf(m, ret);
    for (size_t i = 0; i < 2 * sizeof keys / sizeof *keys; i++) {
        const json_t *at = i % 2 ? q4x_model_text_config(m) : q4x_model_config(m);
        const json_t *j = json_object_get(at, keys[i / 2]);
        if (!json_is_string(j) || (n && !strcmp(ret[n - 1].key, keys[i / 2]))) continue;
        say(&ret[n++], keys[i / 2], json_string_value(j), json_string_length(j));
    }
    return n;
}

int64_t info_template(const q4x_model *m) {
    const char *s;
    size_t n;
    return q4x_kv_str(m, "tokenizer.chat_template", &s, &n, NULL) ? -1 : (int64_t)n;
}

/* Bytes that device `index` has; 0: not known, and why says why. */
static uint64_t device_memory(int index, char *why, size_t size) {
    k_dev_info dev;
    k_dev_desc desc;
    k_dev_query(&dev);
    if (index < dev.count && !k_dev_describe(index, &desc)) return desc.memory;
    if (!dev.count)
        snprintf(why, size, "There is no such device here to compare with.");
    else if (index >= dev.count)
        snprintf(why, size, "There is no such device here to compare with: there %s %d, from 0 on.",
                 dev.count == 1 ? "is" : "are", dev.count);
    else
        snprintf(why, size, "The device does not say how much memory it has.");
    return 0;
}

/* Names what does not fit: a shorter context is no remedy where one position is too much. */
static void misfit(const q4x_need *d, uint64_t here, char *buf, size_t size) {
    if (d->cuda && d->weights > here)
        snprintf(buf, size, "Does not fit, whatever the context: the weights alone are %s, and %s are here.",
                 q4x_amount(d->weights).s, q4x_amount(here).s);
    else if (d->least > here)
        snprintf(buf, size, "Does not fit, whatever the context: one position needs %s, and %s are here.",
                 q4x_amount(d->least).s, q4x_amount(here).s);
    else
        snprintf(buf, size,
                 "Does not fit: %s are needed, and %s are here; a shorter context needs less, one position %s.",
                 q4x_amount(d->own).s, q4x_amount(here).s, q4x_amount(d->least).s);
}

void info_fits(const q4x_need *d, int index, char *buf, size_t size, uint64_t *ret_here) {
    snprintf(buf, size, "How much memory is here is not known.");
    const uint64_t here = d->cuda ? device_memory(index, buf, size) : q4x_machine_memory();
    *ret_here = here;
    if (!here) return;
    if (d->own > here)
        misfit(d, here, buf, size);
    else if (!d->cuda && d->own + d->weights > here)
        snprintf(buf, size,
                 "Runs, but the weights do not all stay in memory: with them it is %s, and %s are here; what does not "
                 "stay is read from the file again.",
                 q4x_amount(d->own + d->weights).s, q4x_amount(here).s);
    else
        snprintf(buf, size, "Fits: %s are here.", q4x_amount(here).s);
}

/* ---- the parts ---- */

static json_t *groups_json(const q4x_group *g, int n) {
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_pack("{s:s, s:I, s:I, s:I}", "type", k_quant_name(g[i].type), "tensors", (json_int_t)g[i].n,
                              "elements", (json_int_t)g[i].elements, "bytes", (json_int_t)g[i].bytes);
        if (g[i].name[0]) json_object_set_new(o, "name", words(g[i].name));
        json_array_append_new(a, o);
    }
    return a;
}

/* A token that the file may name. */
static json_t *id_json(int32_t id) {
    return id < 0 ? json_null() : json_integer(id);
}

static json_t *tok_json(const info_model *f) {
    if (!f->tok) return f->tok_why ? json_pack("{s:s}", "unsupported", f->tok_why) : json_null();
    const q4x_tok_facts *t = q4x_tok_about(f->tok);
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:b, s:b, s:b, s:b}", "model", t->model, "pre", t->pre, "ids",
                     t->ids, "added", t->added, "merges", t->merges, "bos", id_json(t->bos), "eos", id_json(t->eos),
                     "add_bos", t->add_bos, "add_eos", t->add_eos, "nfc", t->nfc, "prefix_space", t->prefix_space);
}

/* The fields of k_dims that have always stood here, by name. */
static json_t *dims_json(const k_dims *d) {
    json_t *o = json_object();
#define DIM(field, name)                                                                                               \
    json_object_set_new(o, name,                                                                                       \
                        !strcmp(name, "epsilon") ? cmd_real((double)d->field) : json_integer((json_int_t)d->field));
#include "lib/dims.def"
#undef DIM
    return o;
}

static json_t *setting_json(const q4x_setting *s) {
    json_t *v = s->kind == Q4X_SAYS_INT    ? json_integer(s->i)
                : s->kind == Q4X_SAYS_REAL ? cmd_real(s->r)
                : s->kind == Q4X_SAYS_BOOL ? json_boolean(s->i)
                                           : json_string(s->text);
    return json_pack("{s:s, s:o, s:s, s:o, s:o}", "name", s->name, "value", v, "source", q4x_from_name(s->from), "key",
                     *s->key ? words(s->key) : json_null(), "why", *s->why ? json_string(s->why) : json_null());
}

static json_t *settings_json(const info_model *f) {
    if (!f->has_settings) return json_null();
    json_t *a = json_array();
    for (int i = 0; i < f->settings.n; i++) json_array_append_new(a, setting_json(&f->settings.s[i]));
    return a;
}

const char *const info_modes[INFO_MODES] = {"hash", "sketch", "full"};

static json_t *taps_json(const q4x_need *d) {
    json_t *o = json_object();
    for (int mode = 0; mode < INFO_MODES; mode++)
        json_object_set_new(o, info_modes[mode],
                            json_pack("{s:I, s:I}", "device", (json_int_t)d->tap[mode].device, "pinned",
                                      (json_int_t)d->tap[mode].pinned));
    return o;
}

static json_t *need_json(const q4x_need *d, int index) {
    json_t *weights = json_object(), *state = json_object();
    char fits[300];
    uint64_t here;
    for (int c = 0; c < Q4X_TC_COUNT; c++) {
        const q4x_need_class *k = &d->cls[c];
        if (!k->tensors) continue;
        json_object_set_new(weights, q4x_tensor_classes[c].name,
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "tensors", (json_int_t)k->tensors, "mapped",
                                      (json_int_t)k->mapped, "rows", (json_int_t)k->gathered, "copied",
                                      (json_int_t)k->copied, "not_run", (json_int_t)k->unused));
    }
    for (int i = 0; i < Q4X_NEED_STATES; i++)
        json_object_set_new(state, q4x_need_states[i], json_integer((json_int_t)d->state[i]));
    info_fits(d, index, fits, sizeof fits, &here);
    json_t *o = json_pack("{s:s, s:I, s:i, s:i, s:o, s:I, s:o, s:I, s:I, s:I, s:I, s:I}", "device",
                          d->cuda ? "cuda" : "cpu", "context", (json_int_t)d->n_ctx, "rows_a_pass", d->tile, "threads",
                          d->threads, "parts", weights, "weights", (json_int_t)d->weights, "state", state, "states",
                          (json_int_t)d->states, "arena", (json_int_t)d->arena, "logits", (json_int_t)d->logits,
                          "scratch", (json_int_t)d->scratch, "needs", (json_int_t)d->own);
    json_object_set_new(o, "logits_all", json_integer((json_int_t)d->logits_all));
    if (d->cuda) {
        json_object_update_new(o, json_pack("{s:i, s:I, s:I, s:I}", "index", index, "cublas", (json_int_t)d->library,
                                            "pinned", (json_int_t)d->pinned, "pinned_all", (json_int_t)d->pinned_all));
        json_object_set_new(o, "taps", taps_json(d));
    }
    json_object_set_new(o, "token_reads", json_integer((json_int_t)d->token));
    json_object_set_new(o, "token_taps",
                        json_pack("{s:I, s:I}", "sketch", (json_int_t)d->tap_sketch, "full", (json_int_t)d->tap_full));
    json_object_set_new(o, "here", here ? json_integer((json_int_t)here) : json_null());
    json_object_set_new(o, "fits", json_string(fits));
    return o;
}

static json_t *needs_json(const info_model *f) {
    if (!f->net) return json_null();
    json_t *a = json_array();
    for (int i = 0; i < f->nneeds; i++) json_array_append_new(a, need_json(&f->need[i], f->device_index));
    return a;
}

static json_t *odd_json(const info_model *f) {
    json_t *a = json_array();
    for (int i = 0; i < f->nodd; i++)
        json_array_append_new(a, json_pack("{s:s, s:s, s:s}", "id", q4x_odd_infos[f->odd[i].id].word, "found",
                                           f->odd[i].what, "why", q4x_odd_infos[f->odd[i].id].why));
    return a;
}

static json_t *says_json(const info_model *f) {
    info_says says[INFO_SAYS];
    json_t *o = json_object();
    int n = info_says_of(f->m, says);
    for (int i = 0; i < n; i++) json_object_set_new(o, says[i].key, json_string(says[i].value));
    return o;
}

static json_t *hashes_json(const info_model *f) {
    json_t *a = json_array();
    for (int64_t i = 0; f->hash && i < q4x_model_ntensors(f->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(f->m, i);
        char hex[33];
        json_t *shape = json_array();
        for (int k = 0; k < t->ndim; k++) json_array_append_new(shape, json_integer(t->ne[k]));
        q4x_hash_hex(&f->hash[i], hex);
        json_array_append_new(a, json_pack("{s:o, s:s, s:o, s:I, s:s?, s:s}", "name", words(t->name), "type",
                                           k_quant_name(t->type), "shape", shape, "bytes", (json_int_t)t->bytes, "use",
                                           f->use ? q4x_use_name(f->use[i]) : NULL, "xxh3", hex));
    }
    return a;
}

static json_t *digests_json(const info_model *f) {
    json_t *a = json_array();
    for (int i = 0; i < f->ndigests; i++)
        json_array_append_new(a,
                              json_pack("{s:o, s:s}", "path", words(f->digest[i].path), "sha256", f->digest[i].sha256));
    return a;
}

static json_t *shards_json(const info_model *f) {
    json_t *a = json_array();
    for (int i = 0; i < q4x_model_nshards(f->m); i++) {
        const q4x_shard *s = q4x_model_shard(f->m, i);
        json_array_append_new(a, json_pack("{s:o, s:I}", "path", words(s->path), "bytes", (json_int_t)s->size));
    }
    return a;
}

json_t *info_json(const info_model *f) {
    json_t *hyper = NULL, *plan = NULL;
    int64_t chat = info_template(f->m);
    if (f->net) {
        const q4x_plan *p = q4x_net_plan(f->net);
        hyper = dims_json(q4x_net_dims(f->net));
        plan =
            json_pack("{s:i, s:i, s:I}", "nodes", p->nnodes, "states", p->nstates, "context", (json_int_t)p->ctx_max);
    }
    json_t *o = json_pack("{s:s, s:o, s:o, s:s, s:s, s:o, s:o?, s:o?, s:s?, s:o, s:I, s:o, s:o}", "kind", "model",
                          "path", words(q4x_model_path(f->m)), "arch", words(q4x_model_arch(f->m)), "container",
                          q4x_model_container(f->m) == Q4X_GGUF ? "gguf" : "safetensors", "fingerprint", f->fingerprint,
                          "shards", shards_json(f), "hyper_parameters", hyper, "plan", plan, "unsupported", f->why,
                          "tokenizer", tok_json(f), "tensors", (json_int_t)q4x_model_ntensors(f->m), "types",
                          groups_json(f->type, f->ntypes), "groups", groups_json(f->group, f->ngroups));
    json_object_set_new(o, "parts", groups_json(f->cls, f->nclasses));
    json_object_set_new(o, "settings", settings_json(f));
    json_object_set_new(o, "chat_template", chat < 0 ? json_null() : json_integer(chat));
    json_object_set_new(o, "says", says_json(f));
    json_object_set_new(o, "memory", needs_json(f));
    json_object_set_new(o, "unusual", odd_json(f));
    if (f->hash) json_object_set_new(o, "hashes", hashes_json(f));
    if (f->digest) json_object_set_new(o, "sha256", digests_json(f));
    return o;
}
