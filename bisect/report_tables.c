/* report_tables.c: structure, comparability, tokens, selections, decisions. */
#include <math.h>
#include <string.h>

#include "bisect/report.h"

static int64_t count_taps(const q4x_dump *d) {
    int64_t n = 0;
    for (int32_t f = 0; f < d->nforwards; f++) n += d->forwards[f].ntaps;
    return n;
}

static int32_t count_rows(const q4x_dump *d) {
    int32_t n = 0;
    for (int32_t f = 0; f < d->nforwards; f++) n += d->forwards[f].logits != NULL;
    return n;
}

/* Names that one arm records alone, grouped by kind. */
static void only(FILE *o, const char *arm, const q4x_dump *d, const int32_t *at, int32_t n) {
    if (!n) return;
    fprintf(o, "\nOnly in arm %s: %d nodes: ", arm, n);
    for (int32_t i = 0; i < n && i < 12; i++) {
        fputs(i ? ", " : "", o);
        bis_md(o, bis_printable(d->nodes[at[i]].name).s);
    }
    fprintf(o, "%s\n", n > 12 ? ", ..." : ".");
}

void bis_report_structure(const bis_case *c, FILE *o) {
    const q4x_dump *d[2] = {c->rq.a, c->rq.b};
    fprintf(o, "## Structure\n\nDerived from the records.\n\n|   | arm A | arm B |\n|---|--:|--:|\n");
    fprintf(o, "| forwards | %d | %d |\n", d[0]->nforwards, d[1]->nforwards);
    fprintf(o, "| ids of the prefill | %d | %d |\n", d[0]->nforwards ? d[0]->forwards[0].n_ids : 0,
            d[1]->nforwards ? d[1]->forwards[0].n_ids : 0);
    fprintf(o, "| nodes and states described | %d | %d |\n", d[0]->nnodes, d[1]->nnodes);
    fprintf(o, "| taps recorded | %lld | %lld |\n", (long long)count_taps(d[0]), (long long)count_taps(d[1]));
    fprintf(o, "| logit rows | %d | %d |\n", count_rows(d[0]), count_rows(d[1]));
    if (c->pair) {
        const bis_pair *p = c->pair;
        only(o, "A", p->a, p->only_a, p->nonly_a);
        only(o, "B", p->b, p->only_b, p->nonly_b);
        if (c->compared)
            fprintf(o, "\n%d layers; a forward has %d nodes (%d of them public) and %d states.\n", p->layers,
                    p->nn - p->nstates, p->npublic, p->nstates);
    }
    fputc('\n', o);
}

void bis_report_comparability(const bis_case *c, FILE *o) {
    const bis_pair *p = c->pair;
    fprintf(o, "## Comparability\n\n");
    bis_fold(o, "", "",
             "A forward is comparable when both arms consumed the same ids at the same positions after the same "
             "prefix. The others are left out of every number below, unless a line says so.");
    fprintf(o, "\nComparable: forwards %s of %d.\n", bis_range(0, p->ncomparable - 1).s, p->nf);
    if (p->nexcluded) {
        fprintf(o, "\n| excluded | why | first differing id, A | B |\n|--:|---|--:|--:|\n");
        for (int32_t i = 0; i < p->nexcluded && i < 16; i++) {
            const bis_excluded *x = &p->excluded[i];
            fprintf(o, "| %d | %s | ", x->forward, bis_reason_text(x->why));
            fprintf(o, x->id_a < 0 ? "- | " : "%d | ", x->id_a);
            fprintf(o, x->id_b < 0 ? "- |\n" : "%d |\n", x->id_b);
        }
        if (p->nexcluded > 16)
            fprintf(o, "\nForwards up to %d are excluded likewise.\n", p->excluded[p->nexcluded - 1].forward);
    }
    if (c->compared)
        fprintf(o, "\n%lld of %lld taps and states are equal by bits, and %lld of %lld logit rows.\n",
                (long long)p->identical, (long long)p->compared, (long long)c->logit_rows_equal,
                (long long)c->logit_rows);
    if (c->compared && p->unaligned)
        fprintf(o, "%lld more could not be compared (head order).\n", (long long)p->unaligned);
    fputc('\n', o);
}

static int forced(const q4x_forward *a, const q4x_forward *b) {
    return a->forced || b->forced;
}

void bis_report_tokens(const bis_case *c, FILE *o) {
    const bis_pair *p = c->pair;
    const bis_choices *k = &c->choices;
    const int32_t lead = k->first < 0 ? 0 : k->first;
    int any_forced = 0;
    fprintf(o, "## Tokens\n\nCommon prefix: %d of %d ids.", k->prefix, p->nf);
    if (k->first >= 0)
        fprintf(o, " First disagreement: id %d, %d against %d.\n", k->first, k->choice[k->first].a,
                k->choice[k->first].b);
    else
        fprintf(o, " No disagreement in comparable forwards.\n");
    fprintf(o, "\n| id | arm A | arm B | forward | label |\n|--:|--:|--:|---|---|\n");
    for (int32_t f = 0; f < p->nf; f++) {
        any_forced |= f > 0 && forced(BIS_FA(p, f), BIS_FB(p, f));
        if (p->nf > 40 && (f > lead + 16 || (f + 4 < lead && f > 3)) && f + 1 < p->nf) {
            if (f == lead + 17 || f == 4) fprintf(o, "| ... | | | | |\n");
            continue;
        }
        fprintf(o, "| %d | %d | %d | %s%s | %s |\n", f, BIS_FA(p, f)->sampled, BIS_FB(p, f)->sampled,
                f < p->ncomparable ? "comparable" : "excluded",
                f && forced(BIS_FA(p, f), BIS_FB(p, f)) ? ", forced" : "", bis_id_label(c, f).s);
    }
    fputc('\n', o);
    if (any_forced) {
        bis_fold(
            o, "", "",
            "Forced: the consumed ids were given, not sampled, so every disagreement of a comparable forward is one "
            "of its own.");
        fputc('\n', o);
    }
    if (k->ndiffer && p->nexcluded) {
        bis_fold(
            o, "", "",
            "ROOT is a disagreement on equal inputs. DOWNSTREAM(f) follows from the one at id f. Equal ids after it "
            "are coincidental: their inputs differ.");
        fputc('\n', o);
    }
}

static void margins_table(const bis_flips *s, FILE *o) {
    static const char *const name[BIS_NBIN] = {"0 (tie)", "up to 1", "up to 2", "up to 4", "up to 8", "more"};
    int64_t all = 0;
    for (int i = 0; i < BIS_NBIN; i++) all += s->bin_slots[i];
    if (!all) return;
    fprintf(o, "\nFlips by the margin at the cut in arm A, in steps of the bf16 grid, comparable forwards:\n\n");
    fprintf(o, "| margin | selections | flips | share |\n|---|--:|--:|--:|\n");
    for (int i = 0; i < BIS_NBIN; i++)
        fprintf(o, "| %s | %lld | %lld | %s |\n", name[i], (long long)s->bin_slots[i], (long long)s->bin_flips[i],
                s->bin_slots[i] ? bis_percent((double)s->bin_flips[i] / (double)s->bin_slots[i]).s : "-");
}

static void flip_list(const bis_case *c, FILE *o) {
    const bis_flips *s = &c->flips;
    int64_t shown = 0, more = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const bis_flip *x = &s->flip[i];
        if (x->forward >= c->pair->ncomparable) continue;
        if (shown == 10) {
            more++;
            continue;
        }
        if (!shown++)
            fprintf(o, "\nThe first flips of comparable forwards:\n\n"
                       "| forward | selection | row | swapped | margin A | margin B |\n|--:|---|--:|--:|--:|--:|\n");
        fprintf(o, "| %d | ", x->forward);
        bis_md(o, bis_printable(c->pair->a->nodes[x->node].name).s);
        fprintf(o, " | %d | %d of %d | %s%s | %s%s |\n", x->row, x->swapped, x->k, bis_num(x->margin_a).s,
                x->margin_a == 0 ? " (tie)" : "", bis_num(x->margin_b).s, x->margin_b == 0 ? " (tie)" : "");
    }
    if (more) fprintf(o, "\n%lld more flips are in the dumps and in the table above.\n", (long long)more);
}

void bis_report_selections(const bis_case *c, FILE *o) {
    const bis_flips *s = &c->flips;
    fprintf(o, "## Selections\n\n");
    if (!s->nrows) {
        fprintf(o, "No selections are recorded.\n\n");
        return;
    }
    bis_fold(o, "", "",
             "A flip is a selection whose set differs; the same set in another rank order is counted apart. A tie "
             "has margin 0 at the cut in either arm.");
    fprintf(
        o,
        "\n| forward | kind | selections | flips | order only | ids swapped | ties | flips at a tie | first layer |\n"
        "|---|---|--:|--:|--:|--:|--:|--:|--:|\n");
    for (int32_t i = 0; i < s->nrows && i < 32; i++) {
        const bis_flip_row *r = &s->row[i];
        fprintf(o, "| %d%s | ", r->forward, r->comparable ? "" : " (excluded)");
        bis_md(o, bis_printable(r->kind).s);
        fprintf(o, " | %lld | %lld%s | %lld | %lld | %lld | %lld | ", (long long)r->slots, (long long)r->flips,
                r->unrecorded ? " + ids not recorded" : "", (long long)r->order, (long long)r->swapped,
                (long long)r->ties, (long long)r->tie_flips);
        fprintf(o, r->first_layer < 0 ? "- |\n" : "%d |\n", r->first_layer);
    }
    if (s->nrows > 32) fprintf(o, "\n%d more rows are in the JSON result.\n", s->nrows - 32);
    int shown = 0;
    for (int32_t i = 0; i < s->nrows && shown < 16; i++) {
        const bis_flip_row *r = &s->row[i];
        if (!r->flips && !r->order) continue;
        if (!shown++)
            fprintf(
                o,
                "\nBy layer, from 0 (`.` same, `o` order, `1`-`9` most ids swapped in a row, `+` more):\n\n```text\n");
        for (int32_t l = 0; l < s->layers; l += 80)
            fprintf(o, "%s%-4d %-14s %.*s\n", l ? "" : "f", r->forward, bis_printable(r->kind).s, 80, r->strip + l);
    }
    if (shown) fprintf(o, "```\n");
    margins_table(s, o);
    flip_list(c, o);
    fputc('\n', o);
}

static void census(const bis_choices *k, FILE *o) {
    fprintf(o, "\n- forwards with logit rows: %d of %d; the chosen id is the best recorded value in %d.\n",
            k->with_logits, k->n, k->aligned);
    fprintf(o,
            "- at risk (smaller margin of the raw rows not above the largest difference): %d, of which %d disagree.\n",
            k->at_risk, k->flipped_at_risk);
    fprintf(o, "- choices between exactly equal values, in either arm: %d.\n", k->exact_ties);
    fprintf(o, "- finite logits on the bf16 grid: %s of arm A, %s of arm B.\n", bis_percent(k->lattice_a).s,
            bis_percent(k->lattice_b).s);
    fprintf(o, "- noise of the contrast over agreeing forwards: s = %s, n = %d%s.\n", bis_num(k->s).s, k->s_n,
            k->s_n < BIS_TIE_MIN_N ? " (fewer than 3: no tie is called by it)" : "");
    if (k->ndiffer)
        bis_fold(o, "- ", "  ",
                 "check of the instrument: where ids differ and neither was chosen among equal values, the smaller "
                 "margin does not "
                 "exceed the largest difference. "
                 "This holds by arithmetic and is no evidence.");
}

static void equal_choice(const bis_case *c, int arm, const bis_choice *x, FILE *o) {
    const q4x_forward *w = arm ? BIS_FB(c->pair, x->forward) : BIS_FA(c->pair, x->forward);
    fprintf(o, "Arm %s chose between equal values: after its last rounding %d and %d are both %.9g.\n", arm ? "B" : "A",
            x->a < x->b ? x->a : x->b, x->a < x->b ? x->b : x->a, (double)w->top_val[0]);
}

void bis_report_decisions(const bis_case *c, FILE *o) {
    const bis_choices *k = &c->choices;
    fprintf(o, "## Decisions\n\n");
    if (!k->with_logits) {
        fprintf(o, "No logit rows in both arms: what decides the ids cannot be said.\n\n");
        return;
    }
    bis_fold(o, "", "",
             "Margin: best minus second of the raw f32 row. Contrast: z[a] - z[b] for the ids that the arms "
             "chose, or, where they agree, for the two best of arm A.");
    fprintf(o, "\n| forward | A | B | margin A | margin B | contrast A | contrast B | max abs dz | |\n"
               "|--:|--:|--:|--:|--:|--:|--:|--:|---|\n");
    for (int32_t f = 0; f < k->n && f < 40; f++) {
        const bis_choice *x = &k->choice[f];
        fprintf(o, "| %d | %d | %d | ", f, x->a, x->b);
        if (!x->logits) {
            fprintf(o, "- | - | - | - | - | no row |\n");
            continue;
        }
        fprintf(o, "%s | %s | %s | %s | %s | %s%s%s |\n", bis_num(x->margin_a).s, bis_num(x->margin_b).s,
                bis_num(x->contrast_a).s, bis_num(x->contrast_b).s, bis_num(x->max_dz).s, x->differ ? "ROOT" : "",
                x->tie_a || x->tie_b ? (x->differ ? ", exact tie" : "exact tie") : "",
                x->equal                   ? "equal by bits"
                : x->at_risk && !x->differ ? "at risk"
                                           : "");
    }
    if (k->n > 40) fprintf(o, "\nForwards 40 to %d are in the JSON result.\n", k->n - 1);
    census(k, o);
    if (k->first >= 0 && k->choice[k->first].logits) {
        const bis_choice *x = &k->choice[k->first];
        fprintf(o, "\nTie rule at id %d: contrasts %s and %s against 3 s = %s (n = %d).\n", x->forward,
                bis_num(x->contrast_a).s, bis_num(x->contrast_b).s, bis_num(3 * k->s).s, k->s_n);
        if (x->tie_a) equal_choice(c, 0, x, o);
        if (x->tie_b) equal_choice(c, 1, x, o);
    }
    fputc('\n', o);
}
