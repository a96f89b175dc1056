/* tok_give.h: the tokenizer of a checkpoint as the keys of a GGUF file (qwen4_exp 9.6). */
#ifndef Q4X_TOK_GIVE_H
#define Q4X_TOK_GIVE_H

#include "lib/gguf_write.h"
#include "lib/log.h"

/* tokenizer.* from tokenizer.json and the files beside it, ids without a token up to `rows` as unused ones; without a
 * tokenizer.json the same as q4x_tok_give_none. Q4X_E_UNSUPPORTED for what the keys cannot say: a pattern without a
 * name there, pieces that are tokens and not merged. What else is lost is told to log (NULL: nobody). */
int q4x_tok_give(const q4x_model *m, int64_t rows, q4x_gguf_out *o, q4x_log *log, q4x_err *err);
/* That there is none. */
int q4x_tok_give_none(q4x_gguf_out *o, q4x_err *err);

#endif
