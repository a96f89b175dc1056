/* tap_batch.c: what is on its way from a device to the records of its taps, and the memory that it passes through. Jobs
 * and copies wait in a table until it is full or the next node writes over what one of them reads; then they go on
 * beside the ops. Results of a batch of pieces are collected with one copy. While the device and its copies go on,
 * batches that have arrived are finished here, in the order of the nodes, and what they took is given out again. */
#include <stdlib.h>
#include <string.h>

#include "lib/tap_dev_int.h"

/* ---- what waits ---- */

/* Behind what comes now these launches are done. */
static int join(q4x_tapdev *d, int64_t launch) {
    int n = 0;
    for (int i = 0; i < d->nbusy; i++)
        if (d->busy[i].launch > launch) d->busy[n++] = d->busy[i];
    d->nbusy = n;
    return k_dev_join(d->dev, launch);
}

static int64_t bytes_read(const k_measure_job *j) {
    if (j->kind == K_MEASURE_BITS) return j->rows;
    return 4 * j->rows * (j->kind == K_MEASURE_COPY ? 1 : j->cols);
}

static int64_t ids_read(const k_measure_job *j) {
    return j->ids ? 4 * j->rows * j->k : 0;
}

static void set_busy(q4x_tapdev *d, const void *p, int64_t bytes) {
    if (!p) return;
    d->busy[d->nbusy].p = p;
    d->busy[d->nbusy].n = bytes;
    d->busy[d->nbusy++].launch = d->dev->measured;
}

int q4x_tapdev_launch(q4x_tapdev *d) {
    enum { MOST = 2 * K_MEASURE_JOBS + Q4X_TAP_COPIES };
    int code = d->nbusy > Q4X_TAP_BUSY - MOST ? join(d, d->dev->measured) : 0;
    if (!code) code = k_dev_measure(d->dev, d->job, d->njobs, d->copy, d->ncopies);
    for (int i = 0; i < d->njobs; i++) {
        set_busy(d, d->job[i].x, bytes_read(&d->job[i]));
        set_busy(d, d->job[i].ids, ids_read(&d->job[i]));
    }
    for (int i = 0; i < d->ncopies; i++) set_busy(d, d->copy[i].there, (int64_t)d->copy[i].bytes);
    d->njobs = d->ncopies = 0;
    return code;
}

int q4x_tapdev_add_job(q4x_tapdev *d, const k_measure_job *j) {
    int code = d->njobs == K_MEASURE_JOBS ? q4x_tapdev_launch(d) : 0;
    if (!code && j->rows > 0) d->job[d->njobs++] = *j;
    return code;
}

static int meets(const void *a, int64_t an, const void *b, int64_t bn) {
    return (uintptr_t)a < (uintptr_t)b + (size_t)bn && (uintptr_t)b < (uintptr_t)a + (size_t)an;
}

static int waiting(const q4x_tapdev *d, const void *p, int64_t bytes) {
    for (int i = 0; i < d->njobs; i++) {
        const k_measure_job *j = &d->job[i];
        if (meets(j->x, bytes_read(j), p, bytes) || meets(j->ids, ids_read(j), p, bytes)) return 1;
    }
    for (int i = 0; i < d->ncopies; i++)
        if (meets(d->copy[i].there, (int64_t)d->copy[i].bytes, p, bytes)) return 1;
    return 0;
}

int q4x_tapdev_make_way(q4x_tapdev *d, const void *p, int64_t bytes) {
    int code = waiting(d, p, bytes) ? q4x_tapdev_launch(d) : 0;
    int64_t last = 0;
    for (int i = 0; i < d->nbusy; i++)
        if (d->busy[i].launch > last && meets(d->busy[i].p, d->busy[i].n, p, bytes)) last = d->busy[i].launch;
    return code || !last ? code : join(d, last);
}

/* ---- rings ---- */

/* 1 when so many bytes in one stretch can be given; *ret_wraps 1: they begin at the ring's beginning again, and what is
 * left at its end is passed over. */
static int fits(const q4x_tapring *r, size_t bytes, int *ret_wraps) {
    const size_t left = r->cap - r->at;
    *ret_wraps = bytes > left;
    return (*ret_wraps ? left : 0) + bytes <= r->cap - r->used;
}

/* They are added to what the open batch was given. */
static size_t give(q4x_tapring *r, size_t bytes, size_t *given) {
    int wraps;
    Q4X_BUG_IF(!fits(r, bytes, &wraps));
    const size_t gap = wraps ? r->cap - r->at : 0, at = wraps ? 0 : r->at;
    r->at = at + bytes;
    r->used += gap + bytes;
    *given += gap + bytes;
    return at;
}

static void take_back(q4x_tapring *r, size_t bytes) {
    r->used -= bytes;
    if (!r->used) r->at = 0;
}

/* ---- batches ---- */

void q4x_piece_forget(q4x_piece *p) {
    free(p->own);
    free(p->call);
}

/* Finish the oldest batch; wait 0: if it has arrived. */
static int finish(q4x_tapset *t, int wait, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    const q4x_tapbatch b = d->batch[0];
    int rc = 0;
    const int code = k_dev_arrived(d->dev, b.number, wait);
    if (code == K_DEV_NOT_YET) return 0;
    if (code) return q4x_tapdev_refused(t, code, d->piece[d->first].forward, err);
    for (int32_t i = 0; i < b.pieces && !rc; i++) rc = q4x_tapdev_take(t, &d->piece[d->first + i], err);
    for (int32_t i = 0; i < b.pieces; i++) q4x_piece_forget(&d->piece[d->first + i]);
    d->first += b.pieces;
    d->n -= b.pieces;
    take_back(&d->results, b.results);
    take_back(&d->copies, b.copies);
    memmove(d->batch, d->batch + 1, (size_t)--d->nbatches * sizeof *d->batch);
    return rc;
}

/* The open batch is on its way. */
static int collect(q4x_tapset *t, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    const int32_t forward = d->piece[d->first + d->n - 1].forward;
    int rc = d->nbatches == K_DEV_TURNS ? finish(t, 1, err) : 0;
    if (rc) return rc;
    const k_dev_copy c = {d->here + d->open.first, d->there + d->open.first, d->open.bytes};
    int code = q4x_tapdev_launch(d);
    if (!code) code = k_dev_collect(d->dev, &c);
    if (code) return q4x_tapdev_refused(t, code, forward, err);
    d->open.number = d->dev->collected;
    d->batch[d->nbatches++] = d->open;
    d->open = (q4x_tapbatch){0};
    return 0;
}

int q4x_tapdev_flush(q4x_tapset *t, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    int rc = d->open.pieces ? collect(t, err) : 0;
    while (d->nbatches && !rc) rc = finish(t, 1, err);
    return rc;
}

/* One more piece in the list. */
static int room_in_list(q4x_tapdev *d, q4x_err *err) {
    if (d->first + d->n < d->npieces) return 0;
    if (d->first > d->n) {
        memcpy(d->piece, d->piece + d->first, (size_t)d->n * sizeof *d->piece);
        d->first = 0;
        return 0;
    }
    const int32_t cap = d->npieces ? 2 * d->npieces : 256;
    q4x_piece *p = realloc(d->piece, (size_t)cap * sizeof *p);
    if (!p) return q4x_tapdev_nomem(err);
    d->piece = p;
    d->npieces = cap;
    return 0;
}

/* A batch's results lie in one stretch: one that is begun ends before the block does. */
static int have_room(const q4x_tapdev *d, size_t results, size_t copies) {
    int wraps, ignored;
    return fits(&d->results, results, &wraps) && fits(&d->copies, copies, &ignored) && !(wraps && d->open.bytes);
}

int q4x_tapdev_room(q4x_tapset *t, q4x_piece *p, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    const int own = p->c.bytes > d->copies.cap;
    const size_t copies = own ? 0 : p->c.bytes;
    int rc = own ? q4x_tapdev_flush(t, err) : 0; /* it passes through all of the ring */
    if (own) d->parted = 1;
    while (!rc && !have_room(d, p->r.bytes, copies)) {
        Q4X_BUG_IF(!d->open.pieces && !d->nbatches);
        d->parted = 1;
        rc = d->open.pieces ? collect(t, err) : finish(t, 1, err);
    }
    if (!rc) rc = room_in_list(d, err);
    if (rc) return rc;
    if (own && !(p->own = malloc(p->c.bytes))) return q4x_tapdev_nomem(err);
    p->r0 = give(&d->results, p->r.bytes, &d->open.results);
    if (!d->open.bytes) d->open.first = p->r0;
    d->open.bytes = p->r0 + p->r.bytes - d->open.first;
    p->c0 = own ? p->own : d->pinned ? d->pinned + give(&d->copies, copies, &d->open.copies) : NULL;
    return 0;
}

int q4x_tapdev_push(q4x_tapset *t, const q4x_piece *p, q4x_err *err) {
    q4x_tapdev *d = t->dev;
    int rc = 0;
    d->piece[d->first + d->n++] = *p;
    d->open.pieces++;
    if (d->open.results > d->most_results || d->open.copies > d->most_copies) {
        d->parted = 1;
        rc = collect(t, err);
    }
    for (int32_t left = 0; d->nbatches && d->nbatches != left && !rc;) {
        left = d->nbatches;
        rc = finish(t, 0, err);
    }
    return rc;
}

/* ---- copies ---- */

/* A part of it through one half of the ring; *ret: the collection that it has arrived with. */
static int begin_part(q4x_tapdev *d, char *half, const char *there, size_t bytes, int64_t *ret) {
    const k_dev_copy c = {half, there, bytes}, none = {0};
    int code = k_dev_measure(d->dev, NULL, 0, &c, 1);
    if (!code) code = k_dev_collect(d->dev, &none);
    *ret = d->dev->collected;
    return code;
}

/* What is larger than the ring comes in parts, while the one before is stored. */
static int bring_now(q4x_tapdev *d, char *to, const char *there, size_t bytes) {
    const size_t half = d->copies.cap / 2;
    size_t before = 0; /* bytes of the part before, which ends at `at` */
    int64_t number[2] = {0, 0};
    int code = 0, k = 0;
    Q4X_BUG_IF(d->copies.used || !half);
    for (size_t at = 0; (at < bytes || before) && !code; k ^= 1) {
        const size_t n = bytes - at < half ? bytes - at : half;
        if (n) code = begin_part(d, d->pinned + (size_t)k * half, there + at, n, &number[k]);
        if (!code && before) code = k_dev_arrived(d->dev, number[!k], 1);
        if (!code && before) memcpy(to + at - before, d->pinned + (size_t)!k * half, before);
        at += n;
        before = n;
    }
    return code;
}

int q4x_tapdev_bring(q4x_tapdev *d, const q4x_piece *p, size_t at, const void *there, size_t bytes) {
    if (p->own) return bring_now(d, p->own + at, there, bytes);
    int code = d->ncopies == Q4X_TAP_COPIES ? q4x_tapdev_launch(d) : 0;
    if (!code && bytes) d->copy[d->ncopies++] = (k_dev_copy){p->c0 + at, there, bytes};
    return code;
}
