#include "tests/h_hf.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/round.h"
#include "lib/safetensors.h"
#include "tests/h_golden.h"

h_hf_tensor *h_hf_add(h_hf *h, const char *name, const char *dtype, int ndim, const int64_t *shape, const void *data) {
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 256;
        h->t = realloc(h->t, (size_t)h->cap * sizeof *h->t);
        assert_non_null(h->t);
    }
    h_hf_tensor *t = &h->t[h->n++];
    *t = (h_hf_tensor){.ndim = ndim};
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->bytes = strstr(dtype, "64") ? 8 : strstr(dtype, "32") ? 4 : strstr(dtype, "16") ? 2 : 1;
    for (int i = 0; i < ndim; i++) {
        t->shape[i] = shape[i];
        t->bytes *= (size_t)shape[i];
    }
    t->data = calloc(1, t->bytes + 1);
    assert_non_null(t->data);
    if (data) memcpy(t->data, data, t->bytes);
    return t;
}

h_hf *h_hf_load(const char *dir) {
    char path[512];
    h_hf *h = calloc(1, sizeof *h);
    assert_non_null(h);
    snprintf(path, sizeof path, "%s/config.json", dir);
    h->config = json_load_file(path, 0, NULL);
    if (!h->config) fail_msg("%s cannot be read", path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    h_golden *g = h_golden_open(path);
    if (!g) fail_msg("%s cannot be read", path);
    for (int64_t i = 0; i < g->st->n; i++) {
        const q4x_st_tensor *t = &g->st->t[i];
        h_hf_add(h, t->name, t->dtype, t->ndim, t->shape, (const char *)g->map + t->off);
    }
    h_golden_close(g);
    return h;
}

void h_hf_free(h_hf *h) {
    for (int i = 0; i < h->n; i++) free(h->t[i].data);
    free(h->t);
    json_decref(h->config);
    free(h);
}

h_hf_tensor *h_hf_get(h_hf *h, const char *name) {
    for (int i = 0; i < h->n; i++)
        if (!strcmp(h->t[i].name, name)) return &h->t[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

void h_hf_drop(h_hf *h, const char *name) {
    h_hf_tensor *t = h_hf_get(h, name);
    free(t->data);
    size_t after = (size_t)(h->t + h->n - t - 1);
    memmove(t, t + 1, after * sizeof *t);
    h->n--;
}

void h_hf_widen(h_hf *h, const char *name) {
    h_hf_tensor *t = h_hf_get(h, name);
    size_t n = t->bytes / 2;
    float *f = calloc(n + 1, sizeof *f);
    assert_non_null(f);
    assert_string_equal(t->dtype, "BF16");
    for (size_t i = 0; i < n; i++) f[i] = k_f32_from_bf16(((const uint16_t *)t->data)[i]);
    free(t->data);
    t->data = f;
    t->bytes = n * sizeof *f;
    snprintf(t->dtype, sizeof t->dtype, "F32");
}

void h_hf_set(json_t *config, const char *key, const char *json) {
    const char *dot = strchr(key, '.');
    if (dot) {
        char head[64];
        snprintf(head, sizeof head, "%.*s", (int)(dot - key), key);
        config = json_object_get(config, head);
        assert_non_null(config);
        key = dot + 1;
    }
    if (!json) {
        json_object_del(config, key);
        return;
    }
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    if (!v) fail_msg("bad JSON in a test: %s", json);
    assert_int_equal(json_object_set_new(config, key, v), 0);
}

void h_hf_multimodal(h_hf *h) {
    for (int i = 0; i < h->n; i++) {
        char old[200];
        snprintf(old, sizeof old, "%.199s", h->t[i].name);
        if (!strncmp(old, "model.", 6)) snprintf(h->t[i].name, sizeof h->t[i].name, "model.language_model.%s", old + 6);
    }
    json_t *text = h->config;
    h->config = json_pack("{s:s, s:o, s:{}}", "model_type", "qwen4_exp", "text_config", text, "vision_config");
    h_hf_add(h, "model.visual.blocks.0.norm1.weight", "BF16", 1, (int64_t[]){8}, NULL);
    h_hf_add(h, "mtp.fc_hidden.weight", "F8_E4M3", 2, (int64_t[]){8, 8}, NULL);
}

void h_hf_fuse(h_hf *h, const char *layer, int64_t E, int64_t F, int64_t D) {
    char name[256];
    size_t part = (size_t)(F * D) * 2;
    char *gate_up = malloc((size_t)E * 2 * part), *down = malloc((size_t)E * part);
    assert_non_null(gate_up);
    assert_non_null(down);
    static const char *const proj[] = {"gate_proj", "up_proj", "down_proj"};
    for (int64_t e = 0; e < E; e++)
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "%s.mlp.experts.%d.%s.weight", layer, (int)e, proj[p]);
            char *to = p < 2 ? gate_up + (size_t)(2 * e + p) * part : down + (size_t)e * part;
            memcpy(to, h_hf_get(h, name)->data, part);
            h_hf_drop(h, name);
        }
    snprintf(name, sizeof name, "%s.mlp.experts.gate_up_proj", layer);
    h_hf_add(h, name, "BF16", 3, (int64_t[]){E, 2 * F, D}, gate_up);
    snprintf(name, sizeof name, "%s.mlp.experts.down_proj", layer);
    h_hf_add(h, name, "BF16", 3, (int64_t[]){E, D, F}, down);
    free(gate_up);
    free(down);
}

static FILE *create(const char *dir, const char *file) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    unlink(path);
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("%s cannot be written", path);
    return f;
}

void h_text_write(const char *dir, const char *file, const char *text) {
    FILE *f = create(dir, file);
    assert_true(fwrite(text, 1, strlen(text), f) == strlen(text));
    assert_int_equal(fclose(f), 0);
}

void h_hf_write_st(const char *dir, const char *file, const char *head, const void *data, size_t n) {
    FILE *f = create(dir, file);
    uint64_t len = strlen(head);
    assert_true(fwrite(&len, 8, 1, f) == 1);
    assert_true(fwrite(head, 1, len, f) == len);
    if (n) assert_true(fwrite(data, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

/* With blanks behind it, so that data begin at a multiple of 8, as the format's own library has it. */
static char *padded(char *text) {
    size_t n = strlen(text), to = (n + 7) / 8 * 8;
    text = realloc(text, to + 1);
    assert_non_null(text);
    memset(text + n, ' ', to - n);
    text[to] = 0;
    return text;
}

/* The tensors of one shard; shard -1: all. */
static void write_shard(const h_hf *h, const char *dir, const char *file, int shard) {
    json_t *head = json_object();
    size_t at = 0;
    for (int i = 0; i < h->n; i++) {
        const h_hf_tensor *t = &h->t[i];
        if (shard >= 0 && t->shard != shard) continue;
        json_t *shape = json_array();
        for (int k = 0; k < t->ndim; k++) json_array_append_new(shape, json_integer(t->shape[k]));
        json_object_set_new(head, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + t->bytes)));
        at += t->bytes;
    }
    char *text = padded(json_dumps(head, JSON_COMPACT)), *data = malloc(at + 1);
    assert_non_null(text);
    assert_non_null(data);
    at = 0;
    for (int i = 0; i < h->n; i++) {
        if (shard >= 0 && h->t[i].shard != shard) continue;
        memcpy(data + at, h->t[i].data, h->t[i].bytes);
        at += h->t[i].bytes;
    }
    h_hf_write_st(dir, file, text, data, at);
    free(text);
    free(data);
    json_decref(head);
}

static void write_config(const json_t *config, const char *dir) {
    char *text = json_dumps(config, JSON_INDENT(2));
    assert_non_null(text);
    h_text_write(dir, "config.json", text);
    free(text);
}

void h_hf_write(const h_hf *h, const char *dir, int nshards) {
    write_config(h->config, dir);
    if (!nshards) {
        write_shard(h, dir, "model.safetensors", -1);
        return;
    }
    json_t *map = json_object();
    for (int s = 0; s < nshards; s++) {
        char file[64];
        snprintf(file, sizeof file, "model-%05d-of-%05d.safetensors", s + 1, nshards);
        write_shard(h, dir, file, s);
        for (int i = 0; i < h->n; i++)
            if (h->t[i].shard == s) json_object_set_new(map, h->t[i].name, json_string(file));
    }
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    char *text = json_dumps(index, JSON_INDENT(1));
    assert_non_null(text);
    h_text_write(dir, "model.safetensors.index.json", text);
    free(text);
    json_decref(index);
}

void h_hf_write_config(const json_t *config, const char *dir, const char *weights_dir) {
    char from[512], to[512], *real;
    write_config(config, dir);
    snprintf(from, sizeof from, "%s/model.safetensors", weights_dir);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    real = realpath(from, NULL);
    assert_non_null(real);
    unlink(to);
    assert_int_equal(symlink(real, to), 0);
    free(real);
}

char *h_tmp(void) {
    char *dir = strdup("/tmp/q4x-test-XXXXXX");
    assert_non_null(dir);
    assert_non_null(mkdtemp(dir));
    return dir;
}

void h_tmp_remove(char *dir) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        unlink(path);
    }
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
    free(dir);
}
