/* The limit: one strided copy by two threads: strided JOB PARTS VERSIONS LENGTH. Prints nanoseconds for each. */
#include <pthread.h>
#include "jobs.h"

static job one;
static double *source, *target;
static pthread_barrier_t barrier;

/* The target has its processes' parts one after the other. A thread copies some rows of the source. */
static void copy(int64_t from, int64_t to) {
    int64_t rows = own_rows(&one), columns = own_columns(&one);
    int64_t first = one.kind == CENTRE ? one.rows / 4 : 0, left = one.kind == CENTRE ? one.columns / 4 : 0;
    for (int64_t row = from; row < to; row++) {
        int64_t height = one.kind == CYCLIC ? BLOCK : rows, width = one.kind == CYCLIC ? BLOCK : columns;
        int64_t block = row / height, line = block / one.grid[0] * height + row % height;
        const double *cells = source + (first + row) * one.columns + left;
        for (int64_t at = 0; at < one.grid[1] * columns / width; at++) {
            int64_t part = block % one.grid[0] * one.grid[1] + at % one.grid[1];
            double *place = target + part * rows * columns + line * columns + at / one.grid[1] * width;
            memcpy(place, cells + at * width, width * sizeof *cells);
        }
    }
}

static void *other(void *versions) {
    int64_t rows = target_rows(&one);
    for (int version = 0; version < *(int *)versions; version++) {
        pthread_barrier_wait(&barrier);
        copy(rows / 2, rows);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 5) return 2;
    int versions = atoi(words[3]);
    one = job_of(words[1], atoi(words[2]), words[4]);
    size_t bytes = one.rows * one.columns * sizeof *source;
    source = malloc(bytes);
    target = malloc(bytes);
    job whole = one;
    whole.size = 1;
    fill(&whole, 0, 0, source);
    memset(target, 1, bytes);
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, other, &versions);
    for (int version = 0; version < versions; version++) {
        pthread_barrier_wait(&barrier);
        long long begin = now();
        copy(0, target_rows(&one) / 2);
        pthread_barrier_wait(&barrier);
        printf("%lld\n", now() - begin);
    }
    pthread_join(thread, NULL);
    int64_t part = own_rows(&one) * own_columns(&one);
    for (int rank = 0; rank < one.size; rank++)
        if (!is_right(&one, rank, 0, target + rank * part)) return 3;
    return 0;
}
