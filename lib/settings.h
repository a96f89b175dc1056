/* settings.h: the hyper-parameters of a model, each with its value and where that came from.
 *
 * The readers of lib/arch_*.c note every one as they read it, so that the list cannot leave out what is read. Names are
 * ours and the same in both containers; keys are the file's. A setting of one name is there once: the last note counts.
 */
#ifndef Q4X_SETTINGS_H
#define Q4X_SETTINGS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/model.h"

typedef enum {
    Q4X_FROM_FILE,    /* the file says so, under `key` */
    Q4X_FROM_DEFAULT, /* it may say so under `key` and does not: `why` */
    Q4X_FROM_DERIVED, /* follows from other settings or from tensors: `why` */
    Q4X_FROM_FIXED    /* this container cannot say it, the architecture does: `why` */
} q4x_from;

typedef enum { Q4X_SAYS_INT, Q4X_SAYS_REAL, Q4X_SAYS_BOOL, Q4X_SAYS_TEXT } q4x_says;

typedef struct {
    char name[32];
    q4x_says kind;
    int64_t i; /* an integer, or 0 and 1 */
    double r;
    char text[72]; /* printable ASCII */
    q4x_from from;
    char key[96];    /* in full: "qwen4exp.block_count", "text_config.head_dim"; "": none */
    const char *why; /* "": nothing to add */
} q4x_setting;

enum { Q4X_MAXSETTINGS = 80 };
typedef struct {
    int n;
    q4x_setting s[Q4X_MAXSETTINGS]; /* in the order of reading */
} q4x_settings;

/* Values with their names, to be noted. Text is copied, cut to size, and what is not printable ASCII becomes '?'. */
q4x_setting q4x_say_int(const char *name, int64_t v);
q4x_setting q4x_say_real(const char *name, double v);
q4x_setting q4x_say_bool(const char *name, int v);
q4x_setting q4x_say_text(const char *name, const char *text);
/* A list, as far as there is room. */
q4x_setting q4x_say_ints(const char *name, const int64_t *v, int64_t n);

/* Replaces a setting of the same name, or adds one. */
void q4x_settings_note(q4x_settings *to, const q4x_setting *s);
const q4x_setting *q4x_settings_find(const q4x_settings *s, const char *name); /* NULL: none */
/* The value in words: "256", "1e-06", "true". */
void q4x_setting_value(const q4x_setting *s, char *buf, size_t size);
const char *q4x_from_name(q4x_from from); /* "file" */

/* All of a model, checked as for a run, tensors aside. Q4X_E_UNSUPPORTED for an architecture that is not ours. */
int q4x_settings_read(const q4x_model *m, q4x_settings *ret, q4x_err *err);

#endif
