/* model_int.h: the inside of a model, shared by lib/model.c and the containers. Nobody else includes it.
 *
 * A container fills a zeroed q4x_model: shards with their maps, then its tensors through q4x_model_add (which keeps
 * the look-up table), arch, and whatever of its own hangs on priv. When its open fails, what it has put there so far
 * is freed by q4x_model_close, priv by the container's close (which must cope with a half-filled one, and NULL).
 */
#ifndef Q4X_MODEL_INT_H
#define Q4X_MODEL_INT_H

#include "lib/io.h"
#include "lib/json_in.h"
#include "lib/model.h"
#include "lib/names.h"

/* What is known of a path before a container opens it. */
typedef struct {
    const char *path;
    int is_dir;
    unsigned char head[8]; /* first bytes of a regular file */
    size_t nhead;
} q4x_probe;

/* Takes bytes for the fingerprint. */
typedef void (*q4x_sink)(void *ctx, const void *data, size_t n);

typedef struct {
    q4x_container id;
    const char *wants;                     /* what it opens, for the message when no container wants a path */
    int (*claims)(const q4x_probe *probe); /* 1: mine. Asked in the order of containers.def */
    int (*open)(q4x_model *m, const char *path, q4x_err *err);
    /* Feed every metadata key and value to the sink, so that it does not depend on how files are cut into shards. */
    int (*meta)(const q4x_model *m, q4x_sink sink, void *ctx, q4x_err *err);
    void (*close)(q4x_model *m); /* frees priv */
} q4x_container_ops;

#define CONTAINER(ops) extern const q4x_container_ops ops;
#include "lib/containers.def"
#undef CONTAINER

struct q4x_model {
    const q4x_container_ops *ops;
    char *path;       /* as given; owned */
    const char *arch; /* in pool or priv; NULL reads as "" */
    int nshards;
    q4x_shard *shard; /* [nshards], owned; paths in pool */
    q4x_map *map;     /* [nshards], owned and closed by q4x_model_close */
    int64_t ntensors, cap_tensors;
    q4x_tensor *tensor; /* owned; names in pool */
    q4x_names names;    /* tensor name -> index */
    q4x_pool pool;
    json_t *config;            /* HF: root of config.json, owned */
    const json_t *text_config; /* HF: borrowed from config */
    void *priv;                /* the container's own */
};

/* An empty model of a container; NULL: no memory. */
q4x_model *q4x_model_new(const q4x_container_ops *ops, const char *path);
/* Append a shard; takes over the map (also on failure). Path is copied. */
int q4x_model_add_shard(q4x_model *m, const char *path, q4x_map map, uint64_t data_off, q4x_err *err);
/* Append a tensor; its name is copied into the pool. A name that is there already is Q4X_E_FORMAT, saying in which
 * file; the caller puts its own file and field in front. */
int q4x_model_add(q4x_model *m, const q4x_tensor *t, q4x_err *err);
/* A JSON object in the folder of an HF model's config.json. 1: there is no such file, *ret is untouched. */
int q4x_hf_json(const q4x_model *m, const char *file, const q4x_json_limits *lim, json_t **ret, q4x_err *err);
/* Drop shards, tensors and pool: as if nothing had been added. */
void q4x_model_clear(q4x_model *m);

#endif
