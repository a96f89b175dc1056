/* net_dev.h: the weights of a net on a device: uploaded as they are stored, once a net and device, shared by its runs.
 *
 * Not there: the tables that ple_gather reads row by row; they stay in their file.
 */
#ifndef Q4X_NET_DEV_H
#define Q4X_NET_DEV_H

#include "kernels/dev.h"
#include "lib/run.h"

/* What node i of the plan reads, as k_dev_run takes it. Entries that the op lacks are NULL. */
typedef struct {
    const k_weight *w[K_MAXW];     /* on the host; data on the device */
    const k_weight *w_dev[K_MAXW]; /* the same array on the device; NULL for a single one that is no expert */
    const float *par[K_MAXW];
} q4x_node_dev;

typedef struct q4x_net_dev q4x_net_dev;
/* The devices of a net. */
typedef struct {
    q4x_net_dev *first;
} q4x_net_devs;

/* Bytes of device memory that the weights take. */
int q4x_net_dev_bytes(const q4x_net *n, uint64_t *ret, q4x_err *err);
/* Already there, or uploaded now; borrowed from the net. Errors: no memory here or there, a file that was cut short. */
int q4x_net_dev_get(const q4x_net *n, int index, const q4x_net_dev **ret, q4x_err *err);
int q4x_net_dev_has(const q4x_net *n, int index); /* 1: already there */
const q4x_node_dev *q4x_net_dev_node(const q4x_net_dev *d, int32_t node);
/* 1 when these bytes lie in what was uploaded. */
int q4x_net_dev_holds(const q4x_net_dev *d, const void *p, uint64_t bytes);
void q4x_net_dev_free(q4x_net_devs *d);

/* Q4X_E_DEVICE: so many bytes could not be had of the device, though all that is needed was there when it was counted:
 * for what, how many, what is free, and a remedy. */
int q4x_dev_no_room(const k_dev *d, const char *what, uint64_t bytes, int code, q4x_err *err);

q4x_net_devs *q4x_net_devices(const q4x_net *n); /* net.c */

#endif
