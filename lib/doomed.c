/* doomed.c: see doomed.h. The handler may run on any thread, between any two instructions: it makes system calls that
 * are safe there and nothing else. One flag guards the list. Who holds it has every signal blocked, so that the handler
 * never waits for the thread that it interrupted. */
#include "lib/doomed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_flag busy = ATOMIC_FLAG_INIT;
static q4x_doomed *first;

static void take(void) {
    while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) sched_yield();
}

static void lock(sigset_t *old) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, old);
    take();
}

static void unlock(const sigset_t *old) {
    atomic_flag_clear_explicit(&busy, memory_order_release);
    pthread_sigmask(SIG_SETMASK, old, NULL);
}

static void strike(const q4x_doomed *d) {
    for (q4x_doomed **p = &first; *p; p = &(*p)->next)
        if (*p == d) {
            *p = d->next;
            return;
        }
}

void q4x_doom(q4x_doomed *d, const char *path) {
    sigset_t old;
    lock(&old);
    strike(d);
    d->path = path;
    d->next = first;
    first = d;
    unlock(&old);
}

void q4x_pardon(q4x_doomed *d) {
    sigset_t old;
    lock(&old);
    strike(d);
    unlock(&old);
}

/* The files of a folder. readdir allocates, which a handler must not. */
static void empty(int dir) {
    _Alignas(struct dirent64) char buf[4096];
    for (long n; (n = syscall(SYS_getdents64, dir, buf, sizeof buf)) > 0;)
        for (long at = 0; at < n;) {
            const struct dirent64 *e = (const struct dirent64 *)(const void *)(buf + at);
            unlinkat(dir, e->d_name, 0); /* which refuses . and .. */
            at += e->d_reclen;
        }
}

static void remove_it(const char *path) {
    if (!unlink(path) || errno != EISDIR) return;
    int dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0) return;
    empty(dir);
    rmdir(path);
}

static void on_signal(int sig) {
    take(); /* and keep it: this process ends */
    for (const q4x_doomed *d = first; d; d = d->next) remove_it(d->path);
    raise(sig); /* waits for the return from here, and then finds the default action */
}

void q4x_doom_on_signals(void) {
    static const int fatal[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGXCPU};
    for (size_t i = 0; i < sizeof fatal / sizeof *fatal; i++) {
        struct sigaction a = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND}, was;
        sigfillset(&a.sa_mask);
        if (!sigaction(fatal[i], NULL, &was) && was.sa_handler == SIG_DFL) sigaction(fatal[i], &a, NULL);
    }
}
