/* need.h: the memory that a run needs, computed from the model's header and its plan, without running and without the
 * device.
 *
 * The processor maps the file: matrices are read where they lie, the rows of tables as ids ask for them; vectors are
 * copied as f32. A device has no map of the file: weights lie in its memory as lib/net_dev.h says, but for the n-gram
 * table, whose rows are gathered on the host and sent. Arena, states and the rest are those of lib/arena.h on both.
 */
#ifndef Q4X_NEED_H
#define Q4X_NEED_H

#include "lib/run.h"
#include "lib/tap.h"
#include "lib/tensor_class.h"

/* How a run on a processor reads a tensor. */
typedef enum {
    Q4X_USE_MAPPED, /* a matrix, where it lies */
    Q4X_USE_ROWS,   /* a table, of which the rows asked for are read */
    Q4X_USE_COPIED, /* a vector, as f32 in memory from the start */
    Q4X_USE_NOT_RUN
} q4x_use;
const char *q4x_use_name(q4x_use u); /* "mapped" */
/* Of every tensor, in file order; *ret is malloc'd. */
int q4x_need_uses(const q4x_net *n, q4x_use **ret, q4x_err *err);

/* What kind of state a buffer of the run is, by its name. */
typedef enum {
    Q4X_NEED_KV,
    Q4X_NEED_INDEXER,
    Q4X_NEED_CONV,
    Q4X_NEED_DELTA,
    Q4X_NEED_NGRAM,
    Q4X_NEED_STATES
} q4x_need_state;
extern const char *const q4x_need_states[Q4X_NEED_STATES]; /* "kv" */

typedef struct {
    int64_t tensors;
    uint64_t mapped;   /* bytes of matrices: a run reads them where they lie */
    uint64_t gathered; /* of tables of which only the rows asked for are read */
    uint64_t copied;   /* what vectors take as f32, in memory from the start */
    uint64_t unused;   /* in the file, not run */
} q4x_need_class;

typedef struct {
    int cuda;
    int64_t n_ctx;
    int32_t tile, threads; /* rows a pass; 0 threads on a device */
    q4x_need_class cls[Q4X_TC_COUNT];
    uint64_t token; /* bytes of weights that one decoded token reads: of the experts those used, of tables its rows */
    uint64_t state[Q4X_NEED_STATES];
    uint64_t arena, logits; /* logits: of one row */
    uint64_t
        logits_all;   /* of forwards that give a row for each id, instead: processor: n_ctx rows, device: of a pass */
    uint64_t library; /* device: what lever gemm = cublas takes on top; 0 on a processor */
    uint64_t scratch; /* processor: all threads together. Device: of its ops, and the ids of a pass */
    uint64_t pinned;  /* device: memory of the host for what goes there and comes back; 0 on a processor */
    uint64_t pinned_all;                   /* the same where a forward gives a row for each of n_ctx ids */
    q4x_tap_memory tap[Q4X_MODE_FULL + 1]; /* device: what taps of the public nodes take besides, by mode; else 0 */
    uint64_t tap_sketch,
        tap_full; /* payload that a dump of the public nodes gets for one row: sketches, full tensors */
    /* sums */
    uint64_t states;  /* of state[] */
    uint64_t weights; /* processor: mapped. Device: in its memory, vectors and lists of experts too */
    uint64_t own;     /* processor: memory of the process, besides the map. Device: its memory, all together */
    uint64_t least;   /* the same for one position: no shorter context needs less */
} q4x_need;

/* For one sequence of up to n_ctx positions, 1 .. the model's. threads 0: as a run takes when it is not told. Errors: a
 * context out of range, no memory. */
int q4x_need_of(const q4x_net *n, int cuda, int64_t n_ctx, int threads, q4x_need *ret, q4x_err *err);

#endif
