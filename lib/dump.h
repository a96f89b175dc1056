/* dump.h: the dump (.q4d): what one arm did, self-contained. Writer, reader, and the format.
 *
 * A dump holds a header (provenance, levers, plan), then per forward: consumed ids, taps, states, a logit row.
 * The structures below are what the judge (bisect/) works on; foreign importers fill the same ones.
 */
#ifndef Q4X_DUMP_H
#define Q4X_DUMP_H

#include <jansson.h>
#include <stdint.h>

#include "lib/err.h"
#include "lib/hash.h"
#include "lib/tapstat.h"

enum { Q4X_DUMP_VERSION = 1, Q4X_VOCABULARY_VERSION = 1 };

typedef enum { Q4X_MODE_HASH, Q4X_MODE_SKETCH, Q4X_MODE_FULL } q4x_mode;

/* How V heads lie in a tensor that has them (spec 9.4). axis 0: none. The heads are nv groups of `width`
 * consecutive columns (axis 1) or rows of the record's [rows, cols] (axis 2), the first at `off`. */
typedef struct {
    int32_t axis, off, width, nk, nv;
    int32_t gguf;     /* 1: file order is GGUF's r*nk+k, 0: HF's k*(nv/nk)+r */
} q4x_heads;

/* One node of the plan, as recorded. */
typedef struct {
    char *name;       /* "L03.attn.ctx" */
    char *op;         /* "attn_ctx" */
    int32_t layer;    /* -1: none */
    int32_t is_public;
    int32_t is_state; /* a state record, hashed after the forward */
    int32_t is_ids;   /* i32 payload: a selection or ids */
    int32_t alias;    /* index of the node whose output this is, or -1 */
    int32_t nin;
    int32_t *in;      /* node indices; Q4X_IN_IDS: the consumed ids */
    int32_t nst;
    int32_t *st;      /* node indices of the state records it reads (their value before the forward) */
    q4x_heads heads;
    char *levers;     /* "act=bf16 gdn=chunk64": the levers this op reads that are not at their default */
} q4x_dump_node;
enum { Q4X_IN_IDS = -1 };

/* A selection: ids in rank order, one row per query, -1 pads. */
typedef struct {
    int32_t rows, k;
    int32_t *ids;          /* [rows, k] */
    float *weights;        /* [rows, k] or NULL */
    float *lo, *hi;        /* [rows]: smallest selected, largest rejected score; NaN where there is none. May be NULL */
} q4x_selection;

/* What one node left in one forward. */
typedef struct {
    int32_t node;          /* index into nodes */
    int32_t forward;
    int32_t dtype;         /* k_type of the payload: F32 or I32 (importers also BF16, F16) */
    int64_t rows, cols;
    q4x_hash bits;
    int32_t has_stats, has_sketch, has_band, has_full, has_sel;
    q4x_stats stats;
    q4x_sketch sketch;
    double band_hard, band_rms;   /* L2 of the whole tensor */
    q4x_selection sel;
    void *full;            /* rows * cols values of dtype, or NULL (read on demand: q4x_dump_full) */
} q4x_tap;

/* One forward: what it consumed and the last logit row. */
typedef struct {
    int32_t index;
    int32_t n_ids;
    int32_t *ids;          /* consumed */
    int32_t pos0;          /* position of ids[0] */
    int32_t forced;        /* 1: the ids were given (teacher forcing), 0: sampled; forward 0 is given */
    q4x_hash prefix;       /* rolling hash of every consumed id and position so far */
    int32_t sampled;       /* id chosen after this forward, -1 none */
    int32_t n_logits;      /* rows of logits kept (1: the last) */
    int32_t vocab;
    float *logits;         /* [n_logits, vocab] f32 before the last rounding, or NULL */
    /* of the last row: top two after the arm's last rounding (what the choice was made on), lowest id first on a tie */
    int32_t top_id[2];
    float top_val[2];
    int32_t ntaps;
    q4x_tap *taps;         /* in execution order, then states */
} q4x_forward;

typedef struct q4x_dump {
    char *path;            /* as given */
    int32_t version;
    q4x_hash content;      /* ids, positions, payload bits, levers: what "two runs equal" means */
    json_t *header;        /* keys below */
    int32_t nnodes;
    q4x_dump_node *nodes;
    int32_t nforwards;
    q4x_forward *forwards;
    void *priv;            /* the reader's own */
} q4x_dump;

/* Header keys (all of them; an importer leaves out what it cannot know, and the report says UNKNOWN PROVENANCE):
 *   format, vocabulary_version, mode, rows, bands
 *   tool {version, commit, kernels_hash, compiler, flags}
 *   model {path, arch, container, fingerprint, nshards, shards[{path,size}], synthetic}
 *   arm {label, device, spec, levers{name: value}, scoped[...] , profile}
 *   prompt {ids, text}
 *   free {time, boot, threads, isa, args}
 */

/* ---- writing: streamed, appears under its name by rename when closed, vanishes when aborted ---- */
typedef struct q4x_dumpw q4x_dumpw;

/* header and nodes are copied. */
int q4x_dumpw_open(const char *path, const json_t *header, const q4x_dump_node *nodes, int32_t nnodes,
                   q4x_dumpw **ret, q4x_err *err);
/* f->taps and f->ntaps are ignored here: taps follow one by one and belong to the last begun forward. */
int q4x_dumpw_tap(q4x_dumpw *w, const q4x_tap *t, q4x_err *err);
/* Ends a forward: ids, prefix, logits of f. Call after its taps. */
int q4x_dumpw_forward(q4x_dumpw *w, const q4x_forward *f, q4x_err *err);
/* Write the end marker with the declared counts, flush, rename. Frees w, also on failure (nothing remains then). */
int q4x_dumpw_close(q4x_dumpw *w, q4x_hash *ret_content, q4x_err *err);
void q4x_dumpw_abort(q4x_dumpw *w); /* NULL is fine */

/* ---- reading ---- */
/* Reads and verifies the whole file (checksums, counts, duplicates, end marker). A cut file is Q4X_E_TRUNCATED,
 * with forwards that were complete kept in *ret (the caller must free it) so that they can be reported; any other
 * defect leaves *ret untouched. */
int q4x_dump_read(const char *path, q4x_dump **ret, q4x_err *err);
void q4x_dump_free(q4x_dump *d); /* NULL is fine */
/* Full tensor of a tap, decoded on first use and kept in t->full. Q4X_E_ARG when the dump has none. */
int q4x_dump_full(const q4x_dump *d, q4x_tap *t, q4x_err *err);
/* Node index by name, -1: none. Tap of a node in a forward, NULL: none. */
int32_t q4x_dump_node_find(const q4x_dump *d, const char *name);
q4x_tap *q4x_dump_tap(const q4x_dump *d, int32_t forward_index, int32_t node);

/* Write every full tensor of d as safetensors, keys fN/TAP, V heads in HF order, ids as I32, attn.sel as an additive
 * mask. By rename. */
int q4x_dump_export(const q4x_dump *d, const char *path, q4x_err *err);

/* Bring rows*cols values of dtype size `elem` from GGUF to HF head order in place (no-op when heads say so). */
int q4x_heads_to_hf(const q4x_heads *h, void *data, size_t elem, int64_t rows, int64_t cols, q4x_err *err);

#endif
