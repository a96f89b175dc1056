#include "bisect/header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "bisect/fmt.h"
#include "lib/lever.h"

enum { SHOWN = 160 };

const json_t *bis_header_get(const q4x_dump *d, const char *dotted) {
    const json_t *j = d->header;
    char part[64];
    while (j && *dotted) {
        size_t n = strcspn(dotted, ".");
        if (n >= sizeof part) return NULL;
        memcpy(part, dotted, n);
        part[n] = 0;
        j = json_object_get(j, part);
        dotted += n + (dotted[n] == '.');
    }
    return j;
}

const char *bis_header_str(const q4x_dump *d, const char *dotted) {
    const json_t *j = bis_header_get(d, dotted);
    return json_is_string(j) ? json_string_value(j) : NULL;
}

/* ---- building the lists ---- */

typedef struct {
    bis_header *h;
    const q4x_dump *a, *b;
    int nomem;
} walk;

/* Compact text of a value; malloc'd, printable ASCII. */
static char *show(const json_t *j) {
    if (!j) return strdup("(absent)");
    char *t = json_is_string(j) ? strdup(json_string_value(j))
                                : json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (!t) return NULL;
    if (strlen(t) > SHOWN) memcpy(t + SHOWN - 3, "...", 4);
    bis_clean(t);
    if (*t) return t;
    free(t);
    return strdup("(none)");
}

static void add_diff(walk *w, const char *key, const json_t *a, const json_t *b, bis_hclass cls) {
    bis_header *h = w->h;
    bis_hdiff *v = realloc(h->diff, sizeof *v * (size_t)(h->ndiff + 1));
    if (!v) {
        w->nomem = 1;
        return;
    }
    h->diff = v;
    v += h->ndiff++;
    *v = (bis_hdiff){strdup(key), show(a), show(b), cls};
    if (!v->key || !v->a || !v->b) w->nomem = 1;
}

static void add_lever(walk *w, const char *name, const char *a, const char *b) {
    bis_header *h = w->h;
    bis_lever *v = realloc(h->lever, sizeof *v * (size_t)(h->nlever + 1));
    if (!v) {
        w->nomem = 1;
        return;
    }
    h->lever = v;
    v += h->nlever++;
    *v = (bis_lever){strdup(name), strdup(a), strdup(b)};
    if (!v->name || !v->a || !v->b) w->nomem = 1;
}

static void add_lever_json(walk *w, const char *name, const json_t *a, const json_t *b) {
    char *x = show(a), *y = show(b);
    if (x && y)
        add_lever(w, name, x, y);
    else
        w->nomem = 1;
    free(x);
    free(y);
}

static int starts(const char *s, const char *with) {
    return !strncmp(s, with, strlen(with));
}

/* Class of a field by its dotted name. */
static bis_hclass class_of(const walk *w, const char *key) {
    static const char *const fatal[] = {"model.fingerprint", "prompt.ids", "vocabulary_version"};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++)
        if (!strcmp(key, fatal[i])) return BIS_H_FATAL;
    if (!strcmp(key, "arm.device") || !strcmp(key, "arm.profile") || starts(key, "arm.levers") ||
        !strcmp(key, "arm.scoped"))
        return BIS_H_LEVER;
    if (!strcmp(key, "tool.kernels_hash") || !strcmp(key, "tool.compiler") || !strcmp(key, "tool.flags"))
        return BIS_H_LEVER;
    if (!strcmp(key, "tool.commit")) return w->h->same_kernels ? BIS_H_FREE : BIS_H_LEVER;
    return BIS_H_FREE;
}

static void diff_value(walk *w, const char *key, const json_t *a, const json_t *b);

static void diff_object(walk *w, const char *prefix, const json_t *a, const json_t *b) {
    const char *k;
    json_t *v;
    char key[192];
    /* jansson's iterators take non-const, and do not write */
    json_object_foreach((json_t *)(uintptr_t)a, k, v) {
        snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", k);
        diff_value(w, key, v, json_object_get(b, k));
    }
    json_object_foreach((json_t *)(uintptr_t)b, k, v) {
        if (json_object_get(a, k)) continue;
        snprintf(key, sizeof key, "%s%s%s", prefix, *prefix ? "." : "", k);
        diff_value(w, key, NULL, v);
    }
}

static void diff_value(walk *w, const char *key, const json_t *a, const json_t *b) {
    if (json_is_object(a) && json_is_object(b)) {
        diff_object(w, key, a, b);
    } else if (!json_equal(a, b)) {
        add_diff(w, key, a, b, class_of(w, key));
    }
}

/* ---- levers ---- */

/* 1 when the arm's own words set lever `name` themselves, beside a profile. */
static int spelled(const q4x_dump *d, const char *name) {
    const char *s = bis_header_str(d, "arm.spec");
    s = s ? strchr(s, ':') : NULL;
    size_t n = strlen(name);
    for (; s && *s; s = strchr(s + 1, ','))
        if (!strncmp(s + 1, name, n) && s[1 + n] == '=') return 1;
    return 0;
}

/* 1 when v is the lever's default: what a dump of ours had that is older than the lever. */
static int is_default(const char *name, const json_t *v) {
    char word[64];
    for (int i = 0; i < q4x_nlevers; i++)
        if (!strcmp(q4x_levers[i].name, name) && json_is_string(v))
            return !strcmp(json_string_value(v), q4x_lever_value(&q4x_levers[i], 0, word, sizeof word));
    return 0;
}

static void diff_levers(walk *w) {
    const json_t *a = bis_header_get(w->a, "arm.levers"), *b = bis_header_get(w->b, "arm.levers");
    const json_t *pa = bis_header_get(w->a, "arm.profile"), *pb = bis_header_get(w->b, "arm.profile");
    int profile = pa && pb && !json_equal(pa, pb), moved = 0;
    const char *k;
    json_t *v;
    if (!a || !b) return; /* unknown provenance */
    json_object_foreach((json_t *)(uintptr_t)a, k, v) {
        const json_t *o = json_object_get(b, k);
        if (json_equal(v, o) || (!o && !w->h->imported_b && is_default(k, v))) continue;
        if (profile && !spelled(w->a, k) && !spelled(w->b, k))
            moved++; /* the profile's doing */
        else
            add_lever_json(w, k, v, o);
    }
    json_object_foreach((json_t *)(uintptr_t)b, k, v) {
        if (json_object_get(a, k) || (!w->h->imported_a && is_default(k, v))) continue;
        add_lever_json(w, k, NULL, v);
    }
    /* profiles that set the same levers are names for one thing */
    if (moved) add_lever_json(w, "profile", pa, pb);
}

/* "act=bf16@L03.*#2" is lever act at L03.*#2 with value bf16. */
static void scoped_name(const char *item, char *buf, size_t size) {
    size_t eq = strcspn(item, "="), at = strcspn(item, "@");
    snprintf(buf, size, "%.*s%s", (int)(eq < at ? eq : at), item, item + at);
}

static const char *scoped_value(const char *item, char *buf, size_t size) {
    size_t eq = strcspn(item, "="), at = strcspn(item, "@");
    snprintf(buf, size, "%.*s", eq < at ? (int)(at - eq - 1) : 0, eq < at ? item + eq + 1 : "");
    return buf;
}

static const char *scoped_item(const json_t *list, size_t i) {
    const char *s = json_string_value(json_array_get(list, i));
    return s ? s : "?";
}

/* Last item of the list with this scoped name (later items win), or NULL. */
static const char *scoped_find(const json_t *list, const char *name) {
    char other[160];
    for (size_t i = json_array_size(list); i-- > 0;) {
        scoped_name(scoped_item(list, i), other, sizeof other);
        if (!strcmp(other, name)) return scoped_item(list, i);
    }
    return NULL;
}

/* Names in `from` whose value the other list does not share; those it lacks only, when lacking_only. */
static void diff_scoped_list(walk *w, const json_t *from, const json_t *to, int swapped) {
    char name[160], va[160], vb[160];
    for (size_t i = 0; i < json_array_size(from); i++) {
        const char *item = scoped_item(from, i);
        scoped_name(item, name, sizeof name);
        if (scoped_find(from, name) != item) continue;
        const char *other = scoped_find(to, name);
        if (other && (swapped || !strcmp(item, other))) continue;
        const char *x = scoped_value(item, va, sizeof va), *y = other ? scoped_value(other, vb, sizeof vb) : "(absent)";
        add_lever(w, name, swapped ? y : x, swapped ? x : y);
    }
}

static void diff_scoped(walk *w) {
    const json_t *a = bis_header_get(w->a, "arm.scoped"), *b = bis_header_get(w->b, "arm.scoped");
    diff_scoped_list(w, a, b, 0);
    diff_scoped_list(w, b, a, 1);
}

static void diff_build(walk *w) {
    static const char *const key[] = {"tool.kernels_hash", "tool.compiler", "tool.flags"};
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        const json_t *a = bis_header_get(w->a, key[i]), *b = bis_header_get(w->b, key[i]);
        if ((!a && !b) || json_equal(a, b)) continue;
        if (i == 0) { /* the commits say more than the hashes, where they differ */
            const json_t *ca = bis_header_get(w->a, "tool.commit"), *cb = bis_header_get(w->b, "tool.commit");
            if (ca && cb && !json_equal(ca, cb)) a = ca, b = cb;
        }
        add_lever_json(w, "build", a, b);
        return;
    }
}

static void diff_device(walk *w) {
    const json_t *a = bis_header_get(w->a, "arm.device"), *b = bis_header_get(w->b, "arm.device");
    w->h->device_differs = a && b && !json_equal(a, b); /* one that is absent is unknown provenance, not a difference */
    if (!w->h->device_differs) w->h->device_null = BIS_NULL_NONE;
    if (w->h->device_differs && w->h->device_null == BIS_NULL_NONE) add_lever_json(w, "device", a, b);
}

/* ---- what ends the comparison here ---- */

static int contains(const char *s, const char *word) {
    size_t n = strlen(word);
    for (; s && *s; s++)
        if (!strncasecmp(s, word, n)) return 1;
    return 0;
}

/* A label that names the one device while the header records the other: probably transposed arms (R2). */
static int label_lies(const q4x_dump *d) {
    const char *label = bis_header_str(d, "arm.label"), *dev = bis_header_str(d, "arm.device");
    if (!label || !dev) return 0;
    int cpu = contains(label, "cpu"), cuda = contains(label, "cuda") || contains(label, "gpu");
    return (!strcmp(dev, "cuda") && cpu && !cuda) || (!strcmp(dev, "cpu") && cuda && !cpu);
}

static int declares(const q4x_dump *d) {
    return bis_header_str(d, "model.fingerprint") && bis_header_str(d, "arm.device") &&
           json_is_object(bis_header_get(d, "arm.levers"));
}

static void say(bis_header *h, bis_reason r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void say(bis_header *h, bis_reason r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(h->where, sizeof h->where, fmt, ap);
    va_end(ap);
    h->fatal = r;
}

static void judge(walk *w, int allow_confounded) {
    bis_header *h = w->h;
    static const struct {
        const char *key;
        bis_reason r;
    } fatal[] = {{"model.fingerprint", BIS_R_model_differs},
                 {"prompt.ids", BIS_R_prompt_differs},
                 {"vocabulary_version", BIS_R_vocabulary_differs}};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
        const json_t *a = bis_header_get(w->a, fatal[i].key), *b = bis_header_get(w->b, fatal[i].key);
        if (!a || !b || json_equal(a, b)) continue; /* one that is absent is unknown provenance */
        char *x = show(a), *y = show(b);
        say(h, fatal[i].r, "%s: %.90s | %.90s", fatal[i].key, x ? x : "?", y ? y : "?");
        free(x);
        free(y);
        return;
    }
    for (int arm = 0; arm < 2; arm++) {
        char what[200];
        if (!bis_header_contradicts(arm ? w->b : w->a, what, sizeof what)) continue;
        say(h, BIS_R_header_inconsistent, "arm %c: %s", 'A' + arm, what);
        return;
    }
    const q4x_dump *lie = label_lies(w->a) ? w->a : label_lies(w->b) ? w->b : NULL;
    if (lie)
        say(h, BIS_R_label_contradicts_device, "label %.80s, device %.40s", bis_header_str(lie, "arm.label"),
            bis_header_str(lie, "arm.device"));
    else if (allow_confounded)
        ;
    else if (h->unknown) /* whoever wrote it: nobody knows that the models are one, or what an arm claims */
        say(h, BIS_R_unknown_provenance, "arm %s", declares(w->a) ? "B" : "A");
    else if ((h->imported_a || h->imported_b) && h->nlever > 1)
        say(h, BIS_R_confounded_import, "%d declared differences", h->nlever);
}

int bis_header_diff(const q4x_dump *a, const q4x_dump *b, bis_null device_null, int allow_confounded, bis_header *ret,
                    q4x_err *err) {
    bis_header h = {.device_null = device_null};
    walk w = {.h = &h, .a = a, .b = b};
    const char *ka = bis_header_str(a, "tool.kernels_hash"), *kb = bis_header_str(b, "tool.kernels_hash");
    h.same_kernels = ka && kb && !strcmp(ka, kb);
    h.imported_a = !ka;
    h.imported_b = !kb;
    h.unknown = !declares(a) || !declares(b);
    diff_object(&w, "", a->header, b->header);
    diff_device(&w);
    diff_levers(&w);
    diff_scoped(&w);
    diff_build(&w);
    judge(&w, allow_confounded);
    if (w.nomem) {
        bis_header_free(&h);
        return q4x_fail(err, Q4X_E_NOMEM, "out of memory for the differences of two headers");
    }
    *ret = h;
    return 0;
}

void bis_header_free(bis_header *h) {
    for (int32_t i = 0; i < h->ndiff; i++) {
        free(h->diff[i].key);
        free(h->diff[i].a);
        free(h->diff[i].b);
    }
    for (int32_t i = 0; i < h->nlever; i++) {
        free(h->lever[i].name);
        free(h->lever[i].a);
        free(h->lever[i].b);
    }
    free(h->diff);
    free(h->lever);
    *h = (bis_header){0};
}

/* ---- claims ---- */

/* A forward-bound item of one list alone ("gdn=chunk64@L03.*#2") that reaches this node in this forward. */
static int lone_item_reaches(const json_t *from, const json_t *to, const char *node, int32_t forward) {
    for (size_t i = 0; i < json_array_size(from); i++) {
        const char *item = scoped_item(from, i), *at = strchr(item, '@'), *hash = strrchr(item, '#');
        char glob[96], name[160];
        if (starts(item, "plant=") || !at || !hash || hash < at || atoi(hash + 1) != forward) continue;
        scoped_name(item, name, sizeof name);
        const char *other = scoped_find(to, name);
        if (other && !strcmp(item, other)) continue;
        snprintf(glob, sizeof glob, "%.*s", (int)(hash - at - 1), at + 1);
        if (q4x_node_match(glob, node)) return 1;
    }
    return 0;
}

int bis_header_claims(const bis_header *h, const q4x_dump *a, const q4x_dump *b, int32_t node_a, int32_t node_b,
                      int32_t forward) {
    const q4x_dump_node *x = &a->nodes[node_a], *y = &b->nodes[node_b];
    if (!h->same_kernels || !x->levers || !y->levers || !x->op || !y->op) return 0;
    if (strcmp(x->levers, y->levers) || strcmp(x->op, y->op)) return 0;
    const json_t *sa = bis_header_get(a, "arm.scoped"), *sb = bis_header_get(b, "arm.scoped");
    return !lone_item_reaches(sa, sb, x->name, forward) && !lone_item_reaches(sb, sa, x->name, forward);
}

int bis_header_is_device_pair(const bis_header *h) {
    return h->fatal == BIS_R_none && !h->unknown && h->same_kernels && h->device_differs &&
           h->nlever == (h->device_null == BIS_NULL_NONE);
}

json_t *bis_header_levers(const q4x_dump *d) {
    return json_pack("{s:O?, s:O?}", "levers", bis_header_get(d, "arm.levers"), "scoped",
                     bis_header_get(d, "arm.scoped"));
}

int bis_header_same_levers(const q4x_dump *a, const q4x_dump *b) {
    json_t *x = bis_header_levers(a), *y = bis_header_levers(b);
    const int same = x && y && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

bis_recording bis_header_recording(const q4x_dump *a, const q4x_dump *b) {
    const char *ra = bis_header_str(a, "free.recording"), *rb = bis_header_str(b, "free.recording");
    const json_t *fa = bis_header_get(a, "free"), *fb = bis_header_get(b, "free");
    if (a->path && b->path && !strcmp(a->path, b->path)) return BIS_SAME_RECORDING;
    if (ra && rb && *ra && *rb) return strcmp(ra, rb) ? BIS_OTHER_RECORDING : BIS_SAME_RECORDING;
    if (!fa != !fb || (fa && !json_equal(fa, fb))) return BIS_OTHER_RECORDING;
    if (bis_header_get(a, "free.time")) return BIS_SAME_RECORDING;
    return json_equal(a->header, b->header) && q4x_hash_eq(&a->content, &b->content) ? BIS_UNTOLD : BIS_OTHER_RECORDING;
}

const char *bis_header_other_arm(const bis_header *h) {
    if (h->fatal != BIS_R_none) return h->where;
    if (h->device_differs) return "device";
    return h->nlever ? h->lever[0].name : NULL;
}
