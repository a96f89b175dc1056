/* cmd_synth.c: a model file of a released geometry with synthetic weights. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/io.h"
#include "lib/manifest.h"
#include "lib/synth.h"

enum { KEY_LAYERS = 0x100, KEY_EXPERTS, KEY_BASE, KEY_VOCAB, KEY_SHARDS, KEY_SEED, KEY_HEADER, KEY_THREADS };

typedef struct {
    const char *geometry, *out, *type;
    int64_t layers, experts, base, vocab, shards, threads, seed; /* -1: as the geometry has it */
    int header_only;
} options;

static int64_t number(struct argp_state *state, const char *what, const char *arg, int64_t least, int64_t most) {
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (errno || end == arg || *end || v < least || v > most)
        argp_error(state, "%s: '%.40s', expected a number from %lld to %lld", what, arg, (long long)least,
                   (long long)most);
    return v;
}

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case 't': o->type = arg; return 0;
    case KEY_LAYERS: o->layers = number(state, "--layers", arg, 1, INT32_MAX); return 0;
    case KEY_EXPERTS: o->experts = number(state, "--experts", arg, 1, INT32_MAX); return 0;
    case KEY_BASE: o->base = number(state, "--ngram-base", arg, 0, INT64_MAX); return 0;
    case KEY_VOCAB: o->vocab = number(state, "--vocab", arg, 1, INT32_MAX); return 0;
    case KEY_SHARDS: o->shards = number(state, "--shards", arg, 1, INT32_MAX); return 0;
    case KEY_SEED: o->seed = number(state, "--seed", arg, 0, INT64_MAX); return 0;
    case KEY_THREADS: o->threads = number(state, "--threads", arg, 1, 1024); return 0;
    case KEY_HEADER: o->header_only = 1; return 0;
    case ARGP_KEY_ARG:
        if (!o->geometry)
            o->geometry = arg;
        else if (!o->out)
            o->out = arg;
        else
            return ARGP_ERR_UNKNOWN;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option own[] = {
    {"type", 't', "NAME", 0, "file type: UD-IQ1_S, Q4_K_M, or any one type (default: the released file's)", 0},
    {"layers", KEY_LAYERS, "N", 0, "only the first N layers", 0},
    {"experts", KEY_EXPERTS, "N", 0, "N experts a layer", 0},
    {"ngram-base", KEY_BASE, "N", 0, "smallest head of the n-gram table: it has about 16 N rows", 0},
    {"vocab", KEY_VOCAB, "N", 0, "N ids", 0},
    {"shards", KEY_SHARDS, "N", 0, "N files, the first with the metadata alone (default: as released)", 0},
    {"seed", KEY_SEED, "N", 0, "equal seeds give equal files (default 0)", 0},
    {"header-only", KEY_HEADER, 0, 0,
     "print what the file would be; with OUT write its headers alone, and print how holes for the data make "
     "them readable to q4x info",
     0},
    {"threads", KEY_THREADS, "N", 0, "threads; never moves a bit", 0},
    {0}};

static const char *geometry_word(int i, void *ctx) {
    (void)ctx;
    return q4x_geometries[i].name;
}

static const char *type_word(int i, void *ctx) {
    (void)ctx;
    return q4x_file_types[i].name;
}

/* The geometry as asked for. Returns an exit code. */
static int choose(const options *o, cmd_ctx *c, q4x_geometry *g, q4x_synth *s) {
    q4x_err err = {0};
    if (!o->geometry) return cmd_misuse(c, "expected a geometry: qwen3.8-flash-next, qwen3.8-27b or tiny");
    const q4x_geometry *base = q4x_geometry_find(o->geometry);
    if (!base) {
        const char *near = cmd_nearest(o->geometry, geometry_word, Q4X_GEOMETRIES, NULL);
        return cmd_misuse(c, "no geometry '%.40s': expected qwen3.8-flash-next, qwen3.8-27b or tiny%s%s", o->geometry,
                          near ? "; did you mean " : "", near ? near : "");
    }
    *g = *base;
    if (o->layers >= 0) g->L = (int32_t)o->layers;
    if (o->vocab >= 0) g->V = (int32_t)o->vocab;
    if ((o->experts >= 0 || o->base >= 0) && !q4x_geometry_is_flash(g))
        return cmd_misuse(c, "%s has no experts and no n-gram table", g->name);
    if (o->experts >= 0) g->E = (int32_t)o->experts;
    if (o->base >= 0) g->ngram_base = o->base;
    int ft = o->type ? q4x_file_type_find(o->type) : (int)g->type;
    if (ft < 0) {
        const char *near = cmd_nearest(o->type, type_word, Q4X_FT_COUNT, NULL);
        return cmd_misuse(c, "--type: no file type '%.40s', expected UD-IQ1_S, Q4_K_M or a block type%s%s", o->type,
                          near ? "; did you mean " : "", near ? near : "");
    }
    if (q4x_geometry_check(g, &err)) return cmd_misuse(c, "%s", err.msg);
    *s = (q4x_synth){.g = g,
                     .type = (q4x_file_type)ft,
                     .seed = (uint64_t)(o->seed < 0 ? 0 : o->seed),
                     .shards = o->shards < 0 ? 0 : (int)o->shards,
                     .threads = o->threads < 0 ? 0 : (int)o->threads};
    return CMD_OK;
}

/* ---- what it is ---- */

/* Files, tensors, manifest: known before anything is written, printed when all went well. */
static int plan_of(const q4x_gguf_out *out, const q4x_synth *s, json_t **ret, q4x_err *err) {
    const q4x_tensor *t = q4x_gguf_out_tensors(out);
    int64_t n = q4x_gguf_out_ntensors(out);
    char hex[65];
    uint64_t total = 0;
    int rc = q4x_manifest(t, n, hex, err);
    if (rc) return rc;
    json_t *files = json_array();
    for (int i = 0; i < q4x_gguf_out_nshards(out); i++) {
        const q4x_shard *f = q4x_gguf_out_shard(out, i);
        int64_t in = 0;
        for (int64_t k = 0; k < n; k++) in += t[k].shard == i;
        total += f->size;
        json_array_append_new(files, json_pack("{s:o, s:I, s:I, s:I}", "path", cmd_string(f->path, strlen(f->path)),
                                               "tensors", (json_int_t)in, "bytes", (json_int_t)f->size, "header",
                                               (json_int_t)f->data_off));
    }
    *ret = json_pack("{s:s, s:s, s:I, s:I, s:I, s:s, s:o}", "geometry", s->g->name, "type",
                     q4x_file_types[s->type].name, "seed", (json_int_t)s->seed, "tensors", (json_int_t)n, "bytes",
                     (json_int_t)total, "manifest", hex, "files", files);
    return *ret ? 0 : q4x_fail(err, Q4X_E_NOMEM, "no memory for the list of files");
}

static long long integer(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

/* A path as a word of a shell. */
static void print_word(const char *path) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    const int quoted = path[strspn(path, plain)] != 0;
    if (quoted) putchar('\'');
    for (; *path; path++)
        if (*path == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*path);
    if (quoted) putchar('\'');
}

/* A reader wants the data where the header says. Holes take no room, and do where no weight is looked at. */
static void print_holes(const json_t *files) {
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i);
        if (!integer(f, "tensors")) continue;
        printf("for info      truncate -s %lld ", integer(f, "bytes"));
        print_word(json_string_value(json_object_get(f, "path")));
        putchar('\n');
    }
}

/* Takes over the plan; returns an exit code. headers: they alone were written. */
static int print_plan(cmd_ctx *c, json_t *plan, int headers) {
    if (c->json) return cmd_print_json(c, plan, 17);
    const json_t *files = json_object_get(plan, "files");
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *f = json_array_get(files, i);
        printf("file          %s: %lld tensors, %lld bytes, header %lld\n",
               json_string_value(json_object_get(f, "path")), integer(f, "tensors"), integer(f, "bytes"),
               integer(f, "header"));
    }
    printf("tensors       %lld, %lld bytes in all\nmanifest      %s\n", integer(plan, "tensors"),
           integer(plan, "bytes"), json_string_value(json_object_get(plan, "manifest")));
    if (headers) print_holes(files);
    json_decref(plan);
    return 0;
}

static int write_headers(const q4x_gguf_out *out, q4x_err *err) {
    int rc = 0;
    for (int i = 0; i < q4x_gguf_out_nshards(out) && !rc; i++) {
        uint8_t *head = NULL;
        size_t n = 0;
        q4x_out *f = NULL;
        rc = q4x_gguf_out_header(out, i, &head, &n, err);
        if (!rc) rc = q4x_out_open(q4x_gguf_out_shard(out, i)->path, &f, err);
        if (!rc) rc = q4x_out_write(f, head, n, err);
        if (!rc)
            rc = q4x_out_close(f, err);
        else
            q4x_out_abort(f);
        free(head);
    }
    return rc;
}

static void tell(void *ctx, uint64_t done, uint64_t total) {
    cmd_ctx *c = ctx;
    q4x_log_progress(&c->log, "MiB", done >> 20, total >> 20);
}

static int write_model(cmd_ctx *c, const q4x_synth *s, q4x_gguf_out *out, q4x_err *err) {
    q4x_synth_cost cost;
    int rc = q4x_synth_write(s, out, tell, c, &cost, err);
    q4x_log_done(&c->log);
    if (rc) return rc;
    q4x_log_say(&c->log, 0, "%.2f GB in %.1f s, %.2f GB/s; made at %.2f GB/s a core", 1e-9 * (double)cost.bytes,
                cost.seconds, 1e-9 * (double)cost.bytes / cost.seconds, 1e-9 * (double)cost.bytes / cost.made);
    return 0;
}

/* A negative code with err, or an exit code. */
static int work(const options *o, cmd_ctx *c, const q4x_synth *s, q4x_err *err) {
    int rc = 0;
    q4x_gguf_out *out = NULL;
    json_t *plan = NULL;
    TRY(q4x_synth_declare(s, o->out ? o->out : "model.gguf", &out, err));
    TRY(q4x_gguf_out_layout(out, err));
    TRY(plan_of(out, s, &plan, err));
    if (o->header_only) {
        if (o->out) TRY(write_headers(out, err));
    } else {
        q4x_gguf_out *all = out;
        char first[4096];
        snprintf(first, sizeof first, "%s", q4x_gguf_out_shard(out, 0)->path);
        out = NULL; /* the call takes it over */
        TRY(write_model(c, s, all, err));
        cmd_written(first);
    }
    rc = print_plan(c, plan, o->header_only && o->out);
    plan = NULL;
done:
    json_decref(plan);
    q4x_gguf_out_abort(out);
    return rc;
}

int cmd_synth(int argc, char **argv, cmd_ctx *c) {
    static const struct argp argp = {
        own,
        option,
        "NAME OUT",
        "Write a GGUF file with the tensors, types and keys of a released model and synthetic weights: random blocks "
        "with scales that keep activations in the range of the released one. NAME is qwen3.8-flash-next, "
        "qwen3.8-27b or tiny. The file says of itself that it is synthetic.\vThe manifest is the SHA-256 that others "
        "publish of a file's tensor names, shapes and types.",
        0,
        0,
        0};
    options o = {.layers = -1, .experts = -1, .base = -1, .vocab = -1, .shards = -1, .threads = -1, .seed = -1};
    q4x_geometry g = {0};
    q4x_synth s = {.g = &g};
    q4x_err err = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    int rc = choose(&o, c, &g, &s);
    if (rc) return rc;
    if (!o.out && !o.header_only) return cmd_misuse(c, "expected the file to write");
    if (cmd_dash(c, "OUT", o.out)) return CMD_USAGE;
    if (o.header_only && o.threads > 0) return cmd_misuse(c, "--threads: --header-only makes no weights");
    rc = work(&o, c, &s, &err);
    return rc < 0 ? cmd_refused(c, &err) : rc;
}
