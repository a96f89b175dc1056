#include "lib/machine.h"

#include <fenv.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "lib/version.h"

int q4x_machine_check(q4x_err *err) {
#ifdef __x86_64__
    __builtin_cpu_init();
    if (q4x_build.x86_64_v3 &&
        !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")))
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "this program was built for x86-64-v3, but the processor has no AVX2, FMA or BMI2; "
                        "build it here with: make MARCH=");
    unsigned csr = __builtin_ia32_stmxcsr() & ~0x3fu; /* the low six bits only remember what happened */
    if (!(csr == 0x1f80))
        return q4x_fail(err, Q4X_E_UNSUPPORTED,
                        "the processor's float control word (MXCSR) is 0x%04x, expected 0x1f80: something flushes "
                        "subnormals, unmasks traps or rounds another way",
                        csr);
#endif
    if (!(fegetround() == FE_TONEAREST)) return q4x_fail(err, Q4X_E_UNSUPPORTED, "the rounding mode is not to-nearest");
    return 0;
}

unsigned long long q4x_machine_resident(void) {
    unsigned long long pages = 0, total = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%llu %llu", &total, &pages) != 2) pages = 0;
    fclose(f);
    return pages * (unsigned long long)sysconf(_SC_PAGESIZE);
}

unsigned long long q4x_machine_resident_peak(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : (unsigned long long)u.ru_maxrss * 1024;
}

unsigned long long q4x_machine_memory(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (unsigned long long)pages * (unsigned long long)size : 0;
}

int q4x_machine_cpus(void) {
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? (int)sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
    return n > 0 ? n : 1;
}

double q4x_machine_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
