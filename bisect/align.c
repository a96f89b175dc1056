#include "bisect/align.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/round.h"

/* Full tensor as f32: borrowed when it is f32 and keeps its order, else an own copy. */
static int full_values(const q4x_dump *d, q4x_tap *t, int copy, const float **ret, float **ret_own, q4x_tap **ret_read,
                       q4x_err *err) {
    size_t n = (size_t)t->rows * (size_t)t->cols;
    if (!t->full) {
        int rc = q4x_dump_full(d, t, err);
        if (rc) return rc;
        *ret_read = t;
    }
    if (t->dtype == K_T_F32 && !copy) {
        *ret = t->full;
        return 0;
    }
    float *v = malloc((n ? n : 1) * sizeof *v);
    if (!v) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for a tensor of %zu values", n);
    if (t->dtype == K_T_F32)
        memcpy(v, t->full, n * sizeof *v);
    else
        for (size_t i = 0; i < n; i++) {
            uint16_t h = ((const uint16_t *)t->full)[i];
            v[i] = t->dtype == K_T_BF16 ? k_f32_from_bf16(h) : k_f32_from_f16(h);
        }
    *ret = *ret_own = v;
    return 0;
}

static int raw_values(const q4x_sketch *s, int copy, const float **ret, float **ret_own, q4x_err *err) {
    size_t n = (size_t)s->nrows * (size_t)s->width;
    *ret = s->values;
    if (!copy) return 0;
    float *v = malloc((n ? n : 1) * sizeof *v);
    if (!v) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for a tensor of %zu values", n);
    memcpy(v, s->values, n * sizeof *v);
    *ret = *ret_own = v;
    return 0;
}

static int is_raw(const q4x_tap *t) {
    return t->has_sketch && t->sketch.raw && t->sketch.values && t->sketch.width == t->cols;
}

int bis_values_get(const bis_pair *p, int32_t f, int32_t n, bis_values *ret, int *ret_have, q4x_err *err) {
    q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
    bis_values v = {0};
    int rc = 0, permute = p->heads_differ[n];
    *ret_have = 0;
    if (!a || !b || a->rows != b->rows || a->cols != b->cols || a->dtype != b->dtype) return 0;
    if (a->dtype != K_T_F32 && a->dtype != K_T_BF16 && a->dtype != K_T_F16) return 0;
    v.cols = a->cols;
    if (a->has_full && b->has_full) {
        v.full = 1;
        v.nrows = a->rows;
        TRY(full_values(p->a, a, permute, &v.a, &v.own_a, &v.read_a, err));
        TRY(full_values(p->b, b, permute, &v.b, &v.own_b, &v.read_b, err));
    } else {
        if (!is_raw(a) || !is_raw(b) || a->sketch.row0 != b->sketch.row0 || a->sketch.nrows != b->sketch.nrows)
            return 0;
        v.row0 = a->sketch.row0;
        v.nrows = a->sketch.nrows;
        /* heads along the rows need every row */
        if (permute && p->a->nodes[n].heads.axis == 2 && v.nrows != a->rows) return 0;
        TRY(raw_values(&a->sketch, permute, &v.a, &v.own_a, err));
        TRY(raw_values(&b->sketch, permute, &v.b, &v.own_b, err));
    }
    if (permute) {
        TRY(q4x_heads_to_hf(&p->a->nodes[n].heads, v.own_a, sizeof(float), v.nrows, v.cols, err));
        TRY(q4x_heads_to_hf(&p->b->nodes[p->to_b[n]].heads, v.own_b, sizeof(float), v.nrows, v.cols, err));
    }
    *ret = v;
    *ret_have = 1;
    return 0;
done:
    bis_values_free(&v);
    return rc;
}

static void give_back(q4x_tap *t) {
    if (!t) return;
    free(t->full);
    t->full = NULL;
}

void bis_values_free(bis_values *v) {
    free(v->own_a);
    free(v->own_b);
    give_back(v->read_a);
    if (v->read_b != v->read_a) give_back(v->read_b);
    *v = (bis_values){0};
}

int bis_align_equal(const bis_pair *p, int32_t f, int32_t n, bis_eq *ret, q4x_err *err) {
    bis_values v = {0};
    int have, rc = bis_values_get(p, f, n, &v, &have, err);
    if (rc) return rc;
    *ret = BIS_UNKNOWN;
    if (!have) return 0;
    bis_eq e = v.nrows == p->ta[bis_at(p, f, n)]->rows ? BIS_SAME : BIS_UNKNOWN;
    for (int64_t i = 0; i < v.nrows * v.cols; i++)
        /* rows that are there were read: NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
        if (k_f32_bits(v.a[i]) != k_f32_bits(v.b[i]) && !(isnan(v.a[i]) && isnan(v.b[i]))) {
            e = BIS_DIFF;
            break;
        }
    bis_values_free(&v);
    *ret = e;
    return 0;
}
