/* One process of ours: ours PROGRAM RANK SIZE LENGTH AXES VERSIONS [own|first]. Prints a time for each version, in nanoseconds: at the source when
 * it begins to export, at the target when it has read. With "own" the array is in memory of its own. With "first" there is one
 * version and no barrier, and what is printed is when the process has attached, and when it has exported or read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "exoskel.h"

static long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void must(int is_good) {
    if (!is_good) {
        fprintf(stderr, "%s\n", exoskel_error());
        exit(1);
    }
}

/* One version, as soon as it can be. */
static int first_version(exoskel_member *me, int is_source, const int64_t *shape, const char *axes) {
    long long attached = now();
    exoskel_array *field;
    must(!exoskel_array_of(me, "field", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, axes, NULL, NULL, &field));
    must(is_source ? exoskel_write(field) != NULL : exoskel_read(field) != NULL);
    must(!exoskel_done(field));
    printf("%lld\n%lld\n", attached, now());
    return exoskel_leave(me, NULL);
}

int main(int count, char **words) {
    if (count != 7 && count != 8) return 2;
    int is_source = !strcmp(words[1], "source"), versions = atoi(words[6]);
    int64_t length = atoll(words[4]), shape[] = {length, length}, local[2], first[2], owned[2];
    exoskel_member *me;
    exoskel_array *field, *filled, *ready;
    must(!exoskel_attach(words[1], atoi(words[3]), atoi(words[2]), &me));
    if (count == 8 && !strcmp(words[7], "first")) return first_version(me, is_source, shape, words[5]);
    if (count == 8) {
        /* Both layouts share it out evenly. */
        size_t bytes = (size_t)length * length * sizeof(double) / atoi(words[3]);
        void *own = malloc(bytes);
        must(own != NULL);
        memset(own, 0, bytes);
        must(!exoskel_array_in(me, "field", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, words[5], NULL, NULL, own, &field));
    } else {
        must(!exoskel_array_of(me, "field", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, words[5], NULL, NULL, &field));
    }
    /* A barrier, as the peers have it: all sources say that they are ready to export, then all targets that they wait. */
    shape[0] = atoi(words[3]);
    must(!exoskel_array_of(me, "filled", EXOSKEL_INT8, EXOSKEL_ORDER_C, 1, shape, is_source ? "block" : "replicated", NULL, NULL, &filled));
    must(!exoskel_array_of(me, "ready", EXOSKEL_INT8, EXOSKEL_ORDER_C, 1, shape, is_source ? "replicated" : "block", NULL, NULL, &ready));
    must(!exoskel_local_shape(field, local));
    for (int axis = 0; axis < 2; axis++) must(!exoskel_extent(field, axis, &first[axis], &owned[axis]));
    for (int version = 0; version < versions; version++) {
        if (is_source) {
            double *cells = exoskel_write(field);
            must(cells != NULL);
            for (int64_t row = 0; row < local[0]; row++)
                for (int64_t column = 0; column < local[1]; column++)
                    cells[row * local[1] + column] = (first[0] + row) * (double)length + first[1] + column + version;
            must(exoskel_write(filled) && !exoskel_done(filled));
            must(exoskel_read(ready) && !exoskel_done(ready));
            printf("%lld\n", now());
            must(!exoskel_done(field));
        } else {
            must(exoskel_read(filled) && !exoskel_done(filled));
            must(exoskel_write(ready) && !exoskel_done(ready));
            const double *cells = exoskel_read(field);
            must(cells != NULL);
            printf("%lld\n", now());
            /* Each element of contiguous parts; of others the sums are compared by the tests. */
            if (owned[0] == local[0] && owned[1] == local[1])
                for (int64_t row = 0; row < local[0]; row++)
                    for (int64_t column = 0; column < local[1]; column++)
                        if (cells[row * local[1] + column] !=
                            (first[0] + row) * (double)length + first[1] + column + version)
                            return 3;
            must(!exoskel_done(field));
        }
    }
    return exoskel_leave(me, NULL);
}
