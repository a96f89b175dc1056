#include "lib/settings.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static q4x_setting named(const char *name, q4x_says kind) {
    q4x_setting s = {.kind = kind, .why = ""};
    snprintf(s.name, sizeof s.name, "%s", name);
    return s;
}

q4x_setting q4x_say_int(const char *name, int64_t v) {
    q4x_setting s = named(name, Q4X_SAYS_INT);
    s.i = v;
    return s;
}

q4x_setting q4x_say_real(const char *name, double v) {
    q4x_setting s = named(name, Q4X_SAYS_REAL);
    s.r = v;
    return s;
}

q4x_setting q4x_say_bool(const char *name, int v) {
    q4x_setting s = named(name, Q4X_SAYS_BOOL);
    s.i = v != 0;
    return s;
}

q4x_setting q4x_say_text(const char *name, const char *text) {
    q4x_setting s = named(name, Q4X_SAYS_TEXT);
    snprintf(s.text, sizeof s.text, "%s", text);
    for (char *p = s.text; *p; p++)
        if (*p < 0x20 || *p > 0x7e) *p = '?';
    return s;
}

q4x_setting q4x_say_ints(const char *name, const int64_t *v, int64_t n) {
    q4x_setting s = named(name, Q4X_SAYS_TEXT);
    size_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        char one[24];
        int len = snprintf(one, sizeof one, "%s%" PRId64, i ? "," : "", v[i]);
        if (at + (size_t)len + 4 > sizeof s.text) {
            snprintf(s.text + at, sizeof s.text - at, ",..");
            break;
        }
        memcpy(s.text + at, one, (size_t)len + 1);
        at += (size_t)len;
    }
    return s;
}

void q4x_settings_note(q4x_settings *to, const q4x_setting *s) {
    int i = 0;
    while (i < to->n && strcmp(to->s[i].name, s->name)) i++;
    if (i == to->n) {
        Q4X_BUG_IF(to->n >= Q4X_MAXSETTINGS);
        to->n++;
    }
    to->s[i] = *s;
}

const q4x_setting *q4x_settings_find(const q4x_settings *s, const char *name) {
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->s[i].name, name)) return &s->s[i];
    return NULL;
}

/* Files hold floats: the fewest digits that give the same one. */
static void real(double x, char *buf, size_t size) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, size, "%.*g", digits, x);
        double y = strtod(buf, NULL);
        if (y == x || ((double)(float)x == x && (float)y == (float)x)) return;
    }
}

void q4x_setting_value(const q4x_setting *s, char *buf, size_t size) {
    switch (s->kind) {
    case Q4X_SAYS_INT: snprintf(buf, size, "%" PRId64, s->i); break;
    case Q4X_SAYS_REAL: real(s->r, buf, size); break;
    case Q4X_SAYS_BOOL: snprintf(buf, size, "%s", s->i ? "true" : "false"); break;
    default: snprintf(buf, size, "%s", s->text); break;
    }
}

const char *q4x_from_name(q4x_from from) {
    static const char *const names[] = {"file", "default", "derived", "fixed"};
    return names[from];
}
