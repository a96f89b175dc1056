#include "lib/version.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>
#include <zlib.h>

#include "kernels/dev.h"
#include "lib/hash.h"
#include "lib/io.h"
#include "lib/tok_int.h"

/* The Makefile gives these in build.h; alone the file still compiles. */
#ifndef Q4X_COMMIT
#define Q4X_COMMIT "unknown"
#define Q4X_KERNELS "unknown"
#define Q4X_FLAGS "unknown"
#define Q4X_CUDA 0
#define Q4X_TEXT 0
#endif

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

const q4x_build_info q4x_build = {
    .version = "0.1.0",
    .commit = Q4X_COMMIT,
    .kernels_hash = Q4X_KERNELS,
    .compiler = COMPILER,
    .flags = Q4X_FLAGS,
#ifdef __AVX2__
    .x86_64_v3 = 1,
#endif
    .cuda = Q4X_CUDA,
    .text = Q4X_TEXT,
#ifdef _OPENMP
    .openmp = 1,
#endif
};

json_t *q4x_build_libraries(void) {
    char xxh[16], cuda[16] = "none", pcre2[24], utf8proc[24];
    unsigned v = XXH_versionNumber();
    snprintf(xxh, sizeof xxh, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    k_dev_info d;
    k_dev_query(&d);
    if (d.built) snprintf(cuda, sizeof cuda, "%d.%d", d.runtime / 1000, d.runtime % 1000 / 10);
    q4x_pre_versions(pcre2, utf8proc);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s}", "glibc", gnu_get_libc_version(), "jansson", JANSSON_VERSION,
                     "zlib", zlibVersion(), "xxhash", xxh, "pcre2", pcre2, "utf8proc", utf8proc, "cuda_runtime", cuda);
}

json_t *q4x_build_tool(void) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s}", "version", q4x_build.version, "commit", q4x_build.commit,
                     "kernels_hash", q4x_build.kernels_hash, "compiler", q4x_build.compiler, "flags", q4x_build.flags);
}

/* The machine's present boot, without saying which machine: equal for two dumps of one boot. */
static void boot_hash(char hex[33]) {
    char id[64];
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    size_t n = f ? fread(id, 1, sizeof id, f) : 0;
    if (f) fclose(f);
    q4x_hash h = q4x_xxh128(id, n);
    q4x_hash_hex(&h, hex);
    hex[n ? 16 : 0] = 0;
}

json_t *q4x_build_free(int threads, int argc, char *const *argv) {
    char when[32] = "", boot[33], recording[17] = "";
    uint8_t random[8];
    time_t now = time(NULL);
    if (getrandom(random, sizeof random, GRND_NONBLOCK) == (ssize_t)sizeof random)
        q4x_hex(random, sizeof random, recording);
    struct tm t;
    if (gmtime_r(&now, &t)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &t);
    boot_hash(boot);
    json_t *args = json_array();
    for (int i = 0; i < argc; i++)
        if (json_array_append_new(args, json_string(argv[i])) && json_array_append_new(args, json_string("?"))) break;
    return json_pack("{s:s, s:s, s:s, s:i, s:s, s:o}", "recording", recording, "time", when, "boot", boot, "threads",
                     threads, "isa", q4x_build.x86_64_v3 ? "x86-64-v3" : "baseline", "args", args);
}
