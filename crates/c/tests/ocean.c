#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "exoskel.h"

#define CHECK(call)                                              \
    if (call) {                                                  \
        fprintf(stderr, "%s: %s\n", #call, exoskel_error());     \
        return 1;                                                \
    }

/* One process of the ocean: ocean RANK SIZE STEPS */
int main(int count, char **words) {
    (void)count;
    int rank = atoi(words[1]), size = atoi(words[2]), steps = atoi(words[3]);
    exoskel_member *me;
    exoskel_array *sst, *heat;
    const int64_t shape[] = {16, 24};
    int64_t local[2], first[2], length[2];
    CHECK(exoskel_attach("ocean", size, rank, &me))
    CHECK(exoskel_array_of(me, "sst", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, "block,block", NULL, NULL, &sst))
    /* In memory of its own: four processes share sixteen cells. */
    float own[4] = {-1, -1, -1, -1};
    CHECK(exoskel_array_in(me, "heat", EXOSKEL_FLOAT32, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, own, &heat))
    CHECK(exoskel_local_shape(sst, local))
    for (int axis = 0; axis < 2; axis++) CHECK(exoskel_extent(sst, axis, &first[axis], &length[axis]))
    if (memcmp(local, length, sizeof local)) return 2;
    for (int step = 0; step < steps; step++) {
        double *cells = exoskel_write(sst);
        CHECK(cells == NULL)
        for (int64_t row = 0; row < local[0]; row++)
            for (int64_t column = 0; column < local[1]; column++)
                cells[row * local[1] + column] = 1000 * step + 24 * (first[0] + row) + first[1] + column;
        CHECK(exoskel_done(sst))
        const float *warmth = exoskel_read(heat);
        CHECK(warmth != own)
        if (warmth[0] != (float)step) return 3;
        CHECK(exoskel_done(heat))
    }
    /* What is wrong is said. */
    if (exoskel_done(sst) != -1 || !strstr(exoskel_error(), "neither written nor read")) return 4;
    if (exoskel_array_of(me, "more", 77, 0, 1, shape, "block", NULL, NULL, &sst) != -1) return 5;
    if (!strstr(exoskel_error(), "got the type 77")) return 6;
    if (exoskel_write(NULL) || !strstr(exoskel_error(), "got NULL")) return 7;
    return exoskel_leave(me, NULL);
}
