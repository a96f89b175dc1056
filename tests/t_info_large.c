/* t_info_large.c: what `q4x info` asks of the released Flash-Next, as its headers in sparse files of its size: it
 * binds, it is planned and judged, and of 72 GB hardly anything is touched.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/machine.h"
#include "lib/need.h"
#include "lib/odd.h"
#include "tests/check.h"
#include "tests/h_forward.h"
#include "tests/h_gguf.h"
#include "tests/h_hf.h"
#include "tests/h_sanitizer.h"
#include "tests/h_synth.h"

/* The files, sparse; the name of the first. 0 when the place cannot hold them. */
static int make_files(const char *dir, char *first, size_t size) {
    const q4x_geometry *g = q4x_geometry_find("qwen3.8-flash-next");
    q4x_synth s = {.g = g, .type = g->type};
    q4x_gguf_out *o = NULL;
    q4x_err err = {0};
    char path[512];
    int ok = 1;
    snprintf(path, sizeof path, "%s/f.gguf", dir);
    assert_rc_ok(q4x_synth_declare(&s, path, &o, &err), &err);
    assert_rc_ok(q4x_gguf_out_layout(o, &err), &err);
    for (int i = 0; ok && i < q4x_gguf_out_nshards(o); i++) {
        uint8_t *head = NULL;
        size_t n = 0;
        const q4x_shard *f = q4x_gguf_out_shard(o, i);
        assert_rc_ok(q4x_gguf_out_header(o, i, &head, &n, &err), &err);
        h_write_file(f->path, head, n);
        free(head);
        if (!i) snprintf(first, size, "%s", f->path);
        ok = truncate(f->path, (off_t)f->size) == 0;
    }
    q4x_gguf_out_abort(o);
    return ok;
}

static void headers_suffice(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512], hex[33];
    q4x_err err = {0};
    q4x_need cpu, gpu;
    static q4x_settings s;
    q4x_odd odd[Q4X_ODD_COUNT];
    q4x_tok *tok = NULL;
    if (!make_files(dir, path, sizeof path)) {
        print_message("    no room for sparse files of 72 GB beside %s\n", path);
        h_tmp_remove(dir);
        skip();
    }
    unsigned long long before = q4x_machine_resident_peak();
    q4x_net *net = h_net(path);
    const q4x_model *m = q4x_net_model(net);
    assert_rc_ok(q4x_settings_read(m, &s, &err), &err);
    assert_rc_ok(q4x_model_fingerprint(m, hex, &err), &err);
    assert_rc_ok(q4x_tok_open(m, &tok, &err), &err);
    int n = q4x_odds_find(m, &s, tok, odd);
    assert_true(n == 2 && odd[0].id == Q4X_ODD_SYNTHETIC && odd[1].id == Q4X_ODD_FILLER);
    assert_rc_ok(q4x_need_of(net, 0, 4096, 1, &cpu, &err), &err);
    assert_rc_ok(q4x_need_of(net, 1, 262144, 0, &gpu, &err), &err);
    unsigned long long peak = q4x_machine_resident_peak();
    print_message("    resident at most %llu MiB, %llu before\n", peak >> 20, before >> 20);
    if (!H_SANITIZER) assert_true(peak > before && peak - before < 192ull << 20);
    /* gguf-quants 3.1, 3.3: the table, and what one token reads of the experts */
    assert_true(cpu.cls[Q4X_TC_TABLE].gathered == 28800138240 && cpu.cls[Q4X_TC_EXPERTS].mapped == 39845888000);
    uint64_t experts = 34ull * 15616000 + 14ull * 17664000, rest = 0;
    for (int c = 0; c < Q4X_TC_COUNT; c++)
        if (c != Q4X_TC_EXPERTS) rest += cpu.cls[c].mapped;
    assert_true(cpu.token == experts + rest + 16 * 90 + 2560 / 256 * 144);
    assert_true(gpu.weights < 44000000000 && gpu.weights > 43000000000 && gpu.states > 60 * cpu.state[Q4X_NEED_KV]);
    q4x_tok_close(tok);
    q4x_net_close(net);
    h_tmp_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(headers_suffice)};
    return cmocka_run_group_tests_name("info_large", tests, NULL, NULL);
}
