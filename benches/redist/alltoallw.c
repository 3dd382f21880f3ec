/* MPI_Alltoallw with subarrays between two halves of one world: alltoallw LENGTH VERSIONS [huge]. The first half has blocks of rows, the second
 * blocks of columns. Rank 0 prints the time of each version in nanoseconds, from the first who begins to the last who has all. With
 * "huge" the memory is in large pages, as NumPy's is. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int count, char **words) {
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 3 || size % 2) MPI_Abort(MPI_COMM_WORLD, 2);
    int length = atoi(words[1]), versions = atoi(words[2]), half = size / 2, is_source = rank < half;
    int own = length / half, place = rank % half;
    size_t bytes = ((size_t)own * length * sizeof(double) + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    double *cells = aligned_alloc(2 << 20, bytes);
    if (!cells) MPI_Abort(MPI_COMM_WORLD, 2);
    if (count == 4) madvise(cells, bytes, MADV_HUGEPAGE);
    memset(cells, 0, bytes);
    int *counts = calloc(4 * (size_t)size, sizeof *counts);
    int *send = counts, *receive = counts + size, *zeros = counts + 2 * size;
    MPI_Datatype *types = malloc(2 * (size_t)size * sizeof *types);
    for (int other = 0; other < size; other++) {
        types[other] = types[size + other] = MPI_DOUBLE;
        if ((other < half) == is_source) continue;
        int shape[2], part[2] = {own, own}, start[2] = {0, 0};
        shape[0] = is_source ? own : length;
        shape[1] = is_source ? length : own;
        start[is_source] = other % half * own;
        MPI_Datatype *type = &types[is_source ? other : size + other];
        MPI_Type_create_subarray(2, shape, part, start, MPI_ORDER_C, MPI_DOUBLE, type);
        MPI_Type_commit(type);
        (is_source ? send : receive)[other] = 1;
    }
    for (int version = 0; version < versions; version++) {
        if (is_source)
            for (int row = 0; row < own; row++)
                for (int column = 0; column < length; column++)
                    cells[(size_t)row * length + column] = ((double)place * own + row) * length + column + version;
        MPI_Barrier(MPI_COMM_WORLD);
        double begin = now(), end, first, last;
        MPI_Alltoallw(cells, send, zeros, types, cells, receive, zeros, types + size, MPI_COMM_WORLD);
        end = now();
        if (!is_source)
            for (int row = 0; row < length; row++)
                for (int column = 0; column < own; column++)
                    if (cells[(size_t)row * own + column] != (double)row * length + (double)place * own + column + version)
                        MPI_Abort(MPI_COMM_WORLD, 3);
        MPI_Reduce(&begin, &first, 1, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
        MPI_Reduce(&end, &last, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (!rank) printf("%.0f\n", last - first);
    }
    MPI_Finalize();
    return 0;
}
