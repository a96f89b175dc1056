/* h_synth.h: synthetic models in a folder of the test's own. Every failure ends the test with its message. */
#ifndef H_SYNTH_H
#define H_SYNTH_H

#include "lib/synth.h"

/* Write a model; returns what it cost. */
q4x_synth_cost h_synth(const char *path, const q4x_geometry *g, q4x_file_type ft, uint64_t seed, int shards,
                       int threads);
/* `tiny`, as it is. */
void h_synth_tiny(const char *path, uint64_t seed, int shards);

#endif
