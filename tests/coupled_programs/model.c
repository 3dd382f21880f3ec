/* One process of an MPI program that gives an array and takes one: model PROGRAM GIVES TAKES STEPS. GIVES and TAKES are added to each element. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include "exoskel.h"

#define CHECK(call)                                                             \
    if (call) {                                                                 \
        fprintf(stderr, "%s: %s\n", #call, exoskel_error());                    \
        MPI_Abort(MPI_COMM_WORLD, 1);                                           \
    }

enum { ROWS = 24, COLUMNS = 36 };

int main(int count, char **words) {
    int provided, rank, size;
    if (count != 5) return 2;
    double gives = atof(words[2]), takes = atof(words[3]);
    int steps = atoi(words[4]);
    /* Nothing of ours has a thread or calls MPI: the lowest level is enough. */
    MPI_Init_thread(&count, &words, MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    exoskel_member *me;
    exoskel_array *given, *taken;
    const int64_t shape[] = {ROWS, COLUMNS};
    int64_t local[2], first[2], length[2], begin, owned;
    CHECK(exoskel_attach(words[1], size, rank, &me))
    CHECK(exoskel_array_of(me, "given", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, "block,block", NULL, NULL, &given))
    CHECK(exoskel_array_of(me, "taken", EXOSKEL_FLOAT64, EXOSKEL_ORDER_C, 2, shape, "*,block", NULL, NULL, &taken))
    for (int axis = 0; axis < 2; axis++) CHECK(exoskel_extent(given, axis, &first[axis], &length[axis]))
    CHECK(exoskel_local_shape(taken, local))
    CHECK(exoskel_extent(taken, 1, &begin, &owned))
    for (int step = 1; step <= steps; step++) {
        double *cells = exoskel_write(given);
        CHECK(!cells)
        for (int64_t row = 0; row < length[0]; row++)
            for (int64_t column = 0; column < length[1]; column++)
                cells[row * length[1] + column] = gives + 1000 * step + COLUMNS * (first[0] + row) + first[1] + column;
        CHECK(exoskel_done(given))
        const double *got = exoskel_read(taken);
        CHECK(!got)
        long wrong = 0, all = -1;
        for (int64_t row = 0; row < ROWS; row++)
            for (int64_t column = 0; column < owned; column++)
                wrong += got[row * local[1] + column] != takes + 1000 * step + COLUMNS * row + begin + column;
        CHECK(exoskel_done(taken))
        /* The program's own MPI goes on beside it. */
        MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (all) {
            fprintf(stderr, "step %d: %ld elements are wrong\n", step, all);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
    }
    CHECK(exoskel_leave(me, NULL))
    if (rank == 0) printf("%d steps on %d processes\n", steps, size);
    MPI_Finalize();
    return 0;
}
