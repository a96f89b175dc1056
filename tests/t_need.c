/* t_need.c: the memory that is said to be needed is what a run then takes, byte for byte; every byte of a file is
 * accounted for once; on a device the n-gram table stays behind.
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/dev.h"
#include "lib/need.h"
#include "lib/tap.h"
#include "tests/check.h"
#include "tests/h_dump.h"
#include "tests/h_forward.h"
#include "tests/h_hf.h"
#include "tests/h_synth.h"

static const char *const models[] = {"tests/models/demo.gguf", "tests/models/micro-a-bf16.gguf", "tests/golden/micro-b",
                                     "tests/golden/dense-a"};
enum { NMODELS = sizeof models / sizeof *models };

static q4x_need need(const q4x_net *net, int cuda, int64_t ctx, int threads) {
    q4x_err err = {0};
    q4x_need d;
    assert_rc_ok(q4x_need_of(net, cuda, ctx, threads, &d, &err), &err);
    return d;
}

static void equals_a_run(void **state) {
    (void)state;
    static const int64_t contexts[] = {1, 5, 64, 1000, 4096};
    int compared = 0;
    for (int i = 0; i < NMODELS; i++) {
        q4x_net *net = h_net(models[i]);
        for (size_t k = 0; k < sizeof contexts / sizeof *contexts; k++)
            for (int threads = 0; threads < 4; threads++) {
                q4x_err err = {0};
                q4x_run *r = NULL;
                q4x_arm arm;
                char spec[16];
                uint64_t arena, states, scratch;
                snprintf(spec, sizeof spec, threads ? "cpu/%d" : "cpu", threads);
                assert_rc_ok(q4x_arm_parse(spec, &arm, &err), &err);
                assert_rc_ok(q4x_run_new(net, &arm, contexts[k], 0, &r, &err), &err);
                q4x_run_memory(r, &arena, &states, &scratch);
                q4x_need d = need(net, 0, contexts[k], threads);
                if (d.arena != arena || d.states != states || d.scratch != scratch)
                    fail_msg(
                        "%s, %lld positions, %d threads: arena %llu | %llu, states %llu | %llu, scratch %llu | %llu",
                        models[i], (long long)contexts[k], threads, (unsigned long long)d.arena,
                        (unsigned long long)arena, (unsigned long long)d.states, (unsigned long long)states,
                        (unsigned long long)d.scratch, (unsigned long long)scratch);
                uint64_t kinds = 0;
                for (int s = 0; s < Q4X_NEED_STATES; s++) kinds += d.state[s];
                assert_true(kinds == d.states);
                if (k) assert_true(need(net, 0, contexts[k - 1], threads).states < d.states); /* the twin */
                q4x_run_free(r);
                compared++;
            }
        q4x_net_close(net);
    }
    print_message("    %d runs\n", compared);
}

/* Matrices and tables have the file's bytes, vectors f32. */
static void accounts(void **state) {
    (void)state;
    for (int i = 0; i < NMODELS; i++) {
        q4x_net *net = h_net(models[i]);
        const q4x_model *m = q4x_net_model(net);
        q4x_need d = need(net, 0, 16, 1);
        int64_t n = 0;
        uint64_t file = 0, said = 0, f32 = 0;
        for (int c = 0; c < Q4X_TC_COUNT; c++) {
            n += d.cls[c].tensors;
            said += d.cls[c].mapped + d.cls[c].gathered + d.cls[c].unused;
            f32 += d.cls[c].copied;
        }
        for (int64_t k = 0; k < q4x_model_ntensors(m); k++) file += q4x_model_tensor(m, k)->bytes;
        assert_int_equal(n, q4x_model_ntensors(m));
        assert_true(d.cls[Q4X_TC_OTHER].tensors == 0 && said < file && f32 > 0);
        /* what is left of the file are the vectors, in BF16 or F32 there */
        assert_true(file - said <= f32 && f32 <= 2 * (file - said));
        assert_true(d.cls[Q4X_TC_EMBEDDING].gathered > 0 && d.cls[Q4X_TC_EMBEDDING].mapped == 0);
        assert_true(d.token > 0 && d.token < file);
        const k_dims *k = q4x_net_dims(net);
        if (k->E) {
            q4x_need_class e = d.cls[Q4X_TC_EXPERTS];
            assert_true(e.gathered == 0 && e.mapped > 0 && d.cls[Q4X_TC_TABLE].gathered > 0);
            assert_true(d.token < d.weights - e.mapped / (uint64_t)k->E * (uint64_t)(k->E - k->K) + (1 << 16));
        }
        q4x_net_close(net);
    }
}

/* Bytes of what the device's own ops do not make, of a pass. */
static uint64_t made_here(const q4x_plan *p, const q4x_need *gpu) {
    uint64_t bytes = 0;
    for (int32_t k = 0; k < p->nnodes; k++)
        if (k_dev_on_host((int32_t)p->node[k].op)) bytes += 4 * (uint64_t)(gpu->tile * p->node[k].cols);
    return bytes;
}

/* Weights as they are stored, aligned, and lists of experts; what is rounded is rounded up, and by little. What a run
 * really asks for: tests/cuda/e_need.c. */
static void device(void **state) {
    (void)state;
    for (int i = 0; i < NMODELS; i++) {
        q4x_net *net = h_net(models[i]);
        const q4x_plan *p = q4x_net_plan(net);
        q4x_need cpu = need(net, 0, 640, 3), gpu = need(net, 1, 640, 0);
        uint64_t all = 0, lists = 0, kinds = 0;
        for (int c = 0; c < Q4X_TC_COUNT; c++) all += gpu.cls[c].mapped + gpu.cls[c].gathered + gpu.cls[c].copied;
        for (int32_t k = 0; k < p->nnodes; k++)
            for (int w = 0; w < K_MAXW; w++) lists += p->node[k].nw[w] > 1 ? (uint64_t)p->node[k].nw[w] : 0;
        all += lists * sizeof(k_weight) - gpu.cls[Q4X_TC_TABLE].gathered;
        if (!(gpu.weights + 4096 > all && gpu.weights < all + 512 * (uint64_t)q4x_model_ntensors(q4x_net_model(net))))
            fail_msg("%s: weights %llu, and the file's come to %llu", models[i], (unsigned long long)gpu.weights,
                     (unsigned long long)all);
        for (int s = 0; s < Q4X_NEED_STATES; s++) kinds += gpu.state[s];
        const uint64_t host = made_here(p, &gpu), row = 4 * (uint64_t)p->d.V;
        assert_true((host > 0) == (p->d.P > 0));
        assert_true(kinds == gpu.states && gpu.tile == cpu.tile && cpu.pinned == 0 && cpu.pinned_all == 0);
        assert_true(gpu.arena >= cpu.arena + host && gpu.arena < cpu.arena + host + 512);
        assert_true(gpu.pinned >= cpu.arena + 3 * host + row &&
                    gpu.pinned < cpu.arena + 3 * host + row + 8 * 640 + 2048);
        assert_true(gpu.pinned_all == gpu.pinned + 639 * row);
        assert_true(gpu.logits == row && gpu.logits_all == (uint64_t)gpu.tile * row && cpu.logits_all == 640 * row);
        assert_true(gpu.library == 32 << 20 && cpu.library == 0);
        assert_true(gpu.states < cpu.states + 256 * (uint64_t)p->nstates);
        assert_true(gpu.states + cpu.state[Q4X_NEED_NGRAM] >= cpu.states); /* the history of ids is the host's */
        assert_true(gpu.scratch >= 4 * (uint64_t)k_dev_scratch(&p->d, gpu.tile, 640) + 4 * (uint64_t)gpu.tile);
        assert_true(gpu.own == gpu.weights + gpu.states + gpu.arena + gpu.logits + gpu.scratch);
        uint64_t copied = 0;
        for (int c = 0; c < Q4X_TC_COUNT; c++) copied += cpu.cls[c].copied;
        assert_true(cpu.own == copied + cpu.states + cpu.arena + cpu.logits + cpu.scratch);
        assert_true(cpu.least == need(net, 0, 1, 3).own && cpu.least < cpu.own); /* the least that a context can need */
        assert_true(gpu.least == need(net, 1, 1, 0).own && gpu.least < gpu.own && gpu.weights < gpu.least);
        q4x_net_close(net);
    }
}

/* A pass on a device has as many rows as one on the processor, or more, and more memory for them where it has more. */
static void rows_a_pass(void **state) {
    static const int64_t contexts[] = {64, 1000, 4096};
    int more = 0, equal = 0;
    (void)state;
    for (int i = 0; i < NMODELS; i++) {
        q4x_net *net = h_net(models[i]);
        for (size_t k = 0; k < sizeof contexts / sizeof *contexts; k++) {
            if (contexts[k] > q4x_net_plan(net)->ctx_max) break;
            const q4x_need cpu = need(net, 0, contexts[k], 1), gpu = need(net, 1, contexts[k], 0);
            const uint64_t host = made_here(q4x_net_plan(net), &gpu);
            assert_true(gpu.tile >= cpu.tile && (gpu.tile > cpu.tile) == (gpu.arena > cpu.arena + host + 512));
            assert_true(gpu.arena <= (256 << 20) + host + 512 || gpu.tile == 64);
            more += gpu.tile > cpu.tile;
            equal += gpu.tile == cpu.tile;
        }
        q4x_net_close(net);
    }
    assert_true(more > 0 && equal > 0);
}

/* A tied head is read whole, and so is no row of it left to be gathered alone. */
static void tied(void **state) {
    (void)state;
    char *dir = h_tmp();
    h_hf *h = h_hf_load("tests/golden/dense-a");
    h_hf_set(h->config, "tie_word_embeddings", "true");
    h_hf_write(h, dir, 0);
    h_hf_free(h);
    q4x_net *net = h_net(dir);
    q4x_need d = need(net, 0, 8, 1);
    assert_true(d.cls[Q4X_TC_EMBEDDING].mapped > 0 && d.cls[Q4X_TC_EMBEDDING].gathered == 0);
    assert_true(d.cls[Q4X_TC_HEAD].unused > 0 && d.cls[Q4X_TC_HEAD].mapped == 0); /* still in the file */
    assert_true(need(net, 1, 8, 0).weights > d.weights);                          /* vectors, too */
    q4x_net_close(net);
    h_tmp_remove(dir);
}

/* What a dump really gets for a token. */
static void tapped(void **state) {
    (void)state;
    q4x_err err = {0};
    for (int i = 0; i < NMODELS; i++)
        for (int full = 0; full < 2; full++) {
            q4x_net *net = h_net(models[i]);
            q4x_run *r = NULL;
            q4x_tapset *t = NULL;
            q4x_arm arm;
            q4x_hash content;
            const char *path = h_temp("taps.q4d");
            q4x_tap_opts o = {.mode = full ? Q4X_MODE_FULL : Q4X_MODE_SKETCH};
            assert_rc_ok(q4x_arm_parse("cpu", &arm, &err), &err);
            assert_rc_ok(q4x_run_new(net, &arm, 8, 0, &r, &err), &err);
            assert_rc_ok(q4x_tapset_open(r, net, &o, path, json_object(), &t, &err), &err);
            assert_rc_ok(q4x_run_forward(r, (int32_t[]){7}, 1, 0, &err), &err);
            assert_rc_ok(q4x_tapset_forward(t, (int32_t[]){7}, 1, 0, 1, &err), &err);
            assert_rc_ok(q4x_tapset_close(t, &content, &err), &err);
            q4x_dump *d = NULL;
            assert_rc_ok(q4x_dump_read(h_temp("taps.q4d"), &d, &err), &err);
            uint64_t sketch = 0, whole = 0;
            for (int k = 0; k < d->forwards[0].ntaps; k++) {
                const q4x_tap *x = &d->forwards[0].taps[k];
                if (!d->nodes[x->node].is_public) continue;
                if (x->has_sketch)
                    sketch += (uint64_t)x->sketch.nrows * (uint64_t)x->sketch.width * (x->sketch.raw ? 4 : 8);
                if (x->has_full) whole += (uint64_t)(x->rows * x->cols) * 4;
            }
            q4x_need n = need(net, 0, 8, 0);
            if (n.tap_sketch != sketch || (full && n.tap_full != whole))
                fail_msg("%s: sketches %llu | %llu, full %llu | %llu", models[i], (unsigned long long)n.tap_sketch,
                         (unsigned long long)sketch, (unsigned long long)n.tap_full, (unsigned long long)whole);
            assert_true(full || whole == 0); /* the twin */
            q4x_dump_free(d);
            q4x_run_free(r);
            q4x_net_close(net);
        }
    h_temp_remove();
}

static void refused(void **state) {
    (void)state;
    q4x_err err = {0};
    q4x_need d;
    q4x_net *net = h_net(models[0]);
    assert_int_equal(q4x_need_of(net, 0, 0, 1, &d, &err), Q4X_E_ARG);
    assert_int_equal(q4x_need_of(net, 1, 4097, 0, &d, &err), Q4X_E_ARG);
    assert_non_null(strstr(err.msg, "expected 1 to the model's 4096"));
    q4x_net_close(net);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(equals_a_run), cmocka_unit_test(accounts),
                                       cmocka_unit_test(device),       cmocka_unit_test(rows_a_pass),
                                       cmocka_unit_test(tied),         cmocka_unit_test(tapped),
                                       cmocka_unit_test(refused)};
    return cmocka_run_group_tests_name("need", tests, NULL, NULL);
}
