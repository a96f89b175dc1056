/* h_lost.h: for tests of a device that is lost: a tapped run, and what its dump must be then. */
#ifndef H_LOST_H
#define H_LOST_H

#include "lib/tap.h"

enum { HL_FORWARDS = 4 }; /* of a run: a prompt of 3 ids, then one by one */
extern int64_t hl_most;   /* most of its q4x_tap_opts */

/* Tap a run of HL_FORWARDS into path, mode full. Behind the hook of node `node` in forward `forward` the device is lost
 * (ct_lose); forward -1: not by this. A device's failure cuts the dump, as `q4x tap` does. Returns what the run did. */
int hl_tap(const char *model, const char *spec, const char *path, int forward, int node, q4x_err *err);

/* fail_msg unless the dump at path is cut behind `forwards` whole forwards, which are those of want by bits, and says
 * that the run ended early and where. */
void hl_is_cut(const char *path, const q4x_dump *want, int forwards);

#endif
