/* t_moe_file.c: the recorded mixture-of-experts block (h_moe.h) is what it says it is, or is refused; and what is
 * tracked of it is the whole recorded file, where that is at hand.
 *
 * t_moe_file reduce FROM TO: writes tests/golden/moe-block/moe-golden.safetensors anew from the whole file's folder.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/io.h"
#include "tests/h_moe.h"

#define FIXTURE "tests/golden/moe-block"
#define WHOLE "../shared/golden/moe-block"

static h_moe M;
static q4x_map CONFIG = {.fd = -1}, FILE_ = {.fd = -1};

static int open_block(void **state) {
    (void)state;
    q4x_err err = {0};
    if (!q4x_map_open(FIXTURE "/frozen_config.json", &CONFIG, &err) &&
        !q4x_map_open(FIXTURE "/moe-golden.safetensors", &FILE_, &err) &&
        !h_moe_read(CONFIG.data, CONFIG.size, FILE_.data, FILE_.size, &M, &err))
        return 0;
    print_error("%s\n", err.msg);
    return -1;
}

static int close_block(void **state) {
    (void)state;
    h_moe_free(&M);
    q4x_map_close(&CONFIG);
    q4x_map_close(&FILE_);
    return 0;
}

static uint8_t *copy_of(const q4x_map *f) {
    uint8_t *p = malloc((size_t)f->size);
    assert_non_null(p);
    memcpy(p, f->data, (size_t)f->size);
    return p;
}

/* One change of a byte sequence in a copy of the files must be refused, with these words. */
static void refused(int in_config, const char *from, const char *to, const char *why) {
    q4x_err err = {0};
    h_moe m;
    uint8_t *config = copy_of(&CONFIG), *st = copy_of(&FILE_);
    uint8_t *at = in_config ? memmem(config, CONFIG.size, from, strlen(from))
                            : memmem(st, (size_t)M.st->data_off, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    if (!h_moe_read(config, CONFIG.size, st, FILE_.size, &m, &err)) fail_msg("'%s' for '%s' was accepted", to, from);
    if (!strstr(err.msg, why)) fail_msg("'%s' for '%s': %s", to, from, err.msg);
    free(config);
    free(st);
}

static void provenance(void **state) {
    (void)state;
    refused(1, "\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act: expected silu");
    refused(1, "\"model_type\": \"qwen4", "\"model_type\": \"qwen5", "model_type: expected qwen4_exp_text");
    refused(1, "\n \"hidden_act\"", "\n\t\"hidden_act\"", "config_sha256"); /* the same values in other bytes */
    refused(1, "3543236481410", "3543236481411", "config_sha256");
    refused(0, "format_version\\\": 2", "format_version\\\": 3", "format_version: expected 2, found 3");
    refused(0, "fd7d4d62", "fd7d4d63", "config_sha256");
    refused(0, "3543236481410", "3543236481411", "seed: the config has 3543236481410");
    refused(0, "\\\"torch\\\": \\\"2.11.0+cu130\\\"", "\\\"torc_\\\": \\\"2.11.0+cu130\\\"",
            "versions of transformers");
    refused(0, "q4x_moe_golden", "q4x_moe_goldex", "there is no q4x_moe_golden");
    refused(0, "q4x_moe_reduced", "q4x_moe_reducex", "there is no q4x_moe_reduced");
    refused(0, "case3_hidden", "case3_hiddex", "there is no case3_hidden");
    refused(0, "[16,10]", "[10,16]", "expected");
    /* the formula's tensors are held to the digests that stand for them */
    const char *sha = strstr(q4x_st_meta(M.st, "q4x_moe_reduced"), "case2_hidden");
    char from[80], to[80];
    assert_non_null(sha);
    snprintf(from, sizeof from, "%.20s", strchr(sha, ':') + 2);
    snprintf(to, sizeof to, "%s", from);
    to[5] = to[5] == '0' ? '1' : '0';
    refused(0, from, to, "sha256 of case2_hidden");
}

/* With the whole recorded file at hand: what is tracked here and what the formula gives are it, byte by byte. */
static void whole_file(void **state) {
    (void)state;
    q4x_map config = {.fd = -1}, st = {.fd = -1};
    q4x_err err = {0};
    h_moe w;
    if (q4x_map_open(WHOLE "/frozen_config.json", &config, &err) ||
        q4x_map_open(WHOLE "/moe-golden.safetensors", &st, &err)) {
        print_message("skipped: no " WHOLE "\n");
        q4x_map_close(&config);
        skip();
    }
    if (h_moe_read(config.data, config.size, st.data, st.size, &w, &err)) fail_msg("%s", err.msg);
    assert_int_equal(config.size, CONFIG.size);
    assert_memory_equal(config.data, CONFIG.data, config.size);
    assert_string_equal(q4x_st_meta(w.st, "q4x_moe_golden"), q4x_st_meta(M.st, "q4x_moe_golden"));
    uint64_t bytes = 0;
    int ours = 0;
    for (int64_t i = 0; i < w.st->n; i++) {
        const q4x_st_tensor *t = &w.st->t[i], *o = q4x_st_find(M.st, t->name);
        const void *have = o ? M.bytes + o->off : NULL;
        for (int k = 0; k < H_MOE_FREE; k++)
            if (!strcmp(M.f[k].name, t->name)) have = M.made[k];
        if (!have || (o && o->bytes != t->bytes)) fail_msg("%s: not here, or of another size", t->name);
        if (memcmp(have, st.data + t->off, t->bytes)) fail_msg("%s: other bytes", t->name);
        bytes += t->bytes, ours += o != NULL;
    }
    assert_int_equal(bytes, st.size - w.st->data_off);
    assert_int_equal(ours, M.st->n);
    print_message("%llu bytes: %d tensors tracked, %lld by the formula, all equal\n", (unsigned long long)bytes, ours,
                  (long long)w.st->n - ours);
    h_moe_free(&w);
    q4x_map_close(&config);
    q4x_map_close(&st);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(provenance),
        cmocka_unit_test(whole_file),
    };
    if (argc == 4 && !strcmp(argv[1], "reduce")) {
        q4x_err err = {0};
        int rc = h_moe_reduce(argv[2], argv[3], &err);
        if (rc) fprintf(stderr, "t_moe_file: %s\n", err.msg);
        return rc != 0;
    }
    return cmocka_run_group_tests_name("moe_file", tests, open_block, close_block);
}
