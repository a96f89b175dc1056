/* cmd_info.c: what is in a model, a checkpoint or a dump. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bin/info.h"
#include "kernels/dev.h"
#include "lib/digest.h"

enum { KEY_PLAN = 0x100, KEY_CTX, KEY_DEVICE, KEY_HASH, KEY_SHA256, KEY_THREADS };
enum { DEFAULT_CTX = 4096 };

static int64_t number(struct argp_state *state, const char *what, const char *arg, int64_t most) {
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (errno || end == arg || *end || v < 1 || v > most)
        argp_error(state, "%s: '%.40s', expected a number from 1 to %lld", what, arg, (long long)most);
    return v;
}

static error_t option(int key, char *arg, struct argp_state *state) {
    info_options *o = state->input;
    if (cmd_empty(state, key, arg)) return EINVAL;
    switch (key) {
    case 'n': o->nodes = 1; return 0;
    case KEY_PLAN: o->plan = 1; return 0;
    case KEY_CTX: o->ctx = number(state, "--ctx", arg, INT32_MAX); return 0;
    case KEY_DEVICE: o->device = arg; return 0;
    case KEY_HASH: o->hash = 1; return 0;
    case KEY_SHA256: o->sha256 = 1; return 0;
    case KEY_THREADS: o->threads = (int)number(state, "--threads", arg, 1024); return 0;
    case ARGP_KEY_ARG:
        if (o->file) return ARGP_ERR_UNKNOWN;
        o->file = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

void info_node(json_t *list, const char *name, int is_public, int is_state) {
    if (list)
        json_array_append_new(list, json_pack("{s:s, s:b, s:b}", "name", name, "public", is_public, "state", is_state));
    else
        printf("%s%s\n", name, is_public ? " public" : is_state ? " state" : "");
}

/* One name a line, or a list: the vocabulary of taps of this model. Returns an exit code. */
static int print_nodes(const q4x_plan *p, cmd_ctx *c) {
    json_t *list = c->json ? json_array() : NULL;
    for (int i = 0; i < p->nnodes; i++) info_node(list, p->node[i].name, p->node[i].is_public, 0);
    for (int i = 0; i < p->nstates; i++) info_node(list, p->state[i].name, 0, 1);
    return c->json ? cmd_print_json(c, list, 9) : CMD_OK;
}

static void tell(void *ctx, uint64_t done, uint64_t total) {
    cmd_ctx *c = ctx;
    q4x_log_progress(&c->log, "MiB", done >> 20, total >> 20);
}

/* ---- the parts of what is known of a model ---- */

static int find_groups(info_model *f, q4x_err *err) {
    const q4x_setting *L = f->has_settings ? q4x_settings_find(&f->settings, "layers") : NULL;
    int rc;
    TRY(q4x_model_fingerprint(f->m, f->fingerprint, err));
    TRY(q4x_inventory(f->m, &f->group, &f->ngroups, err));
    TRY(q4x_inventory(f->m, &f->type, &f->ntypes, err));
    TRY(q4x_inventory_by_class(f->m, L ? L->i : -1, &f->cls, &f->nclasses, err));
    f->ntypes = q4x_inventory_by_type(f->type, f->ntypes);
done:
    return rc;
}

static int find_needs(info_model *f, const info_options *o, q4x_err *err) {
    q4x_arm arm = {0};
    k_dev_info dev;
    if (!f->net) return 0;
    if (o->device) {
        int rc = q4x_arm_parse(o->device, &arm, err);
        if (rc) return rc;
        if (arm.nitems)
            return q4x_fail(err, Q4X_E_ARG, "--device: '%.40s', expected cpu[/THREADS] or cuda[/N] without levers",
                            o->device);
        if (o->threads && (arm.cuda || arm.threads))
            return q4x_fail(err, Q4X_E_ARG, "--threads: --device %.40s %s", o->device,
                            arm.cuda ? "has none" : "names them already");
    }
    f->device_index = arm.device_index;
    k_dev_query(&dev);
    const int64_t most = q4x_net_plan(f->net)->ctx_max, ctx = o->ctx ? o->ctx : most < DEFAULT_CTX ? most : DEFAULT_CTX;
    for (int cuda = 0; cuda < INFO_DEVICES; cuda++) {
        if (o->device ? arm.cuda != cuda : cuda && !dev.built) continue;
        int rc = q4x_need_of(f->net, cuda, ctx, arm.threads ? arm.threads : o->threads, &f->need[f->nneeds], err);
        if (rc) return rc;
        f->nneeds++;
    }
    return 0;
}

static int add_file(info_model *f, const char *path, uint64_t size, cmd_ctx *c, q4x_err *err) {
    info_file *d = &f->digest[f->ndigests];
    snprintf(d->path, sizeof d->path, "%s", path);
    int rc = q4x_digest_file(path, size, tell, c, d->sha256, err);
    if (!rc) f->ndigests++;
    return rc;
}

/* Shards, and of a checkpoint what else makes the model. */
static int find_files(info_model *f, cmd_ctx *c, q4x_err *err) {
    static const char *const beside[] = {"config.json", "tokenizer.json"};
    const int n = q4x_model_nshards(f->m);
    int rc = 0;
    f->digest = calloc((size_t)n + 2, sizeof *f->digest);
    if (!f->digest) return q4x_fail(err, Q4X_E_NOMEM, "no memory for the digests of %d files", n);
    for (int i = 0; !rc && i < n; i++) {
        const q4x_shard *s = q4x_model_shard(f->m, i);
        rc = add_file(f, s->path, s->size, c, err);
    }
    const char *first = n ? q4x_model_shard(f->m, 0)->path : "", *slash = strrchr(first, '/');
    for (int i = 0; !rc && i < 2 && q4x_model_container(f->m) == Q4X_HF; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - first + 1) : 0, first, beside[i]);
        if (!access(path, F_OK)) rc = add_file(f, path, UINT64_MAX, c, err);
    }
    return rc;
}

static int find_all(info_model *f, const info_options *o, cmd_ctx *c, q4x_err *err) {
    int rc;
    TRY(find_groups(f, err));
    TRY(find_needs(f, o, err));
    if (f->net) TRY(q4x_need_uses(f->net, &f->use, err));
    if (o->hash) TRY(q4x_digest_tensors(f->m, o->threads, tell, c, &f->hash, err));
    if (o->sha256) TRY(find_files(f, c, err));
done:
    q4x_log_done(&c->log);
    return rc;
}

static void drop(info_model *f) {
    free(f->group);
    free(f->type);
    free(f->cls);
    free(f->hash);
    free(f->use);
    free(f->digest);
    q4x_tok_close(f->tok);
}

static int model_info(const info_options *o, cmd_ctx *c) {
    q4x_err err = {0}, why = {0}, tok_why = {0};
    q4x_model *m = NULL;
    q4x_net *net = NULL;
    info_model *f = calloc(1, sizeof *f);
    int code = CMD_OK;
    if (!f) {
        q4x_fail(&err, Q4X_E_NOMEM, "no memory");
        return cmd_fail(c, &err);
    }
    /* A file whose architecture is unknown is still worth describing. */
    if (q4x_net_open(o->file, &net, &why) && q4x_model_open(o->file, &m, &err)) {
        code = cmd_fail(c, &err);
        goto done;
    }
    f->m = net ? q4x_net_model(net) : m;
    f->net = net;
    f->why = net ? NULL : why.msg;
    f->has_settings = !q4x_settings_read(f->m, &f->settings, NULL);
    if ((o->nodes || o->plan) && !net) {
        code = cmd_fail(c, &why);
    } else if (o->nodes) {
        code = print_nodes(q4x_net_plan(net), c);
    } else if (find_all(f, o, c, &err)) {
        code = cmd_refused(c, &err);
    } else {
        if (q4x_tok_open(f->m, &f->tok, &tok_why) < 0) f->tok_why = tok_why.msg;
        f->nodd = q4x_odds_find(f->m, f->has_settings ? &f->settings : NULL, f->tok, f->odd);
        if (c->json)
            code = cmd_print_json(c, info_json(f), 9);
        else
            info_text(f, o, c->verbose);
    }
done:
    drop(f);
    free(f);
    q4x_net_close(net);
    q4x_model_close(m);
    return code;
}

/* Is it a dump? By its name, or by its first bytes; everything else is taken for a model. */
static int looks_like_dump(const char *path) {
    char magic[4] = "", with[4096];
    size_t len = strlen(path);
    struct stat st;
    if (len > 4 && !strcmp(path + len - 4, ".q4d")) return 1;
    if (stat(path, &st)) {
        int n = snprintf(with, sizeof with, "%s.q4d", path);
        return n > 0 && (size_t)n < sizeof with && !access(with, F_OK);
    }
    FILE *f = S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    size_t n = f ? fread(magic, 1, 4, f) : 0;
    if (f) fclose(f);
    return n == 4 && !memcmp(magic, "\x89Q4D", 4);
}

static const struct argp_option own[] = {
    {"nodes", 'n', 0, 0, "names of all nodes and states, one a line", 0},
    {"plan", KEY_PLAN, 0, 0, "the memory that a run needs, computed without running and without the device", 0},
    {"ctx", KEY_CTX, "N", 0, "with --plan: positions (default 4096, or the model's)", 0},
    {"device", KEY_DEVICE, "DEV", 0, "with --plan: cpu[/THREADS] or cuda[/N] (default: all that this build knows)", 0},
    {"hash", KEY_HASH, 0, 0, "XXH3-128 of every tensor's data, in file order", 0},
    {"sha256", KEY_SHA256, 0, 0, "SHA-256 of every file", 0},
    {"threads", KEY_THREADS, "N", 0, "threads; never moves a bit", 0},
    {0}};

int cmd_info(int argc, char **argv, cmd_ctx *c) {
    static const struct argp argp = {own,
                                     option,
                                     "FILE",
                                     "Say what is in FILE: a GGUF model (any shard), a checkpoint folder, or a dump. "
                                     "With -v also every kind of tensor, or every node. --plan, --hash and --sha256 "
                                     "print what they ask for alone; --json has everything, digests when asked for.",
                                     0,
                                     0,
                                     0};
    info_options o = {0};
    cmd_parse(&argp, argc, argv, c, 1, &o);
    if (!o.file) return cmd_misuse(c, "which file?");
    const int plan = o.plan || (c->json && !o.nodes);
    if (o.nodes && (o.plan || o.hash || o.sha256))
        return cmd_misuse(c, "--nodes prints names alone: leave --plan, --hash and --sha256 out");
    if ((o.ctx || o.device) && !plan) return cmd_misuse(c, "--ctx and --device go with --plan");
    if (o.threads && !plan && !o.hash) return cmd_misuse(c, "--threads goes with --plan and --hash");
    int dump = looks_like_dump(o.file);
    if (dump && (o.plan || o.hash || o.sha256 || o.ctx || o.device || o.threads))
        return cmd_misuse(c, "--plan, --ctx, --device, --threads, --hash and --sha256 are for models");
    return dump ? info_dump(&o, c) : model_info(&o, c);
}
