#include "lib/amount.h"

#include <stdio.h>

q4x_amount_text q4x_amount(uint64_t bytes) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    q4x_amount_text t;
    double x = (double)bytes;
    int u = 0;
    for (; x >= 999.5 && u < 6; u++) x /= 1000;
    snprintf(t.s, sizeof t.s, u && x < 99.95 ? x < 9.995 ? "%.2f %s" : "%.1f %s" : "%.0f %s", x, units[u]);
    return t;
}
