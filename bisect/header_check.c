/* header_check.c: does what a dump says of itself agree with itself? An arm is described three times over: as it was
 * typed, as levers, and node by node. Who edits one of them makes the judge look for a fault where none is, or none
 * where one is. Only dumps of ours are held to it: others need not describe nodes by our words. */
#include <stdio.h>
#include <string.h>

#include "bisect/header.h"

static int device_contradicts(const q4x_dump *d, char *where, size_t size) {
    const char *dev = bis_header_str(d, "arm.device"), *spec = bis_header_str(d, "arm.spec");
    const size_t n = spec ? strcspn(spec, "/:") : 0;
    if (!dev || !n || (strlen(dev) == n && !strncmp(dev, spec, n))) return 0;
    snprintf(where, size, "arm.device: expected %.*s as arm.spec has it, found %.40s", (int)(n < 40 ? n : 40), spec,
             dev);
    return 1;
}

/* Words such as "act=bf16 gdn=chunk64" of one node, of an arm whose levers hold everywhere. */
static int words_contradict(const json_t *levers, const q4x_dump_node *k, char *where, size_t size) {
    enum { CUT = 150 }; /* longer texts may have lost the end of their last word */
    char name[64], value[64];
    for (const char *w = k->levers; w && *w; w += strcspn(w, " "), w += *w == ' ') {
        const size_t n = strcspn(w, " "), eq = strcspn(w, "=");
        if (eq >= n || eq >= sizeof name || n - eq > sizeof value || (!w[n] && strlen(k->levers) > CUT)) continue;
        snprintf(name, sizeof name, "%.*s", (int)eq, w);
        snprintf(value, sizeof value, "%.*s", (int)(n - eq - 1), w + eq + 1);
        const char *said = json_string_value(json_object_get(levers, name));
        if (!said || !strcmp(said, value)) continue;
        snprintf(where, size, "arm.levers.%.32s: expected %.32s as node %.60s has it, found %.32s", name, value,
                 k->name, said);
        return 1;
    }
    return 0;
}

int bis_header_contradicts(const q4x_dump *d, char *where, size_t size) {
    if (!bis_header_str(d, "tool.kernels_hash")) return 0;
    if (device_contradicts(d, where, size)) return 1;
    if (json_array_size(bis_header_get(d, "arm.scoped"))) return 0; /* nodes may differ from the rest of the arm */
    for (int32_t n = 0; n < d->nnodes; n++)
        if (words_contradict(bis_header_get(d, "arm.levers"), &d->nodes[n], where, size)) return 1;
    return 0;
}

int bis_header_prompt_contradicts(const q4x_dump *d, char *where, size_t size) {
    const json_t *ids = bis_header_get(d, "prompt.ids");
    if (!json_is_array(ids) || d->nforwards < 1) return 0;
    const q4x_forward *f = &d->forwards[0];
    if (json_array_size(ids) != (size_t)f->n_ids) {
        snprintf(where, size, "prompt.ids: expected the %d ids of forward 0, found %zu", f->n_ids,
                 json_array_size(ids));
        return 1;
    }
    for (int32_t i = 0; i < f->n_ids; i++) {
        const json_t *id = json_array_get(ids, (size_t)i);
        if (json_is_integer(id) && json_integer_value(id) == f->ids[i]) continue;
        snprintf(where, size, "prompt.ids[%d]: expected %d as forward 0 has it, found %lld", i, f->ids[i],
                 (long long)json_integer_value(id));
        return 1;
    }
    return 0;
}
