/* header.h: every differing field of two dumps' headers, in three classes (design.md 6, step 2).
 *
 * free: printed, never counted (time, boot, paths, threads, isa, how much was recorded). lever: what may explain a
 * difference; a profile counts as one, a build as one, the device as one unless a device null is known. fatal: model
 * content, prompt ids, version of the tap vocabulary.
 */
#ifndef BISECT_HEADER_H
#define BISECT_HEADER_H

#include "bisect/words.h"
#include "lib/dump.h"

typedef enum { BIS_H_FREE, BIS_H_LEVER, BIS_H_FATAL } bis_hclass;

/* A field that differs. Values are compact JSON, strings without quotes, long ones cut with "..."; "(absent)". */
typedef struct {
    char *key, *a, *b;
    bis_hclass cls;
} bis_hdiff;

/* One declared difference: "gdn" seq | chunk64; "moe.combine@L03.*" (absent) | experts; "device" cpu | cuda. */
typedef struct {
    char *name, *a, *b;
} bis_lever;

typedef enum { BIS_NULL_NONE, BIS_NULL_SESSION, BIS_NULL_NAMED } bis_null;

typedef struct {
    int32_t ndiff, nlever;
    bis_hdiff *diff;
    bis_lever *lever;
    int device_differs;
    bis_null device_null;       /* the device differs and is known to move nothing */
    int imported_a, imported_b; /* not written by this house's tap */
    int unknown;                /* a dump does not declare model, device and levers */
    int same_kernels;           /* both were computed by the same kernel sources: equal levers claim equal bits */
    bis_reason fatal;           /* BIS_R_none: the dumps may be compared */
    char where[240];
} bis_header;

int bis_header_diff(const q4x_dump *a, const q4x_dump *b, bis_null device_null, int allow_confounded, bis_header *ret,
                    q4x_err *err);
void bis_header_free(bis_header *h);

/* String at "arm.device" in the header, or NULL. */
const char *bis_header_str(const q4x_dump *d, const char *dotted);
const json_t *bis_header_get(const q4x_dump *d, const char *dotted);

/* 1 when both dumps claim the same arithmetic for this node in this forward: the same kernels, op and levers, and no
 * scoped lever of one arm alone that reaches it. A plant is no arithmetic: it breaks the claim that is still made. */
int bis_header_claims(const bis_header *h, const q4x_dump *a, const q4x_dump *b, int32_t node_a, int32_t node_b,
                      int32_t forward);

/* 1 when h says: same model, same prompt, same kernels, same levers, other device. */
int bis_header_is_device_pair(const bis_header *h);

/* What an arm's arithmetic is beside its device: new {"levers": .., "scoped": ..}; NULL: no memory. */
json_t *bis_header_levers(const q4x_dump *d);
/* 1 when two dumps declare the same levers, whatever their devices. */
int bis_header_same_levers(const q4x_dump *a, const q4x_dump *b);

/* Are two dumps one recording, or copies of one? By the recording's own number; in dumps without it by time, boot and
 * arguments; where a dump does not say when it was made, equal headers and contents prove nothing (BIS_UNTOLD). */
typedef enum { BIS_OTHER_RECORDING, BIS_SAME_RECORDING, BIS_UNTOLD } bis_recording;
bis_recording bis_header_recording(const q4x_dump *a, const q4x_dump *b);

/* 1 when the header of a dump of ours contradicts itself: the device and its spec, the levers and the words of the
 * nodes; or, _prompt_, the prompt and the ids that forward 0 consumed. where: field, expected, found. */
int bis_header_contradicts(const q4x_dump *d, char *where, size_t size);
int bis_header_prompt_contradicts(const q4x_dump *d, char *where, size_t size);

/* NULL when d2 may serve as a floor of d1 (same model, prompt, device, levers, kernels), else what differs. */
const char *bis_header_other_arm(const bis_header *h);

#endif
