/* info_text.c: `q4x info` of a model, for people: sections of aligned lines, at most 80 columns where words can be
 * broken. */
#include <stdio.h>
#include <string.h>

#include "bin/info.h"
#include "kernels/quant.h"
#include "lib/amount.h"

enum { WIDTH = 80 };

typedef unsigned long long ull;

static double bits(uint64_t bytes, uint64_t elements) {
    return 8.0 * (double)bytes / (double)(elements ? elements : 1);
}

static void field(const char *name, const char *text) {
    printf("%-14s", name);
    cmd_put_words(text, 14, 14, WIDTH);
}

/* ---- what it is ---- */

static void put_identity(const info_model *f) {
    char arch[100], path[600];
    const char *a = q4x_model_arch(f->m);
    printf("%s\narchitecture  %s (%s)\nfingerprint   %s\n", q4x_model_path(f->m),
           cmd_plain(a, strlen(a), arch, sizeof arch), q4x_model_container(f->m) == Q4X_GGUF ? "GGUF" : "safetensors",
           f->fingerprint);
    int n = q4x_model_nshards(f->m);
    for (int i = 0; i < n; i++) {
        const q4x_shard *s = q4x_model_shard(f->m, i);
        printf("%-13s %s, %llu bytes\n",
               i       ? ""
               : n > 1 ? "shards"
                       : "file",
               cmd_plain(s->path, strlen(s->path), path, sizeof path), (ull)s->size);
    }
}

static void put_tokenizer(const info_model *f) {
    int64_t chat = info_template(f->m);
    if (!f->tok) {
        printf("tokenizer     %s%s\n", f->tok_why ? "cannot be used: " : "none", f->tok_why ? f->tok_why : "");
    } else {
        const q4x_tok_facts *t = q4x_tok_about(f->tok);
        printf("tokenizer     %s, pattern %s, %d ids, %d of them added, %d merges", t->model, t->pre, t->ids, t->added,
               t->merges);
        if (t->bos >= 0) printf(", %sbos %d", t->add_bos ? "adds " : "", t->bos);
        if (t->eos >= 0) printf(", %seos %d", t->add_eos ? "adds " : "", t->eos);
        printf("%s%s\n", t->nfc ? ", NFC" : "", t->prefix_space ? ", a blank before pieces" : "");
    }
    if (chat < 0)
        printf("template      none\n");
    else
        printf("template      %lld bytes, not used here\n", (long long)chat);
}

static void put_weights(const info_model *f) {
    uint64_t elements = 0, bytes = 0;
    int64_t n = 0;
    for (int i = 0; i < f->ntypes; i++) {
        elements += f->type[i].elements;
        bytes += f->type[i].bytes;
        n += f->type[i].n;
    }
    printf("weights       %llu in %lld tensors, %s, %.2f bits each", (ull)elements, (long long)n, q4x_amount(bytes).s,
           bits(bytes, elements));
    if (f->ntypes)
        printf("; %.0f %% is %s", 100.0 * (double)f->type[0].bytes / (double)(bytes ? bytes : 1),
               k_quant_name(f->type[0].type));
    putchar('\n');
}

static void put_says(const info_model *f) {
    info_says says[INFO_SAYS];
    int n = info_says_of(f->m, says);
    for (int i = 0; i < n; i++) {
        char line[400];
        snprintf(line, sizeof line, "%s = %s", says[i].key, says[i].value);
        field(i ? "" : "says", line);
    }
}

/* ---- hyper-parameters ---- */

static void put_setting(const q4x_setting *s) {
    enum { AT = 32 };
    char value[80], from[220];
    q4x_setting_value(s, value, sizeof value);
    switch (s->from) {
    case Q4X_FROM_FILE: snprintf(from, sizeof from, "%s", s->key); break;
    case Q4X_FROM_DEFAULT: snprintf(from, sizeof from, "default, %s (no" CMD_HARD_BLANK "%s)", s->why, s->key); break;
    case Q4X_FROM_DERIVED: snprintf(from, sizeof from, "= %s", s->why); break;
    default: snprintf(from, sizeof from, "fixed: %s", s->why); break;
    }
    int n = printf("%-20s %-10s", s->name, value);
    if (n >= AT && n + 1 + (int)strlen(from) > WIDTH) {
        putchar('\n');
        n = 0;
    }
    n += printf("%*s", n ? 1 : AT, "");
    cmd_put_words(from, n, AT, WIDTH);
}

static void put_settings(const info_model *f) {
    printf("\n%-20s %-10s %s\n", "hyper-parameter", "value", "source");
    for (int i = 0; i < f->settings.n; i++) put_setting(&f->settings.s[i]);
}

/* ---- tensors ---- */

static void put_classes(const info_model *f) {
    uint64_t bytes = 0;
    for (int i = 0; i < f->nclasses; i++) bytes += f->cls[i].bytes;
    printf("\n%-11s %-8s %7s %14s %14s  %5s  %5s\n", "part", "type", "tensors", "weights", "bytes", "bits", "share");
    for (int i = 0; i < f->nclasses; i++) {
        const q4x_group *g = &f->cls[i];
        int again = i && !strcmp(g->name, f->cls[i - 1].name);
        printf("%-11s %-8s %7lld %14llu %14llu  %5.2f  %4.1f%%\n", again ? "" : g->name, k_quant_name(g->type),
               (long long)g->n, (ull)g->elements, (ull)g->bytes, bits(g->bytes, g->elements),
               100.0 * (double)g->bytes / (double)(bytes ? bytes : 1));
    }
}

static void put_types(const info_model *f, int verbose) {
    char name[200];
    printf("\n%-10s %8s %14s %14s  bits\n", "type", "tensors", "elements", "bytes");
    for (int i = 0; i < f->ntypes; i++)
        printf("%-10s %8lld %14llu %14llu  %.2f\n", k_quant_name(f->type[i].type), (long long)f->type[i].n,
               (ull)f->type[i].elements, (ull)f->type[i].bytes, bits(f->type[i].bytes, f->type[i].elements));
    if (!verbose) return;
    printf("\n%-56s %-8s %7s %14s\n", "tensor", "type", "count", "bytes");
    for (int i = 0; i < f->ngroups; i++)
        printf("%-56s %-8s %7lld %14llu\n", cmd_plain(f->group[i].name, strlen(f->group[i].name), name, sizeof name),
               k_quant_name(f->group[i].type), (long long)f->group[i].n, (ull)f->group[i].bytes);
}

static void put_odd(const info_model *f) {
    if (!f->nodd) return;
    printf("\nunusual\n");
    for (int i = 0; i < f->nodd; i++) {
        const q4x_odd_info *why = &q4x_odd_infos[f->odd[i].id];
        char line[600];
        snprintf(line, sizeof line, "%s: %s", f->odd[i].what, why->why);
        int n = printf("  %-16s ", why->word);
        cmd_put_words(line, n, 19, WIDTH);
    }
}

/* ---- memory ---- */

static void amount(const char *what, uint64_t bytes, const char *note) {
    int n = printf("  %-12s %13llu %8s  ", what, (ull)bytes, q4x_amount(bytes).s);
    cmd_put_words(note, n, 39, WIDTH);
}

static void put_uses(const q4x_need *d) {
    printf("\n%-12s %8s %15s %15s %12s %12s\n", "part", "tensors", "mapped", "read by rows", "copied", "not run");
    for (int c = 0; c < Q4X_TC_COUNT; c++) {
        const q4x_need_class *k = &d->cls[c];
        if (k->tensors)
            printf("%-12s %8lld %15llu %15llu %12llu %12llu\n", q4x_tensor_classes[c].name, (long long)k->tensors,
                   (ull)k->mapped, (ull)k->gathered, (ull)k->copied, (ull)k->unused);
    }
}

static void put_states(const q4x_need *d, char *buf, size_t size) {
    size_t at = 0;
    buf[0] = 0;
    for (int i = 0; i < Q4X_NEED_STATES; i++)
        if (d->state[i] && at < size)
            at += (size_t)snprintf(buf + at, size - at, "%s%s %llu", at ? ", " : "", q4x_need_states[i],
                                   (ull)d->state[i]);
}

static void put_need(const info_model *f, const q4x_need *d) {
    char states[200], line[300], place[24] = "cpu";
    uint64_t here, tables = d->cls[Q4X_TC_TABLE].gathered, rows = d->cls[Q4X_TC_EMBEDDING].gathered, copied = 0;
    for (int c = 0; c < Q4X_TC_COUNT; c++) copied += d->cls[c].copied;
    put_states(d, states, sizeof states);
    if (d->cuda) snprintf(place, sizeof place, "cuda/%d", f->device_index);
    printf("\n%s: %lld positions, %d rows a pass", place, (long long)d->n_ctx, d->tile);
    if (!d->cuda) printf(", %d threads", d->threads);
    putchar('\n');
    amount("weights", d->weights,
           d->cuda ? "as stored in the file; vectors as f32" : "mapped: read where they lie in the file");
    if (!d->cuda) amount("tables", tables + rows, "mapped: only rows that ids ask for");
    if (!d->cuda) amount("vectors", copied, "copied as f32");
    amount("states", d->states, states);
    amount("activations", d->arena, "one arena, laid out before the first op");
    amount("scratch", d->scratch, d->cuda ? "of the ops, and the ids of a pass" : "of all threads");
    amount("logits", d->logits, "one row");
    amount("= needs", d->own, d->cuda ? "of the device's memory" : "memory of its own, besides the map");
    amount("+ all rows", d->logits_all - d->logits,
           d->cuda ? "with --logits-rows all: the logits of a pass"
                   : "with --logits-rows all, as many as there are ids");
    if (d->cuda) amount("+ cuBLAS", d->library, "with lever gemm=cublas: what it works in");
    if (d->cuda) amount("+ pinned", d->pinned, "of the host, for what goes there and comes back");
    if (d->cuda) amount("+ pinned all", d->pinned_all - d->pinned, "of the host, with --logits-rows all");
    for (int mode = 0; d->cuda && mode < INFO_MODES; mode++) {
        char name[16], note[80];
        snprintf(name, sizeof name, "+ %s", info_modes[mode]);
        snprintf(note, sizeof note, "for taps in this mode, and %llu pinned", (ull)d->tap[mode].pinned);
        amount(name, d->tap[mode].device, note);
    }
    if (d->cuda && tables) {
        snprintf(line, sizeof line, "The n-gram table's %s stay in the file; rows of it are gathered on the host.",
                 q4x_amount(tables).s);
        printf("  ");
        cmd_put_words(line, 2, 2, WIDTH);
    }
    info_fits(d, f->device_index, line, sizeof line, &here);
    printf("  ");
    cmd_put_words(line, 2, 2, WIDTH);
}

static void put_plan(const info_model *f) {
    char line[200];
    const q4x_need *d = &f->need[0];
    printf("%s: what one sequence needs, in bytes\n", q4x_model_path(f->m));
    put_uses(d);
    for (int i = 0; i < f->nneeds; i++) put_need(f, &f->need[i]);
    snprintf(
        line, sizeof line,
        "A token reads %s of weights; a row of it adds %s (sketches) or %s (whole tensors) to a dump of the public "
        "nodes.",
        q4x_amount(d->token).s, q4x_amount(d->tap_sketch).s, q4x_amount(d->tap_full).s);
    putchar('\n');
    cmd_put_words(line, 0, 0, WIDTH);
}

/* ---- digests ---- */

static void put_hashes(const info_model *f) {
    for (int64_t i = 0; i < q4x_model_ntensors(f->m); i++) {
        const q4x_tensor *t = q4x_model_tensor(f->m, i);
        char hex[33], name[600], shape[100];
        size_t at = 0;
        q4x_hash_hex(&f->hash[i], hex);
        for (int k = 0; k < t->ndim || !k; k++)
            at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", k ? "x" : "", (long long)t->ne[k]);
        printf("%s %-7s %-16s %-7s %s\n", hex, k_quant_name(t->type), shape, f->use ? q4x_use_name(f->use[i]) : "-",
               cmd_plain(t->name, strlen(t->name), name, sizeof name));
    }
}

static void put_digests(const info_model *f) {
    char path[4200];
    for (int i = 0; i < f->ndigests; i++)
        printf("%s  %s\n", f->digest[i].sha256,
               cmd_plain(f->digest[i].path, strlen(f->digest[i].path), path, sizeof path));
}

void info_text(const info_model *f, const info_options *o, int verbose) {
    if (o->plan) put_plan(f);
    if (o->hash) put_hashes(f);
    if (o->sha256) put_digests(f);
    if (o->plan || o->hash || o->sha256) return;
    put_identity(f);
    put_tokenizer(f);
    if (f->net) {
        const q4x_plan *p = q4x_net_plan(f->net);
        printf("plan          %d nodes, %d states, context %lld\n", p->nnodes, p->nstates, (long long)p->ctx_max);
    } else {
        printf("not runnable  %s\n", f->why);
    }
    put_weights(f);
    put_says(f);
    if (f->has_settings) put_settings(f);
    put_classes(f);
    put_types(f, verbose);
    put_odd(f);
}
