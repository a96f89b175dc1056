/* h_oracle.h: models that are a page of text, and what an independent forward made of them (tests/oracle/README.md).
 * Failures are fail_msg.
 */
#ifndef H_ORACLE_H
#define H_ORACLE_H

#include "lib/run.h"
#include "tests/h_golden.h"

enum { H_ORACLE_SUMS = 4 };

typedef struct h_oracle h_oracle;

/* tests/golden/oracle-NAME/golden-FILE.safetensors ("f32"), and its model, made in a folder of the test's own from
 * weights.txt and config.json, with one key of the configuration set to other JSON text when key is not NULL. */
h_oracle *h_oracle_open(const char *name, const char *file, const char *key, const char *json);
void h_oracle_close(h_oracle *o);

/* A worst distance and where. */
typedef struct {
    double rel;
    char at[64];
} h_oracle_worst;

/* What a run of all calls was apart from the record. A sketch's distance: the largest difference of its numbers
 * relative to the recorded norm; a difference d of the taps gives sums of about |d|. */
typedef struct {
    int64_t sketches, wanted;         /* compared; recorded */
    h_oracle_worst first, later, few; /* call 0; later calls; of fewer than 16 numbers */
    int64_t choices, differ;          /* experts, dropped blocks and rows of tables: compared, not as recorded */
    char differ_at[64];               /* the first */
    h_oracle_worst logits;            /* relative L2 of a row; 0 when none is recorded */
    int ids, ids_equal;               /* sampled */
} h_oracle_run_result;

h_oracle_run_result h_oracle_run(const h_oracle *o, const char *arm);

#endif
