/* cmd.h: the door. A command is parse -> open -> one call into the library -> print -> exit code.
 *
 * stdout is the result, stderr the talk. Nothing here computes, nothing here reads files by itself.
 */
#ifndef CMD_H
#define CMD_H

#include <argp.h>
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/dump.h"
#include "lib/err.h"
#include "lib/greedy.h"
#include "lib/lever.h"
#include "lib/log.h"
#include "lib/tok.h"

/* Exit codes. `git bisect run` reads 0 as good, 1 as bad, 125 as "skip", 128 and above as "stop". */
/* 129 is for what the words of a command line say; a file that is missing, or wrong inside, is 128, whatever names it.
 */
enum { CMD_OK = 0, CMD_DIVERGED = 1, CMD_CANNOT_JUDGE = 125, CMD_FATAL = 128, CMD_USAGE = 129 };

typedef struct cmd_ctx {
    char name[32];   /* "q4x run": how the command calls itself */
    const char *exe; /* argv[0] of the program */
    int argc;        /* of the command, its own name first, as given */
    char **argv;
    int json;    /* --json was given */
    int help;    /* --help or --usage was given: which help argp shall print */
    int verbose; /* count of -v */
    q4x_log log; /* stderr; ready after cmd_parse */
} cmd_ctx;

typedef int (*cmd_fn)(int argc, char **argv, cmd_ctx *c);

typedef struct {
    const char *name;
    cmd_fn fn;
    const char *needs, *help;
} cmd_row;

extern const cmd_row cmd_list[];
extern const int cmd_count;

#define CMD(name, fn, needs, help) int fn(int argc, char **argv, cmd_ctx *c);
#include "bin/commands.def"
#undef CMD

/* Parse argv with the command's own argp (its options, parser, args_doc and doc; its children too) plus the options
 * that every command has: -h, -v and, when with_json, --json. input reaches the command's parser as state->input. Ends
 * the program with 129 on a usage error and with 0 after help, so it returns only when all is well. */
void cmd_parse(const struct argp *own, int argc, char **argv, cmd_ctx *c, int with_json, void *input);

/* No value of ours is empty: 1, and said, when this one is. First line of a command's parser. */
int cmd_empty(const struct argp_state *state, int key, const char *arg);

/* "q4x run: message" on stderr (with -v also where it arose); returns CMD_FATAL. */
int cmd_fail(cmd_ctx *c, const q4x_err *err);
/* The same for an error that may be that of an option's value, which only the model could show (Q4X_E_ARG: a lever in
 * scope at no node, an id out of the vocabulary): returns CMD_USAGE then. */
int cmd_refused(cmd_ctx *c, const q4x_err *err);
/* The same for a mistake on the command line: one line, with a hint where help is; returns CMD_USAGE. */
int cmd_misuse(cmd_ctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The path of a file to write (NULL: none is asked for) is no "-": stdout has text alone, and a file of that name is
 * nobody's wish. CMD_OK, or said and CMD_USAGE. what: the option or argument. */
int cmd_dash(cmd_ctx *c, const char *what, const char *path);

/* This file is whole and under its name. When stdout fails after it the command still ends with 128, for its talk was
 * not heard, and the message says that the file is good. */
void cmd_written(const char *path);

/* Print and drop a JSON value: indented, keys in the order they were set, reals with `digits` significant digits (9
 * hold a float, 17 a double). NULL is reported as no memory. Returns CMD_OK or CMD_FATAL. */
int cmd_print_json(cmd_ctx *c, json_t *value, int digits);
/* A number, or the strings nan, inf, -inf that JSON has no numbers for. */
json_t *cmd_real(double x);
json_t *cmd_ids(const int32_t *ids, int32_t n);
/* n bytes of a file or a command line: as they are, or escaped (cmd_plain) where they are no UTF-8. */
json_t *cmd_string(const char *s, size_t n);

/* Read and verify a dump named on the command line: as given, then with ".q4d" behind it. Ends as q4x_dump_read does,
 * also with *ret set when the dump is cut short. */
int cmd_dump_read(const char *name, q4x_dump **ret, q4x_err *err);

/* Path of one of our tiny models: tests/models/NAME below the working folder, or below the folders above the program
 * (a build tree), or share/q4x/NAME beside the folder it is installed in. */
int cmd_find_model(const cmd_ctx *c, const char *name, char *buf, size_t size, q4x_err *err);

/* The nearest of the words to what was typed, or NULL when none is near. */
const char *cmd_nearest(const char *typed, const char *(*word)(int i, void *ctx), int n, void *ctx);

/* ---- text in and out (prompt.c) ---- */

/* A text as the command line gives it. */
typedef struct {
    const char *text, *file; /* -p, --prompt-file */
    int plain;               /* --no-special */
} cmd_text;

extern const struct argp cmd_text_argp; /* a child for a command's argp; its input is a cmd_text */
static inline int cmd_text_given(const cmd_text *in) {
    return in->text || in->file;
}
/* The text's bytes, malloc'd, with a NUL behind them that is not counted. */
int cmd_text_read(const cmd_text *in, char **ret, size_t *ret_n, q4x_err *err);
/* Its ids: q4x_tok_encode, with the file named where the text has one, and Q4X_E_FORMAT then for what is no text. */
int cmd_text_encode(const cmd_text *in, const q4x_tok *t, const char *text, size_t n, int32_t **ret, int32_t *ret_n,
                    q4x_err *err);
/* All of a file; "-" is stdin. */
int cmd_read_file(const char *path, char **ret, size_t *ret_n, q4x_err *err);
/* The tokenizer of a model; an error when it has none. */
int cmd_tok_need(const q4x_model *m, q4x_tok **ret, q4x_err *err);
/* UTF-8 as it is; to a terminal without what could drive it. */
void cmd_put_text(FILE *to, const char *text, size_t n);
/* The same as part of a line, into buf, cut to size: characters that drive a terminal, those that turn the direction
 * and what is no UTF-8 become \xHH. Returns buf. */
const char *cmd_plain(const char *text, size_t n, char *buf, size_t size);
/* The rest of a line that stands at column `at`, and its end: words, and where they reach column `width` a new line at
 * `indent`. A hard blank keeps two words together. */
#define CMD_HARD_BLANK "\x1f"
void cmd_put_words(const char *text, int at, int indent, int width);
/* Any bytes on one line, quoted: printable ASCII as it is, else \n \r \t \\ \" or \xHH. */
void cmd_put_bytes(FILE *to, const uint8_t *p, size_t n);

/* ---- options of the commands that run a model (opts.c) ---- */

typedef struct {
    int profile; /* 1: --as */
    const char *text;
} cmd_lever_arg;

typedef struct {
    const char *model;
    int32_t *prompt, *force, *stop; /* owned */
    int32_t n_prompt, n_force, n_stop;
    int32_t n; /* ids to make */
    int n_given;
    const char *ids, *force_ids, *stop_ids; /* as given */
    cmd_text text;                          /* the prompt, when it is text */
    char *prompt_text; /* [prompt_len], owned; NULL before cmd_gen_prompt, and when ids were given */
    size_t prompt_len;
    q4x_tok *tok; /* owned; NULL: not opened */
    q4x_arm arm;
    const char *spec, *device;
    int threads;
    cmd_lever_arg lever[32];
    int nlevers;
} cmd_gen;

extern const struct argp cmd_gen_argp; /* a child for the command's argp; its input is a cmd_gen */
void cmd_gen_free(cmd_gen *g);
/* Token ids: "1,2,3" or "@FILE" with commas, blanks or lines between them. what: the option, for messages. *ret is
 * malloc'd and not empty. Q4X_E_ARG: the words are wrong; else the file is. */
int cmd_parse_ids(const char *what, const char *text, int32_t **ret, int32_t *ret_n, q4x_err *err);
/* After cmd_parse: build the arm, check that what must be given was. Returns an exit code, 0 when all is well. */
int cmd_gen_ready(cmd_gen *g, cmd_ctx *c);
/* Once the model is open: a prompt that is text becomes ids, and tok is the model's. */
int cmd_gen_prompt(cmd_gen *g, const q4x_model *m, q4x_err *err);
/* What is asked of the greedy loop; borrows the id lists. */
q4x_greedy_opts cmd_greedy(const cmd_gen *g);

/* Logit rows with a NaN or an infinity: an id that was chosen on one may say nothing of the model. */
typedef struct {
    int32_t rows, of;               /* such rows, of all */
    int32_t forward, values, vocab; /* the first of them: how many of its logits are not finite */
} cmd_nonfinite;
void cmd_nonfinite_add(cmd_nonfinite *k, const q4x_step *s);
/* One line on stderr when there is one. */
void cmd_nonfinite_say(const cmd_nonfinite *k, const cmd_ctx *c);

#endif
