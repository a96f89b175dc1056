#include "lib/lever.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/names.h"

#define PLANT(name, ops, on_ids, first, doc) "|" name
static const char plants[] = "off"
#include "lib/plants.def"
    ;
#undef PLANT

const q4x_lever q4x_levers[] = {
#define LEVER(field, name, values, kind, ops, doc) {name, values, kind, ops, doc, offsetof(k_levers, field)},
#include "kernels/levers.def"
#undef LEVER
    {"plant", plants, "plant", "*", "a fault in the run, at one node: KIND@NODE[#FORWARD]; off: none, of those before",
     (size_t)-1},
};
const int q4x_nlevers = (int)(sizeof q4x_levers / sizeof *q4x_levers);

const q4x_profile q4x_profiles[] = {
#define PROFILE(name, items, doc, proof) {name, items, doc, proof},
#include "lib/profiles.def"
#undef PROFILE
};
const int q4x_nprofiles = (int)(sizeof q4x_profiles / sizeof *q4x_profiles);

/* Index of word in "a|b|c", -1: none. */
static int32_t word_index(const char *words, const char *word, size_t len) {
    int32_t i = 0;
    for (const char *p = words;; i++) {
        size_t n = strcspn(p, "|");
        if (n == len && !memcmp(p, word, n)) return i;
        if (!p[n]) return -1;
        p += n + 1;
    }
}

int q4x_lever_range(const q4x_lever *l, double *lo, double *hi) {
    const char *bar = strchr(l->values, '|'), *dots = bar ? strstr(bar, "..") : NULL;
    if (!dots) return 0;
    *lo = strtod(bar + 1, NULL);
    *hi = strtod(dots + 2, NULL);
    return 1;
}

/* A decimal number in lo .. hi to the bits of its f32, which is 0 only for 0. */
static int read_number(const char *word, size_t len, double lo, double hi, int32_t *ret) {
    char text[40], *end;
    if (!len || len >= sizeof text || strspn(word, "0123456789.eE+-") < len) return -1;
    memcpy(text, word, len);
    text[len] = 0;
    const double v = strtod(text, &end);
    if (*end || !(v >= lo && v <= hi)) return -1;
    float f = (float)v;
    if (f == 0.0f && strcspn(text, "123456789") < strcspn(text, "eE")) return -1; /* lost, perhaps in v already */
    if (f == 0.0f) f = -0.0f;
    memcpy(ret, &f, sizeof *ret);
    return 0;
}

/* Index of a word, or the bits of a number. */
static int read_value(const q4x_lever *l, const char *word, size_t len, int32_t *ret, q4x_err *err) {
    double lo = 0, hi = 0;
    const int number = q4x_lever_range(l, &lo, &hi);
    *ret = word_index(l->values, word, len);
    if (number ? *ret == 0 : *ret >= 0) return 0;
    if (number && !read_number(word, len, lo, hi, ret)) return 0;
    return q4x_fail(err, Q4X_E_ARG, "lever %s: value '%.*s', expected one of %s%s", l->name, (int)(len < 40 ? len : 40),
                    word, l->values, number ? ", a decimal number that f32 holds" : "");
}

void q4x_arm_default(q4x_arm *a) {
    memset(a, 0, sizeof *a);
    strcpy(a->spec, "cpu");
    strcpy(a->label, "cpu");
}

/* "GLOB[#F]" into it. */
static int parse_scope(const char *scope, q4x_item *it, q4x_err *err) {
    const char *hash = strchr(scope, '#');
    size_t n = hash ? (size_t)(hash - scope) : strlen(scope);
    if (!n || n >= sizeof it->glob)
        return q4x_fail(err, Q4X_E_ARG, "lever scope '%s': expected a node glob of 1 to %zu characters after '@'",
                        scope, sizeof it->glob - 1);
    memcpy(it->glob, scope, n);
    it->glob[n] = 0;
    it->forward = -1;
    if (hash) {
        char *end;
        long f = isdigit((unsigned char)hash[1]) ? strtol(hash + 1, &end, 10) : -1;
        if (f < 0 || *end || f > INT32_MAX)
            return q4x_fail(err, Q4X_E_ARG, "lever scope '%s': expected a forward number after '#'", scope);
        it->forward = (int32_t)f;
    }
    return 0;
}

static int find_lever(const char *item, const char *eq, int *ret, q4x_err *err) {
    for (int i = 0; i < q4x_nlevers; i++)
        if (strlen(q4x_levers[i].name) == (size_t)(eq - item) &&
            !memcmp(q4x_levers[i].name, item, (size_t)(eq - item))) {
            *ret = i;
            return 0;
        }
    return q4x_fail(err, Q4X_E_ARG, "lever '%.*s': no such lever; `q4x levers` lists them", (int)(eq - item), item);
}

static int apply_profile(q4x_arm *a, const char *name, q4x_err *err) {
    for (int i = 0; i < q4x_nprofiles; i++) {
        if (strcmp(q4x_profiles[i].name, name)) continue;
        if (a->profile[0]) /* the first one's levers would stay, under the second one's name */
            return q4x_fail(err, Q4X_E_ARG,
                            "profiles '%s' and '%s': expected one in an arm; set single levers beside it", a->profile,
                            name);
        snprintf(a->profile, sizeof a->profile, "%s", name);
        char item[160];
        for (const char *p = *q4x_profiles[i].items ? q4x_profiles[i].items : NULL;
             q4x_next_word(&p, item, sizeof item);) {
            int rc = q4x_arm_add(a, item, err);
            if (rc) return rc;
            a->item[a->nitems - 1].soft = 1;
        }
        return 0;
    }
    return q4x_fail(err, Q4X_E_ARG, "profile '%s': no such profile; `q4x levers` lists them", name);
}

int q4x_arm_add(q4x_arm *a, const char *item, q4x_err *err) {
    const char *eq = strchr(item, '=');
    if (!eq || eq == item) return q4x_fail(err, Q4X_E_ARG, "lever '%s': expected NAME=VALUE[@GLOB[#FORWARD]]", item);
    if (eq - item == 2 && !memcmp(item, "as", 2)) return apply_profile(a, eq + 1, err);
    int max = (int)(sizeof a->item / sizeof *a->item);
    if (a->nitems == max) return q4x_fail(err, Q4X_E_ARG, "arm: more than %d levers", max);

    q4x_item it = {.forward = -1};
    int rc = find_lever(item, eq, &it.lever, err);
    if (rc) return rc;
    const q4x_lever *l = &q4x_levers[it.lever];
    const char *at = strchr(eq + 1, '@');
    size_t n = at ? (size_t)(at - eq - 1) : strlen(eq + 1);
    if ((rc = read_value(l, eq + 1, n, &it.value, err))) return rc;
    if (at && (rc = parse_scope(at + 1, &it, err))) return rc;
    if (l->field == (size_t)-1 && it.value) {
        if (!at) return q4x_fail(err, Q4X_E_ARG, "lever plant: expected KIND@NODE[#FORWARD], found '%s'", eq + 1);
        snprintf(it.plant, sizeof it.plant, "%.*s", (int)n, eq + 1);
    }
    a->item[a->nitems++] = it;
    return 0;
}

static int parse_device(q4x_arm *a, const char *spec, const char **rest, q4x_err *err) {
    size_t n = strcspn(spec, "/:");
    if (n == 4 && !memcmp(spec, "cuda", 4))
        a->cuda = 1;
    else if (n != 3 || memcmp(spec, "cpu", 3))
        return q4x_fail(err, Q4X_E_ARG, "arm '%s': device '%.*s', expected cpu or cuda", spec, (int)n, spec);
    spec += n;
    if (*spec == '/') {
        char *end;
        long v = isdigit((unsigned char)spec[1]) ? strtol(spec + 1, &end, 10) : -1;
        if (v < 0 || v > 1024 || (*end && *end != ':') || (!a->cuda && v == 0))
            return q4x_fail(err, Q4X_E_ARG, "arm: '%s' after the device, expected %s", spec,
                            a->cuda ? "/ and a device number" : "/ and 1 to 1024 threads");
        *(a->cuda ? &a->device_index : &a->threads) = (int)v;
        spec = end;
    }
    *rest = spec;
    return 0;
}

int q4x_arm_parse(const char *spec, q4x_arm *ret, q4x_err *err) {
    q4x_arm a;
    q4x_arm_default(&a);
    if (strlen(spec) >= sizeof a.spec)
        return q4x_fail(err, Q4X_E_ARG, "arm: specification of %zu characters, at most %zu", strlen(spec),
                        sizeof a.spec - 1);
    strcpy(a.spec, spec);
    snprintf(a.label, sizeof a.label, "%.*s", (int)sizeof a.label - 1, spec);
    const char *rest = "";
    int rc = parse_device(&a, spec, &rest, err);
    if (rc) return rc;
    if (*rest == ':') {
        char item[sizeof a.spec];
        for (const char *p = rest + 1; q4x_next_word(&p, item, sizeof item);) {
            if (!*item)
                return q4x_fail(err, Q4X_E_ARG, "arm '%s': a lever is empty, expected NAME=VALUE[@GLOB[#FORWARD]]",
                                spec);
            if ((rc = q4x_arm_add(&a, item, err))) return rc;
        }
    }
    *ret = a;
    return 0;
}

int q4x_node_match(const char *glob, const char *node) {
    if (!fnmatch(glob, node, 0)) return 1;
    if (node[0] != 'L' || !isdigit((unsigned char)node[1])) return 0;
    const char *dot = strchr(node, '.');
    return dot && !fnmatch(glob, dot + 1, 0);
}

static int item_applies(const q4x_item *it, const char *node, int32_t forward) {
    if (it->forward >= 0 && it->forward != forward) return 0;
    return !it->glob[0] || q4x_node_match(it->glob, node);
}

int q4x_arm_check_forwards(const q4x_arm *a, int32_t n, q4x_err *err) {
    for (int i = 0; i < a->nitems; i++) {
        if (a->item[i].forward < n) continue;
        char text[128];
        q4x_item_text(&a->item[i], text, sizeof text);
        return q4x_fail(err, Q4X_E_ARG,
                        "lever %s: forward %d never comes, the run makes %d (0 to %d); more ids (-n) make more", text,
                        a->item[i].forward, n, n - 1);
    }
    return 0;
}

void q4x_item_text(const q4x_item *it, char *buf, size_t size) {
    const q4x_lever *l = &q4x_levers[it->lever];
    char value[32], forward[16] = "";
    if (it->forward >= 0) snprintf(forward, sizeof forward, "#%d", it->forward);
    snprintf(buf, size, "%s=%s%s%s%s", l->name, q4x_lever_value(l, it->value, value, sizeof value),
             it->glob[0] ? "@" : "", it->glob, forward);
}

int q4x_item_library(const q4x_item *it) {
    return it->value && !strcmp(q4x_levers[it->lever].kind, "library");
}

void q4x_arm_resolve(const q4x_arm *a, const char *node, int32_t forward, k_levers *ret) {
    q4x_arm_resolve_without(a, -1, node, forward, ret);
}

void q4x_arm_resolve_without(const q4x_arm *a, int without, const char *node, int32_t forward, k_levers *ret) {
    const q4x_item *skip = without < 0 ? NULL : &a->item[without];
    memset(ret, 0, sizeof *ret); /* the first value of every lever is its default */
    for (const q4x_item *it = a->item; it < a->item + a->nitems; it++) {
        const q4x_lever *l = &q4x_levers[it->lever];
        if (it == skip || l->field == (size_t)-1 || !item_applies(it, node, forward)) continue;
        memcpy((char *)ret + l->field, &it->value, sizeof(int32_t));
    }
}

const char *q4x_arm_plant(const q4x_arm *a, const char *node, int32_t forward) {
    const char *kind = NULL;
    for (const q4x_item *it = a->item; it < a->item + a->nitems; it++)
        if (q4x_levers[it->lever].field == (size_t)-1 && item_applies(it, node, forward))
            kind = it->plant[0] ? it->plant : NULL;
    return kind;
}

int q4x_lever_scope(const q4x_lever *l, const char *op) {
    return !strcmp(l->ops, "*") || q4x_word_in(l->ops, op);
}

/* The fewest digits that read back as the same f32. */
static const char *number_text(int32_t bits, char *buf, size_t size) {
    float f, back = -1.0f;
    memcpy(&f, &bits, sizeof f);
    f = f == 0.0f ? 0.0f : f;
    for (int digits = 1; digits <= 9 && back != f; digits++) {
        snprintf(buf, size, "%.*g", digits, (double)f);
        back = (float)strtod(buf, NULL);
    }
    return buf;
}

const char *q4x_lever_value(const q4x_lever *l, int32_t v, char *buf, size_t size) {
    double lo, hi;
    if (v && q4x_lever_range(l, &lo, &hi)) return number_text(v, buf, size);
    const char *p = l->values;
    for (; v > 0 && *p; v--) {
        p += strcspn(p, "|");
        if (*p) p++;
    }
    snprintf(buf, size, "%.*s", (int)strcspn(p, "|"), p);
    return buf;
}

void q4x_lever_words(const k_levers *lv, const char *op, char *buf, size_t size) {
    size_t n = 0;
    buf[0] = 0;
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        int32_t v = 0;
        if (l->field == (size_t)-1 || !q4x_lever_scope(l, op)) continue;
        memcpy(&v, (const char *)lv + l->field, sizeof v);
        if (!v) continue;
        char word[32];
        int k = snprintf(buf + n, size - n, "%s%s=%s", n ? " " : "", l->name, q4x_lever_value(l, v, word, sizeof word));
        if (k < 0 || (size_t)k >= size - n) return;
        n += (size_t)k;
    }
}
