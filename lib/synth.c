#include "lib/synth.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/quant.h"
#include "lib/io.h"
#include "lib/machine.h"

/* ---- what values a tensor gets ---- */

typedef enum { SPREAD, DEPTH, SIGMA, RANGE, DECAY } kind;

static const struct {
    const char *glob;
    kind how;
    double a, b;
} classes[] = {
#define CLASS(glob, how, a, b) {glob, how, a, b},
#include "lib/synth_classes.def"
#undef CLASS
};

int q4x_synth_fill_of(const q4x_tensor *t, q4x_fill *ret, q4x_err *err) {
    int block = 0, at = 0;
    size_t i = 0;
    const char *rest = t->name;
    if (sscanf(t->name, "blk.%d.%n", &block, &at) == 1 && at) rest += at;
    while (fnmatch(classes[i].glob, rest, 0)) i++; /* the last line fits all */
    double a = classes[i].a, b = classes[i].b, rms = a / (b * sqrt((double)t->ne[0]));
    switch (classes[i].how) {
    case DEPTH: rms *= 13 / sqrt(block + 1); break;
    case SIGMA: rms = a; break;
    case RANGE:
    case DECAY:
        if (t->type != K_T_F32)
            return q4x_fail(err, Q4X_E_ARG, "tensor %s: expected F32 for values from %g to %g", t->name, a, b);
        q4x_fill_range(a, b, classes[i].how == DECAY, ret);
        return 0;
    default: break;
    }
    if (q4x_fill_spread(t->type, rms, ret))
        return q4x_fail(err, Q4X_E_ARG, "tensor %s: expected a type of weights", t->name);
    return 0;
}

/* ---- declaring ---- */

static int label(const q4x_synth *s, q4x_gguf_out *o, q4x_err *err) {
    int rc = 0;
    const q4x_geometry *g = s->g;
    const q4x_file_type_info *ft = &q4x_file_types[s->type];
    char text[300];
    TRY(q4x_gguf_out_str(o, "general.architecture", g->arch, err));
    TRY(q4x_gguf_out_str(o, "general.type", "model", err));
    snprintf(text, sizeof text, "%s geometry, synthetic weights", g->title);
    TRY(q4x_gguf_out_str(o, "general.name", text, err));
    snprintf(text, sizeof text,
             "SYNTHETIC: random blocks of seed %llu in the shapes and types of %s (%s), made by q4x synth. Not the "
             "released weights; its output means nothing.",
             (unsigned long long)s->seed, g->title, ft->name);
    TRY(q4x_gguf_out_str(o, "general.description", text, err));
    if (ft->number >= 0) TRY(q4x_gguf_out_u32(o, "general.file_type", (uint32_t)ft->number, err));
    TRY(q4x_gguf_out_u32(o, "general.quantization_version", 2, err));
    TRY(q4x_gguf_out_bool(o, "q4x.synthetic", 1, err));
    TRY(q4x_gguf_out_u64(o, "q4x.synthetic.seed", s->seed, err));
    TRY(q4x_gguf_out_str(o, "q4x.synthetic.geometry", g->name, err));
    TRY(q4x_gguf_out_str(o, "q4x.synthetic.file_type", ft->name, err));
done:
    return rc;
}

int q4x_synth_declare(const q4x_synth *s, const char *path, q4x_gguf_out **ret, q4x_err *err) {
    int rc = 0;
    q4x_gguf_out *o = NULL;
    q4x_geometry_tensor *t = NULL;
    int64_t n = 0;
    q4x_gguf_cut cut = {.shards = s->shards, .shard_bytes = s->shards ? 0 : s->g->shard_bytes};
    TRY(q4x_gguf_out_new(path, &cut, &o, err));
    TRY(label(s, o, err));
    TRY(q4x_geometry_keys(s->g, o, err));
    TRY(q4x_geometry_tokenizer(s->g, o, err));
    TRY(q4x_geometry_tensors(s->g, s->type, &t, &n, err));
    for (int64_t i = 0; i < n; i++) TRY(q4x_gguf_out_tensor(o, t[i].name, t[i].type, t[i].ndim, t[i].ne, err));
    *ret = o;
    o = NULL;
done:
    free(t);
    q4x_gguf_out_abort(o);
    return rc;
}

/* ---- writing ---- */

enum { PORTION = 8 << 20, PIECE = 128 << 10 }; /* bytes written at once; bytes a thread makes at once */

typedef struct {
    const q4x_synth *s;
    q4x_gguf_out *o;
    uint8_t *buf; /* PORTION and the overhang of a fill */
    uint64_t done, total;
    double made;
    int threads; /* at least 1 */
    q4x_synth_tell tell;
    void *ctx;
} writer;

/* Of this thread: waiting for others does not count. */
static double cpu_seconds(void) {
    struct timespec t;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t)) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* n blocks from `first` into the buffer, shared among threads in pieces of eights of blocks, so that only the last
 * overhangs. */
static void make(writer *w, const q4x_fill *f, uint64_t key, int64_t first, int64_t n) {
    double made = 0;
    int64_t bytes = k_quant_get(f->type)->bytes, each = PIECE / bytes / 8 * 8, pieces = (n + each - 1) / each;
#pragma omp parallel for schedule(static) num_threads(w->threads) reduction(+ : made) if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++) {
        double t0 = cpu_seconds();
        int64_t k = n - i * each < each ? n - i * each : each;
        q4x_fill_blocks(f, key, first + i * each, k, w->buf + i * each * bytes);
        made += cpu_seconds() - t0;
    }
    w->made += made;
}

static int write_tensor(writer *w, const q4x_tensor *t, q4x_err *err) {
    int rc = 0;
    q4x_fill f;
    uint64_t key = q4x_fill_key(t->name, w->s->seed);
    int64_t bytes = k_quant_get(t->type)->bytes, blocks = (int64_t)t->bytes / bytes, each = PORTION / bytes / 8 * 8;
    TRY(q4x_synth_fill_of(t, &f, err));
    for (int64_t b = 0; b < blocks; b += each) {
        int64_t n = blocks - b < each ? blocks - b : each;
        make(w, &f, key, b, n);
        TRY(q4x_gguf_out_write(w->o, w->buf, (size_t)(n * bytes), err));
        w->done += (uint64_t)(n * bytes);
        if (w->tell) w->tell(w->ctx, w->done, w->total);
    }
done:
    return rc;
}

int q4x_synth_write(const q4x_synth *s, q4x_gguf_out *o, q4x_synth_tell tell, void *ctx, q4x_synth_cost *ret,
                    q4x_err *err) {
    int rc = 0;
    double t0 = q4x_machine_now();
    writer w = {.s = s, .o = o, .tell = tell, .ctx = ctx};
    w.threads = s->threads > 0 ? s->threads : q4x_machine_cpus();
    const q4x_tensor *t = q4x_gguf_out_tensors(o);
    for (int64_t i = 0; i < q4x_gguf_out_ntensors(o); i++) w.total += t[i].bytes;
    w.buf = aligned_alloc(64, PORTION + 64);
    if (!w.buf) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a portion of the file"));
    TRY(q4x_gguf_out_begin(o, err));
    for (int64_t i = 0; i < q4x_gguf_out_ntensors(o); i++) TRY(write_tensor(&w, &t[i], err));
    o = NULL;
    TRY(q4x_gguf_out_finish(w.o, err));
    *ret = (q4x_synth_cost){.bytes = w.done, .made = w.made, .seconds = q4x_machine_now() - t0};
done:
    q4x_gguf_out_abort(o);
    free(w.buf);
    return rc;
}
