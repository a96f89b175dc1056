#include "tests/cuda/h_pair.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/dev_shape.h"
#include "kernels/matmul.h"
#include "kernels/ops.h"
#include "kernels/round.h"

enum { TAIL = 64 /* words behind what an op writes to */ };

static k_dev dev;
static float *scratch, *dev_scratch;
static int64_t scratch_n, dev_scratch_n;

k_dev *hp_device(int *ret_emulated) {
    k_dev_desc d;
    int code = k_dev_describe(0, &d);
    if (code) fail_msg("there is no device: %s", k_dev_text(code));
    *ret_emulated = !strcmp(d.name, "emulator");
    if (!dev.stream) {
        if ((code = k_dev_open(0, &dev))) fail_msg("device 0: %s", k_dev_text(code));
        print_message("device 0: %s\n", d.name);
    }
    return &dev;
}

static int64_t left_n;
static const char *left_what;

void hp_left(int64_t n, const char *what) {
    left_n += n;
    left_what = what;
}

static int64_t flip_at;
static uint32_t flip_bits;

void hp_flip(int64_t at, uint32_t bits) {
    flip_at = at;
    flip_bits = bits;
}

static size_t shift;

void hp_shift(size_t bytes) {
    shift = bytes;
}

void hp_close(void) {
    if (left_n)
        print_message("%s: %lld %s left to a GPU\n", program_invocation_short_name, (long long)left_n, left_what);
    left_n = 0;
    k_dev_free(&dev, dev_scratch);
    const int code = k_dev_close(&dev);
    free(scratch);
    scratch = dev_scratch = NULL;
    scratch_n = dev_scratch_n = 0;
    if (code) {
        print_error("device 0: %s\n", k_dev_text(code)); /* nobody asked before */
        exit(1);
    }
}

static int64_t cut, over;

void hp_cut(int64_t floats) {
    cut = floats;
}

static void must(int code, const char *what) {
    if (code) fail_msg("%s: %s", what, k_dev_text(code));
}

static void room(const k_call *c) {
    const int64_t n = k_scratch_floats(c->d, c->T < 64 ? 64 : c->T, c->Tc) + c->in_cols[0] * 80,
                  m = k_dev_scratch(c->d, c->T, c->Tc);
    if (n > scratch_n) {
        free(scratch);
        scratch = malloc((size_t)n * sizeof *scratch);
        assert_non_null(scratch);
        scratch_n = n;
    }
    if (m > dev_scratch_n) {
        void *p;
        k_dev_free(&dev, dev_scratch);
        must(k_dev_alloc(&dev, (size_t)(m + TAIL) * sizeof(float), &p), "scratch");
        dev_scratch = p;
        dev_scratch_n = m;
    }
}

/* ---- what lies behind what an op writes to ---- */

static void put_tail(float *at) {
    static uint32_t known[TAIL];
    for (uint32_t i = 0; i < TAIL; i++) known[i] = 0xa1b2c3d4u + i;
    must(k_dev_put(&dev, at, known, sizeof known), "tail");
}

/* Words there that were written over, into `over`. */
static void look_at_tail(const char *what, const char *part, const float *at) {
    uint32_t now[TAIL];
    int64_t count = 0;
    must(k_dev_get(&dev, now, at, sizeof now), "tail");
    must(k_dev_wait(&dev), what);
    for (uint32_t i = 0; i < TAIL; i++) count += now[i] != 0xa1b2c3d4u + i;
    if (count) print_message("%s: %lld words behind the end of %s were written\n", what, (long long)count, part);
    over += count;
}

/* Scratch for a call: every other time no more than its shape asks for, since what an op makes of more is to be seen
 * too. A product by the library takes what it gets. */
static int64_t scratch_for(k_op op, const k_call *c) {
    static int64_t calls;
    const int64_t asked = k_shape_of(op, c).scratch;
    const int by_library = op == K_OP_matmul && k_gemm_of(c) != K_BY_OWN;
    return cut || (asked && !by_library && calls++ % 2 == 0) ? asked : dev_scratch_n;
}

/* Device copies of one call. */
typedef struct {
    void *p[64];
    int n;
} bag;

static void *up_at(bag *b, const void *host, size_t bytes, size_t at) {
    void *p;
    if (!host) return NULL;
    assert_true(b->n < 64);
    must(k_dev_alloc(&dev, bytes + at, &p), "alloc");
    must(k_dev_put(&dev, (char *)p + at, host, bytes), "put");
    b->p[b->n++] = p;
    return (char *)p + at;
}

static void *up(bag *b, const void *host, size_t bytes) {
    return up_at(b, host, bytes, 0);
}

static float *up_tailed(bag *b, const float *host, int64_t n) {
    void *p;
    assert_true(b->n < 64);
    must(k_dev_alloc(&dev, (size_t)(n + TAIL) * sizeof *host, &p), "alloc");
    must(k_dev_put(&dev, p, host, (size_t)n * sizeof *host), "put");
    b->p[b->n++] = p;
    put_tail((float *)p + n);
    return p;
}

/* An array of weights that lie one behind the other in host memory, and its copy. */
static void up_weights(bag *b, const k_call *c, k_call *x, int k, k_weight *copy) {
    if (!c->w[k] || !c->nw[k]) return;
    for (int32_t e = 0; e < c->nw[k]; e++) {
        copy[e] = c->w[k][e];
        const char *base = c->w[k][0].data;
        if (e == 0)
            copy[e].data = up_at(b, base, (size_t)c->nw[k] * (size_t)copy[e].rows * copy[e].row_bytes, shift);
        else
            copy[e].data = (const char *)copy[0].data + ((const char *)c->w[k][e].data - base);
    }
    x->w[k] = copy;
    x->w_dev[k] = up(b, copy, (size_t)c->nw[k] * sizeof *copy);
}

static int64_t differ(const char *what, const char *part, const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if ((a[i] != a[i] && b[i] != b[i]) || k_f32_bits(a[i]) == k_f32_bits(b[i])) continue;
        if (!count++)
            print_message("%s, %s[%lld]: device %a, host %a\n", what, part, (long long)i, (double)a[i], (double)b[i]);
    }
    return count;
}

int hp_run(const char *what, k_op op, const k_call *c, const int64_t par_n[K_MAXW], float *got, float *got_state,
           int64_t *ret_rows) {
    bag b = {.n = 0};
    room(c);
    const int64_t n = c->T * c->cols, ns = c->st[0] ? c->st[0]->cap * c->st[0]->cols : 0;
    k_weight *copy[K_MAXW] = {0};
    k_call x = *c;
    k_state st = {.rows = 0};
    for (int k = 0; k < K_MAXIN; k++) x.in[k] = up(&b, c->in[k], (size_t)c->T * (size_t)c->in_cols[k] * sizeof(float));
    for (int k = 0; k < K_MAXW; k++) {
        x.par[k] = up(&b, c->par[k], (size_t)par_n[k] * sizeof(float));
        copy[k] = calloc((size_t)c->nw[k] + 1, sizeof *copy[k]);
        assert_non_null(copy[k]);
        up_weights(&b, c, &x, k, copy[k]);
    }
    if (ns) {
        st = *c->st[0];
        st.f = up_tailed(&b, c->st[0]->f, ns);
        x.st[0] = &st;
    }
    memset(got, 0xee, (size_t)n * sizeof *got);
    x.out = up_tailed(&b, got, n);
    x.scratch = dev_scratch;
    x.scratch_n = scratch_for(op, &x);
    put_tail(dev_scratch + x.scratch_n - cut);
    int code = k_dev_run(&dev, op, &x);
    if (!code) {
        must(k_dev_get(&dev, got, x.out, (size_t)n * sizeof *got), what);
        if (ns) must(k_dev_get(&dev, got_state, st.f, (size_t)ns * sizeof *got_state), what);
    }
    must(k_dev_wait(&dev), what);
    over = 0;
    if (!code) {
        look_at_tail(what, "the output", x.out + n);
        look_at_tail(what, "the scratch", dev_scratch + x.scratch_n - cut);
        if (ns) look_at_tail(what, "the state", st.f + ns);
    }
    if (over && !cut) fail_msg("%s: writes behind an end", what);
    *ret_rows = st.rows;
    for (int k = 0; k < K_MAXW; k++) free(copy[k]);
    while (b.n) k_dev_free(&dev, b.p[--b.n]);
    return code;
}

int64_t hp_differ(const char *what, k_op op, k_call *c, const int64_t par_n[K_MAXW]) {
    const int64_t n = c->T * c->cols, ns = c->st[0] ? c->st[0]->cap * c->st[0]->cols : 0;
    float *host = malloc((size_t)n * sizeof *host + 4), *got = malloc((size_t)(n + ns) * sizeof *got + 4);
    int64_t rows;
    assert_non_null(host);
    assert_non_null(got);
    must(hp_run(what, op, c, par_n, got, got + n, &rows), what);
    memset(host, 0xee, (size_t)n * sizeof *host);
    c->scratch = scratch;
    c->scratch_n = scratch_n;
    c->nth = 1;
    c->out = host;
    if (flip_bits) {
        uint32_t *u = (uint32_t *)(uintptr_t)c->in[0] + flip_at;
        *u ^= flip_bits;
    }
    k_ops[op].cpu(c);
    int64_t bad = over + differ(what, "out", got, host, n);
    if (ns) bad += differ(what, "state", got + n, c->st[0]->f, ns) + (rows != c->st[0]->rows);
    free(host);
    free(got);
    return bad;
}
