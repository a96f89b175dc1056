/* cmd_version.c: what was built, from what, with which libraries and devices. */
#include <stdio.h>

#include "bin/cmd.h"
#include "kernels/dev.h"
#include "lib/dump.h"
#include "lib/machine.h"
#include "lib/version.h"

static json_t *devices(const k_dev_info *d) {
    json_t *a = json_array();
    for (int i = 0; i < d->count; i++) {
        k_dev_desc x;
        int code = k_dev_describe(i, &x);
        if (code)
            json_array_append_new(a, json_pack("{s:i}", "error", code));
        else
            json_array_append_new(a, json_pack("{s:s, s:[i,i], s:I, s:i}", "name", x.name, "capability", x.major,
                                               x.minor, "memory", (json_int_t)x.memory, "multiprocessors", x.sms));
    }
    return a;
}

static json_t *as_json(const k_dev_info *d) {
    const q4x_build_info *b = &q4x_build;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:b, s:b, s:i, s:i, s:o, s:{s:b, s:i, s:s, s:i, s:o}}", "version",
                     b->version, "commit", b->commit, "kernels_hash", b->kernels_hash, "compiler", b->compiler, "flags",
                     b->flags, "x86_64_v3", b->x86_64_v3, "openmp", b->openmp, "text", b->text, "dump_version",
                     Q4X_DUMP_VERSION, "vocabulary_version", Q4X_VOCABULARY_VERSION, "libraries", q4x_build_libraries(),
                     "cuda", "built", d->built, "error", d->error, "reason", d->reason, "driver", d->driver, "devices",
                     devices(d));
}

int cmd_version(int argc, char **argv, cmd_ctx *c) {
    static const struct argp argp = {0, 0, 0, "Print what was built, from what, and what it found here.", 0, 0, 0};
    cmd_parse(&argp, argc, argv, c, 1, NULL);
    k_dev_info d;
    k_dev_query(&d);
    if (c->json) return cmd_print_json(c, as_json(&d), 17);

    const q4x_build_info *b = &q4x_build;
    printf("q4x %s\ncommit     %s\nkernels    %s\ncompiler   %s\nflags      %s\n", b->version, b->commit,
           b->kernels_hash, b->compiler, b->flags);
    json_t *libs = q4x_build_libraries(), *v;
    const char *key, *sep = "";
    printf("libraries  ");
    json_object_foreach(libs, key, v) {
        printf("%s%s %s", sep, key, json_string_value(v));
        sep = ", ";
    }
    json_decref(libs);
    printf("\nformats    dump %d, tap names %d\nprocessors %d%s\n", Q4X_DUMP_VERSION, Q4X_VOCABULARY_VERSION,
           q4x_machine_cpus(), b->openmp ? "" : " (built without OpenMP: one is used)");
    if (!b->text) printf("text       no text prompts: built without PCRE2 and utf8proc\n");
    if (!d.count) {
        printf("cuda       no GPU: %s", d.reason);
        if (d.error) printf(" (error %d)", d.error);
        putchar('\n');
    }
    for (int i = 0; i < d.count; i++) {
        k_dev_desc x;
        if (k_dev_describe(i, &x))
            printf("cuda       device %d: does not answer\n", i);
        else
            printf("cuda       device %d: %s, %.1f GiB, sm_%d%d\n", i, x.name, (double)x.memory / 1073741824.0, x.major,
                   x.minor);
    }
    return CMD_OK;
}
