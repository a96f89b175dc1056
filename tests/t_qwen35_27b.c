/* The released 27B file, as its header: every tensor of Qwen3.8-27B-Q4_K_M.gguf with its shape and type, made from the
 * facts that are published about it, in a sparse file of its size. All of it must bind, and nothing less or else. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/quant.h"
#include "lib/arch_qwen35_int.h"
#include "lib/gguf.h"
#include "lib/model_int.h"
#include "lib/run.h"
#include "tests/check.h"
#include "tests/h_gguf.h"
#include "tests/h_hf.h"

#define P "qwen35."
enum { D = 5120, V = 248320, FFN = 17408, TRUNK = 64, BLOCKS = 65, HEADER_END = 10996700 };
static const int64_t FILE_BYTES = 17106775008, DATA_BYTES = 17095778304, PARAMETERS = 27320697856;

typedef struct {
    char name[64];
    int32_t type, ndim;
    uint64_t ne[2];
} spec;

static spec tensor[1000];
static int ntensors;

static void add(int block, const char *name, int32_t type, uint64_t ne0, uint64_t ne1) {
    spec *s = &tensor[ntensors++];
    *s = (spec){.type = type, .ndim = ne1 ? 2 : 1, .ne = {ne0, ne1}};
    if (block < 0)
        snprintf(s->name, sizeof s->name, "%s", name);
    else
        snprintf(s->name, sizeof s->name, "blk.%d.%s", block, name);
}

/* Blocks whose down and value projections are kept better: the first and last eighth, and every third between. */
static int32_t better(int i) {
    const int n = BLOCKS;
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2 ? K_T_Q6_K : K_T_Q4_K;
}

static void linear(int i) {
    add(i, "attn_qkv.weight", better(i), D, 10240);
    add(i, "attn_gate.weight", K_T_Q4_K, D, 6144);
    add(i, "ssm_out.weight", K_T_Q5_K, 6144, D);
    add(i, "ssm_alpha.weight", K_T_F32, D, 48);
    add(i, "ssm_beta.weight", K_T_F32, D, 48);
    add(i, "ssm_conv1d.weight", K_T_F32, 4, 10240);
    add(i, "ssm_a", K_T_F32, 48, 0);
    add(i, "ssm_dt.bias", K_T_F32, 48, 0);
    add(i, "ssm_norm.weight", K_T_F32, 128, 0);
}

static void attention(int i) {
    add(i, "attn_q.weight", K_T_Q4_K, D, 12288);
    add(i, "attn_k.weight", K_T_Q4_K, D, 1024);
    add(i, "attn_v.weight", better(i), D, 1024);
    add(i, "attn_output.weight", K_T_Q4_K, 6144, D);
    add(i, "attn_q_norm.weight", K_T_F32, 256, 0);
    add(i, "attn_k_norm.weight", K_T_F32, 256, 0);
}

static void released(void) {
    ntensors = 0;
    add(-1, "token_embd.weight", K_T_Q4_K, D, V);
    add(-1, "output.weight", K_T_Q6_K, D, V);
    add(-1, "output_norm.weight", K_T_F32, D, 0);
    for (int i = 0; i < BLOCKS; i++) {
        add(i, "attn_norm.weight", K_T_F32, D, 0);
        add(i, "post_attention_norm.weight", K_T_F32, D, 0);
        add(i, "ffn_gate.weight", K_T_Q4_K, D, FFN);
        add(i, "ffn_up.weight", K_T_Q4_K, D, FFN);
        add(i, "ffn_down.weight", better(i), FFN, D);
        if (i % 4 == 3 || i == TRUNK)
            attention(i);
        else
            linear(i);
    }
    add(TRUNK, "nextn.eh_proj.weight", K_T_Q8_0, 10240, D);
    add(TRUNK, "nextn.enorm.weight", K_T_F32, D, 0);
    add(TRUNK, "nextn.hnorm.weight", K_T_F32, D, 0);
    add(TRUNK, "nextn.shared_head_norm.weight", K_T_F32, D, 0);
}

static int64_t elements(const spec *s) {
    return (int64_t)s->ne[0] * (s->ndim == 2 ? (int64_t)s->ne[1] : 1);
}

static int64_t bytes(const spec *s) {
    const k_quant *q = k_quant_get(s->type);
    return elements(s) / q->elems * q->bytes;
}

/* The published sums: they pin every name's type and shape but for exchanges that cancel. */
static void sums(void **state) {
    (void)state;
    int64_t params = 0, all = 0, behind = 0;
    int f32 = 0, q4 = 0, q5 = 0, q6 = 0, q8 = 0;
    for (int i = 0; i < ntensors; i++) {
        const spec *s = &tensor[i];
        params += elements(s);
        all += bytes(s);
        if (!strncmp(s->name, "blk.64.", 7)) behind += bytes(s);
        f32 += s->type == K_T_F32, q4 += s->type == K_T_Q4_K, q5 += s->type == K_T_Q5_K;
        q6 += s->type == K_T_Q6_K, q8 += s->type == K_T_Q8_0;
        assert_int_equal(bytes(s) % 32, 0);
    }
    print_message("  %d tensors, %lld parameters, %lld bytes\n", ntensors, (long long)params, (long long)all);
    assert_int_equal(ntensors, 866);
    assert_true(f32 == 456 && q4 == 294 && q6 == 67 && q5 == 48 && q8 == 1);
    assert_true(params == PARAMETERS && all == DATA_BYTES);
    assert_true(behind == 289527808 && all - behind == 16806250496);
}

static void keys(h_gguf *g) {
    static const struct {
        const char *key;
        uint32_t v;
    } ints[] = {{P "block_count", BLOCKS},       {P "context_length", 262144},      {P "embedding_length", D},
                {P "feed_forward_length", FFN},  {P "attention.head_count", 24},    {P "attention.head_count_kv", 4},
                {P "attention.key_length", 256}, {P "attention.value_length", 256}, {P "rope.dimension_count", 64},
                {P "ssm.conv_kernel", 4},        {P "ssm.state_size", 128},         {P "ssm.group_count", 16},
                {P "ssm.time_step_rank", 48},    {P "ssm.inner_size", 6144},        {P "full_attention_interval", 4},
                {P "nextn_predict_layers", 1}};
    h_gguf_kv_str(g, "general.architecture", "qwen35");
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++) h_gguf_kv_u32(g, ints[i].key, ints[i].v);
    h_gguf_kv_f32(g, P "attention.layer_norm_rms_epsilon", 1e-6f);
    h_gguf_kv_f32(g, P "rope.freq_base", 1e7f);
    h_gguf_arr_i32(g, P "rope.dimension_sections", (int32_t[]){11, 11, 10, 0}, 4);
}

static void tokens(h_gguf *g) {
    h_gguf_arr(g, "tokenizer.ggml.tokens", 8, V, NULL, 0);
    for (int i = 0; i < V; i++) {
        char t[16];
        snprintf(t, sizeof t, "t%d", i);
        h_str(&g->kv, t);
    }
    h_gguf_kv_u32(g, "tokenizer.ggml.eos_token_id", 248046);
    h_gguf_kv_u32(g, "tokenizer.ggml.bos_token_id", 248044);
}

/* A string that makes the header as long as the released one. */
static void fill(h_gguf *g) {
    h_buf b = h_gguf_bytes(g);
    size_t have = 24 + g->kv.n + g->ti.n, more = HEADER_END - have - 8 - strlen("general.filler") - 4 - 8;
    h_buf_free(&b);
    char *text = malloc(more + 1);
    assert_non_null(text);
    memset(text, 'x', more);
    text[more] = 0;
    h_gguf_kv_str(g, "general.filler", text);
    free(text);
}

/* The file, sparse. 0 when the place cannot hold one. */
static int make_file(const char *path) {
    h_gguf g;
    int64_t off = 0;
    h_gguf_init(&g);
    keys(&g);
    tokens(&g);
    for (int i = 0; i < ntensors; i++) {
        const spec *s = &tensor[i];
        h_gguf_record(&g, s->name, strlen(s->name), (uint32_t)s->ndim, s->ne, s->type, (uint64_t)off);
        off += bytes(s);
    }
    fill(&g);
    assert_int_equal(24 + g.kv.n + g.ti.n, HEADER_END);
    h_buf b = h_gguf_bytes(&g);
    assert_true((int64_t)b.n + off == FILE_BYTES);
    h_write_file(path, b.p, b.n);
    h_buf_free(&b);
    h_gguf_free(&g);
    return truncate(path, FILE_BYTES) == 0;
}

static void check_dims(const k_dims *d) {
    const k_dims want = {.D = D,
                         .V = V,
                         .L = TRUNK,
                         .nk = 16,
                         .nv = 48,
                         .dk = 128,
                         .dv = 128,
                         .C = 10240,
                         .Kc = 4,
                         .gguf_heads = 1,
                         .gate_silu = 1,
                         .H = 24,
                         .G = 4,
                         .hd = 256,
                         .rot = 64,
                         .Fd = FFN,
                         .eps = 1e-6f};
    assert_memory_equal(d, &want, sizeof want);
}

/* From the file to the plan: opened, bound, every tensor used. */
static void whole(void **state) {
    (void)state;
    char *dir = h_tmp(), path[512];
    q4x_err err = {0};
    q4x_net *net = NULL;
    q4x_qwen35 *w = NULL;
    snprintf(path, sizeof path, "%s/27b.gguf", dir);
    if (!make_file(path)) {
        print_message("  no room for a sparse file of 17 GB beside %s\n", path);
        h_tmp_remove(dir);
        skip();
    }
    assert_rc_ok(q4x_net_open(path, &net, &err), &err);
    assert_int_equal(q4x_model_ntensors(q4x_net_model(net)), 866);
    check_dims(q4x_net_dims(net));
    const q4x_plan *p = q4x_net_plan(net);
    assert_int_equal(p->nnodes, 3 + 48 * 21 + 16 * 20);
    assert_int_equal(p->nstates, 2 * TRUNK);
    assert_int_equal(p->ctx_max, 262144);
    assert_int_equal(p->node[q4x_plan_find(p, "logits")].w[0]->type, K_T_Q6_K);
    assert_int_equal(p->node[q4x_plan_find(p, "L55.mlp")].w[0]->type, K_T_Q6_K);
    assert_int_equal(p->node[q4x_plan_find(p, "L54.mlp")].w[0]->type, K_T_Q4_K);
    assert_int_equal(q4x_plan_find(p, "L64.mlp"), -1); /* bound, not run */
    assert_rc_ok(q4x_qwen35_bind(q4x_net_model(net), &w, &err), &err);
    assert_int_equal(w->nnext, 1);
    assert_int_equal(w->next[0].proj.type, K_T_Q8_0);
    assert_int_equal(w->next[0].block.attn.q.rows, 12288);
    assert_null(w->next[0].embed.data);
    q4x_qwen35_free(w);
    q4x_net_close(net);
    h_tmp_remove(dir);
}

/* ---- one tensor less, or another one ---- */

static const void *zeros; /* what the tensors' data are here: only vectors are read */

typedef enum { WHOLE, REMOVED, RENAMED, ANOTHER_WIDTH, ANOTHER_RANK, INTEGERS } change;

/* Binds the released tensors with one of them changed. */
static int bind_changed(int at, change how, q4x_err *err) {
    h_gguf g;
    q4x_model *m = NULL;
    q4x_qwen35 *w = NULL;
    h_gguf_init(&g);
    keys(&g);
    h_gguf_kv_u32(&g, P "vocab_size", V);
    h_buf b = h_gguf_bytes(&g);
    assert_rc_ok(q4x_gguf_parse_mem(b.p, b.n, "27b.gguf", &m, err), err);
    for (int i = 0; i < ntensors; i++) {
        const spec *s = &tensor[i];
        char name[72];
        q4x_tensor t = {.name = s->name, .type = s->type, .ndim = s->ndim, .ne = {1, 1, 1, 1}, .data = zeros};
        t.ne[0] = (int64_t)s->ne[0];
        if (s->ndim == 2) t.ne[1] = (int64_t)s->ne[1];
        t.bytes = (size_t)bytes(s);
        if (i == at) {
            if (how == REMOVED) continue;
            if (how == RENAMED) {
                snprintf(name, sizeof name, "%.63s_", s->name);
                t.name = name;
            }
            if (how == ANOTHER_WIDTH) t.ne[s->ndim - 1]++;
            if (how == ANOTHER_RANK) t.ndim++;
            if (how == INTEGERS) t.type = K_T_I32;
        }
        assert_rc_ok(q4x_model_add(m, &t, err), err);
    }
    int rc = q4x_qwen35_bind(m, &w, err);
    assert_true(!rc == !!w);
    q4x_qwen35_free(w);
    q4x_model_close(m);
    h_buf_free(&b);
    h_gguf_free(&g);
    return rc;
}

static void each_one_counts(void **state) {
    (void)state;
    int64_t most = 0;
    int refused = 0, bound = 0, step = H_SANITIZER ? 13 : 1; /* sanitizers are slow: some of each kind of layer */
    for (int i = 0; i < ntensors; i++)
        if (tensor[i].type == K_T_F32 && bytes(&tensor[i]) > most) most = bytes(&tensor[i]);
    void *page = calloc(1, (size_t)most);
    assert_non_null(page);
    zeros = page;
    q4x_err err = {0};
    assert_rc_ok(bind_changed(-1, WHOLE, &err), &err);
    for (int i = 0; i < ntensors; i += i < 3 ? 1 : step)
        for (change how = REMOVED; how <= INTEGERS; how++) {
            /* without a head the embedding takes its place: another model, and a whole one */
            int tied = how == REMOVED && !strcmp(tensor[i].name, "output.weight");
            int rc = bind_changed(i, how, &err);
            if (rc != (tied ? 0 : Q4X_E_MISMATCH)) fail_msg("%s, change %d: %d %s", tensor[i].name, how, rc, err.msg);
            if (!tied && !strstr(err.msg, tensor[i].name)) fail_msg("%s is not named: %s", tensor[i].name, err.msg);
            refused += rc != 0;
            bound += rc == 0;
        }
    print_message("  %d changes of one tensor refused\n", refused);
    assert_int_equal(bound, 1);
    assert_true(refused == 5 * 866 - 1 || (step > 1 && refused > 150));
    free(page);
}

int main(void) {
    released();
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums), cmocka_unit_test(whole),
                                       cmocka_unit_test(each_one_counts)};
    return cmocka_run_group_tests_name("qwen35_27b", tests, NULL, NULL);
}
