#include "lib/arch.h"

#include <stdio.h>
#include <string.h>

#include "lib/io.h"
#include "lib/names.h"

const q4x_arch_names q4x_archs[Q4X_ARCH_COUNT] = {
#define ARCH(id, gguf, hf, doc) {gguf, hf},
#include "lib/archs.def"
#undef ARCH
};

/* "a b c" as "a or b or c". */
static void alternatives(const char *words, char *buf, size_t size) {
    size_t n = 0;
    for (; *words && n + 5 < size; words++) {
        if (*words == ' ')
            n += (size_t)snprintf(buf + n, size - n, " or ");
        else
            buf[n++] = *words;
    }
    buf[n] = 0;
}

int q4x_arch_expect(const q4x_model *m, q4x_arch_id id, q4x_err *err) {
    const int gguf = q4x_model_container(m) == Q4X_GGUF;
    const char *names = gguf ? q4x_archs[id].gguf : q4x_archs[id].hf, *have = q4x_model_arch(m);
    char want[128];
    if (q4x_word_in(names, have)) return 0;
    alternatives(names, want, sizeof want);
    return q4x_fail(err, Q4X_E_UNSUPPORTED, "%s: %s is '%.40s', expected %s", q4x_tail(q4x_model_path(m)),
                    gguf ? "general.architecture" : "model_type", have, want);
}
