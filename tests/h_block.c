#include "tests/h_block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/ops.h"
#include "kernels/par.h"
#include "kernels/round.h"
#include "lib/machine.h"

void *h_need(int64_t n, size_t size) {
    void *p = malloc((size_t)(n > 0 ? n : 1) * size);
    if (!p) abort(); /* and no longjmp: threads call this too */
    return p;
}

static float *floats(int64_t n) {
    return h_need(n, sizeof(float));
}

int h_block_open(const void *config, size_t nconfig, const void *st, size_t nst, h_block *ret, q4x_err *err) {
    h_block b;
    int rc = h_moe_read(config, nconfig, st, nst, &b.m, err);
    if (rc) return rc;
    const k_dims *d = &b.m.d;
    b.nth = q4x_machine_cpus() < 16 ? q4x_machine_cpus() : 16;
    b.nscratch = k_moe_expert_scratch(64, d->K, d->E, d->D) + 3 * d->E;
    b.scratch = floats(b.nscratch * b.nth);
    *ret = b;
    return 0;
}

void h_block_close(h_block *b) {
    h_moe_free(&b->m);
    free(b->scratch);
}

/* ---- ops ---- */

static int thread_num(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

k_call h_block_call(const h_block *b, const k_levers *lv, int32_t T, int64_t cols, float *out) {
    k_call c = {.T = T, .Tcall = T, .Tc = T, .cols = cols, .out = out, .d = &b->m.d, .lv = lv, .nth = 1};
    c.scratch = b->scratch + thread_num() * b->nscratch, c.scratch_n = b->nscratch;
    return c;
}

static k_weight bf16(const uint16_t *w, int64_t rows, int64_t cols) {
    return (k_weight){w, rows, cols, (size_t)cols * 2, K_T_BF16};
}

k_weight h_block_weight(const h_block *b, int which) {
    return bf16(b->m.made[which], b->m.f[which].rows, b->m.f[which].cols);
}

float *h_block_product(const h_block *b, const k_levers *lv, const k_weight *w, const float *x, int32_t T,
                       int32_t epi) {
    float *y = floats(T * w->rows);
    k_call c = h_block_call(b, lv, T, w->rows, y);
    c.in[0] = x, c.in_cols[0] = w->cols, c.w[0] = w, c.nw[0] = 1, c.epi = epi;
    k_ops[K_OP_matmul].cpu(&c);
    return y;
}

float *h_block_swiglu(const h_block *b, const k_levers *lv, const float *g, const float *u, int64_t n) {
    float *y = floats(n);
    k_call c = h_block_call(b, lv, 1, n, y);
    c.in[0] = g, c.in[1] = u, c.in_cols[0] = c.in_cols[1] = n;
    k_ops[K_OP_swiglu].cpu(&c);
    return y;
}

int32_t *h_block_ids(const h_block *b, const k_levers *lv, const float *logits, int32_t T) {
    const k_dims *d = &b->m.d;
    int32_t *ids = h_need(T * d->K, sizeof *ids);
    k_call c = h_block_call(b, lv, T, d->K, NULL);
    c.out_i = ids, c.in[0] = logits, c.in_cols[0] = d->E;
    k_ops[K_OP_moe_ids].cpu(&c);
    return ids;
}

float *h_block_weights(const h_block *b, const k_levers *lv, const float *logits, const int32_t *ids, int32_t T) {
    const k_dims *d = &b->m.d;
    float *w = floats(T * d->K);
    k_call c = h_block_call(b, lv, T, d->K, w);
    c.in[0] = logits, c.in_cols[0] = d->E, c.in_i[1] = ids, c.in_cols[1] = d->K;
    k_ops[K_OP_moe_weights].cpu(&c);
    return w;
}

/* n rows times one expert. */
static float *expert(const h_block *b, const k_levers *lv, const k_weight *w, const float *x, int32_t n) {
    float *y = floats(n * w->rows);
    int32_t *zeros = h_need(n, sizeof *zeros);
    memset(zeros, 0, (size_t)n * sizeof *zeros);
    k_call c = h_block_call(b, lv, n, w->rows, y);
    c.in[0] = x, c.in_cols[0] = w->cols, c.in_i[1] = zeros, c.in_cols[1] = 1, c.w[0] = w, c.nw[0] = 1;
    k_ops[K_OP_moe_expert].cpu(&c);
    free(zeros);
    return y;
}

float *h_block_routed(const h_block *b, const k_levers *lv, const h_moe_case *k, const float *down) {
    const k_dims *d = &b->m.d;
    float *y = floats(k->T * d->D);
    k_call c = h_block_call(b, lv, k->T, d->D, y);
    c.in[0] = down, c.in_cols[0] = (int64_t)d->K * d->D, c.in[1] = k->weights, c.in_cols[1] = d->K;
    c.in_i[2] = k->ids, c.in_cols[2] = d->K;
    k_ops[K_OP_moe_routed].cpu(&c);
    return y;
}

float *h_block_squares(const h_block *b, const uint16_t *w, int64_t rows, int64_t cols, const float *x, int32_t n) {
    static const k_levers f32 = {0};
    float *w2 = floats(rows * cols), *x2 = floats(n * cols);
    for (int64_t i = 0; i < rows * cols; i++) w2[i] = k_f32_from_bf16(w[i]) * k_f32_from_bf16(w[i]);
    for (int64_t i = 0; i < n * cols; i++) x2[i] = x[i] * x[i];
    k_weight m = {w2, rows, cols, (size_t)cols * 4, K_T_F32};
    float *q = h_block_product(b, &f32, &m, x2, n, K_EPI_NONE);
    free(w2);
    free(x2);
    return q;
}

/* ---- all experts that are wanted ---- */

typedef struct {
    const h_block *b;
    const k_levers *lv;
    h_slots *s;
    uint16_t *in, *out; /* one expert's weights */
} pass;

/* Rows y[j] to where their slots are. */
static void scatter(float *to, const float *y, const int32_t *slot, int32_t n, int64_t D) {
    for (int32_t j = 0; j < n; j++) memcpy(to + slot[j] * D, y + j * D, (size_t)D * sizeof *to);
}

static void one_way(const pass *p, int way, const float *yg, const float *yu, const int32_t *slot, int32_t n) {
    const h_block *b = p->b;
    const k_dims *d = &b->m.d;
    k_levers lv = *p->lv;
    k_weight down = bf16(p->out, d->D, d->F);
    if (way == H_GELU) lv.gated = K_GATED_GELU;
    int turned = way == H_UP_FOR_GATE;
    float *a = h_block_swiglu(b, &lv, turned ? yu : yg, turned ? yg : yu, (int64_t)n * d->F);
    float *y = expert(b, &lv, &down, a, n);
    scatter(p->s->down[way], y, slot, n, d->D);
    free(y);
    if (way == H_PLAIN) {
        y = h_block_squares(b, p->out, d->D, d->F, a, n);
        scatter(p->s->q, y, slot, n, d->D);
        free(y);
    }
    free(a);
}

/* What n slots get from the expert at hand: in its place by a swap, or in all the other ways. */
static void serve(const pass *p, const int32_t *slot, int32_t n, int swapped) {
    const k_dims *d = &p->b->m.d;
    k_weight g = bf16(p->in, d->F, d->D), u = bf16(p->in + (int64_t)d->F * d->D, d->F, d->D);
    float *x = floats((int64_t)n * d->D);
    for (int32_t j = 0; j < n; j++) memcpy(x + j * (int64_t)d->D, p->s->x[slot[j]], (size_t)d->D * sizeof *x);
    float *yg = expert(p->b, p->lv, &g, x, n), *yu = expert(p->b, p->lv, &u, x, n);
    for (int way = 0; way < H_NWAYS; way++)
        if (swapped == (way == H_SWAPPED)) one_way(p, way, yg, yu, slot, n);
    free(x);
    free(yg);
    free(yu);
}

static void serve_expert(const pass *p, int32_t e) {
    const h_moe *m = &p->b->m;
    const h_slots *s = p->s;
    int64_t nin = 2 * (int64_t)m->d.F * m->d.D, nout = (int64_t)m->d.D * m->d.F;
    int32_t *mine = h_need(s->n, sizeof *mine), *theirs = h_need(s->n, sizeof *theirs), n = 0, k = 0;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->id[i] == e) mine[n++] = i;
        if (s->other[i] == e) theirs[k++] = i;
    }
    if (n || k) {
        h_moe_make(m, &m->experts_in, e * nin, nin, p->in);
        h_moe_make(m, &m->experts_out, e * nout, nout, p->out);
    }
    if (n) serve(p, mine, n, 0);
    if (k) serve(p, theirs, k, 1);
    free(mine);
    free(theirs);
}

static void serve_all(const h_block *b, const k_levers *lv, h_slots *s) {
    const k_dims *d = &b->m.d;
    int64_t n = (int64_t)d->D * d->F;
#pragma omp parallel num_threads(b->nth)
    {
        pass p = {b, lv, s, h_need(2 * n, sizeof(uint16_t)), h_need(n, sizeof(uint16_t))};
#pragma omp for schedule(dynamic, 1)
        for (int32_t e = 0; e < d->E; e++) serve_expert(&p, e);
        free(p.in);
        free(p.out);
    }
}

static int32_t count_experts(const h_slots *s, int32_t E) {
    int32_t n = 0;
    for (int32_t e = 0; e < E; e++) {
        int32_t i = 0;
        while (i < s->n && s->id[i] != e) i++;
        n += i < s->n;
    }
    return n;
}

h_slots h_slots_new(const h_block *b, const k_levers *lv) {
    const h_moe *m = &b->m;
    const int64_t K = m->d.K, D = m->d.D;
    h_slots s = {0};
    for (int c = 0; c < H_MOE_CASES; c++) s.first[c] = s.n, s.n += m->c[c].T * m->d.K;
    s.x = h_need(s.n, sizeof *s.x), s.id = h_need(s.n, sizeof *s.id), s.other = h_need(s.n, sizeof *s.other);
    s.q = floats(s.n * D);
    for (int w = 0; w < H_NWAYS; w++) s.down[w] = floats(s.n * D);
    for (int c = 0; c < H_MOE_CASES; c++) {
        const h_moe_case *k = &m->c[c];
        int32_t first = k->ids[0], last = k->ids[K - 1];
        for (int64_t j = 0; j < k->T * K; j++) {
            int64_t i = s.first[c] + j;
            s.x[i] = k->hidden + j / K * D;
            s.id[i] = k->ids[j];
            s.other[i] = s.id[i] == first ? last : s.id[i] == last ? first : s.id[i];
        }
    }
    s.nexperts = count_experts(&s, m->d.E);
    serve_all(b, lv, &s);
    return s;
}

void h_slots_free(h_slots *s) {
    for (int w = 0; w < H_NWAYS; w++) free(s->down[w]);
    free(s->q);
    free(s->x);
    free(s->id);
    free(s->other);
}
