#include "lib/json_in.h"

/* Index of the quote that ends the string whose opening quote is at i; n when there is none. */
static size_t string_end(const char *s, size_t n, size_t i) {
    for (i++; i < n; i++) {
        if (s[i] == '"') return i;
        if (s[i] == '\\') i++;
    }
    return n;
}

size_t q4x_json_span(const char *text, size_t n) {
    if (!n) return 0;
    if (text[0] == '"') {
        size_t e = string_end(text, n, 0);
        return e < n ? e + 1 : 0;
    }
    if (text[0] != '{' && text[0] != '[') return 0;
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (c == '"')
            i = string_end(text, n, i);
        else if (c == '{' || c == '[')
            depth++;
        else if ((c == '}' || c == ']') && --depth == 0)
            return i + 1;
    }
    return 0;
}

/* Count before reading. Unbalanced brackets are left for the parser to name. */
static int check_limits(const char *s, size_t n, const q4x_json_limits *lim, const char *where, q4x_err *err) {
    size_t depth = 0, containers = 0, commas = 0;
    if (n > lim->bytes)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: %zu bytes of JSON, at most %zu are read", where, n, lim->bytes);
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (c == '"')
            i = string_end(s, n, i);
        else if (c == ',')
            commas++;
        else if (c == '{' || c == '[') {
            containers++;
            if (++depth > lim->depth)
                return q4x_fail(err, Q4X_E_FORMAT, "%s: JSON nested deeper than %zu levels at byte %zu", where,
                                lim->depth, i);
        } else if ((c == '}' || c == ']') && depth)
            depth--;
    }
    if (containers > lim->containers || commas > lim->commas)
        return q4x_fail(err, Q4X_E_FORMAT, "%s: JSON with %zu objects and arrays and %zu commas, at most %zu and %zu",
                        where, containers, commas, lim->containers, lim->commas);
    return 0;
}

int q4x_json_read(const char *text, size_t n, const q4x_json_limits *lim, const char *where, json_t **ret,
                  q4x_err *err) {
    int rc = check_limits(text, n, lim, where, err);
    if (rc) return rc;
    json_error_t je;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (!j) {
        if (!*je.text || json_error_code(&je) == json_error_out_of_memory)
            return q4x_fail(err, Q4X_E_NOMEM, "%s: no memory for %zu bytes of JSON", where, n);
        return q4x_fail(err, Q4X_E_FORMAT, "%s: line %d, column %d: %s", where, je.line, je.column, je.text);
    }
    *ret = j;
    return 0;
}
