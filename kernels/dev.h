/* dev.h: the device room's door: which CUDA devices are here, their memory, and ops that run on one.
 *
 * Compiled twice: dev_cuda.cu where nvcc is, dev_none.c elsewhere; dev_need.c and dev_check.c, which ask no device, are
 * in both. They answer every call; none prints, allocates host memory of its own or fails to start on a machine without
 * a driver. A device that cannot be used is never silently replaced. Functions that can fail return 0 or the runtime's
 * error code (k_dev_text says it in words); a failed kernel is reported by whichever call waits for it next, and by
 * every call after that.
 */
#ifndef K_DEV_H
#define K_DEV_H

#include "kernels/k.h"
#include "kernels/measure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int built;        /* 1: this program has the CUDA room */
    int count;        /* usable devices */
    int error;        /* the runtime's code when count is 0 (35: no or old driver, 100: no device), else 0 */
    int runtime;      /* version the program was built with, 13000 = 13.0; 0: none */
    int driver;       /* version the driver supports; 0: there is no driver */
    char reason[160]; /* one sentence when count is 0 */
} k_dev_info;

typedef struct {
    char name[128];
    int major, minor; /* compute capability */
    uint64_t memory;  /* bytes */
    int sms;
} k_dev_desc;

/* Always fills *ret. Starts no context on any device. */
void k_dev_query(k_dev_info *ret);
/* Device i of k_dev_query's count: 0, or the runtime's error code with *ret untouched. */
int k_dev_describe(int i, k_dev_desc *ret);
const char *k_dev_text(int error);

enum { K_DEV_TURNS = 8 };

/* One order of work on one device: what is enqueued runs in the order of the calls. Used by one thread at a time. */
typedef struct {
    int index;
    void *stream;
    volatile uint32_t *mark; /* in host memory that the device writes: the last mark, and of jobs at work the one
                                  that they came behind, + 1 */
    uint32_t given;          /* the last mark enqueued */
    void *gemm, *gemm_room;  /* cuBLAS and its workspace, once k_dev_gemm opened it */
    void *mark_dev, *write; /* the same words as the device sees them; the driver's function that writes one, or NULL */
    void *side, *copies;    /* streams of their own for what is measured and for what is copied beside the ops, once
                                 there was something */
    void *forked;           /* where they left the first one */
    void *done[K_DEV_TURNS];      /* where launch k ends: k mod K_DEV_TURNS */
    void *copied[K_DEV_TURNS];    /* where its copies end */
    void *here[K_DEV_TURNS];      /* where collection k ends */
    int64_t copying[K_DEV_TURNS]; /* of launch k: the last one up to it that had copies */
    int64_t measured, joined;     /* launches there; of them known to be done */
    int64_t collected;            /* collections */
    void *ahead, *came;           /* a stream of its own for copies ahead of the ops, where the last one ends */
    void *turned[2];              /* where turn k ends: k mod 2 */
    int64_t turn;                 /* the one at hand, from 1 on */
} k_dev;

int k_dev_open(int index, k_dev *ret); /* on failure there is nothing to close */
/* Waits, then gives everything back, whatever fails. 0, or the first error: also of work that nobody waited for. A
 * zeroed one is fine. */
int k_dev_close(k_dev *d);
int k_dev_memory(const k_dev *d, uint64_t *free, uint64_t *total);

/* Lever gemm = cublas will be asked for: find the library and give it a workspace in device memory, K_GEMM_ROOM bytes
 * (matmul.h). Once is enough. Fails with a sentence in why[size] that names what was looked for, and
 * where. */
int k_dev_gemm(k_dev *d, char *why, size_t size);
int k_dev_gemm_version(const k_dev *d); /* 130000 = 13.0.0; 0: not open */

/* Device memory, not cleared; host memory that the device copies from and to without the driver's help. */
int k_dev_alloc(k_dev *d, size_t bytes, void **ret);
void k_dev_free(k_dev *d, void *p); /* NULL is fine */
int k_dev_pinned(k_dev *d, size_t bytes, void **ret);
void k_dev_unpin(k_dev *d, void *p); /* NULL is fine */

/* Enqueued. Host memory must stay as it is until k_dev_wait; memory that was not pinned may hold up the host. */
int k_dev_put(k_dev *d, void *dev, const void *host, size_t bytes);
int k_dev_get(k_dev *d, void *host, const void *dev, size_t bytes);
int k_dev_zero(k_dev *d, void *dev, size_t bytes);
int k_dev_wait(k_dev *d); /* for all that was enqueued, launches and collections too */

/* Host memory in turns: a turn begins, number d->turn, when the one before the last is done. What copies of that one
 * read may be filled again, so that with two places, used in turn, the host is never more than two turns ahead. */
int k_dev_turn(k_dev *d);
/* Enqueue within a turn: as k_dev_put from pinned memory, but ahead of the ops. It begins when the turns before are
 * done and goes on beside the ops of this one, which must not have touched dev; what is enqueued from now on comes
 * behind. */
int k_dev_put_ahead(k_dev *d, void *dev, const void *host, size_t bytes);

/* 1: this op has no device form. It reads what only the host has: ids, the mapped table. */
K_HD int k_dev_on_host(int32_t op) {
    return op == K_OP_ple_ids || op == K_OP_ple_gather;
}

/* Why this call must not be enqueued: extents, levers beyond levers.def, operands that are missing or not as long as
 * dev_shape.h has them, a state or scratch without room, weights of another shape, of no type or with rows that
 * overlap, more of something than one launch takes. NULL: it may be. An empty extent asks for no operand. Touches no
 * device, and nothing that lies there. */
const char *k_dev_unfit(k_op op, const k_call *c);
/* Its parts: all but a look at each weight of w[0] (one of experts at the first alone); and that look, which is as long
 * as the list and needs to be taken once. */
const char *k_dev_unfit_call(k_op op, const k_call *c);
const char *k_dev_unfit_weights(const k_weight *w, int64_t n);
/* Enqueue an op (not alias, not one of the host). c lies on the host; in, out, par, w->data, w_dev, st->f and scratch
 * point into device memory. scratch_n: at least k_dev_scratch. An unfit call is refused as an invalid value. A product
 * under gemm = cublas wants k_dev_gemm before. */
int k_dev_run(k_dev *d, k_op op, const k_call *c);
/* The same for who has asked k_dev_unfit_call of this call, and k_dev_unfit_weights of what w[0] still is. */
int k_dev_run_fit(k_dev *d, k_op op, const k_call *c);
/* Floats of scratch that every op can run with on tiles of `tile` rows with up to n_ctx positions. Asks no device. */
int64_t k_dev_scratch(const k_dims *d, int64_t tile, int64_t n_ctx);

/* A stretch of device memory, and pinned memory of the host for it. */
typedef struct {
    void *here;
    const void *there;
    size_t bytes;
} k_dev_copy;

/* Enqueue n <= K_MEASURE_JOBS jobs (measure.h), their pointers into device memory, all extents 0 or more, and m copies,
 * as one launch, number d->measured from then on. They begin when what was enqueued before is done, and go on beside
 * what is enqueued after, jobs beside copies, until k_dev_join: up to there what they read must stay, and what they
 * write is not to be touched by anything but such jobs. */
int k_dev_measure(k_dev *d, const k_measure_job *jobs, int n, const k_dev_copy *copies, int m);
/* What is enqueued from now on comes behind the first `launch` launches; k_dev_wait waits for all. */
int k_dev_join(k_dev *d, int64_t launch);

/* Enqueue a collection, number d->collected from then on: beside the ops, but behind all launches so far and their
 * copies, c is made and zeros are left where it was. No job may write there before it has arrived. At most K_DEV_TURNS
 * are asked after; an earlier one is taken for a later one. */
int k_dev_collect(k_dev *d, const k_dev_copy *c);
/* Has collection number k arrived, and all that was copied before it? 0: it has; K_DEV_NOT_YET: no, and wait is 0; else
 * the runtime's error code. */
enum { K_DEV_NOT_YET = -1 };
int k_dev_arrived(k_dev *d, int64_t k, int wait);

/* Enqueue: v < 2^32 - 1 is the last mark when everything before it is done. */
int k_dev_mark(k_dev *d, uint32_t v);

/* After a failure: how far the device came. */
typedef struct {
    int lives;       /* 1: it goes on: a call was refused, and all that was enqueued before is done */
    int known;       /* 0: this driver writes no marks, and nothing is known of the rest */
    uint32_t done;   /* the last mark; 0: none */
    int measuring;   /* 1: jobs of k_dev_measure had begun and had not ended */
    uint32_t behind; /* the mark that was enqueued last before them */
} k_dev_progress;
/* Waits for a device that lives. */
k_dev_progress k_dev_reached(k_dev *d);

#ifdef __cplusplus
}
#endif
#endif
