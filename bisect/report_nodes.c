/* report_nodes.c: the first differences, the depth profile, gains and their outliers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/report.h"

static const char *name(const bis_case *c, int32_t n) {
    return c->pair->a->nodes[n].name;
}

static void put_name(FILE *o, const bis_case *c, int32_t n) {
    bis_md(o, bis_printable(name(c, n)).s);
}

static void describe(const bis_case *c, int32_t f, int32_t n, FILE *o) {
    const bis_cell *x = bis_map_cell(&c->map, c->pair, f, n);
    const bis_dist *d = x->dist;
    fprintf(o, "- inputs: %s%s.\n",
            x->in == BIS_SAME   ? "equal by bits: the difference was added here"
            : x->in == BIS_DIFF ? "differ: the difference is at least partly inherited"
                                : "not known to be equal",
            x->guessed ? " (inputs are not recorded; everything before stands for them)" : "");
    if (d && d->how != BIS_D_NONE) {
        fprintf(o, "- relative L2: %s, %s", bis_interval(d).s, bis_how_text(d).s);
        if (d->partial && bis_dist_ranked(d)) fprintf(o, " (rows %d to %d)", d->row0, d->row0 + d->nrows - 1);
        fprintf(o, "; divided by the norm of arm A, %s.\n", bis_num(d->norm).s);
    }
    if (d && d->ndiff >= 0)
        fprintf(o, "- elements that differ: %lld; largest %s; largest in ulps of %s: %lld.\n", (long long)d->ndiff,
                bis_num(d->max_abs).s, d->ulp16 ? "bf16" : "f32", (long long)d->ulp_max);
    if (d && !isnan(d->share16))
        fprintf(o, "- concentration: %s of the squared difference in its 16 largest %s%s.\n", bis_percent(d->share16).s,
                d->width ? "buckets" : "elements", d->width == 256 ? " of 256 (32 % when dense)" : "");
    const q4x_tap *a = c->pair->ta[bis_at(c->pair, f, n)], *b = c->pair->tb[bis_at(c->pair, f, n)];
    if (a->has_stats && b->has_stats && a->stats.n && b->stats.n)
        fprintf(o, "- values on the bf16 grid: %s of arm A, %s of arm B; on the f16 grid: %s and %s.\n",
                bis_percent((double)a->stats.on_bf16 / (double)a->stats.n).s,
                bis_percent((double)b->stats.on_bf16 / (double)b->stats.n).s,
                bis_percent((double)a->stats.on_f16 / (double)a->stats.n).s,
                bis_percent((double)b->stats.on_f16 / (double)b->stats.n).s);
    if (d && bis_dist_ranked(d) && x->rms >= 0)
        fprintf(o, "- the pair's band: rms %s, hard %s; the difference is %s of rms and %s of hard.\n",
                bis_num(x->rms).s, bis_num(x->hard).s, bis_percent(d->d / x->rms).s, bis_percent(d->d / x->hard).s);
    else if (d && d->partial && x->rms >= 0)
        fprintf(o, "- the pair's band: rms %s, hard %s; the difference's share of it is NOT MEASURED.\n",
                bis_num(x->rms).s, bis_num(x->hard).s);
    else
        fprintf(o, "- the pair's band: not recorded.\n");
    if (x->why != BIS_R_none) bis_fold(o, "- ", "  ", bis_reason_text(x->why));
}

void bis_report_first(const bis_case *c, FILE *o) {
    const bis_map *m = &c->map;
    fprintf(o, "## First difference\n\n");
    if (m->first_f < 0) {
        fprintf(o, "No tap of a comparable forward differs.\n\n");
        return;
    }
    fprintf(o, "First different node: **");
    put_name(o, c, m->first_n);
    fprintf(o, "** in forward %d.\n\n", m->first_f);
    describe(c, m->first_f, m->first_n, o);
    fputc('\n', o);
    if (m->out_f < 0) {
        fprintf(o, "No node is out of its band: %lld sources (nodes that differ on equal inputs), all within.\n\n",
                (long long)m->nsources);
        return;
    }
    const int added = bis_map_cell(m, c->pair, m->out_f, m->out_n)->in == BIS_SAME;
    fprintf(o, "First out-of-band node: **");
    put_name(o, c, m->out_n);
    fprintf(o, "** in forward %d (%s).\n\n", m->out_f, added ? "ADDED" : "by its gain, CONTAMINATED");
    if (m->out_f != m->first_f || m->out_n != m->first_n) {
        describe(c, m->out_f, m->out_n, o);
        fputc('\n', o);
    }
    fprintf(o, "Sources: %lld nodes differ on equal inputs; %lld within band, %lld not.\n\n", (long long)m->nsources,
            (long long)m->nwithin, (long long)m->nout);
}

static void node_row(const bis_case *c, int32_t f, int32_t n, FILE *o) {
    const bis_cell *x = bis_map_cell(&c->map, c->pair, f, n);
    const bis_dist *d = x->dist;
    const int band = d && bis_dist_ranked(d) && x->rms > 0; /* 0: an op that only moves values allows none of its own */
    fprintf(o, "| %d | ", f);
    put_name(o, c, n);
    fprintf(o, " | %s | %s | %s | %s | %s | %s | %s |\n", d ? bis_interval(d).s : "ids", d ? bis_how_text(d).s : "-",
            isnan(x->gain) ? "-" : bis_num(x->gain).s, band ? bis_percent(d->d / x->rms).s : "-",
            band ? bis_percent(d->d / x->hard).s : "-", d ? bis_percent(d->share16).s : "-", bis_cell_word(x));
}

static void node_head(FILE *o) {
    fprintf(o, "| f | node | relative L2 (95 %%) | from | gain | of rms | of hard | in 16 | |\n"
               "|--:|---|---|---|--:|--:|--:|--:|---|\n");
}

void bis_report_nodes(const bis_case *c, FILE *o) {
    enum { MAX = 16 };
    int32_t f[MAX], n[MAX];
    int k = bis_differing(c, f, n, MAX);
    if (!k) return;
    fprintf(o, "## Differing nodes\n\n");
    bis_fold(o, "", "",
             "In the order of execution. Relative L2 divides by the norm of arm A; gain is relative to the largest "
             "distance of the inputs; `in 16` is the share of the squared difference in its 16 largest parts.");
    fprintf(o, "\nThe first %d of %lld:\n\n", k, (long long)c->map.ndiff);
    node_head(o);
    for (int i = 0; i < k; i++) node_row(c, f[i], n[i], o);
    k = bis_worst(c, f, n, 10);
    if (k) {
        fprintf(o, "\nThe largest:\n\n");
        node_head(o);
        for (int i = 0; i < k; i++) node_row(c, f[i], n[i], o);
    }
    fputc('\n', o);
}

/* Height of a value on a logarithmic scale from lo to hi, in eighths. */
static const char *bar(double x, double lo, double hi) {
    static const char *const block[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    if (isnan(x)) return "?";
    if (!(x > 0)) return ".";
    if (!(hi > lo)) return block[0];
    int k = (int)(8 * log(x / lo) / log(hi / lo));
    return block[k < 0 ? 0 : k > 7 ? 7 : k];
}

void bis_report_depth(const bis_case *c, FILE *o) {
    enum { SHOWN = 16 };
    const bis_pair *p = c->pair;
    double *rel = calloc((size_t)p->layers * SHOWN + 1, sizeof *rel), lo = INFINITY, hi = 0;
    int32_t nf = p->ncomparable < SHOWN ? p->ncomparable : SHOWN;
    int any = 0;
    if (!rel) return;
    for (int32_t f = 0; f < nf; f++) any |= bis_depth(c, f, rel + (size_t)f * (size_t)p->layers);
    for (int32_t i = 0; i < nf * p->layers; i++)
        if (rel[i] > 0 && isfinite(rel[i])) {
            lo = rel[i] < lo ? rel[i] : lo;
            hi = rel[i] > hi ? rel[i] : hi;
        }
    if (any && p->layers) {
        char text[200];
        snprintf(text, sizeof text,
                 "Relative L2 of the residual stream after each layer (`%s`), one line a forward, on a common "
                 "logarithmic scale; `.` is equal by bits, `?` not known.",
                 bis_stream(p));
        fprintf(o, "## Growth with depth\n\n");
        bis_fold(o, "", "", text);
        fprintf(o, "\n```text\n");
        if (hi > 0) fprintf(o, "scale %s .. %s\n", bis_num(lo).s, bis_num(hi).s);
        for (int32_t f = 0; f < nf; f++) {
            const double *r = rel + (size_t)f * (size_t)p->layers;
            fprintf(o, "f%-3d ", f);
            for (int32_t l = 0; l < p->layers && l < 80; l++) fputs(bar(r[l], lo, hi), o);
            fprintf(o, "  first %s  mid %s  last %s\n", bis_num(r[0]).s, bis_num(r[p->layers / 2]).s,
                    bis_num(r[p->layers - 1]).s);
        }
        fprintf(o, "```\n");
        if (p->layers > 80) fprintf(o, "\nLayers from 80 on are not drawn.\n");
        if (p->ncomparable > nf) fprintf(o, "\nForwards %d to %d are not drawn.\n", nf, p->ncomparable - 1);
        fputc('\n', o);
    }
    free(rel);
}

static void outlier_row(const bis_case *c, const bis_outlier *x, FILE *o) {
    int32_t at[4];
    int k = bis_map_between(&c->map, c->pair, x->forward, x->node, at, 4);
    fprintf(o, "| %d | ", x->forward);
    put_name(o, c, x->node);
    if (x->row < 0)
        fprintf(o, " | all | %s | %s (n = %lld) | ", bis_num(x->gain).s, bis_num(x->median).s, (long long)x->n);
    else
        fprintf(o, " | %d%s | %s | %s (n = %lld) | ", x->row, x->nrows > 1 ? " and others" : "", bis_num(x->gain).s,
                bis_num(x->median).s, (long long)x->n);
    for (int i = 0; i < k; i++) {
        fputs(i ? ", " : "", o);
        put_name(o, c, at[i]);
    }
    fprintf(o, " |\n");
}

void bis_report_gains(const bis_case *c, FILE *o) {
    const bis_map *m = &c->map;
    int any = 0;
    for (int32_t i = 0; i < m->ngains; i++) any |= m->gain[i].n > 0 || m->gain[i].row_n > 0;
    if (!any) return;
    fprintf(o, "## Gains\n\n");
    bis_fold(
        o, "", "",
        "Median of the relative distance of the output over that of the inputs, by kind of node, over layers "
        "and comparable forwards, and the same of single rows. The limit is 8 (1 + 12 / n) times the median, n "
        "counting tensors, or 3 standard deviations of the logarithm where the kind scatters more; at least 2. Rows "
        "behind a selection that differs are left out.");
    fprintf(o, "\n| node | median | limit | n | of rows: median | limit | n |\n|---|--:|--:|--:|--:|--:|--:|\n");
    for (int32_t i = 0, shown = 0; i < m->ngains && shown < 40; i++) {
        const bis_gain *g = &m->gain[i];
        if (!g->n && !g->row_n) continue;
        shown++;
        fprintf(o, "| ");
        bis_md(o, bis_printable(g->kind).s);
        fprintf(o, " | %s | %s | %lld | %s | %s | %lld |\n", g->n ? bis_num(g->median).s : "-",
                g->n ? bis_num(g->limit).s : "-", (long long)g->n, g->row_n ? bis_num(g->row_median).s : "-",
                g->row_n ? bis_num(g->row_limit).s : "-", (long long)g->row_n);
    }
    fputc('\n', o);
    if (!m->noutliers) {
        fprintf(o, "No gain is above the limit of its kind.\n\n");
        return;
    }
    fprintf(o, "Outliers, above the limit of their kind:\n\n");
    fprintf(o, "| f | node | row | gain | median | judged from |\n|--:|---|--:|--:|--:|---|\n");
    for (int32_t i = 0; i < m->noutliers && i < 12; i++) outlier_row(c, &m->outlier[i], o);
    if (m->noutliers > 12) fprintf(o, "\n%d more outliers follow.\n", m->noutliers - 12);
    fputc('\n', o);
}
