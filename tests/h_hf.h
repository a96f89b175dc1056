/* h_hf.h: a small writer of HF checkpoints, for tests: take one apart, change it, write it somewhere else. */
#ifndef H_HF_H
#define H_HF_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    char name[256], dtype[16];
    int ndim;
    int64_t shape[8];
    void *data;
    size_t bytes;
    int shard; /* of the written set */
} h_hf_tensor;

typedef struct {
    json_t *config;
    int n, cap;
    h_hf_tensor *t;
} h_hf;

/* A folder with config.json and one model.safetensors. */
h_hf *h_hf_load(const char *dir);
void h_hf_free(h_hf *h);
h_hf_tensor *h_hf_get(h_hf *h, const char *name); /* fails when there is none */
/* Add a tensor; data NULL: zeros. */
h_hf_tensor *h_hf_add(h_hf *h, const char *name, const char *dtype, int ndim, const int64_t *shape, const void *data);
void h_hf_drop(h_hf *h, const char *name);
/* A BF16 tensor becomes the same numbers in F32. */
void h_hf_widen(h_hf *h, const char *name);
/* Set a key of the configuration from JSON text; "a.b" goes into an object; NULL removes. */
void h_hf_set(json_t *config, const char *key, const char *json);

/* The multimodal form of a text checkpoint: prefix, text_config, and parts that are not run. */
void h_hf_multimodal(h_hf *h);
/* The BF16 experts of a layer ("model.layers.0") become two tensors. */
void h_hf_fuse(h_hf *h, const char *layer, int64_t E, int64_t F, int64_t D);

/* Write config.json, and model.safetensors (nshards 0) or shards and an index. */
void h_hf_write(const h_hf *h, const char *dir, int nshards);
/* Write config.json beside a link to the weights of another folder. */
void h_hf_write_config(const json_t *config, const char *dir, const char *weights_dir);
/* One file of `head` (the JSON text) and n bytes behind it. */
void h_hf_write_st(const char *dir, const char *file, const char *head, const void *data, size_t n);

void h_text_write(const char *dir, const char *file, const char *text);
/* A fresh folder; the caller frees the path after h_tmp_remove, which empties and removes it. */
char *h_tmp(void);
void h_tmp_remove(char *dir);

#endif
