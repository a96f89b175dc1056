/* tap_control.c: two controls of the instrument (requirements R9, R10). Read twice: the buffer of every record is read
 * a second time, after everything else has read it, element by element through a window of its own; its bits must be
 * those of the record. Perturbation: the same sequence without taps must choose the same ids from the same logits. */
#include <stdlib.h>
#include <string.h>

#include "lib/tap_int.h"

enum { WINDOW = 333 }; /* elements; leaves of the hash never begin where a window does */

static int read_again(q4x_bits *b, const volatile uint32_t *x, size_t n) {
    uint32_t window[WINDOW];
    for (size_t at = 0; at < n;) {
        size_t k = n - at < WINDOW ? n - at : WINDOW;
        for (size_t i = 0; i < k; i++) window[i] = x[at + i];
        int rc = q4x_bits_add(b, window, k * sizeof *window);
        if (rc) return rc;
        at += k;
    }
    return 0;
}

int q4x_tap_second_read(q4x_tapset *t, const q4x_node_event *ev, int is_ids, q4x_err *err) {
    q4x_tap_node *tn = &t->tap[ev->node];
    const int whole = ev->nrows == ev->total;
    q4x_bits **b = whole ? &t->second : &tn->second;
    if (!*b && !(*b = q4x_bits_new())) return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
    if (ev->row0 == 0) q4x_bits_begin(*b, is_ids ? Q4X_BITS_RAW : Q4X_BITS_F32);
    int rc = read_again(*b, ev->data, (size_t)ev->nrows * (size_t)ev->cols);
    if (rc) return q4x_fail(err, rc, "taps: out of memory");
    if (ev->row0 + ev->nrows < ev->total) return 0;
    q4x_hash again = q4x_bits_end(*b);
    t->read_twice.compared++;
    t->read_twice.differing += !q4x_hash_eq(&again, &tn->rec.bits);
    return 0;
}

static q4x_hash logit_bits(const q4x_run *r) {
    int32_t rows;
    const float *x = q4x_run_logits(r, &rows);
    return q4x_bits_of(Q4X_BITS_F32, x, (size_t)rows * (size_t)q4x_run_plan(r)->d.V * sizeof *x);
}

int q4x_tap_keep_choice(q4x_tapset *t, int32_t chosen, q4x_err *err) {
    if (t->nchoice == t->choice_cap) {
        int32_t cap = t->choice_cap ? 2 * t->choice_cap : 64;
        q4x_tap_choice *v = realloc(t->choice, (size_t)cap * sizeof *v);
        if (!v) return q4x_fail(err, Q4X_E_NOMEM, "taps: out of memory");
        t->choice = v;
        t->choice_cap = cap;
    }
    t->choice[t->nchoice++] = (q4x_tap_choice){chosen, logit_bits(t->run)};
    return 0;
}

/* A forward of the sequence without taps. */
static int compare(void *ctx, const q4x_step *s, q4x_err *err) {
    q4x_tapset *t = ctx;
    (void)err;
    t->perturbation.compared += 2;
    if (s->forward >= t->nchoice) {
        t->perturbation.differing += 2;
        return 0;
    }
    const q4x_tap_choice *c = &t->choice[s->forward];
    q4x_hash logits = logit_bits(t->run);
    t->perturbation.differing += (s->chosen != c->chosen) + !q4x_hash_eq(&logits, &c->logits);
    return 0;
}

int q4x_tapset_untapped(q4x_tapset *t, const q4x_greedy_opts *go, q4x_err *err) {
    q4x_run_on_node(t->run, NULL, NULL);
    q4x_run_before_node(t->run, NULL, NULL);
    q4x_run_hold(t->run, 0);
    q4x_run_keep_states(t->run, 0);
    q4x_run_reset(t->run);
    int rc = q4x_greedy(t->run, go, compare, t, err);
    if (rc) return rc;
    int64_t missing = 2 * (int64_t)t->nchoice - t->perturbation.compared; /* forwards that were not made again */
    if (missing > 0) {
        t->perturbation.compared += missing;
        t->perturbation.differing += missing;
    }
    return 0;
}

void q4x_tapset_controls(const q4x_tapset *t, q4x_tap_count *read_twice, q4x_tap_count *perturbation) {
    *read_twice = t->read_twice;
    *perturbation = t->perturbation;
}

/* to[key] = value, which is taken over; one without content is left out. */
static int add(json_t *to, const char *key, json_t *value) {
    if (!value) return -1;
    if (json_object_size(value) + json_array_size(value)) return json_object_set_new(to, key, value);
    json_decref(value);
    return 0;
}

static json_t *count_json(const q4x_tap_count *n) {
    return n->compared
               ? json_pack("{s:I, s:I}", "differing", (json_int_t)n->differing, "compared", (json_int_t)n->compared)
               : json_object();
}

json_t *q4x_tap_tail(const q4x_tapset *t) {
    json_t *controls = json_object(), *tail = json_object();
    int bad = add(controls, "read_twice", count_json(&t->read_twice));
    bad |= add(controls, "perturbation", count_json(&t->perturbation));
    bad |= add(tail, "levers", q4x_tap_witness_json(t));
    bad |= add(tail, "controls", controls);
    if (!bad) return tail;
    json_decref(tail);
    return NULL;
}
