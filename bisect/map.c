#include "bisect/map.h"

#include <math.h>
#include <stdlib.h>

static int distances(bis_map *m, const bis_pair *p, q4x_err *err) {
    for (int32_t f = 0; f < p->ncomparable; f++)
        for (int32_t n = 0; n < p->nn; n++) {
            bis_cell *c = bis_map_cell(m, p, f, n);
            c->rms = c->hard = c->d_in = c->gain = NAN;
            if (p->eq[bis_at(p, f, n)] != BIS_DIFF) continue;
            m->ndiff++;
            if (m->first_f < 0) {
                m->first_f = f;
                m->first_n = n;
            }
            const q4x_tap *a = p->ta[bis_at(p, f, n)], *b = p->tb[bis_at(p, f, n)];
            if (a->has_band && b->has_band) {
                c->rms = sqrt(a->band_rms * a->band_rms + b->band_rms * b->band_rms);
                c->hard = a->band_hard + b->band_hard;
            }
            if (p->a->nodes[n].is_ids) continue;
            c->dist = calloc(1, sizeof *c->dist);
            if (!c->dist) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for distances");
            int rc = bis_distance(p, f, n, c->dist, err);
            if (rc) {
                free(c->dist);
                c->dist = NULL;
                return rc;
            }
        }
    return 0;
}

/* The first source out of band; without one, the first outlier. */
static void find_first_out(bis_map *m, const bis_pair *p) {
    for (int pass = 0; pass < 2 && m->out_f < 0; pass++)
        for (int32_t f = 0; f < p->ncomparable && m->out_f < 0; f++)
            for (int32_t n = 0; n < p->nn; n++)
                if (bis_map_cell(m, p, f, n)->cls == (pass ? BIS_C_OUTLIER : BIS_C_OUT)) {
                    m->out_f = f;
                    m->out_n = n;
                    break;
                }
}

int bis_map_make(const bis_pair *p, const bis_header *h, const bis_flips *s, bis_map *ret, q4x_err *err) {
    bis_map m = {.first_f = -1,
                 .first_n = -1,
                 .out_f = -1,
                 .out_n = -1,
                 .fault_f = -1,
                 .fault_n = -1,
                 .nonfinite_f = -1,
                 .nonfinite_n = -1,
                 .both_f = -1,
                 .both_n = -1,
                 .far_f = -1,
                 .far_n = -1};
    size_t n = (size_t)p->ncomparable * (size_t)p->nn;
    int rc = 0;
    m.cell = calloc(n ? n : 1, sizeof *m.cell);
    if (!m.cell) return q4x_fail(err, Q4X_E_NOMEM, "out of memory for %zu cells", n);
    TRY(distances(&m, p, err));
    bis_map_inputs(&m, p);
    TRY(bis_map_nonfinite(&m, p, err));
    TRY(bis_map_sources(&m, p, h, s, err));
    TRY(bis_map_gains(&m, p, s, err));
    find_first_out(&m, p);
    *ret = m;
    return 0;
done:
    bis_map_free(&m, p);
    return rc;
}

void bis_map_free(bis_map *m, const bis_pair *p) {
    for (size_t i = 0; m->cell && i < (size_t)p->ncomparable * (size_t)p->nn; i++)
        if (m->cell[i].dist) {
            bis_dist_free(m->cell[i].dist);
            free(m->cell[i].dist);
        }
    free(m->cell);
    free(m->gain);
    free(m->outlier);
    *m = (bis_map){0};
}
