/* The container of Hugging Face checkpoints: config.json beside one safetensors file, or beside an index and its
 * shards.
 *
 * Headers are read into memory, so that a file which shrinks meanwhile is an error and not a signal; data are mapped.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/k.h"
#include "lib/json_in.h"
#include "lib/model_int.h"
#include "lib/safetensors.h"

#define ONE "model.safetensors"
#define INDEX "model.safetensors.index.json"

/* A configuration is small; an index names every tensor in one flat object. */
static const q4x_json_limits config_limits = {4 << 20, 16, 4096, 1 << 16};
static const q4x_json_limits index_limits = {64 << 20, 8, 256, Q4X_ST_MAXTENSORS + 256};

enum { MAX_SHARDS = 4096, MAX_FILE_NAME = 255, MAX_TENSOR_NAME = 255 };

/* They may have any dtype; those without a k_type are left out. */
int q4x_model_foreign(const char *name) {
    return !strncmp(name, "model.visual.", 13) || !strncmp(name, "visual.", 7) || !strncmp(name, "mtp.", 4);
}

static int ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static int hf_claims(const q4x_probe *p) {
    return p->is_dir || ends_with(p->path, ".safetensors") || ends_with(p->path, ".index.json");
}

/* dir + "/" + file, or file alone when dir is empty. NULL: no memory. */
static char *join(const char *dir, size_t dir_len, const char *file) {
    char *s = NULL;
    while (dir_len > 1 && dir[dir_len - 1] == '/') dir_len--;
    const char *sep = dir_len && dir[dir_len - 1] != '/' ? "/" : "";
    return asprintf(&s, "%.*s%s%s", (int)dir_len, dir, sep, file) < 0 ? NULL : s;
}

static int read_bytes(const q4x_map *map, const char *path, void *dst, size_t n, q4x_err *err) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(map->fd, (char *)dst + done, n - done, (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return q4x_fail(err, Q4X_E_IO, "%s: cannot read: %s", q4x_tail(path), strerror(errno));
        if (!got)
            return q4x_fail(err, Q4X_E_TRUNCATED, "%s: the file had %llu bytes when it was opened and ends at %zu now",
                            q4x_tail(path), (unsigned long long)map->size, done);
        done += (size_t)got;
    }
    return 0;
}

/* A whole JSON file that must hold an object. */
static int read_json(const char *path, const q4x_json_limits *lim, json_t **ret, q4x_err *err) {
    int rc;
    q4x_map map = {.fd = -1};
    char *text = NULL;
    json_t *j = NULL;
    TRY(q4x_map_open(path, &map, err));
    if (map.size > lim->bytes)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: %llu bytes, expected at most %zu", q4x_tail(path),
                     (unsigned long long)map.size, lim->bytes));
    text = malloc((size_t)map.size + 1);
    if (!text) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory to read it", q4x_tail(path)));
    TRY(read_bytes(&map, path, text, (size_t)map.size, err));
    TRY(q4x_json_read(text, (size_t)map.size, lim, q4x_tail(path), &j, err));
    if (!json_is_object(j)) TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: expected a JSON object", q4x_tail(path)));
    *ret = j;
    j = NULL;
done:
    json_decref(j);
    free(text);
    q4x_map_close(&map);
    return rc;
}

int q4x_hf_json(const q4x_model *m, const char *file, const q4x_json_limits *lim, json_t **ret, q4x_err *err) {
    struct stat sb;
    const char *slash = strrchr(m->path, '/');
    int is_dir = !stat(m->path, &sb) && S_ISDIR(sb.st_mode);
    char *path = join(m->path, is_dir ? strlen(m->path) : slash ? (size_t)(slash - m->path) + 1 : 0, file);
    if (!path) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a path");
    int rc = access(path, F_OK) ? 1 : read_json(path, lim, ret, err);
    free(path);
    return rc;
}

static int read_config(q4x_model *m, const char *dir, size_t dir_len, q4x_err *err) {
    char *path = join(dir, dir_len, "config.json");
    if (!path) return q4x_fail(err, Q4X_E_NOMEM, "no memory for a path");
    int rc;
    TRY(read_json(path, &config_limits, &m->config, err));
    const json_t *text = json_object_get(m->config, "text_config");
    if (text && !json_is_null(text) && !json_is_object(text))
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: text_config: expected an object", q4x_tail(path)));
    m->text_config = json_is_object(text) ? text : m->config;
    const char *arch = json_string_value(json_object_get(m->config, "model_type"));
    if (!arch) arch = json_string_value(json_object_get(m->text_config, "model_type"));
    if (!arch)
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: model_type: expected a string, found none: is this a model's folder?",
                     q4x_tail(path)));
    m->arch = q4x_pool_str(&m->pool, arch, strlen(arch));
    if (!m->arch) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory", q4x_tail(path)));
done:
    free(path);
    return rc;
}

/* ---- tensors ---- */

static int check_tensor(const q4x_st_tensor *s, const char *file, q4x_err *err) {
    size_t n = strlen(s->name);
    if (n > MAX_TENSOR_NAME)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %.64s...: a name of %zu bytes, expected at most %d", file,
                        s->name, n, MAX_TENSOR_NAME);
    for (size_t i = 0; i < n; i++)
        if (s->name[i] < 0x21 || s->name[i] > 0x7e)
            return q4x_fail(err, Q4X_E_FORMAT,
                            "%s: tensor %.64s: expected a name of printable ASCII, found byte 0x%02x", file, s->name,
                            (unsigned)(unsigned char)s->name[i]);
    for (int i = 0; i < s->ndim; i++)
        if (!s->shape[i])
            return q4x_fail(err, Q4X_E_FORMAT, "%s: tensor %s: shape[%d] is 0, expected a positive dimension", file,
                            s->name, i);
    if (s->type < 0)
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "%s: tensor %s: dtype %s; BF16, F16, F32, F64 and signed integers are read: convert the "
                        "checkpoint to one of them",
                        file, s->name, s->dtype);
    return 0;
}

/* Dimensions turn round: fastest first. Of more than four (patch embeddings of vision towers) the slowest become one.
 */
static q4x_tensor tensor_of(const q4x_st_tensor *s, const q4x_map *map, int shard) {
    q4x_tensor t = {.name = s->name, .type = s->type, .ndim = s->ndim < 4 ? s->ndim : 4, .ne = {1, 1, 1, 1}};
    for (int i = 0; i < s->ndim; i++) t.ne[i < 4 ? i : 3] *= s->shape[s->ndim - 1 - i];
    t.data = map->data + s->off;
    t.bytes = (size_t)s->bytes;
    t.shard = shard;
    return t;
}

static int add_tensors(q4x_model *m, const q4x_st *st, const char *path, q4x_err *err) {
    int shard = m->nshards - 1;
    for (int64_t i = 0; i < st->n; i++) {
        const q4x_st_tensor *s = &st->t[i];
        if (q4x_model_foreign(s->name) && s->type < 0) continue;
        int rc = check_tensor(s, q4x_tail(path), err);
        if (rc) return rc;
        q4x_tensor t = tensor_of(s, &m->map[shard], shard);
        rc = q4x_model_add(m, &t, err);
        if (rc) {
            q4x_err_prefix(err, "%s: tensor %.64s", q4x_tail(path), s->name);
            return rc;
        }
    }
    return 0;
}

/* Map a safetensors file as the next shard and add its tensors. *ret, if not NULL, keeps the header. */
static int add_file(q4x_model *m, const char *path, q4x_st **ret, q4x_err *err) {
    int rc;
    q4x_map map = {.fd = -1};
    unsigned char *head = NULL, first[8];
    size_t n = 0;
    q4x_st *st = NULL;
    TRY(q4x_map_open(path, &map, err));
    TRY(read_bytes(&map, path, first, map.size < 8 ? (size_t)map.size : 8, err));
    TRY(q4x_st_head(first, map.size, q4x_tail(path), &n, err));
    head = malloc(n);
    if (!head) TRY(q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its header of %zu bytes", q4x_tail(path), n));
    TRY(read_bytes(&map, path, head, n, err));
    if (memcmp(head, first, 8))
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: the header changed while it was read", q4x_tail(path)));
    TRY(q4x_st_parse(head, map.size, q4x_tail(path), &st, err));
    q4x_map mine = map;
    map = (q4x_map){.fd = -1}; /* taken over, also on failure */
    TRY(q4x_model_add_shard(m, path, mine, st->data_off, err));
    TRY(add_tensors(m, st, path, err));
    if (ret) {
        *ret = st;
        st = NULL;
    }
done:
    q4x_st_free(st);
    free(head);
    q4x_map_close(&map);
    return rc;
}

/* ---- the index ---- */

typedef struct {
    const char *path;  /* of the index */
    size_t dir_len;    /* of its folder */
    const json_t *map; /* tensor -> file */
    const char **file; /* distinct, ascending */
    size_t nfiles;
} index_t;

/* Shards lie beside the index: a name with a folder in it could point anywhere. */
static int check_file_name(const char *index, const char *tensor, const json_t *v, q4x_err *err) {
    const char *s = json_string_value(v);
    if (!s) return q4x_fail(err, Q4X_E_FORMAT, "%s: weight_map: %.64s: expected a file name", q4x_tail(index), tensor);
    size_t n = strlen(s);
    int bad = n == 0 || n > MAX_FILE_NAME || strchr(s, '/') || !strcmp(s, ".") || !strcmp(s, "..");
    for (size_t i = 0; i < n && !bad; i++) bad = (unsigned char)s[i] < 0x20;
    if (bad)
        return q4x_fail(err, Q4X_E_FORMAT,
                        "%s: weight_map: %.64s: expected the name of a file in this folder, found '%.80s'",
                        q4x_tail(index), tensor, s);
    return 0;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int list_files(index_t *ix, q4x_err *err) {
    const char *tensor;
    json_t *v;
    size_t n = 0;
    ix->file = malloc((json_object_size(ix->map) + 1) * sizeof *ix->file);
    if (!ix->file) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for its files", q4x_tail(ix->path));
    json_object_foreach((json_t *)(uintptr_t)ix->map, tensor, v) {
        int rc = check_file_name(ix->path, tensor, v, err);
        if (rc) return rc;
        const char *s = json_string_value(v);
        if (!n || strcmp(ix->file[n - 1], s)) ix->file[n++] = s; /* neighbours mostly share a file */
    }
    if (!n) return q4x_fail(err, Q4X_E_FORMAT, "%s: weight_map names no tensor", q4x_tail(ix->path));
    qsort(ix->file, n, sizeof *ix->file, by_text);
    for (size_t i = 0; i < n; i++)
        if (!ix->nfiles || strcmp(ix->file[ix->nfiles - 1], ix->file[i])) ix->file[ix->nfiles++] = ix->file[i];
    if (ix->nfiles > MAX_SHARDS)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %zu files, expected at most %d", q4x_tail(ix->path), ix->nfiles,
                        MAX_SHARDS);
    return 0;
}

/* Some tensor that the index puts into this file: for messages. */
static const char *tensor_in(const index_t *ix, const char *file) {
    const char *tensor;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)ix->map, tensor, v) {
        if (!strcmp(json_string_value(v), file)) return tensor;
    }
    return "?";
}

/* Index and shard must tell the same: every tensor of the file stands in the index, with this file. */
static int check_shard(const index_t *ix, const char *file, const q4x_st *st, q4x_err *err) {
    for (int64_t i = 0; i < st->n; i++) {
        const char *f = json_string_value(json_object_get(ix->map, st->t[i].name));
        if (!f)
            return q4x_fail(err, Q4X_E_MISMATCH, "%s: %s holds tensor %.100s, which weight_map does not name",
                            q4x_tail(ix->path), file, st->t[i].name);
        if (strcmp(f, file))
            return q4x_fail(err, Q4X_E_MISMATCH, "%s: weight_map puts tensor %.100s into %.80s, but %.80s holds it",
                            q4x_tail(ix->path), st->t[i].name, f, file);
    }
    return 0;
}

static int add_shard(q4x_model *m, const index_t *ix, const char *file, q4x_names *seen, q4x_err *err) {
    int rc;
    q4x_st *st = NULL;
    char *path = join(ix->path, ix->dir_len, file);
    if (!path) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a path"));
    rc = add_file(m, path, &st, err);
    if (rc == Q4X_E_IO && access(path, F_OK))
        rc = q4x_fail(err, Q4X_E_IO, "%s: shard %.80s is missing; it should hold tensor %.100s: fetch it again",
                      q4x_tail(ix->path), file, tensor_in(ix, file));
    if (rc) goto done;
    TRY(check_shard(ix, file, st, err));
    for (int64_t i = 0; i < st->n; i++) {
        const char *name = st->t[i].name;
        /* the model's pool keeps only names of tensors it lists; the index lives as long as seen does */
        const char *key = json_object_iter_key(json_object_iter_at((json_t *)(uintptr_t)ix->map, name));
        if (q4x_names_add(seen, key, strlen(key), i) < 0) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for names"));
    }
done:
    q4x_st_free(st);
    free(path);
    return rc;
}

static int open_index(q4x_model *m, const char *path, size_t dir_len, q4x_err *err) {
    int rc;
    json_t *j = NULL, *v;
    q4x_names seen = {0};
    index_t ix = {.path = path, .dir_len = dir_len};
    const char *tensor;
    TRY(read_json(path, &index_limits, &j, err));
    ix.map = json_object_get(j, "weight_map");
    if (!json_is_object(ix.map))
        TRY(q4x_fail(err, Q4X_E_FORMAT, "%s: weight_map: expected an object from tensors to files", q4x_tail(path)));
    TRY(list_files(&ix, err));
    for (size_t i = 0; i < ix.nfiles; i++) TRY(add_shard(m, &ix, ix.file[i], &seen, err));
    json_object_foreach((json_t *)(uintptr_t)ix.map, tensor, v) {
        if (q4x_names_find(&seen, tensor, strlen(tensor)) < 0)
            TRY(q4x_fail(err, Q4X_E_MISMATCH, "%s: weight_map puts tensor %.100s into %.80s, which lacks it",
                         q4x_tail(path), tensor, json_string_value(v)));
    }
done:
    q4x_names_free(&seen);
    free(ix.file);
    json_decref(j);
    return rc;
}

/* ---- opening ---- */

/* "P-00002-of-00004.safetensors" -> "P.safetensors.index.json", if that is there; else NULL. */
static char *index_of_shard(const char *path, size_t dir_len) {
    static const char tail[] = "-00000-of-00000.safetensors";
    size_t n = strlen(path), k = sizeof tail - 1;
    if (n <= dir_len + k) return NULL;
    for (size_t i = 0; i < k; i++) {
        char c = path[n - k + i];
        if (tail[i] == '0' ? c < '0' || c > '9' : c != tail[i]) return NULL;
    }
    char *index = NULL;
    if (asprintf(&index, "%.*s.safetensors.index.json", (int)(n - k), path) < 0) return NULL;
    if (!access(index, F_OK)) return index;
    free(index);
    return NULL;
}

static int open_folder(q4x_model *m, const char *dir, q4x_err *err) {
    int rc;
    size_t n = strlen(dir);
    char *one = join(dir, n, ONE), *index = join(dir, n, INDEX);
    if (!one || !index) TRY(q4x_fail(err, Q4X_E_NOMEM, "no memory for a path"));
    TRY(read_config(m, dir, n, err));
    if (!access(one, F_OK))
        rc = add_file(m, one, NULL, err);
    else if (!access(index, F_OK))
        rc = open_index(m, index, n, err);
    else
        rc = q4x_fail(err, Q4X_E_IO, "%s: expected " ONE " or " INDEX " in this folder, found neither", q4x_tail(dir));
done:
    free(one);
    free(index);
    return rc;
}

static int hf_open(q4x_model *m, const char *path, q4x_err *err) {
    const char *slash = strrchr(path, '/');
    size_t dir_len = slash ? (size_t)(slash - path) + 1 : 0;
    struct stat sb;
    if (!stat(path, &sb) && S_ISDIR(sb.st_mode)) return open_folder(m, path, err);
    int rc = read_config(m, path, dir_len, err);
    if (rc) return rc;
    if (ends_with(path, ".index.json")) return open_index(m, path, dir_len, err);
    char *index = index_of_shard(path, dir_len);
    rc = index ? open_index(m, index, dir_len, err) : add_file(m, path, NULL, err);
    free(index);
    return rc;
}

/* The configuration, in one form whatever its order and blanks. */
static int hf_meta(const q4x_model *m, q4x_sink sink, void *ctx, q4x_err *err) {
    char *text = json_dumps(m->config, JSON_SORT_KEYS | JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!text) return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for the fingerprint", q4x_tail(m->path));
    sink(ctx, text, strlen(text));
    free(text);
    return 0;
}

static void hf_close(q4x_model *m) {
    (void)m; /* nothing beyond what every model owns */
}

const q4x_container_ops q4x_hf_ops = {
    .id = Q4X_HF,
    .wants = "a folder with config.json and safetensors",
    .claims = hf_claims,
    .open = hf_open,
    .meta = hf_meta,
    .close = hf_close,
};
