/* run_dev_lost.c: what is said of a device that refuses or is lost, and where in a forward it was. */
#include <stdio.h>

#include "lib/run_dev_int.h"

int q4x_run_dev_refused(const q4x_run *r, int code, const char *what, q4x_err *err) {
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: %s: %s", r->arm.device_index, what, k_dev_text(code));
}

/* Marks: the tile's serial number, then how many nodes are done. */
enum { NODE_BITS = 24 };

uint32_t q4x_run_dev_mark(const q4x_run_dev *d, int32_t nodes) {
    return d->tile << NODE_BITS | (uint32_t)nodes;
}

static int32_t nodes_of(uint32_t mark) {
    return (int32_t)(mark & ((1u << NODE_BITS) - 1));
}

/* The first node from i on that makes something; nnodes: none. */
static int32_t next_node(const q4x_plan *p, int32_t i) {
    while (i < p->nnodes && p->node[i].op == K_OP_alias) i++;
    return i;
}

/* "behind node X", X the last of so many. */
static void place(const q4x_plan *p, int32_t nodes, char *text, size_t size) {
    int32_t i = nodes - 1;
    while (i > 0 && p->node[i].op == K_OP_alias) i--;
    if (nodes > 0)
        snprintf(text, size, "behind node %s", p->node[i].name);
    else
        snprintf(text, size, "before node %s", p->node[next_node(p, 0)].name);
}

/* Where a device was when it was lost, as far as its marks tell; a failure is found by whoever asks next, many nodes
 * later. */
static void lost_at(const q4x_run *r, const k_dev_progress *p, char *text, size_t size) {
    const q4x_plan *plan = r->plan;
    const q4x_run_dev *d = r->dev;
    const int32_t done = nodes_of(p->done), i = next_node(plan, done),
                  last = p->done >> NODE_BITS == q4x_run_dev_mark(d, 0) >> NODE_BITS ? d->at : plan->nnodes - 1;
    char there[160];
    place(plan, p->measuring ? nodes_of(p->behind) : done, there, sizeof there);
    if (!p->known)
        snprintf(text, size, "node unknown: this driver has no stream marks");
    else if (i > last)
        snprintf(text, size, "%s%s", p->measuring ? "taps " : "", there);
    else if (p->measuring)
        snprintf(text, size, "node %s or taps %s", plan->node[i].name, there);
    else
        snprintf(text, size, "node %s", plan->node[i].name);
}

/* taps: what failed was asked by them. A call that a device refuses which goes on is that of the node at hand. */
static int failed_at(const q4x_run *r, int code, int32_t forward, int taps, q4x_err *err) {
    const q4x_run_dev *d = r->dev;
    const k_dev_progress p = k_dev_reached(&r->dev->dev);
    char text[400], there[160];
    place(r->plan, d->at + 1, there, sizeof there);
    if (!p.lives)
        lost_at(r, &p, text, sizeof text);
    else if (taps || d->at < 0)
        snprintf(text, sizeof text, "%s%s", taps ? "taps " : "", there);
    else
        snprintf(text, sizeof text, "node %s", r->plan->node[d->at].name);
    return q4x_fail(err, Q4X_E_DEVICE, "device cuda/%d: %s, forward %d: %s", r->arm.device_index, text, forward,
                    k_dev_text(code));
}

int q4x_run_device_failed(const q4x_run *r, int code, int32_t forward, q4x_err *err) {
    return failed_at(r, code, forward, 1, err);
}

int q4x_run_dev_failed_in(const q4x_run *r, int code, q4x_err *err) {
    return failed_at(r, code, r->nforward, 0, err);
}
