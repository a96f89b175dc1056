/* h_taps.h: for tests of taps on a device: one job there and on the host, and whether the dumps are the same. */
#ifndef H_TAPS_H
#define H_TAPS_H

#include "lib/tap.h"

enum { HT_PROMPT = 700 };

/* What is asked of both devices. */
typedef struct {
    const char *model, *levers;
    int prompt, decode, all_logits, tile; /* decode: forwards behind the prompt */
    q4x_tap_opts o;
} ht_job;

/* A dump of the job under h_temp(device), "cpu" or "cuda"; of its controls when they were asked for, into what is not
 * NULL. meddle: NULL, or called with run and tap set before the first forward. fail_msg on errors. */
typedef void (*ht_meddle)(void *ctx, q4x_run *r, q4x_tapset *t);
void ht_dump(const q4x_net *net, const ht_job *j, const char *device, ht_meddle meddle, void *ctx, q4x_tap_count *twice,
             q4x_tap_count *untapped);

/* 1: both dumps are the same byte for byte, but for their headers. *ret_n: bytes. */
int ht_same(size_t *ret_n);
/* Where there are NaNs, whose payloads may differ: content, and what was counted of every record. *ret_n: that is not
 * finite. */
int ht_same_content(size_t *ret_n);
/* The largest tensor of the device's dump, bytes. */
size_t ht_largest(void);

#endif
