/* fz_gguf.c: any bytes as a GGUF file, or as a split set ("Q4XS", then per shard a u16 length and its bytes): either a
 * named error, or a model that keeps every promise. Parsing twice gives the same model.
 */
#include "tests/h_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 8 };

/* Cut the input into shards named m-00001-of-0000N.gguf; the last takes what is left. */
static int cut(const uint8_t *data, size_t size, q4x_mem_file *files, char names[MOST][32]) {
    size_t at = 4, start[MOST], len[MOST];
    int n = 0;
    while (n < MOST && size - at >= 2) {
        size_t k = (size_t)(data[at] | data[at + 1] << 8);
        at += 2;
        if (k > size - at) k = size - at;
        start[n] = at;
        len[n++] = k;
        at += k;
    }
    for (int i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "m-%05d-of-%05d.gguf", i + 1, n);
        files[i] = (q4x_mem_file){names[i], data + start[i], len[i]};
    }
    return n;
}

static void open_twice(const q4x_mem_file *files, int n, const char *path) {
    q4x_model *a = NULL, *b = NULL;
    q4x_err ea = {0}, eb = {0};
    int ra = q4x_gguf_open_mem(files, n, path, &a, &ea), rb = q4x_gguf_open_mem(files, n, path, &b, &eb);
    HOLDS(ra == rb && !a == !b && !strcmp(ea.msg, eb.msg));
    if (ra) {
        HOLDS(!a);
        walk_error(ra, &ea, n > 1 ? ".gguf" : path);
        return;
    }
    HOLDS(a && b && walk_model(a) == walk_model(b));
    q4x_model_close(a);
    q4x_model_close(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 4 || memcmp(data, "Q4XS", 4) != 0) {
        q4x_mem_file f = {"in.gguf", data, size};
        open_twice(&f, 1, f.path);
        return 0;
    }
    q4x_mem_file files[MOST];
    char names[MOST][32];
    int n = cut(data, size, files, names);
    for (int i = 0; i < n; i++) open_twice(files, n, files[i].path); /* any shard may be the one that is given */
    return 0;
}
