/* h_lost.h: for tests of a device that is lost: a tapped run, and what its dump must be then. */
#ifndef H_LOST_H
#define H_LOST_H

#include "lib/tap.h"

enum { HL_FORWARDS = 4, HL_PROMPT = 9 }; /* of a run: a prompt of so many ids at most, then one by one */

/* Prompt: ids, 0: 3. most: of q4x_tap_opts. Behind the hook of node `node` in forward `forward` the work of `lose` is
 * enqueued, one of lose.h's; forward -1: not. seen, when given, is called behind every node's hook. */
typedef struct {
    int prompt, forward, node;
    int64_t most;
    int (*lose)(k_dev *d);
    void (*seen)(int forward, int node);
} hl_plan;
extern const hl_plan hl_none;

/* Tap a run of HL_FORWARDS into path, mode full. A device's failure cuts the dump, as `q4x tap` does. Returns what the
 * run did. */
int hl_tap(const char *model, const char *spec, const char *path, const hl_plan *plan, q4x_err *err);

/* fail_msg unless the dump at path is cut behind `forwards` whole forwards, which are those of want by bits (NULL: of
 * whatever bits), and says that the run ended early and where. */
void hl_is_cut(const char *path, const q4x_dump *want, int forwards);

#endif
