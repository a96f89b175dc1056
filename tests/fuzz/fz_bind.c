/* fz_bind.c: any bytes as the keys of a GGUF file of either architecture, bound with the tensors of
 * tests/models/micro-a-bf16.gguf or of tests/golden/dense-a when the input brings none. Either a named error, or
 * weights that are all there and make a plan. What is said of such a file is printable.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/gguf.h"
#include "lib/model_int.h"
#include "lib/odd.h"
#include "tests/h_dense.h"
#include "tests/h_holds.h"
#include "tests/h_touch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The dense model as GGUF, with a prediction block or without; NULL when it is not there. */
static q4x_model *dense(int next) {
    q4x_model *m = NULL;
    h_gguf g;
    if (access("tests/golden/dense-a/model.safetensors", R_OK)) return NULL;
    h_hf *h = h_hf_load("tests/golden/dense-a");
    h_gguf_init(&g);
    h_dense_keys(&g, h->config);
    h_dense_tensors(&g, h);
    if (next) h_dense_next(&g, h, 4, 3);
    h_buf b = h_gguf_bytes(&g); /* the model borrows it, for as long as the process lives */
    HOLDS(!q4x_gguf_parse_mem(b.p, b.n, "dense.gguf", &m, NULL));
    h_gguf_free(&g);
    h_hf_free(h);
    return m;
}

enum { MICRO, DENSE, DENSE_NEXT, NDONORS };

static const q4x_model *donor(const q4x_model *m) {
    static q4x_model *all[NDONORS];
    static int tried;
    int64_t v;
    if (!tried++) {
        q4x_model_open("tests/models/micro-a-bf16.gguf", &all[MICRO], NULL);
        all[DENSE] = dense(0);
        all[DENSE_NEXT] = dense(1);
    }
    if (strcmp(q4x_model_arch(m), "qwen35")) return all[MICRO];
    return q4x_kv_i64(m, "qwen35.nextn_predict_layers", &v, NULL) ? all[DENSE] : all[DENSE_NEXT];
}

static void printable(const char *s) {
    for (; *s; s++) HOLDS(*s >= 0x20 && *s <= 0x7e);
}

/* Settings, and what is unusual. */
static void describe(const q4x_model *m) {
    static q4x_settings s;
    q4x_odd odd[Q4X_ODD_COUNT];
    q4x_err e = {0};
    q4x_tok *tok = NULL;
    int rc = q4x_settings_read(m, &s, &e);
    if (rc) h_named_error(rc, &e);
    for (int i = 0; !rc && i < s.n; i++) {
        char value[80];
        q4x_setting_value(&s.s[i], value, sizeof value);
        printable(value);
        printable(s.s[i].key);
    }
    if (q4x_tok_open(m, &tok, NULL)) tok = NULL;
    int n = q4x_odds_find(m, rc ? NULL : &s, tok, odd);
    HOLDS(n >= 0 && n <= Q4X_ODD_COUNT);
    for (int i = 0; i < n; i++) printable(odd[i].what);
    q4x_tok_close(tok);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    q4x_model *m = NULL;
    q4x_err e = {0};
    int rc = q4x_gguf_parse_mem(data, size, "in.gguf", &m, &e);
    if (rc) {
        h_named_error(rc, &e);
        return 0;
    }
    const q4x_model *d = m->ntensors ? NULL : donor(m);
    for (int64_t i = 0; d && i < d->ntensors; i++) HOLDS(!q4x_model_add(m, &d->tensor[i], NULL));
    if (strcmp(q4x_model_arch(m), "qwen35"))
        h_take_qwen4(m);
    else
        h_take_qwen35(m);
    describe(m);
    q4x_model_close(m);
    return 0;
}
