#include "bin/cmd_pair.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_FLOOR_A = 0x300, KEY_FLOOR_B, KEY_NULL, KEY_ALLOW, KEY_SESSION };

static error_t option(int key, char *arg, struct argp_state *state) {
    cmd_pair *p = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case KEY_FLOOR_A: p->floor_a = arg; return 0;
    case KEY_FLOOR_B: p->floor_b = arg; return 0;
    case KEY_NULL:
        if (state->next >= state->argc || !*state->argv[state->next] || *state->argv[state->next] == '-') {
            argp_error(state, "--device-null takes two dumps");
            return EINVAL;
        }
        p->null_a = arg;
        p->null_b = state->argv[state->next++];
        return 0;
    case KEY_ALLOW: p->allow_confounded = 1; return 0;
    case KEY_SESSION: p->session = arg; return 0;
    case ARGP_KEY_ARG:
        if (p->operands == 2) return ARGP_ERR_UNKNOWN;
        p->name[p->operands++] = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Controls:", 1},
    {"floor-a", KEY_FLOOR_A, "DUMP", 0, "a second recording of arm A: is it equal to itself?", 1},
    {"floor-b", KEY_FLOOR_B, "DUMP", 0, "a second recording of arm B", 1},
    {"device-null", KEY_NULL, "A B", 0,
     "two dumps with the levers of one arm that differ in the device alone; equal, they make it no lever", 1},
    {0, 0, 0, 0, "Rules:", 2},
    {"allow-confounded", KEY_ALLOW, 0, 0, "compare imported dumps with unknown or several declared differences", 2},
    {"session", KEY_SESSION, "DIR", 0,
     "bisect keeps its session in DIR (default: the next number below .q4x); report reads it there", 2},
    {0}};

const struct argp cmd_pair_argp = {options, option, 0, 0, 0, 0, 0};

char *cmd_line(const cmd_ctx *c) {
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    fputs(c->name, f);
    for (int i = 1; i < c->argc; i++) fprintf(f, " %s", c->argv[i]);
    return fclose(f) ? NULL : text;
}

/* A dump that must be whole: a control. */
static int read_whole(const char *name, q4x_dump **ret, q4x_err *err) {
    int rc = cmd_dump_read(name, ret, err);
    if (rc && *ret) {
        q4x_dump_free(*ret);
        *ret = NULL;
    }
    return rc;
}

/* An arm may be cut short: what is whole is read, and the verdict says so. */
static int read_arm(const char *name, q4x_dump **ret, int *truncated, cmd_ctx *c, q4x_err *err) {
    int rc = cmd_dump_read(name, ret, err);
    *truncated = rc == Q4X_E_TRUNCATED;
    if (!*truncated) return rc;
    fprintf(stderr, "%s: %s\n", c->name, err->msg);
    if (!*ret) *ret = bis_empty_dump(name);
    return *ret ? 0 : q4x_fail(err, Q4X_E_NOMEM, "out of memory");
}

static int all_dumps(const cmd_pair *p, bis_request *q, q4x_dump *dump[6], cmd_ctx *c, q4x_err *err) {
    const char *const control[4] = {p->floor_a, p->floor_b, p->null_a, p->null_b};
    int rc;
    TRY(read_arm(p->name[0], &dump[0], &q->truncated_a, c, err));
    TRY(read_arm(p->name[1], &dump[1], &q->truncated_b, c, err));
    for (int i = 0; i < 4; i++)
        if (control[i]) TRY(read_whole(control[i], &dump[2 + i], err));
    q->a = dump[0];
    q->b = dump[1];
    q->floor_a = dump[2];
    q->floor_b = dump[3];
    q->null_a = dump[4];
    q->null_b = dump[5];
done:
    return rc;
}

/* Did this session see that the device moves nothing under the levers of an arm? */
static int has_null(const bis_session *s, const bis_request *q) {
    json_t *a = bis_header_levers(q->a), *b = bis_header_levers(q->b);
    const int has = bis_session_has_null(s, bis_header_str(q->a, "model.fingerprint"),
                                         bis_header_str(q->a, "tool.kernels_hash"), a, b);
    json_decref(a);
    json_decref(b);
    return has;
}

int cmd_case_open(const cmd_pair *p, const bis_session *s, const char *command, cmd_ctx *c, cmd_case *k) {
    q4x_err err = {0};
    bis_request q = {.allow_confounded = p->allow_confounded, .session_null = p->session_null};
    *k = (cmd_case){.names = {p->name[0], p->name[1], p->floor_a, p->floor_b, command}};
    int rc = all_dumps(p, &q, k->dump, c, &err);
    if (!rc && s) q.session_null = has_null(s, &q);
    if (!rc) rc = bis_judge(&q, &k->c, &err);
    if (!rc) return CMD_OK;
    cmd_case_close(k);
    return cmd_fail(c, &err);
}

void cmd_case_close(cmd_case *k) {
    bis_case_free(k->c);
    for (int i = 0; i < 6; i++) q4x_dump_free(k->dump[i]);
    *k = (cmd_case){0};
}

static json_t *content(const q4x_dump *d) {
    char hex[33];
    q4x_hash_hex(&d->content, hex);
    return json_string(hex);
}

/* What came from a command line may hold any bytes; a journal holds text. */
static json_t *word(const char *s) {
    json_t *j = s ? json_string(s) : json_null();
    return j ? j : json_string("(not UTF-8)");
}

json_t *cmd_pair_entry(const cmd_pair *p, const cmd_case *k) {
    const bis_case *c = k->c;
    const int null = c->verdict == BIS_V_IDENTICAL && bis_header_is_device_pair(&c->header) && !c->pair->nexcluded &&
                     !c->pair->unaligned;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b, s:o, s:o, s:b, s:o, s:o, s:o, s:o}", "command",
                     word(k->names.command), "a", word(p->name[0]), "b", word(p->name[1]), "floor_a", word(p->floor_a),
                     "floor_b", word(p->floor_b), "null_a", word(p->null_a), "null_b", word(p->null_b),
                     "allow_confounded", p->allow_confounded, "session_null", c->header.device_null == BIS_NULL_SESSION,
                     "content_a", content(c->rq.a), "content_b", content(c->rq.b), "device_null", null, "fingerprint",
                     word(bis_header_str(c->rq.a, "model.fingerprint")), "kernels",
                     word(bis_header_str(c->rq.a, "tool.kernels_hash")), "levers", bis_header_levers(c->rq.a), "result",
                     bis_json(c, &k->names));
}

int cmd_pair_from_entry(const json_t *e, cmd_pair *ret, q4x_err *err) {
    cmd_pair p = {.operands = 2};
    p.name[0] = json_string_value(json_object_get(e, "a"));
    p.name[1] = json_string_value(json_object_get(e, "b"));
    if (!p.name[0] || !p.name[1])
        return q4x_fail(err, Q4X_E_FORMAT, "session: its last entry names no pair of dumps; compare them again");
    p.floor_a = json_string_value(json_object_get(e, "floor_a"));
    p.floor_b = json_string_value(json_object_get(e, "floor_b"));
    p.null_a = json_string_value(json_object_get(e, "null_a"));
    p.null_b = json_string_value(json_object_get(e, "null_b"));
    p.allow_confounded = json_is_true(json_object_get(e, "allow_confounded"));
    p.session_null = json_is_true(json_object_get(e, "session_null"));
    if (!p.null_b) p.null_a = NULL;
    *ret = p;
    return 0;
}

int cmd_case_unchanged(const cmd_case *k, const json_t *entry, q4x_err *err) {
    static const char *const key[2] = {"content_a", "content_b"};
    for (int i = 0; i < 2; i++) {
        char hex[33];
        const char *was = json_string_value(json_object_get(entry, key[i]));
        q4x_hash_hex(&k->dump[i]->content, hex);
        if (was && !strcmp(was, hex)) continue;
        return q4x_fail(
            err, Q4X_E_MISMATCH,
            "%.200s: content %s, the session was made from %s; the dump was written again: run bisect again",
            i ? k->names.b : k->names.a, hex, was ? was : "(none)");
    }
    return 0;
}
