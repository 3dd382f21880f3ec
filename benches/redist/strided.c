/* The limit: one strided copy by two threads, rows to columns: strided LENGTH PARTS VERSIONS. Prints nanoseconds for each. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static size_t length, parts;
static double *source, *target;
static pthread_barrier_t barrier;

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* The target has `parts` blocks of columns, one after the other. */
static void copy(size_t from, size_t to) {
    size_t own = length / parts;
    for (size_t row = from; row < to; row++)
        for (size_t part = 0; part < parts; part++)
            memcpy(target + part * own * length + row * own, source + row * length + part * own, own * sizeof *source);
}

static void *other(void *versions) {
    for (int version = 0; version < *(int *)versions; version++) {
        pthread_barrier_wait(&barrier);
        copy(length / 2, length);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    int versions = atoi(words[3]);
    length = strtoul(words[1], NULL, 10);
    parts = strtoul(words[2], NULL, 10);
    source = malloc(length * length * sizeof *source);
    target = malloc(length * length * sizeof *target);
    memset(source, 1, length * length * sizeof *source);
    memset(target, 1, length * length * sizeof *target);
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, other, &versions);
    for (int version = 0; version < versions; version++) {
        pthread_barrier_wait(&barrier);
        long long begin = now();
        copy(0, length / 2);
        pthread_barrier_wait(&barrier);
        printf("%lld\n", now() - begin);
    }
    pthread_join(thread, NULL);
    return 0;
}
