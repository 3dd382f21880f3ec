! The calls of traced.c in Fortran: what the tracer wrote down of them is the same. Four ranks.
!
! BINDING says through which of Fortran's three doors: 1 mpif.h, 2 the module mpi, 3 the module mpi_f08. What arrives is looked at, for the tracer
! stands between program and library.
#if BINDING == 3
#define HANDLE(kind) type(kind)
#define STATUS_OF_ONE type(MPI_Status)
#define STATUSES(count) type(MPI_Status), dimension(count)
#define SOURCE(status) status%MPI_SOURCE
#else
#define HANDLE(kind) integer
#define STATUS_OF_ONE integer, dimension(MPI_STATUS_SIZE)
#define STATUSES(count) integer, dimension(MPI_STATUS_SIZE, count)
#define SOURCE(status) status(MPI_SOURCE)
#endif

program traced
#if BINDING == 3
  use mpi_f08
#elif BINDING == 2
  use mpi
#endif
  implicit none
#if BINDING == 1
  include 'mpif.h'
#endif
  integer :: rank, ranks, after, before, error, one, done, round
  integer :: which(2), counts(4) = [1, 2, 3, 2], places(4) = [0, 1, 3, 6], whole(3), room(4)
  integer :: ones(4) = 1, offsets(4) = [0, 8, 16, 24]
  integer(kind=MPI_ADDRESS_KIND) :: address
  double precision :: arrived(8), everything(32)
  ! The library changes it where the compiler doesn't see it: in a call that names it by its address alone.
  double precision, volatile :: leaving(8)
  character(len=2) :: letters, arrived_letters
  character(len=8) :: word
  character(len=200) :: path
  logical :: over
  HANDLE(MPI_Request) :: two(2), again
  HANDLE(MPI_Comm) :: half
  HANDLE(MPI_File) :: file
  HANDLE(MPI_Datatype) :: placed, types(4)
  STATUS_OF_ONE :: status
  STATUSES(2) :: statuses

  call MPI_Init(error)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, error)
  after = modulo(rank + 1, ranks)
  before = modulo(rank - 1, ranks)
  leaving = rank

  call get_command_argument(1, word)
  ! What is not written down: a barrier without waiting, and what the library itself sends for a file.
  if (word == 'unseen') then
    call get_command_argument(2, path)
    call MPI_Ibarrier(MPI_COMM_WORLD, again, error)
    call MPI_Wait(again, MPI_STATUS_IGNORE, error)
    call MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE + MPI_MODE_WRONLY, MPI_INFO_NULL, file, error)
    call MPI_Type_vector(8, 1, ranks, MPI_DOUBLE_PRECISION, placed, error)
    call MPI_Type_commit(placed, error)
    address = 8 * rank
    call MPI_File_set_view(file, address, MPI_DOUBLE_PRECISION, placed, 'native', MPI_INFO_NULL, error)
    call MPI_File_write_all(file, leaving, 8, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, error)
    call MPI_File_close(file, error)
    call MPI_Finalize(error)
    stop
  end if

  call compute()
  call MPI_Irecv(arrived, 8, MPI_DOUBLE_PRECISION, before, MPI_ANY_TAG, MPI_COMM_WORLD, two(1), error)
  call MPI_Isend(leaving, 8, MPI_DOUBLE_PRECISION, after, 1, MPI_COMM_WORLD, two(2), error)
  call MPI_Waitall(2, two, statuses, error)
#if BINDING == 3
  call check(statuses(1)%MPI_SOURCE == before, 'source of a message of the ring')
#else
  call check(statuses(MPI_SOURCE, 1) == before, 'source of a message of the ring')
#endif
  call check(all(arrived == before) .and. two(1) == MPI_REQUEST_NULL, 'message of the ring')
  whole = rank
  call MPI_Sendrecv(whole, 3, MPI_INTEGER, after, 2, room, 4, MPI_INTEGER, before, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
  call check(all(room(1:3) == before), 'exchange')
  call MPI_Sendrecv_replace(whole, 3, MPI_INTEGER, after, 7, before, 7, MPI_COMM_WORLD, status, error)
  call check(all(whole == before) .and. SOURCE(status) == before, 'exchange in one place')

  ! From anybody: first blocking, then with requests.
  if (rank == 0) then
    do one = 1, ranks - 1
      if (one == 1) then
        call MPI_Recv(arrived, 1, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, status, error)
        call check(int(arrived(1)) == SOURCE(status), 'source of a message from anybody')
      else
        call MPI_Recv(arrived, 1, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE, error)
      end if
    end do
    do one = 1, ranks - 1
      call MPI_Irecv(arrived, 1, MPI_DOUBLE_PRECISION, MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, again, error)
      over = .false.
      if (one == 1) then
        call MPI_Wait(again, MPI_STATUS_IGNORE, error)
      else if (one == 2) then
        do while (.not. over)
          call MPI_Test(again, over, status, error)
        end do
        call check(int(arrived(1)) == SOURCE(status), 'source of a request from anybody')
      else
        two = MPI_REQUEST_NULL
        two(2) = again
        call MPI_Waitsome(2, two, done, which, MPI_STATUSES_IGNORE, error)
        ! Not which one: in mpi_f08 MPICH 4.0 counts them from 0.
        call check(done == 1 .and. two(2) == MPI_REQUEST_NULL, 'which request is over')
      end if
    end do
  else
    call MPI_Send(leaving, 1, MPI_DOUBLE_PRECISION, 0, 3, MPI_COMM_WORLD, error)
    call MPI_Ssend(leaving, 1, MPI_DOUBLE_PRECISION, 0, 4, MPI_COMM_WORLD, error)
  end if
  call MPI_Send(leaving, 1, MPI_DOUBLE_PRECISION, MPI_PROC_NULL, 5, MPI_COMM_WORLD, error)

  ! Persistent ones, twice.
  write (letters, '(i2)') rank
  call MPI_Send_init(letters, 2, MPI_CHARACTER, after, 6, MPI_COMM_WORLD, two(1), error)
  call MPI_Recv_init(arrived_letters, 2, MPI_CHARACTER, before, 6, MPI_COMM_WORLD, two(2), error)
  do round = 1, 2
    arrived_letters = ''
    call MPI_Startall(2, two, error)
    call MPI_Waitall(2, two, MPI_STATUSES_IGNORE, error)
    read (arrived_letters, '(i2)') one
    call check(one == before, 'persistent message')
  end do
  call MPI_Request_free(two(1), error)
  call MPI_Request_free(two(2), error)

  call MPI_Comm_split(MPI_COMM_WORLD, modulo(rank, 2), -rank, half, error)
  call MPI_Bcast(leaving, 4, MPI_DOUBLE_PRECISION, 0, half, error)
  call check(all(leaving(1:4) == 2 + modulo(rank, 2)), 'broadcast in a half')
  call MPI_Comm_rank(half, one, error)
  call MPI_Sendrecv(leaving, 1, MPI_DOUBLE_PRECISION, 1 - one, 8, arrived, 1, MPI_DOUBLE_PRECISION, 1 - one, 8, half, status, error)
  call check(SOURCE(status) == 1 - one, 'source of a message of a half')
  call MPI_Comm_free(half, error)
  call MPI_Barrier(MPI_COMM_WORLD, error)
  leaving = rank
  call MPI_Reduce(leaving, arrived, 2, MPI_DOUBLE_PRECISION, MPI_SUM, 3, MPI_COMM_WORLD, error)
  if (rank == 3) call check(all(arrived(1:2) == 6), 'sum for one')
  ! The library knows its constants by their addresses.
  call MPI_Allreduce(MPI_IN_PLACE, leaving, 2, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  call check(all(leaving(1:2) == 6), 'sum in its place')
  leaving = rank
  call MPI_Alltoall(leaving, 2, MPI_DOUBLE_PRECISION, arrived, 2, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  call check(all(arrived(1:8:2) == [0, 1, 2, 3]), 'all to all')
  types = MPI_DOUBLE_PRECISION
  call MPI_Alltoallw(leaving, ones, offsets, types, arrived, ones, offsets, types, MPI_COMM_WORLD, error)
  call check(all(arrived(1:4) == [0, 1, 2, 3]), 'all to all of several types')
  call MPI_Gather(leaving, 2, MPI_DOUBLE_PRECISION, everything, 2, MPI_DOUBLE_PRECISION, 1, MPI_COMM_WORLD, error)
  if (rank == 1) call check(all(everything(1:8:2) == [0, 1, 2, 3]), 'gather')
  call MPI_Scatter(everything, 2, MPI_DOUBLE_PRECISION, arrived, 2, MPI_DOUBLE_PRECISION, 1, MPI_COMM_WORLD, error)
  call check(all(arrived(1:2) == rank), 'scatter')
  call MPI_Allgatherv(leaving, counts(rank + 1), MPI_DOUBLE_PRECISION, everything, counts, places, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, error)
  call check(all(everything(1:8) == [0, 1, 1, 2, 2, 2, 3, 3]), 'gather for all')
  call MPI_Reduce_scatter(everything, arrived, counts, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  call check(all(arrived(1:counts(rank + 1)) == 4 * rank), 'sum in parts')
  call MPI_Get_address(leaving, address, error)
  call MPI_Type_create_hindexed(1, [1], [address], MPI_DOUBLE_PRECISION, placed, error)
  call MPI_Type_commit(placed, error)
  leaving(1) = 5 + rank
  call MPI_Bcast(MPI_BOTTOM, 1, placed, 2, MPI_COMM_WORLD, error)
  call check(leaving(1) == 7, 'broadcast from a place in memory')
  call MPI_Type_free(placed, error)
  call MPI_Scan(MPI_IN_PLACE, leaving, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, error)
  call check(leaving(1) == 7 * (rank + 1), 'sum of those before')
  ! A program that dies here leaves what was written by then.
  if (word == 'die') then
    call MPI_Barrier(MPI_COMM_WORLD, error)
    call MPI_Abort(MPI_COMM_WORLD, 7, error)
  end if
  call MPI_Finalize(error)

contains

  ! This clock counts for the whole process, that of the tracer for one thread: longer than in C, so that this one has the 20 ms too.
  subroutine compute()
    double precision :: start, now
    call cpu_time(start)
    now = start
    do while (now - start < 0.04)
      call cpu_time(now)
    end do
  end subroutine

  subroutine check(right, what)
    logical, intent(in) :: right
    character(len=*), intent(in) :: what
    integer :: ignored
    if (right) return
    print *, 'rank', rank, ': got something else for: ', what
    call MPI_Abort(MPI_COMM_WORLD, 9, ignored)
  end subroutine
end program
