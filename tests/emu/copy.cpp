/* copy.cpp: copies into shared memory beside a thread (cuda.cuh), done as late as they may be: what is read before it
 * was waited for is not there. */
#include <string.h>

#include "tests/emu/emu_int.h"

namespace {
enum { THREADS = 1024, MOST = 256 };

struct copy {
    void *to;
    const void *from;
    uint64_t batch;
};
struct queue {
    copy wait[MOST];
    unsigned n;
    uint64_t batch; /* that copies belong to now */
    int64_t launch;
    dim3 block;
};
queue queues[THREADS];

/* Of a thread that has just begun the list is empty, or the one before left without waiting. */
queue *mine(void) {
    const dim3 t = emu_at.thread, s = emu_at.size, b = emu_at.block;
    queue *q = &queues[t.x + s.x * (t.y + s.y * t.z)];
    if (q->launch != emu_runs || q->block.x != b.x || q->block.y != b.y || q->block.z != b.z) {
        if (q->n) emu_wrong("a copy that nobody waited for");
        q->launch = emu_runs;
        q->block = b;
    }
    return q;
}
} // namespace

void emu_copy16(void *to, const void *from) {
    queue *q = mine();
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16)
        emu_wrong("a copy of 16 bytes between other addresses than multiples");
    if (q->n == MOST) emu_wrong("too many copies at once");
    q->wait[q->n++] = {to, from, q->batch};
}

void emu_copy_commit(void) {
    mine()->batch++;
}

void emu_copy_wait(int but) {
    queue *q = mine();
    unsigned left = 0;
    for (unsigned i = 0; i < q->n; i++)
        if (q->wait[i].batch + (uint64_t)but < q->batch)
            memcpy(q->wait[i].to, q->wait[i].from, 16);
        else
            q->wait[left++] = q->wait[i];
    q->n = left;
}
