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

/* The rest of a line on which `at` columns stand, folded behind the column of names: the three texts in a row. */
static void explain(int at, int indent, const char *text, const char *between, const char *behind) {
    enum { WIDTH = 110 };
    char line[400];
    snprintf(line, sizeof line, "%s%s%s", text, between, behind);
    printf("%*s", at < indent ? indent - at : 1, "");
    cmd_put_words(line, indent, indent, WIDTH);
}

static void print_lever(const q4x_lever *l) {
    char kind[24], values[400];
    size_t n = 0;
    for (const char *p = l->values; *p && n + 4 < sizeof values; p++)
        n += (size_t)snprintf(values + n, sizeof values - n, "%s%c%s", *p == '|' ? " " : "", *p, *p == '|' ? " " : "");
    snprintf(kind, sizeof kind, "(%s)", l->kind);
    explain(printf("%s", l->name), 13, values, "", "");
    explain(0, 13, l->doc, " ", kind);
}

static void print_text(void) {
    for (int i = 0; i < q4x_nlevers; i++) print_lever(&q4x_levers[i]);
    printf("\nfaults, by plant=\n");
    for (int i = 0; i < q4x_nplant_kinds; i++) {
        const q4x_plant_kind *k = &q4x_plant_kinds[i];
        explain(printf("%s", k->name), 16, k->doc, "", "");
        explain(0, 16, "at ", acts_at(k), k->first ? "; from forward 1 on" : "");
    }
    printf("\nprofiles\n");
    for (int i = 0; i < q4x_nprofiles; i++) {
        const q4x_profile *p = &q4x_profiles[i];
        explain(printf("%s", p->name), 14, *p->items ? p->items : "(none)", "", "");
        explain(0, 14, p->doc, "; ", *p->proof ? p->proof : "unproven");
    }
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
    print_text();
    return CMD_OK;
}
