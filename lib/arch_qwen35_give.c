/* arch_qwen35_give.c: a bound checkpoint of qwen3_5 as a GGUF file has it (section 10). */
#include <stdio.h>

#include "lib/arch_qwen35_int.h"
#include "lib/io.h"

int q4x_qwen35_give(const q4x_taker *to, q4x_gguf_out *o, q4x_qwen35 *w, q4x_err *err) {
    const json_t *text = q4x_model_text_config(w->model);
    q4x_cfg c = {0};
    char where[200];
    int rc;
    snprintf(where, sizeof where, "%s: config.json", q4x_tail(q4x_model_path(w->model)));
    TRY(q4x_q35_cfg_hf(q4x_model_config(w->model), text, where, &c, err));
    TRY(q4x_give_common(&c, text, o, err));
    TRY(q4x_give_keys(&c, o, Q4X_Q35_FFN, Q4X_Q35_FFN, err));
    c.container = Q4X_GGUF; /* from here on names are the GGUF file's */
    q4x_bind b = {.m = w->model, .cfg = &c, .owned = &w->owned, .taker = to};
    TRY(q4x_q35_tensors(&b, w, err));
done:
    return rc;
}
