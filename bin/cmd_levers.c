/* cmd_levers.c: the arithmetic choices, and the profiles made of them. */
#include <stdio.h>
#include <string.h>

#include "bin/cmd.h"
#include "lib/plant.h"

static error_t option(int key, char *arg, struct argp_state *state) {
    (void)arg;
    if (key != 'm') return ARGP_ERR_UNKNOWN;
    *(int *)state->input = 1;
    return 0;
}

/* "a|b|c" with the bar replaced. */
static void print_values(const char *values, const char *before, const char *after, const char *between) {
    for (const char *p = values; *p;) {
        size_t n = strcspn(p, "|");
        printf("%s%.*s%s", before, (int)n, p, after);
        p += n;
        if (*p++ == '|')
            fputs(between, stdout);
        else
            break;
    }
}

static const char *acts_at(const q4x_plant_kind *k) {
    return strcmp(k->ops, "*") ? k->ops : k->on_ids ? "all ops" : "all ops but ids";
}

static void print_markdown(void) {
    printf("| lever | values (default first) | kind | what it stands for |\n|---|---|---|---|\n");
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        printf("| `%s` | ", l->name);
        print_values(l->values, "`", "`", " ");
        printf(" | %s | %s |\n", l->kind, l->doc);
    }
    printf("\n| fault | acts at nodes of | what it does |\n|---|---|---|\n");
    for (int i = 0; i < q4x_nplant_kinds; i++) {
        const q4x_plant_kind *k = &q4x_plant_kinds[i];
        printf("| `%s` | %s | %s |\n", k->name, acts_at(k), k->doc);
    }
    printf("\n| profile | levers | what it stands for | proved by |\n|---|---|---|---|\n");
    for (int i = 0; i < q4x_nprofiles; i++) {
        const q4x_profile *p = &q4x_profiles[i];
        printf("| `%s` | %s%s%s | %s | %s |\n", p->name, p->items[0] ? "`" : "", p->items[0] ? p->items : "none",
               p->items[0] ? "`" : "", p->doc, p->proof[0] ? p->proof : "unproven");
    }
}

static json_t *words(const char *text, const char *separators) {
    json_t *a = json_array();
    for (const char *p = text + strspn(text, separators); *p; p += strspn(p, separators)) {
        size_t n = strcspn(p, separators);
        json_array_append_new(a, json_stringn(p, n));
        p += n;
    }
    return a;
}

static json_t *as_json(void) {
    json_t *levers = json_array(), *plants = json_array(), *profiles = json_array();
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        json_array_append_new(levers,
                              json_pack("{s:s, s:o, s:s, s:o, s:s}", "name", l->name, "values", words(l->values, "|"),
                                        "kind", l->kind, "ops", words(l->ops, " "), "doc", l->doc));
    }
    for (int i = 0; i < q4x_nplant_kinds; i++) {
        const q4x_plant_kind *k = &q4x_plant_kinds[i];
        json_array_append_new(plants, json_pack("{s:s, s:o, s:b, s:i, s:s}", "name", k->name, "ops", words(k->ops, " "),
                                                "ids", k->on_ids, "first_forward", k->first, "doc", k->doc));
    }
    for (int i = 0; i < q4x_nprofiles; i++) {
        const q4x_profile *p = &q4x_profiles[i];
        json_array_append_new(profiles, json_pack("{s:s, s:o, s:s, s:s}", "name", p->name, "levers",
                                                  words(p->items, ","), "doc", p->doc, "proof", p->proof));
    }
    return json_pack("{s:o, s:o, s:o}", "levers", levers, "plants", plants, "profiles", profiles);
}

int cmd_levers(int argc, char **argv, cmd_ctx *c) {
    static const struct argp_option own[] = {{"markdown", 'm', 0, 0, "as Markdown tables", 0}, {0}};
    static const struct argp argp = {own,
                                     option,
                                     "",
                                     "List the levers: named choices of the arithmetic. Set one with --lever "
                                     "NAME=VALUE, at some nodes with NAME=VALUE@GLOB, in one forward with @GLOB#F.",
                                     0,
                                     0,
                                     0};
    int markdown = 0;
    cmd_parse(&argp, argc, argv, c, 1, &markdown);
    if (c->json && markdown) return cmd_misuse(c, "--json or --markdown: one form at a time");
    if (c->json) return cmd_print_json(c, as_json(), 17);
    if (markdown) {
        print_markdown();
        return CMD_OK;
    }
    for (int i = 0; i < q4x_nlevers; i++) {
        const q4x_lever *l = &q4x_levers[i];
        printf("%-12s ", l->name);
        print_values(l->values, "", "", " | ");
        printf("\n             %s (%s)\n", l->doc, l->kind);
    }
    printf("\nfaults, by plant=\n");
    for (int i = 0; i < q4x_nplant_kinds; i++) {
        const q4x_plant_kind *k = &q4x_plant_kinds[i];
        printf("%-15s %s\n                at %s%s\n", k->name, k->doc, acts_at(k),
               k->first ? "; from forward 1 on" : "");
    }
    printf("\nprofiles\n");
    for (int i = 0; i < q4x_nprofiles; i++)
        printf("%-12s %s\n             %s; %s\n", q4x_profiles[i].name,
               q4x_profiles[i].items[0] ? q4x_profiles[i].items : "(none)", q4x_profiles[i].doc,
               q4x_profiles[i].proof[0] ? q4x_profiles[i].proof : "unproven");
    return CMD_OK;
}
