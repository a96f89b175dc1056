/* version.h: what was built, from what, with which libraries. Facts for dump headers and `q4x version`. */
#ifndef Q4X_VERSION_H
#define Q4X_VERSION_H

#include <jansson.h>

typedef struct {
    const char *version;      /* of the tool */
    const char *commit;       /* of the source, "-dirty" when it was changed, or "unknown" */
    const char *kernels_hash; /* over names and bytes of kernels/: equal hash, equal arithmetic */
    const char *compiler;
    const char *flags; /* those that can move a bit, and the optimisation */
    int x86_64_v3;     /* 1: compiled for AVX2 and FMA */
    int cuda;          /* 1: with the CUDA room */
    int openmp;
    int text; /* 1: text prompts, with PCRE2 and utf8proc */
} q4x_build_info;

extern const q4x_build_info q4x_build;

/* Libraries in use as {"jansson": "2.14", ...}, the CUDA runtime included. NULL: no memory. */
json_t *q4x_build_libraries(void);
/* The dump header's `tool`: {version, commit, kernels_hash, compiler, flags}. NULL: no memory. */
json_t *q4x_build_tool(void);
/* The header's `free`, which is printed and never counted: {recording (a random number: a copy of the file has it too,
 * another recording has another), time (UTC), boot (hash of the boot id), threads, isa, args}. No host name, no user.
 * NULL: no memory. */
json_t *q4x_build_free(int threads, int argc, char *const *argv);

#endif
