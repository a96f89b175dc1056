#include "lib/digest.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/io.h"
#include "lib/machine.h"
#include "lib/sha256.h"

enum { PORTION = 16 << 20, BLOCK = 1 << 20 };

/* ---- tensors ---- */

typedef struct {
    const q4x_model *m;
    q4x_digest_tell tell;
    void *ctx;
    uint64_t total;
    atomic_ullong done;
} work;

static int is_caller(void) {
#ifdef _OPENMP
    return omp_get_thread_num() == 0;
#else
    return 1;
#endif
}

static q4x_hash digest(work *w, const q4x_tensor *t) {
    XXH3_state_t state; /* aligned by its type */
    XXH128_canonical_t canon;
    q4x_hash h;
    XXH3_128bits_reset(&state);
    for (size_t at = 0; at < t->bytes;) {
        size_t n = t->bytes - at < PORTION ? t->bytes - at : PORTION;
        const char *p = (const char *)t->data + at;
        XXH3_128bits_update(&state, p, n);
        if (t->bytes > PORTION) q4x_model_release(w->m, p, n);
        at += n;
        unsigned long long done = atomic_fetch_add(&w->done, n) + n;
        if (w->tell && is_caller()) w->tell(w->ctx, done, w->total);
    }
    XXH128_canonicalFromHash(&canon, XXH3_128bits_digest(&state));
    memcpy(h.b, canon.digest, sizeof h.b);
    return h;
}

int q4x_digest_tensors(const q4x_model *m, int threads, q4x_digest_tell tell, void *ctx, q4x_hash **ret, q4x_err *err) {
    const int64_t n = q4x_model_ntensors(m);
    work w = {.m = m, .tell = tell, .ctx = ctx};
    int rc = q4x_model_check(m, err);
    if (rc) return rc;
    q4x_hash *h = calloc((size_t)(n ? n : 1), sizeof *h);
    if (!h) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the hashes of %lld tensors", (long long)n);
    for (int64_t i = 0; i < n; i++) w.total += q4x_model_tensor(m, i)->bytes;
    const int nth = threads > 0 ? threads : q4x_machine_cpus();
#pragma omp parallel for schedule(dynamic, 1) num_threads(nth) if (nth > 1 && n > 1)
    for (int64_t i = 0; i < n; i++) h[i] = digest(&w, q4x_model_tensor(m, i));
    (void)nth;
    rc = q4x_model_check(m, err); /* what was cut meanwhile may have been read as zeros */
    if (rc)
        free(h);
    else
        *ret = h;
    return rc;
}

/* ---- files ---- */

int q4x_digest_file(const char *path, uint64_t size, q4x_digest_tell tell, void *ctx, char hex[65], q4x_err *err) {
    q4x_sha256 s;
    uint64_t done = 0;
    int rc = 0;
    uint8_t *buf = malloc(BLOCK);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (!buf) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to read it", q4x_tail(path)));
    if (fd < 0) TRY(q4x_fail(err, Q4X_E_IO, "%s: cannot open: %s", q4x_tail(path), strerror(errno)));
    q4x_sha256_begin(&s);
    for (;;) {
        ssize_t n = read(fd, buf, BLOCK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) TRY(q4x_fail(err, Q4X_E_IO, "%s: cannot read: %s", q4x_tail(path), strerror(errno)));
        if (!n) break;
        q4x_sha256_add(&s, buf, (size_t)n);
        done += (uint64_t)n;
        if (tell) tell(ctx, done, size == UINT64_MAX ? 0 : size);
    }
    if (size != UINT64_MAX && done != size)
        TRY(q4x_fail(err, Q4X_E_TRUNCATED, "%s: expected the %llu bytes it had when it was opened, found %llu",
                     q4x_tail(path), (unsigned long long)size, (unsigned long long)done));
    q4x_sha256_end(&s, hex);
done:
    if (fd >= 0) close(fd);
    free(buf);
    return rc;
}
