/* info_dump.c: `q4x info` of a dump. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/info.h"
#include "lib/tapstat.h"

enum { WIDTH = 110 };

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

/* NaNs and infinities in the last logit row; -1: there is none. */
static int32_t nonfinite(const q4x_forward *w) {
    const int64_t last = (int64_t)(w->n_logits - 1) * w->vocab;
    return w->logits && w->n_logits > 0 ? q4x_nonfinite(w->logits + last, w->vocab) : -1;
}

/* whole 0: the dump ends before its end marker, so that nobody knows its content hash. */
static json_t *dump_json(const q4x_dump *d, int whole) {
    char hex[33];
    q4x_hash_hex(&d->content, hex);
    dump_counts n = count(d);
    json_t *forwards = json_array();
    for (int f = 0; f < d->nforwards; f++) {
        const q4x_forward *w = &d->forwards[f];
        const int32_t bad = nonfinite(w);
        json_t *odd = bad < 0 ? json_null() : json_integer(bad);
        json_array_append_new(forwards, json_pack("{s:i, s:o, s:i, s:b, s:i, s:o, s:i}", "forward", w->index, "ids",
                                                  cmd_ids(w->ids, w->n_ids), "position", w->pos0, "forced", w->forced,
                                                  "sampled", w->sampled, "nonfinite", odd, "taps", w->ntaps));
    }
    return json_pack("{s:s, s:s, s:i, s:s?, s:O, s:O?, s:i, s:o, s:{s:I, s:I, s:I, s:I, s:I, s:I}}", "kind", "dump",
                     "path", d->path, "version", d->version, "content", whole ? hex : NULL, "header", d->header, "tail",
                     d->tail, "nodes", d->nnodes, "forwards", forwards, "records", "taps", (json_int_t)n.taps, "stats",
                     (json_int_t)n.stats, "sketches", (json_int_t)n.sketches, "bands", (json_int_t)n.bands, "full",
                     (json_int_t)n.full, "selections", (json_int_t)n.selections);
}

/* Which rows were sketched, from the header's [row0, nrows] (q4x_tap_opts); malloc'd, NULL: it says nothing of ours. */
static char *rows_text(const json_t *header) {
    const char *mode = json_string_value(json_object_get(header, "mode"));
    const json_t *j = json_object_get(header, "rows");
    const json_t *a = json_array_get(j, 0), *b = json_array_get(j, 1);
    const int64_t row0 = json_integer_value(a), n = json_integer_value(b);
    char text[80];
    if (json_array_size(j) != 2 || !json_is_integer(a) || !json_is_integer(b)) return NULL;
    if (mode && !strcmp(mode, "hash"))
        snprintf(text, sizeof text, "none");
    else if (n < 0)
        snprintf(text, sizeof text, "all");
    else if (n == 0 || row0 < 0)
        snprintf(text, sizeof text, "last %lld", (long long)(n ? n : Q4X_SKETCH_ROWS));
    else if (n == 1)
        snprintf(text, sizeof text, "row %lld", (long long)row0);
    else if (n <= INT64_MAX - row0)
        snprintf(text, sizeof text, "%lld to %lld", (long long)row0, (long long)(row0 + n - 1));
    else
        return NULL;
    return strdup(text);
}

/* A line a key, folded: what is to be read by machines is in --json. */
static void print_keys(json_t *object) {
    const char *key;
    json_t *v;
    json_object_foreach(object, key, v) {
        char *text = strcmp(key, "rows") ? NULL : rows_text(object);
        if (!text) text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        const int at = printf("%-10s ", key);
        cmd_put_words(text ? text : "?", at, 11, WIDTH);
        free(text);
    }
}

static void dump_text(const q4x_dump *d, int whole, int verbose) {
    char hex[33];
    q4x_hash_hex(&d->content, hex);
    dump_counts n = count(d);
    printf("%s\ncontent    %s (format %d)\n", d->path, whole ? hex : "unknown: cut short", d->version);
    print_keys(d->header);
    print_keys(d->tail);
    printf("records    %lld taps of %d nodes in %d forwards: %lld statistics, %lld sketches, %lld bands, %lld full, "
           "%lld selections\n",
           (long long)n.taps, d->nnodes, d->nforwards, (long long)n.stats, (long long)n.sketches, (long long)n.bands,
           (long long)n.full, (long long)n.selections);
    printf("\nforward  position  consumed  forced  sampled  nonfinite      taps\n");
    for (int f = 0; f < d->nforwards; f++) {
        const q4x_forward *w = &d->forwards[f];
        printf("%7d  %8d  %8d  %6s  %7d  ", w->index, w->pos0, w->n_ids, w->forced ? "yes" : "no", w->sampled);
        const int32_t bad = nonfinite(w);
        if (bad < 0)
            printf("%9s", "-");
        else
            printf("%9d", bad);
        printf("  %8d\n", w->ntaps);
    }
    if (!verbose) return;
    printf("\n");
    for (int i = 0; i < d->nnodes; i++)
        printf("%-22s %-12s%s%s%s%s\n", d->nodes[i].name, d->nodes[i].op, d->nodes[i].is_public ? " public" : "",
               d->nodes[i].is_state ? " state" : "", d->nodes[i].levers && *d->nodes[i].levers ? " " : "",
               d->nodes[i].levers ? d->nodes[i].levers : "");
}

static int dump_nodes(const q4x_dump *d, cmd_ctx *c) {
    json_t *list = c->json ? json_array() : NULL;
    for (int i = 0; i < d->nnodes; i++) info_node(list, d->nodes[i].name, d->nodes[i].is_public, d->nodes[i].is_state);
    return c->json ? cmd_print_json(c, list, 9) : CMD_OK;
}

/* Of a dump that is cut short: what is whole, after the line that says so, and still the exit code of a bad file. */
int info_dump(const info_options *o, cmd_ctx *c) {
    q4x_err err = {0};
    q4x_dump *d = NULL;
    const int whole = !cmd_dump_read(o->file, &d, &err);
    int code = whole ? CMD_OK : cmd_fail(c, &err);
    if (d && o->nodes)
        code |= dump_nodes(d, c);
    else if (d && c->json)
        code |= cmd_print_json(c, dump_json(d, whole), 9);
    else if (d)
        dump_text(d, whole, c->verbose);
    q4x_dump_free(d);
    return code;
}
