/* lever.h: arms and levers as words. One list of items, applied left to right, resolved for a node and a forward: of
 * two that set one lever of a node, the later counts. An arm has one profile at most; levers before it that it sets too
 * give way to it, levers behind it change it.
 *
 * ARM  := DEVICE [':' ITEM {',' ITEM}]      DEVICE := cpu ['/' THREADS] | cuda ['/' N]
 * ITEM := as=PROFILE | NAME=VALUE ['@' GLOB ['#' FORWARD]]
 * GLOB is fnmatch on the full node name, or on the name without "Lxx.". plant's value is KIND@NODE[#F]. A value is a
 * word of the lever's list or, where the list has one LO..HI, a decimal number in that range. It is held as the f32
 * nearest to it, and printed with the fewest digits that give that f32 again.
 */
#ifndef Q4X_LEVER_H
#define Q4X_LEVER_H

#include "kernels/k.h"
#include "lib/err.h"

typedef struct {
    const char *name;   /* "moe.combine" */
    const char *values; /* "slots|experts", "file|0..1" */
    const char *kind;
    const char *ops; /* ops that read it, blank-separated; "*": all that store activations */
    const char *doc;
    size_t field; /* offset in k_levers; (size_t)-1: plant */
} q4x_lever;

extern const q4x_lever q4x_levers[];
extern const int q4x_nlevers;

typedef struct {
    const char *name, *items, *doc, *proof;
} q4x_profile;
extern const q4x_profile q4x_profiles[];
extern const int q4x_nprofiles;

typedef struct {
    int lever;       /* index into q4x_levers */
    int32_t value;   /* index of the word; a number: its bits, -0 for 0 (k_number) */
    char glob[64];   /* "" : everywhere */
    int32_t forward; /* -1: every forward */
    int32_t soft;    /* 1: from a profile, may be in scope at no node */
    char plant[24];  /* kind, when the lever is plant and not off */
} q4x_item;

typedef struct {
    char spec[256]; /* as given */
    char label[64]; /* name shown; defaults to spec */
    int cuda;       /* device */
    int device_index;
    int threads;      /* 0: default */
    char profile[24]; /* of as=, or "" */
    int nitems;
    q4x_item item[32];
} q4x_arm;

void q4x_arm_default(q4x_arm *a);
int q4x_arm_parse(const char *spec, q4x_arm *ret, q4x_err *err);
/* Add one "NAME=VALUE[@GLOB[#F]]" to an arm. */
int q4x_arm_add(q4x_arm *a, const char *item, q4x_err *err);
/* Q4X_E_ARG when an item is bound to a forward that a run of n forwards (0 .. n-1) never makes. */
int q4x_arm_check_forwards(const q4x_arm *a, int32_t n, q4x_err *err);
/* The item as it is typed: "act=bf16@L03.*#2". */
void q4x_item_text(const q4x_item *it, char *buf, size_t size);
/* 1: the item asks for a library's arithmetic, which only a GPU has. */
int q4x_item_library(const q4x_item *it);
/* Levers for the node of this name, executing op, at this forward. */
void q4x_arm_resolve(const q4x_arm *a, const char *node, int32_t forward, k_levers *ret);
/* The same as if item `without` had not been given. */
void q4x_arm_resolve_without(const q4x_arm *a, int without, const char *node, int32_t forward, k_levers *ret);
/* 1 when op reads the lever. The choice of the token reads topk.tie under the name of its node, "logits". */
int q4x_lever_scope(const q4x_lever *l, const char *op);
/* The levers among those op reads that are not at their default in lv, as "act=bf16 gdn=chunk64". */
void q4x_lever_words(const k_levers *lv, const char *op, char *buf, size_t size);
/* Fault to plant at this node in this forward: the last item that applies, its own `plant` ("sign"); NULL: none. */
const char *q4x_arm_plant(const q4x_arm *a, const char *node, int32_t forward);
/* 1 when the lever takes a number beside its first word; its range. */
int q4x_lever_range(const q4x_lever *l, double *lo, double *hi);
/* Name of value v of a lever ("bf16", "1e-05"), as it is typed and recorded. */
const char *q4x_lever_value(const q4x_lever *l, int32_t v, char *buf, size_t size);
/* 1 when the glob matches the node's name, with or without its "Lxx." */
int q4x_node_match(const char *glob, const char *node);

#endif
