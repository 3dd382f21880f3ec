/* ScaLAPACK's pdgemr2d between two halves of one world: pdgemr2d JOB VERSIONS LENGTH. Rank 0 prints the time of each version in nanoseconds.
 *
 * ScaLAPACK's matrices are columns first: what is a row here is a column there, and the memory is the same. */
#include <mpi.h>
#include "jobs.h"

void Cblacs_pinfo(int *rank, int *size);
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridmap(int *context, int *ranks, int leading, int rows, int columns);
void Cblacs_gridinfo(int context, int *rows, int *columns, int *row, int *column);
void Cpdgemr2d(int rows, int columns, double *from, int from_row, int from_column, int *from_descriptor, double *to, int to_row,
               int to_column, int *to_descriptor, int context);

/* A grid of processes from some rank on, as the transposed matrix has it. */
static int grid_of(int first, int rows, int columns) {
    int context, *ranks = malloc(sizeof *ranks * rows * columns);
    /* Places are columns first too: those of one row of ours follow each other in a column of theirs. */
    for (int rank = 0; rank < rows * columns; rank++) ranks[rank] = first + rank;
    Cblacs_get(0, 0, &context);
    Cblacs_gridmap(&context, ranks, rows, rows, columns);
    free(ranks);
    return context;
}

static void describe(int *descriptor, int context, int64_t rows, int64_t columns, int64_t block_rows, int64_t block_columns, int64_t leading) {
    int values[] = {1, context, rows, columns, block_rows, block_columns, 0, 0, leading};
    memcpy(descriptor, values, sizeof values);
}

int main(int count, char **words) {
    int rank, size;
    MPI_Init(&count, &words);
    Cblacs_pinfo(&rank, &size);
    if (count != 4 || size % 2) MPI_Abort(MPI_COMM_WORLD, 2);
    int versions = atoi(words[2]), half = size / 2, is_source = rank < half, place = rank % half;
    job one = job_of(words[1], half, words[3]);
    int world = grid_of(0, 1, size), from = grid_of(0, 1, half), to = grid_of(half, one.grid[1], one.grid[0]);
    size_t cells_here = is_source ? one.rows / half * one.columns : own_rows(&one) * own_columns(&one);
    double *cells = calloc(cells_here, sizeof *cells);
    int source[9], target[9];
    describe(source, is_source ? from : -1, one.columns, one.rows, one.columns, one.rows / half, one.columns);
    int64_t wide = one.kind == CYCLIC ? BLOCK : own_columns(&one), high = one.kind == CYCLIC ? BLOCK : own_rows(&one);
    describe(target, is_source ? -1 : to, target_columns(&one), target_rows(&one), wide, high, own_columns(&one));
    int row = one.kind == CENTRE ? one.rows / 4 : 0, column = one.kind == CENTRE ? one.columns / 4 : 0;
    for (int version = 0; version < versions; version++) {
        if (is_source) fill(&one, place, version, cells);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now(), end, first, last;
        Cpdgemr2d(target_columns(&one), target_rows(&one), cells, column + 1, row + 1, source, cells, 1, 1, target, world);
        end = now();
        /* Who has all early doesn't take the processors of those who haven't. */
        MPI_Barrier(MPI_COMM_WORLD);
        if (!is_source && !is_right(&one, place, version, cells)) MPI_Abort(MPI_COMM_WORLD, 3);
        MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (!rank) printf("%.0f\n", last - first);
    }
    MPI_Finalize();
    return 0;
}
