/* Calls that SimGrid writes down in its replay text, for its reader to be compared with. */
#include <mpi.h>

int main(int argc, char **argv)
{
    int rank, size, other[4] = {0};
    double ones[8] = {1}, sums[32] = {0};
    MPI_Request requests[2];

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int after = (rank + 1) % size, before = (rank + size - 1) % size;

    MPI_Irecv(sums, 8, MPI_DOUBLE, before, 1, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(ones, 8, MPI_DOUBLE, after, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    MPI_Sendrecv(ones, 3, MPI_INT, after, 2, other, 4, MPI_INT, before, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 0) {
        for (int one = 1; one < size; one++)
            MPI_Recv(sums, 1, MPI_DOUBLE, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Send(ones, 1, MPI_DOUBLE, 0, 3, MPI_COMM_WORLD);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Bcast(ones, 4, MPI_DOUBLE, 2, MPI_COMM_WORLD);
    MPI_Reduce(ones, sums, 2, MPI_DOUBLE, MPI_SUM, 3, MPI_COMM_WORLD);
    MPI_Allreduce(ones, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Alltoall(ones, 2, MPI_DOUBLE, sums, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Gather(ones, 2, MPI_DOUBLE, sums, 2, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Scatter(sums, 2, MPI_DOUBLE, ones, 2, MPI_DOUBLE, 1, MPI_COMM_WORLD);
    MPI_Allgather(ones, 2, MPI_DOUBLE, sums, 2, MPI_DOUBLE, MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
