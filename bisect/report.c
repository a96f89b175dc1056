/* report.c: the case as Markdown: what was compared, the controls, what was found, and what it does not show.
 *
 * Everything outside the provenance block follows from the records alone: two recordings of the same runs give the same
 * bytes. Paths, times and builds therefore stand inside it and nowhere else. */
#include "bisect/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *sentence(const bis_case *c) {
    if (c->reason == BIS_R_inputs_not_recorded)
        return "A node lies far from its recorded inputs, and others are not recorded: this cannot be judged.";
    if (bis_unmeasured(c->reason))
        return "The two runs part at a node, and how far is not known: this cannot be judged.";
    switch (c->verdict) {
    case BIS_V_IDENTICAL:
        return c->pair->nexcluded ? "The two runs are equal by bits in every forward on equal ids."
                                  : "The two runs are equal by bits in everything that both recorded.";
    case BIS_V_WITHIN_BAND: return "The two runs differ, by no more than the rounding of their arithmetic.";
    case BIS_V_TIE: return "The two runs choose different ids where the choice hangs on rounding.";
    case BIS_V_TOKENS_DIFFER: return "The two runs choose different ids; no node explains it by a fault.";
    case BIS_V_FAULT: return "One node does what no rounding explains.";
    case BIS_V_DIVERGED: return "The two runs part at a node by more than is accounted for.";
    case BIS_V_NON_FINITE: return "One run produces a value that is not finite, the other does not.";
    default: return "The two dumps cannot be judged.";
    }
}

static void title(const bis_case *c, FILE *o) {
    fprintf(o, "# ");
    bis_md(o, bis_arm(c, 0).s);
    fprintf(o, " against ");
    bis_md(o, bis_arm(c, 1).s);
    fprintf(o, ": ");
    bis_md(o, bis_verdict_name(c->verdict));
    fprintf(o, "\n\n**Verdict:** `%s`, reason `%s`, exit %d.\n\n", c->name, bis_reason_word(c->reason), c->exit);
    bis_fold(o, "", "", sentence(c));
    bis_sentence(o, "", bis_reason_text(c->reason));
    if (c->where[0]) fprintf(o, "\nWhere: `%s`.\n", c->where);
    fputc('\n', o);
}

static void free_line(FILE *o, const char *label, const char *value) {
    if (value) bis_fold(o, label, "    ", value);
}

/* What can be pasted is not folded. A line of ``` in a path would end the block. */
static void again(const bis_case *c, FILE *o) {
    for (int arm = 0; arm < 2; arm++) {
        char *text = NULL;
        size_t size;
        FILE *s = open_memstream(&text, &size);
        if (!s) return;
        int any = bis_again(c, arm, 1, s);
        fclose(s);
        if (any && text && !strchr(text, '`')) fprintf(o, "%s%s\n", arm ? "" : "\nthe arms again:\n", text);
        free(text);
    }
}

static void provenance(const bis_case *c, const bis_names *n, FILE *o) {
    static const char *const key[] = {"tool.version", "tool.commit", "tool.kernels_hash", "tool.compiler", "tool.flags",
                                      "free.time",    "free.boot",   "free.isa",          "model.path"};
    fprintf(o, "<!-- provenance -->\n\n```text\n");
    free_line(o, "command    ", n->command);
    free_line(o, "arm A      ", n->a);
    free_line(o, "arm B      ", n->b);
    free_line(o, "floor A    ", n->floor_a);
    free_line(o, "floor B    ", n->floor_b);
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        const char *a = bis_header_str(c->rq.a, key[i]), *b = bis_header_str(c->rq.b, key[i]);
        char label[48];
        if (!a && !b) continue;
        snprintf(label, sizeof label, "%-18s ", key[i]);
        char *text = NULL;
        if (a && b && !strcmp(a, b))
            text = strdup(a);
        else if (asprintf(&text, "%s | %s", a ? a : "(absent)", b ? b : "(absent)") < 0)
            text = NULL;
        if (text) bis_clean(text);
        free_line(o, label, text);
        free(text);
    }
    if (!bis_header_str(c->rq.a, "tool.kernels_hash") || !bis_header_str(c->rq.b, "tool.kernels_hash"))
        fprintf(o, "UNKNOWN PROVENANCE: a dump does not say what computed it.\n");
    int shown = 0;
    for (int32_t i = 0; i < c->header.ndiff; i++) {
        const bis_hdiff *d = &c->header.diff[i];
        char label[80];
        if (d->cls != BIS_H_FREE) continue;
        if (!shown++) fprintf(o, "\nheader fields that differ and do not count:\n");
        snprintf(label, sizeof label, "  %.60s: ", d->key);
        char *text = NULL;
        if (asprintf(&text, "%s | %s", d->a, d->b) < 0) text = NULL;
        free_line(o, label, text);
        free(text);
    }
    again(c, o);
    fprintf(o, "```\n\n<!-- /provenance -->\n\n");
}

static void row2(FILE *o, const char *label, const char *a, const char *b) {
    fprintf(o, "| %s | ", label);
    bis_md(o, a);
    fprintf(o, " | ");
    bis_md(o, b);
    fprintf(o, " |\n");
}

static const char *str_or(const q4x_dump *d, const char *key, const char *otherwise) {
    const char *s = bis_header_str(d, key);
    return !s ? otherwise : *s ? s : "none";
}

static void row_key(const bis_case *c, FILE *o, const char *label, const char *key) {
    bis_str a = bis_printable(str_or(c->rq.a, key, "not declared")),
            b = bis_printable(str_or(c->rq.b, key, "not declared"));
    row2(o, label, a.s, b.s);
}

static char *levers_text(const bis_case *c, int arm) {
    char *text = NULL;
    size_t size;
    FILE *s = open_memstream(&text, &size);
    if (!s) return NULL;
    bis_arm_levers(c, arm, s);
    fclose(s);
    return text;
}

/* "5 ids: 1, 2, 3, 4, 5", cut after twelve. */
static bis_str prompt_text(const q4x_dump *d) {
    bis_str r = {"none"};
    if (d->nforwards < 1) return r;
    const q4x_forward *w = &d->forwards[0];
    int at = snprintf(r.s, sizeof r.s, "%d ids:", w->n_ids);
    for (int32_t i = 0; i < w->n_ids && at > 0 && at < (int)sizeof r.s - 16; i++) {
        if (i == 12) {
            snprintf(r.s + at, sizeof r.s - (size_t)at, " ...");
            break;
        }
        at += snprintf(r.s + at, sizeof r.s - (size_t)at, " %d", w->ids[i]);
    }
    return r;
}

static void what(const bis_case *c, FILE *o) {
    char *la = levers_text(c, 0), *lb = levers_text(c, 1);
    fprintf(o, "## What was compared\n\n|   | arm A | arm B |\n|---|---|---|\n");
    row2(o, "label", bis_arm(c, 0).s, bis_arm(c, 1).s);
    row_key(c, o, "device", "arm.device");
    const char *ga = str_or(c->rq.a, "gpu.name", NULL), *gb = str_or(c->rq.b, "gpu.name", NULL);
    if (ga || gb) row2(o, "GPU", bis_printable(ga ? ga : "none").s, bis_printable(gb ? gb : "none").s);
    row2(o, "arm", la ? la : "?", lb ? lb : "?");
    row_key(c, o, "profile", "arm.profile");
    row_key(c, o, "model", "model.fingerprint");
    row_key(c, o, "architecture", "model.arch");
    row2(o, "prompt", prompt_text(c->rq.a).s, prompt_text(c->rq.b).s);
    row_key(c, o, "mode of the taps", "mode");
    bis_str ha = bis_content_text(c->rq.a), hb = bis_content_text(c->rq.b);
    row2(o, "content of the dump", ha.s[0] ? ha.s : "not known", hb.s[0] ? hb.s : "not known");
    free(la);
    free(lb);
    fputc('\n', o);
    const bis_header *h = &c->header;
    if (!h->nlever) {
        bis_fold(o, "", "",
                 h->unknown ? "The headers declare no difference, but a dump does not say all that it should."
                            : "The headers declare no difference: both arms claim the same arithmetic.");
        fputc('\n', o);
        return;
    }
    fprintf(o, "%s\n\n| lever | arm A | arm B |\n|---|---|---|\n",
            h->nlever == 1 ? "The arms differ in one lever:" : "The arms differ in more than one lever (CONFOUNDED):");
    for (int32_t i = 0; i < h->nlever; i++) {
        fprintf(o, "| ");
        bis_md(o, h->lever[i].name);
        fprintf(o, " | ");
        bis_md(o, h->lever[i].a);
        fprintf(o, " | ");
        bis_md(o, h->lever[i].b);
        fprintf(o, " |\n");
    }
    fputc('\n', o);
}

static void control_row(FILE *o, const char *name, bis_count n, const bis_floor *f, const char *what_it_is) {
    if (!n.measured) {
        fprintf(o, "| %s | NOT MEASURED | | %s |\n", name, what_it_is);
        return;
    }
    fprintf(o, "| %s | %lld of %lld | ", name, (long long)n.differing, (long long)n.compared);
    if (f && f->first_node) {
        bis_md(o, bis_printable(f->first_node).s);
        fprintf(o, ", forward %d", f->first_forward);
    } else if (!n.differing) {
        fprintf(o, "none");
    }
    fprintf(o, " | %s |\n", what_it_is);
}

static void arm_rows(FILE *o, const char *name, const bis_count n[2], const char *what_it_is) {
    for (int arm = 0; arm < 2; arm++) {
        char label[40];
        snprintf(label, sizeof label, "%s of %c", name, 'A' + arm);
        control_row(o, label, n[arm], NULL, what_it_is);
    }
}

static void stages(FILE *o, const char *arm, const bis_floor *f) {
    if (!f->nstages) return;
    fprintf(o, "\nFloor of arm %s by stage:\n\n| node | differing | compared |\n|---|--:|--:|\n", arm);
    for (int32_t i = 0; i < f->nstages && i < 20; i++) {
        fprintf(o, "| ");
        bis_md(o, bis_printable(f->stage[i].kind).s);
        fprintf(o, " | %lld | %lld |\n", (long long)f->stage[i].differing, (long long)f->stage[i].compared);
    }
    if (f->nstages > 20) fprintf(o, "\n%d more kinds differ.\n", f->nstages - 20);
}

static void controls(const bis_case *c, FILE *o) {
    fprintf(o, "## Controls\n\n| control | records that differ | first | what it is |\n|---|---|---|---|\n");
    control_row(o, "floor of A", bis_floor_count(&c->floor_a), &c->floor_a, "arm A recorded twice");
    control_row(o, "floor of B", bis_floor_count(&c->floor_b), &c->floor_b, "arm B recorded twice");
    arm_rows(o, "perturbation", c->perturbation, "tapped against untapped");
    arm_rows(o, "read twice", c->read_twice, "one buffer, two readers");
    if (c->null_tested)
        fprintf(o, "| device null | %lld of %lld | | the named pair of devices |\n", (long long)c->null_differing,
                (long long)c->null_compared);
    stages(o, "A", &c->floor_a);
    stages(o, "B", &c->floor_b);
    fputc('\n', o);
}

static void list(FILE *o, const char *head, const bis_lines *l, const char *none) {
    fprintf(o, "## %s\n\n", head);
    for (int i = 0; i < l->n; i++) {
        char *text = NULL;
        size_t size;
        FILE *s = open_memstream(&text, &size);
        if (!s) return;
        /* commands stand between backquotes in our own sentences; names from files are clean but for Markdown's marks
         */
        for (const char *p = l->line[i]; *p; p++) {
            if (strchr("|<>[]\\", *p)) fputc('\\', s);
            fputc(*p, s);
        }
        fclose(s);
        bis_fold(o, "- ", "  ", text);
        free(text);
    }
    if (!l->n) fprintf(o, "%s\n", none);
    fputc('\n', o);
}

static void verdict(const bis_case *c, FILE *o) {
    fprintf(o, "## Verdict\n\n**`%s`** (`%s`), exit %d.\n\n", c->name, bis_reason_word(c->reason), c->exit);
    bis_sentence(o, "",
                 bis_unmeasured(c->reason) ? "a difference of which not all was recorded that judges it: not judged"
                                           : bis_verdict_text(c->verdict));
    bis_sentence(o, "", bis_reason_text(c->reason));
    if (c->where[0]) fprintf(o, "Where: `%s`.\n", c->where);
    if (c->confounded)
        bis_fold(o, "", "",
                 "The arms differ in more than one declared way (CONFOUNDED): nothing here is attributed to a "
                 "single lever.");
    if (c->contaminated)
        bis_fold(o, "", "",
                 "The inputs of the named node differ already (CONTAMINATED): how much of its difference it "
                 "added itself is not known from these records.");
    fputc('\n', o);
}

static void commands(const bis_case *c, FILE *o) {
    char *text = NULL;
    size_t size;
    FILE *s = open_memstream(&text, &size);
    if (!s) return;
    for (int arm = 0; arm < 2; arm++)
        if (bis_again(c, arm, 0, s)) fputc('\n', s);
    fclose(s);
    if (text && *text)
        fprintf(
            o,
            "The first of these, as commands; the provenance block has them with the model's path:\n\n```sh\n%s```\n\n",
            text);
    free(text);
}

void bis_report(const bis_case *c, const bis_names *names, FILE *o) {
    title(c, o);
    provenance(c, names, o);
    what(c, o);
    controls(c, o);
    bis_report_structure(c, o);
    if (c->pair) bis_report_comparability(c, o);
    if (c->compared) {
        bis_report_tokens(c, o);
        bis_report_first(c, o);
        bis_report_nodes(c, o);
        bis_report_depth(c, o);
        bis_report_gains(c, o);
        bis_report_selections(c, o);
        bis_report_decisions(c, o);
    }
    if (c->notes.n) list(o, "Notes", &c->notes, "");
    verdict(c, o);
    list(o, "What to record next", &c->next, "Nothing is missing for this verdict.");
    commands(c, o);
    list(o, "What this does not establish", &c->limits, "");
}
