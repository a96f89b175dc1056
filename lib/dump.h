/* dump.h: the dump (.q4d): what one arm did, self-contained. Writer, reader, and the format.
 *
 * A dump holds a header (provenance, levers, plan), then per forward: consumed ids, taps, states, a logit row; last
 * what only the end of a run knows.
 * The structures below are what the judge (bisect/) works on; foreign importers fill the same ones.
 *
 * THE FORMAT (version 1.2). Little-endian; no padding anywhere; floats are IEEE 754. A file is a preamble and chunks.
 *
 *   preamble   8 bytes 89 'Q' '4' 'D' 0d 0a 1a 0a | u32 version | u32 minor version | u64 XXH3-64 of these 16 bytes
 *   chunk      u32 type (four letters) | u32 flags | u64 length | u64 XXH3-64 of the payload |
 *              u64 XXH3-64 of these 24 bytes | payload
 *
 * A reader reads every older version and refuses a newer one. A newer minor version only adds chunk types; where such
 * a chunk has flag 1 it may be skipped, else the dump cannot be read. Known chunks but TAIL and PART have flags 0.
 * Order: HEAD NODE ((TAPS | FULL | PART)* FWRD)* TAIL? DONE, and nothing behind it. Without DONE a dump is cut: its
 * whole forwards can be read, and nothing of the last one that is not. A run that could not go on leaves one so, with a
 * TAIL that says why.
 *
 *   HEAD   JSON object, UTF-8, at most 16 MiB, no key twice (keys below)
 *   NODE   i32 count, then per node:
 *            text name | text op | text levers    text: u16 bytes, printable ASCII, at most 1000; names differ
 *            i32 layer | u32 flags: 1 public, 2 state, 4 ids
 *            i32 alias                             -1 or an earlier node
 *            i32 heads: axis off width nk nv gguf
 *            i32 nin | i32 in[nin]                 -1 (the consumed ids) or an earlier node
 *            i32 nst | i32 st[nst]                 nodes that are states
 *   TAPS   i32 forward | i32 count, then per record:
 *            i32 node | i32 dtype (k_type) | i64 rows | i64 cols (each < 2^31) | 16 bytes bits | u32 parts, then
 *            1 statistics   u64 n nan pinf ninf zeros on_bf16 on_f16 | f64 min max maxabs sumabs sumsq |
 *                           i32 ntop | u64 index[ntop] | f32 value[ntop]; n = rows * cols
 *            2 sketch       i32 row0 nrows width raw | u64 skipped | f64 row_sumabs[nrows] row_sumsq[nrows] |
 *                           f32 values[nrows * width] when raw (width = cols <= 512), else f64 buckets[nrows * width]
 *                           (width 64 or 256); all finite but the raw values
 *            4 band         f64 hard rms
 *            8 full         the tensor lies in a FULL chunk of this forward
 *            16 selection   i32 rows k | i32 ids[rows * k]; 32: f32 weights[rows * k]; 64: f32 lo[rows] hi[rows]
 *                           (raw bits). When its shape is the record's and dtype is I32, bits are those of the ids
 *          A state with V heads along its rows is recorded with one row a head.
 *          A node has at most one record in a forward. Records of one forward may fill several chunks.
 *   FULL   i32 forward | i32 node | u32 encoding | u32 bytes of an element | u64 bytes of the tensor, then
 *            encoding 0     the tensor's bytes
 *            encoding 1     byte planes: byte 0 of every element, byte 1 of every element, ..: as one zlib stream
 *                           without matches (Z_HUFFMAN_ONLY), so the tensor has at most 8 times its bytes
 *          One for each record with part 8, none else. Values are exact, payloads of NaNs included.
 *   PART   (since 1.2; flag 1) i32 forward | i32 count, then per record, in the order of the forward's records, which
 *          stand before it and have sketches that are not raw:
 *            i32 node | i32 nrows, the sketch's | f64 row_least[nrows], finite and not below 0: the smallest sum of
 *            squares of a part, for rows that an op norms part by part
 *          A record has at most one.
 *   FWRD   ends a forward: i32 index (ascending) n_ids pos0 forced | 16 bytes prefix | i32 sampled n_logits vocab |
 *            i32 top_id[2] | f32 top_val[2] | i32 declared records, selections, full tensors of this forward |
 *            i32 1 when logits follow, else 0 | i32 ids[n_ids] | f32 logits[n_logits * vocab]
 *   TAIL   (since 1.1; flag 1) JSON object as in HEAD (keys below)
 *   DONE   u32 forwards nodes | u64 records, selections, full tensors, logit rows, chunks before this one (all
 *            declared, all checked) | 16 bytes content hash
 *
 * CONTENT is XXH3-128 (canonical) over: 'L', arm.levers (those at their default left out, so that a lever which a later
 * version adds changes no older content) and arm.scoped of the header as JSON without blanks and with sorted keys
 * ("null" when absent), each behind its i64 length; for each record 'T', i64 length and bytes of the node's name, i32
 * forward, i32 dtype, i64 rows, i64 cols, bits; for each forward 'F', i32 index, pos0, n_ids, the ids, i32 sampled, i32
 * n_logits and vocab (0 0 without logits), bits (f32) of the logits (zeros without). Not covered: everything else in
 * the header, the tail, statistics, sketches, bands, names of ops. Checksums cover every byte of the file.
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

/* Groups of a tensor that belong together. axis 0: none. They are nv groups of `width` consecutive columns (axis 1) or
 * rows of the record's [rows, cols] (axis 2), the first at `off`. Two kinds of node have them: one with V heads (spec
 * 9.4), and the output of an op that norms its rows part by part (streams, heads of q and k): each part a group, in one
 * order alone, nk = nv and gguf 0. */
typedef struct {
    int32_t axis, off, width, nk, nv;
    int32_t gguf; /* 1: file order is GGUF's r*nk+k, 0: HF's k*(nv/nk)+r */
} q4x_heads;

/* One node of the plan, as recorded. */
typedef struct {
    char *name;    /* "L03.attn.ctx" */
    char *op;      /* "attn_ctx" */
    int32_t layer; /* -1: none */
    int32_t is_public;
    int32_t is_state; /* a state record, hashed after the forward */
    int32_t is_ids;   /* i32 payload: a selection or ids */
    int32_t alias;    /* index of the node whose output this is, or -1 */
    int32_t nin;
    int32_t *in; /* node indices; Q4X_IN_IDS: the consumed ids */
    int32_t nst;
    int32_t *st; /* node indices of the state records it reads (their value before the forward) */
    q4x_heads heads;
    char *levers; /* "act=bf16 gdn=chunk64": the levers this op reads that are not at their default */
} q4x_dump_node;
enum { Q4X_IN_IDS = -1 };

/* A selection: ids in rank order, one row per query, -1 pads. */
typedef struct {
    int32_t rows, k;
    int32_t *ids;   /* [rows, k] */
    float *weights; /* [rows, k] or NULL */
    float *lo, *hi; /* [rows]: smallest selected, largest rejected score; NaN where there is none. May be NULL */
} q4x_selection;

/* What one node left in one forward. */
typedef struct {
    int32_t node; /* index into nodes */
    int32_t forward;
    int32_t dtype; /* k_type of the payload: F32 or I32 (importers also BF16, F16) */
    int64_t rows, cols;
    q4x_hash bits;
    int32_t has_stats, has_sketch, has_band, has_full, has_sel;
    q4x_stats stats;
    q4x_sketch sketch;
    double band_hard, band_rms; /* L2 of the whole tensor */
    q4x_selection sel;
    void *full; /* rows * cols values of dtype, or NULL (read on demand: q4x_dump_full) */
} q4x_tap;

/* One forward: what it consumed and the last logit row. */
typedef struct {
    int32_t index;
    int32_t n_ids;
    int32_t *ids;     /* consumed */
    int32_t pos0;     /* position of ids[0] */
    int32_t forced;   /* 1: the ids were given (teacher forcing), 0: sampled; forward 0 is given */
    q4x_hash prefix;  /* rolling hash of every consumed id and position so far */
    int32_t sampled;  /* id chosen after this forward, -1 none */
    int32_t n_logits; /* rows of logits kept (1: the last) */
    int32_t vocab;
    float *logits; /* [n_logits, vocab] f32 before the last rounding, or NULL */
    /* of the last row: top two after the arm's last rounding (what the choice was made on), lowest id first on a tie */
    int32_t top_id[2];
    float top_val[2];
    int32_t ntaps;
    q4x_tap *taps; /* in execution order, then states */
} q4x_forward;

typedef struct q4x_dump {
    char *path; /* as given */
    int32_t version;
    q4x_hash content; /* ids, positions, payload bits, levers: what "two runs equal" means */
    json_t *header;   /* keys below */
    json_t *tail;     /* keys below; NULL: none */
    int32_t nnodes;
    q4x_dump_node *nodes;
    int32_t nforwards;
    q4x_forward *forwards;
    void *priv; /* the reader's own */
} q4x_dump;

/* A dump that an importer fills has priv NULL: q4x_dump_free then frees every pointer in it with free(), one by one.
 *
 * Header keys (all of them; an importer leaves out what it cannot know, and the report says UNKNOWN PROVENANCE):
 *   format, vocabulary_version, mode, rows, bands
 *   tool {version, commit, kernels_hash, compiler, flags}
 *   model {path, arch, container, fingerprint, nshards, shards[{path,size}], synthetic}
 *   arm {label, device, spec, levers{name: value}, scoped[...] , profile}
 *   prompt {ids, text}
 *   free {recording, time, boot, threads, isa, args}
 *   nonfinite_counted: true when every node that holds a NaN or an infinity has statistics; one without is finite then
 *   qsa {ratio}: tokens of an indexer block; export derives attn.sel with it
 *
 * Tail keys, each only when it is known:
 *   levers [{item, outcome, node, forward}]: the arm's items as typed. outcome: "moved" (bits that `node` made in
 *     `forward`, the first place that was found, are not those that the arm without this item computes from the same
 *     inputs), "inert" (they are, wherever the item was in scope), "default" (the item asks for what is anyway), "not
 *     measured" (none moved where that could be told)
 *   controls {read_twice, perturbation}, each {differing, compared}: records whose buffer was read a second time, on
 *     another path; ids and logit rows of the same sequence run without taps
 *   ended {forwards, error}: of a run that could not go on, alone in the tail of a dump without end marker
 */

/* ---- writing: streamed, appears under its name by rename when closed, vanishes when aborted ---- */
typedef struct q4x_dumpw q4x_dumpw;

/* header and nodes are copied. Everything given is held against the rules of the format (Q4X_E_ARG): what was written
 * can be read. After the first failure every call fails. */
int q4x_dumpw_open(const char *path, const json_t *header, const q4x_dump_node *nodes, int32_t nnodes, q4x_dumpw **ret,
                   q4x_err *err);
/* Up to so many threads share the work on a full tensor, which changes no bit; one when nothing is said. */
void q4x_dumpw_threads(q4x_dumpw *w, int threads);
/* f->taps and f->ntaps are ignored here: taps follow one by one and belong to the last begun forward. */
int q4x_dumpw_tap(q4x_dumpw *w, const q4x_tap *t, q4x_err *err);
/* Ends a forward: ids, prefix, logits of f. Call after its taps. */
int q4x_dumpw_forward(q4x_dumpw *w, const q4x_forward *f, q4x_err *err);
/* The tail: after the last forward, at most once. */
int q4x_dumpw_tail(q4x_dumpw *w, const json_t *tail, q4x_err *err);
/* Write the end marker with the declared counts, flush, rename. Frees w, also on failure (nothing remains then). */
int q4x_dumpw_close(q4x_dumpw *w, q4x_hash *ret_content, q4x_err *err);
/* The run cannot go on (why: one sentence): what there is of a forward that did not end is taken back, the tail says
 * why, and the dump appears under its name without an end marker. Frees w. *ret_forwards: whole ones in it; with none,
 * nothing appears and that is no failure. Fails, and nothing remains, where a write does. */
int q4x_dumpw_cut(q4x_dumpw *w, const char *why, int32_t *ret_forwards, q4x_err *err);
void q4x_dumpw_abort(q4x_dumpw *w); /* NULL is fine */

/* ---- reading ---- */
/* Reads and verifies the whole file (checksums, counts, duplicates, end marker). A cut file is Q4X_E_TRUNCATED,
 * with forwards that were complete kept in *ret (the caller must free it; its content hash is zero) so that they can
 * be reported; *ret is untouched when the cut is before the end of the nodes, and by any other defect. */
int q4x_dump_read(const char *path, q4x_dump **ret, q4x_err *err);
/* The same of n bytes in memory, which must outlive the dump; name is for messages. */
int q4x_dump_read_mem(const void *data, size_t n, const char *name, q4x_dump **ret, q4x_err *err);
void q4x_dump_free(q4x_dump *d); /* NULL is fine */
/* Full tensor of a tap, decoded on first use, held against its bits and kept in t->full (free() it and set NULL to give
 * the memory back). Q4X_E_ARG when the dump has none. */
int q4x_dump_full(const q4x_dump *d, q4x_tap *t, q4x_err *err);
/* Node index by name, -1: none. Tap of a node in a forward, NULL: none. */
int32_t q4x_dump_node_find(const q4x_dump *d, const char *name);
q4x_tap *q4x_dump_tap(const q4x_dump *d, int32_t forward_index, int32_t node);

/* Write every full tensor of d as safetensors, keys fN/TAP, shapes [rows, cols], V heads in HF order, ids as I32. Each
 * Lxx.attn.idx.sel also gives Lxx.attn.sel [1,T,Tc] F32: 0 where a query sees a token (a selected block's, past the
 * last whole block, or in Lxx.attn.idx.extra), -FLT_MAX elsewhere; that needs qsa.ratio in the header. Bits are
 * verified. By rename. ret: NULL, or what is in the file. Q4X_E_ARG when there is no full tensor. */
typedef struct {
    int64_t tensors;
    uint64_t bytes; /* of the file */
} q4x_export_done;
int q4x_dump_export(const q4x_dump *d, const char *path, q4x_export_done *ret, q4x_err *err);

/* Bring rows*cols values of dtype size `elem` from GGUF to HF head order in place (no-op when heads say so). */
int q4x_heads_to_hf(const q4x_heads *h, void *data, size_t elem, int64_t rows, int64_t cols, q4x_err *err);

#endif
