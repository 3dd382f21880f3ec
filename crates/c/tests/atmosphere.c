#include <stdio.h>
#include <stdlib.h>
#include "exoskel.h"

/* One process of the atmosphere, as atmosphere.f90: atmosphere RANK SIZE STEPS */
int main(int count, char **words) {
    (void)count;
    int rank = atoi(words[1]), size = atoi(words[2]), steps = atoi(words[3]);
    exoskel_member *me;
    exoskel_array *sst, *heat, *mesh;
    const int64_t shape[] = {16, 24};
    int64_t local[2], first, length;
    if (exoskel_attach("atmosphere", size, rank, &me)) return 1;
    if (exoskel_array_of(me, "sst", EXOSKEL_FLOAT64, EXOSKEL_ORDER_FORTRAN, 2, shape, "*,block", NULL, NULL, &sst)) return 2;
    float own[16];
    if (exoskel_array_in(me, "heat", EXOSKEL_FLOAT32, EXOSKEL_ORDER_C, 1, shape, "block", NULL, NULL, own, &heat)) return 3;
    /* Blocks of the mesh, whose cells the ocean has in no regular way. */
    const int64_t cells_of_mesh = 20;
    int64_t first_cell, cells_here;
    if (exoskel_array_of(me, "mesh", EXOSKEL_INT64, EXOSKEL_ORDER_C, 1, &cells_of_mesh, "block", NULL, NULL, &mesh)) return 10;
    if (exoskel_extent(mesh, 0, &first_cell, &cells_here)) return 11;
    if (exoskel_local_shape(sst, local) || exoskel_extent(sst, 1, &first, &length)) return 4;
    for (int step = 0; step < steps; step++) {
        const double *cells = exoskel_read(sst);
        if (!cells) return 5;
        for (int64_t row = 0; row < local[0]; row++)
            for (int64_t column = 0; column < local[1]; column++)
                if (cells[column * local[0] + row] != 1000 * step + 24 * row + first + column) return 6;
        if (exoskel_done(sst)) return 7;
        const int64_t *values = exoskel_read(mesh);
        if (!values) return 12;
        for (int64_t place = 0; place < cells_here; place++)
            if (values[place] != 100 * step + first_cell + place) return 13;
        if (exoskel_done(mesh)) return 14;
        float *warmth = exoskel_write(heat);
        if (warmth != own) return 8;
        for (int cell = 0; cell < 16 / size; cell++) warmth[cell] = (float)step;
        if (exoskel_done(heat)) return 9;
    }
    return exoskel_leave(me, NULL);
}
