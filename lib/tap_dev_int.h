/* tap_dev_int.h: what the files of the taps on a device share. tap_dev.c takes a tile up and measures it, tap_batch.c
 * brings what comes of it here and takes care of the memory that it passes through, tap_take.c finishes its record,
 * tap_dev_band.c brings the operands that a band is stated from, tap_dev_plan.c says how much memory all of it takes.
 *
 * A piece is a tile of a node, or a state. What is measured of it lies in the block of results, on the device and, once
 * a batch of pieces has been collected, at the same place here; what must be here as it is comes through a ring of
 * pinned memory. Both are given out one piece behind the other and taken back batch by batch, as their records, in the
 * order of the nodes, have been finished.
 */
#ifndef Q4X_TAP_DEV_INT_H
#define Q4X_TAP_DEV_INT_H

#include "kernels/ops.h"
#include "lib/tap_int.h"

enum { Q4X_TAP_ALIGN = 16 };

static inline size_t q4x_tap_rounded(size_t n) {
    return (n + Q4X_TAP_ALIGN - 1) / Q4X_TAP_ALIGN * Q4X_TAP_ALIGN;
}

/* So many bytes of a block that is given out one piece behind the other. */
static inline size_t q4x_tap_give(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += q4x_tap_rounded(bytes);
    return at;
}

/* ---- a piece ---- */

typedef enum { Q4X_PIECE_NODE, Q4X_PIECE_STATE, Q4X_PIECE_STATE_HERE } q4x_piece_kind;

/* Where the results of a piece lie, from the piece's first byte on. */
typedef struct {
    size_t head, tail; /* bytes that fill a leaf begun by the tile before, and that begin one: they come as they are */
    size_t body;       /* bytes between: digests of their leaves */
    int64_t part;      /* rows of a job of sums */
    q4x_sketch sk;     /* what is kept of the whole tensor */
    int has_words, has_cut;
    size_t head_at, tail_at, body_at, seen_at, sums_at, kept_at, words_at, cut_at; /* seen: one k_measured a part */
    int32_t cut_width;        /* of the parts that rows are normed in; 0: no sums of them */
    size_t cuts_at, spare_at; /* sums of those of kept rows; counts that nobody reads */
    size_t bytes;             /* of all */
} q4x_piece_results;

/* What comes here as it is, from the piece's first byte on: the output, then what its band is stated from. */
typedef struct {
    int out;         /* 1: the output comes */
    int band, reads; /* 1: the band of it is stated; and from what was given, too */
    size_t out_at, in_at[K_MAXIN], state_at;
    int state;           /* of the op, -1: none */
    int64_t rows, nrows; /* of it: what is new here; one of fixed rows: all, as it is before the op */
    size_t bytes;        /* of all */
} q4x_piece_copies;

/* The call of an op whose operands have come here. */
typedef struct {
    k_call c;
    k_levers lv;
    k_state st[2]; /* what c.st points at */
} q4x_piece_call;

typedef struct {
    q4x_node_event ev;
    int32_t forward;
    q4x_piece_kind kind;
    int32_t same; /* an alias shows again what was measured: no results */
    q4x_piece_results r;
    q4x_piece_copies c;
    size_t r0;            /* its results in the block */
    char *c0;             /* its copies; NULL: none */
    char *own;            /* c0, when they lie in memory of their own, being larger than the ring */
    q4x_piece_call *call; /* for the band; NULL: none */
} q4x_piece;

/* ---- memory ---- */

/* Bytes that are given out in a circle: used ones end at `at`. */
typedef struct {
    size_t cap, at, used;
} q4x_tapring;

/* Pieces whose results were collected together. */
typedef struct {
    int32_t pieces;
    size_t results, copies; /* bytes given out for them, gaps at the end of a ring included */
    size_t first, bytes;    /* where the results lie */
    int64_t number;         /* of the collection */
} q4x_tapbatch;

enum { Q4X_TAP_COPIES = 48, Q4X_TAP_BUSY = 4 * (2 * K_MEASURE_JOBS + Q4X_TAP_COPIES) };

/* The rows of a cache that were brought here. */
typedef struct {
    float *f;
    int64_t rows; /* that are here or on their way */
} q4x_tapcache;

struct q4x_tapdev {
    k_dev *dev;
    char *there, *here; /* results, on the device and pinned */
    char *pinned;       /* for copies */
    q4x_tapring results, copies;
    size_t most_results, most_copies;  /* a batch that has more is collected */
    k_measure_job job[K_MEASURE_JOBS]; /* that wait, as the copies do */
    k_dev_copy copy[Q4X_TAP_COPIES];
    int njobs, ncopies;
    struct {
        const void *p;
        int64_t n; /* bytes */
        int64_t launch;
    } busy[Q4X_TAP_BUSY]; /* what was launched reads, and may not be done */
    int nbusy;
    q4x_piece *piece; /* [npieces] of them first .. first + n - 1 are not finished */
    int32_t first, n, npieces;
    q4x_tapbatch batch[K_DEV_TURNS], open; /* collected, the oldest first; being filled */
    int nbatches;
    int parted;          /* 1: a batch of this forward was collected before its end */
    q4x_piece next;      /* what the node that is about to run will be */
    int32_t held;        /* the node that t->held will be when all results are here */
    q4x_tapcache *cache; /* [ncache] of each state of the plan */
    int32_t ncache;
    q4x_bits *bits;
};

/* The error of a device's failure in this forward. */
int q4x_tapdev_refused(const q4x_tapset *t, int code, int32_t forward, q4x_err *err);
/* "taps: out of memory" */
int q4x_tapdev_nomem(q4x_err *err);

/* ---- tap_dev_plan.c: sizes ---- */

/* 1 when the piece holds ids. */
int q4x_piece_is_ids(const q4x_tapset *t, const q4x_piece *p);
/* Lay out the results of a piece whose event is set. */
int q4x_piece_lay_out(const q4x_tapset *t, q4x_piece *p, q4x_err *err);
/* The same of its copies. in_cols: of the op's inputs. here: the op's operands will be here anyway. have: rows of its
 * state that are here. */
void q4x_piece_lay_copies(const q4x_tapset *t, q4x_piece *p, const int64_t *in_cols, int32_t pos0, int here,
                          int64_t have);

/* Bytes of the block of results and of the ring, and of outputs that wait, for forwards of a run of up to n_ctx
 * positions in passes of up to `tile` rows. */
typedef struct {
    size_t results, copies, held;
    int many; /* 1: a forward can have more results than the block has room for */
} q4x_tapdev_sizes;
int q4x_tapdev_size(const q4x_tapset *t, int64_t n_ctx, int32_t tile, q4x_tapdev_sizes *ret, q4x_err *err);

/* ---- tap_batch.c ---- */

/* Room for the next piece's results and copies, which are then given to it: waits for what is there, if need be, and
 * finishes it. */
int q4x_tapdev_room(q4x_tapset *t, q4x_piece *p, q4x_err *err);
/* Wait for all results and finish their records. */
int q4x_tapdev_flush(q4x_tapset *t, q4x_err *err);
/* The piece is measured: it belongs to the batch that is open, whose results are collected when they have become many;
 * batches that have arrived are finished. */
int q4x_tapdev_push(q4x_tapset *t, const q4x_piece *p, q4x_err *err);
/* Free what a piece owns. */
void q4x_piece_forget(q4x_piece *p);
/* The jobs and copies that wait are on their way. */
int q4x_tapdev_launch(q4x_tapdev *d);
int q4x_tapdev_add_job(q4x_tapdev *d, const k_measure_job *j);
/* bytes from `there` on come to where the piece's copies lie at `at`: later, or, of a piece with memory of its own,
 * before the call returns. */
int q4x_tapdev_bring(q4x_tapdev *d, const q4x_piece *p, size_t at, const void *there, size_t bytes);
/* These bytes are about to be written: what reads them goes before. */
int q4x_tapdev_make_way(q4x_tapdev *d, const void *p, int64_t bytes);

/* ---- tap_dev_band.c ---- */

/* Before the op of a node: what its band needs of a state that it is about to change. */
int q4x_tapdev_band_before(q4x_tapset *t, q4x_piece *p);
/* Behind it: the operands. */
int q4x_tapdev_band_bring(q4x_tapset *t, q4x_piece *p, const k_call *call, q4x_err *err);
/* They are here: state the band. */
int q4x_tapdev_band_take(q4x_tapset *t, q4x_piece *p, q4x_err *err);
/* Rows of the op's state that are here; call: what it is about to be given. */
int64_t q4x_tapdev_band_have(q4x_tapset *t, int32_t node, const k_call *call);

/* ---- tap_take.c ---- */

/* The results and copies of a piece are here: into its record, which is finished and written when it is whole. */
int q4x_tapdev_take(q4x_tapset *t, q4x_piece *p, q4x_err *err);

#endif
