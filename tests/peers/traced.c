/* A program whose messages are known: what the tracer wrote down of it can be compared call by call.
 * Four ranks; rank 0 collects from anybody, everybody exchanges with both neighbours of a ring. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void compute(void) {
    struct timespec start, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
    do clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    while ((now.tv_sec - start.tv_sec) * 1000000000L + (now.tv_nsec - start.tv_nsec) < 20000000L);
}

int main(int argc, char **argv) {
    int rank, size, flag = 0, done, which[2], place;
    double in[8], out[8] = {0}, all[32];
    int counts[4] = {1, 2, 3, 2}, places[4] = {0, 1, 3, 6};
    int ones[4] = {1, 1, 1, 1}, offsets[4] = {0, 8, 16, 24};
    MPI_Datatype types[4] = {MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE, MPI_DOUBLE};
    MPI_Request two[2], again;
    MPI_Comm half;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int next = (rank + 1) % size, before = (rank + size - 1) % size;

    /* What is not written down: a barrier without waiting, and what the library itself sends for a file. */
    if (argc > 2 && strcmp(argv[1], "unseen") == 0) {
        MPI_File file;
        MPI_Datatype places_of_rank;
        MPI_Ibarrier(MPI_COMM_WORLD, &again);
        MPI_Wait(&again, MPI_STATUS_IGNORE);
        MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL, &file);
        MPI_Type_vector(8, 1, size, MPI_DOUBLE, &places_of_rank);
        MPI_Type_commit(&places_of_rank);
        MPI_File_set_view(file, 8 * rank, MPI_DOUBLE, places_of_rank, "native", MPI_INFO_NULL);
        MPI_File_write_all(file, out, 8, MPI_DOUBLE, MPI_STATUS_IGNORE);
        MPI_File_close(&file);
        MPI_Finalize();
        return 0;
    }

    compute();
    MPI_Irecv(in, 8, MPI_DOUBLE, before, MPI_ANY_TAG, MPI_COMM_WORLD, &two[0]);
    MPI_Isend(out, 8, MPI_DOUBLE, next, 1, MPI_COMM_WORLD, &two[1]);
    MPI_Waitall(2, two, MPI_STATUSES_IGNORE);
    MPI_Sendrecv(out, 3, MPI_INT, next, 2, in, 4, MPI_INT, before, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv_replace(out, 3, MPI_INT, next, 7, before, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);

    /* From anybody: first blocking, then with requests. */
    if (rank == 0) {
        for (int one = 1; one < size; one++) MPI_Recv(in, 1, MPI_DOUBLE, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int one = 1; one < size; one++) {
            MPI_Irecv(in, 1, MPI_DOUBLE, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, &again);
            if (one == 1) MPI_Wait(&again, MPI_STATUS_IGNORE);
            else if (one == 2) while (!flag) MPI_Test(&again, &flag, MPI_STATUS_IGNORE);
            else MPI_Waitsome(1, &again, &done, which, MPI_STATUSES_IGNORE);
        }
    } else {
        MPI_Send(out, 1, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD);
        MPI_Ssend(out, 1, MPI_DOUBLE, 0, 4, MPI_COMM_WORLD);
    }
    MPI_Send(out, 1, MPI_DOUBLE, MPI_PROC_NULL, 5, MPI_COMM_WORLD);

    /* Persistent ones, twice. */
    MPI_Send_init(out, 2, MPI_CHAR, next, 6, MPI_COMM_WORLD, &two[0]);
    MPI_Recv_init(in, 2, MPI_CHAR, before, 6, MPI_COMM_WORLD, &two[1]);
    for (int round = 0; round < 2; round++) {
        MPI_Startall(2, two);
        MPI_Waitall(2, two, MPI_STATUSES_IGNORE);
    }
    MPI_Request_free(&two[0]);
    MPI_Request_free(&two[1]);

    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Bcast(out, 4, MPI_DOUBLE, 0, half);
    MPI_Comm_rank(half, &place);
    MPI_Sendrecv(out, 1, MPI_DOUBLE, 1 - place, 8, in, 1, MPI_DOUBLE, 1 - place, 8, half, MPI_STATUS_IGNORE);
    MPI_Comm_free(&half);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Reduce(out, in, 2, MPI_DOUBLE, MPI_SUM, 3, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, out, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Alltoall(out, 2, MPI_DOUBLE, in, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Alltoallw(out, ones, offsets, types, in, ones, offsets, types, MPI_COMM_WORLD);
    MPI_Gather(out, 2, MPI_DOUBLE, all, 2, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Scatter(all, 2, MPI_DOUBLE, in, 2, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Allgatherv(out, counts[rank], MPI_DOUBLE, all, counts, places, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Reduce_scatter(all, in, counts, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(out, 1, MPI_DOUBLE, 2, MPI_COMM_WORLD);
    MPI_Scan(MPI_IN_PLACE, out, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    /* A program that dies here leaves what was written by then. */
    if (argc > 1 && strcmp(argv[1], "die") == 0) { MPI_Barrier(MPI_COMM_WORLD); MPI_Abort(MPI_COMM_WORLD, 7); }
    MPI_Finalize();
    return 0;
}
