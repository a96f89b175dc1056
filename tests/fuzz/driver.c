/* driver.c: replay of a fuzz corpus where there is no fuzzer.
 *
 * usage: fz_x FILE|FOLDER...   Runs the target on every file. The bytes end where an unreadable page begins, so that a
 * read past the end dies in any build. A folder is a corpus and must hold at least MIN_CORPUS files.
 */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MIN_CORPUS = 200, SECONDS_PER_FILE = 10 };

/* A copy of the file's bytes that ends at an unreadable page. */
typedef struct {
    uint8_t *map, *data;
    size_t map_bytes, size;
} guarded;

static int guarded_open(const char *path, guarded *g) {
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st)) {
        if (f) fclose(f);
        return -1;
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (size_t)st.st_size;
    size_t room = (size + page - 1) / page * page;
    g->map_bytes = room + page;
    g->map = mmap(NULL, g->map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->map == MAP_FAILED) {
        fclose(f);
        return -1;
    }
    g->data = g->map + room - size;
    g->size = size;
    size_t got = fread(g->data, 1, size, f);
    fclose(f);
    if (got == size && !mprotect(g->map + room, page, PROT_NONE)) return 0;
    munmap(g->map, g->map_bytes);
    return -1;
}

static int replay(const char *path) {
    guarded g;
    if (guarded_open(path, &g)) {
        printf("cannot read %s\n", path);
        return -1;
    }
    fprintf(stderr, "%s\n", path); /* the last line says which file killed it */
    alarm(SECONDS_PER_FILE);
    LLVMFuzzerTestOneInput(g.data, g.size);
    alarm(0);
    munmap(g.map, g.map_bytes);
    return 0;
}

/* The twin: a read one byte past the end must kill the process that does it. */
static int guard_works(const char *path) {
    pid_t pid = fork();
    if (!pid) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        fclose(stderr);
        guarded g;
        if (guarded_open(path, &g)) _exit(0);
        volatile const uint8_t *p = g.data;
        _exit(p[g.size] & 0);
    }
    int status = 0;
    return pid > 0 && waitpid(pid, &status, 0) == pid && !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static int replay_folder(const char *folder, long *ret_files, char *ret_first, size_t first_size) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort), bad = 0;
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        free(list[i]);
        if (stat(path, &st) || !S_ISREG(st.st_mode)) continue;
        if (!ret_first[0]) snprintf(ret_first, first_size, "%s", path);
        if (replay(path)) bad++;
        ++*ret_files;
    }
    if (n >= 0) free(list);
    return bad;
}

int main(int argc, char **argv) {
    long files = 0, bad = 0, corpora = 0;
    char first[4096] = "";
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (!stat(argv[i], &st) && S_ISDIR(st.st_mode)) {
            corpora++;
            bad += replay_folder(argv[i], &files, first, sizeof first);
        } else {
            snprintf(first, sizeof first, "%s", argv[i]);
            if (replay(argv[i])) bad++;
            files++;
        }
    }
    if (!files || (corpora && files < MIN_CORPUS * corpora)) {
        printf("%s: %ld files, at least %d expected\n", name, files, corpora ? MIN_CORPUS : 1);
        bad++;
    }
    if (files > bad && !guard_works(first)) {
        printf("%s: twin: a read past the end went unnoticed\n", name);
        bad++;
    }
    printf("%s: %ld passed, %ld failed\n", name, files + 1 - (bad > files ? files : bad), bad);
    return bad != 0;
}
