/* fmt.h: numbers and names as text, the same for the terminal, Markdown and JSON. */
#ifndef BISECT_FMT_H
#define BISECT_FMT_H

#include <stdio.h>

#include "bisect/case.h"

typedef struct {
    char s[96];
} bis_str;

typedef struct {
    char s[24];
} bis_number;

bis_number bis_num(double x);            /* three significant digits; "nan", "inf", "0" */
bis_str bis_interval(const bis_dist *d); /* "3.1e-04", "3.1e-04 (2.8e-04 .. 3.5e-04)", ">= 3.1e-04", "?" : rel L2 */
bis_str bis_percent(double share);       /* "12.3 %"; "-" for NaN */
/* A control: "0/3120"; of two arms the sum, or "NOT MEASURED (arm B)". n: 1 or 2. */
bis_str bis_count_text(const bis_count *arm, int n);
bis_str bis_range(int32_t first, int32_t last); /* "0-4", "3", "none" */

/* Source of a distance in a word or two: "exact", "sketch 256", "norms", "none". */
bis_str bis_how_text(const bis_dist *d);

/* At most 63 bytes of a text from a file: printable ASCII without backquotes, so that it may stand between them. */
bis_str bis_printable(const char *text);
/* In place: bytes that are not printable ASCII become '?'; _code: backquotes too become harmless. */
void bis_clean(char *text);
void bis_clean_code(char *text);

/* Name of arm 0 or 1: its label, else its spec, else "A" or "B". Printable. */
bis_str bis_arm(const bis_case *c, int arm);
/* Levers of an arm that are not at the first value that either arm shows... "gdn=chunk64 act=bf16", or "as declared".
 */
void bis_arm_levers(const bis_case *c, int arm, FILE *out);

/* Text from a file inside Markdown: bars, backquotes, brackets and stars are escaped, other bytes become '?'. */
void bis_md(FILE *out, const char *text);

/* A paragraph (or list item, with its bullet) folded at 100 columns; Markdown-escaped when md. */
void bis_fold(FILE *out, const char *first, const char *rest, const char *text);

/* "every node ..." as a sentence: a capital, a full stop, folded. */
void bis_sentence(FILE *out, const char *first, const char *text);

/* Hash of a dump's content in hex; "": not known, for the dump is cut short. */
bis_str bis_content_text(const q4x_dump *d);

/* Label of id f: "same", "ROOT", "DOWNSTREAM(4)", "coincidental". */
bis_str bis_id_label(const bis_case *c, int32_t f);

/* Kind of the node that is the residual stream after a layer: "s.mlp", or "out" where a layer has that; NULL: none. */
const char *bis_stream(const bis_pair *p);
/* Distances of a forward's residual stream by layer: rel[layers], NaN where unknown. Returns 1 when there are any. */
int bis_depth(const bis_case *c, int32_t f, double *rel);

/* Differing taps by place: the first `max` of them (comparable forwards, execution order). Returns their number. */
int bis_differing(const bis_case *c, int32_t *f, int32_t *n, int max);
/* The same by size of the relative distance. */
int bis_worst(const bis_case *c, int32_t *f, int32_t *n, int max);

/* Word for a cell: "ADDED, within band", "inherited", "gain outlier", ... */
const char *bis_cell_word(const bis_cell *x);

#endif
