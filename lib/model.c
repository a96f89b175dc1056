#include "lib/model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "lib/model_int.h"

static const q4x_container_ops *const containers[] = {
#define CONTAINER(ops) &ops,
#include "lib/containers.def"
#undef CONTAINER
};
enum { NCONTAINERS = sizeof containers / sizeof containers[0] };

/* ---- building: for the containers ---- */

q4x_model *q4x_model_new(const q4x_container_ops *ops, const char *path) {
    q4x_model *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->ops = ops;
    m->path = strdup(path);
    if (m->path) return m;
    free(m);
    return NULL;
}

int q4x_model_add_shard(q4x_model *m, const char *path, q4x_map map, uint64_t data_off, q4x_err *err) {
    size_t n = (size_t)m->nshards + 1;
    q4x_shard *shard = realloc(m->shard, n * sizeof *shard);
    if (shard) m->shard = shard;
    q4x_map *maps = shard ? realloc(m->map, n * sizeof *maps) : NULL;
    if (maps) m->map = maps;
    const char *copy = maps ? q4x_pool_str(&m->pool, path, strlen(path)) : NULL;
    if (!copy) {
        q4x_map_close(&map);
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for the shard table");
    }
    shard[n - 1] = (q4x_shard){.path = copy, .size = map.size, .data_off = data_off, .data_end = map.size};
    maps[n - 1] = map;
    m->nshards++;
    return 0;
}

int q4x_model_add(q4x_model *m, const q4x_tensor *t, q4x_err *err) {
    if (m->ntensors == m->cap_tensors) {
        int64_t cap = m->cap_tensors ? m->cap_tensors * 2 : 64;
        q4x_tensor *big = realloc(m->tensor, (size_t)cap * sizeof *big);
        if (!big) return q4x_fail(err, Q4X_E_NOMEM, "no memory for %lld tensors", (long long)cap);
        m->tensor = big;
        m->cap_tensors = cap;
    }
    size_t len = strlen(t->name);
    int64_t old = q4x_names_find(&m->names, t->name, len);
    if (old >= 0) {
        int s = m->tensor[old].shard;
        return q4x_fail(
            err, Q4X_E_FORMAT,
            "expected a tensor name that is not used yet, found '%.64s', which tensor %lld%s%s is called already",
            t->name, (long long)old, s < m->nshards ? " of " : "", s < m->nshards ? q4x_tail(m->shard[s].path) : "");
    }
    const char *name = q4x_pool_str(&m->pool, t->name, len);
    if (!name || q4x_names_add(&m->names, name, len, m->ntensors))
        return q4x_fail(err, Q4X_E_NOMEM, "no memory for the tensor names");
    m->tensor[m->ntensors] = *t;
    m->tensor[m->ntensors++].name = name;
    return 0;
}

void q4x_model_clear(q4x_model *m) {
    for (int i = 0; i < m->nshards; i++) q4x_map_close(&m->map[i]);
    q4x_names_free(&m->names);
    q4x_pool_free(&m->pool);
    free(m->tensor);
    free(m->map);
    free(m->shard);
    m->arch = NULL;
    m->nshards = 0;
    m->ntensors = m->cap_tensors = 0;
    m->tensor = NULL;
    m->map = NULL;
    m->shard = NULL;
}

/* ---- opening ---- */

/* What lies at path. The pipe or device that it may be is not read. */
static int probe_path(const char *path, q4x_probe *ret, q4x_err *err) {
    q4x_probe p = {.path = path};
    struct stat st;
    if (stat(path, &st))
        return q4x_fail(err, Q4X_E_IO, "%s: cannot open the model: %s", q4x_tail(path), strerror(errno));
    p.is_dir = S_ISDIR(st.st_mode);
    if (S_ISREG(st.st_mode)) {
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) return q4x_fail(err, Q4X_E_IO, "%s: cannot open the model: %s", q4x_tail(path), strerror(errno));
        ssize_t n = pread(fd, p.head, sizeof p.head, 0);
        p.nhead = n > 0 ? (size_t)n : 0;
        close(fd);
    }
    *ret = p;
    return 0;
}

static int nobody(const q4x_probe *p, q4x_err *err) {
    char wants[256] = "";
    for (int i = 0; i < NCONTAINERS; i++) {
        size_t n = strlen(wants);
        snprintf(wants + n, sizeof wants - n, "%s%s", i ? " or " : "", containers[i]->wants);
    }
    char found[64] = "a folder";
    if (!p->is_dir) {
        char hex[2 * sizeof p->head + 1];
        q4x_hex(p->head, p->nhead, hex);
        snprintf(found, sizeof found, "%s%s", p->nhead ? "a file that begins with bytes " : "nothing readable", hex);
    }
    return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: expected %s, found %s", q4x_tail(p->path), wants, found);
}

int q4x_model_open(const char *path, q4x_model **ret, q4x_err *err) {
    int rc = 0;
    q4x_model *m = NULL;
    q4x_probe p;
    int who = -1;
    TRY(probe_path(path, &p, err));
    for (int i = 0; i < NCONTAINERS && who < 0; i++)
        if (containers[i]->claims(&p)) who = i;
    if (who < 0) TRY(nobody(&p, err));
    m = q4x_model_new(containers[who], path);
    if (!m) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to open the model", q4x_tail(path)));
    TRY(m->ops->open(m, path, err));
    *ret = m;
    m = NULL;
done:
    q4x_model_close(m);
    return rc;
}

void q4x_model_close(q4x_model *m) {
    if (!m) return;
    m->ops->close(m);
    q4x_model_clear(m);
    json_decref(m->config);
    free(m->path);
    free(m);
}

/* ---- reading ---- */

q4x_container q4x_model_container(const q4x_model *m) {
    return m->ops->id;
}
const char *q4x_model_arch(const q4x_model *m) {
    return m->arch ? m->arch : "";
}
const char *q4x_model_path(const q4x_model *m) {
    return m->path;
}
int q4x_model_nshards(const q4x_model *m) {
    return m->nshards;
}
int64_t q4x_model_ntensors(const q4x_model *m) {
    return m->ntensors;
}
const json_t *q4x_model_config(const q4x_model *m) {
    return m->config;
}
const json_t *q4x_model_text_config(const q4x_model *m) {
    return m->text_config;
}

const q4x_shard *q4x_model_shard(const q4x_model *m, int i) {
    Q4X_BUG_IF(i < 0 || i >= m->nshards);
    return &m->shard[i];
}

const q4x_tensor *q4x_model_tensor(const q4x_model *m, int64_t i) {
    Q4X_BUG_IF(i < 0 || i >= m->ntensors);
    return &m->tensor[i];
}

const q4x_tensor *q4x_model_find(const q4x_model *m, const char *name) {
    int64_t i = q4x_names_find(&m->names, name, strlen(name));
    return i < 0 ? NULL : &m->tensor[i];
}

/* ---- pages ---- */

int q4x_model_check(const q4x_model *m, q4x_err *err) {
    int rc = 0;
    for (int i = 0; !rc && i < m->nshards; i++) rc = q4x_map_check(&m->map[i], m->shard[i].path, err);
    return rc;
}

/* The file that data lie in, and where; NULL: none. */
static const q4x_map *map_of(const q4x_model *m, const void *data, uint64_t *ret_off) {
    for (int i = 0; i < m->nshards; i++) {
        *ret_off = (uintptr_t)data - (uintptr_t)m->map[i].data;
        if ((uintptr_t)data >= (uintptr_t)m->map[i].data && *ret_off < m->map[i].size) return &m->map[i];
    }
    return NULL;
}

void q4x_model_scattered(const q4x_model *m, const void *data, uint64_t n) {
    uint64_t off;
    const q4x_map *f = map_of(m, data, &off);
    if (f) q4x_map_scattered(f, off, n);
}

void q4x_model_wanted(const q4x_model *m, const void *data, uint64_t n) {
    uint64_t off;
    const q4x_map *f = map_of(m, data, &off);
    if (f) q4x_map_wanted(f, off, n);
}

void q4x_model_release(const q4x_model *m, const void *data, uint64_t n) {
    uint64_t off;
    const q4x_map *f = map_of(m, data, &off);
    if (f) q4x_map_release(f, off, n);
}

/* ---- fingerprint ---- */

static void sink_add(void *ctx, const void *data, size_t n) {
    XXH3_128bits_update(ctx, data, n);
}

/* Every number as LE64 and every string with its length, so that no two models feed the same bytes. */
static void add_u64(void *ctx, uint64_t v) {
    uint8_t b[8];
    for (int i = 0; i < 8; i++) b[i] = (uint8_t)(v >> 8 * i);
    sink_add(ctx, b, sizeof b);
}

static void add_tensor(void *ctx, const q4x_tensor *t) {
    enum { EDGE = 4096 };
    size_t len = strlen(t->name), edge = t->bytes < EDGE ? t->bytes : EDGE;
    add_u64(ctx, len);
    sink_add(ctx, t->name, len);
    add_u64(ctx, (uint64_t)t->type);
    add_u64(ctx, (uint64_t)t->ndim);
    for (int i = 0; i < 4; i++) add_u64(ctx, (uint64_t)t->ne[i]);
    add_u64(ctx, t->bytes);
    if (!edge) return;
    sink_add(ctx, t->data, edge);
    sink_add(ctx, (const uint8_t *)t->data + (t->bytes - edge), edge);
}

typedef struct {
    const q4x_tensor *t;
} entry;

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->t->name, ((const entry *)b)->t->name);
}

/* Tensors are taken in the order of their names: how a model is cut into shards does not change its identity. */
int q4x_model_fingerprint(const q4x_model *m, char hex[33], q4x_err *err) {
    int rc = 0;
    XXH3_state_t *state = XXH3_createState();
    entry *order = malloc((size_t)(m->ntensors ? m->ntensors : 1) * sizeof *order);
    if (!state || !order) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for the fingerprint", q4x_tail(m->path)));
    TRY(q4x_model_check(m, err));
    XXH3_128bits_reset(state);
    TRY(m->ops->meta(m, sink_add, state, err));
    add_u64(state, (uint64_t)m->ntensors);
    for (int64_t i = 0; i < m->ntensors; i++) order[i].t = &m->tensor[i];
    qsort(order, (size_t)m->ntensors, sizeof *order, by_name);
    for (int64_t i = 0; i < m->ntensors; i++) add_tensor(state, order[i].t);
    XXH128_canonical_t canon;
    XXH128_canonicalFromHash(&canon, XXH3_128bits_digest(state));
    q4x_hex(canon.digest, sizeof canon.digest, hex);
done:
    free(order);
    XXH3_freeState(state);
    return rc;
}
