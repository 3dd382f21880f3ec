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
    exoskel_array *sst, *heat, *mesh;
    const int64_t shape[] = {16, 24};
    int64_t local[2], first[2], length[2];
    /* Each process has every size-th cell of the mesh, from the last one on. */
    const int64_t cells_of_mesh = 20;
    int64_t mine[20], cells_of_mine[20], count_of_mine = 0;
    const int64_t *sets[] = {mine};
    for (int64_t cell = cells_of_mesh - 1; cell >= 0; cell--)
        if (cell % size == rank) mine[count_of_mine++] = cell;
    CHECK(exoskel_attach("ocean", size, rank, &me))
    CHECK(exoskel_array_of(me, "sst", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, "block,block", NULL, NULL, &sst))
    /* In memory of its own: four processes share sixteen cells. */
    float own[4] = {-1, -1, -1, -1};
    CHECK(exoskel_array_in(me, "heat", EXOSKEL_FLOAT32, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, own, &heat))
    CHECK(exoskel_array_indices(me, "mesh", EXOSKEL_INT64, EXOSKEL_ORDER_C, 1, &cells_of_mesh, "indices", NULL,
                                &count_of_mine, sets, cells_of_mine, &mesh))
    CHECK(exoskel_local_shape(mesh, local))
    if (local[0] != count_of_mine) return 8;
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
        int64_t *values = exoskel_write(mesh);
        CHECK(values != cells_of_mine)
        for (int64_t place = 0; place < count_of_mine; place++) values[place] = 100 * step + mine[place];
        CHECK(exoskel_done(mesh))
        const float *warmth = exoskel_read(heat);
        CHECK(warmth != own)
        if (warmth[0] != (float)step) return 3;
        CHECK(exoskel_done(heat))
    }
    /* What is wrong is said. */
    if (exoskel_done(sst) != -1 || !strstr(exoskel_error(), "neither written nor read")) return 4;
    if (exoskel_array_of(me, "more", 77, 0, 1, shape, "block", NULL, NULL, &sst) != -1) return 5;
    if (!strstr(exoskel_error(), "got the type 77")) return 6;
    if (exoskel_array_of(me, "more", EXOSKEL_INT64, 0, 1, shape, "indices", NULL, NULL, &sst) != -1) return 9;
    if (!strstr(exoskel_error(), "call exoskel_array_indices")) return 10;
    mine[0] = -1;
    if (exoskel_array_indices(me, "more", EXOSKEL_INT64, 0, 1, shape, "indices", NULL, &count_of_mine, sets, NULL, &sst) != -1)
        return 11;
    if (!strstr(exoskel_error(), "got the index -1 in the indices on axis 0")) return 12;
    if (exoskel_write(NULL) || !strstr(exoskel_error(), "got NULL")) return 7;
    return exoskel_leave(me, NULL);
}
