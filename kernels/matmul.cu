/* matmul.cu: products of stored rows and f32 columns (matmul.h, moe.h: moe_expert), in order lanes32 where lever dot
 * does not ask for another (qdot.cu).
 *
 * Each output has its own 32 accumulators, so neither tiles nor the number of columns can change a bit. Few columns:
 * thin.cuh, which decodes as it goes. Many columns: rows are decoded to f32 once, into scratch, and a warp, whose lanes
 * are the accumulators, takes 4 rows times 4 columns.
 */
#include "kernels/matmul.h"

#include "kernels/moe.h"
#include "kernels/thin.cuh"

enum { COLS = 4, ROWS = 4, MANY = 16 /* columns from which decoding into scratch pays */ };

/* ---- many columns ---- */

/* rows x p.n outputs of f32 rows, ld apart; a warp takes ROWS x COLS of them. Row 0 is output r0. */
static __global__ void fat_k(const __grid_constant__ k_dev_panel p, const float *w, int64_t ld, int64_t r0,
                             int64_t rows) {
    const int64_t tiles = (rows + ROWS - 1) / ROWS, k = k_warp();
    const int64_t r = k % tiles * ROWS, j = k / tiles * COLS;
    if (j >= p.n) return;
    const float *x[COLS], *v[ROWS];
    float acc[ROWS][COLS];
    for (int c = 0; c < COLS; c++) x[c] = p.x + (j + c < p.n ? j + c : j) * p.K;
    for (int i = 0; i < ROWS; i++) {
        v[i] = w + (r + i < rows ? r + i : r) * ld;
        for (int c = 0; c < COLS; c++) acc[i][c] = 0.0f;
    }
    for (int64_t e = k_lane(); e < p.K; e += K_WARP) {
        float xe[COLS];
        for (int c = 0; c < COLS; c++) xe[c] = x[c][e];
        for (int i = 0; i < ROWS; i++) {
            float ve = v[i][e];
            for (int c = 0; c < COLS; c++) acc[i][c] = fmaf(ve, xe[c], acc[i][c]);
        }
    }
    for (int i = 0; i < ROWS; i++)
        for (int c = 0; c < COLS; c++) {
            float y = k_warp_fold(acc[i][c]);
            if (k_lane() == 0 && r + i < rows && j + c < p.n) k_panel_store(&p, j + c, r0 + r + i, y);
        }
}

static void fat(const k_dev_panel *p, const float *w, int64_t ld, int64_t r0, int64_t rows, void *stream) {
    int64_t warps = (rows + ROWS - 1) / ROWS * ((p->n + COLS - 1) / COLS);
    K_LAUNCH(fat_k, dim3(k_blocks(warps, K_WARPS)), dim3(K_WARPS * K_WARP), 0, stream, *p, w, ld, r0, rows);
}

/* one: a column at a time; y, z: of the grid. */
template <int32_t TYPE>
static void thin(const k_dev_panel &p, int one, unsigned y, unsigned z, const k_weight &w, const k_weight *many,
                 void *stream) {
    auto single = thin_k<TYPE, 1>, some = thin_k<TYPE, COLS>;
    K_LAUNCH(one ? single : some, dim3(k_blocks(p.O, THIN_ROWS * THIN_WARPS), y, z), dim3(THIN_WARPS * K_WARP), 0,
             stream, p, w, many);
}

struct matmul_job {
    const k_call *c;
    k_dev_panel p;
    void *stream;
    template <int32_t TYPE> void run() const {
        const k_weight w = *c->w[0];
        const int64_t at_once = p.K > 0 ? c->scratch_n / p.K / ROWS * ROWS : 0;
        if (p.n < MANY || at_once < ROWS) {
            thin<TYPE>(p, p.n == 1, p.n < COLS ? 1u : k_blocks(p.n, COLS), 1u, w, NULL, stream);
        } else if (TYPE == K_T_F32 && ((uintptr_t)w.data | w.row_bytes) % sizeof(float) == 0) {
            fat(&p, (const float *)w.data, (int64_t)(w.row_bytes / sizeof(float)), 0, w.rows, stream);
        } else {
            for (int64_t r = 0; r < w.rows; r += at_once) {
                int64_t rows = w.rows - r < at_once ? w.rows - r : at_once;
                K_LAUNCH(k_decode_k<TYPE>, dim3(k_blocks(rows * p.K, K_THREADS)), dim3(K_THREADS), 0, stream, w, r,
                         rows * p.K, c->scratch);
                fat(&p, c->scratch, p.K, r, rows, stream);
            }
        }
    }
};

void matmul_cuda(const k_call *c, void *stream) {
    k_dev_panel p;
    memset(&p, 0, sizeof p);
    p.x = c->in[0];
    p.K = c->in_cols[0];
    p.n = c->T;
    p.div = 1;
    p.out = c->out;
    p.O = c->cols;
    p.epi = c->epi;
    p.N = c->d->N;
    p.act = k_epilogue_act(c->epi, c->lv);
    const k_weight *w = c->w[0];
    const k_dot_rule rule = k_dot_rule_of(c->lv, c->Tcall, w->type, w->rows);
    if (rule == K_RULE_LANES32)
        k_by_type(w->type, matmul_job{c, p, stream});
    else
        k_dot_cuda(&p, rule, w->type, w, NULL, 1, c->T, c->scratch, stream);
}

/* ---- experts ---- */

struct expert_job {
    const k_call *c;
    k_dev_panel p;
    int32_t turns;
    void *stream;
    template <int32_t TYPE> void run() const {
        thin<TYPE>(p, !p.first, 1u, (unsigned)turns, c->w[0][0], c->w_dev[0], stream);
    }
};

void moe_expert_cuda(const k_call *c, void *stream) {
    const int64_t K = c->in_cols[1], slots = (int64_t)c->T * K, E = c->nw[0];
    float *work = c->scratch + k_dev_lists(slots, E);
    k_dev_panel p;
    memset(&p, 0, sizeof p);
    p.x = c->in[0];
    p.K = c->per ? c->in_cols[0] / K : c->in_cols[0];
    p.n = (int32_t)slots;
    p.div = c->per ? 1 : (int32_t)K;
    p.out = c->out;
    p.O = c->cols / K;
    p.epi = K_EPI_NONE;
    p.act = c->lv->act;
    const int32_t turns = k_group_cuda(&p, c->in_i[1], (int32_t)E, c->T, c->scratch, stream);
    uint64_t done = 0; /* types that were launched */
    for (int64_t e = 0; e < E; e++) {
        int32_t type = c->w[0][e].type;
        if (type < 0 || type > 63 || done >> type & 1) continue;
        done |= (uint64_t)1 << type;
        const k_dot_rule rule = k_dot_rule_of(c->lv, c->Tcall, type, p.O);
        if (rule == K_RULE_LANES32)
            k_by_type(type, expert_job{c, p, turns, stream});
        else
            k_dot_cuda(&p, rule, type, c->w[0], c->w_dev[0], turns, c->per ? slots : c->T, work, stream);
    }
}
