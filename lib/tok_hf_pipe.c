/* tok_hf_pipe.c: the steps that tokenizer.json puts around its BPE. Byte-level BPE needs few of them; any other is
 * refused by its name, because leaving it out would give other ids.
 */
#include <string.h>

#include "lib/tok_int.h"

/* What a ByteLevel step cuts by when it is asked to. */
static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

typedef struct {
    q4x_pre_stage stage[Q4X_PRE_MAX_STAGES];
    int n, prefix_space, nlast; /* nlast: stages of the ByteLevel step */
    int byte_level;             /* 1: it was there, nothing may follow */
} pre;

static const char *type_of(const json_t *step) {
    const char *s = json_string_value(json_object_get(step, "type"));
    return s ? s : json_is_null(step) ? "none" : "a step without a type";
}

static int refuse(const char *field, const json_t *step, const char *expected, q4x_err *err) {
    return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: expected %s, found %.60s, which is not supported; give --ids", field,
                    expected, type_of(step));
}

/* A step of the one type that is expected, none, or a sequence (its array under `list`) of such. *ret counts them. */
static int only(const char *field, const char *list, const json_t *step, const char *type, int *ret, q4x_err *err) {
    size_t i;
    json_t *v;
    if (!step || json_is_null(step)) return 0;
    if (!strcmp(type_of(step), type)) {
        ++*ret;
        return 0;
    }
    const json_t *array = strcmp(type_of(step), "Sequence") ? NULL : json_object_get(step, list);
    if (!json_is_array(array)) return refuse(field, step, type, err);
    json_array_foreach((json_t *)(uintptr_t)array, i, v) {
        int rc = only(field, list, v, type, ret, err);
        if (rc) return rc;
    }
    return 0;
}

/* ---- pre_tokenizer ---- */

static int option(const json_t *step, const char *key, int absent, int *ret, q4x_err *err) {
    const json_t *v = json_object_get(step, key);
    if (v && !json_is_boolean(v))
        return q4x_fail(err, Q4X_E_FORMAT, "pre_tokenizer: %s: %s: expected true or false", type_of(step), key);
    *ret = v ? json_is_true(v) : absent;
    return 0;
}

static int push(pre *p, const char *pattern, int literal, q4x_err *err) {
    if (p->n == Q4X_PRE_MAX_STAGES)
        return q4x_fail(err, Q4X_E_FORMAT, "pre_tokenizer: more than %d steps that cut", Q4X_PRE_MAX_STAGES);
    p->stage[p->n++] = (q4x_pre_stage){pattern, literal};
    return 0;
}

static int split(pre *p, const json_t *step, q4x_err *err) {
    int invert = 0;
    const json_t *pattern = json_object_get(step, "pattern");
    const char *behavior = json_string_value(json_object_get(step, "behavior"));
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *text = json_string_value(json_object_get(pattern, "String"));
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "pre_tokenizer: Split: behavior: expected Isolated, found %.40s, which is not supported; give "
                        "--ids",
                        behavior ? behavior : "none");
    int rc = option(step, "invert", 0, &invert, err);
    if (rc) return rc;
    if (invert) return q4x_fail(err, Q4X_E_UNSUPPORTED, "pre_tokenizer: Split: invert: true is not supported");
    if (!regex == !text)
        return q4x_fail(err, Q4X_E_FORMAT, "pre_tokenizer: Split: pattern: expected an object with Regex or String");
    return push(p, regex ? regex : text, !regex, err);
}

static int byte_level(pre *p, const json_t *step, q4x_err *err) {
    int regex = 1;
    int rc = option(step, "add_prefix_space", 1, &p->prefix_space, err);
    if (!rc) rc = option(step, "use_regex", 1, &regex, err);
    if (rc) return rc;
    p->byte_level = 1;
    p->nlast = regex;
    return regex ? push(p, gpt2, 0, err) : 0;
}

static int collect(pre *p, const json_t *step, q4x_err *err) {
    const char *type = type_of(step);
    size_t i;
    json_t *v;
    if (!strcmp(type, "Sequence") && json_is_array(json_object_get(step, "pretokenizers"))) {
        json_array_foreach(json_object_get(step, "pretokenizers"), i, v) {
            int rc = collect(p, v, err);
            if (rc) return rc;
        }
        return 0;
    }
    if (p->byte_level) return refuse("pre_tokenizer", step, "nothing behind ByteLevel", err);
    if (!strcmp(type, "Split")) return split(p, step, err);
    if (!strcmp(type, "ByteLevel")) return byte_level(p, step, err);
    return refuse("pre_tokenizer", step, "Split and ByteLevel", err);
}

/* ---- the whole ---- */

static int read_pre(q4x_tok *t, const json_t *step, q4x_err *err) {
    pre p = {0};
    int rc = collect(&p, step, err);
    if (rc) return rc;
    if (!p.byte_level)
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "pre_tokenizer: expected ByteLevel at its end, found none; give --ids");
    t->facts.pre = p.n == 1 && !p.nlast && !p.prefix_space && !p.stage[0].literal ? q4x_tok_pre_name(p.stage[0].pattern)
                                                                                  : "custom";
    t->facts.prefix_space = p.prefix_space;
    rc = q4x_pre_open(p.stage, p.n, p.prefix_space, p.nlast, &t->pre, err);
    q4x_err_prefix(rc ? err : NULL, "pre_tokenizer");
    return rc;
}

/* Padding to the longest of a batch does nothing to one text. */
static int check_sizes(const json_t *root, q4x_err *err) {
    const json_t *cut = json_object_get(root, "truncation"), *pad = json_object_get(root, "padding");
    const char *strategy = json_string_value(json_object_get(pad, "strategy"));
    if (cut && !json_is_null(cut))
        return q4x_fail(err, Q4X_E_UNSUPPORTED, "truncation: expected none, found one, which is not supported");
    if (pad && !json_is_null(pad) && (!strategy || strcmp(strategy, "BatchLongest") != 0))
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "padding: expected none or BatchLongest, found another, which is not supported");
    return 0;
}

int q4x_tok_read_pipeline(q4x_tok *t, const json_t *root, q4x_err *err) {
    int rc, n = 0;
    TRY(check_sizes(root, err));
    TRY(only("post_processor", "processors", json_object_get(root, "post_processor"), "ByteLevel", &n, err));
    TRY(only("decoder", "decoders", json_object_get(root, "decoder"), "ByteLevel", &n, err));
    n = 0;
    TRY(only("normalizer", "normalizers", json_object_get(root, "normalizer"), "NFC", &n, err));
    t->facts.nfc = n > 0;
    TRY(read_pre(t, json_object_get(root, "pre_tokenizer"), err));
done:
    return rc;
}
