/* cmd_info.c: what is in a model, a checkpoint or a dump. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bin/cmd.h"
#include "kernels/quant.h"
#include "lib/dump.h"
#include "lib/inventory.h"
#include "lib/run.h"

typedef struct {
    const char *file;
    int nodes;
} options;

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    switch (key) {
    case 'n': o->nodes = 1; return 0;
    case ARGP_KEY_ARG:
        if (o->file) return ARGP_ERR_UNKNOWN;
        o->file = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The fields of k_dims that say something to a reader, with the word for each. */
static const struct {
    const char *key;
    size_t at;
} dims[] = {
#define D(key, field)                                                                                                  \
    { key, offsetof(k_dims, field) }
    D("hidden", D),
    D("streams", N),
    D("hc_rank", R),
    D("vocabulary", V),
    D("layers", L),
    D("gdn_key_heads", nk),
    D("gdn_value_heads", nv),
    D("gdn_key_width", dk),
    D("gdn_value_width", dv),
    D("gdn_conv_taps", Kc),
    D("gdn_gate_silu", gate_silu),
    D("gguf_head_order", gguf_heads),
    D("heads", H),
    D("kv_heads", G),
    D("head_width", hd),
    D("rotated", rot),
    D("indexer_heads", ih),
    D("indexer_width", id),
    D("block_ratio", ratio),
    D("blocks_selected", nsel),
    D("experts", E),
    D("experts_used", K),
    D("expert_width", F),
    D("shared_expert_width", Fs),
    D("mlp_width", Fd),
    D("renormalised", renorm),
    D("ngram", n),
    D("ngram_heads", P),
    D("ngram_width", pw),
    D("ngram_conv_taps", Kp),
    D("eos", eos),
#undef D
};
enum { NDIMS = (int)(sizeof dims / sizeof *dims) };

static int dim(const k_dims *d, int i) {
    int32_t v;
    memcpy(&v, (const char *)d + dims[i].at, sizeof v);
    return v;
}

static const char *type_name(int32_t type) {
    const k_quant *q = k_quant_get(type);
    return q ? q->name : "?";
}

/* ---- models ---- */

typedef struct {
    const q4x_model *m;
    const q4x_net *net; /* NULL: the architecture could not be bound, why says why */
    const char *why;
    char fingerprint[33];
    q4x_tok *tok; /* NULL: none, or one that cannot be used, tok_why says why */
    const char *tok_why;
    q4x_group *group, *type;
    int ngroups, ntypes;
} model_facts;

static json_t *groups_json(const q4x_group *g, int n) {
    json_t *a = json_array();
    for (int i = 0; i < n; i++) {
        json_t *o = json_pack("{s:s, s:I, s:I, s:I}", "type", type_name(g[i].type), "tensors", (json_int_t)g[i].n,
                              "elements", (json_int_t)g[i].elements, "bytes", (json_int_t)g[i].bytes);
        if (g[i].name[0]) json_object_set_new(o, "name", json_string(g[i].name));
        json_array_append_new(a, o);
    }
    return a;
}

/* A token that the file may name. */
static json_t *id_json(int32_t id) {
    return id < 0 ? json_null() : json_integer(id);
}

static json_t *tok_json(const model_facts *f) {
    if (!f->tok) return f->tok_why ? json_pack("{s:s}", "unsupported", f->tok_why) : json_null();
    const q4x_tok_facts *t = q4x_tok_about(f->tok);
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:o, s:o, s:b, s:b, s:b, s:b}", "model", t->model, "pre", t->pre, "ids",
                     t->ids, "added", t->added, "merges", t->merges, "bos", id_json(t->bos), "eos", id_json(t->eos),
                     "add_bos", t->add_bos, "add_eos", t->add_eos, "nfc", t->nfc, "prefix_space", t->prefix_space);
}

static void tok_text(const model_facts *f) {
    if (!f->tok) {
        printf("tokenizer     %s%s\n", f->tok_why ? "cannot be used: " : "none", f->tok_why ? f->tok_why : "");
        return;
    }
    const q4x_tok_facts *t = q4x_tok_about(f->tok);
    printf("tokenizer     %s, pattern %s, %d ids, %d of them added, %d merges", t->model, t->pre, t->ids, t->added,
           t->merges);
    if (t->bos >= 0) printf(", %sbos %d", t->add_bos ? "adds " : "", t->bos);
    if (t->eos >= 0) printf(", %seos %d", t->add_eos ? "adds " : "", t->eos);
    printf("%s%s\n", t->nfc ? ", NFC" : "", t->prefix_space ? ", a blank before pieces" : "");
}

static json_t *model_json(const model_facts *f) {
    json_t *shards = json_array(), *hyper = NULL, *plan = NULL;
    for (int i = 0; i < q4x_model_nshards(f->m); i++) {
        const q4x_shard *s = q4x_model_shard(f->m, i);
        json_array_append_new(shards, json_pack("{s:s, s:I}", "path", s->path, "bytes", (json_int_t)s->size));
    }
    if (f->net) {
        const k_dims *d = q4x_net_dims(f->net);
        const q4x_plan *p = q4x_net_plan(f->net);
        hyper = json_object();
        for (int i = 0; i < NDIMS; i++) json_object_set_new(hyper, dims[i].key, json_integer(dim(d, i)));
        json_object_set_new(hyper, "epsilon", cmd_real((double)d->eps));
        plan =
            json_pack("{s:i, s:i, s:I}", "nodes", p->nnodes, "states", p->nstates, "context", (json_int_t)p->ctx_max);
    }
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o?, s:o?, s:s?, s:o, s:I, s:o, s:o}", "kind", "model", "path",
                     q4x_model_path(f->m), "arch", q4x_model_arch(f->m), "container",
                     q4x_model_container(f->m) == Q4X_GGUF ? "gguf" : "safetensors", "fingerprint", f->fingerprint,
                     "shards", shards, "hyper_parameters", hyper, "plan", plan, "unsupported", f->why, "tokenizer",
                     tok_json(f), "tensors", (json_int_t)q4x_model_ntensors(f->m), "types",
                     groups_json(f->type, f->ntypes), "groups", groups_json(f->group, f->ngroups));
}

static void model_text(const model_facts *f, int verbose) {
    printf("%s\narchitecture  %s (%s)\nfingerprint   %s\n", q4x_model_path(f->m), q4x_model_arch(f->m),
           q4x_model_container(f->m) == Q4X_GGUF ? "GGUF" : "safetensors", f->fingerprint);
    int n = q4x_model_nshards(f->m);
    for (int i = 0; i < n; i++) {
        const q4x_shard *s = q4x_model_shard(f->m, i);
        printf("%-13s %s, %llu bytes\n", i ? "" : n > 1 ? "shards" : "file", s->path, (unsigned long long)s->size);
    }
    tok_text(f);
    if (f->net) {
        const k_dims *d = q4x_net_dims(f->net);
        const q4x_plan *p = q4x_net_plan(f->net);
        printf("plan          %d nodes, %d states, context %lld\n", p->nnodes, p->nstates, (long long)p->ctx_max);
        for (int i = 0; i < NDIMS; i++)
            printf("%s%-20s %8d%s", i % 3 ? "  " : "", dims[i].key, dim(d, i), i % 3 == 2 ? "\n" : "");
        printf("%s%-20s %8g\n", NDIMS % 3 ? "  " : "", "epsilon", (double)d->eps);
    } else {
        printf("not runnable  %s\n", f->why);
    }
    printf("\n%-10s %8s %14s %14s  bits\n", "type", "tensors", "elements", "bytes");
    for (int i = 0; i < f->ntypes; i++)
        printf("%-10s %8lld %14llu %14llu  %.2f\n", type_name(f->type[i].type), (long long)f->type[i].n,
               (unsigned long long)f->type[i].elements, (unsigned long long)f->type[i].bytes,
               8.0 * (double)f->type[i].bytes / (double)(f->type[i].elements ? f->type[i].elements : 1));
    if (!verbose) return;
    printf("\n%-56s %-8s %7s %14s\n", "tensor", "type", "count", "bytes");
    for (int i = 0; i < f->ngroups; i++)
        printf("%-56s %-8s %7lld %14llu\n", f->group[i].name, type_name(f->group[i].type), (long long)f->group[i].n,
               (unsigned long long)f->group[i].bytes);
}

/* One name a line: the vocabulary of taps of this model. */
static void print_nodes(const q4x_plan *p) {
    for (int i = 0; i < p->nnodes; i++) printf("%s%s\n", p->node[i].name, p->node[i].is_public ? " public" : "");
    for (int i = 0; i < p->nstates; i++) printf("%s state\n", p->state[i].name);
}

static int model_info(const options *o, cmd_ctx *c) {
    q4x_err err = {0}, why = {0}, tok_why = {0};
    q4x_model *m = NULL;
    q4x_net *net = NULL;
    model_facts f = {0};
    int code = CMD_OK;
    /* A file whose architecture is unknown is still worth describing. */
    if (q4x_net_open(o->file, &net, &why) && q4x_model_open(o->file, &m, &err)) return cmd_fail(c, &err);
    f.m = net ? q4x_net_model(net) : m;
    f.net = net;
    f.why = net ? NULL : why.msg;
    if (o->nodes) {
        if (net)
            print_nodes(q4x_net_plan(net));
        else
            code = cmd_fail(c, &why);
    } else if (q4x_model_fingerprint(f.m, f.fingerprint, &err) || q4x_inventory(f.m, &f.group, &f.ngroups, &err) ||
               q4x_inventory(f.m, &f.type, &f.ntypes, &err)) {
        code = cmd_fail(c, &err);
    } else {
        f.ntypes = q4x_inventory_by_type(f.type, f.ntypes);
        if (q4x_tok_open(f.m, &f.tok, &tok_why) < 0) f.tok_why = tok_why.msg;
        if (c->json)
            code = cmd_print_json(c, model_json(&f), 9);
        else
            model_text(&f, c->verbose);
    }
    free(f.group);
    free(f.type);
    q4x_tok_close(f.tok);
    q4x_net_close(net);
    q4x_model_close(m);
    return code;
}

/* ---- dumps ---- */

typedef struct {
    int64_t taps, sketches, stats, bands, full, selections;
} dump_counts;

static dump_counts count(const q4x_dump *d) {
    dump_counts n = {0};
    for (int f = 0; f < d->nforwards; f++)
        for (int i = 0; i < d->forwards[f].ntaps; i++) {
            const q4x_tap *t = &d->forwards[f].taps[i];
            n.taps++;
            n.stats += t->has_stats;
            n.sketches += t->has_sketch;
            n.bands += t->has_band;
            n.full += t->has_full;
            n.selections += t->has_sel;
        }
    return n;
}

static json_t *dump_json(const q4x_dump *d) {
    char hex[33];
    q4x_hash_hex(&d->content, hex);
    dump_counts n = count(d);
    json_t *forwards = json_array();
    for (int f = 0; f < d->nforwards; f++) {
        const q4x_forward *w = &d->forwards[f];
        json_array_append_new(forwards, json_pack("{s:i, s:o, s:i, s:b, s:i, s:i}", "forward", w->index, "ids",
                                                  cmd_ids(w->ids, w->n_ids), "position", w->pos0, "forced", w->forced,
                                                  "sampled", w->sampled, "taps", w->ntaps));
    }
    return json_pack("{s:s, s:s, s:i, s:s, s:O, s:O?, s:i, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I}}", "kind", "dump",
                     "path", d->path, "version", d->version, "content", hex, "header", d->header, "tail", d->tail,
                     "nodes", d->nnodes, "forwards", forwards, "records", "taps", (json_int_t)n.taps, "stats",
                     (json_int_t)n.stats, "sketches", (json_int_t)n.sketches, "bands", (json_int_t)n.bands, "full",
                     (json_int_t)n.full, "selections", (json_int_t)n.selections);
}

static void print_keys(json_t *object) {
    const char *key;
    json_t *v;
    json_object_foreach(object, key, v) {
        char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        printf("%-10s %s\n", key, text ? text : "?");
        free(text);
    }
}

static void dump_text(const q4x_dump *d, int verbose) {
    char hex[33];
    q4x_hash_hex(&d->content, hex);
    dump_counts n = count(d);
    printf("%s\ncontent    %s (format %d)\n", d->path, hex, d->version);
    print_keys(d->header);
    print_keys(d->tail);
    printf("records    %lld taps of %d nodes in %d forwards: %lld statistics, %lld sketches, %lld bands, %lld full, "
           "%lld selections\n",
           (long long)n.taps, d->nnodes, d->nforwards, (long long)n.stats, (long long)n.sketches, (long long)n.bands,
           (long long)n.full, (long long)n.selections);
    printf("\nforward  position  consumed  forced  sampled      taps\n");
    for (int f = 0; f < d->nforwards; f++) {
        const q4x_forward *w = &d->forwards[f];
        printf("%7d  %8d  %8d  %6s  %7d  %8d\n", w->index, w->pos0, w->n_ids, w->forced ? "yes" : "no", w->sampled,
               w->ntaps);
    }
    if (!verbose) return;
    printf("\n");
    for (int i = 0; i < d->nnodes; i++)
        printf("%-22s %-12s%s%s%s%s\n", d->nodes[i].name, d->nodes[i].op, d->nodes[i].is_public ? " public" : "",
               d->nodes[i].is_state ? " state" : "", d->nodes[i].levers && *d->nodes[i].levers ? " " : "",
               d->nodes[i].levers ? d->nodes[i].levers : "");
}

static int dump_info(const options *o, cmd_ctx *c) {
    q4x_err err = {0};
    q4x_dump *d = NULL;
    int code = CMD_OK;
    if (cmd_dump_read(o->file, &d, &err))
        code = cmd_fail(c, &err);
    else if (o->nodes)
        for (int i = 0; i < d->nnodes; i++)
            printf("%s%s\n", d->nodes[i].name,
                   d->nodes[i].is_public  ? " public"
                   : d->nodes[i].is_state ? " state"
                                          : "");
    else if (c->json)
        code = cmd_print_json(c, dump_json(d), 9);
    else
        dump_text(d, c->verbose);
    q4x_dump_free(d);
    return code;
}

/* Is it a dump? By its name, or by its first bytes; everything else is taken for a model. */
static int looks_like_dump(const char *path) {
    char magic[4] = "", with[4096];
    size_t len = strlen(path);
    struct stat st;
    if (len > 4 && !strcmp(path + len - 4, ".q4d")) return 1;
    if (stat(path, &st)) {
        int n = snprintf(with, sizeof with, "%s.q4d", path);
        return n > 0 && (size_t)n < sizeof with && !access(with, F_OK);
    }
    FILE *f = S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    size_t n = f ? fread(magic, 1, 4, f) : 0;
    if (f) fclose(f);
    return n == 4 && !memcmp(magic, "\x89Q4D", 4);
}

int cmd_info(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {{"nodes", 'n', 0, 0, "names of all nodes and states, one a line", 0}, {0}};
    static const struct argp argp = {own,
                                     option,
                                     "FILE",
                                     "Say what is in FILE: a GGUF model (any shard), a checkpoint folder, or a dump. "
                                     "With -v also every kind of tensor, or every node.",
                                     0,
                                     0,
                                     0};
    options o = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    if (!o.file) return cmd_misuse(c, "which file?");
    return looks_like_dump(o.file) ? dump_info(&o, c) : model_info(&o, c);
}
