/* text.c: the summary for the terminal: at most 40 lines, labels in one column, the verdict last. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bisect/case.h"
#include "bisect/fmt.h"

enum { MAX_LINES = 40, LABEL = 10 };

typedef struct {
    const bis_case *c;
    FILE *out;
    int lines, verbose;
} pen;

static void line(pen *w, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void line(pen *w, const char *label, const char *fmt, ...) {
    va_list ap;
    fprintf(w->out, "%-*s", LABEL, label);
    va_start(ap, fmt);
    vfprintf(w->out, fmt, ap);
    va_end(ap);
    fputc('\n', w->out);
    w->lines++;
}

/* A sentence under a label, folded; at most `most` lines: what is cut says so, and how to see it. */
static void folded(pen *w, const char *label, int most, const char *text) {
    enum { WIDTH = 100 };
    const char *const cut = w->verbose ? " ... (more in the report)" : " ... (all of it with -v)";
    for (int k = 0; *text && k < most; k++) {
        const size_t all = strlen(text), wide = WIDTH - LABEL;
        const int ends = k + 1 == most && all > wide;
        const size_t room = ends ? wide - strlen(cut) : wide;
        size_t n = all;
        if (n > room) {
            for (n = room; n > 0 && text[n] != ' '; n--) {}
            if (!n) n = strcspn(text, " ");
        }
        line(w, k ? "" : label, "%.*s%s", (int)n, text, ends ? cut : "");
        text += n;
        while (*text == ' ') text++;
    }
}

static const char *name(const pen *w, int32_t n) {
    return w->c->pair->a->nodes[n].name;
}

static void arms(pen *w) {
    const bis_header *h = &w->c->header;
    for (int i = 0; i < 2; i++) {
        const char *dev = bis_header_str(i ? w->c->rq.b : w->c->rq.a, "arm.device");
        fprintf(w->out, "%-*s%s (%s) ", LABEL, i ? "arm B" : "arm A", bis_arm(w->c, i).s,
                dev ? bis_printable(dev).s : "unknown device");
        bis_arm_levers(w->c, i, w->out);
        fputc('\n', w->out);
        w->lines++;
    }
    if (!h->nlever) line(w, "lever", "none: the arms declare no difference%s", h->unknown ? ", not all they are" : "");
    for (int32_t i = 0; i < h->nlever && i < 4; i++)
        line(w,
             i               ? ""
             : h->nlever > 1 ? "levers"
                             : "lever",
             "%s: %s | %s%s", h->lever[i].name, h->lever[i].a, h->lever[i].b,
             i == 3 && h->nlever > 4 ? " (and more)" : "");
}

static void structure(pen *w) {
    const bis_pair *p = w->c->pair;
    if (!p || p->a->nforwards < 1) return;
    line(w, "structure", "%d layers, %d nodes and %d states a forward, %d forwards, prefill %d", p->layers,
         p->nn - p->nstates, p->nstates, p->a->nforwards, p->a->forwards[0].n_ids);
}

static void controls(pen *w) {
    const bis_case *c = w->c;
    const bis_count a = bis_floor_count(&c->floor_a), b = bis_floor_count(&c->floor_b);
    line(w, "controls", "floor A %s, floor B %s, perturbation %s, read-twice %s", bis_count_text(&a, 1).s,
         bis_count_text(&b, 1).s, bis_count_text(c->perturbation, 2).s, bis_count_text(c->read_twice, 2).s);
}

static void compared(pen *w) {
    const bis_pair *p = w->c->pair;
    line(w, "compared", "forwards %s: %lld of %lld taps identical, %lld of %lld logit rows",
         bis_range(0, p->ncomparable - 1).s, (long long)p->identical, (long long)p->compared,
         (long long)w->c->logit_rows_equal, (long long)w->c->logit_rows);
    if (p->nonly_a + p->nonly_b) line(w, "", "only in A: %d nodes, only in B: %d", p->nonly_a, p->nonly_b);
    if (!p->nexcluded) return;
    const bis_excluded *x = &p->excluded[0];
    line(w, "excluded", "forwards %s: %s at %d (%d | %d)", bis_range(x->forward, p->nf - 1).s, bis_reason_text(x->why),
         x->forward, x->id_a, x->id_b);
}

static void ids_line(pen *w, const char *label, const q4x_dump *d, int32_t mark) {
    fprintf(w->out, "%-*s", LABEL, label);
    for (int32_t f = 0; f < d->nforwards && f < 12; f++)
        fprintf(w->out, f == mark ? "%s[%d]" : "%s%d", f ? " " : "", d->forwards[f].sampled);
    fprintf(w->out, d->nforwards > 12 ? " (%d in all)\n" : "\n", d->nforwards);
    w->lines++;
}

/* What the ids that differ behind the first one are, as the report labels each (bis_id_label). */
static const char *later(const bis_case *c) {
    const bis_pair *p = c->pair;
    int root = 0, downstream = 0;
    for (int32_t f = c->choices.first + 1; f < p->nf; f++) {
        if (BIS_FA(p, f)->sampled == BIS_FB(p, f)->sampled) continue;
        if (f < p->ncomparable)
            root = 1;
        else
            downstream = 1;
    }
    return root && downstream ? "; later ones are ROOT or downstream"
           : root             ? "; later ones are ROOT too"
           : downstream       ? "; later ones are downstream"
                              : "";
}

static void tokens(pen *w) {
    const bis_choices *k = &w->c->choices;
    ids_line(w, "ids A", w->c->rq.a, k->first);
    ids_line(w, "ids B", w->c->rq.b, k->first);
    if (k->first < 0) {
        line(w, "", "common prefix %d, no disagreement in comparable forwards", k->prefix);
        return;
    }
    const bis_choice *x = &k->choice[k->first];
    line(w, "", "common prefix %d, first disagreement at id %d (%d | %d): ROOT%s", k->prefix, k->first, x->a, x->b,
         later(w->c));
    if (!x->logits) {
        line(w, "decision", "logit rows ABSENT: what decides the id cannot be said");
        return;
    }
    line(w, "decision", "contrast A %s, B %s; margin A %s, B %s; max |dz| %s", bis_num(x->contrast_a).s,
         bis_num(x->contrast_b).s, bis_num(x->margin_a).s, bis_num(x->margin_b).s, bis_num(x->max_dz).s);
    line(w, "", "s %s (n = %d); a tie is within 3 s = %s, or exact%s", bis_num(k->s).s, k->s_n, bis_num(3 * k->s).s,
         x->tie_a || x->tie_b ? ": an arm chose between equal values" : "");
}

static void one_node(pen *w, const char *label, int32_t f, int32_t n) {
    const bis_cell *x = bis_map_cell(&w->c->map, w->c->pair, f, n);
    const int gain = !isnan(x->gain);
    line(w, label, "%-18s f%-3d rel L2 %-31s %s%s%s", bis_printable(name(w, n)).s, f,
         w->c->pair->a->nodes[n].is_ids ? "(ids)" : bis_interval(x->dist).s, bis_cell_word(x), gain ? ", gain " : "",
         gain ? bis_num(x->gain).s : "");
}

/* The lines below a named node: its inputs, its band. */
static void about(pen *w, int32_t f, int32_t n) {
    const bis_cell *x = bis_map_cell(&w->c->map, w->c->pair, f, n);
    const char *in = x->in == BIS_SAME ? "equal by bits" : x->in == BIS_DIFF ? "differ" : "not known to be equal";
    if (x->dist && x->rms >= 0 && bis_dist_ranked(x->dist))
        line(w, "", "  inputs %s; %s of the pair's rms band, %s of hard", in, bis_percent(x->dist->d / x->rms).s,
             bis_percent(x->dist->d / x->hard).s);
    else
        line(w, "", "  inputs %s; %s", in, x->rms >= 0 ? "share of the band NOT MEASURED" : "band not recorded");
}

static void nodes(pen *w) {
    const bis_map *m = &w->c->map;
    int32_t f[5], n[5];
    if (m->first_f < 0) {
        line(w, "first", "no tap differs");
        return;
    }
    one_node(w, "first", m->first_f, m->first_n);
    about(w, m->first_f, m->first_n);
    if (m->out_f < 0) {
        line(w, "out", "no node out of its band (%lld sources, all within)", (long long)m->nsources);
    } else if (m->out_f != m->first_f || m->out_n != m->first_n) {
        one_node(w, "out", m->out_f, m->out_n);
        about(w, m->out_f, m->out_n);
    }
    if (m->unjudged)
        line(w, "unjudged", "%lld of %lld differences: inherited, distances of their inputs not recorded",
             (long long)m->unjudged, (long long)m->ndiff);
    for (int32_t i = 0; i < m->noutliers && i < 2; i++) {
        const bis_outlier *o = &m->outlier[i];
        line(w, i ? "" : "outlier", "%s f%d: gain %s, median of its kind %s (n = %lld)%s",
             bis_printable(name(w, o->node)).s, o->forward, bis_num(o->gain).s, bis_num(o->median).s, (long long)o->n,
             i == 1 && m->noutliers > 2 ? "; more in the report" : "");
    }
    int k = bis_worst(w->c, f, n, w->verbose ? 5 : 3);
    for (int i = 0; i < k; i++) one_node(w, i ? "" : "largest", f[i], n[i]);
}

static void flips(pen *w) {
    const bis_flips *s = &w->c->flips;
    int shown = 0;
    for (int32_t i = 0; i < s->nrows && shown < 6; i++) {
        const bis_flip_row *r = &s->row[i];
        char more[64] = "";
        if (!r->flips && !r->unrecorded && !r->order) continue;
        if (r->order) snprintf(more, sizeof more, ", %lld in another order", (long long)r->order);
        line(w, shown++ ? "" : "flips", "f%-3d %-13s %lld of %lld flip, %lld at a tie, %lld ids swapped%s%s%s",
             r->forward, bis_printable(r->kind).s, (long long)r->flips, (long long)r->slots, (long long)r->tie_flips,
             (long long)r->swapped, more, r->unrecorded ? ", ids not recorded" : "",
             r->comparable ? "" : " (excluded)");
    }
    if (s->nrows && !shown) line(w, "flips", "none");
}

/* The first thing to record next, with what it lists. */
static void next(pen *w) {
    const bis_case *c = w->c;
    const int most = w->verbose ? c->next_list : 4;
    int k = 0;
    folded(w, "next", w->verbose ? 6 : 2, c->next.line[0]);
    while (k < c->next_list && k < most && w->lines < MAX_LINES - 6) folded(w, "", 2, c->next.line[++k]);
    if (k < c->next_list)
        line(w, "", "... %d more (%s)", c->next_list - k, w->verbose ? "in the report" : "all of them with -v");
}

/* What can be pasted is not folded. */
static void commands(pen *w) {
    for (int arm = 0; arm < 2; arm++) {
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        if (!f) return;
        int any = bis_again(w->c, arm, 1, f);
        fclose(f);
        if (any && text) line(w, "", "%s", text);
        free(text);
    }
}

void bis_text(const bis_case *c, const bis_names *names, int verbose, FILE *out) {
    pen w = {.c = c, .out = out, .verbose = verbose};
    (void)names;
    arms(&w);
    structure(&w);
    if (c->compared) {
        controls(&w);
        compared(&w);
        tokens(&w);
        nodes(&w);
        flips(&w);
    }
    for (int i = 0; i < c->notes.n && w.lines < MAX_LINES - 7; i++)
        folded(&w, i ? "" : "note", verbose ? 9 : 2, c->notes.line[i]);
    /* where silence would pass for a proof */
    const int quiet = c->verdict == BIS_V_WITHIN_BAND || c->verdict == BIS_V_TIE || c->verdict == BIS_V_TOKENS_DIFFER;
    if (c->limits.n && quiet && w.lines < MAX_LINES - 8) folded(&w, "not shown", verbose ? 6 : 3, c->limits.line[0]);
    if (c->next.n && w.lines < MAX_LINES - 7) next(&w);
    commands(&w);
    char *why = NULL;
    if (asprintf(&why, "%s%s%s%s", bis_reason_text(c->reason), c->where[0] ? " (" : "", c->where,
                 c->where[0] ? ")" : "") >= 0)
        folded(&w, "why", 3, why);
    free(why);
    fprintf(out, "verdict: %s (%s) exit %d\n", c->name, bis_reason_word(c->reason), c->exit);
}
