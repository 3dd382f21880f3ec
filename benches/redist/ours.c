/* One process of ours: ours PROGRAM RANK SIZE LENGTH AXES VERSIONS. Prints a time for each version, in nanoseconds: at the source when it
 * begins to export, at the target when it has read. */
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

int main(int count, char **words) {
    if (count != 7) return 2;
    int is_source = !strcmp(words[1], "source"), versions = atoi(words[6]);
    int64_t length = atoll(words[4]), shape[] = {length, length}, local[2], first[2], owned[2];
    exoskel_member *me;
    exoskel_array *field, *ready;
    must(!exoskel_attach(words[1], atoi(words[3]), atoi(words[2]), &me));
    must(!exoskel_array_of(me, "field", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, words[5], NULL, NULL, &field));
    /* A barrier: the targets say that they wait. */
    shape[0] = atoi(words[3]);
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
            must(exoskel_read(ready) && !exoskel_done(ready));
            printf("%lld\n", now());
            must(!exoskel_done(field));
        } else {
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
