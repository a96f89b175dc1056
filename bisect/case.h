/* case.h: one comparison of two dumps, from the records to the verdict. The door of this room.
 *
 *   bis_judge(request) -> bis_case -> bis_json | bis_text | bis_report
 *
 * Deterministic: equal dumps give equal cases and equal text, byte for byte, outside the provenance block.
 */
#ifndef BISECT_CASE_H
#define BISECT_CASE_H

#include <stdio.h>

#include "bisect/control.h"
#include "bisect/decide.h"
#include "bisect/flips.h"
#include "bisect/header.h"
#include "bisect/map.h"
#include "bisect/pair.h"
#include "bisect/words.h"

/* What is compared. Dumps are borrowed and must outlive the case. */
typedef struct {
    q4x_dump *a, *b;
    int truncated_a, truncated_b; /* the reader said Q4X_E_TRUNCATED; the dump holds the complete forwards */
    q4x_dump *floor_a, *floor_b;  /* a second recording of the arm, or NULL */
    q4x_dump *null_a, *null_b;    /* a pair that differs in the device alone, or NULL */
    int session_null;             /* such a pair was IDENTICAL in this session */
    int allow_confounded;
} bis_request;

enum { BIS_MAX_LINES = 24 };

typedef struct {
    char *line[BIS_MAX_LINES];
    int n;
} bis_lines;

typedef struct {
    bis_request rq;
    bis_verdict verdict;
    bis_reason reason;
    char where[240]; /* what the reason is about, in words; "" : nothing more to say */
    int contaminated;
    int confounded; /* k: declared differences, when more than one (or unknown provenance) was let through */
    int exit;
    char name[256]; /* "DIVERGED CONTAMINATED CONFOUNDED(2: act, gdn)" */

    bis_header header;
    int null_tested; /* --device-null was given: null_differing of null_compared records differ */
    int null_arm;    /* it has the levers of arm A (0), B (1) */
    int64_t null_compared, null_differing;
    bis_pair *pair; /* NULL: the comparison ended before (TRUNCATED, fatal headers) */
    int compared;   /* what follows was filled in */
    bis_floor floor_a, floor_b;
    bis_count perturbation[2], read_twice[2]; /* by arm */
    bis_flips flips;
    bis_map map;
    bis_choices choices;
    int64_t logit_rows, logit_rows_equal;
    bis_lines notes;  /* what a reader must know, one sentence each */
    bis_lines next;   /* what to record next */
    int next_list;    /* so many lines behind the first are what that lists */
    bis_lines limits; /* what this does not establish */
    char again[120];  /* options that record what the first line of next asks for; "" : no command can */
    int again_forced; /* and both arms on the ids of arm A */
} bis_case;

/* Judge. Errors are those of floors that are none, of records that cannot be decoded, and of memory; everything that
 * can be wrong between two dumps is a verdict. On success *ret is owned by the caller. */
int bis_judge(const bis_request *rq, bis_case **ret, q4x_err *err);
void bis_case_free(bis_case *c); /* NULL is fine */

/* A dump without nodes and forwards, for a file that ends before them (TRUNCATED too). NULL: no memory. */
q4x_dump *bis_empty_dump(const char *path);

/* Result as JSON; keys in the order of design.md 6, `provenance` last. NULL: no memory. files: names of the dumps as
 * given (a, b, floor_a, floor_b), NULL where there is none. */
typedef struct {
    const char *a, *b, *floor_a, *floor_b;
    const char *command; /* the command line as given, or NULL */
} bis_names;
json_t *bis_json(const bis_case *c, const bis_names *names);

/* A summary for the terminal, at most 40 lines; the last is "verdict: NAME (reason) exit N". */
void bis_text(const bis_case *c, const bis_names *names, int verbose, FILE *out);

/* The command that records an arm (0, 1) again with c->again, without an end of line. With the path of the model as the
 * dump has it, or, paths being provenance, as MODEL: also where a dump has none that can be typed. Returns 0, and
 * writes nothing, when there is no command (nothing to record, or a dump that is not ours). */
int bis_again(const bis_case *c, int arm, int with_path, FILE *out);

/* The case as Markdown. */
void bis_report(const bis_case *c, const bis_names *names, FILE *out);

/* ---- inside the room ---- */
int bis_say(bis_lines *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3))); /* drops lines beyond the limit */
void bis_verdict_find(bis_case *c);        /* verdict.c: the table of design.md 6 */
void bis_advise(bis_case *c);              /* advice.c: notes, next, limits */

#endif
