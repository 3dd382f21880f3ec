/* MPI_Alltoallw between two halves of one world: alltoallw JOB VERSIONS LENGTH [huge]. Rank 0 prints the time of each version in
 * nanoseconds, from the first who begins to the last who has all. With "huge" the memory is in large pages, as NumPy's is. */
#include <mpi.h>
#include <sys/mman.h>
#include "jobs.h"

#define LARGE_PAGE ((size_t)2 << 20)

/* A part of a local matrix. */
static MPI_Datatype part_of(int rows, int columns, int from_row, int from_column, int part_rows, int part_columns) {
    int shape[2] = {rows, columns}, part[2] = {part_rows, part_columns}, start[2] = {from_row, from_column};
    MPI_Datatype type;
    MPI_Type_create_subarray(2, shape, part, start, MPI_ORDER_C, MPI_DOUBLE, &type);
    return type;
}

/* What a source has for a target in squares: of its own rows those of the target's squares, and in each row each so many columns. */
static MPI_Datatype squares_of(const job *one, int source, int target, int *are_there) {
    int own = one->rows / one->size, high = one->grid[0], wide = one->grid[1], *starts = malloc(sizeof *starts * own), rows = 0;
    for (int row = 0; row < own; row++)
        if ((source * own + row) / BLOCK % high == target / wide) starts[rows++] = row;
    *are_there = rows > 0;
    MPI_Datatype line, placed, type;
    MPI_Type_vector(own_columns(one) / BLOCK, BLOCK, BLOCK * wide, MPI_DOUBLE, &line);
    MPI_Type_create_resized(line, 0, one->columns * sizeof(double), &placed);
    MPI_Type_create_indexed_block(rows, 1, starts, placed, &line);
    MPI_Aint offset = target % wide * BLOCK * sizeof(double);
    MPI_Type_create_hindexed_block(1, 1, &offset, line, &type);
    free(starts);
    return type;
}

/* The type of what one process exchanges with another one, and whether there is anything. */
static MPI_Datatype exchanged(const job *one, int source, int target, int is_source, int *are_there) {
    int own = one->rows / one->size, rows = own_rows(one), columns = own_columns(one);
    if (one->kind == CYCLIC && is_source) return squares_of(one, source, target, are_there);
    /* The rows of the target's part that the source has follow each other. */
    int first = -1, last = -1;
    for (int row = 0; row < rows; row++)
        if (global_index(one, 0, target, row) / own == source) {
            first = first < 0 ? row : first;
            last = row;
        }
    *are_there = first >= 0;
    int there = last - first + 1;
    if (!*are_there) return MPI_DOUBLE;
    if (!is_source) return part_of(rows, columns, first, 0, there, columns);
    int above = global_index(one, 0, target, first) - source * own;
    return part_of(own, one->columns, above, global_index(one, 1, target, 0), there, columns);
}

int main(int count, char **words) {
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 4 || size % 2) MPI_Abort(MPI_COMM_WORLD, 2);
    int versions = atoi(words[2]), half = size / 2, is_source = rank < half, place = rank % half;
    job one = job_of(words[1], half, words[3]);
    size_t cells_here = is_source ? one.rows / half * one.columns : own_rows(&one) * own_columns(&one);
    size_t bytes = (cells_here * sizeof(double) + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    double *cells = aligned_alloc(LARGE_PAGE, bytes);
    if (!cells) MPI_Abort(MPI_COMM_WORLD, 2);
    if (count == 5) madvise(cells, bytes, MADV_HUGEPAGE);
    memset(cells, 0, bytes);
    int *counts = calloc(3 * (size_t)size, sizeof *counts);
    int *send = counts, *receive = counts + size, *zeros = counts + 2 * size;
    MPI_Datatype *types = malloc(2 * (size_t)size * sizeof *types);
    for (int other = 0; other < size; other++) {
        types[other] = types[size + other] = MPI_DOUBLE;
        if ((other < half) == is_source) continue;
        int source = is_source ? place : other, target = is_source ? other % half : place, are_there;
        MPI_Datatype type = exchanged(&one, source, target, is_source, &are_there);
        if (!are_there) continue;
        MPI_Type_commit(&type);
        types[is_source ? other : size + other] = type;
        (is_source ? send : receive)[other] = 1;
    }
    for (int version = 0; version < versions; version++) {
        if (is_source) fill(&one, place, version, cells);
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now(), end, first, last;
        MPI_Alltoallw(cells, send, zeros, types, cells, receive, zeros, types + size, MPI_COMM_WORLD);
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
