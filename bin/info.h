/* info.h: the parts of `q4x info`: what was found of a model, and the two forms that it is said in; dumps. */
#ifndef BIN_INFO_H
#define BIN_INFO_H

#include "bin/cmd.h"
#include "lib/hash.h"
#include "lib/need.h"
#include "lib/odd.h"
#include "lib/settings.h"

typedef struct {
    const char *file;
    int nodes, plan, hash, sha256;
    int64_t ctx;        /* 0: not given */
    const char *device; /* NULL: all that this build knows */
    int threads;        /* 0: not given */
} info_options;

enum { INFO_DEVICES = 2, INFO_MODES = Q4X_MODE_FULL + 1 };
extern const char *const info_modes[INFO_MODES]; /* "hash" */

/* One file with its digest. */
typedef struct {
    char path[4096], sha256[65];
} info_file;

typedef struct {
    const q4x_model *m;
    const q4x_net *net; /* NULL: the architecture could not be bound, why says why */
    const char *why;
    int has_settings;
    q4x_settings settings;
    char fingerprint[33];
    q4x_tok *tok; /* NULL: none, or one that cannot be used, tok_why says why */
    const char *tok_why;
    q4x_group *group, *type, *cls;
    int ngroups, ntypes, nclasses;
    int nodd;
    q4x_odd odd[Q4X_ODD_COUNT];
    int nneeds;
    q4x_need need[INFO_DEVICES];
    int device_index; /* of the one on a device: N of cuda/N */
    q4x_hash *hash;   /* NULL: not asked for */
    q4x_use *use;     /* of every tensor; NULL: no plan */
    info_file *digest;
    int ndigests;
} info_model;

/* What the model says of itself: strings, numbers and switches under "general." or in config.json, at most this many.
 */
enum { INFO_SAYS = 24 };
typedef struct {
    const char *key;
    char value[160]; /* printable ASCII and UTF-8, escaped, cut */
} info_says;
int info_says_of(const q4x_model *m, info_says ret[INFO_SAYS]);
/* Bytes of the chat template, -1: none. */
int64_t info_template(const q4x_model *m);
/* Whether what is needed is there, on a device on the one of this index, in a sentence; *ret_here: bytes of memory, 0:
 * not known. */
void info_fits(const q4x_need *d, int index, char *buf, size_t size, uint64_t *ret_here);

void info_text(const info_model *f, const info_options *o, int verbose);
json_t *info_json(const info_model *f);

/* One node of `q4x info --nodes`: into the list, or, NULL, as a line. */
void info_node(json_t *list, const char *name, int is_public, int is_state);

int info_dump(const info_options *o, cmd_ctx *c);

#endif
