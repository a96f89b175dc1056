/* cmd_tokenize.c: text to token ids, ids to text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/io.h"

typedef struct {
    const char *model;
    cmd_text text;
    int32_t *ids; /* owned */
    int32_t n;
    const char *ids_given; /* as given */
} options;

enum { KEY_IDS = 0x200 };

static error_t option(int key, char *arg, struct argp_state *state) {
    options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case KEY_IDS: o->ids_given = arg; return 0;
    case ARGP_KEY_ARG:
        if (o->model) return ARGP_ERR_UNKNOWN;
        o->model = arg;
        return 0;
    case ARGP_KEY_INIT: state->child_inputs[0] = &o->text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static json_t *token_json(const q4x_tok *t, int32_t id) {
    const uint8_t *p = NULL;
    size_t n = 0;
    q4x_tok_bytes(t, id, &p, &n, NULL);
    char *hex = malloc(2 * n + 1);
    if (!hex) return NULL;
    q4x_hex(p, n, hex);
    json_t *j = json_pack("{s:i, s:s, s:s}", "id", id, "type", q4x_tok_type_name(q4x_tok_type_of(t, id)), "bytes", hex);
    free(hex);
    return j;
}

static json_t *as_json(const q4x_tok *t, const options *o, const char *text, size_t len) {
    json_t *tokens = json_array();
    for (int32_t i = 0; i < o->n; i++) json_array_append_new(tokens, token_json(t, o->ids[i]));
    return json_pack("{s:o, s:o, s:o}", "ids", cmd_ids(o->ids, o->n), "text", json_stringn(text, len), "tokens",
                     tokens);
}

/* A line a token. */
static void table(const q4x_tok *t, const options *o) {
    for (int32_t i = 0; i < o->n; i++) {
        const uint8_t *p = NULL;
        size_t n = 0;
        q4x_tok_bytes(t, o->ids[i], &p, &n, NULL);
        printf("%7d  %-8s ", o->ids[i], q4x_tok_type_name(q4x_tok_type_of(t, o->ids[i])));
        cmd_put_bytes(stdout, p, n);
        putchar('\n');
    }
}

static int print(const q4x_tok *t, const options *o, cmd_ctx *c, q4x_err *err) {
    char *text = NULL;
    size_t len = 0;
    int rc = q4x_tok_text(t, o->ids, o->n, &text, &len, err); /* also: is every id one of this vocabulary? */
    if (rc) return cmd_refused(c, err);
    int code = CMD_OK;
    if (c->json)
        code = cmd_print_json(c, as_json(t, o, text, len), 9);
    else if (c->verbose)
        table(t, o);
    else if (o->ids_given) {
        cmd_put_text(stdout, text, len);
        putchar('\n');
    } else {
        for (int32_t i = 0; i < o->n; i++) printf("%s%d", i ? "," : "", o->ids[i]);
        putchar('\n');
    }
    free(text);
    return code;
}

static int tokenize(options *o, cmd_ctx *c) {
    int rc;
    q4x_err err = {0};
    q4x_model *m = NULL;
    q4x_tok *t = NULL;
    char *text = NULL;
    size_t n = 0;
    if (o->ids_given)
        TRY(cmd_parse_ids("--ids", o->ids_given, &o->ids, &o->n, &err));
    else
        TRY(cmd_text_read(&o->text, &text, &n, &err));
    TRY(q4x_model_open(o->model, &m, &err));
    TRY(cmd_tok_need(m, &t, &err));
    if (!o->ids_given) TRY(cmd_text_encode(&o->text, t, text, n, &o->ids, &o->n, &err));
done:;
    int code = rc ? cmd_refused(c, &err) : print(t, o, c, &err);
    free(text);
    q4x_tok_close(t);
    q4x_model_close(m);
    return code;
}

int cmd_tokenize(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {
        {"ids", KEY_IDS, "IDS", 0, "token ids, 1,2,3 or @FILE: print their text", 1}, {0}};
    static const struct argp_child child[] = {{&cmd_text_argp, 0, 0, 0}, {0}};
    static const struct argp argp = {own,
                                     option,
                                     "MODEL",
                                     "Print the token ids of a text, or the text of token ids, as the tokenizer in "
                                     "MODEL's files has them. With -v one line a token: id, type, bytes.",
                                     child,
                                     0,
                                     0};
    options o = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    int code = CMD_OK;
    if (!o.model)
        code = cmd_misuse(c, "which model? Expected a .gguf file or a checkpoint folder");
    else if (!o.ids_given + !cmd_text_given(&o.text) != 1)
        code = cmd_misuse(c, "what? Give one of -p TEXT, --prompt-file FILE and --ids 1,2,3");
    else if (o.ids_given && o.text.plain)
        code = cmd_misuse(c, "--no-special goes with text");
    else
        code = tokenize(&o, c);
    free(o.ids);
    return code;
}
